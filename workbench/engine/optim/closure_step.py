"""Steps an optimizer that evaluates the loss through a closure: LBFGS evaluates it several
times, SAM also at shifted weights.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.engine import nonfinite
from workbench.engine.optim.gradients import measure_and_clip
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session
from workbench.instruments.finite import NonFiniteError
from workbench.task.optim.optimizer_state import load_state, state_of


def step_with_closure(
    session: Session,
    opt: OptimizerHandle,
    window: Sequence[Any],
    evaluate: Callable[[], Tensor | None],
) -> tuple[Tensor | None, bool]:
    """Step an optimizer with a closure; returns the loss and whether it stepped. Loss and norms
    of the first evaluation are recorded.
    """
    first: Tensor | None = None
    undo = _undo(opt) if session.plan.on_cpu else _nothing

    def closure() -> Tensor:
        nonlocal first
        session.timer.mark("optimizer")
        loss = evaluate()
        if loss is None:
            raise _NothingThere
        session.hooks.before_step(opt.index)
        if opt.held is not None:
            opt.put_held_lrs()
        measure_and_clip(
            session, opt, window, loss, records=session.state.records and first is None
        )
        first = loss if first is None else first
        return loss

    try:
        if opt.closure_use == "after gradients":
            closure()
        if opt.held is not None:
            opt.put_held_lrs()
        with opt.warming_up() if session.warms_up(opt) else contextlib.nullcontext():
            opt.optimizer.step(closure, **opt.step_options)  # type: ignore[arg-type]
            opt.watch_rate()
    except _NothingThere:
        return None, False
    except nonfinite.UpdateSkipped as left_out:
        undo()
        session.state.skipped = True
        return left_out.loss if first is None else first, False
    except NonFiniteError:
        undo()  # the optimizer has changed the weights before it evaluated the bad loss
        raise
    finally:
        session.update_hooks.zero_after_step(opt)
    if opt.held is not None:
        opt.check_held_lrs()
    session.timer.mark("optimizer")
    return first, True


def _undo(opt: OptimizerHandle) -> Callable[[], None]:
    """Return a function that restores the optimizer's weights and state."""
    trained = opt.trained
    weights, state = (
        [p.detach().clone() for p in opt.trained],
        copy.deepcopy(state_of(opt.optimizer)),
    )

    def undo() -> None:
        with torch.no_grad():
            for parameter, value in zip(trained, weights, strict=True):
                parameter.copy_(value)
        load_state(opt.optimizer, state)

    return undo


def _nothing() -> None:
    """Do nothing: on a device a non-finite value is noticed too late to restore anything."""


class _NothingThere(Exception):
    """Raised when all batches of the window were left out."""
