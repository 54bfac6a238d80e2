"""Finds state that the user's code changes from update to update and that no `state_dict` has: a
resumed script would lack it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Container, Iterator
from typing import Self

import torch
from torch.utils.data import Dataset, Sampler

from workbench.export.source.uses import defaults, targets

_BEGINS = {
    "__init__",
    "__new__",
    "__post_init__",
    "__setstate__",
    "__getstate__",
    "set_epoch",
    "setup",
    "prepare_data",
    "configure_model",
    "configure_optimizers",
    "on_fit_start",
    "on_train_start",
    "reset_parameters",
    "train_dataloader",
    "val_dataloader",
    "load_state_dict",
}
"""Methods that a resumed script calls again."""
_GROWS = {
    "append",
    "appendleft",
    "extend",
    "add",
    "insert",
    "pop",
    "popleft",
    "remove",
    "discard",
    "setdefault",
}
_ITERATORS = {"cycle", "iter", "count"}
_GENERATORS = {"default_rng", "RandomState", "Generator", "Random", "cycle", "iter"}
_KEPT = {"weight", "bias", "data", "grad", "requires_grad", "param_groups"}
"""Attributes of modules, parameters and optimizers that checkpoints have or that do not matter."""
_LATER = {"on_before_backward", "on_after_backward", "on_before_optimizer_step"}
"""Hooks after a step, in addition to those whose names end in `_batch_end` or `_epoch_end`."""


class Change(str):
    """A clause that says what changes, and where."""

    of_data: bool
    """Whether it is a sampler's, or the state or a generator of a data set: the sanity check
    leaves these as they were.
    """

    def __new__(cls, text: str, *, of_data: bool = False) -> Self:
        change = super().__new__(cls, text)
        change.of_data = of_data
        return change


@functools.lru_cache(64)
def changing_state(code: str, arguments: tuple[str, ...] = ()) -> tuple[Change, ...]:
    """A clause for each change. Left out are attributes that are set before they are read, or
    emptied at an epoch's end, and changes by code that makes the data, which a resumed script runs
    again.

    arguments: the expressions for the script's model, loss and data. The result is cached, since
    several parts of an export need it.
    """
    return tuple(
        _changing_state(
            ast.parse(code), [ast.parse(text.strip(), mode="eval") for text in arguments]
        )
    )


def _has_base(node: ast.ClassDef, kind: str) -> bool:
    return any(base.endswith(kind) for base in map(ast.unparse, node.bases))


def _tells_state(node: ast.ClassDef) -> bool:
    return {"state_dict", "load_state_dict"} <= {
        statement.name for statement in node.body if isinstance(statement, ast.FunctionDef)
    }


def _changing_state(tree: ast.Module, arguments: list[ast.Expression]) -> Iterator[Change]:
    nodes = list(ast.walk(tree))
    known = {name for node in nodes for name in _bound(node)}
    generators = {name for node in tree.body for name, _ in _generators(node, known)}
    once = {
        id(child)
        for node in nodes
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        for child in _decorating(node, nodes)
    }
    building = run_while_building(tree, arguments)
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield from _of_class(node, known, building)
        elif (
            isinstance(node, (ast.FunctionDef, ast.Lambda))
            and id(node) not in once
            and node not in building
        ):
            name = node.name if isinstance(node, ast.FunctionDef) else "a lambda"
            yield from _of_function(node, name, generators, known)


def _bound(node: ast.AST) -> Iterator[str]:
    """The name that a node binds, except for imports."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name:
        yield node.name


def _decorating(node: ast.FunctionDef | ast.ClassDef, nodes: list[ast.AST]) -> Iterator[ast.AST]:
    """The functions that decorate a definition: they run once, when it is made."""
    for decorator in node.decorator_list:
        called = isinstance(decorator, ast.Call)
        name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
        for child in nodes:
            if isinstance(child, ast.FunctionDef) and child.name == name:
                yield from [child, *(child.body if called else [])]


def _generators(node: ast.AST, known: set[str]) -> Iterator[tuple[str, bool]]:
    """The names that a statement binds to a random generator or an iterator, and whether it is
    an iterator.
    """
    yield from (
        (target.id, _is_iterator(value))
        for target, value in _bindings(node)
        if isinstance(target, ast.Name) and _makes_generator(value, known)
    )


def _is_iterator(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _ITERATORS


def _bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment, each with its value; those of `a, b = 1, 2` are paired."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return
    touched = _touched(node)
    values = node.value.elts if isinstance(node.value, ast.Tuple) else []
    yield from zip(
        touched, values if len(values) == len(touched) else [node.value] * len(touched), strict=True
    )


def _makes_generator(value: ast.expr, known: set[str]) -> bool:
    """Whether `value` makes a generator, also with a seed: `torch.Generator().manual_seed(0)`.

    known: all names that the code binds. They include the user's classes: a GAN has its own
    `Generator`.
    """
    match value:
        case ast.Call(func=ast.Attribute(attr="manual_seed", value=inner)):
            return _makes_generator(inner, known)
        case ast.Call(func=ast.Name(id=name)):
            return name in {*_GENERATORS, "count"} - known
        case ast.Call(func=ast.Attribute(attr=name) as func):
            return name in _GENERATORS or ast.unparse(func) == "itertools.count"
    return False


def _of_function(
    node: ast.FunctionDef | ast.Lambda, name: str, generators: set[str], known: set[str]
) -> Iterator[Change]:
    """The changes that a function makes outside of itself. known: all names that the code binds."""
    local = {bound for child in ast.walk(node) if child is not node for bound in _bound(child)}
    outer = {
        n
        for child in ast.walk(node)
        if isinstance(child, (ast.Global, ast.Nonlocal))
        for n in child.names
    }
    for default in defaults(node.args).values():
        if _makes_generator(default, known):
            yield Change(f"{name} has a generator of its own ({ast.unparse(default)})")
    for child in ast.walk(node):
        if (
            isinstance(child, ast.Name)
            and child.id in generators - local
            and isinstance(child.ctx, ast.Load)
        ):
            yield Change(f"{name} draws from {child.id}, which moves on")
        elif isinstance(child, ast.Name) and child.id in outer and isinstance(child.ctx, ast.Store):
            yield Change(f"{name} changes {child.id}")
        for target in _touched(child):
            kept = any(
                isinstance(inner, ast.Attribute) and inner.attr in _KEPT
                for inner in ast.walk(target)
            )
            if not kept and _root(target) in known - (local - outer):
                yield Change(f"{name} changes {ast.unparse(target)}")


def _touched(part: ast.AST) -> list[ast.expr]:
    """The expressions that a node sets, lengthens or shortens, or takes the next item of."""
    match part:
        case ast.Assign() | ast.AugAssign() | ast.AnnAssign():
            return [
                item
                for target in targets(part)
                for item in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target])
            ]
        case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in _GROWS:
            return [value]
        case ast.Call(func=ast.Name(id="next"), args=[first, *_]):
            return [first]
    return []


def _root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _of_class(
    node: ast.ClassDef, known: set[str], building: Container[ast.AST] = ()
) -> Iterator[Change]:
    """The attributes that the methods of a class change after the instance was made."""
    if any("Scheduler" in base or base.endswith("LR") for base in map(ast.unparse, node.bases)):
        return  # its state_dict has all attributes
    functions = [
        child for child in node.body if isinstance(child, ast.FunctionDef) and child.args.args
    ]
    sampler, data, tells = (
        _has_base(node, "Sampler"),
        _has_base(node, "Dataset"),
        _tells_state(node),
    )
    # The first argument of a static method is no instance: the `ctx` of a `torch.autograd.Function`
    # is made for each call.
    methods = [
        child for child in functions if "staticmethod" not in map(ast.unparse, child.decorator_list)
    ]
    first: list[ast.ClassDef | ast.FunctionDef] = [
        node,
        *(method for method in methods if method.name in _BEGINS),
    ]
    begun = {name: value for child in first for name, value in _begun(child)}
    emptied = {
        name for method in methods if "_epoch_" in method.name for name in _emptied(method, begun)
    }
    if {"update", "compute", "reset"} <= {method.name for method in methods}:
        # A metric: each validation resets it first.
        emptied |= {name for method in methods if method.name == "reset" for name in _reset(method)}
    registered = {
        child.args[0].value
        for child in ast.walk(node)
        if isinstance(child, ast.Call)
        and isinstance(child.func, ast.Attribute)
        and child.func.attr in ("register_buffer", "register_parameter")
        and child.args
        and isinstance(child.args[0], ast.Constant)
    }
    if any(base.endswith("Optimizer") or "optim." in base for base in map(ast.unparse, node.bases)):
        registered.add("state")  # its state_dict has it
    for statement in node.body:
        for name, is_iterator in _generators(statement, known):
            yield Change(
                f"{node.name} has a generator of its own ({name})",
                of_data=(sampler or data) and not is_iterator,
            )
    for method in methods:
        for child in ast.walk(method):
            for target, value in _bindings(child):
                if _makes_generator(value, known) and _attribute(target, method):
                    kept = (sampler or data) and not _is_iterator(value)
                    yield Change(
                        f"{node.name} has a generator of its own ({ast.unparse(target)})",
                        of_data=kept,
                    )
        if method.name in _BEGINS or method.name.startswith("configure_") or method in building:
            continue
        for name in _changed(method, methods):
            if name not in emptied | registered | _KEPT:
                yield Change(
                    f"{node.name}.{method.name} changes self.{name}",
                    of_data=sampler or (data and tells),
                )


def _attribute(node: ast.expr, method: ast.FunctionDef) -> str | None:
    """The attribute of `self` to which an expression belongs; None: none, or one that
    checkpoints have.
    """
    attribute = None
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        if isinstance(node, ast.Attribute):
            if node.attr in _KEPT:
                return None
            attribute = node.attr
        node = node.value
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "type" and node.args:
        node = node.args[0]
    return attribute if isinstance(node, ast.Name) and node.id == method.args.args[0].arg else None


def _begun(node: ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """The first values of attributes, as text, from the body of a class or from a method."""
    for child in node.body if isinstance(node, ast.ClassDef) else ast.walk(node):
        for target, value in _bindings(child):
            name = ""
            if isinstance(target, ast.Name):
                name = target.id
            elif isinstance(target, ast.Attribute):
                name = target.attr
            yield name, ast.unparse(value)


def _emptied(method: ast.FunctionDef, begun: dict[str, str]) -> Iterator[str]:
    """The attributes that a hook of an epoch empties or sets to a constant, unconditionally; a
    hook at its end, to their first value.
    """
    for statement in method.body:
        if isinstance(statement, ast.Assign) and not any(
            isinstance(inner, (ast.Attribute, ast.Name)) for inner in ast.walk(statement.value)
        ):
            for target in statement.targets:
                name = _attribute(target, method)
                if name and (
                    method.name.endswith("start") or begun.get(name) == ast.unparse(statement.value)
                ):
                    yield name
            continue
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="clear" | "reset", value=value))):
                yield from filter(None, [_attribute(value, method)])


def _reset(method: ast.FunctionDef) -> Iterator[str]:
    """The attributes that a metric's `reset` sets anew, whatever the metric has, or empties,
    unconditionally.
    """
    instance = method.args.args[0].arg
    for statement in method.body:
        for target, value in _bindings(statement):
            name = _attribute(target, method)
            used = {inner.id for inner in ast.walk(value) if isinstance(inner, ast.Name)}
            if name and instance not in used:
                yield name
        match statement:
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(attr="clear" | "reset" | "zero_") as call)
            ):
                yield from filter(None, [_attribute(call.value, method)])


def _changed(method: ast.FunctionDef, methods: list[ast.FunctionDef]) -> Iterator[str]:
    """The attributes that a method changes, without those that it assigns before any method
    reads them.
    """
    fresh: set[str] = set()
    for number, statement in enumerate(method.body):
        if (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Attribute)
        ):
            name = _attribute(statement.targets[0], method)
            before = [child for earlier in method.body[:number] for child in ast.walk(earlier)]
            parts = [*before, *ast.walk(statement.value)]
            read = {child.attr for child in parts if isinstance(child, ast.Attribute)} | {
                child.value for child in parts if isinstance(child, ast.Constant)
            }
            if (
                name is not None
                and name not in read
                and not any(_reads_before(other, name, method) for other in methods)
            ):
                fresh.add(name)
    for child in ast.walk(method):
        for target in _touched(child):
            name = _attribute(target, method)
            if name is not None and name not in fresh:
                yield name


def _reads_before(other: ast.FunctionDef, name: str, setter: ast.FunctionDef) -> bool:
    """Whether another method may read an attribute before `setter` has set it in this update."""
    later = other.name in _LATER or other.name.endswith(("_batch_end", "_epoch_end"))
    if other is setter or other.name in _BEGINS or other.name.startswith("configure_") or later:
        return False
    call = (
        f"{other.args.args[0].arg}({{}}"
        if setter.name == "forward"
        else f"{other.args.args[0].arg}.{setter.name}({{}}"
    )
    for statement in other.body:
        if any(
            isinstance(child, ast.Attribute)
            and child.attr == name
            and isinstance(child.ctx, ast.Load)
            for child in ast.walk(statement)
        ):
            return True
        if not isinstance(statement, (ast.If, ast.For, ast.While, ast.Try)) and call.format(
            ""
        ) in ast.unparse(statement):
            return False
    return False


_CALLED_BY_TORCH = {
    *dir(torch.nn.Module),
    *dir(torch.optim.Optimizer),
    *dir(Dataset),
    *dir(Sampler),
    "set_epoch",
    "update",
    "compute",
    "reset",
    "step",
}
"""Names of methods that code other than the user's may call."""


def run_while_building(tree: ast.Module, arguments: list[ast.Expression]) -> set[ast.AST]:
    """The functions that are called by name only while the top level runs: in top-level statements,
    and in other such functions.

    arguments: the expressions given to the Workbench; a function that one of them names may be
    called at any time.
    """
    named = {name for argument in arguments for name, _ in _mentions(argument, (), lazy=True)}
    candidates = {node: name for node, name in _candidates(tree) if name not in named}
    functions = set[ast.AST](candidates)
    while True:
        mentions = set(_mentions(tree, functions, lazy=False))
        left = {
            node
            for node in functions
            if (candidates[node], True) in mentions and (candidates[node], False) not in mentions
        }
        if left == functions:
            return functions
        functions = left


def _candidates(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The functions that run when they are called, each with the name by which only the user's
    code calls it.
    """
    names = {
        child: _called_by_name(node, child)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for child in node.body
        if isinstance(child, ast.FunctionDef)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            within = [child for statement in node.body for child in ast.walk(statement)]
            if not any(isinstance(child, (ast.Yield, ast.YieldFrom)) for child in within):
                yield node, names.get(node, node.name)


def _mentions(
    node: ast.AST, building: Container[ast.AST], *, lazy: bool
) -> Iterator[tuple[str, bool]]:
    """Each name that code reads, and whether it is called at once. building: functions that run at
    once.
    lazy: the code runs later, as in a lambda.
    """
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)):
        lazy = lazy or node not in building
    called = node.func if isinstance(node, ast.Call) and not lazy else None
    for child in ast.iter_child_nodes(node):
        if child is called and isinstance(child, ast.Name):
            yield child.id, True
        elif child is called and isinstance(child, ast.Attribute):
            yield child.attr, True
            yield from _mentions(child.value, building, lazy=lazy)
        else:
            yield from _mentions(child, building, lazy=lazy)
    match node:
        case (
            ast.Name(id=name, ctx=ast.Load())
            | ast.Attribute(attr=name)
            | ast.Constant(value=str() as name)
        ):
            yield name, False


def _called_by_name(owner: ast.ClassDef, method: ast.FunctionDef) -> str:
    """The name by which only the user's code calls a method; "": other code may call it."""
    if method.name in ("__init__", "__post_init__"):
        return owner.name
    others = (
        owner.bases
        or owner.decorator_list
        or method.name in _CALLED_BY_TORCH
        or method.name.startswith(("__", "on_"))
    )
    return "" if others else method.name
