"""Defines Workbench: one task, its settings, its jobs. The panel, cells and scripts all work on
it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Never, Self, Unpack, cast, overload

import torch
from torch import Tensor

from workbench.bench.arguments import (
    PUBLIC,
    refuse_of_training,
    refuse_unfit,
    refuse_unnamed,
    refuse_unreported_monitor,
    refuse_without_effect,
    settings_named,
    spec_to_predict,
    why_not_set,
)
from workbench.bench.base import BenchBase
from workbench.bench.recipe import Prepared, Recipe
from workbench.bench.study import Study, asked_before, begin, go_on, of_name
from workbench.bench.study_arguments import (
    checked_compare,
    checked_limits,
    checked_name,
    few_trials,
    hash_of,
    monitor_of,
    recorded_base,
    recorded_length,
    refuse_above,
    rungs_of,
)
from workbench.bench.study_start import TrialBench, data_of, identity_of, length_of
from workbench.engine.checkpoint.lightning_file import is_one
from workbench.engine.checkpoint.pretrained import reference
from workbench.engine.validation.watch import Watcher, is_version, name_of, uncallable
from workbench.events import Annotated, Called, Compared, Deleted, Message, Shown, Studied
from workbench.export.errors import ExportError
from workbench.export.file_format import ENDINGS, PAGES, ExportOptions, Format
from workbench.export.formats.launch_file import LaunchFile, LaunchFormat, LaunchOption
from workbench.export.inputs.task import refusal
from workbench.export.source.capture import CallSite
from workbench.launch import select_launcher
from workbench.launch.assignments import EvaluateAssignment, PredictAssignment
from workbench.launch.cell_context import in_kernel
from workbench.launch.code_line import Name, line
from workbench.launch.job import Job, metrics_of
from workbench.launch.job_folder import (
    brief_of,
    instead_of_run,
    is_own,
    own,
    run_folder,
    run_to_export,
    versions,
    weights_of,
)
from workbench.launch.joined import group
from workbench.launch.listeners import Listener
from workbench.launch.start.start_spec import StartResolver, StartSpec
from workbench.launch.study.local import devices_of
from workbench.launch.turns import alone
from workbench.launch.work import AssignmentWork, FitWork
from workbench.runs.evidence import evidence as found_by
from workbench.runs.folder.annotations import annotate
from workbench.runs.folder.delete import delete
from workbench.runs.run import Run
from workbench.runs.study.record import MOST_SEEDS, StudyHead
from workbench.runs.tables.compare import MOST, Comparison, check_count, check_no_list, compare
from workbench.runs.tables.run_list import RunList
from workbench.settings import Settings, SettingsError, lists_keywords
from workbench.settings.kwargs import OtherKwargs, SettingsKwargs
from workbench.settings.optimizers import is_named
from workbench.settings.space import OPTIMIZER, Choice, Space, refuse_text
from workbench.settings.spellings import attribute_hint
from workbench.task import ranks
from workbench.task.build import Build
from workbench.task.errors import TaskError
from workbench.task.lightning.unsupported import refuse_callbacks
from workbench.task.protocol import Task
from workbench.task.state.of_task import copy_state
from workbench.task.supervised import MakeOptimizer, Supervised
from workbench.trackers.listener import tracker_listeners
from workbench.tuners.study.budget import budget_of, checked_count
from workbench.tuners.study.sampler import refuse_unfit as refuse_unfit_sampler
from workbench.values import shown, with_values

_OF_OPTIMIZER = (OPTIMIZER, "weight_decay")
"""The settings without which no optimizer can be made."""


class Workbench(TrialBench):
    """A model and its data on the bench: find a batch size and a learning rate, fit, watch, export.

    Args:
        model: an nn.Module with `loss=` (or whose output has `.loss`), an object with
            `training_step` and `configure_optimizers` (a LightningModule, unchanged), or a
            `wb.Task`. Or a function or a class that makes one of these: its parameters can then be
            chosen, `bench.fit(width=256)`. The function may return a dict with "model" and any of
            the arguments from `train` to `should_update`.
        unnamed: give nothing here. Other positional arguments raise an error, which names the
            keywords to use.
        train, val, test: a Dataset, a DataLoader, a tuple of arrays, tensors, frames or series (x,
            y) or (x1, x2, y), a dict of these, a list of samples, ready batches as
            `wb.batches(list)`, or an object with `train_dataloader()`. None: the model object's
            own. `val` and `test` may be several sets, {"clean": a, "shifted": b} or a list; metrics
            end with the set: "val_loss/clean".
        loss: a function of (output, target) that gives one number. Parameters of a loss module are
            trained with the model.
        optimizer: the name of an optimizer, "sgd", or {"sgd": {"momentum": 0.9}}: the setting
            `optimizer`, which `set` and `fit` change. Or what makes one: `optimizer(params, lr=…,
            weight_decay=…)`. A learning rate that it has already (`partial(SGD, lr=0.5)`) is used
            until `lr` is set. A function whose first parameter is called `named_parameters` gets
            pairs of a name and a parameter. Or a dict with one for each part of the model, which
            step together: {"backbone": SGD, "head": AdamW}; a key may be a function of a
            parameter's name and the parameter, {lambda name, p: p.ndim == 2: torch.optim.Muon, "":
            AdamW}, and the key "" stands for all parameters that no other key names.
        groups: rules that give some parameters options of their own: `wb.group("head",
            lr_scale=10)`, `wb.group(lambda name, p: p.ndim < 2, weight_decay=0)`,
            `wb.layer_decay(0.75)`, "no_decay_norm_bias", or several of them in a list. They hold
            for every optimizer that the settings name, too. `wb.freeze("backbone",
            unfreeze_at_epoch=3)` lets some of them train only from an epoch on.
        batch_transform: changes each training batch on the device, and none of a validation:
            `wb.mixup(0.2)`, `wb.cutmix(1.0)`, `wb.label_smoothing(0.1)`, a function of a batch that
            returns one (torchvision's `v2.MixUp`), or several of them in a list, one after another.
        hooks: functions by the names of Lightning's hooks, {"on_after_backward": f}, which are
            called where Lightning calls them, on all ranks. A function takes by name what it needs
            of `model`, `optimizer`, `epoch`, `step`, `metrics`, and the arguments of Lightning's
            hook (`batch`, `outputs`, …). A checkpoint stores the state of an object with
            `state_dict` and `load_state_dict`.
        scheduler: makes a scheduler: `scheduler(optimizer, updates)`; it steps once per update. For
            anything else it returns a `wb.Schedule` (every so many updates or epochs), a
            ReduceLROnPlateau (after each validation), or a list of these.
        metrics: {"accuracy": f}, reported as val_accuracy. A function `f(output, y)` of a batch is
            averaged over the samples of a validation. An object with `update`, `compute` and
            `reset` (a torchmetrics.Metric, a MetricCollection) is updated with each batch and
            computed once per validation, over all ranks. `wb.over_epoch(f)` calls a function once,
            on all outputs and targets of a validation. A dict of numbers is reported by its own
            names.
        collate_fn: how samples become a batch, as for a DataLoader.
        val_collate_fn: the same for `val`, `test` and `predict`; None: `collate_fn` for all data.
        avg_fn: with `weight_averaging`, how a weight enters its average: `avg_fn(averaged, current,
            count)` returns the new average; `count` weights are in the old one.
        should_update: with `weight_averaging`, when to average: `should_update(step, epoch)`,
            instead of the settings' rule. `step` updates have been taken; it is called after each
            (EMA), or each epoch (SWA).
        listeners: functions of one event, called in a thread of this process that does not train.
            From a run with strategy="launch" they get events as long as this process follows it.
        trackers: where each fit becomes a run: "tensorboard", "wandb", "mlflow", …, several of
            them, {"mlflow": {its arguments}}, or objects of accelerate's `GeneralTracker`. A
            launched run starts trackers that are given by name itself, and logs to them after this
            process has ended; tracker objects get events as listeners do.
        root: the folder for the record of all runs.
        dry_run: try the model on two samples now, so that a mistake shows at once. What this
            changes in your own objects (generators, counters) is restored; a warning names what
            cannot be. False: no sample is read before the first job.
        settings: any field of `Settings`; `help(wb.Settings)` lists them.

    Attributes:
        model: the model object that you gave.
        root: the folder for the record of all runs.
        summary: the numbers of parameters, their bytes, the device on which jobs train, the number
            of optimizers.
        jobs: all jobs of this bench, oldest first.
        studies: the studies that this bench has begun, or let go on, oldest first.

    Raises `TaskError` or `SettingsError`, which say what is wrong and what to do.
    """

    @lists_keywords(OtherKwargs)
    def __init__(
        self,
        model: Any,
        *unnamed: Never,
        train: Any = None,
        val: Any = None,
        test: Any = None,
        loss: Callable[..., Tensor] | None = None,
        optimizer: MakeOptimizer | str | Mapping[str, Any] | None = torch.optim.AdamW,
        groups: Any = None,
        batch_transform: Any = None,
        hooks: Mapping[str, Any] | None = None,
        scheduler: Callable[[torch.optim.Optimizer, int], Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        val_collate_fn: Callable[[list[Any]], Any] | None = None,
        avg_fn: Callable[[Tensor, Tensor, Any], Tensor] | None = None,
        should_update: Callable[[int, int], bool] | None = None,
        listeners: Sequence[Listener] = (),
        trackers: Any = None,
        root: str | Path = ".workbench",
        dry_run: bool = True,
        **settings: Unpack[OtherKwargs],
    ) -> None:
        refuse_unnamed(model, unnamed)
        keywords: dict[str, Any] = dict(settings)
        if is_named(optimizer):
            keywords["optimizer"] = optimizer
        if optimizer is None or is_named(optimizer):
            optimizer = torch.optim.AdamW
        objects = {
            "model": model,
            "train": train,
            "val": val,
            "test": test,
            "loss": loss,
            "groups": groups,
            "batch_transform": batch_transform,
            "hooks": hooks,
            "scheduler": scheduler,
            "metrics": metrics,
            "optimizer": None if optimizer is torch.optim.AdamW else optimizer,
            "collate_fn": collate_fn,
            "val_collate_fn": val_collate_fn,
            "avg_fn": avg_fn,
            "should_update": should_update,
        }
        self._site = CallSite.capture(
            sys._getframe(1), [name for name, value in objects.items() if value is not None]
        )
        self._sites: dict[str, CallSite] = {}  # of each fit
        build = Build.of(model, {*inspect.signature(Workbench).parameters, "start"})
        values, keywords = ({}, keywords) if build is None else build.split(keywords)
        parameters = () if build is None else tuple(build.defaults)
        named = settings_named(keywords, type(self), "Workbench", parameters)
        start = Settings.make(**named)  # a bad value is refused before anything is tried
        joined = group.join(start)
        writes = joined is None or joined.first
        folder = Path(root).expanduser().absolute()  # a cell may change the working directory
        following = tracker_listeners(trackers, folder, model) if writes else []
        del objects["model"]
        objects["optimizer"] = optimizer
        recipe = Recipe(
            model,
            build,
            objects,
            named,
            keywords,
            joined,
            following,
            dry_run,
            values,
            built=dict(values),
            seed=start.seed,
        )
        prepared = recipe.prepare(values, recipe.seed, {})
        for warning in prepared.warnings if writes else ():
            warnings.warn(warning, stacklevel=2)
        super().__init__(prepared, recipe, folder, listeners if writes else (), following)
        self._closing: list[Callable[[], None]] = [follower.close for follower in following]
        self._watched: list[Watcher] = []

    @classmethod
    def _of(
        cls,
        recipe: Recipe,
        prepared: Prepared,
        root: Path,
        site: CallSite,
        sets: dict[str, Any],
    ) -> Self:
        """A bench made of the recipe of another one, which trains the trials of a study. sets: the
        settings that were set since the other one was made.
        """
        bench = cls.__new__(cls)
        BenchBase.__init__(bench, prepared, recipe, root, (), recipe.trackers)
        bench._site, bench._sites = site, {}
        bench._sets, bench._watched = [sets], []
        bench._closing = [follower.close for follower in recipe.trackers]
        return bench

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that the bench itself keeps; any other name raises an error, since it
        would have no effect.
        """
        begun = "_launcher" in vars(self)
        addition = (
            type(self) is not Workbench and name not in Settings.model_fields and name not in PUBLIC
        )
        replaced = callable(getattr(type(self), name, None))
        if name.startswith("_") or (not begun and name in PUBLIC) or replaced or addition:
            super().__setattr__(name, value)
        else:
            raise AttributeError(why_not_set(Workbench, name, value))

    def __getattr__(self, name: str) -> Any:
        """Raise an error with a hint, for an attribute that does not exist."""
        if name in Settings.model_fields:
            hint = f": a setting is read as bench.settings.{name}."
        else:
            hint = f".{attribute_hint('bench', name, type(self))}"
        raise AttributeError(f"a bench has no attribute {name!r}{hint}", name=name, obj=self)

    # -- jobs

    @lists_keywords(SettingsKwargs)
    def fit(self, start: str | Path = "fresh", **settings: Unpack[SettingsKwargs]) -> Job[Run]:
        """Train; `settings` hold for this job alone. Afterwards the model has the trained weights.

        Where a function makes the model, its parameters are taken too, for this job alone:
        `bench.fit(width=256)` trains a new model, which is `bench.model` from then on.

        start: "fresh" starts from the weights that the model had when the bench was made (or that
        you gave it since). "auto" continues the newest fit of the same code and settings in this
        root that has not finished, because its process was stopped, killed or failed; where there
        is none, it starts afresh. So the same script can be submitted again and again. "continue"
        continues the last fit as if it had not ended: optimizers, schedules, the position in the
        data, random numbers; if the weights were changed since, or
        there is no such fit, it starts from the present weights, with a message. The id of a run
        continues from its last checkpoint, "0012-fit@best" from its best one, "0012-fit@1200" from
        the one after 1200 updates, in this process or another. Such a fit has the settings of its
        run, except for those that you `set` since or give here; lengths count from the beginning of
        the whole run. Where it runs (`strategy`, `devices`, `launch`, …) and what is deleted
        (`keep_runs`, `save_top_k`) is never
        taken from the checkpoint: this bench decides it. A checkpoint that Lightning's Trainer
        wrote, "last.ckpt", continues as Trainer.fit(ckpt_path=…) does: its weights, optimizers,
        schedulers, epoch and step, with this bench's settings and the file's learning rate. What
        does not fit is named in a warning. With `fast_dev_run=n` everything is tried with n batches
        of each kind of data, and nothing is recorded.
        """
        values, keywords = self._split(settings)
        overrides = settings_named(keywords, self.fit, others=self._parameters)
        wanted = StartSpec.of(start)
        self._build_for_fit(wanted, values, overrides)
        origin = StartResolver(
            self.root, wanted, self._settings, overrides, self._fits(), self._code()
        )
        chosen = origin.predict_settings(
            self._start.untouched_since, all(job.done() for job in self.jobs)
        )
        refuse_unfit(self._task, chosen)
        refuse_without_effect(self._task, chosen, {*self._waiting, *overrides})
        self._task.refuse_unused(overrides)
        notes = self._notes(chosen)
        work = FitWork(self._task, chosen, self._start, origin, notes)
        work.halt = self._halt
        work.watched = tuple(self._watched)
        work.asked = tuple(overrides)
        site = self._site.until(sys._getframe(1), self)
        job = self._submit(
            "fit",
            chosen,
            {**wanted.keywords, **values, **overrides},
            work,
            self._run_of,
            origin.needs,
            fingerprint=origin.fingerprint,
        )
        self._sites[job.id] = site
        return job

    def _build_for_fit(
        self, wanted: StartSpec, values: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        """Let the function make the model of a fit: with the values given, else those set since the
        run that it continues, else those of that run, else those of the bench.
        """
        recipe, chosen = self._recipe, self._settings.replace(**settings)
        seed: int | None = recipe.seed  # the weights come from the run
        if wanted.run is not None:
            begun = [job.id for job in self.jobs]
            # what was set before a run of this bench is in that run
            jobs = begun.index(wanted.run) + 1 if wanted.run in begun else 0
            since: dict[str, Any] = {}
            for count, sets in recipe.sets:
                since |= sets if count >= jobs else {}
            folder = wanted.folder(self.root)
            values = {**recipe.of_run(folder, {*since, *values}), **since, **values}
        elif wanted.text == "continue":
            if not recipe.has({**recipe.built, **values}):
                raise TaskError(
                    f"start='continue' goes on with bench.model, which was made with other values"
                    f" than {with_values(recipe.name, values)}: leave them out, or fit('fresh')."
                )
            values = recipe.built
        else:
            values, seed = {**recipe.values, **values}, None
        self._build(values, chosen, {}, "fit with other values", seed=seed)

    @lists_keywords(SettingsKwargs)
    def validate(self, **settings: Unpack[SettingsKwargs]) -> Job[dict[str, float]]:
        """Compute the metrics of the validation data with the model's present weights."""
        return self._evaluate("validate", "val", settings)

    @lists_keywords(SettingsKwargs)
    def test(self, **settings: Unpack[SettingsKwargs]) -> Job[dict[str, float]]:
        """Compute the metrics of the test data with the model's present weights."""
        return self._evaluate("test", "test", settings)

    @lists_keywords(SettingsKwargs)
    def predict(self, data: Any = None, **settings: Unpack[SettingsKwargs]) -> Job[list[Any]]:
        """Compute the model's output for each batch of `data`, with its present weights: a list, on
        the CPU, in order.

        `torch.cat(outputs)` joins the batches of a model that returns a tensor. A stopped job
        returns the outputs so far.
        data: anything that the bench takes as data, with targets or without, or one array of
        inputs; None: the model object's own `predict_dataloader`, else the test data. It is not
        shuffled.
        """
        overrides = self._named(settings, self.predict)
        refuse_of_training("predict", overrides)
        chosen = self._settings.replace(**overrides)
        spec = None if data is None else spec_to_predict(data, self._val_collate_fn)
        if spec is not None:
            spec.refuse_unused(overrides, train=False)
        else:
            self._task.refuse_unused(overrides, "predict")
        work = AssignmentWork(PredictAssignment(self._task, chosen, spec), self._start)
        positional = () if data is None else (Name("data"),)
        return self._submit(
            "predict", chosen, overrides, work, lambda job: work.value or [], positional=positional
        )

    def _files(self) -> dict[str, str]:
        site = self._site
        return {**{piece.label: piece.source for piece in site.pieces}, **site.sources}

    def _code(self) -> str:
        """What makes this bench, as text: the code with the user's own modules, the command line
        of a script, the size of the model and of the data.
        """
        site, summary, train = self._site, self.summary, self._task.train
        texts = [piece.source for piece in site.pieces]
        texts += [text for _, text in sorted(site.sources.items())]
        if not in_kernel():  # its command line names a file of this one start
            texts += sys.argv[1:]
        texts += [summary.name, str(summary.parameters), "" if train is None else train.label]
        texts += [json.dumps(summary.build, sort_keys=True)]
        return "\0".join(texts)

    def _notes(self, settings: Settings) -> list[Message]:
        """What is said before a fit with these settings: about scripts, and once about a rate that
        was found for others.
        """
        change = self._rate_change(settings)
        said = []
        if change is not None and change.text not in self._said:
            self._said.add(change.text)
            said.append(Message(change.text, "warning"))
        return said if self._sites else [*self._export_notes(), *said]

    def _export_notes(self) -> list[Message]:
        """The message, before the first fit, that its runs have no scripts, or none that is
        stand-alone.
        """
        if self._site.problem is not None:
            return [
                Message(
                    f"bench.export cannot write scripts of this bench's runs: {self._site.problem}",
                    "info",
                )
            ]
        why = refusal(self._task)
        return (
            [
                Message(
                    "bench.export writes this bench's runs as headless scripts, which need the"
                    f" workbench: {why}",
                    "info",
                )
            ]
            if why
            else []
        )

    def _evaluate(
        self, kind: str, stage: Literal["val", "test"], settings: Mapping[str, Any]
    ) -> Job[dict[str, float]]:
        overrides = self._named(settings, getattr(self, kind))
        refuse_of_training(kind, overrides)
        chosen = self._chosen(overrides, "validate" if stage == "val" else "test")
        work = AssignmentWork(EvaluateAssignment(self._task, chosen, stage), self._start)
        return self._submit(kind, chosen, overrides, work, metrics_of)

    @lists_keywords(SettingsKwargs)
    def study(
        self,
        space: Mapping[str, Any] | Sequence[str] | None = None,
        *,
        budget: float | str | timedelta = 8,
        workers: int = 1,
        seeds: int | None = None,
        limits: Mapping[str, float] | None = None,
        name: str | None = None,
        compare: str | None = None,
        method: Any = None,
        **settings: Unpack[SettingsKwargs],
    ) -> Study:
        """Find the best settings by many fits, which worker processes train; returns at once.

        The workers go on when this process ends: `wb.Study.open(id)` follows the study again. Each
        trial starts as a fresh fit of this bench does, in the same state of weights, data and
        generators. The first one has the bench's present settings. Its runs are kept, whatever
        `keep_runs` says; at its end the checkpoints of all but the best trials are removed, and of
        those that more budget continues first. Nothing is applied: `bench.set(**study.settings)`.
        Listeners of this bench get no events of trials; trackers that are given by name do.

        space: what is searched, by name: settings, and parameters of the function that makes the
        model. (low, high) is a range, a list has the values to choose from, `...` stands for a
        range: for `lr` around what `find_lr` suggests, for `batch_size` up to what fits, for others
        around the present value. "relative" for `lr`: a multiple of the rate that `find_lr`
        suggests for each model. A list of names is a dict with `...` for each. None: what the
        budget allows, `lr` and `weight_decay` first.
        budget: so many fits of full length, or a time ("2h"); searches are part of it.
        workers: how many processes train, each on an equal share of the GPUs. `workbench study work
        ID` adds one, on any machine that sees the folder; 0: only those train.
        seeds: with how many other seeds the best trial and the first one are trained for the
        verdict; None: what the budget allows.
        limits: {"parameters": 200_000} leaves out larger models.
        name: part of its id. A study of this name with the same code, data, space and settings is
        continued; with others it is a new study, and a warning says what differs. Of the data the
        tensors, arrays and lists in memory are compared (64 MB of each, evenly spread), and eight
        samples of each set.
        compare: the name of a setting in the space, of which each value is tuned with an equal
        share of the budget: "optimizer". `study.compared` has the best of each, and the verdict
        compares these.
        method: a sampler of Optuna that proposes trials, `optuna.samplers.GPSampler()`, which must
        be installed. It sees the earlier trials, and all trials are whole fits.
        settings: of all trials: `max_epochs=5`. Parameters of the function too. `monitor` is the
        metric whose last value judges a trial; None: "val_loss".

        Raises SettingsError, TaskError or PackageError, before anything starts.
        """
        values, keywords = self._split(settings)
        overrides = settings_named(keywords, self.study, others=self._parameters)
        if self._recipe.joined is not None:
            raise TaskError(
                "study: this process is one of several ranks: make the study in a process of its"
                " own, and let `workbench study work` be started on each device."
            )
        chosen = self._chosen(overrides)
        if self._task.val is None or not chosen.limit_val_batches:
            raise TaskError(
                "study: trials are compared by a validation: make the bench with val=…."
            )
        refuse_unfit(self._task, chosen)
        metric, mode = monitor_of(chosen)
        # it judges the trials, whether or not checkpoints follow it
        judging = chosen.replace(monitor=metric, monitor_mode=mode, save_top_k=1)
        refuse_unreported_monitor(self._task, judging)
        parameters = {} if self._recipe.build is None else self._recipe.build.defaults
        present_values = {**parameters, **self._recipe.values}
        for parameter, value in values.items():
            refuse_text("study", parameter, value, present_values.get(parameter))
        built = {**present_values, **values}
        budgeted = budget_of(budget, "study")
        fixed = {**values, **overrides}
        present = chosen
        usual = isinstance(self._task, Supervised) and self._task.optimizer_factory.make
        if chosen.optimizer is None and usual is torch.optim.AdamW:
            present = chosen.replace(optimizer="adamw")  # the same one, by its name
        searched = Space.parse(space, present, built, fits=budgeted.get("fits"), fixed=fixed)
        self._refuse_optimizers(searched, chosen)
        fits = budgeted.get("fits")
        pairs = None if seeds is None else checked_count(seeds, "seeds", "study", most=MOST_SEEDS)
        comparing = checked_compare(compare, searched, fits, pairs)
        if method is not None:
            if comparing:
                raise SettingsError(
                    f"study: compare={compare!r} and method={shown(method)}: the workbench proposes"
                    " the trials of values that are compared: leave one out."
                )
            refuse_unfit_sampler(method, searched, lower_is_better=mode == "min")
        if fits is not None and (doubt := searched.too_many(fits, comparing)):
            warnings.warn(doubt, stacklevel=2)
        limits_by_name = checked_limits(limits)
        if self._recipe.has(values):
            refuse_above(limits_by_name, self.summary.parameters)
        count = checked_count(workers, "workers", "study", least=0)
        epochs_or_updates = recorded_length(chosen)
        length = length_of(self, chosen)

        def rungs(fits: float) -> tuple[float, ...]:
            if method is not None:
                return (1.0,)
            return rungs_of(length.updates, length.check, {"fits": fits})

        if fits is not None and (doubt := few_trials(searched, fits, rungs, pairs, comparing)):
            warnings.warn(doubt, stacklevel=2)
        head = StudyHead(
            name=checked_name(name),
            monitor=metric,
            mode=mode,
            budget=budgeted,
            space=searched.to_record(),
            length=epochs_or_updates,
            rungs=rungs(budgeted.get("fits", math.inf)),
            base=recorded_base(chosen, built),
            seeds=pairs,
            compare=comparing,
            method="" if method is None else identity_of(method),
            limits=limits_by_name,
            seed=chosen.seed,
            fresh_weights=self._recipe.build is not None,
            code=hash_of(self._code()),
            data=data_of(self)[:1000] if name else "",
            versions={library: str(version) for library, version in versions().items()},
            created=time.time(),
        )
        same, differs = of_name(self.root, head) if name else (None, "")
        alike = "" if name else asked_before(self.root, head)
        if same is not None:
            return self._follow(go_on(Study(same, count, devices_of(chosen, count)), budgeted))
        study = begin(self, self._site, head, values, overrides, count, method)
        study._notes = tuple(message.text for message in self._export_notes())
        if differs:
            warnings.warn(f"{differs}: this is a new study, {study.id}.", stacklevel=2)
        if alike:
            warnings.warn(f"{alike} {study.id} is a new study.", stacklevel=2)
        named = {
            "space": space,
            "budget": budget,
            "seeds": seeds,
            "limits": limits,
            "name": name,
            "compare": compare,
            "method": None if method is None else Name("sampler"),
        }
        called = {key: value for key, value in named.items() if value is not None}
        called |= {"workers": workers} if workers != 1 else {}
        self._listeners.notify(Called(line("study", {**called, **values, **overrides})))
        return self._follow(study)

    def _follow(self, study: Study) -> Study:
        """Let views of this bench show a study."""
        # one that is let go on is another object, in place of the one before
        self.studies[:] = [*(before for before in self.studies if before.id != study.id), study]
        self._listeners.notify(Studied(study.id))
        return study

    def _refuse_optimizers(self, space: Space, chosen: Settings) -> None:
        """Raise SettingsError for an optimizer of a space that cannot be made."""
        if OPTIMIZER not in space.names:
            return
        for branch in cast("Choice", space.dimension(OPTIMIZER)).choices:
            only = space.only(OPTIMIZER, branch)
            for unit in (0.0, 0.5, 1.0):
                values = only.values([unit] * len(only.dimensions))
                beside = {name: values[name] for name in _OF_OPTIMIZER if name in values}
                self._task.refuse_optimizer(chosen.replace(**beside))

    # -- recorded runs

    @property
    def runs(self) -> RunList:
        """The fits recorded under `root`, oldest first; it prints as a table.

        `bench.runs[-1]` is the newest, `bench.runs[2:5]` three of them, `bench.runs["0012-fit"]` or
        `bench.runs["12"]` the one with this id. The end of each record is read now, the rest when
        it is needed.
        """
        return RunList.of(self.root, reference(self.model))

    def load(self, run: Run | str | Path, which: str | int = "last") -> None:
        """Give the model the weights of a run, of a file with weights ("train.start.safetensors"),
        or of a checkpoint that Lightning's Trainer wrote ("last.ckpt"); later fits start from them.

        which: of a run, "last", "best", "start" (those at its beginning), or those after this many
        updates.
        """
        self._check_idle("load")
        if isinstance(run, str | Path) and (
            is_one(Path(run)) or Path(run).suffix == ".safetensors"
        ):
            if which != "last":
                raise TaskError(
                    f"load({str(run)!r}, {which!r}): the file has one set of weights: leave out"
                    f" which={which!r}."
                )
            self._start.load(Path(run).expanduser())
            self._listeners.notify(Called(line("load", {}, str(run))))
            return
        other = instead_of_run(run) if isinstance(run, Path) else ""
        if other:
            raise FileNotFoundError(f"load({str(run)!r}): it is {other}.")
        if not isinstance(run, Run | str):
            raise TypeError(
                f"load({shown(run)}): give a run (bench.runs[-1], say), its id, or the path of a"
                " file of weights (.safetensors) or of a checkpoint of Lightning (.ckpt)."
            )
        id, folder = (run, None) if isinstance(run, str) else (run.id, run.folder)
        path = folder or run_folder(self.root, id)
        weights = weights_of(path, which)
        chosen = {**self._recipe.values, **self._recipe.of_run(path)}
        self._build(chosen, self._settings, {}, "load", seed=self._recipe.seed)
        self._recipe.values = chosen
        self._recipe.sets.clear()  # they hold no longer
        self._start.load(weights)
        self._listeners.notify(Called(line("load", {}, id, which)))

    def export(
        self,
        path: str | Path,
        run: Run | str | None = None,
        *,
        evidence: bool = False,
        format: Format | None = None,
        data: Literal["beside"] | None = None,
        base: Literal["nn.Module"] | None = None,
        resume: bool = False,
        checks: bool = False,
        log_file: bool = False,
        tracker: bool = False,
        verify: bool = True,
    ) -> Path:
        """Write a script that repeats a run (None: the last finished fit), with its starting
        weights beside it. A path that ends in .html gets the run as one page instead: the panel's
        plots, settings and results, for a browser without a server; no other argument goes with it.

        torch and accelerate are all it needs beyond what your own code imports. `ExportError` names
        what cannot be resolved. A warning names a statement that the script does not have, and what
        the
        verification found to differ. evidence: the comment at its top says which searches found
        its settings, and the reason that each search gave.

        format: "script", "notebook", "lightning" (a script with a LightningModule and a Trainer),
        "workbench" (a headless script, in which the workbench trains) or "settings" (YAML for
        `wb.Settings.load`). None: what the ending of `path`
        says: .ipynb is a notebook, .yaml are settings; .py is a headless script where a stand-alone
        one is not possible, with a warning that says why.

        data: "beside" saves the data of train and val beside it, up to 100 MB, and the script reads
        them instead of making them.

        base: "nn.Module" lets a LightningModule inherit from nn.Module, where its code allows it,
        so that the script needs no Lightning.

        A stand-alone script is short. What it does besides the training is there where you ask for
        it. resume: it writes a checkpoint after each epoch, and continues from one (`--resume
        FILE`). checks: it says where its weights or batches are not the run's. log_file: it has
        `--log_file FILE`, for a line of JSON for each update and validation. tracker: it has
        `--tracker NAME`, for one of accelerate's trackers.

        verify: run the written script or notebook for its first updates, in an empty folder with
        its own files alone, and compare its losses with the run's. It takes 5 to 10 seconds. The
        result is printed; a difference is a warning with its possible causes. False: leave it out.
        """
        file = Path(path).expanduser()
        if file.suffix.lower() not in PAGES:
            self._check_idle("export")
        if not self._writes:
            return file
        chosen = run_to_export(run, self.root, self.jobs)
        arguments = {
            "run": None if run is None else chosen.id,
            "evidence": evidence,
            "format": format,
            "data": data,
            "base": base,
            "resume": resume,
            "checks": checks,
            "log_file": log_file,
            "tracker": tracker,
        }
        said: dict[str, Any] = {name: value for name, value in arguments.items() if value}
        if not verify:
            said["verify"] = False
        if file.suffix.lower() in PAGES and (wrong := said.keys() - {"run", "verify"}):
            raise ExportError(
                f"{file.name} is a page with the run's plots, and not a script: leave out"
                f" {', '.join(sorted(wrong))}."
            )
        self._listeners.notify(Called(line("export", said, str(path))))
        if file.suffix.lower() in PAGES:
            from workbench.ui.page import write_run

            return write_run(file, chosen)
        sentences = tuple(found_by(chosen, self.root)) if evidence else ()
        options = ExportOptions(sentences, format, data, base, resume, checks, log_file, tracker)
        self._write_script(file, chosen, options, verify)
        return file

    def launch_script(
        self,
        path: str | Path,
        run: Run | str | None = None,
        *,
        nodes: int = 1,
        devices: int | None = None,
        format: LaunchFormat | None = None,
        overwrite: bool = False,
        verify: bool = True,
        **options: LaunchOption,
    ) -> Path:
        """Write a file that starts the training of a run (None: the last finished fit) on a
        cluster, and beside it the script that it starts: "job.sbatch" and "job.py".

        The script has your code and the workbench, as `export(format="workbench")` writes it. It
        trains with the run's settings, from the run's first weights, on all processes together, and
        records the training under this bench's `root`. Its `fit("auto")` continues where the job
        was stopped. What you write after the file's name goes to the script:
        `sbatch job.sbatch --max_epochs 90`.

        nodes: how many hosts. devices: how many processes each of them has, with a GPU each where
        the run used GPUs; None: as many as the run had on its host.

        format: "slurm" (the endings .sbatch and .slurm) is submitted by `sbatch job.sbatch`. Before
        its time limit it writes a checkpoint and submits itself again. "torchrun" (the ending .sh)
        is a shell script for hosts without a scheduler: `sh job.sh 0` on the first one,
        `sh job.sh 1` on the second.

        options: further options of sbatch or torchrun by their names, as in `time="12:00:00"`,
        `partition="gpu"`, `gpus_per_node=4`; for several hosts without a scheduler
        `rdzv_endpoint="host0:29500"`, the address of the first. True is an option without a value;
        None and False leave out one that would be there (`requeue=False`).

        overwrite: replace files of these names. verify: as for `export`. `ExportError` names what
        cannot be written.
        """
        self._check_idle("export")
        file = Path(path).expanduser()
        if not self._writes:
            return file
        chosen = run_to_export(run, self.root, self.jobs)
        here = select_launcher.processes(chosen.settings)
        launch = LaunchFile(file, format, nodes, devices, here, chosen.settings, options)
        launch.check_free(overwrite=overwrite)
        arguments: dict[str, Any] = {"run": None if run is None else chosen.id, "nodes": nodes}
        arguments |= {"devices": devices, "format": format, **options}
        said = {name: value for name, value in arguments.items() if value is not None}
        self._listeners.notify(Called(line("launch_script", said, str(path))))
        plan = ExportOptions(format="workbench", job_root=self.root)
        self._write_script(launch.script, chosen, plan, verify)
        launch.write()
        text = f"{file}: start it with {launch.usage}."
        self._listeners.notify(Message(text, "info"))
        if threading.current_thread() is threading.main_thread():
            print(text)
        return file

    def _write_script(self, file: Path, run: Run, options: ExportOptions, verify: bool) -> None:
        """Export a run, verify the script where that is asked for, and tell what is to be known."""
        from workbench.export.script import export
        from workbench.export.verification.verify import verify as verified

        with self._idle():
            exported = export(file, run, self._site_of(run), self._task_of(run), options)
        notes = exported.notes
        if verify and exported.to_verify is not None:
            headless = exported.format == "workbench"
            verification = verified(file, exported.to_verify(), run, notes, headless=headless)
            notes = verification.notes
            sentence = f"{file}: {verification.text}"
            self._listeners.notify(Message(sentence, verification.level))
            if verification.repeats is False:
                warnings.warn(sentence, stacklevel=3)
            elif threading.current_thread() is threading.main_thread():  # else the panel shows it
                print(sentence)
        if exported.headless:
            why = f"it is a headless script, which needs the workbench: {exported.headless}"
            notes = (why, *notes)
        for note in notes:  # a panel has no cell below which a warning would stand
            self._listeners.notify(Message(f"{file}: {note}", "warning"))
            warnings.warn(f"{file}: {note}", stacklevel=3)

    def script(
        self,
        run: Run | str | None = None,
        path: str | Path | None = None,
        *,
        evidence: bool = False,
        format: Format | None = None,
        data: Literal["beside"] | None = None,
        base: Literal["nn.Module"] | None = None,
        resume: bool = False,
        checks: bool = False,
        log_file: bool = False,
        tracker: bool = False,
    ) -> str:
        """The text that `export` would write into `path` (None: train.py, or as the format ends);
        nothing is written.

        It raises the errors of `export`.
        """
        from workbench.export.script import script

        self._check_idle("export")
        chosen = run_to_export(run, self.root, self.jobs)
        file = Path(path or f"train{ENDINGS.get(format or 'script', '.py')}").expanduser()
        with self._idle():
            sentences = tuple(found_by(chosen, self.root)) if evidence else ()
            options = ExportOptions(
                sentences, format, data, base, resume, checks, log_file, tracker
            )
            return script(file, chosen, self._site_of(chosen), self._task_of(chosen), options)

    @overload
    def compare(self) -> None: ...
    @overload
    def compare(self, first: Run | str, /, *others: Run | str) -> Comparison: ...
    @overload
    def compare(self, *runs: Run | str) -> Comparison | None: ...

    def compare(self, *runs: Run | str) -> Comparison | None:
        """Compare two or more fits: `bench.compare("0011-fit", "0012-fit").plot()`.

        Up to five that are recorded under this bench's root are shown in the panel as well.
        `bench.compare()` closes the comparison in the panel.
        """
        if not runs:
            self._listeners.notify(Called(line("compare", {})))
            self._listeners.notify(Compared(()))
            return None
        check_no_list(runs[0], "bench")
        check_count(len(runs))
        comparison = compare(*(brief_of(run, self.root) for run in runs))
        if len(comparison.runs) <= MOST and all(
            is_own(run.path, self.root) for run in comparison.runs
        ):
            ids = tuple(run.id for run in comparison.runs)
            self._listeners.notify(Called(line("compare", {}, *ids)))
            self._listeners.notify(Compared(ids))
        return comparison

    def show(self, run: Run | str | None = None) -> None:
        """Draw a recorded run of this bench's folder in the panel, as if it had just run; None:
        show the present job again.
        """
        id = "" if run is None else own(run, self.root).name
        self._listeners.notify(Called(line("show", {}, *([id] if id else []))))
        self._listeners.notify(Shown(id))

    def delete(self, run: Run | str, *, force: bool = False) -> None:
        """Delete a run for good: its record, its checkpoints, its weights.

        force: also a run that is shown as "running?": its process cannot be seen from here (another
        machine, container or boot), so that only you can know that it has ended. RuntimeError where
        it runs, or where a fit that waits starts from it; ValueError where it is not among the runs
        of this bench's folder.
        """
        if not self._writes:
            return
        folder = own(run, self.root)
        with self._lock:
            needed = self._needed()
        delete(folder, needed, force=force)
        self._listeners.notify(
            Called(line("delete", {"force": True} if force else {}, folder.name))
        )
        self._listeners.notify(Deleted(folder.name))

    def annotate(
        self,
        run: Run | str,
        *,
        name: str | None = None,
        notes: str | None = None,
        tags: Iterable[str] | None = None,
        pinned: bool | None = None,
    ) -> None:
        """Give a run a name, notes, tags or a pin: `bench.annotate("0012-fit", name="baseline",
        tags=["sgd"], pinned=True)`.

        They stay in its folder: `run.name`, `run.notes`, `run.tags`, `run.pinned`. None does not
        change one; "" and [] remove it. `keep_runs` does not delete a pinned run.
        """
        if not self._writes:
            return
        folder = own(run, self.root)
        changes = {"name": name, "notes": notes, "tags": tags, "pinned": pinned}
        annotate(folder, **changes)  # type: ignore[arg-type]  # it checks what it is given
        self._listeners.notify(
            Called(
                line(
                    "annotate",
                    {key: value for key, value in changes.items() if value is not None},
                    folder.name,
                )
            )
        )
        self._listeners.notify(Annotated(folder.name))

    def close(self) -> None:
        """Stop running jobs, drop waiting ones, close the views. The record stays.

        A run with strategy="launch" continues; `wb.attach(run_id)` follows it. To end it, call
        `job.stop()` before.
        """
        self._launcher.close()
        for callback in tuple(self._closing):
            with contextlib.suppress(
                Exception
            ):  # a view's mistake must not hide what ended the `with` block
                callback()
        self._closing.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- views

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event from now on, in a thread that does not train; call
        the returned function to end that.
        """
        return self._listeners.add(listener)

    def watch(self, function: Watcher) -> Callable[[], None]:
        """Look at predictions while fits train: `function(batch, outputs)` is called with the first
        batch of each validation, from the next fit on. What it returns is shown in the panel under
        Samples and kept in the run: `run.samples`. Call what this returns to end it.

        It gets copies on the CPU of the batch and of what the model returned (of a LightningModule:
        its `validation_step`); a tensor of more than 256 MB as it is. It returns an image (a tensor
        or array CHW, HWC, NCHW or NHWC, or one of PIL), a text, a figure of matplotlib or plotly,
        or a list or dict of these, whose keys become labels. The run has the same losses with and
        without it. An error in it becomes one message, and the run continues. Of several ranks only
        the first one calls it; with FSDP it must not call the model.

        A function of the same module and name takes the place of the earlier one, so that a cell of
        a notebook can run again. Lambdas, methods and functions made by others are kept beside one
        another.
        """
        refuse_callbacks(function, "watch")
        if not callable(function) or isinstance(function, (type, torch.nn.Module)):
            raise TaskError(
                f"watch({shown(function)}): give a function of a batch and the model's outputs, def"
                " f(batch, outputs), that returns images or texts. Gradients and weights are"
                " measured without it (track_grad_norm, track_update_ratio)."
            )
        why = uncallable(function)
        if why:
            raise TaskError(
                f"watch: {name_of(function)}{why} cannot be called with a batch and the model's"
                " outputs: def f(batch, outputs)."
            )
        for index, watcher in enumerate(self._watched):
            if is_version(function, watcher):
                self._watched[index] = function
                break
        else:
            self._watched.append(function)
        self._listeners.notify(Called(line("watch", {}, Name(name_of(function)))))

        def end() -> None:
            if function in self._watched:
                self._watched.remove(function)

        return end

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once when the bench has closed; call the returned function to cancel
        that.
        """
        self._closing.append(callback)

        def forget() -> None:
            if callback in self._closing:
                self._closing.remove(callback)

        return forget

    def __repr__(self) -> str:
        changed = ", ".join(f"{name}={value!r}" for name, value in self._settings.changed().items())
        return f"<Workbench {self.summary}; {changed or 'default settings'}>"

    def _repr_mimebundle_(self, **_: Any) -> Any:
        return self._panel()._repr_mimebundle_()

    def _display_(self) -> Any:
        """Return the panel for marimo to display."""
        return self._panel()._display_()

    @functools.cached_property
    def controls(self) -> Any:
        """ipywidgets for its settings, to show among other widgets of a notebook:
        `bench.controls["lr"]` is a number box, others are a text, a choice or a tick. A change in
        one changes the setting, and the other way. A refused value stays in its box, with the
        reason in its description.

        SettingsError: there is no setting of that name. ImportError: ipywidgets is not installed.
        """
        from workbench.ui.controls.setting_widgets import SettingWidgets

        return SettingWidgets(self)

    def _panel(self) -> Any:
        from workbench.ui.panel import Panel

        return Panel.of(self)

    # -- inside

    @contextlib.contextmanager
    def _idle(self) -> Iterator[None]:
        """Context manager in which no job begins, while export opens a session on the model to
        read it, in this process alone. The user's objects have their state again afterwards.
        """
        with alone(), ranks.alone():
            self._check_idle("export")
            state = copy_state(self._task)
            try:
                yield
            finally:
                state.put()

    def _site_of(self, run: Run) -> CallSite:
        """Where a fit was called; for a run of another root, which may have the same id, where
        the bench was made.
        """
        is_of_bench = run.folder is None or is_own(run.folder, self.root)
        site = self._sites.get(run.id, self._site) if is_of_bench else self._site
        return replace(site, build=self._recipe.call_of(run.folder))

    def _task_of(self, run: Run) -> Task:
        """The task of a run: the bench's, or one with the model that a function makes with the
        run's values.
        """
        recipe = self._recipe
        values = {} if run.folder is None else recipe.of_run(run.folder)
        if recipe.build is None or recipe.has(values):
            return self._task
        return recipe.prepare(values, recipe.seed, self._all_sets()).task

    def _run_of(self, job: Job[Run]) -> Run:
        return Run.from_events(job.events, job._run_path, reference(self.model))
