"""Averages the weights of a session, by EMA or SWA, and gives optimizers the schedule of SWA.

`engine/optim/averaged_model.py` puts the averages into the model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.optim.swa_utils import SWALR

from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.state import TrainState
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.optim.optimizer_factory import group_rates
from workbench.task.protocol import Averaging, Schedule, Task
from workbench.techniques.averaging import (
    Average,
    ema_due,
    has_batch_norm,
    swa_due,
    swa_first_epoch,
)


class WeightAverage:
    """The average of the trained weights of one session, updated when the settings, or the
    user's rule, ask for it.
    """

    def __init__(self, task: Task, settings: Settings, weights: WholeWeights) -> None:
        """Raises TaskError where this task's weights cannot be averaged."""
        kind = settings.weight_averaging
        assert kind is not None
        if task.manual and has_batch_norm([task.model]):
            raise TaskError(
                "weight_averaging with manual optimisation cannot refresh the statistics of the"
                " model's batch normalisation: take another normalisation, or average in the task."
            )
        if task.train is not None and task.train.one_shot and has_batch_norm([task.model]):
            raise TaskError(
                "weight_averaging reads the training data once more, for the statistics of the"
                " model's batch normalisation, and this data can be read only once: give a Dataset,"
                " a DataLoader, or wb.batches(list)."
            )
        if kind == "swa":
            swa_first_epoch(settings)  # a fraction needs max_epochs: raise that before training
        self._kind, self._settings, self._weights = kind, settings, weights
        self._should_update = task.averaging.should_update
        self._average = Average(
            kind, settings.ema_decay, task.averaging.avg_fn, warmup=settings.ema_warmup
        )

    @property
    def count(self) -> int:
        """How many times the weights were averaged; 0: there is no average yet."""
        return self._average.count

    def begin_epoch(self, epoch: int, optimizers: Iterable[OptimizerHandle]) -> None:
        """Replace the schedules by SWA's own at the first epoch of SWA, where `swa_lrs` is set."""
        if _has_rates(self._settings) and epoch >= swa_first_epoch(self._settings):
            for opt in optimizers:
                begin_rates(self._settings, opt)

    def after_update(self, state: TrainState) -> None:
        """Average the weights after an update, for EMA."""
        if self._kind == "ema" and self._due(
            state, lambda: ema_due(self._settings, state.step, state.epoch)
        ):
            self.add()

    def after_epoch(self, state: TrainState) -> None:
        """Average the weights after epoch `state.epoch`, for SWA."""
        if self._kind == "swa" and self._due(state, lambda: swa_due(self._settings, state.epoch)):
            self.add()

    def _due(self, state: TrainState, usual: Callable[[], bool]) -> bool:
        should_update = self._should_update
        return usual() if should_update is None else bool(should_update(state.step, state.epoch))

    def add(self) -> None:
        """Add the present weights to the average."""
        self._average.update(self._weights.averaged)

    def swapped(self) -> contextlib.AbstractContextManager[None]:
        """Context manager in which the model has the averages; afterwards its own weights."""
        return self._average.swapped(self._weights.averaged)

    def copy_to_model(self) -> None:
        """Give the model the averages permanently."""
        self._average.copy_to(self._weights.averaged)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages, whole, and how many times the weights were averaged."""
        state = self._average.state_dict()
        return {**state, "averages": self._weights.stored_averages(state["averages"])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of an average; a state of another kind is ignored."""
        in_shards = {**state, "averages": self._weights.own_averages(state["averages"])}
        self._average.load_state_dict(in_shards, self._weights.averaged)


def refuse_unused(settings: Settings, task: Task) -> None:
    """Raise TaskError for an averaging function in a fit that averages nothing."""
    if settings.weight_averaging is None and task.averaging != Averaging():
        raise TaskError(
            "avg_fn= and should_update= belong to weight_averaging='ema' or 'swa', which is off: "
            "bench.set(weight_averaging='ema')."
        )


class OwnSWALR(SWALR):
    """SWALR for the setting `swa_lrs`; the class distinguishes it from one that the user made."""


def rates_begun(settings: Settings, state: TrainState) -> bool:
    """Whether SWA's own schedule has begun; an epoch that has begun counts."""
    return _has_rates(settings) and state.epoch + state.mid_epoch > swa_first_epoch(settings)


def begin_rates(settings: Settings, opt: OptimizerHandle) -> None:
    """Replace an optimizer's schedules by SWA's own, if that has not happened yet."""
    if in_swa(opt):
        return
    # a group at 0 stays there
    rates: Any = [settings.swa_lrs if base else 0.0 for base in group_rates(opt.optimizer)]
    schedule = OwnSWALR(
        opt.optimizer, rates, settings.annealing_epochs, settings.annealing_strategy
    )
    opt.schedules = (Schedule(schedule, "epoch"),)


def in_swa(opt: OptimizerHandle) -> bool:
    """Whether this optimizer's rate follows SWA's own schedule."""
    return any(isinstance(schedule.scheduler, OwnSWALR) for schedule in opt.schedules)


def _has_rates(settings: Settings) -> bool:
    return settings.weight_averaging == "swa" and settings.swa_lrs is not None
