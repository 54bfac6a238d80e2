"""Copies the contents of objects and restores them in place: containers, tensors, arrays, generators, attributes, places in files."""

from __future__ import annotations

import copy
import ctypes
import itertools
import operator
import types
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workbench.task.device import xla
from workbench.task.rng import generator_state, is_generator, is_own, set_generator_state

_FILLS: tuple[tuple[type, str, tuple[Any, ...]], ...] = (
    (list, "extend", (list.extend,)),
    (deque, "extend", (deque.extend,)),
    (set, "update", (set.update,)),
    (dict, "update", (dict.update, OrderedDict.update, Counter.update)),
)
"""By type of container, how to fill an empty one; a class with its own `__reduce__` is not among them."""
_SCALARS = frozenset({types.NoneType, bool, int, float, complex, str, bytes})

# ---- containers -------------------------------------------------------------------------------------------------


def is_container(value: Any) -> bool:
    """Whether it is a list, dict, set or deque that `refill` can fill."""
    for kind, fill, usual in _FILLS:
        if isinstance(value, kind):
            return getattr(type(value), fill) in usual
    return False


def refill(container: Any, content: Any) -> None:
    """Replace the contents of a container."""
    fill = next(fill for kind, fill, _ in _FILLS if isinstance(container, kind))
    container.clear()
    getattr(container, fill)(content)


def copy_of(container: Any) -> Any:
    """A copy of a container: a deep one where it is plain, else one with the same objects."""
    return copy.deepcopy(container) if not _is_flat(container) and is_plain(container) else copy.copy(container)


def put_items(container: Any, content: Any) -> None:
    """Restore a container from a copy of `copy_of`; a container that still holds the same is not touched."""
    if len(container) != len(content) or not same_items(container, content):
        refill(container, copy_of(content))


def same_items(one: Any, other: Any) -> bool:
    """Whether two containers hold the same objects, or equal plain ones, in the same order."""
    if _is_flat(one) and _is_flat(other):
        return [*one] == [*other] and (not isinstance(one, dict) or [*one.values()] == [*other.values()])
    ones, others = ([*value.items()] if isinstance(value, dict) else [*value] for value in (one, other))
    flat = [(a, b) if isinstance(one, dict) else ((a,), (b,)) for a, b in zip(ones, others, strict=True)]
    return all(x is y or (is_plain(x) and is_plain(y) and x == y) for a, b in flat for x, y in zip(a, b, strict=True))


def _is_flat(container: Any) -> bool:
    """Whether a container holds numbers and strings alone; much faster than `is_plain`."""
    return _SCALARS.issuperset(map(type, container)) and (not isinstance(container, dict) or _SCALARS.issuperset(map(type, container.values())))


def is_plain(value: Any) -> bool:
    """Whether it is a number, a string, None, or a container of only these that does not contain itself."""
    try:
        return _is_plain(value)
    except RecursionError:
        return False


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes))


def is_data(container: Any) -> bool:
    """Whether a container, with the containers inside it, has more than MOST_PARTS parts: who copies what an object holds leaves it out."""
    count, waiting = 0, [container]
    while waiting and count <= MOST_PARTS:
        value = waiting.pop()
        if isinstance(value, (list, tuple, set, frozenset, deque, dict)):
            count += len(value)
            if not _is_flat(value):
                waiting += value.values() if isinstance(value, dict) else value
    return count > MOST_PARTS


# ---- tensors, arrays, generators --------------------------------------------------------------------------------

_LARGE = 1 << 24
MOST_PARTS = 100_000
"""A container with more parts is data: who copies what an object holds leaves it out."""
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def is_large(value: Tensor | np.ndarray[Any, Any]) -> bool:
    """Whether an array has so many bytes that it counts as data, which is not copied."""
    if isinstance(value, Tensor) and value.layout is torch.sparse_coo:  # torch has no `nbytes` for it
        return value._indices().nbytes + value._values().nbytes > _LARGE
    return value.nbytes > _LARGE


def content_of(value: Any) -> Any:
    """A copy, in host memory, of the contents of a tensor, an array or a generator; None: it is none of these, or read-only."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True) if _has_memory(value) and value.grad_fn is None else None
    if isinstance(value, np.ndarray):
        return value.copy() if value.flags.writeable and not value.dtype.hasobject else None
    return generator_state(value) if is_generator(value) and is_own(value) else None


def put_content(value: Any, content: Any) -> None:
    """Restore a tensor, an array or a generator from a copy of `content_of`; one that still holds the same is not touched."""
    if isinstance(value, Tensor):
        here = content.to(value.device)
        with torch.inference_mode() if value.is_inference() else torch.no_grad():
            if value.shape != here.shape:
                value.data = here.clone()
            elif not same_tensors(value, here):
                overwrite(value, here)
    elif not isinstance(value, np.ndarray):
        set_generator_state(value, content)
    elif value.shape == content.shape and value.tobytes() != content.tobytes():
        np.copyto(value, content)


def same_tensors(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of the same layout hold the same values; `torch.equal` does not compare sparse ones."""
    if one.layout is torch.strided:
        return torch.equal(one, other)
    one, other = one.to_sparse(), other.to_sparse()
    return one.shape == other.shape and torch.equal(one._indices(), other._indices()) and torch.equal(one._values(), other._values())


def _has_memory(tensor: Tensor) -> bool:
    """Whether a tensor can be read. FSDP frees the memory of a gathered weight and keeps the tensor: reading it would crash the process."""
    if tensor.is_meta or nn.parameter.is_lazy(tensor):
        return False
    if tensor.layout is not torch.strided:
        return tensor.layout in _SPARSE
    return xla.is_xla(tensor.device) or tensor.untyped_storage().nbytes() > 0


def overwrite(there: Tensor, value: Tensor) -> None:
    """Copy a value into a tensor; also into an expanded one, for which `copy_` raises an error."""
    for dimension in expanded(there):
        there, value = there.narrow(dimension, 0, 1), value.narrow(dimension, 0, 1)
    there.copy_(value)


def checksum_of_tensors(tensors: Iterable[Tensor], total: int = 0) -> int:
    """A checksum of the tensors' contents."""
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1)
        size = flat.numel() * flat.element_size()
        if size:
            # No copy, and no NumPy view, which would prevent the tensor from being resized later (by observers of quantization).
            total = zlib.crc32((ctypes.c_ubyte * size).from_address(flat.data_ptr()), total)
    return total


def expanded(tensor: Tensor) -> list[int]:
    """The dimensions with stride 0, along which all elements share one place in memory (`expand`)."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return [dimension for dimension, stride in enumerate(strides) if stride == 0 and tensor.shape[dimension] > 1]


# ---- attributes -------------------------------------------------------------------------------------------------


def put_attributes(owner: Any, before: Mapping[str, Any], now: Iterable[str]) -> None:
    """Set an object's attributes to those in `before`, and remove its other attributes among the names in `now`."""
    for name in set(now).difference(before):
        del vars(owner)[name]
    vars(owner).update(before)


# ---- iterators and files ----------------------------------------------------------------------------------------


def mark_of(iterator: Any) -> Any:
    """A fingerprint that changes when an iterator is read, as far as that can be seen."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        if frame is None:
            return None
        return frame.f_lasti, {name: repr(value) for name, value in frame.f_locals.items() if is_plain(value)}
    said = repr(iterator) if isinstance(iterator, (itertools.count, itertools.repeat)) else ""
    return said, operator.length_hint(iterator, -1)


def put_place(file: Any, place: int) -> None:
    """Let a file be read from this place again."""
    if not file.closed and file.tell() != place:
        file.seek(place)
