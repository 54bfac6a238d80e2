"""What tests of commands through a run's folder share: a bench in any process whose fit waits for them at known updates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import bench, labelled, plain_net
from tests.waiting import wait_for
from workbench.events import BenchEvent, Called, Event, Saved, StatusChanged, StepsDone, Validated
from workbench.launch.job import Job
from workbench.runs.run import Run

FIRST, SECOND = 5, 10
"""The updates at which the fit waits until it is asked for what `ask` asks."""


REQUESTS: dict[Path, list[str]] = {}
"""Of each root, the requests that came. They are no state of the loss, which each new fit would put back."""


class Waiting:
    """A cross entropy that waits at FIRST until six requests have come, and at SECOND until the seventh has.

    While it waits, the root has a file that says so.
    """

    def __init__(self, root: Path) -> None:
        self.updates = 0
        self.wanted = {FIRST: 6, SECOND: 7}
        self._root = root.absolute()

    @property
    def requests(self) -> list[str]:
        return REQUESTS.setdefault(self._root, [])

    def __call__(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            wanted = self.wanted.get(self.updates)
            if wanted is not None:
                _waiting(self._root, self.updates).touch()
                wait_for(lambda: len(self.requests) >= wanted)
            self.updates += 1
        return F.cross_entropy(output, y)

    def hear(self, event: BenchEvent) -> None:
        if isinstance(event, Called) and "fit(" not in event.code:
            self.requests.append(event.code)


def commanded(
    root: Path, *listeners: Callable[[BenchEvent], None], **settings: Any
) -> tuple[wb.Workbench, Waiting]:
    """The bench; a fit of it ends when it is stopped."""
    torch.set_num_threads(1)
    loss, data = Waiting(root), labelled(32)
    usual: dict[str, Any] = {
        "max_epochs": 100_000,
        "gradient_clip_val": 1.0,
        "enable_progress_bar": False,
        "dry_run": False,
    }
    return bench(
        plain_net(),
        data,
        root,
        val=data,
        loss=loss,
        listeners=[loss.hear, *listeners],
        **{**usual, **settings},
    ), loss


def ask(job: Job[Any], root: Path) -> None:
    """Every command, the last one of which ends the fit after update SECOND. The fit is the first one under this root."""
    wait_for(_waiting(root, FIRST).exists)
    job.change(lr=0.02)
    job.change(gradient_clip_val=None)
    job.validate()
    job.checkpoint()
    job.pause()
    job.resume()
    wait_for(_waiting(root, SECOND).exists)
    job.stop()


def _waiting(root: Path, update: int) -> Path:
    return root / f"waits-{update}"


def told(run: Run, events: list[Event]) -> dict[str, Any]:
    """What the commands have made of a run, to the bit."""
    return {
        "end": (run.status, run.step),
        "changes": run.changes,
        "history": {
            name: run.history[name].tolist() for name in ("step", "loss", "lr", "grad_norm")
        },
        "validated": [(e.step, e.metrics) for e in events if isinstance(e, Validated)],
        "saved": [(e.step, e.name) for e in events if isinstance(e, Saved)],
        "status": [(e.step, e.status) for e in events if isinstance(e, StatusChanged)],
        "updates": sum(e.rows for e in events if isinstance(e, StepsDone)),
    }
