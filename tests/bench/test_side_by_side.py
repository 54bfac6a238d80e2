"""What goes on beside a job: other calls, listeners, the end of the process. None of it may change or lose a run."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests import warm
from workbench.events import Message, StepsDone
from workbench.launch import turns
from workbench.task.factory import task_of
from workbench.tuners.trial_batches import cycled_windows

X, Y = torch.randn(96, 6, generator=torch.Generator().manual_seed(1)), torch.arange(96) % 3


def net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))


def bench(root: Path, model: nn.Module | None = None, **options: Any) -> wb.Workbench:
    options = {"batch_size": 8, "max_epochs": 30, **options}
    return wb.Workbench(
        model or net(), train=(X, Y), loss=F.cross_entropy, root=root, accelerator="cpu", **options
    )


def test_a_bench_made_during_a_fit_leaves_its_dropout_alone(tmp_path: Path) -> None:
    alone = bench(tmp_path).fit().result().history["loss"]
    others = [net() for _ in range(12)]
    job = bench(tmp_path).fit()
    for other in others:
        bench(tmp_path, other)
        if job.done():
            break
    assert np.array_equal(job.result().history["loss"], alone)


def test_a_listener_may_leave_with_systemexit(tmp_path: Path) -> None:
    def leave(event: Any) -> None:
        if isinstance(event, StepsDone):
            raise SystemExit(3)

    run = bench(tmp_path, listeners=[leave], max_epochs=2).fit().result()
    assert run.status == "finished"
    assert len(run.history["loss"]) == 24
    assert any(isinstance(e, Message) and "SystemExit" in e.text for e in run.events)


def test_a_listener_that_waits_for_its_own_job_is_told(tmp_path: Path) -> None:
    made: list[wb.Workbench] = []

    def wait(event: Any) -> None:
        if isinstance(event, StepsDone) and made[0].job is not None:
            made[0].job.result()

    made.append(bench(tmp_path, listeners=[wait], max_epochs=1))
    run = made[0].fit().result(timeout=120)
    assert run.status == "finished"
    assert any(isinstance(e, Message) and "would deadlock" in e.text for e in run.events)


SCRIPT = """
import sys, torch, torch.nn.functional as F
from torch import nn
import workbench as wb
b = wb.Workbench(nn.Linear(6, 3), train=(torch.randn(64, 6), torch.arange(64) % 3), loss=F.cross_entropy,
                 root=sys.argv[1], accelerator="cpu", batch_size=8, max_epochs={epochs})
job = b.fit()
while not any(type(e).__name__ == "StepsDone" for e in job.events):
    pass
{then}
print("leaving", flush=True)
"""


def script(tmp_path: Path, epochs: int, then: str) -> warm.Script:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT.format(epochs=epochs, then=then)))
    process = warm.python().start(str(path), str(tmp_path / "root"))
    assert process.stdout.readline().strip() == "leaving"
    return process


# The main thread counts as over where the interpreter waits for the other ones.
TELL_THE_WAIT = """
import threading, time
def tell():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    print("waiting", flush=True)
threading.Thread(target=tell, daemon=True).start()
"""


def test_an_interrupt_of_the_wait_at_exit_keeps_everything(tmp_path: Path) -> None:
    process = script(tmp_path, 10**6, TELL_THE_WAIT)
    assert process.stdout.readline().strip() == "waiting"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert "terminate called" not in errors
    assert process.returncode >= 0
    (found,) = wb.Workbench(
        nn.Linear(6, 3), train=(X, Y), loss=F.cross_entropy, root=tmp_path / "root"
    ).runs
    assert found.status == "stopped"
    assert len(found.history["loss"]) == found.step > 0
    assert found.folder is not None
    assert [(point.step, point.end) for point in found.checkpoints] == [(found.step, True)]


def test_a_paused_job_does_not_hold_up_the_exit(tmp_path: Path) -> None:
    process = script(tmp_path, 10**6, "job.pause()")
    process.communicate(timeout=120)
    assert process.returncode == 0


def test_trials_take_full_windows(tmp_path: Path) -> None:
    """Where an epoch is shorter than a window, an update of K batches must not be counted for one."""
    task = task_of(net(), train=(X, Y), val=None, test=None, loss=F.cross_entropy, optimizer=torch.optim.SGD,
                   scheduler=None, metrics=None, collate_fn=None)  # fmt: skip
    settings = wb.Settings(batch_size=96, accumulate_grad_batches=8)
    windows = cycled_windows(task, settings, across_epochs=True)
    assert [len(next(windows)) for _ in range(4)] == [8, 8, 8, 8]
    short = cycled_windows(task, settings)
    assert [len(next(short)) for _ in range(4)] == [1, 1, 1, 1]


def test_data_without_a_length_ends_the_search_where_it_ends(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(zip(X[:40], Y[:40], strict=True))

    b = wb.Workbench(
        net(), train=Stream(), loss=F.cross_entropy, root=tmp_path, accelerator="cpu", batch_size=8
    )
    found = b.find_batch_size(init_val=8).result()
    assert [t.size for t in found.trials] == [8, 16, 32]
    assert found.largest == 32
    assert "fewer than 64" in found.ended


def test_what_a_module_holds_of_its_own_comes_back(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(6, 3)
            self._calls = 0
            self.generator = torch.Generator().manual_seed(5)
            self.hidden = torch.zeros(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self._calls += 1
            self.hidden = self.hidden + 1
            self.register_buffer("seen", torch.tensor(self._calls))
            return self.line(x) + torch.rand(3, generator=self.generator) + 0 * self.hidden

    model = Odd()
    before = model.generator.get_state()
    hidden = model.hidden
    b = bench(tmp_path, model)
    b.find_lr(num_training=5).result()
    assert model._calls == 0
    assert torch.equal(model.generator.get_state(), before)
    assert model.hidden is hidden
    assert torch.equal(hidden, torch.zeros(3))
    assert "seen" not in dict(model.named_buffers())


def test_one_cycle_on_an_optimizer_without_momentum_is_flagged(tmp_path: Path) -> None:
    def cycle(
        optimizer: torch.optim.Optimizer, updates: int
    ) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=updates)

    b = bench(tmp_path, optimizer=torch.optim.SGD, scheduler=cycle, lr=0.1)
    curve = b.find_lr().result()
    assert any("momentum" in note for note in curve.notes), curve.notes


def test_cyclic_rates_change_at_both_ends(tmp_path: Path) -> None:
    def cycle(
        optimizer: torch.optim.Optimizer, updates: int
    ) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.CyclicLR(optimizer, base_lr=0.1, max_lr=0.5, step_size_up=4)

    b = bench(tmp_path, optimizer=torch.optim.SGD, scheduler=cycle, lr=0.1, max_epochs=4)
    with turns.alone():  # the job waits until it is asked
        job = b.fit()
        job.change(lr=0.01)
    lrs = job.result().history["lr"]
    assert lrs[-24:].max() == pytest.approx(0.05, rel=1e-3)


def test_weights_are_taken_from_the_runs_own_folder(tmp_path: Path) -> None:
    one, two = bench(tmp_path / "one", max_epochs=1), bench(tmp_path / "two", max_epochs=1, lr=0.1)
    first, second = one.fit().result(), two.fit().result()
    assert first.id == second.id
    two.load(first)
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True)
    )
    with pytest.raises(FileNotFoundError, match="outside"):
        two.load(first, "../outside")
