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
    """A monitored metric. who: what monitors it, with a place for the name; instead: the remedy where nothing
    reports it.
    """

    name: str
    who: str
    instead: str


def monitors_of(settings: Settings, schedules: Iterable[Schedule] = ()) -> Iterator[Monitor]:
    """The monitors of a fit with these settings and schedules; `fast_dev_run` has none."""
    if settings.fast_dev_run:
        return
    for stop in settings.early_stopping:
        yield Monitor(stop.monitor, "early_stopping: the monitor {!r}", "Give EarlyStopping(monitor=…) one of them.")
    for one in schedules:
        if isinstance(one.scheduler, ReduceLROnPlateau) and one.interval != "manual" and one.strict:
            yield Monitor(one.monitor or "val_loss", "the scheduler's monitor {!r}", "Give the scheduler's monitor one of them.")
    if settings.monitor is not None and settings.save_top_k:
        yield Monitor(settings.monitor, "monitor={!r}", "Give monitor= one of them, or save_top_k=0.")


def with_averages(names: Iterable[str], settings: Settings) -> set[str]:
    """These names of metrics, and those that the averaged weights will have."""
    found = set(names)
    if settings.weight_averaging is None:
        return found
    return found | {f"{name}_averaged" for name in found if name != "train_loss"}


def refuse_unreported(task: Task, settings: Settings, schedules: Iterable[Schedule] = ()) -> None:
    """Raise TaskError for a monitor that no metric of this task will have, where its metrics are known before the fit."""
    effective = limits.effective_settings(settings)
    names = task.reported(effective)
    if names is not None:
        there = with_averages(names, effective)
        for monitor in monitors_of(effective, schedules):
            if monitor.name not in there:
                raise missing(monitor, [*names, *sorted(there - set(names))])


def missing(monitor: Monitor, there: Collection[str]) -> TaskError:
    """The error for a metric that nothing reports."""
    near = difflib.get_close_matches(monitor.name, there, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return TaskError(
        f"{monitor.who.format(monitor.name)}: there is no such metric.{hint} Those of this run are: "
        f"{', '.join(there) or 'none'}. {monitor.instead}"
    )
