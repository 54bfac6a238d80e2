"""What tests of the engine share."""

import os

import pytest


@pytest.fixture
def no_fsync(monkeypatch):
    """Nothing waits for the disk, which takes most of the time where a test writes many checkpoints."""
    monkeypatch.setattr(os, "fsync", lambda number: None)
