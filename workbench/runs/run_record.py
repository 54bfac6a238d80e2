"""Derives data from the events of a run: columns, last metrics, the data of its plots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.events import Event, Logged, RunEnded, RunStarted, StepsDone, Validated
from workbench.plots.training.run import RunData
from workbench.runs import chart_data
from workbench.runs.read import RECORD
from workbench.runs.record.sequence import but_by_layer
from workbench.runs.record.series import (
    Series,
    by_layer,
    layer_history,
    logged,
    scalars,
    validation,
)
from workbench.runs.record.stream import joined


class RunRecord:
    """The base class of `Run` that reads the record; each part is read on first use."""

    events: Sequence[Event]
    folder: Path | None

    @cached_property
    def _data(self) -> RunData:
        """The data of the plots."""
        recorded = self._recorded
        # Clipping limits the 2-norm, so the clip value is not drawn among other norms.
        same = recorded.get("track_grad_norm", 2.0) == 2.0
        norm = same and recorded.get("gradient_clip_algorithm", "norm") == "norm"
        return RunData(
            self._history,
            self._validation,
            chart_data.changes(self.outline),
            recorded.get("gradient_clip_val"),
            norm,
            logged=self._logged,
            by_model=self._by_model,
            best=chart_data.best(self.outline),
            same_norm=same,
            by_layer=self._by_layer,
        )

    @cached_property
    def _by_model(self) -> list[str]:
        """The columns of the history that the model logged."""
        names: dict[str, None] = {}
        for event in self.outline:
            if isinstance(event, StepsDone):
                names |= dict.fromkeys(event.logged)
        return [name for name in names if name in self._history]

    @cached_property
    def _recorded(self) -> dict[str, Any]:
        return next((e.settings for e in self.outline if isinstance(e, RunStarted)), {})

    @cached_property
    def _ranks(self) -> str | None:
        """The name and number of the devices of a run on several; None: it ran on one."""
        return next(
            (e.device for e in self.outline if isinstance(e, RunStarted) and e.ranks > 1), None
        )

    @cached_property
    def _metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        last = next(
            (e for e in reversed(self.outline) if isinstance(e, StepsDone) and e.rows), None
        )
        if last is not None and "loss" in last.columns:
            metrics["loss"] = float(last.array("loss")[-1])
        for name in self._by_model:
            known = self._history[name][~np.isnan(self._history[name])]
            if len(known):
                metrics[name] = float(known[-1])
        for event in self.outline:
            if isinstance(event, Validated | Logged):
                metrics.update(event.metrics)
            elif isinstance(event, RunEnded):
                # RunEnded has the last values, too, in case the record lacks events
                for name, value in event.metrics.items():
                    metrics.setdefault(name, value)
        return metrics

    @cached_property
    def _history(self) -> Series:
        """The history without the columns by layer."""
        return _read_only(scalars(self.outline))

    @cached_property
    def _whole(self) -> Series:
        return _read_only(
            {**self._history, **layer_history(self.events, len(self._history["step"]), self._size)}
        )

    @property
    def _size(self) -> float:
        """The bytes of the record; infinite where there is none."""
        try:
            return math.inf if self.folder is None else (self.folder / RECORD).stat().st_size
        except OSError:
            return math.inf

    @cached_property
    def outline(self) -> tuple[Event, ...]:
        """The events without the columns by layer, with flushes of one epoch joined; sufficient
        for everything except plots by layer.
        """
        return tuple(joined(but_by_layer(self.events)))

    def _by_layer(self, quantity: str) -> tuple[NDArray[Any], Series]:
        """The data for a picture of "grad_norm" or "update_ratio" of all layers: updates, and
        for each layer its values.
        """
        return by_layer(self.events, quantity, self._history["step"])

    @cached_property
    def _validation(self) -> Series:
        return _read_only(validation(self.outline))

    @cached_property
    def _logged(self) -> Series:
        return _read_only(logged(self.outline))


def _read_only(series: Series) -> Series:
    for array in series.values():
        array.flags.writeable = False
    return series
