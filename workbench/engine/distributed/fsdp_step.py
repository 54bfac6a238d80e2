"""Takes updates on ranks with sharded weights: each forward and backward runs on all ranks, or on
none.

A rank with fewer batches than another runs one again, with weight 0. The backward averages the
gradients over the ranks; the shares of the batches take that into account.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from workbench.engine.data.common_stream import StreamCheck
from workbench.engine.distributed.ddp import DDP
from workbench.engine.distributed.fsdp_weights import FSDPWeights
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.window import Result, WindowLoss, batch_weights
from workbench.task.errors import TaskError


class FSDP(DDP):
    """Takes one rank's part in the updates of a session with sharded weights."""

    _weights: FSDPWeights
    reduce_buffers_ready = True
    _last = False
    """Whether gradients are averaged after the present backward."""
    _pending = False
    """Whether batches of the window have given gradients that are not averaged yet."""

    def refresh(self) -> None:
        """Do nothing: sharded parameters may be frozen and unfrozen at any time."""

    @property
    def synced(self) -> bool:  # type: ignore[override]
        return self.whole

    # -- rounds

    def rounds(self, windows: Iterable[Sequence[Any]], sure: int = 0) -> Iterator[Sequence[Any]]:
        """This rank's windows in step with the others, empty ones while only others have any. Ranks
        synchronize before each window.
        """
        check = StreamCheck(self._ranks, self._task.train)
        for window in itertools.chain(windows, itertools.repeat(None)):
            check.after_reading()
            size = 0 if window is None else len(window)
            sync = self._sync_step(window, size)
            if not sync.present:
                check.at_end()
                self._refuse_other_orders()
                return
            batches = () if window is None else window
            present = [
                item
                for item, weight in zip(batches, batch_weights(self._task, batches), strict=True)
                if weight is not None
            ]
            self.padding_batch = present[-1] if present else self.padding_batch
            self.padding_batches = 0 if sync.even else self._padding_batches(present)
            self._sync, self.waiting = (
                sync._replace(able=self._ranks.world if sync.able else 0),
                size,
            )
            self._note_samples(batches)
            yield batches

    def _padding_batches(self, own: Sequence[Any]) -> int:
        """Return by how many batches this rank has fewer than the rank with the most; ranks that
        never had a batch get one here.
        """
        counts = self._ranks.all_gather_object(len(own))
        if self._ranks.any(self.padding_batch is None):
            first_batches = self._ranks.all_gather_object(own[0] if own else None)
            if self.padding_batch is None:
                self.padding_batch = next(item for item in first_batches if item is not None)
        return max(counts) - len(own)

    # -- one window

    def continues(self, ready: bool) -> bool:
        """Whether the ranks continue with the next batch: if one leaves out the rest of the
        epoch, all do.
        """
        return not self._ranks.any(not ready)

    def training_step(self, batch: Any, batch_idx: int, *, last: bool, **extra: Any) -> Any:
        self._weights.set_gradient_sync(last=last)
        self._last = last
        return self._weights.training_step(batch, batch_idx, **extra)

    def after_forward(self, found: Result | None) -> Result | None:
        """Return what the step returned; raises TaskError where it is None on some of the ranks,
        since all or none must run the backward.
        """
        with_loss = self._ranks.sums([float(found is not None)])[0]
        if 0 < with_loss < self._ranks.world:
            raise TaskError(
                f"training_step returned None on {self._ranks.world - round(with_loss)} of"
                f" {self._ranks.world} ranks: with {self._weights.shard_strategy} all ranks go"
                " through each backward together. For a batch to leave out return a loss of zero"
                " that depends on the output, {'loss': output.sum() * 0.0, 'weight': 0.0}, with"
                " the usual weight on all other batches."
            )
        if found is None:
            self._weights.reshard()
            return None
        self._pending = not self._last
        return found

    def _finish_reduce(
        self, opt: OptimizerHandle, window_loss: WindowLoss, *, back: bool
    ) -> Tensor | None:
        if self._reducing is None:
            self.begin_reduce(window_loss)
        if not back and self._pending:
            self._weights.average_gradients()
        self._pending = False
        losses, total, loss, rescaled, _ = self._reduced()
        if not losses:
            return None
        self._weights.average_unsharded(opt.trained)
        if rescaled:
            self._rescale(opt, total)
        return loss / total
