"""Defines the hooks of a job: Lightning's hooks, resolved once for a task.

The engine calls them in the order of Lightning's loop (engine/step.py). A task without any has
None; one with hooks within an update has `within` set.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from torch import Tensor

from workbench.task.batch import to_device

_PARTS = ("state_dict", "optimizer_states", "lr_schedulers")


@dataclass(frozen=True)
class CheckpointEdits:
    """The changes that `on_save_checkpoint` or `on_load_checkpoint` made in the checkpoint's
    dictionary. Default: none.
    """

    removed: tuple[str, ...] = ()
    """Names of weights that are not to be stored."""
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights that were replaced by another tensor, or added."""
    optimizers: list[Any] | None = None
    """The states of all optimizers, if the hook changed them."""
    schedulers: list[Any] | None = None
    """The states of all schedulers, if the hook changed them."""
    entries: Mapping[str, Any] = field(default_factory=dict)
    """Other entries that were added or changed."""
    gone: tuple[str, ...] = ()
    """Entries that were removed."""
    checkpoint: dict[str, Any] | None = None
    """The dictionary itself, for hooks that get it after the weights are loaded."""

    @classmethod
    def between(cls, before: Mapping[str, Any], after: Mapping[str, Any]) -> Self:
        """Compare the dictionary before the hook (made with `copy_of`) with the one after it."""
        stored, now = before["state_dict"], after.get("state_dict") or {}
        return cls(
            tuple(name for name in stored if name not in now),
            {
                name: value
                for name, value in now.items()
                if isinstance(value, Tensor) and value is not stored.get(name)
            },
            _changed(before, after, "optimizer_states"),
            _changed(before, after, "lr_schedulers"),
            {
                name: value
                for name, value in after.items()
                if name not in _PARTS and not _same(before.get(name, _NONE), value)
            },
            tuple(name for name in before if name not in after and name != "state_dict"),
        )

    def stored(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights to store."""
        return {
            **{name: value for name, value in weights.items() if name not in self.removed},
            **self.weights,
        }

    @property
    def unresumable(self) -> str:
        """Return why no fit can continue from the stored checkpoint; "": it can."""
        gone = [name for name in ("optimizer_states", "lr_schedulers") if name in self.gone]
        return f"on_save_checkpoint removed {' and '.join(gone)}" if gone else ""

    def put_states(self, optimizers: list[dict[str, Any]]) -> None:
        """Put changed states into those of a checkpoint (engine/checkpoint/optimizer_state.py),
        in their order.
        """
        for optimizer, state in zip(optimizers, self.optimizers or (), strict=False):
            optimizer["state"] = state
        schedules = [schedule for optimizer in optimizers for schedule in optimizer["own"]]
        for schedule, state in zip(schedules, self.schedulers or (), strict=False):
            schedule["state"] = state


_NONE = object()


def copy_of(value: Any, within: tuple[int, ...] = ()) -> Any:
    """Copy the containers, but not the values in them; a container within itself is not copied
    again.
    """
    if id(value) in within:
        return value
    inside = (*within, id(value))
    if isinstance(value, Mapping):
        return {key: copy_of(inner, inside) for key, inner in value.items()}
    return (
        type(value)(copy_of(inner, inside) for inner in value)
        if type(value) in (list, tuple)
        else value
    )


def _changed(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> list[Any] | None:
    return None if name not in after or _same(before[name], after[name]) else list(after[name])


def _same(one: Any, other: Any) -> bool:
    """Whether two values have the same contents; a tensor is equal only to itself."""
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(
            _same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Tensor) or isinstance(other, Tensor) or type(one) is not type(other):
        return False
    return bool(one == other)


def _nothing() -> None:
    """Do nothing."""


Stage = Literal["train", "val", "test", "predict"]
Values = Mapping[str, "Tensor | float"]


class Hooks:
    """The hooks of a job. Each does nothing; a task overrides those that it needs."""

    within: bool = False
    """Whether the task has hooks within an update: for batches, backward, zero_grad, the step,
    clipping, a schedule's step.
    """
    clips: bool = False
    """Whether `clip` replaces the engine's clipping."""
    transfers: bool = False
    """Whether `transfer` replaces the engine's copy to the device, in training and evaluation."""
    clipper: Callable[[int, float, str], None] | None = None
    """The session's function to clip an optimizer's gradients in place; its arguments: the
    optimizer's index, the value, "norm" or "value".
    """
    zeroes: bool = False
    """Whether the task zeroes gradients itself: then gradients between two updates are part of
    the state.
    """
    objects: tuple[Any, ...] = ()
    """The user's objects besides the modules (callbacks)."""

    def keep(self) -> Callable[[], object]:
        """Copy the state of `objects`; the returned function restores it, after a search."""
        return _nothing

    # -- of a fit

    def fit_started(self) -> None:
        """Called when the model is on its device and the optimizers are made, before the sanity
        check.
        """

    def sanity_started(self) -> None:
        """Called before the sanity check."""

    def sanity_ended(self) -> None:
        """Called after the sanity check."""

    def train_started(self) -> None:
        """Called after the sanity check, before the first epoch."""

    def epoch_started(self) -> None:
        """Called before the first batch of an epoch, but not where a run is resumed within one."""

    def epoch_ended(self) -> None:
        """Called after an epoch's last update and the validation that follows it; it still
        counts as the current epoch.
        """

    def train_ended(self) -> None:
        """Called after the last epoch, also of a run that was stopped."""

    def fit_ended(self) -> None:
        """Called when the fit has ended and the model has its final weights."""

    def failed(self, error: BaseException) -> None:
        """Called when the job ends with this error."""

    @property
    def stop_requested(self) -> bool:
        """Whether the task has asked for the end of the fit (`trainer.should_stop`)."""
        return False

    def clear_stop(self) -> None:
        """Drop the task's request to end the fit, since the fit continues."""

    # -- of a batch and an update

    def batch_started(self, batch: Any, batch_idx: int) -> bool:
        """Called when the batch is on the device. Returns False to leave out this batch and the
        rest of the epoch.
        """
        return True

    def batch_ended(self, result: Any, batch: Any, batch_idx: int) -> None:
        """Called after the batch, and after the update that it completed. result: what the
        training step returned, or None.
        """

    def transfer(self, batch: Any, device: torch.device, stage: Stage) -> Any:
        """Return the batch on the device."""
        return to_device(batch, device)

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Run the backward of a loss that is scaled already, with the hook before it
        (on_before_backward).
        """
        loss.backward(**options)  # type: ignore[no-untyped-call]

    def after_backward(self) -> None:
        """Called after each backward. On several ranks the gradients are those of all ranks after a
        window's last backward; with manual optimization, only when the task steps.
        """

    def zero_grad(self, index: int, batch_idx: int) -> None:
        """Zero the gradients of optimizer `index`; called between a window's first forward and its
        backward.

        The engine zeroes them itself where `zeroes` is False.
        """

    def before_step(self, index: int) -> None:
        """Called when the window's gradients are complete and unscaled, but not clipped yet."""

    def clip(self, index: int, clip_val: float | None, algorithm: str) -> None:
        """Clip the gradients of optimizer `index` in place; clip_val and algorithm are the
        settings.
        """

    def step(
        self, index: int, batch_idx: int, closure: Callable[[], Any], take: Callable[..., Any]
    ) -> None:
        """Evaluate the window's last batch and step the optimizer: `take(closure)` does both; an
        override may do more or less.

        closure() computes the gradients and returns the loss (None: the batches were left out).
        take(closure) calls it, then `before_step`, clips, and steps; it returns what closure
        returned, and may be called more than once. Its further keyword arguments are passed to the
        optimizer's step.
        """
        take(closure)

    def step_schedule(
        self, scheduler: Any, metric: float | None, usual: Callable[[], None]
    ) -> None:
        """Step a scheduler; metric: the value that a ReduceLROnPlateau watches."""
        with in_its_turn(scheduler):
            usual()

    # -- of an evaluation ("val", "test", "predict"); random states and modes are restored after it

    def validation_begins(self) -> None:
        """Called in a fit before a validation, while the gradients still exist
        (on_validation_model_zero_grad).
        """

    def evaluation_mode(self, stage: Stage) -> bool:
        """Put the model into evaluation mode, before `evaluation_started`; False: the engine
        does it.
        """
        return False

    def training_mode(self, stage: Stage) -> None:
        """Put the model into training mode, as the last hook; afterwards the engine restores the
        modes of all modules.
        """

    def evaluation_started(self, stage: Stage) -> None:
        """Called before the first batch."""

    def evaluation_batch_started(self, stage: Stage, batch: Any, batch_idx: int) -> None:
        """Called when the batch is on the device."""

    def evaluation_batch_ended(self, stage: Stage, result: Any, batch: Any, batch_idx: int) -> None:
        """Called after a batch. result: what the step returned."""

    def evaluation_set_ended(self, stage: Stage) -> None:
        """Called after the last batch of one of several sets of data."""

    scores: Mapping[str, float] = MappingProxyType({})
    """The metrics of the latest evaluation, which the engine sets before `evaluation_ended`."""

    def evaluation_ended(self, stage: Stage) -> None:
        """Called after the last batch, still in evaluation mode."""

    # -- what the task logs

    def logged(self) -> Values:
        """Return the values logged for single updates since the last call (`on_step`), as scalars.

        The engine calls this method and the next two on all ranks, also on one that had no batch.
        Ranks may return different values here, but not from the next two.
        """
        return {}

    def epoch_logged(self) -> Values:
        """Return and drop the reduced values logged for the epoch that has ended (`on_epoch`);
        after `epoch_ended`.
        """
        return {}

    def evaluated(self, stage: Stage) -> Values:
        """Return and drop the values logged in this evaluation, reduced over its batches; after
        `evaluation_ended`.
        """
        return {}

    @property
    def read_sanity(self) -> bool:
        """Whether the task has read the stage in a sanity check: it may log less there than in a
        validation.
        """
        return False

    @property
    def epoch_names(self) -> frozenset[str]:
        """The names of values that `epoch_logged` is known to have at the end of this or a later
        epoch.
        """
        return frozenset()

    def forget(self) -> None:
        """Drop all logged values, after a dry run."""

    def discarding_logs(self) -> contextlib.AbstractContextManager[None]:
        """Context manager in which logged values are discarded; earlier ones stay."""
        return contextlib.nullcontext()

    @property
    def on_bar(self) -> frozenset[str]:
        """The names of logged values that the progress line shows (`prog_bar=True`)."""
        return frozenset()

    # -- what a checkpoint stores of the task

    edits: CheckpointEdits = CheckpointEdits()
    """The task's changes to the checkpoint for which `state` was last called."""

    def restoring(self, checkpoint: Mapping[str, Any], kept: Mapping[str, Any]) -> CheckpointEdits:
        """Called before a fit continues from `checkpoint`, which has Lightning's form; returns the
        task's changes to it.

        kept: what `state` returned when it was written.
        """
        return CheckpointEdits()

    def weights_restored(self, edits: CheckpointEdits) -> CheckpointEdits:
        """Call the hooks that follow when the model of a resumed fit has its weights; returns their
        changes to the checkpoint.

        edits: what `restoring` returned. `load_state` follows.
        """
        return CheckpointEdits()

    def state(self) -> dict[str, Any]:
        """The task's own state besides weights and optimizers (on_save_checkpoint, a DataModule's
        state_dict, logged values).
        """
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""

    def of_lightning(self, checkpoint: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
        """The argument for `load_state`, made from a checkpoint that Lightning wrote, and the
        names of the entries that the task uses.
        """
        return {}, frozenset()


@contextlib.contextmanager
def in_its_turn(scheduler: Any) -> Iterator[None]:
    """Context manager in which stepping this scheduler does not warn, also where its optimizer has
    taken no step.

    An optimizer may not have had its turn yet, or may have stepped before the scheduler was made:
    torch would warn about an order of calls that is not the user's. It still warns in the user's
    own calls.
    """
    optimizer = getattr(scheduler, "optimizer", None)
    if optimizer is None or getattr(optimizer, "_opt_called", False):
        yield
        return
    optimizer._opt_called = True
    try:
        yield
    finally:
        optimizer._opt_called = False


def tell_failure(hooks: Hooks, error: BaseException) -> None:
    """Call the hook for an error that ends the job; an error of the hook itself becomes a note."""
    try:
        hooks.failed(error)
    except Exception as second:  # noqa: BLE001
        error.add_note(f"and on_exception failed as well: {type(second).__name__}: {second}")


@contextlib.contextmanager
def telling_failure(hooks: Hooks) -> Iterator[None]:
    """Context manager that calls the hook for exceptions when an error ends it."""
    try:
        yield
    except BaseException as error:
        tell_failure(hooks, error)
        raise
