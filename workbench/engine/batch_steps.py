"""Runs the training step on each batch of a window and carries the hidden state from one to the next."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.task.errors import TaskError
from workbench.techniques.accumulation import samples_at
from workbench.techniques.tbptt import Piece, detached
from workbench.values import shown

if TYPE_CHECKING:
    from workbench.engine.session import Session


class Result(NamedTuple):
    """What a training step returned: the loss, its weight, the hidden state."""

    loss: Tensor
    weight: Tensor | float | None
    hiddens: Any


class WindowForward:
    """The forward passes of one optimizer over a window: batch numbers and hidden state."""

    def __init__(self, session: Session, opt: OptimizerHandle, window: Sequence[Any], last: int | None = None) -> None:
        """last: the batch after whose backward the ranks all-reduce their gradients; None: there is one process."""
        self._session, self._opt, self._window, self._last = session, opt, window, last
        self._hiddens = session.hiddens.get(opt.index)
        begun = itertools.accumulate(item.first for item in window) if session.tbptt is not None else None
        first = session.batch_idx
        self._indices = range(first, first + len(window)) if begun is None else [first - 1 + n for n in begun]

    def start(self, number: int) -> bool:
        """Call the hooks before a batch, once an update. False: a hook asked to leave out the rest of the epoch."""
        session = self._session
        if not session.within or number in session.ready:
            return True
        if session.cut_short:
            return False
        batch = session.to_device(_batch(self._window[number]))
        session.task.drawn = samples_at(self._window, number)
        if _begins(self._window[number]) and not session.hooks.batch_started(batch, self._indices[number]):
            session.cut_short = True
            return False
        session.look_again()
        session.ready[number] = batch
        return True

    def forward(self, number: int) -> Result | None:
        """Run the training step of one batch; None: it returned nothing to learn from."""
        session, item, extra = self._session, self._window[number], {}
        if session.tbptt is not None:
            self._hiddens = None if item.first else self._hiddens  # also where the step leaves the first piece out
            extra["hiddens"] = self._hiddens
        ready = number in session.ready
        session.task.drawn = samples_at(self._window, number)
        batch = session.ready[number] if ready else _batch(item)
        last = number == self._last
        found = read(forward(session, self._opt, batch, self._indices[number], extra, ready=ready, last=last))
        if found is not None:
            self._hiddens = detached(found.hiddens)
        return found

    def end(self, number: int, result: Result | None, *, last: bool, anew: bool) -> None:
        """Call the hook after a batch, once, after its last optimizer. For the window's `last` batch it is called
        after the update.
        """
        session = self._session
        if not session.within or self._opt is not session.turn()[-1] or not getattr(self._window[number], "last", True):
            return
        ending = (result, session.ready[number], self._indices[number])
        if last:
            session.ending = ending
        elif not anew:
            session.hooks.batch_ended(*ending)

    def leave(self) -> None:
        """Keep the hidden state for the next piece."""
        if self._session.tbptt is not None:
            self._session.next_hiddens[self._opt.index] = self._hiddens


def _batch(item: Any) -> Any:
    return item.batch if isinstance(item, Piece) else item


def _begins(item: Any) -> bool:
    return item.first if isinstance(item, Piece) else True


def forward(
    session: Session, opt: OptimizerHandle, batch: Any, index: int, extra: Mapping[str, Any], *, ready: bool = False,
    last: bool = False,
) -> Any:  # fmt: skip
    """Call the training step on one batch; None: the batch holds nothing to learn from. `ready`: it is on the device
    already.

    last: it is the window's last batch, after whose backward the ranks all-reduce their gradients.
    """
    if batch is None:
        return None
    if session.moves and not ready:
        batch = session.to_device(batch)  # only one batch of a window is on the device at a time
    with session.precision.autocast():
        if session.together is not None:
            return session.together.training_step(batch, index, last=last, **opt.extra, **extra)
        return session.steps.training_step(batch, index, **opt.extra, **extra)


def loss_in(result: Any) -> Tensor | None:
    found = read(result)
    return None if found is None else found.loss


def read(result: Any) -> Result | None:
    """Read what a training step returned: a loss, a dict with "loss", or None."""
    if result is None:
        return None
    if isinstance(result, Tensor):
        return Result(scalar(result), None, None)
    if isinstance(result, Mapping) and isinstance(result.get("loss"), Tensor):
        return Result(scalar(result["loss"]), result.get("weight"), result.get("hiddens"))
    got = f"a dict with {sorted(map(str, result))}" if isinstance(result, Mapping) else f"{shown(result)}"
    raise TaskError(
        f"training_step returned {got}: it must return the loss, a dict with 'loss', or None to leave a batch out."
    )


def scalar(loss: Tensor) -> Tensor:
    if loss.ndim == 0 or loss.numel() == 1:
        return loss if loss.ndim == 0 else loss.reshape(())
    raise TaskError(f"the loss has shape {tuple(loss.shape)}; it must be one number: take its mean.")
