"""Records as a fit writes them, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from workbench.events import Event, RunEnded, RunStarted, Status, StepsDone, Validated, pack
from workbench.runs.store import RunFolder
from workbench.settings import Settings

TOTAL = 100


class Record:
    """A run of 100 updates that this process writes; it begins at once."""

    def __init__(
        self,
        root: Path,
        id: str,
        kind: str = "fit",
        settings: dict[str, Any] | None = None,
        takes_commands: bool = True,
        **header: Any,
    ) -> None:
        self.id, self.done = id, 0
        full = Settings.make(**(settings or {})).model_dump(mode="json")
        facts = {
            "kind": kind,
            "settings": full,
            "task": {"model": "Net", "parameters": 12},
            "takes_commands": takes_commands,
            **header,
        }
        self.folder = RunFolder.create(root, id, facts)
        self.path = self.folder.path
        self.add(RunStarted(id, kind, full, "cpu", (), TOTAL, 4))

    def add(self, *events: Event) -> Record:
        for event in events:
            self.folder.append(event)
        return self

    def steps(self, rows: int = 10, seconds: float = 1.0) -> Record:
        """So many more updates, each of which takes so many seconds; the loss falls from 2."""
        at = np.arange(self.done, self.done + rows)
        self.done += rows
        columns = {
            "loss": pack(2 / (1 + 0.1 * at)),
            "lr": pack(0 * at + 0.1),
            "grad_norm": pack(1 + 0 * at),
        }
        return self.add(
            StepsDone(int(at[0]), 1, rows, int(at[0]) * 4 // TOTAL, seconds * self.done, columns)
        )

    def checked(self, value: float) -> Record:
        return self.add(Validated(self.done, 0, {"val_loss": value}))

    def ended(
        self, status: Status = "finished", error: str | None = None, **metrics: float
    ) -> Record:
        self.add(RunEnded(status, self.done, float(self.done), error, metrics))
        self.close()
        return self

    def dies(self) -> Record:
        """The process that writes it is one that is gone."""
        header = self.path / "run.json"
        header.write_text(
            json.dumps({**json.loads(header.read_text()), "pid": 2**22 + 1, "pid_started": 1.0})
        )
        return self

    def close(self) -> None:
        self.folder.close()
