"""Mixed precision: most products of a forward pass in 16 bits, and for float16 a scaled loss.

Source: Micikevicius et al., "Mixed Precision Training" (2018); the work is done by `torch.autocast` and
`torch.amp.GradScaler`. Backward passes lie outside of autocast, as torch asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from workbench.task.errors import TaskError

_TYPES = {"32-true": None, "64-true": None, "16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class Precision:
    """The arithmetic of a session. Per update: `scale` each loss, `unscale` and `step` each optimizer, `update`."""

    def __init__(self, dtype: torch.dtype | None, device: torch.device, scaler: GradScaler | None = None) -> None:
        self.scaler = scaler
        self._dtype = dtype
        self._device_type = device.type
        self._plain = contextlib.nullcontext()
        self._begun = self._checked = False

    @classmethod
    def of(cls, setting: str, device: torch.device) -> Precision:
        """The precision that a setting asks for, or a TaskError where the device has none such."""
        dtype = _TYPES[setting]
        if dtype is torch.float16 and device.type == "cpu":
            raise TaskError(
                "precision='16-mixed' (float16) needs a GPU; on the CPU use precision='bf16-mixed' or '32-true'."
            )
        if dtype is torch.bfloat16 and device.type == "cuda" and not _has_bfloat16(device):
            raise TaskError(
                "precision='bf16-mixed': this GPU has no bfloat16 arithmetic (and emulates it slowly); "
                "use precision='16-mixed' or '32-true'."
            )
        return cls(dtype, device, GradScaler(device.type) if dtype is torch.float16 else None)

    @staticmethod
    def refuse_single(model: nn.Module) -> None:
        """Refuse a model whose weights are not float64, as '64-true' has them; the user converts it, and its data."""
        weights = [*model.named_parameters(), *model.named_buffers()]
        found = next(((name, w.dtype) for name, w in weights if w.is_floating_point() and w.dtype is not torch.float64), None)
        if found is not None:
            raise TaskError(
                f"precision='64-true': {found[0]!r} of {type(model).__name__} is {str(found[1]).removeprefix('torch.')}. Call "
                "model.double() and give the data as float64 before the bench is made: what your objects hold is not converted."
            )

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        """What a forward pass runs in."""
        if self._dtype is None:
            return self._plain
        return torch.autocast(self._device_type, self._dtype)

    def scale(self, loss: Tensor) -> Tensor:
        """The loss that backward is called on."""
        if self.scaler is None:
            return loss
        self._begun = True
        return self.scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Bring the optimizer's gradients to their true size, to be measured and clipped; once per update."""
        if self.scaler is not None and _has_gradients(optimizer):
            self.scaler.unscale_(optimizer)
            self._checked = True

    def step(self, optimizer: Optimizer, **options: Any) -> bool:
        """Take the optimizer's step; whether it was taken. With a scaler the device is asked, and waited for."""
        if self.scaler is None or not _has_gradients(optimizer):
            optimizer.step(**options)
            return True
        # Read before the step: the device has nothing else to do then, and the scaler's own look costs no more.
        if not self.scaler._found_inf_per_device(optimizer):
            self.unscale(optimizer)
        found = self.scaler._found_inf_per_device(optimizer)
        overflowed = any(value.item() for value in found.values())
        self.scaler.step(optimizer, **options)
        return not overflowed

    def update(self) -> None:
        """Adapt the scale, behind the last optimizer of an update."""
        # Where no optimizer had gradients there is nothing to go by, and the scaler would take it for an error.
        if self.scaler is not None and self._checked:
            self.scaler.update()
            self._checked = False

    def state_dict(self) -> dict[str, Any]:
        """The scale and its counters; {} where nothing is scaled."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, between two updates; a state without a scale leaves the scale as it is."""
        if self.scaler is None or not state:
            return
        if self._begun:
            self.scaler.update(float(state["scale"]))  # which forgets an update that was broken off
            self._checked = False
        self.scaler.load_state_dict(dict(state))


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _has_bfloat16(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
