"""Shows on the canvas how weights and activations of layers are distributed: the last
measurement that was asked for.
"""

from __future__ import annotations

from typing import Any

from workbench.events import Histogram, LayersMeasured
from workbench.ui import format, texts
from workbench.ui.canvas.transport.messages import Outbox, cut

_NAME = 120
"""Bytes of a name."""
_TOP = 99
"""The height of a histogram's highest bin."""
_ROWS, _BINS = 64, 64
"""The most layers and bins that are drawn, of a record of any source."""


class Histograms:
    """Sends the last measurement."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def clear(self) -> None:
        """Begin a fit, or begin without one."""
        self._outbox.put("histograms", None)

    def measured(self, event: LayersMeasured) -> None:
        """Show a measurement."""
        rows = [
            {
                "name": cut(layer.name, _NAME),
                "weights": _bars(layer.weights),
                "activations": _bars(layer.activations),
                "function": cut(layer.function, _NAME),
                "dead": _share(layer.dead),
                "saturated": _share(layer.saturated),
            }
            for layer in event.layers[:_ROWS]
        ]
        self._outbox.put(
            "histograms",
            {"step": event.step, "rows": rows, "note": texts.layers_left_out(event.left_out)},
        )


def _bars(histogram: Histogram | None) -> dict[str, Any] | None:
    """The heights of the bins, and their range in words."""
    if histogram is None:
        return None
    counts = histogram.counts[:_BINS]
    most = max(counts, default=0) or 1
    low, high = format.number(histogram.low), format.number(histogram.high)
    heights = [round(_TOP * count / most) for count in counts]
    bad = histogram.not_finite
    return {"heights": heights, "low": low, "high": high, "bad": bad}


def _share(share: float | None) -> float | None:
    """A share as a number from 0 to 1; None: unknown, or a record of another source."""
    return share if share is not None and 0 <= share <= 1 else None
