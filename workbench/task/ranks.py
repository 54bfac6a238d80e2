"""Tells a task's code which rank of its job this process is, and has the collectives between ranks
for it.

The engine communicates through the session's process group (`Communication`). The user's code
communicates through torch's default process group, as under Lightning, also before there is a
session.
"""

from __future__ import annotations

import contextlib
import numbers
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.task.batch import is_several

T = TypeVar("T")

RANK = "WORKBENCH_RANK"
"""An environment variable that is set in the ranks of a job."""


class Communication(Protocol):
    """The collectives of a session's ranks; all ranks call each method together."""

    @property
    def rank(self) -> int:
        """The number of this rank."""

    @property
    def world(self) -> int:
        """How many ranks there are."""

    @property
    def several(self) -> bool:
        """Whether there is more than one rank."""

    def all_gather_object(self, value: T) -> list[T]:
        """The values of all ranks, in the order of ranks."""

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sums over ranks."""

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over ranks, in place."""


class SingleProcess:
    """A single process."""

    rank, world, several = 0, 1, False

    def all_gather_object(self, value: T) -> list[T]:
        """The value of the only process."""
        return [value]

    def sums(self, values: Sequence[float]) -> list[float]:
        """The values of the only process."""
        return list(values)

    def all_reduce(self, tensor: Tensor) -> None:
        """Do nothing to the tensor: with one process it is the sum already."""


class RankOfJob(NamedTuple):
    """The rank of this process and the number of ranks, over all machines and on this machine."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1

    @property
    def several(self) -> bool:
        """Whether the job has several ranks."""
        return self.world > 1

    @property
    def node_rank(self) -> int:
        """The number of this machine."""
        return self.rank // self.local_world

    @property
    def nodes(self) -> int:
        """How many machines there are."""
        return max(1, self.world // self.local_world)


SINGLE_RANK = RankOfJob()


_thread = threading.local()
"""Its attribute `alone`: whether the job of this thread runs in this process alone."""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Context manager in which this process is no rank, for a job that it runs alone."""
    before, _thread.alone = getattr(_thread, "alone", False), True
    try:
        yield
    finally:
        _thread.alone = before


def is_rank() -> bool:
    """Whether this process is one of several that run a job together; a process group that the
    user made for something else does not count.
    """
    if RANK not in os.environ or getattr(_thread, "alone", False):
        return False
    return bool(dist.is_available() and dist.is_initialized())


def rank_of_job() -> RankOfJob:
    """Return the rank of this process."""
    if not is_rank():
        return SINGLE_RANK
    world = dist.get_world_size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return RankOfJob(dist.get_rank(), world, int(os.environ.get("LOCAL_RANK", 0)), local)


def barrier() -> None:
    """Wait until all processes have called this."""
    if rank_of_job().several:
        dist.barrier()


def broadcast(value: T, source: int = 0) -> T:
    """Return the value of rank `source` on all ranks."""
    if not rank_of_job().several:
        return value
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=source)
    received: T = box[0]
    return received


def all_gather(data: Any, device: torch.device, *, graph: bool = False) -> Any:
    """Gather the data of all ranks: each tensor gets one more dimension in front, and numbers
    become tensors.

    graph: gradients flow back to the rank that each part came from. A single process gets its data
    unchanged.
    """
    gather = _with_graph if graph else _gathered
    return _through(data, device, gather if rank_of_job().several else _as_it_is)


def all_reduce(tensor: Any, how: Any = "mean") -> Any:
    """Return the mean of a tensor over all ranks, or another of torch's ReduceOps; other values
    are returned unchanged.
    """
    where = rank_of_job()
    if not isinstance(tensor, Tensor) or not where.several:
        return tensor
    mean = isinstance(how, str) and how.lower() in ("mean", "avg")
    if mean or how is None:
        op = dist.ReduceOp.SUM
    else:
        op = getattr(dist.ReduceOp, how.upper()) if isinstance(how, str) else how
    reduced = tensor.detach().clone()
    dist.all_reduce(reduced, op=op)
    return reduced / where.world if mean else reduced


def _through(data: Any, device: torch.device, do: Callable[[Tensor], Tensor]) -> Any:
    """Apply `do` to each tensor in a value; numbers become tensors."""
    if isinstance(data, Tensor):
        return do(data)
    if isinstance(data, numbers.Real):
        return do(torch.tensor(data, device=device))
    if isinstance(data, Mapping):
        return {name: _through(value, device, do) for name, value in data.items()}
    if is_several(data):
        return [_through(value, device, do) for value in data]
    return data


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _gathered(tensor: Tensor) -> Tensor:
    contiguous = tensor.detach().contiguous()
    gathered = [torch.empty_like(contiguous) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, contiguous)
    return torch.stack(gathered)


def _with_graph(tensor: Tensor) -> Tensor:
    stack: Tensor = _Gather.apply(tensor)  # type: ignore[no-untyped-call]
    return stack


class _Gather(torch.autograd.Function):
    """An all-gather with a gradient: the sum over ranks of the gradients of this rank's part."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        return _gathered(own)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        whole = grad.contiguous().clone()
        dist.all_reduce(whole)
        return whole[dist.get_rank()]
