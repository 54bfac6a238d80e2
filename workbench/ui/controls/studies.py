"""Shows the studies of a bench in its panel: one on the stage, and a chip for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from workbench.ui import texts
from workbench.ui.bench import Bench
from workbench.ui.canvas.study.described import Study
from workbench.ui.canvas.study.feed import StudyFeed
from workbench.ui.canvas.transport.messages import cut
from workbench.ui.canvas.widget import LiveView
from workbench.ui.controls.notice import Notice

_MOST = 10
"""How many studies are listed: the latest ones."""


class Studies:
    """The studies that a bench has begun in this process. `changed` is called when the chips have
    changed.
    """

    def __init__(
        self, bench: Bench, canvas: LiveView, notice: Notice, changed: Callable[[], None]
    ) -> None:
        self._bench, self._canvas, self._notice = bench, canvas, notice
        self._changed = changed
        self._feed: StudyFeed | None = None
        self._status = ""
        """The status of the study that is followed, when it was looked at last."""
        self._lock = threading.RLock()
        """Held while another study is chosen: that may come on two threads."""

    def opened(self) -> None:
        """Put the newest study on the stage of a new panel where it runs, and no job does."""
        studies = [*self._bench.studies]
        works = any(not job.done() for job in self._bench.jobs)
        if studies and not works and studies[-1].status == "running":
            self._choose(studies[-1])

    def begun(self) -> None:
        """Put the study that was begun, or let go on, on the stage, where it has not ended."""
        studies = [*self._bench.studies]
        if studies and studies[-1].status != "ended":
            self._choose(studies[-1])

    def hear(self, message: Mapping[str, Any]) -> bool:
        """Carry out what the user did with a study; False: the message is about something else."""
        match message:
            case {"what": "show_study", "study": str(id)}:
                for study in self._bench.studies:
                    if study.id == id:
                        self._choose(study)
                        return True
                raise ValueError(texts.no_such_study(id))
            case {"what": "show"}:  # a job takes the stage
                self._canvas.stage_study(False)
        return self._feed is not None and self._feed.hear(message)

    def chips(self) -> list[dict[str, Any]]:
        """The descriptions of the latest studies, as `Timeline` describes jobs."""
        chips = []
        feed = self._feed
        for study in [*self._bench.studies][-_MOST:]:
            followed = feed is not None and feed.study is study
            status = (followed and self._status) or study.status
            number = study.id.partition("-")[0]
            chips.append(
                {
                    "run": cut(study.id, 80),
                    "status": _as_of_job(status),
                    "trouble": None,
                    "label": cut(f"{texts.CHIPS['study']} {number}", 80),
                    "note": "",
                    "show": None,
                    "curve": "",
                    "restores": "",
                    "study": True,
                }
            )
        return chips

    def close(self) -> None:
        """Stop following."""
        with self._lock:
            if self._feed is not None:
                self._feed.close()

    def _choose(self, study: Study) -> None:
        with self._lock:
            if self._feed is None or self._feed.study is not study:
                self.close()
                self._status = ""
                looked = partial(self._looked, study)
                self._feed = StudyFeed(study, self._canvas.put_all, self._notice, looked)
                self._feed.follow()
            self._canvas.stage_study(True)
        self._changed()

    def _looked(self, study: Study, status: str) -> bool:
        """Show the chips again where the status of the study that is followed has changed."""
        with self._lock:
            feed = self._feed
            changed = feed is not None and feed.study is study and self._status != status
            if changed:
                self._status = status
        if changed:
            self._changed()
        return True


def _as_of_job(status: str) -> str:
    """The status of a study, as a job has it."""
    if status in ("running", "paused"):
        return status
    return "finished" if status == "ended" else "stopped"
