"""Defines what happens around a task's hooks within an update: nothing, for a task that has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from workbench.engine.optim.optimizer_handle import OptimizerHandle


class UpdateHooks:
    """For a task without hooks within an update: calls nothing, and drops the gradients after each step.

    `CalledUpdateHooks` (engine/hooks/called.py) is for a task that has such hooks.
    """

    ready: Mapping[int, Any] = MappingProxyType({})
    """The batches of the current window that hooks have had, on the device, by their number in the window."""
    cut_short = False
    """Whether a hook asked to leave out the rest of this epoch."""

    def begin_update(self) -> None:
        """Forget the update before; an error may have ended it."""

    def start(self, window: Sequence[Any], number: int, index: int) -> bool:
        """Move a batch to the device and call the hook before it, once an update. False: a hook asked to leave out the
        rest of the epoch.

        index: the batch's number in the epoch.
        """
        return True

    def start_moved(self, batch: Any, index: int, samples: int | None) -> bool:
        """`start` for a batch that is on the device already (manual optimization). samples: how many it was made of, if known."""
        return True

    def continues(self, ready: bool) -> bool:
        """Whether this rank continues with the next batch of its window, where ranks must agree."""
        return ready

    def end(self, result: Any, batch: Any, index: int, *, waits: bool) -> None:
        """Call the hook after a batch. waits: once the update is taken, or another batch starts."""

    def release(self) -> None:
        """After a window: let go of its batches."""

    def zero_before_backward(self, opt: OptimizerHandle) -> None:
        """Between a window's first forward and its backward: zero the gradients, as Lightning does."""

    def zero_after_step(self, opt: OptimizerHandle) -> None:
        """After a step, or before a window is evaluated again: drop the gradients. Where there are hooks, they can look
        at them until the next backward.
        """
        opt.zero_grad()

    def end_update(self) -> None:
        """After the update and the schedules that follow updates: call the hook after its last batch."""

    def ends_epoch(self) -> bool:
        """Whether a hook, on any rank, asked to leave out the rest of the epoch."""
        return False
