"""How near a search comes to the best of 100 random trials: `python -m tests.benchmarks.recipe_regret`.

A random trial chooses optimizer, rate, decay, batch size and schedule, and trains as many samples as the task plans. The best of 100,
each search's answer and the task's own settings then train anew, in the same fresh orders of the batches; their mean validation losses are
compared. Regret: that loss divided by the random search's, less 1 (losses below 1% of the one at the start count as 1%; where losses go
below 0 or stay above a high floor, see `share`). Share: how much of the fall that the random search reaches is lost.
`--random FILE` keeps the trials of the random search, which take most of the time, and reads those that it has.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import schedulefree
import torch

import workbench as wb
from workbench.engine.optim.schedule_free import OptimizerModes

from .lr_regret import batches, initial_loss, lost, measured, one_thread, val_loss
from .lr_tasks import TASKS, Task, share_of

NAMES = (
    "digits mlp sgd", "digits cnn momentum", "digits cnn norm nesterov", "digits residual adamw", "autoencoder adam", "cancer logistic sgd",
    "diabetes mlp adam", "friedman mlp momentum", "unbalanced mlp norm sgd", "unbalanced mlp adamw", "wave siren adam",
    "text transformer adamw", "noisy counts batch 16 adam", "below zero nll adam", "floor simclr momentum", "floor finetune adamw",
    "kind mixer adamw", "kind mlp adamw schedule-free", "wine mlp rmsprop", "moons mlp adagrad", "fresh rings mlp rmsprop",
    "fresh tails mlp dropout adamw", "fresh waveforms cnn norm momentum", "fresh few mlp adam", "fresh spirals mlp nadam", "fresh recall gru adam",
    "fresh moved cnn tuned nesterov", "fresh bumps mlp norm adamw",
)  # fmt: skip
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "schedule_free_adamw": schedulefree.AdamWScheduleFree,
}
Trial = dict[str, Any]
"""The settings of a random trial, and its `loss`."""


def random_trial(task: Task, number: int) -> Trial:
    """The settings of a random trial of this number."""
    choose = random.Random(f"{task.name} {number}")
    return {
        "optimizer": choose.choice([*OPTIMIZERS, "own"]),
        "lr": 10 ** choose.uniform(-4, 0),
        "weight_decay": choose.choice([0.0, 10 ** choose.uniform(-4, 0)]),
        "batch_size": max(1, round(task.batch_size * choose.choice([0.5, 1, 2, 4]))),
        "lr_schedule": choose.choice(["constant", "cosine", "one_cycle"]),
    }


def optimizer_of(task: Task, trial: Trial) -> Callable[..., torch.optim.Optimizer]:
    """The function that makes the optimizer of a trial, without its rate."""
    make = task.optimizer if trial["optimizer"] == "own" else OPTIMIZERS[trial["optimizer"]]
    return functools.partial(make, weight_decay=trial["weight_decay"])


def updates_of(task: Task, size: int) -> int:
    """How many batches of this size have the samples that the task plans."""
    return max(1, round(task.updates * task.batch_size / size))


def trained(task: Task, trial: Trial, seed: int = 0) -> float:
    """The validation loss after a plain loop with these settings."""
    torch.manual_seed(seed)
    model, total = task.model(), updates_of(task, trial["batch_size"])
    optimizer = optimizer_of(task, trial)(model.parameters(), lr=trial["lr"])
    modes = OptimizerModes([optimizer])
    modes.train()
    feed = batches(task.data()[0], trial["batch_size"], seed)
    for update, (x, y) in zip(range(total), feed, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = trial["lr"] * share_of(trial["lr_schedule"], update, total)
        loss = task.loss(model(x), y)
        if not math.isfinite(loss.item()):
            return math.inf
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    modes.eval()
    end = val_loss(task, model)
    return end if math.isfinite(end) else math.inf


def random_search(case: tuple[str, int, int]) -> list[Trial]:
    """The trials of a task from one number to another."""
    name, first, last = case
    task = next(task for task in TASKS if task.name == name)
    trials = []
    for number in range(first, last):
        trial = random_trial(task, number)
        trials.append({**trial, "loss": trained(task, trial)})
    return trials


def bench_of(task: Task, root: str, **settings: Any) -> wb.Workbench:
    """A bench as a user makes it: the task's own optimizer at its default rate."""
    torch.manual_seed(0)
    return wb.Workbench(
        task.model(), train=task.data()[0], val=task.data()[1], loss=task.loss, optimizer=task.optimizer, batch_size=task.batch_size,
        max_steps=task.updates, root=root, enable_progress_bar=False, accelerator="cpu", **settings,
    )  # fmt: skip


def sweep(bench: wb.Workbench) -> Mapping[str, Any]:
    """The user's settings at the rate of a sweep."""
    suggestion = bench.find_lr().result().suggestion
    return {} if suggestion is None else {"lr": suggestion}


def race(bench: wb.Workbench) -> Mapping[str, Any]:
    """The user's settings at the rate of a sweep with a race."""
    suggestion = bench.find_lr(race=True).result().suggestion
    return {} if suggestion is None else {"lr": suggestion}


SEARCHES: dict[str, Callable[[wb.Workbench], Mapping[str, Any]]] = {
    "present": lambda bench: {},
    "sweep": sweep,
    "race": race,
    "recipe": lambda bench: bench.find_recipe().result().best,
}


def final_loss(task: Task, answer: Mapping[str, Any], seed: int) -> float:
    """The validation loss of a whole fit with what a search has answered, from fresh weights in a fresh order."""
    torch.manual_seed(seed)
    size = answer.get("batch_size", task.batch_size)
    with tempfile.TemporaryDirectory() as root:
        bench = bench_of(task, root, seed=seed)
        try:
            torch.manual_seed(seed)
            bench.set(**{"max_steps": updates_of(task, size), **answer})
            run = bench.fit().result()
            return val_loss(task, bench.model) if run.status == "finished" else math.inf
        except FloatingPointError:
            return math.inf
        finally:
            bench.close()


def compare(case: tuple[str, list[Trial], int, list[str]]) -> dict[str, tuple[float, float, float]]:
    """Regret and share of each search, and the seconds that it took as a multiple of a fit."""
    name, trials, seeds, searches = case
    task = next(task for task in TASKS if task.name == name)
    best = min(trials, key=lambda trial: trial["loss"])
    floor = 0.01 * initial_loss(task, 0)

    def mean(loss: Callable[[int], float]) -> float:
        value = statistics.fmean(loss(seed) for seed in range(1, 1 + seeds))
        return value if value < 0 else max(value, floor)

    reference = mean(lambda seed: trained(task, best, seed))
    final_loss(task, {}, 1)  # the first fit of a process takes longer
    began = time.process_time()
    final_loss(task, {}, 1)
    fit = time.process_time() - began
    results = {}
    for search in searches:
        ask = SEARCHES[search]
        with tempfile.TemporaryDirectory() as root:
            bench = bench_of(task, root)
            began = time.process_time()
            try:
                answer = dict(ask(bench))
            finally:
                bench.close()
            cost = (time.process_time() - began) / fit
        loss = mean(lambda seed, answer=answer: final_loss(task, answer, seed))  # type: ignore[misc]
        results[search] = (*lost(loss, reference, initial_loss(task, 0)), cost)
        print(f"  {name}, {search}: {answer}: {loss:.4g} (random {reference:.4g})", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="*", help="those whose name holds one of these words")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3, help="the fresh orders in which all train")
    parser.add_argument("--random", type=Path, help="a file for the random trials")
    parser.add_argument("--searches", nargs="*", default=list(SEARCHES))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    names = [name for name in NAMES if not options.tasks or any(w in name for w in options.tasks)]
    known: dict[str, list[Trial]] = {}
    if options.random is not None and options.random.is_file():
        known = json.loads(options.random.read_text())
    missing = [
        (name, len(known.get(name, [])), options.trials)
        for name in names
        if len(known.get(name, [])) < options.trials
    ]
    for (name, *_), trials, seconds in measured(missing, options.jobs, random_search):  # type: ignore[arg-type]
        known[name] = known.get(name, []) + trials
        print(f"{name}: {len(known[name])} random trials ({seconds:.0f} s)", flush=True)
        if options.random is not None:
            options.random.write_text(json.dumps(known))
    one_thread()
    cases = [
        (name, known[name][: options.trials], options.seeds, options.searches) for name in names
    ]
    if not options.searches:
        return
    table: dict[str, list[tuple[float, float, float]]] = {search: [] for search in options.searches}
    for (name, *_), results, _seconds in measured(cases, options.jobs, compare):  # type: ignore[arg-type]
        for search, result in results.items():
            table[search].append(result)
        row = "  ".join(
            f"{s} {regret:.0%} ({share:.0%})" for s, (regret, share, _) in results.items()
        )
        print(f"{name}: {row}", flush=True)
    print(
        f"{'search':<14}{'median':>8}{'worst':>9}{'within 5%':>12}{'mean share':>12}{'worst':>8}{'cost in fits':>14}"
    )
    for search, rows in table.items():
        regrets, shares, costs = zip(*rows, strict=True)
        within = f"{sum(regret <= 0.05 for regret in regrets)} of {len(rows)}"
        print(
            f"{search:<14}{statistics.median(regrets):>8.0%}{max(regrets):>9.0%}{within:>12}"
            f"{statistics.fmean(shares):>12.1%}{max(shares):>8.0%}{statistics.median(costs):>14.1f}"
        )


if __name__ == "__main__":
    main()
