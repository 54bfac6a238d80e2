"""Summarises a model in one line: its name, its parameters, their bytes, the device on which
jobs train it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from workbench.task.protocol import Task
from workbench.values import from_record, recordable, with_values


@dataclass(frozen=True)
class ModelSummary:
    """The size of a model: `parameters` and `trainable` count elements, `bytes` is the memory of
    parameters and buffers.
    """

    name: str
    parameters: int
    trainable: int
    bytes: int
    device: str
    """The kind of device on which jobs run."""
    optimizers: int = 1
    in_loss: int = 0
    """How many of the elements belong to parameters of the loss."""
    optimizer: str = ""
    """What makes the optimizer where the setting `optimizer` names none; "": the task does."""
    own_schedule: bool = False
    """Whether a scheduler of the user's sets the rate."""
    loss: str = ""
    """The name of `loss=`; "": the model or the task has the loss."""
    groups: str = ""
    """The rules of `groups=`; "": there are none."""
    build: Mapping[str, Any] = field(default_factory=dict)
    """The values with which a function made the model, as `recordable` writes them; empty where it
    was given.
    """

    @classmethod
    def of(
        cls,
        task: Task,
        optimizers: int = 1,
        build: Mapping[str, Any] = MappingProxyType({}),
        own_schedule: bool = False,
    ) -> ModelSummary:
        """Summarise a task's model, which this number of `optimizers` trains, and which a function
        made with the values `build`. The name is that of the object that has the networks.
        """
        owner = getattr(task, "module", task.model)
        parameters = list(task.trained_parameters().values())
        tensors = [
            *parameters,
            *(buffer for module in task.trained_modules.values() for buffer in module.buffers()),
        ]
        of_model = sum(p.numel() for p in task.model.parameters())
        return cls(
            type(owner).__name__,
            sum(p.numel() for p in parameters),
            sum(p.numel() for p in parameters if p.requires_grad),
            sum(t.numel() * t.element_size() for t in tensors),
            _device("auto"),
            optimizers,
            sum(p.numel() for p in parameters) - of_model,
            task.optimizer_text,
            own_schedule,
            task.loss_text,
            task.groups_text,
            recordable(build),
        )

    def on(self, accelerator: str) -> ModelSummary:
        """The summary for jobs with this value of the setting `accelerator`."""
        return replace(self, device=_device(accelerator))

    def __str__(self) -> str:
        frozen = (
            "" if self.trainable == self.parameters else f" ({_count(self.trainable)} trainable)"
        )
        loss = f", {_count(self.in_loss)} of them in the loss" if self.in_loss else ""
        name = with_values(self.name, from_record(self.build))
        return f"{name} · {_count(self.parameters)} params{frozen}{loss} · {self.device}"


def _device(accelerator: str) -> str:
    """The kind of device that jobs with this setting get ("cuda", "mps", "cpu", …)."""
    if accelerator not in ("auto", "gpu"):
        return "xla" if accelerator == "tpu" else accelerator
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if device is None else device.type


def _count(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)
