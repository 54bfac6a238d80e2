"""Whether `find_clip_val` recommends values that help: `python -m tests.benchmarks.clip_regret`.

Whole runs with `find_clip_val().best` and without, in the same three fresh orders of the batches, with a plain loop. Where nothing is
recommended both are the same run. Change: the mean loss with the value against the one without, as a share of the fall from the initial
loss to the lower of the two; below 0 the value helps. Noise: the standard deviation of the change over the orders.
"""

from __future__ import annotations

import argparse
import functools
import statistics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from workbench.tuners.clip_search import ClipRequest

from .lr_regret import Case, fitted, initial_loss, measured
from .lr_tasks import ADAM, MOMENTUM, TASKS, Data, Task, friedman, mlp, split
from .tune_regret import task_and_settings

ORDERS = range(1000, 1003)


@functools.cache
def outliers() -> tuple[Data, Data]:
    """A regression in which one target of fifty is wrong by ten deviations; those of the validation are right."""
    (x, y), val = friedman()
    g = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(y), 1, generator=g) < 0.02
    return (x, torch.where(wrong, 10 * torch.randn(len(y), 1, generator=g), y)), val


@functools.cache
def returns() -> tuple[Data, Data]:
    """Returns of episodes: their mean depends on the state, and their noise has heavy tails (Student's t with 2 degrees)."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 10, generator=g)
    normal, others = torch.randn(3000, 1, generator=g), torch.randn(3000, 2, generator=g)
    noise = normal / (others.pow(2).mean(1, keepdim=True)).sqrt()
    return split(x, torch.sin(x[:, :1]) + x[:, 1:2] + noise, torch.float32, scaled=False)


@functools.cache
def tags() -> tuple[Data, Data]:
    """Words with tags, each of which follows from the word and the one before it; one word of four is the first of its sentence."""
    g = torch.Generator().manual_seed(0)
    words = torch.randint(1, 60, (1500, 12), generator=g)
    before = torch.roll(words, 1, 1) * (torch.arange(12) % 4 != 0)
    return split(words, (words % 7 + before % 5) % 9, torch.long, scaled=False)


class Tagger(nn.Module):
    """An LSTM that gives each word a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(60, 32), nn.LSTM(32, 48, batch_first=True)
        self.head = nn.Linear(48, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(x.long()))[0]).flatten(0, 1)


def tagging(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y.flatten())


def of(name: str) -> Task:
    return next(task for task in TASKS if task.name == name)


CLIPPED = [
    (of("noisy counts batch 4 adam"), 3e-3),
    (of("text gru adam"), 3e-2),
    (Task("tagger momentum", Tagger, tags, tagging, MOMENTUM, 16), 1.0),
    (of("digits cnn momentum"), 0.1),
    (Task("outliers mlp adam", lambda: mlp(10, 64, 1), outliers, F.mse_loss, ADAM, 32), 1e-2),
    (Task("returns mlp momentum", lambda: mlp(10, 64, 1), returns, F.mse_loss, MOMENTUM, 16), 1e-2),
]  # fmt: skip
"""Tasks, each with the rate at which it trains."""


def change_of(case: Case) -> tuple[float | None, bool, float, float]:
    """The value, whether it is recommended, its change of the loss, and the noise of that."""
    task, lr = next(pair for pair in CLIPPED if pair[0].name == case.task)
    made, settings = task_and_settings(task, case)
    search = ClipRequest().run(made, settings.replace(lr=lr), lambda event: None, lambda: False)
    value, start = search.suggestion, initial_loss(task, case.seed)
    if value is None:
        return None, False, 0.0, 0.0
    with_it, without = (
        [fitted(task, case.seed, case.schedule, lr, order, clip) for order in ORDERS]
        for clip in (value, None)
    )
    unit = start - min(statistics.fmean(with_it), statistics.fmean(without))
    changes = [(a - b) / unit for a, b in zip(with_it, without, strict=True)]
    return value, bool(search.best), statistics.fmean(changes), statistics.stdev(changes)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--schedules", nargs="*", default=["constant"])
    options = parser.parse_args()
    cases = [
        Case(task.name, schedule, seed)
        for task, _ in CLIPPED
        for schedule in options.schedules
        for seed in range(options.seeds)
    ]
    recommended = []
    for case, (value, chosen, change, noise), _ in measured(cases, options.jobs, change_of):
        recommended.append(change if chosen else 0.0)
        told = "recommended" if chosen else "not recommended"
        print(
            f"{case.task}, {case.schedule}, seed {case.seed}: {value}, {told}, {change:+.1%} ± {noise:.1%}",
            flush=True,
        )
    print(
        f"what is recommended changes the loss by {statistics.fmean(recommended):+.1%} in the mean,"
        f" {max(recommended):+.1%} at worst, {min(recommended):+.1%} at best"
    )


if __name__ == "__main__":
    main()
