"""Keeps the state of the canvas: passes each event to the part that draws it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice
from typing import Any

from workbench.events import (
    Annotated,
    BenchEvent,
    Called,
    Changed,
    ClipSearchEnded,
    Compared,
    CurveEnded,
    CurvePoint,
    DecaySearchEnded,
    DecayTrial,
    Deleted,
    LayersMeasured,
    Logged,
    Message,
    ProfileEnded,
    RaceTrial,
    RecipeSearchEnded,
    RecipeTrial,
    Resumed,
    RunEnded,
    RunStarted,
    Sampled,
    Saved,
    SearchEnded,
    SettingsSet,
    Shown,
    SpeedSearchEnded,
    SpeedTrial,
    Spiked,
    StatusChanged,
    StepsDone,
    Studied,
    TimeSpent,
    Trial,
    TrialStarted,
    TuneStep,
    Unrecorded,
    Validated,
)  # fmt: skip
from workbench.plots.names import recipe_name, shorten
from workbench.ui import format, texts
from workbench.ui.canvas.clock import COLUMNS as CLOCK_COLUMNS
from workbench.ui.canvas.clock import ROWS as CLOCK_ROWS
from workbench.ui.canvas.clock import Clock
from workbench.ui.canvas.findings import Findings
from workbench.ui.canvas.gradients.gradients import Gradients
from workbench.ui.canvas.gradients.histograms import Histograms
from workbench.ui.canvas.gradients.layers import Layers
from workbench.ui.canvas.learning_rates import BUCKETS, Rates
from workbench.ui.canvas.metrics import BUCKETS as METRIC_BUCKETS
from workbench.ui.canvas.metrics import Metrics
from workbench.ui.canvas.progress import ProgressLine
from workbench.ui.canvas.runs.past_curves import PastCurves
from workbench.ui.canvas.samples import Samples as PredictionSamples
from workbench.ui.canvas.searches.answers import Answers
from workbench.ui.canvas.searches.batch_sizes import BatchSizeSearch
from workbench.ui.canvas.searches.sweeps import EARLIER, EARLIER_POINTS, POINTS, LRSweeps
from workbench.ui.canvas.time_shares import TimeShares
from workbench.ui.canvas.training import LINE_BUCKETS, Training
from workbench.ui.canvas.transport.channels import Buckets, Channel, Samples
from workbench.ui.canvas.transport.messages import Outbox

TRIED = 4
"""How many trials of a search for workers, a precision or a weight decay the progress line
shows: the last ones.
"""
MEASURED = 12
"""How many metrics of a validation or a test the progress line shows."""
TABS = {
    "gradients": (
        "heat",
        "map",
        "broken",
        "ratios",
        "picks",
        "picked",
        "clips",
        "norm",
        "histograms",
    ),
    "samples": ("sample",),
    "pace": ("time",),
    "settings": ("form", "schedule"),
    "runs": ("runs", "rows", "explained", "moving", "ended", "unkept", "deleting", "notes"),
}
"""The values and channels that only a tab of the drawer draws, by tab."""


class CanvasModel:
    """The state of one canvas. It is not thread-safe; its owner has a lock."""

    def __init__(self) -> None:
        # The browser knows the columns of "fit" by this order: see
        # extensions/live/src/training/loss.ts.
        fit = Buckets([("min", 2), ("max", 3), ("mean", 3), ("last", 3)], LINE_BUCKETS)
        layers = Layers()
        val, curve, earlier = (
            Samples(3, 1000),
            Samples(3, POINTS),
            Samples(3, EARLIER * EARLIER_POINTS),
        )
        gradients = {"heat": layers.heat, "picked": layers.picked}
        metrics, clock = Buckets([("last", 1)], METRIC_BUCKETS), Samples(CLOCK_COLUMNS, CLOCK_ROWS)
        rates, self.curves = Buckets([("last", 1)], BUCKETS), PastCurves()
        past: dict[str, Channel] = {
            "rates": rates,
            "past": self.curves.past,
            "compared": self.curves.compared,
        }
        self.outbox = Outbox(
            {
                "fit": fit,
                "val": val,
                "curve": curve,
                "earlier": earlier,
                **gradients,
                **past,
                "metrics": metrics,
                "clock": clock,
            }
        )
        self._gradients = Gradients(self.outbox, layers)
        self._training = Training(self.outbox, fit, val, self._gradients)
        self.sweep = LRSweeps(self.outbox, curve, earlier)
        self._sizes = BatchSizeSearch(self.outbox)
        self.answers = Answers(self.outbox)
        self._progress = ProgressLine(self.outbox)
        self._rates = Rates(self.outbox, rates)
        self._metrics = Metrics(self.outbox, metrics)
        self._clock = Clock(clock)
        self.findings = Findings(self.outbox)
        self._time = TimeShares(self.outbox)
        self._histograms = Histograms(self.outbox)
        self.samples = PredictionSamples(self.outbox)
        self._kind, self._studies = "", False
        """The kind of job of the stage, and whether a study has taken its place."""
        self._run: RunStarted | None = None
        self._measured: Mapping[str, float] = {}
        """The metrics of a validation or test job, which has no card."""
        self._tried: list[list[str]] = []
        """The trials of a search for workers, a precision or a weight decay, as pairs of texts."""

    def draw(self, event: BenchEvent) -> None:
        """Draw one event."""
        fits = (
            event.kind == "fit" if isinstance(event, RunStarted) else self._progress.kind == "fit"
        )
        if not isinstance(event, StepsDone):
            self._gradients.rest()
        if fits and not isinstance(event, Unrecorded):  # first: the headline says what they find
            self.findings.on_event(event)
            self._time.on_event(event)
        match event:
            case RunStarted():
                self._start(event)
            case StepsDone():
                self._steps(event)
            case Validated():
                self._validated(event)
            case Logged():
                self._logged(event)
            case LayersMeasured():
                self._histograms.measured(event)
            case Sampled():
                self.samples.add(event)
            case Saved():
                self._progress.saved(event)
            case Changed():
                self._changed(event)
            case Resumed():
                self._resumed(event)
            case Spiked():
                self._training.spiked(event)
            case (
                CurvePoint() | RaceTrial() | CurveEnded() | TrialStarted() | Trial() | SearchEnded()
            ):
                self._search(event)
                self._stage_search(event)
            case SpeedTrial() | DecayTrial() | RecipeTrial():
                self._trial(event)
            case SpeedSearchEnded() | ClipSearchEnded() | DecaySearchEnded() | RecipeSearchEnded():
                self.answers.ended(event)
                if self._progress.kind != "tune":
                    self._progress.found(event)
            case ProfileEnded():
                self._progress.found(event)
            case TuneStep():
                self._progress.tuned(event)
                self.answers.tuned(event)
                self._stage("tune")
            case StatusChanged():
                self._progress.status(event.status, event.why)
                self._gradients.status(event.status)
            case RunEnded():
                self._end(event)
            case Called():
                self.outbox.put("code", event.code[:2000])
            case SettingsSet():
                self._settings(event)
            case (
                TimeSpent() | Message() | Shown() | Compared() | Deleted() | Annotated() | Studied()
            ):
                pass  # the panel's own: its notices, its studies, and the past

    def clear(self) -> None:
        """Remove everything, to draw another run's events."""
        self._run, self._measured, self._tried = None, {}, []
        self._training.clear()
        self._gradients.clear()
        self._rates.start()
        self._metrics.start()
        self._clock.start(None)
        self.samples.clear()
        self._histograms.clear()
        self.sweep.clear()
        self._sizes.clear()
        self._progress.clear()
        self.findings.clear()
        self._time.clear()
        self.answers.clear()
        self._stage("")

    def settle(self) -> None:
        """Compute, before a message, the values that are sent once for all events since the last
        message.
        """
        self._gradients.settle()
        self.samples.settle()

    def look(self, message: dict[str, Any]) -> bool:
        """Change a view for a request; False: the request is about something else."""
        match message:
            case {"what": "drawer", "tab": str(tab)}:
                closed = (names for name, names in TABS.items() if name != tab)
                self.outbox.hold(chain.from_iterable(closed))
                self.samples.opened(tab == "samples")
                return True
            case {"what": "samples", "place": int(place)}:
                self.samples.show(place)
                return True
        return self._gradients.look(message)

    def look_at(self, optimizer: int) -> None:
        """Show the learning-rate curves of this optimizer, and the rate that was found for it."""
        self.sweep.look_at(optimizer)
        self.answers.look_at(optimizer)

    def stage_study(self, shown: bool) -> None:
        """Put the study on the stage, or the job whose place it has taken."""
        self._studies = shown
        self._stage(self._kind)

    def _stage(self, kind: str) -> None:
        """Put the plot of this kind of job on the stage, unless a study is there; "": none."""
        self._kind = kind
        self.outbox.put("stage", "study" if self._studies else kind)

    def _stage_search(self, event: object) -> None:
        """Put the search of a tuning on the stage while it runs."""
        if self._progress.kind == "tune":
            curve = isinstance(event, CurvePoint | RaceTrial | CurveEnded)
            self._stage("find_lr" if curve else "find_batch_size")

    def _start(self, event: RunStarted) -> None:
        self._run, self._measured, self._tried = event, {}, []
        self._studies = False
        self._progress.start(event)
        self.answers.start(event)
        if event.kind in ("fit", "tune") or event.kind.startswith("find_"):
            self._stage(event.kind)
        self.findings.error(event.kind, None)
        if event.kind == "fit":
            self._training.start(event)
            self._rates.start()
            self._metrics.start()
            self._clock.start(event)
            self.samples.start(event)
            self._histograms.clear()
        elif event.kind == "find_lr":
            self.sweep.start(event)
        elif event.kind == "find_batch_size":
            self._sizes.start(event)

    def _steps(self, event: StepsDone) -> None:
        if self._progress.kind == "fit":
            self._training.steps(event)
            self._rates.steps(event)
            self._metrics.steps(event)
            self._clock.steps(event)
            self._sizes.left()
            self._say_how_it_stands()
        self._progress.steps(event, self._values())

    def _validated(self, event: Validated) -> None:
        if self._progress.kind == "fit":
            self._training.validated(event)
            self._metrics.measured(event)
            self._say_how_it_stands()
        elif self._run is not None:
            self._measured = event.metrics
        else:
            return
        self._progress.values(self._values())

    def _say_how_it_stands(self) -> None:
        self._progress.headline(self._training.headline(self.findings.failing))

    def _logged(self, event: Logged) -> None:
        self._training.logged(event)
        self._metrics.measured(event)
        self._progress.values(self._values())

    def _changed(self, event: Changed) -> None:
        self._training.changed(event)
        self._clock.changed(event)
        self._progress.changed(event)

    def _resumed(self, event: Resumed) -> None:
        self._training.resumed(event)
        self._progress.resumed(event)
        self._say_how_it_stands()
        self._progress.values(self._values())

    def _search(
        self, event: CurvePoint | RaceTrial | CurveEnded | TrialStarted | Trial | SearchEnded
    ) -> None:
        """Draw a search; inside a fit or a tuning, the progress line stays with that."""
        within = self._run if self._progress.kind in ("fit", "tune") else None
        match event:
            case CurvePoint():
                if within is not None and event.index == 0:
                    self.sweep.start(within)
                self.sweep.point(event)
            case TrialStarted() | Trial():
                if within is not None and self._sizes.over:
                    self._sizes.start(within)
                (
                    self._sizes.trial(event)
                    if isinstance(event, Trial)
                    else self._sizes.checking_steps(event)
                )
            case RaceTrial():
                self.sweep.raced(event)
            case CurveEnded():
                self.sweep.ended(event)
                self.answers.ended(event)
            case SearchEnded():
                self._sizes.ended(event)
                self.answers.ended(event)
        if within is not None:
            return
        if isinstance(event, CurveEnded | SearchEnded):
            self._progress.found(event)
        else:
            self._progress.search(
                self.sweep.done if isinstance(event, CurvePoint | RaceTrial) else self._sizes.done,
                self._values(),
            )

    def _trial(self, event: SpeedTrial | DecayTrial | RecipeTrial) -> None:
        self._tried.append(_tried(event))
        del self._tried[:-TRIED]
        if self._progress.kind != "tune":
            self._progress.search(self._progress.done + 1, self._values())

    def _end(self, event: RunEnded) -> None:
        if self._progress.kind == "tune":
            self._stage("tune")
        self._sizes.run_ended(event)
        if self._progress.kind == "fit":
            self._say_how_it_stands()
        self._progress.end(event)
        settings = {} if self._run is None else self._run.settings
        accumulated = settings.get("accumulate_grad_batches")
        self.findings.error(self._progress.kind, event, accumulated)
        self._gradients.ended()

    def _settings(self, event: SettingsSet) -> None:
        self._sizes.chosen(event.settings)
        self.answers.settings(event.settings)
        self._gradients.settings(event.settings)
        self._metrics.settings(event.settings)

    def _values(self) -> list[list[str]]:
        """The last values of the fit, for the end of the progress line."""
        if self._progress.kind == "find_lr":
            return [["lr", format.rate(self.sweep.lr)], ["loss", format.number(self.sweep.loss)]]
        if self._tried and self._progress.kind != "fit":
            return self._tried
        if self._progress.kind != "fit":
            return [
                [shorten(name, 40), format.number(value)]
                for name, value in islice(self._measured.items(), MEASURED)
            ]
        losses = {
            texts.LOSS: self._training.loss,
            texts.VAL: self._training.val,
            texts.AVERAGED: self._training.averaged,
        }
        known = [
            [name, format.number(value)] for name, value in losses.items() if value is not None
        ]
        return known + [
            [shorten(name, 40), format.number(value)]
            for name, value in self._training.on_bar.items()
        ]


def _in_words(values: Mapping[str, Any]) -> str:
    """The settings of a trial, as in code."""
    return shorten(format.assignments(values), 60)


def _tried(trial: SpeedTrial | DecayTrial | RecipeTrial) -> list[str]:
    """The values of a trial, and its result."""
    if isinstance(trial, DecayTrial):
        values = {"weight_decay": trial.weight_decay}
        return [_in_words(values), f"{texts.HELD_OUT_LOSS} {format.number(trial.loss)}"]
    if isinstance(trial, RecipeTrial):
        name = shorten(recipe_name(trial.values), 60)
        return [name, f"{texts.HELD_OUT_LOSS} {format.number(trial.loss)}"]
    speed = (
        texts.FAILED
        if not trial.updates_per_second
        else texts.updates_per_second(format.pace(trial.updates_per_second))
    )
    return [_in_words(trial.values), speed]
