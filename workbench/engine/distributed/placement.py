"""Where a task's weights lie when a session begins: on its device, on the device of each rank, or in shards over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.engine.distributed import fsdp
from workbench.engine.distributed.ddp import DDP
from workbench.engine.distributed.fsdp_step import FSDPStep
from workbench.engine.distributed.fsdp_weights import FSDPWeights
from workbench.engine.distributed.process_group import MultiProcessGroup
from workbench.engine.distributed.shards import Shards
from workbench.engine.runtime import Runtime
from workbench.engine.zero import Zero
from workbench.task.protocol import Task

if TYPE_CHECKING:
    from workbench.engine.session import Session


def shard_model(task: Task, runtime: Runtime) -> Shards | None:
    """Put the task's modules where they are to be, alike on all ranks. None: they are not in shards."""
    ranks = runtime.ranks
    if not isinstance(ranks, MultiProcessGroup):
        for module in task.modules[1:]:
            module.to(runtime.device)
        runtime.prepare(task.model)
        return None
    for module in task.modules:
        # Weights that come into shards are not to be whole on the device.
        module.to("cpu" if runtime.shards else runtime.device)
    ranks.take_first([t for module in task.modules for t in (*module.parameters(), *module.buffers())])
    if runtime.shards is None:
        return None
    return (FSDPWeights if runtime.shards == fsdp.NAME else Zero)(task, ranks, runtime.device)


def distributed_step(session: Session, ranks: MultiProcessGroup, runtime: Runtime) -> DDP:
    """This rank's part in the updates of several."""
    if session.shards is None:
        return DDP(session, ranks, runtime)
    return FSDPStep(session, ranks, runtime, session.shards)
