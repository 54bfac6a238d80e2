"""Finds the best learning rate at several sizes, and the power law that they follow.

At each size, models of several seeds train at rates that differ by factors of 2, until the lowest
held-out loss has a higher one on both sides. A parabola through the lowest three losses says where
between the rates the best one lies, for each seed. Through the rates of all sizes and seeds goes a
plane: log rate against log width, log batch size and log length. The law extrapolates: Kaplan et
al., "Scaling Laws for Neural Language Models" (2020), and Bjorck et al., "Scaling Optimal LR Across
Token Horizons" (2024), fit rates in this form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.searches import scaling as plots
from workbench.runs.tables.render import text_table
from workbench.settings import SettingsError
from workbench.units import rate
from workbench.values import shown

NAMES = {"widths": "width", "batches": "batch_size", "lengths": "length"}
"""The arguments of the search, each with the name of one size."""
FEWEST = 3
"""The fewest sizes through which a law can be fitted: two points lie on every line."""
FACTOR = 2.0
"""The ratio of neighbouring rates."""
MOST = 12
"""The most rates at one size."""
_LEAST_SPREAD = 0.1
"""The least standard deviation of a measured log rate: a parabola through three losses that are a
factor of 2 apart is no more exact.
"""
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 8: 2.31, 10: 2.23, 15: 2.13, 30: 2.04}
"""Student's t for 95%, by degrees of freedom."""


@dataclass(frozen=True)
class SizeRates:
    """What was measured at one size.

    Attributes:
        size: {"width": 128, "batch_size": 32, "length": 300}, those that are known.
        losses: the held-out loss of each seed, by the rate; inf: it is not finite.
        lr: the best rate, by the mean loss of the seeds.
        of_seeds: the best rate of each seed.
    """

    size: Mapping[str, int]
    losses: Mapping[float, Sequence[float]]
    lr: float
    of_seeds: Sequence[float]

    @property
    def best_of_grid(self) -> float:
        """The rate with the lowest mean loss among those that were tried."""
        return min(self.losses, key=lambda lr: float(np.mean(self.losses[lr])))


@dataclass(frozen=True)
class Prediction:
    """A predicted rate, with the range that holds the best one in 95 of 100 cases if the law
    holds.
    """

    lr: float
    low: float
    high: float

    def __repr__(self) -> str:
        return f"lr={rate(self.lr)}, between {rate(self.low)} and {rate(self.high)}"


@dataclass(frozen=True, eq=False)
class Scaling(Drawable):
    """The result of `bench.scaling(…)`: the best rate at each size, and the law of these.

    `print(scaling)` shows rates and law, `plot()` draws them, and `predict(width=1024)` goes on
    beyond them.

    Attributes:
        sizes: what was measured at each size.
        exponents: the power of each size with which the best rate changes, with a range of 95%:
            {"width": (-0.9, -1.1, -0.7)}. About 0: the rate stays. About -1: half at twice the
            size.
    """

    sizes: tuple[SizeRates, ...]

    @property
    def varied(self) -> tuple[str, ...]:
        """The sizes of which there are several."""
        names = self.sizes[0].size
        return tuple(n for n in names if len({size.size[n] for size in self.sizes}) > 1)

    @property
    def exponents(self) -> dict[str, tuple[float, float, float]]:
        """The power of each size in the law, with its range of 95%."""
        law = self._law()
        spread = law.t * np.sqrt(np.diag(law.covariance))
        return {
            name: (float(value), float(value - by), float(value + by))
            for name, value, by in zip(self.varied, law.coefficients[1:], spread[1:], strict=True)
        }

    def predict(self, **sizes: int) -> Prediction:
        """The best rate at a size: `predict(width=1024)`. Sizes that are not given are the middle
        ones of those that were measured.
        """
        for name, size in sizes.items():
            if name not in self.sizes[0].size:
                raise SettingsError(
                    f"predict({name}={shown(size)}): give {', '.join(self.sizes[0].size)}."
                )
            if isinstance(size, bool) or not isinstance(size, int | float) or not size > 0:
                raise SettingsError(f"predict({name}={shown(size)}): give a number above 0.")
            if name not in self.varied and size != self.sizes[0].size[name]:
                raise SettingsError(
                    f"predict({name}={size}): only {name}={self.sizes[0].size[name]} was measured;"
                    f" bench.scaling(…) takes several, {_argument(name)}=[…]."
                )
        law = self._law()
        point = np.array([1.0, *(math.log(sizes.get(n, self._centre[n])) for n in self.varied)])
        log_lr = float(point @ law.coefficients)
        by = law.t * math.sqrt(float(point @ law.covariance @ point))
        return Prediction(math.exp(log_lr), math.exp(log_lr - by), math.exp(log_lr + by))

    @property
    def _centre(self) -> Mapping[str, int]:
        """The size at which the others are when one is varied: the first that was measured."""
        return self.sizes[0].size

    def _law(self) -> _Law:
        rows = [[1.0, *(math.log(s.size[name]) for name in self.varied)] for s in self.sizes]
        return _Law.through(
            np.array(rows, np.float64),
            np.log(np.array([size.lr for size in self.sizes], np.float64)),
            np.log(np.array([size.of_seeds for size in self.sizes], np.float64)),
        )

    def _charts(self) -> list[Chart]:
        charts = []
        for name in self.varied:
            others = [n for n in self.varied if n != name]
            measured = [
                size for size in self.sizes if all(size.size[n] == self._centre[n] for n in others)
            ]
            places = sorted(size.size[name] for size in measured)
            line = np.geomspace(places[0], 2 * places[-1], 30)
            law = [self.predict(**{name: float(point)}) for point in line]  # type: ignore[arg-type]
            charts.append(
                plots.law(
                    name,
                    [(size.size[name], lr) for size in measured for lr in size.of_seeds],
                    line,
                    [(p.lr, p.low, p.high) for p in law],
                )
            )
        name = self.varied[0]
        curves = [
            (f"{name} {size.size[name]}", {lr: float(np.mean(v)) for lr, v in size.losses.items()})
            for size in self.sizes
            if all(size.size[n] == self._centre[n] for n in self.varied[1:])
        ]
        return [*charts, plots.losses(curves)]

    def __repr__(self) -> str:
        names = list(self.sizes[0].size)
        rows = [[*names, "best lr", "of the seeds", "rates tried"]]
        for size in self.sizes:
            low, high = min(size.of_seeds), max(size.of_seeds)
            tried = f"{rate(min(size.losses))} to {rate(max(size.losses))}"
            spread = f"{rate(low, 2)} to {rate(high, 2)}"
            rows.append([*(str(size.size[n]) for n in names), rate(size.lr, 2), spread, tried])
        lines = [
            f"lr ~ {name}^{value:.2f} (95%: {low:.2f} to {high:.2f})"
            for name, (value, low, high) in self.exponents.items()
        ]
        return "\n".join(["Scaling", text_table(rows), *lines])


@dataclass(frozen=True)
class _Law:
    """A plane through log rates, by least squares."""

    coefficients: NDArray[np.float64]
    covariance: NDArray[np.float64]
    t: float

    @classmethod
    def through(
        cls, rows: NDArray[np.float64], logs: NDArray[np.float64], of_seeds: NDArray[np.float64]
    ) -> _Law:
        """The plane through the rates of all sizes; how far those of the seeds lie from it says
        how uncertain it is. of_seeds: of shape (sizes, seeds).
        """
        inverse = np.linalg.inv(rows.T @ rows)
        coefficients = np.asarray(inverse @ rows.T @ logs, np.float64)
        seeds = of_seeds.shape[1]
        free = max(1, of_seeds.size - rows.shape[1])
        residuals = of_seeds - (rows @ coefficients)[:, None]
        variance = max(float(np.sum(residuals**2)) / free, _LEAST_SPREAD**2)
        t = next(_T[n] for n in sorted(_T, reverse=True) if n <= free)
        return cls(coefficients, np.asarray(variance / seeds * inverse, np.float64), t)


def _argument(name: str) -> str:
    return next(argument for argument, size in NAMES.items() if size == name)


def checked_sizes(given: Mapping[str, Sequence[int] | None]) -> dict[str, list[int]]:
    """The sizes by name: those that vary have at least three values. SettingsError: there are too
    few, or one is no size. given: the arguments `widths`, `batches` and `lengths`.
    """
    sizes: dict[str, list[int]] = {}
    for argument, values in given.items():
        if values is None:
            continue
        listed = [values] if isinstance(values, int) else list(values)
        for value in listed:
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise SettingsError(
                    f"{argument}={shown(values)}: give whole numbers above 0, {argument}=[64, 128,"
                    " 256]."
                )
        if len({*listed}) in (0, 2):
            raise SettingsError(
                f"{argument}={shown(values)}: a law needs at least {FEWEST} sizes, since every two"
                f" points lie on a line. Give {FEWEST} or more, or one to keep it."
            )
        sizes[NAMES[argument]] = sorted({*listed})
    if not any(len(values) >= FEWEST for values in sizes.values()):
        raise SettingsError(
            f"scaling(): give at least {FEWEST} sizes of one kind, widths=[64, 128, 256],"
            " batches=[16, 32, 64] or lengths=[100, 200, 400]."
        )
    return sizes


def star(sizes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """The sizes to measure: the middle one of each kind, then for each kind all others with the
    rest in the middle.
    """
    centre = {name: values[(len(values) - 1) // 2] for name, values in sizes.items()}
    points = [centre]
    for name, values in sizes.items():
        points += [{**centre, name: value} for value in values if value != centre[name]]
    return points


def search(losses_at: Callable[[float], Sequence[float]], first: float) -> SizeRates:
    """Try rates from `first` on until the lowest mean loss has a higher one on both sides.

    losses_at: the held-out loss of each seed at a rate.
    """
    losses: dict[int, Sequence[float]] = {}

    def mean(step: int) -> float:
        return float(np.mean(losses[step]))

    pending = [0, -1, 1]
    while pending and len(losses) < MOST:
        step = pending.pop(0)
        losses[step] = losses_at(first * FACTOR**step)
        if not pending:
            steps = sorted(losses)
            best = min(steps, key=mean)
            if best == steps[0] or not math.isfinite(mean(best)):
                pending = [steps[0] - 1]
            elif best == steps[-1]:
                pending = [steps[-1] + 1]
    if not any(map(math.isfinite, itertools.chain(*losses.values()))):
        raise SettingsError(
            f"scaling(): no loss is finite at any rate from {rate(first * FACTOR ** min(losses))}"
            f" to {rate(first * FACTOR ** max(losses))}: set another lr to begin with."
        )
    seeds = range(len(next(iter(losses.values()))))
    means = vertex({step: mean(step) for step in losses})
    bests = [vertex({step: values[seed] for step, values in losses.items()}) for seed in seeds]
    return SizeRates(
        {},
        {first * FACTOR**step: losses[step] for step in sorted(losses)},
        first * FACTOR**means,
        [first * FACTOR**best for best in bests],
    )


def vertex(losses: Mapping[int, float]) -> float:
    """Where the parabola through the lowest loss and its two neighbours is lowest, at most half a
    step from the lowest loss. Beside a loss that is not finite it lies a fourth of a step away.
    """
    best = min(losses, key=lambda step: losses[step])
    if best - 1 not in losses or best + 1 not in losses:
        return float(best)
    below, least, above = losses[best - 1], losses[best], losses[best + 1]
    if not math.isfinite(above):
        return best - 0.25 if math.isfinite(below) else float(best)
    if not math.isfinite(below):
        return best + 0.25
    bend = below - 2 * least + above
    return best + (0.5 * (below - above) / bend if bend > 0 else 0.0)
