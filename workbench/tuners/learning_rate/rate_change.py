"""Offers a learning rate anew, after the batch size or the optimizer has changed since a search
found it, or since it was offered.

Sources of the rules: Goyal et al., "Accurate, Large Minibatch SGD" (2017) for the linear one;
Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014) for the square
root. `docs/measurements.md` has what each costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from workbench.events import CurveEnded, RunStarted
from workbench.settings import Settings, SettingsError
from workbench.settings.setting_text import short
from workbench.tuners.batch_size.effective_batch import effective_batch, rescaled
from workbench.units import rate, three_digits

_RULES = ("sqrt", "linear")
_NEAR = 0.01
"""The relative difference up to which a rate is the one found: a typed one has fewer digits."""


@dataclass(frozen=True, slots=True)
class RateChange:
    """Why a rate that was found may be wrong now, and what could take its place."""

    text: str
    """A sentence on what has changed, and one on the choices."""
    rates: dict[str, float]
    """The rates by rule ("sqrt", "linear"); empty where no rule knows: the optimizer changed."""
    settings: Settings
    """The settings for which they are offered."""


def rate_change(
    jobs: Iterable[Any],
    now: Settings,
    ranks: Callable[[Settings], int],
    optimizer: str = "",
    offers: Iterable[RateChange] = (),
) -> RateChange | None:
    """What to say about the rate of these settings, which one of these searches found, or one of
    these earlier changes offered; None: nothing has changed since, or it is another rate.

    ranks: the number of processes that train together; it may raise SettingsError. optimizer: what
    trains where the settings name none.
    """
    searched = [job.settings for job in jobs if job.kind == "find_lr" and _found(job, now.lr)]
    chosen_for = [
        offer.settings
        for offer in offers
        if any(_is_near(offered, now.lr) for offered in offer.rates.values())
    ]
    if not searched and not chosen_for:
        return None
    then, lr = [*chosen_for, *searched][-1], rate(now.lr)
    names = [
        short("optimizer", settings.optimizer) if settings.optimizer is not None else optimizer
        for settings in (then, now)
    ]
    if names[0] != names[1]:
        text = (
            f"lr={lr} was found for {names[0]}, and now {names[1]} trains. No rule gives its rate:"
            " bench.find_lr() measures it."
        )
        return RateChange(text, {}, now)
    try:
        before, after = (effective_batch(settings, ranks(settings)) for settings in (then, now))
    except SettingsError:  # it changes during the fit
        return None
    if before == after:
        return None
    rates = {rule: three_digits(rescaled(now.lr, rule, after / before)) for rule in _RULES}
    origin = "found with" if searched else "offered for"
    text = (
        f"lr={lr} was {origin} {before} samples in an update, and now there are {after}. By the"
        f" square root it becomes {rate(rates['sqrt'])}, and in proportion {rate(rates['linear'])}:"
        " bench.find_lr() measures it."
    )
    return RateChange(text, rates, now)


def _found(job: Any, lr: float) -> bool:
    """Whether this search recommends this rate for all parameters."""
    asked = [event.request for event in job.events if isinstance(event, RunStarted)]
    of_a_part = any(request.get("optimizer") or request.get("group") for request in asked)
    suggested = [event.suggestion for event in job.events if isinstance(event, CurveEnded)]
    if of_a_part or not suggested or suggested[-1] is None:
        return False
    return _is_near(suggested[-1], lr)


def _is_near(known: float, lr: float) -> bool:
    return math.isclose(known, lr, rel_tol=_NEAR)
