"""Defines `Plan`, the result of `bench.tune()`: workers, batch size, learning rate and clip
value, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.events import TuneStep, TuneTrial
from workbench.plots.chart import Chart
from workbench.plots.drawing.drawable import Drawable
from workbench.runs.printable import printable
from workbench.tuners.batch_size.batch_size_search import BatchSizes
from workbench.tuners.clip_search import ClipRequest, ClipSearch
from workbench.tuners.decay_search import WeightDecayRequest
from workbench.tuners.learning_rate.curve import LRCurve
from workbench.tuners.recipe_search import RecipeRequest
from workbench.tuners.speed_search import PrecisionRequest, SpeedSearch, WorkersRequest, name_of

SettingsRequest = (
    WorkersRequest | PrecisionRequest | ClipRequest | WeightDecayRequest | RecipeRequest
)
"""The arguments of a search whose result is settings, and which opens its own sessions."""


@dataclass(frozen=True, eq=False)
class Plan(Drawable):
    """The result of a tuning: recommended settings, for `bench.set(**plan.settings)`.

    `steps`: each search with its settings and its reason, in order; each search ran with the
    settings of those before it. The last one, "check", compares all of them with the present
    settings, by the loss after the same number of samples. `settings` are what it has left: without
    what changes the training if that is not clearly better.
    `trials`: each stretch that was compared, with its loss. The first that has no `values` is that
    of the present settings.
    `workers`, `sizes`, `curve`, `clip`: their results, as `find_num_workers`, `find_batch_size`,
    `find_lr` and `find_clip_val` return them.
    """

    settings: Mapping[str, Any]
    steps: tuple[TuneStep, ...]
    workers: SpeedSearch
    sizes: BatchSizes
    curve: LRCurve
    clip: ClipSearch
    trials: tuple[TuneTrial, ...] = ()

    @classmethod
    def from_events(cls, events: Iterable[Any]) -> Plan:
        """Make it from the events of a run or a record, complete or not."""
        recorded = list(events)
        steps = tuple(e for e in recorded if isinstance(e, TuneStep))
        checks = [step for step in steps if step.is_check]
        settings = {name: value for step in checks or steps for name, value in step.values.items()}
        return cls(
            settings,
            steps,
            SpeedSearch.from_events(recorded),
            BatchSizes.from_events(recorded),
            LRCurve.from_events(recorded),
            ClipSearch.from_events(recorded),
            tuple(e for e in recorded if isinstance(e, TuneTrial)),
        )

    def _charts(self) -> list[Chart]:
        searches: list[Drawable] = [self.curve] if len(self.curve.lrs) else []
        searches += [self.sizes] if self.sizes.trials else []
        searches += [self.clip] if len(self.clip.norms) else []
        return [chart for search in searches for chart in search._charts()]

    def __repr__(self) -> str:
        rows = [
            f"  {step.search:<17} {name_of(step.values) or 'unchanged':<28} {step.reason}"
            for step in self.steps
        ]
        return "\n".join(map(printable, [f"Plan: bench.set({name_of(self.settings)})", *rows]))
