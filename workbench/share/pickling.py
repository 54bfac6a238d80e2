"""Pickles code with cloudpickle and keeps the bytes of tensors and arrays as buffers out of
band.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import re
import warnings
from collections.abc import Callable
from multiprocessing.sharedctypes import RawArray, RawValue, SynchronizedBase, synchronized
from typing import Any

import cloudpickle
import numpy as np
import torch
from cloudpickle import cloudpickle as _cloudpickle
from torch.nn.utils import parametrize

from workbench.share.segment import address_of

_SHARED = (SynchronizedBase, ctypes.Array, ctypes._SimpleCData)
Keep = Callable[[pickle.PickleBuffer], object]


class Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """cloudpickle, with the bytes of storages and arrays left to `keep`."""

    def __init__(self, file: Any, keep: Keep) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self.devices: set[str] = set()
        self.tensors: dict[int, torch.Tensor] = {}
        """The plain tensors in the pickle."""
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.storage.TypedStorage):
            return _typed_storage, (self._one(obj._untyped_storage), obj.dtype)
        if isinstance(obj, torch.UntypedStorage):
            canonical = self._one(obj)
            return (
                (_same, (canonical,))
                if canonical is not obj
                else (storage_over, (_bytes_of(canonical),))
            )
        if type(obj) is torch.Tensor:
            self.tensors[id(obj)] = obj
        if isinstance(obj, torch.Tensor) and obj.is_leaf and any(hooks := hooks_of(obj)):
            return _reduce_hooked(obj, hooks)
        if isinstance(obj, torch.optim.Optimizer) and any(_optimizer_hooks(obj).values()):
            return _reduce_optimizer(obj)
        if type(obj) is np.ndarray or type(obj) is np.memmap:
            return _reduce_array(obj)
        if isinstance(obj, _SHARED):
            reduced = _reduce_shared(obj)
            if reduced is not None:
                return reduced
        if isinstance(obj, torch.nn.Module) and parametrize.is_parametrized(obj):
            return _reduce_parametrized(obj)
        return super().reducer_override(obj)

    def _one(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return always the same Python object for the same memory, so that the pickle has it
        once.
        """
        key = storage._cdata
        if key not in self._storages:
            here = storage
            if storage.device.type != "cpu":
                self.devices.add(str(storage.device))
                here = storage.cpu()  # type: ignore[no-untyped-call]
            # both must stay alive, because their addresses are the keys
            self._storages[key] = (storage, here)
        return self._storages[key][1]


def _reduce_shared(shared: Any) -> Any:
    """Reduce numbers that processes share to a copy; None: it is something else."""
    locked = isinstance(shared, SynchronizedBase)
    memory = shared.get_obj() if locked else shared
    array = isinstance(memory, ctypes.Array)
    kind = memory._type_ if array else type(memory)
    if not hasattr(memory, "_wrapper") or getattr(ctypes, kind.__name__, None) is not kind:
        return None
    return _shared, (kind, len(memory) if array else None, bytes(memory), locked)


def _shared(kind: Any, length: int | None, content: bytes, locked: bool) -> Any:
    memory = RawValue(kind) if length is None else RawArray(kind, length)
    ctypes.memmove(ctypes.addressof(memory), content, len(content))
    return synchronized(memory) if locked else memory


class Unpickler(pickle.Unpickler):
    """Unpickles what `Pickler` wrote."""

    def __init__(self, file: io.BytesIO, buffers: Any) -> None:
        super().__init__(file, buffers=buffers)
        self._known = set(getattr(_cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", ()))

    def find_class(self, module: str, name: str) -> Any:
        resolved = super().find_class(module, name)
        if resolved is getattr(_cloudpickle, "_class_setstate", None):
            return self._set_class
        return _tensor_of_new_dtype if resolved is _V3 else resolved

    def _set_class(self, cls: type, state: Any) -> type:
        """Set the attributes of an unpickled class, unless it is the notebook's own class:
        cloudpickle would put copies of its methods into it, which see a copy of the notebook's
        globals.
        """
        known: type = cls if cls in self._known else _cloudpickle._class_setstate(cls, state)
        return known


_V3 = getattr(torch._utils, "_rebuild_tensor_v3", None)


def _bytes_of(storage: torch.UntypedStorage) -> pickle.PickleBuffer:
    # Not by way of numpy: what has once been an array can never be resized again.
    if not storage.nbytes():
        return pickle.PickleBuffer(bytearray())
    memory = (ctypes.c_ubyte * storage.nbytes()).from_address(storage.data_ptr())
    memory.storage = storage  # type: ignore[attr-defined]  # it is held as long as its memory is
    return pickle.PickleBuffer(memory)


def storage_over(buffer: Any) -> torch.UntypedStorage:
    """A storage on the memory of a buffer."""
    if not memoryview(buffer).nbytes:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _typed_storage(untyped: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    make: Any = torch.storage.TypedStorage  # torch leaves it untyped
    typed: torch.storage.TypedStorage = make(wrap_storage=untyped, dtype=dtype, _internal=True)
    return typed


def _tensor_of_new_dtype(storage: torch.UntypedStorage, *rest: Any) -> torch.Tensor:
    """A tensor of one of the newest dtypes (uint16, float8): torch packs an untyped storage for
    them, and needs a typed one to unpack.
    """
    rebuild: Any = torch._utils._rebuild_tensor_v3
    tensor: torch.Tensor = rebuild(_typed_storage(storage, torch.uint8), *rest)
    return tensor


def _same(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage


def hooks_of(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The hooks of a leaf tensor by their ids: before and after its gradient is accumulated."""
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def _reduce_hooked(tensor: torch.Tensor, hooks: tuple[Any, Any]) -> Any:
    """Pickle a tensor with its hooks, which torch leaves out; set last, since they may use it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warning that hooks are left out
        rebuild, arguments = tensor.__reduce_ex__(5)[:2]  # type: ignore[no-untyped-call]
    return rebuild, arguments, hooks, None, None, _set_hooks


def _set_hooks(tensor: Any, hooks: tuple[Any, Any]) -> None:
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks


def _optimizer_hooks(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The hooks of an optimizer's step, state_dict and load_state_dict, by their attributes."""
    names = [name for name in vars(optimizer) if re.fullmatch(r"_optimizer_\w+_hooks", name)]
    return {name: vars(optimizer)[name] for name in names}


def _reduce_optimizer(optimizer: torch.optim.Optimizer) -> Any:
    """Pickle an optimizer with its hooks, which torch leaves out."""
    reduced: Any = optimizer.__reduce_ex__(5)
    rebuild, arguments, state, *_ = reduced
    return rebuild, arguments, (state, _optimizer_hooks(optimizer)), None, None, _set_optimizer


def _set_optimizer(optimizer: Any, state: tuple[Any, dict[str, Any]]) -> None:
    attributes, hooks = state
    optimizer.__setstate__(attributes)
    vars(optimizer).update(hooks)


def _reduce_parametrized(module: torch.nn.Module) -> Any:
    """Pickle a module with parametrizations (spectral_norm, weight_norm): torch gives it a class of
    its own that refuses to be pickled.
    """
    kind: Any = parametrize.type_before_parametrizations(module)
    names: Any = module.parametrizations
    return _parametrized, (kind, tuple(names)), kind.__getstate__(module)


def _parametrized(kind: type[torch.nn.Module], names: tuple[str, ...]) -> torch.nn.Module:
    """A module without its state, as `register_parametrization` makes one of this kind."""
    module: torch.nn.Module = kind.__new__(kind)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


def _reduce_array(array: np.ndarray[Any, Any]) -> Any:
    """Pickle an array as a dense plain one: numpy would put the bytes of strided and
    memory-mapped arrays into the pickle.
    """
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
    """The offset at which a memory-mapped array can be opened again, None where only a copy is
    right.
    """
    mapping = getattr(array, "_mmap", None)
    if mapping is None or not array.flags.c_contiguous or array.mode == "c" or not array.size:
        return None
    if array.filename is None or not os.path.isfile(array.filename):
        return None
    # A slice keeps the offset of the array it was cut from, so the place follows from the
    # addresses.
    mapped_from = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    within = address_of(array) - address_of(np.frombuffer(mapping, dtype=np.uint8))
    return mapped_from + within if 0 <= within < len(mapping) else None
