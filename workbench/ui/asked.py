"""What a person asks for inside the canvas, and the line of code that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from workbench.ui.calm import aside


class Bench(Protocol):
    """What can be asked of `workbench.bench.Workbench` from the canvas."""

    @property
    def job(self) -> Any: ...

    def set(self, **changes: Any) -> Any: ...
    def fit(self, start: str = ..., **settings: Any) -> Any: ...
    def show(self, run: str | None = ...) -> None: ...
    def compare(self, *runs: str) -> Any: ...
    def delete(self, run: str) -> None: ...


class Asked:
    """Carries out what the canvas asks for. `failed` shows an error to whoever asked."""

    def __init__(
        self, bench: Bench, failed: Callable[[Exception, str], None], open_export: Callable[[str], None],
        refresh: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._bench, self._failed, self._open_export, self._refresh = bench, failed, open_export, refresh

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
                # Checkpoints may be large: other clicks need not wait until they are gone.
                aside(lambda: self._bench.delete(run), lambda error: self._failed(error, "Delete"), "delete")
            case {"what": "compare", "runs": list(runs)}:
                aside(lambda: self._bench.compare(*map(str, runs)), lambda error: self._failed(error, "Compare"), "compare")
            case {"what": "refresh"}:
                self._refresh()
            case {"what": "use_clip", "value": float(clip) | int(clip)}:
                self._bench.set(gradient_clip_val=clip)
            case {"what": "measure_ratios", "on": bool(on)}:
                self._measure_ratios(on)
            case _:
                raise ValueError(f"the canvas asked for {dict(message)!r}, which the panel does not know.")

    def _measure_ratios(self, on: bool) -> None:
        """From now on: in the fit that runs, and in those to come."""
        job = self._bench.job
        if job is not None and job.kind == "fit" and job.status in ("running", "paused"):
            job.change(track_update_ratio=on)
        self._bench.set(track_update_ratio=on)
