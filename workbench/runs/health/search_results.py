"""Replaces the advice to run a search by the result of that search, if it has been run.

A finding's remedy may be a search ("bench.find_num_workers()"). If the same root has a record of
it, for the same model and data, its result becomes the advice, and setting the result becomes the
remedy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workbench.events import (
    ClipSearchEnded,
    CurveEnded,
    DecaySearchEnded,
    Event,
    ProfileEnded,
    RecipeSearchEnded,
    RunStarted,
    SearchEnded,
    SpeedSearchEnded,
    SpeedTrial,
    TuneStep,
)
from workbench.runs import read
from workbench.runs.health import Finding
from workbench.runs.record.stream import stream
from workbench.settings import Settings, SettingsError
from workbench.units import RATES, rate

_SEARCH = re.compile(r"bench\.(find_[a-z_]+)\((?:updates=(\d+))?\)")
_FINDS = {
    "find_num_workers": "num_workers",
    "find_lr": "lr",
    "find_batch_size": "batch_size",
    "find_precision": "precision",
    "find_clip_val": "gradient_clip_val",
    "find_weight_decay": "weight_decay",
}
"""The searches, each with the setting that it finds."""
_TASK = ("model", "parameters", "loss", "data", "groups")
"""The header keys that are equal for two runs of the same task."""
_ALIKE = (
    "batch_size",
    "accumulate_grad_batches",
    "precision",
    "lr_schedule",
    "preload",
    "accelerator",
    "devices",
    "num_nodes",
)
"""Settings that change the result of a search."""
_LOWER = ("diverged", "not finite", "loss rose")
"""The troubles of runs that a higher learning rate would make worse."""
_GIVEN = {
    *_FINDS.values(),
    "accumulate_grad_batches",
    "persistent_workers",
    "prefetch_factor",
    "pin_memory",
    "compile",
}
"""The settings that a search may give."""
_ALSO = {"find_weight_decay": ("lr",)}
"""Further settings that change the result of one search."""
_REASON = 80
"""How many characters of a reason."""
_LONGEST = 300
"""How many characters of what a search found are shown."""
_NEAR = 0.01
"""The relative difference up to which two values count as equal: a typed value has fewer digits
than the result.
"""


class _Result(NamedTuple):
    """The result of the search in run `run`, its trials of the loader, if any, and its number of
    updates, if it has one.
    """

    run: str
    values: dict[str, Any]
    trials: tuple[SpeedTrial, ...] = ()
    updates: float = math.inf

    def waiting(self, before: Any) -> str:
        """A phrase with the share of time in which training waited for its data with these values,
        and how much faster it was than with `before` workers; "": not measured.
        """
        chosen = next(
            (trial for trial in reversed(self.trials) if trial.values == self.values), None
        )
        if chosen is None or chosen.waiting is None:
            return ""
        base = next(
            (trial for trial in self.trials if trial.values == {"num_workers": before}), None
        )
        speed = (
            (chosen.updates_per_second or 0.0) / (base.updates_per_second or math.inf)
            if base is not None
            else 0.0
        )
        return f"it was {chosen.waiting:.0%}" + (
            f", and training {speed:.2g} times as fast" if speed > 1 else ""
        )


class SearchResults:
    """Finds searches in the root of the run in `folder`, and reads each kind once. folder=None:
    the run has no folder.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._header: dict[str, Any] = {}
        self._known: dict[str, _Result | None] = {}

    def with_results(self, findings: Sequence[Finding]) -> tuple[Finding, ...]:
        """The findings, with results in place of advice to run searches that have been run."""
        asked = {
            match[1]
            for finding in findings
            if (match := _SEARCH.fullmatch(finding.remedy)) and match[1] in _FINDS
        }
        if self._folder is None or not asked:
            return tuple(findings)
        new = asked - self._known.keys()
        if new:
            self._known |= dict.fromkeys(new)
            # it has no header, or is deleted meanwhile
            with contextlib.suppress(OSError, ValueError):
                self._header = read.read_header(self._folder)
                self._look_for(self._folder, new)
        return tuple(self._with_result(finding) for finding in findings)

    def _look_for(self, folder: Path, searches: set[str]) -> None:
        """Find the latest result of each of these searches."""
        results: list[tuple[tuple[int, float, str], str, Path]] = []
        for other in read.run_folders(folder.resolve().parent.parent):
            with contextlib.suppress(OSError, ValueError):
                header = read.read_header(other)
                kind = header.get("kind")
                if (kind in searches or kind == "tune") and _is_alike(self._header, header, kind):
                    results.append(
                        (read.age(other.name, read.created(header, other)), str(kind), other)
                    )
        for _, kind, other in sorted(results):
            with contextlib.suppress(OSError, ValueError):
                for search in searches & {kind} if kind != "tune" else searches:
                    result = next(
                        _results(
                            other,
                            _FINDS[search],
                            (self._header.get("settings") or {}).get(_FINDS[search]),
                        ),
                        None,
                    )
                    self._known[search] = result or self._known[search]

    def _with_result(self, finding: Finding) -> Finding:
        search = _SEARCH.fullmatch(finding.remedy)
        result = self._known.get(search[1]) if search is not None else None
        if search is None or result is None or result.updates < int(search[2] or 0):
            return finding
        settings: Mapping[str, Any] = self._header.get("settings") or {}
        where = f"tried in {result.run}"
        if finding.trouble in _LOWER and not _is_lower(result.values.get("lr"), settings.get("lr")):
            measured = _short("lr", result.values.get("lr"))
            advice = (
                f"find_lr() found lr={measured}, which is not lower ({where}): clip the gradient,"
                " or look at the data and the loss"
            )
            return dataclasses.replace(finding, advice=advice, remedy="")
        other = {
            name: value
            for name, value in result.values.items()
            if not is_near(settings.get(name), value)
        }
        values = ", ".join(
            f"{name}={_short(name, value)}" for name, value in (other or result.values).items()
        )
        if other:
            waiting = result.waiting(settings.get("num_workers"))
            sentence = f"with {values} {waiting}" if waiting else f"{search[1]}() found {values}"
            return dataclasses.replace(
                finding, advice=f"{sentence} ({where})", remedy=f"bench.set({values})"
            )
        if search[1] not in ("find_num_workers", "find_weight_decay"):
            return finding
        preload = (
            ""
            if settings.get("preload") or search[1] != "find_num_workers"
            else ": preload=True keeps the data in memory"
        )
        present = (
            "the optimizer's own weight decay"
            if result.values == {"weight_decay": None}
            else values
        )
        advice = f"{search[1]}() found nothing better than {present} ({where}){preload}"
        return dataclasses.replace(
            finding, advice=advice, remedy="bench.set(preload=True)" if preload else ""
        )


def recommended(event: Event) -> Mapping[str, Any]:
    """The settings that a search recommends with this event; empty for any other event."""
    match event:
        case CurveEnded() if event.suggestion is not None:
            return {"lr": event.suggestion}
        case SearchEnded() if event.best is not None:
            many = event.accumulate_grad_batches
            return {"batch_size": event.best} | (
                {} if many is None else {"accumulate_grad_batches": many}
            )
        case SpeedSearchEnded() | ClipSearchEnded() | DecaySearchEnded() | RecipeSearchEnded():
            return event.best
        case _:
            return {}


class Answer:
    """Collects what a search found from its events: `text` has one line about it, also for a
    `tune`.
    """

    def __init__(self) -> None:
        self._fit = False
        self._found: dict[str, str] = {}

    def add(self, event: Event) -> None:
        """Take one more event."""
        if isinstance(event, RunStarted):
            self._fit = event.kind == "fit"  # a fit may search within itself
        text = _found_by(event)
        if isinstance(event, TuneStep) and event.is_check:  # it decides about all
            self._found = {"check": text}
        elif text:
            self._found[type(event).__name__ + ",".join(recommended(event))] = text

    @property
    def text(self) -> str:
        """What was found; "": it is a fit, or no search has ended."""
        return "" if self._fit else "; ".join(self._found.values())[:_LONGEST]


def answer(run: read.RunSummary) -> str:
    """What a search found, from the end of its record; "": it is no search, or it has not ended."""
    if run.kind == "fit" or not run.over:
        return ""
    collected = Answer()
    with contextlib.suppress(OSError, ValueError):  # it was deleted meanwhile
        for event in read.ending(run.path):
            collected.add(event)
    return collected.text


def _found_by(event: Event) -> str:
    """What a search has found, if it ends with this event."""
    settings = recommended(event).items()
    values = ", ".join(f"{name}={_short(name, value)}" for name, value in settings)
    match event:
        case CurveEnded():
            return values or f"no learning rate can be recommended ({_in_short(event.ended)})"
        case SearchEnded() if event.best is None or event.largest is None:
            return f"no batch size fits ({_in_short(event.ended)})"
        case SearchEnded():
            scale = event.noise_scale
            noise = "" if scale is None else f", noise scale {scale:.3g} samples"
            return f"{values} (largest {event.largest}{noise})"
        case SpeedSearchEnded() | ClipSearchEnded() | DecaySearchEnded() | RecipeSearchEnded():
            return values or f"the settings stay ({_in_short(event.reason or event.ended)})"
        case ProfileEnded():
            return event.verdict
        case TuneStep() if event.is_check:
            kept = ", ".join(f"{name}={_short(name, v)}" for name, v in event.values.items())
            return kept or f"the settings stay ({_in_short(event.reason)})"
        case _:
            return ""


def _in_short(reason: str) -> str:
    return reason if len(reason) <= _REASON else f"{reason[: _REASON - 1]}…"


def _short(name: str, value: Any) -> str:
    """A value rounded as a user would type it: no search is more exact than three digits."""
    if not isinstance(value, float):
        return repr(value)
    return rate(value) if name in RATES else repr(float(f"{value:.3g}"))


def is_near(value: Any, found: Any) -> bool:
    """Whether a setting has the value that a search found, up to rounding."""
    numbers = isinstance(value, int | float) and isinstance(found, int | float)
    return math.isclose(value, found, rel_tol=_NEAR) if numbers else bool(value == found)


def _is_lower(measured: Any, rate: Any) -> bool:
    """Whether a search found a rate clearly below a run's; one that is no number is not known."""
    if not isinstance(rate, int | float) or not isinstance(measured, int | float):
        return True
    return measured < rate and not is_near(measured, rate)


def _optimizer(header: Mapping[str, Any]) -> Any:
    """What trains: the setting, or else the optimizer that the bench was given."""
    setting = (header.get("settings") or {}).get("optimizer")
    return header["task"].get("optimizer") if setting is None else setting


def _is_alike(run: Mapping[str, Any], search: Mapping[str, Any], kind: str) -> bool:
    """Whether the result of a search holds for a run: their headers name the same model, loss,
    data and optimizer, and their settings are alike.
    """
    task, its = run.get("task"), search.get("task")
    if (
        not isinstance(task, dict)
        or not isinstance(its, dict)
        or not isinstance(task.get("data"), str)
    ):
        return False
    settings, its_settings = run.get("settings") or {}, search.get("settings") or {}
    alike = (name for name in (*_ALIKE, *_ALSO.get(kind, ())) if name != _FINDS.get(kind))
    return (
        all(task.get(name) == its.get(name) for name in _TASK)
        and _optimizer(run) == _optimizer(search)
        and all(settings.get(n) == its_settings.get(n) for n in alike)
    )


def _results(folder: Path, setting: str, present: Any) -> Iterator[_Result]:
    """Yield the result of the search in this folder for a setting, if there is one. present: the
    run's value of the setting.
    """
    trials: list[SpeedTrial] = []
    before, updates, is_tune = object(), math.inf, False
    for event in stream(folder, ()):
        if isinstance(event, RunStarted) and (
            event.request.get("optimizer") or event.request.get("group") is not None
        ):
            return  # the search was for one of several rates
        if isinstance(event, RunStarted):
            is_tune = event.kind == "tune"
            before, requested = event.settings.get(setting), event.request.get("updates")
            updates = requested if isinstance(requested, int | float) else math.inf
        trials += [event] if isinstance(event, SpeedTrial) else []
        values = dict(recommended(event))
        if is_tune:  # what its searches found alone may have lost the comparison
            values = _kept(event)
        if (
            isinstance(event, DecaySearchEnded)
            and event.ended == "all values tried"
            and not values
            and is_near(before, present)
        ):
            values = {setting: present}  # no other value was clearly better
        if setting in values and _are_settings(values):
            yield _Result(
                folder.name, values, tuple(trials) if setting == "num_workers" else (), updates
            )


def _kept(event: Event) -> dict[str, Any]:
    """The settings of a tuning that are final with this event; workers are not compared."""
    final = isinstance(event, TuneStep) and (event.is_check or event.search == "find_num_workers")
    return dict(event.values) if isinstance(event, TuneStep) and final else {}


def _are_settings(values: Mapping[str, Any]) -> bool:
    """Whether these are plain values of settings that a search may give; a record may come from
    an untrusted source.
    """
    if not values.keys() <= _GIVEN or not all(
        value is None or isinstance(value, bool | int | float | str) for value in values.values()
    ):
        return False
    try:
        Settings.make(**values)
    except (SettingsError, TypeError):
        return False
    return True
