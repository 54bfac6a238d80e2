"""Refuses to export where an earlier call changed the model and also fitted it, and the script lacks that call.

`train(bench)` may change the model and then fit. A script has the statements of the functions that led to the last fit. It lacks the
effects of an earlier call of them, unless the last call had the same effects again.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from workbench.export.errors import ExportError
from workbench.export.source import calls, effects, parts
from workbench.export.source.calls import Summary
from workbench.export.source.capture import CallSite, root_of
from workbench.export.source.namespace import At, Summaries
from workbench.export.source.order import bench_of
from workbench.export.source.owner import Owner
from workbench.export.source.slicer import Slicer
from workbench.export.source.statements import Statement
from workbench.export.source.uses import local_names, own_level, target_names, uses, without_ways_out

_WEIGHTS = {"load_state_dict", "reset_parameters"}
"""Methods that change weights alone, which a script reads from the run."""
_REPEATABLE = calls.IN_A_LOOP | calls.SAME_OBJECT | _WEIGHTS | {"requires_grad_", "isinstance", "hasattr", "len", "print", "startswith", "endswith", "range", "enumerate"}
"""Calls whose second execution changes nothing more."""
_HOLDING = {"partial", "partialmethod", "Thread", "Timer"}
"""Calls that store a function to call it later."""
_OF_BENCH = {"close", "delete", "fit", "load", "predict", "result", "set", "test", "tune", "validate"}
"""Names of methods of the Workbench that other classes may have, too."""
_Place = tuple[str, int, int]
_T = TypeVar("_T", bound=ast.stmt)


def refuse_left_out(slicer: Slicer, site: CallSite, owner: Owner | None, model: ast.expr | None) -> None:
    """Raise ExportError for a statement that ran before the fit, is not in the script, and changed the model in another way than by a fit."""
    program = slicer.programs[""]
    held = effects.roots(model, At(program, program.called)) if model is not None else frozenset[str]()
    bindings = {(at, name) for at, name in parts.parts_of(program, [(name, program.called) for name in held]) if name in held or program.kinds.get(name) == "network"}
    known = [name for frame in site.fit for name, other in frame.names.items() if not other]
    of_top = {name for frame in site.fit[:1] for name, other in frame.names.items() if not other and name.isidentifier()}
    of_all = {name for name in known if name.isidentifier()}
    among = {root_of(name) for name in known if "[" in name}
    attributes = {name.partition(".")[2] for name in known if "." in name}
    kept = attributes | {"model"} | {part.attr for part in ast.walk(model or ast.Pass()) if isinstance(part, ast.Attribute)}
    for place, statement in enumerate(program.statements):
        if place in program.kept or place in program.repeats or statement.made or isinstance(statement.node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
            continue
        benches = of_all if statement.scope else of_top
        if not slicer.tainted(program, place) and not program.uses[place].eager & benches:
            continue
        after = {_place(other): other for other in program.statements[place + 1 :] if other.refusal is None and not other.made}
        read = _Reader(after, attributes, kept, {} if owner is None else _dropped(owner))
        context = _Besides(program, place, certain=True, read=read)
        written = without_ways_out(_as_written(statement, owner))
        written = read.without(written, {name.partition(".")[0] for name in known if "." in name})
        changed = effects.surely_changed(written, context) | _handed_on(written, context)
        taken = changed & among if _takes_bench(written, among, set(known)) else set()
        if changed & benches or taken or any(parts.parts_of(program, [(name, place)]) & bindings for name in changed - among):
            raise _left_out(ast.unparse(model) if isinstance(model, (ast.Name, ast.Attribute)) else "the model", statement, written)


def _takes_bench(node: ast.stmt, among: set[str], known: set[str]) -> bool:
    """Whether a statement may take the bench of the fit out of a list or a dict. among: their names; known: the items that are the bench."""
    inside = {id(part.value) for part in ast.walk(node) if isinstance(part, ast.Attribute) or (isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant))}
    alone = any(isinstance(part, ast.Name) and part.id in among and id(part) not in inside for part in ast.walk(node))
    return alone or any(isinstance(part, ast.Subscript) and ast.unparse(part) in known for part in ast.walk(node))


def _left_out(model: str, statement: Statement, written: ast.stmt) -> ExportError:
    gist = replace(statement, node=written).gist
    return ExportError(
        f"`{gist}` ({statement.place}) changed {model if ' ' in model else f'`{model}`'} before the fit, besides what it did with the workbench, "
        "and a script does not have that statement. Write the change in a statement of its own, without the workbench in it (as `model.scale = 2.0`), "
        "make the model and the Workbench anew, fit and export that run."
    )


def _handed_on(node: ast.stmt, context: _Besides, seen: frozenset[int] = frozenset()) -> frozenset[str]:
    """The names changed by functions that a statement passes to others (`map(train, benches)`) or calls by another name (`go = partial(train, bench)`)."""
    own = [part for part in own_level(node) if isinstance(part, ast.Call)]
    called = {id(part.func.value if isinstance(part.func, ast.Subscript) else part.func) for part in own}
    given = [value for part in own if calls.terminal(part.func) not in _HOLDING for value in [*part.args, *(keyword.value for keyword in part.keywords)]]
    makes = any(calls.terminal(part.func) == "Workbench" for part in own)
    names = {id(part) for value in ([] if makes else [node] if seen or isinstance(node, ast.Expr) else given) for part in own_level(value)} - called
    found: set[str] = set()
    for part in (part for part in own_level(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)):
        for at in context.program.reaching(part.id, context.place)[:1]:
            bound = context.program.statements[at].node
            if isinstance(bound, ast.FunctionDef) and id(part) in names and (summary := context.summary(part.id)) is not None:
                found |= summary.outside.does | (uses(node).eager if summary.does else set())
            elif isinstance(bound, ast.Assign) and id(part) in called and at not in seen:
                there, body = replace(context, place=at), ast.Expr(bound.value.body) if isinstance(bound.value, ast.Lambda) else bound
                inner = _handed_on(body, there, seen | {at}) | (effects.surely_changed(body, there) if isinstance(body, ast.Expr) else frozenset())
                found |= inner | (uses(node).eager if inner else set())
    return frozenset(found)


def _dropped(owner: Owner) -> dict[str, list[tuple[str, ast.FunctionDef, ast.ClassDef]]]:
    """The methods that the script's class does not have, by name, as they were written."""
    found: dict[str, list[tuple[str, ast.FunctionDef, ast.ClassDef]]] = {}
    for source in owner.written:
        for node in (node for node in source.tree.body if isinstance(node, ast.ClassDef) and node.name in owner.family):
            for part in (part for part in node.body if isinstance(part, ast.FunctionDef)):
                found.setdefault(part.name, []).append((source.label, part, node))
    return found


def _as_written(statement: Statement, owner: Owner | None) -> ast.stmt:
    """The statement with `own.train` in place of the bench's name."""
    gone = "" if owner is None else bench_of(owner)
    if not gone or not any(text == gone for _, text in statement.source.edits):
        return statement.node
    written = replace(statement.source, spelled=tuple(item for item in statement.source.spelled if item[1] != gone))
    same = (node for node in ast.walk(written.tree) if isinstance(node, ast.stmt) and _at(node) == _at(statement.node) and type(node) is type(statement.node))
    return next(same, statement.node)


def _at(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _place(statement: Statement) -> _Place:
    return (statement.source.label, *_at(statement.node))


@dataclass
class _Reader:
    """Removes from functions the statements that have no effect on the model of the last fit."""

    after: dict[_Place, Statement]
    """The statements that ran later, by their places."""
    benches: set[str]
    """The attributes that hold the bench: `self.bench`."""
    kept: set[str]
    """The attributes that matter, of the objects that hold the bench."""
    methods: dict[str, list[tuple[str, ast.FunctionDef, ast.ClassDef]]] = field(default_factory=dict)
    known: Summaries = field(default_factory=dict)
    """The effects of calls of the reduced functions."""

    def function(self, node: ast.FunctionDef, label: str, around: ast.ClassDef | None, context: At) -> ast.FunctionDef:
        """The function without assignments of weights, without hooks that it removes again, and without statements whose effects the last call repeated."""
        own = node.args.args[0].arg if node.args.args else ""
        holders = {own} if around is not None and self.holders(around) else set()
        new = copy.deepcopy(node)
        local = local_names(node)
        again = {(label, *_at(part)): part for part in ast.walk(node) if isinstance(part, ast.stmt) and (label, *_at(part)) in self.after}
        same = {ast.unparse(target) for at, part in again.items() for target in _set_anew(part, self.after[at].node, local)}
        repeated = {at[1:] for at in again if _repeatable(self.after[at].node, context, local)}
        removed = {ast.unparse(part.func.value) for part in ast.walk(node) if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr == "remove" and not part.args}
        _Drop(lambda part: _at(part) in repeated or _is_set_again(part, same) or _leaves_nothing(part, removed)).visit(new)
        return self.without(new, holders | self.holders(node))

    def without(self, node: _T, holders: set[str]) -> _T:
        """The code in which separate names replace attributes that do not matter, of the objects that hold the bench."""
        return cast(_T, _Part(holders, self.kept).visit(copy.deepcopy(node))) if holders else node

    def holders(self, node: ast.AST) -> set[str]:
        """The names in some code of objects that hold the bench."""
        return {part.value.id for part in ast.walk(node) if isinstance(part, ast.Attribute) and part.attr in self.benches and isinstance(part.value, ast.Name)}


class _Drop(ast.NodeTransformer):
    """Puts `pass` in place of statements."""

    def __init__(self, drops: Callable[[ast.stmt], bool]) -> None:
        self.drops = drops

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt) and self.drops(node):
            return ast.copy_location(ast.Pass(), node)
        return super().generic_visit(node)


class _Part(ast.NodeTransformer):
    """Replaces attributes such as `self.history` by separate names."""

    def __init__(self, holders: set[str], kept: set[str]) -> None:
        self.holders, self.kept = holders, kept

    def visit_Call(self, node: ast.Call) -> ast.AST:
        func = node.func
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):  # a method of its own
            node.args, node.keywords = [self.visit(value) for value in node.args], [self.visit(value) for value in node.keywords]
            return node
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.holders and node.attr not in self.kept:
            return ast.copy_location(ast.Name(f"{node.value.id}_{node.attr}", node.ctx), node)
        return self.generic_visit(node)


def _set_anew(written: ast.stmt, ran: ast.stmt, local: set[str]) -> Iterator[ast.expr]:
    """The targets, as they were written, of an assignment that ran again for the same objects."""
    if isinstance(written, ast.Assign) and isinstance(ran, ast.Assign):
        for target, there in zip(written.targets, ran.targets, strict=True):
            if _is_attribute(there) and calls.first_name(there) not in local:
                yield target


def _is_attribute(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute) or (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)):
        if isinstance(node.value, ast.Name):
            return True
        node = node.value
    return False


def _is_set_again(node: ast.stmt, same: set[str]) -> bool:
    """Whether a statement only sets attributes that the last call also set, and does not read them."""
    if not isinstance(node, ast.Assign) or not {ast.unparse(target) for target in node.targets} <= same:
        return False
    roots = {calls.first_name(target) for target in node.targets}
    given = (part for call in ast.walk(node.value) if isinstance(call, ast.Call) for part in ast.walk(call) if isinstance(part, ast.Name))
    return not any(ast.unparse(target) in ast.unparse(node.value) for target in node.targets) and not any(part.id in roots for part in given)


def _leaves_nothing(node: ast.stmt, removed: set[str]) -> bool:
    """Whether a statement only sets weights, or binds a handle that the function removes: `hook = layer.register_forward_hook(…)`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        return node.value.func.attr in _WEIGHTS
    return isinstance(node, ast.Assign) and len(node.targets) == 1 and ast.unparse(node.targets[0]) in removed


def _repeatable(node: ast.AST, context: At, local: set[str], open_: frozenset[str] = frozenset()) -> bool:
    """Whether a statement has the same effect each time it runs, and no more after two runs than after one. local: names that may be other objects."""
    bound = {name for part in own_level(node) if isinstance(part, ast.For) for name in target_names(part.target)}
    if local and isinstance(node, ast.stmt) and (uses(node).eager | uses(node).optional) & (local - bound):
        return False
    for part in own_level(node):
        if isinstance(part, (ast.AugAssign, ast.Delete, ast.While, ast.With)):
            return False
        if isinstance(part, ast.Assign) and not (isinstance(part.value, ast.Constant) or all(isinstance(target, ast.Name) for target in part.targets)):
            return False
        if isinstance(part, ast.Call) and calls.terminal(part.func) not in _REPEATABLE and not _calls_repeatable(part, context, open_):
            return False
    return True


def _calls_repeatable(call: ast.Call, context: At, open_: frozenset[str]) -> bool:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    found = [context.program.statements[at].node for at in context.program.reaching(name, context.program.end)[:1]] if name and name not in open_ else []
    return any(isinstance(node, ast.FunctionDef) and all(_repeatable(part, context, set(), open_ | {name}) for part in node.body) for node in found)


@dataclass
class _Besides(At):
    """Finds objects that certainly change, besides those that a fit trains and changes that the last call repeated."""

    read: _Reader = field(kw_only=True)

    @property
    def known(self) -> Summaries:
        """The summaries so far, of functions reduced by the reader."""
        return self.read.known

    def _made(self, at: int, node: ast.FunctionDef | ast.ClassDef, inside: At) -> Summary:
        label = self.program.statements[at].source.label
        return super()._made(at, node if isinstance(node, ast.ClassDef) else self.read.function(node, label, None, inside), inside)

    def method(self, name: str) -> Summary | None:
        """The effects of calling a method of this name, in any class of the user, including the bench's methods; None: unknown."""
        if f".{name}" in self.open:
            return None
        key = (self.program.name, name, self.open, self.lazy)
        if key not in self.known:
            self.known[key] = self._made_of_methods(name, replace(self, place=self.program.end, open=self.open | {f".{name}"}))
        return self.known[key]

    def _made_of_methods(self, name: str, inside: At) -> Summary | None:
        nodes = self.read.methods.get(name) or [(self.program.label, node, around) for _, node, around in self.program.slicer.method_nodes(name)]
        if name in _OF_BENCH:
            nodes = [item for item in nodes if self.read.holders(item[2])]
        made = [effects.summarize(self.read.function(node, label, around, inside), inside) for label, node, around in nodes]
        changes = frozenset({"self"} if any(summary.parameters[:1] and summary.parameters[0] in summary.does for summary in made) else ())
        return Summary(("self",), changes, changes) if nodes else None
