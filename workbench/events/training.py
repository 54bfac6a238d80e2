"""Events of a job and of its training, from `RunStarted` to `RunEnded`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workbench.events.columns import BY_LAYER, MEASURED, unpack

Status = Literal["queued", "running", "paused", "finished", "stopped", "failed"]


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
    """How many processes run the job together."""
    memory: int | None = None
    """Bytes of the device's memory (of a CPU: of the machine, or of this process's container); None: unknown."""
    request: dict[str, Any] = field(default_factory=dict)
    """The arguments of a search besides the settings, by name."""
    groups: tuple[tuple[tuple[str, float], ...], ...] = ()
    """Of each optimizer the parameter groups: the name, "" where it has none, and the rate as a multiple of the setting lr."""
    supervised: bool = False
    """Whether one loss compares outputs with fixed targets: then it does not grow while a model learns."""


@dataclass(frozen=True, slots=True)
class StepsDone:
    """The updates since the last flush: rows `step`, `step + every`, …, one number per row and column, float32 unless named in `double`.

    Without rows (`log_every_n_steps` > 1) it counts the samples of updates after the last row; `step` updates have been taken by then.

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
            return flat.reshape(self.rows, -1 if self.rows else 0) if name in BY_LAYER else flat
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
    def done(self) -> int:
        """How many updates have been taken with its last row."""
        return self.step + self.every * (self.rows - 1) + 1 if self.rows else self.step

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(map(len, self.columns.values()))

    @property
    def logged(self) -> tuple[str, ...]:
        """The columns that the model logged, by its names."""
        return tuple(name for name in self.columns if not MEASURED.fullmatch(name))

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
    unfrozen: tuple[str, ...] = ()
    """Layers that are trained from here on and were not before."""
    frozen: tuple[str, ...] = ()
    """Layers that were trained before and are not from here on."""


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


ENDED_EARLY = "the run ended early"
"""How the message begins that says why a fit ended before its length: early stopping, or `trainer.should_stop`."""


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
    """Of the first numbers of each parameter of the trained modules."""
    order: str = ""
    """Of the number of training samples and of the generator that shuffles them."""
    batches: tuple[str, ...] = ()
    """Of the first training batches of rank 0, before they are moved to the device."""
    setup: str = ""
    """Of how the trained modules are set up: their classes, modes, what is trained, hooks, plain attributes."""


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
