"""The long way through an update, for a task that has a say within it: the order of Lightning's loop.

Everything but the order is the short way's own: forward and backward (`gradient.py`), measuring, clipping, the step.
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
    """A new window; an error may have ended the one before."""
    session.ready, session.ending, session.cut_short = {}, None, False


def turn(session: Session, opt: OptimizerHandle, window: Sequence[Any], take: Take) -> tuple[Tensor | None, bool]:
    """One optimizer's part of an update: its loss (None: nothing was in the window), and whether it took a step.

    All batches but the last go forward and backward first; the task then evaluates the last one and steps, in its way.
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
        # Asked once more, by LBFGS or by the task: the window goes through anew.
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

    # A rank without batches steps with the others, under rank 0's numbers.
    batches = len(window) or (0 if session.together is None else session.together.size)
    session.moments.step(opt.index, session.batch_idx + batches - 1, closure, step)
    return (evaluated[0] if evaluated else None), stepped


def kept_rates(session: Session, opt: OptimizerHandle) -> Callable[[], None]:
    """In a search: brings back the rates that this optimizer has now.

    A task may set rates by hand, for a warm-up say; that is a schedule, and while rates are searched for none steps.
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
    """In a fit the rates are the task's to set."""


def finish(session: Session) -> None:
    """Behind an update: the schedules of an epoch that ends here, and the end of its last batch."""
    if session.scheduling and session.batch_idx == session.data.batches and not session.pieces:
        session.step_epoch_schedules()
    ending, session.ending = session.ending, None
    if ending is not None:
        session.moments.batch_ended(*ending)
    if session.together is not None and not session.together.whole:
        # Hooks of a batch may move weights (a teacher's, say), and ranks without a batch have not heard of one.
        session.ranks.take_first([t for module in session.task.modules for t in (*module.parameters(), *module.buffers())])
