"""Divides the parameters of an optimizer into groups by rules.

An exported script contains this file's text, so it needs nothing but torch. A rule is a function of
the parameters by name; it returns the options of those that it matches, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch


def no_decay_norm_bias(named: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, Any]]:
    """A rule: no weight decay for biases and for the weights of norms, which have one dimension."""
    options = {"name": "no_decay", "weight_decay": 0.0}
    return {name: options for name, parameter in named.items() if parameter.ndim <= 1}


def named_rules() -> dict[str, Callable[..., Any]]:
    """The rules that have a name."""
    return {"no_decay_norm_bias": no_decay_norm_bias}


def options_by_name(rules: Any, named: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """The options of each parameter by its name: scales of the rate multiply, names are joined, and
    of other options the last rule's counts.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for rule in rules if isinstance(rules, list | tuple) else [rules]:
        matches = named_rules()[rule] if isinstance(rule, str) else rule
        for name, options in matches(named).items():
            merged = by_name.setdefault(name, {})
            for key, value in options.items():
                if key == "lr_scale":
                    merged[key] = merged.get(key, 1.0) * value
                elif key == "name" and key in merged:
                    merged[key] = f"{merged[key]}, {value}"
                else:
                    merged[key] = value
    return by_name


def by_rules(
    parameters: Iterable[Any], rules: Any, named: Mapping[str, torch.Tensor]
) -> list[dict[str, Any]]:
    """The parameters, or groups of them, divided into groups with the same options.

    The first group is at the learning rate itself, which the others keep their ratio to; where the
    rules scale all rates, that group is empty.
    """
    by_name = options_by_name(rules, named)
    names = {id(parameter): name for name, parameter in named.items()}
    groups: dict[tuple[int, str], dict[str, Any]] = {}
    for number, entry in enumerate(parameters):
        whole = entry if isinstance(entry, dict) else {"params": [entry]}
        for parameter in whole["params"]:
            options = by_name.get(names.get(id(parameter), ""), {})
            labels = [str(of["name"]) for of in (whole, options) if "name" in of]
            key = (number if isinstance(entry, dict) else -1, repr(sorted(options.items())))
            if key not in groups:
                label = ", ".join(labels) if labels else "rest"
                groups[key] = {**whole, **options, "params": [], "name": label}
            groups[key]["params"].append(parameter)
            if "weight_decay" in options:
                groups[key]["own_weight_decay"] = True
    divided = sorted(groups.values(), key=lambda group: group.get("lr_scale", 1.0) != 1.0)
    if divided and divided[0].get("lr_scale", 1.0) != 1.0:
        divided.insert(0, {"params": [], "name": "lr"})
    return divided


def freeze_by(rules: Any, named: Mapping[str, torch.Tensor], epoch: int) -> dict[str, torch.Tensor]:
    """Let the parameters that rules freeze train from their epochs on; returns those that do not
    train in this one. named: all that the optimizer trains.
    """
    trains: dict[str, bool] = {}
    for rule in rules if isinstance(rules, list | tuple) else [rules]:
        if hasattr(rule, "unfreeze_at_epoch"):
            for name in rule.matched(named):
                trains[name] = trains.get(name, True) and epoch >= rule.unfreeze_at_epoch
    for name, now in trains.items():
        named[name].requires_grad_(now)
    return {name: named[name] for name, now in trains.items() if not now}


def scale_rates(optimizer: torch.optim.Optimizer) -> None:
    """Multiply the rate of each group by its scale, after the optimizer was made."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * group.get("lr_scale", 1.0)
