"""What a program can do without: the edits that leave out functions, parameters and names."""

from __future__ import annotations

import ast
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence

from workbench.export.folding.rewriter import (
    Edits,
    Rewriter,
    callables,
    defaults_of,
    names_in_strings,
    names_read,
)

_ATOMS = (ast.Name, ast.Constant, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Dict)
_SHORT = 30
"""The length of a value that replaces each call of the function that returns it."""


def unneeded(tree: ast.Module, code: Callable[[ast.AST], str]) -> Edits:
    """Leaves out functions, classes and constants that `main` does not need."""
    named: dict[str, list[ast.stmt]] = {}
    names = ["main"]
    for node in tree.body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                named.setdefault(node.name, []).append(node)
            case ast.Assign(targets=[ast.Name(id=name)]):
                named.setdefault(name, []).append(node)
            case _:
                names += names_read(node)
    needed = set[str]()
    while names:
        name = names.pop()
        if name in named and name not in needed:
            needed.add(name)
            names += [other for node in named[name] for other in names_read(node)]
    return {node: "" for name in named.keys() - needed for node in named[name]}


def parameters(tree: ast.Module, code: Callable[[ast.AST], str]) -> Edits:
    """Leaves out parameters that no function reads, that every call leaves at their default, or to
    which every call passes the same of None, True and False.
    """
    edits: dict[ast.AST, str] = {}
    mentions = collections.Counter(names_read(tree))
    by_name: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            by_name.setdefault(node.func.id, []).append(node)
    for name, function in callables(tree).items():
        calls = by_name.get(name, [])
        has_stars = any(
            isinstance(each, ast.Starred) or (isinstance(each, ast.keyword) and each.arg is None)
            for call in calls
            for each in [*call.args, *call.keywords]
        )
        if name == "main" or mentions[name] != len(calls) or has_stars:
            continue  # where it is also handed on, all its parameters stay
        pairs = [pair for pair in defaults_of(function) if pair[0].arg != "self"]
        passed = [_passed(call, [parameter.arg for parameter, _ in pairs]) for call in calls]
        read = [
            each
            for statement in function.body
            for each in ast.walk(statement)
            if isinstance(each, ast.Name)
        ]
        left_out = set[str]()
        for parameter, default in pairs:
            uses = [each for each in read if each.id == parameter.arg]
            value = _value_in_all(parameter.arg, default, passed)
            is_fixed = (
                value is not None
                and all(isinstance(each.ctx, ast.Load) for each in uses)
                and parameter.arg not in names_in_strings(function)
            )
            if is_fixed or not uses:
                left_out.add(parameter.arg)
                edits |= {each: code(value) for each in uses if value is not None}
        if left_out:
            edits |= {
                arguments[each]: "" for arguments in passed for each in left_out & arguments.keys()
            }
            first = ["self"] if len(pairs) < len(function.args.args) else []
            kept = [
                parameter.arg if default is None else f"{parameter.arg}={code(default)}"
                for parameter, default in pairs
                if parameter.arg not in left_out
            ]
            edits[function.args] = ", ".join([*first, *kept])
    return edits


def _value_in_all(
    parameter: str, default: ast.expr | None, passed: Sequence[Mapping[str, ast.AST]]
) -> ast.expr | None:
    """The constant that a parameter has in all calls, if it has one."""
    if not any(parameter in arguments for arguments in passed):
        return default if isinstance(default, ast.Constant) else None
    values = []
    for arguments in passed:
        argument = arguments.get(parameter, default)
        values.append(argument.value if isinstance(argument, ast.keyword) else argument)
    first = values[0]
    if not (isinstance(first, ast.Constant) and first.value in (None, True, False)):
        return None
    is_same = all(isinstance(each, ast.Constant) and each.value is first.value for each in values)
    return first if is_same else None


def _passed(call: ast.Call, parameters: Sequence[str]) -> dict[str, ast.AST]:
    """The arguments of a call, by the parameter that gets each; those by keyword as their
    keyword.
    """
    return dict(zip(parameters, call.args, strict=False)) | {
        each.arg: each for each in call.keywords if each.arg is not None
    }


def inlined(tree: ast.Module, code: Callable[[ast.AST], str]) -> Edits:
    """Puts what a function returns in place of its call, where it does no more and that is short
    or called once.
    """
    calls = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
    ]
    mentions = collections.Counter(names_read(tree))
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            continue
        *head, last = function.body
        is_docstring = all(
            isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in head
        )
        if not (is_docstring and isinstance(last, ast.Return) and last.value is not None):
            continue
        if mentions[function.name] != 1 and len(code(last.value)) > _SHORT:
            continue
        parameters = [parameter.arg for parameter in function.args.args]
        for call in calls:
            if call.func.id != function.name:  # type: ignore[attr-defined]
                continue
            arguments = {
                name: each.value if isinstance(each, ast.keyword) else each
                for name, each in _passed(call, parameters).items()
            }
            in_strings = names_in_strings(function) & arguments.keys()
            if any(ast.unparse(arguments[name]) != name for name in in_strings):
                continue
            simple = (ast.Name, ast.Attribute, ast.Constant)
            read = names_read(last.value)
            if len(arguments) == len(parameters) and all(
                isinstance(each, simple) or read.count(name) == 1
                for name, each in arguments.items()
            ):
                return {
                    call: _substituted(
                        last.value, {name: code(each) for name, each in arguments.items()}, code
                    )
                }
    return {}


def _substituted(value: ast.expr, codes: Mapping[str, str], code: Callable[[ast.AST], str]) -> str:
    """The code of an expression with code in place of some names, in brackets if it needs them."""
    text = code(value)
    rewriter = Rewriter(f"{text}\n" if "\n" not in text else f"({text})\n", {})
    edits: dict[ast.AST, str] = {
        each: codes[each.id]
        for each in ast.walk(rewriter.tree)
        if isinstance(each, ast.Name) and each.id in codes
    }
    new = rewriter.rewritten(edits).rstrip("\n")
    return new if isinstance(value, _ATOMS) else f"({new})"


def names(tree: ast.Module, code: Callable[[ast.AST], str]) -> Edits:
    """Leaves out names that a function never reads, that only stand for another one, or only for
    the next statement.
    """
    edits: dict[ast.AST, str] = {}
    for node in tree.body:
        for function in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(function, ast.FunctionDef):
                edits |= _names_in(function, code)
    return edits


def _names_in(function: ast.FunctionDef, code: Callable[[ast.AST], str]) -> Edits:
    """The edits for the first such name of a function."""
    nodes = list(ast.walk(function))
    mentions: dict[str, list[ast.Name]] = {}
    for each in nodes:
        if isinstance(each, ast.Name):
            mentions.setdefault(each.id, []).append(each)
    bound = collections.Counter(each.arg for each in nodes if isinstance(each, ast.arg))
    for name, uses in mentions.items():
        bound[name] += sum(not isinstance(use.ctx, ast.Load) for use in uses)
    loops: dict[str, ast.Name] = {}
    for node in nodes:
        match node:
            case ast.For(target=ast.Name(id=name) as target):
                loops[name] = target
            case ast.For(
                target=ast.Tuple(elts=[ast.Name(id=number), item]),
                iter=ast.Call(func=ast.Name(id="enumerate"), args=[items]),
            ) if bound[number] == len(mentions[number]):
                return {node.target: code(item), node.iter: code(items)}
    for node, following in _pairs(nodes):
        if isinstance(node, ast.Return) and following is not None:
            return {following: ""}
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        target, value = node.targets[0], node.value
        if target.id.endswith("_home"):
            continue  # it becomes an attribute of the user's object, which that object reads
        uses = [use for use in mentions[target.id] if use is not target]
        if isinstance(value, ast.Name) and value.id == target.id:
            return {node: ""}
        if (
            isinstance(value, ast.Name)
            and value.id in loops
            and bound[target.id] == bound[value.id] == 1
            and mentions[value.id] == [loops[value.id], value]
        ):
            return {node: "", loops[value.id]: target.id}  # the loop's name only stands for it
        if not any(isinstance(use.ctx, ast.Load) for use in uses):
            return {node: code(value) if isinstance(value, ast.Call) else ""}
        match following:
            case ast.Return(value=ast.Name(id=target.id) as returned):
                return {node: "", returned: code(value)}
        is_alias = isinstance(value, ast.Name) and bound[value.id] <= 1
        is_alias |= isinstance(value, ast.Constant) and value.value in (None, True, False)
        is_next = isinstance(following, ast.For) and uses == [following.iter]
        is_replaced = bound[target.id] == 1 and (is_alias or is_next)
        if is_replaced and target.id not in names_in_strings(function):
            return {node: "", **{use: code(value) for use in uses}}
    return {}


def _pairs(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    """Each statement of a function with the one that follows it in its block."""
    for node in nodes:
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield from zip(block, [*block[1:], None], strict=False)
