"""Draws a batch-size search on the canvas: each size while it is tried, the memory limit, and
the size in use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from workbench.events import RunEnded, RunStarted, SearchEnded, Trial, TrialStarted
from workbench.ui import format, texts
from workbench.ui.canvas.transport.messages import Outbox, cut

TRIALS = 60
"""How many batch sizes are shown; more than a search ever tries."""
ERRORS = 24_000
"""Bytes for the texts of all errors together, so that they fit into one message."""
REASON = 700
"""Bytes of a reason at most."""
ERROR = 2000
"""Bytes of the text of one error at most."""


class BatchSizeSearch:
    """Collects the trials of a batch-size search, and sends them to the canvas."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._trials: dict[int, dict[str, Any]] = {}
        self._ranks = 1
        self._trying: TrialStarted | None = None
        self._asked: Mapping[str, Any] = {}
        self.over = True
        """Whether the next trial belongs to another search."""

    def start(self, event: RunStarted) -> None:
        """Begin a search: a job's, or one inside the fit that `event` started."""
        self.clear()
        self.over, self._asked = False, event.request
        self._outbox.put("room", _room(event.request, None, event.memory))

    def clear(self) -> None:
        """Begin without a search."""
        self._trials, self._ranks, self.over, self._asked = {}, 1, True, {}
        self._try(None)
        for name, nothing in (("trials", []), ("search", None), ("room", None)):
            self._outbox.put(name, nothing)

    @property
    def done(self) -> int:
        """The number of sizes tried."""
        return len(self._trials)

    def checking_steps(self, event: TrialStarted) -> None:
        """Show that a size is being tried."""
        self._try(event)

    def trial(self, event: Trial) -> None:
        """Show the result of a trial; a size that was tried twice shows the last result."""
        self._ranks = event.ranks
        self._try(None)
        if event.limit_bytes is not None:
            self._outbox.put("room", _room(self._asked, event.limit_bytes, None))
        self._put(
            event.size,
            {
                "size": event.size,
                "batches": event.accumulate_grad_batches,
                "state": _state(event),
                "rate": event.samples_per_second,
                "rate_words": (
                    ""
                    if event.samples_per_second is None
                    else format.count(event.samples_per_second)
                ),
                "rate_within": event.uncertainty,
                "peak": event.peak_bytes,
                "peak_words": "" if event.peak_bytes is None else format.size(event.peak_bytes),
                "error": None if event.error is None else _whose(event),
                "updates": event.updates_per_epoch,
            },
        )

    def ended(self, event: SearchEnded) -> None:
        """Show the result of the search."""
        self.over = True
        self._try(None)
        together = "" if self._ranks == 1 else texts.ranks_together(self._ranks)
        known = (
            event.noise_scale is not None
            and math.isfinite(event.noise_scale)
            and event.noise_scale > 0
        )
        self._outbox.put(
            "search",
            {
                "best": event.best,
                "fastest": event.fastest,
                "largest": event.largest,
                "reason": cut(event.reason, REASON),
                "noise": event.noise_scale if known else None,
                "noise_reason": cut(event.noise_reason, REASON),
                "ended": _sentence(event.ended[:200] + together),
            },
        )

    def left(self) -> None:
        """Note that a search inside a fit has ended and the fit continues."""
        if not self.over:
            self.over = True
            self._try(None)

    def run_ended(self, event: RunEnded) -> None:
        """Note that the job has ended while a size was tried. If it failed, the row of that size
        shows the error.
        """
        tried = self._trying
        self.over = True
        self._try(None)
        if tried is not None and event.error is not None:
            lines = event.error.strip().splitlines() or [texts.NO_REASON]
            self._put(
                tried.size,
                {
                    "size": tried.size,
                    "batches": tried.accumulate_grad_batches,
                    "state": "error",
                    "rate": None,
                    "rate_words": "",
                    "rate_within": None,
                    "peak": None,
                    "peak_words": "",
                    "updates": None,
                    "error": "\n".join([lines[-1], *lines[:-1]]),
                },
            )

    def chosen(self, settings: Mapping[str, Any]) -> None:
        """Show the bench's present batch size and accumulation; None: the accumulation changes
        during the run.
        """
        many = settings.get("accumulate_grad_batches")
        self._outbox.put(
            "chosen",
            {
                "size": settings.get("batch_size"),
                "batches": many if isinstance(many, int) else None,
            },
        )

    def _try(self, event: TrialStarted | None) -> None:
        self._trying = event
        now = (
            None
            if event is None
            else {"size": event.size, "batches": event.accumulate_grad_batches}
        )
        self._outbox.put("trying", now)

    def _put(self, size: int, row: dict[str, Any]) -> None:
        if size not in self._trials and len(self._trials) >= TRIALS:
            del self._trials[next(iter(self._trials))]
        self._trials[size] = row
        failed = sum(known["error"] is not None for known in self._trials.values())
        room = min(ERROR, ERRORS // max(1, failed))
        rows = sorted(self._trials.values(), key=lambda known: int(known["size"]))
        self._outbox.put(
            "trials",
            [{**known, "error": known["error"] and cut(known["error"], room)} for known in rows],
        )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _room(asked: Mapping[str, Any], limit: int | None, memory: int | None) -> dict[str, Any] | None:
    """The memory that a trial could use, and where that number comes from."""
    if limit is not None:
        source = "max_memory" if limit == asked.get("max_memory") else texts.FREE
        return {"bytes": limit, "words": texts.room(format.size(limit), source)}
    return (
        None
        if memory is None
        else {"bytes": memory, "words": texts.whole_device(format.size(memory))}
    )


def _state(event: Trial) -> str:
    if event.ok:
        return "fits"
    return "error" if event.fits else "memory"


def _whose(event: Trial) -> str:
    """The error of a trial; on several ranks, if it does not name the rank, with a note that one
    of them had it.
    """
    said = str(event.error)
    return (
        said if event.ranks == 1 or said.startswith("rank ") else texts.one_rank(event.ranks, said)
    )
