"""Finds what a statement changes besides the names that it binds: objects and process state.

`rows.append(1)` binds no name and changes the object `rows`. The slicer keeps such statements if it
keeps the object.

Python does not say what a call changes, so this module assumes it:

- A call that is a statement of its own (`prepare(model)`) changes its arguments, unless it is known
  not to.
- A call within an expression changes its arguments if a package defines the function or the object.
- Any other call within an expression changes what its source is seen to change.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from workbench.export.source import calls, process_state
from workbench.export.source.calls import Context, Outside, Summary
from workbench.export.source.origins import is_inlined
from workbench.export.source.uses import local_names, own_level, parameters, target_names, targets

_WORKBENCH = "workbench.Workbench"


def changed(node: ast.AST, context: Context) -> frozenset[str]:
    """Return the names whose objects `node` is known to change."""
    reader = _Changes(context, conservative=True)
    reader.visit(node)
    return frozenset(reader.found | _registered(node, context))


def surely_changed(node: ast.AST, context: Context) -> frozenset[str]:
    """The names whose objects `node` is known to change, without those that it may only possibly change."""
    reader = _Changes(context, conservative=False)
    made = [part for part in own_level(node) if isinstance(part, ast.Call)]
    if not context.certain and any(calls.path_of(call.func, context) == _WORKBENCH for call in made):  # a Workbench takes its arguments, and a fit trains them
        return frozenset(name for call in made for name in reader._fitted(call))
    reader.visit(node)
    return frozenset(reader.found)


def _registered(node: ast.AST, context: Context) -> set[str]:
    """What a definition changes besides its name: tables to which its decorators add it, base classes that list their subclasses."""
    found: set[str] = set()
    for decorator in node.decorator_list if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ():
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        root, summary = calls.first_name(function), calls.summary_of(function, context)
        if summary is not None:
            found |= summary.outside.may | summary.outside.later
            given = calls.arguments(decorator, summary.parameters, summary.may | summary.later) if isinstance(decorator, ast.Call) else ()
            found |= _roots_of(given, context)
        elif isinstance(function, ast.Attribute) and root is not None and not context.is_module(root):
            found.add(root)
    return found | _of_bases(node, context)


def _of_bases(node: ast.AST, context: Context) -> frozenset[str]:
    """The names that the base classes and the metaclass of a class may change when the class is defined."""
    bases = [*node.bases, *(keyword.value for keyword in node.keywords)] if isinstance(node, ast.ClassDef) else []
    summaries = [calls.summary_of(base, context) for base in bases]
    return frozenset(name for summary in summaries if summary is not None for name in summary.outside.later)


def directly_changed(node: ast.AST) -> frozenset[str]:
    """The names whose attributes or items a simple statement sets, or whose method it calls as a statement."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        return roots(node.value.func.value)
    found = targets(node) if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) else []
    return _roots_of([target for target in found if not isinstance(target, ast.Name)], None)


def summarize(node: ast.FunctionDef | ast.AsyncFunctionDef, context: Context, around: frozenset[str] = frozenset()) -> Summary:
    """The effects of a call of the function `node`. around: the names that the functions around it bind."""
    own = frozenset(parameters(node.args))
    parts = (part for statement in node.body for part in own_level(statement))
    shared = {name for part in parts if isinstance(part, ast.Nonlocal) for name in part.names}
    local = frozenset(local_names(node) - shared)
    seen: list[frozenset[str]] = []
    outside: list[frozenset[str]] = []
    returns: frozenset[str] = frozenset()
    for conservative in (True, False):
        reader = _Changes(context, conservative=conservative, broad=conservative, hidden=own)
        for statement in node.body:
            reader.visit(statement)
        seen.append(frozenset(reader.found) & own)
        outside.append(frozenset(n for n in reader.found - local if n in around or context.kind(n) not in calls.UNCHANGED))
        returns = frozenset(reader.returned)
    state = any(process_state.sets_state(statement, context) for statement in node.body)
    later = _changed_later(node, context, local | around)
    beyond = Outside(outside[0], outside[1], returns - local, later - local)
    names = tuple(a.arg for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
    return Summary(names, seen[0], seen[1], returns & own, state, beyond, later & own, bool(later & local))


def _changed_later(node: ast.FunctionDef | ast.AsyncFunctionDef, context: Context, around: frozenset[str]) -> frozenset[str]:
    """The outer names whose objects the functions defined in a function may change."""
    inner = [part for part in ast.walk(node) if isinstance(part, ast.FunctionDef) and part is not node]
    return frozenset(name for part in inner for name in summarize(part, context, around).outside.may)


def accumulates(node: ast.FunctionDef, context: Context) -> bool:
    """Whether a method changes its object by more than setting an attribute: `self.calls += 1`, `self.seen.append(x)`."""
    own = node.args.args[0].arg if node.args.args else ""
    reader = _Changes(context, conservative=False, hidden=frozenset(local_names(node)))
    for part in (part for statement in node.body for part in own_level(statement)):
        if isinstance(part, ast.AugAssign):
            reader.visit_AugAssign(part)
        elif isinstance(part, ast.Call):
            reader._inner_call(part)
        elif isinstance(part, ast.Assign):
            read = {ast.unparse(inner) for inner in ast.walk(part.value) if isinstance(inner, ast.Attribute)}
            reader.found |= {own for target in part.targets if ast.unparse(target) in read and calls.first_name(target) == own}
    return own in reader.found


def summarize_class(node: ast.ClassDef, context: Context) -> Summary:
    """The effects of making an instance of the class `node`. The instance is assumed to contain the arguments."""
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    later = set(_of_bases(node, context))
    if "__init_subclass__" in methods or any(isinstance(base, ast.Name) and base.id == "type" for base in node.bases):
        later.add(node.name)  # a metaclass may list the classes that are made with it
    later |= {name for method in ("__init_subclass__", "__new__", "__init__", "__call__") if method in methods for name in summarize(methods[method], context).outside.may}
    if "__init__" in methods:
        made = summarize(methods["__init__"], context)
        parameters = made.parameters[1:]
        held = frozenset(parameters) | {"*"}
        entered = "__enter__" in methods and summarize(methods["__enter__"], context).state
        return Summary(parameters, made.may & held, made.does & held, held, made.state or entered, replace(made.outside, later=frozenset(later)))
    fields = [part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)]
    return Summary(tuple(fields), frozenset(), frozenset(), frozenset(fields) | {"*"}, outside=Outside(later=frozenset(later)))


def aliases(node: ast.stmt, name: str, context: Context) -> frozenset[str]:
    """The names whose objects, or parts of them, `name` may hold after `node`, which binds it."""
    found: set[str] = set()
    for part in own_level(node):
        value = part.iter if isinstance(part, ast.For) else getattr(part, "value", None)
        if value is not None and any(name in target_names(target) for target in targets(part)):
            found |= roots(value, context) | ({name} if isinstance(part, ast.AugAssign) else set())
    return frozenset(found)


class _Changes(ast.NodeVisitor):
    """Collects the names whose objects are changed."""

    def __init__(
        self, context: Context, *, conservative: bool, broad: bool = False, hidden: frozenset[str] = frozenset()
    ) -> None:
        self.context = context
        self.conservative = conservative
        self.broad = broad
        self.hidden = hidden
        self.found: set[str] = set()
        self.returned: set[str] = set()
        self.derived: dict[str, frozenset[str]] = {}
        self.methods: dict[str, ast.Attribute] = {}
        self.benches: set[str] = set()
        self.depth = 0

    # -- bindings of parts of objects

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._store(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._store(node.target, node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self._add(self._held(node.target))

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Name):
                self._add(self._held(target))

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._add(name for name in self._roots(node.iter) if self._kind(name) == "iterator")
        self._derive(node.target, node.iter)
        self._suite([*node.body, *node.orelse])

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._suite([*node.body, *node.orelse])

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._derive(item.optional_vars, item.context_expr)
        for statement in node.body:
            self.visit(statement)

    def _suite(self, body: list[ast.stmt]) -> None:
        self.depth += 1
        for statement in body:
            self.visit(statement)
        self.depth -= 1

    def _store(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            self._add(self._held(target))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for item in target.elts:
                self._store(item, value)
        elif isinstance(target, ast.Starred):
            self._store(target.value, value)
        else:
            self._derive(target, value)

    def _derive(self, target: ast.expr, value: ast.expr) -> None:
        if self.broad:
            roots = frozenset(part.id for part in own_level(value) if isinstance(part, ast.Name))
        else:
            roots = self._roots(value)
        if isinstance(target, ast.Name) and isinstance(value, ast.Attribute):
            self.methods[target.id] = value
        if isinstance(target, ast.Name) and isinstance(value, ast.Call) and self._path(value.func) == _WORKBENCH:
            self.benches.add(target.id)
        for name in target_names(target):
            self.derived[name] = self.derived.get(name, frozenset()) | (self._expand(roots) - {name})

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.returned |= self._expand(self._roots(node.value))

    # -- definitions, which do nothing until they are called

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            self.visit(decorator)

    def visit_Lambda(self, node: ast.AST) -> None:
        return

    visit_AsyncFunctionDef = visit_ClassDef = visit_Assert = visit_Lambda

    # -- calls

    def visit_Expr(self, node: ast.Expr) -> None:
        if self.conservative and isinstance(node.value, ast.Call):
            self._statement_call(self._spelled(node.value))
        elif self.conservative and isinstance(node.value, ast.BinOp):  # table << row
            operands = [side for part in ast.walk(node.value) if isinstance(part, ast.BinOp) for side in (part.left, part.right)]
            names = {side.id for side in operands if isinstance(side, ast.Name)}
            self._add({name for name in names if self._kind(name) not in (None, *calls.UNCHANGED, *calls.LIBRARY)})
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        self._inner_call(self._spelled(node))
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in ("map", "filter") and node.args and not self._local(node.func.id):
            self._call_of_each(*node.args)

    def _call_of_each(self, function: ast.expr, *items: ast.expr) -> None:
        """Visit the calls that `map` makes of `function`, with these items."""
        if not isinstance(function, ast.Lambda):
            self._inner_call(self._spelled(ast.Call(function, list(items), [])))
            return
        for parameter, value in zip(function.args.args, items, strict=False):
            self._derive(ast.Name(parameter.arg), value)
        self.visit(function.body)

    def _visit_comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        for part in node.generators:
            self.visit(part.iter)
            self._derive(part.target, part.iter)
        self.generic_visit(node)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_comprehension

    def _spelled(self, call: ast.Call) -> ast.Call:
        """The call with a bound method in place of its name: `rows.append(1)` for `add(1)` after `add = rows.append`."""
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        method = self.methods.get(name) or (None if self._local(name) else self.context.bound_method(name))
        return call if method is None else ast.Call(method, call.args, call.keywords)

    def _statement_call(self, call: ast.Call) -> None:
        """Take a call that is a statement: unless it is known to be harmless, it changes all its arguments."""
        name = calls.terminal(call.func)
        root = calls.first_name(call.func)
        path = self._path(call.func)
        if name in calls.HARMLESS or (path or "").partition(".")[0] in calls.SHOWING:
            return
        if path is not None and calls.PURE.fullmatch(path) and not calls.is_inplace(call):
            return
        if self.depth and name in calls.IN_A_LOOP:
            return
        if name.startswith("clip_grad_"):
            return
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(call.func, ast.Attribute) and not self._is_module(root):
            direct = isinstance(call.func.value, ast.Name)
            known = calls.OF_KIND.get(self._kind(root) or "") if direct else None
            summary = self.context.method(name) if name not in calls.CHANGING and known is None else None
            if summary is not None:
                if "self" in summary.may:
                    self._add(self._held(call.func.value))
            elif known is None or name in known or name.endswith("_"):
                self._add(self._held(call.func.value))
            if name in calls.TAKES_IN:
                return
        else:
            if isinstance(call.func, ast.Name) and self._kind(call.func.id) == "network":
                self._add({call.func.id} if self.context.lazy else set())
                return
            summary = self._summary(call.func)
            if summary is not None:
                self._add_arguments(call, summary.parameters, summary.may)
                self._add(summary.outside.may)
                return
            made = self._summary(call.func.func) if isinstance(call.func, ast.Call) else None  # register("net")(Net)
            self._add(made.outside.later if made is not None else frozenset())
        for value in given:
            self._add(name for name in self._roots(value) if self._kind(name) not in calls.UNCHANGED)

    def _inner_call(self, call: ast.Call) -> None:
        """Take any call: only known changes count."""
        name = calls.terminal(call.func)
        root = calls.first_name(call.func)
        in_place = (name.endswith("_") and not name.startswith("_")) or calls.is_inplace(call)
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        self._add(self._fitted(call))
        self._add({name for keyword in call.keywords if keyword.arg == "out" for name in self._roots(keyword.value)})
        if isinstance(call.func, ast.Attribute) and not self._is_module(root):
            kind = self._kind(root)
            summary = self.context.method(name) if name not in calls.CHANGING and kind not in calls.LIBRARY else None
            if summary is not None:
                change = "self" in summary.does
            elif kind in ("random", "iterator"):
                change = isinstance(call.func.value, ast.Name)
            elif kind == "estimator":
                change = name.startswith(("fit", "partial_fit", "set_"))
            else:
                change = name in calls.CHANGING and kind not in ("frame", "tensor", "array", "immutable")
                change = change or name in calls.OF_KIND.get(kind or "", ()) or in_place
                known = kind is None or kind in calls.LIBRARY or self._reads(name)
                change = change or (not known and not self.context.certain)
            if change and not name.startswith("clip_grad_"):
                self._add(self._held(call.func.value))
        elif name == "next" and call.args:
            # Iterating advances an iterator, and does not change a container.
            moves = ("iterator", None) if isinstance(call.args[0], ast.Name) else ("iterator",)
            self._add(name for name in self._roots(call.args[0]) if self._kind(name) in moves)
        elif isinstance(call.func, ast.Name) and not self._local(name) and self.context.keeps_state(name):
            self._add({name})
        elif (in_place or name in calls.CHANGING_FIRST) and call.args and not name.startswith("clip_grad_"):
            self._add(self._roots(call.args[0]))
        summary = self._summary(call.func)
        if summary is not None:
            self._add_arguments(call, summary.parameters, summary.does)
            self._add(summary.outside.does)
        if name not in calls.HARMLESS:
            unknown = summary is None and not self.context.certain and self._is_of_package(call)
            for value in given:
                kinds = {n: self._kind(n) for n in self._roots(value)}
                self._add({n for n, kind in kinds.items() if kind in ("random", "iterator") or (unknown and kind not in calls.UNCHANGED)})

    def _fitted(self, call: ast.Call) -> set[str]:
        """The objects that a fit of a Workbench trains, by name."""
        if self.context.certain or not isinstance(call.func, ast.Attribute) or call.func.attr != "fit":
            return set()
        bench = call.func.value
        if isinstance(bench, ast.Name):
            return {bench.id} if bench.id in self.benches or self._kind(bench.id) == "workbench" else set()
        return set(self._roots(bench)) if isinstance(bench, ast.Call) and self._path(bench.func) == _WORKBENCH else set()

    def _reads(self, name: str) -> bool:
        """Whether a method of this name usually only reads its object."""
        return name in calls.HARMLESS or name in calls.SAME_OBJECT or name == "forward" or bool(self.depth and name in calls.IN_A_LOOP)

    def _is_of_package(self, call: ast.Call) -> bool:
        """Whether a function of a package is called that may change its arguments, as far as is known."""
        path = self._path(call.func)
        if path is None or is_inlined(path) or path.partition(".")[0] in calls.SHOWING:
            return False
        return not calls.PURE.fullmatch(path)

    def _add_arguments(self, call: ast.Call, parameters: tuple[str, ...], wanted: frozenset[str]) -> None:
        for value in calls.arguments(call, parameters, wanted):
            self._add(self._roots(value))

    # -- names

    def _roots(self, node: ast.expr) -> frozenset[str]:
        return roots(node, self.context)

    def _held(self, node: ast.expr) -> frozenset[str]:
        """The names that are changed if `node` or a part of it is: `cache(3)["a"] = 1` changes an object that `cache` keeps."""
        inner: ast.expr = node
        while isinstance(inner, (ast.Attribute, ast.Subscript)):
            inner = inner.value
        name = inner.func.id if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) else ""
        keeps = name != "" and not self._local(name) and self.context.hands_out(name)
        return self._roots(node) | (frozenset({name}) if keeps else frozenset())

    def _add(self, names: Iterable[str]) -> None:
        self.found |= self._expand(names)

    def _expand(self, names: Iterable[str]) -> set[str]:
        found: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self.derived.get(name, ())
        return found

    def _local(self, name: str) -> bool:
        return name in self.hidden or name in self.derived

    def _kind(self, name: str | None) -> str | None:
        return None if name is None or self._local(name) else self.context.kind(name)

    def _is_module(self, name: str | None) -> bool:
        return name is not None and not self._local(name) and self.context.is_module(name)

    def _summary(self, func: ast.expr) -> Summary | None:
        root = calls.first_name(func)
        return None if root is None or self._local(root) else calls.summary_of(func, self.context)

    def _path(self, func: ast.expr) -> str | None:
        root = calls.first_name(func)
        return None if root is None or root in self.hidden else calls.path_of(func, self.context)


def roots(node: ast.expr, context: Context | None = None) -> frozenset[str]:
    """The names whose objects, or parts of them, the value of `node` is or contains."""
    match node:
        case ast.Name():
            return frozenset({node.id})
        case ast.Attribute() | ast.Subscript() | ast.Starred() | ast.NamedExpr() | ast.Await():
            return roots(node.value, context)
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items) | ast.Dict(values=items) | ast.BoolOp(values=items):
            return _roots_of(items, context)
        case ast.IfExp():
            return _roots_of([node.body, node.orelse], context)
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
            return _roots_of([part.iter for part in node.generators], context)
        case ast.Call(func=ast.Lambda(body=value)):
            return roots(value, context)
        case ast.Call(func=ast.Name(id="getattr"), args=[value, _, *default]):
            return _roots_of([value, *default], context)
        case ast.Call(func=ast.Call(func=func), args=items) if calls.terminal(func) in ("attrgetter", "itemgetter"):
            return _roots_of(items, context)
        case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in calls.SAME_OBJECT:
            return roots(value, context)
        case ast.Call(func=func, args=items) if calls.terminal(func) in calls.WRAPPERS:
            return _roots_of(items, context)
        case ast.BinOp() if context is not None:
            return frozenset(name for name in _roots_of([node.left, node.right], context) if context.kind(name) in ("list", "tuple"))
        case ast.Call() if context is not None and _makes_trainer(node, context):
            return _roots_of(node.args, context)  # its steps change them
        case ast.Call() if context is not None and (summary := calls.summary_of(node.func, context)) is not None:
            given = calls.arguments(node, summary.parameters, summary.returns)
            return summary.outside.returns | _roots_of(given, context)
        case _:
            return frozenset()


def _roots_of(nodes: Iterable[ast.expr], context: Context | None) -> frozenset[str]:
    return frozenset(name for node in nodes for name in roots(node, context))


def makes_trainer(node: ast.stmt, context: Context) -> bool:
    """Whether a statement makes an optimizer of torch, a scheduler, or a Workbench."""
    return any(isinstance(part, ast.Call) and _makes_trainer(part, context) for part in own_level(node))


def _makes_trainer(call: ast.Call, context: Context) -> bool:
    path = calls.path_of(call.func, context) or ""
    return path.startswith("torch.optim.") or path == _WORKBENCH
