"""Finds files that a script reads and that were written by a statement, or a function of the user, which the script lacks."""

from __future__ import annotations

import ast
import itertools
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from workbench.export.source import calls
from workbench.export.source.namespace import At, Namespace
from workbench.export.source.uses import defaults, own_level, parameters, positional

_SECOND = {"torch.save", "safetensors.torch.save_file", "safetensors.torch.save_model", "joblib.dump", "urllib.request.urlretrieve"}
"""Functions whose second argument is the file that they write."""
_FIRST = set(
    "save savez savez_compressed savetxt tofile save_pretrained to_csv to_parquet to_pickle to_json to_feather to_hdf imwrite".split()
)
"""Functions and methods whose first argument is the file that they write."""
_ITSELF = {"write_text", "write_bytes"}
"""Methods that write the file that is their object."""
_JOINING = ("pathlib.Path", "os.path.join")


def missing_files(program: Namespace, run: Iterable[tuple[int, list[ast.AST]]]) -> Iterator[tuple[int, str]]:
    """Each such file, with the statement that wrote it. run: the script's statements, each with the place where its names are looked up."""
    # Also in functions and classes, since those in the script may be called.
    parts = [(at, part) for at, nodes in run for node in nodes for part in ast.walk(node)]
    read = {path for at, part in parts if isinstance(part, ast.expr) and (path := _Scope(program, at).path(part))}
    read |= {_unknown(value) for _, part in parts if isinstance(part, ast.Call) for value in part.args}
    for place, statement in enumerate(program.statements):
        if place not in program.kept and place not in program.repeats:
            written = dict.fromkeys(_Scope(program, place).written(statement.node, set()))
            yield from ((place, path) for path in written if path in read and ("." in path or "/" in path or path.startswith("`")))


def _unknown(node: ast.expr) -> str:
    return f"`{ast.unparse(node)}`"


@dataclass
class _Scope:
    """Where a name is looked up: a place among the statements, or a function with the paths among its arguments."""

    program: Namespace
    place: int
    given: Mapping[str, str | None] = field(default_factory=dict)
    inside: frozenset[ast.FunctionDef] = frozenset()
    """The functions around, which may call themselves."""

    def written(self, node: ast.AST, seen: set[tuple[object, ...]]) -> Iterator[str]:
        """The files that a statement writes, also in functions of the user. seen: calls that were followed already."""
        for part in own_level(node):
            if not isinstance(part, ast.Call):
                continue
            target = self._target(part)
            if target is not None and (path := self.path(target) or self._unknown(target)):
                yield path
            for home, function in self._functions(part):
                given = self._arguments(part, function)
                if function not in self.inside and (key := (function, *given.items())) not in seen:
                    seen.add(key)
                    scope = _Scope(home, home.end, given, self.inside | {function})
                    for statement in function.body:
                        yield from scope.written(statement, seen)

    def _unknown(self, node: ast.expr) -> str:
        """The text of an expression for a path that only the run knew; "" where it may have another value."""
        is_name = isinstance(node, ast.Name) and At(self.program, self.place).kind(node.id) == "immutable"
        return _unknown(node) if not self.inside and (is_name or isinstance(node, (ast.Call, ast.BinOp, ast.JoinedStr))) else ""

    def _target(self, call: ast.Call) -> ast.expr | None:
        """The expression for the file that a call writes; None: it writes none."""
        name, path = calls.terminal(call.func), calls.path_of(call.func, At(self.program, self.place)) or ""
        given = [*call.args, None, None]
        if name == "open":
            of_file = isinstance(call.func, ast.Attribute) and not path  # a method of a pathlib.Path
            mode = next((k.value for k in call.keywords if k.arg == "mode"), given[0 if of_file else 1])
            writes = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set(mode.value) & set("wxa+"))
            return (call.func.value if of_file and isinstance(call.func, ast.Attribute) else given[0]) if writes else None
        if name in _ITSELF and isinstance(call.func, ast.Attribute):
            return call.func.value
        if path in _SECOND:
            return next((k.value for k in call.keywords if k.arg in ("f", "filename")), given[1])
        return given[0] if name in _FIRST else None

    def _functions(self, call: ast.Call) -> Iterator[tuple[Namespace, ast.FunctionDef]]:
        """The user's functions that a call may call."""
        if not isinstance(call.func, ast.Name) or call.func.id in self.given:
            return
        for at in self.program.reaching(call.func.id, self.place):
            home, node, name = self.program, self.program.statements[at].node, call.func.id
            if isinstance(node, ast.ImportFrom) and (found := home.slicer.imported(home, node, name)) is not None:
                home, name = found
                nodes = [home.statements[place].node for place in home.reaching(name, home.end)]
            else:
                nodes = [node]
            yield from ((home, node) for node in nodes if isinstance(node, ast.FunctionDef))

    def _arguments(self, call: ast.Call, function: ast.FunctionDef) -> dict[str, str | None]:
        """The paths among a function's arguments; None for an argument that is not known."""
        names = positional(function.args)
        placed = itertools.takewhile(lambda one: not isinstance(one, ast.Starred), call.args)  # later arguments have no known position
        values = defaults(function.args) | dict(zip(names, placed, strict=False))
        values |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        return {**dict.fromkeys(parameters(function.args)), **{name: self._text(value) for name, value in values.items()}}

    def path(self, node: ast.expr) -> str | None:
        """The path that is the value of an expression; None: it is something else, or not known."""
        text = self._text(node)
        return posixpath.normpath(text) if text else None

    def _text(self, node: ast.expr) -> str | None:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=name) if name in self.given:
                return self.given[name]
            case ast.Name(id=name):
                bound = self.program.reaching(name, self.place)
                held = self.program.statements[bound[0]].node if len(bound) == 1 else None
                value = held.value if isinstance(held, (ast.Assign, ast.AnnAssign)) else None
                return _Scope(self.program, bound[0])._text(value) if value is not None else None
            case ast.JoinedStr(values=parts):
                return self._joined("", [part.value if isinstance(part, ast.FormattedValue) else part for part in parts])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined("", [left, right])
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self._joined("/", [left, right])
            case ast.Call(func=func, args=parts) if parts and (calls.path_of(func, At(self.program, self.place)) or "") in _JOINING:
                return self._joined("/", parts)
        return None

    def _joined(self, between: str, parts: list[ast.expr]) -> str | None:
        texts = [self._text(part) for part in parts]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return None
        return posixpath.join(*known) if between else "".join(known)
