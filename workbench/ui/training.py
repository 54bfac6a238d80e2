"""A fit as the canvas shows it: loss, gradient norms (total, and layer × time), validation, live changes."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.events import Changed, Logged, Resumed, RunStarted, StepsDone, Validated
from workbench.plots.clipping import was_cut
from workbench.ui import words
from workbench.ui.channels import Buckets, Samples, Table
from workbench.ui.wire import Outbox, cut

LINE_BUCKETS = 1000
HEAT_BUCKETS = 256
HEAT_ROWS = 48
"""More layers than this share rows, neighbours together: more would not be told apart on a screen."""
RECENT = 200
AVERAGED = "_averaged"
"""Behind a metric's name: the same, of the averaged weights."""
MARKS = 100
"""Live changes kept on the picture; the oldest go."""
MARK = 160
"""Bytes for the words at one of them."""
ON_BAR = 8
"""So many of the values that the model wants on the progress line; the first that come."""


class Smoother:
    """A running mean over the last tenth of the run, 5 updates at least and 200 at most.

    The window grows with the run, so that 50 updates and 50,000 both show a trend; what is drawn never changes.
    """

    def __init__(self) -> None:
        self._mean = math.nan
        self._seen = 0

    def add(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        out = np.empty_like(values)
        for i, value in enumerate(values.tolist()):
            if math.isfinite(value):
                self._seen += 1
                window = min(max(self._seen / 10, 5.0), 200.0, float(self._seen))
                self._mean = value if self._seen == 1 else self._mean + (value - self._mean) / window
            out[i] = self._mean
        return out


class Training:
    """Folds a fit's events into channels and values of bounded size."""

    def __init__(self, outbox: Outbox, fit: Buckets, heat: Buckets, val: Samples) -> None:
        self._outbox, self._fit, self._heat, self._val = outbox, fit, heat, val
        self._clear()

    def _clear(self) -> None:
        self._smooth_loss, self._smooth_norm = Smoother(), Smoother()
        self._recent: deque[tuple[float, bool]] = deque(maxlen=RECENT)
        self._marks: list[tuple[int, list[str]]] = []
        self._clips: list[list[Any]] = []
        self._starts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._monitor: str | None = None
        self.by_norm = True
        self.loss: float | None = None
        self.val: float | None = None
        self.averaged: float | None = None
        self.on_bar: dict[str, float] = {}
        """What the model wants shown, by its names."""

    def start(self, event: RunStarted) -> None:
        self._clear()
        self._starts, names = _share_rows(event.layers)
        self._fit.reset()
        self._heat.reset([("max", max(1, len(names)))])
        self._val.reset()
        clip = event.settings.get("gradient_clip_val")
        self.by_norm = event.settings.get("gradient_clip_algorithm", "norm") == "norm"
        self._clips = [[0, clip]]
        self._outbox.put("layers", names)
        self._outbox.put("changes", [])
        self._outbox.put("clips", self._clips.copy())
        self._outbox.put("norm", {"caption": "", "by_norm": self.by_norm})
        self._outbox.put("val", {"name": "val", "averaged": ""})

    def steps(self, event: StepsDone) -> None:
        """One flush: what it says of the loss and the norms."""
        loss, norm = _column(event, "loss"), _column(event, "grad_norm")
        layers = _layers(event)
        measured = np.isfinite(norm) | np.isinf(norm) | ~np.isnan(layers).all(axis=1)
        bad = ~np.isfinite(loss) | (measured & ~np.isfinite(norm))
        clipped = was_cut(norm, _column(event, "grad_norm_clipped")) > 0
        finite_loss, finite_norm = np.where(np.isfinite(loss), loss, np.nan), np.where(bad, np.nan, norm)
        smooth = [self._smooth_loss.add(loss), _learning_rate(event), _norm_trend(self._smooth_norm, finite_norm)]
        clip_share = np.where(np.isfinite(finite_norm), clipped.astype(float), np.nan)
        self._fit.add(event.steps, event.every, [
            np.column_stack([finite_loss, finite_norm]),
            np.column_stack([finite_loss, finite_norm, bad.astype(float)]),
            np.column_stack([finite_norm, clip_share]),
            np.column_stack(smooth),
        ])  # fmt: skip
        if len(self._starts) and layers.shape[1] > int(self._starts[-1]):  # not a flush without norms
            self._heat.add(event.steps, event.every, [self._heat_rows(layers, bad)])
        self._recent.extend(zip(finite_norm.tolist(), clipped.tolist(), strict=True))
        self.loss = float(loss[-1]) if len(loss) else self.loss
        self._show(event)
        self._outbox.put("norm", {"caption": self._caption(), "by_norm": self.by_norm})

    def _heat_rows(self, layers: Table, bad: NDArray[np.bool_]) -> Table:
        """Layers sharing a row show the largest. A NaN in a bad update is a broken gradient: it shows as inf."""
        broken = np.where(np.isnan(layers) & bad[:, None], np.inf, layers)
        shared: Table = np.fmax.reduceat(broken, self._starts, axis=1)
        return shared

    def _caption(self) -> str:
        norms = np.array([n for n, _ in self._recent if math.isfinite(n)])
        if not len(norms):
            return ""
        p50, p95 = np.percentile(norms, [50, 95])
        spread = f"p50 {words.number(float(p50))} · p95 {words.number(float(p95))}"
        if not self._clips or self._clips[-1][1] is None:
            return f"no clipping · {spread}"
        share = sum(clipped for _, clipped in self._recent) / len(self._recent)
        return f"clipped {words.percent(share)} of the last {len(self._recent)} · {spread}"

    def validated(self, event: Validated) -> None:
        raw = [name for name in event.metrics if not name.endswith(AVERAGED)]
        if self._monitor is None and raw:
            self._monitor = "val_loss" if "val_loss" in raw else raw[0]
        value, averaged = event.metrics.get(self._monitor or ""), event.metrics.get(f"{self._monitor}{AVERAGED}")
        self._show(event)
        if value is None:
            return
        self._val.add([float(event.step), _drawn(value), _drawn(averaged)])
        self.val, self.averaged = value, self.averaged if averaged is None else averaged
        self._outbox.put("val", {
            "name": str(self._monitor)[:40],
            "averaged": "averaged" if averaged is not None or self.averaged is not None else "",
        })  # fmt: skip

    def logged(self, event: Logged) -> None:
        """What the model says of an epoch: on the progress line, if it wants that."""
        self._show(event)

    def changed(self, event: Changed) -> None:
        """A live change: a mark on the plots, and a new clip line from there on."""
        self._mark(event.step, [words.change(name, value) for name, value in event.values.items()])
        if "gradient_clip_val" in event.values:
            self._clips.append([event.step, event.values["gradient_clip_val"]])
            del self._clips[:-MARKS]
            self._outbox.put("clips", [*self._clips])

    def resumed(self, event: Resumed) -> None:
        """Where this run goes on from another one's record."""
        self._mark(event.step, ["resumed", *(words.change(name, value) for name, value in event.values.items())])

    def _mark(self, step: int, said: list[str]) -> None:
        """A line on the plots. What happens at one update has one line, or its names would lie on one another."""
        if self._marks and self._marks[-1][0] == step:
            said = [*dict.fromkeys([*self._marks.pop()[1], *said])]
        self._marks.append((step, said))
        del self._marks[:-MARKS]
        self._outbox.put("changes", [[step, cut(", ".join(said), MARK)] for step, said in self._marks])

    def _show(self, event: StepsDone | Validated | Logged) -> None:
        """The values that the model wants on the progress line; that of the plot is there anyway."""
        for name, value in event.on_bar.items():
            if name not in (self._monitor, f"{self._monitor}{AVERAGED}") and (name in self.on_bar or len(self.on_bar) < ON_BAR):
                self.on_bar[name] = value


def _drawn(value: float | None) -> float:
    """The value as a point; what is not finite has no place on the plot."""
    return value if value is not None and math.isfinite(value) else math.nan


def _norm_trend(smoother: Smoother, norm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Smoothed as it is drawn, on a logarithmic scale: a mean of the norms would lie along their spikes."""
    return np.exp(smoother.add(np.log(np.where(norm > 0, norm, np.nan))))


def _column(event: StepsDone, name: str) -> NDArray[np.float64]:
    values = event.array(name).astype(np.float64) if name in event.columns else np.empty(0)
    return values if len(values) == event.rows else np.full(event.rows, np.nan)


def _layers(event: StepsDone) -> Table:
    if "layer_norms" not in event.columns or not event.columns["layer_norms"]:
        return np.full((event.rows, 1), np.nan)
    return event.array("layer_norms").astype(np.float64)


def _learning_rate(event: StepsDone) -> NDArray[np.float64]:
    """The rate of the first optimizer, where there are several."""
    return _column(event, "lr" if "lr" in event.columns else "lr.0")


def _share_rows(layers: tuple[str, ...]) -> tuple[NDArray[np.int64], list[str]]:
    """Where each row of the heat map starts among the layers, and what it is called."""
    if not layers:
        return np.zeros(0, dtype=np.int64), []
    rows = min(len(layers), HEAT_ROWS)
    edges = np.linspace(0, len(layers), rows + 1).astype(np.int64)
    names = []
    for first, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        name = layers[first] if end - first == 1 else f"{layers[first]} … {layers[end - 1]}"
        names.append(name if len(name) <= 80 else f"{name[:38]}…{name[-40:]}")
    return edges[:-1], names
