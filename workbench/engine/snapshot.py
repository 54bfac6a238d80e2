"""Takes a snapshot of a session and restores it, so that a search changes nothing."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from workbench.engine.checkpoint.weights_copy import WeightsCopy
from workbench.engine.session import Session
from workbench.task import rng
from workbench.task.modules import Modes
from workbench.task.optim.optimizer_state import load_state, state_of


@dataclass(frozen=True)
class Snapshot:
    """A copy of the state of a session; `restore` restores all of it, whatever happened in between."""

    session: Session
    weights: WeightsCopy
    optimizers: tuple[tuple[int, dict[str, Any], tuple[dict[str, Any], ...], float, int], ...]
    counters: tuple[int, int, int, dict[int, Any]]
    scaler: dict[str, Any]
    modes: Modes
    trained: tuple[tuple[nn.Parameter, bool], ...]
    """The parameters, and whether each requires gradients."""
    random: rng.RandomState

    @classmethod
    def take(cls, session: Session) -> Snapshot:
        """Copy the present state of a session."""
        return cls(
            session,
            WeightsCopy.of(session.task, callbacks=True),
            tuple(
                (
                    len(opt.optimizer.param_groups),
                    copy.deepcopy(state_of(opt.optimizer)),
                    tuple(copy.deepcopy(s.scheduler.state_dict()) for s in opt.schedules),
                    opt.base_lr,
                    opt.steps,
                )
                for opt in session.optimizers
            ),
            (
                session.state.step,
                session.state.epoch,
                session.state.batch_idx,
                session.state.hiddens,
            ),
            copy.deepcopy(session.precision.state_dict()),
            Modes.of(session.task.modules),
            tuple(
                (p, p.requires_grad)
                for module in session.task.modules
                for p in nn.Module.parameters(module)
            ),
            rng.RandomState.capture(),
        )

    def restore(self) -> None:
        """Restore the session's state from this copy."""
        session = self.session
        try:
            self.modes.restore()  # first: a train() of the user's may change weights
            self.weights.put(session.task, searched=True)
            for opt, (groups, state, schedules, base_lr, steps) in zip(
                session.optimizers, self.optimizers, strict=True
            ):
                del opt.optimizer.param_groups[groups:]  # which a hook has added since
                load_state(opt.optimizer, state)
                for schedule, its in zip(opt.schedules, schedules, strict=True):
                    schedule.scheduler.load_state_dict(its)
                opt.base_lr, opt.steps = base_lr, steps
                opt.release_lrs()
            session.precision.load_state_dict(self.scaler)
        finally:
            session.optimizers.drop_gradients()
            session.state.step, session.state.epoch, session.state.batch_idx, session.state.hiddens = self.counters
            session.state.next_hiddens = {}
            for parameter, trains in self.trained:
                parameter.requires_grad_(trains)
            self.random.restore()


@contextlib.contextmanager
def scratch(session: Session) -> Iterator[None]:
    """Context manager for trials: no update is recorded, no schedule steps, and all state is restored at the end, also after an error,
    including the counters and generators of the user's own functions and data.

    The copy of the weights is in host memory, so that it needs none of the device's.
    """
    before, state = Snapshot.take(session), session.state
    kept = state.clip_val, state.stage, dict(state.step_logs), state.pieces
    state.searching, state.hiddens, state.next_hiddens = True, {}, {}
    try:
        with session.hooks.discarding_logs():
            _begin_hooks(session)
            yield
    finally:
        state.searching = False
        session.update_hooks.begin_update()
        state.clip_val, state.stage, state.step_logs, state.pieces = kept
        before.restore()


def _begin_hooks(session: Session) -> None:
    """Call the hooks that a fit calls before its first update."""
    state, hooks = session.state, session.hooks
    state.stage = "train"
    if not state.fitting:
        hooks.fit_started()
        hooks.train_started()
    if not state.mid_epoch:
        hooks.epoch_started()
    session.refresh_parameters()
