"""Replaces Lightning's strategy (`self.trainer.strategy`): collectives between the processes of
a job.
"""

from __future__ import annotations

from typing import Any

import torch

from workbench.task import ranks
from workbench.task.errors import TaskError


class UnsupportedTrainerAttribute(TaskError, AttributeError):
    """Raised for an attribute of Lightning's Trainer that is not supported."""


class Strategy:
    """The collectives of Lightning's strategies. All processes call each method together; in a
    single process the methods do nothing.
    """

    def __init__(self, device: torch.device, manual: Any = None) -> None:
        """manual: the methods for manual optimization, for a module that uses it."""
        self.root_device = device
        self._manual = manual

    def backward(self, loss: Any, optimizer: Any = None, *arguments: Any, **options: Any) -> None:
        """Called by LightningModule.manual_backward: a module's own method calls super()'s."""
        if self._manual is None:
            raise UnsupportedTrainerAttribute(
                "self.trainer.strategy.backward is for manual optimization; else return the loss."
            )
        self._manual.manual_backward(loss, *arguments, **options)

    @property
    def _lightning_optimizers(self) -> list[Any]:
        """Called by LightningModule.optimizers."""
        if self._manual is None:
            raise UnsupportedTrainerAttribute(
                "super().optimizers() is for manual optimization; self.trainer.optimizers has them."
            )
        optimizers = self._manual.optimizers()
        return optimizers if isinstance(optimizers, list) else [optimizers]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnsupportedTrainerAttribute(
            f"self.trainer.strategy.{name} is not supported. Supported are barrier, broadcast,"
            " reduce, reduce_boolean_decision, all_gather, root_device, is_global_zero,"
            " global_rank, local_rank, node_rank and world_size."
        )

    @property
    def is_global_zero(self) -> bool:
        return ranks.rank_of_job().rank == 0

    @property
    def global_rank(self) -> int:
        return ranks.rank_of_job().rank

    @property
    def local_rank(self) -> int:
        return ranks.rank_of_job().local_rank

    @property
    def node_rank(self) -> int:
        return ranks.rank_of_job().node_rank

    @property
    def world_size(self) -> int:
        return ranks.rank_of_job().world

    def barrier(self, *_: Any, **__: Any) -> None:
        """Wait until all processes have called this."""
        ranks.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The value of rank `src`."""
        return ranks.broadcast(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The mean over all processes, or another reduction."""
        return ranks.all_reduce(tensor, reduce_op)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether the decision is true on all ranks, or (all=False) on any."""
        decisions = torch.tensor(float(decision), device=self.root_device)
        return bool(ranks.all_reduce(decisions, "min" if all else "max"))

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        """The tensors of all processes, with one more dimension in front."""
        return ranks.all_gather(tensor, self.root_device, graph=sync_grads)
