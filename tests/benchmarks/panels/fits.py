"""In the kernel: the same CNN trained with the panel open and without one, and one whose every update is noted."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

import workbench as wb
from tests.benchmarks.panels.inside import Timed, timed
from tests.benchmarks.step_overhead import an_update, cnn, data


def bench(root: str, loss: Any = F.cross_entropy, **settings: Any) -> Any:
    """Of the CNN on digits that `step_overhead` has too."""
    return wb.Workbench(cnn(), train=data(), loss=loss, root=root, batch_size=64, accelerator="cpu", **settings)


beside: dict[str, list[float]] = {"shown": [], "unseen": []}
"""Of the fits so far, what all threads but the one that trains have used, in percent of a core."""


def fit(of: Any, steps: int, name: str = "unseen") -> Timed:
    """One fit, to its end; the time of an update is that of the steady state."""
    ended: list[Any] = []
    trained = [0.0]

    def work() -> None:
        job = of.fit(max_steps=steps)
        while not job.ended.wait(0.05):
            trained[0] = _training_thread() or trained[0]
        ended.append(job)

    _, used, span = timed(work, steps)
    beside[name].append(100 * (used * steps - trained[0]) / (span[1] - span[0]))
    return an_update(ended[0], steps), used, span


def _training_thread() -> float | None:
    """Processor seconds that it has used."""
    for thread in threading.enumerate():
        if thread.name == "workbench-runner":
            with suppress(OSError):
                return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
    return None


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
