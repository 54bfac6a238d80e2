"""Moves a task's weights to the session's device when it opens, or shards them over the ranks."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.engine.data.loaders import Loaders
from workbench.engine.distributed.ddp import DDP
from workbench.engine.distributed.fsdp_step import FSDP
from workbench.engine.distributed.fsdp_weights import FSDPWeights
from workbench.engine.distributed.process_group import MultiProcessGroup
from workbench.engine.distributed.whole_weights import WholeWeights
from workbench.engine.metrics.noise_scale import RunningNoiseScale
from workbench.engine.metrics.step_timer import StepTimer
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.runtime.runtime import Runtime
from workbench.engine.state import TrainState
from workbench.events import Message
from workbench.settings import Settings
from workbench.task.device import xla
from workbench.task.device.dtensor import in_shards
from workbench.task.errors import TaskError
from workbench.task.optim.part_optimizers import PartOptimizers
from workbench.task.protocol import Task


def place_weights(task: Task, runtime: Runtime) -> WholeWeights:
    """Move the task's modules to the device, or shard them, alike on all ranks."""
    ranks = runtime.ranks
    if not isinstance(ranks, MultiProcessGroup):
        with xla.same_parameters(runtime.device):
            for module in task.modules[1:]:
                module.to(runtime.device)
            runtime.prepare(task.model)
        return WholeWeights(task)
    for module in task.modules:
        # Weights to shard stay in host memory: whole they may not fit on the device.
        module.to("cpu" if runtime.shards else runtime.device)
    weights = FSDPWeights(task, ranks, runtime.device) if runtime.shards else WholeWeights(task)
    tensors = [t for module in task.modules for t in (*module.parameters(), *module.buffers())]
    ranks.broadcast([t for t in tensors if not in_shards(t)])
    return weights


def distributed(
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
) -> DDP:
    """The object that takes this rank's part in updates: `DDP` or `FSDP`."""
    if task.sparse_layer:
        raise TaskError(
            f"{task.sparse_layer!r} has sparse gradients, which several ranks cannot average: make"
            " it with sparse=False, or take devices=1."
        )
    kind = FSDP if isinstance(weights, FSDPWeights) else DDP
    return kind(
        task, data, weights, ranks, runtime, state, notes, timer, noise, alternating=alternating
    )


def check_shardable(
    task: Task, settings: Settings, optimizers: Sequence[OptimizerHandle], name: str
) -> None:
    """Raise TaskError for a task or settings that do not work with sharded weights. name: how
    they are sharded, for the error.
    """
    why = None
    if task.manual:
        why = (
            "manual optimisation calls backward inside of training_step, where the weights of its"
            " layers are not whole"
        )
    elif len(optimizers) > 1 or any(
        isinstance(opt.optimizer, PartOptimizers) for opt in optimizers
    ):
        why = "several optimizers train parts of the model, which is sharded as a whole"
    elif any(opt.needs_closure for opt in optimizers):
        why = (
            "its optimizer evaluates the loss again (LBFGS, SAM), for which it needs whole weights,"
            " and no rank has them"
        )
    elif len(task.trained_modules) > 1:
        why = (
            "the loss has parameters of its own, which would not be sharded: make it a part of the"
            " model"
        )
    elif settings.precision == "16-mixed":
        why = (
            "precision='16-mixed' scales losses and steps in its own way; take"
            " precision='bf16-mixed'"
        )
    if why is not None:
        raise TaskError(
            f"the accelerate config selects {name}, which this fit cannot use: {why}. Data-parallel"
            " ranks can: take a config of type MULTI_GPU."
        )
