"""A script trains the parameters of a loss module as the run did, to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.export.export_running import Runner, lint, make_bench
from workbench.task.supervised import Supervised

pytestmark = pytest.mark.usefixtures("one_thread")

OWN = """\
class Centres(nn.Module):
    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(3, 3))

    def forward(self, embedding, target):
        return F.cross_entropy(F.normalize(embedding) @ F.normalize(self.centres).T * 8, target)


def forward(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr)
"""
COMMON = "train=(x[:66], y[:66]), val=(x[:41], y[:41]), loss=Centres(), batch_size=8, max_epochs=2, lr=0.01, accelerator='cpu'"
CASES = {
    "alone": "gradient_clip_val=0.5, val_check_interval=4, metrics={'n': lambda o, t: float(len(t))}",
    "windows, averaged weights": "accumulate_grad_batches=2, weight_averaging='ema', ema_decay=0.5",
    "a function of the name of a method of the script's": "optimizer=forward",
}


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_are_those_of_the_run(name: str, runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, f"model, {COMMON}, {CASES[name]}", OWN)
    run = bench.fit().result()
    script = bench.export(tmp_path / "out" / "train.py")
    lint(script)
    outcome = runner.run(script)
    assert np.array_equal(outcome.losses, run.history["loss"])
    task = bench._task
    assert isinstance(task, Supervised)
    for known, value in task.trained_parameters().items():
        assert torch.equal(outcome.weights[known], value), known
    assert "loss.centres" in outcome.weights
    bench.close()


def test_more_processes_than_the_run_had_stay_together(runner: Runner, tmp_path: Path) -> None:
    """DistributedDataParallel follows the loss's parameters too: without it each process would go its own way."""
    bench = make_bench(tmp_path, f"model, {COMMON}", OWN)
    bench.fit().result()
    outcome = runner.run_two(bench.export(tmp_path / "train.py"))
    assert np.isfinite(outcome.losses).all()
    assert "prepare_model(Together(" in (tmp_path / "train.py").read_text()
    bench.close()
