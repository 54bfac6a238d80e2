"""Makes the optimizer that the setting `optimizer` names."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from workbench.settings import Settings, SettingsError
from workbench.settings.optimizers import BESIDE, NAMES, parts_of
from workbench.task.optim.muon import MuonWithAdamW
from workbench.task.optim.optimizer_factory import OptimizerFactory
from workbench.values import shown

_OF_PARAMETERS = ("params", "self")


def factory_of(
    choice: str | Mapping[str, Any],
    rules: Sequence[Any] = (),
    named: Callable[[], Mapping[str, Tensor]] = dict,
) -> OptimizerFactory:
    """What makes the optimizer with this name. SettingsError: its package is not installed, or it
    takes no such argument.

    rules: of `groups=`. named: returns the model's parameters by name.
    """
    name, arguments = parts_of(choice)
    module, kind = NAMES[name]
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        raise SettingsError("optimizer='muon' needs torch 2.9 or newer: pip install -U torch")
    try:
        make = getattr(importlib.import_module(module), kind, None)
    except ImportError:
        raise SettingsError(
            f"optimizer={shown(choice)} needs the package {module}, which is not installed: pip"
            f" install {module}"
        ) from None
    if make is None:
        raise SettingsError(f"optimizer={shown(choice)}: {module} has no {kind} here.")
    known = [
        parameter
        for parameter in inspect.signature(make).parameters
        if parameter not in (*_OF_PARAMETERS, *BESIDE)
    ]
    for argument in arguments:
        if argument not in known:
            near = difflib.get_close_matches(argument, known, n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise SettingsError(
                f"optimizer={shown(choice)}: {kind} has no argument {argument!r}.{hint} It takes"
                f" {', '.join(known)}; lr and weight_decay are settings."
            )
    bound = functools.partial(make, **arguments) if arguments else make
    return OptimizerFactory(bound, rules, named)


def grouped(
    choice: str | Mapping[str, Any] | None, network: nn.Module, parameters: list[nn.Parameter]
) -> list[Any]:
    """The parameters as this optimizer takes them: in groups for Muon."""
    if choice is not None and parts_of(choice)[0] == "muon":
        return MuonWithAdamW.groups(network, parameters)
    return parameters


def refuse_unfit(
    settings: Settings,
    network: nn.Module,
    parameters: list[nn.Parameter],
    factory: OptimizerFactory,
) -> None:
    """Raise SettingsError where the optimizer that the settings name cannot be made with them.
    factory: what makes it.
    """
    choice = settings.optimizer
    if choice is None:
        return
    groups = grouped(choice, network, parameters)
    if groups is not parameters and not any(group["muon"] for group in groups):
        raise SettingsError(
            f"optimizer={shown(choice)}: {type(network).__name__} has no hidden matrix that Muon"
            " could train, a weight with two dimensions besides embeddings and the last one: take"
            " 'adamw'."
        )
    if settings.weight_decay is not None and not factory.takes_weight_decay:
        raise SettingsError(
            f"weight_decay={settings.weight_decay}: {NAMES[parts_of(choice)[0]][1]} has none: set"
            " weight_decay=None, too."
        )
    if not parameters:
        return
    try:
        factory(groups, settings.lr, settings.weight_decay)
    except (TypeError, ValueError) as error:
        raise SettingsError(_why_not_made(settings, groups, error)) from None


def _why_not_made(settings: Settings, groups: list[Any], error: Exception) -> str:
    """Which argument keeps the optimizer from being made, and what to do."""
    choice = settings.optimizer
    assert choice is not None
    name, arguments = parts_of(choice)
    for argument, value in arguments.items():
        others = {key: arguments[key] for key in arguments if key != argument}
        try:
            factory_of({name: others})(groups, settings.lr, settings.weight_decay)
        except (TypeError, ValueError):
            continue
        usual = inspect.signature(getattr(importlib.import_module(NAMES[name][0]), NAMES[name][1]))
        return (
            f"optimizer={shown(choice)}: {NAMES[name][1]} does not take {argument}={shown(value)}"
            f" ({error}). Left out, it is {usual.parameters[argument].default!r}."
        )
    return f"optimizer={shown(choice)}: {error}"
