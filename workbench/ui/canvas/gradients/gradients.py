"""Draws a fit's gradients on the canvas: the total norm, each layer's norms and update ratios,
and where they were not finite.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.events import Changed, Floats, RunStarted, StepsDone
from workbench.plots.smooth import Smoother
from workbench.runs.record.series import column
from workbench.ui import texts
from workbench.ui.canvas.gradients.clipping import Clipping
from workbench.ui.canvas.gradients.layers import Layers
from workbench.ui.canvas.transport.messages import Outbox, cut

EVERY = 0.5
"""Seconds of the run between two captions; numbers that change more often cannot be read."""


class Norms(NamedTuple):
    """The columns that one flush adds to the plot of the total norm, each of shape (rows,)."""

    norm: NDArray[np.float64]
    smooth: NDArray[np.float64]
    bad: NDArray[np.bool_]
    """Updates whose loss or gradient was not finite."""
    clipped: NDArray[np.float64]


class Gradients:
    """Folds events into bounded state: `clipping` of the total, and `layers`."""

    def __init__(self, outbox: Outbox, layers: Layers) -> None:
        self._outbox, self.layers, self.clipping = outbox, layers, Clipping(outbox)
        self._running = self._paused = self._resting = False
        """Whether the last event was no update (a validation, a pause): the next update may take a
        while, so everything is shown.
        """
        self._unsent = False
        self._view = -1
        """The view of the heat map whose rows were sent."""
        self._wanted = False
        """Whether the next fit is to measure update ratios."""
        self._clear({}, ())

    def _clear(self, settings: dict[str, Any], names: tuple[str, ...]) -> None:
        self._names = names
        self._smooth = Smoother()
        self._measuring = bool(settings.get("track_update_ratio", False))
        self._seconds, self._captioned = 0.0, -EVERY
        self._broken: dict[str, Any] | None = None
        self._alive = np.zeros(len(names), np.bool_)
        """Which layers ever had a gradient: the norm of a layer without one is NaN, too."""

    def start(self, event: RunStarted) -> None:
        """Begin a fit."""
        self._running, self._paused, self._resting = True, False, False
        self._clear(event.settings, event.layers)
        self.layers.start(event.layers)
        self.clipping.start(event.settings)
        self._unsent = True

    def clear(self) -> None:
        """Begin without a fit."""
        self._running = False
        self._clear({}, ())
        self.layers.clear()
        self.clipping.start({})
        self._unsent = True

    def ended(self) -> None:
        """Note that the fit has ended."""
        self._running = False
        self._unsent = True

    def rest(self) -> None:
        """Note an event that is no update."""
        self._resting = True
        self._unsent = True

    def status(self, status: str) -> None:
        """Note a new status of the job."""
        self._paused = status == "paused"

    def settings(self, settings: dict[str, Any]) -> None:
        """Take the settings of the next fit."""
        self._wanted = bool(settings.get("track_update_ratio", False))
        if self.clipping.choose(settings.get("gradient_clip_val")):
            self._captioned = -EVERY  # a user who drags the clip line sees its effect at once
        self._unsent = True

    def steps(self, event: StepsDone, loss: NDArray[np.float64]) -> Norms:
        """Add one flush; `loss` is of shape (rows,)."""
        norm, layers = (
            column(event, "grad_norm").astype(np.float64),
            _by_layer(event, "layer_norms"),
        )
        known = np.isfinite(norm)
        bad = ~np.isfinite(loss)
        if not known.all():  # an update without norms is not bad
            bad |= ~known & (~np.isnan(norm) | ~np.isnan(layers).all(axis=1))
        clipped = self.clipping.cut(event, norm)
        finite = np.where(known & ~bad, norm, np.nan)
        if bad.any():
            self._note_first(event, int(np.argmax(bad)), loss, layers)
        self._look_for_life(layers)
        if bad.any():
            # In a bad update, the NaN of a layer that has gradients is drawn as an infinite norm.
            layers = np.where(
                self._wrong(layers) & (bad & event.layer_rows)[:, None], np.float32(np.inf), layers
            )
        if layers.shape[1] > 1 or not np.isnan(layers).all():  # not a flush without norms
            self.layers.add_norms(event.steps, event.every, layers)
        if "update_ratios" in event.columns:
            self.layers.add_ratios(event.steps, event.every, _by_layer(event, "update_ratios"))
        elif self._measuring:
            self.layers.hold_ratios(event.steps, event.every)
        else:
            self.layers.no_ratios()
        self.clipping.add(event, finite, clipped)
        self._seconds, self._resting = event.seconds, False
        self._unsent = True
        smooth = np.where(bad, np.nan, _trend(self._smooth, finite))
        return Norms(finite, smooth, bad, np.where(np.isnan(finite), np.nan, clipped))

    def changed(self, event: Changed) -> None:
        """Take a live change: a new clip line from there on, or update ratios on or off."""
        if "gradient_clip_val" in event.values:
            self.clipping.changed(event.step, event.values["gradient_clip_val"])
        if "track_update_ratio" in event.values:
            self._measuring = bool(event.values["track_update_ratio"])
            self._unsent = True

    def look(self, message: dict[str, Any]) -> bool:
        """Change the view of the heat map for a request; False: the request is about something
        else.
        """
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
        self._unsent = True
        return True

    def settle(self) -> None:
        """Update caption and suggestion; called once before each message, for all events since
        the last one.
        """
        if not self._unsent:
            return
        self._unsent = False
        if not self._running or self._resting or not 0 <= self._seconds - self._captioned < EVERY:
            self._captioned = self._seconds if len(self.clipping.norms) else -EVERY
            self.clipping.settle(training=self._running and not self._paused)
        total = self.clipping.norms
        if self._view != self.layers.heat.view:
            self._view = self.layers.heat.view
            self._outbox.put("map", self.layers.map())
        self._outbox.put(
            "picks",
            self.layers.picks(float(total[-1]) if len(total) else np.nan, self.clipping.order),
        )
        self._outbox.put("broken", self._broken)
        self._send_ratios()

    # -- within ------------------------------------------------------------------------------------

    def _look_for_life(self, layers: Floats) -> None:
        if layers.shape[1] == len(self._names) and not self._alive.all():
            self._alive |= np.isfinite(layers).any(axis=0)

    def _wrong(self, layers: Floats) -> NDArray[np.bool_]:
        """Where a gradient is not finite, shape (rows, layers). Before the first finite one it is
        unknown which layers have none.
        """
        if layers.shape[1] != len(self._names):
            return np.zeros(layers.shape, np.bool_)
        alive = self._alive if self._alive.any() else True
        return np.isinf(layers) | (np.isnan(layers) & alive)

    def _note_first(
        self, event: StepsDone, row: int, loss: NDArray[np.float64], layers: Floats
    ) -> None:
        """Note where the first non-finite value was; later ones are its consequence."""
        if self._broken is not None:
            return
        step = int(event.steps[row])
        of_gradient = bool(np.isfinite(loss[row]))
        self._look_for_life(layers[: row + 1])
        broken = self._wrong(layers)[row] & (np.isinf(layers[row]) | self._alive.any())
        position, where = None, ""
        if broken.any() and not np.isnan(layers[row]).all():
            layer = int(np.argmax(broken))
            position, where = self.layers.place(layer), cut(self._names[layer], 120)
        self._broken = {
            "step": step,
            "place": position,
            "words": texts.broken(of_gradient, step, where),
        }

    def _send_ratios(self) -> None:
        on = self._measuring if self._running else self._wanted
        if self.layers.measured:
            said = ""
        elif self._running:
            said = texts.FIRST_RATIOS if on else texts.NO_RATIOS_YET
        else:
            said = texts.RATIOS_NEXT if on else texts.NO_RATIOS
        self._outbox.put("ratios", {"on": on, "words": said})


def _by_layer(event: StepsDone, name: str) -> Floats:
    """A table by layer, shape (rows, layers); one column of NaN where the flush lacks it."""
    if not event.rows or not event.columns.get(name):
        return np.full((event.rows, 1), np.nan, np.float32)
    return event.array(name)


def _trend(smoother: Smoother, norm: NDArray[np.float64]) -> NDArray[np.float64]:
    """The norms smoothed on a logarithmic scale, as in the plot; a mean of the norms would
    follow their spikes.
    """
    return np.exp(smoother.add(np.log(np.where(norm > 0, norm, np.nan))))
