"""Parametrizes tests by few combinations of values; `make soak` runs all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def pairs(names: str, first: Sequence[Any], second: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize two arguments so that each value of both comes up once at least; the other pairs are slow."""
    often = max(len(first), len(second))
    chosen = {(n % len(first), n % len(second)) for n in range(often)}
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(one, other, marks=() if (i, k) in chosen else pytest.mark.slow)
            for i, one in enumerate(first) for k, other in enumerate(second)
        ],
    )  # fmt: skip
