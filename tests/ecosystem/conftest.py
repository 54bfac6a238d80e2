"""Tests with real heavy packages, in an environment of their own: `make ecosystem`. Elsewhere they are left out."""

from __future__ import annotations

import os

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("WORKBENCH_ECOSYSTEM") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _seeded(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread and one seed, and no hub: whatever would download fails."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    torch.manual_seed(0)
