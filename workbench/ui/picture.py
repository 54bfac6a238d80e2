"""Everything the canvas shows, folded from events: each event goes to the part that draws it."""

from __future__ import annotations

from workbench.events import (
    BenchEvent,
    Called,
    Changed,
    CurveEnded,
    CurvePoint,
    Logged,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    SearchEnded,
    SettingsSet,
    StatusChanged,
    StepsDone,
    Trial,
    Validated,
)  # fmt: skip
from workbench.plots.names import shorten
from workbench.ui import words
from workbench.ui.channels import Buckets, Samples
from workbench.ui.progress import Progress
from workbench.ui.searches import CURVE_POINTS, Sizes, Sweep
from workbench.ui.training import HEAT_BUCKETS, LINE_BUCKETS, Training
from workbench.ui.wire import Outbox


class Picture:
    """The state of one canvas. Not safe across threads: its owner locks."""

    def __init__(self) -> None:
        # The browser knows the columns of "fit" by this order: see extensions/live/src/loss.ts.
        fit = Buckets([("min", 2), ("max", 3), ("mean", 2), ("last", 3)], LINE_BUCKETS)
        heat = Buckets([("max", 1)], HEAT_BUCKETS)
        val, curve = Samples(3, 1000), Samples(3, CURVE_POINTS)
        self.outbox = Outbox({"fit": fit, "val": val, "curve": curve, "heat": heat})
        self._training = Training(self.outbox, fit, heat, val)
        self._sweep = Sweep(self.outbox, curve)
        self._sizes = Sizes(self.outbox)
        self._progress = Progress(self.outbox)

    def draw(self, event: BenchEvent) -> None:
        match event:
            case RunStarted():
                self._start(event)
            case StepsDone():
                if self._progress.kind == "fit":
                    self._training.steps(event)
                self._progress.steps(event, self._values())
            case Validated():
                if self._progress.kind == "fit":
                    self._training.validated(event)
                    self._progress.values(self._values())
            case Logged():
                self._training.logged(event)
                self._progress.values(self._values())
            case Saved():
                self._progress.saved(event)
            case Changed():
                self._training.changed(event)
                self._progress.changed(event)
            case Resumed():
                self._training.resumed(event)
                self._progress.resumed(event)
            case CurvePoint() | CurveEnded() | Trial() | SearchEnded():
                self._search(event)
            case StatusChanged():
                self._progress.status(event.status)
            case RunEnded():
                self._progress.end(event)
            case Called():
                self.outbox.put("code", event.code[:2000])
            case SettingsSet() | Message():
                pass  # the panel's own: its controls and its notices

    def _start(self, event: RunStarted) -> None:
        self._progress.start(event)
        if event.kind == "fit":
            self._training.start(event)
        elif event.kind == "find_lr":
            self._sweep.start()
        elif event.kind == "find_batch_size":
            self._sizes.start()

    def _search(self, event: CurvePoint | CurveEnded | Trial | SearchEnded) -> None:
        """A search; in the middle of a fit (a milestone) it is drawn, and the line goes on about the fit."""
        within = self._progress.kind == "fit"
        match event:
            case CurvePoint():
                if within and event.index == 0:
                    self._sweep.start()
                self._sweep.point(event)
            case Trial():
                if within and self._sizes.over:
                    self._sizes.start()
                self._sizes.trial(event)
            case CurveEnded():
                self._sweep.ended(event)
            case SearchEnded():
                self._sizes.ended(event)
        if within:
            return
        if isinstance(event, CurveEnded | SearchEnded):
            self._progress.found(event)
        else:
            self._progress.search(self._sweep.done if isinstance(event, CurvePoint) else self._sizes.done, self._values())

    def _values(self) -> list[list[str]]:
        """The last values, at the end of the progress line."""
        if self._progress.kind == "find_lr":
            return [["lr", words.rate(self._sweep.lr)], ["loss", words.number(self._sweep.loss)]]
        if self._progress.kind != "fit":
            return []
        told = {"loss": self._training.loss, "val": self._training.val, "averaged": self._training.averaged}
        known = [[name, words.number(value)] for name, value in told.items() if value is not None]
        return known + [[shorten(name, 40), words.number(value)] for name, value in self._training.on_bar.items()]
