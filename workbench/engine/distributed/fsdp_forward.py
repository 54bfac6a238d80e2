"""Keeps the forward passes of ranks with sharded weights in step: a rank without a batch takes a padding batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from workbench.engine.distributed.process_group import MultiProcessGroup

_END: Any = object()


class PaddingBatch(NamedTuple):
    """A batch for a rank that has none of its own, so that the others do not wait for it. It does not count."""

    batch: Any


class FSDPForward(MultiProcessGroup):
    """One of several processes, each of which has a piece of the weights."""

    def rounds(self, items: Iterable[Any], until: Callable[[], bool] = lambda: False) -> Iterator[Any]:
        """This rank's items in step with the others; `PaddingBatch` ones in rounds where only others have any."""
        own, latest = iter(items), None
        while True:
            item = next(own, _END)
            has = item is not _END and item is not None
            sync = self.sync_step(item is not _END, [1.0] if has else [])
            if not sync.present or until():
                return
            if not sync.able:  # all have left theirs out
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
        """The batch that this rank uses: if it never had one, that of the first rank that has."""
        if not self.any(item is None and latest is None):
            return latest
        there = (found for found in self.all_gather_object(item) if found is not None)
        return next(there) if latest is None and item is None else latest
