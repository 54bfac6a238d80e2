"""Finds the functions that run only while a script makes its model and data, so that a resumed script runs them again."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch.utils.data import Dataset, Sampler

_CALLED_BY_TORCH = {*dir(torch.nn.Module), *dir(torch.optim.Optimizer), *dir(Dataset), *dir(Sampler), "set_epoch", "update", "compute", "reset", "step"}
"""Names of methods that others than the user's code may call."""


@dataclass
class _Uses:
    """Where a name is read."""

    callers: list[ast.FunctionDef | None] = field(default_factory=list)
    """The functions that call it at once; None: a statement at the top level does."""
    kept: bool = False
    """Whether it is read in another way: it may then be called at any time."""


def run_while_building(tree: ast.Module, arguments: list[ast.Expression]) -> set[ast.AST]:
    """The functions that are called, by their names, in statements at the top level and in functions of which the same holds.

    arguments: the expressions given to the Workbench; a function that one of them names may be called at any time.
    """
    uses: defaultdict[str, _Uses] = defaultdict(_Uses)
    candidates: dict[ast.FunctionDef, str] = {}
    _read(tree, None, uses, candidates, lazy=False)
    for name in chain.from_iterable(_names(argument) for argument in arguments):
        uses[name].kept = True
    found = {node for node, name in candidates.items() if uses[name].callers and not uses[name].kept}
    while True:
        left = {node for node in found if all(caller is None or caller in found for caller in uses[candidates[node]].callers)}
        if left == found:
            return {*found}
        found = left


def _names(node: ast.AST) -> set[str]:
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    return found | {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def _read(node: ast.AST, inside: ast.FunctionDef | None, uses: dict[str, _Uses], candidates: dict[ast.FunctionDef, str], *, lazy: bool) -> None:
    """Note what `node` calls and reads. lazy: what it contains runs later, as in a lambda."""
    if isinstance(node, ast.Call) and not lazy and isinstance(node.func, (ast.Name, ast.Attribute)):
        uses[node.func.id if isinstance(node.func, ast.Name) else node.func.attr].callers.append(inside)
        inner = [*([node.func.value] if isinstance(node.func, ast.Attribute) else []), *node.args, *node.keywords]
    else:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            uses[node.id].kept = True
        elif isinstance(node, ast.Attribute):
            uses[node.attr].kept = True
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            uses[node.value].kept = True
        inner = [*ast.iter_child_nodes(node)]
    if isinstance(node, ast.ClassDef):
        for method in node.body:
            if isinstance(method, ast.FunctionDef):
                candidates[method] = _called_by_name(node, method)
    elif isinstance(node, ast.FunctionDef):
        within = [part for statement in node.body for part in ast.walk(statement)]
        if not node.decorator_list and not any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in within):
            candidates.setdefault(node, node.name)
        else:
            candidates.pop(node, None)
        inside = node
    lazy = lazy or isinstance(node, (ast.Lambda, ast.GeneratorExp, ast.AsyncFunctionDef))
    for part in inner:
        _read(part, inside, uses, candidates, lazy=lazy)


def _called_by_name(owner: ast.ClassDef, method: ast.FunctionDef) -> str:
    """The name by which the user's code alone calls a method; "" where others may call it."""
    if method.name in ("__init__", "__post_init__"):
        return owner.name
    others = owner.bases or owner.decorator_list or method.name in _CALLED_BY_TORCH or method.name.startswith(("__", "on_"))
    return "" if others else method.name
