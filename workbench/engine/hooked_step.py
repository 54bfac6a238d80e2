"""The update path with Lightning hooks, in the order of Lightning's loop.

Only the order is special: forward and backward (`backward.py`), norms, clipping and the step are those of `step.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from workbench.engine import backward
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.session import Session

Take = Callable[[Callable[[], "Tensor | None"]], "tuple[Tensor | None, bool]"]


def begin(session: Session) -> None:
    """Begin a window; an error may have ended the one before."""
    session.ready, session.ending, session.cut_short = {}, None, False


def turn(session: Session, opt: OptimizerHandle, window: Sequence[Any], take: Take) -> tuple[Tensor | None, bool]:
    """One optimizer's part of an update: its loss (None: the window was empty) and whether it stepped.

    All batches but the last go forward and backward first. The task then evaluates the last one and steps in its own
    way.
    """
    put_back = kept_rates(session, opt)
    work = backward.weighted(session, opt, window)
    try:
        next(work)
    except StopIteration as nothing:
        loss: Tensor | None = nothing.value
        return loss, False
    evaluated: list[Tensor | None] = []
    stepped = False

    def closure() -> Tensor | None:
        # LBFGS or the task calls the closure again: go through the whole window again.
        evaluated.append(backward.finish(backward.weighted(session, opt, window, anew=True) if evaluated else work))
        return evaluated[-1]

    def step(evaluate: Callable[[], Tensor | None], **options: Any) -> Tensor | None:
        nonlocal stepped
        put_back()
        opt.step_options = options
        try:
            loss, taken = take(evaluate)
        finally:
            opt.step_options = {}
        stepped |= taken
        return loss

    # A rank without batches steps with the others, with rank 0's batch number.
    batches = len(window) or (0 if session.together is None else session.together.size)
    session.hooks.step(opt.index, session.batch_idx + batches - 1, closure, step)
    return (evaluated[0] if evaluated else None), stepped


def kept_rates(session: Session, opt: OptimizerHandle) -> Callable[[], None]:
    """Return a function that restores the present rates, for searches.

    A task may set rates by hand, for a warm-up. While a search sets the rates, that must have no effect.
    """
    if session.scheduling:
        return _nothing
    groups = opt.optimizer.param_groups
    rates = [group["lr"] for group in groups]

    def put_back() -> None:
        for group, rate in zip(groups, rates, strict=False):
            group["lr"] = rate

    return put_back


def _nothing() -> None:
    """In a fit the task may set the rates."""


def finish(session: Session) -> None:
    """After an update: step the schedules of an epoch that ends here and call the hook after its last batch."""
    if session.scheduling and session.batch_idx == session.data.batches and not session.pieces:
        session.step_epoch_schedules()
    ending, session.ending = session.ending, None
    if ending is not None:
        session.hooks.batch_ended(*ending)
    if session.together is not None and not session.together.whole:
        # Hooks may move weights (a teacher's), and ranks without a batch have not called them.
        session.ranks.take_first([t for module in session.task.modules for t in (*module.parameters(), *module.buffers())])
