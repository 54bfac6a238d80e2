"""Makes one optimizer of several that step together, each for a part of the model:
`optimizer={"body": SGD, "head": AdamW}`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from workbench.task.errors import TaskError
from workbench.task.optim.closures import closure_use
from workbench.task.optim.groups import is_in
from workbench.task.optim.joined import JoinedOptimizers, parts_of
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


class PartOptimizers(JoinedOptimizers):
    """Several optimizers that step together. It has their parameter groups, each with the name
    of its part.
    """

    def __init__(self, parts: Mapping[str, Optimizer]) -> None:
        for name, optimizer in parts.items():
            for group in optimizer.param_groups:
                rule = group.get("name", "rest")
                group["name"] = (name or "rest") if rule == "rest" else f"{name or 'rest'}, {rule}"
        super().__init__(parts)
        self._step_supports_amp_scaling = all(
            getattr(optimizer, "_step_supports_amp_scaling", False) for optimizer in parts.values()
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        flags = {name: value for name, value in vars(self).items() if name in _FLAGS}
        for optimizer in self.parts.values():
            for name, value in flags.items():
                setattr(optimizer, name, value)
        try:
            return super().step(closure)
        finally:
            for optimizer in self.parts.values():
                for name in flags:
                    delattr(optimizer, name)

    @property
    def cycles(self) -> bool:
        """Whether OneCycleLR can cycle the momentum of all of them, or none has any: torch's
        changes either `betas` or `momentum`.
        """
        return len({_momentum_of(group) for group in self.param_groups}) == 1

    def state_dict(self) -> dict[str, Any]:
        return {
            **Optimizer.state_dict(self),
            "parts": {name: state_of(optimizer) for name, optimizer in self.parts.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for name, optimizer in self.parts.items():
            load_state(optimizer, state_dict["parts"][name])
        self._join()


class PartFactory:
    """What `optimizer={…}` is: makes an optimizer for each part, which step together."""

    def __init__(
        self, given: Mapping[Any, Any], named: Callable[[], Mapping[str, Tensor]],
        rules: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """given: an optimizer by key. A key names a submodule or a parameter, as in
        `named_parameters()`, or is a function of a parameter's name and the parameter; "" stands
        for all others. named: returns the parameters by name. rules: of `groups=`. Raises TaskError
        for what is no key or no optimizer.
        """
        if not given:
            raise TaskError(
                "optimizer={} is empty: give an optimizer for each part, {'': torch.optim.AdamW}"
                " for all of the model."
            )
        for key, factory in given.items():
            is_key = isinstance(key, str) or callable(key)
            if not is_key or isinstance(factory, Optimizer) or not callable(factory):
                raise TaskError(
                    f"optimizer={{{shown(key)}: {shown(factory)}}}: a key is the name of a part of"
                    " the model, or a function of a parameter's name and the parameter, and its"
                    " value makes an optimizer, as in {'body': torch.optim.SGD, 'head':"
                    " functools.partial(torch.optim.AdamW, lr=1e-3)}."
                )
        self._keys = {_label(key, number): key for number, key in enumerate(given)}
        if len(self._keys) < len(given):
            raise TaskError(
                f"optimizer={{…}}: two keys are called {min(self._keys)!r}: give the functions"
                " other names."
            )
        self._named = named
        self.factories = {
            label: OptimizerFactory(given[key], rules, named) for label, key in self._keys.items()
        }
        """What makes the optimizer of each part, by its label."""
        kinds = [f"{key!r}: {factory.name}" for key, factory in self.factories.items()]
        self.__name__ = f"{{{', '.join(kinds)}}}"

    def __call__(
        self, parameters: Sequence[Tensor], lr: float, weight_decay: float | None = None
    ) -> PartOptimizers:
        """Each part begins at its own rate, bound or its default, or at 1e-3; the setting `lr` is
        that of the first, and the others keep their ratio to it. Raises TaskError where a key names
        nothing, or a parameter has no optimizer.
        """
        parts = {}
        # not at `lr`: the factory around this one multiplies all rates by it
        for label, (own_parameters, rate) in self.rates(parameters).items():
            parts[label] = self.factories[label](own_parameters, rate, weight_decay)
            _refuse(label, parts[label])
        return PartOptimizers(parts)

    def rates(self, parameters: Sequence[Tensor]) -> dict[str, tuple[list[Tensor], float]]:
        """The parameters of each part, and the rate at which its optimizer is made. Parts whose
        parameters are all frozen are left out.
        """
        rates = {}
        for label, own_parameters in _split(self._keys, self._named(), parameters).items():
            rate = self.factories[label].own_rate(own_parameters)
            rates[label] = (own_parameters, _REFERENCE if rate is None else rate)
        return rates


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


def _label(key: Any, number: int) -> str:
    """What a part is called in charts and checkpoints."""
    if isinstance(key, str):
        return key
    name = getattr(key, "__name__", "<lambda>")
    return f"rule {number}" if name == "<lambda>" else str(name)


def _split(
    labels: Mapping[str, Any], named: Mapping[str, Tensor], parameters: Sequence[Tensor]
) -> dict[str, list[Tensor]]:
    """The trained parameters by the part's label, in the order of the keys; parts whose parameters
    are all frozen are left out. A named part goes before a function.
    """
    trained = {id(p) for p in parameters}
    split: dict[str, list[Tensor]] = {label: [] for label in labels}
    without = []
    for key in labels.values():
        if isinstance(key, str) and key != REST and not any(is_in(name, key) for name in named):
            parts = sorted({name.partition(".")[0] for name in named})
            raise TaskError(
                f"optimizer={{{key!r}: …}}: the model has no part of this name; it has"
                f" {', '.join(map(repr, parts))}."
            )
    keys = {
        label: functools.partial(_holds, label, key) if callable(key) else key
        for label, key in labels.items()
    }
    for name, parameter in named.items():
        if id(parameter) not in trained:
            continue
        fitting = parts_of(name, parameter, keys)
        if len(fitting) > 1:
            raise TaskError(
                f"optimizer={{…}}: {' and '.join(fitting)} both match {name}: let one of these"
                " functions not match it."
            )
        if fitting:
            split[fitting[0]].append(parameter)
        else:
            without.append(name)
    for label, key in labels.items():
        if callable(key) and not split[label]:
            raise TaskError(
                f"optimizer={{…}}: the function {label} matches no parameter that is trained and"
                " that no named part has."
            )
    if without:
        some = ", ".join(without[:3]) + (", …" if len(without) > 3 else "")
        raise TaskError(
            f"optimizer={{…}}: no key names {some}: give '' an optimizer for all that is left, or"
            " freeze them (requires_grad_(False))."
        )
    return {key: group for key, group in split.items() if group}


def _holds(label: str, rule: Callable[..., Any], name: str, parameter: Tensor) -> bool:
    try:
        return bool(rule(name, parameter))
    except Exception as error:
        raise TaskError(
            f"optimizer={{…}}: the function {label} failed with {type(error).__name__}: {error}. It"
            " is called with a parameter's name and the parameter."
        ) from error


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
