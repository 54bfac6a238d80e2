"""The places in an object that are state: its attributes, slots, and the variables that a function
sets; how each is read, set and removed.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from workbench.task.modules import own_attributes
from workbench.task.rng import is_generator, is_own
from workbench.task.state.walk import (
    attributes_of,
    cells,
    functions_of,
    is_own_class,
    is_own_code,
    is_users,
    slots_of_class,
)

_OURS = ("workbench.task.metrics", "workbench.task.data")
"""The workbench's own objects that hold the user's functions and objects."""
_MACHINERY = ("workbench.task.data.spec", "workbench.engine.")
"""Those that hold none: data are roots of their own."""
ANY = "*"
"""Stands for all names, where code sets attributes by names that are known only when it runs."""


def is_machinery(value: Any) -> bool:
    """Whether it is an object of the workbench's own that holds none of the user's."""
    home = type(value).__module__
    return home.startswith(_MACHINERY) or (
        home.startswith("workbench.")
        and not isinstance(value, nn.Module)
        and not home.startswith(_OURS)
    )


def has_state(value: Any) -> bool:
    """Whether the attributes of an object are state: it is of the user's own class, or a
    namespace.
    """
    kind = type(value)
    if isinstance(value, type):
        return is_users(value)
    if not (is_own_class(kind) or isinstance(value, types.SimpleNamespace)):
        return False
    return hasattr(value, "__dict__") or bool(slots_of_class(kind))


def changes(value: Any) -> bool:
    """Whether an object is changed while a job uses it, or its code may change it: modules,
    generators, iterators, objects whose methods set attributes, and functions that set variables.
    """
    if is_generator(value):
        return is_own(value)
    if isinstance(value, types.FunctionType):
        return bool(variables_of(value))
    if isinstance(value, nn.Module | Iterator):
        return True
    return has_state(value) and bool(counted_names(functions_of(value)))


def state_names(owner: Any) -> dict[str, Any]:
    """The attributes of an object that are state. Of a module, those that not every module has."""
    return own_attributes(owner) if isinstance(owner, nn.Module) else attributes_of(owner)


def set_name(owner: Any, name: str, value: Any) -> None:
    """Set an attribute, in the slot where the class has one."""
    slot = slots_of_class(type(owner)).get(name)
    if isinstance(owner, type):
        setattr(owner, name, value)
    elif slot is None:
        vars(owner)[name] = value
    else:
        slot.__set__(owner, value)


def delete_name(owner: Any, name: str) -> None:
    """Remove an attribute, or empty its slot."""
    slot = slots_of_class(type(owner)).get(name)
    if isinstance(owner, type):
        delattr(owner, name)
    elif slot is None:
        del vars(owner)[name]
    else:
        slot.__delete__(owner)


def variables_of(function: types.FunctionType) -> dict[str, Any]:
    """The present values of the variables that a function's code sets outside of itself."""
    named = set_names(function.__code__)
    values = {
        name: cell.cell_contents for name, cell in cells(function) if name in named["STORE_DEREF"]
    }
    if is_own_code(function.__code__):
        values |= {
            name: function.__globals__[name]
            for name in named["STORE_GLOBAL"]
            if name in function.__globals__
        }
    return values


def set_variable(function: types.FunctionType, name: str, value: Any) -> None:
    """Set such a variable."""
    cell = dict(cells(function)).get(name)
    if cell is None:
        function.__globals__[name] = value
    else:
        cell.cell_contents = value


@functools.cache
def set_names(code: types.CodeType) -> dict[str, frozenset[str]]:
    """The names that code and the functions within it assign: globals, variables of enclosing
    functions, and (not in __init__) attributes.
    """
    names: dict[str, set[str]] = {"STORE_GLOBAL": set(), "STORE_DEREF": set(), "STORE_ATTR": set()}
    for step in dis.get_instructions(code):
        if step.opname in names and (step.opname, code.co_name) != ("STORE_ATTR", "__init__"):
            names[step.opname].add(str(step.argval))
    if (
        is_own_code(code)
        and {"setattr", "__setattr__", "__dict__", "vars"} & {*code.co_names}
        and code.co_name != "__init__"
    ):
        names["STORE_ATTR"].add(ANY)
    inner = [
        set_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    ]
    return {
        kind: frozenset(assigned.union(*(other[kind] for other in inner)))
        for kind, assigned in names.items()
    }


def counted_names(functions: Iterable[types.FunctionType]) -> frozenset[str]:
    """The names of the attributes that this code sets, other than where objects are made."""
    return frozenset[str]().union(
        *(set_names(function.__code__)["STORE_ATTR"] for function in functions)
    )
