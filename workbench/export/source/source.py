"""Cuts out the code that a run used: what re-creates the arguments of `wb.Workbench(…)`, and nothing else.

`CallSite.capture` remembers what had run when the Workbench was made; `slice_call` goes backwards from the arguments of
that call, by definition and use, and cuts the needed statements out as they were written.
capture.py     the call site, as plain data
origins.py     which modules are the user's own, so that their code is written out
uses.py        which names a statement reads and binds
effects.py     what else it changes
calls.py       what is known of the functions that it calls
reproducibility.py   why it may get other data than the run
secret_literals.py  what must not be written down
statements.py  the straight line of statements that had run
namespace.py   one namespace and its statements
slicer.py      the slice
annotation_names.py  what annotations name
unresolved.py  why a name is defined nowhere
layout.py      text
Known limits: what a statement changes cannot be known in general (`effects` has the assumptions); random numbers drawn
by code that is not needed are not drawn by the script (`Sliced.differs` says so).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from workbench.export.errors import ExportError
from workbench.export.source import annotation_names, effects, layout, origins, reproducibility
from workbench.export.source.annotation_names import TypeOnly
from workbench.export.source.capture import CallSite, Piece, Spot
from workbench.export.source.layout import Block, Import
from workbench.export.source.namespace import At, Namespace
from workbench.export.source.secret_literals import Secrets, hide_in_comments, needs
from workbench.export.source.slicer import Slicer
from workbench.export.source.statements import (
    Line,
    Source,
    Statement,
    bind_values,
    find_call,
    functions_around,
    run,
    stop_at,
)
from workbench.export.source.uses import Uses, imported_name, own_level, uses

__all__ = ["CODE_ARGUMENTS", "CallSite", "ExportError", "Sliced", "slice_call"]

CODE_ARGUMENTS = (
    "model", "train", "val", "test", "loss", "optimizer", "scheduler", "metrics", "collate_fn", "avg_fn", "should_update",
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
    given = {name: node for name, node in _arguments(call, source).items() if name not in leave_out}
    slicer = Slicer(site.sources)
    line = _line(site, sources, call)
    label = "the notebook" if len(sources) > 1 or source.label.startswith("In [") else source.label
    program = Namespace("", label, site.package, line, site.kinds, slicer)
    slicer.programs[""] = program
    slicer.stopped_names = _stopped_names(site.pieces, sources)
    _refuse_rebound(program)
    ready = _without_batches(given, program)
    wanted = _uses_of({name: node for name, node in given.items() if name in CODE_ARGUMENTS}, program, source)
    slicer.want(program, wanted)
    code = (statement.node for each in slicer.programs.values() for statement in each.statements)
    secrets = Secrets.of(code)
    writer = _Writer(slicer, list(given.values()), secrets)
    writer.check(wanted)
    writer.write_type_only(annotation_names.keep_annotations(slicer, lambda: writer.check(wanted)))
    for each in [program, *slicer.programs.values()]:  # the others are those that only annotations name
        if each.kept:
            writer.write(each)
    edits = tuple(wanted.attributes)
    arguments = {
        name: layout.cut_expression(source, node, _joined(edits if name in CODE_ARGUMENTS else (), secrets.edits(node)))
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
        differs=reproducibility.notes(program, [given[name] for name in given if name in CODE_ARGUMENTS], saved=bool(leave_out)),
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


def _line(site: CallSite, sources: list[Source], call: ast.Call) -> Line:
    """The statements that had run when the Workbench was made."""
    assert site.call is not None
    source = sources[site.call.piece]
    functions = functions_around(source.tree, call)
    here = Spot(site.call.piece, call.lineno, call.col_offset)
    reached = site.reached if functions else here
    last = len(sources) - 1 if reached is None else reached.piece
    line = Line()
    for index in range(last + 1):
        piece, stop = site.pieces[index], reached if index == last else None
        body = stop_at(sources[index].tree.body, piece.stopped)
        run(line, sources[index], body, stop, 0, site.top_values if functions else site.values)
    for function in functions:
        what = f"a parameter of {function.name}"
        arguments = function.args
        names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        held = {a.arg: site.values.get(a.arg) for a in names if a is not None}
        bind_values(line, source.label, 1, held, what)
        if function is not functions[-1]:
            local = {n for s in function.body for n in uses(s).binds} - set(held)
            what = f"a variable of {function.name}"
            bind_values(line, source.label, 1, {n: site.values.get(n) for n in sorted(local)}, what)
        else:
            run(line, source, function.body, here, 1, site.values)
    return line


def _refuse_rebound(program: Namespace) -> None:
    """What is known of a parameter or loop variable is its value at the call: it must have had it all along."""
    for place, statement in enumerate(program.statements):
        if not statement.made or isinstance(statement.node, ast.Import) or statement.refusal is not None:
            continue
        for name in program.uses[place].binds:
            for later in range(place + 1, program.end):
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


# ---- writing ----------------------------------------------------------------------------------------------------


@dataclass
class _Writer:
    """Writes the kept statements of all programs as one namespace."""

    slicer: Slicer
    given: list[ast.expr]
    """The arguments of the Workbench call."""
    secrets: Secrets
    imports: list[Import] = field(default_factory=list)
    futures: set[str] = field(default_factory=set)
    blocks: list[Block] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    _written: set[str] = field(default_factory=set)
    _environment: bool = False

    def write(self, program: Namespace) -> None:
        """Write what is kept of `program`, and of a module of the user's where it is first imported."""
        if program.name in self._written:
            return
        self._written.add(program.name)
        for place in sorted(program.kept):
            statement = program.statements[place]
            if statement.source.postponed:
                self.futures.add("annotations")
            if isinstance(statement.node, (ast.Import, ast.ImportFrom)):
                self._write_import(program, place, statement.node)
            else:
                self._write_statement(program, place, statement)

    def write_type_only(self, names: tuple[TypeOnly, ...]) -> None:
        """Write what only type checkers see."""
        if names:
            self.imports.append(Import("typing", "TYPE_CHECKING"))
            self.blocks.append(annotation_names.type_checking_block(names))
            self.names |= {"TYPE_CHECKING", *(one.name for one in names)}

    def _write_statement(self, program: Namespace, place: int, statement: Statement) -> None:
        own = program.uses[place]
        block = self._without_secrets(statement, own.attributes)
        state = effects.sets_state(statement.node, At(program, place))
        if state and isinstance(statement.node, ast.Expr) and "chdir" not in block.text:
            before = next((b for b in reversed(self.blocks) if not b.definition), None)
            if before is not None and before.text == block.text:
                return
        self._environment = self._environment or effects.sets_environment(statement.node, At(program, place))
        self.blocks.append(block)
        self.names |= program.bound(place)
        for part in ast.walk(statement.node):
            if isinstance(part, ast.Import):
                self.modules |= {alias.name for alias in part.names}
            elif isinstance(part, ast.ImportFrom):
                self.modules.add(origins.resolve(part.module, part.level, program.package))

    def _without_secrets(self, statement: Statement, edits: layout.Edits) -> Block:
        """The text of a statement; what is secret in it is read from the environment."""
        set_here = self.secrets.sets(statement.node)
        if set_here:
            cut = layout.cut(statement)
            return replace(cut, text=f"# {needs(set_here)}")
        secret = self.secrets.edits(statement.node)
        block = layout.cut(statement, _joined(edits, secret))
        return replace(block, text=f"# {needs(self.secrets.variables_of(secret))}\n{block.text}") if secret else block

    def _write_import(self, program: Namespace, place: int, node: ast.Import | ast.ImportFrom) -> None:
        for item, alias in _items(program, node):
            name = imported_name(alias)
            is_star = alias.name == "*"
            if not is_star and (place, name) not in program.needed:
                continue
            if origins.is_inlined(item.module):
                self._write_inlined(program, item, name)
                continue
            if self._is_extra(program, place, item):
                continue
            self.modules.add(item.module)
            self.names |= self.slicer.star_names(program, node) if is_star else {name}
            if self._environment or len(_identities(program).get(name, ())) > 1:
                self.blocks.append(Block(item.text, origin=program.statements[place].source.label, start=node.lineno, end=node.lineno))
            else:
                self.imports.append(item)

    def _write_inlined(self, program: Namespace, item: Import, name: str) -> None:
        if name in program.modules:
            self._write_module(program.modules[name])
        elif item.name is not None:
            home = self.slicer.home(item.module, item.name) if item.name != "*" else item.module
            self._write_module(item.module)
            self._write_module(home)
            if item.name not in ("*", name):
                self.blocks.append(Block(f"{name} = {item.name}"))
                self.names.add(name)

    def _write_module(self, name: str) -> None:
        self.write(self.slicer.module(name))
        # What the module hands out from elsewhere is written with it.
        for other in list(self.slicer.inlined):
            if other.partition(".")[0] == "workbench" and name == "workbench":
                self.write(self.slicer.module(other))

    def _is_extra(self, program: Namespace, place: int, item: Import) -> bool:
        """Whether `import a.b` adds nothing: `a.b` is not used, and something else imports `a`."""
        if item.name is not None or item.alias or "." not in item.module:
            return False
        chains = self._chains(program)
        used: list[int] = []
        for other in sorted(program.kept):
            node = program.statements[other].node
            if isinstance(node, ast.Import) and (other, item.binds) in program.needed:
                for alias in node.names:
                    path = alias.name.split(".")
                    if alias.asname is None and (len(path) == 1 or ".".join(path[:2]) in chains):
                        used.append(other)
        return bool(used) and place not in used

    def _chains(self, program: Namespace) -> set[str]:
        """The `a.b` that kept code spells."""
        nodes: list[ast.AST] = [program.statements[place].node for place in program.kept]
        return {
            f"{part.value.id}.{part.attr}"
            for node in [*nodes, *(self.given if program.name == "" else ())]
            for part in ast.walk(node)
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name)
        }

    # -- one name, one meaning

    def check(self, call: Uses) -> None:
        """Raise ExportError for names that would mean two things once all code is in one namespace."""
        meanings: dict[str, dict[tuple[str, int], tuple[set[str], str]]] = {}
        for program in self._programs():
            for place in sorted(program.kept):
                statement = program.statements[place]
                for name, meaning in _meanings(program, place):
                    known = meanings.setdefault(name, {})
                    known.setdefault((program.name, statement.scope), (set(), statement.place))[0].add(meaning)
        for name, spaces in sorted(meanings.items()):
            if len(spaces) > 1 and len(set().union(*(found for found, _ in spaces.values()))) > 1:
                raise _two_meanings(name, [place for _, place in spaces.values()])
        for program in self._programs():
            for scope, name in sorted(program.builtins_used):
                for space, (_, there) in meanings.get(name, {}).items():
                    if space != (program.name, scope):
                        raise _two_meanings(name, [there, f"the built-in used in {program.label}"])
            shortened = [(program.uses[place], program.statements[place].place) for place in sorted(program.kept)]
            if program.name == "":
                shortened.append((call, "the Workbench call"))
            for own, where in shortened:
                self._check_short(program, own, where, meanings)

    def _check_short(
        self, program: Namespace, own: Uses, where: str, meanings: dict[str, dict[tuple[str, int], tuple[set[str], str]]]
    ) -> None:
        for node, short in own.attributes:
            if short in own.inner or any(space[0] == program.name for space in meanings.get(short, {})):
                raise ExportError(
                    f"`{ast.unparse(node)}` ({where}) cannot be shortened to `{short}`, which means something else there. "
                    f"Import it under a name of its own: `from … import {short} as …`."
                )

    def _programs(self) -> list[Namespace]:
        return [program for program in self.slicer.programs.values() if program.kept]


def _joined(edits: Iterable[tuple[ast.AST, str]], secret: layout.Edits) -> layout.Edits:
    """All edits; of those inside of one another, the secret's."""
    inside = {id(part) for node, _ in secret for part in ast.walk(node)}
    return (*(edit for edit in edits if id(edit[0]) not in inside), *secret)


def _items(program: Namespace, node: ast.Import | ast.ImportFrom) -> Iterable[tuple[Import, ast.alias]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield Import(alias.name, None, alias.asname), alias
        else:
            module = origins.resolve(node.module, node.level, program.package)
            yield Import(module, alias.name, alias.asname if alias.asname != alias.name else None), alias


def _meanings(program: Namespace, place: int) -> Iterable[tuple[str, str]]:
    """What a kept statement makes each name mean."""
    node, scope = program.statements[place].node, program.statements[place].scope
    code = f"{program.name}/{scope}"
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from ((name, code) for name in program.bound(place))
        return
    for item, alias in _items(program, node):
        name = imported_name(alias)
        if alias.name == "*" and not origins.is_inlined(item.module):
            needed = {n for at, n in program.needed if at == place}
            yield from ((n, f"import {origins.star_identity(item.module, n)}") for n in needed)
        elif (place, name) in program.needed:
            if not origins.is_inlined(item.module):
                yield name, f"import {item.identity}"
            elif name not in program.modules and item.name != name:
                yield name, code


def _identities(program: Namespace) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for place in program.kept:
        for name, meaning in _meanings(program, place):
            found.setdefault(name, set()).add(meaning)
    return found


def _two_meanings(name: str, places: list[str]) -> ExportError:
    listed = " and ".join(dict.fromkeys(places))
    return ExportError(
        f"`{name}` means two things in code that must stand in one file: {listed}. Rename one of them, and make the "
        "Workbench again."
    )
