"""Writes a setting's value as short text, without defaults, which Settings reads back as the
same value.
"""

from __future__ import annotations

from typing import Any

from workbench.settings import Settings, SettingsError
from workbench.units import RATES, rate
from workbench.values import EarlyStopping


def setting_text(value: Any) -> Any:
    """Return `value` in its shortest plain form: an EarlyStopping becomes its metric's name, or
    a dict without its defaults.
    """
    if isinstance(value, EarlyStopping):
        arguments = {"monitor": value.monitor} | value.model_dump(exclude_defaults=True)
        return value.monitor if len(arguments) == 1 else arguments
    if isinstance(value, tuple):
        return (
            setting_text(value[0])
            if len(value) == 1 and isinstance(value[0], EarlyStopping)
            else [*map(setting_text, value)]
        )
    return value


def text(value: Any) -> str:
    """Return `value` as a table shows it: "0, 5, 10" for several values, "none" for an empty
    value.
    """
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple) and all(isinstance(item, int) for item in value):
        return ", ".join(map(str, value))
    return str(setting_text(value))


def typed(name: str, value: Any) -> str:
    """Return `value` of setting `name` as a user can type it: a single GPU is a number in
    brackets.
    """
    if name in RATES and isinstance(value, float):
        return rate(value, None)
    only = value[0] if isinstance(value, tuple) and len(value) == 1 else None
    return (
        f"[{only}]"
        if isinstance(only, int) and not same(_settled(name, only), value)
        else text(value)
    )


def recorded(name: str, value: Any) -> str:
    """The recorded `value` of setting `name` as a table shows it; JSON has lists for tuples."""
    return typed(name, _settled(name, value))


def short(name: str, value: Any) -> str:
    """Return the value as a table shows it; a rate has three significant digits."""
    return rate(value) if name in RATES and isinstance(value, float) else recorded(name, value)


def _settled(name: str, value: Any) -> Any:
    """Return the value as Settings stores it; unchanged where Settings would not accept it."""
    try:
        return getattr(Settings.make(**{name: value}), name)
    except SettingsError:
        return value


def same(one: Any, other: Any) -> bool:
    """Whether two values of a setting mean the same. 1 (one batch) and 1.0 (all batches) do not."""
    return type(one) is type(other) and bool(one == other)


def is_default(name: str, value: Any) -> bool:
    """Whether setting `name` has its default value."""
    return same(value, Settings.model_fields[name].default)
