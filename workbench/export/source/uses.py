"""Finds which names a statement reads and binds, and when.

`eager` names are read when the statement runs; `late` names when a function that it defines is
called. A name of a module whose code is written into the script contains the module: `helpers.make`
becomes `helpers·make`.
"""

from __future__ import annotations

import ast
import copy
import functools
import symtable
from collections.abc import Iterator
from dataclasses import dataclass, field

DOT = "·"
_AT_ONCE = "__at_once__"
_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Uses:
    """The names of one statement."""

    eager: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    """Names that it reads when it runs, but that may be undefined."""
    binds: frozenset[str] = frozenset()
    definite: frozenset[str] = frozenset()
    """The names of `binds` that are bound on every path through the statement."""
    deletes: frozenset[str] = frozenset()
    written_late: frozenset[str] = frozenset()
    """The global names that its functions bind when they are called."""
    inner: frozenset[str] = frozenset()
    """The names bound inside its functions and classes."""
    attributes: tuple[tuple[ast.Attribute, str], ...] = ()
    """The `helpers.make` of inlined modules, each with its short name."""


def uses(node: ast.stmt, modules: frozenset[str] = frozenset(), postponed: bool = False) -> Uses:
    """The names of `node`; `modules` are the names that hold inlined modules, `postponed`:
    annotations are text.
    """
    if not modules:
        return _uses_of_text(ast.unparse(node), postponed)
    return _uses(node, copy.deepcopy(node), modules, postponed)


@functools.lru_cache(4096)
def _uses_of_text(text: str, postponed: bool) -> Uses:
    """The names of a statement; cached, since they are needed several times, and other scripts
    have the same statements.
    """
    (node,), (copied,) = ast.parse(text).body, ast.parse(text).body
    return _uses(node, copied, frozenset(), postponed)


def _uses(node: ast.stmt, copied: ast.stmt, modules: frozenset[str], postponed: bool) -> Uses:
    spelled = _Spell(modules)
    tree = _Shared().visit(spelled.visit(copied))
    text = ast.unparse(ast.Module([ast.fix_missing_locations(tree)], []))
    head = "from __future__ import annotations\n" if postponed else ""
    table = symtable.symtable(head + text, "<slice>", "exec")
    names = _Found()
    _read_top(table, names, hide="annotations" if postponed else "")
    deletes = (
        {name for target in targets(node) for name in target_names(target)}
        if isinstance(node, ast.Delete)
        else set[str]()
    )
    names.binds -= deletes
    names.eager |= {
        child.target.id
        for child in own_level(node)
        if isinstance(child, ast.AugAssign) and isinstance(child.target, ast.Name)
    }
    names.eager |= deletes
    optional = _class_reads(tree) | (field_annotations(tree) if postponed else set())
    if isinstance(node, _BLOCKS):
        names.eager = _Order(postponed).reads([tree], set())
        optional |= names.eager & names.binds
    optional |= {
        child.target.id for child in own_level(node) if isinstance(child, ast.NamedExpr)
    } & names.eager
    return Uses(
        eager=frozenset(names.eager - optional),
        late=frozenset(names.late),
        optional=frozenset(optional),
        binds=frozenset(names.binds),
        definite=frozenset(definite(node)) & frozenset(names.binds),
        deletes=frozenset(deletes),
        written_late=frozenset(names.written),
        inner=frozenset(names.inner),
        attributes=tuple(spelled.found),
    )


@dataclass
class _Found:
    eager: set[str] = field(default_factory=set)
    late: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    inner: set[str] = field(default_factory=set)


def _read_top(table: symtable.SymbolTable, found: _Found, hide: str) -> None:
    for symbol in table.get_symbols():
        name = symbol.get_name()
        if symbol.is_referenced():
            found.eager.add(name)
        if symbol.is_assigned() or (symbol.is_imported() and name != hide):
            found.binds.add(name)
    for child in table.get_children():
        _read_inner(child, found, late=False)


def _read_inner(table: symtable.SymbolTable, found: _Found, late: bool) -> None:
    kind = str(table.get_type())
    is_class = kind == "class"
    generator = table.get_name() == "genexpr"
    comprehension = generator and _AT_ONCE in table.get_identifiers()
    deferred = generator and not comprehension
    later = late or not (is_class or comprehension or kind.startswith("type parameter"))
    for symbol in table.get_symbols():
        name = symbol.get_name()
        if name == _AT_ONCE:
            continue
        if symbol.is_global():
            if symbol.is_referenced():
                (found.late if later else found.eager).add(name)
                if deferred and not late:
                    found.eager.add(name)
            if symbol.is_assigned():
                if later and not deferred:
                    found.written.add(name)
                    found.late.add(name)
                else:
                    found.binds.add(name)
        elif symbol.is_local():
            found.inner.add(name)
    for child in table.get_children():
        _read_inner(child, found, later)


def own_level(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and all nodes that run with it, without the bodies of functions, lambdas and
    classes that it only defines.
    """
    yield node
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        inner: list[ast.AST] = [*node.decorator_list]
    elif isinstance(node, ast.Lambda):
        inner = []
    else:
        inner = list(ast.iter_child_nodes(node))
    for child in inner:
        yield from own_level(child)


class _Order:
    """Finds the names that a block reads before it has bound them itself."""

    def __init__(self, postponed: bool) -> None:
        self.postponed = postponed

    def reads(self, body: list[ast.stmt], bound: set[str]) -> set[str]:
        """The names that `body` reads from outside; adds to `bound` the names that it binds on
        every path.
        """
        names: set[str] = set()
        for node in body:
            names |= self._statement(node, bound)
        return names

    def _statement(self, node: ast.stmt, bound: set[str]) -> set[str]:
        match node:
            case ast.If():
                return self._expression(node.test, bound) | self._ways(
                    [node.body, node.orelse], bound
                )
            case ast.While():
                return self._expression(node.test, bound) | self._ways(
                    [node.body, node.orelse, []], bound
                )
            case ast.For() | ast.AsyncFor():
                names = self._expression(node.iter, bound)
                inside = bound | set(target_names(node.target))
                is_place = isinstance(node.target, (ast.Attribute, ast.Subscript))
                names |= self.reads([ast.Expr(node.target)] if is_place else [], inside)
                return names | self.reads(node.body, inside) | self.reads(node.orelse, set(bound))
            case ast.With() | ast.AsyncWith():
                names = set()
                for item in node.items:
                    names |= self._expression(item.context_expr, bound)
                    bound |= (
                        set(target_names(item.optional_vars))
                        if item.optional_vars is not None
                        else set()
                    )
                return names | self.reads(node.body, bound)
            case ast.Try():
                return self._try(node, bound)
            case ast.Match():
                names = self._expression(node.subject, bound)
                for case in node.cases:
                    names |= {
                        n.id for n in ast.walk(case.pattern) if isinstance(n, ast.Name)
                    } - bound
                    guard = [ast.Expr(case.guard)] if case.guard is not None else []
                    names |= self.reads(
                        [*guard, *case.body], bound | names_in_pattern(case.pattern)
                    )
                return names
            case _:
                used = uses(node, postponed=self.postponed)
                names = set(used.eager | used.optional) - bound
                bound |= used.definite
                return names

    def _try(self, node: ast.Try, bound: set[str]) -> set[str]:
        before = set(bound)
        names = self.reads([*node.body, *node.orelse], bound)
        for handler in node.handlers:
            inside = before | ({handler.name} if handler.name else set())
            names |= self._expression(handler.type, inside) if handler.type is not None else set()
            names |= self.reads(handler.body, inside)
        names |= self.reads(node.finalbody, set(before))
        bound.clear()
        bound |= before | definite(node)
        return names

    def _ways(self, ways: list[list[ast.stmt]], bound: set[str]) -> set[str]:
        before = set(bound)
        names = {name for way in ways for name in self.reads(way, set(before))}
        bound |= _meet(ways)
        return names

    def _expression(self, node: ast.expr, bound: set[str]) -> set[str]:
        used = uses(ast.Expr(node), postponed=self.postponed)
        names = set(used.eager) - bound
        bound |= used.binds
        return names


def targets(node: ast.AST) -> list[ast.expr]:
    """The expressions that an assignment, a loop or a `del` binds or changes."""
    if isinstance(node, (ast.Assign, ast.Delete)):
        return node.targets
    return (
        [node.target]
        if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr, ast.For))
        else []
    )


def target_names(target: ast.expr) -> Iterator[str]:
    """The plain names that an assignment target binds."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Starred):
        yield from target_names(target.value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from target_names(item)


def names_in_pattern(pattern: ast.pattern) -> set[str]:
    """The names that a `case` binds."""
    return {
        child.name
        for child in ast.walk(pattern)
        if isinstance(child, (ast.MatchAs, ast.MatchStar)) and child.name
    }


def names_of_with(node: ast.With | ast.AsyncWith) -> set[str]:
    """The names that a `with` binds."""
    return {
        name
        for item in node.items
        if item.optional_vars
        for name in target_names(item.optional_vars)
    }


def parameters(node: ast.arguments) -> list[str]:
    """The names of all parameters."""
    arguments = [*node.posonlyargs, *node.args, *node.kwonlyargs, node.vararg, node.kwarg]
    return [argument.arg for argument in arguments if argument is not None]


def positional(node: ast.arguments) -> list[str]:
    """The names of the parameters that may be given by their place."""
    return [argument.arg for argument in (*node.posonlyargs, *node.args)]


def defaults(node: ast.arguments) -> dict[str, ast.expr]:
    """The expressions of the parameters that have a default."""
    positional = [*node.posonlyargs, *node.args]
    pairs = [
        *zip(positional[len(positional) - len(node.defaults) :], node.defaults, strict=True),
        *zip(node.kwonlyargs, node.kw_defaults, strict=True),
    ]
    return {argument.arg: value for argument, value in pairs if value is not None}


def terminal(func: ast.expr) -> str:
    """The last name of a callee: "normal_" of `nn.init.normal_`."""
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""


def first_name(node: ast.expr) -> str | None:
    """The name that an attribute, item or call chain starts from."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call, ast.Starred)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def imported_name(alias: ast.alias) -> str:
    """The name that one part of an import statement binds."""
    return alias.asname or alias.name.partition(".")[0]


def definite(node: ast.stmt) -> set[str]:
    """The names that `node` binds on every path."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Import() | ast.ImportFrom():
            return {imported_name(alias) for alias in node.names}
        case ast.Assign():
            return {name for target in node.targets for name in target_names(target)}
        case ast.AnnAssign():
            return set(target_names(node.target)) if node.value is not None else set()
        case ast.AugAssign():
            return set(target_names(node.target))
        case ast.With() | ast.AsyncWith():
            return names_of_with(node) | _suite(node.body)
        case ast.If():
            return _meet([node.body, node.orelse])
        case ast.Try():
            ways = [[*node.body, *node.orelse], *(handler.body for handler in node.handlers)]
            return _meet(ways) | _suite(node.finalbody)
        case ast.Expr(value=ast.NamedExpr(target=target)):
            return set(target_names(target))
        case _:
            return set()


def _suite(body: list[ast.stmt]) -> set[str]:
    return {name for statement in body for name in definite(statement)}


def _meet(ways: list[list[ast.stmt]]) -> set[str]:
    open_ways = [way for way in ways if not (way and isinstance(way[-1], ast.Raise))]
    return set.intersection(*map(_suite, open_ways)) if open_ways else set()


def _class_reads(node: ast.AST) -> set[str]:
    """Names that a class reads from outside before it binds them itself, as in `size = size`."""
    if not isinstance(node, ast.ClassDef):
        return set()
    read: set[str] = set()
    bound: set[str] = set()
    for statement in node.body:
        names = [child for child in own_level(statement) if isinstance(child, ast.Name)]
        read |= {name.id for name in names if isinstance(name.ctx, ast.Load)} - bound
        bound |= definite(statement)
    return read & bound


def field_annotations(node: ast.AST) -> set[str]:
    """Names in the annotations of class fields: libraries such as dataclasses may read them,
    even as text.
    """
    bodies = (child.body for child in ast.walk(node) if isinstance(child, ast.ClassDef))
    annotations = (
        statement.annotation
        for body in bodies
        for statement in body
        if isinstance(statement, ast.AnnAssign)
    )
    return {
        child.id
        for annotation in annotations
        for child in ast.walk(annotation)
        if isinstance(child, ast.Name)
    }


# ---- names of inlined modules --------------------------------------------------------------------


class _Spell(ast.NodeTransformer):
    """Spells `module.name` as one name, wherever `module` is not a local name.

    Comprehensions become marked generators: from Python 3.12 on, symtable mixes their names with
    those around them.
    """

    def __init__(self, modules: frozenset[str]) -> None:
        self.modules = modules
        self.found: list[tuple[ast.Attribute, str]] = []

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if (
            isinstance(node.value, ast.Name)
            and node.value.id in self.modules
            and isinstance(node.ctx, ast.Load)
        ):
            self.found.append((node, node.attr))
            return ast.copy_location(ast.Name(node.value.id + DOT + node.attr, ast.Load()), node)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: Function) -> ast.AST:
        outer = self.modules
        self.modules = outer - local_names(node)
        result = self.generic_visit(node)
        self.modules = outer
        return result

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp) -> ast.AST:
        element = (
            ast.Tuple([node.key, node.value], ast.Load())
            if isinstance(node, ast.DictComp)
            else node.elt
        )
        node.generators[0].ifs.insert(0, ast.Name(_AT_ONCE, ast.Load()))
        generator = ast.copy_location(ast.GeneratorExp(element, node.generators), node)
        return self.generic_visit(ast.fix_missing_locations(generator))

    visit_SetComp = visit_DictComp = visit_ListComp


class _Shared(ast.NodeTransformer):
    """Replaces `nonlocal` by `global` for variables of the function from which the statement is
    taken.
    """

    def __init__(self) -> None:
        self.around: frozenset[str] = frozenset()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        outer = self.around
        shared = {
            name
            for statement in node.body
            for child in own_level(statement)
            if isinstance(child, ast.Nonlocal)
            for name in child.names
        }
        self.around = outer | (local_names(node) - shared)
        result = self.generic_visit(node)
        self.around = outer
        return result

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Nonlocal(self, node: ast.Nonlocal) -> list[ast.stmt]:
        groups: tuple[tuple[type[ast.Global | ast.Nonlocal], list[str]], ...] = (
            (ast.Nonlocal, [name for name in node.names if name in self.around]),
            (ast.Global, [name for name in node.names if name not in self.around]),
        )
        return [ast.copy_location(form(names), node) for form, names in groups if names]


def local_names(node: Function) -> set[str]:
    """Names that are local to a function."""
    names = {*parameters(node.args)}
    body: list[ast.stmt] = [] if isinstance(node, ast.Lambda) else node.body
    shared: set[str] = set()
    for statement in body:
        for child in own_level(statement):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                names.add(child.id)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(child.name)
            elif isinstance(child, (ast.Import, ast.ImportFrom)):
                names |= {imported_name(alias) for alias in child.names}
            elif isinstance(child, ast.Global):
                shared |= set(child.names)
    return names - shared
