"""Defines FollowedStudy: what a study's folder says, and the changes that a user leaves
in it. It needs no torch, so that a server without a kernel can show and steer a study, too.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from workbench.launch.study import logs
from workbench.launch.study.liveness import Observer
from workbench.runs.printable import printable
from workbench.runs.study.record import LIMITS, MOST_SEEDS, Change, ChangeKind, Limits, StudyRecord
from workbench.runs.study.write import change
from workbench.settings import Settings, SettingsError, recorded_settings
from workbench.settings.space import OPTIMIZER, Choice, Space, refuse_text
from workbench.tuners.study.budget import budget_of, budget_text, checked_count
from workbench.tuners.study.compare import verdict
from workbench.tuners.study.next import advice
from workbench.tuners.study.plan import Ended, plan_now
from workbench.units import counted, duration, fit_length, number
from workbench.values import plain, shown

_CAUSES, _CAUSE = 3, 300
"""The most different causes of failed trials that are shown, and their characters."""


class FollowedStudy:
    """A study as its folder has it. Its methods may be called from any thread."""

    path: Path
    _notes: Sequence[str] = ()
    """What is known of its scripts before it has one."""

    def __init__(self, path: Path, limits: Limits = LIMITS) -> None:
        """limits: how much of it is read. OSError or ValueError: the folder holds no readable
        study.
        """
        self.path, self._limits = path, limits
        self._observer = Observer()
        self._read = StudyRecord.read(path, limits=limits)
        self._lock = threading.Lock()

    # -- what it knows

    @property
    def id(self) -> str:
        """Its id, the name of its folder: "0003-study"."""
        return self.path.name

    @property
    def record(self) -> StudyRecord:
        """All that its folder says at this moment."""
        with self._lock:
            self._read = StudyRecord.read(self.path, self._read, self._limits)
            return self._read

    @property
    def status(self) -> str:
        """ "running", "paused", "ended", or "no worker": nobody works on it."""
        return self._status(self.record)

    def _status(self, record: StudyRecord) -> str:
        if not self._has_process(record) and isinstance(plan_now(record), Ended):
            return "ended"
        if record.paused:
            return "paused"
        return "running" if self._has_worker(record) else "no worker"

    def _has_process(self, record: StudyRecord) -> bool:
        """Whether a worker that this object has started lives, and has not left."""
        return False

    def _has_worker(self, record: StudyRecord) -> bool:
        """Whether a worker lives, as far as it can be seen from here."""
        return self._has_process(record) or self._living(record) > 0

    def _living(self, record: StudyRecord) -> int:
        # each is looked at, so that all are watched from now on
        return len([name for name in record.workers if self._observer.is_alive(record, name)])

    @property
    def workers(self) -> int:
        """How many workers live and have said so, as far as it can be seen from here."""
        return self._living(self.record)

    @property
    def failure(self) -> str:
        """The error of the user's code that ended it; "": none did."""
        record = self.record
        ended = plan_now(record)
        causes = [
            piece.end.cause
            for _, piece in record.pieces
            if piece.end is not None and piece.end.status == "failed"
        ]
        failed = isinstance(ended, Ended) and any(cause in ended.why for cause in causes if cause)
        return ended.why if failed and isinstance(ended, Ended) else ""

    @property
    def budget(self) -> str:
        """Its budget in words: "8 fits", "2 h 00 min"."""
        return budget_text(self.record.budget)

    @property
    def headline(self) -> str:
        """Its state in a line."""
        record = self.record
        ((unit, amount),) = record.budget.items()
        if unit == "fits":
            spent = f"{record.spent - record.by_hand:.1f} of {amount:g} fits"
            spent += f" and {record.by_hand:.1f} that you asked for" if record.by_hand else ""
        else:
            spent = f"{record.spent:.1f} fits in a budget of {duration(amount)}"
        arrow = "lower" if record.head.mode == "min" else "higher"
        best = record.best
        value = "no whole fit yet"
        if best is not None and (best_value := record.whole(best)) is not None:
            value = f"best {number(best_value)} (trial {best.number})"
        rungs = [fit_length(share) for share in record.head.rungs[:-1]]
        lengths = f"trials of {', '.join(rungs)} and whole fits" if rungs else "whole fits"
        return (
            f"{self.id}  {record.head.monitor} ({arrow} is better)  {self._status(record)}"
            f"  {spent}  {counted(len(record.trials), 'trial')} ({lengths})  {value}"
        )

    @property
    def hint(self) -> str:
        """How to start a worker, where none lives."""
        if self.status != "no worker":
            return ""
        return f"Start one: study.work(), or workbench study work {self.id}"

    @property
    def _paused(self) -> str:
        """What to do where it is paused."""
        return f"{self.id} is paused: study.resume(), or workbench study resume {self.id}"

    @property
    def why_idle(self) -> str:
        """Why nothing trains what was just asked for, and what to do; "": something does."""
        if hint := self.hint:
            return f"no worker works on {self.id}. {hint}"
        record = self.record
        action = plan_now(record)
        if not isinstance(action, Ended):
            return self._paused if record.paused else ""
        if self.failure:
            remedy = "mend it, and make a new study"
        else:
            more = "1" if "fits" in record.budget else "'30min'"
            remedy = f"study.more({more}) lets it go on, or workbench study more {self.id} {more}"
        return f"{self.id} trains nothing now, {action.why}: {remedy}."

    def _last_words(self) -> str:
        """How the last worker on this machine has ended, and what it has printed; "": there was
        none.
        """
        name, words = logs.last_words(self.path)
        if not name:
            return ""
        code = self._exit_code(name)
        how = "" if code is None else f" ({logs.how_ended(code)})"
        text = printable(words, lines=True)
        printed = f" has printed:\n{text}\n" if text else " has printed nothing. "
        return f"The last one, {name}{how},{printed}"

    def _exit_code(self, worker: str) -> int | None:
        """With what a worker that this object has started has ended; None: that is not known."""
        return None

    def _why_nothing(self) -> str:
        causes = [
            f"trial {trial.number} {piece.end.status}: {piece.end.cause}"
            for trial, piece in self.record.pieces
            if piece.end is not None and piece.end.cause
        ]
        return "; ".join(causes[:3]) or "no trial has been trained to its end."

    def words(self) -> list[tuple[str, str]]:
        """The verdict, and what to do next: sentences, each with a line of code or ""."""
        record = self.record
        sentences = [(verdict(record).text, "")] if record.best is not None else []
        causes = {
            piece.end.cause: f"trial {trial.number} {piece.end.status}: {piece.end.cause}"
            for trial in record.trials
            for piece in trial.pieces
            if piece.end is not None and piece.end.cause
        }
        sentences += [(printable(text)[:_CAUSE], "") for text in [*causes.values()][:_CAUSES]]
        if self.hint:
            last = printable(" ".join(self._last_words().split()))
            ending = f"… {last[-_CAUSE:]}" if len(last) > _CAUSE else last
            remedy = f"Start one: study.work(), or workbench study work {self.path.name}."
            text = f"No worker works on it. {ending} {remedy}"
            sentences.append((" ".join(text.split()), "study.work()"))
        if self.status == "paused":
            sentences.append(("It is paused.", "study.resume()"))
        sentences += [(item.text, item.code) for item in advice(record)]
        return [*sentences, *((note, "") for note in self._notes)]

    # -- change

    def space(self, space: Mapping[str, Any] | None = None, /, **ranges: Any) -> None:
        """Change ranges, or add what is searched: `study.space(lr=(1e-3, 0.3))`, or a dict of them.
        Trials from now on come from the new space.
        """
        named = _named(space, ranges, "space", "lr=(1e-3, 0.3)")
        self._change("space", {"space": self._with_ranges(named).to_record()})

    def add(self, trial: Mapping[str, Any] | None = None, /, **values: Any) -> None:
        """Add a trial with these values: `study.add(lr=3e-3)`, or a dict of them, as
        `study.settings` is one. It is the next one, and is trained beyond the budget.
        """
        named = _named(trial, values, "add", "lr=3e-3")
        self._change("add", {"values": self._checked(named)})

    def stop(self, trial: int | None = None) -> None:
        """Stop a trial: `study.stop(7)`. None: end the study; the trials that train stop at their
        next update, and keep what they have.
        """
        if trial is None:
            self._change("end", {}, works=False)
        else:
            self._change("stop", {"trial": self._trial(trial, "stop(")}, works=False)

    def more(self, budget: float | str | timedelta) -> None:
        """Add to its budget, in its unit: `study.more(4)`, `study.more("1h")`."""
        added = budget_of(budget, "study.more", least=0)
        ((unit, _),) = self.record.budget.items()
        if unit not in added:
            hint = "so much time, study.more('1h')" if unit == "seconds" else "fits, study.more(4)"
            raise SettingsError(
                f"study.more({shown(budget)}): its budget is {self.budget}: give {hint}."
            )
        self._change("more", added)

    def seeds(self, trial: int, n: int) -> None:
        """Train a trial with so many seeds besides its own, and the baseline with the same ones,
        beyond the budget.
        """
        count = checked_count(n, "n", "study.seeds", most=MOST_SEEDS)
        self._change("seeds", {"trial": self._trial(trial, "seeds("), "n": count})

    def repeat(self, trial: int) -> None:
        """Train a trial once more, as a new trial: the same values and seed, beyond the budget."""
        self._change("repeat", {"trial": self._trial(trial, "repeat(")})

    def pause(self) -> None:
        """Begin no more trials until `resume()`; those that train go on to their end."""
        if self.status == "ended":
            raise SettingsError(f"study.pause(): {self.id} has ended, and begins no more trials.")
        self._change("pause", {}, works=False)

    def resume(self) -> None:
        """Go on after a pause."""
        self._change("resume", {})

    def _change(self, kind: ChangeKind, values: Mapping[str, Any], *, works: bool = True) -> None:
        """Leave a change. works: a worker is needed for it."""
        change(self.path, Change(kind, values, len(self.record.trials)))
        if works:
            self._needs_worker()

    def _needs_worker(self) -> None:
        """Called when a change was left that a worker has to carry out."""

    def _trial(self, trial: int, call: str) -> int:
        """The number of a trial that there is. call: what a user wrote before it."""
        trial = plain(trial)
        numbers = [known.number for known in self.record.trials]
        if trial not in numbers or type(trial) is not int:
            known = f"its trials are 1 to {max(numbers)}" if numbers else "it has no trials yet"
            raise SettingsError(f"study.{call}{shown(trial)}): {known}.")
        return trial

    def _with_ranges(self, ranges: Mapping[str, Any]) -> Space:
        """Its space with these ranges; SettingsError for what is no range."""
        record = self.record
        base, build = self._base()
        present = Space.from_record(record.space, record.priors)
        changed = present.with_ranges(Space.parse(dict(ranges), base, build))
        compare = record.head.compare
        if compare and not isinstance(changed.dimension(compare), Choice):
            raise SettingsError(
                f"study.space({compare}={shown(ranges[compare])}): the study compares its values:"
                f" give a list, {compare}=[…]."
            )
        return changed

    def _checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a trial by hand; SettingsError for one that a space could not have."""
        base, build = self._base()
        present = {**base.model_dump(), **build}
        settings = {name: plain(value) for name, value in values.items() if name not in build}
        for name, value in values.items():
            refuse_text("study.add", name, value, present.get(name))
        choices = self._choices()
        self._refuse_beside_choices(values, present, choices)
        for name, value in values.items():
            if name in choices or (name == OPTIMIZER and name in settings):
                continue
            if name in present and type(value) is type(present[name]) and value == present[name]:
                continue
            try:
                Space.parse({name: [present.get(name), value]}, base, build)
            except SettingsError as error:
                why = str(error).removeprefix("space: ")
                raise SettingsError(f"study.add({name}={shown(value)}): {why}") from None
        base.replace(**settings)
        return {name: plain(value) for name, value in values.items()}

    def _choices(self) -> dict[str, Choice]:
        """Its choices by name, but for the optimizer, which has arguments."""
        record = self.record
        dimensions = Space.from_record(record.space, record.priors).dimensions
        choices = {d.name: d for d in dimensions if isinstance(d, Choice)}
        choices.pop(OPTIMIZER, None)
        return choices

    def _refuse_beside_choices(
        self,
        values: Mapping[str, Any],
        present: Mapping[str, Any],
        choices: Mapping[str, Choice],
    ) -> None:
        """Raise SettingsError for a value that is none of its choice: no later trial would have
        it, nor learn from it.
        """
        for name, dimension in choices.items():
            if name not in values:
                continue
            value = plain(values[name])
            known = [*dimension.choices, present.get(name)]
            if any(type(choice) is type(value) and choice == value for choice in known):
                continue
            equal = [choice for choice in known if choice == value]
            if equal:
                raise SettingsError(f"study.add({name}={shown(value)}): give {equal[0]!r}.")
            extended = [*dimension.choices, value]
            if dimension.ordered and type(value) in (int, float):
                extended.sort(key=lambda choice: (choice is not None, choice or 0))
            raise SettingsError(
                f"study.add({name}={shown(value)}): the study chooses {name} from"
                f" {', '.join(map(shown, dimension.choices))}. Add it to these first,"
                f" study.space({name}={extended!r})."
            )

    def _base(self) -> tuple[Settings, dict[str, Any]]:
        """The settings of all its trials, and the values of the function's parameters."""
        base = self.record.head.base
        settings = {name: base[name] for name in base if name in Settings.model_fields}
        build = {name: base[name] for name in base if name not in settings}
        return recorded_settings(settings), build


def _named(
    mapping: Mapping[str, Any] | None, keywords: Mapping[str, Any], method: str, example: str
) -> dict[str, Any]:
    """What a method was given by name, as keywords or as a dict. SettingsError: nothing was."""
    if mapping is not None and not isinstance(mapping, Mapping):
        raise SettingsError(
            f"study.{method}({shown(mapping)}): give it by name, study.{method}({example})."
        )
    named = {**(mapping or {}), **keywords}
    if not named:
        needed = "its values" if method == "add" else "a range"
        raise SettingsError(f"study.{method}(): give {needed}, study.{method}({example}).")
    return named
