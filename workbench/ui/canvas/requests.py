"""Carries out what the user asks for inside the canvas, and shows the line of code for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from workbench.events import BenchEvent, Called
from workbench.ui.bench import Bench
from workbench.ui.canvas.messages import cut
from workbench.ui.controls.widget_utils import aside


class CanvasRequests:
    """Carries out requests of the canvas. `failed` shows an error to whoever asked.

    `tell` gives the panel an event that the bench does not emit, after all that it has emitted; `put` takes a name and
    plain data for the canvas.
    """

    def __init__(
        self, bench: Bench, failed: Callable[[Exception, str], None], open_export: Callable[[str], None],
        refresh: Callable[[], None], tell: Callable[[BenchEvent], None], put: Callable[[str, Any], None],
    ) -> None:  # fmt: skip
        self._bench, self._failed, self._open_export = bench, failed, open_export
        self._refresh, self._tell, self._put = refresh, tell, put
        self._kept = 0
        self._wanted: tuple[str, ...] = ()
        self._comparing = threading.Lock()
        """Comparisons are read one after another: of those that came meanwhile the last one counts."""

    def __call__(self, message: Mapping[str, Any]) -> None:
        try:
            self._do(message)
        except Exception as error:  # noqa: BLE001 - shown to the person who clicked
            self._failed(error, str(message.get("what", "")).replace("_", " ").capitalize())

    def _do(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"what": "use_batch_size", "value": int(size), "batches": int(many)}:
                self._bench.set(batch_size=size, accumulate_grad_batches=many)
            case {"what": "use_batch_size", "value": int(size)}:
                self._bench.set(batch_size=size)
            case {"what": "export", "run": str(run)}:
                self._open_export(run)
            case {"what": "show", "run": str(run)}:
                self._bench.show(run or None)
            case {"what": "continue", "run": str(run)}:
                self._bench.fit(start=run)
            case {"what": "delete", "run": str(run)}:
                # Checkpoints may be large: other clicks need not wait until they are deleted.
                aside(lambda: self._bench.delete(run), lambda error: self._not_deleted(run, error), "delete")
            case {"what": "compare", "runs": list(runs)}:
                self._wanted = wanted = tuple(map(str, runs))
                aside(lambda: self._compare(wanted), lambda error: self._failed(error, "Compare"), "compare")
            case {"what": "refresh"}:
                self._refresh()
            case {"what": "use_clip", "value": float(clip) | int(clip)}:
                self._bench.set(gradient_clip_val=clip)
            case {"what": "measure_ratios", "on": bool(on)}:
                self._measure_ratios(on)
            case _:
                raise ValueError(f"the canvas asked for {dict(message)!r}, which the panel does not know.")

    def _compare(self, runs: tuple[str, ...]) -> None:
        """Compare these, or none any more."""
        with self._comparing:
            if self._wanted == runs:
                self._bench.compare(*runs)

    def _not_deleted(self, run: str, error: Exception) -> None:
        self._failed(error, "Delete")
        self._kept += 1
        self._put("kept", {"run": cut(run, 80), "times": self._kept})

    def _measure_ratios(self, on: bool) -> None:
        """Measure them from now on: in the running fit, and in those to come."""
        job = self._bench.job
        going = job is not None and job.kind == "fit" and job.status in ("running", "paused")
        if going:
            job.change(track_update_ratio=on)
        self._bench.set(track_update_ratio=on)
        if going:  # each call has shown its own line, and only the last one would be seen
            self._tell(Called(f"bench.job.change(track_update_ratio={on}); bench.set(track_update_ratio={on})"))
