"""Lists the jobs of the bench below the stage: each with its result, and with its settings, which
can be set again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.events import Changed, Event, RunStarted
from workbench.runs.chart_data import UNMARKED
from workbench.runs.record.event_log import newest, now
from workbench.settings import Settings
from workbench.settings.setting_text import same
from workbench.ui import format, texts
from workbench.ui.bench import Bench
from workbench.ui.canvas.searches.answers import Ended, answer_to
from workbench.ui.canvas.transport.messages import cut
from workbench.ui.controls import next_actions

MOST = 40
"""How many jobs are listed: the latest ones."""
_TEXT = 300
"""Bytes for a text of a job, so that all of them fit into one message."""


class Timeline:
    """The jobs of the bench, oldest first. `put` sends plain data to the canvas."""

    def __init__(
        self,
        bench: Bench,
        put: Callable[[str, Any], None],
        studies: Callable[[], list[dict[str, Any]]],
    ) -> None:
        """studies: describes those of the bench, which follow its jobs."""
        self._bench, self._put, self._studies = bench, put, studies

    def show(self) -> None:
        """Send the jobs as they are now."""
        begun = [job for job in self._bench.jobs if job.status != "queued"][-MOST:]
        live = begun[-1].id if begun else ""
        self._put("timeline", [*(self._chip(job, live) for job in begun), *self._studies()])

    def settings_of(self, run: str) -> dict[str, Any]:
        """The settings of this job that are not the bench's. Raises ValueError: the bench has no
        such job.
        """
        for job in self._bench.jobs:
            if job.id == run:
                return self._differences(job)
        raise ValueError(texts.no_such_job(run))

    def _chip(self, job: Any, live: str) -> dict[str, Any]:
        """The description of a job. `show`: what shows it, "": it is shown unless another one is;
        None: nothing does.
        """
        recorded = job.folder is not None and not next_actions.gone(job)
        shown_by = cut(job.id, 80) if recorded else None
        if job.id == live:
            shown_by = ""
        return {
            "run": cut(job.id, 80),
            "status": job.status,
            "label": cut(_label(job), _TEXT),
            "note": cut(_changes(newest(now(job.events))), _TEXT),
            "show": shown_by,
            "restores": cut(format.assignments(self._differences(job)), _TEXT),
        }

    def _differences(self, job: Any) -> dict[str, Any]:
        present = self._bench.settings
        return {
            name: getattr(job.settings, name)
            for name in Settings.model_fields
            if not same(getattr(job.settings, name), getattr(present, name))
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
