"""Draws a fit's gradients on the canvas: the total norm and its clip line, each layer's norms and update ratios."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.events import Changed, Floats, RunStarted, StepsDone
from workbench.plots.smooth import Smoother
from workbench.plots.training.clipping import WINDOW, clip_share, suggest_clip, was_cut
from workbench.runs.record import series
from workbench.ui import format, texts
from workbench.ui.canvas.gradients.layers import Layers
from workbench.ui.canvas.transport.messages import Outbox, cut

CLIPS = 100
"""How many clip values are kept; the oldest are dropped."""
EVERY = 0.5
"""Seconds of the run between two captions; numbers that change more often cannot be read."""
_NEAR = 0.1
"""A suggestion that changes by less is not updated, so that the user can press its button."""


class Norms(NamedTuple):
    """The columns that one flush adds to the plot of the total norm, each of shape (rows,)."""

    norm: NDArray[np.float64]
    smooth: NDArray[np.float64]
    bad: NDArray[np.bool_]
    """Updates whose loss or gradient was not finite."""
    clipped: NDArray[np.float64]


class Gradients:
    """Folds events into bounded state: the caption of the total, and `layers`."""

    def __init__(self, outbox: Outbox, layers: Layers) -> None:
        self._outbox, self.layers = outbox, layers
        self._running = False
        self._resting = False
        """Whether the last event was no update (a validation, a pause): the next update may take a while, so everything is
        shown.
        """
        self._untold = False
        self._view = -1
        """The view of the heat map whose rows were sent."""
        self._wanted = False
        """Whether the next fit is to measure update ratios."""
        self._chosen: float | None = None
        """The clip value that is set for the next fit."""
        self._clear({}, ())

    def _clear(self, settings: dict[str, Any], names: tuple[str, ...]) -> None:
        self._names = names
        self._smooth = Smoother()
        self._recent: dict[str, NDArray[np.float64]] = {}
        """The last norms before clipping: of all, and of each optimizer where there are several."""
        self._first: NDArray[np.float64] = np.empty(0)
        """The first norms of all."""
        self._cut: NDArray[np.float64] = np.empty(0)
        self._clips: list[list[Any]] = [[0, settings.get("gradient_clip_val")]]
        self._by_norm = settings.get("gradient_clip_algorithm", "norm") == "norm"
        order = settings.get("track_grad_norm", 2.0)
        self._order = float(order) if isinstance(order, int | float) and order > 0 else None
        self._same = self._order == 2.0
        """Whether the norm before clipping is the 2-norm, as the norm after clipping is."""
        self._measuring = bool(settings.get("track_update_ratio", False))
        self._suggested: float | None = None
        self._seconds, self._captioned = 0.0, -EVERY
        self._broken: dict[str, Any] | None = None
        self._alive = np.zeros(len(names), np.bool_)
        """Which layers ever had a gradient: the norm of a layer without one is NaN, too."""

    def start(self, event: RunStarted) -> None:
        """Begin a fit."""
        self._running, self._resting = True, False
        self._clear(event.settings, event.layers)
        self.layers.start(event.layers)
        self._outbox.put("clips", self._clips.copy())
        self._untold = True

    def clear(self) -> None:
        """Begin without a fit."""
        self._running = False
        self._clear({}, ())
        self.layers.clear()
        self._outbox.put("clips", self._clips.copy())
        self._untold = True

    def ended(self) -> None:
        """Note that the fit has ended."""
        self._running = False
        self._untold = True

    def rest(self) -> None:
        """Note an event that is no update."""
        self._resting = True
        self._untold = True

    def settings(self, settings: dict[str, Any]) -> None:
        """Take the settings of the next fit."""
        self._wanted = bool(settings.get("track_update_ratio", False))
        chosen = settings.get("gradient_clip_val")
        if chosen != self._chosen:
            self._chosen, self._captioned = chosen, -EVERY  # a user who drags the clip line sees its effect at once
        self._untold = True

    def steps(self, event: StepsDone, loss: NDArray[np.float64]) -> Norms:
        """Add one flush; `loss` is of shape (rows,)."""
        norm, layers = column(event, "grad_norm"), _by_layer(event, "layer_norms")
        known = np.isfinite(norm)
        bad = ~np.isfinite(loss)
        if not known.all():  # an update without norms is not bad
            bad |= ~known & (~np.isnan(norm) | ~np.isnan(layers).all(axis=1))
        after = column(event, "grad_norm_clipped") if self._same else np.full(event.rows, np.nan)
        clipped = was_cut(norm, after) > 0
        finite = np.where(known & ~bad, norm, np.nan)
        if bad.any():
            self._note_first(event, int(np.argmax(bad)), loss, layers)
        self._look_for_life(layers)
        if bad.any():
            # In a bad update, the NaN of a layer that has gradients is drawn as an infinite norm.
            layers = np.where(self._wrong(layers) & (bad & event.layer_rows)[:, None], np.float32(np.inf), layers)
        if layers.shape[1] > 1 or not np.isnan(layers).all():  # not a flush without norms
            self.layers.add_norms(event.steps, event.every, layers)
        if "update_ratios" in event.columns:
            self.layers.add_ratios(event.steps, event.every, _by_layer(event, "update_ratios"))
        elif self._measuring:
            self.layers.hold_ratios(event.steps, event.every)
        else:
            self.layers.no_ratios()
        self._remember(event, finite, clipped)
        self._seconds, self._resting = event.seconds, False
        self._untold = True
        smooth = np.where(bad, np.nan, _trend(self._smooth, finite))
        return Norms(finite, smooth, bad, np.where(np.isnan(finite), np.nan, clipped))

    def changed(self, event: Changed) -> None:
        """Take a live change: a new clip line from there on, or update ratios on or off."""
        if "gradient_clip_val" in event.values:
            self._clips.append([event.step, event.values["gradient_clip_val"]])
            del self._clips[:-CLIPS]
            self._outbox.put("clips", [*self._clips])
        if "track_update_ratio" in event.values:
            self._measuring = bool(event.values["track_update_ratio"])
            self._untold = True

    def look(self, message: dict[str, Any]) -> bool:
        """Change the view of the heat map for a request; False: the request is about something else."""
        match message:
            case {"what": "open_group", "first": int(first), "end": int(end)}:
                self.layers.open(first, end)
            case {"what": "close_group", "depth": int(depth)}:
                self.layers.close(depth)
            case {"what": "pick_layer", "first": int(first), "end": int(end)}:
                self.layers.pick(first, end)
            case {"what": "show_ratios", "on": bool(on)}:
                self.layers.show("ratio" if on else "norm")
            case _:
                return False
        self._untold = True
        return True

    def tell(self) -> None:
        """Update caption and suggestion; called once before each message, for all events since the last one."""
        if not self._untold:
            return
        self._untold = False
        if not self._running or self._resting or not 0 <= self._seconds - self._captioned < EVERY:
            self._captioned = self._seconds if self._recent else -EVERY
            self._outbox.put("norm", {
                "caption": self._caption(),
                "by_norm": self._by_norm,
                "lined": self._by_norm and self._same,  # whether the clip value is a line among these norms
                "suggested": self._suggest(),
            })  # fmt: skip
        total = self._recent.get("grad_norm", np.empty(0))
        last = float(total[-1]) if len(total) else np.nan
        if self._view != self.layers.heat.view:
            self._view = self.layers.heat.view
            self._outbox.put("map", self.layers.map())
        self._outbox.put("picks", self.layers.picks(last, self._order))
        self._outbox.put("broken", self._broken)
        self._tell_ratios()

    # -- within ----------------------------------------------------------------------------------------------------

    def _remember(self, event: StepsDone, norm: NDArray[np.float64], clipped: NDArray[np.bool_]) -> None:
        there = np.isfinite(norm)
        self._cut = np.concatenate([self._cut, clipped[there]])[-WINDOW:]
        self._recent["grad_norm"] = _last(self._recent.get("grad_norm"), norm[there])
        if len(self._first) < WINDOW:
            self._first = np.concatenate([self._first, norm[there]])[:WINDOW]
        for name in event.columns:
            if name.startswith("grad_norm.") and name.removeprefix("grad_norm.").isdigit():
                self._recent[name] = _last(self._recent.get(name), column(event, name))

    def _look_for_life(self, layers: Floats) -> None:
        if layers.shape[1] == len(self._names) and not self._alive.all():
            self._alive |= np.isfinite(layers).any(axis=0)

    def _wrong(self, layers: Floats) -> NDArray[np.bool_]:
        """Where a gradient is not finite, shape (rows, layers). Before the first finite one it is unknown which
        layers have none.
        """
        if layers.shape[1] != len(self._names):
            return np.zeros(layers.shape, np.bool_)
        there = self._alive if self._alive.any() else True
        return np.isinf(layers) | (np.isnan(layers) & there)

    def _note_first(self, event: StepsDone, row: int, loss: NDArray[np.float64], layers: Floats) -> None:
        """Note where the first non-finite value was; later ones are its consequence."""
        if self._broken is not None:
            return
        step = int(event.steps[row])
        of_gradient = bool(np.isfinite(loss[row]))
        self._look_for_life(layers[: row + 1])
        broken = self._wrong(layers)[row] & (np.isinf(layers[row]) | self._alive.any())
        place, where = None, ""
        if broken.any() and not np.isnan(layers[row]).all():
            layer = int(np.argmax(broken))
            place, where = self.layers.place(layer), cut(self._names[layer], 120)
        self._broken = {"step": step, "place": place, "words": texts.broken(of_gradient, step, where)}

    def _tell_ratios(self) -> None:
        on = self._measuring if self._running else self._wanted
        if self.layers.measured:
            said = ""
        elif self._running:
            said = texts.FIRST_RATIOS if on else texts.NO_RATIOS_YET
        else:
            said = texts.RATIOS_NEXT if on else texts.NO_RATIOS
        self._outbox.put("ratios", {"on": on, "words": said})

    def _suggest(self) -> float | None:
        """Suggest a clip value from the 2-norm of each optimizer; other norms give no suggestion."""
        if not self._by_norm or not self._same:
            return None
        apart = [norms for name, norms in self._recent.items() if name != "grad_norm"]
        new = suggest_clip(*(apart or self._recent.values()))
        if new is None or self._suggested is None or abs(new - self._suggested) > _NEAR * self._suggested:
            self._suggested = new
        return self._suggested

    def _caption(self) -> str:
        norms = self._recent.get("grad_norm", np.empty(0))
        if not len(norms):
            return ""
        p50, p95 = np.percentile(norms, [50, 95])
        spread = texts.norms(format.number(float(p50)), format.number(float(p95)))
        if not self._clips[-1][1]:
            return texts.no_clipping(spread) + self._would_cut(norms)
        if not self._same:
            return texts.clip_not_drawn(self._by_norm, spread)
        return texts.clipped(format.percent(float(self._cut.mean())), len(self._cut), spread) + self._would_cut(norms)

    def _would_cut(self, norms: NDArray[np.float64]) -> str:
        """How many updates of this fit the clip value of the next fit would have clipped; "": it is the same value, or off."""
        value = self._chosen
        if not value or value == self._clips[-1][1] or not self._by_norm or not self._same or len(self._recent) > 1:
            return ""
        then, now = (format.percent(clip_share([part], value)) for part in (self._first, norms))
        return texts.would_clip(format.rate(value), then, len(self._first), now, len(norms))


def column(event: StepsDone, name: str) -> NDArray[np.float64]:
    """A column of the record (`series.column`) as float64."""
    values: NDArray[np.float64] = series.column(event, name).astype(np.float64)
    return values


def _by_layer(event: StepsDone, name: str) -> Floats:
    """A table by layer, shape (rows, layers); one column of NaN where the flush lacks it."""
    if not event.rows or not event.columns.get(name):
        return np.full((event.rows, 1), np.nan, np.float32)
    return event.array(name)


def _last(known: NDArray[np.float64] | None, new: NDArray[np.float64]) -> NDArray[np.float64]:
    finite = new[np.isfinite(new)]
    return (finite if known is None else np.concatenate([known, finite]))[-WINDOW:]


def _trend(smoother: Smoother, norm: NDArray[np.float64]) -> NDArray[np.float64]:
    """The norms smoothed on a logarithmic scale, as in the plot; a mean of the norms would follow their spikes."""
    return np.exp(smoother.add(np.log(np.where(norm > 0, norm, np.nan))))
