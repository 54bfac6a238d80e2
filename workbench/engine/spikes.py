"""Handles spikes of the loss, as the setting `on_spike` says: reports them, leaves their updates
out, or goes back to earlier weights.

Reports come when a flush has the values, so that nothing waits for a device. The other two decide
before the optimizer's step, from the loss and the norm that all ranks have alike.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from workbench.engine.distributed.process_group import ProcessGroup
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.optim.weight_averaging import WeightAverage
from workbench.engine.replay import Replay
from workbench.engine.state import TrainState
from workbench.events import Spiked, StepsDone
from workbench.task.optim.optimizer_state import load_state, state_of
from workbench.task.protocol import Task
from workbench.techniques.accumulation import Window
from workbench.techniques.spikes import SpikeDetector, SpikeError
from workbench.units import number

SNAPSHOT_EVERY = 100
"""Updates between two copies of the weights."""
CALM = 20
"""So many updates without a spike come before a copy: a loss may rise before it spikes."""
ROLLBACKS = 3
"""How often training goes back to the same weights."""
SHOWN = 8
"""The most indices in a message."""
MOST = 10_000
"""The most indices of one spike that are recorded."""
_OF_SCHEDULES = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "momentum", "betas")
"""What a schedule or the user has set in a parameter group: it stays when training goes back."""

Action = Literal["report", "skip", "rollback"]


@dataclass
class Snapshot:
    """The weights of an update, and what else an update changes and a spike spoils."""

    step: int
    weights: dict[str, Tensor]
    buffers: list[Tensor]
    optimizer: dict[str, Any]
    average: dict[str, Any] | None

    @classmethod
    def of(
        cls, step: int, task: Task, opt: OptimizerHandle, average: WeightAverage | None
    ) -> Snapshot:
        """Copy the present state."""
        return cls(
            step,
            {name: p.detach().clone() for name, p in _trained(task).items()},
            [buffer.detach().clone() for buffer in _buffers(task.modules)],
            copy.deepcopy(state_of(opt.optimizer)),
            None if average is None else copy.deepcopy(average.state_dict()),
        )

    def fits(self, task: Task) -> bool:
        """Whether the same parameters are trained now."""
        return self.weights.keys() == _trained(task).keys()

    def put(self, task: Task, opt: OptimizerHandle, average: WeightAverage | None) -> None:
        """Give the copied state back; rates stay what they are now."""
        with torch.no_grad():
            for name, parameter in _trained(task).items():
                parameter.copy_(self.weights[name])
            for buffer, value in zip(_buffers(task.modules), self.buffers, strict=True):
                buffer.copy_(value)
        groups = opt.optimizer.param_groups
        now = [{name: group[name] for name in _OF_SCHEDULES if name in group} for group in groups]
        load_state(opt.optimizer, copy.deepcopy(self.optimizer))
        for group, values in zip(opt.optimizer.param_groups, now, strict=True):
            group.update(values)
        if average is not None and self.average is not None:
            average.load_state_dict(copy.deepcopy(self.average))


class Spikes:
    """Watches the losses of one fit."""

    def __init__(self, action: Action, ranks: ProcessGroup, replay: Replay) -> None:
        self.action = action
        self.decides = action != "report"
        """Whether it decides before each step whether it is taken."""
        self._ranks, self._replay = ranks, replay
        self._detector = SpikeDetector()
        self._batches: list[tuple[int, int | None, Sequence[Any]]] = []
        """Of each recorded update that has not been judged: its number, its samples, their
        indices.
        """
        self._spikes: list[Spiked] = []
        """The latest ones, which no event has reported yet."""
        self.reported = 0
        """How many spikes of the run events have reported."""
        self._lasts = False
        """Whether the update before was a spike, too: then a report says nothing new."""
        self._snapshot: Snapshot | None = None
        self._calm = 0
        """The updates since the latest spike."""
        self._since = 0
        """The updates taken with the weights of the snapshot and after."""
        self._rollbacks = 0
        """How often training went back to it."""

    # -- reports, from flushes

    def note(self, step: int, window: Sequence[Any], samples: int | None) -> None:
        """Note the batch of a recorded update, which a flush will judge."""
        if not self.decides:
            indices = window.indices if type(window) is Window else ()
            self._batches.append((step, samples, indices))

    def arrived(self, events: Iterable[StepsDone]) -> list[Spiked]:
        """The spikes that have not been reported: those in these flushes, or those that were
        decided on.
        """
        if not self.decides:
            for event in events:
                self._judge_rows(event)
        spikes, self._spikes = self._spikes, []
        self.reported += len(spikes)
        return spikes

    def _judge_rows(self, event: StepsDone) -> None:
        is_spike = self._detector.is_spike
        losses = event.array("loss").tolist()
        unknown = [math.nan] * event.rows
        norms = event.array("grad_norm").tolist() if "grad_norm" in event.columns else unknown
        left_out = event.array("skipped").tolist() if "skipped" in event.columns else ()
        batches, self._batches = self._batches[: event.rows], self._batches[event.rows :]
        for row, (loss, norm, batch) in enumerate(zip(losses, norms, batches, strict=True)):
            if left_out and left_out[row]:
                continue
            if not is_spike(loss, norm, batch[1]):
                self._lasts = False
            elif not self._lasts:
                self._lasts = True
                self._add(batch[0], event.epoch, loss, norm, *_numbers(batch[2]))

    # -- decisions, before a step

    def is_left_out(
        self,
        state: TrainState,
        window: Sequence[Any],
        samples: int | None,
        loss: float,
        norm: float,
        task: Task,
        opt: OptimizerHandle,
        average: WeightAverage | None,
    ) -> bool:
        """Whether this update spikes, so that its step is not taken; "rollback" then also gives
        earlier weights back. All ranks decide alike.

        Raises SpikeError where it went back to the same weights several times.
        """
        if not math.isfinite(norm):  # the loss scaler, or on_nonfinite, leaves it out
            return False
        goes_back = self.action == "rollback"
        spikes = self._detector.is_spike(loss, norm, samples)
        # the forward pass of a spike has spoiled the statistics of BatchNorm: no copy of them then
        copies = not spikes or self._snapshot is None or not self._snapshot.fits(task)
        if goes_back and copies and self._is_due(state.step, task):
            self._snapshot = Snapshot.of(state.step, task, opt, average)
            self._since = self._rollbacks = 0
        if not spikes:
            self._calm += 1
            self._since += 1
            return False
        self._calm = 0
        # The forward pass has spoiled the statistics of BatchNorm.
        self._replay.restore_buffers()
        back_to = self._go_back(task, opt, average) if goes_back else None
        indices = window.indices if isinstance(window, Window) else ()
        of_ranks = self._ranks.all_gather_object(_numbers(indices))
        indices_of_all = tuple(itertools.chain.from_iterable(numbers for numbers, _ in of_ranks))
        ready = any(are for _, are in of_ranks)
        self._add(state.step, state.epoch, loss, norm, indices_of_all, ready, back_to)
        if self._rollbacks > ROLLBACKS:
            raise SpikeError(
                f"on_spike='rollback': the loss spiked at update {state.step}, and training went"
                f" back to the weights of update {back_to} {ROLLBACKS} times already. Lower the"
                " learning rate, clip, or look at the batches (run.spikes)."
            )
        return True

    def _is_due(self, step: int, task: Task) -> bool:
        """Whether the weights are to be copied now."""
        if self._snapshot is None or not self._snapshot.fits(task):
            return True
        return step - self._snapshot.step >= SNAPSHOT_EVERY and self._calm >= CALM

    def _go_back(self, task: Task, opt: OptimizerHandle, average: WeightAverage | None) -> int:
        """Give the copied weights back; returns the update before which they were copied."""
        assert self._snapshot is not None
        if self._since:  # else the model has them
            self._rollbacks += 1
            if self._rollbacks <= ROLLBACKS:
                self._snapshot.put(task, opt, average)
            self._since = 0
        return self._snapshot.step

    def _add(
        self,
        step: int,
        epoch: int,
        loss: float,
        norm: float,
        samples: tuple[int, ...],
        ready: bool,
        back_to: int | None = None,
    ) -> None:
        expected, expected_norm = self._detector.expected
        measured = math.isfinite(norm)
        self._spikes.append(
            Spiked(
                step,
                epoch,
                loss,
                expected,
                norm if measured else None,
                expected_norm if measured else None,
                samples[:MOST],
                self.action,
                back_to,
                ready,
            )
        )

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """The detector, and the copied weights without buffers."""
        snapshot = self._snapshot
        return {
            "detector": self._detector.state_dict(),
            "counts": (self.reported, self._lasts, self._calm, self._since, self._rollbacks),
            "snapshot": None
            if snapshot is None
            else {"step": snapshot.step, "weights": snapshot.weights,
                  "optimizer": snapshot.optimizer, "average": snapshot.average},
        }  # fmt: skip

    def buffers(self) -> list[Tensor]:
        """The copied buffers, of which each rank may have others."""
        return [] if self._snapshot is None else self._snapshot.buffers

    def load_state_dict(self, state: Mapping[str, Any], buffers: list[Tensor], task: Task) -> None:
        """Continue from the state of a checkpoint."""
        self._detector.load_state_dict(state["detector"])
        self.reported, self._lasts, self._calm, self._since, self._rollbacks = state["counts"]
        stored = state["snapshot"]
        if stored is None or self.action != "rollback":
            return
        trained, now = _trained(task), _buffers(task.modules)
        weights = {
            name: value.to(trained[name].device) if name in trained else value
            for name, value in stored["weights"].items()
        }
        here = [value.to(buffer.device) for value, buffer in zip(buffers, now, strict=False)]
        self._snapshot = Snapshot(
            stored["step"], weights, here, stored["optimizer"], stored["average"]
        )


def describe(spike: Spiked) -> str:
    """A spike in a sentence."""
    norm = ""
    if spike.grad_norm is not None and spike.expected_norm is not None:
        norm = f", gradient norm {number(spike.grad_norm)} for {number(spike.expected_norm)}"
    shown = ", ".join(map(str, spike.samples[:SHOWN]))
    more = ", …" if len(spike.samples) > SHOWN else ""
    batch = f" Its samples: {shown}{more} (run.spikes has all)." if spike.samples else ""
    if spike.are_batches:
        kind = "batch: number" if len(spike.samples) == 1 else "batches: numbers"
        batch = f" Its {kind} {shown}{more} of the loader."
    done = {"report": "", "skip": " The update was left out."}.get(
        spike.action, f" The weights of update {spike.back_to} are back."
    )
    return (
        f"the loss spiked at update {spike.step}: {number(spike.loss)}, where"
        f" {number(spike.expected)} was expected{norm}.{batch}{done}"
    )


def _trained(task: Task) -> dict[str, Tensor]:
    return {name: p for name, p in task.trained_parameters().items() if p.requires_grad}


def _buffers(modules: Sequence[nn.Module]) -> list[Tensor]:
    return [buffer for module in modules for buffer in module.buffers()]


def _numbers(indices: Sequence[Any]) -> tuple[tuple[int, ...], bool]:
    """The indices of a window's batches as numbers, and whether each is that of a ready batch.
    Empty: the data have others, or none.
    """
    numbers: list[int] = []
    ready = True
    for drawn in indices:
        listed = drawn.tolist() if isinstance(drawn, Tensor | np.ndarray) else drawn
        ready = ready and not isinstance(listed, (list, tuple))
        try:
            numbers += map(int, listed if isinstance(listed, (list, tuple)) else [listed])
        except (TypeError, ValueError):
            return (), False
    return tuple(numbers), ready and bool(numbers)
