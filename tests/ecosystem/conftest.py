"""Tests with real heavy packages, in an environment of their own: `make ecosystem`. Elsewhere all but those with transformers are left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

_EVERYWHERE = {"test_transformers.py"}
collect_ignore = [] if os.environ.get("WORKBENCH_ECOSYSTEM") else [
    path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in _EVERYWHERE
]  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    """One thread and one seed."""
    torch.manual_seed(0)
