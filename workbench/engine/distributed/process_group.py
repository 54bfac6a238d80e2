"""Wraps the process group of one job: collectives over its ranks, and an inbox with the same
commands on all ranks.

`ProcessGroup` is a single process, where each collective returns its input. `MultiProcessGroup`
uses gloo in host memory, so that no decision waits for a device. Every method is a collective: all
ranks call it at the same point. The methods have the names of torch.distributed.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.commands import Command, Inbox
from workbench.engine.distributed.safe_fork import guard_forks
from workbench.task.data.sharding import RankShard

T = TypeVar("T")


class StepSync(NamedTuple):
    """The numbers about one step that all ranks share. Each rank has a window of batches for it,
    or none left.
    """

    weight: float
    """The sum of the weights of all batches."""
    present: int
    """How many ranks have a window."""
    able: int
    """How many of them have a batch to learn from."""
    size: int
    """How many batches the rank with the most has."""
    even: bool = True
    """Whether all ranks have the same number of batches."""


class ProcessGroup:
    """The group of a single process. `rank` counts over all machines, `local_rank` on this one."""

    rank = local_rank = node_rank = 0
    world = local_world = 1
    several = False
    seconds: float | None = None
    """The clock of rank 0 at the last synchronization, for decisions; None: this process has its
    own clock.
    """

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def share(self) -> RankShard:
        """The share of each loader's batches that this rank reads."""
        return RankShard(self.rank, self.world)

    def continue_from(self, seconds: float) -> None:
        """Set the shared clock, where there is one, to the seconds that a resumed fit had taken."""

    def listen(self, inbox: Inbox) -> Inbox:
        """An inbox from which all ranks take the same commands; users send them to rank 0."""
        return inbox

    def broadcast_object(self, value: T) -> T:
        """Return rank 0's value."""
        return value

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return flag

    def all_gather_object(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks."""
        return [value]

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sum over ranks of each value."""
        return list(values)

    def mean(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over ranks, in place; shapes are the same on all
        ranks.
        """

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over ranks, in place."""

    def all_reduce_max(self, tensor: Tensor) -> None:
        """Replace each element by its maximum over ranks, in place; NaN where any rank has NaN."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of rank 0, in place."""

    def rounds(self, items: Iterable[T], until: Callable[[], bool] = lambda: False) -> Iterator[T]:
        """Yield this rank's items in step with the other ranks: a rank that has none left waits for
        the others.

        until: called before each item; True leaves out the rest. It must return the same value on
        all ranks.
        """
        for item in items:
            if until():
                return
            yield item


class MultiProcessGroup(ProcessGroup):
    """The group of several processes, which uses torch's default process group."""

    several = True

    def __init__(self, local_rank: int, local_world: int) -> None:
        guard_forks()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.local_rank, self.local_world = local_rank, local_world
        self.node_rank = self.rank // local_world
        self._host = _host_group()
        self._inbox = _SharedInbox(self)
        self.clock: Callable[[], float] = lambda: 0.0
        """The clock of this process; decisions use that of rank 0."""
        self.seconds = 0.0

    def continue_from(self, seconds: float) -> None:
        self.seconds = seconds

    def listen(self, inbox: Inbox) -> Inbox:
        self._inbox.own = inbox if self.first else None
        self._inbox.take_over()  # commands that came while the job waited
        return self._inbox

    def broadcast_object(self, value: T) -> T:
        box = [value if self.first else None]
        dist.broadcast_object_list(box, src=0, group=self._host, device=torch.device("cpu"))
        agreed: T = box[0]  # type: ignore[assignment]
        return agreed

    def any(self, flag: bool) -> bool:
        return self.sums([float(flag)])[0] > 0

    def all_gather_object(self, value: T) -> list[T]:
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, value, group=self._host)
        return gathered

    def sums(self, values: Sequence[float]) -> list[float]:
        return self.sums_later(values)()

    def sums_later(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begin `sums`; the returned function waits for the result."""
        vector = torch.tensor(values, dtype=torch.float64)
        work = dist.all_reduce(vector, group=self._host, async_op=True)

        def summed() -> list[float]:
            if work is not None:
                work.wait()
            sums: list[float] = vector.tolist()
            return sums

        return summed

    def mean(self, tensors: Sequence[Tensor]) -> None:
        for flat, parts in _joined(tensors):
            dist.all_reduce(flat)
            flat.div_(self.world)
            _spread(flat, parts)

    def all_reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    def all_reduce_max(self, tensor: Tensor) -> None:
        bad = torch.isnan(tensor).to(tensor.dtype)
        both = torch.stack([torch.nan_to_num(tensor, nan=0.0, posinf=math.inf), bad])
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        tensor.copy_(torch.where(both[1] > 0, math.nan, both[0]))

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for flat, parts in _joined(tensors):
            dist.broadcast(flat, src=0)
            _spread(flat, parts)

    def broadcast_hosted(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor, in host memory, by that of rank 0, in place."""
        for flat, parts in _joined(tensors):
            dist.broadcast(flat, src=0, group=self._host)
            _spread(flat, parts)

    def sync_step(self, present: bool, weights: Sequence[float] = (), size: int = 0) -> StepSync:
        """Synchronize before a step: which ranks have a window and of what weight, rank 0's clock
        and commands.

        present: whether this rank has a window; weights: of its batches; size: the number of its
        batches, of which some may have no weight.
        """
        count = len(weights)
        vector = [
            *self.status(),
            sum(weights),
            float(present),
            float(bool(weights)),
            size * self.first,
            count,
            count * count,
        ]
        commands, clock, total, with_window, able, first, counted, squares = self.sums(vector)
        self.take_status(commands, clock)
        # if the numbers differ, the squares add up to more
        even = counted * counted == self.world * squares
        most = round(first) if even else max(self.all_gather_object(size))
        return StepSync(total, round(with_window), round(able), most, even)

    def status(self) -> tuple[float, float]:
        """Whether rank 0 has commands, and its clock; zeros on other ranks, so that the sum over
        ranks is rank 0's status.
        """
        return (float(self._inbox.has_new), self.clock()) if self.first else (0.0, 0.0)

    def take_status(self, commands: float, clock: float) -> None:
        """Set the clock from the summed `status`, and fetch rank 0's commands if it has any."""
        self.seconds = clock
        if commands:
            self._inbox.take_over()

    def rounds(self, items: Iterable[T], until: Callable[[], bool] = lambda: False) -> Iterator[T]:
        iterator = iter(items)
        while True:
            item = next(iterator, _END)
            if not self.sync_step(item is not _END).present or until():
                return
            if item is not _END:
                yield item


_END: Any = object()


class _SharedInbox:
    """The inbox of each rank, with the commands that all ranks have fetched from rank 0's own
    inbox.
    """

    def __init__(self, ranks: MultiProcessGroup) -> None:
        self.own: Inbox | None = None
        self._ranks = ranks
        self._commands: deque[Command] = deque()

    @property
    def has_new(self) -> bool:
        """Whether rank 0 has commands that the other ranks do not have."""
        return bool(self.own)

    def take_over(self) -> None:
        """Fetch the new commands of rank 0, on all ranks."""
        new: list[Command] = []
        while self.own is not None and (command := self.own.take()) is not None:
            new.append(command)
        self._commands.extend(self._ranks.broadcast_object(new))

    def __bool__(self) -> bool:
        return bool(self._commands)

    def take(self) -> Command | None:
        return self._commands.popleft() if self._commands else None

    def has(self, kind: type[Command]) -> bool:
        return any(isinstance(command, kind) for command in self._commands)

    def wait(self, timeout: float) -> bool:
        """Wait on all ranks while a run is paused, and fetch new commands."""
        if self.own is not None:
            self.own.wait(timeout)
        self.take_over()
        return bool(self._commands)


_groups = threading.local()


def _host_group() -> Any:
    """A process group for host memory: the default one where it supports CPU tensors, else
    another one, made once.
    """
    if "cpu:gloo" in dist.get_backend_config():
        return None
    known: dict[Any, Any] = _groups.__dict__
    usual = dist.group.WORLD
    if known.get("of") is not usual:
        known["of"], known["host"] = usual, dist.new_group(backend="gloo")
    return known["host"]


Joined = tuple[Tensor, list[Tensor]]
BUCKET = 25 << 20
"""Bytes that are sent together (DDP's bucket size)."""


def _joined(tensors: Sequence[Tensor]) -> Iterator[Joined]:
    """Concatenate tensors of the same dtype and device into few large ones; a tensor that is
    alone is yielded unchanged.
    """
    waiting: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    size: dict[tuple[torch.dtype, torch.device], int] = {}
    for tensor in tensors:
        key = tensor.dtype, tensor.device
        waiting.setdefault(key, []).append(tensor)
        size[key] = size.get(key, 0) + tensor.numel() * tensor.element_size()
        if size[key] >= BUCKET:
            yield _flat(waiting.pop(key))
            size[key] = 0
    for parts in waiting.values():
        yield _flat(parts)


def _flat(parts: list[Tensor]) -> Joined:
    if len(parts) == 1 and parts[0].is_contiguous():
        return parts[0].detach(), []
    return torch.cat([tensor.detach().reshape(-1) for tensor in parts]), parts


def _spread(flat: Tensor, parts: Sequence[Tensor]) -> None:
    if parts:
        pieces = torch.split(flat, [tensor.numel() for tensor in parts])
        with torch.no_grad():
            torch._foreach_copy_(
                [p.detach() for p in parts],
                [piece.view_as(p) for piece, p in zip(pieces, parts, strict=True)],
            )
