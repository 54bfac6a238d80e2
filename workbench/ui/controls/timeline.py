"""Lists the jobs of the bench below the stage: each with its result, and with its settings, which
can be set again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.events import Changed, CurvePoint, Event, RunStarted
from workbench.runs.chart_data import UNMARKED
from workbench.runs.health import examine, in_doubt
from workbench.runs.read import OVER, State
from workbench.runs.record.event_log import RecordGone, newest, now
from workbench.runs.record.sequence import stream
from workbench.runs.record.stream import joined
from workbench.runs.tables.brief import COLUMNS, Fold
from workbench.settings import Settings
from workbench.settings.setting_text import same
from workbench.ui import format, texts
from workbench.ui.bench import Bench
from workbench.ui.canvas.runs.runs_table import finite
from workbench.ui.canvas.searches.answers import Ended, answer_to
from workbench.ui.canvas.transport.messages import cut
from workbench.ui.controls import next_actions
from workbench.ui.controls.widget_utils import aside

MOST = 40
"""How many jobs are listed: the latest ones."""
_CURVES = ("fit", "find_lr")
"""The kinds of jobs whose curves can be laid over the stage's plot."""
_POINTS = 200
"""How many points such a curve has at most."""
_TEXT = 300
"""Bytes for a text of a job, so that all of them fit into one message."""


class Timeline:
    """The jobs of the bench, oldest first. `put` sends plain data to the canvas."""

    def __init__(
        self,
        bench: Bench,
        put: Callable[[str, Any], None],
        studies: Callable[[], list[dict[str, Any]]],
        failed: Callable[[Exception, str], None],
    ) -> None:
        """studies: describes those of the bench, which follow its jobs. failed: shows an error."""
        self._bench, self._put, self._studies, self._failed = bench, put, studies, failed
        self._troubles: dict[str, list[str] | None] = {}
        """What is known of the fits that have ended, since their records no longer grow."""

    def show(self) -> None:
        """Send the jobs as they are now."""
        begun = [job for job in self._bench.jobs if job.status != "queued"][-MOST:]
        live = begun[-1].id if begun else ""
        self._put("timeline", [*(self._chip(job, live) for job in begun), *self._studies()])

    def settings_of(self, run: str) -> dict[str, Any]:
        """The settings of this job that are not the bench's. Raises ValueError: the bench has no
        such job.
        """
        return self._differences(self._job(run))

    def hear(self, message: Mapping[str, Any]) -> bool:
        """Send the curve of the job whose chip is pointed at; False: the request is about
        something else.
        """
        match message:
            case {"what": "overlay", "run": str(run)}:
                job = self._job(run)
                aside(
                    lambda: self._put("overlay", _overlay(job)),
                    lambda error: self._failed(error, texts.show_run(run)),
                    "overlay",
                )
                return True
        return False

    def _job(self, run: str) -> Any:
        for job in self._bench.jobs:
            if job.id == run:
                return job
        raise ValueError(texts.no_such_job(run))

    def _chip(self, job: Any, live: str) -> dict[str, Any]:
        """The description of a job. `show`: what shows it, "": it is shown unless another one is;
        None: nothing does.
        """
        gone = next_actions.gone(job)
        shown_by = None if gone or job.folder is None else cut(job.id, 80)
        if job.id == live:
            shown_by = ""
        return {
            "run": cut(job.id, 80),
            "status": job.status,
            "trouble": self._trouble(job),
            "label": cut(_label(job), _TEXT),
            "note": cut(_changes(newest(now(job.events))), _TEXT),
            "show": shown_by,
            "curve": job.kind if job.kind in _CURVES and not gone else "",
            "restores": cut(format.assignments(self._differences(job)), _TEXT),
        }

    def _trouble(self, job: Any) -> list[str] | None:
        """Why the result of a fit that has ended is in doubt, as a level and a word; None: it is
        not, or not known.
        """
        if job.kind != "fit" or job.status not in OVER:
            return None
        if job.id not in self._troubles:
            finding = None
            with contextlib.suppress(RecordGone):
                finding = in_doubt(examine(joined(stream(now(job.events), COLUMNS))))
            words = None if finding is None else [finding.level, finding.trouble]
            self._troubles[job.id] = words
        return self._troubles[job.id]

    def _differences(self, job: Any) -> dict[str, Any]:
        present = self._bench.settings
        return {
            name: getattr(job.settings, name)
            for name in Settings.model_fields
            if not same(getattr(job.settings, name), getattr(present, name))
        }


def _overlay(job: Any) -> dict[str, Any]:
    """The curve of a job, at most `_POINTS` points: of a fit (updates, epochs, seconds, smoothed
    loss), of a sweep (rate, smoothed loss); `value` is the last loss of a fit.
    """
    rows: list[tuple[float, ...]] = []
    events = stream(now(job.events), COLUMNS)
    if job.kind == "fit":
        fold = Fold()
        for event in joined(events):
            fold.add(event)
        brief = fold.brief(job.id, State(job.status, 0, 0.0), math.nan, ("", None), None)
        rows = [tuple(row) for row in brief.curve.tolist()]
    else:
        for event in events:
            if isinstance(event, CurvePoint):
                if event.index == 0:  # the last one of several sweeps is drawn
                    rows = []
                rows.append((event.lr, event.smoothed))
    every = max(1, math.ceil(len(rows) / _POINTS))
    return {
        "run": cut(job.id, 80),
        "value": format.number(rows[-1][-1]) if rows and job.kind == "fit" else "",
        "rows": [[finite(value) for value in row] for row in [*rows[:-1:every], *rows[-1:]]],
    }


def _label(job: Any) -> str:
    """'lr 6.93e-3', 'batch 64', 'fit 0004'; of a search that has found nothing yet, its number."""
    if job.kind in texts.CHIPS:
        events = newest(now(job.events))
        run = next((event for event in events if isinstance(event, RunStarted)), None)
        ended = next((event for event in reversed(events) if isinstance(event, Ended)), None)
        if ended is not None:
            answer = answer_to(ended, run)
            return f"{texts.CHIPS[job.kind]} {answer.text or texts.NO_NUMBER}"
    number = job.id.partition("-")[0]
    return f"{texts.CHIPS.get(job.kind, job.kind)} {number}"


def _changes(events: Sequence[Event]) -> str:
    """The live changes of a fit: 'lr→2e-3 at 908'."""
    changes = [event for event in events if isinstance(event, Changed)]
    return ", ".join(
        texts.changed_at(format.change(name, value), event.step)
        for event in changes
        for name, value in event.values.items()
        if name not in UNMARKED
    )
