"""Holds the state of a fit as plain data: its progress, and the results of the current update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Stage = Literal["sanity", "train", "val", "test", "predict", ""]
"""The current stage of a job; "": none yet."""


@dataclass
class TrainState:
    """The progress of one job. The engine updates it while the job runs, and restores it from a
    checkpoint or a snapshot.
    """

    step: int = 0
    """The updates taken."""
    epoch: int = 0
    """The epochs finished."""
    batch_idx: int = 0
    """The finished batches of this epoch."""
    epoch_step: int = 0
    """The updates taken before this epoch."""
    epochs_scheduled: int = 0
    """The epochs after which the schedules have stepped."""
    stage: Stage = ""
    fitting: bool = False
    """Whether a fit is running."""
    mid_epoch: bool = False
    """Whether an epoch has begun and not ended."""
    validation_due: bool = False
    """Whether all updates of the epoch are taken, and its validation is due."""
    resumed: bool = False
    """Whether the fit started from a checkpoint."""
    searching: bool = False
    """Whether a search runs its trials: nothing is recorded, and no schedule steps."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The latest value of every metric that the run has reported."""
    step_logs: dict[str, Tensor | float] = field(default_factory=dict)
    """The latest value of each metric that the task logged for single updates."""
    clip_val: float | None = None
    """The clip value of the next update; `gradient_clip_val` until it is changed live."""
    left_out: int = 0
    """The updates skipped for values that are not finite."""
    counts_seen: set[str] = field(default_factory=set)
    """The kinds of data whose first batch was checked for its number of samples
    (engine/data/sample_count.py).
    """
    moved: set[tuple[str, str]] = field(default_factory=set)
    """Places in the user's objects that a checkpoint restored (task/state/held.py)."""

    # -- truncated BPTT

    pieces: int = 0
    """The finished pieces of the current batch; 0 between two batches."""
    hiddens: dict[int, Any] = field(default_factory=dict)
    """State carried from one piece of a batch to the next, by optimizer."""
    next_hiddens: dict[int, Any] = field(default_factory=dict)
    """The state carried to the next window, by optimizer."""

    # -- the current update

    losses: dict[int, Tensor] = field(default_factory=dict)
    """The losses of the latest update, by optimizer, where there are several."""
    loss_parts: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    """The named parts of the losses of the latest update, by optimizer."""
    records: bool = False
    """Whether the current update is recorded."""
    skipped: bool = False
    """Whether the current update skipped a step."""
    clip_next: dict[int, tuple[float, str]] = field(default_factory=dict)
    """How a task with manual optimization wants the gradients of an optimizer clipped at its
    next step.
    """

    def begin_epoch(self) -> None:
        """Set the counters for a new epoch."""
        self.epoch_step, self.batch_idx, self.mid_epoch = self.step, 0, True

    def end_epoch(self) -> None:
        """Set the counters after an epoch and its validation."""
        self.epoch += 1
        self.batch_idx, self.mid_epoch, self.validation_due = 0, False, False

    def end_pieces(self, firsts: Sequence[bool], *, ends: bool, optimizers: Iterable[int]) -> None:
        """Advance the counters after an update with pieces of batches. firsts: for each piece,
        whether it was the first of its batch;
        ends: whether the last piece ended its batch; optimizers: the indices of the session's
        optimizers.
        """
        self.batch_idx += sum(firsts)
        since = [*firsts][::-1]
        self.pieces = since.index(True) + 1 if True in since else self.pieces + len(firsts)
        self.pieces = 0 if ends else self.pieces
        # An optimizer that had no turn continues from the hidden state of one that had.
        last = next(reversed(self.next_hiddens.values()), None)
        self.hiddens = {index: self.next_hiddens.get(index, last) for index in optimizers}
        self.next_hiddens = {}

    def begin_update(self, *, records: bool) -> None:
        """Reset the results of the update before, which an error may have ended."""
        self.records, self.skipped, self.losses, self.loss_parts = records, False, {}, {}
