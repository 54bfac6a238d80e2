"""Checksums of what a fit begins with, by which an exported script finds out that it begins with
something else, and a study of the same name that its data are others.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task import rng
from workbench.task.batch import checksum_of
from workbench.task.state.walk import walk

BATCHES = 2
"""How many training batches have a checksum."""
FIRST = 100_000
"""How many numbers of each tensor, and parts of each list, are read: a batch may have gigabytes."""
OF_PARAMETER = 1000
"""How many numbers of each parameter are read."""

OF_DATA = 1 << 26
"""How many bytes of each tensor, array and list in a data set are read, evenly spread."""
_OF_ITEM, _OF_NUMBER = 1 << 8, 1 << 3
"""As how many bytes an item of a list counts at least, and a number in a list of numbers alone."""
_NUMBERS = {bool, int, float}
_BLOCK = 1 << 20
"""How many numbers of a tensor are read at once."""
_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
"""By layout, the methods that return the tensors of a sparse one."""
_WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size in bytes, the type as which numbers of any type are read."""
_SAMPLES = 8
"""How many samples of a data set are read, evenly spread."""

OF_TRAINER = (
    "training",
    "automatic_optimization",
    "strict_loading",
    "prepare_data_per_node",
    "allow_zero_length_dataloader_with_multiple_devices",
    "logger",
    "loggers",
    "global_rank",
    "local_rank",
    "current_epoch",
    "global_step",
)
"""The plain attributes that a LightningModule has besides the user's own, or that it gets from
its trainer.
"""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def of_weights(modules: Iterable[nn.Module]) -> str:
    """The checksum of the parameters' first numbers; "" if one of them cannot be read."""
    try:
        return checksum(
            [p.data.flatten()[:OF_PARAMETER] for module in modules for p in module.parameters()]
        )
    except Exception:  # noqa: BLE001 - a parameter may be quantized, or of a class of the user's
        return ""


def of_setup(modules: Iterable[nn.Module], with_trainer: bool = False) -> str:
    """The checksum of how modules are set up: their classes, modes, what is trained, hooks, plain
    attributes; "" if that cannot be read.

    with_trainer: they may have the attributes `OF_TRAINER`, which are left out.
    """
    left_out = OF_TRAINER if with_trainer else ("training",)
    setup = []
    try:
        for part in (part for module in modules for part in module.modules()):
            names = (name for name in vars(part) if name[0] != "_" and name not in left_out)
            own = sorted((name, vars(part)[name]) for name in names if _is_plain(vars(part)[name]))
            hooks = [len(getattr(part, kind)) for kind in _HOOKS]
            for p in part.parameters(recurse=False):
                registered = p._backward_hooks, p._post_accumulate_grad_hooks
                hooks += [len(by_id) for by_id in registered if by_id]
            trained = [p.requires_grad for p in part.parameters(recurse=False)]
            setup.append((type(part).__name__, part.training, trained, hooks, own))
        return f"{zlib.crc32(repr(setup).encode()):08x}"
    except Exception:  # noqa: BLE001 - a list may contain itself, and a subclass may refuse to list its parameters
        return ""


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a text or None, or made of these. A path may be another one on
    each machine.
    """
    if type(value) in (list, tuple, dict):
        return all(map(_is_plain, [*value, *value.values()] if type(value) is dict else value))
    if type(value) is str:
        return not {"/", "\\"} & set(value)
    return value is None or type(value) in (bool, int, float)


def of_batch(batch: Any) -> str:
    """The checksum of a batch; "" if it has nothing that can be read."""
    try:
        return checksum(batch)
    except Exception:  # noqa: BLE001 - a tensor may be sparse or nested, and a mapping the user's own
        return ""


def checksum(value: Any) -> str:
    """Eight hex digits over the tensors and numbers in a value, of each tensor its shape and first
    numbers; "" where it has none.

    Other objects are left out, also texts: a path in a batch may be another one on each machine.
    """
    crc = _crc(value, 0)
    return f"{crc:08x}" if crc else ""


def _crc(value: Any, crc: int) -> int:
    """Continue the checksum `crc`. Scripts have the same function (`export/program/compare.py`)."""
    if isinstance(value, Tensor):
        if not value.numel():
            return crc
        crc = zlib.crc32(str(tuple(value.shape)).encode(), crc)
        return zlib.crc32(
            value.detach().flatten()[:FIRST].cpu().contiguous().view(torch.uint8).numpy().data, crc
        )
    if isinstance(value, int | float):
        return zlib.crc32(str(value).encode(), crc)
    parts = vars(value) if dataclasses.is_dataclass(value) else value
    if isinstance(parts, Mapping):
        parts = parts.values()
    else:
        parts = parts[:FIRST] if isinstance(parts, list | tuple) else ()
    for part in parts:
        crc = _crc(part, crc)
    return crc


def of_data(dataset: Any, *, samples: bool = True) -> str:
    """The checksum of what is in a data set: of the tensors, arrays, lists and tuples that it
    holds, and of some samples as it gives them. samples: read these, which calls the user's code.
    """
    crc = 0
    for reached in walk({"": dataset}, variables=False):
        if isinstance(reached.value, Tensor | np.ndarray | list | tuple):
            crc = _spread(reached.value, crc, OF_DATA)
    if samples:
        for first, second in zip(_read(dataset), _read(dataset), strict=False):
            # what differs from one reading to the next is drawn anew each time
            if first == second:
                crc = zlib.crc32(str(first).encode(), crc)
    return f"{crc:08x}"


def _spread(value: Any, crc: int, most: int) -> int:
    """Continue the checksum `crc` with about so many bytes of a value, evenly spread."""
    if isinstance(value, str | bytes):
        return checksum_of(value[:: max(1, len(value) // max(1, most))], crc)
    parts = _parts(value)
    if parts is not None:
        crc = zlib.crc32(f"{type(value).__name__} {len(parts)}".encode(), crc)
        flat = _NUMBERS.issuperset(map(type, parts))
        count = min(len(parts), max(1, most // (_OF_NUMBER if flat else _OF_ITEM)))
        chosen = itertools.islice(parts, 0, None, -(-len(parts) // max(1, count)))
        if flat:
            return zlib.crc32(repr(list(chosen)).encode(), crc)
        for item in chosen if most else ():
            # less than its share, since a list may contain itself
            crc = _spread(item, crc, most // (count + 1))
        return crc
    if not isinstance(value, Tensor | np.ndarray):
        return checksum_of(value, crc)
    crc = zlib.crc32(f"{tuple(value.shape)} {value.dtype}".encode(), crc)
    if isinstance(value, np.ndarray):
        step = _step(value, most)
        return checksum_of(value.flat[::step] if step > 1 else value, crc)
    if value.is_meta:
        return crc
    if value.layout is not torch.strided:
        return checksum_of(value, crc)
    tensor = value.detach().resolve_conj().resolve_neg()
    tensor = tensor.int_repr() if tensor.is_quantized else tensor
    step, size = _step(tensor, most), tensor.numel()
    if step == 1:
        return checksum_of(tensor, crc)
    tensor = tensor.view(_WHOLE_NUMBERS.get(tensor.element_size(), tensor.dtype))
    for first in range(0, size, step * _BLOCK):
        last = min(first + step * _BLOCK, size)
        crc = checksum_of(tensor.take(torch.arange(first, last, step, device=tensor.device)), crc)
    return crc


def _step(value: Tensor | np.ndarray, most: int) -> int:
    """Of which n every n-th number is read, so that these have so many bytes."""
    step = max(1, -(-value.nbytes // max(1, most)))
    while math.gcd(step, math.prod(value.shape[1:])) > 1:  # it would miss columns
        step += 1
    return step


def _parts(value: Any) -> Sequence[Any] | None:
    """What a value is made of; None: nothing else."""
    if isinstance(value, Tensor):
        if value.is_nested:
            return value.unbind()
        names = _SPARSE.get(value.layout)
        return None if names is None else [getattr(value, name)() for name in names]
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype.hasobject else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return list(value.items())
    return value if isinstance(value, list | tuple) else None


def _read(dataset: Any) -> list[int]:
    """The checksums of the parts of some samples; empty where none can be read by its number."""
    checksums: list[int] = []
    with rng.preserved():
        rng.seed(0)
        try:
            count = len(dataset)
            numbers = {k * (count - 1) // (_SAMPLES - 1) for k in range(_SAMPLES)}
            for number in sorted(numbers):
                checksums += map(checksum_of, _leaves(dataset[number]))
        except Exception:  # noqa: BLE001 - code of the user's; a fit says what is wrong with it
            return []
    return checksums


def _leaves(sample: Any) -> list[Any]:
    """The tensors, numbers and texts in a sample."""
    parts = vars(sample) if dataclasses.is_dataclass(sample) else sample
    if isinstance(parts, Mapping):
        parts = list(parts.values())
    if not isinstance(parts, list | tuple):
        return [sample]
    return list(itertools.chain.from_iterable(map(_leaves, parts)))
