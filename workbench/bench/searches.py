"""Defines Searches: the methods of a bench that search for settings, `find_lr` to `tune`, and
`profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

from workbench.bench.transfer import Transfer
from workbench.events import Event
from workbench.launch.assignments import (
    FindLRAssignment,
    FindSettingsAssignment,
    ProfileAssignment,
)
from workbench.launch.code_line import Name, differing
from workbench.launch.job import Job
from workbench.launch.start.start_spec import StartSpec
from workbench.launch.work import AssignmentWork, FindBatchSizeWork, StartWeights, TuneWork
from workbench.settings import SettingsError, lists_keywords
from workbench.settings.kwargs import OtherKwargs, SettingsKwargs
from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest, BatchSizes
from workbench.tuners.clip_search import ClipRequest, ClipSearch
from workbench.tuners.decay_search import WeightDecayRequest, WeightDecaySearch
from workbench.tuners.learning_rate.lr_finder import LRCurve, LRRequest
from workbench.tuners.plan import Plan, SettingsRequest
from workbench.tuners.profiling.profile import Profile, ProfileRequest
from workbench.tuners.recipe_search import RecipeRequest, RecipeSearch
from workbench.tuners.speed_search import PrecisionRequest, SpeedSearch, WorkersRequest
from workbench.values import shown

T = TypeVar("T")
TUNED = ("num_workers", "batch_size", "lr", "clip_val")
"""The searches of `tune()`, in their order."""


class Searches(Transfer):
    """The searches of a bench. None changes a setting, except for `tune(apply=True)`."""

    @lists_keywords(OtherKwargs)
    def find_lr(
        self,
        *,
        min_lr: float = 1e-5,
        max_lr: float = 10.0,
        num_training: int = 100,
        mode: str = "exponential",
        early_stop_threshold: float | None = 4.0,
        optimizer: int | str | Mapping[str, Any] | Callable[..., Any] | None = 0,
        group: int | str | None = None,
        race: bool = False,
        race_updates: int = 300,
        start: str | Path = "fresh",
        **settings: Unpack[OtherKwargs],
    ) -> Job[LRCurve]:
        """Sweep the learning rate from `min_lr` to `max_lr` over `num_training` updates; the model
        and the settings stay as they are.

        mode: "exponential" or "linear". early_stop_threshold: the sweep ends where the smoothed
        loss is this many times its best; None: never. The suggestion is not applied:
        `bench.set(lr=curve.suggestion)` does that. start: the weights it sweeps from, as for `fit`;
        "continue": the model's present ones. optimizer: of several, the one (counted from 0) whose
        rate is swept and whose loss is read; the others step at their own rates. The setting `lr`
        is the first one's and changes all of them. Or the setting: the name of an optimizer.
        group: the name of a rule of `groups=`, or the number of a parameter group, whose rate is
        swept with the others at theirs: a head on a pretrained body, say.
        race: losses on held-out batches decide: four rates around the first suggestion train for
        `race_updates` updates in all, and the present rate for a fourth of that.
        """
        keywords: dict[str, Any] = dict(settings)
        if not isinstance(optimizer, int | float):
            keywords["optimizer"], optimizer = optimizer, 0
        overrides = self._named(keywords, self.find_lr)
        request = LRRequest(
            min_lr,
            max_lr,
            num_training,
            mode,
            early_stop_threshold,
            optimizer,
            group,
            race,
            race_updates,
        )
        chosen, wanted = self._chosen(overrides), StartSpec.of(start)
        wanted.weights(self.root)  # a start that does not exist raises an error now
        self._refuse_other_model(wanted)
        work = AssignmentWork(
            FindLRAssignment(self._task, chosen, request),
            StartWeights(self._task, self._start, wanted, self.root),
        )
        called = {**differing(request, LRRequest()), **wanted.keywords, **overrides}
        return self._submit(
            "find_lr",
            chosen,
            called,
            work,
            lambda job: LRCurve.from_events(job.events),
            wanted.needs,
        )

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
        min_updates_per_epoch: int = 10,
        longest: Callable[[Any], Any] | None = None,
        **settings: Unpack[SettingsKwargs],
    ) -> Job[BatchSizes]:
        """Try batch sizes with real updates until one does not fit, or all data is one batch.

        mode: "power" doubles; "binsearch" goes to the exact maximum, by the memory of the sizes
        tried, and takes
        `headroom` off. The recommended size reaches a loss in nearly the least time, by its speed
        and the gradient noise scale; the present size stays unless another saves 10% of it.
        min_updates_per_epoch: no size is recommended that leaves fewer; "power" skips such sizes
        where all data fits into one batch. The trials of "power", and then the comparison of
        speeds, take no longer than the planned training, or 2 seconds if that is more.
        max_memory: bytes that a trial on CPU may take (None: what is free). The result's
        `noise_scale` is the mean gradient noise scale in the first fifth of the training, or in a
        shorter stretch of a long one, measured after the trials on one device. The size is not
        applied: `bench.set(batch_size=…)` does that.
        Several devices try a size together: sizes and max_memory are per device, samples/s are the
        sum over all devices.
        method: "validate", "test" or "predict" try batches of that stage instead of updates.
        keep_effective: keep the samples per update, batch_size x accumulate_grad_batches, as they
        are now: the result's `accumulate_grad_batches` is the number of batches of `best` that make
        one update. Otherwise an update has more samples or fewer, and may need another learning
        rate: `BatchSizes.lr` rescales one.
        longest: the length of a sample, such as `lambda sample: len(sample[0])`, where samples
        differ: trials take the longest ones, so that a size which passes never runs out of memory
        later. A sampler with `lengths` needs none.
        """
        overrides = self._named(settings, self.find_batch_size)
        request = BatchSizeRequest(
            mode,
            init_val,
            steps_per_trial,
            max_trials,
            max_val,
            headroom,
            max_memory,
            method,
            keep_effective,
            min_updates_per_epoch,
            longest is not None,
        )
        if longest is not None and not callable(longest):
            raise SettingsError(
                f"longest={shown(longest)}: give a function of one sample that returns its length."
            )
        chosen = self._chosen(overrides) if method == "fit" else self._settings.replace(**overrides)
        work = FindBatchSizeWork(self._task, chosen, request, longest)
        called = {
            **differing(request, BatchSizeRequest()),
            **({} if longest is None else {"longest": Name("longest")}),
            **overrides,
        }
        return self._submit(
            "find_batch_size", chosen, called, work, lambda job: BatchSizes.from_events(job.events)
        )

    @lists_keywords(SettingsKwargs)
    def find_num_workers(
        self,
        *,
        max_val: int | None = None,
        seconds_per_trial: float = 2.0,
        **settings: Unpack[SettingsKwargs],
    ) -> Job[SpeedSearch]:
        """Try 0, 1, 2, 4, … loader workers with real updates, until training waits no longer or is
        not faster.

        max_val: the most to try; None: one per core. The result's `best` is the smallest number
        that is nearly as fast as the
        fastest. It is not applied: `bench.set(**found.best)` does that.
        """
        overrides = self._named(settings, self.find_num_workers)
        request = WorkersRequest(max_val, seconds_per_trial)
        return self._find_settings(
            "find_num_workers",
            request,
            differing(request, WorkersRequest()),
            overrides,
            SpeedSearch.from_events,
        )

    @lists_keywords(SettingsKwargs)
    def find_precision(
        self,
        *,
        try_compile: bool = False,
        updates: int = 50,
        tolerance: float = 0.05,
        **settings: Unpack[SettingsKwargs],
    ) -> Job[SpeedSearch]:
        """Try float32, bf16 and float16 mixed precision with `updates` updates each: speed, and
        whether losses agree.

        try_compile: the best of them with `torch.compile` as well, which takes a minute or more.
        tolerance: the share by which the mean of the last ten losses may differ from float32's. The
        result's `best` is the fastest that agrees. It is not
        applied: `bench.set(**found.best)` does that.
        """
        overrides = self._named(settings, self.find_precision)
        request = PrecisionRequest(try_compile, updates, tolerance)
        return self._find_settings(
            "find_precision",
            request,
            differing(request, PrecisionRequest()),
            overrides,
            SpeedSearch.from_events,
        )

    @lists_keywords(SettingsKwargs)
    def find_clip_val(
        self, *, updates: int = 200, **settings: Unpack[SettingsKwargs]
    ) -> Job[ClipSearch]:
        """Take `updates` updates without clipping, and suggest a clip value from their gradient
        norms.

        The model and the settings stay as they are. If a norm stands out, the value is tried:
        training with it is compared with training at the present setting, as many updates each,
        by the loss on held-out batches. The result's `best` is empty unless that is clearly lower;
        `suggestion` is the value that a tenth of the norms exceed, and `share_at(1.0)` is the share
        that a clip value of 1.0 would cut. After a fit, `run.clip_suggestion` and
        `run.plot("clip")` show the same for the whole run.
        """
        overrides = self._named(settings, self.find_clip_val)
        request = ClipRequest(updates)
        return self._find_settings(
            "find_clip_val",
            request,
            differing(request, ClipRequest()),
            overrides,
            ClipSearch.from_events,
        )

    @lists_keywords(SettingsKwargs)
    def find_weight_decay(
        self, *, updates: int = 800, start: str | Path = "fresh", **settings: Unpack[SettingsKwargs]
    ) -> Job[WeightDecaySearch]:
        """Train with the present weight decay and three others, `updates` updates in all; compare
        the losses on held-out batches.

        The result's `suggestion` is None, and `best` empty, where no value is clearly better than
        the present one; less decay needs more evidence than more. Each trial stands for the whole
        run: its schedule is as short as the trial, and its decay is larger by the square root of
        (updates of the run / updates of the trial). Find the learning rate first: the best decay
        depends on it. `tune()` leaves this search out, since it finds something only where a model
        overfits early. start: the weights that it trains from, as for `find_lr`. The model and the
        settings stay as they are.
        """
        overrides = self._named(settings, self.find_weight_decay)
        request, wanted = WeightDecayRequest(updates), StartSpec.of(start)
        wanted.weights(self.root)  # a start that does not exist raises an error now
        self._refuse_other_model(wanted)
        called = {**differing(request, WeightDecayRequest()), **wanted.keywords}
        return self._find_settings(
            "find_weight_decay", request, called, overrides, WeightDecaySearch.from_events, wanted
        )

    @lists_keywords(SettingsKwargs)
    def find_recipe(
        self,
        *,
        updates: int | None = None,
        recipes: Sequence[Mapping[str, Any]] | None = None,
        start: str | Path = "fresh",
        **settings: Unpack[SettingsKwargs],
    ) -> Job[RecipeSearch]:
        """Race optimizers, each with a rate and a schedule, against the present settings, by the
        losses on held-out batches.

        All train for a short stretch; then the two best and the present settings train for a longer
        one. The result's `best` has the settings of a recipe that is clearly better than the
        present ones, for `bench.set(**found.best)`; it is empty where none is. `doubt` says what
        speaks against it.
        updates: in all; None: 1.5 times those of the run, from 200 to 6000. recipes: those to try,
        each as settings by name, {"optimizer": "muon", "lr": 1e-2, "lr_schedule": "cosine"}; None:
        schedule-free AdamW, AdamW and Muon, SGD with momentum in place of the first where the model
        has BatchNorm, and in a long run the present optimizer at the rate of a sweep. Runs of up to
        1,000 updates try half of the batch size: `best` then has a `max_steps` for as many samples,
        and the fit may take longer. start: the weights that all train from, as for `find_lr`. The
        model and the settings stay as they are. Source: successive halving (Jamieson & Talwalkar
        2016).
        """
        overrides = self._named(settings, self.find_recipe)
        if recipes is not None and (isinstance(recipes, Mapping | str) or not recipes):
            raise SettingsError(
                f"recipes={shown(recipes)}: give a list with the settings of each,"
                " [{'optimizer': 'muon', 'lr': 1e-2}, …]."
            )
        request = RecipeRequest(updates, None if recipes is None else tuple(recipes))
        wanted = StartSpec.of(start)
        wanted.weights(self.root)  # a start that does not exist raises an error now
        self._refuse_other_model(wanted)
        for values in request.recipes or ({"optimizer": "adamw"},):
            try:
                self._task.refuse_optimizer(self._settings.replace(**{**overrides, **values}))
            except SettingsError as error:
                if request.recipes is not None:
                    raise
                raise SettingsError(
                    f"find_recipe compares optimizers, which this bench cannot have: {error} To"
                    " compare rates and schedules of the present one, give them:"
                    " recipes=[{'lr': 1e-2, 'lr_schedule': 'cosine'}, …]."
                ) from None
            self._task.refuse_unused(values)
        called = {**differing(request, RecipeRequest()), **wanted.keywords}
        return self._find_settings(
            "find_recipe", request, called, overrides, RecipeSearch.from_events, wanted
        )

    @lists_keywords(SettingsKwargs)
    def tune(
        self,
        *,
        searches: Sequence[str] = TUNED,
        apply: bool = False,
        **settings: Unpack[SettingsKwargs],
    ) -> Job[Plan]:
        """Find loader workers, a learning rate (with a race), a batch size and a clip value, as one
        job; then compare them with the present settings.

        Losses decide, and not speed alone. A larger batch has to be faster, and as good after the
        same number of samples at a rate that fits it; a clip value has to be clearly better. At the
        end the whole plan and the present settings train for the same number of samples from the
        same state. If the plan is not clearly better, the present settings stay, except for the
        number of workers, which changes no loss. `plan.steps` says which, with both losses.

        Rates and stretches together have at most 1.5 times the updates of the run, counted with
        batches of the present size; a shorter run has shorter stretches, and then some searches are
        left out and say so. A run of fewer than 300 updates has no race. searches: those to run.
        apply: set what was found when the job ends; otherwise `bench.set(**plan.settings)` does
        that.
        """
        overrides = self._named(settings, self.tune)
        asked = (searches,) if isinstance(searches, str) else tuple(searches)
        if not asked or any(name not in TUNED for name in asked):
            raise SettingsError(
                f"searches={shown(searches)}: give one or more of {', '.join(map(repr, TUNED))}."
            )
        if not isinstance(apply, bool):
            raise SettingsError(f"apply={shown(apply)}: give True or False.")
        chosen = self._chosen(overrides)
        done = (lambda recommended: self.set(**recommended)) if apply else None
        work = TuneWork(
            self._task,
            chosen,
            self._start,
            self.root,
            [f"find_{name}" for name in TUNED if name in asked],
            done,
        )
        called = {
            **({"searches": asked} if asked != TUNED else {}),
            **({"apply": True} if apply else {}),
            **overrides,
        }
        return self._submit("tune", chosen, called, work, lambda job: Plan.from_events(job.events))

    @lists_keywords(SettingsKwargs)
    def profile(self, *, updates: int = 20, **settings: Unpack[SettingsKwargs]) -> Job[Profile]:
        """Take updates as a fit does, and measure what limits their speed: where time and memory
        go.

        The result has a sentence about it, `verdict`, and the trace of `updates` updates for
        https://ui.perfetto.dev, which lies in the run's folder. Some updates come before, to warm
        up, and some to measure the speed without the profiler, which slows updates down. Of several
        ranks, rank 0 is profiled. The model and the settings stay as they are.
        """
        overrides = self._named(settings, self.profile)
        request = ProfileRequest(updates)
        chosen = self._chosen(overrides)
        work = AssignmentWork(ProfileAssignment(self._task, chosen, request), self._start)
        return self._submit(
            "profile",
            chosen,
            {**differing(request, ProfileRequest()), **overrides},
            work,
            lambda job: Profile.from_events(job.events, job._run_path),
        )

    def _find_settings(
        self,
        kind: str,
        request: SettingsRequest,
        called: Mapping[str, Any],
        overrides: dict[str, Any],
        read: Callable[[Sequence[Event]], T],
        wanted: StartSpec | None = None,
    ) -> Job[T]:
        """wanted: the weights that it starts from; None: the present ones."""
        chosen = self._chosen(overrides)
        start = (
            self._start
            if wanted is None
            else StartWeights(self._task, self._start, wanted, self.root)
        )
        work = AssignmentWork(FindSettingsAssignment(self._task, chosen, kind, request), start)
        needs = () if wanted is None else wanted.needs
        return self._submit(
            kind, chosen, {**called, **overrides}, work, lambda job: read(job.events), needs
        )
