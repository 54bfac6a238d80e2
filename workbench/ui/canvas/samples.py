"""Shows on the canvas what the functions of `bench.watch` returned at validations: the newest, or
an earlier one.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from workbench.events import RunStarted, Sampled
from workbench.runs.folder.ids import check_id
from workbench.runs.read import RUNS
from workbench.runs.samples import read_items
from workbench.ui import texts
from workbench.ui.canvas.transport.messages import Outbox, cut

PART = 19_000
"""Characters of a part. They are ASCII, and take twice as many bytes at most in a message."""


class Samples:
    """The validations that have samples. Their files are read only while the tab is open."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.root: Path | None = None
        """The root of the runs, in which the folder of a run is found by its id."""
        self.folder: Path | None = None
        """The folder of the run that is shown; None: unknown."""
        self.open = False
        """Whether the tab is open."""
        self._at: dict[int, list[Sampled]] = {}
        """By update, the samples of each function."""
        self._place: int | None = None
        """Which validation is shown; None: the newest one."""
        self._unsent = self._headed = False
        self._parts = self._showings = 0

    def start(self, event: RunStarted) -> None:
        """Begin a fit."""
        self.clear()
        if self.root is not None:
            try:
                self.folder = self.root / RUNS / check_id(event.run)
            except ValueError:  # a record of a stranger, or a dry run
                self.folder = None

    def clear(self) -> None:
        """Begin without a fit."""
        self._at, self._place = {}, None
        self._unsent = True

    def add(self, event: Sampled) -> None:
        """Add what one function returned."""
        before = self._at.setdefault(event.step, [])
        before[:] = [known for known in before if known.file != event.file]
        before.append(event)
        self._unsent = True

    def show(self, place: int) -> None:
        """Show this validation, counted from 0; the last one or a later one: follow the newest."""
        self._place = max(0, place) if place < len(self._at) - 1 else None
        self._unsent = True

    def opened(self, wanted: bool) -> None:
        """Note whether the tab is open."""
        self.open = wanted
        self._unsent = True

    def settle(self) -> None:
        """Send the head, and where the tab is open the samples; called before each message."""
        if not self._unsent:
            return
        self._unsent = False
        if not self._at:
            if self._headed:
                self._outbox.put("samples", None)
                self._drop()
            return
        steps = sorted(self._at)
        index = len(steps) - 1 if self._place is None else min(self._place, len(steps) - 1)
        events = self._at[steps[index]]
        if self.open:
            self._put(json.dumps([self._content(event) for event in events]))
        self._headed = True
        head = {"count": len(steps), "place": index, "step": steps[index]}
        parts = {"of": self._showings, "parts": self._parts if self.open else 0}
        self._outbox.put("samples", {**head, "epoch": events[0].epoch, **parts})

    def _content(self, event: Sampled) -> dict[str, object]:
        """What one function returned, as plain data."""
        name, why, left_out = event.name[:100], "", 0
        rows: list[dict[str, str]] = []
        try:
            if self.folder is None:
                raise FileNotFoundError
            items, left_out = read_items(self.folder, event.file)
        except FileNotFoundError:
            why = texts.SAMPLES_GONE
        except (OSError, ValueError) as error:
            why = texts.samples_unreadable(cut(str(error), 200))
        else:
            for item in items:
                row = {"label": item.label, "note": item.note, "text": item.text}
                if item.png:
                    row["png"] = base64.b64encode(item.png).decode()
                rows.append(row)
        return {"name": name, "items": rows, "left_out": left_out, "why": why}

    def _put(self, text: str) -> None:
        """Send a long text in parts, each with the number of its showing."""
        self._showings += 1
        parts = [text[at : at + PART] for at in range(0, len(text), PART)]
        self._drop(len(parts))
        for number, chunk in enumerate(parts):
            self._outbox.put(f"sample.{number}", {"of": self._showings, "text": chunk})
        self._parts = len(parts)

    def _drop(self, rest: int = 0) -> None:
        """Drop the parts from `rest` on, which a view that opens later need not get."""
        for number in range(rest, self._parts):
            self._outbox.put(f"sample.{number}", None)
        self._parts = min(self._parts, rest)
