"""Writes a program anew: with values in place of constants, without what never runs, and with
edits.
"""

from __future__ import annotations

import ast
import bisect
import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_UNKNOWN = object()
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Gt: operator.gt,
    ast.Lt: operator.lt,
    ast.In: lambda value, values: value in values,
    ast.NotIn: lambda value, values: value not in values,
}
_DECIDED = (ast.Name, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp)
"""The expressions that constants may decide."""
Edits = Mapping[ast.AST, str]
"""New code for nodes; "" leaves a statement, an argument or a parameter out."""


def literal(value: object) -> str:
    """The code of a constant, strings in double quotes."""
    if isinstance(value, float) and not abs(value) < float("inf"):
        return f'float("{value}")'
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
        )
    if isinstance(value, (list, tuple)):
        items = ", ".join(map(literal, value)) + "," * (
            isinstance(value, tuple) and len(value) == 1
        )
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    text = repr(value)
    plain = isinstance(value, str) and text.startswith("'") and '"' not in text
    return f'"{text[1:-1]}"' if plain else text


def stays(value: object) -> bool:
    """Whether a constant keeps its name in the code."""
    return isinstance(value, (dict, list)) and bool(value)


class Rewriter:
    """Writes a program anew, with values in place of constants and without what never runs."""

    def __init__(
        self,
        text: str,
        known: Mapping[str, Any],
        constants: Mapping[str, object] | None = None,
        settled: set[str] | None = None,
    ) -> None:
        """settled: the statements in which nothing is to change without an edit. Those that it
        meets are added. None: none is known.
        """
        assert text.isascii()  # an offset in bytes is one in characters
        self.text, self.tree, self.lines = text, ast.parse(text), text.splitlines(keepends=True)
        self.known, self.constants = known, constants or {}
        self.edits: Edits = {}
        self.edited: Sequence[int] = ()
        """The lines that have edits."""
        self.settled = set[str]() if settled is None else settled
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))
        self.functions = {
            name: {
                parameter.arg: self.value(default)
                for parameter, default in defaults_of(function)
                if default is not None
            }
            for name, function in callables(self.tree).items()
        }

    def rewritten(self, edits: Edits | None = None) -> str:
        """The new text."""
        self.edits = edits or {}
        signatures = [node for node in self.edits if isinstance(node, ast.arguments)]
        placed = [node for node in self.edits if not isinstance(node, ast.arguments)]
        placed += [parameter for node in signatures for parameter in node.args]
        self.edited = sorted({node.lineno for node in placed})  # type: ignore[attr-defined]
        text = self.block(self.tree.body, 0)
        if signatures:
            self.settled.clear()  # calls may pass what is a default now
        return text

    def is_edited(self, first: int, last: int) -> bool:
        """Whether any of these lines has an edit."""
        index = bisect.bisect_left(self.edited, first)
        return index < len(self.edited) and self.edited[index] <= last

    # -- expressions

    def value(self, node: ast.AST) -> Any:
        """The value of an expression that these constants decide; _UNKNOWN for other ones."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self.constants.get(node.id, _UNKNOWN)
            case ast.Tuple() | ast.List():
                values = [self.value(item) for item in node.elts]
                return _UNKNOWN if _UNKNOWN in values else tuple(values)
            case ast.UnaryOp(op=ast.Not()):
                value = self.value(node.operand)
                return _UNKNOWN if value is _UNKNOWN else not value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=number)):
                return -number  # type: ignore[operator]
            case ast.BinOp(op=ast.Add()):
                left, right = self.value(node.left), self.value(node.right)
                both_text = isinstance(left, str) and isinstance(right, str)
                return left + right if both_text else _UNKNOWN
            case ast.BoolOp():
                ends_at = isinstance(node.op, ast.Or)
                values = [self.value(operand) for operand in node.values]
                deciding = [
                    value for value in values if value is not _UNKNOWN and bool(value) == ends_at
                ]
                if _UNKNOWN in values:
                    return ends_at if deciding else _UNKNOWN
                return deciding[0] if deciding else values[-1]
            case ast.Compare(ops=[operation], comparators=[comparator]):
                left, right = self.value(node.left), self.value(comparator)
                compare = _COMPARED.get(type(operation))
                if compare is None or left is _UNKNOWN or right is _UNKNOWN:
                    return _UNKNOWN
                return compare(left, right)
            case ast.IfExp() if (test := self.value(node.test)) is not _UNKNOWN:
                return self.value(node.body if test else node.orelse)
        return _UNKNOWN

    def code(self, node: ast.AST) -> str:
        """The new code of an expression."""
        if node in self.edits:
            return self.edits[node]
        decided = isinstance(node, _DECIDED)
        value = self.value(node) if decided else _UNKNOWN
        if value is not _UNKNOWN and not (isinstance(node, ast.Name) and stays(value)):
            return literal(value)
        match node:
            case ast.IfExp() if (test := self.value(node.test)) is not _UNKNOWN:
                return self.code(node.body if test else node.orelse)
            case ast.Compare(ops=[ast.In()], comparators=[ast.Name() as names]):
                match self.value(names):
                    case (only,):
                        return f"{self.code(node.left)} == {literal(only)}"
            case ast.BoolOp():
                operands = [each for each in node.values if self.value(each) is _UNKNOWN]
                if isinstance(node.values[-1], ast.Constant):  # as in `name or None`
                    operands.append(node.values[-1])
                if len(operands) < len(node.values):
                    word = " or " if isinstance(node.op, ast.Or) else " and "
                    if len(operands) == 1:
                        return self.code(operands[0])
                    return word.join(map(self.operand, operands))
            case ast.Call():
                defaults = self.defaults_of(ast.unparse(node.func))
                usual = [each for each in node.keywords if self.is_default(each, defaults)]
                usual += [each for each in node.keywords if self.edits.get(each) == ""]
                if usual or any(self.edits.get(each) == "" for each in node.args):
                    arguments = [*node.args, *(each for each in node.keywords if each not in usual)]
                    left = [self.code(each) for each in arguments if self.edits.get(each) != ""]
                    return f"{self.code(node.func)}({', '.join(left)})"
            case ast.ListComp(
                elt=ast.Call(func=function, args=[], keywords=[ast.keyword(arg=None)]),
                generators=[ast.comprehension(iter=ast.Name(id=name))],
            ) if isinstance(self.constants.get(name), list):
                return self.calls(self.code(function), self.constants[name])
        return self.spliced(*self.span(node), node)

    def calls(self, function: str, arguments: Any) -> str:
        """The list of the calls `[function(**each) for each in arguments]`."""
        calls = []
        for each in arguments:
            pairs = [f"{name}={literal(value)}" for name, value in each.items()]
            calls.append(f"{function}({', '.join(pairs)})")
        return f"[{', '.join(calls)}]"

    def operand(self, node: ast.AST) -> str:
        """The new code of an operand of `and` or `or`, in brackets if it needs them."""
        code = self.code(node)
        needs_brackets = isinstance(ast.parse(code, mode="eval").body, (ast.BoolOp, ast.IfExp))
        return f"({code})" if needs_brackets else code

    def is_default(self, argument: ast.keyword, defaults: Mapping[str, object]) -> bool:
        """Whether an argument is what the function takes anyway."""
        value, name = self.value(argument.value), argument.arg or ""
        return value is not _UNKNOWN and name in defaults and bool(value == defaults[name])

    def defaults_of(self, path: str) -> Mapping[str, object]:
        """The defaults of a function's arguments; {} where it is not known."""
        if path in self.functions:
            return self.functions[path]
        root, *names = path.split(".")
        function = self.known.get(root)
        for name in names:
            function = getattr(function, name, None)
        return _library_defaults(function) if callable(function) else {}

    def span(self, node: Any) -> tuple[int, int]:
        """The offsets where a node begins and ends."""
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def spliced(self, start: int, end: int, *nodes: ast.AST) -> str:
        """This piece of the text with the new code of the expressions inside of these nodes."""
        pieces = []
        for child in sorted((child for node in nodes for child in _children(node)), key=self.span):
            first, last = self.span(child)
            if start <= first and last <= end:
                pieces += [self.text[start:first], self.code(child)]
                start = last
        return "".join([*pieces, self.text[start:end]])

    # -- statements

    def block(self, body: Sequence[ast.stmt], after: int) -> str:
        """The new lines of statements, with the comments before each. after: the line before
        them.
        """
        code = ""
        for node in body:
            first = min(
                [node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))]
            )
            statement = self.statement(node, first)
            if statement:
                before = "".join(self.lines[after : first - 1])
                # The block of an `if` that always runs may begin with an empty line of its own.
                code += before + (statement.removeprefix("\n") if before else statement)
            after = node.end_lineno or after
        return code

    def statement(self, node: Any, first: int) -> str:
        """The new lines of a statement; "" where it is left out."""
        if self.is_edited(first, node.end_lineno):
            return self.changed(node, first)
        lines = self.text[self.starts[first - 1] : self.starts[node.end_lineno]]
        if lines in self.settled:
            return lines
        code = self.changed(node, first)
        if code == lines:
            self.settled.add(lines)
        return code

    def changed(self, node: Any, first: int) -> str:
        """The new lines of a statement that may have something to change."""
        if node in self.edits:
            code = self.edits[node]
            return f"{' ' * node.col_offset}{code}\n" if code else ""
        if isinstance(node, ast.If):
            return self.branches(node)
        if not hasattr(node, "body"):
            return self.spliced(self.starts[first - 1], self.starts[node.end_lineno], node)
        body = self.block(node.body, self.header_end(node))
        if isinstance(node, ast.With):
            contexts = [
                item
                for item in node.items
                if self.code(item.context_expr) != "contextlib.nullcontext()"
            ]
            if not contexts:
                return _shifted(body)
            if len(contexts) < len(node.items):
                items = [self.context(item) for item in contexts]
                return f"{' ' * node.col_offset}with {', '.join(items)}:\n{body}"
        if not body and isinstance(node, (ast.For, ast.While)):
            return ""
        code = self.header(node, first) + (body or f"{' ' * node.col_offset}    pass\n")
        for handler in getattr(node, "handlers", ()):
            code += self.header(handler, handler.lineno) + self.block(
                handler.body, self.header_end(handler)
            )
        assert not getattr(node, "orelse", ())  # the program has neither after a loop or a try
        assert not getattr(node, "finalbody", ())
        return code

    def header(self, node: Any, first: int) -> str:
        """The lines of a compound statement before its body."""
        end = self.starts[self.header_end(node)]
        if isinstance(node, ast.FunctionDef) and node.args in self.edits:
            decorators = "".join(self.lines[first - 1 : node.lineno - 1])
            indent = " " * node.col_offset
            return f"{decorators}{indent}def {node.name}({self.edits[node.args]}):\n"
        return self.spliced(self.starts[first - 1], end, node)

    def header_end(self, node: Any) -> int:
        """The line with the colon before the body."""
        line: int = max([node.lineno, *(child.end_lineno for child in _children(node))])
        while not self.lines[line - 1].partition("#")[0].rstrip().endswith(":"):
            line += 1
        return line

    def context(self, item: ast.withitem) -> str:
        """The new code of a part of a `with`."""
        code = self.code(item.context_expr)
        return code if item.optional_vars is None else f"{code} as {self.code(item.optional_vars)}"

    def branches(self, node: ast.If) -> str:
        """An `if` with its `elif` and `else`, without the branches that never run."""
        code, indent, otherwise = "", " " * node.col_offset, ""
        branch: ast.If | None = node
        while branch is not None:
            test, body = self.value(branch.test), self.block(branch.body, self.header_end(branch))
            if test is _UNKNOWN:
                condition = self.header(branch, branch.lineno).lstrip().removeprefix("el")
                keyword = "el" if code else ""
                code += f"{indent}{keyword}{condition}{body or f'{indent}    pass{chr(10)}'}"
                if not body and branch is node and not node.orelse:
                    return ""
            elif test:
                otherwise = body
                break
            following = branch.orelse
            branch = None
            if following and self.lines[following[0].lineno - 1].lstrip().startswith("elif "):
                (branch,) = following  # type: ignore[assignment]
            elif following:
                line = following[0].lineno
                while self.lines[line - 1].strip() != "else:":
                    line -= 1
                otherwise = self.block(following, line)
        if not code:
            return _shifted(otherwise)
        return f"{code}{indent}else:\n{otherwise}" if otherwise else code


def _shifted(code: str) -> str:
    """Lines of a block as those of the block around it."""
    return "".join(line.removeprefix("    ") for line in code.splitlines(keepends=True))


def _children(node: ast.AST) -> Iterator[Any]:
    """The outermost expressions in a node, in arguments of functions too, but not in its
    statements.
    """
    if isinstance(node, ast.JoinedStr):
        return  # the positions of what is in it are not known before Python 3.12
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.expr, ast.keyword)):
            yield child
        elif not isinstance(child, (ast.stmt, ast.excepthandler)):
            yield from _children(child)


def names_read(node: ast.AST) -> list[str]:
    """The names that code reads or binds, each as often as it does."""
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


def names_in_strings(node: ast.AST) -> set[str]:
    """The names in f-strings, which cannot be replaced."""
    return {
        name
        for each in ast.walk(node)
        if isinstance(each, ast.JoinedStr)
        for name in names_read(each)
    }


def callables(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions at the top level, and the `__init__` of each class, by the name that is
    called.
    """
    functions = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    functions[node.name] = method
    return functions


def defaults_of(function: ast.FunctionDef) -> list[tuple[ast.arg, ast.expr | None]]:
    """The parameters of a function, each with its default."""
    parameters, defaults = function.args.args, function.args.defaults
    missing: list[ast.expr | None] = [None] * (len(parameters) - len(defaults))
    return list(zip(parameters, [*missing, *defaults], strict=True))


@functools.cache
def _library_defaults(function: Callable[..., Any]) -> Mapping[str, object]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {each.name: each.default for each in parameters if each.default is not each.empty}
