"""Handles a Workbench that is made in a method of a class: the script's class does not make one,
and the script reads model and data from the instance.

`self.bench = wb.Workbench(self.model, …)` in `Experiment.__init__`, with `experiment =
Experiment()`: the script makes `experiment` by a class whose methods do nothing with a bench, and
its model is `experiment.model`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from workbench.export.errors import ExportError
from workbench.export.source.capture import CallSite, Frame, Spot
from workbench.export.source.origins import imported
from workbench.export.source.rewrite.source_text import GONE
from workbench.export.source.slicer import FACE
from workbench.export.source.statements import Source, contains, first_line
from workbench.export.source.uses import uses

_Method = ast.FunctionDef


@dataclass(frozen=True)
class Owner:
    """The instance whose method made the Workbench."""

    name: str
    """Its name in the code that made it."""
    own: str
    """Its name in the method: `self`."""
    method: ast.FunctionDef
    caller: Frame
    """The code that made the instance or called its method, when the Workbench was made."""
    family: set[str]
    """The names of its class, and of that class's bases and subclasses."""
    sources: list[Source]
    """The code without the bench."""
    written: list[Source]
    """The code with the bench."""
    gone: frozenset[str]
    """Its attributes and methods that the script does not have."""


def owner_of(site: CallSite, sources: list[Source], call: ast.Call) -> Owner | None:
    """The instance whose method made the Workbench; None: no method made it.

    Raises ExportError where it has no name.
    """
    assert site.call is not None
    definition = _method_at(
        sources[site.call.piece].tree, Spot(site.call.piece, call.lineno, call.col_offset)
    )
    if definition is None or not any(
        isinstance(child, ast.Name) and child.id == definition[1].args.args[0].arg
        for child in ast.walk(definition[1])
    ):
        return None
    family = _family(definition[0], sources)
    methods = [
        (index, node)
        for index, source in enumerate(sources)
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name in family
    ]
    inside = [
        any(frame.spot.piece == index and contains(node, frame.spot) for index, node in methods)
        for frame in site.around
    ]
    first = inside.index(True) if True in inside else 0
    caller = site.around[first - 1] if first else None
    self_name = definition[1].args.args[0].arg
    name = _name(site, definition[1], self_name)
    if caller is None and site.module != "__main__":
        raise ExportError(
            f"{definition[0].name}.{definition[1].name} made the Workbench, and another file than"
            f" {sources[site.call.piece].label} made the instance of {definition[0].name}: write"
            " the class in the file or the notebook that makes it, make the Workbench again, fit"
            " and export that run."
        )
    if caller is None or name not in _named_at(sources, caller.spot):
        raise ExportError(
            f"{definition[0].name}.{definition[1].name} made the Workbench, and the instance of"
            f" {definition[0].name} has no name where it was made. Give it one in a statement of"
            f" its own, `experiment = {definition[0].name}(…)`, and call fit in another one; fit"
            " again and export that run."
        )
    attributes = {
        text.partition(".")[2]
        for frame in site.fit
        for text, other in frame.names.items()
        if not other and text.startswith(f"{name}.")
    }
    stripped = _Without(sources, methods, attributes, call, [frame.spot for frame in site.fit])
    return Owner(
        name,
        self_name,
        definition[1],
        caller,
        family,
        stripped.sources,
        sources,
        frozenset(attributes | stripped.dropped),
    )


def kept_as(owner: Owner, call: ast.Call) -> dict[str, str]:
    """The variables of the method, each with the attribute that has its value at the Workbench
    call: `self.model = model`.
    """
    attributes: dict[str, str] = {}
    parts = list(ast.walk(owner.method))
    stored = Counter(
        ast.unparse(child)
        for child in parts
        if isinstance(child, (ast.Name, ast.Attribute)) and isinstance(child.ctx, ast.Store)
    )
    stored.update(child.arg for child in parts if isinstance(child, ast.arg))
    for node in (
        node
        for node in owner.method.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and node.lineno < call.lineno
    ):
        targets, value = node.targets if isinstance(node, ast.Assign) else [node.target], node.value
        pairs = [(targets[0], value)]
        if isinstance(targets[0], ast.Tuple) and isinstance(value, ast.Tuple):
            starred = any(
                isinstance(child, ast.Starred) for child in (*targets[0].elts, *value.elts)
            )
            pairs = [] if starred else list(zip(targets[0].elts, value.elts, strict=True))
        for target, other in pairs:
            is_own = (
                isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == owner.own
            )
            if (
                isinstance(target, ast.Attribute)
                and is_own
                and isinstance(other, ast.Name)
                and stored[ast.unparse(target)] == stored[other.id] == 1
            ):
                attributes[other.id] = target.attr
    return attributes


def _method_at(tree: ast.Module, spot: Spot) -> tuple[ast.ClassDef, _Method] | None:
    """The class and its method around a place."""
    for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for method in node.body:
            static = (
                {"staticmethod", "classmethod"} & set(map(ast.unparse, method.decorator_list))
                if isinstance(method, _Method)
                else True
            )
            if (
                isinstance(method, _Method)
                and not static
                and method.args.args
                and any(contains(inner, spot) for inner in method.body)
            ):
                return node, method
    return None


def _family(node: ast.ClassDef, sources: Sequence[Source]) -> set[str]:
    """The names of a class, its bases and its subclasses."""
    classes = [
        node for source in sources for node in source.tree.body if isinstance(node, ast.ClassDef)
    ]
    bases = {
        node.name: {base.id for base in node.bases if isinstance(base, ast.Name)}
        for node in classes
    }
    family: set[str] = set()
    more = {node.name}
    while more:
        family |= more
        more = (
            {name for name, base_names in bases.items() if base_names & family}
            | {base for name in family for base in bases[name] & bases.keys()}
        ) - family
    return family


def _name(site: CallSite, method: _Method, own: str) -> str:
    """The name of the instance where it was made; "": it has none."""
    for frame in site.fit:
        for text, other in frame.names.items():
            name, _, attribute = text.partition(".")
            if attribute and not other and name != own:
                return name
    return next(
        (
            frame.names[own]
            for frame in site.fit
            if frame.names.get(own) and contains(method, frame.spot)
        ),
        "",
    )


def _named_at(sources: Sequence[Source], spot: Spot) -> set[str]:
    """The names in the statement at a place."""
    around = [
        node
        for node in ast.walk(sources[spot.piece].tree)
        if isinstance(node, ast.stmt) and contains(node, spot)
    ]
    return {
        child.id for node in around[-1:] for child in ast.walk(node) if isinstance(child, ast.Name)
    }


class _Without:
    """Removes statements that use the bench from the methods of a class."""

    def __init__(
        self,
        sources: list[Source],
        methods: list[tuple[int, ast.ClassDef]],
        attributes: set[str],
        call: ast.Call,
        fits: list[Spot],
    ) -> None:
        self.call, self.fits, self.attributes = call, fits, attributes
        ours = [
            item
            for source in sources
            for node in source.tree.body
            for item in imported(node)
            if item.module.partition(".")[0] == "workbench"
        ]
        self.modules = {item.binds for item in ours if item.name in (None, *FACE)}
        self.dropped: set[str] = set()
        before = None
        while before != self.dropped:
            before = set(self.dropped)
            gone = [
                (index, node, *item)
                for index, node in methods
                for item in self._of_class(index, node)
            ]
        lines = [list(source.lines) for source in sources]
        for index, node, body, statement in gone:
            self._blank(lines[index], node, body, statement)
        self.sources = [
            replace(source, text="\n".join(lines[index])) for index, source in enumerate(sources)
        ]

    def _of_class(
        self, index: int, node: ast.ClassDef
    ) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
        """The statements to remove, each with the suite in which it is."""
        for method in (child for child in node.body if isinstance(child, _Method)):
            if not method.args.args:
                continue
            makes_bench = any(child is self.call for child in ast.walk(method)) or self._has_call(
                method
            )
            ended = [spot for spot in self.fits if spot.piece == index and contains(method, spot)]
            self.own, self.bound, self.ended = (
                method.args.args[0].arg,
                set[str](),
                ended if makes_bench else [],
            )
            self.past = False
            removed = list(self._of_suite(method.body))
            out = {child for _, child in removed}
            empty = all(child in out or _does_nothing(child) for child in method.body)
            if removed and (empty or (ended and not makes_bench)):
                self.dropped.add(method.name)
                yield node.body, method
            else:
                yield from removed

    def _has_call(self, method: _Method) -> bool:
        return any(
            isinstance(child, ast.Call)
            and (child.lineno, child.col_offset) == (self.call.lineno, self.call.col_offset)
            for child in ast.walk(method)
        )

    def _of_suite(self, body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
        for statement in body:
            suites = (
                [
                    suite
                    for name in ("body", "orelse", "finalbody")
                    if (suite := getattr(statement, name, None))
                ]
                if not isinstance(statement, (_Method, ast.ClassDef))
                else []
            )
            suites += [handler.body for handler in getattr(statement, "handlers", ())]
            heads = (
                [statement]
                if not suites
                else [
                    node
                    for node in ast.iter_child_nodes(statement)
                    if not isinstance(node, (ast.stmt, ast.ExceptHandler))
                ]
            )
            if self.past or any(self._uses(head) for head in heads):
                self.bound |= uses(statement).binds
                yield body, statement
            elif suites:
                removed = [item for suite in suites for item in self._of_suite(suite)]
                out = {inner for _, inner in removed}
                if removed and all(inner in out for suite in suites for inner in suite):
                    yield body, statement
                else:
                    yield from removed
            self.past = self.past or any(contains(statement, spot) for spot in self.ended)

    def _uses(self, node: ast.AST) -> bool:
        """Whether code uses the bench, a method that uses the bench, or the workbench."""
        others = set()
        for child in ast.walk(node):
            match child:
                case ast.Attribute(value=ast.Name(id=own), attr=name, ctx=ast.Load()) if (
                    own == self.own and name in self.attributes | self.dropped
                ):
                    return True
                case ast.Attribute(value=ast.Name(id=module) as value, attr=name) if (
                    module in self.modules and name not in FACE
                ):
                    others.add(value)  # wb.Schedule, which a script may have
                case ast.Name(id=name) if name in self.bound | self.modules and child not in others:
                    return True
        return False

    def _blank(
        self, lines: list[str], around: ast.ClassDef, body: list[ast.stmt], part: ast.stmt
    ) -> None:
        """Remove a statement's lines, with the comments directly above it."""
        start, end = first_line(part), part.end_lineno or part.lineno
        if any(
            other is not part
            and first_line(other) <= end
            and start <= (other.end_lineno or other.lineno)
            for other in body
        ):
            raise ExportError(
                f"`{ast.unparse(part).partition(chr(10))[0]}` ({around.name}, line {part.lineno})"
                " shares its line with another statement: write each on a line of its own, make"
                " the Workbench again, fit and export that run."
            )
        left = [
            other for other in body if lines[first_line(other) - 1] != GONE and other is not part
        ]
        while start > 1 and (
            lines[start - 2].strip().startswith("#")
            or (isinstance(part, _Method) and not lines[start - 2].strip())
        ):
            start -= 1
        lines[start - 1 : end] = [GONE] * (end - start + 1)
        if not left:
            lines[end - 1] = " " * part.col_offset + "pass"


def _does_nothing(node: ast.stmt) -> bool:
    match node:
        case (
            ast.Pass()
            | ast.Return(value=None)
            | ast.Return(value=ast.Constant())
            | ast.Expr(value=ast.Constant())
        ):
            return True
        case ast.Return(value=ast.Name()):
            return True
    return False
