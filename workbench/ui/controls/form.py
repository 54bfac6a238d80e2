"""Describes the form of all settings that are not in the header, from their metadata, with a
section for each group.
"""

from __future__ import annotations

from typing import Any, get_args

from workbench.settings import Group, Settings, metadata_of
from workbench.task.errors import TaskError
from workbench.techniques.schedules import shape_of
from workbench.ui import texts
from workbench.ui.controls.setting_control import SettingControls, explanation

HEADER = ("batch_size", "lr", "gradient_clip_val", "max_epochs")
"""The four settings of the panel's header, which users tune most."""


def grouped() -> dict[Group, list[str]]:
    """The settings of each group, in the order of their fields; without the header's four."""
    groups: dict[Group, list[str]] = {group: [] for group in get_args(Group)}
    for name in Settings.model_fields:
        if name not in HEADER:
            groups[metadata_of(name).group].append(name)
    return {group: names for group, names in groups.items() if names}


def form(controls: SettingControls) -> list[dict[str, Any]]:
    """The sections, as plain data for the front end. What the controls show is sent apart."""
    return [
        {
            "group": group,
            "title": group.capitalize(),
            "settings": [_described(name, controls) for name in names],
        }
        for group, names in grouped().items()
    ]


def drawn_schedule(settings: Settings, own_schedule: bool = False) -> dict[str, Any]:
    """The built-in schedule as heights from 0 to 99 of a small drawing, with words about its
    length; no heights where the rate is constant.

    own_schedule: whether the user's own scheduler sets the rate. It is not drawn, nor is a warm-up
    beside it.

    Fractions of a run look the same at each length. A number of updates does not: then the drawing
    is of `max_steps`, or of ten times the warm-up.
    """
    if own_schedule:
        return {"line": [], "words": ""}
    counts = isinstance(settings.warmup, int) and settings.warmup > 0
    updates = settings.max_steps or (max(1000, 10 * int(settings.warmup)) if counts else 1000)
    try:
        rates = shape_of(settings, updates, _POINTS)
    except TaskError:  # a fit says the same, and what to do
        return {"line": [], "words": ""}
    scaled = counts or settings.lr_schedule == "inverse_sqrt"
    return {
        "line": [round(99 * rate) for rate in rates],
        "words": texts.schedule_over(updates) if scaled else texts.SCHEDULE,
    }


_POINTS = 65


def _described(name: str, controls: SettingControls) -> dict[str, Any]:
    control, field = controls[name], Settings.model_fields[name]
    default = control.words(field.default)
    return {
        "name": name,
        "help": explanation(name),
        "unit": metadata_of(name).unit,
        "options": list(control.options),
        "placeholder": control.placeholder,
        "default": default,
        "default_words": _in_words(default) or control.placeholder,
    }


def _in_words(shown: str | bool) -> str:
    if isinstance(shown, bool):
        return texts.YES if shown else texts.NO
    return shown
