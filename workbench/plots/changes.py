"""Marks of what happened on the way: live changes, and where a run was resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.plots.chart import Array, Mark
from workbench.plots.names import shorten

Changes = Sequence[tuple[int, Mapping[str, float | None] | str]]
"""From which update on, and the new values of settings; or what happened there, in words."""
_SAY = {"gradient_clip_val": "clip", "batch_size": "batch size", "accumulate_grad_batches": "accumulated"}
_LETTER = 0.011
"""The width of a letter of a mark's label as a share of the axis, generously."""


def change_marks(changes: Changes, step: Array) -> tuple[Mark, ...]:
    """A line for each change. Where labels would run into one another, several changes share the first one's."""
    length = max(1.0, float(step[-1] - step[0])) if len(step) else 1.0
    groups: list[list[tuple[int, str]]] = []
    for at, what in changes:
        text = what if isinstance(what, str) else ", ".join(f"{_SAY.get(k, k)} → {_value(v)}" for k, v in what.items())
        if groups:
            first = groups[-1][0][0]
            room = (at - first) / length / _LETTER
            if room < (len(_label(groups[-1])) + len(text)) / 2:
                groups[-1].append((at, text))
                continue
        groups.append([(at, text)])
    return tuple(mark for group in groups for mark in _marks(group))


def only(changes: Changes, *names: str) -> Changes:
    """The changes of these settings alone; what is said in words stays."""
    kept = [(at, what if isinstance(what, str) else {k: v for k, v in what.items() if k in names}) for at, what in changes]
    return [(at, what) for at, what in kept if what]


def _label(group: list[tuple[int, str]]) -> str:
    return shorten(", ".join(text for _, text in group), 48) if len(group) <= 2 else f"{len(group)} changes"


def _marks(group: list[tuple[int, str]]) -> list[Mark]:
    why = "; ".join(f"from update {at}: {text}" for at, text in group)
    return [Mark(at, "" if i else _label(group), why=why) for i, (at, _) in enumerate(group)]


def _value(value: float | None) -> str:
    if value is None:
        return "off"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
