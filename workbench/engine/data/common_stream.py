"""Checks that all ranks read the same samples of a stream, of which each takes its share of the
batches; or that each reads its own share.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from workbench.engine.distributed.process_group import ProcessGroup
from workbench.task.data.loader_parts import users_data
from workbench.task.data.sharding import COMPARED
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError


class StreamCheck:
    """The check of one pass over a stream. All ranks call its methods together.

    Where each rank reads the whole stream, the first batches must be equal on all ranks: this is
    known before the first update. Where each reads its own share, they must not be equal on two
    ranks. A few batches may be equal by chance, so this is known after `COMPARED` rounds, or at the
    end of a shorter pass.
    """

    def __init__(self, ranks: ProcessGroup, spec: DataSpec | None) -> None:
        """spec: the data; None: there is none."""
        self._ranks, self._spec = ranks, spec
        self._rounds = 0

    def after_reading(self) -> None:
        """Compare, when each rank has read its batches of one more round, if it has any. Raises
        TaskError, on all ranks, if they should not have read what they read.
        """
        self._rounds += 1
        if self._spec is None or self._spec.read_by_rank is None:
            return
        if self._rounds == 1:
            self._refuse_other_samples(self._spec)
        if self._rounds == COMPARED:
            self._refuse_same_samples(self._spec)

    def at_end(self) -> None:
        """Compare at the end of a pass of few rounds. Raises TaskError, as `after_reading`."""
        if self._spec is not None and self._rounds < COMPARED:
            self._refuse_same_samples(self._spec)

    def _refuse_other_samples(self, spec: DataSpec) -> None:
        """Raise TaskError where the ranks read a stream in different ways, or whole and with
        different samples.
        """
        by_rank, first = zip(
            *self._ranks.all_gather_object((spec.read_by_rank, spec.first_read)), strict=True
        )
        if len(set(by_rank)) > 1:
            raise TaskError(
                f"rank {by_rank.index(True)} reads its own share of {_named(spec)}, and rank"
                f" {by_rank.index(False)} all of it: make the stream in the same way on all ranks."
            )
        if not spec.read_by_rank and len({crcs for crcs in first if crcs is not None}) > 1:
            raise TaskError(
                f"the ranks read different samples of {_named(spec)}, of which some would be left"
                " out and others come twice: each rank must read the whole stream, in the same"
                " order, and the workbench gives each its share of the batches. A stream that"
                " divides itself by rank says so, with streams='shard' or the attribute"
                " is_sharded=True (dividing it by get_worker_info() alone is right without), and"
                " one that draws random numbers needs a seed that is the same on all ranks."
            )

    def _refuse_same_samples(self, spec: DataSpec) -> None:
        """Raise TaskError where two ranks have read the same samples of a stream that is read by
        rank. Batches that repeat themselves prove nothing.
        """
        if not spec.read_by_rank:
            return
        first = self._ranks.all_gather_object(spec.first_read or ())
        for (rank, crcs), (other, others) in itertools.combinations(enumerate(first), 2):
            if crcs == others and len(crcs) > 1 and len(set(crcs)) == len(crcs):
                raise TaskError(
                    f"{_named(spec)} is read by rank (streams='shard', or is_sharded=True), and"
                    f" ranks {rank} and {other} read the same samples: let its __iter__() yield the"
                    " share of torch.distributed.get_rank() alone, or leave both out, and the"
                    " workbench gives each rank its share of the batches."
                )


def _named(spec: DataSpec) -> str:
    return f"{spec.name} ({type(users_data(spec.parts.dataset)).__name__})"


def in_step(
    ranks: ProcessGroup, spec: DataSpec, batches: Iterable[Any], until: Callable[[], bool]
) -> Iterator[Any]:
    """The batches of a set that is evaluated, in step with the other ranks (`ProcessGroup.rounds`).

    Raises TaskError, on all ranks, if they should not read what they read.
    """
    if not ranks.several:
        yield from ranks.rounds(batches, until)
        return
    check = StreamCheck(ranks, spec)
    stopped = False

    def checked_until() -> bool:
        nonlocal stopped
        check.after_reading()
        stopped = until()
        return stopped

    yield from ranks.rounds(batches, checked_until)
    if not stopped:
        check.at_end()
