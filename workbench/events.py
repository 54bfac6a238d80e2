"""Events: frozen records of plain data that go up, from a running job to its listeners.

They are the record too: a run folder holds them line by line, and one read back equals the one emitted, so every view
has one way to draw. Columns of numbers are little-endian bytes (`pack`, `unpack`): float32, or float64 where that was
measured.
A record may come from anybody: `from_line` checks every field against the type that its class names.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import types
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

Status = Literal["queued", "running", "paused", "finished", "stopped", "failed"]
Floats = NDArray[np.float32]
Numbers = NDArray[np.float32] | NDArray[np.float64]

_MEASURED = re.compile(r"(loss|lr|grad_norm|grad_norm_clipped)(\.\d+)?|layer_norms|update_ratios|skipped")
"""The columns that the engine measures itself."""
BY_LAYER = ("layer_norms", "update_ratios")
"""Those of them that have a number for each layer."""
LARGEST = 1 << 53
"""The largest number that a record may have where something is counted: beyond it floats count no more."""
_DEEPEST = 32
"""Levels of containers within a setting at most."""
_UNMEASURED = 1 << 16
"""Rows of a flush without any column at most."""


def pack(values: Iterable[float] | NDArray[Any], double: bool = False) -> bytes:
    """Numbers as little-endian float32 bytes (`double`: float64), row by row."""
    kind = "<f8" if double else "<f4"
    array = values if isinstance(values, np.ndarray) else np.fromiter(values, dtype=kind)
    return np.ascontiguousarray(array, dtype=kind).tobytes()


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
    """Bytes of the device's memory (of a CPU: of the machine, or of this process's container); None: unknown."""
    request: dict[str, Any] = field(default_factory=dict)
    """The arguments of a search besides the settings, by name."""
    groups: tuple[tuple[tuple[str, float], ...], ...] = ()
    """Of each optimizer the parameter groups: the name, "" where it has none, and the rate as a multiple of the setting lr."""
    supervised: bool = False
    """Whether one loss compares outputs with targets that do not change: then it does not grow while a model learns."""


@dataclass(frozen=True, slots=True)
class StepsDone:
    """The updates since the last flush: rows `step`, `step + every`, …, one number per row and column, float32 unless named in `double`.

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
    double: tuple[str, ...] = ()
    """The columns that hold float64 numbers, since such were measured; never those by layer."""
    layers_every: int = 1
    """The stride of the rows that have columns by layer: the others were thinned as they grew old (`thinned`)."""
    samples: int | None = None
    """How many samples the updates since the last flush were made of, on all ranks; None: unknown."""

    @property
    def layer_rows(self) -> NDArray[np.bool_]:
        """Which rows the columns by layer have, shape (rows,)."""
        rows: NDArray[np.bool_] = (self.step // self.every + np.arange(self.rows)) % self.layers_every == 0
        return rows

    def array(self, name: str) -> NDArray[Any]:
        """Column `name`, shape (rows,), float32 or (if named in `double`) float64; those by layer have shape (rows, layers), float32."""
        if name in self.double:
            return np.frombuffer(self.columns[name], dtype="<f8").astype(np.float64)
        flat = unpack(self.columns[name])
        if name not in BY_LAYER or not self.rows:
            return flat.reshape(self.rows, -1) if name in BY_LAYER else flat
        if self.layers_every == 1:
            return flat.reshape(self.rows, -1)
        there = self.layer_rows
        table = flat.reshape(int(there.sum()), -1)
        whole = np.full((self.rows, table.shape[1]), np.nan, np.float32)
        whole[there] = table
        return whole

    @property
    def steps(self) -> NDArray[np.int64]:
        """The update numbers of the rows, shape (rows,)."""
        return self.step + self.every * np.arange(self.rows, dtype=np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(map(len, self.columns.values()))

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
class TimeSpent:
    """Where `seconds` of training went, up to update `step`: seconds by part, which add up to all of them.

    Parts: "data" (waiting for batches), "first batch" (the same, for the first one of an epoch), "transfer" (to the device),
    "forward", "backward", "sync" (waiting for other ranks), "optimizer", "hooks" (of a LightningModule and its callbacks),
    "validation", "checkpoints", "logging", "searches" (at the start of an epoch), and "workbench" (norms, checks and
    counting). "other": updates on a device whose time cannot be taken.
    """

    step: int
    seconds: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Validated:
    """One validation, after update `step` (the number of updates taken so far).

    Metrics of averaged weights are there too, with the suffix "_averaged".
    """

    step: int
    epoch: int
    metrics: dict[str, float]
    prog_bar: tuple[str, ...] = ()
    """Those that the model logged with `prog_bar=True`."""
    asked: bool = False
    """Whether the user asked for it (`job.validate()`): nothing in the run depends on it."""

    @property
    def on_bar(self) -> dict[str, float]:
        """The metrics that the progress line shows (`prog_bar=True`), those of averaged weights too."""
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
        """The metrics that the progress line shows (`prog_bar=True`)."""
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
    """Events before this one are the record of `run` up to its `checkpoint`; from here on this run continues, with
    `values` changed.
    """

    step: int
    run: str
    checkpoint: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changed:
    """A live change, with the values that were applied: they hold from update `step` on."""

    step: int
    values: dict[str, float | bool | None]


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
class RaceTrial:
    """One learning rate of a race has trained for `updates` updates. `loss`: the mean of held-out batches; inf: it diverged."""

    lr: float
    updates: int
    loss: float


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
    """The first rate whose loss diverged or was not finite; None: no such rate was seen."""


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
    """How much it could have taken, measured as the peak is; None: unknown."""
    uncertainty: float | None = None
    """The typical time is known within this share of itself (95%); None: too few updates were timed to tell."""
    updates_per_epoch: int | None = None
    """How many updates an epoch has with batches of this size; None: the data has no length, or no updates are taken."""


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """The batch-size search is over: the recommended size and the largest one, both tried and passed.

    `accumulate_grad_batches`: how many batches of the recommended size make the effective batch, where it was kept.
    `fastest`: the smallest size nearly as fast as the fastest. `reason`: why the recommended size is recommended.
    `noise_scale`: the gradient noise scale in samples at the weights that the model had, None where it is not known;
    `noise_reason` says what it means, or why it is not known ("": nothing measured it).
    """

    best: int | None
    largest: int | None
    ended: str
    accumulate_grad_batches: int | None = None
    fastest: int | None = None
    reason: str = ""
    noise_scale: float | None = None
    noise_uncertainty: float | None = None
    """The noise scale is known within this share of itself (95%)."""
    noise_reason: str = ""


@dataclass(frozen=True, slots=True)
class SpeedTrial:
    """Values of settings were tried: how fast updates are with them, or why they failed.

    `uncertainty`: half the width of the speed's 95% interval, as a share of it. `waiting`: the share of the time in which
    training waited for batches. `loss`: the mean of the last losses.
    """

    values: dict[str, Any]
    updates_per_second: float | None
    uncertainty: float | None = None
    waiting: float | None = None
    loss: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SpeedSearchEnded:
    """The search for faster settings is over: the values to take, and why."""

    best: dict[str, Any]
    reason: str
    ended: str


@dataclass(frozen=True, slots=True)
class ClipSearchEnded:
    """The search for a clip value is over. `best`: the settings it recommends; empty: no clipping is needed.

    `suggestion`: the value that a tenth of the norms exceed. `norms`: of each optimizer those of its updates.
    """

    best: dict[str, Any]
    suggestion: float | None
    norms: tuple[tuple[float, ...], ...]
    reason: str
    ended: str


@dataclass(frozen=True, slots=True)
class DecayTrial:
    """A weight decay has trained for `updates` updates. `loss`: the mean of held-out batches; inf: it diverged."""

    weight_decay: float
    updates: int
    loss: float


@dataclass(frozen=True, slots=True)
class DecaySearchEnded:
    """The search for a weight decay is over. `best`: the settings it recommends; empty: the present value stays.

    `suggestion`: the weight decay itself; None: nothing is clearly better than the present value.
    """

    best: dict[str, Any]
    suggestion: float | None
    reason: str
    ended: str


@dataclass(frozen=True, slots=True)
class TuneStep:
    """A search of a `tune` job is over: the settings that it recommends (none: they stay), and why."""

    search: str
    values: dict[str, Any]
    reason: str


@dataclass(frozen=True, slots=True)
class Message:
    """Something a person should read."""

    text: str
    level: Literal["info", "warning", "error"] = "info"
    step: int = 0


@dataclass(frozen=True, slots=True)
class Checksums:
    """What a fit began with, as checksums of eight hex digits ("": none), by which a script finds out that it begins otherwise."""

    weights: str = ""
    """Of the first numbers of each trained parameter."""
    order: str = ""
    """Of the number of training samples and of the generator that shuffles them."""
    batches: tuple[str, ...] = ()
    """Of the first training batches of rank 0, before they are moved to the device."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A fact of the training that only the engine can see, after `step` updates; `runs.health` judges it.

    "evaluation_mode": these `parts` of the model ("" is all of it) were in evaluation mode during an update.
    "same_order": the samples of this epoch came in the order of the epoch before, although they are shuffled.
    "slow_calls": these `parts` of the user's code make training wait in each update; sentences with the share of the time
    that was measured.
    "loader_option": the training loader has an option (the first of `parts`: "num_workers=0") from this place (the second):
    "setting"; "DataLoader", of whose parts the loader is made; or "own DataLoader", which is read itself.
    """

    step: int
    epoch: int
    what: Literal["evaluation_mode", "same_order", "slow_calls", "loader_option"]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The job is over. Always the last event."""

    status: Status
    step: int
    seconds: float
    error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    where: str = ""
    """The last line of the user's own code that the error passed: "cell 4, line 7: loss = self.net(x)"."""
    traceback: str = ""


Event = (
    RunStarted | StepsDone | TimeSpent | Validated | Logged | Saved | Resumed | Changed | StatusChanged | CurvePoint | RaceTrial | CurveEnded
    | TrialStarted | Trial | SearchEnded | SpeedTrial | SpeedSearchEnded | ClipSearchEnded | DecayTrial | DecaySearchEnded | TuneStep
    | Message | Checksums | Observed | RunEnded
)  # fmt: skip
Emit = Callable[[Event], None]

_TYPES: dict[str, type] = {
    t.__name__: t
    for t in (
        RunStarted, StepsDone, TimeSpent, Validated, Logged, Saved, Resumed, Changed, StatusChanged, CurvePoint, RaceTrial, CurveEnded,
        TrialStarted, Trial, SearchEnded, SpeedTrial, SpeedSearchEnded, ClipSearchEnded, DecayTrial, DecaySearchEnded, TuneStep,
        Message, Checksums, Observed, RunEnded,
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


def size_of(event: Event) -> int:
    """About how many bytes an event takes in memory."""
    return 500 + event.nbytes if isinstance(event, StepsDone) else 500


def thinned(event: StepsDone, every: int) -> StepsDone:
    """The flush with its columns by layer at every `every`-th update alone, a multiple of its present stride;
    without any where none is left.
    """
    names = [name for name in BY_LAYER if event.columns.get(name)]
    if every <= event.layers_every or not names:
        return event
    there = event.layer_rows
    number = event.step // event.every + np.flatnonzero(there)
    columns = dict(event.columns)
    for name in names:
        kept = unpack(columns[name]).reshape(len(number), -1)[number % every == 0]
        columns[name] = kept.tobytes()
        if not len(kept):
            del columns[name]
    return replace(event, columns=columns, layers_every=every)


def from_line(line: str | bytes, only: Container[str] | None = None) -> Event:
    """The event that `to_line` wrote. `only`: the columns of flushes that are wanted; the others are not decoded.

    Raises ValueError or TypeError for anything else: a field of another type, a number that is too large to count with, a
    column whose length is not that of its flush, data nested too deeply.
    """
    try:
        record = json.loads(line)
        if not isinstance(record, dict):
            raise TypeError("a line of a record is a JSON object")
        return _checked(record, only)
    except (RecursionError, OverflowError, KeyError) as error:
        raise ValueError(f"not an event: {error!r}") from None


def _checked(record: dict[str, Any], only: Container[str] | None) -> Event:
    name = record.pop("type")
    kind = _TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"no event is called {name!r:.80}")
    if kind is StepsDone:
        record["columns"], texts = {}, _object(record.get("columns"))
    event: Event = _instance(kind, record)
    if isinstance(event, StepsDone):
        _check_flush(event, texts)
        for column, text in texts.items():
            if only is None or column in only:
                event.columns[column] = binascii.a2b_base64(text, strict_mode=True)
    return event


def _check_flush(event: StepsDone, texts: Mapping[str, Any]) -> None:
    """Whether the columns are as long as the flush says; they are not decoded for that."""
    if event.step < 0 or event.every < 1 or event.rows < 0 or event.layers_every < 1 or event.step + event.every * event.rows > 2 * LARGEST:
        raise ValueError("updates are counted from 0 on")
    if not math.isfinite(event.seconds) or not math.isfinite(event.waited):
        raise ValueError("a time is a finite number")
    single = False
    first, every = event.step // event.every, event.layers_every
    by_layer = 4 * ((first + event.rows - 1) // every - (first - 1) // every)
    for name, text in texts.items():
        size, column = _decoded_size(text), (8 if name in event.double else 4) * event.rows
        if name in BY_LAYER:
            fits = name not in event.double and (size % by_layer == 0 if by_layer else size == 0)
        else:  # one of a newer version may be a table
            fits = size == column or bool(column and size % column == 0 and not _MEASURED.fullmatch(name))
            single |= size == column
        if not fits:
            raise ValueError(f"column {name!r:.80} does not have {event.rows} rows")
    if not single and event.rows > _UNMEASURED:
        raise ValueError(f"{event.rows} updates of which nothing was measured")


def _decoded_size(text: object) -> int:
    """How many bytes a base64 text encodes."""
    if not isinstance(text, str) or len(text) % 4:
        raise ValueError("a column is base64 text")
    return len(text) // 4 * 3 - text[-2:].count("=")


# -- types of what is read --------------------------------------------------------------------------------------------

_Read = Callable[[Any], Any]


def _instance(kind: type, record: Mapping[str, Any]) -> Any:
    """An object of a frozen class from its fields by name, each of the type that the class names; unknown ones are an error."""
    readers = _READERS[kind]
    values = {}
    for name, value in record.items():
        if name not in readers:
            raise ValueError(f"{kind.__name__} has no {name!r:.80}")
        try:
            values[name] = readers[name](value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{kind.__name__}.{name}: {error}") from None
    return kind(**values)


def _reader(hint: Any) -> _Read:
    """What makes a value of this type of JSON data, or raises TypeError or ValueError."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return _plain
    if hint in (bool, str, bytes):
        return lambda value: _of(hint, value)
    if hint is int:
        return _count
    if hint is float:
        return _number
    if hint is type(None):
        return _none
    if origin is Literal:
        return lambda value: _one_of(inner, value)
    if origin in (Union, types.UnionType):
        return _any_of([_reader(part) for part in inner])
    if origin is dict:
        read = _reader(inner[1])
        return lambda value: {key: read(item) for key, item in _object(value).items()}
    if origin is tuple and inner[1:] == (...,):
        read = _reader(inner[0])
        return lambda value: tuple(map(read, _list(value)))
    if origin is tuple:
        parts = [_reader(part) for part in inner]
        return lambda value: tuple(part(item) for part, item in zip(parts, _list(value), strict=True))
    names = [f.name for f in fields(hint)]  # of a class: its fields in order
    return lambda value: _instance(hint, dict(zip(names, _list(value), strict=True)))


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.80} is not a {kind.__name__}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or abs(value) > LARGEST:
        raise TypeError(f"{value!r:.80} is not a whole number that can be counted with")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.80} is not a number")
    float(value)  # an int may be too large to be one
    return value


def _none(value: Any) -> None:
    if value is not None:
        raise TypeError(f"{value!r:.80} is not null")


def _one_of(known: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{value!r:.80} is none of {', '.join(map(repr, known))}")
    return value


def _any_of(readers: list[_Read]) -> _Read:
    def read(value: Any) -> Any:
        for reader in readers[:-1]:
            try:
                return reader(value)
            except (TypeError, ValueError):
                continue
        return readers[-1](value)

    return read


def _list(value: Any) -> list[Any]:
    found: list[Any] = _of(list, value)
    return found


def _object(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = _of(dict, value)
    return found


def _plain(value: Any, depth: int = 0) -> Any:
    """JSON data that is not too deep, with numbers that are not too large."""
    if depth > _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} containers within one another")
    if isinstance(value, int) and value.bit_length() > 64:
        raise ValueError("a number of more than 64 bits")
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    return value


_READERS: dict[type, dict[str, _Read]] = {}
for _kind in (Suggestion, *_TYPES.values()):
    _hints = get_type_hints(_kind)
    _READERS[_kind] = {f.name: _reader(_hints[f.name]) for f in fields(_kind)}


@dataclass(frozen=True, slots=True)
class Called:
    """The line of code for what was just asked of the bench. For views; not recorded."""

    code: str


@dataclass(frozen=True, slots=True)
class SettingsSet:
    """The bench has these settings now. For views; not recorded."""

    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """Views are to draw this recorded run; "": the present job. Not recorded."""

    run: str


@dataclass(frozen=True, slots=True)
class Compared:
    """Views are to draw these runs over one another; none: to remove them. Not recorded."""

    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deleted:
    """A run is gone from the folder. Not recorded."""

    run: str


@dataclass(frozen=True, slots=True)
class Annotated:
    """A run has another name, notes, tags or pin. Not recorded."""

    run: str


BenchEvent = Event | Called | SettingsSet | Shown | Compared | Deleted | Annotated
