"""Walks through objects and all that they refer to: by attributes, slots, containers, closures
and the functions of their classes.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, Sampler

from workbench.task.modules import own_attributes
from workbench.task.rng import GENERATORS, is_generator
from workbench.task.state.contents import ARRAYS, BUFFERS, MEMORY

Parts = Iterator[tuple[str, Any]]
"""The objects within another, each with its path from it: ".name", "[3]", ":closed_over"."""
_ENDS = (*GENERATORS, *ARRAYS, *BUFFERS, *MEMORY)
"""Types whose objects have no others within them."""
_CLOSED = (
    str,
    bytes,
    int,
    float,
    complex,
    PurePath,
    types.ModuleType,
    types.CodeType,
    Optimizer,
    LRScheduler,
    threading.Thread,
)
"""Optimizers and schedules have states of their own (`state_dict`); a path only remembers its
text.
"""
_OF_THREADS = frozenset(
    {
        "threading",
        "_thread",
        "queue",
        "_queue",
        "asyncio",
        "multiprocessing",
        "concurrent",
        "logging",
        "weakref",
    }
)
"""Packages whose objects other threads use meanwhile."""
_NOT_OWN_CODE = frozenset(
    {
        "builtins",
        "torch",
        "numpy",
        "workbench",
        "io",
        "_io",
        "IPython",
        "ipykernel",
        "traitlets",
        "functools",
        "types",
        "re",
        "abc",
        *_OF_THREADS,
    }
)
"""Libraries whose classes are not the user's own: their methods are not read."""
_RESOURCES = frozenset(
    {
        "pandas",
        "polars",
        "pyarrow",
        "PIL",
        "h5py",
        "zarr",
        "sqlite3",
        "matplotlib",
        "plotly",
        "ipywidgets",
        "anywidget",
        "mlflow",
        "wandb",
        "tensorboard",
        "tokenizers",
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "accelerate",
    }
)
"""Libraries whose objects are tables, pictures, files, trackers or trainers: nothing in them is
entered.
"""
_LIBRARY_PLACES = ("site-packages", "dist-packages", "<frozen", sysconfig.get_paths()["stdlib"])
_DEPTH = 16
WIDE = 4096
"""A container with more items, other than numbers and texts, holds data: nothing in it is
entered.
"""
_MOST = 20_000
_NUMBERS_AND_TEXTS = {types.NoneType, bool, int, float, complex, str, bytes}
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Reached:
    """An object that can be reached."""

    path: str
    """How, from the roots; it is the same in another process."""
    value: Any
    ours: bool
    """Whether the roots, the workbench or one of torch's data sets refers to it: a container or
    array there holds data.
    """
    attribute: bool
    """Whether attributes lead to it, and not a variable that a function uses."""


def walk(
    roots: Mapping[str, Any],
    *,
    closed: Callable[[Any], bool] = lambda value: False,
    variables: bool = True,
) -> Iterator[Reached]:
    """Yield every object that can be reached, nearest first. Numbers and texts are left out.

    closed: whether an object is left out, in addition to those of `_CLOSED`. variables: False
    leaves out what functions use as variables.
    """
    seen: set[int] = set()
    waiting = deque(
        (Reached(path, root, ours=True, attribute=True), 0) for path, root in roots.items()
    )
    while waiting and len(seen) < _MOST:
        reached, level = waiting.popleft()
        path, value = reached.path, reached.value
        if isinstance(value, (types.MethodType, types.BuiltinFunctionType)):  # rng.normal
            path, value = f"{path}.__self__", value.__self__
        if value is None or id(value) in seen or _is_closed(value) or closed(value):
            continue
        seen.add(id(value))
        yield Reached(path, value, reached.ours, reached.attribute)
        if level >= _DEPTH or issubclass(type(value), _ENDS):
            continue
        ours = _is_ours(type(value)) or (reached.ours and _is_collection(value))
        for name, item in _readable(_within(value)):
            if type(item) not in _NUMBERS_AND_TEXTS:
                variable = isinstance(value, types.FunctionType) or ":" in name
                if variable and not variables:
                    continue
                attribute = not variable and (reached.attribute or not _is_collection(value))
                waiting.append((Reached(path + name, item, ours, attribute), level + 1))


def _readable(parts: Parts) -> Parts:
    """These objects, up to the first that cannot be read: an object of the user's may raise
    anything.
    """
    with contextlib.suppress(Exception):
        yield from parts


def _is_closed(value: Any) -> bool:
    if isinstance(value, type):
        return not is_users(value)
    if issubclass(type(value), MEMORY):  # of multiprocessing, whose other objects are closed
        return False
    if library(type(value)) in _OF_THREADS or issubclass(type(value), _CLOSED):
        return True
    try:
        return isinstance(value, _CLOSED)
    except Exception:  # noqa: BLE001  # a proxy without its object
        return True


def _is_ours(kind: type) -> bool:
    return library(kind) == "workbench" or kind.__module__.startswith("torch.utils.data.")


def _is_of_torch(kind: type) -> bool:
    """Whether it is torch's own, such as the hooks and states of sharded modules; its data sets
    and samplers refer to the user's.
    """
    return library(kind) == "torch" and not kind.__module__.startswith("torch.utils.data.")


def _is_collection(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple, set, deque))


def _within(value: Any) -> Parts:
    """The objects within an object."""
    if _is_collection(value):
        yield from _items(value)
    elif isinstance(value, functools.partial):
        yield from ((f".{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.FunctionType):
        yield from _used_by(value)
        yield from ((f".{name}", item) for name, item in list(vars(value).items()))
    elif isinstance(value, nn.Module):
        yield from _of_module(value)
    elif library(type(value)) not in _RESOURCES and not _is_of_torch(type(value)):
        for name, item in attributes_of(value).items():
            # its data are no part of it
            if not (
                isinstance(value, Sampler) and (isinstance(item, Dataset) or name == "data_source")
            ):
                yield f".{name}", item
        yield from _of_classes(value)


def _of_classes(value: Any) -> Parts:
    """The user's classes of an object, whose attributes all its kind share, and what their
    methods use.
    """
    yield from ((f".{kind.__name__}", kind) for kind in type(value).__mro__ if is_users(kind))
    for method, function in methods(value):
        if method != "__init__":
            yield from ((f".{method}{name}", item) for name, item in _used_by(function))


def _of_module(module: nn.Module) -> Parts:
    """The objects within a module: its own attributes, submodules, weights, buffers and hooks,
    and what its methods use.
    """
    for names in (own_attributes(module), module._modules, module._parameters, module._buffers):
        yield from ((f".{name}", item) for name, item in list(names.items()))
    for kind in _HOOKS:
        yield from (
            (f".{kind}[{number}]", hook)
            for number, hook in enumerate(list(vars(module).get(kind, {}).values()))
        )
    yield from _of_classes(module)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _used_by(function: types.FunctionType) -> Parts:
    """The variables of a function's closure, its defaults, and the globals that it names: all where
    the code is the user's own, else generators alone.
    """
    yield from ((f":{name}", cell.cell_contents) for name, cell in cells(function))
    yield from ((":default", default) for default in function.__defaults__ or ())
    is_users, names = is_own_code(function.__code__), _names(function.__code__)
    for name in names:
        variable = function.__globals__.get(name)
        if is_users and isinstance(variable, types.ModuleType) and _is_own_module(variable):
            for inner in names & vars(variable).keys():  # helpers.scale(x)
                yield f":{name}.{inner}", vars(variable)[inner]
        elif is_users or is_generator(variable):
            yield f":{name}", variable


def _is_own_module(module: types.ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and not any(folder in file for folder in _LIBRARY_PLACES)


def own_modules() -> list[types.ModuleType]:
    """The modules of the user's own files that are imported."""
    modules = []
    for name in sys.modules.keys() - _LIBRARY_MODULES:  # thousands are known after the first call
        module = sys.modules.get(name)
        file = getattr(module, "__dict__", {}).get("__file__")
        if (
            isinstance(module, types.ModuleType)
            and isinstance(file, str)
            and _is_own_file(name, file)
        ):
            modules.append(module)
        else:
            _LIBRARY_MODULES.add(name)
    return modules


_LIBRARY_MODULES: set[str] = set()
"""The names of imported modules that are not the user's own."""


def _is_own_file(module: str, file: str) -> bool:
    """Whether a module of this name and file is the user's own."""
    if module.partition(".")[0] in _NOT_OWN_CODE | _RESOURCES | {"__main__", "__mp_main__"}:
        return False
    return not any(folder in file for folder in _LIBRARY_PLACES)


def _items(container: Any) -> Parts:
    if len(container) <= WIDE:
        items = (
            list(container.items()) if isinstance(container, dict) else enumerate(list(container))
        )
        yield from (
            (f"[{key_name(key, number)}]", item) for number, (key, item) in enumerate(items)
        )


def key_name(key: Any, number: int) -> str:
    """The name of a key in a path, which must be the same in another process, since checkpoints
    use it: the key's repr, or else its position.
    """
    try:
        text = repr(key) if _is_named(key) else ""
    except Exception:  # noqa: BLE001  # the user's object may raise anything
        text = ""
    return text if 0 < len(text) <= _LONGEST and " at 0x" not in text else f"#{number}"


_BY_PLACE: Any = object.__hash__


def _is_named(key: Any) -> bool:
    """Whether a key is hashed by its value, so that its text is short and the same in another
    process.
    """
    if type(key) is tuple:
        return len(key) < _LONGEST and all(map(_is_named, key))
    if isinstance(key, (Tensor, frozenset)):  # whose items have no order
        return False
    return key is None or isinstance(key, torch.dtype) or type(key).__hash__ is not _BY_PLACE


@functools.cache
def _names(code: types.CodeType) -> frozenset[str]:
    """The names that code and the functions within it use."""
    inner = [
        _names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)
    ]
    return frozenset(code.co_names).union(*inner)


def is_own_code(code: types.CodeType) -> bool:
    """Whether code is the user's own, and no library's."""
    return not any(folder in code.co_filename for folder in _LIBRARY_PLACES)


def is_own_class(kind: type) -> bool:
    """Whether a class is the user's own, or of a library that is used as one's own code is."""
    return library(kind) not in _NOT_OWN_CODE and library(kind) not in _RESOURCES


def is_users(kind: type) -> bool:
    """Whether a class is defined in the user's own code, and may have attributes that change."""
    module = sys.modules.get(kind.__module__)
    if library(kind) in _NOT_OWN_CODE or module is None or issubclass(kind, enum.Enum):
        return False
    return kind.__module__ == "__main__" or _is_own_module(module)


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots included; of a class, those that are no
    functions.
    """
    if isinstance(value, type):
        names = [name for name in vars(value) if not name.startswith(("__", "_abc_"))]
        return {
            name: vars(value)[name]
            for name in names
            if not (callable(vars(value)[name]) or hasattr(vars(value)[name], "__get__"))
        }
    attributes = dict(getattr(value, "__dict__", {}))
    for name, slot in slots_of_class(type(value)).items():
        with contextlib.suppress(AttributeError):  # an empty one
            attributes[name] = slot.__get__(value)
    return attributes


def slots_of_class(kind: type) -> dict[str, types.MemberDescriptorType]:
    """The slots of a class that Python code defines, by name."""
    if kind not in _SLOTS:
        slotted = [base for base in reversed(kind.__mro__) if "__slots__" in vars(base)]
        members = {name: member for base in slotted for name, member in vars(base).items()}
        _SLOTS[kind] = {
            name: member
            for name, member in members.items()
            if isinstance(member, types.MemberDescriptorType)
        }
    return _SLOTS[kind]


_SLOTS: WeakKeyDictionary[type, dict[str, types.MemberDescriptorType]] = WeakKeyDictionary()


def functions_of(value: Any) -> list[types.FunctionType]:
    """The value if it is a function, or its methods if it is an object of the user's own class."""
    return (
        [value]
        if isinstance(value, types.FunctionType)
        else [function for _, function in methods(value)]
    )


def methods(value: Any) -> Iterator[tuple[str, types.FunctionType]]:
    """The functions of an object's classes, except for those of libraries."""
    for kind in type(value).__mro__:
        if is_own_class(kind):
            yield from (
                (name, function)
                for name, function in list(vars(kind).items())
                if isinstance(function, types.FunctionType)
            )


def cells(function: types.FunctionType) -> Iterator[tuple[str, types.CellType]]:
    """The variables of a function's closure, by name, except for those without a value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell
            cell.cell_contents  # noqa: B018
            yield name, cell


def library(kind: type) -> str:
    """The top package of a class."""
    return kind.__module__.partition(".")[0]
