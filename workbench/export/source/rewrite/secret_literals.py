"""Replaces secrets that are literals in the user's code: a script reads them from the environment
instead.

`API_KEY = "…"` becomes `API_KEY = os.environ["API_KEY"]`; `os.environ["API_KEY"] = "…"` is left
out, since the user sets the variable before starting the script. A comment says which variables the
script needs.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workbench.export.errors import ExportError
from workbench.export.source.uses import defaults, positional
from workbench.secrets import HIDDEN, hide, is_secret_name, looks_secret

_SHORTEST = 6
"""The least length of a secret that is searched for in the whole script; shorter texts are part
of too many words.
"""
_SETTER = re.compile(r"(set|use|add|with)(_|(?=[A-Z]))")
_LOGIN = re.compile(r"(?i)(^|_)(login|authenticate)$")
_BY_SHAPE = {
    "sk-": "API_KEY",
    "hf_": "HF_TOKEN",
    "gh": "GITHUB_TOKEN",
    "AKIA": "AWS_ACCESS_KEY_ID",
    "ASIA": "AWS_ACCESS_KEY_ID",
}
_ENVIRONMENTS = {"os.environ", "environ", "os.environb", "environb"}
_SETTERS = {
    "os.environ.setdefault",
    "os.putenv",
    "environ.setdefault",
    "putenv",
    "os.environ.__setitem__",
}


@dataclass(frozen=True)
class Literal:
    """An expression whose text is a secret."""

    node: ast.expr
    name: str
    """Its name in the code; "" where only its form shows that it is a secret."""
    value: str | bytes


@dataclass
class Secrets:
    """The secrets of one script, and the environment variables from which it reads them."""

    module: str = "os"
    """The script's name for the module `os`."""
    variables: dict[str, str | bytes] = field(default_factory=dict)
    """The value in the run of each variable that must be set."""
    read: dict[str, str] = field(default_factory=dict)
    """The expressions that read a variable, each with the name of the variable."""
    parameters: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The positional parameters of each function and class that the code defines: the argument
    of `load("…")` may be a token.
    """
    _names: dict[str | bytes, str] = field(default_factory=dict)

    @classmethod
    def of(cls, trees: Iterable[ast.AST]) -> Secrets:
        """The secrets of a script with this code; none are read yet."""
        code = list(trees)
        return cls(module_name(code), parameters=_parameters(code))

    def edits(self, node: ast.AST) -> tuple[tuple[ast.AST, str], ...]:
        """The replacements of the secrets in `node`."""
        return tuple(
            (literal.node, self._read(literal)) for literal in literals(node, self.parameters)
        )

    def variables_of(self, edits: Iterable[tuple[ast.AST, str]]) -> tuple[str, ...]:
        """The variables that these edits read."""
        return tuple(dict.fromkeys(self.read[text] for _, text in edits))

    def notes(self) -> tuple[str, ...]:
        """The sentences about secrets in the script's docstring."""
        return (f"{needs(self.variables)}",) if self.variables else ()

    def sets(self, statement: ast.stmt) -> tuple[str, ...]:
        """The variables that a statement sets to secrets, if it does nothing else; such a
        statement is left out.
        """
        pairs = _set_by(statement)
        for name, value in pairs:
            self.variables.setdefault(name, value)
            self._names.setdefault(value, name)
        return tuple(name for name, _ in pairs)

    def check(self, text: str) -> None:
        """Raise ExportError if one of the secrets is still in a literal or a comment of the
        script.
        """
        values = {
            name: v if isinstance(v, str) else v.decode("utf-8", "replace")
            for name, v in self.variables.items()
        }
        values = {name: value for name, value in values.items() if len(value) >= _SHORTEST}
        for line, word in _texts(text) if values else ():
            for name, value in values.items():
                if value in word:
                    raise ExportError(
                        f"the value of {name} is a secret, and is in line {line} of the script in"
                        " another way too. Read it from the environment in your code:"
                        f" os.environ[{name!r}]."
                    )

    def _read(self, found: Literal) -> str:
        name = self._names.get(found.value) or self._free(_variable(found))
        self._names[found.value], self.variables[name] = name, found.value
        text = f'{self.module}.environ["{name}"]' + (
            ".encode()" if isinstance(found.value, bytes) else ""
        )
        self.read[text] = name
        lines = (found.node.end_lineno or found.node.lineno) - found.node.lineno
        if lines:
            whole = f"({text}" + "\n" * lines + ")"  # keeps the number of lines
            self.read[whole] = name
            return whole
        return text

    def _free(self, name: str) -> str:
        """The name, with a number if another secret has the same one."""
        new, number = name, 1
        while new in self.variables:
            number += 1
            new = f"{name}_{number}"
        return new


def needs(variables: Iterable[str]) -> str:
    """The sentence that says which variables the user has to set."""
    return f"Set {', '.join(variables)} in the environment: the script holds no secrets."


def literals(
    node: ast.AST, parameters: Mapping[str, Sequence[str]] | None = None
) -> Iterator[Literal]:
    """The outermost expressions in `node` that hold a secret as a literal. parameters: as in
    `Secrets`.
    """
    seen: set[int] = set()
    documented = {id(child.value) for child in ast.walk(node) if isinstance(child, ast.Expr)}
    for name, value, callee in _named(node, parameters or {}):
        for child in _texts_of(value):
            text = _text(child)
            if (
                id(child) not in seen
                and text is not None
                and is_secret_name(name, _as_str(text), callee)
            ):
                seen |= {id(inner) for inner in ast.walk(child)}
                yield Literal(child, name, text)
    for child in _outermost_texts(node):
        text = _text(child)
        if (
            id(child) not in seen
            and id(child) not in documented
            and text is not None
            and looks_secret(_as_str(text))
        ):
            yield Literal(child, "", text)


def hide_in_comments(text: str) -> str:
    """`text` with the secrets in its comments and its docstrings replaced by `…`."""
    try:
        tree = ast.parse(text)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, tokenize.TokenError):
        return text
    spans = [(t.start, t.end) for t in tokens if t.type == tokenize.COMMENT]
    for child in ast.walk(tree):
        if (
            isinstance(child, ast.Expr)
            and isinstance(child.value, ast.Constant)
            and isinstance(child.value.value, str)
        ):
            spans.append(_span(text, child.value))
    lines = text.split("\n")
    for (row, start), (last, end) in sorted(spans, reverse=True):
        old = "\n".join([*lines[row - 1 : last - 1], lines[last - 1][:end]])[start:]
        new = hide(old)
        if new != old and new.count("\n") == old.count("\n"):
            whole = lines[row - 1][:start] + new + lines[last - 1][end:]
            lines[row - 1 : last] = whole.split("\n")
    return "\n".join(lines)


def hidden_source(node: ast.stmt) -> str:
    """A statement as text for a message, its secrets replaced by `…`."""
    text = ast.unparse(node)
    again = ast.parse(text).body[0]  # a copy of the tree, to be changed
    secret = {id(literal.node) for literal in literals(again)}
    return ast.unparse(_Hidden(secret).visit(again)) if secret else text


class _Hidden(ast.NodeTransformer):
    """Replaces some expressions by `…`."""

    def __init__(self, nodes: set[int]) -> None:
        self._nodes = nodes

    def visit(self, node: ast.AST) -> ast.AST:
        if id(node) in self._nodes:
            return ast.Constant(HIDDEN)
        return self.generic_visit(node)


# ---- names of literals ---------------------------------------------------------------------------


def _named(
    node: ast.AST, parameters: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, ast.expr, str]]:
    """(name, value, callee) for each expression in `node` that is bound to a name or passed by
    one.
    """
    for child in ast.walk(node):
        match child:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _bound(target, value)
            case (
                ast.AnnAssign(target=target, value=ast.expr() as value)
                | ast.AugAssign(target=target, value=value)
            ):
                yield from _bound(target, value)
            case ast.NamedExpr(target=target, value=value):
                yield from _bound(target, value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    yield _literal(key), value, ""
            case ast.Tuple(elts=[name, value]) | ast.List(elts=[name, value]) if _is_pair(
                name, value
            ):
                yield _literal(name), value, ""
            case ast.Compare(left=left, comparators=[right]):
                yield _called(left), right, ""
                yield _called(right), left, ""
            case ast.arguments():
                yield from ((name, value, "") for name, value in defaults(child).items())
            case ast.Call():
                yield from _given(child)
                named = zip(parameters.get(_called(child.func), ()), child.args, strict=False)
                yield from ((name, value, "") for name, value in named)


def _bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr, str]]:
    if isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
            for element, its in zip(target.elts, value.elts, strict=True):
                yield from _bound(element, its)
        return
    yield _called(target), value, ""


def _given(call: ast.Call) -> Iterator[tuple[str, ast.expr, str]]:
    """Named arguments: keywords; a string after its name, as in `setdefault("API_KEY", "…")`; the
    arguments of `set_token("…")` and `login("…")`.
    """
    callee = _called(call.func)
    for keyword in call.keywords:
        if keyword.arg is not None:
            yield keyword.arg, keyword.value, callee
    for before, value in zip(call.args, call.args[1:], strict=False):
        yield _literal(before), value, callee
    names = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg in _NAMES)]
    values = [keyword.value for keyword in call.keywords if keyword.arg in _VALUES]
    yield from (
        (name, value, callee) for name in filter(None, map(_literal, names)) for value in values
    )
    if _LOGIN.search(callee):
        yield from (("password", value, callee) for value in call.args)
    elif call.args and (setter := _SETTER.match(callee)):
        yield callee[setter.end() :], call.args[0], callee


def _is_pair(name: ast.expr, value: ast.expr) -> bool:
    """Whether two elements are the name of an environment variable and its value, not two names
    of columns.
    """
    return re.fullmatch(r"[A-Z][A-Z0-9_]*", _literal(name)) is not None and _text(value) is not None


def _called(node: ast.expr | None) -> str:
    """The name of an expression: the last name of an attribute, the key of an item."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=key):
            return _literal(key)
        case ast.Starred(value=value):
            return _called(value)
    return ""


def _literal(node: ast.expr | None) -> str:
    value = node.value if isinstance(node, ast.Constant) else None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _texts_of(value: ast.expr) -> Iterator[ast.expr]:
    """The texts that may be the value of an expression: itself, the parts of a choice or a
    container, the object of a method call.
    """
    match value:
        case ast.Constant() | ast.JoinedStr():
            yield value
        case ast.BinOp(left=ast.Constant(value=str() | bytes()), op=ast.Mod(), right=right):
            yield from _texts_of(right)
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
            if _text(value) is not None:
                yield value
            else:
                yield from (*_texts_of(left), *_texts_of(right))
        case ast.IfExp(body=first, orelse=second):
            yield from (*_texts_of(first), *_texts_of(second))
        case (
            ast.BoolOp(values=values)
            | ast.Tuple(elts=values)
            | ast.List(elts=values)
            | ast.Set(elts=values)
        ):
            for child in values:
                yield from _texts_of(child)
        case ast.NamedExpr(value=inner) | ast.Starred(value=inner) | ast.Await(value=inner):
            yield from _texts_of(inner)
        case ast.Call(func=ast.Attribute(value=ast.Constant(), attr="format" | "join"), args=args):
            for child in args:
                yield from _texts_of(child)
        case ast.Call(func=ast.Attribute(value=ast.Constant() as inner)):
            yield inner
        case ast.Call(func=func, args=args, keywords=keywords) if _called(func) in _WRAPPERS:
            for child in (
                *args[:1],
                *(keyword.value for keyword in keywords if keyword.arg in _VALUES),
            ):
                yield from _texts_of(child)


_VALUES = {"value", "default", "const"}
"""Arguments that are the value for a name in another argument of the call."""
_NAMES = {"name", "key", "var", "variable"}
_WRAPPERS = {
    "str",
    "bytes",
    "b64decode",
    "b64encode",
    "SecretStr",
    "SecretBytes",
    "quote",
    "encode",
    "decode",
    "field",
    "Field",
}


def _outermost_texts(node: ast.AST) -> Iterator[ast.expr]:
    """Literals; an f-string as a whole, since positions inside it are not known before Python
    3.12.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Constant, ast.JoinedStr)) or (
            isinstance(child, ast.BinOp) and _text(child) is not None
        ):
            yield child
        else:
            yield from _outermost_texts(child)


def _text(node: ast.expr) -> str | bytes | None:
    """The text that a literal is; None for anything else."""
    match node:
        case ast.Constant(value=str() | bytes() as value):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _text(left), _text(right)
            if isinstance(first, str) and isinstance(second, str):
                return first + second
            if isinstance(first, bytes) and isinstance(second, bytes):
                return first + second
    return None


def _as_str(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


# ---- statements that set the environment ---------------------------------------------------------


def _set_by(statement: ast.stmt) -> list[tuple[str, str | bytes]]:
    """The variables and the values, where a statement sets them and nothing else, and at least
    one is a secret.
    """
    pairs = _environment(statement)
    texts = [(name, text) for name, value in pairs if (text := _text(value)) is not None]
    secret = any(
        is_secret_name(name, _as_str(text)) or looks_secret(_as_str(text)) for name, text in texts
    )
    return texts if secret and len(texts) == len(pairs) == 1 else []


def _environment(statement: ast.stmt) -> list[tuple[str, ast.expr]]:
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=where, slice=key)], value=value) if (
            ast.unparse(where) in _ENVIRONMENTS
        ):
            return [(_literal(key), value)] if _literal(key) else []
        case ast.Expr(value=ast.Call(func=func, args=[key, value], keywords=[])) if (
            ast.unparse(func) in _SETTERS
        ):
            return [(_literal(key), value)] if _literal(key) else []
    return []


# ---- names of variables --------------------------------------------------------------------------


def _variable(found: Literal) -> str:
    """The environment variable for a secret: its name, in capitals."""
    name = (
        re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", found.name)).strip("_").upper()
    )
    if name and not name[0].isdigit():
        return name
    text = _as_str(found.value)
    return next((known for start, known in _BY_SHAPE.items() if text.startswith(start)), "SECRET")


def module_name(trees: Iterable[ast.AST]) -> str:
    """A name for the module `os` in a script with this code: `os`, unless the code uses that
    name for something else.
    """
    for tree in trees:
        for child in ast.walk(tree):
            bound = (
                (
                    isinstance(child, ast.Name)
                    and isinstance(child.ctx, ast.Store)
                    and child.id == "os"
                )
                or (isinstance(child, ast.arg) and child.arg == "os")
                or (isinstance(child, (ast.FunctionDef, ast.ClassDef)) and child.name == "os")
                or (isinstance(child, ast.alias) and child.asname == "os" and child.name != "os")
                or (
                    isinstance(child, ast.ImportFrom)
                    and any(a.asname is None and a.name == "os" for a in child.names)
                )
            )
            if bound:
                return '__import__("os")'
    return "os"


def _parameters(trees: Iterable[ast.AST]) -> dict[str, list[str]]:
    parameters: dict[str, list[str]] = {}
    for tree in trees:
        for child in ast.walk(tree):
            if isinstance(child, ast.FunctionDef):
                parameters[child.name] = positional(child.args)
            elif isinstance(child, ast.ClassDef):
                inits = [
                    statement
                    for statement in child.body
                    if isinstance(statement, ast.FunctionDef) and statement.name == "__init__"
                ]
                fields = [
                    statement.target.id
                    for statement in child.body
                    if isinstance(statement, ast.AnnAssign)
                    and isinstance(statement.target, ast.Name)
                ]
                parameters[child.name] = positional(inits[0].args)[1:] if inits else fields
    return parameters


def _span(text: str, node: ast.expr) -> tuple[tuple[int, int], tuple[int, int]]:
    """The place of a node, in characters."""
    lines = text.split("\n")
    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    start = len(lines[node.lineno - 1].encode()[: node.col_offset].decode())
    return (node.lineno, start), (end_line, len(lines[end_line - 1].encode()[:end].decode()))


def _texts(text: str) -> Iterator[tuple[int, str]]:
    """All literals and comments of a script, with their lines."""
    for child in ast.walk(ast.parse(text)):
        if isinstance(child, ast.Constant) and isinstance(child.value, (str, bytes)):
            yield child.lineno, _as_str(child.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
