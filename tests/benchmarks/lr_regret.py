"""How good the suggested learning rates are, beside those of other finders: `python -m tests.benchmarks.lr_regret`.

Regret: the validation loss after a fit at the suggested rate, divided by that at the best rate of a grid, less 1; losses from
0 to 1% of that of the initial weights count as 1%. Share: how much of the fall from the initial loss to the best one is lost, at most 1.
A ratio hides a model that learned nothing where the loss has a high floor, and has no meaning below 0: there the regret is the share.
Every fit is the same plain loop. Median over the seeds; `worst` is the task with the highest median. "present" is the optimizer's default rate.
 A peer is compared where it is installed: Lightning, fastai, torch-lr-finder and ignite.
`--sweeps` trains nothing: it counts over the seeds how often the sweep suggests nothing, or ten times more or less than its median.
`--jobs 16` runs so many cases at a time, each in a process with one thread.

Which of two fits ends lower is partly chance. `--orders 6` compares the race with the sweep alone by means over six orders of the batches.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import importlib.util
import logging
import math
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from workbench.engine.optim.schedule_free import OptimizerModes

from .lr_tasks import SCHEDULES, TASKS, Data, Task, share_of

GRID = [10 ** (k / 3) for k in range(-13, 4)]
UPDATES = 100
"""Updates of each sweep."""
LOWEST, HIGHEST = 1e-5, 10.0
T = TypeVar("T")
Finder = Callable[[Task, int, str], float | None]


def val_loss(task: Task, model: nn.Module) -> float:
    x, y = task.data()[1]
    model.eval()
    with torch.no_grad():
        total = sum(
            task.loss(model(x[i : i + 256]), y[i : i + 256]).item() * len(x[i : i + 256])
            for i in range(0, len(x), 256)
        )
    model.train()
    return total / len(x)


def batches(data: Data, size: int, seed: int) -> Iterator[Data]:
    x, y = data
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(x), generator=generator)
        for i in range(0, len(x) - size + 1, size):
            yield x[order[i : i + size]], y[order[i : i + size]]


def fitted(
    task: Task,
    seed: int,
    schedule: str,
    lr: float,
    order: int | None = None,
    clip: float | None = None,
) -> float:
    """The validation loss after a fit of the planned length. order: seeds what follows the weights, in place of `seed`. clip: a clip value."""
    nothing = 0.01 * initial_loss(task, seed)
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model.parameters(), lr=lr)
    modes = OptimizerModes([optimizer])
    modes.train()
    if order is not None:
        torch.manual_seed(order)
    for update, (x, y) in zip(
        range(task.updates),
        batches(task.data()[0], task.batch_size, seed if order is None else order),
        strict=False,
    ):
        for group in optimizer.param_groups:
            group["lr"] = lr * share_of(schedule, update, task.updates)
        loss = task.loss(model(x), y)
        if not math.isfinite(loss.item()):
            return math.inf
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    modes.eval()
    end = val_loss(task, model)
    if not math.isfinite(end):
        return math.inf
    return end if end < 0 else max(end, nothing)


def initial_loss(task: Task, seed: int) -> float:
    """The validation loss of the initial weights."""
    torch.manual_seed(seed)
    return val_loss(task, task.model())


def loader(task: Task, seed: int) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(
        TensorDataset(*task.data()[0]),
        task.batch_size,
        shuffle=True,
        drop_last=True,
        generator=generator,
    )


def made(task: Task, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = task.model()
    return model, task.optimizer(model.parameters(), lr=LOWEST)


def workbench(task: Task, seed: int, schedule: str, **how: Any) -> float | None:
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as root:
        bench = wb.Workbench(
            task.model(), train=task.data()[0], val=task.data()[1], loss=task.loss, optimizer=task.optimizer, batch_size=task.batch_size,
            max_steps=task.updates, lr_schedule=schedule, seed=seed, root=root, enable_progress_bar=False, accelerator="cpu",
        )  # fmt: skip
        try:
            return bench.find_lr(num_training=UPDATES, **how).result().suggestion
        finally:
            bench.close()


def lightning(task: Task, seed: int, schedule: str) -> float | None:
    import lightning as L
    from lightning.pytorch.tuner import Tuner

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.lr = LOWEST
            self.model = made(task, seed)[0]

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return task.loss(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return task.optimizer(self.parameters(), lr=self.lr)

    with tempfile.TemporaryDirectory() as root:
        trainer = L.Trainer(
            accelerator="cpu", max_epochs=-1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=root,
        )  # fmt: skip
        found = Tuner(trainer).lr_find(
            Module(),
            loader(task, seed),
            min_lr=LOWEST,
            max_lr=HIGHEST,
            num_training=UPDATES,
            update_attr=False,
        )
    return None if found is None else found.suggestion()


def fastai(task: Task, seed: int, schedule: str, rule: str) -> float | None:
    from fastai.basics import DataLoaders, Learner, OptimWrapper
    from fastai.callback import schedule as rules

    model, _ = made(task, seed)
    feed = loader(task, seed)

    def optimizer(parameters: Any, lr: float, **_: Any) -> Any:
        flat = [p for group in parameters for p in (group if isinstance(group, list) else [group])]
        return OptimWrapper(opt=task.optimizer(flat, lr=lr))

    learner = Learner(DataLoaders(feed, feed), model, loss_func=task.loss, opt_func=optimizer)
    with learner.no_bar(), learner.no_logging():
        found = learner.lr_find(
            LOWEST, HIGHEST, UPDATES, show_plot=False, suggest_funcs=(getattr(rules, rule),)
        )
    return float(found[0])


def torch_lr_finder(task: Task, seed: int, schedule: str) -> float | None:
    from matplotlib import pyplot
    from torch_lr_finder import LRFinder

    finder = LRFinder(*made(task, seed), task.loss, device="cpu")
    finder.range_test(loader(task, seed), end_lr=HIGHEST, num_iter=UPDATES)
    figure, ax = pyplot.subplots()
    try:
        found = finder.plot(ax=ax, suggest_lr=True)
    finally:
        pyplot.close(figure)
    return float(found[1]) if isinstance(found, tuple) and found[1] is not None else None


def ignite(task: Task, seed: int, schedule: str) -> float | None:
    from ignite.engine import create_supervised_trainer
    from ignite.handlers import FastaiLRFinder

    model, optimizer = made(task, seed)
    finder, trainer = FastaiLRFinder(), create_supervised_trainer(model, optimizer, task.loss)
    keep = {"model": model, "optimizer": optimizer}
    with finder.attach(
        trainer, to_save=keep, start_lr=LOWEST, end_lr=HIGHEST, num_iter=UPDATES, diverge_th=4.0
    ) as attached:
        attached.run(loader(task, seed))
    return float(finder.lr_suggestion())


def present(task: Task, seed: int, schedule: str) -> float:
    """The rate that the optimizer has by default."""
    return float(task.optimizer(task.model().parameters()).param_groups[0]["lr"])


FINDERS: dict[str, tuple[str, Finder]] = {
    "present": ("torch", present),
    "workbench": ("workbench", workbench),
    "workbench race": ("workbench", functools.partial(workbench, race=True)),
    "fastai minimum": ("fastai", functools.partial(fastai, rule="minimum")),
    "fastai valley": ("fastai", functools.partial(fastai, rule="valley")),
    "torch-lr-finder": ("torch_lr_finder", torch_lr_finder),
    "ignite": ("ignite", ignite),
    "Lightning": ("lightning", lightning),
}


def suggested(finder: Finder, task: Task, seed: int, schedule: str) -> float | None:
    """The rate that a finder suggests, None where it has none or fails."""
    try:
        found = finder(task, seed, schedule)
    except Exception as error:
        print(f"    {type(error).__name__}: {str(error)[:100]}")
        return None
    return found if found is not None and math.isfinite(found) and found > 0 else None


class Case(NamedTuple):
    """One measurement: a task by its name, a schedule and a seed."""

    task: str
    schedule: str
    seed: int


class Lost(NamedTuple):
    """What the rate of a finder loses against the best rate known."""

    regret: float
    share: float


def regrets_of(case: Case) -> dict[str, Lost]:
    """What each finder that is installed loses."""
    task = next(task for task in TASKS if task.name == case.task)
    losses = {lr: fitted(task, case.seed, case.schedule, lr) for lr in GRID}
    found = {
        name: suggested(finder, task, case.seed, case.schedule)
        for name, (package, finder) in FINDERS.items()
        if importlib.util.find_spec(package)
    }
    losses |= {
        lr: fitted(task, case.seed, case.schedule, lr) for lr in found.values() if lr is not None
    }
    best, start = min(losses.values()), initial_loss(task, case.seed)
    return {
        name: lost(math.inf if lr is None else losses[lr], best, start)
        for name, lr in found.items()
    }


def lost(loss: float, best: float, start: float) -> Lost:
    """What a loss loses against the best one, where training begins at `start`."""
    share = min(1.0, (loss - best) / (start - best)) if start > best else 0.0
    return Lost(loss / best - 1 if best > 0 else share, share)


def timed(measure: Callable[[Case], T], case: Case) -> tuple[T, float]:
    """What is measured, and the seconds that it took."""
    began = time.perf_counter()
    return measure(case), time.perf_counter() - began


def changes_of(case: Case, orders: int) -> tuple[float, float]:
    """By how much the race's rate changes the loss of the sweep's, as a share of it, in the mean of so many orders; and in standard errors."""
    task = next(task for task in TASKS if task.name == case.task)
    rates = [
        suggested(FINDERS[name][1], task, case.seed, case.schedule)
        for name in ("workbench", "workbench race")
    ]
    if rates[0] == rates[1] or None in rates:
        return 0.0, 0.0
    losses = [
        [fitted(task, case.seed, case.schedule, lr, order) for order in range(1000, 1000 + orders)]
        for lr in rates
        if lr is not None
    ]
    sweep, race = map(statistics.fmean, losses)
    if math.isinf(sweep):
        return -1.0 if math.isfinite(race) else 0.0, math.inf
    error = (
        math.sqrt(sum(statistics.variance(found) for found in losses) / orders)
        if math.isfinite(race)
        else 0.0
    )
    return race / sweep - 1, (race - sweep) / error if error else math.inf


def swept(case: Case) -> float | None:
    """What the sweep alone suggests."""
    task = next(task for task in TASKS if task.name == case.task)
    return suggested(workbench, task, case.seed, case.schedule)


def count_sweeps(cases: list[Case], jobs: int) -> None:
    """Print for each task and schedule how far the suggestions of the seeds lie from their median."""
    by_task: dict[tuple[str, str], list[float | None]] = defaultdict(list)
    for case, rate, _ in measured(cases, jobs, swept):
        by_task[case.task, case.schedule].append(rate)
    for (task, schedule), rates in by_task.items():
        known = [rate for rate in rates if rate is not None]
        median = statistics.median(known) if known else math.nan
        far = sum(max(rate / median, median / rate) > 10 for rate in known)
        print(
            f"{task}, {schedule}: median {median:.2g}, none in {len(rates) - len(known)}, far from it in {far} of {len(rates)}"
        )


def compare_orders(cases: list[Case], orders: int, jobs: int) -> None:
    """Print how the race compares with the sweep alone in the mean of so many orders of the batches."""
    changes = []
    for case, (change, errors), _ in measured(
        cases, jobs, functools.partial(changes_of, orders=orders)
    ):
        changes.append(change)
        if change:
            print(
                f"{case.task}, {case.schedule}, seed {case.seed}: {change:+.0%}, {abs(errors):.1f} standard errors",
                flush=True,
            )
    better, worse = sum(c < -0.05 for c in changes), sum(c > 0.05 for c in changes)
    print(
        f"the race's rate is another in {sum(c != 0 for c in changes)} of {len(changes)}: better by 5% in {better}, worse in {worse}"
    )


def one_thread() -> None:
    """Make this process measure quietly, on one thread."""
    torch.set_num_threads(1)
    os.environ["MPLBACKEND"] = "Agg"
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def measured(
    cases: list[Case], jobs: int, measure: Callable[[Case], T]
) -> Iterator[tuple[Case, T, float]]:
    """The cases with what is measured of them and the seconds that it took, as they are known."""
    if jobs == 1:
        one_thread()
        for case in cases:
            yield case, *timed(measure, case)
        return
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=spawn, initializer=one_thread
    ) as pool:
        # the slow tasks are the last ones
        futures = {pool.submit(timed, measure, case): case for case in reversed(cases)}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], *future.result()


def table(losses: Mapping[str, list[Lost]]) -> str:
    """A row for each finder: median and worst of its cases' regrets, how many lie within 25%, and the mean and worst shares."""
    rows = [
        f"{'finder':<18}{'median':>8}{'worst':>10}{'within 25%':>14}{'mean share':>12}{'worst':>8}"
    ]
    for name, cases in losses.items():
        regrets, shares = [c.regret for c in cases], [c.share for c in cases]
        within = f"{sum(regret <= 0.25 for regret in regrets)} of {len(cases)}"
        rows.append(
            f"{name:<18}{statistics.median(regrets):>8.0%}{max(regrets):>10.0%}{within:>14}"
            f"{statistics.fmean(shares):>12.1%}{max(shares):>8.0%}"
        )
    return "\n".join(rows)


def against(name: str, others: list[Lost], race: list[Lost]) -> str:
    """How often the race is better or worse than another rate, by more than 5 points of regret or of the share."""
    sentences = []
    for measure in Lost._fields:
        pairs = [
            (getattr(o, measure), getattr(r, measure)) for o, r in zip(others, race, strict=True)
        ]
        gains = [0.0 if other == of_race else other - of_race for other, of_race in pairs]
        worst = max(0.0, -min(gains))
        sentences.append(
            f"by {measure} better in {sum(g > 0.05 for g in gains)}, worse in {sum(g < -0.05 for g in gains)} of {len(gains)}, by at most {worst:.0%}"
        )
    return f"race against {name}: {'; '.join(sentences)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--schedules", nargs="*", default=SCHEDULES, choices=(*SCHEDULES, "linear"))
    parser.add_argument("--tasks", nargs="*", help="those whose name holds one of these words")
    parser.add_argument(
        "--orders",
        type=int,
        default=0,
        help="compare the race with the sweep alone, by so many orders of the batches",
    )
    parser.add_argument("--sweeps", action="store_true", help="the sweep's suggestions alone")
    options = parser.parse_args()
    names = [
        t.name for t in TASKS if not options.tasks or any(word in t.name for word in options.tasks)
    ]
    cases = [
        Case(name, schedule, seed)
        for name in names
        for schedule in options.schedules
        for seed in range(options.seeds)
    ]
    if options.sweeps:
        count_sweeps(cases, options.jobs)
        return
    if options.orders:
        compare_orders(cases, options.orders, options.jobs)
        return
    by_seed: dict[tuple[str, str], list[dict[str, Lost]]] = defaultdict(list)
    of_finder: dict[tuple[str, str], list[Lost]] = defaultdict(list)
    for case, regrets, seconds in measured(cases, options.jobs, regrets_of):
        known = by_seed[case.task, case.schedule]
        known.append(regrets)
        if len(known) < options.seeds:
            continue
        medians = {
            name: Lost(
                *map(statistics.median, zip(*(of_seed[name] for of_seed in known), strict=True))
            )
            for name in regrets
        }
        for name, value in medians.items():
            of_finder[name, case.schedule].append(value)
        row = "  ".join(f"{name} {v.regret:.0%} ({v.share:.0%})" for name, v in medians.items())
        print(f"{case.task}, {case.schedule}: {row}  ({seconds:.0f} s a seed)", flush=True)
    for schedule in (*options.schedules, "all"):
        chosen = options.schedules if schedule == "all" else [schedule]
        found = {
            name: [v for s in chosen for v in of_finder[name, s]]
            for name in FINDERS
            if (name, chosen[0]) in of_finder
        }
        print(f"\n{schedule}: regret over {len(names)} tasks\n{table(found)}")
        for name in ("workbench", "present"):
            print(against(name, found[name], found["workbench race"]))


if __name__ == "__main__":
    main()
