"""Finds where a module comes from: the standard library, a package, the workbench, or the user's
own files.

The user's own modules (and the workbench's) are written into the script; the others are imported by
it.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Literal

from workbench.export.errors import ExportError

Origin = Literal["stdlib", "installed", "workbench", "local"]
_LARGEST = 1_000_000
_NOT_OWN = sys.stdlib_module_names | {"workbench"}
_FILES = (".py", *EXTENSION_SUFFIXES)
_INSTALLED = {"site-packages", "dist-packages"}
_HOME = (str(Path(sys.base_prefix) / "lib"), str(Path(sys.prefix) / "lib"))


def origin(name: str) -> Origin:
    """Where module `name` comes from; a module that cannot be found counts as installed, so its
    import stays.
    """
    top = name.partition(".")[0]
    if top == "workbench":
        return "workbench"
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return "stdlib"
    module = sys.modules.get(name) or sys.modules.get(top)
    if module is not None:
        return "local" if any(is_own(path) for path in _paths(module)) else "installed"
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return "installed"
    if spec is None:
        return "installed"
    paths = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return "local" if any(is_own(path) for path in paths) else "installed"


def is_inlined(name: str) -> bool:
    """Whether the code of module `name` is written into the script."""
    return origin(name) in ("local", "workbench")


def resolve(name: str | None, level: int, package: str) -> str:
    """The absolute name of a module that `package` imports as `from ..name import`."""
    if not level:
        return name or ""
    try:
        return importlib.util.resolve_name("." * level + (name or ""), package or None)
    except ImportError:
        return name or ""


@dataclass(frozen=True)
class Import:
    """One imported name: `import module as alias`, or `from module import name as alias`."""

    module: str
    name: str | None = None
    alias: str | None = None

    @property
    def binds(self) -> str:
        """The name it binds ("*" for a star)."""
        return self.alias or self.name or self.module.partition(".")[0]

    @property
    def identity(self) -> str:
        """The full name of the object to which the name refers."""
        if self.name is not None:
            return f"{self.module}.{self.name}"
        return self.module if self.alias else self.module.partition(".")[0]

    @property
    def text(self) -> str:
        """The statement."""
        name = f" as {self.alias}" if self.alias else ""
        return (
            f"import {self.module}{name}"
            if self.name is None
            else f"from {self.module} import {self.name}{name}"
        )


def imported(node: ast.AST, package: str = "") -> Iterator[Import]:
    """The imports of a statement of `package`; none if it is no import."""
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, None, alias.asname) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = resolve(node.module, node.level, package)
        yield from (
            Import(module, alias.name, alias.asname if alias.asname != alias.name else None)
            for alias in node.names
        )


def star_names(module: str, label: str) -> frozenset[str]:
    """The names that `from module import *` binds in the code called `label`."""
    loaded = sys.modules.get(module)
    if loaded is None:
        raise ExportError(
            f"`from {module} import *` in {label} cannot be read: `{module}` is not loaded. Import"
            " the names you need one by one."
        )
    listed = getattr(loaded, "__all__", None)
    return frozenset(
        listed if listed is not None else (n for n in vars(loaded) if not n.startswith("_"))
    )


def identity_of(module: str, name: str) -> str:
    """The full name of the object to which `name` refers after `from module import name`, or a
    star in its place. A module that is re-exported is the same everywhere.
    """
    held = getattr(sys.modules.get(module), name, None)
    return held.__name__ if isinstance(held, ModuleType) else f"{module}.{name}"


def own_sources() -> dict[str, str]:
    """The text of each module that is loaded now and is the user's own, by name."""
    sources: dict[str, str] = {}
    for name in [name for name in list(sys.modules) if name not in _others]:
        path = getattr(sys.modules.get(name), "__dict__", {}).get("__file__")
        if name == "__main__" or not isinstance(path, str) or not path.endswith(_FILES):
            continue
        if name.partition(".")[0] in _NOT_OWN or not is_own(path):
            _others.add(name)
            continue
        text = read(path) if path.endswith(".py") else None
        if text is not None:
            sources[name] = text
    return sources


_others: set[str] = set()
"""Cached names of modules that are not the user's own, since thousands are loaded when a bench
is made.
"""


def read(path: str) -> str | None:
    """The text of a Python file, or None where it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return _read(path, status.st_mtime_ns, status.st_size)


# each bench reads all of the user's own modules, which rarely change
@functools.lru_cache(maxsize=4096)
def _read(path: str, changed: int, size: int) -> str | None:
    if size > _LARGEST:
        return None
    try:
        return importlib.util.decode_source(Path(path).read_bytes())
    except (OSError, UnicodeError, SyntaxError):
        return None


def file_of(module: ModuleType) -> str:
    """The file a module was read from, or an empty text."""
    return next(iter(_paths(module)), "")


def _paths(module: object) -> list[str]:
    # `__dict__` and not getattr, on which some packages import their submodules.
    attributes = getattr(module, "__dict__", {})
    file = attributes.get("__file__")
    if isinstance(file, str):
        return [file]
    try:
        return [str(path) for path in attributes.get("__path__") or ()]
    except Exception:  # noqa: BLE001  # a lazy __path__ may raise anything
        return []


@functools.lru_cache(maxsize=4096)
def is_own(path: str) -> bool:
    """Whether a file is the user's, and does not belong to an installed package."""
    parts = set(Path(path).parts)
    if parts & _INSTALLED or path in ("built-in", "frozen"):
        return False
    return not path.startswith(_HOME)
