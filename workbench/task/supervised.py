"""A task of an nn.Module, a loss and data: the model is called with the inputs, the loss with output and target."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from workbench.settings import Settings
from workbench.task.batch import sample_count
from workbench.task.data import DataSpec
from workbench.task.protocol import Optimization, Schedule, Scores, Task, TaskError

MakeOptimizer = Callable[..., Optimizer]
MakeScheduler = Callable[[Optimizer, int], LRScheduler]
TARGETS = ("labels", "label", "targets", "target", "y")


class Supervised(Task):
    """Batches are (x, …, y), or dicts with the target under one of `TARGETS`; with no loss, `output.loss` is it."""

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Callable[..., Tensor] | None,
        train: DataSpec | None,
        val: DataSpec | None,
        test: DataSpec | None,
        optimizer: MakeOptimizer,
        scheduler: MakeScheduler | None,
        metrics: Mapping[str, Callable[[Any, Any], Any]],
    ) -> None:
        self.model = model
        self.train, self.val, self.test = train, val, test
        self._loss = loss
        self.loss_is_mean = loss is None or _is_mean(loss)
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._metrics = dict(metrics)

    @property
    def loss_is_module(self) -> bool:
        """Whether the loss is an nn.Module, which may hold weights of its own."""
        return isinstance(self._loss, nn.Module)

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        others = (self._loss, *self._metrics.values())
        return (self.model, *(part for part in others if isinstance(part, nn.Module)))

    def weight(self, batch: Any) -> float:
        return float(sample_count(batch)) if self.loss_is_mean else 1.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self._forward(batch)[0]

    def validation_step(self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val") -> Scores:
        loss, output, target = self._forward(batch)
        values: dict[str, Tensor | float] = {f"{stage}_loss": loss}
        for name, metric in self._metrics.items():
            values[f"{stage}_{name}"] = metric(output, target)
        return Scores(values, float(sample_count(batch)))

    def _forward(self, batch: Any) -> tuple[Tensor, Any, Any]:
        if self._loss is None:
            output = self.model(**batch) if isinstance(batch, Mapping) else self.model(*_as_tuple(batch))
            return _loss_of(output), output, _target(batch)
        inputs, target = _split(batch)
        output = self.model(**inputs) if isinstance(inputs, dict) else self.model(*inputs)
        return self._loss(output, target), output, target

    def configure(self, settings: Settings, updates: int | None) -> Optimization:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        arguments: dict[str, Any] = {"lr": settings.lr}
        if settings.weight_decay is not None:
            if not _takes(self._optimizer, "weight_decay"):
                name = getattr(self._optimizer, "__name__", repr(self._optimizer))
                raise TaskError(
                    f"weight_decay={settings.weight_decay}: the optimizer {name} takes no weight_decay; "
                    "leave the setting at None."
                )
            arguments["weight_decay"] = settings.weight_decay
        optimizer = self._optimizer(parameters, **arguments)
        if not isinstance(optimizer, Optimizer):
            raise TaskError(
                f"optimizer(params, lr=…) returned a {type(optimizer).__name__}, no torch.optim.Optimizer."
            )
        if self._scheduler is None:
            return Optimization(optimizer)
        if updates is None:
            raise TaskError(
                "scheduler= needs the number of updates, and the train loader has no length: give max_steps."
            )
        scheduler = self._scheduler(optimizer, updates)
        if isinstance(scheduler, ReduceLROnPlateau):
            raise TaskError("scheduler=ReduceLROnPlateau watches a metric, which is not served yet.")
        if not isinstance(scheduler, LRScheduler):
            raise TaskError(
                f"scheduler(optimizer, updates) returned a {type(scheduler).__name__}, "
                "no torch.optim.lr_scheduler.LRScheduler."
            )
        return Optimization(optimizer, (Schedule(scheduler),))


def check_optimizer(optimizer: Any) -> None:
    """Refuse an optimizer instance: it would hold the parameters and state of one run for ever."""
    if isinstance(optimizer, Optimizer):
        kind = type(optimizer)
        raise TaskError(
            f"optimizer={kind.__name__}(…) is an optimizer that is already made; each run needs its own. "
            f"Give what makes it: optimizer=torch.optim.{kind.__name__}, or with options "
            f"functools.partial(torch.optim.{kind.__name__}, …)."
        )
    if not callable(optimizer):
        raise TaskError(f"optimizer={optimizer!r} cannot be called: give e.g. torch.optim.AdamW.")


def _takes(make: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _is_mean(loss: Callable[..., Any]) -> bool:
    """Whether a loss is a mean over samples: said by `reduction`, which is "mean" unless told otherwise."""
    if isinstance(loss, functools.partial) and "reduction" in loss.keywords:
        return bool(loss.keywords["reduction"] == "mean")
    return getattr(loss, "reduction", "mean") == "mean"


def _as_tuple(batch: Any) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def _split(batch: Any) -> tuple[tuple[Any, ...] | dict[str, Any], Any]:
    if isinstance(batch, Mapping):
        for key in TARGETS:
            if key in batch:
                return {k: v for k, v in batch.items() if k != key}, batch[key]
        raise TaskError(
            f"a batch is a dict with {sorted(batch)}, and none of these is a target: name it one of {list(TARGETS)}."
        )
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return tuple(batch[:-1]), batch[-1]
    what = f"{len(batch)} element(s)" if isinstance(batch, (tuple, list)) else f"a {type(batch).__name__}"
    raise TaskError(f"a batch is {what}; with loss= it must be (x, y), (x1, x2, y) or a dict with a target.")


def _target(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return next((batch[key] for key in TARGETS if key in batch), None)
    return batch[-1] if isinstance(batch, (tuple, list)) else None


def _loss_of(output: Any) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise TaskError(
            f"no loss= was given, and the model's output ({type(output).__name__}) has no .loss: "
            "give loss=, for example torch.nn.functional.cross_entropy."
        )
    return loss
