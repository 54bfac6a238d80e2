"""Checks that all ranks read the same samples of a stream, of which each takes its share of the
batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from workbench.engine.distributed.process_group import ProcessGroup
from workbench.task.data.loader_parts import users_data
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError


def refuse_other_samples(ranks: ProcessGroup, spec: DataSpec) -> None:
    """Raise TaskError, on all ranks, if they read different samples of a stream.

    All ranks call it when each has begun to read.
    """
    if spec.first_read is not None and len(set(ranks.all_gather_object(spec.first_read))) > 1:
        raise TaskError(
            f"the ranks read different samples of {spec.name}"
            f" ({type(users_data(spec.parts.dataset)).__name__}), of which some would be left out"
            " and others come twice: each rank must read the whole stream, in the same order, and"
            " the workbench gives each its share of the batches. A stream that divides itself by"
            " rank should yield all samples (dividing them by get_worker_info() is right), and one"
            " that draws random numbers needs a seed that is the same on all ranks."
        )


def in_step(
    ranks: ProcessGroup, spec: DataSpec, batches: Iterable[Any], until: Callable[[], bool]
) -> Iterator[Any]:
    """The batches of a set that is evaluated, in step with the other ranks (`ProcessGroup.rounds`).

    Raises TaskError, on all ranks, if they read different samples.
    """

    def checked() -> Iterator[Any]:
        iterator = iter(batches)
        first = list(itertools.islice(iterator, 1))
        refuse_other_samples(ranks, spec)
        yield from itertools.chain(first, iterator)

    return ranks.rounds(checked() if ranks.several else batches, until)
