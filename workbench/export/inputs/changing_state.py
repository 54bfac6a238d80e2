"""Finds what the user's code changes from update to update and no `state_dict` has, so that a resumed script would differ."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_BEGINS = {
    "__init__", "__new__", "__post_init__", "__setstate__", "__getstate__", "set_epoch", "setup", "prepare_data", "configure_model",
    "configure_optimizers", "on_fit_start", "on_train_start", "reset_parameters", "train_dataloader", "val_dataloader", "load_state_dict",
}  # fmt: skip
"""Methods that a resumed script calls again."""
_GROWS = {"append", "appendleft", "extend", "add", "insert", "pop", "popleft", "remove", "discard", "setdefault"}
_GENERATORS = {"default_rng", "RandomState", "Generator", "Random", "cycle"}
_KEPT = {"weight", "bias", "data", "grad", "requires_grad", "training"}
"""Attributes of modules and parameters, which checkpoints have or which do not matter."""


def changing_state(code: str) -> Iterator[str]:
    """One clause for each: what changes, and where. Attributes that are set before they are read, or emptied at an epoch's end, are none."""
    tree = ast.parse(code)
    made = {name for node in tree.body for name in _generators(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _of_class(node)
        elif isinstance(node, (ast.FunctionDef, ast.Lambda)):
            name = node.name if isinstance(node, ast.FunctionDef) else "a lambda"
            yield from _of_function(node, name, made)


def _generators(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds to a source of random numbers, or of items one by one."""
    if isinstance(node, ast.Assign) and _makes_generator(node.value):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _makes_generator(value: ast.expr) -> bool:
    """Whether `value` is such a call, also one seeded in the same breath: `torch.Generator().manual_seed(0)`."""
    while isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        if name in _GENERATORS or name == "iter":
            return True
        if not isinstance(value.func, ast.Attribute):
            return False
        value = value.func.value
    return False


def _of_function(node: ast.FunctionDef | ast.Lambda, name: str, generators: set[str]) -> Iterator[str]:
    """What a function changes outside of itself."""
    local = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    local |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    outer = {n for part in ast.walk(node) if isinstance(part, (ast.Global, ast.Nonlocal)) for n in part.names}
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in generators - local and isinstance(part.ctx, ast.Load):
            yield f"{name} draws from {part.id}, which moves on"
        elif isinstance(part, ast.Name) and part.id in outer and isinstance(part.ctx, ast.Store):
            yield f"{name} changes {part.id}"
        elif isinstance(part, ast.AugAssign) and isinstance(part.target, (ast.Subscript, ast.Attribute)):
            root = _root(part.target)
            if root is not None and root not in local:
                yield f"{name} changes {ast.unparse(part.target)}"


def _root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _of_class(node: ast.ClassDef) -> Iterator[str]:
    """The attributes that a class changes after it was made."""
    if any("Scheduler" in base or base.endswith("LR") for base in map(ast.unparse, node.bases)):
        return  # its state_dict has all attributes
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.args.args]
    emptied = {name for method in methods if "_epoch_" in method.name for name in _emptied(method)}
    registered = {
        part.args[0].value
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in ("register_buffer", "register_parameter")
        and part.args and isinstance(part.args[0], ast.Constant)
    }  # fmt: skip
    for method in methods:
        for part in ast.walk(method):
            if isinstance(part, ast.Assign) and _makes_generator(part.value) and _attribute(part.targets[0], method):
                yield f"{node.name} has a generator of its own ({ast.unparse(part.targets[0])})"
        if method.name in _BEGINS or method.name.startswith("configure_"):
            continue
        for name in _changed(method):
            if name not in emptied | registered | _KEPT:
                yield f"{node.name}.{method.name} changes self.{name}"


def _attribute(node: ast.expr, method: ast.FunctionDef) -> str | None:
    """The attribute of `self` that an expression is, or is a part of; None where a part is one that checkpoints have."""
    found = None
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        if isinstance(node, ast.Attribute):
            if node.attr in _KEPT:
                return None
            found = node.attr
        node = node.value
    return found if isinstance(node, ast.Name) and node.id == method.args.args[0].arg else None


def _emptied(method: ast.FunctionDef) -> Iterator[str]:
    """The attributes that a method empties or sets to a constant."""
    for part in ast.walk(method):
        if isinstance(part, ast.Assign) and not any(isinstance(inner, (ast.Attribute, ast.Name)) for inner in ast.walk(part.value)):
            yield from (name for target in part.targets if (name := _attribute(target, method)))
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in ("clear", "reset"):
            yield from filter(None, [_attribute(part.func.value, method)])


def _changed(method: ast.FunctionDef) -> Iterator[str]:
    """The attributes that a method changes, but for those that it sets whole, at once, before it reads them."""
    fresh: set[str] = set()
    for statement in method.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Attribute):
            name = _attribute(statement.targets[0], method)
            before = [part for earlier in method.body[: method.body.index(statement)] for part in ast.walk(earlier)]
            read = {part.attr for part in [*before, *ast.walk(statement.value)] if isinstance(part, ast.Attribute)}
            if name is not None and name not in read:
                fresh.add(name)
    for part in ast.walk(method):
        targets: list[ast.expr] = []
        if isinstance(part, ast.Assign):
            targets = [item for target in part.targets for item in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target])]
        elif isinstance(part, (ast.AugAssign, ast.AnnAssign)):
            targets = [part.target]
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in _GROWS:
            targets = [part.func.value]
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "next" and part.args:
            targets = [part.args[0]]
        for target in targets:
            name = _attribute(target, method)
            if name is not None and name not in fresh:
                yield name
