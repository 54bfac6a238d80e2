"""Uses TPUs and other devices of torch_xla.

Such a device records operations, and `sync` runs them together. Until then a tensor has no value.
Each graph of operations is compiled once; another index or shape makes a new graph.

Several cores are also one such device (torch_xla's SPMD): one process records whole batches, XLA
gives each core its part of them and adds the communication, so that the results are those of one
core.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.settings import SettingsError
from workbench.task.batch import leaves, sample_count


def installed() -> bool:
    """Whether torch_xla can be imported. It is not imported here; accelerate imports it wherever
    it is installed.
    """
    return importlib.util.find_spec("torch_xla") is not None


def in_use() -> bool:
    """Whether this process has used a device of torch_xla; after that it can no longer choose
    between one core and all.
    """
    return "torch_xla" in sys.modules and bool(
        importlib.import_module("torch_xla")._XLAC._xla_get_spmd_config_is_locked()
    )


def is_xla(device: torch.device) -> bool:
    """Whether operations on this device wait for `sync`."""
    return device.type == "xla"


@contextlib.contextmanager
def same_parameters(device: torch.device) -> Iterator[None]:
    """Context manager in which `module.to(device)` keeps the Parameter objects, as on other
    devices, so that tied weights and other references stay valid.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(before or is_xla(device))
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def sync() -> None:
    """Run the recorded operations. Returns before the device has finished them."""
    importlib.import_module("torch_xla").sync()


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy tensors to host memory, all at once: one by one, each would wait for the device."""
    if not tensors or not is_xla(tensors[0].device):
        return [tensor.cpu() for tensor in tensors]
    fetched: list[Tensor] = importlib.import_module("torch_xla")._XLAC._xla_get_cpu_tensors(
        list(tensors)
    )
    return fetched


def tensor_id(tensor: Tensor) -> int:
    """An id that is equal for two names of one XLA tensor, which has no data pointer."""
    return int(importlib.import_module("torch_xla")._XLAC._xla_get_tensor_id(tensor))


def use_cores(wanted: int) -> None:
    """Let this process train on this many cores from now on. Raises SettingsError where the TPU
    has another number, or one core was used before.
    """
    if wanted == 1:
        return
    runtime = importlib.import_module("torch_xla.runtime")
    cores = runtime.global_runtime_device_count()
    if cores != wanted:
        raise SettingsError(
            f"devices={wanted} with accelerator='tpu': torch_xla has {cores} here, and a fit takes "
            f"one or all; take devices={cores}."
        )
    if not runtime.is_spmd():
        if in_use():  # torch_xla would accept it, and the next graph would crash
            raise SettingsError(
                f"devices={wanted} with accelerator='tpu': this process has used one core already,"
                " and torch_xla cannot take more afterwards. Restart the kernel and begin with"
                f" devices={wanted}, or take strategy='launch', which trains in another process."
            )
        runtime.use_spmd()


def split(batch: Any, cores: int) -> None:
    """Give each core its part of the samples of a batch; a tensor that cannot be divided evenly
    is copied to all of them.
    """
    spmd, samples = importlib.import_module("torch_xla.distributed.spmd"), sample_count(batch)
    if samples % cores:
        return
    mesh = _mesh(cores)
    for _, tensor in leaves(batch):
        if tensor.ndim and len(tensor) == samples and is_xla(tensor.device):
            spmd.mark_sharding(tensor, mesh, ("data", *[None] * (tensor.ndim - 1)))


@functools.cache
def _mesh(cores: int) -> Any:
    return importlib.import_module("torch_xla.distributed.spmd").Mesh(
        list(range(cores)), (cores,), ("data",)
    )


def seed(value: int) -> None:
    """Seed the device's generator, where it is in use."""
    if in_use():
        _model().set_rng_state(value)


def random_state() -> int | None:
    """The state of the device's generator; None: it is not in use, and reading would change
    that.
    """
    return int(_model().get_rng_state()) if in_use() else None


def _model() -> Any:
    return importlib.import_module("torch_xla.core.xla_model")
