"""Makes one optimizer of several that step together, each for a part of the model:
`optimizer={"body": SGD, "head": AdamW}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from workbench.task.errors import TaskError
from workbench.task.optim.closures import closure_use
from workbench.task.optim.optimizer_factory import OptimizerFactory
from workbench.task.optim.optimizer_state import load_state, state_of
from workbench.values import shown

REST = ""
"""The key of all parameters that no other key names."""
_REFERENCE = 1e-3
"""The rate of a part that has none of its own: the default of the setting `lr`."""
_FLAGS = ("grad_scale", "found_inf")
"""The attributes that torch's GradScaler, and a guarded step, set on an optimizer that skips a
step by itself (`fused=True`).
"""


class PartOptimizers(Optimizer):
    """Several optimizers that step together. It has their parameter groups, each with the name
    of its part.
    """

    def __init__(self, parts: Mapping[str, Optimizer]) -> None:
        defaults = {
            name: None
            for name in ("betas", "momentum")
            if all(name in optimizer.defaults for optimizer in parts.values())
        }
        super().__init__(
            [
                p
                for optimizer in parts.values()
                for group in optimizer.param_groups
                for p in group["params"]
            ],
            defaults,
        )
        self.parts = dict(parts)
        self._step_supports_amp_scaling = all(
            getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in parts.values()
        )
        for name, optimizer in self.parts.items():
            for group in optimizer.param_groups:
                group.setdefault("name", name or "rest")
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
        flags = {name: value for name, value in vars(self).items() if name in _FLAGS}
        for optimizer in self.parts.values():
            vars(optimizer).update(flags)
            optimizer.step()
            for name in flags:
                delattr(optimizer, name)
        return loss

    @property
    def cycles(self) -> bool:
        """Whether OneCycleLR can cycle the momentum of all of them, or none has any: torch's
        changes either `betas` or `momentum`.
        """
        return len({_momentum_of(group) for group in self.param_groups}) == 1

    def state_dict(self) -> dict[str, Any]:
        return {
            **super().state_dict(),
            "parts": {name: state_of(optimizer) for name, optimizer in self.parts.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for name, optimizer in self.parts.items():
            load_state(optimizer, state_dict["parts"][name])
        self._join()


def by_part(
    given: Mapping[str, Any], named: Callable[[], Mapping[str, Tensor]]
) -> Callable[..., PartOptimizers]:
    """Return the function that makes the optimizer. `named`: returns the parameters by name.

    A key names a submodule or a parameter, as in `named_parameters()`; "" stands for all others.
    Each part begins at its own rate, bound or its default, or at 1e-3; the setting `lr` is that of
    the first, and the others keep their ratio to it. Raises TaskError where a key names nothing, or
    a parameter has no optimizer.
    """
    if not given:
        raise TaskError(
            "optimizer={} is empty: give an optimizer for each part, {'': torch.optim.AdamW} for"
            " all of the model."
        )
    for key, factory in given.items():
        if not isinstance(key, str) or isinstance(factory, Optimizer) or not callable(factory):
            raise TaskError(
                f"optimizer={{{key!r}: {shown(factory)}}}: a key is the name of a part of the"
                " model, and its value makes an optimizer, as in {'body': torch.optim.SGD,"
                " 'head': functools.partial(torch.optim.AdamW, lr=1e-3)}."
            )
    factories = {key: OptimizerFactory(factory) for key, factory in given.items()}

    def make(
        parameters: Sequence[Tensor], lr: float, weight_decay: float | None = None
    ) -> PartOptimizers:
        parts = {}
        for key, own_parameters in _split(list(given), named(), parameters).items():
            own_rate = factories[key].own_rate(own_parameters)
            # Not at `lr`: the factory around this function multiplies all rates by it.
            parts[key] = factories[key](
                own_parameters, _REFERENCE if own_rate is None else own_rate, weight_decay
            )
            _refuse(key, parts[key])
        return PartOptimizers(parts)

    make.__name__ = (
        f"{{{', '.join(f'{key!r}: {factory.name}' for key, factory in factories.items())}}}"
    )
    return make


def _momentum_of(group: Mapping[str, Any]) -> str:
    """The option of a parameter group in which OneCycleLR cycles the momentum; "": it has none."""
    if "betas" in group:
        return "betas"
    return "momentum" if group.get("momentum") else ""


def kind_of(optimizer: Optimizer) -> str:
    """The type of an optimizer, as checkpoints compare it; for several parts, the type of each."""
    if isinstance(optimizer, PartOptimizers):
        kinds = [f"{name!r}: {type(inner).__name__}" for name, inner in optimizer.parts.items()]
        return f"{{{', '.join(kinds)}}}"
    return type(optimizer).__name__


def _split(
    keys: Sequence[str], named: Mapping[str, Tensor], parameters: Sequence[Tensor]
) -> dict[str, list[Tensor]]:
    """The trained parameters by key, in the order of the keys; keys whose parameters are all
    frozen are left out.
    """
    trained = {id(p) for p in parameters}
    split: dict[str, list[Tensor]] = {key: [] for key in keys}
    without = []
    for key in keys:
        if key != REST and not any(name == key or name.startswith(f"{key}.") for name in named):
            parts = sorted({name.partition(".")[0] for name in named})
            raise TaskError(
                f"optimizer={{{key!r}: …}}: the model has no part of this name; it has"
                f" {', '.join(map(repr, parts))}."
            )
    for name, parameter in named.items():
        if id(parameter) not in trained:
            continue
        fitting = [key for key in keys if key and (name == key or name.startswith(f"{key}."))]
        key = max(fitting, key=len, default=REST)  # the innermost of several nested parts
        if key in split:
            split[key].append(parameter)
        else:
            without.append(name)
    if without:
        some = ", ".join(without[:3]) + (", …" if len(without) > 3 else "")
        raise TaskError(
            f"optimizer={{…}}: no key names {some}: give '' an optimizer for all that is left, or"
            " freeze them (requires_grad_(False))."
        )
    return {key: group for key, group in split.items() if group}


def _refuse(key: str, optimizer: Optimizer) -> None:
    """Raise TaskError for an optimizer that cannot step together with others."""
    kind = type(optimizer).__name__
    if closure_use(optimizer) != "never":
        raise TaskError(
            f"optimizer={{{key!r}: …}}: {kind} evaluates the loss again, which would change the"
            " other parts: give it alone, for all of the model."
        )
    if callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None)):
        raise TaskError(
            f"optimizer={{{key!r}: …}}: {kind} has a train and an eval mode, which one part of a"
            " model cannot switch: give it alone."
        )
