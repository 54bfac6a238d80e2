"""Tensors in files of safetensors: whole in one file, or in shards, of which each rank has written
its rows.

A shard says in its metadata where its rows begin, in the form of
`torch.distributed.checkpoint.HuggingFaceStorageWriter`, so that `HuggingFaceStorageReader` reads
shards, too. Nothing in them is a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from workbench.engine.checkpoint.archive import SHARDING, NotReadError, Stored
from workbench.runs.checkpoints import shard_of
from workbench.runs.folder.files import give_usual_mode
from workbench.task.device import xla
from workbench.task.device.dtensor import ShardPlace, in_shards, local
from workbench.task.state.serialization import MARK

_SHARD = "shard"
"""The mark of a tensor of a state that is stored in the files of shards."""

Read = Callable[["StoredTensors", str], Tensor]
"""Reads one of the tensors by its name."""


# -- writing


class Ties:
    """Which tensors are the same memory with the same layout under several names."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        groups: dict[tuple[Any, ...], list[str]] = {}
        self.names: dict[str, list[str]] = {}
        """For each name, the names of the same tensor, itself included."""
        for name, tensor in tensors.items():
            # Tensors without elements share no memory, and those without storage have no address.
            tells = tensor.layout is torch.strided and tensor.numel()
            where = (
                (tensor.device, _address(tensor), tensor.shape, tensor.stride(), tensor.dtype)
                if tells
                else (name,)
            )
            self.names[name] = groups.setdefault(where, [])
            self.names[name].append(name)


def _address(tensor: Tensor) -> int:
    """The address where the tensor begins; for a sharded one, that of this rank's piece, which
    may have no elements.
    """
    if xla.is_xla(tensor.device):
        return xla.tensor_id(tensor)
    return local(tensor).untyped_storage().data_ptr() if in_shards(tensor) else tensor.data_ptr()


@dataclass
class TensorFile:
    """What this process writes of a file of tensors: all of it, or its shard."""

    name: str
    tensors: dict[str, Tensor]
    """In host memory."""
    metadata: dict[str, str]
    shard: ShardPlace | None = None
    """Which shard it is; None: it is the whole file."""

    @classmethod
    def of(cls, name: str, tensors: Mapping[str, Tensor], *, copy: bool = False) -> TensorFile:
        """The file of this name with these tensors; its name changes where it is a shard.

        Tied tensors are written once, under their first name; the metadata map the other names to
        it. Of several ranks that have the same tensor, the first writes it. copy: the tensors may
        change before they are written.
        """
        kept: dict[str, Tensor] = {}
        metadata: dict[str, str] = {}
        for other, tied in Ties(tensors).names.items():
            first = next((known for known in tied if known in kept), None)
            if tensors[other].layout is not torch.strided:
                raise ValueError(
                    f"{other!r} is a sparse tensor, which safetensors does not support"
                )
            if first is None:
                kept[other] = tensors[other].detach()
            else:
                metadata[other] = first
        shard = next((ShardPlace.of(t) for t in kept.values() if in_shards(t)), None)
        if shard is not None:
            name = shard_of(Path(name), shard.index, shard.count).name
            kept, offsets = _rows_of_rank(kept, shard)
            metadata[SHARDING] = json.dumps(offsets)
            kept = {} if shard.copy else kept
        hosted = {key: _hosted(tensor, copy) for key, tensor in kept.items()}
        return cls(name, hosted, metadata, shard)

    def is_written_by(self, rank: int) -> bool:
        """Whether this rank writes it: a shard is written once, and a whole file by rank 0."""
        return rank == 0 if self.shard is None else not self.shard.copy

    def write(self, path: Path) -> None:
        """Write the file at this path."""
        tensors = dict(self.tensors)
        for name in _overlapping(tensors):
            tensors[name] = tensors[name].clone()
        save_file(tensors, str(path), metadata=self.metadata or None)
        give_usual_mode(path)


def _rows_of_rank(
    tensors: Mapping[str, Tensor], shard: ShardPlace
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What this rank writes of these tensors, and where the rows begin in the whole ones."""
    rows: dict[str, Tensor] = {}
    offsets: dict[str, Any] = {}
    for name, tensor in tensors.items():
        start, stop = 0, 1
        if in_shards(tensor):
            start, stop = shard.rows(len(tensor))
        elif shard.index:
            continue  # the first rank writes what all have
        if start < stop or not tensor.numel():
            rows[name] = local(tensor)
            offsets[name] = {"saved_offsets": [start, *[0] * (tensor.ndim - 1)][: tensor.ndim]}
    return rows, offsets


def _hosted(tensor: Tensor, copy: bool) -> Tensor:
    hosted = tensor.cpu().contiguous()
    if copy and hosted.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
        hosted = hosted.clone()
    return hosted


def _overlapping(tensors: Mapping[str, Tensor]) -> Sequence[str]:
    """The tensors that share a storage with another one (views of one tensor), which safetensors
    does not allow.
    """
    by_storage: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    return [name for names in by_storage.values() if len(names) > 1 for name in names]


def set_aside(state: Any, *, copy: bool) -> tuple[Any, dict[str, Tensor]]:
    """A plain state with marks in the place of its sharded tensors, and these by name.

    copy: the other tensors may change before they are written.
    """
    sharded: dict[str, Tensor] = {}

    def walk(value: Any, path: str) -> Any:
        if in_shards(value):
            name = path
            while name in sharded:
                name += "_"
            sharded[name] = value
            return {MARK: _SHARD, "name": name}
        if isinstance(value, Tensor):
            return value.clone() if copy else value
        if isinstance(value, dict):
            return type(value)(
                (key, walk(item, f"{path}.{key}" if path else str(key)))
                for key, item in value.items()
            )
        if type(value) in (list, tuple):
            return type(value)(walk(item, f"{path}.{n}") for n, item in enumerate(value))
        return value

    return walk(state, ""), sharded


# -- reading


class _Rows(NamedTuple):
    file: int
    start: int
    stop: int


class StoredTensors:
    """The tensors in an open file of safetensors, or in all shards of one."""

    def __init__(self, files: Sequence[Any], contents: Sequence[Mapping[str, Stored]]) -> None:
        """files: opened by `safe_open`. contents: `archive.tensors_in` of each. Raises NotReadError
        where the shards do not fit together.
        """
        self._files = files
        self._rows: dict[str, list[_Rows]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """The shapes of the whole tensors."""
        kinds: dict[str, tuple[Any, ...]] = {}
        for number, content in enumerate(contents):
            for name, (dtype, shape, start) in content.items():
                stop = start + (shape[0] if shape else 1)
                self._rows.setdefault(name, []).append(_Rows(number, start, stop))
                if kinds.setdefault(name, (dtype, len(shape), shape[1:])) != (
                    dtype,
                    len(shape),
                    shape[1:],
                ):
                    raise NotReadError(f"the shards of {name!r} have different shapes or dtypes")
                self.shapes[name] = shape
        for name, pieces in self._rows.items():
            pieces.sort(key=lambda piece: piece.start)
            gap = any(piece.stop != following.start for piece, following in pairwise(pieces))
            if pieces[0].start or gap:
                raise NotReadError(f"the shards of {name!r} do not make up a tensor")
            if self.shapes[name]:
                self.shapes[name] = (pieces[-1].stop, *self.shapes[name][1:])

    def metadata(self) -> dict[str, str]:
        """The metadata of the first file: for names of tied tensors, the name that is stored."""
        known = self._files[0].metadata() or {}
        return {name: value for name, value in known.items() if name != SHARDING}

    def is_whole(self, name: str) -> bool:
        """Whether one file has all of this tensor, which is then only mapped."""
        return len(self._rows[name]) == 1

    def get_tensor(self, name: str) -> Tensor:
        """The whole tensor."""
        pieces = self._rows[name]
        if self.is_whole(name):
            tensor: Tensor = self._files[pieces[0].file].get_tensor(name)
            return tensor
        return self.rows(name, 0, pieces[-1].stop)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """These rows of the tensor; no others are read."""
        overlaps = [
            self._files[piece.file].get_tensor(name)[
                max(start, piece.start) - piece.start : max(stop, piece.start) - piece.start
            ]
            for piece in self._rows[name]
            if piece.start < stop and start < piece.stop
        ]
        if not overlaps:
            first: Tensor = self._files[self._rows[name][0].file].get_tensor(name)
            return first[:0]
        return overlaps[0] if len(overlaps) == 1 else torch.cat(overlaps)


def whole_tensor(stored: StoredTensors, name: str) -> Tensor:
    """The whole tensor (a `Read`)."""
    return stored.get_tensor(name)


def marks_in(state: Any) -> Iterator[str]:
    """The names of the tensors that lie in shards, in a state that was read."""
    if isinstance(state, dict):
        if state.get(MARK) == _SHARD:
            yield state["name"]
            return
        state = list(state.values())
    if isinstance(state, list | tuple):
        for item in state:
            yield from marks_in(item)


def put_back(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state with the tensors in the place of their marks."""
    if isinstance(state, dict):
        if state.get(MARK) == _SHARD:
            return tensors[state["name"]]
        return type(state)((key, put_back(item, tensors)) for key, item in state.items())
    if type(state) in (list, tuple):
        return type(state)(put_back(item, tensors) for item in state)
    return state
