"""Says what is known of a run by the names of columns: settings, metrics, tags, times.

Tables sort, group and filter runs by these names, the same in Python and in the panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

from workbench.runs.folder.annotations import Annotations
from workbench.runs.read import shown_status
from workbench.runs.tables.brief import RunBrief
from workbench.runs.tables.filter import DATE, WORDS, Facts, Value
from workbench.settings import Settings, setting_text

OF_RUNS = (
    "run", "name", "status", "loss", "validation", "time", "updates", DATE, "tags", "pinned",
    "study", "trial", "model", "from", "notes", "trouble",
)  # fmt: skip
"""The columns that every run has, besides the settings."""
LAST = ".last"
"""Ends the name of the column with a metric's last value; its own name has the best one."""
_LARGEST = 1 << 62
_DEFAULTS: dict[str, Value] = {}


def facts(brief: RunBrief, annotations: Annotations) -> dict[str, Value]:
    """What is known of a run.

    A setting has the value at the run's start. "loss" is the smoothed training loss at its end,
    "validation" the best value of the monitored metric. Each metric has its best value, or the
    last one where nobody knows what is better; "accuracy.last" is the last one. A metric with the
    name of another column is "metric.precision".
    """
    if not _DEFAULTS:
        _DEFAULTS.update(
            (name, _plain(name, info.default)) for name, info in Settings.model_fields.items()
        )
    known: dict[str, Value] = dict(_DEFAULTS)
    known |= {
        name: _plain(name, value)
        for name, value in brief.settings.items()
        if name in Settings.model_fields
    }
    if known["optimizer"] is None:
        known["optimizer"] = brief.optimizer or None
    if brief.groups:
        known["groups"] = brief.groups
    known |= {f"build.{name}": _plain(name, value) for name, value in brief.build.items()}
    known |= {
        "run": brief.id,
        "name": annotations.name,
        "status": shown_status(brief.status, brief.unseen),
        "loss": brief.loss,
        "validation": brief.value,
        "time": brief.seconds,
        "updates": brief.step,
        DATE: _date(brief.created),
        "tags": annotations.tags,
        "pinned": annotations.pinned,
        "study": None if brief.trial is None else brief.trial.study,
        "trial": None if brief.trial is None else brief.trial.trial,
        "model": brief.model[0],
        "from": brief.origin or None,
        "notes": annotations.notes,
        "trouble": None if brief.trouble is None else brief.trouble.trouble,
    }
    for metric, last in brief.metrics.items():
        name = metric_column(metric)
        known.setdefault(name, brief.best.get(metric, last))
        known.setdefault(name + LAST, last)
    known[WORDS] = _words(brief, annotations)
    return known


def metric_column(metric: str) -> str:
    """The name of the column of a metric."""
    # every run logs "loss", whose column has the smoothed one
    is_other = metric in Settings.model_fields or (metric in OF_RUNS and metric != "loss")
    return f"metric.{metric}" if is_other else metric


def columns_of(runs: Iterable[Facts]) -> list[str]:
    """The names of the columns of these runs: those of every run, metrics and values of the
    model's function, settings.
    """
    names = dict.fromkeys(OF_RUNS)
    for run in runs:
        names |= dict.fromkeys(run)
    settings = [name for name in Settings.model_fields if name in names]
    others = [name for name in names if name not in Settings.model_fields and name != WORDS]
    return [*others, *settings] if settings else [*others, *Settings.model_fields]


def sort_key(value: Value) -> tuple[int, float, str]:
    """Sorts numbers before texts."""
    if isinstance(value, int | float):
        return (0, float(value), "") if math.isfinite(value) else (1, 0.0, str(value))
    return 2, 0.0, ", ".join(value) if isinstance(value, tuple) else str(value).casefold()


def is_missing(value: Value) -> bool:
    """Whether a run has no value in a column; it comes last, whatever the order."""
    return value is None or value == "" or value == () or value != value


def _plain(name: str, value: object) -> Value:
    """A value that can be compared: a number, a text, or the text of anything else."""
    if isinstance(value, int) and abs(value) > _LARGEST:  # a float holds no such number
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return setting_text.recorded(name, value) if name in Settings.model_fields else str(value)


def _words(brief: RunBrief, annotations: Annotations) -> str:
    settings: Mapping[str, object] = brief.settings
    named = [
        f"{name}={_plain(name, value)}"
        for name, value in settings.items()
        if name in _DEFAULTS and not setting_text.same(_plain(name, value), _DEFAULTS[name])
    ]
    built = [f"{name}={value}" for name, value in brief.build.items()]
    return "\n".join(
        [
            brief.id,
            annotations.name,
            shown_status(brief.status, brief.unseen),
            brief.origin,
            brief.study,
            brief.model[0],
            *annotations.tags,
            annotations.notes,
            *named,
            *built,
        ]
    )


def _date(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", "minutes")
    except (ValueError, OverflowError, OSError):  # it is not known
        return None
