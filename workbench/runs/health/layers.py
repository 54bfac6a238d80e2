"""Finds layers that get no gradient, or hardly any."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from workbench.events import Event, RunStarted, StepsDone
from workbench.plots.training.grad_norm import cancels
from workbench.runs.health.finding import Finding, Rule, lower_rate, several, taken
from workbench.values import first_names


class Layers(Rule):
    """Compares each layer's gradient norm with the median layer's, over consecutive updates.

    The rule about small norms skips biases and the scales of weight norm: before a normalisation
    their gradient is rounding noise by construction, which is harmless, and which the map of layers
    calls so.
    """

    FOR = 100
    """Consecutive updates: a layer may not be used for a batch or two (an embedding, an expert)."""
    ROWS = 200
    """How many rows of a flush are checked; flushes read from a record may be long."""
    BELOW = 1e-3
    """The share of the median layer's norm: Glorot and Bengio (2010) saw layers of one network
    differ by a factor of tens in a bad initialisation.
    """

    def __init__(self, start: RunStarted) -> None:
        self._names, self._lower = start.layers, lower_rate(start, 10)
        n = len(start.layers)
        self._silent, self._small = np.zeros(n, np.int64), np.zeros(n, np.int64)
        """The number of consecutive updates in which each layer had no gradient, or hardly any."""
        self._weak_since = np.zeros(n, np.int64)
        self._zero = np.zeros(n, np.bool_)
        """Whether the last gradient was zero; NaN means that none was computed."""

    def on_event(self, event: Event) -> None:
        if not isinstance(event, StepsDone) or not event.columns.get("layer_norms"):
            return
        norms = event.array("layer_norms")
        # with several optimizers most layers wait for their turn
        if norms.shape[1] != len(self._names) or several(event):
            return
        measured = taken(event) & (norms > 0).any(axis=1)
        every = max(1, event.rows // self.ROWS)
        steps, norms = event.steps[measured][::every], norms[measured][::every]
        if not len(steps):
            return
        self._zero = norms[-1] == 0
        positive = np.where(norms > 0, norms, np.nan)
        none = np.isnan(positive)
        small = ~none & (norms < self.BELOW * _median(positive))
        last = _since(~(none | small))
        self._weak_since = np.where(
            last < len(steps),
            steps[len(steps) - 1 - np.minimum(last, len(steps) - 1)] + 1,
            self._weak_since,
        )
        stands = every * event.layers_every
        self._silent = _streak(self._silent, ~none, stands)
        self._small = _streak(self._small, ~small, stands)

    def findings(self) -> Iterator[Finding]:
        cancelling = np.array([cancels(name) for name in self._names], dtype=np.bool_)
        silent = self._silent >= self.FOR
        dead = silent & (self._weak_since > 0)
        zero = silent & ~dead & self._zero
        zero &= (zero & ~cancelling).any()  # the gradient of a bias alone cancels without a rest
        rules = (
            (
                silent & ~dead & ~self._zero,
                "no gradient reaches",
                "is it used in the forward, and joined to the loss?",
            ),
            (
                zero,
                "a gradient of zero reaches",
                (
                    "its units are dead from the start (a ReLU that is never positive), or what"
                    " follows ignores them"
                ),
            ),
            (
                dead,
                "no gradient reaches",
                "its units are dead or saturated: lower the learning rate",
            ),
            (
                (self._small >= self.FOR) & ~cancelling,
                "hardly a gradient (1000 times below the median layer's) reaches",
                (
                    "normalise before it, or give it a residual path; or its learning rate is for"
                    " others"
                ),
            ),
        )
        for which, problem, advice in rules:
            layers = np.flatnonzero(which)
            if len(layers):
                since = int(self._weak_since[layers].min())
                when = (
                    f" since update {since}"
                    if since
                    else f" in {int(max(self._silent[layers[0]], self._small[layers[0]]))} updates"
                )
                died = which is dead and bool((dead & self._zero & ~cancelling).any())
                remedy, trouble = (self._lower, "dead layers") if died else ("", "")
                text = f"{problem} {first_names([self._names[i] for i in layers], 3)}{when}"
                yield Finding("warning", text, advice, since, remedy, trouble)


def _since(ends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each layer the number of rows after the last one that ends a streak; all rows if none
    does.
    """
    rows_since: NDArray[np.int64] = np.where(ends.any(axis=0), ends[::-1].argmax(axis=0), len(ends))
    return rows_since


def _streak(before: NDArray[np.int64], ends: NDArray[np.bool_], every: int) -> NDArray[np.int64]:
    """The length of the present streak, for each layer; a row counts for `every` updates."""
    rows_since = _since(ends)
    return np.where(rows_since < len(ends), rows_since * every, before + rows_since * every)


def _median(norms: NDArray[np.float32]) -> NDArray[np.float32]:
    """The median of each row without NaN, shape (rows, 1); three times as fast if there is no
    NaN.
    """
    median = np.nanmedian if np.isnan(norms).any() else np.median
    medians: NDArray[np.float32] = median(norms, axis=1, keepdims=True)
    return medians
