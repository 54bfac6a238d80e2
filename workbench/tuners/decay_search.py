"""Searches a weight decay: trains for a short stretch with each of a few values, and compares
losses on held-out batches.

Decay acts slowly: weights are forgotten over 1 / (rate x decay) updates (Wang & Aitchison 2024,
"How to set AdamW's weight decay as you scale model and dataset size"). In a stretch shorter than
the run, the run's own decay hardly acts, so values that are too large look good. With decay x (run
/ stretch), as much is forgotten as in the run, but the stretch is too short to learn it again, so
large values look bad. The factor sqrt(run / stretch) lies between the two and ranks values best
(measured). Effects of a long run, such as late overfitting, do not show in a stretch: the present
value is kept unless another one is clearly better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.setup import open_session
from workbench.events import DecaySearchEnded, DecayTrial, Emit, last_of
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.plots.searches.decay import decay
from workbench.runs.printable import paragraph, printable
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
"""More decay is suggested only if the loss at the present value is higher than the lowest loss
by at least this share.
"""
LESS_CLEARLY = 0.3
"""The same share for less decay, which is higher because short stretches hardly show the benefit
of decay.
"""
NEARLY = 0.03
"""Among values whose losses are higher than the lowest by at most this share, the one nearest to
the present value is suggested.
"""
USUAL, USUAL_L2 = 0.01, 1e-4
"""Usual values, used in place of a present value of 0: for decoupled decay (AdamW), and for
decay in the gradient.
"""


@dataclass(frozen=True)
class WeightDecaySearch(Drawable):
    """The result of a search for a weight decay. `suggestion`: the value to use; None: none is
    clearly better than the present one.

    `best`: the same as settings, for `bench.set(**found.best)`. `trials`: each value with its
    held-out loss, in the order in which they were tried. `reason` says why, `ended` how the search
    ended. `figure()` and `plot()` draw the loss of each value.
    """

    suggestion: float | None
    best: Mapping[str, Any]
    reason: str
    trials: tuple[DecayTrial, ...]
    ended: str

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> WeightDecaySearch:
        """Make it from the events of a run or a record, complete or not."""
        recorded = list(events)
        trials = tuple(e for e in recorded if isinstance(e, DecayTrial))
        end = last_of(recorded, DecaySearchEnded({}, None, "", "not ended"))
        return cls(end.suggestion, end.best, end.reason, trials, end.ended)

    def _charts(self) -> list[Chart]:
        return [decay(self.trials, self.suggestion)]

    def __repr__(self) -> str:
        answer = "unchanged" if self.suggestion is None else f"weight_decay={rate(self.suggestion)}"
        rows = [
            f"  {t.weight_decay:<14g} "
            f" {t.loss:>14.4g}{'  best' if t.weight_decay == self.suggestion else ''}"
            for t in self.trials
        ]
        columns = [f"  {'weight_decay':<14}  {'held-out loss':>14}"] if rows else []
        return "\n".join(
            map(
                printable,
                [
                    f"WeightDecaySearch: {answer} ({self.ended})",
                    *paragraph(self.reason),
                    *columns,
                    *rows,
                ],
            )
        )


class _Run(NamedTuple):
    """Facts of the run before the first stretch."""

    present: float
    """Its weight decay, as a value of the setting."""
    usual: float
    planned: int | None
    start: float | None
    """The val_loss at its start; None: training batches are used for the comparison."""
    why_not: str
    """Why no held-out data can compare the values; "": they can."""


@dataclass(frozen=True)
class WeightDecayRequest:
    """The arguments of a search for a weight decay; updates: the number of updates in all."""

    updates: int = 800

    def __post_init__(self) -> None:
        stretch.check("updates", self.updates, CANDIDATES, 800)

    def run(
        self, task: Task, settings: Settings, emit: Emit, stopped: Callable[[], bool]
    ) -> DecaySearchEnded:
        """Train with the present value, two others, and then a fourth next to or beyond the
        best, until `stopped()`.
        """
        length = self.updates // CANDIDATES
        run = _look(task, settings, length)
        if run.why_not:
            return DecaySearchEnded(
                {}, None, f"no value was tried: {run.why_not}.", "nothing can judge"
            )
        length = min(length, run.planned or length)
        scale = math.sqrt(max(1.0, (run.planned or length) / length))
        trials: list[DecayTrial] = []
        values = first_values(run.present, run.usual)
        while values:
            if stopped():
                return DecaySearchEnded({}, None, "", "stopped")
            value = values.pop(0)
            decayed = settings.replace(weight_decay=value * scale)
            loss = stretch.loss_after(task, decayed, length, by_val=run.start is not None)
            trials.append(DecayTrial(value, length, loss))
            emit(trials[-1])
            if len(trials) == CANDIDATES - 1:
                losses = {trial.weight_decay or run.usual: trial.loss for trial in trials}
                values.append(float(f"{stretch.next_value(losses):.2g}"))
        return conclusion(trials, run.start or 0.0, run.planned)


def first_values(present: float, usual: float) -> list[float]:
    """The present value, one above it, and a third: further above, or below if the present value
    is larger than usual.
    """
    base = present or usual
    third = base / SPACING if base > usual else base * SPACING**2
    return [present, *(float(f"{value:.2g}") for value in (base * SPACING, third))]


def conclusion(
    trials: Sequence[DecayTrial], start: float = 0.0, planned: int | None = None
) -> DecaySearchEnded:
    """The result of these trials, the first of which is of the present value.

    start: the loss before training; losses that differ by a few hundredths of it count as equal.
    """
    present, length, ended = trials[0].weight_decay, trials[0].updates, "all values tried"
    listed = ", ".join(
        f"{rate(t.weight_decay)}: {number(t.loss)}"
        for t in sorted(trials, key=lambda t: t.weight_decay)
    )
    of = f", which stand for {planned:,}," if planned is not None and planned > length else ""
    why = f"held-out loss after {length} updates{of} at each decay: {listed}."
    losses = {
        t.weight_decay: t.loss + stretch.LEARNED * start
        for t in trials
        if math.isfinite(t.loss) and t.loss > 0
    }
    if present not in losses or len(losses) < 2:
        return DecaySearchEnded(
            {},
            None,
            f"{why} Too few of these losses can be compared, so the present value stays.",
            ended,
        )
    lowest = min(losses.values())
    near = [value for value, loss in losses.items() if loss <= lowest * (1 + NEARLY)]
    best = min(near, key=lambda value: abs(value - present))
    gain = losses[present] / losses[best] - 1
    if gain < (CLEARLY if best > present else LESS_CLEARLY):
        late = "Such short trainings do not show what decay does late in a run."
        return DecaySearchEnded(
            {},
            None,
            f"{why} No value is clearly better than {rate(present)}, so it stays. {late}",
            ended,
        )
    return DecaySearchEnded(
        {"weight_decay": best},
        best,
        f"{why} At {rate(best)} it is clearly lower than at {rate(present)}.",
        ended,
    )


def _look(task: Task, settings: Settings, length: int) -> _Run:
    """Read the facts of the run. Raises TaskError if the optimizer has no weight decay, or the
    setting does not change it.
    """
    with open_session(task, settings) as session:
        stretch.refuse(session.task, session.settings, "find_weight_decay()")
        now, optimizer = _decay_of(session.optimizers), session.optimizers[0].optimizer
        kind = type(optimizer).__name__
        if now is None:
            raise TaskError(
                f"find_weight_decay(): {kind} has no weight_decay: take an optimizer that has one,"
                " such as optimizer=torch.optim.AdamW."
            )
        usual = USUAL if optimizer.param_groups[0].get("decoupled_weight_decay") else USUAL_L2
        start, why_not = stretch.starting_loss(session, length)
        planned = session.updates
    probe = SPACING * (now or usual)
    with open_session(task, settings.replace(weight_decay=probe)) as session:
        changed = _decay_of(session.optimizers) or 0.0
    if changed == now or not changed:
        raise TaskError(
            "find_weight_decay(): the setting weight_decay does not change the decay of the"
            f" {kind}: let the function that makes it use its argument, optimizer=lambda params,"
            " lr, weight_decay=0.01: …"
        )
    present = (
        settings.weight_decay
        if settings.weight_decay is not None
        else float(f"{now * probe / changed:.6g}")
    )
    return _Run(present, usual, planned, start, why_not)


def _decay_of(optimizers: Sequence[OptimizerHandle]) -> float | None:
    """The weight decay of the first optimizer that has one; None without one."""
    decays = [value for opt in optimizers if (value := leading_decay(opt.optimizer)) is not None]
    return next(filter(None, decays), decays[0] if decays else None)
