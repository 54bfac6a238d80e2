"""Defines Recipe: what a bench was made of, and the task that it makes of that."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from workbench.bench.arguments import callback_note, first_settings, refuse_unfit
from workbench.engine.dry_run import dry_run as trial
from workbench.engine.validation.monitors import refuse_unreported
from workbench.export.errors import ExportError
from workbench.export.source.capture import BuildCall
from workbench.export.source.source import CODE_ARGUMENTS
from workbench.launch import select_launcher
from workbench.launch.joined.group import Joined
from workbench.launch.start.kept_start import is_signed
from workbench.runs.printable import printable
from workbench.runs.read import build_values, read_header
from workbench.settings import Settings
from workbench.task import ranks, rng
from workbench.task.build import Build, equal
from workbench.task.errors import TaskError
from workbench.task.factory import set_averaging, task_of
from workbench.task.lightning import overrides
from workbench.task.lightning.callbacks.translate import with_hooks
from workbench.task.optim.mup import MuP
from workbench.task.protocol import Task
from workbench.techniques.schedules import is_built_in
from workbench.trackers.listener import TrackerListener
from workbench.values import holds_text, is_held, is_plain, shown, text_not_held, value_text

_AVERAGING = ("avg_fn", "should_update")
OBJECTS = tuple(name for name in CODE_ARGUMENTS if name not in ("model", *_AVERAGING))
"""The arguments that are objects of the user's, besides the model."""


@dataclass(frozen=True)
class Prepared:
    """A task that was tried, with the settings that it begins with."""

    model: Any
    task: Task
    settings: Settings
    optimizers: int = 1
    own_schedule: bool = False
    """Whether a scheduler of the user's sets the rate."""
    val_collate_fn: Any = None
    warnings: Sequence[str] = ()


@dataclass
class Recipe:
    """The arguments of a bench. One whose model is made by a function can make it again, with
    other values of the function's parameters.
    """

    model: Any
    build: Build | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)
    """The other objects, by the names of `OBJECTS` and the averaging functions."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings in the call that made the bench."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """The same keywords as they were written."""
    joined: Joined | None = None
    trackers: Sequence[TrackerListener] = ()
    samples: bool = True
    """Whether the model is tried on two samples."""
    values: dict[str, Any] = field(default_factory=dict)
    """The values of the function's parameters that hold for the next jobs."""
    sets: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    """The values that `bench.set` was given, each with the number of jobs before it."""
    built: Mapping[str, Any] = field(default_factory=dict)
    """The values with which the present model was made."""
    seed: int = 0
    """The seed with which it was made."""
    of_jobs: dict[Path, Mapping[str, Any]] = field(default_factory=dict)
    """The values of each job of this bench, by its folder."""
    returns_model: bool = True
    """Whether the function returns the model alone, and not a dict of arguments."""

    @property
    def name(self) -> str:
        """The name of the function."""
        return "" if self.build is None else self.build.name

    @property
    def parameters(self) -> Sequence[str]:
        """The names of the function's parameters."""
        return () if self.build is None else tuple(self.build.defaults)

    def split(self, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The keyword arguments that are parameters of the function, and the others."""
        return ({}, dict(keywords)) if self.build is None else self.build.split(keywords)

    @property
    def all_values(self) -> dict[str, Any]:
        """The values of all parameters with which the present model was made."""
        defaults = {} if self.build is None else self.build.defaults
        values = {**defaults, **self.built}
        return {
            name: value for name, value in values.items() if value is not inspect.Parameter.empty
        }

    def has(self, values: Mapping[str, Any]) -> bool:
        """Whether the present model was made with these values."""
        defaults = {} if self.build is None else self.build.defaults
        chosen, built = {**defaults, **values}, {**defaults, **self.built}
        return all(equal(value, built[name]) for name, value in chosen.items())

    def of_run(self, folder: Path, given: Collection[str] = ()) -> dict[str, Any]:
        """The values with which the model of the run in this folder was made.

        A parameter that its record does not have, since it is newer or since the model was given,
        has the bench's value. given: the names of those that the caller has. Raises TaskError for a
        value that the record cannot hold, and that is neither the function's default nor the
        bench's. And for a text that may be a stranger's: the function could read a file of that
        name, or code.
        """
        if self.build is None:
            return {}
        if folder.resolve() in self.of_jobs:
            return dict(self.of_jobs[folder.resolve()])
        recorded = build_values(read_header(folder))
        usual = {**self.build.defaults, **self.values}
        values = {**self.values, **recorded}
        for name in values.keys() & given:
            del values[name]
        for name, value in values.items():
            if name not in self.build.defaults:
                raise TaskError(
                    f"the model of run {folder.name} was made with {name}={value_text(value)}, and"
                    f" {self.build.name} has no such parameter: use the function that made it."
                )
            if not is_held(value):
                values[name] = self._value_of_text(folder.name, name, value_text(value))
                continue
            trusted = equal(value, usual[name]) or not holds_text(value) or is_signed(folder)
            if not trusted:
                raise TaskError(
                    f"run {folder.name} says that its model was made with {name}={shown(value)}."
                    " It has no signature of yours, and a text of somebody else is not given to"
                    f" {self.build.name}. If you trust it: bench.set({name}={shown(value)})."
                )
        return values

    def _value_of_text(self, run: str, name: str, text: str) -> Any:
        """The value of a parameter of which the record of a run has the text alone: the function's
        default or the bench's value, whichever has this text.
        """
        assert self.build is not None
        default = self.build.defaults[name]
        if _is_named(default) and printable(text_not_held(default)) == text:
            return default
        usual = self.values.get(name, default)
        # a text without an address may be that of another object of its class
        is_told = _is_named(usual) or text_not_held(usual) == shown(usual)
        if name in self.values and is_told and printable(text_not_held(usual)) == text:
            return usual
        present = "" if usual is inspect.Parameter.empty else f", and the bench has {shown(usual)}"
        raise TaskError(
            f"the model of run {run} was made with {name}={text}, which its record cannot hold"
            f"{present}: give the same value, bench.set({name}=…)."
        )

    def call_of(self, folder: Path | None) -> BuildCall | None:
        """How a script makes the model of the run in this folder; None: it was given as it is."""
        if self.build is None:
            return None
        values = self.built if folder is None else self.of_run(folder)
        defaults = self.build.defaults
        chosen = {
            name: value for name, value in values.items() if not equal(value, defaults.get(name))
        }
        for name, value in chosen.items():
            if not is_plain(value):
                raise ExportError(
                    f"the model was made with {name}={shown(value)}, which a script cannot write:"
                    " let the function make it from a name or a number."
                )
        texts = {name: repr(value) for name, value in chosen.items()}
        rated = isinstance(self.build.function, MuP)
        return BuildCall(texts, returns_model=self.returns_model, rated=rated)

    def prepare(
        self, values: Mapping[str, Any], seed: int, settings: Mapping[str, Any]
    ) -> Prepared:
        """Make the task, and try it on two samples; raises TaskError or SettingsError.

        values: of the function's parameters. seed: for the weights that it makes. settings: those
        that the user has set since the bench was made.
        """
        chosen = {**self.settings, **settings}
        # setup code of the user's objects may use random numbers, and wait for other ranks
        meets = contextlib.nullcontext() if self.joined is not None else ranks.alone()
        with rng.preserved(), meets:
            arguments = self._arguments(values, seed)
            averaging = {name: arguments.pop(name) for name in _AVERAGING}
            task = task_of(**arguments, callbacks=with_hooks(self.keywords.get("callbacks", ())))
            set_averaging(task, **averaging)
            task.use_trackers(self.trackers)
            first = first_settings(task, chosen)
        note = callback_note(task, chosen, self.keywords)
        select_launcher.warm(first)
        # each rank tries the model alone
        trying = first if self.joined is None else first.replace(strategy="thread", devices=1)
        tried = trial.dry_run(task, trying, samples=self.samples)
        refuse_unfit(task, first)  # the trial has shown which names metrics give to their values
        refuse_unreported(task, first, tried.schedules)
        warnings = [*([note] if note else []), *tried.warnings]
        collate = arguments["val_collate_fn"] or arguments["collate_fn"]
        own_schedule = any(
            not is_built_in(schedule.scheduler, trying) for schedule in tried.schedules
        )
        return Prepared(
            arguments["model"], task, first, tried.optimizers, own_schedule, collate, warnings
        )

    def _arguments(self, values: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The arguments of the bench: those that the user gave, and those that the function
        returns.
        """
        if self.build is None:
            return {"model": self.model, **self.objects}
        returned = self.build.make(values, seed)
        self.returns_model = len(returned) == 1
        call = self.build.call(values)
        for name in returned.keys() - {"model"}:
            if name not in self.objects:
                known = ", ".join(self.objects)
                raise TaskError(
                    f"{call} returned {name!r}, which no bench takes from it: return 'model', and"
                    f" any of {known}; settings are given to the bench."
                )
            if self.objects[name] not in (None, torch.optim.AdamW):
                raise TaskError(
                    f"{name}= is given to the bench, and {call} returned one too: leave one out."
                )
        arguments = {**self.objects, **returned}
        if isinstance(self.build.function, MuP):
            model = returned["model"]
            if isinstance(model, Task) or overrides.is_lightning_like(model):
                raise TaskError(
                    f"wb.mup scales the rates of an optimizer that the bench makes, and"
                    f" {type(model).__name__} makes its own: let {self.build.name} return the"
                    " network alone, and give the bench loss=…."
                )
            groups = arguments["groups"]
            rates = self.build.function.rates(**values)
            arguments["groups"] = [*([] if groups is None else [groups]), rates]
        return arguments


def _is_named(value: Any) -> bool:
    """Whether the module and the name say which class or function it is. They do not for a lambda,
    and for a function inside another one, which may hold values of that one.
    """
    is_function = inspect.isfunction(value) or inspect.isbuiltin(value)
    return isinstance(value, type) or (is_function and "<" not in value.__qualname__)
