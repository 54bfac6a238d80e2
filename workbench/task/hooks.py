"""What a task may want to hear of, or to do its own way, while a job runs: Lightning's hooks, resolved once.

The engine asks a task for its `moments`. A task without any (None) takes the short way through every update; one
whose moments lie within an update (`within`) takes the long way of `engine/hooked_step.py`, in Lightning's order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.task.batch import to_device
from workbench.task.lightning.checkpoint_hooks import CheckpointEdits

Stage = Literal["train", "val", "test", "predict"]
Values = Mapping[str, "Tensor | float"]


class Hooks:
    """Every moment of a job, at which nothing happens; a task says more by overriding."""

    within: bool = False
    """Whether anything is wanted within an update: batches, backward, zero_grad, the step, clipping, a schedule's step."""
    clips: bool = False
    """Whether `clip` takes the place of the engine's clipping."""
    transfers: bool = False
    """Whether `transfer` takes the place of the engine's copy to the device, in training and evaluation alike."""
    clipper: Callable[[int, float, str], None] | None = None
    """Clips the gradients of an optimizer (its number, the value, "norm" or "value") in place; the session's own."""
    zeroes: bool = False
    """Whether gradients are dropped the task's own way: what is left in them between two updates is state."""

    # -- of a fit

    def fit_started(self) -> None:
        """The model lies on its device, the optimizers are made; before the sanity check."""

    def train_started(self) -> None:
        """Behind the sanity check, before the first epoch."""

    def epoch_started(self) -> None:
        """Before the first batch of an epoch (not where a run is resumed in the middle of one)."""

    def epoch_ended(self) -> None:
        """Behind an epoch's last update and the check that follows it; the epoch still counts as the current one."""

    def train_ended(self) -> None:
        """Behind the last epoch, also of a run that was stopped."""

    def fit_ended(self) -> None:
        """All is over; the model has the weights that it keeps."""

    def failed(self, error: BaseException) -> None:
        """The job ends with this error."""

    @property
    def wants_end(self) -> bool:
        """Whether the task has asked for the end of the fit (`trainer.should_stop`)."""
        return False

    def goes_on(self) -> None:
        """A fit that the task had ended goes on: it does not ask for the end any more."""

    # -- of a batch and an update

    def batch_started(self, batch: Any, batch_idx: int) -> bool:
        """The batch lies on the device. False: the rest of this epoch is left out, this batch included."""
        return True

    def batch_ended(self, result: Any, batch: Any, batch_idx: int) -> None:
        """Behind the batch (and the update that it completed). result: what the training step gave; None: nothing."""

    def transfer(self, batch: Any, device: torch.device, stage: Stage) -> Any:
        """The batch on the device."""
        return to_device(batch, device)

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Gradients of a loss that is scaled already; what comes before it (on_before_backward) too."""
        loss.backward(**options)  # type: ignore[no-untyped-call]

    def after_backward(self) -> None:
        """Behind each backward. On several ranks: behind a window's last one the gradients are those of all ranks,
        unless a task steps manually (then they are when it steps)."""

    def zero_grad(self, index: int, batch_idx: int) -> None:
        """Between a window's first forward and its backward: drop the gradients of optimizer `index`.

        The engine drops them itself where `zeroes` is False; they are all there until then.
        """

    def before_step(self, index: int) -> None:
        """The window's gradients are complete and at their true size; not clipped yet."""

    def clip(self, index: int, clip_val: float | None, algorithm: str) -> None:
        """Clip the gradients of optimizer `index` in place; these are the settings."""

    def step(self, index: int, batch_idx: int, closure: Callable[[], Any], take: Callable[..., Any]) -> None:
        """Evaluate the window's last batch and step: `take(closure)` does both; a task may do more, less, or neither.

        closure() gives the gradients and returns the loss (None: nothing to learn from). take(closure) calls it, then
        `before_step`, clips, and steps; it returns what closure returned, and may be called more than once. What else it
        is given by name, the optimizer's own step gets.
        """
        take(closure)

    def step_schedule(self, scheduler: Any, metric: float | None, usual: Callable[[], None]) -> None:
        """Step a scheduler; metric: what a ReduceLROnPlateau watches."""
        with in_its_turn(scheduler):
            usual()

    # -- of an evaluation ("val", "test", "predict"): random numbers and modes come back behind it

    def validation_begins(self) -> None:
        """In a fit, before a check: gradients are still there (on_validation_model_zero_grad)."""

    def evaluation_mode(self, stage: Stage) -> bool:
        """Put the model into evaluation mode; False: the engine does. First of all, before `evaluation_started`."""
        return False

    def training_mode(self, stage: Stage) -> None:
        """Last of all; the engine brings the modes of all modules back behind it."""

    def evaluation_started(self, stage: Stage) -> None:
        """Before the first batch."""

    def evaluation_batch_started(self, stage: Stage, batch: Any, batch_idx: int) -> None:
        """The batch lies on the device."""

    def evaluation_batch_ended(self, stage: Stage, result: Any, batch: Any, batch_idx: int) -> None:
        """result: what the step returned."""

    def evaluation_ended(self, stage: Stage) -> None:
        """Behind the last batch, in evaluation mode still."""

    # -- what the task logs

    def logged(self) -> Values:
        """What was logged for single updates since this was last asked (`on_step`); scalars. Cheap where it is nothing.

        Like the two that follow, it is asked on all ranks alike, also of one that had no batch. Ranks may be told
        different values here, and never there.
        """
        return {}

    def epoch_logged(self) -> Values:
        """What was logged for the epoch that has ended (`on_epoch`), reduced; behind `epoch_ended`. Forgotten then."""
        return {}

    def evaluated(self, stage: Stage) -> Values:
        """What was logged in this evaluation, reduced over its batches; behind `evaluation_ended`. Forgotten then."""
        return {}

    @property
    def tells_sanity(self) -> bool:
        """Whether the task has asked, in a sanity check, which stage it is: what it logs there may be less than in a check."""
        return False

    @property
    def epoch_names(self) -> frozenset[str]:
        """The names that `epoch_logged` is known to have a value of, at the end of this epoch or of a later one."""
        return frozenset()

    def forget(self) -> None:
        """Drop all that was logged: what was tried is not to be reported."""

    def unheard(self) -> contextlib.AbstractContextManager[None]:
        """Inside, nothing that is logged counts, and what was logged before stays."""
        return contextlib.nullcontext()

    @property
    def on_bar(self) -> frozenset[str]:
        """The names of logged values that the progress line shows (`prog_bar=True`)."""
        return frozenset()

    # -- what a checkpoint keeps of it

    edits: CheckpointEdits = CheckpointEdits()
    """What the task wants to be stored otherwise in the checkpoint that `state` was asked for last."""

    def restoring(self, checkpoint: Mapping[str, Any], kept: Mapping[str, Any]) -> CheckpointEdits:
        """A fit is about to continue from `checkpoint`, in the form of Lightning's; what the task changes in it.

        kept: what `state` gave when it was written.
        """
        return CheckpointEdits()

    def state(self) -> dict[str, Any]:
        """The task's own state beside weights and optimizers (on_save_checkpoint, a DataModule's state_dict, what was logged)."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""


@contextlib.contextmanager
def in_its_turn(scheduler: Any) -> Iterator[None]:
    """Inside, a step of this scheduler is no mistake, also where its optimizer has taken none.

    An optimizer may have had no turn yet, or have taken its steps before the scheduler was made: torch would warn of a
    wrong order, which is not the user's. Of one in the user's own calls it warns still.
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
