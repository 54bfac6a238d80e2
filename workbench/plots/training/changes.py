"""Marks events on a plot: live changes, and where a run was resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workbench.plots.chart import Array, Mark
from workbench.plots.names import shorten

Changes = Sequence[tuple[int, Mapping[str, float | None] | str]]
"""The update from which on, and the new values of settings; or a text about what happened there."""
SETTING_LABELS = {
    "gradient_clip_val": "clip",
    "batch_size": "batch size",
    "accumulate_grad_batches": "accumulation",
}
"""Names of settings at the marks of changes, where they are not the setting's own."""
_LETTER = 0.011
"""The width of a letter of a mark's label as a share of the axis, generously."""
_LONGEST = 40
"""The most letters of a label; a mark's `why` has the whole text."""


def change_marks(changes: Changes, step: Array) -> tuple[Mark, ...]:
    """A line for each update with changes. Where labels would run into one another, several
    lines share the first one's.
    """
    length = max(1.0, float(step[-1] - step[0])) if len(step) else 1.0
    groups: list[list[tuple[int, str]]] = []
    for at, text in _by_update(changes).items():
        if groups:
            first = groups[-1][0][0]
            room = (at - first) / length / _LETTER
            if room < (len(_label(groups[-1])) + len(_brief(text))) / 2:
                groups[-1].append((at, text))
                continue
        groups.append([(at, text)])
    return tuple(mark for group in groups for mark in _marks(group))


def only(changes: Changes, *names: str) -> Changes:
    """The changes of these settings only; marks with a text of their own stay."""
    kept = [
        (at, change if isinstance(change, str) else {k: v for k, v in change.items() if k in names})
        for at, change in changes
    ]
    return [(at, change) for at, change in kept if change]


def _by_update(changes: Changes) -> dict[int, str]:
    """The changes of each update in one text: lines over one another have no room for two."""
    texts: dict[int, list[str]] = {}
    for at, change in changes:
        said = (
            [change]
            if isinstance(change, str)
            else [f"{SETTING_LABELS.get(k, k)} → {_value(v)}" for k, v in change.items()]
        )
        texts.setdefault(at, []).extend(said)
    return {at: ", ".join(_once(said)) for at, said in texts.items()}


def _once(said: list[str]) -> list[str]:
    """Without repetitions: "resumed", and then "resumed, max_epochs → 5"."""
    return [
        text
        for i, text in enumerate(said)
        if not any(f"{later}, ".startswith(f"{text}, ") for later in said[i + 1 :])
    ]


def _label(group: list[tuple[int, str]]) -> str:
    return (
        _brief(", ".join(text for _, text in group)) if len(group) <= 2 else f"{len(group)} changes"
    )


def _brief(text: str) -> str:
    """The first changes, as many as fit into a label."""
    if len(text) <= _LONGEST:
        return text
    whole, _, _ = text[: _LONGEST - 2].rpartition(", ")
    return f"{whole}, …" if whole else shorten(text, _LONGEST)


def _marks(group: list[tuple[int, str]]) -> list[Mark]:
    why = "; ".join(f"from update {at}: {text}" for at, text in group)
    return [Mark(at, "" if i else _label(group), why=why) for i, (at, _) in enumerate(group)]


def _value(value: float | None) -> str:
    if value is None:
        return "off"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"
