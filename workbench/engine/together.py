"""One update of several ranks: each weighs what it holds, the gradients become their mean, the loss is that of all.

K ranks with batches of N give the update of one process with a batch of K·N, to float tolerance, whatever each of them
holds: one that has come to its end, or has left its batch out, takes its part with nothing. Where every parameter gets a
gradient at each update, DDP brings the gradients together while the backward still runs; any other way (several
optimizers, manual steps, parameters without a gradient) they are brought together behind it.

Source: torch.nn.parallel.DistributedDataParallel, by way of accelerate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from workbench.engine.optimizing import Optimizing
from workbench.engine.ranks import Beat, ManyRanks
from workbench.engine.runtime import Runtime
from workbench.events import Message
from workbench.task.protocol import Task, TaskError
from workbench.techniques.tbptt import Piece

if TYPE_CHECKING:
    from workbench.engine.session import Session

_NOTHING = object()


class Together:
    """The part of one rank in the updates of a session."""

    def __init__(self, session: Session, ranks: ManyRanks, runtime: Runtime) -> None:
        self._session, self._ranks, self._runtime = session, ranks, runtime
        self._round = Beat(0.0, 0, 0, 0)
        self._copy: nn.Module | None = None
        self._trains: tuple[bool, ...] = ()
        self._covered: frozenset[int] = frozenset()
        """The parameters whose gradients DDP brings together."""
        self.spoiled = False
        """Whether this rank's own loss is not finite; known on CPU alone."""
        self._begun = False
        """Whether DDP waits for the backward of a forward."""
        self._left_over = False
        self.waiting = 0
        """The batches that this rank has read for an update that is not taken yet."""
        self.look_again()

    def look_again(self) -> None:
        """Other parameters may train now; called between two updates."""
        session = self._session
        trains = tuple(p.requires_grad for p in session.task.model.parameters())
        if trains == self._trains:
            return
        self._trains, self._copy, self._covered = trains, None, frozenset()
        if not (session.several or session.task.manual or session.task.partial):
            self._copy = self._runtime.prepare(_Stepping(session.task))
            self._covered = frozenset(id(p) for p in self._copy.parameters() if p.requires_grad)

    # -- rounds

    @property
    def whole(self) -> bool:
        """Whether all ranks have something to learn from in this update."""
        return self._round.able == self._ranks.world

    @property
    def size(self) -> int:
        """How many batches rank 0 has in this update."""
        return self._round.size

    def rounds(self, windows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        """One's own windows in step with the other ranks; empty ones while only others have any."""
        own, session = iter(windows), self._session
        while True:
            window = next(own, None)
            weights = [] if window is None else [w for w in weights_of(session, window) if w is not None]
            beat = self._ranks.beat(window is not None, weights, 0 if window is None else len(window), session.meter.seconds)
            if not beat.present:
                self._refuse_other_orders()
                return
            if session.task.manual and beat.able < self._ranks.world:
                self._say_left_over()
                continue
            self._round, self.waiting = beat, 0 if window is None else len(window)
            yield () if window is None else window

    def _refuse_other_orders(self) -> None:
        """A pass is over: was it the same for all?"""
        dealt = {found for found in self._ranks.gather(self._session.data.dealt) if found is not None}
        if len(dealt) > len({number for number, _ in dealt}):
            raise TaskError(
                "the ranks have dealt out the training data in different orders, so that some samples came twice and others "
                "not at all: the sampler draws from a generator without a seed. Give it one with a seed."
            )

    def _say_left_over(self) -> None:
        """A manual step cannot be taken by some ranks alone."""
        if not self._left_over:
            self._left_over = True
            text = "batches that not all ranks had a part of are left out: with manual optimisation all must step alike."
            self._session.notes.append(Message(text, "warning", self._session.step))

    def shares(self, weights: Sequence[float]) -> list[float]:
        """Each batch's share, such that the mean over ranks of all that is summed up is the mean over all batches."""
        return [weight * self.unit for weight in weights]

    @property
    def unit(self) -> float:
        """The share of a batch of weight 1."""
        return self._ranks.world / self._round.weight if self._round.weight else 0.0

    # -- one window

    @property
    def wrapped(self) -> bool:
        """Whether DDP brings gradients together, in memory that it has taken already."""
        return self._copy is not None

    @property
    def synced(self) -> bool:
        """Whether DDP brings the gradients of this update together."""
        return self._copy is not None and self._round.able == self._ranks.world

    def training_step(self, batch: Any, batch_idx: int, *, last: bool, **extra: Any) -> Any:
        """The task's, through DDP at the window's last batch."""
        if not (last and self.synced) or self._copy is None or not torch.is_grad_enabled():
            return self._session.task.training_step(batch, batch_idx, **extra)
        self._begun = True
        return self._copy(batch, batch_idx, **extra)

    def settle(self, opt: Optimizing, summed: Tensor | None, weight: float | Tensor, *, planned: bool, back: bool) -> Tensor | None:
        """Behind this rank's backward: the gradients of `opt` become those of all ranks; the mean loss over all batches.

        summed: this rank's losses at their shares; None: it had none. weight: of its batches, as it turned out; `planned`:
        as it was known before. back: whether the last of its forwards has had its backward. None: no rank had anything.
        """
        synced = self.synced
        if synced and not back:
            self._nothing()
        self._begun = False
        loose = [p for p in opt.trained if not synced or id(p) not in self._covered]
        said = [float(not planned), float(summed is not None), *(float(p.grad is not None) for p in loose)]
        said, total, loss = self._told(said, summed, weight)
        other_weight, losses, *there = said
        if not losses:
            return None
        self._bring_together([p for p, n in zip(loose, there, strict=True) if n])
        if other_weight:
            self._rescale(opt, total)
            return loss / total
        return loss / self._round.weight

    def _told(self, said: list[float], summed: Tensor | None, weight: float | Tensor) -> tuple[list[float], Tensor, Tensor]:
        """The sums over ranks: of what is `said`, of the weights, and of the weighted losses."""
        device = self._session.device
        part = torch.zeros((), device=device) if summed is None or not self.unit else summed.float() / self.unit
        # Filled on the device: a number that is sent there is waited for.
        whole = weight.to(device).float() if isinstance(weight, Tensor) else torch.full((), float(weight), device=device)
        numbers = torch.stack([whole.reshape(()), part]).double()
        if self._session.on_cpu:  # all in one
            self.spoiled = not bool(torch.isfinite(part))
            *said, total, losses = self._ranks.sums([*said, *numbers.tolist()])
            return said, torch.tensor(total), torch.tensor(losses)
        said = self._ranks.sums(said)  # in host memory, so that nobody waits for the device
        self._ranks.add(numbers)
        return said, numbers[0].float(), numbers[1].float()

    def _bring_together(self, parameters: Sequence[Tensor]) -> None:
        """The mean of gradients over ranks, where any rank has one."""
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._ranks.mean([p.grad for p in parameters if p.grad is not None])

    def _rescale(self, opt: Optimizing, total: Tensor) -> None:
        """Batches turned out to weigh something else than was planned."""
        if self._session.on_cpu and float(total) == 0.0:
            raise TaskError(
                "the weights that training_step reported for the batches of one update add up to 0, so they have no "
                "mean: return None for a batch without anything to learn from."
            )
        gradients = opt.gradients()
        if gradients:
            torch._foreach_mul_(gradients, (self._round.weight / total).to(gradients[0]))

    def _nothing(self) -> None:
        """This rank has left its last batch out, and the others wait for its gradients: zeros."""
        assert self._copy is not None
        if self._begun:
            zero = _zero(self._copy)
        else:
            zero = self._copy(_NOTHING, 0)
        zero.backward()  # type: ignore[no-untyped-call]

    def reduce(self, opt: Optimizing, loss: Tensor) -> Tensor:
        """Before the step of a manual task: its gradients and its loss as of all ranks."""
        has = self._ranks.sums([float(p.grad is not None) for p in opt.trained])
        self._bring_together([p for p, n in zip(opt.trained, has, strict=True) if n])
        mean = self.mean(loss)
        assert mean is not None
        return mean

    def mean(self, loss: Tensor | None) -> Tensor | None:
        """The mean of a loss over ranks, of which all have one or none has."""
        if not self._ranks.any(loss is not None):
            return None
        mean = torch.zeros((), device=self._session.device) if loss is None else loss.detach().clone()
        self._ranks.mean([mean])
        return mean


class _Stepping(nn.Module):
    """A task's step as the forward of a module, which is what DDP follows."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.parts = nn.ModuleList(task.modules)
        self._task = task

    def forward(self, batch: Any, batch_idx: int, **extra: Any) -> Any:
        if batch is _NOTHING:
            return _zero(self)
        return self._task.training_step(batch, batch_idx, **extra)


def _zero(module: nn.Module) -> Tensor:
    """A loss of 0 that all parameters have a part in."""
    parts = [(p * 0.0).sum() for p in module.parameters() if p.requires_grad]
    return torch.stack([part.float() for part in parts]).sum()


def weights_of(session: Session, window: Sequence[Any]) -> list[float | None]:
    """How much each batch weighs as far as can be known before; None: left out."""
    if session.tbptt is None:
        return [None if batch is None else session.task.weight(batch) for batch in window]
    pieces: Sequence[Piece] = window
    return [None if p.batch is None else session.task.weight(p.batch) * p.length for p in pieces]
