"""Finds the statements that may have bound the values of names, and whether a change of a value matters to the script."""

from __future__ import annotations

import ast

from workbench.export.source import calls, effects
from workbench.export.source.namespace import At, Namespace
from workbench.export.source.uses import DOT


def parts_of(program: Namespace, names: list[tuple[str, int]]) -> set[tuple[int, str]]:
    """The bindings (statement, name) of these names, each at its place, and of all objects that their values may contain."""
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
    """The names to which `node`, which binds `name`, assigns the same object: both of `a = b = []`."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return names if name in names else {name}


def _is_handle(kind: str | None) -> bool:
    """Whether the result of a statement may be a handle of the object that it changed: after `hook = model.register_forward_hook(…)`, `hook.remove()` changes the model."""
    return kind is not None and kind not in calls.LIBRARY and kind not in (*calls.UNCHANGED, *calls.SHOWING, "network", "loader")


def is_needed(program: Namespace, name: str, place: int, model: set[tuple[int, str]]) -> bool:
    """Whether the object that `name` has at `place`, where it changes, is needed, or may share a part with one that is.

    model: the bindings of the parts of the model. If an optimizer or another Workbench changes them, it trains them; a script reads the
    weights from the run.
    """
    held = parts_of(program, [(name, place)])
    if not program.name and any(effects.makes_trainer(program.statements[at].node, At(program, at)) for at, _ in held):
        held -= {(at, part) for at, part in held & model if not _is_taken(program, at, part, place, model)}
    return not program.needed.isdisjoint(held)


def needed_of(program: Namespace, names: frozenset[str], place: int, model: set[tuple[int, str]]) -> set[str]:
    """The needed objects among those that these names may have at `place`, without parts of the model, whose weights a script reads from the run."""
    held = parts_of(program, [(name, place) for name in names])
    own = {(at, part) for at, part in held & model if not _is_taken(program, at, part, place, model)}
    return {part for at, part in program.needed & held - own}


def _is_taken(program: Namespace, at: int, name: str, place: int, model: set[tuple[int, str]]) -> bool:
    """Whether a kept statement after `place` makes another object from `name`: a copy has the weights of that time."""
    after = (other for other in program.kept if other > place)
    takes = (other for other in after if name in program.uses[other].eager and at in program.reaching(name, other))
    return any((other, bound) in program.needed - model for other in takes for bound in program.bound(other))
