"""Halts a fit before its end, and cools it down there for a comparison with others.

A fit with a high rate looks worse in the middle than it ends, so what is compared is the value
after the rate has fallen to almost 0. The fit itself is stored before: what continues it knows of
no halt. Source: Hägele et al., NeurIPS 2024 (a constant rate and a cool-down equal a cosine).
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.commands import Change, Checkpoint, Scheduled, Stop, Validate

SHARE = 0.1
"""The updates of a cool-down, as a share of those so far."""
_STEPS = 50
"""The most steps in which the rate falls."""


def halt_at(share: float, updates: int) -> int:
    """After how many updates a fit of so many halts at this share of them."""
    return min(updates, max(1, round(share * updates)))


def cooling(step: int) -> int:
    """How many updates a cool-down after this update has."""
    return max(1, round(SHARE * step))


def halt(step: int, lr: float, *, cools: bool) -> Iterator[Scheduled]:
    """The commands of a fit that halts after this update: it is stored, validated, cooled down,
    validated again, and stopped. lr: its base rate. cools: False leaves out the cool-down.

    All but the first come one update later. At the end of an epoch the fit still validates after
    the commands, and stores itself again.
    """
    yield Scheduled(step, Checkpoint())
    begin = step + 1
    yield Scheduled(begin, Validate())
    if not cools:
        yield Scheduled(begin, Stop())
        return
    updates = cooling(step)
    every = -(-updates // _STEPS)
    for done in range(0, updates, every):
        # the rate halfway through these updates
        left = 1 - (done + min(every, updates - done) / 2) / updates
        yield Scheduled(begin + done, Change({"lr": lr * left}))
    yield Scheduled(begin + updates, Validate())
    yield Scheduled(begin + updates, Stop())
