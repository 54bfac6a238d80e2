"""Reads the source of the training program as one text, with its imports apart."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
from pathlib import Path
from typing import Any

from workbench.export.source.origins import Import

_MUON, _GROUPS = "workbench.task.optim.muon", "workbench.task.optim.groups"
_JOINED = "workbench.task.optim.joined"
_BLOCKS = "workbench.task.blocks"
"""The modules of the engine that a script has a copy of."""
ON_TORCH = (
    "settings",
    "main",
    "checks",
    "data",
    "model",
    _BLOCKS,
    "update",
    "optimizers",
    _MUON,
    _GROUPS,
    _JOINED,
    "averaging",
    "validation",
    "logs",
    "checkpoint",
    "compare",
    "__main__",
)
"""The modules of a script on torch and accelerate, in the order in which it has their code."""
ON_LIGHTNING = (
    "settings",
    "on_lightning",
    "data",
    "model",
    _BLOCKS,
    "optimizers",
    _MUON,
    _GROUPS,
    _JOINED,
    "__main__",
)
"""Those of a script on Lightning."""
_PACKAGE = "workbench.export.program"


@functools.cache
def program_source(modules: tuple[str, ...]) -> str:
    """The code of all modules, without their docstrings and imports."""
    parts = []
    for name in modules:
        text = _text(name)
        lines: list[str | None] = list(text.split("\n"))
        for node in ast.parse(text).body:
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if is_docstring or isinstance(node, (ast.Import, ast.ImportFrom)):
                for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    lines[number - 1] = None
        parts.append("\n".join(line for line in lines if line is not None).strip("\n"))
    return "\n\n\n".join(parts) + "\n"


@functools.cache
def program_imports(modules: tuple[str, ...]) -> tuple[Import, ...]:
    """The imports of all modules from other packages."""
    imports: dict[str, Import] = {}
    for name in modules:
        for node in ast.parse(_text(name)).body:
            if isinstance(node, ast.Import):
                pairs = [Import(alias.name, None, alias.asname) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(
                ("workbench", "__future__")
            ):
                pairs = [
                    Import(node.module or "", alias.name, alias.asname) for alias in node.names
                ]
            else:
                continue
            imports |= {item.binds: item for item in pairs}
    return tuple(imports.values())


@functools.cache
def known_names(modules: tuple[str, ...]) -> dict[str, Any]:
    """What the modules have imported, by name."""
    names: dict[str, Any] = {}
    for name in modules:
        with contextlib.suppress(
            ImportError
        ):  # Lightning need not be there to write a script on it
            names |= vars(importlib.import_module(_full_name(name)))
    return {
        item.binds: names[item.binds] for item in program_imports(modules) if item.binds in names
    }


def _full_name(name: str) -> str:
    return name if "." in name else f"{_PACKAGE}.{name}"


def _text(name: str) -> str:
    path = Path(*_full_name(name).split(".")[1:]).with_suffix(".py")
    return (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
