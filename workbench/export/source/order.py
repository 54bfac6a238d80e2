"""Lists the statements that had run when a fit began, in their order: at the top level, and in the
functions that were running.

The frames from the top level to a call are a list of levels. First come the statements of each
level up to the Workbench call. Then, the innermost first, the rest of each function, up to one that
was still running when the fit began. Then the functions that called fit.
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from workbench.export.source.capture import CallSite, Frame, Spot, root_of
from workbench.export.source.owner import Owner
from workbench.export.source.statements import (
    Line,
    Source,
    Statement,
    bind_values,
    contains,
    functions_around,
    is_at,
    refuse,
    run,
    stop_at,
)
from workbench.export.source.uses import local_names, parameters, positional, terminal, uses


def statements_in_order(
    site: CallSite,
    sources: list[Source],
    call: ast.Call,
    model: ast.expr | None,
    owner: Owner | None,
) -> tuple[Line, int]:
    """The statements that had run when the run began, and how many of them had when the Workbench
    was made.

    call, model: the Workbench call and its argument. owner: the instance whose method made it.
    """
    assert site.call is not None
    here, values = Spot(site.call.piece, call.lineno, call.col_offset), site.values
    if owner is not None:
        here, values = owner.caller.spot, owner.caller.values
    named = isinstance(model, ast.Name) or (owner is not None and isinstance(model, ast.Attribute))
    order = _Order(
        site,
        sources,
        sources if owner is None else owner.sources,
        owner,
        ast.unparse(model) if model is not None and named else "",
    )
    order.until_call(here, values)
    if owner is not None:
        order.make_owner(here, owner, call)
    called = len(order.line.statements)
    if site.fit:
        order.after_call()
    return order.line, called


def bench_of(owner: Owner) -> str:
    """A name for the bench of an instance; no script contains it."""
    return f"bench_of_{owner.name}"


@dataclass
class _Level:
    """The code of one frame, and the place up to which it had run."""

    spot: Spot
    values: Mapping[str, str]
    function: ast.FunctionDef | None = None
    """The function of the frame; None: the top level."""
    scope: int = 0


@dataclass
class _Order:
    """Builds the line."""

    site: CallSite
    written: list[Source]
    sources: list[Source]
    """The sources, with the bench removed from the class that made it."""
    owner: Owner | None
    model: str
    """The model's name; "": it has none."""
    line: Line = field(default_factory=Line)
    levels: list[_Level] = field(default_factory=list)
    scopes: Iterator[int] = field(default_factory=lambda: itertools.count(2))

    # -- up to the call

    def until_call(self, here: Spot, values: Mapping[str, str]) -> None:
        """Append the statements that ran before `here`, where names have these values."""
        source = self.sources[here.piece]
        functions = functions_around(source.tree, here)
        end = Spot(len(self.sources) - 1, sys.maxsize)  # where the top level had ended
        reached = (self.site.reached or end) if functions else here
        # without the call, whose arguments are the function's parameters
        before = replace(reached, end_line=-1, end_column=-1)
        for index in range(reached.piece + 1):
            body = stop_at(self.sources[index].tree.body, self.site.pieces[index].stopped)
            stop = before if index == reached.piece and reached is not end else None
            run(
                self.line,
                self.sources[index],
                body,
                stop,
                0,
                self.site.top_values if functions else values,
            )
        self.levels.append(_Level(reached, values))
        callers = self._callers(functions)
        for frame, function in callers:
            self._function(self.sources[frame.spot.piece], function, frame.spot, frame.values)
        for outer in (
            outer
            for outer in functions[:-1]
            if all(outer.lineno != function.lineno for _, function in callers)
        ):
            local = {n for s in outer.body for n in uses(s).binds} | set(parameters(outer.args))
            bind_values(
                self.line,
                source.label,
                1,
                {n: values.get(n) for n in sorted(local)},
                f"a variable of {outer.name}",
            )
        for function in functions[-1:]:
            self._function(source, function, here, values, around=functions[:-1], innermost=True)

    def _callers(self, functions: Sequence[ast.FunctionDef]) -> list[tuple[Frame, ast.FunctionDef]]:
        """The functions between the top level and that of the call, outermost first."""
        frames = (
            self.site.around
            if self.owner is None
            else self.site.around[: self.site.around.index(self.owner.caller) + 1]
        )
        inner = frames[self.site.reached is not None : -1]
        pairs = [(frame, self._function_at(frame)) for frame in inner] if functions else []
        return (
            [(frame, function) for frame, function in pairs if function is not None]
            if all(function for _, function in pairs)
            else []
        )

    def _function(
        self,
        source: Source,
        function: ast.FunctionDef,
        spot: Spot,
        values: Mapping[str, str],
        *,
        around: Sequence[ast.FunctionDef] = (),
        innermost: bool = False,
    ) -> None:
        """Append the statements that ran in a function up to a place, with its arguments.
        around: the functions whose variables it reads.
        """
        arguments = {
            name: text for name, text in self._given(function).items() if values.get(name) is None
        }
        local = local_names(function) - {name for name, text in arguments.items() if name == text}
        read = {child.id for child in ast.walk(function) if isinstance(child, ast.Name)}.difference(
            *map(local_names, around)
        )
        before = {
            name
            for statement in self.line.statements
            if statement.scope == 1
            for name in uses(statement.node).binds
        }
        apart = bool(
            before
            & (
                local
                | read
                - {
                    name
                    for text in arguments.values()
                    for name in uses(ast.parse(text).body[0]).eager
                }
            )
        )
        if apart:  # its names have another meaning in the functions around it
            arguments = {}
            if innermost:
                for statement in self.line.statements:
                    statement.scope = statement.scope and next(self.scopes)
        scope = 1 if innermost or not apart else next(self.scopes)
        start = len(self.line.statements)
        held = {
            name: values.get(name) for name in parameters(function.args) if name not in arguments
        }
        bind_values(self.line, source.label, scope, held, f"a parameter of {function.name}")
        for name, text in arguments.items():
            if name != text:
                assignment = Source(f"the call of {function.name}", f"{name} = {text}\n")
                self.line.statements.append(Statement(assignment.tree.body[0], assignment, scope))
        run(
            self.line,
            source,
            function.body,
            replace(spot, end_line=-1, end_column=-1),
            scope,
            values,
        )
        self._bind_globals(start, function)
        if scope != 1:
            refuse(
                self.line,
                start,
                f"it is in {function.name}, which called the function that made the Workbench",
            )
        self.levels.append(_Level(spot, values, function, scope))

    def _given(self, function: ast.FunctionDef) -> dict[str, str]:
        """The expressions of the arguments with which the level before calls a function, as far
        as they can be read.
        """
        level = self.levels[-1]
        if level.scope > 1:
            return {}
        for call in ast.walk(self.sources[level.spot.piece].tree):
            if isinstance(call, ast.Call) and is_at(call, level.spot):
                plain = (
                    isinstance(call.func, ast.Name)
                    and call.func.id == function.name
                    and not function.decorator_list
                )
                if not plain or any(isinstance(value, ast.Starred) for value in call.args):
                    return {}
                names = positional(function.args)
                arguments = dict(zip(names, call.args, strict=False)) | {
                    keyword.arg: keyword.value
                    for keyword in call.keywords
                    if keyword.arg in parameters(function.args)
                }
                rebound = {n for s in function.body for n in uses(s).binds}
                return {
                    name: ast.unparse(value)
                    for name, value in arguments.items()
                    if name is not None and name not in rebound
                }
        return {}

    def make_owner(self, here: Spot, owner: Owner, call: ast.Call) -> None:
        """Append the statement at `here`, which made the instance or called its method, and the
        variables of that method that the Workbench call reads.
        """
        source, scope = self.sources[here.piece], self.levels[-1].scope
        *_, node = [
            node
            for node in ast.walk(source.tree)
            if isinstance(node, ast.stmt) and contains(node, here)
        ]
        maker = next(
            (
                child
                for child in ast.walk(node)
                if isinstance(child, ast.Call) and is_at(child, here)
            ),
            None,
        )
        # the result of a method may come from the bench
        if maker is not None and terminal(maker.func) not in owner.family:
            source = Source(source.label, f"{ast.unparse(maker)}\n")
            node = source.tree.body[0]
        if not any(
            ast.unparse(child) in {f"{owner.name}.{name}" for name in owner.gone}
            for child in ast.walk(node)
        ):
            self.line.statements.append(Statement(node, source, scope))
        read = uses(ast.Expr(call)).eager & local_names(owner.method) - {owner.name}
        reason = (
            f"a variable of {owner.method.name} that the instance does not keep (as"
            f" `{owner.own}.model = model` does)"
        )
        bind_values(
            self.line,
            source.label,
            1,
            {name: self.site.values.get(name) for name in sorted(read)},
            reason,
        )
        bench = Source(
            source.label,
            f"import workbench\n{bench_of(owner)} = workbench.Workbench({owner.name})\n",
        )
        self.line.statements += [
            Statement(node, bench, scope, made=True) for node in bench.tree.body
        ]

    # -- after it

    def after_call(self) -> None:
        """Append the statements that ran after the call, until the run began."""
        names = dict(self.site.fit[0].names)
        frames, common = self.site.fit, 0
        while common + 1 < min(len(frames), len(self.levels)) and self._is_same(
            frames[common + 1], self.levels[common + 1]
        ):
            common += 1
        for number in range(len(self.levels) - 1, common - 1, -1):
            level, frame = self.levels[number], frames[number] if number == common else None
            called = number < len(self.levels) - 1 or self.owner is not None
            if level.function is None:
                assert frame is not None
                self._top(level.spot, frame, called)
                continue
            source = self._respelled(
                self.sources[level.spot.piece],
                frame,
                level.function,
                self.model if level.scope == 1 else "",
            )
            start = len(self.line.statements)
            body = next(
                node.body
                for node in ast.walk(source.tree)
                if isinstance(node, ast.FunctionDef) and node.lineno == level.function.lineno
            )
            run(
                self.line,
                source,
                body,
                None if frame is None else frame.spot,
                level.scope,
                level.values if frame is None else frame.values,
                level.spot,
            )
            self._bind_globals(start, level.function)
            self._leave_out(start, level.spot if called else None)
        for frame in self.site.fit:
            if frame not in frames[: common + 1]:
                self._caller_of_fit(frame, names)

    def _is_same(self, frame: Frame, level: _Level) -> bool:
        """Whether a function that was running when the fit began is the one of this level, which
        was running when the Workbench was made.
        """
        function = self._function_at(frame)
        return (
            level.function is not None
            and function is not None
            and function.lineno == level.function.lineno
            and "" in frame.names.values()
        )

    def _top(self, since: Spot, frame: Frame, called: bool) -> None:
        """Append the statements that ran at the top level. called: a function called by the
        statement there made the Workbench.
        """
        start = len(self.line.statements)
        for index in range(since.piece, frame.spot.piece + 1):
            source = self._respelled(self.sources[index], frame, None, self.model)
            body = stop_at(source.tree.body, self.site.pieces[index].stopped)
            stop = frame.spot if index == frame.spot.piece else None
            run(
                self.line,
                source,
                body,
                stop,
                0,
                frame.values,
                since if index == since.piece else None,
            )
        self._leave_out(start, since if called else None)
        if len(self.levels) > 1:  # the model is a variable of a function
            local = {
                name
                for statement in self.line.statements[:start]
                if statement.scope == 1
                for name in uses(statement.node).binds
            }
            for statement in self.line.statements[start:]:
                respelled = set(ast.walk(statement.node)) & {
                    node for node, _ in statement.source.edits
                }
                if respelled and not uses(statement.node).eager & local - {self.model}:
                    statement.scope = 1

    def _caller_of_fit(self, frame: Frame, names: Mapping[str, str]) -> None:
        """Append the statements that ran in a function that called fit."""
        function = self._function_at(frame)
        if function is None:
            return  # a comprehension, or a lambda
        hidden = local_names(function)
        outer = {name: new for name, new in names.items() if root_of(name) not in hidden}
        frame = replace(frame, names=outer | dict(frame.names))
        start, scope, model = len(self.line.statements), next(self.scopes), self.model
        if len(self.levels) > 1:
            before = {
                name
                for statement in self.line.statements
                if statement.scope == 1
                for name in uses(statement.node).binds
            }
            scope, model = (scope, "") if hidden - set(frame.names) & before else (1, model)
        source = self._respelled(self.written[frame.spot.piece], frame, function, model)
        node = next(
            n
            for n in ast.walk(source.tree)
            if isinstance(n, ast.FunctionDef) and n.lineno == function.lineno
        )
        held = {
            name: frame.values.get(name)
            for name in parameters(node.args)
            if name not in frame.names
        }
        bind_values(self.line, source.label, scope, held, f"a parameter of {node.name}")
        self._bind_around(source, frame, node, scope)
        run(self.line, source, node.body, frame.spot, scope, frame.values)
        self._bind_globals(start, function)

    def _bind_around(
        self, source: Source, frame: Frame, function: ast.FunctionDef, scope: int
    ) -> None:
        """Bind the variables that a function reads from functions around it that had ended."""
        running = {level.function.lineno for level in self.levels if level.function is not None}
        around = functions_around(source.tree, frame.spot)[:-1]
        if running.isdisjoint(outer.lineno for outer in around):
            read = (
                {child.id for child in ast.walk(function) if isinstance(child, ast.Name)}
                - local_names(function)
                - set(frame.names)
            )
            for outer in around:
                names = sorted(read & local_names(outer))
                bind_values(
                    self.line,
                    source.label,
                    scope,
                    {name: frame.values.get(name) for name in names},
                    f"a variable of {outer.name}",
                )

    def _bind_globals(self, start: int, function: ast.FunctionDef) -> None:
        """Let statements of a function, from `start` on, bind global names at the top level."""
        names = {
            name
            for child in ast.walk(function)
            if isinstance(child, ast.Global)
            for name in child.names
        }
        for statement in self.line.statements[start:] if names else ():
            if uses(statement.node).binds & names:
                statement.scope = 0
                if uses(statement.node).eager & local_names(function):
                    statement.refusal = (
                        statement.refusal
                        or f"it sets a global name by a variable of {function.name}"
                    )

    def _leave_out(self, start: int, done: Spot | None) -> None:
        """Leave out the statement at `start` if it is at `done`: other statements of the line
        have its effects.
        """
        if (
            done is not None
            and start < len(self.line.statements)
            and contains(self.line.statements[start].node, done)
        ):
            del self.line.statements[start]

    def _function_at(self, frame: Frame) -> ast.FunctionDef | None:
        """The function that a frame runs."""
        around = functions_around(self.written[frame.spot.piece].tree, frame.spot)
        return around[-1] if around else None

    def _respelled(
        self, source: Source, frame: Frame | None, function: ast.FunctionDef | None, model: str
    ) -> Source:
        """The source with the script's names in place of a frame's own: the model's name for
        `bench.model`.
        """
        names, owner = {} if frame is None else frame.names, self.owner
        held = (
            []
            if owner is None
            else [owner.name, *(name for name, other in names.items() if other == owner.name)]
        )
        spelled = {
            f"{name}.{gone}": bench_of(owner)
            for name in held
            if owner is not None
            for gone in owner.gone
        }
        spelled |= {name: other for name, other in names.items() if other}
        spelled |= {f"{name}.model": model for name, other in names.items() if model and not other}
        return replace(
            source, spelled=tuple(spelled.items()), function=function.lineno if function else 0
        )
