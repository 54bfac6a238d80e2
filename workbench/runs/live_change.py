"""Checks a change of settings of a running fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.commands import Change
from workbench.settings import Settings, SettingsError, metadata_of


def live_change(settings: Settings, values: Mapping[str, Any]) -> Change:
    """Make the command that changes settings of a running job to `values`. Raises SettingsError
    naming one that cannot change now.
    """
    if not values:
        raise SettingsError(
            "change() changes nothing: name a setting, for example change(lr=1e-3)."
        )
    changes = Settings.named(values, "change")
    checked = settings.replace(**changes)
    fixed = [name for name in changes if not metadata_of(name).live]
    if fixed:
        live = [name for name in type(checked).model_fields if metadata_of(name).live]
        raise SettingsError(
            f"{fixed[0]} cannot change while a run is running; these can: {', '.join(live)}."
        )
    if "lr" in changes and not checked.lr:
        raise SettingsError(
            "lr=0: the rate of a running run cannot become 0, since groups and schedules could not"
            " return from it: pause() the run."
        )
    plan = next((name for name in changes if isinstance(getattr(checked, name), dict)), None)
    if plan is not None:
        raise SettingsError(
            f"{plan}={changes[plan]!r}: while a run trains it can only change to one number, which "
            "applies from the next update on: "
            f"change({plan}=4), for example. A schedule by epochs belongs to fit({plan}=…)."
        )
    return Change({name: getattr(checked, name) for name in changes})
