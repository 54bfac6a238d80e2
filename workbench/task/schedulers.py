"""What a user gives as a learning-rate scheduler, as the `Schedule` that the engine steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from workbench.settings import Settings
from workbench.task.protocol import Schedule, TaskError


def schedule_of(
    given: Any, where: str, *, interval: Literal["step", "epoch"], monitor: str | None = None, watches: bool = True,
    custom: bool = False, by_batches: bool = False,
) -> Schedule:  # fmt: skip
    """A scheduler, a `Schedule` or Lightning's dict of one, checked.

    where: whose it is, for the messages. interval, monitor: what holds where nothing is said.
    watches: False where the user steps it himself, so that nothing else needs to be known.
    by_batches: a frequency of steps counts batches, as in Lightning.
    custom: the user has his own way to step a scheduler, which may be any object with a state.
    """
    entry = _entry(given, where)
    scheduler = entry["scheduler"]
    plateau = isinstance(scheduler, ReduceLROnPlateau)
    if not isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)):
        if not custom:
            raise TaskError(f"{where} a {type(scheduler).__name__}, no torch.optim.lr_scheduler.LRScheduler.")
        _check_state(scheduler, where)
    if not watches:
        return Schedule(scheduler, "manual")
    if entry.get("reduce_on_plateau") and not plateau:
        raise TaskError(
            f"{where} a {type(scheduler).__name__} with reduce_on_plateau=True: only torch's ReduceLROnPlateau "
            "watches a metric here."
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
            f"{where} a ReduceLROnPlateau with interval='step': it steps after a check of the validation data; "
            "leave the interval out, and set val_check_interval for more checks."
        )
    frequency, strict = _frequency(entry.get("frequency", 1), where), bool(entry.get("strict", True))
    return Schedule(scheduler, when, frequency, watched if plateau else None, by_batches, strict)


def _check_state(scheduler: Any, where: str) -> None:
    """What a run can go on from, and a search bring back."""
    lacking = [name for name in ("state_dict", "load_state_dict") if not callable(getattr(scheduler, name, None))]
    if lacking:
        raise TaskError(f"{where} a {type(scheduler).__name__} without {' and '.join(lacking)}: write it to bring its state back.")


def _entry(given: Any, where: str) -> dict[str, Any]:
    if isinstance(given, Schedule):
        entry = {"scheduler": given.scheduler, "frequency": given.frequency, "monitor": given.monitor, "strict": given.strict}
        # "step" is what a Schedule says where nothing was said: no choice for one that watches a metric.
        plateau = isinstance(given.scheduler, ReduceLROnPlateau)
        return entry if plateau and given.interval == "step" else {**entry, "interval": given.interval}
    if not isinstance(given, Mapping):
        return {"scheduler": given}
    if "scheduler" not in given:
        raise TaskError(f"{where} a dict with {sorted(given)}: the scheduler belongs under 'scheduler'.")
    return dict(given)


def _frequency(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TaskError(f"{where} a scheduler with frequency={value!r}: a whole number of at least 1 is needed.")
    return value


def refuse_built_in(settings: Settings, where: str) -> None:
    """Refuse `lr_schedule` and `warmup` beside a scheduler of the user's own: both would move the same rate."""
    asked = [
        f"{name}={getattr(settings, name)!r}"
        for name, off in (("lr_schedule", "constant"), ("warmup", 0))
        if getattr(settings, name) != off
    ]
    if asked:
        raise TaskError(
            f"{' and '.join(asked)} cannot go with {where}: both would move the learning rate. Keep one of them."
        )
