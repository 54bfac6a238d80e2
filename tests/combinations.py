"""Parametrizes tests by few combinations of values; `make soak` runs all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

PARAMS = type(pytest.param())


def pairs(names: str, *values: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize several arguments so that each value of each comes up once at least; the other combinations are slow.

    A value that is marked slow itself comes up in slow combinations alone.
    """
    most = max(map(len, values))
    # Each list is gone through in another order, so that lists of one length do not go together.
    chosen = {
        tuple((n + k * (n // len(each))) % len(each) for k, each in enumerate(values))
        for n in range(most)
    }
    params = []
    for place in itertools.product(*(range(len(each)) for each in values)):
        given = [
            each[n] if isinstance(each[n], PARAMS) else pytest.param(each[n])
            for each, n in zip(values, place, strict=True)
        ]
        often = place in chosen and not any(one.marks for one in given)
        params.append(
            pytest.param(*(one.values[0] for one in given), marks=() if often else pytest.mark.slow)
        )
    return pytest.mark.parametrize(names, params)


def every(count: int, values: Sequence[Any]) -> list[Any]:
    """Every `count`th of these parameters; the others are slow."""
    return [
        value if n % count == 0 else pytest.param(value, marks=pytest.mark.slow)
        for n, value in enumerate(values)
    ]
