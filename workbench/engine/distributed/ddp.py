"""Takes updates on several ranks with whole weights: weights the batches, averages the gradients
and the loss over ranks.

K ranks with batches of N give the update of one process with a batch of K·N, to float tolerance. A
rank whose data have ended, or whose batch was left out, takes part with zero weight. Where every
parameter gets a gradient at each update, torch's DDP all-reduces during the backward. Otherwise
(several optimizers, manual steps, parameters without a gradient) the all-reduce follows the
backward.
Source: torch.nn.parallel.DistributedDataParallel, through accelerate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from workbench.engine.data.common_stream import StreamCheck
from workbench.engine.data.loaders import Loaders
from workbench.engine.distributed.process_group import MultiProcessGroup, StepSync
from workbench.engine.distributed.single import Single
from workbench.engine.distributed.task_module import TaskModule
from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.engine.metrics.noise_scale import RunningNoiseScale
from workbench.engine.metrics.step_timer import StepTimer
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.runtime.runtime import Runtime
from workbench.engine.state import TrainState
from workbench.engine.window import (
    WindowLoss,
    WindowPlan,
    batch_weights,
    refuse_no_weight,
    sample_count,
)
from workbench.events import Message
from workbench.task.errors import TaskError
from workbench.task.protocol import Task

_NOTHING = object()


class DDP(Single):
    """Takes one rank's part in the updates of a session."""

    several = True

    def __init__(
        self,
        task: Task,
        data: Loaders,
        weights: WholeWeights,
        ranks: MultiProcessGroup,
        runtime: Runtime,
        state: TrainState,
        notes: list[Message],
        timer: StepTimer,
        noise: RunningNoiseScale | None,
        *,
        alternating: bool,
    ) -> None:
        """notes: a list to which messages for the user are appended. noise: gets the gradients of
        this rank before the all-reduce.
        alternating: several optimizers take turns.
        """
        super().__init__(task, weights, runtime.device.type == "cpu")
        self._data, self._ranks, self._runtime = data, ranks, runtime
        self._state, self._notes, self._timer, self._alternating = state, notes, timer, alternating
        self._noise = noise
        self._sync = StepSync(0.0, 0, 0, 0)
        self._own_samples = self._samples = 0.0
        """How many samples the present window has on this rank, and on all; NaN: unknown."""
        double = any(p.dtype is torch.float64 for p in task.model.parameters())
        self._kind = torch.float64 if double else torch.float32
        """The dtype of the mean loss, unless a rank's own loss is float64, which stays float64."""
        self._copy: nn.Module | None = None
        self._trains: tuple[bool, ...] = ()
        self._wrapped: list[Tensor] = []
        """The parameters whose gradients torch's DDP all-reduces."""
        self._covered: frozenset[int] = frozenset()
        """Their ids."""
        self._had: list[bool] = []
        """Which of them had a gradient before the backward that DDP follows."""
        self._seen: list[Tensor] = []
        self._grad_hooks: list[RemovableHandle] = []
        """If any had, or gradients are measured: the parameters that get a gradient in that
        backward, and the hooks that note them.
        """
        self._missed = False
        """Whether one of them got no gradient in a backward of this rank."""
        self.own_loss_bad = False
        self._begun = False
        """Whether DDP has run a forward and waits for its backward."""
        self._reducing: Callable[[], list[float]] | None = None
        self._numbers = torch.empty(0)
        """On a device: the weight and the loss to all-reduce there."""
        self.dropped_batches, self.waiting = False, 0
        self.refresh()

    def refresh(self) -> None:
        trains = tuple(p.requires_grad for p in self._task.trained_parameters().values())
        if trains == self._trains:
            return
        self._trains = trains
        self._unwrap()
        if not (self._alternating or self._task.manual or self._task.partial):
            self._copy = self._runtime.prepare(_TrainingStep(self._task))
            self._wrapped = [p for p in self._copy.parameters() if p.requires_grad]
            self._covered = frozenset(map(id, self._wrapped))

    def _unwrap(self) -> None:
        """Stop using torch's DDP."""
        self._copy, self._wrapped, self._covered = None, [], frozenset()

    # -- rounds

    @property
    def whole(self) -> bool:  # type: ignore[override]
        return self._sync.able == self._ranks.world

    def batches(self, window: Sequence[Any]) -> int:
        return self._sync.size  # by which all ranks count

    def samples(self, window: Sequence[Any]) -> int | None:
        return None if math.isnan(self._samples) else round(self._samples)

    def _note_samples(self, window: Sequence[Any]) -> None:
        """Note this rank's number of samples, which the all-reduce of the update sends along."""
        count = sample_count(window)
        self._own_samples = math.nan if count is None else float(count)

    def rounds(self, windows: Iterable[Sequence[Any]], sure: int = 0) -> Iterator[Sequence[Any]]:
        check = StreamCheck(self._ranks, self._task.train)
        for number, window in enumerate(itertools.chain(windows, itertools.repeat(None))):
            check.after_reading()
            size = 0 if window is None else len(window)
            if (
                window is not None
                and number < sure
                and number
                and self.whole
                and not self._task.manual
            ):
                self._sync = self._sync._replace(size=size)
            else:
                sync = self._sync_step(window, size)
                if not sync.present:
                    check.at_end()
                    self._refuse_other_orders()
                    return
                if self._task.manual and sync.able < self._ranks.world:
                    self._warn_dropped()
                    continue
                self._sync = sync
            self.waiting = size
            batches = () if window is None else window
            self._note_samples(batches)
            yield batches

    def _sync_step(self, window: Sequence[Any] | None, size: int) -> StepSync:
        weights = (
            []
            if window is None
            else [w for w in batch_weights(self._task, window) if w is not None]
        )
        sync = self._ranks.sync_step(window is not None, weights, size)
        self._timer.mark("sync")
        return sync

    def _refuse_other_orders(self) -> None:
        """Raise TaskError, at the end of a pass, if the ranks had different orders of samples."""
        dealt = {
            order
            for order in self._ranks.all_gather_object(self._data.order_read)
            if order is not None
        }
        if len(dealt) > len({number for number, _ in dealt}):
            raise TaskError(
                "the ranks have sharded the training data in different orders, so that some samples"
                " came twice and others not at all: the sampler draws from a generator without a"
                " seed. Give it one with a seed."
            )

    def _warn_dropped(self) -> None:
        """Warn that batches are left out, since a manual step cannot be taken by some of the
        ranks alone.
        """
        if not self.dropped_batches:
            self.dropped_batches = True
            text = (
                "batches that not all ranks had a part of are left out: with manual optimisation"
                " all must step alike."
            )
            self._notes.append(Message(text, "warning", self._state.step))

    def shares(self, weights: Sequence[float]) -> list[float]:
        """Each batch's share, such that the mean over ranks of the sums is the mean over all
        batches.
        """
        return [weight * self.unit for weight in weights]

    @property
    def unit(self) -> float:  # type: ignore[override]
        return self._ranks.world / self._sync.weight if self._sync.weight else 0.0

    # -- one window

    @property
    def reduce_buffers_ready(self) -> bool:  # type: ignore[override]
        return self._copy is not None

    @property
    def synced(self) -> bool:  # type: ignore[override]
        return self._copy is not None and self._sync.able == self._ranks.world

    def training_step(self, batch: Any, batch_idx: int, *, last: bool, **extra: Any) -> Any:
        """The task's training_step, through DDP at the window's last batch."""
        if not (last and self.synced) or self._copy is None or not torch.is_grad_enabled():
            return self._task.training_step(batch, batch_idx, **extra)
        self._begun = True
        self._had = [p.grad is not None for p in self._wrapped]
        # gradients of earlier batches of the window would hide those of this one
        if any(self._had) or self._measures:
            self._add_hooks()
        return self._copy(batch, batch_idx, **extra)

    @property
    def _measures(self) -> bool:
        """Whether this rank's gradients are measured in this update."""
        return self._noise is not None and self._noise.measures

    def begin_reduce(self, window_loss: WindowLoss, gradients: Sequence[float] = ()) -> None:
        """Begin the all-reduce of this update: this rank's losses times shares (None: it had none),
        the weights of its batches, and which `gradients` it has.
        """
        summed, weight = window_loss.loss, window_loss.weight
        device, known = self._runtime.device, 0.0 if isinstance(weight, Tensor) else float(weight)
        wide = summed is not None and summed.dtype is torch.float64
        kind = torch.float64 if wide else self._kind
        summed_loss = (
            torch.zeros((), dtype=kind, device=device)
            if summed is None or not self.unit
            else summed.to(kind) / self.unit
        )
        said = [
            *self._ranks.status(),
            float(self._missed),
            float(wide),
            float(summed is not None),
            self._own_samples,
        ]
        if self._on_cpu:  # all in one
            loss = float(summed_loss)
            self.own_loss_bad = not math.isfinite(loss)
            self._reducing = self._ranks.sums_later([*said, float(weight), loss, *gradients])
            return
        # Values that the host knows are reduced on the host, so that nothing waits for the device;
        # the others on the device.
        self._reducing = self._ranks.sums_later(
            [*said, known, float(isinstance(weight, Tensor)), *gradients]
        )
        whole = (
            weight.to(device)
            if isinstance(weight, Tensor)
            else torch.full((), known, device=device)
        )
        self._numbers = torch.stack([whole.to(kind).reshape(()), summed_loss]).double()
        self._ranks.all_reduce(self._numbers)

    def measure_first(
        self, noise: RunningNoiseScale, opt: OptimizerHandle, plan: WindowPlan, place: int
    ) -> None:
        """Do nothing: the noise scale compares the gradients of ranks, which `finish_reduce`
        measures.
        """

    def finish_reduce(
        self, opt: OptimizerHandle, window_loss: WindowLoss, *, back: bool
    ) -> Tensor | None:
        loss = self._finish_reduce(opt, window_loss, back=back)
        self._timer.mark("sync")
        return loss

    def _finish_reduce(
        self, opt: OptimizerHandle, window_loss: WindowLoss, *, back: bool
    ) -> Tensor | None:
        synced = self.synced
        loose = [p for p in opt.trained if not synced or id(p) not in self._covered]
        # All ranks communicate in the same order: DDP's forward, which may send buffers, then
        # `begin_reduce`, then the backward.
        if self._noise is not None and self._measures:
            self._noise.keep(loose)
        zero = self._zero_loss() if synced and not back else None
        if self._reducing is None:
            self.begin_reduce(
                window_loss, () if synced else [float(p.grad is not None) for p in loose]
            )
        if zero is not None:
            zero.backward()  # type: ignore[no-untyped-call]
        elif synced and self._begun:
            self._fill_missing_gradients()
        self._begun = False
        self._remove_hooks()
        losses, total, loss, rescaled, ranks_with = self._reduced()
        if not losses:
            return None
        if synced and loose:
            ranks_with = self._ranks.sums([float(p.grad is not None) for p in loose])
        self._average_gradients([p for p, n in zip(loose, ranks_with, strict=True) if n])
        if self._noise is not None and self._measures and losses > 1:
            squares = self._noise.of_rank(window_loss.weight, self.unit)
            self._ranks.all_reduce(squares)
            self._noise.ranks(squares, total, round(losses))
        if rescaled:
            self._rescale(opt, total)
        return loss / total

    def _reduced(self) -> tuple[float, Tensor, Tensor, bool, list[float]]:
        """Wait for the result of `begin_reduce`.

        Returns how many ranks had losses, the weight of all batches, the weighted losses; whether
        that weight differs from the one for which the shares were made; how many ranks have each
        gradient.
        """
        assert self._reducing is not None
        (
            (commands, clock, missed, wide, losses, self._samples, weight, other, *ranks_with),
            self._reducing,
        ) = (
            self._reducing(),
            None,
        )
        self._ranks.take_status(commands, clock)
        if missed:
            self._task.partial = True
            self._unwrap()
        kind = torch.float64 if wide else self._kind
        if self._on_cpu:
            return (
                losses,
                torch.tensor(weight, dtype=kind),
                torch.tensor(other, dtype=kind),
                weight != self._sync.weight,
                ranks_with,
            )
        total, loss = self._numbers.to(kind)
        return losses, total, loss, other > 0 or weight != self._sync.weight, ranks_with

    def _average_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Average the gradients over ranks, where any rank has one."""
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._ranks.mean([p.grad for p in parameters if p.grad is not None])

    def _rescale(self, opt: OptimizerHandle, total: Tensor) -> None:
        """Rescale the gradients where the batches had another weight than planned."""
        if self._on_cpu:
            refuse_no_weight(total)
        gradients = opt.gradients()
        if gradients:
            torch._foreach_mul_(gradients, (self._sync.weight / total).to(gradients[0]))

    def _zero_loss(self) -> Tensor:
        """A loss of zero for a rank that has left out its last batch: its backward sends the
        gradients for which the other ranks wait, as zeros.
        """
        assert self._copy is not None
        if self._measures and not self._grad_hooks:
            self._add_hooks()
        zero: Tensor = _zero(self._wrapped) if self._begun else self._copy(_NOTHING, 0)
        return zero

    def _fill_missing_gradients(self) -> None:
        """Give gradients of zero to parameters that got none in this backward, since DDP waits for
        a gradient of each parameter.

        After the first such update on any rank, all ranks all-reduce after the backward, from the
        update after the next on. Then a gradient that no rank has stays None, as in one process.
        """
        seen = {id(p) for p in self._seen} if self._grad_hooks else None
        missed = [
            p
            for p in self._wrapped
            if p.grad is None or not p.requires_grad or (seen is not None and id(p) not in seen)
        ]
        if not missed:
            return
        self._missed = True
        frozen = [p for p in missed if not p.requires_grad]  # frozen since the forward began
        for parameter in frozen:
            parameter.requires_grad_(True)
        _zero(missed).backward()  # type: ignore[no-untyped-call]
        for parameter, had in zip(self._wrapped, self._had, strict=True):
            if any(parameter is frozen_parameter for frozen_parameter in frozen):
                parameter.requires_grad_(False)
                parameter.grad = parameter.grad if had else None

    def _add_hooks(self) -> None:
        """Register hooks that note each parameter, and measure its gradient where needed, before
        DDP all-reduces it.
        """
        noise = self._noise if self._measures else None

        def note(parameter: Tensor) -> None:
            self._seen.append(parameter)
            if noise is not None:
                noise.keep([parameter])

        self._grad_hooks = [
            p.register_post_accumulate_grad_hook(note)  # type: ignore[no-untyped-call]
            for p in self._wrapped
            if p.requires_grad
        ]

    def _remove_hooks(self) -> None:
        for watch in self._grad_hooks:
            watch.remove()
        self._grad_hooks, self._seen = [], []

    def reduce(self, opt: OptimizerHandle, loss: Tensor) -> Tensor:
        has = self._ranks.sums([float(p.grad is not None) for p in opt.trained])
        self._average_gradients([p for p, n in zip(opt.trained, has, strict=True) if n])
        mean = self.mean(loss)
        assert mean is not None
        return mean

    def mean(self, loss: Tensor | None) -> Tensor | None:
        losses, self._samples = self._ranks.sums([float(loss is not None), self._own_samples])
        if not losses:
            return None
        mean = (
            torch.zeros((), device=self._runtime.device) if loss is None else loss.detach().clone()
        )
        self._ranks.mean([mean])
        return mean


class _TrainingStep(TaskModule):
    """A task's training step as the forward of a module, which DDP can wrap."""

    def forward(self, batch: Any, batch_idx: int, **extra: Any) -> Any:
        if batch is _NOTHING:
            return _zero(p for p in self.parameters() if p.requires_grad)
        return self._task.training_step(batch, batch_idx, **extra)


def _zero(parameters: Iterable[Tensor]) -> Tensor:
    """A loss of 0 to which all of these tensors contribute."""
    return torch.stack([(p * 0.0).sum().float() for p in parameters]).sum()
