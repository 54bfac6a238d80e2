"""The gradient of one window: forward and backward over its batches, each weighing what it holds."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workbench.engine.optimizing import Optimizing
from workbench.engine.session import Session
from workbench.engine.together import weights_of
from workbench.task.protocol import TaskError
from workbench.techniques.accumulation import shares
from workbench.techniques.tbptt import Piece, detached

Work = Generator[None, None, "Tensor | None"]
"""The backward of a window in two parts: it halts once, when the last batch is about to go forward; gives the mean loss."""


class Result(NamedTuple):
    """What a training step returned, taken apart."""

    loss: Tensor
    weight: Tensor | float | None
    hiddens: Any


def backward(session: Session, opt: Optimizing, window: Sequence[Any]) -> Tensor | None:
    """Add the window's gradient to the parameters of `opt`; its mean loss, detached. None: nothing was in it."""
    if len(window) == 1 and session.tbptt is None and not session.within and session.together is None:
        result = _forward(session, opt, window[0], session.batch_idx, {})
        loss = _scalar(result) if isinstance(result, Tensor) else _loss_in(result)
        if loss is None:
            return None
        session.precision.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()
    return finish(weighted(session, opt, window))


def finish(work: Work) -> Tensor | None:
    """Do what is left of it, and return its mean loss."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            loss: Tensor | None = end.value
            return loss


def weighted(session: Session, opt: Optimizing, window: Sequence[Any], *, anew: bool = False) -> Work:
    """Every batch counts as its share of the window's weight: known before, or reported by the step itself.

    anew: the window has gone through before in this update, and the task has heard of the ends of its batches.
    """
    together = session.together
    planned = weights_of(session, window)
    there = [number for number, weight in enumerate(planned) if weight is not None]
    weights = [weight for weight in planned if weight is not None]
    of_all = shares if together is None else together.shares
    share = dict(zip(there, of_all(weights) if weights else (), strict=True))
    held: list[Tensor | float] = []
    alone = len(there) == 1 and together is None
    reported: list[Tensor | float] = []
    kept: list[float] = []
    summed: Tensor | None = None
    halted = False
    passing = _Pass(session, opt, window, there[-1] if there else None)
    for number in there:
        going_on = passing.start(number)
        if number == there[-1] if going_on else number != there[0]:
            halted = True
            yield
        if not going_on:
            break
        found = passing.forward(number)
        if found is None:
            passing.end(number, None, last=number == there[-1], anew=anew)
            continue
        if bool(reported) != (found.weight is not None) and (reported or kept):
            raise TaskError(
                "training_step reports a 'weight' for some batches of a window and not for others."
            )
        if found.weight is not None and not alone:
            reported.append(found.weight)
            part = found.loss * found.weight if together is None else found.loss * found.weight * together.unit
        else:
            kept.append(share[number])
            part = found.loss if alone or share[number] == 1.0 else found.loss * share[number]
        held.append(planned[number] or 0.0 if found.weight is None else found.weight)
        last, fresh = number == there[-1], summed is None
        summed = part.detach() if summed is None else summed + part.detach()
        if together is not None and last and together.synced:
            together.tell(summed, sum(held))  # adds up while the backward runs
        _back(session, opt, part, fresh=fresh)
        if together is not None and last:  # what the task hears of the backward, it hears of all ranks'
            loss = together.settle(opt, summed, sum(held), back=True)
        if session.within:
            session.moments.after_backward()
        passing.end(number, found, last=last, anew=anew)
        if together is not None and last:
            passing.leave()
            return loss
    passing.leave()
    if together is not None:
        if not halted:  # nothing of its own, and yet it takes the step
            yield
        if summed is None and session.within:
            _drop(session, opt)
        loss = together.settle(opt, summed, sum(held), back=False)
        if session.within and loss is not None:  # what it makes of the gradients it must make of them on all ranks
            session.moments.after_backward()
        return loss
    if summed is None or alone:
        return summed
    if reported:
        total = sum(reported)
        if session.on_cpu and float(total) == 0.0:
            raise TaskError(
                "the weights that training_step reported for the batches of one update add up to 0, so they have no "
                "mean: return None for a batch without anything to learn from."
            )
        return _divided(opt, summed, total)
    if len(kept) < len(weights):  # a step returned None: the others make up the whole
        return _divided(opt, summed, sum(kept))
    return summed


def _back(session: Session, opt: Optimizing, part: Tensor, *, fresh: bool) -> None:
    """Backward of a part of the window's loss; `fresh`: the first part, before which old gradients go."""
    scaled = session.precision.scale(part)
    if not session.within:
        scaled.backward()  # type: ignore[no-untyped-call]
        return
    if fresh:
        _drop(session, opt)
    session.moments.backward(scaled)


def _drop(session: Session, opt: Optimizing) -> None:
    """The gradients of the update before go, where the task has a say in it; also on a rank that has no others."""
    session.moments.zero_grad(opt.index, session.batch_idx)
    if not session.moments.zeroes:
        opt.optimizer.zero_grad()


def _divided(opt: Optimizing, summed: Tensor, total: Tensor | float) -> Tensor:
    gradients = opt.gradients()
    divisor = total.to(summed) if isinstance(total, Tensor) else total
    if gradients:
        torch._foreach_div_(gradients, divisor)
    return summed / divisor


def losses(session: Session, opt: Optimizing, window: Sequence[Any]) -> Tensor:
    """The sum of the window's losses with the graph behind them, to look at what went wrong in it."""
    passing = _Pass(session, opt, window)
    found = [passing.forward(number) for number in range(len(window))]
    passing.leave()
    return torch.stack([one.loss for one in found if one is not None]).sum()


def pass_on(session: Session, window: Sequence[Any]) -> None:
    """The window is done with: the next batch has the next number."""
    session.ready = {}
    if session.together is not None:
        session.together.waiting = 0
    if session.tbptt is None:
        session.batch_idx += len(window) if session.together is None else session.together.size
    elif window:
        session.batch_idx += sum(piece.first for piece in window)
        since = [piece.first for piece in window][::-1]
        session.pieces = since.index(True) + 1 if True in since else session.pieces + len(window)
        session.pieces = 0 if window[-1].last else session.pieces
        # One whose turn it was not goes on from where the others have come to.
        last = next(reversed(session.next_hiddens.values()), None)
        session.hiddens = {opt.index: session.next_hiddens.get(opt.index, last) for opt in session.optimizers}
        session.next_hiddens = {}


class _Pass:
    """One optimizer's way through a window: the numbers of its batches, and hidden state handed on."""

    def __init__(self, session: Session, opt: Optimizing, window: Sequence[Any], last: int | None = None) -> None:
        """last: behind this one's backward the gradients of all ranks come together; None: nobody waits for them."""
        self._session, self._opt, self._window, self._last = session, opt, window, last
        self._hiddens = session.hiddens.get(opt.index)
        begun = itertools.accumulate(item.first for item in window) if session.tbptt is not None else None
        first = session.batch_idx
        self._indices = range(first, first + len(window)) if begun is None else [first - 1 + n for n in begun]

    def start(self, number: int) -> bool:
        """Tell the task of the batch, on the device, once an update; False: the rest of the epoch is left out."""
        session = self._session
        if not session.within or number in session.ready:
            return True
        if session.cut_short:
            return False
        batch = session.to_device(_batch(self._window[number]))
        if _begins(self._window[number]) and not session.moments.batch_started(batch, self._indices[number]):
            session.cut_short = True
            return False
        session.look_again()
        session.ready[number] = batch
        return True

    def forward(self, number: int) -> Result | None:
        """The training step of one batch, taken apart; None: nothing to learn from."""
        session, item, extra = self._session, self._window[number], {}
        if session.tbptt is not None:
            self._hiddens = None if item.first else self._hiddens  # also where the step leaves the first piece out
            extra["hiddens"] = self._hiddens
        ready = number in session.ready
        batch = session.ready[number] if ready else _batch(item)
        last = number == self._last
        found = read(_forward(session, self._opt, batch, self._indices[number], extra, ready=ready, last=last))
        if found is not None:
            self._hiddens = detached(found.hiddens)
        return found

    def end(self, number: int, result: Result | None, *, last: bool, anew: bool) -> None:
        """The task hears once of the end of a batch, behind its last optimizer; of the window's `last` behind the update."""
        session = self._session
        if not session.within or self._opt is not session.turn()[-1] or not getattr(self._window[number], "last", True):
            return
        ending = (result, session.ready[number], self._indices[number])
        if last:
            session.ending = ending
        elif not anew:
            session.moments.batch_ended(*ending)

    def leave(self) -> None:
        """The next piece goes on from the hidden state that it has come to."""
        if self._session.tbptt is not None:
            self._session.next_hiddens[self._opt.index] = self._hiddens


def _batch(item: Any) -> Any:
    return item.batch if isinstance(item, Piece) else item


def _begins(item: Any) -> bool:
    return item.first if isinstance(item, Piece) else True


def _forward(
    session: Session, opt: Optimizing, batch: Any, index: int, extra: Mapping[str, Any], *, ready: bool = False,
    last: bool = False,
) -> Any:  # fmt: skip
    """What the training step returns for one batch (`ready`: on the device); None where there was nothing to learn from.

    last: of its window, behind whose backward the gradients of several ranks come together.
    """
    if batch is None:
        return None
    if session.moves and not ready:
        batch = session.to_device(batch)  # of a window, one at a time is there
    with session.precision.autocast():
        if session.together is not None:
            return session.together.training_step(batch, index, last=last, **opt.extra, **extra)
        return session.task.training_step(batch, index, **opt.extra, **extra)


def _loss_in(result: Any) -> Tensor | None:
    found = read(result)
    return None if found is None else found.loss


def read(result: Any) -> Result | None:
    """A training step's result, whichever of its forms it has."""
    if result is None:
        return None
    if isinstance(result, Tensor):
        return Result(_scalar(result), None, None)
    if isinstance(result, Mapping) and isinstance(result.get("loss"), Tensor):
        return Result(_scalar(result["loss"]), result.get("weight"), result.get("hiddens"))
    got = f"a dict with {sorted(map(str, result))}" if isinstance(result, Mapping) else f"{result!r}"
    raise TaskError(
        f"training_step returned {got}: it must return the loss, a dict with 'loss', or None to leave a batch out."
    )


def _scalar(loss: Tensor) -> Tensor:
    if loss.ndim == 0 or loss.numel() == 1:
        return loss if loss.ndim == 0 else loss.reshape(())
    raise TaskError(f"the loss has shape {tuple(loss.shape)}; it must be one number: take its mean.")
