"""The trackers of a launched run: those that accelerate makes go along, and go on when nobody follows it any longer."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate.tracking import GeneralTracker

import workbench as wb
from tests.engine.problems import labelled, plain_net
from tests.launch.launched import ended, processes_of
from tests.trackers.test_listener import scalars, words
from tests.waiting import wait_for
from workbench.events import Message, StepsDone

pytestmark = pytest.mark.usefixtures("one_thread", "forked_ranks")


class Here(GeneralTracker):
    """An object, which is of the process that made it."""

    name, requires_logging_directory = "here", False

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.finished = False

    @property
    def tracker(self) -> Any:
        return self.steps

    def store_init_configuration(self, values: dict[str, Any]) -> None: ...

    def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
        if "loss" in values:
            self.steps.append(step or 0)

    def finish(self) -> None:
        self.finished = True


class Held:
    """A slow loss, which holds the ranks behind some updates until there is a file."""

    def __init__(self, until: Path) -> None:
        self.until, self.calls = until, 0

    def __call__(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(0.02)
        while self.calls > 100 and not self.until.exists():
            time.sleep(0.02)
        return F.cross_entropy(output, y)


@pytest.mark.slow  # two launched processes that wait
def test_they_go_on_when_the_bench_is_closed(tmp_path: Path) -> None:
    here, lock = Here(), threading.Lock()
    # what cannot be sent to another process, and is no matter to TensorBoard
    unsent = {"tensorboard": {"comment": lock}}
    with ended(tmp_path):
        made = wb.Workbench(
            plain_net(), train=labelled(32), loss=Held(tmp_path / "closed"), root=tmp_path, accelerator="cpu", trackers=["tensorboard", here], max_steps=150,
        )  # fmt: skip
        job = made.fit(strategy="launch", devices=2, batch_size=8)
        wait_for(lambda: any(isinstance(e, StepsDone) for e in job.events) or job.done())
        made.close()
        (tmp_path / "closed").touch()
        run = wb.attach(job.id, tmp_path).result(200)
        # what they told the trackers is in the files
        wait_for(lambda: not processes_of(run.folder))
    assert (run.status, run.step) == ("finished", 150)
    found = scalars(tmp_path / "trackers" / "tensorboard" / job.id)
    told = dict(zip(*found["loss"], strict=True))
    assert max(told) == 149
    losses = dict(zip(run.history["step"], run.history["loss"], strict=True))
    assert all(value == pytest.approx(losses[step]) for step, value in told.items())
    assert words(tmp_path / "trackers" / "tensorboard" / job.id)["status"] == "finished"
    assert here.finished
    assert here.steps[-1:] < [149]

    other = wb.Workbench(
        plain_net(),
        train=labelled(32),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="cpu",
        trackers=unsent,
    )
    with ended(tmp_path):
        kept = other.fit(strategy="launch", devices=1, max_steps=3)
        assert kept.result(200).status == "finished"
    warnings = [e.text for e in kept.events if isinstance(e, Message) and e.level == "warning"]
    assert any("tracker 'tensorboard' stays in this process" in text for text in warnings)
    assert scalars(tmp_path / "trackers" / "tensorboard" / kept.id)["loss"][0] == [0, 1, 2]
