"""Takes a snapshot of a session and restores it, so that a search changes nothing."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from workbench.engine import rng
from workbench.engine.checkpoint.weights import Weights
from workbench.engine.optim.optimizer_handle import load_state
from workbench.task.protocol import Task

if TYPE_CHECKING:
    from workbench.engine.session import Session


@dataclass(frozen=True)
class Modes:
    """Which modules are in training mode."""

    modules: tuple[tuple[nn.Module, bool], ...]

    @classmethod
    def of(cls, task: Task) -> Modes:
        return cls(tuple((part, part.training) for whole in task.modules for part in whole.modules()))

    def restore(self) -> None:
        for module, training in self.modules:
            module.training = training


@dataclass(frozen=True)
class Snapshot:
    """The state of a session at one moment; `restore` brings all of it back, whatever happened in between."""

    session: Session
    weights: Weights
    optimizers: tuple[tuple[dict[str, Any], tuple[dict[str, Any], ...], float, int], ...]
    counters: tuple[int, int, int, dict[int, Any]]
    scaler: dict[str, Any]
    modes: Modes
    trained: tuple[tuple[nn.Parameter, bool], ...]
    """The parameters, and whether each requires gradients."""
    random: rng.RandomState

    @classmethod
    def take(cls, session: Session) -> Snapshot:
        return cls(
            session,
            Weights.of(session.task, tensors=True),
            tuple(
                (
                    copy.deepcopy(opt.optimizer.state_dict()),
                    tuple(copy.deepcopy(s.scheduler.state_dict()) for s in opt.schedules),
                    opt.base_lr,
                    opt.taken,
                )
                for opt in session.optimizers
            ),
            (session.step, session.epoch, session.batch_idx, session.hiddens),
            copy.deepcopy(session.precision.state_dict()),
            Modes.of(session.task),
            tuple((p, p.requires_grad) for module in session.task.modules for p in module.parameters()),
            rng.RandomState.capture(),
        )

    def restore(self) -> None:
        session = self.session
        try:
            self.weights.put(session.task)
            if session.shards is not None:
                session.shards.written()
            for opt, (state, schedules, base_lr, taken) in zip(
                session.optimizers, self.optimizers, strict=True
            ):
                if session.shards is None:
                    load_state(opt.optimizer, state)
                else:
                    opt.optimizer.load_state_dict(state)
                for schedule, its in zip(opt.schedules, schedules, strict=True):
                    schedule.scheduler.load_state_dict(its)
                opt.base_lr, opt.taken = base_lr, taken
            session.precision.load_state_dict(self.scaler)
        finally:
            session.drop_gradients()
            session.step, session.epoch, session.batch_idx, session.hiddens = self.counters
            session.next_hiddens = {}
            self.modes.restore()
            for parameter, trains in self.trained:
                parameter.requires_grad_(trains)
            self.random.restore()
