"""Opens the session of a job and restores the process and the task afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from workbench.engine.hooks.called import CalledUpdateHooks
from workbench.engine.optim.optimizers import Optimizers
from workbench.engine.runtime.kernel_choice import kernel_choice
from workbench.engine.runtime.runtime import Runtime
from workbench.engine.runtime.torch_compile import compiled
from workbench.engine.session import Session
from workbench.settings import Settings
from workbench.task import rng
from workbench.task.device import default_device
from workbench.task.hooks import Hooks
from workbench.task.modules import Modes
from workbench.task.protocol import Phase, Task
from workbench.task.ranks import alone
from workbench.task.rng import seed


@contextlib.contextmanager
def open_session(
    task: Task, settings: Settings, phase: Phase = "fit", past: Mapping[str, Any] | None = None
) -> Iterator[Session]:
    """Open a seeded session for one job; the process's random state and torch flags are restored at
    the end.

    past: for a resumed fit, the state on which its length depends (`total_steps.NAMES`).
    """
    with (
        alone() if settings.strategy == "thread" else contextlib.nullcontext(),
        rng.preserved(),
        kernel_choice(settings),
        task.running(settings, phase),
        default_device.set_aside(),
    ):
        runtime = Runtime(settings)
        seed(settings.seed)
        for spec in (task.train, task.val, task.test, task.predict):
            if spec is not None:
                spec.refresh()
                spec.share = runtime.ranks.share
        modes = Modes.of(task.modules)
        kept = [(p, p.grad) for p in _parameters(task) if p.grad is not None]
        for parameter, _ in kept:
            parameter.grad = None
        session: Session | None = None
        try:
            session = Session(task, settings, runtime, phase, past)
            if phase == "fit":
                session.train_mode()
            if session.hooks.within:
                session.update_hooks = CalledUpdateHooks(session)
            rng.seed_rank(settings.seed, runtime.ranks.rank)
            compiling = (
                compiled(task, settings.compile) if settings.compile else contextlib.nullcontext()
            )
            with (
                _clipping_by(session.hooks, session.optimizers),
                compiling,
                _watched(settings.detect_anomaly),
            ):
                yield session
        finally:
            modes.restore()
            if session is not None:
                session.close()
            for parameter in _parameters(task):
                parameter.grad = None
            for parameter, grad in kept:  # the parameter may be on another device now
                parameter.grad = grad.to(parameter.device)


def _parameters(task: Task) -> list[torch.nn.Parameter]:
    return [p for module in task.modules for p in torch.nn.Module.parameters(module)]


@contextlib.contextmanager
def _clipping_by(hooks: Hooks, optimizers: Optimizers) -> Iterator[None]:
    """Context manager in which the hooks clip the gradients of these optimizers; a session may
    be opened within another.
    """
    before, hooks.clipper = hooks.clipper, optimizers.clip
    try:
        yield
    finally:
        hooks.clipper = before


def _watched(wanted: bool) -> contextlib.AbstractContextManager[object]:
    return torch.autograd.set_detect_anomaly(True) if wanted else contextlib.nullcontext()
