"""Reads and loads the whole state of an optimizer: without casts, and with the state of inner
optimizers (SAM).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

INNER = "inner optimizers of the workbench"
"""The key of the states of inner optimizers."""


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's `state_dict`, with those of inner optimizers (SAM's base optimizer), which
    many leave out.
    """
    inner = {
        name: state_of(nested)
        for name, nested in _inner(optimizer).items()
        if nested.state is not optimizer.state
    }
    return {**optimizer.state_dict(), INNER: inner} if inner else optimizer.state_dict()


def load_state(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load a state that `state_of` returned.

    torch's own `load_state_dict` casts all tensors to the dtype of their parameter and changes
    values that are neither numbers nor containers; here they stay unchanged. An optimizer with its
    own `load_state_dict` uses that. An optimizer and its inner ones that shared parameter groups
    share the new ones.
    """
    inner = _inner(optimizer)
    shares = [nested for nested in inner.values() if nested.param_groups is optimizer.param_groups]
    joined = _joined(optimizer)
    own_state: Any = (
        {name: value for name, value in state.items() if name != INNER} if INNER in state else state
    )
    optimizer.load_state_dict(own_state)
    if type(optimizer).load_state_dict is Optimizer.load_state_dict:
        _load_as_it_was(optimizer, own_state)
    for name, nested in inner.items():
        if name in state.get(INNER, {}):
            load_state(nested, state[INNER][name])
    for nested in shares:
        nested.param_groups = optimizer.param_groups
    for number, inner_optimizer, index, before in joined if not shares else ():
        group = inner_optimizer.param_groups[index]
        if group is before:  # only the outer one has loaded
            inner_optimizer.param_groups[index] = optimizer.param_groups[number]
        elif optimizer.param_groups[number] is not group:
            optimizer.param_groups[number] = group


def _joined(optimizer: Optimizer) -> list[tuple[int, Optimizer, int, dict[str, Any]]]:
    """The parameter groups that an optimizer shares with inner ones: its number, the inner
    optimizer, its place there, the group.
    """
    numbers = {id(group): number for number, group in enumerate(optimizer.param_groups)}
    joined: list[tuple[int, Optimizer, int, dict[str, Any]]] = []
    for inner in _held(optimizer).values():
        for index, group in enumerate(inner.param_groups):
            if id(group) in numbers:
                joined.append((numbers[id(group)], inner, index, group))
    return joined


def _inner(optimizer: Optimizer) -> dict[str, Optimizer]:
    """The inner optimizers whose state an optimizer leaves out; none if it has a `state_dict` of
    its own.
    """
    return _held(optimizer) if type(optimizer).state_dict is Optimizer.state_dict else {}


def _held(optimizer: Optimizer) -> dict[str, Optimizer]:
    """The inner optimizers that an optimizer has as attributes, or in lists and dicts."""
    optimizers: dict[str, Optimizer] = {}
    for name, value in vars(optimizer).items():
        if isinstance(value, Optimizer):
            optimizers[name] = value
        elif isinstance(value, (list, tuple, dict)) and name not in (
            "param_groups",
            "state",
            "defaults",
        ):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            optimizers |= {
                f"{name}.{key}": nested for key, nested in items if isinstance(nested, Optimizer)
            }
    return optimizers


def _load_as_it_was(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        loaded = optimizer.state.get(parameter, {})
        for name, value in state["state"].get(number, {}).items():
            if name in loaded:
                loaded[name] = _as_it_was(value, loaded[name])


def _as_it_was(value: Any, loaded: Any) -> Any:
    """The value with its own dtype, on the device of `loaded`."""
    if isinstance(value, Tensor):
        if not isinstance(loaded, Tensor) or loaded.dtype == value.dtype:
            return loaded
        return value.to(loaded.device)
    if isinstance(value, dict) and isinstance(loaded, dict):
        return {key: _as_it_was(entry, loaded.get(key)) for key, entry in value.items()}
    if (
        type(value) in (list, tuple)
        and isinstance(loaded, (list, tuple))
        and len(loaded) == len(value)
    ):
        return type(value)(_as_it_was(entry, its) for entry, its in zip(value, loaded, strict=True))
    return value
