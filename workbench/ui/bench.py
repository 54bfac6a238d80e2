"""Defines the protocol of a bench for the panel and its parts, so that nothing here imports
`workbench.bench`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, Unpack

from workbench.export.file_format import Format, ScriptOptions
from workbench.settings import Settings
from workbench.settings.kwargs import SettingsKwargs
from workbench.tuners.learning_rate.rate_change import RateChange


class Bench(Protocol):
    """The part of `workbench.bench.Workbench` that the user interface calls."""

    @property
    def settings(self) -> Settings:
        """The settings of the next job."""

    @property
    def summary(self) -> Any:
        """A summary of the model: its name, parameters and device."""

    @property
    def root(self) -> Path:
        """The folder of the runs."""

    @property
    def job(self) -> Any:
        """The running job, or else the latest one."""

    @property
    def jobs(self) -> Iterable[Any]:
        """All jobs of this bench, oldest first."""

    @property
    def studies(self) -> Sequence[Any]:
        """The studies that this bench has begun, or let go on, oldest first."""

    def set(self, **changes: Unpack[SettingsKwargs]) -> Any:
        """Change settings of the next job."""

    def _rate_change(self, settings: Settings) -> RateChange | None:
        """What to say about a rate that was found for other settings than these."""

    def find_lr(self, *, optimizer: int = ...) -> Any:
        """Start a search for a learning rate."""

    def find_batch_size(self, *, keep_effective: bool = ...) -> Any:
        """Start a search for a batch size."""

    def find_num_workers(self) -> Any:
        """Start a search for a number of loader workers."""

    def find_precision(self) -> Any:
        """Start a search for a precision."""

    def find_clip_val(self) -> Any:
        """Start a search for a clip value."""

    def find_weight_decay(self) -> Any:
        """Start a search for a weight decay."""

    def find_recipe(self) -> Any:
        """Start a race of recipes."""

    def tune(self) -> Any:
        """Start a search for workers, a batch size, a learning rate and a clip value."""

    def profile(self) -> Any:
        """Start a profile of some updates."""

    def fit(self, start: str = ..., **settings: Unpack[SettingsKwargs]) -> Any:
        """Start a fit."""

    def export(
        self,
        path: str,
        run: str | None = ...,
        *,
        format: Format | None = ...,
        **options: Unpack[ScriptOptions],
    ) -> Any:
        """Write a script that repeats a run, or another format of it."""

    def script(
        self,
        run: str | None = ...,
        *,
        format: Format | None = ...,
        **options: Unpack[ScriptOptions],
    ) -> str:
        """The text of that file."""

    def show(self, run: str | None = ...) -> None:
        """Show a recorded run in the panel; None: the live one again."""

    def compare(self, *runs: str) -> Any:
        """Compare recorded runs."""

    def delete(self, run: str) -> None:
        """Delete a recorded run."""

    def annotate(
        self,
        run: str,
        *,
        name: str | None = ...,
        notes: str | None = ...,
        tags: Iterable[str] | None = ...,
        pinned: bool | None = ...,
    ) -> None:
        """Give a recorded run a name, notes, tags or a pin."""

    def subscribe(self, callback: Any) -> Any:
        """Call `callback` with every event from now on; returns a function that ends this."""

    def on_close(self, callback: Any) -> Any:
        """Call `callback` when the bench is closed."""
