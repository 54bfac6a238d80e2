"""The kinds of object whose contents change in place: how each is copied, compared and restored.

Containers, tensors, arrays, buffers, memory that processes share, tables, generators, and the
places in iterators and files.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import operator
import sys
import types
import zlib
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from multiprocessing.sharedctypes import SynchronizedBase
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
"""By type of container, how to fill an empty one; a class with its own `__reduce__` is not among
them.
"""
_SCALARS = frozenset({types.NoneType, bool, int, float, complex, str, bytes})

# ---- containers ----------------------------------------------------------------------------------


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


def _is_flat(container: Any) -> bool:
    """Whether a container holds numbers and strings alone; much faster than `is_plain`."""
    return _SCALARS.issuperset(map(type, container)) and (
        not isinstance(container, dict) or _SCALARS.issuperset(map(type, container.values()))
    )


def is_plain(value: Any) -> bool:
    """Whether it is a number, a string, None, or a container of only these that does not contain
    itself.
    """
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
    """Whether a container, with the containers inside it, has more than MOST_PARTS parts: who
    copies what an object holds leaves it out.
    """
    count, waiting = 0, [container]
    while waiting and count <= MOST_PARTS:
        value = waiting.pop()
        if isinstance(value, (list, tuple, set, frozenset, deque, dict)):
            count += len(value)
            if not _is_flat(value):
                waiting += value.values() if isinstance(value, dict) else value
    return count > MOST_PARTS


# ---- blocks, generators, iterators, files --------------------------------------------------------

_LARGE = 1 << 24
MOST_PARTS = 100_000
"""A container with more parts is data: who copies what an object holds leaves it out."""
_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
ARRAYS = (Tensor, np.ndarray)
BUFFERS = (bytearray, array)
MEMORY = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, SynchronizedBase)
"""What `multiprocessing.Value` and `multiprocessing.Array` make, with and without a lock."""
_LARGE_TABLE, _SAMPLED_ROWS = 1 << 20, 256
"""A table with more bytes counts as data, of which so many rows are compared."""
_SAMPLED = 1 << 12
"""How many values of a large array are compared."""
_SOURCES: tuple[Iterable[Any], ...] = ([], (), range(1), "", b"", bytearray())
IN_PLACE: tuple[type[Any], ...] = tuple(
    type(iter(source)) for source in _SOURCES if iter(source).__reduce__()[-1] == 0
)
"""Iterators that can be set to a place. Since Python 3.12 that of a range cannot."""


def is_block(value: Any) -> bool:
    """Whether it is a block of values that code changes in place: a tensor, an array, a buffer,
    memory that processes share, or a table of pandas or polars.
    """
    kind = type(value)
    if issubclass(kind, (*ARRAYS, *BUFFERS)):
        return True
    return _memory_of(value) is not None or is_table(value)


def table_class(kind: type) -> Any:
    """The DataFrame or Series of pandas or polars from which a class inherits; None: from none."""
    for base in kind.__mro__:
        library = base.__module__.partition(".")[0]
        if library in ("pandas", "polars") and base.__name__ in ("DataFrame", "Series"):
            return base
    return None


def may_be_log(value: Any) -> bool:
    """Whether code may append to it: one that functions use as a variable is a log, and no
    state.
    """
    return is_container(value) or issubclass(type(value), BUFFERS) or is_table(value)


def is_table(value: Any) -> bool:
    """Whether it is a DataFrame or a Series of pandas or polars."""
    return table_class(type(value)) is not None


def has_plain_content(value: Any) -> bool:
    """Whether numbers, texts and tensors say all of its contents, with which `put_content` restores
    it: those of a generator, an iterator, a buffer, or memory that processes share.
    """
    if issubclass(type(value), (*BUFFERS, *IN_PLACE)) or is_generator(value):
        return True
    return _memory_of(value) is not None


def _memory_of(value: Any) -> Any:
    """The memory of an object of ctypes or multiprocessing; None: it is none, or has pointers."""
    if not issubclass(type(value), MEMORY):
        return None
    memory = value.get_obj() if isinstance(value, SynchronizedBase) else value
    return memory if _has_numbers_only(type(memory)) else None


def _has_numbers_only(kind: Any) -> bool:
    if issubclass(kind, ctypes.Array):
        return _has_numbers_only(kind._type_)
    if issubclass(kind, ctypes.Structure):
        return all(_has_numbers_only(field[1]) for field in kind._fields_)
    return issubclass(kind, ctypes._SimpleCData) and kind._type_ not in "zZPOX"


def size_of(value: Any) -> int:
    """The bytes of a block."""
    if isinstance(value, Tensor) and value.layout is not torch.strided:
        coo = value.layout is torch.sparse_coo  # for which torch has no `nbytes`
        return value._indices().nbytes + value._values().nbytes if coo else 0
    if isinstance(value, ARRAYS):
        return value.nbytes
    if isinstance(value, BUFFERS):
        return memoryview(value).nbytes
    table = table_class(type(value))
    if table is None:
        return ctypes.sizeof(_memory_of(value))
    if table.__module__.startswith("polars"):
        return int(value.estimated_size())
    return int(np.sum(value.memory_usage()))


def is_large(value: Any) -> bool:
    """Whether a block has so many bytes that it counts as data, which is not copied."""
    return size_of(value) > (_LARGE_TABLE if is_table(value) else _LARGE)


def content_of(value: Any) -> Any:
    """A copy, in host memory, of the contents of a block; the state of a generator; the place in
    an iterator or a file, as far as it can be seen. None: it is none of these, or read-only.
    """
    if isinstance(value, Tensor):
        readable = _has_memory(value) and value.grad_fn is None
        return value.detach().to("cpu", copy=True) if readable else None
    if isinstance(value, np.ndarray):
        return value.copy() if value.flags.writeable and not value.dtype.hasobject else None
    if is_generator(value):
        return generator_state(value) if is_own(value) else None
    if isinstance(value, BUFFERS):
        return bytes(memoryview(value).cast("B"))
    if (memory := _memory_of(value)) is not None:
        return bytes(memory)
    if (table := table_class(type(value))) is not None:
        return value.clone() if table.__module__.startswith("polars") else value.copy()
    return _place_of(value)


def put_content(value: Any, content: Any) -> None:
    """Restore from a copy of `content_of`; what still holds the same is not touched."""
    if isinstance(value, Tensor):
        here = content.to(value.device)
        with torch.inference_mode() if value.is_inference() else torch.no_grad():
            if value.shape != here.shape:
                value.data = here.clone()
            elif not same_tensors(value, here):
                overwrite(value, here)
    elif isinstance(value, np.ndarray):
        if value.shape == content.shape and value.tobytes() != content.tobytes():
            np.copyto(value, content)
    elif is_generator(value):
        set_generator_state(value, content)
    elif isinstance(value, BUFFERS):
        _put_bytes(value, content)
    elif (memory := _memory_of(value)) is not None:
        if len(content) == ctypes.sizeof(memory):
            ctypes.memmove(ctypes.addressof(memory), content, len(content))
    elif (table := table_class(type(value))) is not None:
        if not value.equals(content):
            table.__init__(value, content_of(content))
    elif isinstance(value, io.IOBase):
        if not value.closed and value.tell() != content:
            value.seek(content)
    elif isinstance(value, IN_PLACE) and type(content) is int and content != _place_of(value):
        value.__setstate__(content)


def _put_bytes(buffer: Any, content: bytes) -> None:
    """Fill a buffer. One of the same length stays in its memory, to which an array may refer."""
    if memoryview(buffer).nbytes == len(content):
        memoryview(buffer).cast("B")[:] = content
    else:
        buffer[:] = content if isinstance(buffer, bytearray) else array(buffer.typecode, content)


def _place_of(value: Any) -> Any:
    if isinstance(value, io.IOBase):
        return None if value.closed else value.tell()
    if isinstance(value, IN_PLACE):
        state = value.__reduce__()
        if isinstance(state, tuple) and len(state) > 2:
            return state[2]
    return _mark_of(value) if isinstance(value, Iterator) else None


def _mark_of(iterator: Any) -> Any:
    """A fingerprint that changes when an iterator is read, as far as that can be seen."""
    if isinstance(iterator, types.GeneratorType):
        frame = iterator.gi_frame
        if frame is None:
            return None
        variables = frame.f_locals.items()
        return frame.f_lasti, {name: repr(value) for name, value in variables if is_plain(value)}
    counts = isinstance(iterator, (itertools.count, itertools.repeat))
    return repr(iterator) if counts else "", operator.length_hint(iterator, -1)


def sample_mark(value: Any) -> Any:
    """What shows that a large block has changed: torch's version, or a checksum of some of its
    values; None: nothing does.
    """
    if isinstance(value, Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or not value.size:
            return None
        flat = value.reshape(-1) if value.flags.c_contiguous else value[:1].reshape(-1)
        return zlib.crc32(flat[:: max(1, flat.size // _SAMPLED)].tobytes())
    if is_table(value):
        return _table_mark(value, max(1, len(value) // _SAMPLED_ROWS))
    return zlib.crc32(content_of(value))


def content_mark(content: Any) -> Any:
    """A checksum of what `content_of` returned."""
    if isinstance(content, Tensor):
        dense = content.to_dense() if content.layout is not torch.strided else content
        return content.dtype, content.shape, checksum_of_tensors([dense])
    if isinstance(content, np.ndarray):
        return content.dtype, content.shape, zlib.crc32(content.tobytes())
    if is_table(content):
        return _table_mark(content, 1)
    return zlib.crc32(content) if isinstance(content, bytes) else repr(content)


def _table_mark(table: Any, step: int) -> Any:
    """A checksum of each `step`-th row of a table; of its shape alone where a cell has no hash."""
    base = table_class(type(table))
    frame = base.__name__ == "DataFrame"
    names = list(table.columns) if frame else table.name
    kinds = repr(table.dtypes if frame else table.dtype)
    hashes = None
    with contextlib.suppress(Exception):  # a cell of the user's may raise anything
        if base.__module__.startswith("polars"):
            rows = table.gather_every(step)
            hashes = (rows.hash_rows() if frame else rows.hash()).to_numpy()
        else:
            rows = table.iloc[::step]
            hashes = sys.modules["pandas"].util.hash_pandas_object(rows).to_numpy()
    return names, kinds, len(table), None if hashes is None else zlib.crc32(hashes.tobytes())


def same_tensors(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of the same layout hold the same values; `torch.equal` does not
    compare sparse ones.
    """
    if one.layout is torch.strided:
        return torch.equal(one, other)
    one, other = one.to_sparse(), other.to_sparse()
    return (
        one.shape == other.shape
        and torch.equal(one._indices(), other._indices())
        and torch.equal(one._values(), other._values())
    )


def _has_memory(tensor: Tensor) -> bool:
    """Whether a tensor can be read. FSDP frees the memory of a gathered weight and keeps the
    tensor: reading it would crash the process.
    """
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
            # No copy, and no NumPy view, which would prevent the tensor from being resized later
            # (by observers of quantization).
            total = zlib.crc32((ctypes.c_ubyte * size).from_address(flat.data_ptr()), total)
    return total


def expanded(tensor: Tensor) -> list[int]:
    """The dimensions with stride 0, along which all elements share one place in memory
    (`expand`).
    """
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return [
        dimension
        for dimension, stride in enumerate(strides)
        if stride == 0 and tensor.shape[dimension] > 1
    ]
