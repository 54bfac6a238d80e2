"""Defines `UpdateHooks`, which the engine calls within an update; it calls nothing, for a task
without such hooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from workbench.engine.optim.optimizer_handle import OptimizerHandle


class UpdateHooks:
    """Calls no hooks, and drops the gradients after each step: for a task without hooks within an
    update.

    `CalledUpdateHooks` (engine/hooks/called.py) is for a task that has such hooks.
    """

    ready: Mapping[int, Any] = MappingProxyType({})
    """The batches of the current window that hooks have had, on the device, by their number in
    the window.
    """
    cut_short = False
    """Whether a hook asked to leave out the rest of this epoch."""

    def begin_update(self) -> None:
        """Reset the state of the update before, which an error may have ended."""

    def start(self, window: Sequence[Any], number: int, index: int) -> bool:
        """Move a batch to the device and call the hook before it, once in an update. False: a hook
        asked to leave out the rest of the epoch.

        number: of the batch in the window. index: its number in the epoch.
        """
        return True

    def start_moved(self, batch: Any, index: int, samples: int | None) -> bool:
        """Do the same as `start` for a batch that is on the device already (manual
        optimization). samples: how many it was made of, if known.
        """
        return True

    def continues(self, ready: bool) -> bool:
        """Whether this rank continues with the next batch of its window, where ranks must agree."""
        return ready

    def end(self, result: Any, batch: Any, index: int, *, waits: bool) -> None:
        """Call the hook after a batch. waits: call it only when the update is taken, or another
        batch starts.
        """

    def release(self) -> None:
        """Free the batches of a window, after it."""

    def zero_before_backward(self, opt: OptimizerHandle) -> None:
        """Zero the gradients between a window's first forward and its backward, as Lightning
        does.
        """

    def zero_after_step(self, opt: OptimizerHandle) -> None:
        """Drop the gradients after a step, or before a window is evaluated again. With hooks they
        stay until the next backward, so that hooks can read them.
        """
        opt.zero_grad()

    def end_update(self) -> None:
        """Call the hook after the update's last batch; called after the update and the schedules
        that follow updates.
        """

    def ends_epoch(self) -> bool:
        """Whether a hook, on any rank, asked to leave out the rest of the epoch."""
        return False
