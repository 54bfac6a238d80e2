"""Finds settings that have no effect beside the others: `ema_decay` without `weight_averaging`,
for example.
"""

from __future__ import annotations

from collections.abc import Iterable

from workbench.settings.settings import Settings
from workbench.values import shown

_EMA = (
    "ema_decay",
    "ema_warmup",
    "averaging_every_n_steps",
    "averaging_start",
    "averaging_start_epoch",
)
_SWA = ("swa_epoch_start", "swa_lrs")
_ANNEALING = ("annealing_epochs", "annealing_strategy")
_SCHEDULES = {
    "decay_fraction": "wsd",
    "decay_shape": "wsd",
    "lr_power": "polynomial",
    "restarts": "cosine_restarts",
}


def without_effect(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """Those of these settings that have no effect, each with the reason and the remedy. A
    default value asks for none.
    """
    changed = settings.changed()
    reasons = {name: _reason(settings, name) for name in names if name in changed}
    return {
        name: f"{name}={shown(getattr(settings, name))} {why}"
        for name, why in reasons.items()
        if why
    }


def _reason(settings: Settings, name: str) -> str:
    """Why a setting has no effect, and what to do; "": it has one."""
    needed = ""
    if name in _EMA and settings.weight_averaging != "ema":
        needed = "weight_averaging='ema'"
    elif name in (*_SWA, *_ANNEALING) and settings.weight_averaging != "swa":
        needed = "weight_averaging='swa'"
    elif name in _ANNEALING and settings.swa_lrs is None:
        needed = "swa_lrs, the rate to which the averaged epochs move"
    elif settings.lr_schedule != _SCHEDULES.get(name, settings.lr_schedule):
        needed = f"lr_schedule={_SCHEDULES[name]!r}"
    elif name == "min_lr_ratio" and settings.lr_schedule in ("constant", "one_cycle"):
        needed = "a schedule that falls, lr_schedule='cosine'"
    elif name == "gradient_clip_algorithm" and settings.gradient_clip_val is None:
        needed = "gradient_clip_val"
    elif name == "monitor_mode" and settings.monitor is None:
        needed = "monitor"
    elif name == "tbptt_time_dim" and settings.truncated_bptt_steps is None:
        needed = "truncated_bptt_steps"
    if needed:
        return f"has no effect without {needed}. Give both, or leave {name} out."
    most, of = {
        "min_epochs": (settings.epochs, "max_epochs"),
        "min_steps": (settings.max_steps, "max_steps"),
    }.get(name, (None, ""))
    if most is not None and getattr(settings, name) > most:
        return (
            f"has no effect above {of}={most}, which ends the run first. Give a smaller {name}, or"
            f" a larger {of}."
        )
    return ""
