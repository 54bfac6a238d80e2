"""Formats numbers and states for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench import units
from workbench.settings import setting_text
from workbench.ui import texts
from workbench.units import duration, size, three_digits


def rate(value: float | None) -> str:
    """A learning rate: '3.2e-3', '0.05', '1e-3'."""
    return texts.NO_NUMBER if value is None or not math.isfinite(value) else units.rate(value)


__all__ = [
    "assignments",
    "change",
    "clock",
    "count",
    "duration",
    "job",
    "number",
    "pace",
    "percent",
    "rate",
    "size",
]


def change(name: str, value: Any) -> str:
    """A setting that changed during the run: 'lr→3.2e-3', 'clip→off', 'batch size→1024',
    'monitor→val_acc'.
    """
    if value is None:
        said = texts.OFF
    else:
        said = (
            rate(value)
            if name in units.RATES and isinstance(value, int | float)
            else setting_text.recorded(name, value)
        )
    return texts.changed(name, said)


def assignments(values: Mapping[str, Any]) -> str:
    """Write settings as arguments of a call: 'batch_size=256, lr=4.7e-3'."""
    return ", ".join(
        f"{name}={setting_text.recorded(name, value)}" for name, value in values.items()
    )


def number(value: float | None) -> str:
    """A loss, a norm or a metric with at most four digits, as in format.ts: '0.4213', '15230',
    '3.1e-4'.
    """
    if value is None:
        return texts.NO_NUMBER
    if not math.isfinite(value):
        return texts.NOT_FINITE
    return units.number(value)


def count(value: float) -> str:
    """A count of things: '312', '11.2 M'."""
    for bound, unit, of in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e4, "k", 1e3)):
        if three_digits(value) >= bound:
            return f"{three_digits(value) / of:.6g} {unit}"
    return f"{value:.0f}"


def pace(value: float) -> str:
    """A number per second: '7.6', '1230'."""
    return f"{value:.3g}" if value < 100 else count(value)


def clock(seconds: float) -> str:
    """A length of time: '00:41', '1:02:07'."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes:02d}:{whole % 60:02d}"


def percent(fraction: float) -> str:
    """A share: '7%', '0.4%'."""
    return f"{fraction:.1%}" if 0 < fraction < 0.01 else f"{fraction:.0%}"


def job(kind: str) -> str:
    """The name of a job of this kind, at the start of a sentence."""
    return texts.JOBS.get(kind, kind.replace("_", " ").capitalize())
