"""How much of the data is used: a number of batches or a fraction of them, a dry run, overfitting on purpose.

Names and meaning are Lightning's; a fraction that comes to no batch at all is an error instead of an empty run.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from workbench.settings import Settings
from workbench.task.errors import TaskError


def part(length: int, fraction: float) -> int:
    """That fraction of so many things, rounded down: 0.29 of 100 is 29 (though 100 * 0.29 is 28.999… in floats)."""
    product = length * fraction
    nearest = round(product)
    return nearest if math.isclose(product, nearest, rel_tol=1e-12) else int(product)


def count(length: int | None, limit: int | float, name: str) -> int | None:
    """How many batches to take of `length` (None: unknown) under the setting `name`. None: all that come."""
    if isinstance(limit, int):
        return limit if length is None else min(limit, length)
    if limit == 0:
        return 0
    if limit == 1:
        return length
    if length is None:
        raise TaskError(
            f"{name}={limit!r} is a fraction, and the data has no length: give a number of batches, {name}=100, say."
        )
    taken = part(length, limit)
    if length and not taken:
        raise TaskError(
            f"{name}={limit!r} of {length} batches is none at all: the smallest valid fraction is "
            f"{smallest_fraction(length)}; a number of batches does too, {name}=1, say."
        )
    return taken


def smallest_fraction(length: int) -> float:
    """The smallest fraction of so many batches that is one of them, in as few digits as a person would type."""
    return float(Context(prec=3, rounding=ROUND_CEILING).divide(Decimal(1), Decimal(length)))


def effective(settings: Settings) -> Settings:
    """What `fast_dev_run` and `overfit_batches` amount to in the other settings; a dry run has the last word."""
    changes: dict[str, Any] = {}
    if settings.overfit_batches:
        most = settings.overfit_batches
        changes |= {"shuffle": False, "limit_train_batches": most, "limit_val_batches": most}
    if settings.fast_dev_run:
        kinds = ("train", "val", "test", "predict")
        changes |= {f"limit_{kind}_batches": settings.fast_dev_run for kind in kinds}
        changes |= {"max_epochs": 1, "num_sanity_val_steps": 0, "early_stopping": ()}
    return settings.replace(**changes) if changes else settings
