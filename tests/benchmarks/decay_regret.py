"""How good the suggested weight decays are: `python -m tests.benchmarks.decay_regret`.

Regret: the validation loss after a fit at a decay, divided by that at the best decay of a grid (the suggested one included),
less 1. Where nothing is suggested, the optimizer's default stays. Every fit is the same plain loop with a cosine schedule, at
a rate that suits the task; the seeds of a row are shown one by one.
"""

from __future__ import annotations

import argparse
import functools
import logging
import statistics
import tempfile
import time
import warnings
from dataclasses import replace

import torch
import torch.nn.functional as F

import workbench as wb

from .lr_regret import fitted
from .lr_tasks import MOMENTUM, Residual, Task, cancer, diabetes, digits, friedman, mlp, unbalanced

SCHEDULE = "cosine"
ADAMW = functools.partial(torch.optim.AdamW, fused=True)
DECOUPLED = (0.0, 0.01, 0.1, 0.3, 1.0, 3.0)
L2 = (0.0, 1e-4, 1e-3, 1e-2, 3e-2)
TASKS: list[tuple[Task, float, float]] = [
    (
        Task(
            "cancer mlp adamw", lambda: mlp(30, 64, 64, 2), cancer, F.cross_entropy, ADAMW, 32, 1000
        ),
        3e-3,
        0.01,
    ),
    (
        Task(
            "diabetes mlp adamw", lambda: mlp(10, 64, 64, 1), diabetes, F.mse_loss, ADAMW, 32, 1000
        ),
        1e-2,
        0.01,
    ),
    (
        Task("digits mlp adamw", lambda: mlp(64, 64, 10), digits, F.cross_entropy, ADAMW, 32, 1000),
        1e-2,
        0.01,
    ),
    (Task("digits residual adamw", Residual, digits, F.cross_entropy, ADAMW, 32, 500), 3e-3, 0.01),
    (
        Task(
            "friedman mlp adamw", lambda: mlp(10, 64, 64, 1), friedman, F.mse_loss, ADAMW, 64, 1000
        ),
        1e-2,
        0.01,
    ),
    (
        Task(
            "unbalanced mlp adamw",
            lambda: mlp(40, 128, 5),
            unbalanced,
            F.cross_entropy,
            ADAMW,
            64,
            1000,
        ),
        1e-2,
        0.01,
    ),
    (
        Task(
            "unbalanced mlp momentum",
            lambda: mlp(40, 128, 5),
            unbalanced,
            F.cross_entropy,
            MOMENTUM,
            64,
            1000,
        ),
        0.1,
        0.0,
    ),
]
"""Each with its rate, and the default weight decay of its optimizer."""


def suggested(task: Task, lr: float, seed: int) -> float | None:
    """What the search suggests."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as root:
        bench = wb.Workbench(
            task.model(), train=task.data()[0], val=task.data()[1], loss=task.loss, optimizer=task.optimizer, batch_size=task.batch_size,
            max_steps=task.updates, lr_schedule=SCHEDULE, lr=lr, seed=seed, root=root, enable_progress_bar=False, accelerator="cpu",
        )  # fmt: skip
        try:
            return bench.find_weight_decay().result().suggestion
        finally:
            bench.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tasks", nargs="*", help="those whose name holds one of these words")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(
        f"{'task':<24}  {'suggested':>14}  {'regret':>12}  {'of the default':>16}  {'of no decay':>13}"
    )
    totals: list[tuple[float, float]] = []
    for task, lr, default in TASKS:
        if options.tasks and not any(word in task.name for word in options.tasks):
            continue
        began, rows = time.perf_counter(), []
        for seed in range(options.seeds):

            @functools.cache
            def loss(decay: float, task: Task = task, lr: float = lr, seed: int = seed) -> float:
                own = functools.partial(task.optimizer, weight_decay=decay)
                return fitted(replace(task, optimizer=own), seed, SCHEDULE, lr)

            found = suggested(task, lr, seed)
            taken = default if found is None else found
            best = min(
                loss(decay)
                for decay in {*(L2 if task.optimizer is MOMENTUM else DECOUPLED), default, taken}
            )
            rows.append(
                (
                    "stays" if found is None else f"{found:g}",
                    *(loss(decay) / best - 1 for decay in (taken, default, 0.0)),
                )
            )
        cells = [
            ", ".join(row[0] for row in rows),
            *(", ".join(f"{row[n]:.0%}" for row in rows) for n in (1, 2, 3)),
        ]
        print(
            f"{task.name:<24}  {cells[0]:>14}  {cells[1]:>12}  {cells[2]:>16}  {cells[3]:>13}  ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
        totals.append(
            (statistics.median(row[1] for row in rows), statistics.median(row[2] for row in rows))
        )
    for number, name in enumerate(("suggested", "default")):
        values = [total[number] for total in totals]
        print(f"{name}: median {statistics.median(values):.0%}, worst {max(values):.0%}")


if __name__ == "__main__":
    main()
