"""Keeps the forward passes of ranks with sharded weights in step: a rank without a batch takes a
padding batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from workbench.engine.distributed.process_group import MultiProcessGroup

_END: Any = object()


class PaddingBatch(NamedTuple):
    """A batch that a rank without one of its own runs with weight 0, so that the other ranks do
    not wait for it.
    """

    batch: Any


class FSDPForward(MultiProcessGroup):
    """The process group of ranks that each have a piece of the weights."""

    def rounds(
        self, items: Iterable[Any], until: Callable[[], bool] = lambda: False
    ) -> Iterator[Any]:
        """Yield this rank's items in step with the other ranks, and a `PaddingBatch` in rounds
        where only others have one.
        """
        iterator, latest = iter(items), None
        while True:
            item = next(iterator, _END)
            has = item is not _END and item is not None
            sync = self.sync_step(item is not _END, [1.0] if has else [])
            if not sync.present or until():
                return
            if not sync.able:  # every rank has left its batch out
                continue
            if not has:
                latest = latest if sync.able == self.world else self._padding_batch(latest, None)
                yield PaddingBatch(latest)
                continue
            if sync.able < self.world:
                self._padding_batch(latest, item)
            latest = item
            yield item

    def _padding_batch(self, latest: Any, item: Any) -> Any:
        """The batch with which this rank pads: its latest one, or, if it never had one, that of
        the first rank that has one.
        """
        if not self.any(item is None and latest is None):
            return latest
        of_ranks = (of_rank for of_rank in self.all_gather_object(item) if of_rank is not None)
        return next(of_ranks) if latest is None and item is None else latest
