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
    """A job starts to run. `updates` and `epochs` are the totals, None where the data has no
    length.
    """

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
    """Bytes of memory that the device has (for a CPU: the machine, or this process's container);
    None: unknown.
    """
    request: dict[str, Any] = field(default_factory=dict)
    """The arguments of a search besides the settings, by name."""
    groups: tuple[tuple[tuple[str, float], ...], ...] = ()
    """The parameter groups of each optimizer: the name ("" where it has none), and the learning
    rate as a multiple of the setting `lr`.
    """
    supervised: bool = False
    """Whether a single loss compares outputs with fixed targets: such a loss does not grow while
    a model learns.
    """
    resumed_at: int = 0
    """How many updates had been taken when it began: of a fit that continues. Then the events up to
    `Resumed` are the record of what came before.
    """


@dataclass(frozen=True, slots=True)
class StepsDone:
    """The updates since the last flush: rows `step`, `step + every`, …, one number per row and
    column, float32 unless named in `double`.

    Columns: "loss", "lr", "grad_norm" (total, before clipping), "grad_norm_clipped" (after), and
    "layer_norms" (rows x layers of `RunStarted.layers`, row-major, before clipping),
    "update_ratios" (the same shape: how far the update moved each layer's weights, relative to
    their norm; there only while it is measured, NaN for updates between two measurements), and
    whatever the model logged for single updates, by its name. NaN: no value.
    """

    step: int
    every: int
    rows: int
    epoch: int
    seconds: float
    """Seconds since the run began, without pauses."""
    columns: dict[str, bytes]
    prog_bar: tuple[str, ...] = ()
    """The columns that the model logged with `prog_bar=True`."""
    waited: float = 0.0
    """The part of `seconds` in which training waited for batches (without validation)."""
    memory: int | None = None
    """Bytes that the process which writes the record uses on the device (on a CPU: its memory,
    without loader workers).
    """
    double: tuple[str, ...] = ()
    """The columns that hold float64 numbers, because their values were float64; never columns by
    layer.
    """
    layers_every: int = 1
    """The stride of the rows that have columns by layer; `thinned` removes the others from old
    flushes.
    """
    samples: int | None = None
    """How many samples the updates after the last row of the flush before, up to the last row
    here, were made of, on all ranks; None: unknown.
    """
    cpu: float | None = None
    """How busy all cores of the machine were, from 0 to 1, in the last second or longer; None:
    unknown.
    """
    gpu: float | None = None
    """How busy the GPU was of the process that writes the record, from 0 to 1; None: unknown."""

    @property
    def busy(self) -> list[str]:
        """The known shares in words: ["GPU 87%", "CPU 40%"]."""
        shares = {"GPU": self.gpu, "CPU": self.cpu}
        return [f"{name} {share:.0%}" for name, share in shares.items() if share is not None]

    @property
    def layer_rows(self) -> NDArray[np.bool_]:
        """Whether each row has columns by layer, shape (rows,)."""
        rows: NDArray[np.bool_] = (
            self.step // self.every + np.arange(self.rows)
        ) % self.layers_every == 0
        return rows

    def array(self, name: str) -> NDArray[Any]:
        """Column `name`, shape (rows,), float32 or (if named in `double`) float64; those by
        layer have shape (rows, layers), float32.
        """
        if name in self.double:
            return np.frombuffer(self.columns[name], dtype="<f8").astype(np.float64)
        flat = unpack(self.columns[name])
        if name not in BY_LAYER or not self.rows:
            return flat.reshape(self.rows, -1) if name in BY_LAYER else flat
        if self.layers_every == 1:
            return flat.reshape(self.rows, -1)
        present = self.layer_rows
        table = flat.reshape(int(present.sum()), -1)
        whole = np.full((self.rows, table.shape[1]), np.nan, np.float32)
        whole[present] = table
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
        known = {
            name: values[~np.isnan(values)]
            for name in self.prog_bar
            for values in [self.array(name)]
        }
        return {name: float(values[-1]) for name, values in known.items() if len(values)}


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """How `seconds` of training were spent, up to update `step`: the seconds of each part, which
    add up to `seconds`.

    Parts: "data" (waiting for batches), "first batch" (the same, for the first one of an epoch),
    "transfer" (to the device), "forward", "backward", "sync" (waiting for other ranks),
    "optimizer", "hooks" (of a LightningModule and its callbacks), "validation", "checkpoints",
    "logging", "searches" (at the start of an epoch), and "workbench" (norms, checks and counting).
    "compile": what torch.compile takes, in whichever part it compiles. "other": updates on a device
    that cannot be timed.
    """

    step: int
    seconds: float
    parts: dict[str, float]


@dataclass(frozen=True, slots=True)
class Validated:
    """One validation, after update `step` (the number of updates taken so far).

    Metrics of averaged weights have the suffix "_averaged".
    """

    step: int
    epoch: int
    metrics: dict[str, float]
    prog_bar: tuple[str, ...] = ()
    """Those that the model logged with `prog_bar=True`."""
    asked: bool = False
    """Whether the user requested it by `job.validate()`; nothing in the run depends on such a
    validation.
    """

    @property
    def on_bar(self) -> dict[str, float]:
        """The metrics that the progress line shows (`prog_bar=True`), also those of averaged
        weights.
        """
        return {
            name: value
            for name, value in self.metrics.items()
            if name.removesuffix("_averaged") in self.prog_bar
        }


@dataclass(frozen=True, slots=True)
class Sampled:
    """A function of `bench.watch` was called at a validation, after `step` updates. The pictures
    and texts that it returned are in `file` of the run's folder `samples/`.
    """

    step: int
    epoch: int
    name: str
    """The function's name."""
    file: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """How values are distributed: the counts of equally wide bins from `low` to `high`.

    Of more than 65536 values, evenly spaced ones are counted.
    """

    low: float
    high: float
    counts: tuple[int, ...]
    not_finite: int = 0
    """How many values were not finite; no bin has them."""


@dataclass(frozen=True, slots=True)
class LayerHistograms:
    """A layer, a parameter by its name, in one update.

    `activations`: what its module returned for the first batch; where an activation function
    (`function`: "ReLU") takes that, what the function returned. None: the module was not called.
    """

    name: str
    weights: Histogram
    activations: Histogram | None = None
    function: str = ""
    dead: float | None = None
    """The share of its module's units that got no gradient from any sample of the batch."""
    saturated: float | None = None
    """The share of values near an end of the function's range, where it is flat ("Tanh",
    "Sigmoid"); None: the function has no two ends.
    """


@dataclass(frozen=True, slots=True)
class LayersMeasured:
    """The weights and activations of some layers were measured (`job.histograms()`), after `step`
    updates.
    """

    step: int
    layers: tuple[LayerHistograms, ...]
    left_out: int = 0
    """How many more layers were asked for."""


@dataclass(frozen=True, slots=True)
class Logged:
    """What the model logged over an epoch of training, after `step` updates (`self.log(…,
    on_epoch=True)`).
    """

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
    """A checkpoint was written, after `step` updates. `best`: it is the best so far by
    `monitor`, which had this `value`.
    """

    step: int
    epoch: int
    name: str
    best: bool = False
    monitor: str | None = None
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """Events before this one are the record of `run` up to its `checkpoint`; from here on this run
    continues, with `values` changed.
    """

    step: int
    run: str
    checkpoint: str
    values: dict[str, Any] = field(default_factory=dict)
    unfrozen: tuple[str, ...] = ()
    """Layers that were frozen before and are trained from here on."""
    frozen: tuple[str, ...] = ()
    """Layers that were trained before and are frozen from here on."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Settings were changed while the job runs: the applied values, which hold from update
    `step` on.
    """

    step: int
    values: dict[str, float | bool | None]


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The job is now in this state, after `step` updates."""

    status: Status
    step: int = 0
    why: str = ""
    """What a queued job waits for: "waiting for device 0: 0007-fit trains on it"."""


REPEATS, DOES_NOT_REPEAT = "repeats ", "does not repeat "
"""The first words of the message at the end of a fit that repeats another (`wb.rerun`)."""
ENDED_EARLY = "the run ended early"
"""The first words of the message about a fit that ended before its length: by early stopping, or
`trainer.should_stop`.
"""
SHARDED = "FSDP: weights, gradients and the optimizer's state are sharded"
"""The first words of the message about weights that no process has as a whole."""


@dataclass(frozen=True, slots=True)
class Message:
    """A note or warning for the user."""

    text: str
    level: Literal["info", "warning", "error"] = "info"
    step: int = 0


@dataclass(frozen=True, slots=True)
class Spiked:
    """The loss or the gradient norm of update `step` was far above what was expected: the medians
    of the updates before it.

    action: what `on_spike` did: "report" nothing, "skip" left the update out, "rollback" also gave
    the weights of update `back_to` back.
    """

    step: int
    epoch: int
    loss: float
    expected: float
    grad_norm: float | None = None
    """The total norm before clipping; None: it was not measured."""
    expected_norm: float | None = None
    samples: tuple[int, ...] = ()
    """The indices of its samples in the training data; those of rank 0 where several ranks report.
    Empty: the data have no indices.
    """
    action: Literal["report", "skip", "rollback"] = "report"
    back_to: int | None = None
    are_batches: bool = False
    """Whether `samples` are the numbers of batches in their loader, which gives ready ones."""


@dataclass(frozen=True, slots=True)
class Checksums:
    """Checksums of what a fit began with, eight hex digits each ("": none). A script that was
    exported with `checks=True` compares its weights and batches with them.
    """

    weights: str = ""
    """The checksum of the first numbers of each parameter of the trained modules."""
    order: str = ""
    """The checksum of the number of training samples and of the generator that shuffles them."""
    batches: tuple[str, ...] = ()
    """The checksums of the first training batches of rank 0, before they are moved to the
    device.
    """
    setup: str = ""
    """The checksum of how the trained modules are set up: classes, modes, what is trained,
    hooks, plain attributes.
    """


@dataclass(frozen=True, slots=True)
class Observed:
    """A fact of the training that only the engine can see, after `step` updates; `runs.health`
    judges it.

    "evaluation_mode": these `parts` of the model ("" is all of it) were in evaluation mode during
    an update. "same_order": the samples of this epoch came in the order of the epoch before,
    although they are shuffled. "slow_calls": these `parts` of the user's code make training wait in
    each update; sentences with the share of the time that was measured. "loader_option": the
    training loader has an option. The first of `parts` is the option ("num_workers=0"), the second
    is where
    it comes from: "setting"; "DataLoader", whose parts the loader is made from; or "own
    DataLoader", which is used unchanged.
    """

    step: int
    epoch: int
    what: Literal["evaluation_mode", "same_order", "slow_calls", "loader_option"]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The job ended. Always the last event."""

    status: Status
    step: int
    seconds: float
    error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    where: str = ""
    """The last line of the user's own code that the error passed: "cell 4, line 7: loss =
    self.net(x)".
    """
    traceback: str = ""


def thinned(event: StepsDone, every: int) -> StepsDone:
    """Return the flush with its columns by layer at only every `every`-th update; `every` is a
    multiple of the present stride.

    The columns by layer are removed where no such update is in the flush.
    """
    names = [name for name in BY_LAYER if event.columns.get(name)]
    if every <= event.layers_every or not names:
        return event
    present = event.layer_rows
    number = event.step // event.every + np.flatnonzero(present)
    columns = dict(event.columns)
    for name in names:
        kept = unpack(columns[name]).reshape(len(number), -1)[number % every == 0]
        columns[name] = kept.tobytes()
        if not len(kept):
            del columns[name]
    return replace(event, columns=columns, layers_every=every)
