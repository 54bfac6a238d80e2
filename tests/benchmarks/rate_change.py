"""What each answer costs after the batch size or the optimizer has changed: `python -m tests.benchmarks.rate_change`.

A sweep finds a rate at the task's batch size. Then a fit of as many samples has batches four times as large, or a quarter as large, or another
optimizer. It takes the rate as it was, by the square root, in proportion, or by a new sweep. Regret as in `lr_regret`, with a constant rate.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import defaultdict

import torch

from . import lr_regret
from .lr_tasks import ADAM, MOMENTUM, TASKS, Task

AROUND = [2.0**k for k in range(-5, 6)]
CHANGES = ("a quarter of the batch", "four times the batch", "another optimizer")
NAMES = [
    "digits mlp sgd", "digits mlp adam", "digits cnn momentum", "autoencoder adam", "cancer logistic sgd", "friedman mlp momentum",
    "unbalanced mlp norm sgd", "unbalanced mlp adamw",
]  # fmt: skip


def changed(task: Task, change: str) -> tuple[Task, float]:
    """The task after the change, and how many times as many samples an update has."""
    if change == "another optimizer":
        steady = task.optimizer in (torch.optim.SGD, MOMENTUM) or "sgd" in task.name
        return dataclasses.replace(task, optimizer=ADAM if steady else MOMENTUM), 1.0
    factor = 4.0 if change.startswith("four") else 0.25
    size = round(task.batch_size * factor)
    return dataclasses.replace(task, batch_size=size, updates=round(task.updates / factor)), factor


def regrets(task: Task, change: str, seed: int) -> dict[str, float]:
    """What each answer loses against the best rate known."""
    found = lr_regret.workbench(task, seed, "constant")
    after, factor = changed(task, change)
    swept = lr_regret.workbench(after, seed, "constant")
    if found is None or swept is None:
        return {}
    answers = {"as it was": found, "a new sweep": swept}
    if factor != 1.0:
        answers |= {"square root": found * math.sqrt(factor), "in proportion": found * factor}
    rates = {swept * times for times in AROUND} | {*answers.values()}
    losses = {lr: lr_regret.fitted(after, seed, "constant", lr) for lr in rates}
    best = min(losses.values())
    return {answer: losses[lr] / best - 1 for answer, lr in answers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="*", default=NAMES)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    lr_regret.one_thread()
    by_change: dict[tuple[str, str], list[float]] = defaultdict(list)
    for task in (task for task in TASKS if task.name in options.tasks):
        for change in CHANGES:
            for seed in range(options.seeds):
                row = regrets(task, change, seed)
                shown = "  ".join(f"{answer} {regret:.0%}" for answer, regret in row.items())
                print(f"{task.name:<26}{change:<24}{seed}  {shown}", flush=True)
                for answer, regret in row.items():
                    by_change[change, answer].append(regret)
    print(f"\n{'':<42}{'median':>8}{'worst':>12}{'within 25%':>14}")
    for (change, answer), values in sorted(by_change.items()):
        values.sort()
        within = f"{sum(value <= 0.25 for value in values)} of {len(values)}"
        print(
            f"{change:<26}{answer:<16}{values[len(values) // 2]:>8.0%}{values[-1]:>12.0%}{within:>14}"
        )


if __name__ == "__main__":
    main()
