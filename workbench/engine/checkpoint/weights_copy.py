"""Copies a task's weights to host memory, restores them, and finds out whether they have changed."""

from __future__ import annotations

import copy
import ctypes
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from workbench.engine.distributed.dtensor import local
from workbench.task.contents import overwrite
from workbench.task.modules import (
    PutBack,
    Slot,
    own_attributes,
    parts_of,
    plain_attributes,
    put_backs_of_attributes,
    put_backs_of_generators,
    set_attribute,
    slots_of,
)
from workbench.task.protocol import Task


@dataclass(frozen=True)
class WeightsCopy:
    """A copy of the parameters, buffers, plain attributes and generators of a task's modules; `put` restores them."""

    values: tuple[tuple[Slot, Tensor], ...]
    attributes: tuple[tuple[nn.Module, dict[str, Any]], ...]
    put_backs: tuple[PutBack, ...]
    names: tuple[tuple[nn.Module, frozenset[str]], ...]
    """The names of each module's own attributes, plain or not."""

    @classmethod
    def of(cls, task: Task, tensors: bool = False) -> WeightsCopy:
        """Copy the present weights.

        `tensors`: copy all other attributes too. `put` then restores the contents of tensors and containers, sets other attributes
        to the same object again, and removes new ones.
        """
        parts = parts_of(task.modules)
        copies: dict[Tensor, Tensor] = {}  # tied weights are copied once
        values = []
        for slot, tensor in slots_of(parts):
            if tensor not in copies:  # of a sharded one, this rank's piece
                copies[tensor] = local(tensor).detach().to("cpu", copy=True)
            values.append((slot, copies[tensor]))
        put_backs = [back for part in parts for back in (put_backs_of_attributes if tensors else put_backs_of_generators)(part)]
        if tensors and task.hooks is not None:
            put_backs.append(task.hooks.keep())
        attributes = tuple((part, plain_attributes(part)) for part in parts)
        return cls(tuple(values), attributes, tuple(put_backs), tuple((part, frozenset(_own(part))) for part in parts))

    def put(self, task: Task) -> None:
        """Write these weights back, in place where the tensors still exist."""
        known = {(id(part), kind, name) for (part, kind, name), _ in self.values}
        with torch.no_grad():
            for (part, kind, name), value in self.values:
                there = getattr(part, kind).get(name)
                piece = None if there is None else local(there)
                if piece is not None and piece.shape == value.shape:
                    overwrite(piece, value)
                else:  # forward() has replaced the tensor
                    getattr(part, kind)[name] = value.clone() if there is None else value.to(there.device, copy=True)
        for (part, kind, name), _ in list(slots_of(parts_of(task.modules))):
            if kind == "_buffers" and (id(part), kind, name) not in known:
                del part._buffers[name]
        for part, names in self.names:
            _drop_others(part, names)
        for part, attributes in self.attributes:
            for attribute, own in attributes.items():
                set_attribute(part, attribute, copy.deepcopy(own))
        for put_back in self.put_backs:
            put_back()

    def with_changes(self, before: Fingerprint, now: Fingerprint) -> WeightsCopy:
        """These weights, with the attributes that were set between two fingerprints."""
        plain, others = now.set_since(before), now.names_since(before)
        attributes = tuple((part, {**own, **plain.get(part, {})}) for part, own in self.attributes)
        names = tuple((part, own.union(plain.get(part, ()), others.get(part, ()))) for part, own in self.names)
        return replace(self, attributes=attributes, names=names)


@dataclass(frozen=True)
class Fingerprint:
    """Fingerprint of a task's weights and attributes, which shows whether they have changed.

    `attributes` are copies of the plain ones; `own` are all of them, with parameters and submodules, not copied.
    """

    parameters: int
    buffers: int
    attributes: Mapping[nn.Module, Mapping[str, Any]]
    own: Mapping[nn.Module, Mapping[str, Any]]

    @classmethod
    def of(cls, task: Task) -> Fingerprint:
        """The present fingerprint of a task."""
        parameters = [p for whole in task.modules for p in nn.Module.parameters(whole)]
        buffers = [b for whole in task.modules for b in whole.buffers()]
        # A buffer of another shape means that the user has changed the model: a fit starts from the new weights.
        shapes = zlib.crc32(repr([b.shape for b in buffers]).encode())
        parts = parts_of(task.modules)
        attributes = {part: plain_attributes(part) for part in parts}
        return cls(checksum_of_tensors(parameters, shapes), checksum_of_tensors(buffers), attributes, {part: _own(part) for part in parts})

    def set_since(self, before: Fingerprint) -> dict[nn.Module, dict[str, Any]]:
        """The attributes that are new or different."""
        missing = object()
        return {
            part: {k: v for k, v in now.items() if before.attributes.get(part, {}).get(k, missing) != v}
            for part, now in self.attributes.items()
        }

    def names_since(self, before: Fingerprint) -> dict[nn.Module, set[str]]:
        """The names of new or replaced objects."""
        missing = object()
        return {
            part: {k for k, v in now.items() if before.own.get(part, {}).get(k, missing) is not v}
            for part, now in self.own.items()
        }


def _own(part: nn.Module) -> dict[str, Any]:
    """A module's own attributes, parameters and submodules."""
    return {**own_attributes(part), **part._parameters, **part._modules}


def _drop_others(part: nn.Module, names: Collection[str]) -> None:
    """Remove the attributes that are not among `names`: attributes that a fit makes must not exist when another one begins.

    If one of them is a tensor or a layer, none is removed: layers stay, and a flag may belong to one.
    """
    others = [name for name in _own(part) if name not in names]
    if not any(name in part._parameters or name in part._modules for name in others):
        for name in others:
            del vars(part)[name]


def checksum_of_tensors(tensors: Iterable[Tensor], total: int = 0) -> int:
    """A checksum of the tensors' contents."""
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1)
        size = flat.numel() * flat.element_size()
        if size:
            # No copy, and no NumPy view, which would prevent the tensor from being resized later (by observers of quantization).
            total = zlib.crc32((ctypes.c_ubyte * size).from_address(flat.data_ptr()), total)
    return total
