"""Groups layers by module: into rows of a heat map, and into the modules whose gradients are
measured apart.

A layer is a parameter by its dotted name ("encoder.layers.0.attn.weight"); a module is all layers
whose names begin alike. Where even the modules are too many, neighbours share a row ("h.0 … h.2"),
so that depth can still be read from top to bottom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

MOST_ROWS = 40
"""The most rows that a screen can show distinctly."""
MOST_MODULES = 8
"""The most lines that a plot can show distinctly."""
_LARGE = 0.25
"""A module with more than this share of all layers is split into its parts while there is room:
a stack of blocks.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """The layers `first` to `end` (not included) of the order of `in_order`, and their common
    name.
    """

    name: str
    first: int
    end: int
    shared: bool = False
    """Whether neighbours share the row, rather than one module."""

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return self.end - self.first


def in_order(names: Sequence[str]) -> list[int]:
    """The places of `names`, those of a module next to one another, else in their order."""
    tree: dict[str, object] = {}
    for index, name in enumerate(names):
        node = tree
        for segment in name.split("."):
            node = node.setdefault(f".{segment}", {})  # type: ignore[assignment]
        node.setdefault("", []).append(index)  # type: ignore[attr-defined]

    def walk(node: dict[str, object]) -> Iterator[int]:
        for inner in node.values():
            if isinstance(inner, dict):
                yield from walk(inner)
            else:
                yield from inner  # type: ignore[misc]

    return list(walk(tree))


def rows(
    names: Sequence[str], first: int = 0, end: int | None = None, most: int = MOST_ROWS
) -> list[Row]:
    """At most `most` rows for the layers `first` to `end` of `names`, which are in order."""
    end = len(names) if end is None else end
    parts = [name.split(".") for name in names]
    if end - first <= most:
        return [Row(names[i], i, i + 1) for i in range(first, end)]
    chosen = [Row("", first, end)]
    for depth in range(1, max(map(len, parts[first:end])) + 1):
        deeper = _at_depth(names, parts, first, end, depth)
        if len(deeper) > most:
            break
        chosen = deeper
    closed: set[tuple[int, int]] = set()
    while True:
        large = [
            r
            for r in chosen
            if r.layers > _LARGE * (end - first) and not r.shared and (r.first, r.end) not in closed
        ]
        if not large:
            return chosen
        row = max(large, key=lambda r: r.layers)
        room = 1 + (most - len(chosen)) // len(large)
        inner = _opened(names, parts, row, room)
        if len(inner) == 1:
            closed.add((row.first, row.end))
        at = chosen.index(row)
        chosen[at : at + 1] = inner


def modules(names: Sequence[str], most: int = MOST_MODULES) -> dict[str, list[int]]:
    """At most `most` modules that have all the layers `names`: for each, by its name, the places of
    its layers.

    A layer that belongs to no module has an entry of its own.
    """
    owners = [name.rpartition(".")[0] or name for name in names]
    distinct = list(dict.fromkeys(owners[i] for i in in_order(names)))
    indices = {}
    for row in rows(distinct, most=most):
        inside = set(distinct[row.first : row.end])
        indices[row.name] = [index for index, owner in enumerate(owners) if owner in inside]
    return indices


def _at_depth(
    names: Sequence[str], parts: Sequence[Sequence[str]], first: int, end: int, depth: int
) -> list[Row]:
    """One row for all that have `depth` parts of their names in common."""
    out = []
    for _, places in groupby(range(first, end), lambda i: parts[i][:depth]):
        here = list(places)
        name = names[here[0]] if len(here) == 1 else ".".join(parts[here[0]][:depth])
        out.append(Row(name, here[0], here[-1] + 1))
    return out


def _opened(names: Sequence[str], parts: Sequence[Sequence[str]], row: Row, room: int) -> list[Row]:
    """The parts of one module, in at most `room` rows; the module itself where that is not
    possible.
    """
    if room < 2:
        return [row]
    for depth in range(1, max(len(parts[i]) for i in range(row.first, row.end)) + 1):
        inner = _at_depth(names, parts, row.first, row.end, depth)
        if len(inner) > 1:
            return _in_runs(inner, room)
    # all of the same name
    return _in_runs([Row(names[i], i, i + 1) for i in range(row.first, row.end)], room)


def _in_runs(siblings: list[Row], room: int) -> list[Row]:
    """The rows themselves, or equal runs of neighbours where they are more than `room`."""
    if len(siblings) <= room:
        return siblings
    each = -(-len(siblings) // room)
    runs = [siblings[i : i + each] for i in range(0, len(siblings), each)]
    return [
        r[0] if len(r) == 1 else Row(f"{r[0].name} … {r[-1].name}", r[0].first, r[-1].end, True)
        for r in runs
    ]
