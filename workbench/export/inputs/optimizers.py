"""Finds the user's optimizers and schedulers in the return value of the user's code."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from workbench.engine.optim.schedule_free import has_modes
from workbench.export.errors import ExportError, NotStandAlone
from workbench.export.inputs.collect import Optimizer, Schedule
from workbench.settings import Settings
from workbench.task import protocol
from workbench.task.lightning.overrides import own_method
from workbench.task.lightning.task import LightningTask
from workbench.task.optim.closures import closure_use
from workbench.task.optim.optimizer_factory import OptimizerFactory, group_rates, leading_group
from workbench.task.optim.optimizer_state import INNER, state_of
from workbench.task.optim.part_optimizers import PartFactory
from workbench.task.optim.schedulers import schedule_of
from workbench.task.protocol import Optimization
from workbench.task.supervised import Supervised
from workbench.techniques.schedules import has_momentum


def optimizers_of(
    task: Supervised | LightningTask, settings: Settings, updates: int | None
) -> tuple[Optimizer, ...]:
    """The optimizers of a run, each with its schedules."""
    try:
        configured = task.configure(settings, updates)
        listed = [configured] if isinstance(configured, Optimization) else list(configured)
        if isinstance(task, LightningTask):
            return _of_object(task, listed)
        return (_of_bench(task, settings, listed[0], updates),)
    except ExportError:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        whose = (
            "configure_optimizers()"
            if isinstance(task, LightningTask)
            else "the optimizer or its scheduler"
        )
        raise NotStandAlone(
            f"{whose} cannot be set up for reading outside of a fit: {cause}"
        ) from error


def _of_bench(
    task: Supervised, settings: Settings, made: Optimization, updates: int | None
) -> Optimizer:
    places: list[str] = []
    if task._scheduler is not None:
        schedulers = task._scheduler(made.optimizer, updates)  # type: ignore[arg-type]  # it made a schedule for them before
        entries = (
            list(enumerate(schedulers))
            if isinstance(schedulers, (list, tuple))
            else [(None, schedulers)]
        )
        places = [
            ("" if number is None else f"[{number}]") + _inside(entry) for number, entry in entries
        ]
    schedules = tuple(
        _schedule(path, schedule) for path, schedule in zip(places, made.schedules, strict=True)
    )
    return _optimizer(task, made, "", schedules, task.factory_of(settings))


def _of_object(task: LightningTask, listed: Sequence[Optimization]) -> tuple[Optimizer, ...]:
    optimizers, schedulers = _places(task.module.configure_optimizers())
    by_optimizer: list[list[Schedule]] = [[] for _ in optimizers]
    custom = task.manual or own_method(task.module, "lr_scheduler_step") is not None
    for path, entry, monitor in schedulers:
        schedule = schedule_of(
            entry,
            "configure_optimizers() returned",
            interval="epoch",
            monitor=monitor,
            watches=not task.manual,
            custom=custom,
            by_batches=True,
        )
        number = next(
            n
            for n, (_, optimizer) in enumerate(optimizers)
            if optimizer is schedule.scheduler.optimizer
        )
        by_optimizer[number].append(_schedule(path + _inside(entry), schedule))
    return tuple(
        _optimizer(task, optimization, path, tuple(schedules))
        for (path, _), schedules, optimization in zip(optimizers, by_optimizer, listed, strict=True)
    )


def _places(made: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any, str | None]]]:
    """The optimizers and schedulers in the result of `configure_optimizers()`, each with its place
    there.

    It is read as in `task/lightning/optimizers.py`. A scheduler comes with the monitor that its
    optimizer's entry names.
    """
    entries: list[tuple[str, Any]] = [("", made)]
    apart: list[tuple[str, Any, str | None]] = []
    if isinstance(made, (list, tuple)):
        entries = [(f"[{n}]", item) for n, item in enumerate(made)]
        if len(made) == 2 and isinstance(made[0], (list, tuple)):
            entries = [(f"[0][{n}]", item) for n, item in enumerate(made[0])]
            apart = [(path, item, None) for path, item in _listed(made[1], "[1]")]
    optimizers, schedulers = [], []
    for path, entry in entries:
        if not isinstance(entry, Mapping):
            optimizers.append((path, entry))
            continue
        optimizers.append((f'{path}["optimizer"]', entry["optimizer"]))
        listed = _listed(entry.get("lr_scheduler", []), f'{path}["lr_scheduler"]')
        schedulers += [(where, item, entry.get("monitor")) for where, item in listed]
    return optimizers, [*schedulers, *apart]


def _listed(value: Any, place: str) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        return [(f"{place}[{n}]", item) for n, item in enumerate(value)]
    return [(place, value)]


def _inside(entry: Any) -> str:
    """The place of the scheduler within its entry."""
    if isinstance(entry, protocol.Schedule):
        return ".scheduler"
    return '["scheduler"]' if isinstance(entry, Mapping) else ""


def _schedule(place: str, made: protocol.Schedule) -> Schedule:
    return Schedule(
        place,
        made.interval,
        made.frequency,
        made.monitor,
        made.by_batches,
        _restores(made.scheduler),
    )


def _restores(scheduler: Any) -> bool:
    """Whether its state can be written, and read again as plain data (`weights_only`)."""
    file = io.BytesIO()
    try:
        torch.save(scheduler.state_dict(), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # noqa: BLE001  # the user's class may raise anything
        return False
    return True


def _optimizer(
    task: protocol.Task,
    made: Optimization,
    place: str,
    schedules: tuple[Schedule, ...],
    factory: OptimizerFactory | None = None,
) -> Optimizer:
    parameters = [p for p in task.model.parameters() if p.requires_grad]
    rates = group_rates(made.optimizer)
    return Optimizer(
        place=place,
        schedules=schedules,
        made_lr=made.lr if factory is None else factory.made_at(parameters),
        takes_lr=factory is None or factory.takes_lr,
        named=factory is not None and _takes_names(factory),
        parts=_parts(factory.make, parameters) if factory is not None else (),
        schedule_free=has_modes(made.optimizer),
        leading=leading_group(rates),
        frozen_groups=not all(rates),
        closure=closure_use(made.optimizer),
        whole=_is_whole(task, made.optimizer),
        momentum=has_momentum(made.optimizer),
        holds_another=INNER in state_of(made.optimizer),
    )


def _takes_names(factory: OptimizerFactory) -> bool:
    """Whether it, or that of a part, gets the names of the parameters."""
    make = factory.make
    factories = make.factories.values() if isinstance(make, PartFactory) else [factory]
    return any(inner.takes_names for inner in factories)


def _parts(make: object, parameters: Sequence[torch.nn.Parameter]) -> tuple[Mapping[str, Any], ...]:
    """The arguments with which the optimizer of each part is made, in the order of the parts; of
    one without trained parameters there are none.
    """
    if not isinstance(make, PartFactory):
        return ()
    rates = make.rates(parameters)
    return tuple(
        {"lr": rates[label][1]} if label in rates and factory.takes_lr else {}
        for label, factory in make.factories.items()
    )


def _is_whole(task: protocol.Task, optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has all parameters of the model that are trained."""
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return all(id(p) in optimized for p in task.trained_parameters().values() if p.requires_grad)
