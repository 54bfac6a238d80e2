"""Packs any object for another of our processes: a pickle of its code, and segments with its data.

`pack` pickles with cloudpickle, so classes and functions of a notebook travel by value, and puts
the bytes of every tensor storage and array into a segment instead of into the pickle. Shared
storages stay shared, also between a tensor and an array. A package is a snapshot. Unpacking it runs
code, so it only ever comes from our own pipes. A message is plain data with any number of packages,
as segments.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from workbench.share.buffer_cache import BufferCache
from workbench.share.capacity import Capacity
from workbench.share.pickle_diagnostics import explain
from workbench.share.segment import Handle, Segment, Views, size_of
from workbench.share.serialized_list import ListUnpickler, pickled


class PackageError(TypeError):
    """Raised for something that cannot be sent to another process. The message says which part,
    and what to do.
    """


@dataclass
class Package:
    """A packed object. `close` it (or use `with`) when no further process will unpack it."""

    code: bytes
    segments: tuple[Segment, ...] = ()
    """Its own segment, followed by those of the cache that it uses. Empty where it has no
    buffers.
    """
    devices: tuple[str, ...] = ()
    """Devices whose tensors were packed as copies in CPU memory, and arrive as CPU tensors."""
    elsewhere: tuple[tuple[int, int, int], ...] = ()
    """Buffers in the cache: for each its index, the index of its segment, and its index in that
    segment.
    """
    note: str | None = None
    """A message for the user about where its data were placed; None where there is nothing to
    say.
    """
    tensors: tuple[torch.Tensor, ...] = ()
    """In the process that packed it: its plain tensors; see `share.rebind`."""

    @property
    def nbytes(self) -> int:
        """The size of its segments."""
        return sum(segment.nbytes for segment in self.segments)

    def close(self) -> None:
        """Close this process's handles on the segments."""
        for segment in self.segments:
            segment.close()

    def __enter__(self) -> Package:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(
    value: Any,
    names: Mapping[str, Any] | None = None,
    *,
    lists: bool = False,
    cache: BufferCache | None = None,
    capacity: Capacity | None = None,
) -> Package:
    """Pack `value`. `names` are the names of its parts in an error; see `PackageError`.

    lists: long lists arrive as `SerializedList`s, whose elements become objects when they are read.
    cache: the cache for large buffers that may be the same in the next package. capacity: decides
    whether there is memory.
    """
    try:
        content = pickled(value, lists)
    except MemoryError:
        raise
    except Exception as error:
        raise PackageError(explain(error, names or {"the object": value}, _fails)) from error
    buffers = content.buffers
    package = Package(content.code, devices=tuple(sorted(content.devices)), tensors=content.tensors)
    if not buffers:
        return package
    cached, notes = ({}, []) if cache is None else cache.place(buffers, capacity)
    lent: dict[int, tuple[int, Segment]] = {}
    elsewhere = []
    for number, (segment, index) in cached.items():
        buffers[number] = b""
        position, _ = lent.setdefault(id(segment), (len(lent) + 1, segment))
        elsewhere.append((number, position, index))
    folder, note = (None, None) if capacity is None else capacity.for_size(size_of(buffers))
    own_segment = Segment.place(buffers, folder)
    notes += [note] if note is not None else []
    package.segments = (own_segment, *(segment.again() for _, segment in lent.values()))
    package.elsewhere, package.note = tuple(elsewhere), " ".join(notes) or None
    return package


def unpack(package: Package) -> Any:
    """A copy of what was packed. Its tensors and arrays lie in the segments, mapped
    copy-on-write.
    """
    views = [segment.views() for segment in package.segments]
    elsewhere = {number: (position, index) for number, position, index in package.elsewhere}
    return ListUnpickler(io.BytesIO(package.code), _buffers(views, elsewhere)).load()


def write_message(message: Any, packages: Sequence[Package]) -> tuple[Segment, list[Handle]]:
    """Write a message for another process, plain data and packages, as segments: returns the first
    segment, which the sender closes, and all handles.
    """
    about = [
        (len(package.segments), package.devices, package.elsewhere, package.note)
        for package in packages
    ]
    head = pickle.dumps((message, about))
    cover = Segment.place([head, *(package.code for package in packages)])
    return cover, [
        cover.handle,
        *(segment.handle for package in packages for segment in package.segments),
    ]


def read_message(handles: Sequence[Handle]) -> tuple[Any, list[Package]]:
    """Read a message and its packages. File descriptors among `handles` belong to the result
    from here on.
    """
    cover, *rest = [Segment.attach(handle) for handle in handles]
    with cover:
        head, *codes = cover.views()
    message, about = pickle.loads(head)
    segments = iter(rest)
    packages = [
        Package(bytes(code), tuple(next(segments) for _ in range(count)), *others)
        for code, (count, *others) in zip(codes, about, strict=True)
    ]
    return message, packages


def _buffers(
    views: Sequence[Views], elsewhere: Mapping[int, tuple[int, int]]
) -> Iterator[memoryview]:
    """The buffers of a package, from whichever segment each is in."""
    for number in range(len(views[0]) if views else 0):
        position, index = elsewhere.get(number, (0, number))
        yield views[position][index]


def _fails(value: Any) -> bool:
    try:
        pickled(value, lists=False)
    except Exception:  # noqa: BLE001 - that it fails is the answer
        return True
    return False
