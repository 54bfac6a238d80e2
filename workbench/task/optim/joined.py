"""Defines JoinedOptimizers: several optimizers that step together, each for a part of the model.

An exported script contains this file's text, so it needs nothing but torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from workbench.task.optim.groups import is_in


class JoinedOptimizers(torch.optim.Optimizer):
    """Several optimizers that step together. It has the parameter groups of all of them."""

    def __init__(self, parts: Mapping[Any, torch.optim.Optimizer]) -> None:
        defaults = {
            name: None
            for name in ("betas", "momentum")
            if all(name in optimizer.defaults for optimizer in parts.values())
        }
        groups = [group for optimizer in parts.values() for group in optimizer.param_groups]
        super().__init__([p for group in groups for p in group["params"]], defaults)
        self.parts = dict(parts)
        self._join()

    def _join(self) -> None:
        self.param_groups = [
            group for optimizer in self.parts.values() for group in optimizer.param_groups
        ]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each of them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for optimizer in self.parts.values():
            optimizer.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The state of each, by its part."""
        states = {name: optimizer.state_dict() for name, optimizer in self.parts.items()}
        return {"parts": states}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Give each its state."""
        for name, optimizer in self.parts.items():
            optimizer.load_state_dict(state_dict["parts"][name])
        self._join()


def parts_of(name: str, parameter: torch.Tensor, keys: Mapping[Any, Any]) -> list[Any]:
    """The labels of the parts that have a parameter: the innermost that a key names, else all whose
    function holds for it, else that of the key "". keys: by label.
    """
    named = {
        label: key
        for label, key in keys.items()
        if isinstance(key, str) and key and is_in(name, key)
    }
    if named:
        return [max(named, key=lambda label: len(named[label]))]
    by_rule = [label for label, key in keys.items() if callable(key) and key(name, parameter)]
    return by_rule or [label for label, key in keys.items() if key == ""]
