"""Checks that something will report each metric that a fit monitors."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from torch.optim.lr_scheduler import ReduceLROnPlateau

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.protocol import Schedule, Task
from workbench.techniques import limits


class Monitor(NamedTuple):
    """A monitored metric. who: what monitors it, with a place for the name; instead: the remedy
    where nothing reports it.
    """

    name: str
    who: str
    instead: str


def monitors_of(settings: Settings, schedules: Iterable[Schedule] = ()) -> Iterator[Monitor]:
    """The monitors of a fit with these settings and schedules; `fast_dev_run` has none."""
    if settings.fast_dev_run:
        return
    for stop in settings.early_stopping:
        yield Monitor(
            stop.monitor,
            "early_stopping: the monitor {!r}",
            "Give EarlyStopping(monitor=…) one of them.",
        )
    for schedule in schedules:
        if (
            isinstance(schedule.scheduler, ReduceLROnPlateau)
            and schedule.interval != "manual"
            and schedule.strict
        ):
            yield Monitor(
                schedule.monitor or "val_loss",
                "the scheduler's monitor {!r}",
                "Give the scheduler's monitor one of them.",
            )
    if settings.monitor is not None and settings.save_top_k:
        yield Monitor(
            settings.monitor, "monitor={!r}", "Give monitor= one of them, or save_top_k=0."
        )


def with_averages(names: Iterable[str], settings: Settings) -> set[str]:
    """These names of metrics, and those that the averaged weights will have."""
    reported = set(names)
    if settings.weight_averaging is None:
        return reported
    return reported | {f"{name}_averaged" for name in reported if name != "train_loss"}


def refuse_unreported(task: Task, settings: Settings, schedules: Iterable[Schedule] = ()) -> None:
    """Raise TaskError for a monitor that no metric of this task will have, where its metrics are
    known before the fit.
    """
    effective = limits.effective_settings(settings)
    names = task.reported(effective)
    if names is not None:
        reported = with_averages(names, effective)
        for monitor in monitors_of(effective, schedules):
            if monitor.name not in reported:
                raise missing(monitor, [*names, *sorted(reported - set(names))], task)


def missing(monitor: Monitor, there: Collection[str], task: Task) -> TaskError:
    """The error for a metric that no validation of this task reports."""
    name = monitor.name
    if name in task.loss_part_names:
        why = (
            "only training reports it, as a part of the loss. Checkpoints and early stopping"
            f" follow metrics of a validation: compute it there too, in metrics={{{name!r}: …}},"
            f" which gives 'val_{name}', or in validation_step."
        )
    elif task.val is None and name.startswith("val"):
        why = (
            "it comes from a validation, and the bench has no data for one: give wb.Workbench(…,"
            " val=…), or follow 'train_loss'."
        )
    else:
        # of several sets
        alike = [candidate for candidate in there if candidate.split("/")[0] == name.split("/")[0]]
        near = difflib.get_close_matches(name, alike or there, n=1, cutoff=0.0 if alike else 0.6)
        why = "there is no such metric." + (f" Did you mean {near[0]!r}?" if near else "")
    return TaskError(
        f"{monitor.who.format(name)}: {why} Those of this run are: {', '.join(there) or 'none'}."
        f" {monitor.instead}"
    )
