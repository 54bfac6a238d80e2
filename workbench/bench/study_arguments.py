"""Checks the arguments of `bench.study`, and makes what a study records of them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.metric_mode import Mode, known_mode
from workbench.settings import Settings, SettingsError
from workbench.settings.space import Choice, Space
from workbench.techniques import limits
from workbench.tuners.study.brackets import trials_within
from workbench.tuners.study.verdict import pairs_within
from workbench.values import is_plain, shown

LIMITS = ("parameters",)
"""What `limits=` can bound."""
_LONGEST_NAME = 32
_SHORTER = (1 / 9, 1 / 3)
_SHORTEST = 100
"""The updates after which a trial can be compared at the earliest."""
_TRIES, _MOST_FITS = 2, 1000
"""The trials for each value of a choice with which most likely none is left out, and the largest
budget that is suggested for them.
"""
_BRACKETS = 3.5
"""The whole fits from which on a budget has room for a bracket beside the first trial."""


def refuse_above(limits: Mapping[str, float], parameters: int) -> None:
    """Raise SettingsError where the bench's own model, the first trial, is above a limit."""
    if why := above(limits, parameters):
        raise SettingsError(
            f"study: the bench's own model is the first trial, and its {why}. Give a higher limit,"
            " or a smaller model to the bench."
        )


def above(limits: Mapping[str, float], parameters: int) -> str:
    """Which limit a model is above; "": none."""
    most = limits.get("parameters")
    if most is None or parameters <= most:
        return ""
    return f"{parameters:,} parameters are more than limits={{'parameters': {most:,.0f}}}"


def checked_limits(limits_given: object) -> dict[str, float]:
    """The limits by name. SettingsError names what no trial reports."""
    if limits_given is None:
        return {}
    if not isinstance(limits_given, Mapping):
        raise SettingsError(
            f'study: limits={shown(limits_given)}: give a dict, {{"parameters": 200_000}}.'
        )
    for name, most in limits_given.items():
        if name not in LIMITS:
            raise SettingsError(
                f"study: limits has {shown(name)}, which nothing measures before a trial: give"
                f" {', '.join(LIMITS)}."
            )
        if type(most) not in (int, float) or not 0 < most < math.inf:
            raise SettingsError(
                f"study: limits={{{name!r}: {shown(most)}}}: give a number above 0."
            )
    return {name: float(most) for name, most in limits_given.items()}


def checked_name(name: object) -> str:
    """The name of a study. SettingsError: it cannot name a folder."""
    if name is None:
        return ""
    if not isinstance(name, str) or not re.fullmatch(
        rf"[^\W\d][\w-]{{0,{_LONGEST_NAME - 1}}}", name
    ):
        raise SettingsError(
            f"study: name={shown(name)}: give letters, digits, '-' and '_', at most"
            f" {_LONGEST_NAME}, beginning with a letter."
        )
    return name


def checked_compare(name: object, space: Space, fits: float | None, seeds: int | None) -> str:
    """The name of the setting whose values are compared; "": none is. SettingsError: the space has
    no such choice, or the budget is too small for its values.

    seeds: with how many fresh seeds the best trial of each value is trained; None: what the budget
    allows.
    """
    if name is None:
        return ""
    choices = {d.name: d.choices for d in space.dimensions if isinstance(d, Choice)}
    several = [known for known, values in choices.items() if len(values) > 1 and "." not in known]
    if not isinstance(name, str) or name not in several:
        known = f"one of {', '.join(map(repr, several))}" if several else "a list of values there"
        raise SettingsError(
            f"study: compare={shown(name)}: values are compared of a setting for which the space"
            f" has several to choose from: give {known}."
        )
    searched = any(d.path[-1] in ("lr", "batch_size") for d in space.dimensions)
    least = len(choices[name]) * (2 + (seeds or 0)) + searched
    if fits is not None and fits < least:
        beside = f" and seeds={seeds}" if seeds else ""
        beside += ", besides a search" if searched else ""
        fewer = ", or fewer seeds" if seeds else ""
        raise SettingsError(
            f"study: budget={fits:g}: compare={name!r} tunes {len(choices[name])} values, each with"
            f" 2 fits at least{beside}: give budget={least}{fewer}."
        )
    return name


def monitor_of(settings: Settings) -> tuple[str, Mode]:
    """The metric that judges trials, and whether lower or higher is better. SettingsError: its name
    does not say, and nobody has said it; or no validation reports it.
    """
    name = settings.monitor or "val_loss"
    if name == "train_loss":
        raise SettingsError(
            f"study: monitor={name!r}: trials are compared by a validation: give a metric of that,"
            " 'val_loss'."
        )
    mode = settings.monitor_mode or known_mode(name)
    if mode is None:
        raise SettingsError(
            f"study: monitor={name!r}: its name does not say whether lower or higher is better:"
            " give monitor_mode='min' or 'max'."
        )
    return name, mode


def recorded_length(settings: Settings) -> dict[str, int]:
    """The length of a whole fit: {"epochs": 30} or {"updates": 1000}. SettingsError: it has none,
    or trains nothing.
    """
    if settings.fast_dev_run:
        raise SettingsError("study: fast_dev_run records nothing, and a study compares records.")
    effective = limits.effective_settings(settings)
    lengths = {"epochs": effective.max_epochs, "updates": effective.max_steps}
    known = {unit: length for unit, length in lengths.items() if length not in (None, -1)}
    if not known:
        raise SettingsError(
            "study: its fits have no length: give max_epochs or max_steps, study(…, max_epochs=10)."
        )
    if 0 in known.values():
        raise SettingsError(
            "study: its fits train nothing: give a max_epochs or max_steps above 0."
        )
    return {unit: int(length) for unit, length in known.items() if length is not None}


def rungs_of(
    updates: int | None, check: int | None, budget: Mapping[str, float]
) -> tuple[float, ...]:
    """The lengths at which trials are compared, as shares of a whole fit: a ninth, a third, and the
    whole; without those that are too short to tell anything.

    updates: of a whole fit; None: unknown. check: those until its first validation. A small budget
    has no room for brackets.
    """
    if updates is None or check is None or budget.get("fits", math.inf) < _BRACKETS:
        return (1.0,)
    least = max(_SHORTEST, check)
    return (*(share for share in _SHORTER if share * updates >= least), 1.0)


def few_trials(
    space: Space,
    fits: float,
    rungs: Callable[[float], Sequence[float]],
    seeds: int | None,
    compare: str = "",
) -> str:
    """A warning where a study has so few trials that it may not try each value of a choice; "": it
    has enough. rungs: those of a budget of so many fits. seeds, compare: as the study was given.
    """
    choices = [d for d in space.dimensions if isinstance(d, Choice) and "." not in d.name]
    shares = max((len(d.choices) for d in choices if d.name == compare), default=1)

    def trials(budget: float) -> int:
        verdict = 2 * pairs_within(budget, seeds)
        return trials_within(max(budget - verdict, 1.0) / shares, rungs(budget))

    largest = max(choices, key=lambda d: 0 if d.name == compare else len(d.choices), default=None)
    if largest is None or largest.name == compare:
        return ""
    # no point is tried twice, so that a choice alone has all of its values tried
    wanted = len(largest.choices) * (_TRIES if len(space.dimensions) > 1 else 1)
    if len(largest.choices) < 2 or trials(fits) >= wanted:
        return ""
    budget = next((n for n in range(math.ceil(fits), _MOST_FITS) if trials(n) >= wanted), None)
    remedy = "" if budget is None else f", or budget={budget}"
    return (
        f"study: budget={fits:g} has about {trials(fits)} trials, which may not try each of the"
        f" {len(largest.choices)} values of {largest.name}: give fewer values{remedy}."
    )


def recorded_base(settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """What all trials have, as plain data: settings that differ from the defaults, and values of
    the function's parameters.
    """
    dumped = settings.model_dump(mode="json")
    base = {**{name: dumped[name] for name in settings.changed()}, **values}
    return {name: value if is_plain(value) else shown(value) for name, value in base.items()}


def hash_of(code: str) -> str:
    """A hash of what makes a bench, by which a study knows whether it is the same."""
    return hashlib.sha256(code.encode(errors="replace")).hexdigest()[:32]
