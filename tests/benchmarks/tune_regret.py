"""Whether `tune()` is better than the present settings, and than a race alone: `python -m tests.benchmarks.tune_regret`.

The present settings are a task's own with the optimizer's default rate. The race is that of `find_lr(race=True)`. The tuning decides on
rate, batch size and clip value as if each larger batch were faster in proportion, so that only losses can speak against it. Each answer
then trains with as many samples as the task plans, in the same three fresh orders of the batches, in a plain loop. Share: how much of the
fall from the initial loss to the lowest of the three is lost. Cost: the updates of a search as a share of the task's, in batches of the
present size.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import TensorDataset

from workbench.commands import Mailbox
from workbench.engine.setup import open_session
from workbench.events import CurvePoint, Event, RaceTrial
from workbench.settings import Settings
from workbench.task import supervised
from workbench.task.factory import task_of
from workbench.tuners.learning_rate import lr_finder
from workbench.tuners.learning_rate.lr_finder import LRRequest
from workbench.tuners.plan import Plan
from workbench.tuners.plan_search import PlanRequest, PlanSearch

from .lr_regret import Case, fitted, initial_loss, lost, measured, present
from .lr_tasks import TASKS, Task

NAMES = (
    "digits mlp adam", "digits cnn norm nesterov", "digits residual adamw", "autoencoder adam", "cancer logistic sgd", "diabetes mlp adam",
    "friedman mlp momentum", "unbalanced mlp norm sgd", "unbalanced mlp adamw", "noisy counts batch 4 adam", "below zero nll adam",
    "floor simclr momentum", "floor finetune adamw", "kind mlp adamw schedule-free",
)  # fmt: skip
ORDERS = range(1000, 1003)


class Answer(NamedTuple):
    """The settings of a search, the mean loss of the fits with them, and what the search cost."""

    settings: Mapping[str, Any]
    loss: float
    cost: float
    steps: str


def task_and_settings(task: Task, case: Case) -> tuple[supervised.Supervised, Settings]:
    """The task as the engine has it, and its settings."""
    torch.manual_seed(case.seed)
    train, val = (TensorDataset(*data) for data in task.data())
    made = task_of(
        task.model(), train=train, val=val, test=None, loss=task.loss, optimizer=task.optimizer, scheduler=None, metrics=None, collate_fn=None,
    )  # fmt: skip
    settings = Settings.make(
        batch_size=task.batch_size, max_steps=task.updates, lr_schedule=case.schedule, seed=case.seed, accelerator="cpu",
    )  # fmt: skip
    return made, settings


def loss_with(task: Task, case: Case, settings: Mapping[str, Any]) -> float:
    """The mean validation loss of fits with these settings, as many samples each."""
    size = settings.get("batch_size", task.batch_size)
    chosen = dataclasses.replace(
        task, batch_size=size, updates=round(task.updates * task.batch_size / size)
    )
    lr = settings.get("lr", present(task, case.seed, case.schedule))
    clip = settings.get("gradient_clip_val")
    return statistics.fmean(
        fitted(chosen, case.seed, case.schedule, lr, order, clip) for order in ORDERS
    )


def updates_of(plan: Plan, task: Task) -> float:
    """The updates of a tuning, in batches of the present size."""
    chosen = {name: value for step in plan.steps[:-1] for name, value in step.values.items()}
    size = chosen.get("batch_size", task.batch_size)
    updates = len(plan.curve.losses) + sum(trial.updates for trial in plan.curve.race)
    updates += len(plan.clip.norms[0]) * size / task.batch_size if plan.clip.norms else 0
    return updates + sum(
        trial.updates * trial.values.get("batch_size", task.batch_size) / task.batch_size
        for trial in plan.trials
    )


def raced(task: Task, case: Case) -> Answer:
    """What the race alone suggests."""
    made, settings = task_and_settings(task, case)
    events: list[Event] = []
    with open_session(made, settings) as session:
        end = lr_finder.run(session, LRRequest(race=True), events.append, Mailbox())
    updates = sum(e.updates for e in events if isinstance(e, RaceTrial))
    updates += sum(isinstance(e, CurvePoint) for e in events)
    rate = {} if end.suggestion is None else {"lr": end.suggestion}
    return Answer(rate, 0.0, updates / task.updates, "")


def tuned(task: Task, case: Case, searches: tuple[str, ...]) -> Answer:
    """What the tuning recommends."""
    made, settings = task_and_settings(task, case)
    events: list[Event] = []
    speeds = {task.batch_size * times: float(times) for times in (1, 2, 4, 8)}
    PlanSearch(made, settings, PlanRequest(searches, {}, speeds), events.append, Mailbox()).run()
    plan = Plan.from_events(events)
    steps = " | ".join(f"{s.search} {dict(s.values)} {s.reason}" for s in plan.steps)
    return Answer(plan.settings, 0.0, updates_of(plan, task) / task.updates, steps)


def answers_of(case: Case, searches: tuple[str, ...]) -> dict[str, Answer]:
    task = next(task for task in TASKS if task.name == case.task)
    found = {
        "present": Answer({}, 0.0, 0.0, ""),
        "race": raced(task, case),
        "tune": tuned(task, case, searches),
    }
    losses: dict[str, float] = {}
    for answer in found.values():
        key = repr(sorted(answer.settings.items()))
        if key not in losses:
            losses[key] = loss_with(task, case, answer.settings)
    return {
        name: answer._replace(loss=losses[repr(sorted(answer.settings.items()))])
        for name, answer in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--schedules", nargs="*", default=["constant", "cosine"])
    parser.add_argument("--tasks", nargs="*", default=NAMES)
    parser.add_argument(
        "--searches", nargs="*", default=["find_lr", "find_batch_size", "find_clip_val"]
    )
    parser.add_argument("--steps", action="store_true", help="print each plan's steps")
    options = parser.parse_args()
    cases = [
        Case(task.name, schedule, seed)
        for task in TASKS
        if any(name in task.name for name in options.tasks)
        for schedule in options.schedules
        for seed in range(options.seeds)
    ]
    rows: dict[str, list[tuple[float, float]]] = {}
    ask = functools.partial(answers_of, searches=tuple(options.searches))
    for case, answers, seconds in measured(cases, options.jobs, ask):
        task = next(task for task in TASKS if task.name == case.task)
        start, best = initial_loss(task, case.seed), min(a.loss for a in answers.values())
        for name, answer in answers.items():
            share = lost(answer.loss, best, start).share
            rows.setdefault(name, []).append((share, answer.cost))
            print(
                f"{case.task}, {case.schedule}, {case.seed}: {name:<8} {answer.loss:.4g} ({share:.1%})"
                f" {dict(answer.settings)} cost {answer.cost:.2f}",
                flush=True,
            )
        if options.steps:
            print(f"    {answers['tune'].steps}  ({seconds:.0f} s)", flush=True)
    for name, found in rows.items():
        shares, costs = zip(*found, strict=True)
        print(
            f"{name:<8} mean share lost {statistics.fmean(shares):.1%}, worst {max(shares):.0%},"
            f" mean cost {statistics.fmean(costs):.2f} runs, highest {max(costs):.2f}"
        )
    for other in ("present", "race"):
        pairs = list(zip((s for s, _ in rows["tune"]), (s for s, _ in rows[other]), strict=True))
        print(
            f"tune against {other}: better by more than 2 points in {sum(o - t > 0.02 for t, o in pairs)},"
            f" worse in {sum(t - o > 0.02 for t, o in pairs)} of {len(pairs)},"
            f" by at most {max(t - o for t, o in pairs):.1%}"
        )


if __name__ == "__main__":
    main()
