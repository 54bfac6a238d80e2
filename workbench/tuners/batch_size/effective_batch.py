"""Computes the effective batch: the samples of one update on all ranks.

It can be kept at another batch size, or the rate can be scaled with it.

Sources for the rates: Goyal et al., "Accurate, Large Minibatch SGD" (2017) for the linear rule;
Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014) for the square
root.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from workbench.settings import Settings, SettingsError
from workbench.techniques.accumulation import size_at

_RULES: dict[str, Callable[[float], float]] = {
    "linear": lambda k: k,
    "sqrt": math.sqrt,
    "none": lambda k: 1.0,
}


def effective_batch(settings: Settings, ranks: int = 1) -> int:
    """Samples in one update: ranks x batch size x accumulated batches. Raises SettingsError if
    that changes during a fit.
    """
    setting = settings.accumulate_grad_batches
    epochs = [0] if isinstance(setting, int) else [0, *setting]
    sizes = {size_at(setting, epoch) for epoch in epochs}
    if len(sizes) > 1:
        raise SettingsError(
            f"keep_effective=True with accumulate_grad_batches={setting!r}: the effective batch"
            " changes during the fit, so it cannot be kept; give one number of batches."
        )
    return ranks * settings.batch_size * sizes.pop()


def accumulation(effective: int, size: int) -> int:
    """The number of batches of `size` that comes nearest to the effective batch; at least 1."""
    return max(1, (2 * effective + size) // (2 * size))


def next_size(size: int, effective: int | None) -> int:
    """The size to try after one that passed: twice that size, or the largest size up to it that
    divides `effective`.
    """
    divides = [n for n in range(2 * size, size, -1) if effective is not None and effective % n == 0]
    return divides[0] if divides else 2 * size


def short_of(effective: int, size: int, ranks: int = 1) -> str:
    """A sentence for the user if no number of batches of `size` on each rank makes the effective
    batch; else "".
    """
    together = ranks * size
    if effective % together == 0:
        return ""
    count = accumulation(effective, together)
    named = f"{size}" if ranks == 1 else f"{ranks} x {size}"
    return f"{effective} is not a multiple of {named}: {count} of them make {count * together}"


def rescaled(lr: float, rule: str, factor: float) -> float:
    """The learning rate for an effective batch that is `factor` times as large."""
    if rule not in _RULES:
        raise SettingsError(f"rule={rule!r}: give 'linear', 'sqrt' or 'none'.")
    return lr * _RULES[rule](factor)
