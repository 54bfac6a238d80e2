"""Checks the rules that a user gives as `groups=`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.task.errors import TaskError
from workbench.task.optim.group_rules import Freeze, Group, LayerDecay, freeze, group, layer_decay
from workbench.task.optim.groups import all_rules, named_rules
from workbench.task.optim.mup import MuPRates
from workbench.task.signature import fits
from workbench.values import shown

OF_RULES = ("name", "lr_scale", "mup")
"""The options of a rule that are none of the optimizer."""

_SCALED = {
    *("SGD", "ASGD", "SGDScheduleFree", "Muon", "MuonWithAdamW", "Adam", "AdamW", "Adamax"),
    *("NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "Rprop", "SparseAdam", "Lion", "SOAP"),
    *("AdamWScheduleFree", "RAdamScheduleFree", "Prodigy"),
}
"""The optimizers whose rates `wb.mup` can scale, by the names of their classes."""


def checked_rules(groups: Any) -> tuple[Any, ...]:
    """The rules in `groups=`; raises TaskError for what is none."""
    if groups is None:
        return ()
    rules = tuple(all_rules(groups))
    for number, rule in enumerate(rules):
        text = f"groups={shown(groups)}"
        if isinstance(rule, str) and rule not in named_rules():
            near = difflib.get_close_matches(rule, named_rules(), n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TaskError(
                f"{text}: {rule!r} is no rule's name; there is"
                f" {', '.join(map(repr, named_rules()))}.{hint}"
                f" For a part of the model: wb.group({rule!r}, lr_scale=0.1)."
            )
        if isinstance(rule, Group):
            _check_group(number, rule)
        elif isinstance(rule, LayerDecay):
            _check_decay(number, rule)
        elif isinstance(rule, Freeze):
            _check_freeze(number, rule)
        elif not callable(rule) and not isinstance(rule, str):
            raise TaskError(
                f"groups[{number}]={shown(rule)}: give rules, which hold for every model that the"
                " bench makes: wb.group('head', lr_scale=10), wb.layer_decay(0.75),"
                " 'no_decay_norm_bias'."
            )
    return rules


def rule_text(rule: Any) -> str:
    """A rule as a person writes it, for records: "group('head', lr_scale=10)"."""
    if isinstance(rule, str):
        return rule
    if isinstance(rule, MuPRates):
        return f"mup at {rule.ratio:g} times the base width"
    if isinstance(rule, LayerDecay):
        layers = "" if rule.layers is None else f", layers={shown(list(rule.layers))}"
        return f"layer_decay({rule.factor}{layers})"
    if isinstance(rule, Freeze):
        return f"freeze({_match_text(rule)}, unfreeze_at_epoch={rule.unfreeze_at_epoch})"
    if not isinstance(rule, Group):
        return str(getattr(rule, "__name__", type(rule).__name__))
    text = _match_text(rule)
    options = [f"{key}={shown(value)}" for key, value in rule.options.items() if key != "name"]
    return f"group({', '.join([text, *options])})"


def divides(rules: Sequence[Any]) -> bool:
    """Whether any rule divides the parameters into groups; those that freeze do not."""
    return not all(isinstance(rule, Freeze) for rule in rules)


def freezes(rules: Sequence[Any]) -> bool:
    """Whether any rule freezes parameters."""
    return any(isinstance(rule, Freeze) for rule in rules)


def _match_text(rule: Group | Freeze) -> str:
    match = rule.match
    return shown(match) if isinstance(match, str) else getattr(match, "__name__", "a function")


def _check_match(text: str, rule: Group | Freeze) -> None:
    is_function = callable(rule.match) and not isinstance(rule.match, nn.Module)
    if not (isinstance(rule.match, str) and rule.match) and not is_function:
        raise TaskError(
            f"{text}: give a part of the model by its name ('head'), a pattern ('*.bias'), or a"
            " function of a parameter's name and the parameter."
        )


def _check_freeze(number: int, rule: Freeze) -> None:
    epoch = rule.unfreeze_at_epoch
    text = f"groups[{number}]: wb.freeze({shown(rule.match)}, unfreeze_at_epoch={shown(epoch)})"
    _check_match(text, rule)
    if type(epoch) is not int or epoch < 1:
        raise TaskError(
            f"{text}: give the first epoch in which they train, at least 1 (epochs count from 0)."
            " For parameters that never train: requires_grad_(False)."
        )


def _check_group(number: int, rule: Group) -> None:
    text = f"groups[{number}]: wb.group({shown(rule.match)}, …)"
    _check_match(text, rule)
    options = {key: value for key, value in rule.options.items() if key != "name"}
    if not options:
        raise TaskError(f"{text} has no option: give lr_scale=… or weight_decay=….")
    _check_values(text, rule.options)


def _check_values(text: str, options: Mapping[str, Any]) -> None:
    if not isinstance(options.get("name", ""), str):
        raise TaskError(f"{text}: name={shown(options['name'])} is no text.")
    if "lr" in options:
        raise TaskError(
            f"{text}: lr={shown(options['lr'])}: the rates of groups keep their ratio to the"
            " setting lr, which searches, schedules and changes move: give lr_scale=…."
        )
    for key in ("lr_scale", "weight_decay"):
        if key in options and not _is_number(options[key]):
            raise TaskError(
                f"{text}: {key}={shown(options[key])}: give a finite number of at least 0."
            )


def _check_decay(number: int, rule: LayerDecay) -> None:
    text = f"groups[{number}]: wb.layer_decay({shown(rule.factor)})"
    if not _is_number(rule.factor) or not 0 < rule.factor <= 1:
        raise TaskError(f"{text}: give a factor above 0 and up to 1, such as 0.75.")
    layers = rule.layers
    if layers is None:
        return
    if isinstance(layers, str) or not layers or not all(isinstance(name, str) for name in layers):
        raise TaskError(
            f"{text}: layers={shown(layers)}: give the parts of the model from the first layer to"
            " the last, ['embed', 'blocks.0', 'head']."
        )


def options_by_rule(
    rules: Sequence[Any], named: Mapping[str, Tensor]
) -> list[tuple[str, Mapping[str, Mapping[str, Any]]]]:
    """What each rule says, with a text for the rule; raises TaskError where one matches nothing or
    all, or two contradict each other.
    """
    said = []
    frozen: set[str] = set()
    trained = {name for name, parameter in named.items() if parameter.requires_grad}
    for number, rule in enumerate(rules):
        text = f"groups[{number}]"
        if isinstance(rule, Group):
            text += f": wb.group({shown(rule.match)}, …)"
        if isinstance(rule, Freeze):
            text += f": wb.freeze({shown(rule.match)}, …)"
            matching = Group(rule.match, {})
            _check_matches(text, matching, _said(text, matching, named), named)
            frozen.update(rule.matched(named))
            continue
        options = _said(text, rule, named)
        if isinstance(rule, LayerDecay):
            for prefix in rule.layers or ():
                layer = Group(prefix, {})
                _check_matches(f"{text}: layers={prefix!r}", layer, layer(named), named)
        elif not isinstance(rule, str):
            _check_matches(text, rule, options, named)
        said.append((text, options))
    if trained and frozen.issuperset(trained):
        raise TaskError(
            f"groups=: wb.freeze(…) freezes all {len(trained)} parameters in the first epoch, and"
            " nothing would train: let some of them not match."
        )
    _refuse_contradictions(said)
    return said


def _said(text: str, rule: Any, named: Mapping[str, Tensor]) -> Mapping[str, Mapping[str, Any]]:
    """The options of each parameter by its name, as a rule gives them, checked."""
    if rule in (group, layer_decay, freeze):
        raise TaskError(f"{text}={shown(rule)} is not called: give wb.{rule.__name__}(…).")
    if not isinstance(rule, str | Group | LayerDecay) and not fits(rule, {}):
        raise TaskError(
            f"{text}={shown(rule)} takes a parameter's name and the parameter: say what it is for,"
            " wb.group(f, weight_decay=0)."
        )
    options: Any = None
    try:
        options = (named_rules()[rule] if isinstance(rule, str) else rule)(named)
    except Exception as error:
        called = (
            "a parameter's name and the parameter" if isinstance(rule, Group) else "all by name"
        )
        raise TaskError(
            f"{text} failed with {type(error).__name__}: {error}. Its function is called with"
            f" {called}."
        ) from error
    is_dict = isinstance(options, Mapping) and not options.keys() - named.keys()
    if not is_dict or not all(isinstance(values, Mapping) for values in options.values()):
        raise TaskError(
            f"{text} returned {shown(options)}: a rule returns a dict of options by the names of"
            " parameters, {'head.bias': {'weight_decay': 0}}."
        )
    for name, values in options.items():
        _check_values(f"{text}: {name}", values)
    return dict(options)


def _check_matches(
    text: str,
    rule: Any,
    matched: Mapping[str, Mapping[str, Any]],
    named: Mapping[str, Tensor],
) -> None:
    if not matched:
        parts = list(dict.fromkeys(name.partition(".")[0] for name in named))
        near = ""
        if isinstance(rule, Group) and isinstance(rule.match, str):
            known = {name.rpartition(".")[0] for name in named} | set(parts) | named.keys()
            close = difflib.get_close_matches(rule.match, known, n=1, cutoff=0.5)
            near = f" Did you mean {close[0]!r}?" if close else ""
        raise TaskError(
            f"{text} matches no parameter of the model, which has"
            f" {', '.join(map(repr, parts[:8]))}{', …' if len(parts) > 8 else ''}.{near}"
        )
    if not any(named[name].requires_grad for name in matched):
        raise TaskError(
            f"{text} matches only frozen parameters ({', '.join([*matched][:3])}), which no"
            " optimizer has: leave it out, or let them train (requires_grad_(True))."
        )
    if isinstance(rule, Group) and rule.options and len(matched) == len(named):
        settings = {"lr_scale": "the setting lr", "weight_decay": "the setting weight_decay"}
        others = (settings[key] for key in rule.options if key in settings)
        raise TaskError(
            f"{text} matches all {len(named)} parameters: {next(others, 'the optimizer')} is for"
            " all of them."
        )


def _refuse_contradictions(said: Sequence[tuple[str, Mapping[str, Mapping[str, Any]]]]) -> None:
    first: dict[tuple[str, str], tuple[str, Any]] = {}
    for text, options in said:
        for name, values in options.items():
            for key, value in values.items():
                if key in OF_RULES:
                    continue
                other, before = first.setdefault((name, key), (text, value))
                if before != value:
                    raise TaskError(
                        f"{text} gives {name} {key}={shown(value)}, and {other} gives it"
                        f" {shown(before)}: let one of them not match it."
                    )


def check_options(
    optimizer: Optimizer,
    said: Sequence[tuple[str, Mapping[str, Mapping[str, Any]]]],
    named: Mapping[str, Tensor],
) -> None:
    """Raise TaskError where a group has an option that its optimizer does not know. said: by
    `options_by_rule`.
    """
    kind = type(optimizer).__name__
    by_width = any("mup" in values for _, options in said for values in options.values())
    if by_width and not _SCALED & {base.__name__ for base in type(optimizer).__mro__}:
        raise TaskError(
            f"wb.mup does not know how large the updates of {kind} are, and so not how its rates"
            f" scale with the width: take one of {', '.join(sorted(_SCALED))}."
        )
    known = {*optimizer.defaults, *inspect.signature(type(optimizer)).parameters, *OF_RULES}
    parameters = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for text, options in said:
        for name, values in options.items():
            unknown = values.keys() - known if id(named[name]) in parameters else ()
            for key in sorted(unknown):
                listed = sorted(set(optimizer.defaults) - {"lr", "params"})
                near = difflib.get_close_matches(key, listed, n=1, cutoff=0.6)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise TaskError(
                    f"{text}: {key}={shown(values[key])}: {kind}, which trains {name}, has no such"
                    f" option.{hint} It has {', '.join(listed)}."
                )


def are_handed_on(groups: Sequence[Mapping[str, Any]], optimizer: Optimizer) -> bool:
    """Whether an optimizer has these parameter groups, with their options."""
    by_parameters = {frozenset(map(id, group["params"])): group for group in optimizer.param_groups}
    return all(
        group.keys() <= by_parameters.get(frozenset(map(id, group["params"])), {}).keys()
        for group in groups
    )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")
