"""Restores the devices of a task's tensors after a session that only looked at the task."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from workbench.task.device import xla
from workbench.task.modules import parts_of, slots_of
from workbench.task.protocol import Task


@contextlib.contextmanager
def restored_devices(task: Task) -> Iterator[None]:
    """Context manager that restores the devices of parameters and buffers; they are then the same
    objects in the same memory.

    A session moves the modules to its device. A session that trains leaves them there. One that
    only looks (the dry run, the export of a script) must not: where jobs run in other processes,
    the notebook's model would take memory of their device. The values of the tensors are not
    restored here.
    """
    slots = list(slots_of(parts_of(task.modules)))
    inside = {p: (p.data, p.grad) for whole in task.modules for p in nn.Module.parameters(whole)}
    homes = [(whole, _device_of(whole)) for whole in task.modules]
    devices = [tensor.device for _, tensor in slots]
    moved = False
    try:
        yield
    finally:
        for ((module, kind, name), tensor), device in zip(slots, devices, strict=True):
            now = getattr(module, kind).get(name)
            if now is None or now.device == device:
                continue
            moved = True
            # torch moves a parameter by giving the same object other memory
            if isinstance(tensor, nn.Parameter):
                tensor.grad = None
                # `data` of a TPU's tensor cannot be set to memory of another device
                if xla.is_xla(tensor.device):
                    torch.utils.swap_tensors(
                        tensor, nn.Parameter(inside[tensor][0], tensor.requires_grad)
                    )  # type: ignore[no-untyped-call]
                    tensor.grad = inside[tensor][1]
                else:
                    tensor.data, tensor.grad = inside[tensor]
            getattr(module, kind)[name] = tensor
        for whole, home in homes:
            if home is not None:
                # moves no tensor; a LightningModule keeps its device in an attribute
                whole.to(home)
        if moved and torch.cuda.is_available():
            torch.cuda.empty_cache()


def _device_of(whole: nn.Module) -> torch.device | None:
    """The device of all its tensors; None if they are on several devices, or it has no tensor."""
    tensors: list[Tensor] = [*nn.Module.parameters(whole), *whole.buffers()]
    devices = {tensor.device for tensor in tensors}
    return devices.pop() if len(devices) == 1 else None
