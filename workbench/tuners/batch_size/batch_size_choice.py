"""Recommends one of the batch sizes that passed, with a sentence that gives the reason.

The fastest size is rarely the one that trains best. How many updates a training needs to reach a
loss depends on the gradient noise scale N: with B samples in an update it is in proportion to
1 + N / B (McCandlish, Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training", 2018).
Times the seconds of an update, that is the time to the loss. N grows while the loss falls, and a
search measures it early. So the recommendation is the smallest size with nearly the least time for
twice the measured N. The present size, whose learning rate is known, stays unless that size clearly
saves time even for the measured N. No size is recommended that leaves too few updates in an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.events import Trial
from workbench.instruments.noise_scale import NoiseScale, rounded

AS_FAST = 0.9
"""A size counts as nearly as fast as the fastest with this share of its samples/s."""
AS_SOON = 0.95
"""A size reaches a loss nearly as soon as the best one if the best one takes this share of its
time.
"""
GAINS = 0.9
"""The present size stays unless the best one takes at most this share of its time."""
GROWS = 2.0
"""A training is judged by so many times the noise scale that is measured early in it."""
FAR = 2.0
"""Sizes whose first estimate of the time is this many times the least are not compared."""


@dataclass(frozen=True)
class BatchSizeChoice:
    """The recommended size, the smallest that is nearly as fast as the fastest, and the reason
    for the first.
    """

    best: int | None
    fastest: int | None
    reason: str


@dataclass(frozen=True)
class Epoch:
    """The length of an epoch. samples: per rank; batches: in each update; least: the fewest
    updates that an epoch should have.
    """

    samples: int
    batches: int
    least: int

    def updates(self, size: int) -> int:
        """The updates of an epoch with batches of this size; a short last batch counts as one."""
        return math.ceil(math.ceil(self.samples / size) / self.batches)


def choose(
    passed: Sequence[Trial],
    epoch: Epoch | None = None,
    noise: NoiseScale | None = None,
    present: int | None = None,
) -> BatchSizeChoice:
    """Choose from the trials that passed. epoch: None where its length is unknown, or where each
    size gives the same number of updates. noise: the gradient noise scale; None where it is not
    known, and the speed alone decides. present: the size that the user has.
    """
    if not passed:
        return BatchSizeChoice(None, None, "")
    fastest = _fastest(passed)
    best, reason = _pick(passed, noise, present)
    if epoch is None or epoch.updates(best) >= epoch.least:
        return BatchSizeChoice(best, fastest, f"{best}: {reason}.")
    fits = [t for t in passed if epoch.updates(t.size) >= epoch.least]
    chosen, reason = _pick(fits, noise, present) if fits else (min(t.size for t in passed), "")
    if not fits:
        reason = (
            f"the smallest size tried. No size makes {epoch.least} updates in an epoch, and this"
            f" makes {epoch.updates(chosen)}"
        )
    elif chosen == max(t.size for t in fits):
        reason = (
            f"the largest size tried with {epoch.least} updates in an epoch or more. It makes"
            f" {epoch.updates(chosen)}, and {best} makes {epoch.updates(best)}"
        )
    return BatchSizeChoice(chosen, fastest, f"{chosen}: {reason}.")


def _pick(
    trials: Sequence[Trial], noise: NoiseScale | None, present: int | None
) -> tuple[int, str]:
    """The size that is recommended of these, and the reason."""
    known = noise is not None and noise.samples is not None
    fastest = _fastest(trials)
    if fastest is None:
        return max(t.size for t in trials), "the largest size, since no speed was measured"
    later = {t.size: _cost(t, noise, GROWS) for t in trials}
    least = min(later.values())
    best, reason = fastest, f"the smallest size with {AS_FAST:.0%} of the highest speed"
    if known:
        best = min(size for size, cost in later.items() if AS_SOON * cost <= least)
        reason = f"the smallest size that needs nearly the least time{_to(noise)}"
    costs = {t.size: _cost(t, noise) for t in trials}
    if present is not None and costs[best] >= GAINS * costs.get(present, math.inf):
        return present, (
            f"the present size. No other saves more than {1 - GAINS:.0%} of the time{_to(noise)}"
        )
    return best, reason


def shortlist(
    passed: Sequence[Trial],
    epoch: Epoch | None = None,
    noise: NoiseScale | None = None,
    present: int | None = None,
) -> list[Trial]:
    """The trials of which `choose` may recommend one, by a first estimate of their speeds."""
    allowed = [t for t in passed if epoch is None or epoch.updates(t.size) >= epoch.least]
    costs = {t.size: _cost(t, noise, GROWS) for t in allowed}
    least = min(costs.values(), default=math.inf)
    if not math.isfinite(least):
        return []
    return [t for t in allowed if t.size == present or costs[t.size] <= FAR * least]


def _cost(trial: Trial, noise: NoiseScale | None, grows: float = 1.0) -> float:
    """The time to a loss where the noise scale grows so many times, in a unit that is the same for
    all sizes; inf if no speed is known.
    """
    speed, seconds = trial.samples_per_second, trial.seconds
    if speed is None or seconds is None or not math.isfinite(speed):
        return math.inf
    if noise is None or noise.samples is None:
        return 1 / speed
    return seconds * (1 + grows * noise.samples / (seconds * speed))


def _to(noise: NoiseScale | None) -> str:
    """To what the time leads, in words."""
    if noise is None or noise.samples is None:
        return " for a sample"
    about = "about" if noise.value is not None else "at least"
    return (
        f" to a loss, judged by speeds and a noise scale of {about} {rounded(noise.samples)}"
        " samples"
    )


def _fastest(passed: Sequence[Trial]) -> int | None:
    """The smallest size nearly as fast as the fastest; None where no speed is known."""
    speeds = {t.size: t.samples_per_second for t in passed if t.samples_per_second is not None}
    speeds = {size: speed for size, speed in speeds.items() if math.isfinite(speed)}
    return min(
        (size for size, speed in speeds.items() if speed >= AS_FAST * max(speeds.values())),
        default=None,
    )
