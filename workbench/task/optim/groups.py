"""Divides the parameters of an optimizer into groups by rules.

An exported script contains this file's text, so it needs nothing but torch. A rule is a function of
the parameters by name; it returns the options of those that it matches, by name.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch


def is_in(name: str, part: str) -> bool:
    """Whether a parameter's name belongs to a part of the model ("head"), or fits a pattern
    ("*.bias").
    """
    if any(character in part for character in "*?["):
        return fnmatch.fnmatchcase(name, part)
    return name == part or name.startswith(f"{part}.")


def no_decay_norm_bias(named: Mapping[str, torch.Tensor]) -> Mapping[str, Mapping[str, Any]]:
    """A rule: no weight decay for biases and for the weights of norms, which have one dimension."""
    options = {"name": "no_decay", "weight_decay": 0.0}
    return {name: options for name, parameter in named.items() if parameter.ndim <= 1}


def named_rules() -> dict[str, Callable[..., Any]]:
    """The rules that have a name."""
    return {"no_decay_norm_bias": no_decay_norm_bias}


def all_rules(rules: Any) -> list[Any]:
    """The rules in a rule, or in lists of them."""
    if not isinstance(rules, list | tuple):
        return [rules]
    return [rule for inner in rules for rule in all_rules(inner)]


def options_by_name(rules: Any, named: Mapping[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """The options of each parameter by its name: scales of the rate multiply, names are joined, and
    of other options the last rule's counts.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for rule in all_rules(rules):
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
    divided = sorted(groups.values(), key=is_scaled)
    if divided and is_scaled(divided[0]):
        divided.insert(0, {"params": [], "name": "lr"})
    return divided


def freeze_by(rules: Any, named: Mapping[str, torch.Tensor], epoch: int) -> dict[str, torch.Tensor]:
    """Let the parameters that rules freeze train from their epochs on; returns those that do not
    train in this one. named: all that the optimizer trains.
    """
    trains = {name: parameter.requires_grad for name, parameter in named.items()}
    for parameter in named.values():  # a rule may look whether they train
        parameter.requires_grad_(True)
    ends: dict[str, int] = {}
    for rule in all_rules(rules):
        if hasattr(rule, "unfreeze_at_epoch"):
            for name in rule.matched(named):
                ends[name] = max(ends.get(name, 0), rule.unfreeze_at_epoch)
    trains |= {name: epoch >= end for name, end in ends.items()}
    for name, now in trains.items():
        named[name].requires_grad_(now)
    return {name: named[name] for name, end in ends.items() if epoch < end}


def is_scaled(group: Mapping[str, Any]) -> bool:
    """Whether the rate of a group may differ from the learning rate."""
    kind, ratio = group.get("mup", ("fixed", 1.0))
    return bool(group.get("lr_scale", 1.0) != 1.0 or (kind != "fixed" and ratio != 1.0))


def scale_rates(optimizer: torch.optim.Optimizer) -> None:
    """Multiply the rate of each group by its scale, after the optimizer was made. Where the scale
    is that of a width, learning rate x weight decay stays.
    """
    for group in optimizer.param_groups:
        scale = group.get("lr_scale", 1.0)
        if "mup" in group:
            kind, ratio = group["mup"]
            of_width = ratio ** width_power(kind, optimizer, group)
            scale = scale * of_width
            if group.get("weight_decay"):
                group["weight_decay"] = group["weight_decay"] / of_width
        group["lr"] = group["lr"] * scale


def width_power(kind: str, optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> float:
    """The power of the width with which muP scales the rate of a kind of parameter.

    An update of SGD is as large as the gradient. Adam and its like take updates of the same size
    in each element (Yang et al., "Tensor Programs V", table 3). An update of Muon is an orthogonal
    matrix, times the square root of its larger dimension or of its dimensions' ratio. Its powers
    keep what a layer's output changes (Yang et al., "A Spectral Condition for Feature Learning",
    2023).
    """
    known = {type_of.__name__ for type_of in type(optimizer).__mro__}
    if known & {"SGD", "ASGD", "SGDScheduleFree"}:
        return {"input": 1.0, "vector": 1.0, "output": -1.0}.get(kind, 0.0)
    if group.get("muon") or "Muon" in known:
        if group.get("adjust_lr_fn") == "match_rms_adamw":
            return {"hidden": -0.5, "output": -1.0}.get(kind, 0.0)
        return {"output": -0.5}.get(kind, 0.0)
    return {"hidden": -1.0, "output": -1.0}.get(kind, 0.0)
