"""Events: what a job says while it runs. Frozen records of plain data that only go up.

They are the record too: a run folder holds them line by line, and one read back equals the one emitted,
so every view has one way to draw. Columns of numbers are little-endian float32 bytes (`pack`, `unpack`).
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Status = Literal["queued", "running", "paused", "finished", "stopped", "failed"]
Floats = NDArray[np.float32]

_MEASURED = re.compile(r"(loss|lr|grad_norm|grad_norm_clipped)(\.\d+)?|layer_norms|update_ratios|skipped")
_BY_LAYER = ("layer_norms", "update_ratios")
"""The columns that the engine measures itself."""


def pack(values: Iterable[float] | NDArray[Any]) -> bytes:
    """Numbers as little-endian float32 bytes, row by row."""
    array = values if isinstance(values, np.ndarray) else np.fromiter(values, dtype="<f4")
    return np.ascontiguousarray(array, dtype="<f4").tobytes()


def unpack(data: bytes) -> Floats:
    """The float32 numbers in `data`, shape (n,)."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A job has its turn. `updates` and `epochs` are the totals, None where the data has no length."""

    run: str
    kind: str
    settings: dict[str, Any]
    device: str
    layers: tuple[str, ...] = ()
    updates: int | None = None
    epochs: int | None = None
    ranks: int = 1
    """How many processes do it together."""
    memory: int | None = None
    """Bytes that the device has (of a CPU: that the machine, or this process's container, has); None: nobody knows."""
    request: dict[str, Any] = field(default_factory=dict)
    """What a search was asked for beside the settings, by the names of its arguments."""
    groups: tuple[tuple[tuple[str, float], ...], ...] = ()
    """Of each optimizer the parameter groups: the name, "" where it has none, and the rate as a multiple of the setting lr."""


@dataclass(frozen=True, slots=True)
class StepsDone:
    """The updates since the last flush: rows `step`, `step + every`, …, one float32 per row and column.

    Columns: "loss", "lr", "grad_norm" (total, before clipping), "grad_norm_clipped" (after), and
    "layer_norms" (rows x layers of `RunStarted.layers`, row-major, before clipping), "update_ratios" (the same shape: how
    far the update moved each layer's weights, relative to their norm; there only while it is measured, NaN for updates
    between two measurements), and whatever the model logged for single updates, by its name. NaN: no value.
    """

    step: int
    every: int
    rows: int
    epoch: int
    seconds: float
    """Seconds since the run began, pauses left out."""
    columns: dict[str, bytes]
    prog_bar: tuple[str, ...] = ()
    """The columns that the model logged with `prog_bar=True`."""
    waited: float = 0.0
    """Of the seconds, those in which training waited for batches (validation left out)."""
    memory: int | None = None
    """Bytes in use on the device by the process that writes the record (of a CPU: by that process, without its loaders)."""

    def array(self, name: str) -> Floats:
        """Column `name`, shape (rows,); "layer_norms" and "update_ratios" have shape (rows, layers)."""
        flat = unpack(self.columns[name])
        return flat.reshape(self.rows, -1) if name in _BY_LAYER else flat

    @property
    def steps(self) -> NDArray[np.int64]:
        """The update numbers of the rows, shape (rows,)."""
        return self.step + self.every * np.arange(self.rows, dtype=np.int64)

    @property
    def logged(self) -> tuple[str, ...]:
        """The columns that the model logged, by its names."""
        return tuple(name for name in self.columns if not _MEASURED.fullmatch(name))

    @property
    def on_bar(self) -> dict[str, float]:
        """The last value of each column that the progress line shows."""
        known = {name: values[~np.isnan(values)] for name in self.prog_bar for values in [self.array(name)]}
        return {name: float(values[-1]) for name, values in known.items() if len(values)}


@dataclass(frozen=True, slots=True)
class Validated:
    """One validation check, after update `step` (the count of updates taken so far).

    Metrics of averaged weights stand beside the raw ones, with "_averaged" behind their names.
    """

    step: int
    epoch: int
    metrics: dict[str, float]
    prog_bar: tuple[str, ...] = ()
    """Those that the model logged with `prog_bar=True`."""
    asked: bool = False
    """Whether a person asked for it (`job.validate()`): nothing of the run followed from it."""

    @property
    def on_bar(self) -> dict[str, float]:
        """What the progress line shows, by what the model said; the averaged weights' too."""
        return {name: value for name, value in self.metrics.items() if name.removesuffix("_averaged") in self.prog_bar}


@dataclass(frozen=True, slots=True)
class Logged:
    """What the model logged over an epoch of training, after `step` updates (`self.log(…, on_epoch=True)`)."""

    step: int
    epoch: int
    metrics: dict[str, float]
    prog_bar: tuple[str, ...] = ()

    @property
    def on_bar(self) -> dict[str, float]:
        """What the progress line shows, by what the model said."""
        return {name: value for name, value in self.metrics.items() if name in self.prog_bar}


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint was written, after `step` updates. `best`: it is the best so far by `monitor`, whose value this is."""

    step: int
    epoch: int
    name: str
    best: bool = False
    monitor: str | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """What stands before is the record of `run` up to its `checkpoint`; from here on this run goes on, with `values` changed."""

    step: int
    run: str
    checkpoint: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changed:
    """A live change as it was applied: it holds from update `step` on."""

    step: int
    values: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The job is now in this state, after `step` updates."""

    status: Status
    step: int = 0


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One update of the LR finder: the rate, the raw loss at it and the smoothed one."""

    index: int
    lr: float
    loss: float
    smoothed: float


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A learning rate a rule proposes. `index` is the nearest point of the curve; None where there is none."""

    name: str
    lr: float | None
    index: int | None
    why: str


@dataclass(frozen=True, slots=True)
class CurveEnded:
    """The sweep is over: why, what each rule proposes, and the recommended rate (None: none can be trusted)."""

    ended: str
    suggestions: tuple[Suggestion, ...]
    suggestion: float | None
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Those of the notes that speak against the recommendation, or say why there is none."""
    diverged: float | None = None
    """The first rate whose loss exploded or was not finite; None: no such rate was seen."""


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A batch size is tried now; its Trial follows, unless the search ends here."""

    size: int
    accumulate_grad_batches: int | None = None
    """How many batches of that size make the effective batch, where it is kept."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One batch size that was really tried. `seconds` is for a typical update; bytes are the peak above idle.

    Where `ranks` tried it together: `size` and `peak_bytes` (the largest) are those of each, samples/s of all.
    """

    size: int
    ok: bool
    seconds: float | None = None
    samples_per_second: float | None = None
    peak_bytes: int | None = None
    error: str | None = None
    ranks: int = 1
    accumulate_grad_batches: int | None = None
    """How many batches of that size make the effective batch, where it was kept."""
    limit_bytes: int | None = None
    """How much it could have taken, measured as the peak is; None: nobody knows."""


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """The batch-size search is over: the recommended size and the largest one, both tried and passed.

    `accumulate_grad_batches`: how many batches of the recommended size make the effective batch, where it was kept.
    """

    best: int | None
    largest: int | None
    ended: str
    accumulate_grad_batches: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """Something a person should read."""

    text: str
    level: Literal["info", "warning", "error"] = "info"
    step: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """A fact of the training that only the engine can see, after `step` updates; `runs.health` judges it.

    "evaluation_mode": these `parts` of the model ("" is all of it) were in evaluation mode during an update.
    "same_order": the samples of this epoch came in the order of the epoch before, although they are shuffled.
    """

    step: int
    epoch: int
    what: Literal["evaluation_mode", "same_order"]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The job is over. Always the last event."""

    status: Status
    step: int
    seconds: float
    error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)


Event = (
    RunStarted | StepsDone | Validated | Logged | Saved | Resumed | Changed | StatusChanged | CurvePoint | CurveEnded | TrialStarted
    | Trial | SearchEnded | Message | Observed | RunEnded
)  # fmt: skip
Emit = Callable[[Event], None]

_TYPES: dict[str, type] = {
    t.__name__: t
    for t in (
        RunStarted, StepsDone, Validated, Logged, Saved, Resumed, Changed, StatusChanged, CurvePoint, CurveEnded, TrialStarted,
        Trial, SearchEnded, Message, Observed, RunEnded,
    )
}  # fmt: skip


def to_line(event: Event) -> str:
    """One event as one line of JSON, without the newline."""
    record: dict[str, Any] = {"type": type(event).__name__}
    for f in fields(event):
        record[f.name] = getattr(event, f.name)
    if isinstance(event, StepsDone):
        record["columns"] = {k: base64.b64encode(v).decode("ascii") for k, v in event.columns.items()}
    if isinstance(event, CurveEnded):
        record["suggestions"] = [[s.name, s.lr, s.index, s.why] for s in event.suggestions]
    return json.dumps(record, separators=(",", ":"))


def from_line(line: str | bytes, only: Collection[str] | None = None) -> Event:
    """The event that `to_line` wrote. `only`: the columns of flushes that are wanted; the others are not decoded."""
    record = json.loads(line)
    if only is not None and "columns" in record:
        record["columns"] = {name: data for name, data in record["columns"].items() if name in only}
    return from_record(record)


def from_record(record: dict[str, Any]) -> Event:
    """The event of such a line as JSON has it; `record` is used up."""
    kind = _TYPES[record.pop("type")]
    if kind is StepsDone:
        record["columns"] = {k: base64.b64decode(v) for k, v in record["columns"].items()}
    if kind is CurveEnded:
        record["suggestions"] = tuple(Suggestion(*s) for s in record["suggestions"])
        record["notes"], record["doubts"] = tuple(record["notes"]), tuple(record.get("doubts", ()))
    if "prog_bar" in record:
        record["prog_bar"] = tuple(record["prog_bar"])
    if kind is Observed:
        record["parts"] = tuple(record["parts"])
    if kind is RunStarted:
        record["layers"] = tuple(record["layers"])
        record["groups"] = tuple(tuple((name, ratio) for name, ratio in own) for own in record.get("groups", ()))
    event: Event = kind(**record)
    return event


@dataclass(frozen=True, slots=True)
class Called:
    """The line of code that stands for what was just asked of the bench. Heard by views, not recorded."""

    code: str


@dataclass(frozen=True, slots=True)
class SettingsSet:
    """The bench's settings are now these. Heard by views, not recorded."""

    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """Views are asked to draw this recorded run; empty: what goes on now. Not recorded."""

    run: str


@dataclass(frozen=True, slots=True)
class Compared:
    """Views are asked to lay these runs over one another; none: to put that away. Not recorded."""

    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deleted:
    """A run is gone from the folder. Not recorded."""

    run: str


BenchEvent = Event | Called | SettingsSet | Shown | Compared | Deleted
