"""Copies a task's weights to host memory with the state of its objects, restores both, and finds out whether they have changed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from workbench.engine.distributed.dtensor import local
from workbench.task.modules import Slot, parts_of, set_by_modes, slots_of
from workbench.task.protocol import Task
from workbench.task.state.contents import checksum_of_tensors, overwrite
from workbench.task.state.copies import StateCopy
from workbench.task.state.of_task import copy_state


@dataclass(frozen=True)
class WeightsCopy:
    """A copy of the parameters and buffers of a task's modules, and of the state of its objects; `put` restores them."""

    values: tuple[tuple[Slot, Tensor], ...]
    state: StateCopy
    callbacks: Callable[[], object] | None
    """Restores the callbacks of the task; None: they are left as they are."""

    @classmethod
    def of(cls, task: Task, *, callbacks: bool = False) -> WeightsCopy:
        """Copy the present weights and state. callbacks: those of the task's callbacks too, which begin each fit anew themselves."""
        copies: dict[Tensor, Tensor] = {}  # tied weights are copied once
        values = []
        for slot, tensor in slots_of(parts_of(task.modules)):
            if tensor not in copies:  # of a sharded one, this rank's piece
                copies[tensor] = local(tensor).detach().to("cpu", copy=True)
            values.append((slot, copies[tensor]))
        keep = task.hooks.keep() if callbacks and task.hooks is not None else None
        return cls(tuple(values), copy_state(task), keep)

    def put(self, task: Task, *, searched: bool = False) -> list[str]:
        """Write these weights back, in place where the tensors still exist, and restore the state; returns what could not be restored.

        searched: the user's cells may have run meanwhile (`StateCopy.put`).
        """
        known = {(id(part), kind, name) for (part, kind, name), _ in self.values}
        with torch.no_grad():
            for (part, kind, name), value in self.values:
                present = getattr(part, kind).get(name)
                piece = None if present is None else local(present)
                if piece is not None and piece.shape == value.shape:
                    overwrite(piece, value)
                else:  # forward() has replaced the tensor
                    getattr(part, kind)[name] = value.clone() if present is None else value.to(present.device, copy=True)
        for (part, kind, name), _ in list(slots_of(parts_of(task.modules))):
            if kind == "_buffers" and (id(part), kind, name) not in known:
                del part._buffers[name]
        lost = self.state.put(searched=searched)
        if self.callbacks is not None:
            self.callbacks()
        return lost

    def with_state(self, state: StateCopy) -> WeightsCopy:
        """These weights with another state."""
        return replace(self, state=state)


@dataclass(frozen=True)
class Fingerprint:
    """Fingerprint of a task's weights and state, which shows whether they have changed."""

    parameters: int
    buffers: int
    state: StateCopy

    @classmethod
    def of(cls, task: Task) -> Fingerprint:
        """The present fingerprint of a task."""
        merged = {id(p) for p in set_by_modes(task.modules)}  # model.eval() is no change of the weights
        parameters = [p for whole in task.modules for p in nn.Module.parameters(whole) if id(p) not in merged]
        buffers = [b for whole in task.modules for b in whole.buffers()]
        # A buffer of another shape means that the user has changed the model: a fit starts from the new weights.
        shapes = zlib.crc32(repr([b.shape for b in buffers]).encode())
        return cls(checksum_of_tensors(parameters, shapes), checksum_of_tensors(buffers), copy_state(task, marks=True))
