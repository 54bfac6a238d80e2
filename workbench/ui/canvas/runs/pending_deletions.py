"""Deletes runs some seconds after the user has asked for it; until then the deletion can be
undone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.ui.canvas.transport.messages import cut

SECONDS = 10.0
"""Seconds in which a deletion can be undone."""


@dataclass(eq=False)
class _Deletion:
    """Runs that were deleted together."""

    number: int
    runs: list[str]
    timer: threading.Timer | None = None
    due: bool = False
    """Whether it is too late to undo it."""


class PendingDeletions:
    """Calls `delete(run)` for each run after `SECONDS`. show: called with the list for the canvas;
    failed: called with an error of `delete`.

    If the process ends before, the runs stay.
    """

    def __init__(
        self,
        delete: Callable[[str], None],
        show: Callable[[list[dict[str, Any]]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._delete, self._show, self._failed = delete, show, failed
        self._lock = threading.RLock()
        self._pending: list[_Deletion] = []
        self._count = 0

    def add(self, runs: Sequence[str]) -> None:
        """Delete these runs later."""
        with self._lock:
            new = [
                run
                for run in dict.fromkeys(runs)
                if not any(run in deletion.runs for deletion in self._pending)
            ]
            if not new:
                return
            self._count += 1
            deletion = _Deletion(self._count, new)
            deletion.timer = threading.Timer(SECONDS, self._carry_out, [deletion])
            deletion.timer.daemon = True
            self._pending.append(deletion)
            self._show_pending()
            deletion.timer.start()

    def undo(self, number: int) -> None:
        """Keep the runs of this deletion, unless it is too late."""
        with self._lock:
            self._pending = [
                deletion
                for deletion in self._pending
                if deletion.number != number or deletion.due or _cancel(deletion)
            ]
            self._show_pending()

    def settle(self, listed: Collection[str]) -> None:
        """Forget deletions that are done and whose runs are no longer `listed` in the table."""
        with self._lock:
            self._pending = [
                deletion
                for deletion in self._pending
                if not deletion.due or any(run in listed for run in deletion.runs)
            ]
            self._show_pending()

    def close(self) -> None:
        """Keep all runs that are not deleted yet."""
        with self._lock:
            self._pending = [
                deletion for deletion in self._pending if deletion.due or _cancel(deletion)
            ]

    def _carry_out(self, deletion: _Deletion) -> None:
        with self._lock:
            if deletion not in self._pending:
                return
            deletion.due = True
            self._show_pending()
        for run in list(deletion.runs):
            try:
                self._delete(run)
            except Exception as error:  # noqa: BLE001 - shown to the person who clicked; the run is listed again
                with self._lock:
                    deletion.runs.remove(run)
                    self._show_pending()
                self._failed(error)
        with self._lock:
            self._pending = [other for other in self._pending if other.runs]
            self._show_pending()

    def _show_pending(self) -> None:
        self._show(
            [
                {
                    "number": deletion.number,
                    "runs": [cut(run, 80) for run in deletion.runs],
                    "due": deletion.due,
                }
                for deletion in self._pending
            ]
        )


def _cancel(deletion: _Deletion) -> bool:
    """Stop its timer; False: it is no longer pending."""
    assert deletion.timer is not None
    deletion.timer.cancel()
    return False
