"""Works on batches of any kind: counts their samples, moves them to a device, describes them,
lists their tensors.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import zlib
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from workbench.units import counted

TARGETS = ("labels", "label", "targets", "target", "y")
"""The keys under which a dict holds its target."""
_FEW = 3
"""How many similar tensors of a list are described one by one at most."""
_MANY = 12
"""How many tensors of a batch are described at most."""


def sample_count(batch: Any) -> int:
    """Return how many samples a batch has: its `batch_size` or `num_graphs`, else the first
    dimension of its first tensor or array, in containers and dataclasses; 1 where there is none.
    """
    declared = _own_count(batch)
    count = _first_count(batch) if declared is None else declared
    return 1 if count is None else count


def miscounted(batch: Any) -> str | None:
    """Why `sample_count` may be wrong, for a batch that declares no number of samples and whose
    tensors differ in their first dimension; None: it seems right.
    """
    sizes = {name: tensor.shape[0] for name, tensor in leaves(batch) if tensor.ndim}
    if (
        isinstance(batch, PackedSequence)
        or _own_count(batch) is not None
        or len(set(sizes.values())) < 2
    ):
        return None
    return (
        f"counts as {counted(sample_count(batch), 'sample')}, the first dimension of its first"
        f" tensor, and its tensors differ ({describe(batch)})"
    )


def _own_count(batch: Any) -> int | None:
    """Return the number of samples that a batch declares."""
    where = own_count(batch)
    if where is None:
        return None
    declared = getattr(batch, where.partition("[")[0])
    return int(declared[0]) if isinstance(declared, torch.Size) else int(declared)


def own_count(batch: Any) -> str | None:
    """Return the attribute in which a batch declares its number of samples (PyG's `num_graphs`, a
    tensordict's `batch_size[0]`); None: nowhere.
    """
    if type(batch) in (tuple, list, dict, Tensor):
        return None
    for name in ("batch_size", "num_graphs"):
        declared = getattr(batch, name, None)
        if isinstance(declared, torch.Size) and declared:
            return f"{name}[0]"
        if isinstance(declared, int) and not isinstance(declared, bool):
            return name
    return None


def _first_count(value: Any) -> int | None:
    if isinstance(value, PackedSequence):
        return int(value.batch_sizes[0])
    if isinstance(value, (Tensor, np.ndarray)):
        return len(value) if value.ndim else 1
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (tuple, list)):
        parts = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name) for field in dataclasses.fields(value))
    return next((count for count in map(_first_count, parts) if count is not None), None)


def is_several(batch: Any) -> bool:
    """Whether a batch is a tuple or list of parts. (A PackedSequence is a tuple by type alone:
    it is one thing.)
    """
    return type(batch) in (tuple, list) or (
        isinstance(batch, (tuple, list)) and not isinstance(batch, PackedSequence)
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """Move the batch to `device`, in the same containers."""
    if isinstance(batch, PackedSequence):
        return batch.to(device, non_blocking=True)  # type: ignore[arg-type]  # its batch_sizes stay on the CPU
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=device.type != "cpu")
    if isinstance(batch, Mapping):
        return _mapping_to(batch, device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(value, device) for value in batch)
    return batch.to(device) if hasattr(batch, "to") else batch


def copied(batch: Any) -> Any:
    """A copy of the batch, in the same containers, with memory of its own."""
    if isinstance(batch, PackedSequence):
        return PackedSequence(*map(copied, batch))
    if isinstance(batch, Tensor):
        if batch.requires_grad:
            return batch
        pinned = torch.cuda.is_initialized() and batch.is_pinned()  # type: ignore[no-untyped-call]
        return torch.empty_like(batch, pin_memory=True).copy_(batch) if pinned else batch.clone()
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(copied, batch))
    if type(batch) in (tuple, list):
        return type(batch)(map(copied, batch))
    if type(batch) is dict:
        return {key: copied(value) for key, value in batch.items()}
    if callable(getattr(batch, "clone", None)):
        return batch.clone()
    try:
        return copy.deepcopy(batch)
    except Exception:  # noqa: BLE001 - the object of another library is kept as it is
        return batch


def _mapping_to(batch: Mapping[Any, Any], device: torch.device) -> Any:
    """A mapping of the same kind on `device`; one with a `to` (a TensorDict, a BatchEncoding)
    moves itself.
    """
    if hasattr(batch, "to"):
        return copy.copy(batch).to(device)
    moved = {key: to_device(value, device) for key, value in batch.items()}
    if type(batch) is dict:
        return moved
    # a copy, as in torch's collation: a defaultdict cannot be made from a mapping
    if isinstance(batch, MutableMapping):
        duplicate = copy.copy(batch)
        for key, value in moved.items():  # an output of transformers refuses update()
            duplicate[key] = value
        return duplicate
    return type(batch)(moved)  # type: ignore[call-arg]


def checksum_of(batch: Any, crc: int = 0) -> int:
    """A checksum of the tensors, arrays, strings and numbers in a batch."""
    if isinstance(batch, Tensor):
        if batch.layout is not torch.strided:
            return zlib.crc32(repr(batch).encode(), crc)
        batch = batch.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if isinstance(batch, np.ndarray) and not batch.dtype.hasobject:
        return zlib.crc32(batch.tobytes(), crc)
    if isinstance(batch, Mapping):
        batch = [element for item in batch.items() for element in item]
    if isinstance(batch, (list, tuple)):
        for element in batch:
            crc = checksum_of(element, crc)
        return crc
    if isinstance(batch, (str, bytes, int, float, complex)) or batch is None:
        return zlib.crc32(repr(batch).encode(), crc)
    if isinstance(batch, np.generic):
        return zlib.crc32(batch.tobytes(), crc)
    return zlib.crc32(type(batch).__name__.encode(), crc)


def on_host(values: Sequence[Tensor | float]) -> list[float]:
    """Return scalars as Python numbers; waits for the device at most once."""
    away = [v for v in values if isinstance(v, Tensor) and v.device.type != "cpu"]
    wide = torch.float32 if away and away[0].device.type == "mps" else torch.float64
    host = iter(torch.stack([v.to(away[0].device, wide) for v in away]).tolist() if away else ())
    return [
        next(host) if isinstance(v, Tensor) and v.device.type != "cpu" else float(v) for v in values
    ]


def describe(batch: Any) -> str:
    """Describe the shapes and types in a batch; a long list of similar tensors is one entry."""
    tensors = _parts(batch, "")
    if not tensors:
        return type(batch).__name__
    rows: list[tuple[str, str]] = []
    for (where, description), group in itertools.groupby(
        tensors, lambda leaf: (leaf[0].rpartition(".")[0], _described(leaf[1]))
    ):
        paths = [path for path, _ in group]
        if where and len(paths) > _FEW:
            rows.append((where, f"{len(paths)} of {description}"))
        else:
            rows += [(path, description) for path in paths]
    more = f", and {len(rows) - _MANY} more" if len(rows) > _MANY else ""
    return ", ".join(f"{path or 'x'}: {description}" for path, description in rows[:_MANY]) + more


def made_of_lists(batch: Any) -> tuple[str, int] | None:
    """Return the first element of a batch that is a list of one-dimensional tensors, and their
    number; None: no element is.

    torch's default collation makes such a list, with one tensor for each position, of samples that
    are lists of numbers.
    """
    if not isinstance(batch, (Mapping, tuple, list)):
        return None
    for key, element in batch.items() if isinstance(batch, Mapping) else enumerate(batch):
        if (
            isinstance(element, list)
            and element
            and all(isinstance(row, Tensor) and row.ndim == 1 for row in element)
        ):
            return repr(key), len(element)
    return None


def holds_text(value: Any) -> bool:
    """Whether a part of a batch is a text or a path, or a list of them."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (str, bytes, PurePath))


def _described(leaf: Tensor | PackedSequence) -> str:
    if isinstance(leaf, PackedSequence):
        return (
            f"{_described(leaf.data)} packed from {sample_count(leaf)} sequences of up to "
            f"{len(leaf.batch_sizes)}"
        )
    return f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"


def leaves(value: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """Return the tensors in a batch, each with its path ("0", "image.1"); of a PackedSequence
    only its data.
    """
    return [
        (name, leaf.data if isinstance(leaf, PackedSequence) else leaf)
        for name, leaf in _parts(value, path)
    ]


def _parts(value: Any, path: str) -> list[tuple[str, Tensor | PackedSequence]]:
    if isinstance(value, (Tensor, PackedSequence)):
        return [(path, value)]
    items: list[tuple[Any, Any]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (tuple, list)):
        items = list(enumerate(value))
    return [
        leaf
        for key, element in items
        for leaf in _parts(element, f"{path}.{key}" if path else str(key))
    ]
