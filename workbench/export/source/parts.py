"""Finds what names may hold, as the statements that bound it, and whether a change of it matters to the script."""

from __future__ import annotations

import ast

from workbench.export.source import calls, effects
from workbench.export.source.namespace import At, Namespace
from workbench.export.source.uses import DOT


def parts_of(program: Namespace, names: list[tuple[str, int]]) -> set[tuple[int, str]]:
    """The bindings of these names, each at its place, and of all that they may hold: (statement, name)."""
    found: set[tuple[int, str]] = set()
    left = list(names)
    while left:
        name, place = left.pop()
        scope = program.statements[place].scope if place < program.end else 1
        for at in program.reaching(name, place, scope):
            if (at, name) not in found:
                found |= {(at, own) for own in _together(program.statements[at].node, name)}
                left += [(root, at) for root in effects.aliases(program.statements[at].node, name, At(program, at))]
                if _is_handle(program.kinds.get(name)):
                    left += [(changed, at) for changed in program.slicer.changes(program, at) if DOT not in changed]
    return found


def _together(node: ast.stmt, name: str) -> set[str]:
    """The names that `node`, which binds `name`, gives the same object: all of `a = b = []`."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return names if name in names else {name}


def _is_handle(kind: str | None) -> bool:
    """Whether what a statement returns may stand for what it changed: `hook = model.register_forward_hook(…)`; `hook.remove()` changes it, too."""
    return kind is not None and kind not in calls.LIBRARY and kind not in (*calls.UNCHANGED, *calls.SHOWING, "network", "loader")


def is_needed(program: Namespace, name: str, place: int, model: set[tuple[int, str]]) -> bool:
    """Whether the object that `name` holds at `place` is needed, or may share a part with one that is. It changes there.

    model: the bindings of what the model is made of. Where an optimizer changes them, it trained them by hand, and so did another
    Workbench; a script reads their weights from the run.
    """
    held = parts_of(program, [(name, place)])
    if not program.name and any(effects.makes_trainer(program.statements[at].node, At(program, at)) for at, _ in held):
        held -= {(at, part) for at, part in held & model if not _is_taken(program, at, part, place, model)}
    return not program.needed.isdisjoint(held)


def needed_of(program: Namespace, names: frozenset[str], place: int, model: set[tuple[int, str]]) -> set[str]:
    """What is needed of all that these names may hold at `place`, but for what the model is made of: a script reads its weights from the run."""
    held = parts_of(program, [(name, place) for name in names])
    own = {(at, part) for at, part in held & model if not _is_taken(program, at, part, place, model)}
    return {part for at, part in program.needed & held - own}


def _is_taken(program: Namespace, at: int, name: str, place: int, model: set[tuple[int, str]]) -> bool:
    """Whether a kept statement after `place` makes something else of `name`: a copy has the weights of that time."""
    after = (other for other in program.kept if other > place)
    takes = (other for other in after if name in program.uses[other].eager and at in program.reaching(name, other))
    return any((other, bound) in program.needed - model for other in takes for bound in program.bound(other))
