"""Says in sentences what a study suggests to do next, each with the line of code that does it.

The rules are those of Google's Deep Learning Tuning Playbook (Godbole et al., 2023).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from workbench.runs.study.record import StudyRecord
from workbench.settings.space import Choice, Float, Int, Space, prior_of
from workbench.tuners.study.boundary import at_boundary
from workbench.tuners.study.brackets import ranked
from workbench.tuners.study.importance import importance
from workbench.tuners.study.verdict import seed_noise
from workbench.units import counted, number, rate

_GOOD = 3
_KNOWN = 9
"""The trials with a value that a sentence about the space needs."""
_MANY_INFEASIBLE = 1 / 3
_EARLY = 0.5
"""The share of a fit before which its best validation is early."""
_LATE = 0.99
_OVERFIT = 0.02
"""How much worse the end of a fit is than its best validation, as a share, where it overfits."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What could be done next, in a sentence."""

    text: str
    code: str = ""
    """The line that does it, for a variable `study`; "": it is no call of the study."""

    def __str__(self) -> str:
        return f"{self.text}  {self.code}".rstrip()


class AdviceList(list[Advice]):
    """Suggestions, the most urgent first; they print as lines."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "nothing to suggest yet"


def advice(record: StudyRecord) -> AdviceList:
    """What the study suggests; empty where too little is known."""
    space = Space.from_record(record.space, record.priors)
    return AdviceList(
        [
            *_outside(record, space),
            *_boundaries(record),
            *_infeasible(record, space),
            *_seeds(record),
            *_length(record),
            *_noise(record),
            *_unimportant(record),
            *_without_lr(space),
        ]
    )


def _outside(record: StudyRecord, space: Space) -> Iterator[Advice]:
    """Ranges beyond which a search has found the value."""
    for dimension in space.dimensions:
        prior = prior_of(dimension, record.priors)
        center = prior.get("center") if isinstance(prior, Mapping) else None
        if not isinstance(dimension, Float) or dimension.relative or type(center) is not float:
            continue
        if dimension.low <= center <= dimension.high:
            continue
        low, high = min(dimension.low, center / 3), max(dimension.high, center * 3)
        text = f"The search found {dimension.path[-1]}={rate(center, 2)}, outside of the range."
        code = f"study.space({dimension.name}=({rate(low, 2)}, {rate(high, 2)}))"
        yield Advice(text, "" if "." in dimension.name else code)


def _boundaries(record: StudyRecord) -> Iterator[Advice]:
    for boundary in at_boundary(record):
        dimension, end = boundary.dimension, "upper" if boundary.upper else "lower"
        text = f"The best values lie at the {end} end of {dimension.name}."
        if isinstance(dimension, Choice):
            extended = _longer(dimension, upper=boundary.upper)
        else:
            assert isinstance(dimension, Float | Int)
            low, high = dimension.low, dimension.high
            if dimension.log:
                low, high = (low, high * 10) if boundary.upper else (low / 10, high)
            else:
                span = high - low
                low, high = (low, high + span) if boundary.upper else (max(low - span, 0), high)
            if isinstance(dimension, Int):
                low, high = max(1, int(low)), int(high)
            extended = f"({_text(low)}, {_text(high)})"
        if "." in dimension.name or (isinstance(dimension, Float) and dimension.relative):
            yield Advice(text)
        else:
            yield Advice(text, f"study.space({dimension.name}={extended})")


def _longer(dimension: Choice, *, upper: bool) -> str:
    """The values of a choice with one more at an end, as far from it as the one before; "[…]":
    there is no such number.
    """
    numbers = [value for value in dimension.choices if value is not None]
    end, inner = (numbers[-1], numbers[-2]) if upper else (numbers[0], numbers[1])
    if min(end, inner) <= 0:
        return "[…]"
    more = end * end / inner
    if type(end) is int and type(inner) is int:
        more = round(more)
    if more in (0, end):
        return "[…]"
    none = [value for value in dimension.choices if value is None]
    return repr([*none, *numbers, more] if upper else [*none, more, *numbers])


def _text(value: float) -> str:
    return str(value) if isinstance(value, int) else rate(value, 2)


def _infeasible(record: StudyRecord, space: Space) -> Iterator[Advice]:
    tried = [t for t in record.trials if any(p.end is not None for p in t.pieces)]
    infeasible = [t for t in tried if t.infeasible]
    if len(tried) < _KNOWN or len(infeasible) < _MANY_INFEASIBLE * len(tried):
        return
    text = f"{len(infeasible)} of {counted(len(tried), 'trial')} could not be trained"
    causes = [
        p.end.cause for t in infeasible for p in t.pieces if p.end is not None and p.end.cause
    ]
    if causes:
        text += f" ({statistics.mode(causes)[:80]})"
    if "lr" not in space.names:
        yield Advice(f"{text}: a lower lr, warmup or gradient_clip_val may help.")
        return
    lr = space.dimension("lr")
    assert not isinstance(lr, Choice) or lr.choices
    feasible = [_number(t.values.get("lr")) for t in tried if not t.infeasible]
    rates = [value for value in feasible if value is not None]
    if isinstance(lr, Float) and not lr.relative and rates and max(rates) < lr.high:
        code = f"study.space(lr=({rate(lr.low, 2)}, {rate(max(rates), 2)}))"
        yield Advice(f"{text}: narrow lr, or add warmup or gradient_clip_val.", code)
    else:
        yield Advice(f"{text}: narrow the space, or add warmup or gradient_clip_val.")


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _seeds(record: StudyRecord) -> Iterator[Advice]:
    best, baseline = record.best, record.baseline
    if best is None or baseline is None or best is baseline or record.whole(baseline) is None:
        return
    fresh = [p for p in best.pieces if p.seed > 0 and p.end is not None]
    if len(fresh) >= _GOOD:
        return
    difference = record.score_at(baseline, record.last_rung) - record.score_at(
        best, record.last_rung
    )
    yield Advice(
        f"Trial {best.number} was {number(difference)} better than the baseline when it was chosen."
        f" {_GOOD} other seeds of both tell whether that was luck.",
        f"study.seeds({best.number}, {_GOOD})",
    )


def _length(record: StudyRecord) -> Iterator[Advice]:
    ends = []
    for trial in ranked(record)[:_GOOD]:
        end = trial.end(record.last_rung)
        if end is not None and end.best_step is not None and end.step:
            ends.append(end.best_step / end.step)
    if not ends:
        return
    middle = statistics.median(ends)
    if middle >= _LATE:
        yield Advice(
            "The best trials were still improving at their end: longer fits may be better."
        )
    elif middle <= _EARLY:
        yield Advice(
            f"The best trials were best after {middle:.0%} of their updates and then overfitted:"
            " a larger weight_decay, dropout or shorter fits may help."
        )


def _noise(record: StudyRecord) -> Iterator[Advice]:
    noise = seed_noise(record)
    values = sorted(value for t in record.trials if (value := record.whole(t)) is not None)
    if record.head.mode == "max":
        values.reverse()
    if noise is None or len(values) < _GOOD:
        return
    gap = abs(values[_GOOD - 1] - values[0])
    if gap < noise:
        yield Advice(
            f"The best {_GOOD} trials differ by {number(gap)}, less than one seed differs from"
            f" another, {number(noise)}: more validation data or weight_averaging='ema' would tell"
            " them apart."
        )


def _unimportant(record: StudyRecord) -> Iterator[Advice]:
    for name, share in importance(record).items():
        if share.high < 0.05 and "." not in name:
            yield Advice(f"{name} makes no difference that is more than chance: leave it as it is.")


def _without_lr(space: Space) -> Iterator[Advice]:
    paths = {dimension.path[-1] for dimension in space.dimensions}
    for name in ("batch_size", "optimizer"):
        if name in space.names and "lr" not in paths:
            yield Advice(
                f"All values of {name} are tried with one lr, which suits one of them best: put lr"
                ' into the space, {"lr": "relative"}.'
            )
