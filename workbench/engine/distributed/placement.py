"""Moves a task's weights to their place when a session begins: on its device, on each rank's device, or sharded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.engine.distributed import fsdp
from workbench.engine.distributed.ddp import DDP
from workbench.engine.distributed.fsdp_step import FSDPStep
from workbench.engine.distributed.fsdp_weights import FSDPWeights
from workbench.engine.distributed.process_group import MultiProcessGroup
from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.engine.runtime import Runtime
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.protocol import Task

if TYPE_CHECKING:
    from workbench.engine.session import Session


def shard_model(task: Task, runtime: Runtime) -> FSDPWeights | None:
    """Move the task's modules to the device, or shard them, alike on all ranks. None: they are not sharded."""
    ranks = runtime.ranks
    if not isinstance(ranks, MultiProcessGroup):
        for module in task.modules[1:]:
            module.to(runtime.device)
        runtime.prepare(task.model)
        return None
    for module in task.modules:
        # Weights that will be sharded must not be whole on the device.
        module.to("cpu" if runtime.shards else runtime.device)
    ranks.take_first([t for module in task.modules for t in (*module.parameters(), *module.buffers())])
    if runtime.shards is None:
        return None
    return FSDPWeights(task, ranks, runtime.device)


def distributed_step(session: Session, ranks: MultiProcessGroup, runtime: Runtime) -> DDP:
    """This rank's part in the updates of several."""
    if session.shards is None:
        return DDP(session, ranks, runtime)
    return FSDPStep(session, ranks, runtime, session.shards)


def check_shardable(task: Task, settings: Settings, optimizers: Sequence[OptimizerHandle]) -> None:
    """Raise TaskError for what cannot be done with sharded weights."""
    why = None
    if task.manual:
        why = "manual optimisation calls backward inside of training_step, where the weights of its layers are not whole"
    elif len(optimizers) > 1:
        why = "several optimizers take turns with parts of the model, which is sharded as a whole"
    elif any(opt.needs_closure for opt in optimizers):
        why = "LBFGS lays all weights end to end, and they are on no rank whole"
    elif len(task.trained_modules) > 1:
        why = "the loss has parameters of its own, which would not be sharded: make it a part of the model"
    elif settings.precision == "16-mixed":
        why = "precision='16-mixed' scales losses and steps in a way of its own; take precision='bf16-mixed'"
    if why is not None:
        raise TaskError(f"{fsdp.NAME} is what the accelerate config asks for, and {why}. Data-parallel ranks can: take a config of type MULTI_GPU.")
