"""Finds the attributes of Lightning's Trainer that the user's code reads."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from workbench.task.lightning.overrides import LIGHTNING

_OF_TRAINER = {
    "current_epoch",
    "global_step",
    "global_rank",
    "local_rank",
    "logger",
    "loggers",
    "print",
}
"""The properties of a LightningModule that read its trainer."""
_READS = {"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR"}
_STORES = {"STORE_FAST", "STORE_NAME", "STORE_DEREF"}
_LOADS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_NAME", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF"}


def attributes_read(owners: Iterable[Any], code: str) -> frozenset[str]:
    """The attributes of a trainer that these objects' methods and the script's code read."""
    codes = [
        compile(code, "the script", "exec", dont_inherit=True),
        *(c for owner in owners for c in methods(owner)),
    ]
    return frozenset(
        name for outer in codes for inner in _with_inner(outer) for name in _attributes_read(inner)
    )


def attributes(code: CodeType) -> Iterator[str]:
    """The names of all attributes that some code reads."""
    steps = (step for inner in _with_inner(code) for step in dis.get_instructions(inner))
    yield from (step.argval for step in steps if step.opname in ("LOAD_ATTR", "LOAD_METHOD"))


def assigned(code: CodeType) -> set[str]:
    """The names of all attributes that some code sets."""
    return {
        step.argval
        for inner in _with_inner(code)
        for step in dis.get_instructions(inner)
        if step.opname == "STORE_ATTR"
    }


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """Some code, and that of the functions inside it."""
    yield code
    yield from (
        inner
        for constant in code.co_consts
        if isinstance(constant, CodeType)
        for inner in _with_inner(constant)
    )


def words(code: CodeType) -> Iterator[str]:
    """The texts in some code, and the names of arguments in its calls."""
    for value in (value for inner in _with_inner(code) for value in inner.co_consts):
        yield from (
            word
            for word in (value if isinstance(value, tuple) else (value,))
            if isinstance(word, str)
        )


def methods(owner: Any) -> Iterator[CodeType]:
    """The code of an object's methods, except for those of Lightning's and torch's own classes."""
    for base in type(owner).__mro__:
        package, _, rest = base.__module__.partition(".")
        if package in (*LIGHTNING, "torch", "builtins") and ".demos." not in f".{rest}.":
            continue
        for value in vars(base).values():
            function = (
                inspect.unwrap(value.fget) if isinstance(value, property) and value.fget else value
            )
            function = getattr(function, "__func__", function)
            code = getattr(
                inspect.unwrap(function) if callable(function) else None, "__code__", None
            )
            if isinstance(code, CodeType):
                yield code


def _attributes_read(code: CodeType) -> Iterator[str]:
    steps = list(dis.get_instructions(code))
    pairs = list(zip(steps, [*steps[1:], steps[-1]], strict=True))
    trainers = {"trainer", "_trainer"}
    trainers |= {
        following.argval
        for step, following in pairs
        if _loads(step, trainers) and following.opname in _STORES
    }
    for step, following in pairs:
        if step.opname in _READS and step.argval in _OF_TRAINER:
            yield step.argval
        if not _loads(step, trainers) or following.opname in _STORES:
            continue
        if following.opname in _READS:
            yield following.argval
        elif not (following.opname == "LOAD_CONST" and following.argval is None):  # `is not None`
            yield "trainer"  # it is passed on


def _loads(step: dis.Instruction, names: set[str]) -> bool:
    return step.opname in _LOADS and step.argval in names
