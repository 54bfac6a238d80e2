"""Shows recorded runs in the panel: the table of fits, earlier curves, comparisons, and one run
drawn again.

While a recorded run is shown, the running one is not drawn; afterwards it is drawn again from its
job's events.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from workbench.events import (
    Annotated,
    BenchEvent,
    Compared,
    Deleted,
    Event,
    Message,
    RunEnded,
    RunStarted,
    Shown,
    StatusChanged,
    Unrecorded,
)  # fmt: skip
from workbench.runs import read
from workbench.runs.checkpoints import list_checkpoints
from workbench.runs.folder.annotations import Annotations, read_annotations
from workbench.runs.record.event_log import newest, now
from workbench.runs.record.follow import Tail
from workbench.runs.record.sequence import stream
from workbench.runs.record.stream import joined
from workbench.runs.tables.brief import RunBrief
from workbench.ui import texts
from workbench.ui.bench import Bench
from workbench.ui.canvas.runs.past_curves import PREVIOUS
from workbench.ui.canvas.runs.pending_deletions import PendingDeletions
from workbench.ui.canvas.runs.runs_page import Page, Pages, View
from workbench.ui.canvas.runs.runs_table import RunsTable
from workbench.ui.canvas.transport.messages import cut
from workbench.ui.canvas.widget import LiveView
from workbench.ui.controls.widget_utils import aside

EVERY = 0.5
"""Seconds between two reads of the shown record, while another process still writes it."""
_OF_NO_RUN = Message | Unrecorded


class RunHistory:
    """Shows past runs: their table, their curves on the canvas, and a recorded run in place of the
    live one.

    The panel calls `on_event` with each event before it draws the event, in one thread. seen:
    returns the jobs whose plots are
    shown. listed: called when the table was read.
    """

    def __init__(
        self,
        bench: Bench,
        canvas: LiveView,
        seen: Callable[[], Iterable[Any]],
        failed: Callable[[Exception, str], None],
        listed: Callable[[], None],
    ) -> None:
        self._root, self._canvas, self._seen, self._failed, self._listed = (
            bench.root,
            canvas,
            seen,
            failed,
            listed,
        )
        self._model = (bench.summary.name, bench.summary.parameters)
        self._table = RunsTable(
            bench.root, self._list, self._move, lambda error: failed(error, texts.ACTIONS["runs"])
        )
        self.deletions = PendingDeletions(
            lambda run: bench.delete(run),
            lambda pending: canvas.put("deleting", pending),
            lambda error: failed(error, texts.ACTIONS["delete"]),
        )
        self._looked_at = False
        """Whether a view has opened; before that nothing is read."""
        self._noted: set[str] = set()
        """The runs whose notes were sent."""
        self._briefs: list[RunBrief] = []
        self._count, self._waiting = 0, 0
        """The number of fits in the folder, and of those that are still to be read."""
        self._annotated: dict[str, Annotations] = {}
        self._view, self._pages = View(), Pages()
        self._page: Page | None = None
        self._behind = False
        """Whether runs have moved while no view drew the table."""
        self._number = 0
        """The number of the page that was sent last; its rows contain it."""
        self._paging = threading.Lock()
        self._resumable: set[str] = set()
        self._previous: list[RunBrief] = []
        self._fit = ""
        """The fit of the loss plot."""
        self._shown = ""
        """The recorded run that is shown; "": none."""
        self._compared: tuple[str, ...] = ()
        self._last: BenchEvent | None = None
        self._begun: set[str] = set()
        self._live_fit = ""
        self._drawing, self._placing = threading.Lock(), threading.Lock()
        self._turn = 0
        """Counts the changes of what is shown; reading a record stops when the count has
        changed.
        """

    def look(self) -> None:
        """Read the folder from now on, since a view has opened."""
        self._looked_at = True
        self.refresh()

    def catch_up(self) -> None:
        """Show the present values where a view draws the table again."""
        if self._behind and not self._canvas.holds("moving"):
            self._behind = False
            aside(self._put_page, lambda error: self._failed(error, texts.ACTIONS["runs"]), "runs")

    def refresh(self) -> None:
        """Read the folder again; returns at once."""
        if self._looked_at:
            self._table.refresh()

    def close(self) -> None:
        """Stop reading and drawing. Runs whose deletion can still be undone stay."""
        self._table.close()
        self.deletions.close()
        with self._drawing:
            self._shown, self._turn = "", self._turn + 1

    def on_event(self, event: BenchEvent) -> None:
        """Update the past curves for an event."""
        match event:
            case Shown():
                self._show(event.run)
            case Compared():
                self._compare(event.runs)
            case Deleted():
                self._deleted(event.run)
            case RunStarted():
                self._show("")
                self._begun.add(event.run)
                if event.kind == "fit":
                    self._live_fit = event.run
                    self._look_at(event.run)
                    self.refresh()
            case RunEnded() | Annotated():
                self.refresh()
            case _:
                pass
        waits = isinstance(event, StatusChanged) and event.status == "queued"  # the panel's own
        if not isinstance(event, _OF_NO_RUN) and not waits:
            self._last = event

    def lets_through(self, event: BenchEvent) -> bool:
        """Whether an event is drawn now."""
        return not self._shown or isinstance(event, _OF_NO_RUN)

    @property
    def runs(self) -> list[RunBrief]:
        """The runs that were read, newest first."""
        return self._briefs

    @property
    def page(self) -> list[tuple[RunBrief, bool]]:
        """The runs whose rows are seen, each with whether it has a checkpoint from which a fit
        can continue.
        """
        shown = [] if self._page is None else self._page.shown
        return [(brief, brief.id in self._resumable) for brief in shown]

    def see(self, message: Mapping[str, Any]) -> None:
        """Show the table of runs as a request says: filtered, sorted, another page of it."""
        match message:
            case {"brushed": dict(brushes)}:
                message = {**message, "filter": self._pages.brushed(self._view, brushes)}
        self._view = wanted = self._view.changed(message)

        def work() -> None:
            if self._view is wanted:  # no later request has come meanwhile
                self._put_page()

        aside(work, lambda error: self._failed(error, texts.ACTIONS["runs"]), "runs")

    # -- a recorded run

    def _show(self, run: str) -> None:
        if any(job.id == run and not job.done() for job in self._seen()):
            run = ""  # the running job itself is shown
        with self._drawing:
            before, self._shown = self._shown, run
            turn = self._turn = self._turn + 1
        if run:
            self._canvas.put("opened", {"run": cut(run, 80)})
            self._look_at(run)
            aside(
                lambda: self._draw(run, turn),
                lambda error: self._failed(error, texts.show_run(run)),
                "show",
            )
        elif before:
            self._canvas.put("opened", None)
            self._draw_live()
            self._look_at(self._live_fit)

    def _draw(self, run: str, turn: int) -> None:
        """Draw the record from its beginning, in pieces, until something else is shown."""
        record = Record(self._root / read.RUNS / run)
        events = record.new()
        first = [*islice(events, 1)]
        with self._drawing:
            if self._turn != turn:
                return
            self._canvas.anew(first)
        if self._draw_all(events, turn) and not record.over:
            aside(
                lambda: self._draw_on(record, turn),
                lambda error: self._failed(error, texts.show_run(run)),
                "follow",
            )

    def _draw_on(self, record: Record, turn: int) -> None:
        """Draw the new events of a record that another bench or process still writes."""
        while not record.over:
            time.sleep(EVERY)
            if not self._draw_all(record.new(), turn):
                return

    def _draw_all(self, events: Iterable[Event], turn: int) -> bool:
        """Draw these events; returns whether they are still to be shown."""
        for event in events:
            with self._drawing:
                if self._turn != turn:
                    return False
                try:
                    self._canvas.draw(event)
                except Exception as error:  # noqa: BLE001 - shown; the others are drawn
                    self._failed(error, texts.ACTIONS["show"])
            self._canvas.wake()
        return self._turn == turn

    def _draw_live(self) -> None:
        """Draw the jobs' events so far; later ones come through the dispatcher."""
        jobs = [job for job in self._seen() if job.id in self._begun]
        self._canvas.anew(event for job in jobs for event in joined(self._heard(now(job.events))))

    def _heard(self, events: Sequence[Event]) -> Iterator[Event]:
        later = next(
            (index for index, event in enumerate(reversed(newest(events))) if event is self._last),
            0,
        )
        return islice(stream(events), len(events) - later)

    # -- the table, and the losses of previous runs

    def _list(self, briefs: list[RunBrief], count: int, waiting: int) -> None:
        annotated = {
            brief.id: read_annotations(brief.path) for brief in briefs if brief.path is not None
        }
        with self._placing:
            self._briefs, self._annotated = briefs, annotated
            self._count, self._waiting = count, waiting
            self._put_previous()
        self._put_page()
        self.deletions.settle({brief.id for brief in briefs})

    def _put_page(self) -> None:
        """Send what is seen of the runs."""
        with self._paging:
            self._send(self._made_page())
        self._listed()

    def _made_page(self) -> Page:
        counts = self._count, self._waiting
        return self._pages.page(self._view, self._briefs, counts, self._annotated)

    def _send(self, page: Page) -> None:
        before, self._page = self._page, page
        for brief in page.shown:
            notes = self._annotated.get(brief.id, Annotations()).notes
            # one message each: all of them together may be too long for one
            if notes or brief.id in self._noted:
                self._noted.add(brief.id)
                self._canvas.put(f"notes.{brief.id}", notes)
        if before is None or (before.head, before.parts) != (page.head, page.parts):
            self._number += 1
            for at, rows in enumerate(page.parts):
                self._canvas.put(f"rows.{at}", {"of": self._number, "rows": rows})
            head = {**page.head, "of": self._number, "parts": len(page.parts)}
            self._canvas.put("runs", head)
            self._canvas.put("moving", [])
        self._canvas.put("explained", self._pages.explained(self._view))
        self._resumable = {
            brief.id
            for brief in page.shown
            if brief.status in read.OVER and brief.path is not None and list_checkpoints(brief.path)
        }
        why = {brief.id: _why_not_repeated(brief) for brief in page.shown}
        self._canvas.put("unkept", {run: cut(text, 200) for run, text in why.items() if text})

    def _move(self, briefs: list[RunBrief]) -> None:
        """Show the present values of running runs; where these change the order, another page."""
        now = {brief.id: brief for brief in briefs}
        with self._placing:
            self._briefs = [now.get(brief.id, brief) for brief in self._briefs]
        self._behind = True
        if self._canvas.holds("moving"):  # `catch_up` sends it when the tab opens
            return
        self._behind = False
        with self._paging:
            before = self._page
            page = self._made_page()
            ids = [brief.id for brief in page.shown]
            if before is None or page.head != before.head or ids != [b.id for b in before.shown]:
                self._send(page)
                return
            self._page = replace(page, head=before.head, parts=before.parts)
            rows = [row for drawn in page.parts for row in drawn if row["run"] in now]
            self._canvas.put("moving", rows)

    def _look_at(self, fit: str) -> None:
        with self._placing:
            self._fit = fit
            self._put_previous()

    def _put_previous(self) -> None:
        """Draw the losses of the last finished fits of this model in grey, except for the shown
        one.
        """
        fits = [
            brief
            for brief in self._briefs
            if brief.id != self._fit and brief.status in read.OVER and brief.model == self._model
        ]
        previous = [brief for brief in fits if len(brief.curve)][:PREVIOUS]
        if previous != self._previous:
            self._previous = previous
            self._canvas.put_previous(previous)

    # -- comparisons

    def _compare(self, runs: tuple[str, ...]) -> None:
        self._compared = runs

        def work() -> None:
            briefs = [RunBrief.read(self._root / read.RUNS / id, history=True) for id in runs]
            with self._placing:
                if self._compared == runs:  # the user has not closed it meanwhile
                    self._canvas.put_compared(briefs)

        aside(work, lambda error: self._failed(error, texts.ACTIONS["compare"]), "compare")

    def _deleted(self, run: str) -> None:
        if run == self._shown:
            self._show("")
        if run in self._compared:
            rest = tuple(id for id in self._compared if id != run)
            self._compare(rest if len(rest) > 1 else ())
        self.refresh()


def _why_not_repeated(run: RunBrief) -> str:
    """Why a recorded fit cannot be repeated; "": it can."""
    if run.unseen:
        return texts.MAY_STILL_RUN
    if run.status not in read.OVER or run.path is None:
        return texts.NOT_ENDED
    return read.why_not_repeated(run.path)


class Record:
    """A record that is read while it grows; `over`: whether it is complete."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._tail, self.over = folder, Tail(folder), False

    def new(self) -> Iterator[Event]:
        """The new events; for a killed process, which could not record its end, with a RunEnded
        at the end.
        """
        # read before the record: if the run has ended, the record is complete
        summary = read.summary(self._folder)
        while events := self._tail.new():
            for event in joined(events):
                self.over = self.over or isinstance(event, RunEnded)
                yield event
        if summary.over and not self.over:
            self.over = True
            yield RunEnded(summary.status, summary.step, summary.seconds, summary.error)
