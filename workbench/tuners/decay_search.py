"""Searches a weight decay: a few values train for a short stretch each, and held-out batches judge.

Decay acts slowly: it forgets weights over 1 / (rate x decay) updates (Wang & Aitchison 2024, "How to set AdamW's weight decay
as you scale model and dataset size"). In a stretch shorter than the run, the run's own decay has hardly begun to act, and values
that are too large look good; with the decay times run / stretch, as much is forgotten as in the run, but a stretch learns it again
less well, and large values look bad. In between lies the root of run / stretch, which ranks values best (measured). What only a
long run shows, such as a model that overfits late, no stretch shows: the present value stays where nothing is clearly better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.events import DecaySearchEnded, DecayTrial, Emit, last_of
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.searches.decay import decay
from workbench.runs.printable import printable
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.optim.optimizer_factory import leading_decay
from workbench.task.protocol import Task
from workbench.tuners import stretch
from workbench.units import number, rate

CANDIDATES = 4
SPACING = 10.0
"""The ratio of neighbouring candidates."""
CLEARLY = 0.05
"""More decay is suggested only where the loss at the present value is higher than the lowest by at least this share."""
LESS_CLEARLY = 0.3
"""The share for less decay, which must be clearer: short stretches hardly show the benefit of decay."""
NEARLY = 0.03
"""Of values whose losses are higher than the lowest by at most this share, the one next to the present is suggested."""
USUAL, USUAL_L2 = 0.01, 1e-4
"""Usual values, which stand for a present value of 0: of decay apart from the gradient (AdamW), and of decay in the gradient."""


@dataclass(frozen=True)
class WeightDecaySearch(Drawable):
    """What was found. `suggestion`: the weight decay to take; None: nothing is clearly better than the present value.

    `best`: the same as settings, as `bench.set(**found.best)` takes them. `trials`: each value with its held-out loss, in
    the order they were made. `reason` says why, `ended` how the search ended. `figure()` and `plot()` draw the loss of
    each value.
    """

    suggestion: float | None
    best: Mapping[str, Any]
    reason: str
    trials: tuple[DecayTrial, ...]
    ended: str

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> WeightDecaySearch:
        """From a run's events or its record, as far as the search got."""
        found = list(events)
        trials = tuple(e for e in found if isinstance(e, DecayTrial))
        end = last_of(found, DecaySearchEnded({}, None, "", "not ended"))
        return cls(end.suggestion, end.best, end.reason, trials, end.ended)

    def _charts(self) -> list[Chart]:
        return [decay(self.trials, self.suggestion)]

    def __repr__(self) -> str:
        found = "unchanged" if self.suggestion is None else f"weight_decay={rate(self.suggestion)}"
        rows = [f"  {t.weight_decay:<14g}  {t.loss:>14.4g}{'  best' if t.weight_decay == self.suggestion else ''}" for t in self.trials]
        columns = [f"  {'weight_decay':<14}  {'held-out loss':>14}"] if rows else []
        return "\n".join(map(printable, [f"WeightDecaySearch: {found} ({self.ended})", *filter(None, [self.reason and f"  {self.reason}"]), *columns, *rows]))


class _Run(NamedTuple):
    """Facts of the run before the first stretch."""

    present: float
    """Its weight decay, as the setting would be."""
    usual: float
    planned: int | None
    start: float | None
    """The val_loss at its start; None: training batches judge."""
    why_not: str
    """Why no data can judge the values."""


@dataclass(frozen=True)
class WeightDecayRequest:
    """How to search a weight decay: with so many updates in all."""

    updates: int = 800

    def __post_init__(self) -> None:
        stretch.check("updates", self.updates, CANDIDATES, 800)

    def run(self, task: Task, settings: Settings, emit: Emit, stopped: Callable[[], bool]) -> DecaySearchEnded:
        """Train with the present value, two others and then a fourth beside or beyond the best, until `stopped()`."""
        length = self.updates // CANDIDATES
        run = _look(task, settings, length)
        if run.why_not:
            return DecaySearchEnded({}, None, f"no value was tried: {run.why_not}.", "nothing can judge")
        length = min(length, run.planned or length)
        scale = math.sqrt(max(1.0, (run.planned or length) / length))
        trials: list[DecayTrial] = []
        values = first_values(run.present, run.usual)
        while values:
            if stopped():
                return DecaySearchEnded({}, None, "", "stopped")
            value = values.pop(0)
            loss = _loss_at(task, settings, value * scale, length, by_val=run.start is not None)
            trials.append(DecayTrial(value, length, loss))
            emit(trials[-1])
            if len(trials) == CANDIDATES - 1:
                values.append(float(f"{stretch.next_value({t.weight_decay or run.usual: t.loss for t in trials}):.2g}"))
        return conclusion(trials, run.start or 0.0, run.planned)


def first_values(present: float, usual: float) -> list[float]:
    """The present value, one above, and one further above, or below where the present one is more than usual."""
    base = present or usual
    third = base / SPACING if base > usual else base * SPACING**2
    return [present, *(float(f"{value:.2g}") for value in (base * SPACING, third))]


def conclusion(trials: Sequence[DecayTrial], start: float = 0.0, planned: int | None = None) -> DecaySearchEnded:
    """The value to take after these trials, whose first is the present value's.

    start: the loss before training; losses that differ by a few hundredths of it are alike.
    """
    present, length, ended = trials[0].weight_decay, trials[0].updates, "all values tried"
    told = ", ".join(f"{rate(t.weight_decay)}: {number(t.loss)}" for t in sorted(trials, key=lambda t: t.weight_decay))
    of = f" that stand for {planned:,}" if planned is not None and planned > length else ""
    why = f"held-out loss after {length} updates{of} at each decay: {told}."
    losses = {t.weight_decay: t.loss + stretch.LEARNED * start for t in trials if math.isfinite(t.loss) and t.loss > 0}
    if present not in losses or len(losses) < 2:
        return DecaySearchEnded({}, None, f"{why} Fewer than two losses can be compared with the present value's: it stays.", ended)
    lowest = min(losses.values())
    near = [value for value, loss in losses.items() if loss <= lowest * (1 + NEARLY)]
    best = min(near, key=lambda value: abs(value - present))
    gain = losses[present] / losses[best] - 1
    if gain < (CLEARLY if best > present else LESS_CLEARLY):
        late = "stretches miss what decay does late in a run"
        return DecaySearchEnded({}, None, f"{why} Nothing is clearly better than {rate(present)}, which stays: {late}.", ended)
    return DecaySearchEnded({"weight_decay": best}, best, f"{why} At {rate(best)} it is clearly lower than at {rate(present)}.", ended)


def _look(task: Task, settings: Settings, length: int) -> _Run:
    """Read the run, and find out whether the setting changes it. TaskError: the optimizer has no weight decay."""
    with open_session(task, settings) as session:
        stretch.refuse(session.task, session.settings, "find_weight_decay()")
        now, optimizer = _decay_of(session.optimizers), session.optimizers[0].optimizer
        kind = type(optimizer).__name__
        if now is None:
            raise TaskError(
                f"find_weight_decay(): {kind} has no weight_decay: take an optimizer that has one, such as optimizer=torch.optim.AdamW."
            )
        usual = USUAL if optimizer.param_groups[0].get("decoupled_weight_decay") else USUAL_L2
        start, why_not = stretch.starting_loss(session, length)
        planned = session.updates
    probe = SPACING * (now or usual)
    with open_session(task, settings.replace(weight_decay=probe)) as session:
        changed = _decay_of(session.optimizers) or 0.0
    if changed == now or not changed:
        raise TaskError(
            f"find_weight_decay(): the setting weight_decay does not change the decay of the {kind}: let the function that makes it use "
            "its argument, optimizer=lambda params, lr, weight_decay=0.01: …"
        )
    present = settings.weight_decay if settings.weight_decay is not None else float(f"{now * probe / changed:.6g}")
    return _Run(present, usual, planned, start, why_not)


def _decay_of(optimizers: Sequence[OptimizerHandle]) -> float | None:
    """The weight decay of the first optimizer that has one; None without one."""
    found = [value for opt in optimizers if (value := leading_decay(opt.optimizer)) is not None]
    return next(filter(None, found), found[0] if found else None)


def _loss_at(task: Task, settings: Settings, value: float, length: int, *, by_val: bool) -> float:
    """The held-out loss after a stretch with this weight decay; the task is restored."""
    chosen = settings.replace(weight_decay=value, weight_averaging=None)
    with open_session(task, chosen) as session, scratch(session):
        setters = [(stretch.multiplier(opt.optimizer), opt.base_lr) for opt in session.optimizers]

        def set_share(share: float) -> None:
            for set_lr, rate in setters:
                set_lr(rate * share)

        first = session.optimizers[0]
        shares = stretch.shape(chosen, stretch.schedule_of(session.settings, first), length)
        loss = stretch.train(session, first, shares, set_share, by_val=by_val)
        return float(session.ranks.broadcast_object(loss))
