"""The shares are of what the machine did since the last look."""

import time

import pytest
import torch

from workbench.instruments.usage import Usage


def test_a_busy_core_is_seen():
    machine = Usage(torch.device("cpu"))
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    cpu, gpu = machine.look()
    assert 0.05 / torch.get_num_threads() < cpu <= 1
    assert gpu is None


def test_what_the_library_does_not_know_is_unknown(monkeypatch):
    def fails(device):
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    machine = Usage(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 87)
    assert machine.look()[1] == pytest.approx(0.87)
    monkeypatch.setattr(torch.cuda, "utilization", fails)
    assert machine.look()[1] is None
