"""Which `swa_lrs` average best, and what predicts them: `python -m tests.benchmarks.swa_regret`.

A fit trains three quarters of its epochs at the rate that `find_lr()` suggests; from there SWA begins with each rate of a grid.
Regret: the validation loss of the averaged weights, divided by the lowest of the grid, less 1; losses below 1% of that of the
initial weights count as 1%. A rule takes a fraction of a rate: of the sweep's suggestion, of the suggestion of a second sweep from
the weights at which SWA begins, or of the schedule's last rate before it. Between the rates of the grid losses are interpolated.
Every fit is the same plain loop on `torch.optim.swa_utils`. `--save` adds the measured cases to a file, `--read` makes the tables
from such files.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import json
import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

from .lr_regret import batches, val_loss, workbench
from .lr_tasks import TASKS, Data, Task, share_of

EPOCHS, START = 40, 30
GRID = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
"""Of the sweep's suggestion."""
FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
SCHEDULES = ("constant", "cosine")
WELL = 0.1
"""The regret up to which a rate is as good as the best."""
NAMES = (
    "digits mlp adam", "digits cnn norm nesterov", "autoencoder adam", "vae adam", "diabetes mlp adam", "friedman mlp momentum", "moons mlp adagrad",
    "unbalanced mlp norm sgd", "wave siren adam",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Case:
    """One fit that was continued with SWA at each rate of the grid."""

    task: str
    schedule: str
    seed: int
    suggestion: float
    trained: float | None
    """What a sweep from the weights at which SWA begins suggests."""
    last: float
    losses: tuple[float, ...]
    """Of the averaged weights, for each rate of the grid."""
    unchanged: float
    """The same where the schedule is left as it is."""
    plain: float
    """Of the weights at the end of the schedule, without an average."""

    @property
    def best(self) -> float:
        return min(self.losses)

    def regret(self, rate: float | None) -> float:
        """At this rate; below the grid it is that of its lowest rate, above the grid NaN."""
        if rate is None or rate > GRID[-1] * self.suggestion * 1.0001:
            return math.nan
        logs = np.interp(math.log(rate / self.suggestion), np.log(GRID), np.log(self.losses))
        return math.exp(float(logs)) / self.best - 1


def trained(
    task: Task,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    feed: Iterator[Data],
    rates: list[float | None],
) -> bool:
    """Take an update at each of these rates (None: the optimizer's own); whether all losses were finite."""
    for rate, (x, y) in zip(rates, feed, strict=False):
        for group in optimizer.param_groups if rate is not None else ():
            group["lr"] = rate
        loss = task.loss(model(x), y)
        if not math.isfinite(loss.item()):
            return False
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return True


def measured(task: Task, schedule: str, seed: int, annealing: int) -> Case | None:
    """One case; None: the sweep suggests nothing, or the fit diverges before SWA begins."""
    data = task.data()[0]
    epoch = len(data[0]) // task.batch_size
    task = dataclasses.replace(task, updates=EPOCHS * epoch)
    lr = workbench(task, seed, schedule)
    if lr is None:
        return None
    torch.manual_seed(seed)
    model = task.model()
    nothing = 0.01 * val_loss(task, model)
    optimizer = task.optimizer(model.parameters(), lr=lr)
    rates: list[float | None] = [
        lr * share_of(schedule, update, task.updates) for update in range(task.updates)
    ]
    last = rates[START * epoch]
    assert last is not None
    if not trained(
        task, model, optimizer, batches(data, task.batch_size, seed), rates[: START * epoch]
    ):
        return None
    again = workbench(
        dataclasses.replace(task, model=functools.partial(copy.deepcopy, model)), seed, "constant"
    )

    def continued(target: float | None) -> tuple[float, float]:
        """The loss of the averaged weights, and that of the last ones; target None: by the schedule."""
        torch.manual_seed(seed)
        own, opt = copy.deepcopy((model, optimizer))
        for group in opt.param_groups:
            group["lr"] = group["initial_lr"] = last
        average = AveragedModel(own)
        to_target = None if target is None else SWALR(opt, target, annealing)
        feed = batches(data, task.batch_size, seed + 1000)
        for number in range(START, EPOCHS):
            if not trained(
                task,
                own,
                opt,
                feed,
                rates[number * epoch : (number + 1) * epoch]
                if to_target is None
                else [None] * epoch,
            ):
                return math.inf, math.inf
            average.update_parameters(own)
            if to_target is not None:
                to_target.step()
        average.train()
        update_bn(data[0].split(task.batch_size), average)
        found = [val_loss(task, part) for part in (average, own)]
        averaged, end = (max(loss, nothing) if math.isfinite(loss) else math.inf for loss in found)
        return averaged, end

    losses = tuple(continued(fraction * lr)[0] for fraction in GRID)
    return Case(task.name, schedule, seed, lr, again, last, losses, *continued(None))


def cell(values: list[float]) -> str:
    """The median and the worst of these regrets, and how many are as good as the best."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return f"{'':>24}"
    return f"{statistics.median(known):>7.0%}{max(known):>8.0%}{f'{sum(v <= WELL for v in known)} of {len(known)}':>9}"


def show(cases: list[Case]) -> None:
    """The tables: the range that is good in each task, and the rules."""
    print(
        f"\nwithin {WELL:.0%} of the best, as fractions of the suggestion, each seed; the best; regret without swa_lrs, and without an average"
    )
    for name in dict.fromkeys(case.task for case in cases):
        for schedule in SCHEDULES:
            own = [case for case in cases if (case.task, case.schedule) == (name, schedule)]
            good = [[f for f in GRID if case.regret(f * case.suggestion) <= WELL] for case in own]
            ranges = ", ".join(f"{fit[0]:g}-{fit[-1]:g}" for fit in good)
            best = ", ".join(f"{GRID[case.losses.index(case.best)]:g}" for case in own)
            left = ", ".join(f"{case.unchanged / case.best - 1:.0%}" for case in own)
            plain = ", ".join(f"{case.plain / case.best - 1:.0%}" for case in own)
            print(f"{name:<26}{schedule:<10}{ranges:>22}{best:>14}{left:>14}{plain:>14}")
    rules: dict[str, Callable[[Case], float | None]] = {
        "the suggestion": lambda case: case.suggestion, "the sweep from there": lambda case: case.trained, "the last rate": lambda case: case.last
    }  # fmt: skip
    print(
        f"\n{'regret: median, worst, well':<28}"
        + "".join(f"{schedule:>24}" for schedule in SCHEDULES)
    )
    for rule, rate_of in rules.items():
        for fraction in FRACTIONS:
            row = []
            for schedule in SCHEDULES:
                rates = [(case, rate_of(case)) for case in cases if case.schedule == schedule]
                row.append(
                    cell(
                        [
                            case.regret(None if rate is None else fraction * rate)
                            for case, rate in rates
                        ]
                    )
                )
            print(f"{f'{fraction:g} of {rule}':<28}{''.join(row)}")
    for name in ("unchanged", "plain"):
        cells = [
            cell(
                [getattr(case, name) / case.best - 1 for case in cases if case.schedule == schedule]
            )
            for schedule in SCHEDULES
        ]
        print(
            f"{ {'unchanged': 'the schedule unchanged', 'plain': 'no average'}[name]:<28}{''.join(cells)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--tasks", nargs="*", default=NAMES, help="those whose name holds one of these words"
    )
    parser.add_argument("--annealing", type=int, default=3, help="annealing_epochs")
    parser.add_argument("--save", type=Path, help="a file that gets a line of JSON for each case")
    parser.add_argument("--read", type=Path, nargs="*", help="such files; nothing is measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    cases = [
        Case(**{**json.loads(line), "losses": tuple(json.loads(line)["losses"])})
        for path in options.read or ()
        for line in path.open()
    ]
    for task in TASKS if options.read is None else ():
        for schedule in SCHEDULES if any(word in task.name for word in options.tasks) else ():
            for seed in range(options.seeds):
                began = time.perf_counter()
                case = measured(task, schedule, seed, options.annealing)
                print(
                    f"{task.name}, {schedule}, {seed}: {'nothing' if case is None else f'{case.best:.4g}'}  ({time.perf_counter() - began:.0f} s)",
                    flush=True,
                )
                if case is not None:
                    cases.append(case)
                if case is not None and options.save:
                    with options.save.open("a") as file:
                        file.write(json.dumps(dataclasses.asdict(case)) + "\n")
    show(cases)


if __name__ == "__main__":
    main()
