"""Halts a fit before its end, for a comparison with others. What continues it knows of no halt."""

from __future__ import annotations

from workbench.commands import Checkpoint, Scheduled, Stop, Validate


def halt_at(share: float, updates: int) -> int:
    """After how many updates a fit of so many halts at this share of them."""
    return min(updates, max(1, round(share * updates)))


def halt(step: int) -> list[Scheduled]:
    """The commands of a fit that halts after this update: it is stored, validated and stopped.

    The last two come one update later. At the end of an epoch the fit still validates after the
    commands, and stores itself again: with what a validation before had changed in the user's
    objects.
    """
    return [
        Scheduled(step, Checkpoint()),
        Scheduled(step + 1, Validate()),
        Scheduled(step + 1, Stop()),
    ]
