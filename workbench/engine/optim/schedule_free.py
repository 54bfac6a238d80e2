"""Switches schedule-free optimizers between their train and their eval mode.

Such an optimizer trains one set of weights and evaluates another; `optimizer.train()` and
`optimizer.eval()` switch the model between them.
Source: Defazio et al., "The Road Less Scheduled" (2024).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.techniques.averaging import has_batch_norm


class OptimizerModes:
    """The optimizers of a session that have both modes. Where none has, it is False and its
    methods do nothing.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers: list[Any] = [
            optimizer for optimizer in optimizers if has_modes(optimizer)
        ]

    def __bool__(self) -> bool:
        return bool(self._optimizers)

    @property
    def names(self) -> str:
        """The names of their types, joined by "and"."""
        return " and ".join(
            dict.fromkeys(type(optimizer).__name__ for optimizer in self._optimizers)
        )

    def check(self, settings: Settings, shard_strategy: str) -> None:
        """Raise TaskError for settings that cannot be used with them. shard_strategy: how the
        weights are sharded; "": they are not.
        """
        if not self:
            return
        if settings.weight_averaging is not None:
            raise TaskError(
                f"weight_averaging={settings.weight_averaging!r} cannot go with {self.names}, which"
                " averages the weights itself (it has train() and eval()): leave weight_averaging"
                " out."
            )
        if shard_strategy:
            raise TaskError(
                f"{self.names} has train() and eval(), which move whole weights, and these are"
                f" sharded ({shard_strategy}): train without FSDP."
            )

    def doubt(self, model: nn.Module) -> str | None:
        """A warning about BatchNorm statistics, which are those of the training weights; None:
        none is needed.
        """
        if not self or not has_batch_norm([model]):
            return None
        return (
            f"{self.names} evaluates other weights than it trains, and the statistics of the"
            " model's BatchNorm layers are those of the training weights: validation may look"
            " worse than it is. Take GroupNorm or LayerNorm."
        )

    def train(self) -> None:
        """Give the model its training weights."""
        self._call("train")

    def eval(self) -> None:
        """Give the model the weights that are evaluated, saved and kept."""
        self._call("eval")

    def _call(self, mode: str) -> None:
        for optimizer in self._optimizers:
            try:
                getattr(optimizer, mode)()
            except Exception as error:
                kind = type(optimizer).__name__
                raise TaskError(
                    f"optimizer: {kind}.{mode}() failed with {type(error).__name__}: {error}. An"
                    " optimizer with train() and eval() is called as a schedule-free one, without"
                    f" arguments: give it such methods, or a subclass with {mode} = None."
                ) from error

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context manager in which the model has the weights to evaluate; afterwards its training
        weights are restored bit by bit.

        They are restored from a copy: switching back rounds, so that a run would depend on how
        often it is validated.
        """
        if not self:
            yield
            return
        parameters = [
            p
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        ]
        before = [p.detach().clone() for p in parameters]
        self.eval()
        try:
            yield
        finally:
            self.train()
            with torch.no_grad():
                for parameter, value in zip(parameters, before, strict=True):
                    parameter.copy_(value)


def has_modes(optimizer: Optimizer) -> bool:
    """Whether it has `train()` and `eval()`."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))
