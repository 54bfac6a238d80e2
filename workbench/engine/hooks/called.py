"""Calls the hooks that a task has within an update, in the order of Lightning's loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.engine.hooks.update_hooks import UpdateHooks
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.engine.window import batch_in
from workbench.task.hooks import Hooks
from workbench.techniques.accumulation import samples_at
from workbench.techniques.tbptt import Piece


class CalledUpdateHooks(UpdateHooks):
    """Calls the hooks of batches and of zero_grad, for a task that has hooks within an update."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.ready: dict[int, Any] = {}
        self._ending: tuple[Any, Any, int] | None = None
        """The arguments of the hook after the last batch of the update, until the update is
        taken.
        """

    def begin_update(self) -> None:
        self.ready, self._ending, self.cut_short = {}, None, False

    def start(self, window: Sequence[Any], number: int, index: int) -> bool:
        session, item, mark = self._session, window[number], self._session.timer.mark
        if number in self.ready:
            return True
        if self.cut_short:
            return False
        mark("workbench")
        batch = session.to_device(batch_in(item))
        mark("transfer")
        session.task.begin_batch(samples_at(window, number))
        begins = not isinstance(item, Piece) or item.first
        if begins and not session.hooks.batch_started(batch, index):
            self.cut_short = True
            return False
        mark("hooks")
        session.optimizers.add_new_parameters()
        self.ready[number] = batch
        return True

    def start_moved(self, batch: Any, index: int, samples: int | None) -> bool:
        session = self._session
        self._end_waiting()
        session.task.begin_batch(samples)
        self.cut_short = not session.hooks.batch_started(batch, index)
        session.optimizers.add_new_parameters()
        return not self.cut_short

    def continues(self, ready: bool) -> bool:
        return self._session.parallel.continues(ready)

    def end(self, result: Any, batch: Any, index: int, *, waits: bool) -> None:
        self._ending = (result, batch, index)
        if not waits:
            self._end_waiting()

    def _end_waiting(self) -> None:
        ending, self._ending = self._ending, None
        if ending is not None:
            self._session.hooks.batch_ended(*ending)

    def release(self) -> None:
        self.ready = {}

    def zero_before_backward(self, opt: OptimizerHandle) -> None:
        zero_grad(self._session.hooks, opt, self._session.state.batch_idx)

    def zero_after_step(self, opt: OptimizerHandle) -> None:
        if self._session.task.manual:
            opt.zero_grad()

    def end_update(self) -> None:
        """Step the schedules that follow epochs, if this is the epoch's last batch, and then
        call the hook after the batch.
        """
        session, state = self._session, self._session.state
        if not state.searching and state.batch_idx == session.data.batches and not state.pieces:
            session.optimizers.step_epoch_schedules(state, session.hooks)
        session.timer.mark("workbench")
        self._end_waiting()
        session.timer.mark("hooks")
        if not session.parallel.whole:
            # Hooks may change weights (a teacher's), and ranks without a batch have not called
            # them.
            session.ranks.broadcast(
                [
                    t
                    for module in session.task.modules
                    for t in (*module.parameters(), *module.buffers())
                ]
            )

    def ends_epoch(self) -> bool:
        self.cut_short = self._session.ranks.any(self.cut_short)
        return self.cut_short


def zero_grad(hooks: Hooks, opt: OptimizerHandle, batch_idx: int) -> None:
    """Zero the gradients of the update before, by the task's own zero_grad where it has one; on
    ranks without a batch too.
    """
    hooks.zero_grad(opt.index, batch_idx)
    if not hooks.zeroes:
        opt.zero_grad()
