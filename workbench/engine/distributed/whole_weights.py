"""Reads and writes the weights of a task that are whole in each process; `FSDPWeights` does the
same for sharded ones.

A session has one of the two; `sharded` says which.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer

from workbench.engine.checkpoint.files import (
    Modules,
    load_tensors,
    read_state,
    read_weights,
    tensors_of,
)
from workbench.instruments.grad_norm import Norms, entries, layer_norms
from workbench.task.optim.optimizer_state import state_of
from workbench.task.protocol import Scores, StepResult, Task


class WholeWeights:
    """The modules of one task, whole in this process."""

    shard_strategy = ""
    """How the weights are sharded; empty: they are not."""
    sharded = False
    """Whether each rank holds a part of the weights."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @property
    def shard_message(self) -> str:
        """How the weights are sharded, as a sentence for the user; "": they are not."""
        return ""

    # -- steps

    def training_step(self, batch: Any, batch_idx: int, **extra: Any) -> StepResult:
        """Call the task's training step with weights that are whole while it runs."""
        return self._task.training_step(batch, batch_idx, **extra)

    def validation_step(
        self, batch: Any, batch_idx: int, stage: Literal["val", "test"] = "val"
    ) -> Scores:
        """Call the task's validation step with weights that are whole while it runs."""
        return self._task.validation_step(batch, batch_idx, stage)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        """Call the task's prediction step with weights that are whole while it runs."""
        return self._task.predict_step(batch, batch_idx)

    def reshard(self) -> None:
        """Free, after a forward without a backward, the memory that only a step needs."""

    def padding(self) -> contextlib.AbstractContextManager[None]:
        """Context manager for a step on a padding batch, which uses no parameter."""
        return contextlib.nullcontext()

    def reset(self) -> None:
        """Free that memory and the gradients after a step that an error may have ended at any
        point.
        """

    # -- updates

    def take_over(self, optimizer: Optimizer) -> None:
        """Replace, in an optimizer that was made before the sharding, the parameters by the
        sharded ones.
        """

    def gradients_of(self, trained: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of `trained` that exist, as far as this process has them."""
        return entries(trained)

    def layer_norms(
        self, trained: Sequence[Tensor], gradients: Sequence[Tensor], p: float
    ) -> Norms:
        """The p-norm of each whole gradient."""
        return layer_norms(gradients, p)

    # -- averages

    @functools.cached_property
    def averaged(self) -> list[Tensor]:
        """The trained parameters, as far as this process has them, to be averaged and
        overwritten in place.
        """
        return list(self._task.trained_parameters().values())

    def stored_averages(self, averages: Sequence[Tensor]) -> list[Tensor]:
        """Averages of the tensors in `averaged`, in the form in which they are stored."""
        return list(averages)

    def own_averages(self, averages: Sequence[Tensor]) -> list[Tensor]:
        """This process's parts of averages that were stored."""
        return list(averages)

    # -- checkpoints

    def tensors(self, modules: Modules) -> dict[str, Tensor]:
        """Parameters and persistent buffers by name; the tensors themselves."""
        return tensors_of(modules)

    def trained(self) -> dict[str, Tensor]:
        """The tensors of the modules that are trained."""
        return self.tensors(self._task.trained_modules)

    def load(
        self,
        modules: Modules,
        tensors: Mapping[str, Tensor],
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Load weights into the modules (`checkpoint.files.load_tensors`)."""
        load_tensors(modules, tensors, extra)

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of the trained parameters by name."""
        named = self._task.trained_parameters().items()
        gradients = {
            name: parameter.grad for name, parameter in named if parameter.grad is not None
        }
        return {
            name: gradient.to_dense() if gradient.is_sparse else gradient
            for name, gradient in gradients.items()
        }

    def load_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Set the gradients of the trained parameters."""
        parameters = self._task.trained_parameters()
        for name, gradient in gradients.items():
            parameters[name].grad = gradient.to(parameters[name].device)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """The optimizer's state (`state_of`)."""
        return state_of(optimizer)

    def own_optimizer_state(self, optimizer: Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state_dict that the optimizer can load, from one that was stored."""
        return dict(state) if isinstance(state, Mapping) else state

    def read_state(self, path: Path) -> dict[str, Any]:
        """Read all state of a checkpoint's directory (`checkpoint.files.read_state`)."""
        return read_state(path)

    def read_weights(self, file: Path) -> dict[str, Tensor]:
        """Read the weights of a file (`checkpoint.files.read_weights`)."""
        return read_weights(file)

    # -- searches

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Context manager in which this process steps without the others."""
        return contextlib.nullcontext()
