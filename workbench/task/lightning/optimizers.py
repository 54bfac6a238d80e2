"""Reads what `configure_optimizers` returned, in any of Lightning's forms, as `Optimization`s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from workbench.events.columns import recorded_name
from workbench.task.errors import TaskError
from workbench.task.lightning.overrides import own_method
from workbench.task.optim.optimizer_factory import base_rate
from workbench.task.optim.schedulers import schedule_of
from workbench.task.protocol import Optimization, Schedule
from workbench.values import shown


def optimizations_of(module: Any, *, manual: bool) -> tuple[Optimization, ...]:
    """The object's optimizers, each with its schedules and the rate at which it was made.

    manual: the object steps all of them itself, so frequencies, monitors and intervals are not
    checked.
    """
    configured = module.configure_optimizers()
    where = f"{type(module).__name__}.configure_optimizers()"
    if configured is None:
        raise TaskError(
            f"{where} returned None, with which Lightning trains nothing, and an optimizer is"
            " needed: return torch.optim.AdamW(self.parameters()). A module that steps optimizers"
            " itself returns them, with self.automatic_optimization = False."
        )
    entries, apart = _entries(configured)
    optimizers: list[Any] = [entry.get("optimizer") for entry in entries]
    if not optimizers or not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
        raise TaskError(f"{where} returned {shown(configured)}: an optimizer is needed.")
    with_monitors = [
        (scheduler, entry.get("monitor"))
        for entry in entries
        for scheduler in _listed(entry, "lr_scheduler")
    ]
    custom = manual or own_method(module, "lr_scheduler_step") is not None
    schedules = [
        schedule_of(
            scheduler,
            f"{where} returned",
            interval="epoch",
            monitor=monitor,
            watches=not manual,
            custom=custom,
            by_batches=True,
        )
        for scheduler, monitor in [*with_monitors, *((scheduler, None) for scheduler in apart)]
    ]
    for schedule in schedules:
        if schedule.monitor is not None:
            schedule.monitor = recorded_name(schedule.monitor)
    owned = _by_owner(schedules, optimizers, where)
    turns = [0] * len(entries) if manual else _frequencies(entries, where)
    return tuple(
        Optimization(optimizer, its_schedules, base_rate(optimizer, where), frequency)
        for optimizer, its_schedules, frequency in zip(optimizers, owned, turns, strict=True)
    )


def _entries(configured: Any) -> tuple[list[Mapping[str, Any]], list[Any]]:
    """One mapping for each optimizer, and the schedulers that were given apart from them."""
    listed: Sequence[Any] = configured if isinstance(configured, (list, tuple)) else [configured]
    apart: list[Any] = []
    if len(listed) == 2 and isinstance(listed[0], (list, tuple)):
        listed, schedulers = listed
        apart = list(schedulers) if isinstance(schedulers, (list, tuple)) else [schedulers]
    return [
        entry if isinstance(entry, Mapping) else {"optimizer": entry} for entry in listed
    ], apart


def _listed(entry: Mapping[str, Any], name: str) -> list[Any]:
    value = entry.get(name, [])
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _by_owner(
    schedules: Sequence[Schedule], optimizers: Sequence[Any], where: str
) -> list[tuple[Schedule, ...]]:
    """The schedules of each optimizer: those whose scheduler holds it."""
    owned: list[list[Schedule]] = [[] for _ in optimizers]
    for schedule in schedules:
        holds = getattr(schedule.scheduler, "optimizer", None)
        index = next((n for n, optimizer in enumerate(optimizers) if optimizer is holds), None)
        if index is None:
            raise TaskError(
                f"{where} returned a {type(schedule.scheduler).__name__} of an optimizer that it"
                " did not return: it would change no rate of this run."
            )
        owned[index].append(schedule)
    return [tuple(group) for group in owned]


def _frequencies(entries: Sequence[Mapping[str, Any]], where: str) -> list[int]:
    """For how many updates in a row each optimizer steps; all 0 where they step at every update."""
    turns = [entry.get("frequency") for entry in entries]
    if all(turn is None for turn in turns) or len(turns) == 1:
        return [0] * len(turns)
    for turn in turns:
        if isinstance(turn, bool) or not isinstance(turn, int) or turn < 1:
            raise TaskError(
                f"{where} returned optimizers with frequencies {turns}: each needs one (updates in"
                " a row, at least 1), or none of them."
            )
    return [int(turn) for turn in turns if turn is not None]
