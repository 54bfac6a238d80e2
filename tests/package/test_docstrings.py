"""Every public class and method begins with a plain sentence: its own, or that of the method it overrides. (ruff looks at functions.)"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import workbench
from workbench.task.lightning.strategy import Strategy
from workbench.task.lightning.trainer import Trainer

_DESCRIBED_BY_LIGHTNING = (Trainer, Strategy)
"""Their methods have Lightning's names and do what Lightning documents."""


def _classes() -> Iterator[type]:
    """The public classes of all modules, without protocols: their methods are described by what implements them."""
    for info in pkgutil.walk_packages(workbench.__path__, "workbench."):
        if info.name.rpartition(".")[2] != "__main__":
            module = importlib.import_module(info.name)
            own = (
                value
                for value in vars(module).values()
                if isinstance(value, type) and value.__module__ == info.name
            )
            yield from (
                cls
                for cls in own
                if cls.__name__[0] != "_" and not getattr(cls, "_is_protocol", False)
            )


def _methods(cls: type) -> Iterator[str]:
    """The names of the public methods and properties that a class defines itself."""
    for name, member in vars(cls).items():
        kinds = (property, cached_property, classmethod, staticmethod)
        if name[0] != "_" and (inspect.isfunction(member) or isinstance(member, kinds)):
            yield name


def _described(cls: type, name: str) -> bool:
    """Whether the class, or one that it inherits from, says what a method is for."""
    members: Iterator[Any] = (vars(base)[name] for base in cls.__mro__ if name in vars(base))
    return any(member.__doc__ for member in members)


def test_public_methods_have_a_docstring_or_override_one_that_has() -> None:
    assert [
        f"{cls.__module__}.{cls.__name__}.{name}"
        for cls in _classes() if not issubclass(cls, _DESCRIBED_BY_LIGHTNING) for name in _methods(cls) if not _described(cls, name)
    ] == []  # fmt: skip
