"""What the browser knows (extensions/live/src/data: table.ts and store.ts), in Python, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.events import Floats


@dataclass
class Rows:
    generation: int
    columns: int
    data: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    head: dict[str, int] = field(default_factory=dict)


@dataclass
class Mirror:
    """Takes messages as a view does."""

    state: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Rows] = field(default_factory=dict)
    staged: dict[str, Rows] = field(default_factory=dict)
    gaps: int = 0

    def on_event(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        assert content["type"] == "draw"
        self.state |= content["state"]
        for part, data in zip(content["parts"], buffers, strict=True):
            self._apply(part, np.frombuffer(data, "<f4"))

    def _apply(self, part: dict[str, Any], data: Floats) -> None:
        name, generation = part["channel"], part["generation"]
        target = next(
            (
                t
                for t in (self.tables.get(name), self.staged.get(name))
                if t and t.generation == generation
            ),
            None,
        )
        if target is None:
            if part["start"] > 0:
                self.gaps += 1
                return
            target = self.staged[name] = Rows(generation, part["columns"])
        at = part["start"] * target.columns
        if at > len(target.data):
            self.gaps += 1
            return
        assert len(data) == part["rows"] * target.columns
        target.data = np.concatenate([target.data[:at], data])
        target.head = {
            key: part[key] for key in ("origin", "width", "every", "view") if key in part
        }
        if target is self.staged.get(name) and not part["more"]:
            self.tables[name] = self.staged.pop(name)

    def rows(self, name: str) -> Floats:
        table = self.tables[name]
        return table.data.reshape(-1, table.columns)
