"""Defines Build: a function that makes a model, which a bench takes instead of a model."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from workbench.task import rng
from workbench.task.errors import TaskError
from workbench.task.lightning import overrides
from workbench.task.optim.mup import MuP
from workbench.task.optim.mup_checks import check_factory, check_model, check_models
from workbench.values import is_plain, plain, shown


@dataclass(frozen=True)
class Build:
    """A function, or a class, whose call returns a model, or a dict of a bench's arguments.

    Each of its parameters can be chosen for a fit: `bench.fit(width=256)`.
    """

    function: Callable[..., Any]
    defaults: Mapping[str, Any]
    """Its parameters by name; `inspect.Parameter.empty` for one without a default."""

    @classmethod
    def of(cls, model: Any, reserved: Collection[str]) -> Build | None:
        """The function that `model=` is; None: it is a model.

        reserved: the names of the bench's own arguments and settings. TaskError: a parameter has
        such a name, since a call could mean either.
        """
        routine = inspect.isroutine(model) and not overrides.is_lightning_like(model)
        if isinstance(model, functools.partial) and isinstance(model.func, MuP):
            raise TaskError(
                f"model= is a partial of wb.mup({model.func.__name__}, …), which hides it from the"
                " bench: bind the values inside, wb.mup(partial(…), …)."
            )
        if isinstance(model, MuP):
            check_factory(model)
        if not (isinstance(model, type | functools.partial | MuP) or routine):
            return None
        try:
            parameters = inspect.signature(model).parameters.values()
        except (TypeError, ValueError):
            raise TaskError(
                f"model={shown(model)} is no model, and its parameters cannot be read: give a"
                " function in Python that returns the model, model=lambda width=64: …"
            ) from None
        name = name_of(model)
        named = [
            parameter
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        for parameter in named:
            if parameter.name in reserved:
                raise TaskError(
                    f"{name} has a parameter {parameter.name}, which is an argument of the bench"
                    f" too, so that {parameter.name}=… could mean either. Give it another name"
                    f" there, or give the model itself, {name}(…)."
                )
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
        if positional:
            raise TaskError(
                f"{name} takes {positional[0]} by position alone: parameters of a function that"
                " makes the model are given by name."
            )
        return cls(model, {parameter.name: parameter.default for parameter in named})

    @property
    def name(self) -> str:
        """Its name, for messages."""
        return name_of(self.function)

    def split(self, keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The keyword arguments that are its parameters, and the others."""
        values = {name: plain(value) for name, value in keywords.items() if name in self.defaults}
        return values, {name: keywords[name] for name in keywords if name not in values}

    def make(self, values: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Call it with these values; returns arguments of a bench, at least "model".

        The process's random generators are seeded before, so that equal values make equal weights,
        and restored afterwards. TaskError: a parameter without a default has no value, or what it
        returns is no model. An error of its own is raised with a note that names the call.
        """
        missing = [
            name
            for name, default in self.defaults.items()
            if default is inspect.Parameter.empty and name not in values
        ]
        call = self.call(values)
        if missing:
            arguments = ", ".join(f"{name}=…" for name in missing)
            kind = "class" if isinstance(self.function, type) else "function"
            raise TaskError(
                f"model={self.name} is a {kind}, which the bench calls to make the model, and it"
                f" needs {', '.join(missing)}. Give the model itself, {self.name}({arguments}), the"
                f" values to the bench, wb.Workbench({self.name}, {arguments}), or defaults in the"
                f" {kind}."
            )
        with rng.preserved():
            rng.seed(seed)
            try:
                if isinstance(self.function, MuP):
                    check_models(self.function, kept(values))
                    rng.seed(seed)
                result = self.function(**kept(values))  # it may change what it gets
                if isinstance(self.function, MuP):
                    model = result["model"] if isinstance(result, Mapping) else result
                    check_model(self.function, kept(values), model)
            except TaskError:
                raise
            except Exception as error:
                error.add_note(f"The bench called {call} to make the model.")
                raise
        if result is None or isinstance(result, type) or inspect.isroutine(result):
            raise TaskError(f"{call} returned {shown(result)}: return a model, or a dict with one.")
        if not isinstance(result, Mapping) or isinstance(result, nn.Module):
            return {"model": result}
        if "model" not in result:
            raise TaskError(
                f"{call} returned a dict without 'model': return the model, or"
                ' {"model": model, "optimizer": …} with other arguments of the bench.'
            )
        return dict(result)

    def call(self, values: Mapping[str, Any]) -> str:
        """The call as code, as messages show it."""
        return f"{self.name}({', '.join(f'{key}={shown(value)}' for key, value in values.items())})"


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, a class or a partial of one; "build" for a lambda."""
    inner = function.func if isinstance(function, functools.partial) else function
    name = str(getattr(inner, "__name__", type(inner).__name__))
    return name if name.isidentifier() else "build"


def kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with copies of those that somebody could change later; objects are not copied."""
    return {
        name: copy.deepcopy(value) if is_plain(value) else value for name, value in values.items()
    }


def equal(value: Any, other: Any) -> bool:
    """Whether two values of a parameter make the same model, as far as it can be said: objects are
    compared by identity.
    """
    if is_plain(value) and is_plain(other):
        return type(value) is type(other) and bool(value == other)
    return value is other
