"""Keeps what each search recommends: the settings that its button on the stage applies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.events import (
    ClipSearchEnded,
    CurveEnded,
    DecaySearchEnded,
    RecipeSearchEnded,
    RunStarted,
    SearchEnded,
    SpeedSearchEnded,
    TuneStep,
)
from workbench.plots.names import recipe_name
from workbench.ui import format, texts
from workbench.ui.canvas.transport.messages import Outbox, cut

WHY = 400
"""Bytes for the reason of an answer."""
Ended = (
    CurveEnded
    | SearchEnded
    | ClipSearchEnded
    | SpeedSearchEnded
    | DecaySearchEnded
    | RecipeSearchEnded
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a search recommends. changes: the settings that apply it; {}: it recommends nothing.

    text: the value as a person reads it.
    """

    changes: dict[str, Any]
    text: str
    why: str

    def used(self, settings: Mapping[str, Any]) -> bool:
        """Whether these settings have it, as far as the shown digits tell."""
        return all(_near(value, settings.get(name)) for name, value in self.changes.items())


class Answers:
    """The last answer of each kind of search; of the sweeps, that of each optimizer."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._settings: Mapping[str, Any] = {}
        self.clear()

    def clear(self) -> None:
        """Begin without answers."""
        self._run: RunStarted | None = None
        self._rates: dict[int, Answer] = {}
        self._others: dict[str, Answer] = {}
        self._optimizer = 0
        self._put()

    def start(self, event: RunStarted) -> None:
        """Begin a job. The answer of the same search before it no longer applies."""
        self._run = event
        if event.kind == "find_lr":
            self._optimizer = self._swept
            self._rates.pop(self._swept, None)
        elif event.kind == "tune":
            self._rates.clear()
            self._others.clear()
        self._others.pop(event.kind, None)
        self._put()

    def settings(self, settings: Mapping[str, Any]) -> None:
        """Take the bench's settings, which may be those of an answer."""
        self._settings = settings
        self._put()

    def look_at(self, optimizer: int) -> None:
        """Show this optimizer's rate."""
        self._optimizer = optimizer
        self._put()

    def ended(self, event: Ended) -> None:
        """Keep the result of a search. That of a search within a tuning follows as its step."""
        answer = answer_to(event, self._run)
        if isinstance(event, CurveEnded):
            self._optimizer = self._swept
            self._rates[self._swept] = answer
        elif isinstance(event, SearchEnded):
            self._others["find_batch_size"] = answer
        elif self._run is not None and self._run.kind != "tune":
            self._others[self._run.kind] = answer
        self._put()

    def tuned(self, event: TuneStep) -> None:
        """Keep the result of a search of a tuning."""
        if event.search not in self._shown():
            values = dict(event.values)
            self._others[event.search] = Answer(values, _values(values), event.reason)
            self._put()

    def changes(self, kind: str) -> dict[str, Any]:
        """The settings that apply the answer of this kind of search; {}: it recommends none."""
        answer = self._shown().get(kind)
        return {} if answer is None else dict(answer.changes)

    @property
    def _swept(self) -> int:
        """The optimizer that is swept; within a fit it is the first one."""
        return _swept(self._run)

    def _shown(self) -> dict[str, Answer]:
        rate = self._rates.get(self._optimizer)
        return self._others if rate is None else {**self._others, "find_lr": rate}

    def _put(self) -> None:
        self._outbox.put(
            "answers",
            [
                {
                    "kind": kind,
                    "of": texts.ANSWERS.get(kind, kind),
                    "text": cut(answer.text, 80),
                    "why": cut(answer.why, WHY),
                    "sets": cut(format.assignments(answer.changes), WHY),
                    "used": answer.used(self._settings),
                }
                for kind, answer in self._shown().items()
            ],
        )


def answer_to(event: Ended, run: RunStarted | None) -> Answer:
    """What a search recommends that ends with this event. run: the job that it is in."""
    match event:
        case CurveEnded():
            return _rate(event, run)
        case SearchEnded():
            return _size(event)
        case RecipeSearchEnded():
            why = texts.SEPARATOR.join(filter(None, [event.doubt, event.reason]))
            return Answer(dict(event.best), recipe_name(event.best) if event.best else "", why)
    return Answer(dict(event.best), _values(event.best), event.reason or event.ended)


def _rate(event: CurveEnded, run: RunStarted | None) -> Answer:
    """The suggestion of a sweep. That of a single group has no setting, which would change the
    rates of all groups.
    """
    if event.suggestion is None:
        return Answer({}, "", texts.SEPARATOR.join(event.doubts) or event.ended)
    text = format.rate(event.suggestion)
    if run is not None and run.request.get("group") is not None:
        return Answer({}, text, event.why)
    swept = _swept(run)
    groups = () if run is None else run.groups[swept : swept + 1]
    ratio = groups[0][0][1] if groups and groups[0] else 1.0
    setting = float(format.rate(event.suggestion / ratio))
    if ratio != 1:
        text = texts.own_rate(text, format.rate(setting))
    return Answer({"lr": setting}, text, event.why)


def _swept(run: RunStarted | None) -> int:
    return 0 if run is None else int(run.request.get("optimizer", 0))


def _size(event: SearchEnded) -> Answer:
    why = event.reason or event.ended
    many = event.accumulate_grad_batches
    if event.best is None:
        return Answer({}, "", why)
    if many is None:
        return Answer({"batch_size": event.best}, str(event.best), why)
    changes = {"batch_size": event.best, "accumulate_grad_batches": many}
    return Answer(changes, texts.accumulated(many, event.best), why)


def _values(best: Mapping[str, Any]) -> str:
    """One value as it is, several with their names."""
    if len(best) != 1:
        return format.assignments(best)
    return format.assignments(best).partition("=")[2].strip("'")


def _near(value: Any, current: Any) -> bool:
    numbers = isinstance(value, int | float) and isinstance(current, int | float)
    return math.isclose(value, current, rel_tol=1e-3) if numbers else bool(value == current)
