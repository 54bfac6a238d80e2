"""Selects the statements of the user's code that a script needs, from the Workbench call backwards.

The slicer begins with the names that the call reads. For each name it finds the statement that
bound it last before that point, keeps that statement, and goes on with the names that this one
reads. A function reads its globals when it is called, so they are looked up at each kept statement
that may call it, and at the end of the code. A statement that changes a kept object is kept, too
(`changes.py`).
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workbench.export.errors import ExportError
from workbench.export.source import changes, origins
from workbench.export.source.capture import kind
from workbench.export.source.namespace import Namespace, Summaries, is_star
from workbench.export.source.statements import Line, Source, Statement, is_main_guard, run
from workbench.export.source.unresolved import remedy_of, unresolved
from workbench.export.source.uses import DOT, Uses, terminal

BUILTINS = frozenset(dir(builtins)) - {
    "display",
    "get_ipython",
    "exit",
    "quit",
    "copyright",
    "credits",
    "license",
}
_GIVEN = frozenset(
    {"__name__", "__doc__", "__package__", "__spec__", "__loader__", "__builtins__", "__class__"}
)
FACE = {"Workbench", "attach"}
"""Names of the workbench that a script never has."""
_TAINTED = "it uses the workbench"


def _is_ours(item: origins.Import) -> bool:
    return item.module.partition(".")[0] == "workbench"


def _inlined(module: str, used: str) -> ExportError:
    return ExportError(
        f"`{module}` {used}, and its code is written into the script. Import what you need of it at"
        f" the top level: `from {module} import …`; what you set in it, set in its file."
    )


def _reads_command_line(node: ast.AST) -> bool:
    """Whether `node` reads the command line arguments of the process."""
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        return terminal(node.func) in ("parse_args", "parse_known_args")
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.argv"


@dataclass(frozen=True)
class _Ask:
    """A name to look up at a place."""

    program: Namespace
    name: str
    place: int
    user: int | None
    """The statement that reads it; None: the Workbench call, or an import in another module."""
    late: bool = False
    needed: bool = True


class Slicer:
    """Keeps the needed statements of the notebook or file with the call, and of the modules from
    which it takes code.
    """

    def __init__(self, sources: Mapping[str, str], *, headless: bool = False) -> None:
        """headless: the script imports what it needs of the workbench; else its code is written
        into the script.
        """
        self.sources, self.headless = sources, headless
        self.programs: dict[str, Namespace] = {}
        self.inlined: set[str] = set()
        self.lazy = False
        self.summaries: Summaries = {}
        # Names that a cell would have bound after the line at which it raised an error, each with
        # that cell.
        self.stopped_names: Mapping[str, str] = {}
        self.left_out: dict[tuple[str, int], str] = {}
        """A sentence for each statement that is not in the script, by namespace and place."""
        self._queue: deque[tuple[str, Namespace, int, int]] = deque()
        self._touched: set[tuple[str, int, int]] = set()
        self._late_found: set[tuple[str, int, str]] = set()
        self._late_missing: list[tuple[Namespace, int, str]] = []
        self._tainted: dict[tuple[str, int], bool] = {}
        self._faces: dict[tuple[str, str], bool] = {}
        self._changed: dict[tuple[str, int], frozenset[str]] = {}
        self._called: frozenset[str] = frozenset()
        self._model: set[tuple[int, str]] = set()
        """The bindings of the parts of the model, whose weights a script reads from the run."""

    # -- modules

    def is_kept_import(self, item: origins.Import) -> bool:
        """Whether the script imports it from the workbench."""
        return self.headless and _is_ours(item)

    def shortened(self, program: Namespace, own: Uses) -> tuple[tuple[ast.Attribute, str], ...]:
        """The attributes of modules whose code is written into the script, each with its short
        name.
        """
        if not self.headless:
            return own.attributes
        modules = {
            name for name, module in program.modules.items() if module.split(".")[0] == "workbench"
        }
        return tuple(
            (node, short)
            for node, short in own.attributes
            if not (isinstance(node.value, ast.Name) and node.value.id in modules)
        )

    def is_submodule(self, name: str) -> bool:
        """Whether `name` is a module of its own, not a name in one."""
        return name in sys.modules or name in self.sources

    def module(self, name: str) -> Namespace:
        """The program of the user's module `name`."""
        if name not in self.programs:
            loaded = sys.modules.get(name)
            path = origins.file_of(loaded) if loaded is not None else ""
            text = self.sources.get(name)
            if text is None:
                text = origins.read(path) if path.endswith(".py") else None
            if text is None:
                raise ExportError(
                    f"The source of module `{name}` cannot be read, and it is no installed package"
                    " that a script could import. Install it, or define in the notebook what you"
                    " take from it."
                )
            held = vars(loaded) if loaded is not None else {}
            is_package = path.endswith("__init__.py") or hasattr(loaded, "__path__")
            first = Source(path.rpartition("/")[2] or f"{name}.py", text)
            source = Source(first.label, text, "annotations" in first.futures)
            line = Line()
            run(
                line,
                source,
                [node for node in source.tree.body if not is_main_guard(node)],
                None,
                0,
                {},
            )
            kinds = {key: kind(value) for key, value in held.items()}
            package = name if is_package else name.rpartition(".")[0]
            self.programs[name] = Namespace(name, source.label, package, line, kinds, self)
        return self.programs[name]

    def imported(
        self, program: Namespace, node: ast.ImportFrom, name: str
    ) -> tuple[Namespace, str] | None:
        """The module, and the name in it, that `name` was imported from, if it is one of the
        user's.
        """
        for item in origins.imported(node, program.package):
            if item.binds in (name, "*") and origins.is_inlined(item.module):
                return self.module(item.module), name if item.binds == "*" else str(item.name)
        return None

    def star_names(self, program: Namespace, node: ast.stmt) -> frozenset[str]:
        """The names that `from module import *` binds."""
        assert isinstance(node, ast.ImportFrom)
        return origins.star_names(
            origins.resolve(node.module, node.level, program.package), program.label
        )

    # -- asking

    def want(
        self, program: Namespace, names: Uses, model: ast.expr | None, called: frozenset[str]
    ) -> None:
        """Keep the statements for names that the Workbench call reads, and that the run read
        later. called: the names that its arguments call.
        """
        held = changes.roots(model, program, program.called) if model is not None else ()
        self._model = changes.parts_of(program, [(name, program.called) for name in held])
        self._called = called
        self._start(program)
        for name in sorted(names.eager):
            self._ask(_Ask(program, name, program.called, None))
        for name in sorted(names.late - names.eager):
            self._ask(_Ask(program, name, program.end, None))
        self._settle()

    def try_to_keep(self, home: str, name: str, check: Callable[[], None]) -> None:
        """Keep the definition of `name` at the end of the namespace `home`, if that adds only
        definitions and `check` raises no ExportError.
        """
        kept = {
            id(p): (set(p.kept), set(p.needed), set(p.builtins_used))
            for p in self.programs.values()
        }
        before = (
            set(self.inlined),
            set(self._touched),
            set(self._late_found),
            list(self._late_missing),
        )
        lazy = self.lazy
        try:
            program = self.module(home)
            self._ask(_Ask(program, name, program.end, None, needed=False))
            self._settle()
            for namespace in self.programs.values():
                if not all(
                    map(
                        namespace.only_defines,
                        namespace.kept - kept.get(id(namespace), (set(),))[0],
                    )
                ):
                    raise ExportError(f"{name} needs more than definitions.")
            check()
        except ExportError:
            for namespace in self.programs.values():
                namespace.kept, namespace.needed, namespace.builtins_used = kept.get(
                    id(namespace), (set(), set(), set())
                )
            self.inlined, self._touched, self._late_found, self._late_missing = before
            self._queue.clear()
            self._changed.clear()
            self.lazy = lazy

    def _start(self, program: Namespace) -> None:
        """Keep the statements that set process state, since the results of others depend on it."""
        for index, statement in enumerate(program.statements[: program.called]):
            unmade = statement.refusal is None and not statement.made
            definition = isinstance(
                statement.node, (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
            )
            if not unmade or definition or self.tainted(program, index):
                continue
            if changes.PROCESS in self.changes(program, index):
                self._keep(program, index)

    def _settle(self) -> None:
        """Follow all kept statements, and those that change kept objects, until none is added."""
        while True:
            while self._queue:
                task, program, index, at = self._queue.popleft()
                if task == "keep":
                    self._follow(program, index)
                else:
                    self._touch(program, index, at)
            if not self._keep_changes():
                break
        for program, index, name in self._late_missing:
            if (program.name, index, name) not in self._late_found:
                raise self._unresolved(_Ask(program, name, program.end, index, late=True))

    def _ask(self, ask: _Ask) -> None:
        program, index = ask.program, ask.place
        base, dot, attribute = ask.name.partition(DOT)
        scope = 1 if ask.user is None else program.statements[ask.user].scope
        bindings = program.reaching(base, index, scope)
        certain = [
            at
            for at in bindings
            if base in program.uses[at].definite or is_star(program.statements[at].node)
        ]
        if not certain and base in BUILTINS:
            program.builtins_used.add((scope, base))
        if not bindings:
            if base in BUILTINS or base in _GIVEN or not ask.needed:
                return
            if ask.late:
                assert ask.user is not None
                self._late_missing.append((program, ask.user, ask.name))
                return
            raise self._unresolved(ask)
        if ask.late and ask.user is not None:
            self._late_found.add((program.name, ask.user, ask.name))
        for at in bindings:
            if self._refuse(ask, at):
                continue
            program.needed.add((at, base))
            self._keep(program, at)
            self._queue.append(("touch", program, at, index))
            self._follow_import(ask, at, base, attribute if dot else None)

    def _refuse(self, ask: _Ask, at: int) -> bool:
        """Whether to leave out an optional name; a needed one that cannot be written is an
        error.
        """
        program = ask.program
        statement = program.statements[at]
        base, _, attribute = ask.name.partition(DOT)
        reason = statement.refusal
        if reason is None and self._is_face(program, at, base, attribute):
            reason = _TAINTED
        if reason is None:
            return False
        if not ask.needed:
            return True
        where = f"`{statement.gist}` ({statement.place})"
        why, remedy = f"{where} cannot be in a script: {reason}", remedy_of(statement.node)
        if reason == _TAINTED:
            why = f"it comes from the workbench, which a script does not have: {where}"
            remedy = "Make it from plain code, or write its value."
        elif statement.made:
            why = reason.partition("` ")[2]
            remedy = (
                "Make it from plain code next to the Workbench call, or at the top level of the"
                " file."
            )
        raise ExportError(f"`{base}` is needed{self._by(ask)}, but {why}. {remedy}")

    def _follow_import(self, ask: _Ask, at: int, base: str, attribute: str | None) -> None:
        """Keep the code of an imported name, if it is in one of the user's own modules."""
        program = ask.program
        node = program.statements[at].node
        if any(
            self.is_kept_import(item) and item.binds in (base, "*")
            for item in origins.imported(node, program.package)
        ):
            return
        if base in program.modules and isinstance(node, (ast.Import, ast.ImportFrom)):
            module = program.modules[base]
            if attribute is None or self.is_submodule(f"{module}.{attribute}"):
                raise _inlined(
                    module if attribute is None else f"{module}.{attribute}",
                    f"is used as a whole{self._by(ask)}",
                )
            self._take(module, attribute, ask)
        elif isinstance(node, ast.ImportFrom):
            imported = self.imported(program, node, base)
            if imported is not None:
                self._take(imported[0].name, imported[1], ask)

    def _take(self, module: str, name: str, ask: _Ask) -> None:
        """Keep `name` of the user's module `module`."""
        program = self.module(module)
        if module not in self.inlined:
            self.inlined.add(module)
            self._start(program)
        if not program.reaching(name, program.end):
            home = self._home(module, name)
            if home is None:
                raise ExportError(
                    f"`{name}` is taken from {module}{self._by(ask)}, but {program.label} does not"
                    " define it in a way that can be read. Define it there at the top level, or in"
                    " the notebook."
                )
            return self._take(home, name, ask)
        return self._ask(_Ask(program, name, program.end, None))

    def home(self, module: str, name: str) -> str:
        """The module whose code binds the `name` that `module` exports."""
        program = self.module(module)
        return module if program.reaching(name, program.end) else self._home(module, name) or module

    def _home(self, module: str, name: str) -> str | None:
        """The module that defines a name which `module` returns from its own `__getattr__`."""
        loaded = sys.modules.get(module)
        origin = getattr(getattr(loaded, name, None), "__module__", None)
        return (
            origin
            if isinstance(origin, str) and origin != module and origins.is_inlined(origin)
            else None
        )

    def _by(self, ask: _Ask) -> str:
        if ask.user is None:
            return " by the Workbench call" if ask.program.name == "" else ""
        statement = ask.program.statements[ask.user]
        return f" by `{statement.gist}` ({statement.place})"

    def _unresolved(self, ask: _Ask) -> ExportError:
        used = self._by(ask) or f" by {ask.program.label}"
        return unresolved(ask.program, ask.name.partition(DOT)[0], used, self.stopped_names)

    # -- keeping

    def _keep(self, program: Namespace, place: int) -> None:
        if place not in program.kept:
            program.kept.add(place)
            self._queue.append(("keep", program, place, place))

    def _follow(self, program: Namespace, place: int) -> None:
        """Look up all names that a kept statement reads."""
        statement = program.statements[place]
        if isinstance(statement.node, (ast.Import, ast.ImportFrom)):
            return
        self._check_fit(program, statement)
        used = program.uses[place]
        for name in sorted(used.eager):
            self._ask(_Ask(program, name, place, place))
        for name in sorted(used.optional):
            self._ask(_Ask(program, name, place, place, needed=False))
        at_once = not isinstance(statement.node, (ast.FunctionDef, ast.ClassDef))
        for name in sorted(used.late):
            if at_once and program.reaching(name.partition(DOT)[0], place, statement.scope):
                self._ask(_Ask(program, name, place, place, late=True, needed=False))
            self._ask(_Ask(program, name, program.end, place, late=True))
        self.lazy = self.lazy or any(
            (getattr(child, "id", None) or getattr(child, "attr", None) or "").startswith("Lazy")
            for child in ast.walk(statement.node)
        )

    def _check_fit(self, program: Namespace, statement: Statement) -> None:
        for child in ast.walk(statement.node):
            if _reads_command_line(child):
                raise ExportError(
                    f"`{statement.gist}` ({statement.place}) reads the command line, and the script"
                    " has one of its own, with its settings. Write the values that the run used."
                )
            for item in origins.imported(child, program.package):
                if origins.is_inlined(item.module) and not self.is_kept_import(item):
                    raise _inlined(
                        item.module, f"is imported by `{statement.gist}` ({statement.place})"
                    )

    def _touch(self, program: Namespace, place: int, at: int) -> None:
        """Look up the globals of functions that statement `place` bound and that may be called
        at `at`.
        """
        # the Workbench call only passes it on
        passed = at == program.called and not self._called & program.uses[place].binds
        if at == program.end or passed or (program.name, place, at) in self._touched:
            return
        self._touched.add((program.name, place, at))
        used = program.uses[place]
        scope = program.statements[place].scope
        for name in sorted(used.late):
            if program.reaching(name.partition(DOT)[0], at, scope):
                self._ask(_Ask(program, name, at, place, late=True, needed=False))
        for name in used.eager:
            for before in program.reaching(name.partition(DOT)[0], place, scope):
                self._queue.append(("touch", program, before, at))

    def _keep_changes(self) -> bool:
        """Keep statements that change kept objects; returns whether there was one. Those that
        use the workbench are left out.
        """
        grew = False
        for program in list(self.programs.values()):
            for index, statement in enumerate(program.statements):
                imports = isinstance(statement.node, (ast.Import, ast.ImportFrom))
                if index in program.kept or index in program.repeats or imports or statement.made:
                    continue
                if statement.refusal is not None or self.tainted(program, index):
                    self._note(program, index)
                    continue
                if any(self._holds(program, name, index) for name in self.changes(program, index)):
                    self._keep(program, index)
                    grew = True
        return grew

    def _note(self, program: Namespace, place: int) -> None:
        """Note a statement that is left out, if it may change an object that the script has."""
        names = () if changes.makes_trainer(program, place) else self.changes(program, place)
        if any(self._holds(program, name, place) for name in names):
            statement = program.statements[place]
            why = statement.refusal or _TAINTED
            self.left_out.setdefault(
                (program.name, place),
                f"`{statement.gist}` ({statement.place}) is not in the script, and may have changed"
                f" what the run used: {why}. Write the change in a statement of its own, without"
                " the workbench in it, make the model and the Workbench anew, fit and export that"
                " run.",
            )

    def changes(self, program: Namespace, place: int) -> frozenset[str]:
        """The names whose objects statement `place` changes."""
        key = (program.name, place)
        if key not in self._changed or self.lazy:
            self._changed[key] = changes.changed(program.statements[place].node, program, place)
        return self._changed[key]

    def _holds(self, program: Namespace, name: str, place: int) -> bool:
        """Whether the value of `name` at `place` is needed, or may share a part with a needed
        object.
        """
        module, dot, inner = name.partition(DOT)
        if dot:
            other = self.programs.get(module)
            return other is not None and any(needed == inner for _, needed in other.needed)
        return changes.is_needed(program, name, place, self._model)

    # -- the workbench itself

    def tainted(self, program: Namespace, place: int) -> bool:
        """Whether statement `place` uses the workbench."""
        key = (program.name, place)
        if key not in self._tainted:
            self._tainted[key] = False
            self._tainted[key] = self._is_tainted(program, place)
        return self._tainted[key]

    def _is_tainted(self, program: Namespace, place: int) -> bool:
        node = program.statements[place].node
        if program.name.partition(".")[0] == "workbench":
            return False
        if isinstance(node, ast.Import):
            return any(_is_ours(item) for item in origins.imported(node))
        if isinstance(node, ast.ImportFrom):
            return any(
                self._is_face(program, place, item.binds, "") for item in origins.imported(node)
            )
        return any(
            self._reads_face(program, name, place, set())
            for name in sorted(program.uses[place].eager)
        )

    def _is_face(self, program: Namespace, at: int, base: str, attribute: str) -> bool:
        """Whether `base` (or its `attribute`), bound at `at`, is a part of the workbench that no
        script has.
        """
        node = program.statements[at].node
        # `import torch, workbench as wb` has only one
        ours = [item for item in origins.imported(node) if _is_ours(item) and item.binds == base]
        if isinstance(node, ast.ImportFrom):
            if not node.level and any(item.name in FACE for item in ours):
                return True
            imported = self.imported(program, node, base)
            return imported is not None and self._exports_face(*imported)
        if program.modules.get(base, "").partition(".")[0] == "workbench" and attribute:
            return attribute in FACE
        return bool(ours) if isinstance(node, ast.Import) else self.tainted(program, at)

    def _exports_face(self, program: Namespace, name: str) -> bool:
        """Whether a module's `name` is such a part: `from base import *`, where base.py imports
        the workbench.
        """
        key = (program.name, name)
        if key not in self._faces:
            self._faces[key] = False  # modules may import each other
            bindings = program.reaching(name, program.end)
            self._faces[key] = any(self._is_face(program, at, name, "") for at in bindings)
        return self._faces[key]

    def _reads_face(
        self, program: Namespace, name: str, place: int, seen: set[tuple[str, int]]
    ) -> bool:
        """Whether reading `name` at `place`, or calling its value, uses the workbench."""
        base, _, attribute = name.partition(DOT)
        for at in program.reaching(base, place):
            if (program.name, at) in seen:
                continue
            if self._is_face(program, at, base, attribute):
                return True
            if isinstance(program.statements[at].node, ast.FunctionDef):
                seen.add((program.name, at))
                if any(
                    self._reads_face(program, late, program.end, seen)
                    for late in sorted(program.uses[at].late)
                ):
                    return True
        return False
