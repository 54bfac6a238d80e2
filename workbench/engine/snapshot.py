"""Restores all state of a session after a trial, so that a search changes nothing."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

from torch import nn

from workbench.engine.session import Session
from workbench.task import rng
from workbench.task.modules import Modes
from workbench.task.optim.optimizer_state import load_state, state_of
from workbench.task.state.of_task import copy_all


@contextlib.contextmanager
def scratch(session: Session) -> Iterator[None]:
    """Context manager for trials: no update is recorded, no schedule steps, and all state is
    restored at the end, also after an error, including the counters and generators of the user's
    own functions and data.

    The copy of the weights is in host memory, so that it needs none of the device's.
    """
    state = session.state
    kept = state.clip_val, state.stage, dict(state.step_logs), state.pieces
    with _restored(session):
        state.searching, state.hiddens, state.next_hiddens = True, {}, {}
        try:
            with session.hooks.discarding_logs():
                _begin_hooks(session)
                yield
        finally:
            state.searching = False
            session.update_hooks.begin_update()
            state.clip_val, state.stage, state.step_logs, state.pieces = kept


@contextlib.contextmanager
def _restored(session: Session) -> Iterator[None]:
    """Context manager that restores the state of a session, whatever happened in between."""
    state, random = session.state, rng.RandomState.capture()
    counters = state.step, state.epoch, state.batch_idx, state.hiddens
    objects, modes = copy_all(session.task), Modes.of(session.task.modules)
    scaler = copy.deepcopy(session.precision.state_dict())
    optimizers = [
        (
            opt,
            len(opt.optimizer.param_groups),
            copy.deepcopy(state_of(opt.optimizer)),
            [copy.deepcopy(schedule.scheduler.state_dict()) for schedule in opt.schedules],
            opt.base_lr,
            opt.steps,
        )
        for opt in session.optimizers
    ]
    parameters = [p for module in session.task.modules for p in nn.Module.parameters(module)]
    trained = [(parameter, parameter.requires_grad) for parameter in parameters]
    try:
        yield
    finally:
        try:
            modes.restore()  # first: a train() of the user's may change weights
            objects.put(searched=True)
            for opt, groups, of_optimizer, of_schedules, base_lr, steps in optimizers:
                del opt.optimizer.param_groups[groups:]  # which a hook has added since
                load_state(opt.optimizer, of_optimizer)
                for schedule, of_schedule in zip(opt.schedules, of_schedules, strict=True):
                    schedule.scheduler.load_state_dict(of_schedule)
                opt.base_lr, opt.steps = base_lr, steps
                opt.release_lrs()
            session.precision.load_state_dict(scaler)
        finally:
            session.optimizers.drop_gradients()
            state.step, state.epoch, state.batch_idx, state.hiddens = counters
            state.next_hiddens = {}
            for parameter, trains in trained:
                parameter.requires_grad_(trains)
            random.restore()


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
