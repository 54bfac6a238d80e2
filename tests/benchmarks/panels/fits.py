"""In the kernel: the same CNN trained with the panel open and without one, and one whose every update is noted."""

from __future__ import annotations

import time
from typing import Any

import torch.nn.functional as F
from torch import Tensor

import workbench as wb
from tests.benchmarks.panels.inside import Timed, timed
from tests.benchmarks.step_overhead import an_update, cnn, data
from workbench.launch.thread import ThreadLauncher


def bench(root: str, loss: Any = F.cross_entropy, **settings: Any) -> Any:
    """Of the CNN on digits that `step_overhead` has too."""
    return wb.Workbench(cnn(), train=data(), loss=loss, root=root, batch_size=64, accelerator="cpu", **settings)


beside: dict[str, list[float]] = {}
"""Of each kind of fits, what all threads but the one that trains have used, in percent of a core."""
_trained: list[float] = []
_run_all = ThreadLauncher._run_all


def _run_and_note(self: ThreadLauncher, device: int | None) -> None:
    _run_all(self, device)
    _trained.append(time.thread_time())


ThreadLauncher._run_all = _run_and_note  # type: ignore[method-assign]


def fit(of: Any, steps: int, kind: str = "") -> Timed:
    """One fit, to its end; the time of an update is that of the steady state."""
    ended: list[Any] = []

    def work() -> None:
        job = of.fit(max_steps=steps)
        job.ended.wait()
        ended.append(job)

    before = len(_trained)
    _, used, span = timed(work, steps)
    while len(_trained) == before:
        time.sleep(0.01)
    beside.setdefault(kind, []).append(100 * (used * steps - _trained[-1]) / (span[1] - span[0]))
    return an_update(ended[0], steps), used, span


noted: list[float] = []
"""When each loss was known."""


def slow_loss(outputs: Tensor, target: Tensor) -> Tensor:
    """Ten updates a second, and somewhat less, so that they come at any time between two messages."""
    time.sleep(0.093)
    loss = F.cross_entropy(outputs, target)
    noted.append(time.time())
    return loss


def followed(of: Any, steps: int) -> list[float]:
    """When each update's loss was known, in a fit of so many."""
    of.fit(max_steps=steps).result()
    return noted[-steps:]
