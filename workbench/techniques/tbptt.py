"""Splits batches of sequences for truncated backpropagation through time; the hidden state is
passed on, detached.

Source: Williams & Peng, "An efficient gradient-based algorithm for on-line training of recurrent
network trajectories" (1990). A piece is `length` time steps long; the last piece of a batch may be
shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from workbench.task.batch import describe, leaves
from workbench.task.errors import TaskError


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive time steps of a batch."""

    batch: Any
    first: bool
    """Whether the batch begins here, so that there is no hidden state yet."""
    length: int
    """Its time steps; 0 for a batch that is None."""
    last: bool = True
    """Whether the batch ends here."""


def pieces(
    batches: Iterable[Any],
    length: int,
    time_dim: int,
    own: Callable[[Any, int, int], Sequence[Any] | None],
) -> Iterator[Piece]:
    """Yield the pieces of all batches, one batch after another.

    own: the task's function to split a batch; where it returns None, `split` does.
    """
    for batch in batches:
        if batch is None:
            yield Piece(None, True, 0)
            continue
        own_pieces = own(batch, length, time_dim)
        parts = split(batch, length, time_dim) if own_pieces is None else own_pieces
        for number, piece in enumerate(parts):
            yield Piece(
                piece, number == 0, _steps(piece, length, time_dim), number == len(parts) - 1
            )


def split(batch: Any, length: int, time_dim: int) -> list[Any]:
    """Split the batch into pieces of `length` time steps, in the same containers.

    A tensor with too few dimensions for time (one label for a whole sequence) is whole in each
    piece, and so is everything that is not a tensor. All other tensors must have the same number of
    time steps.
    """
    _map(batch, _refuse_packed)
    steps = _common_length(batch, time_dim)

    def cut(start: int, value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim > time_dim:
            return value.narrow(time_dim, start, min(length, steps - start))
        return value

    return [_map(batch, partial(cut, start)) for start in range(0, steps, length)]


def detached(hiddens: Any) -> Any:
    """Return the hidden state detached from its graph, in the same containers."""
    return _map(hiddens, lambda value: value.detach() if isinstance(value, Tensor) else value)


def _common_length(batch: Any, time_dim: int) -> int:
    timed = [
        (path, tensor.shape[time_dim]) for path, tensor in leaves(batch) if tensor.ndim > time_dim
    ]
    if not timed:
        raise TaskError(
            f"truncated_bptt_steps splits a batch along dimension {time_dim}, which no tensor in it"
            f" has ({describe(batch)}): set tbptt_time_dim, or leave truncated_bptt_steps off."
        )
    (first, steps), *others = timed
    for path, other in others:
        if other != steps:
            raise TaskError(
                f"batch[{path}] is {other} long in dimension {time_dim}, and batch[{first}] is"
                f" {steps}: truncated_bptt_steps needs one length in time. Pad them to it, set"
                " tbptt_time_dim, or split the batch yourself (tbptt_split_batch)."
            )
    if steps == 0:
        raise TaskError(
            f"the sequences of a batch are 0 long in dimension {time_dim} ({describe(batch)})."
        )
    return steps


def _steps(piece: Any, length: int, time_dim: int) -> int:
    """Return the time steps in a piece: those of its first tensor that has time, else `length`."""
    if piece is None:
        return 0
    return next(
        (tensor.shape[time_dim] for _, tensor in leaves(piece) if tensor.ndim > time_dim), length
    )


def _refuse_packed(value: Any) -> Any:
    if isinstance(value, PackedSequence):
        raise TaskError(
            "a packed sequence cannot be split in time: leave truncated_bptt_steps off, or pad it."
        )
    return value


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to every part, in the same containers."""
    if isinstance(value, PackedSequence):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: _map(element, change) for key, element in value.items()}
        return changed if type(value) is dict else type(value)(changed)  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(element, change) for element in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_map(element, change) for element in value)
    return change(value)
