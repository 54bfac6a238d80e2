"""Estimates the gradient noise scale: the batch size beyond which more samples in an update gain
little.

How to read it: with batches far below it, twice the batch saves nearly half of the updates; with
batches far above it, twice the batch costs twice the samples and saves few updates. At the noise
scale itself a training takes twice the fewest updates and twice the fewest samples. It belongs to
the weights at which it is measured: it is small at the beginning of a training and grows while the
loss falls, often more than tenfold.

Source: McCandlish, Kaplan, Amodei et al., "An Empirical Model of Large-Batch Training" (2018), the
"simple" noise scale S / |G|^2: S is the trace of the covariance of one sample's gradient, G the
mean gradient. The loss of a batch must be the mean over its samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from workbench.task.device import xla

FEWEST = 8
"""The number of gradients from which their spread can be estimated."""
KNOWN = 0.5
"""The noise scale is known once it lies within this share of itself (95%); before, |G|^2 is not
clearly above 0.
"""
PRESENT = "the model's present weights"
_WIDTH = 16381
"""Numbers that a sketch of a gradient has. A prime, so that the rows of a weight do not begin at
the same places.
"""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NoiseScale:
    """The noise scale in samples, and within which share of itself it is known (95%); both None
    while it is not known.
    """

    value: float | None
    uncertainty: float | None
    reason: str
    """What the number means, or why the noise scale is unknown, in a sentence."""
    at_least: float | None = None
    """What it is at least (95%); None: nothing is known of it."""

    @property
    def samples(self) -> float | None:
        """By how many samples to judge a batch size: the noise scale, or what it is at least."""
        return self.at_least if self.value is None else self.value


class Sketch:
    """Maps gradients to a few thousand numbers that keep their norms and inner products to about
    1%.

    Each number of a gradient gets a random sign, and those at the same place modulo `_WIDTH` are
    added up (a count sketch: Charikar, Chen, Farach-Colton, "Finding Frequent Items in Data
    Streams", 2002). So many gradients can be kept at once, which a jackknife needs. A gradient of
    fewer numbers than that keeps all of them.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = tuple(parameters)
        device = self._parameters[0].device
        # torch_xla has no generators but its own
        at = torch.device("cpu") if xla.is_xla(device) else device
        drawn = torch.Generator(at).manual_seed(0)  # its own, so that no stream of the run moves
        self._signs = [
            torch.randint(0, 2, (_numbers(p),), dtype=torch.int8, device=at, generator=drawn).to(
                device
            )
            * 2
            - 1
            for p in parameters
        ]

    def take(self) -> Array:
        """The present gradients of the parameters as one vector; without a gradient a parameter
        counts as 0.
        """
        places, total = 0, torch.zeros(_WIDTH, device=self._parameters[0].device)
        for parameter, signs in zip(self._parameters, self._signs, strict=True):
            before, places = places % _WIDTH, places + len(signs)
            if parameter.grad is not None:
                signed = _flat(parameter.grad) * signs
                total += (
                    torch.nn.functional.pad(signed, (before, -(before + len(signs)) % _WIDTH))
                    .view(-1, _WIDTH)
                    .sum(0)
                )
        return total.cpu().numpy().astype(np.float64)


def _numbers(parameter: Tensor) -> int:
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _flat(gradient: Tensor) -> Tensor:
    whole = gradient.detach()
    whole = whole.to_dense() if whole.is_sparse else whole
    return (torch.view_as_real(whole) if whole.is_complex() else whole).reshape(-1).float()


def noise_scale(
    gradients: Sequence[Array], weights: Sequence[float], samples: int, at: str = PRESENT
) -> NoiseScale:
    """Estimate the noise scale from the mean gradients of disjoint batches of so many samples, all
    at the same weights. at: these weights in words, for the reason.

    weights: what each batch counts in a mean of several (its samples, or the tokens of which its
    loss is the mean). The batches by themselves are the small size of McCandlish et al., all of
    them together the big one. S and |G|^2 are both unbiased; the noise scale is their ratio, with
    an uncertainty by a jackknife over the batches.
    """
    many = len(gradients)
    if many < FEWEST:
        return NoiseScale(
            None,
            None,
            f"not known: it needs {FEWEST} batches with a finite gradient, and there were {many}.",
        )
    rows, w = np.stack(gradients), np.asarray(weights, np.float64)
    products = rows @ rows.T
    squared_norms, with_all = np.diagonal(products), products @ w
    spread, square = _moments(
        many, w.sum(), (w**2).sum(), w @ with_all, (w**2) @ squared_norms, w @ squared_norms
    )
    spreads, squares = _moments(
        many - 1,
        w.sum() - w,
        (w**2).sum() - w**2,
        w @ with_all - 2 * w * with_all + w**2 * squared_norms,
        (w**2) @ squared_norms - w**2 * squared_norms,
        w @ squared_norms - w * squared_norms,
    )
    per_sample = w.sum() / (many * samples)
    # 1 / N has an upper end even where |G|^2 may be 0
    most = square / spread + _uncertainty(squares / spreads) if spread > 0 else 0.0
    at_least = float(1 / most / per_sample) if most > 0 else None
    if (
        square <= 0
        or spread <= 0
        or (uncertainty := _uncertainty(spreads / spread - squares / square)) > KNOWN
    ):
        known = "not known" if at_least is None else f"{rounded(at_least)} samples or more"
        return NoiseScale(
            None,
            None,
            f"{known}: at {at} the mean gradient of {many * samples:,} samples is not"
            " clearly above its noise.",
            at_least,
        )
    value = float(spread / square / per_sample)
    return NoiseScale(
        value,
        uncertainty,
        f"about {rounded(value)} samples (within {uncertainty:.0%}) at {at}:"
        " larger batches save few updates. It grows while the loss falls.",
        at_least,
    )


def mean_of(scales: Mapping[int, NoiseScale]) -> NoiseScale:
    """The geometric mean of noise scales, which were measured after so many updates each.

    Those of which nothing is known are left out. Where one is known to be large only, it counts as
    what it is at least, and so does the mean.
    """
    known = {after: scale for after, scale in scales.items() if scale.samples is not None}
    if len(known) < 2:
        return next(iter((known or scales).values()))
    logs = [math.log(scale.samples or math.nan) for scale in known.values()]
    mean = math.exp(sum(logs) / len(logs))
    listed = ", ".join(
        f"{'' if scale.value is not None else 'at least '}{rounded(scale.samples or math.nan)}"
        for scale in known.values()
    )
    after = f"{', '.join(map(str, list(known)[:-1]))} and {list(known)[-1]}"
    if any(scale.value is None for scale in known.values()):
        return NoiseScale(
            None,
            None,
            f"{rounded(mean)} samples or more, the mean of {listed} after {after} updates: the"
            " mean gradient is not clearly above its noise.",
            mean,
        )
    squares = [(scale.uncertainty or 0.0) ** 2 for scale in known.values()]
    uncertainty = math.sqrt(sum(squares)) / len(squares)
    return NoiseScale(
        mean,
        uncertainty,
        f"about {rounded(mean)} samples (within {uncertainty:.0%}), the mean of {listed} after"
        f" {after} updates: larger batches save few updates. It grows while the loss falls.",
        mean * (1 - uncertainty),
    )


def _moments(
    many: int, weight: Array, squared: Array, of_sum: Array, own_squared: Array, own: Array
) -> tuple[Array, Array]:
    """The unbiased estimates of S and |G|^2 from sums over batches; with arrays, one for each batch
    that is left out.

    of_sum: the squared norm of the weighted sum of all gradients; own_squared, own: the sums of
    each one's squared norm times its squared weight, and times its weight.
    """
    spread = (own - of_sum / weight) / (many - 1)
    square = (of_sum - own_squared) / (weight**2 - squared)
    return spread, square


def _uncertainty(left_out: Array) -> float:
    """Half the width of a 95% interval from estimates that leave out one batch each."""
    many = len(left_out)
    return float(2 * np.sqrt((many - 1) / many * ((left_out - left_out.mean()) ** 2).sum()))


def rounded(value: float) -> str:
    """A noise scale with two digits, since no more of it is known."""
    return f"{float(f'{value:.2g}'):,.0f}" if value >= 10 else f"{value:.2g}"
