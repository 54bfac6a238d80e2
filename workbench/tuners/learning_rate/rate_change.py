"""Offers a learning rate anew, after the batch size or the optimizer has changed since a search
found it, or since an offered one was taken.

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

    def offers(self, lr: float) -> bool:
        """Whether it offers this rate."""
        return any(_is_near(offered, lr) for offered in self.rates.values())


def rate_change(
    jobs: Iterable[Any],
    now: Settings,
    ranks: Callable[[Settings], int],
    optimizer: str = "",
    taken: Iterable[Settings] = (),
) -> RateChange | None:
    """What to say about the rate of these settings, which one of these searches found, or which
    was offered for settings that were `taken`; None: it is right for them, or it is another rate.

    ranks: the number of processes that train together; it may raise SettingsError. optimizer: what
    trains where the settings name none.
    """
    known = [("offered", settings) for settings in taken if _is_near(settings.lr, now.lr)]
    for job in jobs:
        if job.kind == "find_lr" and _found(job, now.lr):
            known.append(("found", job.settings))
    if not known:
        return None

    def trained_by(settings: Settings) -> str:
        name = settings.optimizer
        return optimizer if name is None else short("optimizer", name)

    lr, trains = rate(now.lr), trained_by(now)
    alike = [(origin, then) for origin, then in known if trained_by(then) == trains]
    if not alike:
        origin, then = known[-1]
        text = (
            f"lr={lr} was {origin} for {trained_by(then)}, and now {trains} trains. No rule gives"
            " its rate: bench.find_lr() measures it."
        )
        return RateChange(text, {})
    try:
        after = effective_batch(now, ranks(now))
        sizes = [effective_batch(then, ranks(then)) for _, then in alike]
    except SettingsError:  # it changes during the fit
        return None
    if after in sizes:
        return None
    origin, before = alike[-1][0], sizes[-1]
    rates = {rule: three_digits(rescaled(now.lr, rule, after / before)) for rule in _RULES}
    text = (
        f"lr={lr} was {origin} for {before} samples in an update, and now there are {after}. By the"
        f" square root it becomes {rate(rates['sqrt'])}, and in proportion {rate(rates['linear'])}:"
        " bench.find_lr() measures it."
    )
    return RateChange(text, rates)


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
