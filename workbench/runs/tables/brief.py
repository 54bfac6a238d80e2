"""Summarises a run for tables and comparisons, at a size that does not grow with its length."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.events import (
    Changed,
    Event,
    Logged,
    Resumed,
    RunEnded,
    RunStarted,
    Status,
    StepsDone,
    Validated,
)
from workbench.metric_mode import Mode, known_mode
from workbench.plots.smooth import Smoother
from workbench.runs import read
from workbench.runs.chart_data import UNMARKED
from workbench.runs.health import Finding, Health
from workbench.runs.health.search_results import Answer
from workbench.runs.record.series import column
from workbench.runs.record.stream import joined, stream
from workbench.runs.run import Run
from workbench.settings import Settings, setting_text

POINTS = 400
"""How many points the smoothed loss has at most; more than a quarter of a screen can show."""
CHECKS = 200
METRICS = 50
"""For how many metrics the best value is kept: the first ones."""
DRAWN = 12
"""How many metrics have a history: the first ones."""
MARKS = 40
"""How many live changes are kept as marks: the first ones."""
COLUMNS = ("loss", "lr", "skipped", "loss.1", "lr.1")
"""The columns of flushes that a brief needs: the loss, and those that the rules of health use.
Reading norms by layer would take several times as long.
"""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LiveChange:
    """The last change of a setting while a run trained: its value, the update from which it holds,
    and how many changes there were.
    """

    value: Any
    step: int
    count: int = 1


@dataclass(frozen=True, eq=False)
class RunBrief:
    """A summary of one fit. `curve`: the smoothed training loss; `checks`: the monitored metric of
    the validations.

    Both have shape (n, 4): updates taken, epochs, seconds (NaN: unknown), and the value. `metrics`
    has the last value of each metric, `settings` those at its start, `model` the model's name and
    its number of parameters.
    """

    id: str
    status: Status
    step: int
    seconds: float
    created: float
    settings: dict[str, Any]
    metrics: dict[str, float]
    monitor: str
    curve: Array
    checks: Array
    origin: str = ""
    """The run that it continues."""
    changes: dict[str, LiveChange] = field(default_factory=dict)
    """The settings that were changed while it trained; of a run that continues another one,
    since it does.
    """
    model: tuple[str, int | None] = ("", None)
    path: Path | None = field(default=None, repr=False)
    best: dict[str, float] = field(default_factory=dict)
    """The best value of each metric whose name tells whether lower or higher is better."""
    unseen: bool = False
    """Whether it only counts as running: its process cannot be seen from here."""
    trouble: Finding | None = None
    """Why its result is in doubt; None: it is not."""
    updates: int | None = None
    """The number of updates according to its settings; None: unknown."""
    error: str | None = None
    answer: str = ""
    """What a search found."""
    waits_for: str = ""
    """What a queued fit waits for."""
    trial: read.TrialPlace | None = None
    """Its place in a study; None: it is in none."""
    build: dict[str, Any] = field(default_factory=dict)
    """The values with which a function made its model, by the names of its parameters."""
    optimizer: str = ""
    """What made its optimizer where no setting names one; "": unknown."""
    groups: str = ""
    """The rules of its parameter groups; "": there were none."""
    history: dict[str, Array] = field(default_factory=dict)
    """Each metric of its validations, as `checks`; empty unless `Fold(history=True)` kept it."""
    marks: list[tuple[int, str]] = field(default_factory=list)
    """Live changes as (update, text), kept with `history`."""

    @property
    def shown_status(self) -> str:
        """Its status, and a word where its result is in doubt: "finished, diverged"."""
        return read.shown_status(
            self.status, self.unseen, "" if self.trouble is None else self.trouble.trouble
        )

    @property
    def study(self) -> str:
        """Its place in a study, in a line; "": it is in none."""
        return "" if self.trial is None else str(self.trial)

    @classmethod
    def read(cls, folder: Path, *, history: bool = False) -> RunBrief:
        """Make the brief of a run folder: reads the record in pieces, and only the columns in
        `COLUMNS`.
        """
        return cls.so_far(folder, stream(folder, COLUMNS), Fold(history))

    @classmethod
    def so_far(cls, folder: Path, new: Iterable[Event], fold: Fold) -> RunBrief:
        """Make the brief of a run folder whose record may grow. `fold` has the events read
        before; the `new` ones are added to it.
        """
        header = read.read_header(folder)
        task = header.get("task")
        task = task if isinstance(task, dict) else {}  # a foreign header may have anything here
        model = (read.model_text(header), task.get("parameters"))
        for event in new:
            fold.add(event)
        brief = fold.brief(
            folder.name,
            fold.state.state(header, folder),
            read.created(header, folder),
            model,
            folder,
        )
        optimizer, groups = read.optimization(header)
        return replace(
            brief,
            trial=read.trial_place(header),
            build=read.build_values(header),
            optimizer=optimizer,
            groups=groups,
        )

    @classmethod
    def of(cls, run: Run) -> RunBrief:
        """Make the brief of a run that is in memory."""
        if run.folder is not None and run.folder.is_dir():
            return cls.read(run.folder)
        fold = Fold()
        for event in joined(run.events):
            fold.add(event)
        return fold.brief(
            run.id,
            read.State(run.status, run.step, run.seconds, run.error, run.unseen),
            math.nan,
            ("", None),
            None,
        )

    @property
    def loss(self) -> float | None:
        """The smoothed training loss at its end; None: no update was recorded."""
        return float(self.curve[-1, 3]) if len(self.curve) else None

    @property
    def ending(self) -> dict[str, float]:
        """Its last values for a table; the training loss is the smoothed one, not that of a
        single update.
        """
        smoothed = {} if self.loss is None else {"smoothed loss": self.loss}
        return smoothed | {name: value for name, value in self.metrics.items() if name != "loss"}

    @property
    def value(self) -> float | None:
        """The best value of the monitored metric, by which runs are ranked; the last one where
        neither its name nor `monitor_mode` says what is better. None: there was no validation.
        """
        return self.best.get(self.monitor, self.last_value)

    @property
    def last_value(self) -> float | None:
        """The monitored metric at its last validation; None: there was no validation."""
        return float(self.checks[-1, 3]) if len(self.checks) else None


class BestAndLast:
    """The best and the last value of a metric."""

    def __init__(self, mode: Mode | None) -> None:
        """mode: whether lower or higher is better; None: unknown, so there is no best value."""
        self.mode = mode
        self.value: float | None = None
        self.step: int | None = None
        """The update of the best value."""
        self.last = math.nan

    def add(self, steps: NDArray[np.int64], values: Array) -> None:
        """Add values at `steps`, both of shape (n,)."""
        finite = np.flatnonzero(np.isfinite(values))
        if not len(finite):
            return
        self.last = float(values[finite[-1]])
        if self.mode is None:
            return
        best = finite[
            int(np.argmin(values[finite]) if self.mode == "min" else np.argmax(values[finite]))
        ]
        value = float(values[best])
        if self.value is None or (value < self.value if self.mode == "min" else value > self.value):
            self.value, self.step = value, int(steps[best])


class Thinned:
    """A table that keeps at most `cap` rows: when there are more, it drops every second one, but
    never the last.
    """

    def __init__(self, cap: int) -> None:
        self._cap, self._stride, self._seen = cap, 1, 0
        self._kept: list[Array] = []
        self._count = 0
        self._last: Array | None = None

    def add(self, rows: Array) -> None:
        """Add rows of shape (n, columns)."""
        if not len(rows):
            return
        here = rows[(-self._seen) % self._stride :: self._stride]
        self._kept.append(here)
        self._count += len(here)
        self._seen += len(rows)
        self._last = rows[-1]
        while self._count >= self._cap:
            whole = np.concatenate(self._kept)[::2]
            self._kept, self._count, self._stride = [whole], len(whole), 2 * self._stride

    def rows(self, columns: int) -> Array:
        """The kept rows, shape (n, columns)."""
        if self._last is None:
            return np.empty((0, columns))
        whole = np.concatenate(self._kept)
        return (
            whole
            if np.array_equal(whole[-1:], self._last[None], equal_nan=True)
            else np.vstack([whole, self._last])
        )


class Fold:
    """Collects events for a brief. `brief` can be called repeatedly; its time does not depend on
    the number of events.
    """

    def __init__(self, history: bool = False) -> None:
        """history: also keep each metric of the validations and each live change, which a
        comparison draws and a table does not.
        """
        self._keeps_history = history
        self._history: dict[str, Thinned] = {}
        self._marks: list[tuple[int, str]] = []
        self._smoother, self._curve, self._checks = Smoother(), Thinned(POINTS), Thinned(CHECKS)
        self._start: RunStarted | None = None
        self._metrics: dict[str, float] = {}
        self._best: dict[str, BestAndLast] = {}
        self._monitor, self._origin, self._seconds = "", "", 0.0
        self._changes: dict[str, LiveChange] = {}
        self._answer = Answer()
        self._updates: int | None = None
        self._health = Health()
        self.state = read.StateFold()

    def add(self, event: Event) -> None:
        """Add one event; joined flushes are faster."""
        self._health.on_event(event)
        self.state.add(event)
        self._answer.add(event)
        if isinstance(event, RunStarted):
            self._start, self._updates = event, event.updates
        elif isinstance(event, StepsDone) and event.rows:
            self._steps(event)
        elif isinstance(event, Validated):
            self._validated(event)
        elif isinstance(event, Resumed):
            self._origin = event.run
            self._change(event)
            # the clock continues; where earlier events are not recorded, from an unknown time
            self._seconds = self._seconds or math.nan
        elif isinstance(event, Changed):
            self._change(event)
            self._mark(event)
            # with another batch size the total of updates is unknown
            if "batch_size" in event.values:
                self._updates = None
        if isinstance(event, Validated | Logged | RunEnded):
            self._metrics.update(event.metrics)
        if isinstance(event, Validated | Logged):
            for name, value in event.metrics.items():
                if name in self._best or len(self._best) < METRICS:
                    self._best.setdefault(name, BestAndLast(self._mode(name))).add(
                        np.array([event.step]), np.array([value])
                    )
            if self._keeps_history:
                self._keep(event)

    def _keep(self, event: Validated | Logged) -> None:
        for name, value in event.metrics.items():
            if math.isfinite(value) and (name in self._history or len(self._history) < DRAWN):
                done = np.array([event.step], np.float64)
                epoch = _epochs(self._start, done, event.epoch)[0]
                row = np.array([[event.step, epoch, self._seconds, value]], np.float64)
                self._history.setdefault(name, Thinned(CHECKS)).add(row)

    def _change(self, event: Changed | Resumed) -> None:
        settings = {} if self._start is None else self._start.settings
        for name, value in event.values.items():
            if name in Settings.model_fields and name not in UNMARKED:
                before = self._changes.get(name, LiveChange(settings.get(name), 0, 0))
                if before.value != value:
                    self._changes[name] = LiveChange(value, event.step, before.count + 1)

    def _mark(self, event: Changed) -> None:
        changed = [
            f"{name} → {setting_text.short(name, value)}"
            for name, value in event.values.items()
            if name in Settings.model_fields and name not in UNMARKED
        ]
        if self._keeps_history and changed and len(self._marks) < MARKS:
            self._marks.append((event.step, ", ".join(changed)))

    def _mode(self, name: str) -> Mode | None:
        settings = {} if self._start is None else self._start.settings
        chosen: Mode | None = (
            settings.get("monitor_mode") if name == settings.get("monitor") else None
        )
        return chosen or known_mode(name)

    def brief(
        self,
        id: str,
        state: read.State,
        created: float,
        model: tuple[str, int | None],
        path: Path | None,
    ) -> RunBrief:
        """The brief of the events so far."""
        settings = {} if self._start is None else self._start.settings
        return RunBrief(
            id,
            state.status,
            state.step,
            state.seconds,
            created,
            settings,
            dict(self._metrics),
            self._monitor,
            self._curve.rows(4),
            self._checks.rows(4),
            self._origin,
            dict(self._changes),
            model,
            path,
            {name: best.value for name, best in self._best.items() if best.value is not None},
            state.unseen,
            self._health.trouble,
            self._updates,
            state.error,
            self._answer.text,
            state.waits_for,
            history={name: kept.rows(4) for name, kept in self._history.items()},
            marks=list(self._marks),
        )

    def _steps(self, event: StepsDone) -> None:
        before = self._seconds
        loss = column(event, "loss").astype(np.float64)
        clock = (
            np.linspace(before, event.seconds, event.rows + 1)[1:]
            if event.seconds >= before
            else np.full(event.rows, np.nan)
        )
        smooth = self._smoother.add(loss)
        finite = np.isfinite(smooth)
        done: Array = event.steps.astype(np.float64) + 1
        self._curve.add(
            np.column_stack([done, _epochs(self._start, done, event.epoch), clock, smooth])[finite]
        )
        self._seconds = event.seconds
        if np.isfinite(loss[-1]):
            self._metrics["loss"] = float(loss[-1])

    def _validated(self, event: Validated) -> None:
        raw = [name for name in event.metrics if not name.endswith("_averaged")]
        watched = None if self._start is None else self._start.settings.get("monitor")
        # for several sets, the loss that is monitored
        losses = ["val_loss", *([watched] if str(watched).startswith("val_loss") else []), *raw]
        self._monitor = self._monitor or next((name for name in losses if name in raw), "")
        value = event.metrics.get(self._monitor, math.nan)
        if math.isfinite(value):
            done = np.array([event.step], np.float64)
            epoch = _epochs(self._start, done, event.epoch)[0]
            self._checks.add(np.array([[event.step, epoch, self._seconds, value]], np.float64))


def _epochs(start: RunStarted | None, done: Array, epoch: int) -> Array:
    """The number of epochs for a number of updates; a fraction only if the length of an epoch is
    known.
    """
    if start is not None and start.updates and start.epochs:
        return done * start.epochs / start.updates
    return np.full(len(done), epoch + 1.0)
