"""What a person asks for inside the canvas, and the line of code that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Bench(Protocol):
    """What can be asked of `workbench.bench.Workbench` from the canvas."""

    @property
    def job(self) -> Any: ...

    def set(self, **changes: Any) -> Any: ...


class Asked:
    """Carries out what the canvas asks for. `failed` shows an error to whoever asked."""

    def __init__(self, bench: Bench, failed: Callable[[Exception, str], None]) -> None:
        self._bench, self._failed = bench, failed

    def __call__(self, message: Mapping[str, Any]) -> None:
        try:
            self._do(message)
        except Exception as error:  # noqa: BLE001 - shown to the person who clicked
            self._failed(error, str(message.get("what", "")).replace("_", " ").capitalize())

    def _do(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"what": "use_batch_size", "value": int(size)}:
                self._bench.set(batch_size=size)
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
