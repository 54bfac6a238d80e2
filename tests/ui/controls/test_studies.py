"""A study of the bench takes the stage of its panel, gives it to a job that begins, and has a chip that brings it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench import study_parts
from tests.ui.fakes import FakeBench
from tests.waiting import wait_for
from workbench.events import Studied
from workbench.ui.panel import Panel


@pytest.fixture
def bench(tmp_path: Path) -> FakeBench:
    bench = FakeBench(epochs=2, updates=40)
    bench.studies.append(study_parts.recorded(tmp_path))
    return bench


@pytest.fixture
def panel(bench: FakeBench) -> Iterator[Panel]:
    panel = Panel(bench)
    yield panel
    panel.close()


def sent(panel: Panel) -> dict[str, Any]:
    assert panel.dispatcher.drain(60)
    values: dict[str, Any] = panel.canvas._picture.outbox._values
    return values


def ask(panel: Panel, **message: Any) -> None:
    panel.canvas._heard(panel.canvas, {"type": "ask", **message}, [])


def test_it_takes_the_stage_until_a_job_begins(bench: FakeBench, panel: Panel) -> None:
    assert sent(panel)["stage"] == "study"
    wait_for(lambda: sent(panel).get("study", {}).get("id") == "0001-study")
    assert bench.fit().wait(60)
    assert sent(panel)["stage"] == "fit"
    study = sent(panel)["timeline"][-1]
    assert (study["run"], study["label"], study["status"]) == (
        "0001-study",
        "study 0001",
        "stopped",
    )
    ask(panel, what="show_study", study="0001-study")
    assert sent(panel)["stage"] == "study"
    ask(panel, what="show", run="")
    assert sent(panel)["stage"] == "fit"
    bench.tell(Studied("0001-study"))
    wait_for(lambda: sent(panel)["stage"] == "study")


def test_a_study_of_another_bench_is_refused_by_name(panel: Panel) -> None:
    ask(panel, what="show_study", study="0009-study")
    assert "this bench has no study 0009-study" in panel.notice.lines[0][1]
