"""Cuts a run's script from the training program: folds the constants that say what the run used.

`program/` is ordinary Python. It reads constants in capitals (`program/constants.py`), each of which
says whether a run used something (`if CLIPS:`), or how (`"norm"`). Folding puts a run's values in
their place and leaves out what never runs then: branches, conditional expressions, arguments that
have their default, parameters that nobody reads, functions that nobody calls. Comments and the form
of lines stay.
"""

from __future__ import annotations

import ast
import collections
import functools
import inspect
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import libcst as cst
from libcst import matchers as m

_UNKNOWN = object()
_COMPARED: dict[type[cst.BaseCompOp], Callable[[Any, Any], bool]] = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.Is: operator.is_,
    cst.IsNot: operator.is_not,
    cst.GreaterThan: operator.gt,
    cst.LessThan: operator.lt,
    cst.In: lambda value, values: value in values,
    cst.NotIn: lambda value, values: value not in values,
}
_OPERATIONS = (
    cst.BinaryOperation, cst.BooleanOperation, cst.Comparison, cst.IfExp, cst.UnaryOperation,
)  # fmt: skip
_LITERALS = (
    cst.Name, cst.Integer, cst.Float, cst.SimpleString, cst.UnaryOperation, cst.Tuple, cst.List, cst.Dict,
)  # fmt: skip
_NO_CONTEXT = m.Call(func=m.Attribute(value=m.Name("contextlib"), attr=m.Name("nullcontext")), args=[])


def fold(source: str, constants: Mapping[str, object], known: Mapping[str, Any]) -> str:
    """`source` as it runs with these constants, without what does not run then.

    known: the libraries' names that it uses, whose functions tell the defaults of their arguments.
    What `main` and the statements at the top level do not need is left out.
    """
    module = cst.parse_module(source)
    folded = _Cached(_Folded(constants, {**known, **_functions(module.body)}))
    body, before = _needed(module.body, folded), []
    while body != before:
        before = body
        body = _needed(_inlined(_without_parameters([folded(node) for node in body])), folded)
    return joined(module.with_changes(body=body).code)


def literal(value: object) -> str:
    """The code of a constant, strings in double quotes."""
    if isinstance(value, float) and not abs(value) < float("inf"):
        return f'float("{value}")'
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(key)}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        items = ", ".join(map(literal, value)) + "," * (isinstance(value, tuple) and len(value) == 1)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    text = repr(value)
    plain = isinstance(value, str) and text.startswith("'") and '"' not in text
    return f'"{text[1:-1]}"' if plain else text


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


def _value(node: cst.BaseExpression) -> Any:
    """The value of a literal; _UNKNOWN for other expressions."""
    if not isinstance(node, _LITERALS):
        return _UNKNOWN
    try:
        return ast.literal_eval(_code(node))
    except (ValueError, SyntaxError):
        return _UNKNOWN


def _bool(value: object) -> cst.BaseExpression:
    return cst.Name(str(bool(value)))


_Statements = list[cst.BaseStatement]


class _Cached:
    """Applies a transformer until a statement stays as it is, to each statement once."""

    def __init__(self, transformer: cst.CSTTransformer) -> None:
        self._transformer = transformer
        self._results: dict[cst.BaseStatement, cst.BaseStatement] = {}

    def __call__(self, node: cst.BaseStatement) -> cst.BaseStatement:
        if node not in self._results:
            result, code = node, ""
            while (new := _code(result)) != code:
                code, result = new, cast(cst.BaseStatement, result.visit(self._transformer))
            self._results[node] = self._results[result] = result
        return self._results[node]


class _Folded(cst.CSTTransformer):
    """Puts constants in their place, and leaves out what does not run."""

    def __init__(self, constants: Mapping[str, object], known: Mapping[str, Any]) -> None:
        super().__init__()
        self._constants, self._known = constants, known
        self._elifs: set[cst.If] = set()

    # -- expressions

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if updated_node.value not in self._constants:
            return updated_node
        return cst.parse_expression(literal(self._constants[updated_node.value]))

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword, value=_bare(updated_node.value))

    def leave_UnaryOperation(
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        value = _value(updated_node.expression)
        if isinstance(updated_node.operator, cst.Not) and value is not _UNKNOWN:
            return _bool(not value)
        return updated_node

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        ends_at = isinstance(updated_node.operator, cst.Or)  # the truth of an operand that decides
        for operand, other in (
            (updated_node.left, updated_node.right),
            (updated_node.right, updated_node.left),
        ):
            value = _value(operand)
            if value is not _UNKNOWN:
                return _in_place_of(updated_node, operand if bool(value) == ends_at else other)
        return updated_node

    def leave_Comparison(
        self, original_node: cst.Comparison, updated_node: cst.Comparison
    ) -> cst.BaseExpression:
        (target, *further) = updated_node.comparisons
        compare = _COMPARED.get(type(target.operator))
        left, right = _value(updated_node.left), _value(target.comparator)
        if further or compare is None or left is _UNKNOWN or right is _UNKNOWN:
            return updated_node
        return _bool(compare(left, right))

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        value = _value(updated_node.test)
        if value is _UNKNOWN:
            return updated_node
        return _in_place_of(updated_node, updated_node.body if value else updated_node.orelse)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        defaults = _defaults(self._known, _code(updated_node.func))
        kept = []
        for argument in updated_node.args:
            keyword = argument.keyword and argument.keyword.value
            value = _value(argument.value)
            if not (keyword in defaults and value is not _UNKNOWN and value == defaults[keyword]):
                kept.append(argument)
        if len(kept) == len(updated_node.args):
            return updated_node
        return updated_node.with_changes(args=_ended(kept, updated_node.args))

    # -- statements

    def visit_If(self, node: cst.If) -> None:
        if isinstance(node.orelse, cst.If):
            self._elifs.add(node.orelse)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        updated_node = updated_node.with_changes(test=_bare(updated_node.test))
        value, orelse = _value(updated_node.test), updated_node.orelse
        if original_node in self._elifs:  # a part of another statement
            if value is _UNKNOWN:
                return updated_node
            if value:
                return cst.Else(body=updated_node.body)
            return cst.RemoveFromParent() if orelse is None else orelse
        if value is _UNKNOWN:
            if not updated_node.body.body and orelse is None:
                return cst.RemoveFromParent()
            return updated_node
        if value:
            return _statements(updated_node, updated_node.body)
        if isinstance(orelse, cst.If):
            return orelse.with_changes(leading_lines=updated_node.leading_lines)
        return cst.RemoveFromParent() if orelse is None else _statements(updated_node, orelse.body)

    def leave_With(self, original_node: cst.With, updated_node: cst.With) -> Any:
        items = [item for item in updated_node.items if not m.matches(item.item, _NO_CONTEXT)]
        if not items:
            return _statements(updated_node, updated_node.body)
        items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return updated_node.with_changes(items=items)

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        *first, last = updated_node.body or [None]
        target, value = _assignment(first[-1]) if first else ("", None)
        if value is None or not m.matches(last, _statement(m.Return(value=m.Name(target)))):
            return updated_node
        returned = cast(cst.SimpleStatementLine, first[-1]).with_changes(body=[cst.Return(value=value)])
        return updated_node.with_changes(body=[*first[:-1], returned])

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        return updated_node.with_changes(value=_bare(updated_node.value))

    def leave_Return(self, original_node: cst.Return, updated_node: cst.Return) -> cst.Return:
        value = updated_node.value
        if isinstance(value, cst.Tuple) and "\n" not in _code(value):
            return updated_node.with_changes(value=value.with_changes(lpar=[], rpar=[]))
        return updated_node if value is None else updated_node.with_changes(value=_bare(value))


def _statement(small: m.BaseSmallStatementMatchType) -> m.SimpleStatementLine:
    return m.SimpleStatementLine(body=[small])


def _assignment(node: Any) -> tuple[str, cst.BaseExpression | None]:
    """The name that a statement binds, and its value; ("", None) for other statements."""
    if not m.matches(node, _statement(m.Assign(targets=[m.AssignTarget(target=m.Name())]))):
        return "", None
    assign = cast(cst.Assign, node.body[0])
    return cast(cst.Name, assign.targets[0].target).value, assign.value


def _in_place_of(whole: cst.BaseExpression, part: cst.BaseExpression) -> cst.BaseExpression:
    """A part of an expression in the place of the whole, whose brackets it needs if it is an operation."""
    if whole.lpar and not part.lpar and isinstance(part, (*_OPERATIONS, cst.Tuple)):
        return part.with_changes(lpar=whole.lpar, rpar=whole.rpar)
    return part


def _bare(value: cst.BaseExpression) -> cst.BaseExpression:
    """An operation without the brackets that it does not need as a whole value in one line."""
    if isinstance(value, _OPERATIONS) and value.lpar and "\n" not in _code(value):
        return value.with_changes(lpar=[], rpar=[])
    return value


def _ended(kept: Sequence[Any], whole: Sequence[Any]) -> list[Any]:
    """Some of a call's arguments, or of a function's parameters, that end as all of them did."""
    return [*kept[:-1], kept[-1].with_changes(comma=whole[-1].comma)] if kept else []


def _statements(whole: Any, block: Any) -> Any:
    """The statements of a block, in the place of the statement that it belongs to."""
    if not block.body:
        return cst.RemoveFromParent()
    first, *rest = block.body
    lines = [*whole.leading_lines, *first.leading_lines]
    return cst.FlattenSentinel([first.with_changes(leading_lines=lines), *rest])


def _defaults(known: Mapping[str, Any], path: str) -> Mapping[str, object]:
    """The defaults of the arguments of a function, by name; {} where it is not known."""
    root, *names = path.split(".")
    function = known.get(root)
    if isinstance(function, Mapping):
        return function
    for name in names:
        function = getattr(function, name, None)
    try:
        parameters = inspect.signature(cast(Any, function)).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {each.name: each.default for each in parameters if each.default is not each.empty}


# ---- functions --------------------------------------------------------------------------------------------------


def _callables(body: Sequence[cst.CSTNode]) -> dict[str, cst.FunctionDef]:
    """The functions at the top level, and the `__init__` of each class, by the name that is called."""
    found = {}
    for node in body:
        if isinstance(node, cst.FunctionDef):
            found[node.name.value] = node
        elif isinstance(node, cst.ClassDef):
            for method in node.body.body:
                if isinstance(method, cst.FunctionDef) and method.name.value == "__init__":
                    found[node.name.value] = method
    return found


def _functions(body: Sequence[cst.CSTNode]) -> dict[str, Mapping[str, object]]:
    """The defaults of the program's own functions, by name."""
    defaults = {}
    for name, function in _callables(body).items():
        pairs = [(each.name.value, _value(each.default)) for each in function.params.params if each.default]
        defaults[name] = {parameter: value for parameter, value in pairs if value is not _UNKNOWN}
    return defaults


def _needed(body: Sequence[cst.BaseStatement], folded: _Cached) -> _Statements:
    """The statements, folded, without the functions, classes and constants that `main` does not need."""
    named: dict[str, _Statements] = {}
    left = ["main"]
    for node in body:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            named.setdefault(node.name.value, []).append(node)
        elif target := _assignment(node)[0]:
            named.setdefault(target, []).append(node)
        else:
            left += _read(folded(node))
    needed = set[str]()
    while left:
        name = left.pop()
        if name in named and name not in needed:
            needed.add(name)
            left += [other for node in named[name] for other in _read(folded(node))]
    dropped = {node for name, nodes in named.items() if name not in needed for node in nodes}
    return [folded(node) for node in body if node not in dropped]


class _Read(cst.CSTVisitor):
    """Collects the names that code reads or binds; no attributes, no keywords of arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.calls: list[cst.Call] = []

    def visit_Call(self, node: cst.Call) -> None:
        self.calls.append(node)

    def visit_Name(self, node: cst.Name) -> None:
        self.names.append(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False


@functools.lru_cache(maxsize=1000)
def _looked(node: cst.CSTNode) -> _Read:
    visitor = _Read()
    node.visit(visitor)
    return visitor


def _read(*nodes: cst.CSTNode) -> list[str]:
    """The names in these nodes, each as often as it stands there."""
    return [name for node in nodes for name in _looked(node).names]


def _calls(*nodes: cst.CSTNode) -> list[cst.Call]:
    """The calls of names in these nodes."""
    return [call for node in nodes for call in _looked(node).calls if isinstance(call.func, cst.Name)]


def _without_parameters(body: _Statements) -> _Statements:
    """The statements without parameters that no function reads, or that every call leaves at their default."""
    callables = _callables(body)
    by_name: dict[str, list[cst.Call]] = {}
    for call in _calls(*body):
        by_name.setdefault(cast(cst.Name, call.func).value, []).append(call)
    mentions = collections.Counter(_read(*body))
    left_out: dict[str, set[str]] = {}
    fixed: dict[str, dict[str, object]] = {}
    for name, function in callables.items():
        own_calls = by_name.get(name, [])
        if name in ("main", "Config") or mentions[name] != len(own_calls) + 1:
            continue  # it is also handed on, so all its parameters stay
        if any(argument.star for call in own_calls for argument in call.args):
            continue
        names = [each.name.value for each in function.params.params]
        first = 1 if names[:1] == ["self"] else 0
        passed = set[str]()
        for call in own_calls:
            for place, argument in enumerate(call.args, first):
                passed.add(argument.keyword.value if argument.keyword else names[place])
        read = _read(function.body)
        for each in function.params.params[first:]:
            parameter = each.name.value
            if parameter not in read:
                left_out.setdefault(name, set()).add(parameter)
            elif parameter not in passed and each.default is not None:
                value = _value(each.default)
                if value is not _UNKNOWN and not _assigned(function, parameter):
                    left_out.setdefault(name, set()).add(parameter)
                    fixed.setdefault(name, {})[parameter] = value
    transformer = _Parameters(left_out, fixed, callables)
    return [
        node if left_out.keys().isdisjoint(_read(node)) else cast(cst.BaseStatement, node.visit(transformer))
        for node in body
    ]


def _inlined(body: _Statements) -> _Statements:
    """The statements with the value of a function that only returns one in place of its only call, and
    without names that only stand for another one.
    """
    mentions = collections.Counter(_read(*body))
    for function in body:
        if not isinstance(function, cst.FunctionDef) or function.decorators:
            continue
        *head, last = function.body.body
        is_docstring = [m.matches(node, _statement(m.Expr(value=m.SimpleString()))) for node in head]
        if not all(is_docstring) or not m.matches(last, _statement(m.Return(value=~m.MatchIfTrue(lambda value: value is None)))):
            continue
        returned = cast(Any, last).body[0].value
        if mentions[function.name.value] != 2 and len(_code(returned)) > _SHORT:
            continue
        inliner = _Inlined(function.name.value, [each.name.value for each in function.params.params], returned)
        changed = [
            cast(cst.BaseStatement, node.visit(inliner)) if node is not function and function.name.value in _read(node) else node
            for node in body
        ]
        if inliner.done:
            return changed
    return [_without_aliases(node) for node in body]


@functools.lru_cache(maxsize=1000)
def _without_aliases(node: cst.BaseStatement) -> cst.BaseStatement:
    changed = cast(cst.BaseStatement, node.visit(_Aliases()))
    return node if _code(changed) == _code(node) else changed


class _Inlined(cst.CSTTransformer):
    """Puts a function's value in place of its call, where the arguments are names or literals."""

    def __init__(self, name: str, parameters: Sequence[str], value: cst.BaseExpression) -> None:
        super().__init__()
        self._name, self._parameters, self._value, self.done = name, parameters, value, False

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        if not m.matches(updated_node.func, m.Name(self._name)):
            return updated_node
        arguments = {}
        for place, argument in enumerate(updated_node.args):
            name = argument.keyword.value if argument.keyword else self._parameters[place]
            arguments[name] = argument.value
        simple = (cst.Name, cst.Attribute, cst.Integer, cst.SimpleString)
        read = _read(self._value)
        if len(arguments) != len(self._parameters) or not all(
            isinstance(value, simple) or read.count(name) == 1 for name, value in arguments.items()
        ):
            return updated_node
        self.done = True
        value = cast(cst.BaseExpression, self._value.visit(_Renamed(arguments)))
        return value.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar) if updated_node.lpar else value


class _Renamed(cst.CSTTransformer):
    """Puts expressions in place of names."""

    def __init__(self, values: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self._values = values

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._values.get(updated_node.value, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)


class _Aliases(cst.CSTTransformer):
    """Leaves out names that a function binds once: to another name that it never binds again, or for
    the next line alone.
    """

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        pairs = _AssignedLines()
        updated_node.visit(pairs)
        bound, read = _bound(updated_node), _read(updated_node)
        for line, following in pairs.found:
            name, value = _assignment(line)
            if m.matches(value, m.Name(name)):
                return cast(cst.FunctionDef, updated_node.deep_remove(line))
            if read.count(name) == bound.count(name):
                return _unread(updated_node, line)
            if bound.count(name) != 1:
                continue
            is_alias = isinstance(value, cst.Name) and bound.count(value.value) <= 1
            is_next = (
                read.count(name) == 2
                and isinstance(following, cst.For)
                and m.matches(following.iter, m.Name(name))
            )
            if is_alias or is_next:
                body = cast(Any, updated_node.body.deep_remove(line))
                return updated_node.with_changes(body=body.visit(_Renamed({name: cast(Any, value)})))
        return updated_node


def _unread(function: cst.FunctionDef, line: cst.BaseStatement) -> cst.FunctionDef:
    """The function without a name that it never reads; a call that gave it its value stays."""
    value = cast(cst.BaseExpression, _assignment(line)[1])
    if not isinstance(value, cst.Call):
        return cast(cst.FunctionDef, function.deep_remove(line))
    statement = cast(cst.SimpleStatementLine, line).with_changes(body=[cst.Expr(value=value)])
    return cast(cst.FunctionDef, function.deep_replace(line, statement))


class _AssignedLines(cst.CSTVisitor):
    """Collects the lines that give a value to a name, each with the statement after it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.BaseStatement, cst.BaseStatement | None]] = []

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        following = [*node.body[1:], None]
        self.found += [pair for pair in zip(node.body, following, strict=True) if _assignment(pair[0])[0]]


def _bound(function: cst.FunctionDef) -> list[str]:
    """The names that a function binds, its parameters too, each as often as it does."""
    tree = ast.parse(cst.Module([function.with_changes(leading_lines=[])]).code)
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    return stored + [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]


# ---- lines ------------------------------------------------------------------------------------------------------

WIDTH = 100
_SHORT = 30
"""The length of a value that replaces each call of the function that returns it."""
_BRACKET = re.compile(
    r"^(?P<indent> *)(?P<head>.*[(\[{])\n(?P<items>(?:(?P=indent)    +\S.*\n)+)(?P=indent)(?P<tail>[)\]}].*)$", re.MULTILINE
)


def joined(text: str) -> str:
    """The text with the brackets that fit into one line in one line."""
    before = ""
    while text != before:
        before, text = text, _BRACKET.sub(_one_line, text)
    return text


def _one_line(match: re.Match[str]) -> str:
    items = [item.strip() for item in match["items"].splitlines()]
    if any("#" in item for item in items):
        return match[0]
    tail = match["tail"].removesuffix("  # fmt: skip")
    line = f"{match['indent']}{match['head']}{' '.join(items).removesuffix(',')}{tail}"
    return line if len(line) <= WIDTH else match[0]


def _assigned(function: cst.FunctionDef, name: str) -> bool:
    """Whether a function binds one of its parameters anew."""
    targets = [
        *m.findall(function, m.AssignTarget(target=m.Name(name))),
        *m.findall(function, m.AugAssign(target=m.Name(name))),
    ]
    return bool(targets)


class _Parameters(cst.CSTTransformer):
    """Leaves out parameters, in functions and in their calls, and puts values in place of some."""

    def __init__(
        self,
        left_out: Mapping[str, set[str]],
        fixed: Mapping[str, Mapping[str, object]],
        callables: Mapping[str, cst.FunctionDef],
    ) -> None:
        super().__init__()
        self._left_out, self._fixed = left_out, fixed
        self._names = {id(function): name for name, function in callables.items()}
        self._parameters = {
            name: [each.name.value for each in function.params.params]
            for name, function in callables.items()
        }

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        name = self._names.get(id(original_node), "")
        left_out = self._left_out.get(name)
        if not left_out:
            return updated_node
        kept = [each for each in updated_node.params.params if each.name.value not in left_out]
        params = updated_node.params.with_changes(params=_ended(kept, updated_node.params.params))
        body = updated_node.body
        if name in self._fixed:
            body = cast(cst.BaseSuite, body.visit(_Folded(self._fixed[name], {})))
        return updated_node.with_changes(params=params, body=body)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        name = updated_node.func.value if isinstance(updated_node.func, cst.Name) else ""
        left_out = self._left_out.get(name)
        if not left_out:
            return updated_node
        names = self._parameters[name]
        first = 1 if names[:1] == ["self"] else 0
        kept = []
        for place, argument in enumerate(updated_node.args, first):
            parameter = argument.keyword.value if argument.keyword else names[place]
            if parameter not in left_out:
                kept.append(argument)
        return updated_node.with_changes(args=_ended(kept, updated_node.args))
