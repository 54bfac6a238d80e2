"""Computes metrics over a whole validation: updated by batch, computed once, over the batches of
all ranks.

torchmetrics synchronise their own states. Any other object is updated with the batches of all
ranks, in the order in which one process would have them.
Source: torchmetrics.Metric (https://lightning.ai/docs/torchmetrics/stable/pages/overview.html).
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from workbench.engine.distributed.process_group import ProcessGroup
from workbench.task.batch import to_device
from workbench.task.errors import TaskError
from workbench.task.metrics.metrics import (
    describe_arguments,
    epoch_values,
    synchronises,
    takes_pair,
)
from workbench.task.metrics.over_epoch import OverEpoch, in_host_memory
from workbench.task.modules import Modes
from workbench.task.protocol import Scores, Task

_OF_FEW = (ValueError, ArithmeticError, RuntimeError)
"""Errors that more data may avoid: with one class alone there is no AUROC."""


class EpochMetrics:
    """The metrics of one validation; between `begin` and `end` its batches come to `update`."""

    def __init__(
        self,
        task: Task,
        ranks: ProcessGroup,
        device: torch.device,
        stage: Literal["val", "test"],
        *,
        trial: bool,
        aside: bool,
    ) -> None:
        """trial: a few batches, for which a metric may have no value (with one class alone there is
        no AUROC).

        aside: a validation that does not count. It uses copies, since some metrics keep more than
        their reset drops.
        """
        self._ranks, self._device, self._stage, self._trial = ranks, device, stage, trial
        self._metrics = dict(task.epoch_metrics)
        if aside:
            with contextlib.suppress(Exception):  # what cannot be copied is used itself
                self._metrics = copy.deepcopy(self._metrics)
        self._several = ranks.several
        self._count = 0
        self._batches: list[tuple[Any, Any] | None] = []
        """Of several ranks: this one's outputs and targets, for the metrics that do not
        synchronise themselves.
        """
        self._kept = self._several and not all(map(synchronises, self._metrics.values()))

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Context manager in which the metrics are on the session's device and start empty;
        nothing of the validation stays in them.
        """
        homes = [(metric, _device_of(metric)) for metric in self._distinct()]
        modes = Modes.of(metric for metric in self._distinct() if isinstance(metric, nn.Module))
        try:
            for metric, home in homes:
                if home is not None:
                    metric.to(self._device)
                if isinstance(metric, nn.Module):
                    metric.eval()
                metric.reset()
            yield
        finally:
            for metric, home in homes:
                metric.reset()
                if home is not None:
                    metric.to(home)
            modes.restore()

    def skip(self) -> None:
        """Leave out a batch of this rank."""
        if self._kept:
            self._batches.append(None)

    def update(self, scores: Scores) -> None:
        """Update with a batch."""
        if scores.seen is None or not self._metrics:
            return
        self._count += 1
        if self._kept:
            self._batches.append(in_host_memory(scores.seen))
        for metric in self._distinct():
            if not self._several or synchronises(metric):
                self._take(metric, scores.seen)

    def compute(self) -> dict[str, float]:
        """The values over the batches of all ranks, the same on all; {} where no rank had any. All
        ranks call it together.
        """
        if not self._metrics:
            return {}
        ranks = self._ranks
        with_batches = [
            rank for rank, count in enumerate(ranks.all_gather_object(self._count)) if count
        ]
        if not with_batches:
            return {}
        values: dict[str, float] = {}
        with self._group(with_batches) as group, self._whole():
            for name, metric in self._metrics.items():
                if synchronises(metric) and ranks.rank not in with_batches:
                    continue
                for key, value in self._value(name, metric, group).items():
                    if key in values:
                        raise TaskError(
                            f"metrics[{name!r}]: there is another metric that is reported as"
                            f" {key!r}: rename one of them."
                        )
                    values[key] = value
        return ranks.all_gather_object(values)[with_batches[0]]

    def _value(self, name: str, metric: Any, group: Any) -> dict[str, float]:
        try:
            with _synchronised(metric, self._several, group), warnings.catch_warnings():
                if self._trial:
                    warnings.simplefilter("ignore")
                return epoch_values(self._stage, name, metric.compute())
        except TaskError:
            raise
        except Exception as error:
            if self._trial and isinstance(error, _OF_FEW):
                return dict.fromkeys(_names(self._stage, name, metric), float("nan"))
            raise TaskError(
                f"metrics[{name!r}] failed over {self._stage} with {type(error).__name__}:"
                f" {_first_line(error)}"
            ) from error

    def _take(self, metric: Any, seen: tuple[Any, Any]) -> None:
        try:
            if takes_pair(metric):
                metric.update(seen)
            else:
                metric.update(*seen)
        except Exception as error:
            name = next(name for name, other in self._metrics.items() if other is metric)
            raise TaskError(
                f"metrics[{name!r}] of {type(metric).__name__} did not take"
                f" {describe_arguments(*seen)} with {type(error).__name__}: {_first_line(error)}"
            ) from error

    def _distinct(self) -> list[Any]:
        """Each object once, also where it has two names."""
        return list({id(metric): metric for metric in self._metrics.values()}.values())

    @contextlib.contextmanager
    def _group(self, there: Sequence[int]) -> Iterator[Any]:
        """The process group of the ranks that had a batch; None: all had, or there is one
        process.
        """
        if (
            not self._several
            or len(there) == self._ranks.world
            or not any(map(synchronises, self._metrics.values()))
        ):
            yield None
            return
        group = dist.new_group(list(there))
        try:
            yield group
        finally:
            if self._ranks.rank in there:
                dist.destroy_process_group(group)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """On several ranks: give metrics that do not synchronise themselves the batches of all
        ranks, in the data's order.
        """
        if self._kept:
            rounds = itertools.zip_longest(*self._ranks.all_gather_object(self._batches))
            batches = [batch for dealt in rounds for batch in dealt if batch is not None]
            for metric in self._distinct():
                for batch in batches if not synchronises(metric) else ():
                    self._take(
                        metric,
                        batch if isinstance(metric, OverEpoch) else to_device(batch, self._device),
                    )
        yield


@contextlib.contextmanager
def _synchronised(metric: Any, several: bool, group: Any) -> Iterator[None]:
    """Context manager in which a torchmetrics metric synchronises over the ranks of this job, or
    over `group`, and no others.
    """
    parts = (
        [module for module in _modules([metric]) if hasattr(module, "distributed_available_fn")]
        if synchronises(metric)
        else []
    )
    before = [(module, module.distributed_available_fn, module.process_group) for module in parts]
    try:
        for module in parts:
            module.distributed_available_fn = lambda: several  # type: ignore[assignment]
            if group is not None:
                module.process_group = group
        yield
    finally:
        for module, available, group_before in before:
            module.distributed_available_fn, module.process_group = available, group_before


def _modules(metrics: Sequence[Any]) -> list[nn.Module]:
    return [
        module for metric in metrics if isinstance(metric, nn.Module) for module in metric.modules()
    ]


def _device_of(metric: Any) -> torch.device | None:
    """Its device; None: it cannot be moved."""
    if not callable(getattr(metric, "to", None)):
        return None
    for module in [metric, *_modules([metric])]:
        if isinstance(device := getattr(module, "device", None), torch.device):
            return device
    tensors = (
        itertools.chain(metric.parameters(), metric.buffers())
        if isinstance(metric, nn.Module)
        else ()
    )
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _names(stage: str, name: str, metric: Any) -> Sequence[str]:
    """The names under which a metric without a value would be reported."""
    keys = getattr(metric, "keys", None)
    values: Mapping[str, Any] | float = (
        dict.fromkeys(map(str, keys()), 0.0) if callable(keys) else 0.0
    )
    return list(epoch_values(stage, name, values))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or "no message"
