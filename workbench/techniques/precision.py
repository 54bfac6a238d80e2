"""Runs forward passes in mixed precision (float16 or bfloat16 products), and scales the loss for
float16.

Source: Micikevicius et al., "Mixed Precision Training" (2018). It uses `torch.autocast` and
`torch.amp.GradScaler`. Backward passes run outside of autocast, as torch recommends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from workbench.task.device import default_device
from workbench.task.errors import TaskError

P = ParamSpec("P")
R = TypeVar("R")
_TYPES = {"32-true": None, "64-true": None, "16-mixed": torch.float16, "bf16-mixed": torch.bfloat16}


class Precision:
    """The arithmetic of a session. Per update: `scale` each loss, `unscale` and `step` each
    optimizer, `update`.
    """

    def __init__(
        self, dtype: torch.dtype | None, device: torch.device, scaler: GradScaler | None = None
    ) -> None:
        self.scaler = scaler
        self._dtype = dtype
        self._device_type = device.type
        self._plain = default_device.in_users_code()
        self._changes_nothing = dtype is None and not default_device.differs()
        self._begun = self._checked = False

    @classmethod
    def of(cls, setting: str, device: torch.device) -> Precision:
        """Return the precision of a setting; raises TaskError where the device does not support
        it.
        """
        dtype = _TYPES[setting]
        if dtype is torch.float16 and device.type == "cpu":
            raise TaskError(
                "precision='16-mixed' (float16) needs a GPU; on the CPU use precision='bf16-mixed'"
                " or '32-true'."
            )
        if dtype is torch.float16 and device.type == "xla":
            raise TaskError(
                "precision='16-mixed' (float16) needs a GPU; on a TPU use precision='bf16-mixed' or"
                " '32-true'."
            )
        if dtype is torch.bfloat16 and device.type == "cuda" and not _has_bfloat16(device):
            raise TaskError(
                "precision='bf16-mixed': this GPU has no bfloat16 arithmetic (and emulates it"
                " slowly); use precision='16-mixed' or '32-true'."
            )
        return cls(dtype, device, GradScaler(device.type) if dtype is torch.float16 else None)

    @staticmethod
    def refuse_single(model: nn.Module) -> None:
        """Raise TaskError for a model with weights other than float64, which '64-true' needs;
        the user converts them.
        """
        weights = [*model.named_parameters(), *model.named_buffers()]
        single = next(
            (
                (name, w.dtype)
                for name, w in weights
                if w.is_floating_point() and w.dtype is not torch.float64
            ),
            None,
        )
        if single is not None:
            raise TaskError(
                f"precision='64-true': {single[0]!r} of {type(model).__name__} is"
                f" {str(single[1]).removeprefix('torch.')}. Call model.double() and give the data"
                " as float64 before the bench is made: what your objects hold is not converted."
            )

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which a forward pass runs, and the user's other code of a step."""
        if self._dtype is None:
            return self._plain
        cast = torch.autocast(self._device_type, self._dtype)
        return self._both(cast) if default_device.differs() else cast

    @contextlib.contextmanager
    def _both(self, cast: torch.autocast) -> Iterator[None]:
        with self._plain, cast:
            yield

    def autocasting(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function as it runs within `autocast`."""
        if self._changes_nothing:
            return function

        def cast(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.autocast():
                return function(*args, **kwargs)

        return cast

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss to call backward on."""
        if self.scaler is None:
            return loss
        self._begun = True
        return self.scaler.scale(loss)

    def unscale(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, so that they can be measured and
        clipped; once per update.
        """
        if self.scaler is not None and _has_gradients(optimizer):
            self.scaler.unscale_(optimizer)
            self._checked = True

    def step(self, optimizer: Optimizer, **options: Any) -> bool:
        """Step the optimizer; return whether it stepped. With a scaler this waits for the
        device.
        """
        if self.scaler is None or not _has_gradients(optimizer):
            optimizer.step(**options)
            return True
        # Reading it before the step costs nothing: the scaler waits for the same value in its step.
        if not self.scaler._found_inf_per_device(optimizer):
            self.unscale(optimizer)
        infinities = self.scaler._found_inf_per_device(optimizer)
        overflowed = any(value.item() for value in infinities.values())
        self.scaler.step(optimizer, **options)
        return not overflowed

    def update(self) -> None:
        """Adapt the scale, after the last optimizer of an update."""
        # Where no optimizer had gradients, GradScaler.update would raise an error.
        if self.scaler is not None and self._checked:
            self.scaler.update()
            self._checked = False

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and its counters; {} where nothing is scaled."""
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, between two updates; an empty state does not change the scale."""
        if self.scaler is None or not state:
            return
        if self._begun:
            self.scaler.update(float(state["scale"]))  # it forgets an update that was interrupted
            self._checked = False
        self.scaler.load_state_dict(dict(state))


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _has_bfloat16(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
