"""One device: in the kernel's own process, or in a pool of one rank. `python -m tests.benchmarks.launched.alone`.

What each costs while another cell computes in pure Python, and what of a job's doings the notebook's objects show.
"""

from __future__ import annotations

import tempfile
import time
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

import workbench as wb
from tests.benchmarks.step_overhead import an_update, cnn, data, mlp

THREAD, POOL = {"strategy": "thread"}, {"strategy": "pool", "devices": 1}
SECONDS = 3.0


def busy(seconds: float, until: Any = lambda: False) -> float:
    """A cell that counts: how many times a second."""
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds and not until():
        for _ in range(1000):
            count += 1
    return count / (time.perf_counter() - began)


def beside(
    model: nn.Module,
    batch_size: int,
    steps: int,
    root: str,
    where: dict[str, Any],
    *,
    counting: bool,
) -> tuple[float, float]:
    """Seconds for one update, and how often the cell counts meanwhile."""
    bench = wb.Workbench(
        model,
        train=data(),
        loss=F.cross_entropy,
        root=root,
        batch_size=batch_size,
        accelerator="cpu",
    )
    job = bench.fit(max_steps=steps, **where)
    counts = busy(600, job.done) if counting else 0.0
    job._ended.wait()
    return an_update(job, steps), counts


def slow_down(root: str, rounds: int = 3) -> None:
    alone = median(busy(1.0) for _ in range(3))
    print(f"{'an update, beside a cell that':34}{'sleeps':>10}{'counts':>10}   the cell counts at")
    for name, make, batch_size, steps in (("MLP, 32", mlp, 32, 3000), ("CNN, 64", cnn, 64, 800)):
        for where in (THREAD, POOL):
            quiet, loud = [], []
            for _ in range(rounds):
                quiet.append(beside(make(), batch_size, steps, root, where, counting=False))
                loud.append(beside(make(), batch_size, steps, root, where, counting=True))
            slow, fast = median(t for t, _ in loud) * 1e6, median(t for t, _ in quiet) * 1e6
            share = median(n for _, n in loud) / alone
            print(
                f"  {name:14}{where['strategy']:18}{fast:7.0f} us{slow:7.0f} us   {share:4.0%} of its own pace"
            )


class Remembering(nn.Module):
    """A model that notes what it does in ways that people use."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.register_buffer("seen_in_buffer", torch.zeros(()))
        self.count = 0
        self.shapes: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.seen_in_buffer: Tensor = self.seen_in_buffer + len(x)
            self.count += 1
            self.shapes.append(tuple(x.shape))
        out: Tensor = self.line(x)
        return out


class Counting(Dataset[Any]):
    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        return torch.full((4,), float(index)), torch.zeros(1)


LOSSES: list[float] = []


def remembered(output: Tensor, target: Tensor) -> Tensor:
    """A loss function that writes into a list of its module."""
    loss = F.mse_loss(output, target)
    LOSSES.append(float(loss.detach()))
    return loss


def side_effects(root: str) -> None:
    print(f"\n{'after a fit of 16 updates the notebook has':58}{'thread':>8}{'pool':>8}")
    found: list[dict[str, int]] = []
    for where in (THREAD, POOL):
        model, train = Remembering(), Counting()
        bench = wb.Workbench(
            model, train=train, loss=remembered, root=root, batch_size=4, lr=1e-6, accelerator="cpu"
        )
        reads, weight = train.reads, model.line.weight
        before = weight.detach().clone()
        LOSSES.clear()
        bench.fit(max_steps=16, **where).result()
        found.append({
            "the same parameters, trained (1: yes)": int(weight is model.line.weight and not torch.equal(weight, before)),
            "in a buffer of the model": int(model.seen_in_buffer),
            "in a plain attribute of the model": model.count,
            "in a list of the model": len(model.shapes),
            "in an attribute of the data set": train.reads - reads,
            "in a list of the loss function's module": len(LOSSES),
        })  # fmt: skip
    for name, value in found[0].items():
        print(f"  {name:56}{value:8}{found[1][name]:8}")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        slow_down(root)
        side_effects(root)


if __name__ == "__main__":
    main()
