"""Lets tensors of this process use a shared segment's memory instead of their own, so that a host
has one copy.

Only where nobody can notice. A tensor is moved if all of this holds: its storage is torch's own
(not an array's, a file's, pinned, or shared with a process), no array was ever made of it (torch
then marks the storage as one that cannot be resized), no other tensor or storage object refers to
it, nothing in C++ holds the tensor (DLPack, a running operation or graph), and it does not train.
Later writes to it go to private pages.

`python -m tests.benchmarks.rank_costs memory` shows what it saves: with a TensorDataset of 512 MiB
and devices=2, the first job adds 1.03 times the data to the notebook's copy, the jobs after it 0.03
times. The same holds with `random_split`, a DataLoader or a pair of tensors. Nothing is saved where
the tensor came from numpy or the data set has slices of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

from workbench.share.buffer_cache import LARGE, BufferCache
from workbench.share.pickling import storage_over
from workbench.share.segment import Segment, Views

_USES = 2
"""The references that every storage has here: the tensor's, and that of the Python object that
reads the count.
"""


def rebind(tensors: Iterable[torch.Tensor], cache: BufferCache) -> int:
    """Move the tensors whose present bytes are in the cache and to which nothing else refers;
    returns how many bytes were freed.

    Call it in the thread that works with these tensors, while no other thread does.
    """
    mapped: dict[Segment, Views] = {}
    saved = 0
    for tensor in tensors:
        if not may_move(tensor):
            continue
        source = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        slot = cache.slot(source)
        if slot is None:
            continue
        segment, index = slot
        # A mapping of its own: the cache's is what it compares with, and is never written to.
        views = mapped.setdefault(segment, segment.views())
        new = storage_over(views[index])
        with torch.no_grad():
            tensor.set_(new, tensor.storage_offset(), tensor.size(), tensor.stride())
        cache.moved(source, (new.data_ptr(), new.nbytes()))
        saved += new.nbytes()
    return saved


def may_move(tensor: torch.Tensor) -> bool:
    """Whether the tensor can get other memory without any visible effect."""
    plain = (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
    )
    if (
        not plain
        or tensor.requires_grad
        or tensor.grad_fn is not None
        or tensor._is_view()
        or tensor.is_inference()
    ):
        return False
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor._use_count() != 1:  # type: ignore[attr-defined]
        return False
    storage = tensor.untyped_storage()
    if (
        storage.nbytes() < LARGE
        or not storage.resizable()
        or storage.is_shared()
        or _pinned(tensor)
    ):
        return False
    uses: int = torch._C._storage_Use_Count(storage._cdata)
    return uses == _USES and sys.getrefcount(storage) <= _least()


def _pinned(tensor: torch.Tensor) -> bool:
    # Only CUDA pins memory, and the question itself would initialize CUDA.
    return bool(torch.cuda.is_initialized()) and tensor.is_pinned()  # type: ignore[no-untyped-call]


def _least() -> int:
    """The reference count of the storage object of a tensor that no other object refers to."""
    tensor = torch.empty(1, device="cpu")
    storage = tensor.untyped_storage()
    return sys.getrefcount(storage)
