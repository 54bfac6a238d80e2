"""Defines BenchBase: the task, the settings and the jobs of a bench, which its other methods
work with.
"""

from __future__ import annotations

import threading
import warnings
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack

from pydantic import PrivateAttr

from workbench.bench.arguments import (
    given_without_effect,
    refuse_unreported_monitor,
    refuse_without_effect,
    settings_named,
)
from workbench.bench.recipe import Prepared, Recipe
from workbench.engine.optim.param_groups import ParamGroups
from workbench.engine.runtime.restore_devices import restored_devices
from workbench.engine.setup import open_session
from workbench.events import Called, SettingsSet, StatusChanged
from workbench.launch import select_launcher
from workbench.launch.cell_context import CellContext
from workbench.launch.code_line import line
from workbench.launch.job import AnyJob, Job
from workbench.launch.job_folder import new_job_folder
from workbench.launch.joined import group, rank_job
from workbench.launch.joined.rank_job import RankJob
from workbench.launch.listeners import Listener, Listeners
from workbench.launch.pool import pool
from workbench.launch.start.initial_weights import InitialWeights
from workbench.launch.start.start_spec import StartSpec, SubmittedFit
from workbench.launch.thread import ThreadLauncher
from workbench.launch.turns import Turn
from workbench.launch.work import BenchWork
from workbench.runs.read import RUNS
from workbench.settings import Settings, SettingsError, lists_keywords
from workbench.settings.kwargs import SettingsKwargs
from workbench.task.build import equal, kept
from workbench.task.errors import TaskError
from workbench.task.protocol import Phase, Task
from workbench.task.state.of_task import objects_with_state
from workbench.task.summary import ModelSummary
from workbench.trackers.listener import TrackerListener
from workbench.tuners.learning_rate.rate_change import RateChange, rate_change
from workbench.values import shown

T = TypeVar("T")


class BenchBase:
    """A task, its settings and its jobs: what the methods that start jobs share."""

    def __init__(
        self,
        prepared: Prepared,
        recipe: Recipe,
        root: Path,
        listeners: Iterable[Listener] = (),
        trackers: Sequence[TrackerListener] = (),
    ) -> None:
        """recipe: what the task was made of."""
        self._recipe = recipe
        self.root = root
        self._task: Task
        self._settings: Settings
        self._take(prepared)
        self.jobs: list[AnyJob] = []
        self.studies: list[Any] = []
        self._needs: dict[AnyJob, set[str]] = {}
        """The runs whose folders each job needs until it ends."""
        self._said: set[str] = set()
        """What was said before fits, each once."""
        self._rates_taken: tuple[Settings, ...] = ()
        """The settings in which `lr` was set to a rate that was offered in place of one found."""
        self._waiting: set[str] = set()
        """The settings that `set` was given and that have had no effect yet, for want of
        another.
        """
        self._sets: list[dict[str, Any]] = []
        """The arguments of every call of `set`, in order."""
        self._sets_before: dict[AnyJob, int] = {}
        """How many of these calls came before each job."""
        self._header: dict[str, Any] = {}
        """What the headers of its runs say besides, as plain data: "built_by", the functions that
        made model and data with their parameters, and "study", of which trial they are.
        """
        self._objects: dict[int, str] = {}
        """The objects of the task that have a state, when the latest job was submitted to an idle
        bench.
        """
        self._trackers = trackers
        self._listeners = Listeners(listeners)
        for tracker in trackers:
            self._listeners.add(tracker)
        self._lock = threading.Lock()
        self._launcher = ThreadLauncher(self._listeners.on_event)

    @property
    def summary(self) -> ModelSummary:
        """The model's size, and the device on which jobs train it."""
        return self._summary.on(self._settings.accelerator)

    @property
    def param_groups(self) -> ParamGroups:
        """Which parameter is in which group of which optimizer, with the rates and decays at which
        a fit with the present settings begins. As the last line of a cell it is a table.

        RuntimeError: a job is running, which uses the model.
        """
        self._check_idle("look at its groups")
        settings = self._settings.replace(compile=False, on_spike=None)
        with restored_devices(self._task), open_session(self._task, settings) as session:
            return ParamGroups.of(self._task, session.optimizers)

    @property
    def settings(self) -> Settings:
        """The settings that the next job starts from; frozen. `set` replaces them."""
        return self._settings

    @lists_keywords(SettingsKwargs)
    def set(self, **changes: Unpack[SettingsKwargs]) -> Settings:
        """Replace some settings: `bench.set(lr=3e-3)`. Earlier jobs keep theirs.

        A setting that needs another (`ema_decay` needs `weight_averaging`) may be set before it; a
        fit without the other refuses it. Of a bench whose model is made by a function, its
        parameters too: `bench.set(width=256)` makes the model anew.
        """
        values, settings_given = self._split(changes)
        replaced = settings_named(settings_given, self.set, others=self._parameters)
        if values:
            chosen = {**self._recipe.values, **values}
            self._build(chosen, self._settings.replace(**replaced), replaced, "set")
            self._recipe.values = chosen
            self._recipe.sets.append((len(self.jobs), values))
        with self._lock:  # two threads may each set something, and neither change may be lost
            settings = self._settings.replace(**replaced)
            self._task.refuse_optimizer(settings)
            refuse_unreported_monitor(self._task, settings)
            self._task.refuse_unused(replaced)
            select_launcher.warm(settings)
            offer = self._rate_change(self._settings) if "lr" in replaced else None
            if offer is not None and offer.offers(settings.lr):
                self._rates_taken += (self._settings.replace(lr=settings.lr),)
            self._settings = settings
            self._waiting = {
                *given_without_effect(self._task, settings, {*self._waiting, *replaced})
            }
            self._sets.append(replaced)
        self._listeners.notify(Called(line("set", {**values, **replaced})))
        self._listeners.notify(SettingsSet(self._settings.model_dump()))
        return SettingsOfBuild.of(settings, self._recipe)

    def _rate_change(self, settings: Settings) -> RateChange | None:
        """What to say about the rate of these settings, and what is offered instead; None:
        nothing.
        """
        return rate_change(
            self.jobs, settings, select_launcher.ranks, self.summary.optimizer, self._rates_taken
        )

    # -- a model that a function makes

    @property
    def _parameters(self) -> Sequence[str]:
        """The names of the parameters of the function that makes the model."""
        return self._recipe.parameters

    def _named(self, keywords: Mapping[str, Any], called: Callable[..., Any]) -> dict[str, Any]:
        """The settings among the keyword arguments of a method that takes the present model."""
        values, settings = self._split(keywords)
        for name, value in values.items():
            raise SettingsError(
                f"{name}={shown(value)}: {called.__name__}() takes the present model, and {name} is"
                f" a parameter of {self._recipe.name}, which makes it: call"
                f" bench.set({name}={shown(value)}) first."
            )
        return settings_named(settings, called)

    def _split(self, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The keyword arguments that are such parameters, and the others."""
        return self._recipe.split(keywords)

    def _build(
        self,
        values: Mapping[str, Any],
        settings: Settings,
        sets: Mapping[str, Any],
        then: str,
        *,
        seed: int | None = None,
    ) -> None:
        """Let the function make the model anew, where the present one has other values or another
        seed. Weights that the user has loaded or changed stay, for equal values.

        settings: of the next job. sets: what `set` is about to set. then: what the bench was called
        for, for the error of a bench that is busy. seed: None: that of the settings.
        """
        recipe = self._recipe
        seed = settings.seed if seed is None else seed
        if recipe.build is None or (recipe.has(values) and seed == recipe.seed):
            return
        self._check_idle(then)
        if recipe.has(values) and self._start.are_changed:
            return
        weights = {id(parameter) for parameter in self._task.model.parameters()}
        self._start.restore()
        prepared = recipe.prepare(values, seed, {**self._all_sets(), **sets})
        if any(id(parameter) in weights for parameter in prepared.task.model.parameters()):
            raise TaskError(
                f"{recipe.build.call(values)} returned a model with weights of the one before: let"
                " it make a new model in each call."
            )
        refuse_unreported_monitor(prepared.task, settings)
        recipe.built, recipe.seed = kept(values), seed
        for warning in prepared.warnings if self._writes else ():
            warnings.warn(warning, stacklevel=4)
        with self._lock:
            self._take(prepared)

    def _take(self, prepared: Prepared) -> None:
        """Work with this task from now on."""
        object.__setattr__(self, "model", prepared.model)
        self._task, self._settings = prepared.task, prepared.settings
        self._val_collate_fn = prepared.val_collate_fn
        self._start = InitialWeights(prepared.task)
        self._summary = ModelSummary.of(
            prepared.task, prepared.optimizers, self._recipe.all_values, prepared.own_schedule
        )

    def _refuse_other_model(self, wanted: StartSpec) -> None:
        """Raise TaskError for a search from a run whose model the function made with other values
        than the present one.
        """
        if wanted.run is None:
            return
        values = self._recipe.of_run(wanted.folder(self.root))
        if not self._recipe.has(values):
            raise TaskError(
                f"start={wanted.text!r}: its model was made with other values than bench.model:"
                f" bench.load({wanted.run!r}) makes it, then search with start='continue'."
            )

    def _all_sets(self) -> dict[str, Any]:
        """All settings that `set` was given, each with its last value."""
        return dict(ChainMap(*reversed(self._sets)))

    def _check_idle(self, then: str) -> None:
        if any(not job.done() for job in self.jobs):
            raise RuntimeError(
                "a job is running or queued and uses the model: wait for it or stop() it, then"
                f" {then}."
            )

    @property
    def _writes(self) -> bool:
        """Whether this process writes files: of several ranks, only the first one does."""
        ranks = group.join(self._settings)
        return ranks is None or ranks.first

    @property
    def job(self) -> Job | None:  # type: ignore[type-arg]  # Jedi, which completes in notebooks, takes no `Job[Any] | None`
        """The running job, or else the latest one."""
        with self._lock:
            running = [job for job in self.jobs if job.status in ("running", "paused")]
            candidates = running or self.jobs
            return candidates[-1] if candidates else None

    def _fits(self) -> list[SubmittedFit]:
        """The fits so far, each with the settings that changed after it."""
        with self._lock:
            fits = [job for job in self.jobs if job.kind == "fit"]
            return [
                SubmittedFit(job, dict(ChainMap(*reversed(self._sets[self._sets_before[job] :]))))
                for job in fits
            ]

    def _needed(self) -> dict[str, str]:
        """The runs that jobs still need, each with the id of a job. The caller holds the lock."""
        needed: dict[str, str] = {}
        for job, runs in self._needs.items():
            if not job.done():
                needed |= dict.fromkeys(runs, job.id)
        return needed

    def _chosen(self, settings: dict[str, Any], phase: Phase = "fit") -> Settings:
        """The settings of a job: those of the bench, replaced by `settings` where given."""
        chosen = self._settings.replace(**settings)
        # find_clip_val has its own error for it
        refuse_without_effect(self._task, chosen, settings.keys() - {"gradient_clip_algorithm"})
        self._task.refuse_optimizer(chosen)
        self._task.refuse_unused(settings, phase)
        return chosen

    def _submit(
        self,
        kind: str,
        settings: Settings,
        called: Mapping[str, Any],
        work: BenchWork,
        finish: Callable[[Job[T]], T],
        needs: Collection[str] = (),
        positional: Sequence[Any] = (),
        repeats: str = "",
        fingerprint: str = "",
    ) -> Job[T]:
        """Put a job into the queue.

        called: the keywords of the call, and `positional` its other arguments, for the line of code
        that views show.
        finish: makes the job's result. needs: the runs that must not be deleted before it ends.
        repeats: the run that it repeats. fingerprint: see `new_job_folder`.
        """
        self._launcher.check_open()
        CellContext.refuse(kind)
        with self._lock:
            needed = {*needs, *self._needed()}
        data = "" if self._task.train is None else self._task.train.label
        make_folder = partial(
            new_job_folder,
            self.root,
            kind,
            settings,
            self.summary,
            data,
            len(self.jobs),
            needed,
            repeats,
            fingerprint,
            self._header,
        )
        call = partial(line, kind, called, *positional)
        meeting = rank_job.meet(settings, call, self.summary, data, self._files())
        finished = _in_the_callers_thread(finish)
        if meeting is None:
            job_folder = make_folder()
            job = Job(job_folder.id, kind, job_folder.folder, work, finished, self._called)
        else:
            job_folder = rank_job.folder_of(meeting, make_folder)
            job = RankJob(job_folder, meeting, kind, work, finished, self._called)
        if job_folder.path is not None:
            self._recipe.of_jobs[job_folder.path.resolve()] = self._recipe.all_values
        if all(past.done() for past in self.jobs):  # no job changes the objects meanwhile
            self._objects = objects_with_state(self._task)
        claim = work.claim(
            self._objects,
            job_folder.path,
            (self.root / RUNS / run for run in needs),
            self._trackers if kind == "fit" else (),
        )
        job._turn = Turn(job.id, kind, claim)
        work.bind(job_folder, job._turn, self._trackers)
        for past in self.jobs:
            past._forget_frames()
        try:
            with self._lock:
                self._needs[job], self._sets_before[job] = set(needs), len(self._sets)
                self.jobs.append(job)
            self._listeners.notify(Called(call()))
            self._listeners.notify(StatusChanged("queued"))
            self._launcher.submit(job)
        except BaseException:  # an interrupt, for one
            self._launcher.cancel(job)
            raise
        return job

    def _files(self) -> dict[str, str]:
        """The text of each file of the user's code, by its name."""
        return {}

    def _called(
        self, job: AnyJob, method: str, arguments: Mapping[str, Any], of: str
    ) -> Callable[[], None]:
        """Return a function that reports the line of code for a request to a job. of: the job in
        that line; "": its present name here.
        """
        name = "job" if self.job is job else f"jobs[{self.jobs.index(job)}]"
        report = partial(self._listeners.called, line(method, arguments, of=of or f"bench.{name}"))
        ends = method == "stop" and "at" not in arguments
        return partial(self._drop, job, report) if ends else report

    def _drop(self, job: AnyJob, report: Callable[[], None]) -> None:
        """End a stopped job at once if it is still queued; a slow listener does not delay that."""
        waits = job.status == "queued"
        if waits:
            self._launcher.drop(job)
        report()
        if waits:
            self._listeners.notify(StatusChanged("stopped"))


def _in_the_callers_thread(finish: Callable[[Job[T]], T]) -> Callable[[Job[T]], T]:
    """Finish the job when its result is read.

    In the main thread, tensors then move to the buffer cache's copy of their memory: no cell works
    on a tensor meanwhile.
    """

    def finished(job: Job[T]) -> T:
        if threading.current_thread() is threading.main_thread():
            pool.keep_one_copy()
        return finish(job)

    return finished


class SettingsOfBuild(Settings):
    """The settings of a bench whose model is made by a function, as `set` returns them. They print
    with the values of the function's parameters.
    """

    _values: dict[str, Any] = PrivateAttr(default_factory=dict)
    """Those that are not the function's defaults."""

    @classmethod
    def of(cls, settings: Settings, recipe: Recipe) -> Settings:
        """The settings with the values of this recipe; as they are where it has none."""
        defaults = {} if recipe.build is None else recipe.build.defaults
        values = {
            name: value
            for name, value in recipe.all_values.items()
            if not equal(value, defaults.get(name))
        }
        if not values:
            return settings
        printed = cls.model_construct(**dict(settings))  # they are checked
        printed._values.update(values)
        return printed

    def replace(self, **changes: Any) -> Self:
        """These settings with some of them changed, and the same values."""
        changed = super().replace(**changes)
        changed._values.update(self._values)
        return changed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and dict(self) == dict(other)

    __hash__ = Settings.__hash__

    def __repr_name__(self) -> str:
        return Settings.__name__

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        yield from super().__repr_args__()
        yield from self._values.items()

    def __str__(self) -> str:
        values = [f"    {name} = {value!r}" for name, value in self._values.items()]
        head = ["  parameters of the model's function"] if values else []
        return "\n".join([super().__str__(), *head, *values])
