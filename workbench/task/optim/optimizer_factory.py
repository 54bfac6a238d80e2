"""Calls the function or class that the user gave as `optimizer=`, with the arguments that it
accepts and its learning rate.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from workbench.task.errors import TaskError
from workbench.task.optim.group_checks import are_handed_on, check_options, options_by_rule
from workbench.task.optim.groups import by_rules, scale_rates
from workbench.task.signature import parameters

_HAND_ON = (
    "Let it hand the list to the optimizer as it is, lambda params, lr: torch.optim.SGD(params,"
    " lr=lr), or leave groups= out."
)
NAMED = "named_parameters"
"""The first parameter of a function that gets pairs of a name and a parameter."""
_PROBED = 1e-3
"""A rate for a trial call of a function; the result is compared with that at twice this rate."""


class OptimizerFactory:
    """Makes the optimizer of each run: `make(params, lr=…, weight_decay=…)`, with those arguments
    that it accepts.

    A rate that `make` contains (`partial(SGD, lr=0.5)`, a function with its own rate, a default) is
    the rate of the run until the user sets `lr`.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        rules: Sequence[Any] = (),
        named: Callable[[], Mapping[str, Tensor]] = dict,
    ) -> None:
        """rules: of `groups=`. named: returns the model's parameters by name."""
        self.make = make
        self._rules, self._named = rules, named
        self.name = getattr(make, "__name__", None) or f"a {type(make).__name__}"
        if isinstance(make, functools.partial):
            self.name = f"partial({getattr(make.func, '__name__', repr(make.func))}, …)"
        self._parameters = parameters(make)
        self._made_at: float | None = None
        self._probed = False

    @property
    def takes_lr(self) -> bool:
        """Whether it is called with `lr`."""
        return self._takes("lr")

    @property
    def takes_names(self) -> bool:
        """Whether it gets the parameters with their names."""
        return next(iter(self._parameters or ()), "") == NAMED

    @property
    def takes_weight_decay(self) -> bool:
        """Whether it can be called with `weight_decay`."""
        return self._takes("weight_decay")

    def own_rate(self, parameters: Sequence[Tensor]) -> float | None:
        """Return the rate of its optimizer while the user has not set `lr`; None: it needs the
        setting.
        """
        default = self._default_rate()
        if default is not None and self._is_plain:
            return default
        if default is not None:
            return base_rate(self._call(parameters, None, probing=True), self.name)
        return self.made_at(parameters)

    def made_at(self, parameters: Sequence[Tensor]) -> float | None:
        """Return the base rate of its optimizer if it does not depend on `lr`; None: it uses
        `lr`.
        """
        if self._is_plain:
            return None
        if not self._probed:
            first = self._call(parameters, _PROBED, probing=True)
            second = self._call(parameters, 2 * _PROBED, probing=True)
            if first is second:
                raise TaskError(
                    f"optimizer={self.name} returned the same {type(first).__name__} twice, and"
                    " each run needs a new one, without the state of another: make it in the"
                    " function, optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr)."
                )
            rate = base_rate(first, self.name)
            self._made_at = rate if group_rates(first) == group_rates(second) else None
            self._probed = True
        return self._made_at

    def __call__(
        self, parameters: Sequence[Tensor], lr: float, weight_decay: float | None
    ) -> Optimizer:
        """Make an optimizer at the base rate `lr`; parameter groups keep their ratios to it."""
        made_at = self.made_at(parameters)
        optimizer = self._call(parameters, lr, weight_decay)
        base_rate(optimizer, self.name)
        if made_at is not None and made_at != lr:
            for group in optimizer.param_groups:
                group["lr"] = lr if group["lr"] == made_at else group["lr"] * (lr / made_at)
        return optimizer

    def _call(
        self,
        parameters: Sequence[Tensor],
        lr: float | None,
        weight_decay: float | None = None,
        *,
        probing: bool = False,
    ) -> Optimizer:
        arguments: dict[str, Any] = {}
        if lr is not None and self.takes_lr:
            arguments["lr"] = lr
        if weight_decay is not None:
            if not self.takes_weight_decay:
                raise TaskError(
                    f"weight_decay={weight_decay}: the optimizer {self.name} takes no weight_decay;"
                    " leave the setting at None, or let it take one, lambda params, lr,"
                    " weight_decay=0.01: …"
                )
            arguments["weight_decay"] = weight_decay
        if self._parameters is not None and not any(
            p.kind is not p.KEYWORD_ONLY for p in self._parameters.values()
        ):
            raise TaskError(
                f"optimizer={self.name} takes no parameters to train: it is called as"
                " optimizer(params, lr=…). Give lambda params, lr: …"
            )
        missing = self._missing(arguments)
        if probing and "weight_decay" in missing:  # only the rate is read
            arguments["weight_decay"] = 0.0
            missing.remove("weight_decay")
        if missing:
            raise TaskError(self._explain(missing))
        optimizer = self._made(parameters, arguments)
        if not isinstance(optimizer, Optimizer):
            kind = type(optimizer).__name__
            raise TaskError(
                f"optimizer(params, lr=…) returned a {kind}, no torch.optim.Optimizer: let {kind} "
                "inherit from it; where it joins several "
                "optimizers, give one for each part of the model, optimizer={'body': "
                "torch.optim.SGD, 'head': torch.optim.AdamW}."
            )
        return optimizer

    def _made(self, parameters: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
        """What it makes of the parameters, in groups where there are rules."""
        handed: list[Any] = list(parameters)
        if self._rules:
            rules = options_by_rule(self._rules, self._named())
            handed = groups = by_rules(handed, self._rules, self._named())
        if self.takes_names:
            names = {id(parameter): name for name, parameter in self._named().items()}
            handed = [_with_names(item, names) for item in handed]
        if not self._rules:
            return self.make(handed, **arguments)
        try:
            optimizer = self.make(handed, **arguments)
        except (TypeError, AttributeError, ValueError) as error:
            self.make(list(parameters), **arguments)  # without groups it has no other error
            remedy = "Leave groups= out, or take another optimizer."
            if not self._is_plain:
                remedy = _HAND_ON
            raise TaskError(
                f"groups=: optimizer={self.name} gets a list of parameter groups then, and failed"
                f" with {type(error).__name__}: {error}. {remedy}"
            ) from error
        if isinstance(optimizer, Optimizer):
            check_options(optimizer, rules, self._named())
            if not are_handed_on(groups, optimizer):
                raise TaskError(
                    f"groups=: optimizer={self.name} makes a {type(optimizer).__name__} with other"
                    f" parameter groups than those that it gets. {_HAND_ON}"
                )
            scale_rates(optimizer)
        return optimizer

    @property
    def _is_plain(self) -> bool:
        """Whether it is an optimizer class, perhaps with bound options: such a class uses the
        given `lr`.
        """
        make = self.make
        while isinstance(make, functools.partial):
            make = make.func
        return isinstance(make, type) and issubclass(make, Optimizer)

    def _takes(self, name: str) -> bool:
        known = self._parameters
        return (
            known is None or name in known or any(p.kind is p.VAR_KEYWORD for p in known.values())
        )

    def _default_rate(self) -> float | None:
        """The rate that is bound to `lr`, or is its default."""
        parameter = (self._parameters or {}).get("lr")
        value = (
            None
            if parameter is None or parameter.default is inspect.Parameter.empty
            else parameter.default
        )
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        return (
            float(value)
            if isinstance(value, (int, float)) and not isinstance(value, bool)
            else None
        )

    def _missing(self, arguments: Mapping[str, Any]) -> list[str]:
        """The parameters without a default for which there is no argument; the first one is the
        model's parameters.
        """
        named = [
            p
            for p in (self._parameters or {}).values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        first = next((n for n, p in enumerate(named) if p.kind is not p.KEYWORD_ONLY), None)
        needed = [p for n, p in enumerate(named) if n != first and p.default is p.empty]
        return [p.name for p in needed if p.name not in arguments or p.kind is p.POSITIONAL_ONLY]

    def _explain(self, missing: Sequence[str]) -> str:
        called = "optimizer(params, lr=…), and with weight_decay=… where that setting is set"
        if list(missing) == ["weight_decay"]:
            return (
                f"optimizer={self.name} needs weight_decay, and the setting weight_decay is None:"
                " give wb.Workbench(…, weight_decay=0.01), or let it have a default, lambda"
                " params, lr, weight_decay=0.01: …"
            )
        names = " and ".join(missing)
        return (
            f"optimizer={self.name} needs {names}, for which there is no value: it is called as"
            f" {called}. Bind the rest: lambda params, lr: f(params, lr, {missing[0]}=…)"
        )


def _with_names(item: Any, names: Mapping[int, str]) -> Any:
    """A parameter, or a group of them, with their names."""
    if isinstance(item, Mapping) and not item["params"]:
        return {**item, "param_names": []}
    if isinstance(item, Mapping):
        return {**item, "params": [_with_names(parameter, names) for parameter in item["params"]]}
    return names.get(id(item), ""), item


def group_rates(optimizer: Optimizer) -> list[float]:
    """The base rate of each parameter group; where a schedule has changed it, the schedule's
    base rate.
    """
    return rates_of(optimizer.param_groups)


def rates_of(groups: Sequence[Mapping[str, Any]]) -> list[float]:
    """The rate of each parameter group of an optimizer; also of the groups in its state_dict."""
    return [float(group.get("max_lr", group.get("initial_lr", group["lr"]))) for group in groups]


def leading_group(rates: Sequence[float]) -> int:
    """Return the index of the group whose rate is `lr`: the first rate that is not 0."""
    return next((number for number, rate in enumerate(rates) if rate), 0)


def leading_decay(optimizer: Optimizer) -> float | None:
    """The weight decay of the first parameter group that has one above 0; 0 where all are 0,
    None where none has any. Groups whose rule gives them a decay do not count.
    """
    decays = [float(group["weight_decay"]) for group in _decayed(optimizer)]
    return next(filter(None, decays), decays[0] if decays else None)


def set_weight_decay(optimizer: Optimizer, value: float) -> None:
    """Set the weight decay of the first parameter group with a decay above 0; the others keep their
    ratio to it, and those at 0 stay at 0.

    Where all are at 0, all get the value.
    """
    first = leading_decay(optimizer)
    for group in _decayed(optimizer):
        group["weight_decay"] = (group["weight_decay"] / first if first else 1.0) * value


def _decayed(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The parameter groups that follow the setting `weight_decay`."""
    return [
        group
        for group in optimizer.param_groups
        if "weight_decay" in group and not group.get("own_weight_decay")
    ]


def base_rate(optimizer: Optimizer, whose: str) -> float:
    """The rate of the first parameter group whose rate is above 0; 0 where all are 0. Raises
    TaskError for one that is not a number.
    """
    for number, group in enumerate(optimizer.param_groups):
        rate = group.get("lr")
        if isinstance(rate, bool) or not isinstance(rate, (int, float, Tensor)):
            raise TaskError(
                f"{whose} made a {type(optimizer).__name__} whose parameter group {number} has"
                f" lr={rate!r}: every group needs a number, which schedules and finders multiply."
                " Give it one (lr=1e-3), and turn off a rate that it finds itself."
            )
    rates = group_rates(optimizer)
    return rates[leading_group(rates)]
