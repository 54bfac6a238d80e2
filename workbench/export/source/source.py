"""Cuts out the code that a run used: what re-creates the arguments of `wb.Workbench(…)`, and nothing else.

`CallSite.capture` remembers what had run when the Workbench was made; `slice_call` goes backwards from the arguments of
that call, by definition and use, and cuts the needed statements out as they were written.
capture.py     the call site, as plain data
origins.py     which modules are the user's own, so that their code is written out
uses.py        which names a statement reads and binds
effects.py     what else it changes
calls.py       what is known of the functions that it calls
reproducibility.py   why it may get other data than the run
missing_files.py  files that it reads and does not write
secret_literals.py  what must not be written down
statements.py  the straight line of statements that had run
namespace.py   one namespace and its statements
slicer.py      the slice
parts.py       what names may hold
writer.py      the text of the slice, in one namespace
annotation_names.py  what annotations name
unresolved.py  why a name is defined nowhere
layout.py      text
Known limits: what a statement changes cannot be known in general (`effects` has the assumptions); random numbers drawn
by code that is not needed are not drawn by the script (`Sliced.differs` says so).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from workbench.export.errors import ExportError
from workbench.export.source import calls, effects
from workbench.export.source.capture import CallSite, Frame, Piece, Spot
from workbench.export.source.findings import reproducibility
from workbench.export.source.findings.unresolved import changed_through_bench
from workbench.export.source.namespace import At, Namespace
from workbench.export.source.origins import Import
from workbench.export.source.owner import Owner, owner_of
from workbench.export.source.rewrite import annotation_names, layout
from workbench.export.source.rewrite.layout import Block
from workbench.export.source.rewrite.secret_literals import Secrets, hide_in_comments
from workbench.export.source.rewrite.writer import Writer, joined
from workbench.export.source.slicer import Slicer
from workbench.export.source.statements import (
    Line,
    Source,
    Statement,
    bind_values,
    contains,
    find_call,
    functions_around,
    refuse,
    refuse_turns,
    run,
    stop_at,
)
from workbench.export.source.uses import Uses, local_names, own_level, parameters, uses

__all__ = ["CODE_ARGUMENTS", "CallSite", "ExportError", "Sliced", "slice_call"]

CODE_ARGUMENTS = (
    "model", "train", "val", "test", "loss", "optimizer", "scheduler", "metrics", "collate_fn", "val_collate_fn", "avg_fn",
    "should_update",
)  # fmt: skip
"""The arguments of Workbench that are code; the others are settings, whose values the run's record has."""


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
    """Each argument's expression by parameter name. Names in those of `CODE_ARGUMENTS` are defined by `imports`
    and `code`; the expressions of settings are given as they stand, and nothing is kept for them."""
    names: frozenset[str]
    """All names that `imports` and `code` bind at module level."""
    modules: frozenset[str]
    """The third-party packages imported, by their top-level names."""
    ready: frozenset[str] = frozenset()
    """The arguments that were given as `wb.batches(…)`: their expression is the one in its brackets."""
    notes: tuple[str, ...] = ()
    """What a person should know of its secrets."""
    differs: tuple[str, ...] = ()
    """Why the script may get other data than the run."""
    secrets: Secrets = field(default_factory=Secrets, repr=False)
    """The secrets that the script reads from the environment."""


def slice_call(site: CallSite, leave_out: frozenset[str] = frozenset()) -> Sliced:
    """The code that re-creates the arguments of the Workbench made at `site`, but for those to leave out.

    Raises ExportError, naming what is in the way, when there is no such code.
    """
    if site.problem is not None or site.call is None:
        raise ExportError(
            f"The code of this Workbench cannot be exported: {site.problem}. "
            "Make the Workbench in a notebook cell or in a .py file."
        )
    sources = _sources(site.pieces)
    source = sources[site.call.piece]
    call = find_call(source, site.call)
    owner = owner_of(site, sources, call)
    if owner is not None:
        source = replace(source, spelled=((owner.own, owner.name),), function=owner.method.lineno)
        call = find_call(source, site.call)
    given = {name: node for name, node in _arguments(call, source).items() if name not in leave_out}
    here = Spot(site.call.piece, call.lineno, call.col_offset) if owner is None else owner.caller.spot
    slicer = Slicer(site.sources)
    line, called = _line(site, sources, call, given.get("model"), owner)
    label = "the notebook" if len(sources) > 1 or source.label.startswith("In [") else source.label
    kinds = {**site.kinds, **({} if owner is None else {_bench_of(owner): "workbench"})}
    program = Namespace("", label, site.package, line, kinds, slicer, called)
    slicer.programs[""] = program
    slicer.stopped_names = _stopped_names(site.pieces, sources)
    _refuse_rebound(program)
    ready = _without_batches(given, program)
    wanted = _uses_of({name: node for name, node in given.items() if name in CODE_ARGUMENTS}, program, source)
    slicer.want(program, wanted, given.get("model"), _called_names(given))
    code = (statement.node for each in slicer.programs.values() for statement in each.statements)
    secrets = Secrets.of(code)
    writer = Writer(slicer, list(given.values()), secrets)
    writer.check(wanted)
    writer.write_type_only(annotation_names.keep_annotations(slicer, lambda: writer.check(wanted)))
    for each in [program, *slicer.programs.values()]:  # the others are those that only annotations name
        if each.kept:
            writer.write(each)
    edits = tuple(wanted.attributes)
    arguments = {
        name: layout.cut_expression(source, node, joined(edits if name in CODE_ARGUMENTS else (), secrets.edits(node)))
        for name, node in given.items()
    }
    if secrets.module == "os" and secrets.read:
        writer.imports.append(Import("os"))
    blocks = tuple(replace(block, text=hide_in_comments(block.text)) for block in writer.blocks)
    sliced = Sliced(
        imports=layout.set_imports(writer.imports, writer.futures),
        code=layout.join(blocks),
        blocks=blocks,
        arguments=arguments,
        names=frozenset(writer.names),
        modules=layout.third_party(writer.modules),
        ready=ready,
        notes=secrets.notes(),
        differs=(
            *_changed_outside(site, functions_around(sources[here.piece].tree, here), sources, program),
            *reproducibility.notes(program, [given[name] for name in given if name in CODE_ARGUMENTS], saved=bool(leave_out)),
        ),
        secrets=secrets,
    )
    _check_syntax(sliced)
    return sliced


def given_names(site: CallSite) -> frozenset[str]:
    """The names of the arguments of the Workbench made at `site`; none where its call cannot be read."""
    if site.problem is not None or site.call is None:
        return frozenset()
    source = _sources(site.pieces)[site.call.piece]
    try:
        call = find_call(source, site.call)
    except ExportError:
        return frozenset()
    return frozenset([*(["model"] if call.args else []), *(keyword.arg or "**" for keyword in call.keywords)])


# ---- the call ---------------------------------------------------------------------------------------------------


def _sources(pieces: Iterable[Piece]) -> list[Source]:
    """The pieces as sources; in a notebook a `from __future__` import holds for the cells after it too."""
    found: list[Source] = []
    postponed = False
    for piece in pieces:
        source = Source(piece.label, piece.source, postponed)
        if "annotations" in source.futures and not postponed:
            postponed = True
            source = Source(piece.label, piece.source, postponed)
        found.append(source)
    return found


def _arguments(call: ast.Call, source: Source) -> dict[str, ast.expr]:
    """The expressions of the call by parameter name."""
    where = f"{source.label}, line {call.lineno}"
    found: dict[str, ast.expr] = {}
    for value in call.args:
        if isinstance(value, ast.Starred):
            raise ExportError(
                f"`*{ast.unparse(value.value)}` in the Workbench call ({where}) cannot be read. "
                "Write the arguments one by one."
            )
        if found:
            raise ExportError(
                f"The Workbench call ({where}) has several positional arguments; only the model is one. Name the others."
            )
        found["model"] = value
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ExportError(
                f"`**{ast.unparse(keyword.value)}` in the Workbench call ({where}) cannot be read. "
                "Write the arguments one by one."
            )
        found[keyword.arg] = keyword.value
    for name in set(found) & set(CODE_ARGUMENTS):
        for part in own_level(found[name]):
            if isinstance(part, ast.NamedExpr):
                raise ExportError(
                    f"`{ast.unparse(part)}` inside the Workbench call ({where}) cannot be in a script. "
                    f"Define `{part.target.id}` before the call."
                )
            if isinstance(part, ast.Await):
                raise ExportError(
                    f"`{ast.unparse(part)}` inside the Workbench call ({where}) waits, which a script cannot at its "
                    "top level. Call it in plain code before."
                )
    return found


def _without_batches(given: dict[str, ast.expr], program: Namespace) -> frozenset[str]:
    """Remove `wb.batches(…)` from around arguments, since the script makes the loaders of ready batches."""
    found = set()
    for name, node in given.items():
        if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords or isinstance(node.args[0], ast.Starred):
            continue
        called = node.func
        if not isinstance(called, ast.Attribute) or called.attr != "batches":
            continue
        if isinstance(called.value, ast.Name) and program.modules.get(called.value.id) == "workbench":
            given[name] = node.args[0]
            found.add(name)
    return frozenset(found)


def _line(site: CallSite, sources: list[Source], call: ast.Call, model: ast.expr | None, owner: Owner | None) -> tuple[Line, int]:
    """The statements that had run when the run began, and how many of them had when the Workbench was made."""
    assert site.call is not None
    written, here, values, made = sources, Spot(site.call.piece, call.lineno, call.col_offset), site.values, call
    if owner is not None:
        sources, here, values = owner.sources, owner.caller.spot, owner.caller.values
    source = sources[here.piece]
    functions = functions_around(source.tree, here)
    reached = site.reached if functions else here
    last = len(sources) - 1 if reached is None else reached.piece
    line = Line()
    for index in range(last + 1):
        piece, stop = site.pieces[index], reached if index == last else None
        body = stop_at(sources[index].tree.body, piece.stopped)
        run(line, sources[index], body, stop, 0, site.top_values if functions else values)
    for function in functions:
        what = f"a parameter of {function.name}"
        held = {name: values.get(name) for name in parameters(function.args)}
        bind_values(line, source.label, 1, held, what)
        if function is not functions[-1]:
            local = {n for s in function.body for n in uses(s).binds} - set(held)
            what = f"a variable of {function.name}"
            bind_values(line, source.label, 1, {n: values.get(n) for n in sorted(local)}, what)
        else:
            run(line, source, function.body, here, 1, values)
    if owner is not None:
        _make_owner(line, source, here, owner, made, site.values, 1 if functions else 0)
    called = len(line.statements)
    if site.fit and reached is not None:
        named = ast.unparse(model) if isinstance(model, (ast.Name, ast.Attribute)) and (owner is not None or isinstance(model, ast.Name)) else ""
        _run_on(line, site, sources, written, here, functions, reached, named, owner)
    return line, called


def _make_owner(line: Line, source: Source, here: Spot, owner: Owner, call: ast.Call, values: Mapping[str, str], scope: int) -> None:
    """Append the statement at `here`, which made the instance or called its method, and what the Workbench call reads of that method."""
    around = [node for node in ast.walk(source.tree) if isinstance(node, ast.stmt) and contains(node, here)]
    if not any(ast.unparse(part) in {f"{owner.name}.{name}" for name in owner.gone} for part in ast.walk(around[-1])):
        line.statements.append(Statement(around[-1], source, scope))
    read = uses(ast.Expr(call)).eager & local_names(owner.method) - {owner.name}
    bind_values(line, source.label, 1, {name: values.get(name) for name in sorted(read)}, f"a variable of {owner.method.name} that the instance does not keep (`{owner.own}.… = …`)")
    made = Source(source.label, f"import workbench\n{_bench_of(owner)} = workbench.Workbench({owner.name})\n")
    line.statements += [Statement(node, made, scope, made=True) for node in made.tree.body]


def _bench_of(owner: Owner) -> str:
    """A name for the bench that an instance holds; no script has it."""
    return f"bench_of_{owner.name}"


def _run_on(
    line: Line, site: CallSite, sources: list[Source], written: list[Source], call: Spot, functions: list[ast.FunctionDef], reached: Spot, model: str,
    owner: Owner | None = None,
) -> None:  # fmt: skip
    """Append what ran after the call, until the run began: in the function around the call, at the top level, in the functions
    that called fit. model: the name of the model; "": it has none.
    """
    top, *inner = site.fit
    loops = len(line.loops)
    scopes = itertools.count(2)
    own = functions[-1] if functions else None
    same = next((frame for frame in inner if own and (at := _function_at(frame, written)) and at.lineno == own.lineno and "" in frame.names.values()), None)
    start = len(line.statements)
    if own is not None:
        source = _respelled(sources[call.piece], same, model, owner, own)
        body = next(node.body for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef) and node.lineno == own.lineno)
        run(line, source, body, None if same is None else same.spot, 1, site.values if same is None else same.values, call)
        _leave_out(line, start, call if owner is not None else None)
    start = len(line.statements)
    for index in range(reached.piece, top.spot.piece + 1):
        source = _respelled(sources[index], top, model, owner)
        body = stop_at(source.tree.body, site.pieces[index].stopped)
        stop = top.spot if index == top.spot.piece else None
        run(line, source, body, stop, 0, top.values, reached if index == reached.piece else None)
    _leave_out(line, start, reached if own is not None or owner is not None else None)
    if own is not None:
        _beside_function(line, start, model)
    for frame in inner[inner.index(same) + 1 if same is not None else 0 :]:
        source = written[frame.spot.piece] if frame.elsewhere is None else Source(frame.elsewhere.label, frame.elsewhere.source, elsewhere=True)
        function = _function_at(frame, written)
        if function is None and frame.elsewhere is None:
            continue  # a comprehension, or a lambda
        start, scope, named = len(line.statements), next(scopes), model
        if own is not None and function is not None:
            local = set(parameters(function.args)) - set(frame.names) | {n for s in function.body for n in uses(s).binds}
            clash = local & {name for statement in line.statements if statement.scope == 1 for name in uses(statement.node).binds}
            scope, named = (scope, "") if clash else (1, model)
        if function is not None and frame.elsewhere is None:
            hidden = local_names(function)
            frame = replace(frame, names={name: new for name, new in top.names.items() if name.partition(".")[0] not in hidden} | dict(frame.names))
        source = _respelled(source, frame, named, owner, function)
        node = next((node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef) and node.lineno == function.lineno), None) if function else None
        if node is not None:
            held = {name: frame.values.get(name) for name in parameters(node.args) if name not in frame.names}
            bind_values(line, source.label, scope, held, f"a parameter of {node.name}")
        run(line, source, source.tree.body if node is None else node.body, frame.spot, scope, frame.values)
        if frame.elsewhere is not None:
            refuse(line, start, f"it is in {source.label}, which called fit")
    if any("fit" in job.id and job.shared is None for job in site.before):
        refuse_turns(line, loops, site.fit)


def _function_at(frame: Frame, sources: list[Source]) -> ast.FunctionDef | None:
    """The function that a frame runs."""
    tree = sources[frame.spot.piece].tree if frame.elsewhere is None else ast.parse(frame.elsewhere.source)
    around = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and any(contains(s, frame.spot) for s in node.body)]
    return around[-1] if around else None


def _respelled(source: Source, frame: Frame | None, model: str, owner: Owner | None, function: ast.FunctionDef | None = None) -> Source:
    """The source with the script's names for what a frame has by others: the model for `bench.model`."""
    names = {} if frame is None else frame.names
    held = [] if owner is None else [owner.name, *(name for name, other in names.items() if other == owner.name)]
    spelled = {f"{name}.{gone}": _bench_of(owner) for name in held if owner is not None for gone in owner.gone}
    spelled |= {name: other for name, other in names.items() if other}
    spelled |= {f"{name}.model": model for name, other in names.items() if model and not other}
    return replace(source, spelled=tuple(spelled.items()), function=function.lineno if function else 0)


def _leave_out(line: Line, start: int, done: Spot | None) -> None:
    """Leave out the statement at `start` if it is at `done`: what it did, others of the line did."""
    if done is not None and start < len(line.statements) and contains(line.statements[start].node, done):
        del line.statements[start]


def _beside_function(line: Line, start: int, model: str) -> None:
    """Let statements at the top level that name the model as the function around the call did see its variables."""
    local = {name for statement in line.statements[:start] if statement.scope for name in uses(statement.node).binds}
    for statement in line.statements[start:]:
        if set(ast.walk(statement.node)) & {node for node, _ in statement.source.edits} and not uses(statement.node).eager & local - {model}:
            statement.scope = 1


def _changed_outside(site: CallSite, functions: list[ast.FunctionDef], sources: list[Source], program: Namespace) -> Iterator[str]:
    """Statements that changed what a function returned beside the Workbench that it made: there it has another name.

    Raises ExportError for those that changed the model through the bench, and that the script cannot have.
    """
    top = site.reached
    benches = {name for frame in site.fit for name, other in frame.names.items() if not other}
    made = next((node for node in sources[top.piece].tree.body if contains(node, top)), None) if functions and top is not None else None
    names = uses(made).binds if made is not None else frozenset()
    for place in range(program.called, program.end):
        statement = program.statements[place]
        changed = effects.surely_changed(statement.node, At(program, place))
        through = {ast.unparse(part.value) for part in own_level(statement.node) if isinstance(part, ast.Attribute) and part.attr == "model"} & benches
        if any(name.partition(".")[0] in changed for name in through):
            raise changed_through_bench(statement)
        if any(program.kinds.get(name) != "workbench" for name in changed & names):
            yield (
                f"`{statement.gist}` ({statement.place}) is not in the script: it may have changed what {functions[0].name} returned. "
                f"Change it in {functions[0].name}, before the Workbench is made, fit again and export that run."
            )


def _called_names(given: Mapping[str, ast.expr]) -> frozenset[str]:
    """The names that the code arguments call, so that what these read is read when the Workbench is made."""
    parts = (part for name, node in given.items() if name in CODE_ARGUMENTS for part in own_level(node))
    roots = (calls.first_name(part.func) for part in parts if isinstance(part, ast.Call))
    return frozenset(root for root in roots if root is not None)


def _refuse_rebound(program: Namespace) -> None:
    """What is known of a parameter or loop variable is its value at the call: it must have had it all along."""
    for place, statement in enumerate(program.statements):
        if not statement.made or isinstance(statement.node, ast.Import) or statement.refusal is not None:
            continue
        for name in program.uses[place].binds:
            for later in range(place + 1, program.called if place < program.called else program.end):
                other = program.statements[later]
                if other.scope != statement.scope or other.made:
                    continue
                if name in program.bound(later) or name in program.slicer.changes(program, later):
                    statement.refusal = f"`{name}` is bound anew or changed by `{other.gist}` ({other.place})"


def _stopped_names(pieces: Iterable[Piece], sources: list[Source]) -> dict[str, str]:
    found: dict[str, str] = {}
    for piece, source in zip(pieces, sources, strict=True):
        done = stop_at(source.tree.body, piece.stopped)
        for node in source.tree.body[len(done) :]:
            found |= dict.fromkeys(uses(node).binds, piece.label)
    return found


def _uses_of(given: dict[str, ast.expr], program: Namespace, source: Source) -> Uses:
    """The names that the arguments read."""
    nodes = list(given.values())
    return uses(ast.Expr(ast.Tuple(nodes, ast.Load())), frozenset(program.modules), source.postponed)


def _check_syntax(sliced: Sliced) -> None:
    try:
        compile(sliced.imports + "\n" + sliced.code, "<script>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "text", None) or ""
        raise ExportError(
            f"The code of this Workbench cannot stand in a script: {error.args[0]} {line.strip()!r}. "
            "Write it as plain Python at the top level."
        ) from error
