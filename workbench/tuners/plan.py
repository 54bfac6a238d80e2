"""Defines `Plan`, the result of `bench.tune()`: workers, batch size, learning rate and clip value, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.events import TuneStep
from workbench.runs.printable import printable
from workbench.tuners.batch_size.batch_size_search import BatchSizes
from workbench.tuners.clip_search import ClipRequest, ClipSearch
from workbench.tuners.decay_search import WeightDecayRequest
from workbench.tuners.learning_rate.curve import LRCurve
from workbench.tuners.speed_search import PrecisionRequest, SpeedSearch, WorkersRequest, name_of

SettingsRequest = WorkersRequest | PrecisionRequest | ClipRequest | WeightDecayRequest
"""A search whose result is settings, and which opens the sessions that it needs itself."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The settings that a tuning recommends. `bench.set(**plan.settings)` takes them.

    `steps`: each search with its settings and its reason, in order; a search after another ran with that one's settings.
    `workers`, `sizes`, `curve`, `clip`: their results, as `find_num_workers`, `find_batch_size`, `find_lr` and
    `find_clip_val` return them.
    """

    settings: Mapping[str, Any]
    steps: tuple[TuneStep, ...]
    workers: SpeedSearch
    sizes: BatchSizes
    curve: LRCurve
    clip: ClipSearch

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> Plan:
        """From a run's events or its record, as far as the tuning got."""
        found = list(events)
        steps = tuple(e for e in found if isinstance(e, TuneStep))
        settings = {name: value for step in steps for name, value in step.values.items()}
        return cls(
            settings, steps, SpeedSearch.from_events(found), BatchSizes.from_events(found), LRCurve.from_events(found),
            ClipSearch.from_events(found),
        )  # fmt: skip

    def __repr__(self) -> str:
        rows = [f"  {step.search:<17} {name_of(step.values) or 'unchanged':<28} {step.reason}" for step in self.steps]
        return "\n".join(map(printable, [f"Plan: bench.set({name_of(self.settings)})", *rows]))
