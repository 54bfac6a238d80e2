"""Turns the learning-rate scheduler that the user gave into the `Schedule` that the engine
steps.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.protocol import Schedule
from workbench.task.signature import fits, parameters

MakeScheduler = Callable[[Optimizer, int], Any]
"""Returns a scheduler, a `Schedule`, or several of either in a list."""
_UPDATES = re.compile(
    r"T_max|t_total|t_initial|total|((total|max|num|n)_)?((train|training|optimizer|scheduled)_)?(steps|iters|iterations|updates)"
)
"""Names of parameters that give the number of updates of a scheduler."""
_ELSE = frozenset(
    {
        "gamma",
        "step_size",
        "milestones",
        "factor",
        "start_factor",
        "lr_lambda",
        "base_lr",
        "max_lr",
        "eta_min",
        "T_0",
        "swa_lr",
        "schedulers",
        "last_epoch",
        "num_warmup_steps",
        "warmup_steps",
        "num_training_epochs",
        "max_epochs",
        "num_epochs",
        "epochs",
    }
)
"""Names of other parameters of torch's and transformers' schedulers."""


def check_scheduler(scheduler: Any) -> None:
    """Raise TaskError for an object that cannot make a scheduler from (optimizer, updates),
    before a job calls it.
    """
    if scheduler is None:
        return
    if isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)):
        kind = type(scheduler).__name__
        raise TaskError(
            f"scheduler={kind}(…) is a scheduler that is already made; each run needs its own. Give"
            f" what makes it: scheduler=lambda optimizer, updates: {kind}(optimizer, …)."
        )
    if isinstance(scheduler, Schedule):
        raise TaskError(
            "scheduler=wb.Schedule(…): each run needs its own. Give a function that returns it:"
            " scheduler=lambda optimizer, updates: wb.Schedule(StepLR(optimizer, 30))."
        )
    function, bound = (
        (scheduler.func, scheduler.keywords)
        if isinstance(scheduler, functools.partial)
        else (scheduler, {})
    )
    name = getattr(function, "__name__", "<lambda>")
    shown = name if function is scheduler else f"partial({name}, …)"
    options = (
        ", ".join([f"{key}={value!r}" for key, value in bound.items()] + _needed(function, bound))
        or "…"
    )
    remedy = f"scheduler=lambda optimizer, updates: {name}(optimizer, {options})"
    if not callable(scheduler) or not fits(scheduler, None, 1):
        shown, remedy = (repr(scheduler), "") if name == "<lambda>" else (shown, f", {remedy}")
        raise TaskError(
            f"scheduler={shown} cannot be called as scheduler(optimizer, updates), with the number"
            f" of updates of the run: give a function of these two{remedy}; or a built-in schedule,"
            " for example lr_schedule='cosine'."
        )
    second = _second(scheduler)
    is_class = isinstance(function, type) and issubclass(function, (LRScheduler, ReduceLROnPlateau))
    if second is not None and not _UPDATES.fullmatch(second) and (is_class or second in _ELSE):
        raise TaskError(
            f"scheduler={shown} is called as scheduler(optimizer, updates), and its second"
            f" parameter is {second}, not the number of updates of the run: give {remedy}."
        )


def _second(make: Callable[..., Any]) -> str | None:
    """The name of the parameter for the number of updates; None: it is one of many, or unknown."""
    first = [*(parameters(make) or {}).values()][:2]
    places = [p for p in first if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return places[1].name if len(places) == 2 else None


def _needed(make: Any, bound: Mapping[str, Any]) -> list[str]:
    """The arguments that a scheduler needs besides the optimizer, as text for a message."""
    further = [*(parameters(make) or {}).values()][1:]
    cycle = (
        "max_lr=0.1, total_steps=updates"
        if any(p.name == "total_steps" for p in further)
        else "max_lr=0.1"
    )
    known = {"gamma": "gamma=0.9", "max_lr": cycle}
    needed = [
        p.name
        for p in further
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in bound
    ]
    return [
        f"{name}=updates" if _UPDATES.fullmatch(name) else known.get(name, f"{name}=…")
        for name in needed
    ]


def schedule_of(
    given: Any,
    where: str,
    *,
    interval: Literal["step", "epoch"],
    monitor: str | None = None,
    watches: bool = True,
    custom: bool = False,
    by_batches: bool = False,
) -> Schedule:
    """Make a checked `Schedule` from a scheduler, a `Schedule` or Lightning's dict of one.

    where: the source of the scheduler, for messages. interval, monitor: the defaults.
    watches: False where the user's code steps the scheduler, so that its interval and monitor are
    not needed.
    by_batches: a frequency of steps counts batches, as in Lightning.
    custom: the user's code steps schedulers (lr_scheduler_step), so any object with a state_dict is
    accepted.
    """
    entry = _entry(given, where)
    scheduler = entry["scheduler"]
    plateau = isinstance(scheduler, ReduceLROnPlateau)
    if not isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)):
        if not custom:
            raise TaskError(
                f"{where} a {type(scheduler).__name__}, no torch.optim.lr_scheduler.LRScheduler."
                " Give one of torch's or transformers', or set lr_schedule=; a LightningModule can"
                " step another kind in its lr_scheduler_step."
            )
        _check_state(scheduler, where)
    if not watches:
        return Schedule(scheduler, "manual")
    if entry.get("reduce_on_plateau") and not plateau:
        raise TaskError(
            f"{where} a {type(scheduler).__name__} with reduce_on_plateau=True: only torch's"
            " ReduceLROnPlateau watches a metric here."
        )
    watched = entry.get("monitor") or monitor
    if plateau and watched is None:
        raise TaskError(
            f"{where} a ReduceLROnPlateau without a monitor: name the metric that it watches, "
            'e.g. {"scheduler": …, "monitor": "val_loss"}.'
        )
    when = entry.get("interval", "epoch" if plateau else interval)
    if when not in ("epoch", "step"):
        raise TaskError(f"{where} a scheduler with interval={when!r}: 'epoch' or 'step'.")
    if plateau and when == "step":
        raise TaskError(
            f"{where} a ReduceLROnPlateau with interval='step': it steps after a validation; "
            "leave the interval out, and set val_check_interval to validate more often."
        )
    frequency, strict = (
        _frequency(entry.get("frequency", 1), where),
        bool(entry.get("strict", True)),
    )
    return Schedule(scheduler, when, frequency, watched if plateau else None, by_batches, strict)


def _check_state(scheduler: Any, where: str) -> None:
    """Check that a run can be resumed with it, and that a search can restore it."""
    lacking = [
        name
        for name in ("state_dict", "load_state_dict")
        if not callable(getattr(scheduler, name, None))
    ]
    if lacking:
        raise TaskError(
            f"{where} a {type(scheduler).__name__} without {' and '.join(lacking)}: write them, so"
            " that its state can be restored."
        )


def _entry(schedule: Any, where: str) -> dict[str, Any]:
    if isinstance(schedule, Schedule):
        entry = {
            "scheduler": schedule.scheduler,
            "frequency": schedule.frequency,
            "monitor": schedule.monitor,
            "strict": schedule.strict,
        }
        # "step" is a Schedule's default: it is not a choice for one that watches a metric.
        plateau = isinstance(schedule.scheduler, ReduceLROnPlateau)
        return (
            entry
            if plateau and schedule.interval == "step"
            else {**entry, "interval": schedule.interval}
        )
    if not isinstance(schedule, Mapping):
        return {"scheduler": schedule}
    if "scheduler" not in schedule:
        raise TaskError(
            f"{where} a dict with {sorted(schedule)}: the scheduler belongs under 'scheduler'."
        )
    return dict(schedule)


def _frequency(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TaskError(
            f"{where} a scheduler with frequency={value!r}: a whole number of at least 1 is needed."
        )
    return value


def refuse_built_in(settings: Settings, where: str, *, manual: bool = False) -> None:
    """Raise TaskError for `lr_schedule` together with the user's own scheduler: both would set the
    same rate. A `warmup` goes with it, unless the user's code steps it (manual).
    """
    if settings.lr_schedule != "constant":
        raise TaskError(
            f"lr_schedule={settings.lr_schedule!r} cannot go with {where}: both would change the"
            " learning rate. Keep one of them."
        )
    if manual and settings.warmup:
        raise TaskError(
            f"warmup={settings.warmup!r} cannot go with {where}, which the module's own code steps"
            " (manual optimization): write the warm-up there."
        )
