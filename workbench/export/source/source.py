"""Cuts out the code that a run used: the statements that make the arguments of `wb.Workbench(…)`,
and nothing else.

`CallSite.capture` stores the code that had run when the Workbench was made; `slice_call` goes
backwards from the arguments of that call, by definition and use, and copies the needed statements
as they were written.
capture.py     the call site, as plain data
origins.py     which modules are the user's own, so that their code is written out
uses.py        which names a statement reads and binds
changes.py     the objects that a statement changes
statements.py  pieces of source, and the statements that had run in them
order.py       these statements in the order in which they ran
owner.py       a Workbench that a method of a class makes
namespace.py   one namespace and its statements
slicer.py      the slice
rewrite/       writes the slice as one file: `writer.py` its text, `source_text.py` lines,
               `secret_literals.py` secrets, …
unresolved.py  the errors for names that a script cannot define
Known limits: what a statement changes cannot be known in general (`changes` has the assumptions),
and random numbers drawn by code that is not needed are not drawn by the script. `export` runs the
script and finds such differences (`verification/`).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from workbench.export.errors import ExportError, NotStandAlone
from workbench.export.source.capture import BuildCall, CallSite, Piece, Spot
from workbench.export.source.namespace import Namespace
from workbench.export.source.order import bench_of, statements_in_order
from workbench.export.source.origins import Import
from workbench.export.source.owner import Owner, kept_as, owner_of
from workbench.export.source.rewrite import annotation_names, source_text
from workbench.export.source.rewrite.secret_literals import Secrets, hide_in_comments
from workbench.export.source.rewrite.source_text import Block
from workbench.export.source.rewrite.writer import Writer, joined
from workbench.export.source.slicer import Slicer
from workbench.export.source.statements import (
    Source,
    find_call,
    stop_at,
)
from workbench.export.source.uses import Uses, first_name, own_level, uses

__all__ = ["CODE_ARGUMENTS", "CallSite", "ExportError", "Sliced", "slice_call"]

CODE_ARGUMENTS = (
    "model",
    "train",
    "val",
    "test",
    "loss",
    "optimizer",
    "groups",
    "batch_transform",
    "hooks",
    "scheduler",
    "metrics",
    "collate_fn",
    "val_collate_fn",
    "avg_fn",
    "should_update",
)
"""The arguments of Workbench that are code; the others are settings, whose values the run's
record has.
"""


@dataclass(frozen=True)
class Sliced:
    """The code that re-creates the arguments of a Workbench."""

    imports: str
    """Import statements, `from __future__` first."""
    code: str
    """The rest, unchanged, in the order in which it ran."""
    blocks: tuple[Block, ...]
    """`code`, statement by statement."""
    arguments: dict[str, str]
    """Each argument's expression by parameter name. Names in those of `CODE_ARGUMENTS` are
    defined by `imports` and `code`; the expressions of settings are given as they stand, and
    nothing is kept for them.
    """
    names: frozenset[str]
    """All names that `imports` and `code` bind at module level."""
    modules: frozenset[str]
    """The third-party packages imported, by their top-level names."""
    ready: frozenset[str] = frozenset()
    """The arguments that were given as `wb.batches(…)`: their expression is the one in its
    brackets.
    """
    notes: tuple[str, ...] = ()
    """Sentences for the user about its secrets."""
    differs: tuple[str, ...] = ()
    """Why the script may differ from the run."""
    secrets: Secrets = field(default_factory=Secrets, repr=False)
    """The secrets that the script reads from the environment."""


def slice_call(
    site: CallSite, leave_out: frozenset[str] = frozenset(), *, headless: bool = False
) -> Sliced:
    """The code that re-creates the arguments of the Workbench made at `site`, except for those in
    `leave_out`.

    headless: for a script that imports the workbench. Raises ExportError, naming the obstacle, when
    there is no such code.
    """
    if site.problem is not None or site.call is None:
        raise ExportError(
            f"The code of this Workbench cannot be exported: {site.problem}. "
            "Make the Workbench in a notebook cell or in a .py file."
        )
    sources = _sources(site.pieces)
    source, call, owner = _call_of(site, site.call, sources)
    every, places = _arguments(call, source, site.given)
    expressions = {name: node for name, node in every.items() if name not in leave_out}
    slicer = Slicer(site.sources, headless=headless)
    line, called = statements_in_order(site, sources, call, expressions.get("model"), owner)
    label = "the notebook" if len(sources) > 1 or source.label.startswith("In [") else source.label
    kinds = {**site.kinds, **({} if owner is None else {bench_of(owner): "workbench"})}
    program = Namespace("", label, site.package, line, kinds, slicer, called)
    slicer.programs[""] = program
    slicer.stopped_names = _stopped_names(site.pieces, sources)
    ready = frozenset() if headless else _without_batches(expressions, program)
    written = (*CODE_ARGUMENTS, "callbacks") if headless else CODE_ARGUMENTS
    code_given = {name: node for name, node in expressions.items() if name in written}
    wanted = _uses_of(code_given, program, source)
    slicer.want(program, wanted, expressions.get("model"), _called_names(expressions))
    code = (statement.node for each in slicer.programs.values() for statement in each.statements)
    secrets = Secrets.of(code)
    writer = Writer(slicer, secrets)
    writer.check(wanted)
    writer.write_type_only(annotation_names.keep_annotations(slicer, lambda: writer.check(wanted)))
    # the others are those that only annotations name
    for each in [program, *slicer.programs.values()]:
        if each.kept:
            writer.write(each)
    edits = slicer.shortened(program, wanted)

    def text_of(name: str, node: ast.expr) -> str:
        return source_text.cut_expression(
            source, node, joined(edits if name in code_given else (), secrets.edits(node))
        )

    arguments = {
        name: text_of(name, node) for name, node in expressions.items() if name not in places
    }
    for name, (containers, suffix) in places.items():
        texts = [text_of(name, node) for node in containers]
        arguments[name] = (texts[0] if len(texts) == 1 else f"{{**{', **'.join(texts)}}}") + suffix
    if site.build is not None and not headless:
        function = arguments["model"]
        arguments["model"] = _built(function, site.build)
        if site.build.rated:
            rates = _called(f"{_callee(function)}.rates", site.build)
            rules = arguments.get("groups", "None")
            arguments["groups"] = rates if rules == "None" else f"[{rules}, {rates}]"
    if secrets.module == "os" and secrets.read:
        writer.imports.append(Import("os"))
    blocks = tuple(replace(block, text=hide_in_comments(block.text)) for block in writer.blocks)
    sliced = Sliced(
        imports=source_text.set_imports(writer.imports, writer.futures),
        code=source_text.join(blocks),
        blocks=blocks,
        arguments=arguments,
        names=frozenset(writer.names),
        modules=source_text.third_party(writer.modules),
        ready=ready,
        notes=secrets.notes(),
        differs=tuple(slicer.left_out.values()),
        secrets=secrets,
    )
    _check_syntax(sliced)
    return sliced


def _built(function: str, build: BuildCall) -> str:
    """The expression of a model that a function makes."""
    if not build.returns_model:
        raise NotStandAlone(
            "model= is a function that returns arguments of the bench beside the model, which a"
            " stand-alone script cannot take apart."
        )
    return _called(_callee(function), build)


def _called(callee: str, build: BuildCall) -> str:
    values = ", ".join(f"{name}={text}" for name, text in build.values.items())
    return f"{callee}({values})"


def _callee(function: str) -> str:
    """An expression of a function, as a call has it."""
    callee = function.strip()
    return callee if callee.isidentifier() else f"({callee})"


def given_names(site: CallSite) -> frozenset[str]:
    """The names of the arguments of the Workbench made at `site`; none where its call cannot be
    read.
    """
    if site.problem is not None or site.call is None:
        return frozenset()
    source = _sources(site.pieces)[site.call.piece]
    try:
        call = find_call(source, site.call)
    except ExportError:
        return frozenset()
    named = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    return frozenset([*(["model"] if call.args else []), *named]) | site.given


# ---- the call ------------------------------------------------------------------------------------


def _call_of(
    site: CallSite, spot: Spot, sources: list[Source]
) -> tuple[Source, ast.Call, Owner | None]:
    """The Workbench call, its source, and the instance whose method made it; the call then has
    the instance's name.
    """
    source = sources[spot.piece]
    call = find_call(source, spot)
    owner = owner_of(site, sources, call)
    if owner is None:
        return source, call, None
    kept = {
        name: f"{owner.name}.{attribute}"
        for name, attribute in kept_as(owner, call).items()
        if name not in site.values
    }
    source = replace(
        source, spelled=((owner.own, owner.name), *kept.items()), function=owner.method.lineno
    )
    return source, find_call(source, spot), owner


def _sources(pieces: Iterable[Piece]) -> list[Source]:
    """The pieces as sources; in a notebook a `from __future__` import holds for the cells after
    it too.
    """
    sources: list[Source] = []
    postponed = False
    for piece in pieces:
        source = Source(piece.label, piece.source, postponed)
        if "annotations" in source.futures and not postponed:
            postponed = True
            source = Source(piece.label, piece.source, postponed)
        sources.append(source)
    return sources


def _arguments(
    call: ast.Call, source: Source, objects: Collection[str]
) -> tuple[dict[str, ast.expr], dict[str, tuple[list[ast.expr], str]]]:
    """The expressions of the call by parameter name; and, for an argument that a container gives,
    the container and the place, '["train"]'.

    objects: the names of the objects that the call gave, some of them perhaps only in `**kwargs`.
    The settings in it are in the record.
    """
    where = f"{source.label}, line {call.lineno}"
    expressions: dict[str, ast.expr] = {}
    places: dict[str, tuple[list[ast.expr], str]] = {}
    for value in call.args:
        expressions["model"] = value
        if isinstance(value, ast.Starred):
            if isinstance(value.value, (ast.Tuple, ast.List)) and value.value.elts:
                expressions["model"] = value.value.elts[0]
                continue
            expressions["model"] = _readable_again(value.value, "*", where)
            places["model"] = [expressions["model"]], "[0]"
    unpacked: list[ast.expr] = []
    for name, value in _keywords(call.keywords):
        if name is None:
            unpacked.append(value)
        else:
            expressions[name] = value
    for name in CODE_ARGUMENTS:
        if name in objects and name not in expressions:
            containers = [_readable_again(value, "**", where) for value in unpacked]
            expressions[name] = (
                containers[0] if len(containers) == 1 else ast.Tuple(containers, ast.Load())
            )
            places[name] = containers, f'["{name}"]'
    for name in set(expressions) & set(CODE_ARGUMENTS):
        for child in own_level(expressions[name]):
            if isinstance(child, (ast.NamedExpr, ast.Await)):
                remedy = (
                    f"Define `{child.target.id}` before the call"
                    if isinstance(child, ast.NamedExpr)
                    else "Call it in plain code before"
                )
                raise ExportError(
                    f"`{ast.unparse(child)}` inside the Workbench call ({where}) cannot be in a"
                    f" script. {remedy}."
                )
    return expressions, places


def _keywords(keywords: Iterable[ast.keyword]) -> Iterator[tuple[str | None, ast.expr]]:
    """The named arguments, those of a dict that is written in the call among them; and with None,
    expressions of other dicts.
    """
    for keyword in keywords:
        value = keyword.value
        if keyword.arg is not None:
            yield keyword.arg, value
        elif isinstance(value, ast.Dict) and all(
            key is None or isinstance(key, ast.Constant) for key in value.keys
        ):
            pairs = zip(value.keys, value.values, strict=True)
            yield from _keywords(
                ast.keyword(str(key.value) if isinstance(key, ast.Constant) else None, item)
                for key, item in pairs
            )
        elif (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id == "dict"
            and not value.args
        ):
            yield from _keywords(value.keywords)
        else:
            yield None, value


def _readable_again(value: ast.expr, stars: str, where: str) -> ast.expr:
    """The expression of a container, where reading it once for each argument gives the same;
    ExportError for another.
    """
    inner = value
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        inner = inner.value
    if isinstance(inner, ast.Name):
        return value
    text = ast.unparse(value)
    raise ExportError(
        f"`{stars}{text}` in the Workbench call ({where}) would be made anew for each argument. "
        f"Give it a name before, `given = {text}`, and write "
        f"`{stars}given`; then fit again and export that run."
    )


def _without_batches(given: dict[str, ast.expr], program: Namespace) -> frozenset[str]:
    """Remove `wb.batches(…)` from around arguments, since the script makes the loaders of ready
    batches.
    """
    ready = set()
    for name, node in given.items():
        if (
            not isinstance(node, ast.Call)
            or len(node.args) != 1
            or node.keywords
            or isinstance(node.args[0], ast.Starred)
        ):
            continue
        called = node.func
        if not isinstance(called, ast.Attribute) or called.attr != "batches":
            continue
        if (
            isinstance(called.value, ast.Name)
            and program.modules.get(called.value.id) == "workbench"
        ):
            given[name] = node.args[0]
            ready.add(name)
    return frozenset(ready)


def _called_names(given: Mapping[str, ast.expr]) -> frozenset[str]:
    """The names that the code arguments call; their functions read globals when the Workbench is
    made.
    """
    parts = (
        child for name, node in given.items() if name in CODE_ARGUMENTS for child in own_level(node)
    )
    roots = (first_name(child.func) for child in parts if isinstance(child, ast.Call))
    return frozenset(root for root in roots if root is not None)


def _stopped_names(pieces: Iterable[Piece], sources: list[Source]) -> dict[str, str]:
    names: dict[str, str] = {}
    for piece, source in zip(pieces, sources, strict=True):
        done = stop_at(source.tree.body, piece.stopped)
        for node in source.tree.body[len(done) :]:
            names |= dict.fromkeys(uses(node).binds, piece.label)
    return names


def _uses_of(given: dict[str, ast.expr], program: Namespace, source: Source) -> Uses:
    """The names that the arguments read."""
    nodes = list(given.values())
    return uses(
        ast.Expr(ast.Tuple(nodes, ast.Load())), frozenset(program.modules), source.postponed
    )


def _check_syntax(sliced: Sliced) -> None:
    try:
        compile(sliced.imports + "\n" + sliced.code, "<script>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = (getattr(error, "text", None) or "").strip()
        remedy = (
            "Set that variable at the top level, by `global`"
            if "nonlocal" in str(error)
            else "Write it as plain Python at the top level"
        )
        raise ExportError(
            f"The code of this Workbench cannot stand in a script: {error.args[0]} {line!r}."
            f" {remedy}."
        ) from error
