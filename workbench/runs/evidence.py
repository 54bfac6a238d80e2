"""Lists where the settings of a run come from: earlier searches that recommended the values that
it has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workbench.events import (
    ClipSearchEnded,
    CurveEnded,
    DecaySearchEnded,
    Event,
    RecipeSearchEnded,
    SearchEnded,
    SpeedSearchEnded,
    Trial,
)
from workbench.runs import read
from workbench.runs.health.search_results import is_near, recommended
from workbench.runs.run import Run
from workbench.settings import setting_text

_LONGEST = 600
"""How many characters of a reason are shown."""


def evidence(run: Run, root: Path) -> list[str]:
    """A sentence for each setting of the run whose value an earlier search under `root`
    recommended; of several searches, the latest.
    """
    settings, sentences = run.settings.model_dump(), dict[str, str]()
    for summary in read.list_runs(root):
        if run.folder is not None and summary.path.resolve() == run.folder.resolve():
            break
        if summary.kind.startswith("find_") or summary.kind == "tune":
            # another process has deleted it meanwhile
            with contextlib.suppress(OSError, ValueError):
                for name, value, why in _recommended(Run.from_summary(summary)):
                    if is_near(settings.get(name), value):
                        sentences[name] = (
                            f"{name}={setting_text.recorded(name, value)} ({summary.id}): {why}"
                        )
    return [text[:_LONGEST] for text in sentences.values()]


def _recommended(run: Run) -> Iterator[tuple[str, Any, str]]:
    """The settings that a search recommends, each with its reason."""
    passed: set[int] = set()
    for event in run.outline:
        if isinstance(event, Trial) and event.ok:
            passed.add(event.size)
        for name, value in recommended(event).items():
            yield name, value, _why(event, len(passed))


def _why(event: Event, passed: int) -> str:
    match event:
        case CurveEnded():
            return "; ".join([event.why, *event.doubts])
        case SearchEnded():
            noise = (
                ""
                if event.noise_scale is None
                else f"; gradient noise scale about {event.noise_scale:.3g} samples"
            )
            return (
                f"{event.reason or event.ended}; largest that fits {event.largest}, {passed} sizes"
                f" passed{noise}"
            )
        case RecipeSearchEnded():
            return "; ".join(filter(None, [event.reason, event.doubt]))
        case SpeedSearchEnded() | ClipSearchEnded() | DecaySearchEnded():
            return event.reason
        case _:
            return ""
