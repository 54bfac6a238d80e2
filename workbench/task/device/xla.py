"""TPUs and other devices of torch_xla.

Such a device records operations, and `sync` runs them together. Until then a tensor has no value. Each graph
of operations is compiled once; an index or a shape that changes makes a new graph.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor


def installed() -> bool:
    """Whether torch_xla can be imported. It is not imported here; accelerate imports it wherever it is installed."""
    return importlib.util.find_spec("torch_xla") is not None


def in_use() -> bool:
    """Whether somebody has imported torch_xla in this process."""
    return "torch_xla.core.xla_model" in sys.modules


def is_xla(device: torch.device) -> bool:
    """Whether operations on this device wait for `sync`."""
    return device.type == "xla"


@contextlib.contextmanager
def same_parameters(device: torch.device) -> Iterator[None]:
    """Inside, `module.to(device)` keeps the Parameter objects, as on other devices: ties between them, and what else holds them, stay."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(before or is_xla(device))
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def sync() -> None:
    """Run what was recorded. Returns before the device has done it."""
    importlib.import_module("torch_xla").sync()


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors in host memory, fetched together: one by one, each would wait for the device."""
    if not tensors or not is_xla(tensors[0].device):
        return [tensor.cpu() for tensor in tensors]
    fetched: list[Tensor] = importlib.import_module("torch_xla")._XLAC._xla_get_cpu_tensors(list(tensors))
    return fetched


def tensor_id(tensor: Tensor) -> int:
    """Tells whether two tensors are one: they have no address there."""
    return int(importlib.import_module("torch_xla")._XLAC._xla_get_tensor_id(tensor))


def seed(value: int) -> None:
    """Seed the device's generator, where torch_xla is in use."""
    if in_use():
        _model().set_rng_state(value)


def random_state() -> int | None:
    """The state of the device's generator; None: torch_xla is not in use."""
    return int(_model().get_rng_state()) if in_use() else None


def _model() -> Any:
    return importlib.import_module("torch_xla.core.xla_model")
