"""Defines plain descriptions of the user's data, optimizers and hooks, as far as a script needs
them.

All texts in them are Python code that uses the names of `GIVEN`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from workbench.task.optim.closures import ClosureUse

GIVEN = {
    "network": "model",
    "train_data": "train",
    "val_data": "val",
    "val_sets": "val",
    "loss_function": "loss",
    "metrics": "metrics",
    "collate": "collate_fn",
    "val_collate": "val_collate_fn",
    "make_optimizer": "optimizer",
    "rules": "groups",
    "batch_transform": "batch_transform",
    "make_scheduler": "scheduler",
    "averaged": "avg_fn",
    "should_average": "should_update",
}
"""The names of the bench's arguments in the script's own text, until the user's expressions
replace them.
"""


def collate_given(name: str, arguments: Mapping[str, str]) -> str | None:
    """The expression of the collate function that the bench was given for "train" or "val";
    None: none. arguments: of the bench, by name.
    """
    names = ["collate"] if name == "train" else ["val_collate", "collate"]
    return next((value for value in names if arguments.get(GIVEN[value], "None") != "None"), None)


@dataclasses.dataclass(frozen=True)
class Data:
    """The code with which a script makes one loader. All texts are Python that uses the names of
    `GIVEN`.
    """

    dataset: str
    """The expression for the data that the loader reads."""
    made_by_object: bool = False
    """Whether a method of the user's object makes its loader."""
    kind: Literal["samples", "stream", "batches"] = "samples"
    """"samples": read by index; "stream": samples that can only be iterated; "batches": ready
    batches.
    """
    combined: bool = False
    """Whether it is one of several sets that were given in Lightning's CombinedLoader."""
    arrays: bool = False
    """Whether it is a tuple of arrays, which makes a TensorDataset."""
    converted: bool = False
    """Whether one of these arrays is a data frame, or has a form that torch does not accept."""
    kinds: tuple[str, ...] = ()
    """Of a tuple or a dict of arrays, the type of each as a tensor."""
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
    with_set_epoch: tuple[str, ...] = ()
    """The objects with a `set_epoch`: the sampler, the batch sampler, the data set."""
    pinned: bool = True
    """Whether its batches are pinned where there is a GPU; not where the data are on the GPU
    already.
    """
    sized: bool = True
    """Whether the number of batches is known before the first one."""
    counts: bool = True
    """Whether accelerate reads from a batch of how many samples it was made."""
    empty: bool = False
    """Whether a batch may be None, and is left out."""
    generators: tuple[str, ...] = ()
    """The generators of the user's samplers."""
    unkept: str = ""
    """The class of a user's object that advances from epoch to epoch and whose position no
    checkpoint can store; "": none.
    """
    reuses_memory: bool = False
    """Whether reading a batch may overwrite the one before."""
    draws: bool = False
    """Whether sharding its batches over several processes may draw from the processes' own
    random numbers.
    """
    saved: str = ""
    """The expression that makes its data set from `tensors`, the contents of the file next to
    the script; "": the user's code makes it.
    """


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The metrics of a bench: functions of a batch, and objects that are computed over a
    validation.
    """

    functions: bool = False
    """Whether there are functions."""
    modules: bool = False
    """Whether any is a module, which has a device and a mode."""
    objects: bool = False
    """Whether there are objects with `update`, `compute` and `reset`."""
    pairs: tuple[str, ...] = ()
    """The names of those whose `update` takes one pair."""
    dicts: bool = False
    """Whether any returns several numbers by name."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A scheduler of the user: its place in the return value of the user's function, and when it
    steps.
    """

    place: str
    """ "" or an index expression."""
    interval: str
    frequency: int
    monitor: str | None = None
    """The metric that a ReduceLROnPlateau follows; None: it is another scheduler."""
    by_batches: bool = False
    """Whether its frequency counts the batches of an epoch."""
    restores: bool = True
    """Whether a checkpoint can hold its state: plain data, which torch.load(weights_only=True)
    reads.
    """


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer of the run."""

    place: str = ""
    """Its place in the return value of `configure_optimizers()`: "" or an index expression."""
    schedules: tuple[Schedule, ...] = ()
    made_lr: float | None = None
    """The base rate at which an object, or a function, makes it; None where it uses the given
    rate.
    """
    takes_lr: bool = True
    """Whether the function that makes it is called with the rate."""
    named: bool = False
    """Whether the function gets the names of the parameters, too."""
    parts: tuple[Mapping[str, Any], ...] = ()
    """Of several that step together, the arguments with which each is made; empty: it is one."""
    schedule_free: bool = False
    """Whether it trains other weights than it evaluates, and has `train()` and `eval()`."""
    leading: int = 0
    """The parameter group whose rate is reported: the first that is not at 0."""
    frozen_groups: bool = False
    """Whether the rate of some parameter group is 0."""
    closure: ClosureUse = "never"
    """How its step uses a closure (`task/optim/closures.py`)."""
    whole: bool = True
    """Whether it has all parameters of the model that are trained."""
    momentum: bool = False
    """Whether it has a momentum, which a one-cycle schedule changes too."""
    holds_another: bool = False
    """Whether it has an inner optimizer whose state its `state_dict` lacks (SAM's base
    optimizer).
    """


WITHIN = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "optimizer_zero_grad",
    "on_before_backward",
    "backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "optimizer_step",
    "configure_gradient_clipping",
    "lr_scheduler_step",
)
"""Hooks within an update."""

VALIDATION = (
    "on_validation_model_zero_grad",
    "on_validation_model_eval",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_validation_model_train",
)
"""Hooks of a validation."""

FIT = (
    "on_fit_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
)
"""Hooks of the whole run, and of its epochs."""


@dataclasses.dataclass(frozen=True)
class LightningNeeds:
    """The parts of Lightning's loop and Trainer that the user's objects need: the one with
    `training_step`, those that make the loaders.
    """

    hooks: frozenset[str] = frozenset()
    """The hooks that they define."""
    of_lightning_1: tuple[str, ...] = ()
    """Those with arguments that Lightning 2 does not pass."""
    asks: frozenset[str] = frozenset()
    """The attributes of their trainer that they read, and what else a run gives them."""
    freezes: bool = False
    """Whether a step may change which parameters require a gradient."""
    logs_widely: bool = False
    """Whether it logs in more than one way, or in a validation outside its `validation_step`."""
    logs_over_ranks: bool = False
    """Whether it may log values of single updates that are reduced over processes (`sync_dist`)."""
    weighs: bool = False
    """Whether its `validation_step` may report the weight of its batch."""
    datamodule: str = "None"
    """The expression for an object that makes the loaders."""


@dataclasses.dataclass(frozen=True)
class LoggedNames:
    """The names in the record of values that an object with a `training_step` has logged
    (`self.log`).
    """

    in_updates: frozenset[str] = frozenset()
    """For single updates."""
    in_epochs: frozenset[str] = frozenset()
    """For epochs of training."""
    in_training_alone: frozenset[str] = frozenset()
    """In training, and never in a validation."""
    marked: tuple[str, ...] = ()
    """The names that the record uses for other values: there the logged ones end in "_logged"."""


@dataclasses.dataclass(frozen=True)
class Hooks:
    """An object with a `training_step` of its own."""

    homes: Mapping[str, str]
    """The places of its lr and batch_size, as expressions that can be assigned to."""
    train_index: bool
    val_index: bool
    """Whether its steps take the number of the batch."""
    manual: bool = False
    """Whether it steps its optimizers itself."""


@dataclasses.dataclass(frozen=True)
class Step:
    """What a training step may return besides a loss."""

    reports_weight: bool = False
    """Whether it reports the weight of its batch."""
    in_dict: bool = False
    """Whether the loss function returns {"loss": …} without a weight."""
    skips: bool = False
    """Whether it may leave a batch out (return None)."""


def quoted(value: Any) -> str:
    """`repr` with double quotes, also within a tuple."""
    if isinstance(value, tuple):
        return f"({', '.join(map(quoted, value))}{',' * (len(value) == 1)})"
    text = repr(value)
    if isinstance(value, str) and text.startswith("'") and '"' not in text:
        return f'"{text[1:-1]}"'
    return text
