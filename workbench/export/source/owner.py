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
    made = _method_at(
        sources[site.call.piece].tree, Spot(site.call.piece, call.lineno, call.col_offset)
    )
    if made is None or not any(
        isinstance(part, ast.Name) and part.id == made[1].args.args[0].arg
        for part in ast.walk(made[1])
    ):
        return None
    family = _family(made[0], sources)
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
    own = made[1].args.args[0].arg
    name = _name(site, made[1], own)
    if (
        caller is None
        and all(frame.elsewhere is None for frame in site.fit)
        and site.module != "__main__"
    ):
        raise ExportError(
            f"{made[0].name}.{made[1].name} made the Workbench, and another file than"
            f" {sources[site.call.piece].label} made the instance of {made[0].name}: write the"
            " class in the file or the notebook that makes it, make the Workbench again, fit and"
            " export that run."
        )
    if caller is None or name not in _named_at(sources, caller.spot):
        raise ExportError(
            f"{made[0].name}.{made[1].name} made the Workbench, and the instance of {made[0].name}"
            " has no name where it was made. Give it one in a statement of its own, `experiment ="
            f" {made[0].name}(…)`, and call fit in another one; fit again and export that run."
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
        own,
        made[1],
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
    found: dict[str, str] = {}
    parts = list(ast.walk(owner.method))
    stored = Counter(
        ast.unparse(part)
        for part in parts
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Store)
    )
    stored.update(part.arg for part in parts if isinstance(part, ast.arg))
    for node in (
        node
        for node in owner.method.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and node.lineno < call.lineno
    ):
        targets, value = node.targets if isinstance(node, ast.Assign) else [node.target], node.value
        pairs = [(targets[0], value)]
        if isinstance(targets[0], ast.Tuple) and isinstance(value, ast.Tuple):
            starred = any(isinstance(part, ast.Starred) for part in (*targets[0].elts, *value.elts))
            pairs = [] if starred else list(zip(targets[0].elts, value.elts, strict=True))
        for one, other in pairs:
            is_own = (
                isinstance(one, ast.Attribute)
                and isinstance(one.value, ast.Name)
                and one.value.id == owner.own
            )
            if (
                isinstance(one, ast.Attribute)
                and is_own
                and isinstance(other, ast.Name)
                and stored[ast.unparse(one)] == stored[other.id] == 1
            ):
                found[other.id] = one.attr
    return found


def _method_at(tree: ast.Module, spot: Spot) -> tuple[ast.ClassDef, _Method] | None:
    """The class and its method around a place."""
    for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for part in node.body:
            static = (
                {"staticmethod", "classmethod"} & set(map(ast.unparse, part.decorator_list))
                if isinstance(part, _Method)
                else True
            )
            if (
                isinstance(part, _Method)
                and not static
                and part.args.args
                and any(contains(inner, spot) for inner in part.body)
            ):
                return node, part
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
    found: set[str] = set()
    more = {node.name}
    while more:
        found |= more
        more = (
            {name for name, own in bases.items() if own & found}
            | {base for name in found for base in bases[name] & bases.keys()}
        ) - found
    return found


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
        part.id for node in around[-1:] for part in ast.walk(node) if isinstance(part, ast.Name)
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
        for index, node, body, part in gone:
            self._blank(lines[index], node, body, part)
        self.sources = [
            replace(source, text="\n".join(lines[index])) for index, source in enumerate(sources)
        ]

    def _of_class(
        self, index: int, node: ast.ClassDef
    ) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
        """The statements to remove, each with the suite in which it is."""
        for method in (part for part in node.body if isinstance(part, _Method)):
            if not method.args.args:
                continue
            made = any(part is self.call for part in ast.walk(method)) or self._has_call(method)
            ended = [spot for spot in self.fits if spot.piece == index and contains(method, spot)]
            self.own, self.bound, self.ended = (
                method.args.args[0].arg,
                set[str](),
                ended if made else [],
            )
            self.past = False
            found = list(self._of_suite(method.body))
            out = {part for _, part in found}
            empty = all(part in out or _does_nothing(part) for part in method.body)
            if found and (empty or (ended and not made)):
                self.dropped.add(method.name)
                yield node.body, method
            else:
                yield from found

    def _has_call(self, method: _Method) -> bool:
        return any(
            isinstance(part, ast.Call)
            and (part.lineno, part.col_offset) == (self.call.lineno, self.call.col_offset)
            for part in ast.walk(method)
        )

    def _of_suite(self, body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
        for part in body:
            suites = (
                [
                    suite
                    for name in ("body", "orelse", "finalbody")
                    if (suite := getattr(part, name, None))
                ]
                if not isinstance(part, (_Method, ast.ClassDef))
                else []
            )
            suites += [handler.body for handler in getattr(part, "handlers", ())]
            heads = (
                [part]
                if not suites
                else [
                    node
                    for node in ast.iter_child_nodes(part)
                    if not isinstance(node, (ast.stmt, ast.ExceptHandler))
                ]
            )
            if self.past or any(self._uses(head) for head in heads):
                self.bound |= uses(part).binds
                yield body, part
            elif suites:
                found = [item for suite in suites for item in self._of_suite(suite)]
                out = {inner for _, inner in found}
                if found and all(inner in out for suite in suites for inner in suite):
                    yield body, part
                else:
                    yield from found
            self.past = self.past or any(contains(part, spot) for spot in self.ended)

    def _uses(self, node: ast.AST) -> bool:
        """Whether code uses the bench, a method that uses the bench, or the workbench."""
        others = set()
        for part in ast.walk(node):
            match part:
                case ast.Attribute(value=ast.Name(id=own), attr=name, ctx=ast.Load()) if (
                    own == self.own and name in self.attributes | self.dropped
                ):
                    return True
                case ast.Attribute(value=ast.Name(id=module) as value, attr=name) if (
                    module in self.modules and name not in FACE
                ):
                    others.add(value)  # wb.Schedule, which a script may have
                case ast.Name(id=name) if name in self.bound | self.modules and part not in others:
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
