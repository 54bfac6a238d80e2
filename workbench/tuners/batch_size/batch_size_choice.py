"""Recommends one of the batch sizes that passed, with a sentence that gives the reason.

The fastest size is rarely the one that trains best: an epoch of few updates learns little. So the
recommendation is the smallest size that is nearly as fast as the fastest, but no size that leaves
too few updates in an epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.events import Trial

AS_FAST = 0.9
"""A size counts as nearly as fast as the fastest with this share of its samples/s."""


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


def choose(passed: Sequence[Trial], epoch: Epoch | None = None) -> BatchSizeChoice:
    """Choose from the trials that passed. epoch: None where its length is unknown, or where each
    size gives the same number of updates.
    """
    if not passed:
        return BatchSizeChoice(None, None, "")
    fastest = _fastest(passed)
    if fastest is None:
        best, reason = max(t.size for t in passed), "the largest; no speed was measured"
    else:
        best, reason = fastest, f"the smallest size with {AS_FAST:.0%} of the highest speed"
    if epoch is None or epoch.updates(best) >= epoch.least:
        return BatchSizeChoice(best, fastest, f"{best}: {reason}.")
    fits = [t.size for t in passed if epoch.updates(t.size) >= epoch.least]
    chosen = max(fits, default=min(t.size for t in passed))
    most = (
        "the largest tried size that makes"
        if fits
        else "the smallest tried size; even this makes fewer than"
    )
    return BatchSizeChoice(
        chosen,
        fastest,
        f"{chosen}: {most} {epoch.least} updates in an epoch ({epoch.updates(chosen)}); {best}"
        f" makes {epoch.updates(best)}.",
    )


def _fastest(passed: Sequence[Trial]) -> int | None:
    """The smallest size nearly as fast as the fastest; None where no speed is known."""
    speeds = {t.size: t.samples_per_second for t in passed if t.samples_per_second is not None}
    speeds = {size: speed for size, speed in speeds.items() if math.isfinite(speed)}
    return min(
        (size for size, speed in speeds.items() if speed >= AS_FAST * max(speeds.values())),
        default=None,
    )
