"""Parcels: any object for another process of ours, as a pickle of its code and a segment with its data.

`pack` pickles with cloudpickle, so classes and functions of a notebook travel by value, and puts the bytes
of every tensor storage and array into one segment instead of into the pickle. Storages that are shared stay
shared, the same memory under a tensor and an array is one memory in the copy too. A parcel is a snapshot.
It is code that runs when it is unpacked: only ever for our own pipes.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle
import numpy as np
import torch
from cloudpickle import cloudpickle as _cloudpickle

from workbench.share.culprit import explain
from workbench.share.segment import Segment


class ParcelError(TypeError):
    """Something that cannot be sent to another process. The message says which part, and what to do."""


@dataclass
class Parcel:
    """A packed object. `close` it (or use `with`) when no further process will unpack it."""

    code: bytes
    segment: Segment | None = None
    devices: tuple[str, ...] = ()
    """Devices whose tensors were packed as copies in CPU memory, and arrive as CPU tensors."""

    def close(self) -> None:
        """Let go of the segment."""
        if self.segment is not None:
            self.segment.close()

    def __enter__(self) -> Parcel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(value: Any, names: Mapping[str, Any] | None = None) -> Parcel:
    """`value` as a parcel. `names` are what its parts are called in an error; see `ParcelError`."""
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler = _Pickler(file, buffers.append)
    try:
        pickler.dump(value)
    except MemoryError:
        raise
    except Exception as error:
        raise ParcelError(explain(error, names or {"the object": value}, _fails)) from error
    segment = Segment.place(buffers) if buffers else None
    return Parcel(file.getvalue(), segment, tuple(sorted(pickler.devices)))


def unpack(parcel: Parcel) -> Any:
    """A copy of what was packed. Its tensors and arrays lie in the segment, mapped copy-on-write."""
    views = parcel.segment.views() if parcel.segment is not None else ()
    return _Unpickler(io.BytesIO(parcel.code), buffers=views).load()


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """cloudpickle, with the bytes of storages and arrays left to `keep`."""

    def __init__(self, file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], None]) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self.devices: set[str] = set()
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage):
            return _typed_storage, (self._one(obj._untyped_storage), obj.dtype)
        if isinstance(obj, torch.UntypedStorage):
            one = self._one(obj)
            return (_same, (one,)) if one is not obj else (_storage, (_bytes_of(one),))
        if type(obj) is np.ndarray or type(obj) is np.memmap:
            return _reduce_array(obj)
        return super().reducer_override(obj)

    def _one(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """The one Python object that stands for this memory, so that the pickle's memo keeps it one."""
        key = storage._cdata
        if key not in self._storages:
            here = storage
            if storage.device.type != "cpu":
                self.devices.add(str(storage.device))
                here = storage.cpu()  # type: ignore[no-untyped-call]
            self._storages[key] = (storage, here)  # both are held: their addresses are the keys
        return self._storages[key][1]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: Any) -> None:
        super().__init__(file, buffers=buffers)
        self._known = set(getattr(_cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", ()))

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if found is getattr(_cloudpickle, "_class_setstate", None):
            return self._set_class
        if found is getattr(torch._utils, "_rebuild_tensor_v3", None):
            return _tensor_of_new_dtype
        return found

    def _set_class(self, cls: type, state: Any) -> type:
        """A class that came home is the notebook's own: cloudpickle would put copies of its methods into it,
        which see a copy of the notebook's globals."""
        known: type = cls if cls in self._known else _cloudpickle._class_setstate(cls, state)
        return known


def _fails(value: Any) -> bool:
    try:
        _Pickler(io.BytesIO(), lambda buffer: None).dump(value)
    except Exception:  # noqa: BLE001 - that it fails is the answer
        return True
    return False


def _bytes_of(storage: torch.UntypedStorage) -> pickle.PickleBuffer:
    whole = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    return pickle.PickleBuffer(memoryview(whole.numpy()))  # type: ignore[arg-type]


def _storage(buffer: Any) -> torch.UntypedStorage:
    if not memoryview(buffer).nbytes:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _typed_storage(untyped: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    make: Any = torch.storage.TypedStorage  # torch leaves it untyped
    typed: torch.storage.TypedStorage = make(wrap_storage=untyped, dtype=dtype, _internal=True)
    return typed


def _tensor_of_new_dtype(storage: torch.UntypedStorage, *rest: Any) -> torch.Tensor:
    """torch packs an untyped storage for the newest dtypes (uint16, float8), and wants a typed one back."""
    rebuild: Any = torch._utils._rebuild_tensor_v3
    tensor: torch.Tensor = rebuild(_typed_storage(storage, torch.uint8), *rest)
    return tensor


def _same(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    """numpy puts the bytes of strided and memory-mapped arrays into the pickle: give it a dense plain one."""
    dense = array.flags.c_contiguous or array.flags.f_contiguous
    if array.dtype.hasobject or (dense and type(array) is np.ndarray):
        return NotImplemented
    if isinstance(array, np.memmap):
        where = _place_in_file(array)
        if where is not None:
            # A child's writes are its own here too, so what may be written is opened copy-on-write.
            mode = "r" if array.mode == "r" else "c"
            return np.memmap, (array.filename, array.dtype, mode, where, array.shape)
    return np.require(array.view(np.ndarray), requirements="C").__reduce_ex__(5)


def _place_in_file(array: np.memmap[Any, Any]) -> int | None:
    """The offset at which a memory-mapped array can be opened again, None where only a copy is right."""
    mapping = getattr(array, "_mmap", None)
    if mapping is None or not array.flags.c_contiguous or array.mode == "c" or not array.size:
        return None
    if array.filename is None or not os.path.isfile(array.filename):
        return None
    # A slice keeps the offset of the array it was cut from, so the place follows from the addresses.
    mapped_from = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    within: int = array.ctypes.data - np.frombuffer(mapping, dtype=np.uint8).ctypes.data
    return mapped_from + within if 0 <= within < len(mapping) else None
