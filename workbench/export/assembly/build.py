"""Moves the statements that make the model and the data into a function, so that importing the
script, and `--help`, do nothing.

Definitions, imports and constants stay. Of the other statements the last ones move, as many as
possible without changing the result, and in their order. A name that a function reads as a global
stays global. A statement does not move if a spawned worker process, which does not run `main`, or a
type checker needs it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from workbench.export.assembly import names
from workbench.export.source.changes import CHANGING
from workbench.export.source.rewrite.source_text import Block, join, string_lines
from workbench.export.source.uses import Uses, targets, uses

_LOOKS_AROUND = {"globals", "locals", "vars", "exec", "eval", "dir"}
_CHEAP = re.compile(
    r"torch\.nn\.(?!Adaptive)\w+Loss|torch\.device|pathlib\.Path|functools\.partial|torchmetrics\..+|torchvision\.transforms\..+"
)
"""Imported functions whose calls take no time, draw no random numbers and do not depend on code
that ran before.
"""
_BUILT_IN = set("range dict set frozenset tuple list len min max int float str bool".split())
_OF_CLASSES = re.compile(r"(dataclasses\.)?field|property|staticmethod|classmethod|(enum\.)?auto")
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_PARTS = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.Set,
    ast.BinOp,
    ast.UnaryOp,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Subscript,
    ast.Slice,
    ast.Call,
    ast.keyword,
    ast.operator,
    ast.unaryop,
    ast.expr_context,
)
"""The node types of which constants consist."""


@dataclass(frozen=True)
class Built:
    """The user's statements, in two parts."""

    stays: list[Block]
    moves: list[Block]
    returned: list[str]
    """The names that `main` takes from the function."""
    shared: list[str]
    """The names that it binds globally, since other functions read them."""
    at_once: bool
    """Whether a statement that may take time stays at the top level."""

    def function(self, name: str, doc: str) -> str:
        """The function; "" where nothing moves. doc: its docstring."""
        if not self.moves:
            return ""
        lines = []
        for line, inside in _marked(join(self.moves).rstrip("\n")):
            lines.append(line if inside or not line else f"    {line}")
        first = (
            [f"    global {', '.join(self.shared)}  # other functions read this"]
            if self.shared
            else []
        )
        last = [f"    return {', '.join(self.returned)}"] if self.returned else []
        return "\n".join([f"def {name}():", f'    """{doc}"""', *first, *lines, *last])

    def call(self, name: str) -> list[str]:
        """The line of main."""
        if not self.moves:
            return []
        names = f"{', '.join(self.returned)} = " if self.returned else ""
        return [f"{names}{name}()"]


def _marked(text: str) -> list[tuple[str, bool]]:
    """The lines, and whether each begins inside of a string."""
    inside = string_lines(ast.parse(text), 1)
    return [(line, number in inside) for number, line in enumerate(text.split("\n"))]


class _Statement:
    def __init__(self, block: Block, imported: Mapping[str, str]) -> None:
        self.block, self.imported = block, imported
        self.nodes = ast.parse(block.text).body

    @cached_property
    def uses(self) -> list[Uses]:
        return [uses(node, postponed=True) for node in self.nodes]

    @cached_property
    def reads(self) -> set[str]:
        return {
            name
            for use in self.uses
            for names in (use.eager, use.late, use.optional, use.written_late)
            for name in names
        }

    @cached_property
    def at_once(self) -> set[str]:
        """The names that it reads when it runs, including those of its decorators."""
        read = {name for use in self.uses for names in (use.eager, use.optional) for name in names}
        return read | {
            n.id
            for p in self.parts
            for d in getattr(p, "decorator_list", ())
            for n in ast.walk(d)
            if isinstance(n, ast.Name)
        }

    @cached_property
    def typed(self) -> bool:
        """Whether a type checker looks into functions of it."""
        functions = [
            p for p in self.parts if isinstance(p, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        return any(
            f.returns is not None
            or any(isinstance(p, ast.arg) and p.annotation for p in ast.walk(f.args))
            for f in functions
        )

    @cached_property
    def binds(self) -> set[str]:
        return {
            name
            for use in self.uses
            for names in (use.binds, use.deletes, use.written_late)
            for name in names
        }

    @cached_property
    def parts(self) -> list[ast.AST]:
        return [child for node in self.nodes for child in ast.walk(node)]

    @cached_property
    def stores(self) -> set[str]:
        """The paths in imports that it, or a call of it, may change:
        "torch.backends.cudnn.benchmark".
        """
        paths = {
            self._path(p)
            for p in self.parts
            if isinstance(p, (ast.Attribute, ast.Subscript)) and not isinstance(p.ctx, ast.Load)
        }
        alone = {id(p.value) for p in self.parts if isinstance(p, ast.Expr)}
        for call in (p for p in self.parts if isinstance(p, ast.Call)):
            paths |= {
                self._path(value)
                for value in [*call.args, *(k.value for k in call.keywords)]
                if isinstance(value, ast.Name)
            }
            if isinstance(call.func, ast.Attribute):
                votes = [
                    not isinstance(call.func.value, ast.Name),
                    id(call) in alone,
                    call.func.attr in CHANGING,
                ]
                paths |= (
                    {self._path(call.func.value)} if sum(votes) > 1 else set()
                )  # not torch.manual_seed(0)
        return paths - {""}

    @cached_property
    def looks(self) -> set[str]:
        """The names, and the paths in imports, whose attributes, items or value it reads when it
        runs; not those to which it only refers.
        """
        return {
            name
            for node in self.nodes
            if not isinstance(node, _IMPORTS)
            for name in self._looked(node)
        }

    def _looked(self, node: ast.AST, holds: bool = True) -> Iterator[str]:
        children: list[ast.AST | None] = list(ast.iter_child_nodes(node))
        if isinstance(node, (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef)):
            children = [
                *node.args.defaults,
                *node.args.kw_defaults,
                *getattr(node, "decorator_list", []),
            ]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            children = [node.value]
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            path = self._path(node) or (node.id if isinstance(node, ast.Name) else "")
            if path:
                yield from () if holds and isinstance(node, ast.Name) else [path]
                children = [
                    inner.slice for inner in ast.walk(node) if isinstance(inner, ast.Subscript)
                ]
            holds = False
        elif isinstance(node, ast.Call):
            holds = self.cheap(node) and ast.unparse(node.func).endswith("partial")
            children = (
                [node.func, *node.args, *node.keywords]
                if not holds
                else [*node.args, *node.keywords]
            )
        elif not isinstance(
            node, (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.keyword, ast.ClassDef)
        ):
            holds = False
        for child in children:
            if child is not None:
                yield from self._looked(child, holds)

    def _path(self, node: ast.expr) -> str:
        """The dotted path of an imported object, up to its first item; "" for others."""
        rest: list[str] = []
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            rest = [node.attr, *rest] if isinstance(node, ast.Attribute) else []
            node = node.value
        return (
            ".".join([self.imported[node.id], *rest])
            if isinstance(node, ast.Name) and node.id in self.imported
            else ""
        )

    @property
    def imports(self) -> bool:
        return any(isinstance(node, _IMPORTS) for node in self.nodes)

    @property
    def defines(self) -> bool:
        """Whether it is a definition that does nothing else when it runs, or is only for type
        checkers.
        """
        return all(
            (isinstance(node, _DEFINES) and not self.calls(node))
            or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
            for node in self.nodes
        )

    @property
    def constant(self) -> bool:
        """Whether it binds a name to a value that is always the same."""
        return all(
            isinstance(node, (ast.Assign, ast.AnnAssign))
            and node.value is not None
            and self._is_constant(node.value)
            and all(isinstance(target, ast.Name) for target in targets(node))
            for node in self.nodes
        )

    def _is_constant(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Lambda):
            return True
        if isinstance(node, ast.Call) and not self.cheap(node):
            return False
        return isinstance(node, _PARTS) and all(map(self._is_constant, ast.iter_child_nodes(node)))

    def cheap(self, call: ast.Call) -> bool:
        root, dot, rest = ast.unparse(call.func).partition(".")
        if root in self.imported:
            return _CHEAP.fullmatch(f"{self.imported[root]}{dot}{rest}") is not None
        return root in _BUILT_IN and not dot

    def calls(self, node: ast.stmt) -> bool:
        """Whether making a function or a class calls something, besides its decorators."""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts: list[ast.AST] = [
                *node.args.defaults,
                *(value for value in node.args.kw_defaults if value is not None),
            ]
        elif isinstance(node, ast.ClassDef):
            if any(self.calls(inner) for inner in node.body if isinstance(inner, _DEFINES)):
                return True
            parts = [inner for inner in node.body if not isinstance(inner, _DEFINES)]
        else:
            parts = [node]
        calls = [child for each in parts for child in ast.walk(each) if isinstance(child, ast.Call)]
        return not all(
            _OF_CLASSES.fullmatch(ast.unparse(call.func)) or self.cheap(call) for call in calls
        )

    @property
    def movable(self) -> bool:
        """Whether it can stand in a function."""
        return not any(isinstance(child, (*_DEFINES, *_IMPORTS)) for child in self.parts)


def built(
    blocks: Sequence[Block],
    ours: str,
    imported: Mapping[str, str],
    main: str = "main",
    in_workers: Iterable[str] = (),
) -> Built:
    """Divide the user's statements into those that stay and those that move.

    ours: the text of the script's own functions, one of which is `main`; imported: the full path of
    each imported name; in_workers: the names that worker processes use.
    """
    statements = [_Statement(block, imported) for block in blocks]
    nodes = names.parsed(ours).body
    whole = next(node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == main)
    others = [uses(node) for node in nodes if node is not whole]
    fixed = {name for other in others for name in other.eager} | imported.keys()
    read = {name for other in others for name in other.late}
    bound = names.bound_in(whole)
    if not any(statement.reads & _LOOKS_AROUND for statement in statements):
        changes = _Changes(statements)
        of_workers = changes.reached(set(in_workers))  # in a worker
        for first in range(len(statements)):
            moves = _moving(statements, changes, first, fixed, of_workers)
            moved = {n for s in moves for n in s.binds}
            stays = [statement for statement in statements if statement not in moves]
            shared = sorted(moved & (read | {name for s in stays for name in s.reads}))
            returned = [name for name in names.ordered(whole) if name in moved - bound - {*shared}]
            if moves and (returned or shared) and not _unused(moves, [*returned, *shared]):
                return Built(
                    [s.block for s in stays],
                    [s.block for s in moves],
                    returned,
                    shared,
                    _takes_time(stays),
                )
    return Built(list(blocks), [], [], [], _takes_time(statements))


def _takes_time(statements: list[_Statement]) -> bool:
    return not all(s.defines or s.constant or s.imports for s in statements)


def _moving(
    statements: list[_Statement],
    changes: _Changes,
    first: int,
    fixed: set[str],
    of_workers: set[str],
) -> list[_Statement]:
    """The statements that move if those from number `first` on may; empty where that would change
    the result.

    fixed: the names that the script's own code reads when it is imported; of_workers: those that a
    worker process may read.
    """
    moves = [s for s in statements[first:] if not (s.defines or s.constant)]
    while True:
        moved = {name for s in moves for name in s.binds}
        more: list[_Statement] = []
        late: list[_Statement] = []
        changed, read = (
            set(changes.called),
            set[str](),
        )  # read: names that a moving statement reads and that are bound again after it
        for s in statements[
            first:
        ]:  # a constant made from an object that may have changed before is none
            if s in moves:
                changed |= changes.by[s]
                read |= changes.rebound[s]
            elif s.binds & read:
                (more if s.constant else late).append(s)
            elif s.constant and ((s.reads | s.binds) & moved or changes.differs(s, changed)):
                more.append(s)
            elif changes.differs(s, changed):
                late.append(s)
        if not more:
            break
        moves = [s for s in statements if s in moves or s in more]
    stays = [s for s in statements if s not in moves]
    after = statements[statements.index(moves[0]) :] if moves else []
    fits = (
        all(s.movable for s in moves)
        and not late
        and not any(s.imports for s in after)
        and not moved & fixed
        and not any(_needs(s, moved, changes, of_workers) for s in stays)
    )
    return moves if fits else []


def _needs(s: _Statement, moved: set[str], changes: _Changes, of_workers: set[str]) -> bool:
    """Whether a statement that stays needs these names when it runs, or in a process that has
    not run `main`.
    """
    read = s.reads & moved
    return bool(
        s.binds & moved
        or (read and (s.typed or not s.defines or s.binds & of_workers))
        or changes.reached(s.at_once) & moved
    )


class _Changes:
    """The objects that statements may change in place, as the user's names and dotted paths of
    imports.
    """

    def __init__(self, statements: list[_Statement]) -> None:
        self.makers: dict[str, list[_Statement]] = {}
        for s in statements:
            for name in s.binds:
                self.makers.setdefault(name, []).append(s)
        containers: set[str] = set()
        changeable = {name for s in statements if not s.constant for name in s.binds}
        for s in statements:
            if s.constant and (
                s.reads & containers
                or any(isinstance(p, (ast.List, ast.Dict, ast.Set, ast.Call)) for p in s.parts)
            ):
                containers |= s.binds
            if s.constant and (s.binds & containers or s.reads & changeable):
                changeable |= s.binds
        self.called = {name for s in statements if s.defines for name in s.reads} & containers
        self.by = {s: self._by(s, changeable) for s in statements}
        """For each statement the objects that it, or a function that it calls, may change."""
        again = {name for name, makers in self.makers.items() if len(makers) > 1}
        self.rebound = {s: self.reached(s.reads) & again for s in statements}
        """For each statement the names that it reads and that are bound more than once."""
        self._looks = {s: self.reached(s.looks) for s in statements}

    def reached(self, names: set[str]) -> set[str]:
        """These names, and all names from which their values are made or which they read."""
        reached, left = set(), list(names)
        while left:
            name = left.pop()
            if name not in reached:
                reached.add(name)
                left += [read for s in self.makers.get(name, ()) for read in s.reads]
        return reached

    def _by(self, s: _Statement, changeable: set[str]) -> set[str]:
        reached = self.reached(s.reads)
        return (
            reached & changeable
            | s.stores
            | {
                path
                for name in reached
                for maker in self.makers.get(name, ())
                for path in maker.stores
            }
        )

    def differs(self, s: _Statement, changed: set[str]) -> bool:
        """Whether a constant or a definition reads, when it runs, an object that has changed."""
        return any(
            f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")
            for a in self._looks[s]
            for b in changed
        )


def _unused(moves: list[_Statement], returned: list[str]) -> bool:
    """Whether a name would be bound in the function and never used, which linters report."""
    read = {name for s in moves for name in s.reads} | set(returned)
    bound = {
        name
        for s in moves
        for n in s.nodes
        if isinstance(n, ast.Assign)
        for t in n.targets
        for name in _single(t, n.value)
    }
    return bool(bound - read)


def _single(target: ast.expr, value: ast.expr) -> Iterator[str]:
    """The names that an assignment binds to one value each; names that unpack the result of a
    call are left out.
    """
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        for inner, item in zip(target.elts, value.elts, strict=False):
            yield from _single(inner, item)


def with_lines(ours: str, main: str, lines: list[str]) -> str:
    """The script's functions with these lines at the beginning of `main`."""
    head, mark, rest = ours.partition(f"def {main}(")
    start, end, body = rest.partition("\n")
    return (
        "".join([head, mark, start, end, *(f"    {line}\n" for line in lines), body])
        if lines
        else ours
    )
