"""Defines Workbench: one task, its settings, its jobs. The panel, cells and scripts all work on it."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import sys
import threading
import warnings
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import torch
from torch import Tensor

from workbench.engine import rng
from workbench.engine.dry_run import dry_run as trial
from workbench.engine.validation.monitors import refuse_unreported
from workbench.events import Annotated, Called, Compared, Deleted, Event, SettingsSet, Shown, StatusChanged
from workbench.export.source.capture import CallSite
from workbench.launch import jobs, select_launcher
from workbench.launch.code_line import Name, differing, line
from workbench.launch.evaluations import metrics_of, spec_to_predict
from workbench.launch.job import AnyJob, Job
from workbench.launch.job_folder import (
    brief_of,
    is_own,
    new_job_folder,
    own,
    run_folder,
    run_to_export,
    weights_of,
)
from workbench.launch.listeners import Listener, Listeners
from workbench.launch.pool import pool
from workbench.launch.start.initial_weights import InitialWeights
from workbench.launch.start.start_spec import AskedFit, StartResolver, StartSpec
from workbench.launch.thread import ThreadLauncher, alone
from workbench.runs.compare import MOST, Comparison, check_count, check_no_list, compare
from workbench.runs.evidence import evidence as found_by
from workbench.runs.folder.annotations import annotate
from workbench.runs.folder.delete import delete
from workbench.runs.run import Run
from workbench.runs.run_list import RunList
from workbench.settings import Settings, SettingsError, lists_keywords, metadata_of
from workbench.settings_kwargs import SettingsKwargs
from workbench.task.errors import TaskError
from workbench.task.factory import task_of
from workbench.task.lightning.unsupported import refuse_callbacks
from workbench.task.protocol import Phase, Task
from workbench.task.signature import fits
from workbench.task.summary import ModelSummary
from workbench.techniques.cadence import refuse_no_interval
from workbench.trackers.listener import tracker_listeners
from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest, BatchSizes
from workbench.tuners.clip_search import ClipRequest, ClipSearch
from workbench.tuners.decay_search import WeightDecayRequest, WeightDecaySearch
from workbench.tuners.learning_rate.lr_finder import LRCurve, LRRequest
from workbench.tuners.plan import Plan, SettingsRequest
from workbench.tuners.speed_search import PrecisionRequest, SpeedSearch, WorkersRequest
from workbench.values import shown

T = TypeVar("T")
TUNED = ("num_workers", "batch_size", "lr", "clip_val")
"""The searches of `tune()`, in their order."""


class Workbench:
    """A model and its data on the bench: find a batch size and a learning rate, fit, watch, export.

    Args:
        model: an nn.Module with `loss=` (or whose output has `.loss`), an object with `training_step` and
            `configure_optimizers` (a LightningModule, unchanged), or a `wb.Task`.
        train, val, test: a Dataset, a DataLoader, a tuple of arrays, tensors, frames or series (x, y) or (x1, x2, y), a dict
            of these, a list of samples, ready batches as `wb.batches(list)`, or an object with `train_dataloader()`. None: the model object's own.
        loss: a function of (output, target) that gives one number. Parameters of a loss module are trained with the model.
        optimizer: makes an optimizer: `optimizer(params, lr=…, weight_decay=…)`. A rate that it has already
            (`partial(SGD, lr=0.5)`) is the rate until `lr` is set.
        scheduler: makes a scheduler: `scheduler(optimizer, updates)`; it steps once per update. For anything else
            it returns a `wb.Schedule` (every so many updates or epochs), a ReduceLROnPlateau (after each check of
            the validation data), or a list of these.
        metrics: {"accuracy": f}, reported as val_accuracy. A function `f(output, y)` of a batch is averaged over the
            samples of a check. An object with `update`, `compute` and `reset` (a torchmetrics.Metric, a MetricCollection)
            is updated by batch and computed once a check, over all ranks. `wb.over_epoch(f)` calls a function once, on all
            outputs and targets of a check. A dict of numbers is reported by its own names.
        collate_fn: how samples become a batch, as for a DataLoader.
        avg_fn: with `weight_averaging`, how one average takes in one weight: `avg_fn(averaged, current, count)`
            returns the new average; `count` of them are in it.
        should_update: with `weight_averaging`, when to average: `should_update(step, epoch)`, instead of the
            settings' rule. `step` updates have been taken; it is asked after each (EMA), or each epoch (SWA).
        listeners: functions of one event, called off the hot path, in this process: of a run with strategy="launch" they
            get events as long as this process follows it.
        trackers: where each fit becomes a run: "tensorboard", "wandb", "mlflow", …, several of them,
            {"mlflow": {its arguments}}, or objects of accelerate's `GeneralTracker`. A launched run takes those of a name
            along, and continues in them after this process has ended; objects receive events as listeners do.
        root: the folder for the record of all runs.
        dry_run: try the model on two samples now, so that a mistake shows at once. What that moves of your own objects
            (generators, counters) is put back; a warning names what cannot be. False: no sample is read before the first job.
        settings: any field of `Settings`; `help(wb.Settings)` lists them.

    Attributes:
        model: the model object that you gave.
        root: the folder for the record of all runs.
        summary: the numbers of parameters, their bytes and device, the number of optimizers.
        jobs: all jobs of this bench, oldest first.

    Raises `TaskError` or `SettingsError` with what is wrong and what to do.
    """

    @lists_keywords(SettingsKwargs)
    def __init__(
        self,
        model: Any,
        *,
        train: Any = None,
        val: Any = None,
        test: Any = None,
        loss: Callable[..., Tensor] | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        scheduler: Callable[[torch.optim.Optimizer, int], Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        avg_fn: Callable[[Tensor, Tensor, Any], Tensor] | None = None,
        should_update: Callable[[int, int], bool] | None = None,
        listeners: Sequence[Listener] = (),
        trackers: Any = None,
        root: str | Path = ".workbench",
        dry_run: bool = True,
        **settings: Unpack[SettingsKwargs],
    ) -> None:
        self._site = CallSite.capture(sys._getframe(1))
        given = _named(settings, type(self), "Workbench")
        Settings.make(**given)  # a bad value is refused before anything is tried
        following = tracker_listeners(trackers, Path(root), model)
        with rng.preserved():  # an object's own set-up may draw random numbers
            self._task = task_of(
                model,
                train=train,
                val=val,
                test=test,
                loss=loss,
                optimizer=optimizer,
                scheduler=scheduler,
                metrics=metrics,
                collate_fn=collate_fn,
            )
            _take_averaging(self._task, avg_fn, should_update)
            self._settings = _first_settings(self._task, given)
        self.model = model
        self.root = Path(root)
        self._collate_fn = collate_fn
        select_launcher.warm(self._settings)
        tried = trial.dry_run(self._task, self._settings, samples=dry_run)
        self._refuse_unfit(self._settings)  # the trial has shown which names metrics give to their values
        refuse_unreported(self._task, self._settings, tried.schedules)
        if tried.lost:
            warnings.warn(_lost(tried.lost), stacklevel=2)
        self._start = InitialWeights(self._task)
        self.summary = ModelSummary.of(self._task, tried.optimizers)
        self.jobs: list[AnyJob] = []
        self._needs: dict[AnyJob, set[str]] = {}
        """The runs that each job needs the folders of, until it is over."""
        self._sets: list[dict[str, Any]] = []
        """What `set` was called with, in order."""
        self._sets_before: dict[AnyJob, int] = {}
        """How many of these calls came before each job."""
        self._trackers = following
        self._listeners = Listeners(listeners)
        for follower in following:
            self._listeners.add(follower)
        self._closing: list[Callable[[], None]] = [follower.close for follower in following]
        self._lock = threading.Lock()
        self._launcher = ThreadLauncher(self._listeners.on_event)

    def __setattr__(self, name: str, value: Any) -> None:
        """What the bench itself keeps can be set, by the bench; an attribute that would do nothing is refused."""
        own = getattr(type(self), name, None)
        begun = "_launcher" in vars(self)
        if name.startswith("_") or (not begun and name in _PUBLIC) or callable(own) or _is_addition(type(self), name):
            super().__setattr__(name, value)
        else:
            raise AttributeError(_why_not_set(name, value))

    def __getattr__(self, name: str) -> Any:
        """Called only for attributes that do not exist."""
        hint = f": a setting is read as bench.settings.{name}" if name in Settings.model_fields else ""
        raise AttributeError(f"a bench has no attribute {name!r}{hint}.", name=name, obj=self)

    # -- settings

    @property
    def settings(self) -> Settings:
        """The settings that the next job starts from; frozen. `set` replaces them."""
        return self._settings

    @lists_keywords(SettingsKwargs)
    def set(self, **changes: Unpack[SettingsKwargs]) -> Settings:
        """Replace some settings: `bench.set(lr=3e-3)`. Earlier jobs keep theirs."""
        given = _named(changes, self.set)
        with self._lock:  # of two threads that set one thing each, both count
            settings = self._settings.replace(**given)
            self._refuse_unreported(settings)
            self._task.refuse_unused(given)
            select_launcher.warm(settings)
            self._settings = settings
            self._sets.append(given)
        self._listeners.tell(Called(line("set", given)))
        self._listeners.tell(SettingsSet(self._settings.model_dump()))
        return settings

    # -- jobs

    @property
    def job(self) -> Job | None:  # type: ignore[type-arg]  # Jedi, which completes in notebooks, takes no `Job[Any] | None`
        """The running job, or else the latest one."""
        with self._lock:
            running = [job for job in self.jobs if job.status in ("running", "paused")]
            found = running or self.jobs
            return found[-1] if found else None

    @lists_keywords(SettingsKwargs)
    def fit(self, start: str = "fresh", **settings: Unpack[SettingsKwargs]) -> Job[Run]:
        """Train; `settings` hold for this job alone. Afterwards the model has the trained weights.

        start: "fresh" starts from the weights that the model had when the bench was made (or that you gave it since).
        "continue" continues the last fit as if it had not ended: optimizers, schedules, the position in the data,
        random numbers; if the weights were changed since, or there is no such fit, it starts from the present weights,
        with a message. The id of a run continues from its last checkpoint, "0012-fit@best" from its best one,
        "0012-fit@1200" from the one after 1200 updates, in this process or another. Such a fit has the settings of its
        run, except for those that you `set` since or give here; lengths count from the beginning of the whole run.
        Where it runs (`strategy`, `devices`, `launch`, …) and what is deleted (`keep_runs`, `save_top_k`) is never
        taken from the checkpoint: this bench decides it.
        With `fast_dev_run=n` everything is tried with n batches of each kind of data, and nothing is recorded.
        """
        given = _named(settings, self.fit)
        origin = StartResolver(self.root, StartSpec.of(start), self._settings, given, self._fits())
        chosen = origin.predict_settings(self._start.untouched_since, all(job.done() for job in self.jobs))
        self._refuse_unfit(chosen)
        self._task.refuse_unused(given)
        work = jobs.FitWork(self._task, chosen, self._start, origin)
        called = {**({} if start == "fresh" else {"start": start}), **given}
        return self._submit("fit", chosen, called, work, _run_of, origin.needs)

    @lists_keywords(SettingsKwargs)
    def find_lr(
        self,
        *,
        min_lr: float = 1e-5,
        max_lr: float = 10.0,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        optimizer: int = 0,
        group: int | None = None,
        race: bool = False,
        race_updates: int = 300,
        start: str = "fresh",
        **settings: Unpack[SettingsKwargs],
    ) -> Job[LRCurve]:
        """Sweep the learning rate from `min_lr` to `max_lr` over `num_training` updates; nothing is changed.

        mode: "exponential" or "linear". early_stop_threshold: the sweep ends where the smoothed loss is this many times
        its best; None: never. The suggestion is not applied: `bench.set(lr=curve.suggestion)` does that. start: the
        weights it sweeps from, as for `fit`; "continue": the model's present ones. optimizer: of several, the one
        (counted from 0) whose rate is swept and whose loss is read; the others step at their own rates. The setting
        `lr` is the first one's and moves all of them. group: of its parameter groups, the one (counted from 0) whose rate
        is swept, with the others at theirs: a head on a pretrained body, say. race: four rates around the suggestion train for `race_updates`
        updates in all, and held-out batches judge: for a better suggestion.
        """
        given = _named(settings, self.find_lr)
        request = LRRequest(min_lr, max_lr, num_training, mode, early_stop_threshold, optimizer, group, race, race_updates)
        chosen, wanted = self._chosen(given), StartSpec.of(start)
        wanted.weights(self.root)  # a start that does not exist raises an error now
        work = jobs.FindLRWork(self._task, chosen, jobs.StartWeights(self._task, self._start, wanted, self.root), request)
        called = {**differing(request, LRRequest()), **({} if start == "fresh" else {"start": start}), **given}
        needs = set() if wanted.run is None else {wanted.run}
        return self._submit("find_lr", chosen, called, work, lambda job: LRCurve.from_events(job.events), needs)

    @lists_keywords(SettingsKwargs)
    def find_batch_size(
        self,
        *,
        mode: str = "power",
        init_val: int = 2,
        steps_per_trial: int = 3,
        max_trials: int = 25,
        max_val: int | None = None,
        headroom: float = 0.05,
        max_memory: int | None = None,
        method: str = "fit",
        keep_effective: bool = False,
        min_updates_per_epoch: int = 20,
        longest: Callable[[Any], Any] | None = None,
        **settings: Unpack[SettingsKwargs],
    ) -> Job[BatchSizes]:
        """Try batch sizes with real updates until one does not fit, or all data is one batch.

        mode: "power" doubles; "binsearch" goes to the exact maximum, by the memory of the sizes tried, and takes
        `headroom` off. min_updates_per_epoch: `best` is the fastest size that leaves that many. max_memory: bytes that a
        trial on CPU may take (None: what is free). The result's `noise_scale` is the gradient noise scale at the model's
        present weights, measured after the trials on one device. Not applied: `bench.set(batch_size=…)` does it.
        On several devices all try a size together: sizes are per device, so is max_memory, samples/s are of all.
        method: "validate", "test" or "predict" try batches of that stage instead of updates.
        keep_effective: an update holds batch_size x accumulate_grad_batches samples as now, whatever the batch
        size: the result's `accumulate_grad_batches` is how many batches of `best` make it. Otherwise the rate that
        was right may not be: `BatchSizes.lr` rescales one.
        longest: the length of a sample, such as `lambda sample: len(sample[0])`, where samples differ: trials take the
        longest ones, so that a size which passes never runs out of memory later. A sampler with `lengths` needs none.
        """
        given = _named(settings, self.find_batch_size)
        request = BatchSizeRequest(
            mode, init_val, steps_per_trial, max_trials, max_val, headroom, max_memory, method, keep_effective,
            min_updates_per_epoch, longest is not None,
        )  # fmt: skip
        if longest is not None and not callable(longest):
            raise SettingsError(f"longest={shown(longest)}: give a function of one sample that returns its length.")
        chosen = self._chosen(given) if method == "fit" else self._settings.replace(**given)
        work = jobs.FindBatchSizeWork(self._task, chosen, request, longest)
        called = {**differing(request, BatchSizeRequest()), **({} if longest is None else {"longest": Name("longest")}), **given}
        return self._submit(
            "find_batch_size", chosen, called, work, lambda job: BatchSizes.from_events(job.events)
        )

    @lists_keywords(SettingsKwargs)
    def find_num_workers(
        self, *, max_val: int | None = None, seconds_per_trial: float = 2.0, **settings: Unpack[SettingsKwargs]
    ) -> Job[SpeedSearch]:
        """Try 0, 1, 2, 4, … loader workers with real updates, until training waits no longer or is not faster.

        max_val: the most to try; None: one a core. The result's `best` is the fewest that are nearly as fast as any:
        `bench.set(**found.best)` takes them. Nothing is changed.
        """
        given = _named(settings, self.find_num_workers)
        request = WorkersRequest(max_val, seconds_per_trial)
        return self._find_settings("find_num_workers", request, differing(request, WorkersRequest()), given, SpeedSearch.from_events)

    @lists_keywords(SettingsKwargs)
    def find_precision(
        self, *, try_compile: bool = False, updates: int = 50, tolerance: float = 0.05, **settings: Unpack[SettingsKwargs]
    ) -> Job[SpeedSearch]:
        """Try float32, bf16 and float16 mixed precision with `updates` updates each: speed, and whether losses agree.

        try_compile: the best of them with `torch.compile` as well, which takes a minute or more. tolerance: the share by which
        the mean of the last ten losses may differ from float32's. The result's `best` is the fastest that agrees:
        `bench.set(**found.best)` takes it. Nothing is changed.
        """
        given = _named(settings, self.find_precision)
        request = PrecisionRequest(try_compile, updates, tolerance)
        return self._find_settings("find_precision", request, differing(request, PrecisionRequest()), given, SpeedSearch.from_events)

    @lists_keywords(SettingsKwargs)
    def find_clip_val(self, *, updates: int = 200, **settings: Unpack[SettingsKwargs]) -> Job[ClipSearch]:
        """Take `updates` updates without clipping, and read a clip value from their gradient norms; nothing is changed.

        The result's `best` is empty where no norm stands out; `suggestion` is the value that a tenth of the norms
        exceed, and `share_at(1.0)` the share that any other would cut. After a fit, `run.clip_suggestion` and
        `run.plot("clip")` say the same of the whole run.
        """
        given = _named(settings, self.find_clip_val)
        request = ClipRequest(updates)
        return self._find_settings("find_clip_val", request, differing(request, ClipRequest()), given, ClipSearch.from_events)

    @lists_keywords(SettingsKwargs)
    def find_weight_decay(self, *, updates: int = 800, start: str = "fresh", **settings: Unpack[SettingsKwargs]) -> Job[WeightDecaySearch]:
        """Train with the present weight decay and three others, `updates` updates in all; held-out batches judge.

        The result's `suggestion` is None, and `best` empty, where no value is clearly better than the present one; less decay
        needs more evidence than more. A stretch stands for the whole run: its schedule is as short as the stretch, and its decay
        larger by the root of run / stretch. Find the learning rate before: the best decay depends on it. `tune()` leaves this
        search out, since it finds something only where a model overfits early. start: the weights that it trains from, as for
        `find_lr`. Nothing is changed.
        """
        given = _named(settings, self.find_weight_decay)
        request, wanted = WeightDecayRequest(updates), StartSpec.of(start)
        wanted.weights(self.root)  # a start that does not exist raises an error now
        called = {**differing(request, WeightDecayRequest()), **({} if start == "fresh" else {"start": start})}
        return self._find_settings("find_weight_decay", request, called, given, WeightDecaySearch.from_events, wanted)

    @lists_keywords(SettingsKwargs)
    def tune(
        self, *, searches: Sequence[str] = TUNED, apply: bool = False, **settings: Unpack[SettingsKwargs]
    ) -> Job[Plan]:
        """Find loader workers, then a batch size, a learning rate (with a race) and a clip value, as one job.

        Each search runs with what the ones before it found. searches: those to run, in their order. apply: set what was
        found when the job ends; otherwise `bench.set(**plan.settings)` does.
        """
        given = _named(settings, self.tune)
        asked = (searches,) if isinstance(searches, str) else tuple(searches)
        if not asked or any(name not in TUNED for name in asked):
            raise SettingsError(f"searches={shown(searches)}: give one or more of {', '.join(map(repr, TUNED))}.")
        if not isinstance(apply, bool):
            raise SettingsError(f"apply={shown(apply)}: give True or False.")
        chosen = self._chosen(given)
        done = (lambda found: self.set(**found)) if apply else None
        work = jobs.TuneWork(self._task, chosen, self._start, self.root, [f"find_{name}" for name in TUNED if name in asked], done)
        called = {**({"searches": asked} if asked != TUNED else {}), **({"apply": True} if apply else {}), **given}
        return self._submit("tune", chosen, called, work, lambda job: Plan.from_events(job.events))

    def _find_settings(
        self, kind: str, request: SettingsRequest, called: Mapping[str, Any], given: dict[str, Any], read: Callable[[Sequence[Event]], T],
        wanted: StartSpec | None = None,
    ) -> Job[T]:  # fmt: skip
        """wanted: the weights that it starts from; None: the present ones."""
        chosen = self._chosen(given)
        start = None if wanted is None else jobs.StartWeights(self._task, self._start, wanted, self.root)
        work = jobs.FindSettingsWork(self._task, chosen, kind, request, start)
        needs = set() if wanted is None or wanted.run is None else {wanted.run}
        return self._submit(kind, chosen, {**called, **given}, work, lambda job: read(job.events), needs)

    @lists_keywords(SettingsKwargs)
    def validate(self, **settings: Unpack[SettingsKwargs]) -> Job[dict[str, float]]:
        """The metrics of the validation data with the model's present weights."""
        return self._evaluate("validate", "val", settings)

    @lists_keywords(SettingsKwargs)
    def test(self, **settings: Unpack[SettingsKwargs]) -> Job[dict[str, float]]:
        """The metrics of the test data with the model's present weights."""
        return self._evaluate("test", "test", settings)

    @lists_keywords(SettingsKwargs)
    def predict(self, data: Any = None, **settings: Unpack[SettingsKwargs]) -> Job[list[Any]]:
        """The model's output for each batch of `data`, with its present weights: a list, on the CPU, in order.

        `torch.cat(outputs)` joins the batches of a model that returns a tensor. A stopped job returns those so far.
        data: anything that the bench takes as data, with targets or without, or one array of inputs; None: the model
        object's own `predict_dataloader`, else the test data. It is not shuffled.
        """
        given = _named(settings, self.predict)
        _refuse_of_training("predict", given)
        chosen = self._settings.replace(**given)
        spec = None if data is None else spec_to_predict(data, self._collate_fn)
        if spec is not None:
            spec.refuse_unused(given, train=False)
        else:
            self._task.refuse_unused(given, "predict")
        work = jobs.PredictWork(self._task, chosen, spec)
        positional = () if data is None else (Name("data"),)
        return self._submit("predict", chosen, given, work, lambda job: work.outputs, positional=positional)

    def _chosen(self, settings: dict[str, Any], phase: Phase = "fit") -> Settings:
        """The settings of a job: those given for it alone, on those of the bench."""
        chosen = self._settings.replace(**settings)
        self._task.refuse_unused(settings, phase)
        return chosen

    def _evaluate(self, kind: str, stage: Literal["val", "test"], settings: Mapping[str, Any]) -> Job[dict[str, float]]:
        given = _named(settings, getattr(self, kind))
        _refuse_of_training(kind, given)
        chosen = self._chosen(given, "validate" if stage == "val" else "test")
        work = jobs.EvaluateWork(self._task, chosen, stage)
        return self._submit(kind, chosen, given, work, metrics_of)

    # -- recorded runs

    @property
    def runs(self) -> RunList:
        """The fits recorded under `root`, oldest first; it prints as a table.

        `bench.runs[-1]` is the newest, `bench.runs[2:5]` three of them, `bench.runs["0012-fit"]` or `bench.runs["12"]` the one with this id.
        The end of each record is read now, the rest when it is needed.
        """
        return RunList.of(self.root)

    def load(self, run: Run | str, which: str | int = "last") -> None:
        """Give the model the weights of a run; later fits start from them.

        which: "last", "best", "start" (those at its beginning), or those after this many updates.
        """
        if any(not job.done() for job in self.jobs):
            raise RuntimeError("a job is running or queued and uses the model: wait for it or stop() it, then load.")
        if not isinstance(run, Run | str):
            raise TypeError(f"load({shown(run)}): give a run (bench.runs[-1], say) or its id.")
        id, folder = (run, None) if isinstance(run, str) else (run.id, run.folder)
        self._start.load(weights_of(folder or run_folder(self.root, id), which))
        self._listeners.tell(Called(line("load", {}, id, which)))

    def export(self, path: str | Path, run: Run | str | None = None, *, evidence: bool = False) -> Path:
        """Write a script that repeats a run (None: the last finished fit), with its starting weights beside it.

        torch and accelerate are all it needs beyond what your own code imports. `ExportError` names what cannot
        be resolved; nothing broken is written. A warning says where the script may get other data than the run: numbers
        drawn without a seed, a file that a cell wrote. evidence: the comment at its top says which searches found its
        settings, and why.
        """
        from workbench.export.script import export

        self._check_idle()
        chosen = run_to_export(run, self.root, self.jobs)
        said = {**({} if run is None else {"run": chosen.id}), **({"evidence": True} if evidence else {})}
        self._listeners.tell(Called(line("export", said, str(path))))
        with self._idle():
            notes = export(Path(path), chosen, self._site, self._task, found_by(chosen, self.root) if evidence else ())
        for note in notes:
            warnings.warn(f"{path}: {note}", stacklevel=2)
        return Path(path)

    def script(self, run: Run | str | None = None, path: str | Path = "train.py", *, evidence: bool = False) -> str:
        """The text that `export` would write into `path`; nothing is written. It raises the errors of `export`."""
        from workbench.export.script import script

        self._check_idle()
        chosen = run_to_export(run, self.root, self.jobs)
        with self._idle():
            return script(Path(path), chosen, self._site, self._task, found_by(chosen, self.root) if evidence else ())[0]

    @overload
    def compare(self) -> None: ...
    @overload
    def compare(self, first: Run | str, /, *others: Run | str) -> Comparison: ...
    @overload
    def compare(self, *runs: Run | str) -> Comparison | None: ...

    def compare(self, *runs: Run | str) -> Comparison | None:
        """Fits side by side, two or more: `bench.compare("0011-fit", "0012-fit").plot()`.

        Up to five that are recorded under this bench's root are shown in the panel as well. `bench.compare()` closes the comparison in the panel.
        """
        if not runs:
            self._listeners.tell(Called(line("compare", {})))
            self._listeners.tell(Compared(()))
            return None
        check_no_list(runs[0], "bench")
        check_count(len(runs))
        found = compare(*(brief_of(run, self.root) for run in runs))
        if len(found.runs) <= MOST and all(is_own(run.path, self.root) for run in found.runs):
            ids = tuple(run.id for run in found.runs)
            self._listeners.tell(Called(line("compare", {}, *ids)))
            self._listeners.tell(Compared(ids))
        return found

    def show(self, run: Run | str | None = None) -> None:
        """Draw a recorded run of this bench's folder in the panel, as if it had just run; None: show the present job
        again.
        """
        id = "" if run is None else own(run, self.root).name
        self._listeners.tell(Called(line("show", {}, *([id] if id else []))))
        self._listeners.tell(Shown(id))

    def delete(self, run: Run | str, *, force: bool = False) -> None:
        """Delete a run for good: its record, its checkpoints, its weights.

        force: also a run that is shown as "running?": its process cannot be seen from here (another machine, container or
        boot), so that only you can know that it has ended.
        RuntimeError where it runs, or where a fit that waits starts from it; ValueError where it is not among the runs of
        this bench's folder.
        """
        folder = own(run, self.root)
        with self._lock:
            needed = {id: job.id for job, ids in self._needs.items() if not job.done() for id in ids}
        delete(folder, needed, force=force)
        self._listeners.tell(Called(line("delete", {"force": True} if force else {}, folder.name)))
        self._listeners.tell(Deleted(folder.name))

    def annotate(
        self, run: Run | str, *, name: str | None = None, notes: str | None = None, tags: Iterable[str] | None = None,
        pinned: bool | None = None,
    ) -> None:  # fmt: skip
        """Give a run a name, notes, tags or a pin: `bench.annotate("0012-fit", name="baseline", tags=["sgd"], pinned=True)`.

        They stay in its folder: `run.name`, `run.notes`, `run.tags`, `run.pinned`. None does not change one; "" and [] remove
        it. `keep_runs` does not delete a pinned run.
        """
        folder = own(run, self.root)
        given = {"name": name, "notes": notes, "tags": tags, "pinned": pinned}
        annotate(folder, **given)  # type: ignore[arg-type]  # it checks what it is given
        self._listeners.tell(Called(line("annotate", {key: value for key, value in given.items() if value is not None}, folder.name)))
        self._listeners.tell(Annotated(folder.name))

    def close(self) -> None:
        """Stop running jobs, drop waiting ones, close the views. The record stays.

        A run with strategy="launch" continues; `wb.attach(run_id)` follows it. To end it, call `job.stop()` before.
        """
        self._launcher.close()
        for callback in tuple(self._closing):
            with contextlib.suppress(Exception):  # a view's mistake must not hide what ended the `with` block
                callback()
        self._closing.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- views

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event from now on, on a thread off the hot path; call the result to end that."""
        return self._listeners.add(listener)

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when the bench has closed; call the result to cancel that."""
        self._closing.append(callback)

        def forget() -> None:
            if callback in self._closing:
                self._closing.remove(callback)

        return forget

    def __repr__(self) -> str:
        changed = ", ".join(f"{name}={value!r}" for name, value in self._settings.changed().items())
        return f"<Workbench {self.summary}; {changed or 'default settings'}>"

    def _repr_mimebundle_(self, **_: Any) -> Any:
        from workbench.ui.panel import Panel

        return Panel.of(self)._repr_mimebundle_()

    # -- inside

    def _refuse_unfit(self, settings: Settings) -> None:
        """Raise an error for settings that no fit of this bench could have, above all a monitor that nothing reports."""
        try:
            refuse_no_interval(settings)
        except TaskError as error:
            raise SettingsError(str(error)) from None
        self._refuse_unreported(settings)

    def _refuse_unreported(self, settings: Settings) -> None:
        try:
            refuse_unreported(self._task, settings)
        except TaskError as error:
            raise SettingsError(str(error)) from None

    @contextlib.contextmanager
    def _idle(self) -> Iterator[None]:
        """Inside, no job begins: export opens a session on the model to read it."""
        with alone():
            self._check_idle()
            yield

    def _check_idle(self) -> None:
        if any(not job.done() for job in self.jobs):
            raise RuntimeError("a job is running or queued and uses the model: wait for it or stop() it, then export.")

    def _fits(self) -> list[AskedFit]:
        """The fits so far, each with what was set since."""
        with self._lock:
            fits = [job for job in self.jobs if job.kind == "fit"]
            return [AskedFit(job, dict(ChainMap(*reversed(self._sets[self._sets_before[job] :])))) for job in fits]

    def _submit(
        self,
        kind: str,
        settings: Settings,
        called: Mapping[str, Any],
        work: jobs.BenchWork,
        finish: Callable[[Job[T]], T],
        needs: Collection[str] = (),
        positional: Sequence[Any] = (),
    ) -> Job[T]:
        self._launcher.check_open()
        with self._lock:
            needed = {*needs, *(id for job, ids in self._needs.items() if not job.done() for id in ids)}
        data = "" if self._task.train is None else self._task.train.label
        place = new_job_folder(self.root, kind, settings, self.summary, data, len(self.jobs), needed)
        work.bind(place, self._trackers)
        job: Job[T] = Job(place.id, kind, place.folder, work, _in_the_callers_thread(finish), self._called)
        for past in self.jobs:
            past._forget_frames()
        with self._lock:
            self.jobs.append(job)
            self._needs[job], self._sets_before[job] = set(needs), len(self._sets)
        self._listeners.tell(Called(line(kind, called, *positional)))
        self._listeners.tell(StatusChanged("queued"))
        self._launcher.submit(job)
        return job

    def _called(self, job: AnyJob, method: str, arguments: Mapping[str, Any]) -> Callable[[], None]:
        """Report the line of code for a request to one of its jobs, under the job's present name."""
        name = "job" if self.job is job else f"jobs[{self.jobs.index(job)}]"
        told = partial(self._listeners.called, line(f"{name}.{method}", arguments))
        return partial(self._drop, job, told) if method == "stop" else told

    def _drop(self, job: AnyJob, told: Callable[[], None]) -> None:
        """End a stopped job at once where it waits for another one to end."""
        told()
        if job.status == "queued":
            self._launcher.drop(job)
            self._listeners.tell(StatusChanged("stopped"))


_OF_TRAINING = ("optimisation", "length", "validation", "early stopping", "averaging", "scheduled searches", "checkpoints")
"""Groups of settings that training alone uses."""
_OF_MODELS = ("batch_size", "precision", "compile")
"""Settings of these groups that every use of a model has."""
_PUBLIC = ("model", "root", "summary", "jobs")


def _is_addition(kind: type, name: str) -> bool:
    """Whether it is an attribute that a subclass of the user's may have of its own."""
    return kind is not Workbench and name not in Settings.model_fields and name not in _PUBLIC


def _why_not_set(name: str, value: Any) -> str:
    """What to write instead of `bench.name = value`."""
    text = shown(value) if isinstance(value, (bool, int, float, str, type(None))) else "…"
    if name in Settings.model_fields:
        return f"bench.{name} = {text} would change nothing: settings are changed by bench.set({name}={text})."
    if name == "settings":
        return "bench.settings cannot be set: bench.set(lr=…) replaces some of them."
    if name in inspect.signature(Workbench.__init__).parameters:
        return f"bench.{name} cannot be set: {name} is given when a bench is made, wb.Workbench(…, {name}=…). Make another bench."
    if name in _PUBLIC or isinstance(getattr(Workbench, name, None), property):
        return f"bench.{name} cannot be set: it is read-only."
    near = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=0.6)
    hint = f" Did you mean bench.set({near[0]}={text})?" if near else " Settings are changed by bench.set(…)."
    return f"bench.{name} = {text} would do nothing: a bench has no attribute of that name.{hint}"


def _named(given: Mapping[str, Any], called: Callable[..., Any], name: str = "") -> dict[str, Any]:
    """The settings among keyword arguments of a method of the bench; `SettingsError` names what was meant by any other."""
    for argument in ("callbacks", "logger"):  # a Trainer's arguments: its objects have their counterparts here
        refuse_callbacks(given.get(argument, ()), f"{argument}=")
    taken = [one for one, p in inspect.signature(called).parameters.items() if p.kind is not p.VAR_KEYWORD]
    return Settings.named(given, name or called.__name__, taken)


def _refuse_of_training(kind: str, given: Mapping[str, Any]) -> None:
    """Raise SettingsError for a setting that a job which trains nothing would not use."""
    for name, value in given.items():
        if metadata_of(name).group in _OF_TRAINING and name not in _OF_MODELS:
            raise SettingsError(f"{name}={shown(value)} has no effect on {kind}(), which trains nothing. Leave {name} out.")


def _lost(places: Sequence[str]) -> str:
    """The warning about objects that the dry run has changed."""
    named = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
    return f"the dry run on two samples changed state that it cannot restore: {named}. wb.Workbench(…, dry_run=False) leaves it out."


def _first_settings(task: Task, given: dict[str, Any]) -> Settings:
    """The settings of a new bench: what was given, else what the user's objects imply, else the defaults."""
    compiled = {} if task.compiler is None else {"compile": True}
    settings = Settings.make(**{**compiled, **task.implied, **given})
    task.refuse_unused(given)
    samples = task.train.samples if task.train is not None else None
    if "batch_size" not in given and samples and settings.batch_size > samples and not settings.drop_last:
        return settings.replace(batch_size=samples)  # no limit was set, and it is the same batch
    return settings


def _take_averaging(task: Task, avg_fn: Any, should_update: Any) -> None:
    """Give the task the user's own averaging functions."""
    for name, function, taken in (
        ("avg_fn", avg_fn, ("averaged", "current", "count")), ("should_update", should_update, ("step", "epoch"))
    ):  # fmt: skip
        if function is not None:
            if not callable(function) or not fits(function, *taken):
                wrong = "takes other arguments" if callable(function) else "cannot be called"
                raise TaskError(f"{name}={shown(function)} {wrong}: give a function, {name}({', '.join(taken)}).")
            task.averaging = replace(task.averaging, **{name: function})


def _in_the_callers_thread(finish: Callable[[Job[T]], T]) -> Callable[[Job[T]], T]:
    """Finish the job when its result is read.

    In the main thread tensors then give up memory that the buffer cache has too: no cell works on one meanwhile.
    """

    def finished(job: Job[T]) -> T:
        if threading.current_thread() is threading.main_thread():
            pool.keep_one_copy()
        return finish(job)

    return finished


def _run_of(job: Job[Run]) -> Run:
    return Run.from_events(job.events, None if job.folder is None else job.folder.path)
