"""Defines the live canvas: one anywidget that draws events as they come, with the controls of its
panel.

Events are collected in bounded state; each call of `flush` sends one message of at most 40 kB with
data that the browser does not have yet. A view that opens later (a second view, a reloaded page)
sends "ready", and gets everything again, so drawing is the same whenever a view opens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import traitlets

from workbench.events import BenchEvent, StepsDone
from workbench.runs.record.stream import joined
from workbench.runs.tables.brief import RunBrief
from workbench.ui.bundled import Bundled
from workbench.ui.canvas.model import CanvasModel


class LiveView(Bundled):
    """Plots of the bench's jobs. `draw` may be called from any thread, and so may `flush`."""

    bundle = "live"

    marker = traitlets.Float(
        1e-3, help="The chosen learning rate; dragging ▲ in the browser sets it."
    ).tag(sync=True)
    looks = traitlets.Dict(
        help="The states of the cards' switches that the user has used, by name."
    ).tag(sync=True)
    clip = traitlets.Float(0.0, help="The chosen clip value, 0: off; its line can be dragged.").tag(
        sync=True
    )

    subject = traitlets.Unicode("bench", help='What the view is of: "bench" or "study".').tag(
        sync=True
    )

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._lock = threading.Lock()
        self._picture = CanvasModel()
        self._held: list[StepsDone] = []
        """Updates that are drawn together before the next message, since each event takes time
        for which training waits.
        """
        self._trouble: Exception | None = None
        """The error of an event that could not be drawn."""
        self.wake: Callable[[], None] = self._flush_all
        """Called when there is something to send without an event; the dispatcher replaces it."""
        self.on_request: Callable[[Mapping[str, Any]], None] = lambda message: None
        """Called with a request from the canvas: {"what": "use_batch_size", "value": 64}, for
        example.
        """
        self.on_open: Callable[[], None] = lambda: None
        """Called when a view has opened."""
        self.on_look: Callable[[], None] = lambda: None
        """Called when a view draws something else, another tab of its drawer, say."""
        self.opened = False
        """Whether a view has opened; that may be before the callbacks are set."""
        self.on_msg(self._heard)

    def draw(self, event: BenchEvent) -> None:
        """Take one event; nothing is sent before `flush`."""
        with self._lock:
            if isinstance(event, StepsDone):
                self._held.append(event)
            else:
                self._fold(event)
                self._complain()

    def anew(self, events: Iterable[BenchEvent] = ()) -> None:
        """Draw only these events; the curves of previous runs, and comparisons, stay."""
        with self._lock:
            self._held.clear()
            self._picture.clear()
            for event in events:
                self._picture.draw(event)
        self.wake()

    def put(self, name: str, value: Any) -> None:
        """Send a small value of plain data that comes from no event."""
        self.put_all({name: value})

    def put_all(self, values: Mapping[str, Any]) -> None:
        """Send several such values together."""
        with self._lock:
            for name, value in values.items():
                self._picture.outbox.put(name, value)
        self.wake()

    def put_previous(self, briefs: Sequence[RunBrief]) -> None:
        """Draw the losses of these runs in grey."""
        with self._lock:
            self._picture.curves.draw_previous(self._picture.outbox, briefs)
        self.wake()

    def put_compared(self, briefs: Sequence[RunBrief]) -> None:
        """Compare these fits; none: end the comparison."""
        with self._lock:
            self._picture.curves.over_one_another(self._picture.outbox, briefs)
        self.wake()

    def search_in(self, root: Path) -> None:
        """Set the root of the runs, so that findings can use the results of searches there, and
        samples are found.
        """
        with self._lock:
            self._picture.findings.root = self._picture.samples.root = root

    def samples_in(self, folder: Path) -> None:
        """Set the folder of the only run that is drawn, where its samples are."""
        with self._lock:
            self._picture.samples.folder = folder

    def holds(self, name: str) -> bool:
        """Whether a value is not sent for now, since no view draws it."""
        with self._lock:
            return self._picture.outbox.holds(name)

    def look_at(self, optimizer: int) -> None:
        """Show the learning-rate curves of this optimizer, where there are several."""
        with self._lock:
            self._picture.look_at(optimizer)
        self.wake()

    def stage_study(self, shown: bool) -> None:
        """Put the study on the stage, or the job whose place it has taken."""
        with self._lock:
            self._picture.stage_study(shown)
        self.wake()

    def answer(self, kind: str) -> dict[str, Any]:
        """The settings that apply the answer of this kind of search; {}: it recommends none."""
        with self._lock:
            return self._picture.answers.changes(kind)

    def flush(self) -> bool:
        """Send one message with new data; returns whether there is more."""
        with self._lock:
            self._fold()
            self._picture.settle()
            packet = self._picture.outbox.take()
            more = self._picture.outbox.waiting
        if packet is not None:
            self.send(packet.content, list(packet.buffers))
        if not more:
            self._complain()
        return more

    def _fold(self, *later: BenchEvent) -> None:
        """Draw the waiting events, consecutive flushes as one. After an event that cannot be
        drawn it draws the others.
        """
        held, self._held = self._held, []
        for event in (*joined(held, across_epochs=True), *later):
            try:
                self._picture.draw(event)
            except Exception as error:  # noqa: BLE001 - raised when the others are drawn
                self._trouble = error

    def _complain(self) -> None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble

    def _flush_all(self) -> None:
        while self.flush():
            pass

    def _heard(self, _widget: object, content: Any, _buffers: object) -> None:
        if not isinstance(content, dict):
            return
        if content.get("type") == "ready":
            with self._lock:
                self._picture.outbox.everything()
            self.wake()
            self.opened = True
            self.on_open()
        elif content.get("type") == "ask":
            message = {name: value for name, value in content.items() if name != "type"}
            with self._lock:
                looked = self._picture.look(message)
            if looked:
                self.wake()
                self.on_look()
            else:
                self.on_request(message)
