"""The processes of one job (ranks), as the engine sees them: what they must agree on, and how they do.

`ProcessGroup` is the job that runs in one process, where nothing has to be agreed. `MultiProcessGroup` talks over gloo in host memory,
so that no decision waits for a device. Every method but the properties is a collective: all ranks call it at the same
place. Source: torch.distributed.
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
from workbench.task.data.sharding import RankShard

T = TypeVar("T")


class StepSync(NamedTuple):
    """What all ranks know of a round, in which each has something to do or has come to its end."""

    weight: float
    """The sum of what the ranks have in it."""
    present: int
    """How many ranks have something."""
    able: int
    """How many of them have something to learn from."""
    size: int
    """How many batches rank 0 has in it."""
    even: bool = True
    """Whether all have as many to learn from."""


class ProcessGroup:
    """One process alone. `rank` counts over all machines, `local_rank` on this one."""

    rank = local_rank = node_rank = 0
    world = local_world = 1
    several = False
    seconds: float | None = None
    """The clock of rank 0 at the last beat, for decisions; None: the process's own clock decides."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which speaks for all."""
        return self.rank == 0

    @property
    def share(self) -> RankShard:
        """Which batches of each loader are this rank's."""
        return RankShard(self.rank, self.world)

    def listen(self, inbox: Inbox) -> Inbox:
        """The inbox that all ranks read alike: commands come to rank 0."""
        return inbox

    def agree(self, value: T) -> T:
        """Rank 0's value."""
        return value

    def any(self, flag: bool) -> bool:
        """Whether any rank says so."""
        return flag

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, in their order."""
        return [value]

    def sums(self, values: Sequence[float]) -> list[float]:
        """The sums over ranks."""
        return list(values)

    def mean(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes its mean over ranks, in place; the tensors are of the same shapes on all."""

    def add(self, tensor: Tensor) -> None:
        """A tensor becomes its sum over ranks, in place."""

    def most(self, tensor: Tensor) -> None:
        """A tensor becomes the largest of its values over ranks, in place; NaN where any is."""

    def take_first(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes that of rank 0, in place."""

    def wait(self) -> None:
        """Until all have come here."""

    def rounds(self, items: Iterable[T], until: Callable[[], bool] = lambda: False) -> Iterator[T]:
        """This rank's items, in step with the other ranks: a rank that has none left waits for the others.

        until: asked before each; True leaves out the rest. It must depend on what all ranks know alike.
        """
        for item in items:
            if until():
                return
            yield item


class MultiProcessGroup(ProcessGroup):
    """One of several processes; the process group is there already."""

    several = True
    beats = 0
    """Rounds so far: whoever looks on sees that it comes on."""

    def __init__(self, local_rank: int, local_world: int) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.local_rank, self.local_world = local_rank, local_world
        self.node_rank = self.rank // local_world
        self._host = _host_group()
        self._inbox = _SharedInbox(self)
        self.clock: Callable[[], float] = lambda: 0.0
        """This process's own; that of rank 0 counts."""
        self.seconds = 0.0

    def listen(self, inbox: Inbox) -> Inbox:
        self._inbox.own = inbox if self.first else None
        return self._inbox

    def agree(self, value: T) -> T:
        box = [value if self.first else None]
        dist.broadcast_object_list(box, src=0, group=self._host, device=torch.device("cpu"))
        agreed: T = box[0]  # type: ignore[assignment]
        return agreed

    def any(self, flag: bool) -> bool:
        return self.sums([float(flag)])[0] > 0

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, value, group=self._host)
        return found

    def sums(self, values: Sequence[float]) -> list[float]:
        return self.sums_later(values)()

    def sums_later(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """`sums`, begun now; what is returned waits for them."""
        vector = torch.tensor(values, dtype=torch.float64)
        work = dist.all_reduce(vector, group=self._host, async_op=True)

        def summed() -> list[float]:
            if work is not None:
                work.wait()
            found: list[float] = vector.tolist()
            return found

        return summed

    def mean(self, tensors: Sequence[Tensor]) -> None:
        for flat, parts in _joined(tensors):
            dist.all_reduce(flat)
            flat.div_(self.world)
            _spread(flat, parts)

    def add(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)

    def most(self, tensor: Tensor) -> None:
        bad = torch.isnan(tensor).to(tensor.dtype)
        both = torch.stack([torch.nan_to_num(tensor, nan=0.0, posinf=math.inf), bad])
        dist.all_reduce(both, op=dist.ReduceOp.MAX)
        tensor.copy_(torch.where(both[1] > 0, math.nan, both[0]))

    def take_first(self, tensors: Sequence[Tensor]) -> None:
        for flat, parts in _joined(tensors):
            dist.broadcast(flat, src=0)
            _spread(flat, parts)

    def wait(self) -> None:
        self.sums([])

    def beat(self, present: bool, weights: Sequence[float] = (), size: int = 0) -> StepSync:
        """One round begins: what there is in it, whether rank 0 has commands for all, and what its clock says."""
        count = len(weights)
        vector = [*self.news(), sum(weights), float(present), float(bool(weights)), size * self.first, count, count * count]
        commands, clock, total, there, able, first, counted, squares = self.sums(vector)
        self.hear(commands, clock)
        even = counted * counted == self.world * squares  # or else the squares add up to more
        return StepSync(total, round(there), round(able), round(first), even)

    def news(self) -> tuple[float, float]:
        """What rank 0 has for all, to be summed up for `hear`: whether there are commands, and what its clock says."""
        return (float(self._inbox.has_new), self.clock()) if self.first else (0.0, 0.0)

    def hear(self, commands: float, clock: float) -> None:
        """The sums of `news`: all ranks know of it now."""
        self.seconds = clock
        self.beats += 1
        if commands:
            self._inbox.take_over()

    def rounds(self, items: Iterable[T], until: Callable[[], bool] = lambda: False) -> Iterator[T]:
        own = iter(items)
        while True:
            item = next(own, _END)
            if not self.beat(item is not _END).present or until():
                return
            if item is not _END:
                yield item


_END: Any = object()


class _SharedInbox:
    """The commands that all ranks have heard of; rank 0's `own` inbox is where they come from."""

    def __init__(self, ranks: MultiProcessGroup) -> None:
        self.own: Inbox | None = None
        self._ranks = ranks
        self._commands: deque[Command] = deque()

    @property
    def has_new(self) -> bool:
        """Whether something has come to rank 0 since."""
        return bool(self.own)

    def take_over(self) -> None:
        """What has come to rank 0, for all."""
        new: list[Command] = []
        while self.own is not None and (command := self.own.take()) is not None:
            new.append(command)
        self._commands.extend(self._ranks.agree(new))

    def __bool__(self) -> bool:
        return bool(self._commands)

    def take(self) -> Command | None:
        return self._commands.popleft() if self._commands else None

    def has(self, kind: type[Command]) -> bool:
        return any(isinstance(command, kind) for command in self._commands)

    def wait(self, timeout: float) -> bool:
        """Of a run that is paused: all ranks wait, and hear what has come."""
        if self.own is not None:
            self.own.wait(timeout)
        self.take_over()
        return bool(self._commands)


_groups = threading.local()


def _host_group() -> Any:
    """A group for host memory: the usual one where it serves that, else one of its own, made once."""
    if "cpu:gloo" in dist.get_backend_config():
        return None
    known: dict[Any, Any] = _groups.__dict__
    usual = dist.group.WORLD
    if known.get("of") is not usual:
        known["of"], known["host"] = usual, dist.new_group(backend="gloo")
    return known["host"]


Joined = tuple[Tensor, list[Tensor]]
BUCKET = 25 << 20
"""Bytes that travel together, as in DDP."""


def _joined(tensors: Sequence[Tensor]) -> Iterator[Joined]:
    """Tensors of one type and device laid end to end, so that few large ones travel; a single one travels as it is."""
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
    return torch.cat([part.detach().reshape(-1) for part in parts]), parts


def _spread(flat: Tensor, parts: Sequence[Tensor]) -> None:
    if parts:
        pieces = torch.split(flat, [part.numel() for part in parts])
        with torch.no_grad():
            torch._foreach_copy_([p.detach() for p in parts], [piece.view_as(p) for piece, p in zip(pieces, parts, strict=True)])
