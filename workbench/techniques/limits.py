"""Limits how many batches a job uses: by number or fraction, in a dry run, and for overfitting a
few batches.

Names and meanings are Lightning's. A fraction of less than one batch raises TaskError instead of an
empty run.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from workbench.settings import Settings
from workbench.task.errors import TaskError


def is_whole(part: float | str) -> bool:
    """Whether a setting means all of something: 1.0 does, and 1 is one batch."""
    return isinstance(part, float) and part == 1.0


def fraction_of(length: int, fraction: float) -> int:
    """Return that fraction of `length` batches, rounded down: 0.29 of 100 is 29 (though 100 *
    0.29 is 28.999… in floats).
    """
    product = length * fraction
    nearest = round(product)
    return nearest if math.isclose(product, nearest, rel_tol=1e-12) else int(product)


def limited_batches(length: int | None, limit: int | float, name: str) -> int | None:
    """Return how many of `length` batches (None: unknown) the setting `name` allows. None: all
    of them.
    """
    if isinstance(limit, int):
        return limit if length is None else min(limit, length)
    if limit == 0:
        return 0
    if limit == 1:
        return length
    if length is None:
        raise TaskError(
            f"{name}={limit!r} is a fraction, and the data has no length: give a number of batches"
            f" ({name}=100)."
        )
    allowed = fraction_of(length, limit)
    if length and not allowed:
        raise TaskError(
            f"{name}={limit!r} of {length} batches is less than one batch: give {name}="
            f"{smallest_fraction(length)} or more, or a number of batches ({name}=1)."
        )
    return allowed


def smallest_fraction(length: int) -> float:
    """Return the smallest fraction of `length` batches that gives one batch, rounded up to three
    digits.
    """
    return float(Context(prec=3, rounding=ROUND_CEILING).divide(Decimal(1), Decimal(length)))


def effective_settings(settings: Settings) -> Settings:
    """Return the settings with `overfit_batches` and `fast_dev_run` applied to the others;
    `fast_dev_run` wins.
    """
    changes: dict[str, Any] = {}
    if settings.overfit_batches:
        most = settings.overfit_batches
        changes |= {"shuffle": False, "limit_train_batches": most, "limit_val_batches": most}
    if settings.fast_dev_run:
        kinds = ("train", "val", "test", "predict")
        changes |= {f"limit_{kind}_batches": settings.fast_dev_run for kind in kinds}
        changes |= {"max_epochs": 1, "num_sanity_val_steps": 0, "early_stopping": ()}
    return settings.replace(**changes) if changes else settings
