"""What an exported script depends on, before any of it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from workbench.export.source import Sliced
from workbench.settings import Settings

CARRIED = {
    "lr", "weight_decay", "batch_size", "accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm",
    "max_epochs", "max_steps", "shuffle", "num_workers", "pin_memory", "persistent_workers", "drop_last",
    "check_val_every_n_epoch", "accelerator", "seed", "deterministic",
}  # fmt: skip
"""The settings that a script carries."""

NOT_NEEDED = {"track_grad_norm", "log_every_n_steps", "keep_runs"}
"""They say what is kept of a run, or where; the script computes the same without them."""

LIVE = {"lr", "gradient_clip_val"}
"""The settings whose live changes a script replays."""

GIVEN = {
    "network": "model", "train_data": "train", "val_data": "val", "loss_function": "loss", "metrics": "metrics",
    "collate": "collate_fn", "make_optimizer": "optimizer", "make_scheduler": "scheduler",
}  # fmt: skip
"""What the script's own text calls the arguments of the bench, until the user's words for them are put in."""


@dataclasses.dataclass(frozen=True)
class Data:
    """How a script gets one loader. All text is Python, in the names of `GIVEN`."""

    dataset: str
    """What the loader reads."""
    before: tuple[str, ...] = ()
    """Lines that `dataset` counts on."""
    kind: Literal["samples", "stream", "batches"] = "samples"
    """Samples by index; samples that can only be iterated; ready batches."""
    arrays: bool = False
    """Whether it is a tuple of arrays, which makes a TensorDataset."""
    columns: bool = False
    """Whether it is a dict of arrays, which needs a class of its own."""
    iterable: bool = True
    """Whether a stream or ready batches are an IterableDataset already."""
    sampler: str | None = None
    batch_sampler: str | None = None
    generator: str | None = None
    """The user's own generator, copied; None: one from the seed."""
    collate: str | None = None
    worker_init: str | None = None
    whole: bool = False
    """Whether the data set makes whole batches by itself (`__getitems__`)."""
    pinned: bool = True
    """Whether its batches are pinned where there is a GPU: not where the data lie there already."""
    sized: bool = True
    """Whether the number of batches is known before."""
    count: str = "1"
    """How many samples `batch` holds."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A scheduler of an object with hooks: where it is in what `configure_optimizers()` returned, and when it steps."""

    place: str
    interval: str
    frequency: int


@dataclasses.dataclass(frozen=True)
class Hooks:
    """An object that trains itself."""

    homes: Mapping[str, str]
    """Where its lr and batch_size live, as assignable expressions."""
    asks_trainer: bool
    """Whether it reads from its trainer how far it is."""
    train_index: bool
    val_index: bool
    """Whether its steps take the number of the batch."""
    optimizer: str
    """Where the optimizer is in what `configure_optimizers()` returned: "" or an index expression."""
    schedules: tuple[Schedule, ...]
    made_lr: float | None
    """The base rate that it makes its optimizer with; None where it reads the one that it is given."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """All that a script depends on."""

    run: str
    model: str
    version: str
    script: str
    sliced: Sliced
    kinds: Mapping[str, str]
    """What each of the user's names held, in a word."""
    settings: Settings
    threads: int
    weights: str | None
    """The file beside the script with the weights that the run began with; None: there is none."""
    stopped: int | None
    """The updates after which it was stopped; None: it went its whole length."""
    planned: int | None
    """The updates that its scheduler was made for."""
    changes: tuple[tuple[int, Mapping[str, float | None]], ...]
    train: Data
    val: Data | None
    prepare: tuple[str, ...]
    """Calls that objects which make loaders count on."""
    batch: str
    """A training batch: "pair", "tuple", "single", "dict:<key of the target>", or "own" with hooks."""
    mean: bool
    """Whether the loss is a mean over samples, so that a batch weighs as many as it holds."""
    loss_is_module: bool
    metric_modules: bool
    hooks: Hooks | None

    @property
    def max_steps(self) -> int | None:
        """The number of updates that ends it, if a number does."""
        return self.settings.max_steps if self.stopped is None else self.stopped

    @property
    def max_epochs(self) -> int | None:
        """The number of epochs that ends it, if a number does."""
        return self.settings.epochs if self.stopped is None else None

    @property
    def sets_threads(self) -> bool:
        """Whether the user's code says how many threads there are: then the script must say it after."""
        return "set_num_threads" in self.sliced.code

    @property
    def accumulates(self) -> bool:
        return self.settings.accumulate_grad_batches > 1

    @property
    def clips(self) -> bool:
        """Whether gradients were clipped at any time."""
        return self.settings.gradient_clip_val is not None or self.changed("gradient_clip_val")

    @property
    def measures(self) -> bool:
        """Whether there are metrics to report beside the loss."""
        return self.val is not None and self.given("metrics") is not None

    @property
    def scheduled(self) -> bool:
        """Whether anything schedules the learning rate."""
        return bool(self.hooks.schedules) if self.hooks else self.given("scheduler") is not None

    @property
    def loaders(self) -> tuple[Data, ...]:
        return (self.train,) if self.val is None else (self.train, self.val)

    def changed(self, name: str) -> bool:
        """Whether a setting was changed while the run went on."""
        return any(name in values for _, values in self.changes)

    def given(self, name: str) -> str | None:
        """The expression that was given for an argument of the bench; None where there was none."""
        expression = self.sliced.arguments.get(name, "None")
        return None if expression == "None" else expression


def quoted(value: Any) -> str:
    """`repr`, with double quotes."""
    text = repr(value)
    if isinstance(value, str) and text.startswith("'") and '"' not in text:
        return f'"{text[1:-1]}"'
    return text
