"""Compares how large the outputs of layers are, and how much training changes them, in models of
several widths: the coordinate check of Yang et al., "Tensor Programs V" (2022), appendix D.1.

Where rates transfer, a layer's output and its change in the first updates are as large in a wide
model as in a narrow one. A layer whose change grows with the width breaks the training of a wide
model at the narrow one's rate; one whose change falls learns less there.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workbench.engine.backward import WindowForward
from workbench.engine.session import Session
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.searches import coordinates as plots
from workbench.runs.tables.render import text_table
from workbench.settings import Settings
from workbench.task.protocol import Task
from workbench.tuners.trial_batches import cycled_windows

_LEAST = 1e-12
"""Smaller sizes count as 0."""


@dataclass(frozen=True, eq=False)
class LayerCoordinates:
    """A layer in models of several widths.

    Attributes:
        name: the module.
        sizes: the mean size |x| of its output's values, of shape (updates + 1, widths): before the
            first update and after each.
        changes: the mean size of the difference from the output before the first update, of shape
            (updates, widths).
        widths: of the models.
    """

    name: str
    sizes: NDArray[np.float64]
    changes: NDArray[np.float64]
    widths: tuple[int, ...]

    @property
    def size_slope(self) -> float:
        """The power of the width with which its output grows, after the last update."""
        return _slope(self.widths, self.sizes[-1])

    @property
    def change_slope(self) -> float:
        """The power of the width with which the change of its output grows, after the last
        update.
        """
        return _slope(self.widths, self.changes[-1])


@dataclass(frozen=True, eq=False)
class CoordinateCheck(Drawable):
    """The result of `bench.coordinate_check(…)`: which layers follow the width.

    `print(check)` shows a table, `plot()` draws the sizes by width, and `check.ok` says whether all
    layers follow.

    Attributes:
        widths: of the models.
        layers: of the models, in the order in which they run.
        tolerance: the largest power of the width with which a layer may grow. It may fall with
            twice that: much of the change in a narrow model is random, and averages out in a wide
            one.
    """

    widths: tuple[int, ...]
    layers: tuple[LayerCoordinates, ...]
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether all layers follow."""
        return not self.off

    @property
    def off(self) -> dict[str, str]:
        """What is wrong with each layer that does not follow, by its name."""
        return {layer.name: why for layer in self.layers if (why := self._why(layer))}

    def _why(self, layer: LayerCoordinates) -> str:
        change, size = layer.change_slope, layer.size_slope
        if change > self.tolerance:
            return f"its change grows as width^{change:.2f}"
        if change < -2 * self.tolerance:
            return f"its change falls as width^{change:.2f}"
        if size > self.tolerance:
            return f"its output grows as width^{size:.2f}"
        return ""

    @property
    def verdict(self) -> str:
        """A sentence about all layers."""
        if self.ok:
            return "no layer grows or falls with the width: the rate transfers"
        first, why = next(iter(self.off.items()))
        others = len(self.off) - 1
        rest = f", and so on for {others} more" if others else ""
        return f"{len(self.off)} of {len(self.layers)} layers do not follow: {first}, {why}{rest}"

    def _charts(self) -> list[Chart]:
        return [
            plots.coordinates(
                "Change of outputs by width",
                self.widths,
                [(layer.name, layer.changes[-1], layer.name in self.off) for layer in self.layers],
            ),
            plots.coordinates(
                "Size of outputs by width",
                self.widths,
                [(layer.name, layer.sizes[-1], layer.name in self.off) for layer in self.layers],
            ),
        ]

    def __repr__(self) -> str:
        head = ["layer", *(f"change at {width}" for width in self.widths), "slope", "output's", ""]
        rows = [head]
        for layer in self.layers:
            sizes = [f"{change:.3g}" for change in layer.changes[-1]]
            slopes = [f"{layer.change_slope:+.2f}", f"{layer.size_slope:+.2f}"]
            rows.append([layer.name, *sizes, *slopes, self.off.get(layer.name, "")])
        return f"CoordinateCheck: {self.verdict}\n{text_table(rows)}"


def _slope(widths: Sequence[int], sizes: Sequence[float] | NDArray[np.float64]) -> float:
    """The slope of log size against log width; 0 where sizes are 0."""
    if np.min(sizes) < _LEAST:
        return 0.0
    if not np.all(np.isfinite(sizes)):
        return math.inf
    return float(np.polyfit(np.log(widths), np.log(sizes), 1)[0])


Measured = dict[str, tuple[list[float], list[float]]]
"""The sizes of each layer's output, and of its changes, by the layer's name."""


def measure(task: Task, settings: Settings, updates: int) -> Measured:
    """Take some updates, and measure the outputs of layers for one batch before the first and after
    each; the task is restored.
    """
    with open_session(task, settings) as session, scratch(session):
        windows = cycled_windows(
            session.task, session.data.settings, in_step=session.parallel.rounds
        )
        with contextlib.closing(windows) as feed:
            batch = next(feed)
            first = _outputs(session, batch)
            measured: Measured = {name: ([_mean(x)], []) for name, x in first.items()}
            session.train_mode()
            for window in itertools.chain([batch], itertools.islice(feed, updates - 1)):
                session.train_mode()
                train_step(session, window)
                for name, output in _outputs(session, batch).items():
                    if name in measured and output.shape == first[name].shape:
                        measured[name][0].append(_mean(output))
                        measured[name][1].append(_mean(output - first[name]))
    return {name: (sizes, changes) for name, (sizes, changes) in measured.items() if changes}


def _mean(x: Tensor) -> float:
    return float(x.abs().mean())


def _outputs(session: Session, window: Sequence[Any]) -> dict[str, Tensor]:
    """The output of each layer for the first batch of a window, in an evaluation."""
    session.task.model.eval()
    outputs: dict[str, Tensor] = {}
    with _hooked(session.task.model, outputs), torch.no_grad():
        WindowForward(session, session.optimizers[0], window).run(0)
    return outputs


@contextlib.contextmanager
def _hooked(model: nn.Module, outputs: dict[str, Tensor]) -> Iterator[None]:
    """Context manager in which the outputs of the modules that have parameters of their own are
    kept.
    """

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(value, Tensor) and value.is_floating_point():
                outputs[name] = value.detach().double()

        return hook

    handles = [
        module.register_forward_hook(keep(name or type(module).__name__))
        for name, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_of(
    widths: Sequence[int], by_width: Sequence[Sequence[Measured]], tolerance: float
) -> CoordinateCheck:
    """The result for these widths. by_width: what was measured with each seed, by width."""
    names = [
        name
        for name in by_width[0][0]
        if all(name in measured for seeds in by_width for measured in seeds)
    ]
    layers = []
    for name in names:
        sizes, changes = (
            np.array(
                [
                    np.exp(np.mean([np.log(np.maximum(m[name][which], _LEAST)) for m in seeds], 0))
                    for seeds in by_width
                ]
            ).T
            for which in (0, 1)
        )
        layers.append(LayerCoordinates(name, sizes, changes, tuple(widths)))
    return CoordinateCheck(tuple(widths), tuple(layers), tolerance)
