"""The gradient of one window: forward and backward over its batches, each weighing what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workbench.engine.optimizing import Optimizing
from workbench.engine.session import Session
from workbench.task.batch import to_device
from workbench.task.protocol import TaskError
from workbench.techniques.accumulation import shares
from workbench.techniques.tbptt import Piece, detached


class Result(NamedTuple):
    """What a training step returned, taken apart."""

    loss: Tensor
    weight: Tensor | float | None
    hiddens: Any


def backward(session: Session, opt: Optimizing, window: Sequence[Any]) -> Tensor | None:
    """Add the window's gradient to the parameters of `opt`; its mean loss, detached. None: nothing was in it."""
    if len(window) == 1 and session.tbptt is None:
        result = _forward(session, opt, window[0], session.batch_idx, {})
        loss = _scalar(result) if isinstance(result, Tensor) else _loss_in(result)
        if loss is None:
            return None
        session.precision.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()
    return _weighted(session, opt, window)


def _weighted(session: Session, opt: Optimizing, window: Sequence[Any]) -> Tensor | None:
    """Every batch counts as its share of the window's weight: known before, or reported by the step itself."""
    planned = _planned(session, window)
    alone = sum(weight is not None for weight in planned) == 1
    reported: list[Tensor | float] = []
    kept: list[float] = []
    summed: Tensor | None = None
    weights = [weight for weight in planned if weight is not None]
    share = dict(
        zip(
            (n for n, w in enumerate(planned) if w is not None),
            shares(weights) if weights else [],
            strict=True,
        )
    )
    for number, found in _forwards(session, opt, window):
        if bool(reported) != (found.weight is not None) and (reported or kept):
            raise TaskError(
                "training_step reports a 'weight' for some batches of a window and not for others."
            )
        if found.weight is not None and not alone:
            reported.append(found.weight)
            part = found.loss * found.weight
        else:
            kept.append(share[number])
            part = found.loss if alone else found.loss * share[number]
        session.precision.scale(part).backward()  # type: ignore[no-untyped-call]
        summed = part.detach() if summed is None else summed + part.detach()
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


def _divided(opt: Optimizing, summed: Tensor, total: Tensor | float) -> Tensor:
    gradients = [p.grad for p in opt.parameters if p.grad is not None]
    divisor = total.to(summed) if isinstance(total, Tensor) else total
    if gradients:
        torch._foreach_div_(gradients, divisor)
    return summed / divisor


def losses(session: Session, opt: Optimizing, window: Sequence[Any]) -> Tensor:
    """The sum of the window's losses with the graph behind them, to look at what went wrong in it."""
    return torch.stack([found.loss for _, found in _forwards(session, opt, window)]).sum()


def pass_on(session: Session, window: Sequence[Any]) -> None:
    """The window is done with: the next batch has the next number."""
    if session.tbptt is None:
        session.batch_idx += len(window)
    else:
        session.batch_idx += sum(piece.first for piece in window)
        # One whose turn it was not goes on from where the others have come to.
        last = next(reversed(session.next_hiddens.values()), None)
        session.hiddens = {opt.index: session.next_hiddens.get(opt.index, last) for opt in session.optimizers}
        session.next_hiddens = {}


def _planned(session: Session, window: Sequence[Any]) -> list[float | None]:
    """How much each batch weighs as far as can be known before; None: left out."""
    if session.tbptt is None:
        return [None if batch is None else session.task.weight(batch) for batch in window]
    return [None if p.batch is None else session.task.weight(p.batch) * p.length for p in window]


def _forwards(session: Session, opt: Optimizing, window: Sequence[Any]) -> Iterator[tuple[int, Result]]:
    """The window's batches through the training step, in their order, hidden state handed on."""
    index = session.batch_idx - (session.tbptt is not None)
    hiddens = session.hiddens.get(opt.index)
    for number, item in enumerate(window):
        extra: dict[str, Any] = {}
        batch = item
        if session.tbptt is not None:
            assert isinstance(item, Piece)
            batch, index = item.batch, index + item.first
            hiddens = None if item.first else hiddens  # also where the step leaves the first piece out
            extra["hiddens"] = hiddens
        found = read(_forward(session, opt, batch, index, extra))
        index += session.tbptt is None
        if found is not None:
            hiddens = detached(found.hiddens)
            yield number, found
    if session.tbptt is not None:
        session.next_hiddens[opt.index] = hiddens


def _forward(session: Session, opt: Optimizing, batch: Any, index: int, extra: Mapping[str, Any]) -> Any:
    """What the training step returns for one batch; None where there was nothing to learn from."""
    if batch is None:
        return None
    if not session.on_cpu:
        batch = to_device(batch, session.device)  # of a window, one at a time is there
    with session.precision.autocast():
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
