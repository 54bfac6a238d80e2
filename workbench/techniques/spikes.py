"""Finds spikes: updates whose loss or gradient norm is far above those before.

Losses are noisy, and those of small batches have heavy tails, so no fixed number of standard
deviations is a limit. The limit comes from the tail that the run itself has shown. Values are
compared, on a logarithmic scale, with the median of the latest ones. The largest tenth of the
differences counts as an exponential tail (for the loss itself: a power law, with Hill's estimate of
its index), and the limit lies `REACH` mean excesses beyond its beginning.

Sources: Hill, "A simple general approach to inference about the tail of a distribution" (1975);
Siffer et al., "Anomaly detection in streams with extreme value theory" (2017). Updates are left out
by loss and norm in OLMo-core (`SkipStepOptimizer`). Training goes back to earlier weights, without
the batches that followed, in Chowdhery et al., "PaLM" (2022), section 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Values = NDArray[np.float64]

BLOCK = 32
"""After this many values the limits are computed again."""
LEVEL = 64
"""The median of this many latest values is what is expected."""
MEMORY = 512
"""The tail is that of this many latest differences."""
FIRST = 64
"""So many differences are needed before the first judgement."""
TAIL = 0.1
"""The share of the differences that counts as the tail."""
REACH = 8.0
"""How far beyond the beginning of the tail the limit lies, in mean excesses. An exponential tail
has a share of exp(-8) there, 3e-5 of all values; the tails of real losses are lighter.
"""
LEAST = (0.3, 1.1)
"""The least differences that count, of the loss and of the norm: 1.4 and 3 times what is
expected.
"""
PERSISTS = 20
"""After this many updates in a row above a limit the level is new, and the detector begins anew."""
LEARNED = 0.05
"""A loss below this share of the first ones is no spike: the task is learned, and the samples that
are left to learn stand out.
"""
_LARGEST = 700.0
"""The largest number whose sinh is finite, about."""
SMALLER = 32
"""After this many updates in a row with fewer samples than usual, fewer are usual."""


class SpikeError(ArithmeticError):
    """Training went back to the same weights several times, and the loss spiked each time."""


class SpikeDetector:
    """Judges one update after another by its loss and its gradient norm."""

    def __init__(self) -> None:
        self._usual: int | None = None
        """How many samples an update has."""
        self._smaller = 0
        """How many updates in a row had fewer."""
        self._levels, self._scales = np.zeros((2, 1)), np.ones((2, 1))
        """The medians of the latest values on the scale asinh(value / scale), and the scales: half
        of their median size. Far above zero that is a logarithm, and losses may be negative.
        """
        self._start: float | None = None
        """The median of the first eight losses."""
        self._begin()

    def _begin(self) -> None:
        self._latest = np.zeros((2, LEVEL))
        """The latest values that were no spikes, as a ring: losses, then norms."""
        self._differences = np.zeros((2, MEMORY))
        """How far values were above what was expected, as a ring."""
        self._block: list[tuple[float, float]] = []
        """The values since the limits were computed."""
        self._count, self._compared = 0, 0
        """How many values, and differences, there were."""
        self._least = np.full(2, math.inf)
        """The differences from which on a value is a spike."""
        self._limits = math.inf, math.inf
        """The values from which on an update of the usual size is a spike."""
        self._learned = -math.inf
        """The loss below which nothing is a spike."""
        self._in_a_row = 0

    @property
    def expected(self) -> tuple[float, float]:
        """The loss and the norm that are expected of an update: the medians of the latest ones."""
        loss, norm = (np.sinh(self._levels) * self._scales)[:, 0].tolist()
        return loss, norm

    def is_spike(self, loss: float, norm: float = math.nan, samples: int | None = None) -> bool:
        """Whether this update is a spike; if not, later ones are compared with it, too.

        norm: NaN where it is not measured. samples: how many it is made of, None if unknown; with
        fewer than usual (the last batch of an epoch) a loss is noisier, and the limits are wider.
        """
        if loss - loss != 0.0:  # NaN or infinite: another check ends the run or leaves it out
            return False
        share = 1.0
        if samples is not None and samples != self._usual:
            share = self._share(samples)
        else:
            self._smaller = 0
        if (
            (loss > self._limits[0] or norm > self._limits[1])
            and loss > self._learned
            and (share == 1.0 or self._exceeds(loss, norm, share))
        ):
            self._in_a_row += 1
            if self._in_a_row >= PERSISTS:
                self._begin()
            return True
        self._in_a_row = 0
        if share >= 0.5:
            self._block.append((loss, norm))
            if len(self._block) == BLOCK:
                self._take_block()
        return False

    def _share(self, samples: int) -> float:
        """How many samples an update has, as a share of the usual number, at most 1."""
        self._smaller += 1
        if self._usual is None or samples > self._usual or self._smaller > SMALLER:
            self._usual, self._smaller = samples, 0
        return samples / self._usual

    def _exceeds(self, loss: float, norm: float, share: float) -> bool:
        """Whether an update with this share of the usual samples is a spike: its noise is larger
        by the root.
        """
        values = np.array([[loss], [norm]])
        above = (np.arcsinh(values / self._scales) - self._levels)[:, 0]
        return bool((above > self._least / math.sqrt(share)).any())

    def _take_block(self) -> None:
        """Compare the values of a block with what was expected of them, and expect anew."""
        values, self._block = np.array([*zip(*self._block, strict=True)]), []
        if self._count >= LEVEL:
            at = self._compared % MEMORY
            scaled = np.arcsinh(values / self._scales)
            # A falling loss lies below what was expected of it: then only its noise counts.
            self._differences[:, at : at + BLOCK] = scaled - np.minimum(
                self._levels, _medians(scaled)
            )
            self._compared += BLOCK
        at = self._count % LEVEL
        self._latest[:, at : at + BLOCK] = values
        self._count += BLOCK
        if self._count < LEVEL:
            return
        medians = _medians(self._latest)
        sizes = medians if self._latest.min() > 0.0 else _medians(np.abs(self._latest))
        self._scales = sizes / 2 + 1e-30
        self._levels = np.arcsinh(medians / self._scales)
        if self._start is None:
            self._start = float(np.median(self._latest[0, :8]))
        if self._compared < FIRST:
            return
        if self._compared <= MEMORY or self._compared % (4 * BLOCK) == 0:
            self._least = np.maximum(_reach(self._differences[:, : self._compared]), LEAST)
        highest = np.minimum(self._levels[:, 0] + self._least, _LARGEST)
        loss, norm = (np.sinh(highest) * self._scales[:, 0]).tolist()
        self._limits = loss, norm
        positive = self._start > 0.0 and medians[0, 0] >= 0.0
        self._learned = LEARNED * self._start if positive else -math.inf

    def state_dict(self) -> dict[str, Any]:
        """Everything that later judgements depend on."""
        state = {
            name.removeprefix("_"): torch.from_numpy(value) if type(value) is np.ndarray else value
            for name, value in vars(self).items()
        }
        return {**state, "latest": torch.from_numpy(self._latest.copy()),
                "differences": torch.from_numpy(self._differences.copy()),
                "block": list(self._block)}  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a detector."""
        for name, value in state.items():
            setattr(self, f"_{name}", value.cpu().numpy() if torch.is_tensor(value) else value)
        self._block = [(loss, norm) for loss, norm in state["block"]]


def _medians(values: Values) -> Values:
    """The median of each row, as a column: `np.median` takes longer than all else here."""
    middle = values.shape[1] // 2
    ordered = np.sort(values, axis=1)
    medians: Values = (ordered[:, middle - 1 : middle] + ordered[:, middle : middle + 1]) / 2
    return medians


def _reach(differences: Values) -> Values:
    """The limit of each row of differences, from its tail."""
    count = differences.shape[1]
    peaks = int(TAIL * count)
    ordered = np.partition(differences, count - peaks - 1, axis=1)
    edge = ordered[:, count - peaks - 1]
    excess = (ordered[:, count - peaks :] - edge[:, None]).mean(axis=1)
    # The mean of few may be too small by chance.
    limit: Values = edge + REACH * excess * (1 + 2 / math.sqrt(peaks))
    return limit
