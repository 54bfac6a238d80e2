"""Turns a piece of source into the statements that had run when the Workbench was made, in
order, without their blocks.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from workbench.export.errors import ExportError
from workbench.export.source.capture import Spot, root_of
from workbench.export.source.rewrite.secret_literals import hidden_source
from workbench.export.source.uses import (
    definite,
    imported_name,
    local_names,
    names_in_pattern,
    names_of_with,
    own_level,
    parameters,
    target_names,
)

_CLIP = 60


@dataclass(frozen=True)
class Source:
    """A text, its tree, and whether its annotations stay text."""

    label: str
    text: str
    postponed: bool = False
    spelled: tuple[tuple[str, str], ...] = ()
    """Names and attributes of this source, each with the script's name for it: (`bench.model`,
    `model`).
    """
    function: int = 0
    """The line of the function that has these names as variables; 0: the top level."""

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed text, with the names of the script; empty if it does not parse, since then
        none of it ran.
        """
        try:
            tree = ast.parse(self.text)
        except (SyntaxError, ValueError):
            return ast.Module([], [])
        if self.spelled:
            _Respell(self).visit(tree)
        return tree

    @cached_property
    def edits(self) -> list[tuple[ast.AST, str]]:
        """The names in `tree` that have another text in the script, each with that text."""
        return []

    @cached_property
    def lines(self) -> list[str]:
        """The lines, without their ends (split as the parser does)."""
        return self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    @cached_property
    def futures(self) -> frozenset[str]:
        """The features imported from __future__."""
        return frozenset(
            alias.name
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and node.module == "__future__"
            for alias in node.names
        )


class _Respell(ast.NodeTransformer):
    """Replaces names and attributes by the script's names, at the same places."""

    def __init__(self, source: Source) -> None:
        self.source, self.spelled = source, dict(source.spelled)

    def visit(self, node: ast.AST) -> ast.AST:
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            and node.lineno != self.source.function
        ):
            outer, local = self.spelled, local_names(node)
            self.spelled = {text: new for text, new in outer.items() if root_of(text) not in local}
            visited = self.generic_visit(node)
            self.spelled = outer
            return visited
        # `net = net.to(device)` binds a name of its own
        bound = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        text = (
            self.spelled.get(ast.unparse(node))
            if isinstance(node, (ast.Name, ast.Attribute)) and not bound
            else None
        )
        if text is None:
            return self.generic_visit(node)
        new = ast.parse(text, mode="eval").body
        assert isinstance(new, (ast.Name, ast.Attribute))
        new.ctx = node.ctx  # type: ignore[attr-defined]
        for child in ast.walk(new):
            ast.copy_location(child, node)
        self.source.edits.append((new, text))
        return new


@dataclass(eq=False)
class Statement:
    """One statement that ran; `scope` is 1 for those of the function around the call, 0 for the
    module's own.
    """

    node: ast.stmt
    source: Source
    scope: int = 0
    refusal: str | None = None
    """Why it cannot be in a script; reported if it is needed."""
    made: bool = False
    """Whether it is not in the source but binds a value that was found at runtime."""

    @property
    def place(self) -> str:
        """Its place, for messages."""
        return self.source.label if self.made else f"{self.source.label}, line {self.node.lineno}"

    @property
    def gist(self) -> str:
        """Its first line, for messages; secrets are left out."""
        line = hidden_source(self.node).strip().partition("\n")[0]
        return line if len(line) <= _CLIP else line[: _CLIP - 1] + "…"


@dataclass
class Line:
    """Statements in the order in which they ran."""

    statements: list[Statement] = field(default_factory=list)
    type_only: dict[str, ast.stmt] = field(default_factory=dict)
    """The statements under `if TYPE_CHECKING:`, which never ran, by the names that they bind."""


def first_line(node: ast.stmt) -> int:
    """The line a statement starts on, its decorators included."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return node.lineno


def contains(node: ast.stmt | ast.expr, spot: Spot) -> bool:
    """Whether the place `spot` is in `node`."""
    start = first_line(node) if isinstance(node, ast.stmt) else node.lineno
    end, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
    if not start <= spot.line <= end:
        return False
    if spot.column < 0:
        return True
    before = spot.line == start == node.lineno and spot.column < node.col_offset
    after = spot.line == end and spot.column >= end_column
    return not (before or after)


def is_at(node: ast.expr, spot: Spot) -> bool:
    """Whether `node` is the expression at a place."""
    return (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) == (
        spot.line,
        spot.column,
        spot.end_line,
        spot.end_column,
    )


def run(
    line: Line,
    source: Source,
    body: list[ast.stmt],
    upto: Spot | None,
    scope: int,
    values: Mapping[str, str],
    since: Spot | None = None,
) -> bool:
    """Append the statements of `body` that ran after `since` (None: from its beginning) and before
    `upto` (None: to its end), without the blocks around these places; returns whether `upto` was
    reached.
    """
    for node in body:
        inside = upto is not None and contains(node, upto)
        if since is not None:
            if contains(node, since):
                _run_on(line, source, node, since, upto if inside else None, scope, values)
                since = None
        elif inside:
            assert upto is not None
            _open(line, source, node, upto, scope, values)
        elif upto is not None and first_line(node) > upto.line:
            return True
        else:
            _append(line, source, node, scope)
        if inside:
            return True
    return False


def _run_on(
    line: Line,
    source: Source,
    node: ast.stmt,
    since: Spot,
    upto: Spot | None,
    scope: int,
    values: Mapping[str, str],
) -> None:
    """Append the statements that ran in `node` after `since`, a place in it, and before `upto`."""
    start = len(line.statements)
    ways = [way for way in _ways(node) if any(contains(inner, since) for inner in way[0])]
    if not ways and isinstance(node, (ast.With, ast.AsyncWith)):  # `with wb.Workbench(…) as bench:`
        ways, since_inside = [[node.body]], None
    else:
        since_inside = since
    if not ways and upto is None and isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)):
        _append(line, source, node, scope)
    for suite in ways[0] if ways else ():
        if run(line, source, suite, upto, scope, values, since_inside):
            break
        since_inside = None
    else:
        if upto is not None and isinstance(node, ast.Try):  # in a handler
            refuse(
                line, start, "it is in a `try` whose handler holds the fit, and may not have run"
            )
            _suites(line, source, [handler.body for handler in node.handlers], upto, scope, values)


def _ways(node: ast.stmt) -> list[list[list[ast.stmt]]]:
    """The suites of a compound statement that run one after another, for each one that may be
    the first.
    """
    match node:
        case ast.Try():
            handlers = [[handler.body, node.finalbody] for handler in node.handlers]
            return [
                [node.body, node.orelse, node.finalbody],
                *handlers,
                [node.orelse, node.finalbody],
                [node.finalbody],
            ]
        case ast.If():
            return [[node.body], [node.orelse]]
        case ast.For() | ast.AsyncFor() | ast.While():
            return [[node.body, node.orelse], [node.orelse]]
        case ast.With() | ast.AsyncWith():
            return [[node.body]]
        case ast.Match():
            return [[case.body] for case in node.cases]
    return []


def refuse(line: Line, start: int, why: str) -> None:
    """Mark the statements from `start` on as not allowed in a script."""
    for statement in line.statements[start:]:
        if not statement.made and not isinstance(statement.node, (ast.Import, ast.ImportFrom)):
            statement.refusal = statement.refusal or why


def stop_at(body: list[ast.stmt], stopped: int | None) -> list[ast.stmt]:
    """The statements of `body` that had run when the piece raised an error at line `stopped`."""
    return (
        body
        if stopped is None
        else [node for node in body if (node.end_lineno or node.lineno) < stopped]
    )


def bind_values(
    line: Line, label: str, scope: int, names: Mapping[str, str | None], what: str
) -> None:
    """Bind each name to its literal; a name without one is refused when it is needed."""
    for name, text in names.items():
        known = text if text is not None else "None"
        assignment = Source(label, f"{name} = {known}\n")
        if (
            known.startswith("pathlib.")
            or "(pathlib." in known
            or " pathlib." in known
            or "[pathlib." in known
        ):
            imports = Source(label, "import pathlib\n")
            line.statements.append(Statement(imports.tree.body[0], imports, scope, made=True))
        refusal = (
            None
            if text is not None
            else f"`{name}` is {what}, and its value is no plain number, text or list"
        )
        line.statements.append(
            Statement(assignment.tree.body[0], assignment, scope, refusal, made=True)
        )


def _append(
    line: Line, source: Source, node: ast.stmt, scope: int, refusal: str | None = None
) -> None:
    if isinstance(node, (ast.Global, ast.Nonlocal, ast.Pass)):
        return
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        for inner in node.body:
            line.type_only |= dict.fromkeys(definite(inner), inner)
        for inner in node.orelse:
            _append(line, source, inner, scope, refusal)
        return
    line.statements.append(Statement(node, source, scope, refusal or _unfit(node)))


def _is_type_checking(test: ast.expr) -> bool:
    """Whether `test` is `TYPE_CHECKING` of typing, under whatever name that module has."""
    return (
        isinstance(test, (ast.Name, ast.Attribute))
        and ast.unparse(test).rpartition(".")[2] == "TYPE_CHECKING"
    )


def is_main_guard(node: ast.stmt) -> bool:
    """Whether `node` is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    )


def _unfit(node: ast.stmt) -> str | None:
    """Why a statement cannot be at the top level of a script."""
    loops = {
        child
        for n in own_level(node)
        if isinstance(n, (ast.For, ast.While))
        for child in ast.walk(n)
    }
    for child in own_level(node):
        if isinstance(child, (ast.Await, ast.AsyncFor, ast.AsyncWith)) or (
            isinstance(child, ast.comprehension) and child.is_async
        ):
            return "it uses `await`, which a script cannot do at its top level"
        if isinstance(child, (ast.Return, ast.Yield, ast.YieldFrom)):
            return "it may leave the function around the Workbench call"
        if isinstance(child, (ast.Break, ast.Continue)) and child not in loops:
            return "it may leave the loop around the Workbench call"
    return None


def _open(
    line: Line, source: Source, node: ast.stmt, spot: Spot, scope: int, values: Mapping[str, str]
) -> None:
    """Append the statements that ran inside `node`, a statement that was running."""
    match node:
        case ast.If():
            _suites(line, source, [node.body, node.orelse], spot, scope, values)
        case ast.With() | ast.AsyncWith():
            bind_values(
                line,
                source.label,
                scope,
                {n: values.get(n) for n in sorted(names_of_with(node))},
                "bound by `with`",
            )
            _suites(line, source, [node.body], spot, scope, values)
        case ast.For() | ast.AsyncFor():
            names = list(target_names(node.target))
            bind_values(
                line, source.label, scope, {n: values.get(n) for n in names}, "a loop variable"
            )
            _suites(line, source, [node.body, node.orelse], spot, scope, values)
        case ast.While():
            _suites(line, source, [node.body, node.orelse], spot, scope, values)
        case ast.Try():
            if any(contains(s, spot) for s in node.orelse):
                run(line, source, node.body, None, scope, values)
            handlers = [handler.body for handler in node.handlers]
            inside = any(contains(s, spot) for suite in [*handlers, node.finalbody] for s in suite)
            if inside:
                why = (
                    "it is in a `try` whose handler holds the Workbench call or the fit, and may"
                    " not have run"
                )
                for inner in node.body:
                    _append(line, source, inner, scope, why)
                for handler in node.handlers:
                    if handler.name and any(contains(s, spot) for s in handler.body):
                        bind_values(
                            line, source.label, scope, {handler.name: None}, "a caught error"
                        )
            _suites(
                line,
                source,
                [node.body, node.orelse, *handlers, node.finalbody],
                spot,
                scope,
                values,
            )
        case ast.Match():
            for case in node.cases:
                if any(contains(s, spot) for s in case.body):
                    bind_values(
                        line,
                        source.label,
                        scope,
                        {n: values.get(n) for n in sorted(names_in_pattern(case.pattern))},
                        "bound by `case`",
                    )
            _suites(line, source, [case.body for case in node.cases], spot, scope, values)
        case ast.ClassDef():
            raise ExportError(
                f"The Workbench is made in the body of class {node.name} ({source.label}, line"
                f" {spot.line}). Make it in a cell, at the top level of a file, or in a function."
            )
        case _:
            _comprehended(line, source, node, spot, scope, values)


def _suites(
    line: Line,
    source: Source,
    suites: list[list[ast.stmt]],
    spot: Spot,
    scope: int,
    values: Mapping[str, str],
) -> None:
    for suite in suites:
        if any(contains(node, spot) for node in suite):
            run(line, source, suite, spot, scope, values)


def _comprehended(
    line: Line, source: Source, node: ast.stmt, spot: Spot, scope: int, values: Mapping[str, str]
) -> None:
    """Bind the variables of the comprehensions and lambdas around the call."""
    names: list[str] = []
    for child in ast.walk(node):
        if not isinstance(child, ast.expr) or not contains(child, spot):
            continue
        if isinstance(child, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            names += [n for generator in child.generators for n in target_names(generator.target)]
        elif isinstance(child, ast.Lambda):
            names += parameters(child.args)
    bind_values(
        line,
        source.label,
        scope,
        {n: values.get(n) for n in names},
        "a variable of the expression around the call",
    )


# ---- the call ------------------------------------------------------------------------------------


def find_call(source: Source, spot: Spot) -> ast.Call:
    """The Workbench call at `spot`."""
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    names = _workbench_names(source.tree)
    exact = [node for node in calls if is_at(node, spot)]
    makers = [node for node in calls if _makes_workbench(node, names)]
    here = [node for node in makers if node.lineno <= spot.line <= (node.end_lineno or node.lineno)]
    innermost = _innermost(source.tree.body, spot)
    near = [node for node in makers if innermost is not None and node in set(ast.walk(innermost))]
    candidates = (exact,) if exact else (here, near)
    call = next((nodes[0] for nodes in candidates if len(nodes) == 1), None)
    if call is not None and _makes_workbench(call, names):
        return call
    through = "" if call is None else f", which makes it through `{ast.unparse(call.func)}(…)`"
    raise ExportError(
        f"No single call of Workbench is found at line {spot.line} of {source.label}{through}, so"
        " its arguments cannot be read. Call wb.Workbench(…) itself, once in a line; if the file"
        " was edited meanwhile, make the Workbench again."
    )


def _innermost(body: list[ast.stmt], spot: Spot) -> ast.stmt | None:
    for node in body:
        if contains(node, spot):
            inner = [
                child
                for child in ast.walk(node)
                if isinstance(child, ast.stmt) and contains(child, spot)
            ]
            return inner[-1] if inner else node
    return None


def _workbench_names(tree: ast.Module) -> set[str]:
    names = {"Workbench"}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] == "workbench"
        ):
            names |= {imported_name(alias) for alias in node.names if alias.name == "Workbench"}
    return names


def _makes_workbench(call: ast.Call, names: set[str]) -> bool:
    func = call.func
    return (
        func.attr == "Workbench"
        if isinstance(func, ast.Attribute)
        else isinstance(func, ast.Name) and func.id in names
    )


def functions_around(tree: ast.Module, spot: Spot) -> list[ast.FunctionDef]:
    """The functions around a place, outermost first."""
    functions: list[ast.FunctionDef] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef) and any(contains(s, spot) for s in node.body):
            raise ExportError(
                f"The Workbench is made, or its fit called, in the async function {node.name}; a"
                " script cannot repeat that. Do it in a plain function, or in a cell."
            )
        if isinstance(node, ast.FunctionDef) and any(contains(s, spot) for s in node.body):
            functions.append(node)
    return functions
