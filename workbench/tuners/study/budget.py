"""Checks the budget of a study, and counts that it is given."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import timedelta

from workbench.settings import SettingsError
from workbench.units import duration
from workbench.values import plain, shown

_TIME = re.compile(
    r"(?:(\d+(?:\.\d+)?)\s*h)?\s*(?:(\d+(?:\.\d+)?)\s*min)?\s*(?:(\d+(?:\.\d+)?)\s*s)?"
)


def budget_of(budget: object, method: str, least: float = 2) -> dict[str, float]:
    """The budget in fits or seconds: {"fits": 8.0}, {"seconds": 7200.0}. SettingsError: it is
    neither, or has fewer than `least` fits.
    """
    budget = plain(budget)
    if isinstance(budget, int | float) and type(budget) is not bool and math.isfinite(budget):
        if budget >= least and budget > 0:
            return {"fits": float(budget)}
        why = "a study compares 2 fits or more" if least else "that adds nothing"
        raise SettingsError(f"{method}: budget={shown(budget)}: {why}.")
    seconds = _seconds(budget)
    if seconds is None:
        raise SettingsError(
            f"{method}: budget={shown(budget)}: give a number of fits (8), or a time ('2h',"
            " '90min')."
        )
    if seconds <= 0:
        raise SettingsError(f"{method}: budget={shown(budget)} is no time.")
    return {"seconds": seconds}


def _seconds(budget: object) -> float | None:
    """The seconds of a time; None: it is none."""
    if isinstance(budget, timedelta):
        return budget.total_seconds()
    match = _TIME.fullmatch(budget.strip()) if isinstance(budget, str) else None
    if match is None or not any(match.groups()):
        return None
    hours, minutes, seconds = (float(text or 0) for text in match.groups())
    return 3600 * hours + 60 * minutes + seconds


def checked_count(
    value: object, name: str, method: str, least: int = 1, most: int | None = None
) -> int:
    """A count from `least` to `most`. SettingsError: it is none."""
    value = plain(value)
    if type(value) is not int or value < least:
        raise SettingsError(f"{method}: {name}={shown(value)}: give a number of {least} or more.")
    if most is not None and value > most:
        raise SettingsError(f"{method}: {name}={value}: give at most {most}.")
    return value


def budget_text(budget: Mapping[str, float]) -> str:
    """A budget in words: "8 fits", "2 h 00 min"."""
    ((unit, amount),) = budget.items()
    return duration(amount) if unit == "seconds" else f"{amount:g} fits"
