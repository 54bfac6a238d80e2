"""Takes one update on ranks with sharded weights: all ranks take every step of it, or none does.

A rank with fewer batches than another runs one once more, at no weight. The backward averages the gradients over the
ranks, for which the shares are made.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workbench.engine.batch_steps import Result, read
from workbench.engine.distributed.ddp import DDP, batch_weights
from workbench.engine.distributed.fsdp_forward import Borrowed
from workbench.engine.distributed.fsdp_weights import FSDPWeights
from workbench.engine.distributed.process_group import MultiProcessGroup
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.runtime import Runtime
from workbench.task.errors import TaskError

if TYPE_CHECKING:
    from workbench.engine.session import Session


class FSDPStep(DDP):
    """One rank's part in the updates of a session with sharded weights."""

    def __init__(self, session: Session, ranks: MultiProcessGroup, runtime: Runtime, shards: FSDPWeights) -> None:
        self._shards = shards
        super().__init__(session, ranks, runtime)
        self._borrowed, self._latest = 0, None
        self._pending = False
        """Whether batches of the window have given gradients that are not averaged yet."""

    def look_again(self) -> None:
        """Sharded parameters may begin and cease to train at any time."""

    @property
    def wrapped(self) -> bool:
        return True

    @property
    def synced(self) -> bool:
        return self.whole

    # -- rounds

    def rounds(self, windows: Iterable[Sequence[Any]], sure: int = 0) -> Iterator[Sequence[Any]]:
        """This rank's windows in step with the others, empty ones while only others have any. All ranks are asked
        each time.
        """
        for window in itertools.chain(windows, itertools.repeat(None)):
            size = 0 if window is None else len(window)
            beat = self._beat(window, size)
            if not beat.present:
                self._refuse_other_orders()
                return
            own = () if window is None else window
            there = [item for item, weight in zip(own, batch_weights(self._session, own), strict=True) if weight is not None]
            self._latest = there[-1] if there else self._latest
            self._borrowed = 0 if beat.even else self._borrow(there)
            self._round, self.waiting = beat._replace(able=self._ranks.world if beat.able else 0), size
            yield own

    def _borrow(self, own: Sequence[Any]) -> int:
        """How many batches this rank has less than another, which has lent one to each that never had any."""
        counts = self._ranks.gather(len(own))
        if self._ranks.any(self._latest is None):
            found = self._ranks.gather(own[0] if own else None)
            if self._latest is None:
                self._latest = next(item for item in found if item is not None)
        return max(counts) - len(own)

    # -- one window

    def starts(self, going_on: bool) -> bool:
        """Whether all ranks continue with the next batch: where one leaves out the rest of the epoch, all do."""
        return not self._ranks.any(not going_on) if self._session.within else going_on

    @property
    def borrowed(self) -> int:
        return self._borrowed

    def pass_borrowed(self, opt: OptimizerHandle, summed: Tensor | None, weight: float | Tensor) -> None:
        """Run the steps that the other ranks take, with an earlier batch, at no weight."""
        session = self._session
        extra: dict[str, Any] = {**opt.extra} if session.tbptt is None else {**opt.extra, "hiddens": None}

        def step(batch: Any, *, last: bool) -> None:
            self._shards.begin(last=last)
            found = self.formed(read(self._shards.training_step(batch, session.batch_idx, **extra)))
            if found is None:
                return
            if last:  # where those that have a batch call theirs
                self.tell(summed, weight)
            (found.loss * 0.0).backward()  # type: ignore[no-untyped-call]
            self._pending = not last

        for left in reversed(range(self._borrowed)):
            if not self.starts(True):
                return
            Borrowed(self._latest).pass_through(session, "train", functools.partial(step, last=not left))

    def training_step(self, batch: Any, batch_idx: int, *, last: bool, **extra: Any) -> Any:
        self._shards.begin(last=last)
        return self._shards.training_step(batch, batch_idx, **extra)

    def formed(self, found: Result | None) -> Result | None:
        """What a step returned, before its backward, which all ranks run or none."""
        there = self._ranks.sums([float(found is not None)])[0]
        if 0 < there < self._ranks.world:
            raise TaskError(
                f"training_step returned None on {self._ranks.world - round(there)} of {self._ranks.world} ranks: with "
                f"{self._shards.name} all ranks go through each backward together. For a batch to leave out return a loss of "
                "zero that hangs on the output, {'loss': output.sum() * 0.0, 'weight': 0.0}, with the weight that counts on "
                "all other batches."
            )
        if found is None:
            self._shards.rest()
            return None
        self._pending = True
        return found

    def settle(self, opt: OptimizerHandle, summed: Tensor | None, weight: float | Tensor, *, back: bool) -> Tensor | None:
        if self._telling is None:
            self.tell(summed, weight)
        if not back and self._pending:
            self._shards.bring_together()
        self._pending = False
        losses, total, loss, rescaled, _ = self._told()
        if not losses:
            return None
        self._shards.mean_of_the_rest(opt.trained)
        if rescaled:
            self._rescale(opt, total)
        return loss / total
