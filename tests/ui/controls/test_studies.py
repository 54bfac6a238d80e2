"""A study of the bench takes the stage of its panel, gives it to a job that begins, and has a chip that brings it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.bench import study_parts
from tests.ui.fakes import FakeBench
from tests.waiting import wait_for
from workbench.events import Studied
from workbench.ui.panel import Panel


class Stated(wb.Study):
    """A study whose status is said."""

    status = "running"


@pytest.fixture
def bench(tmp_path: Path) -> FakeBench:
    bench = FakeBench(epochs=2, updates=40)
    bench.studies.append(Stated(study_parts.recorded(tmp_path).path))
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
        "running",
    )
    ask(panel, what="show_study", study="0001-study")
    assert sent(panel)["stage"] == "study"
    ask(panel, what="show", run="")
    assert sent(panel)["stage"] == "fit"
    bench.tell(Studied("0001-study"))
    wait_for(lambda: sent(panel)["stage"] == "study")


def test_a_new_panel_shows_the_fit_that_trains_and_not_a_study_without_a_worker(
    tmp_path: Path,
) -> None:
    bench = FakeBench(speed=0.01, epochs=2, updates=40)
    study = Stated(study_parts.recorded(tmp_path).path)
    bench.studies.append(study)
    job = bench.fit()
    for status in ("running", "no worker"):  # beside a fit, and after it
        study.status = status
        panel = Panel(bench)
        wait_for(lambda panel=panel: sent(panel).get("stage") == "fit")
        panel.close()
        job.stop()
        assert job.wait(60)


def test_the_chip_of_a_study_that_is_not_followed_has_its_present_status(
    bench: FakeBench, panel: Panel, tmp_path: Path
) -> None:
    wait_for(lambda: sent(panel)["timeline"][-1]["status"] == "running")
    bench.studies.append(Stated(study_parts.recorded(tmp_path).path))
    bench.tell(Studied("0002-study"))
    bench.studies[0].status = "ended"
    panel.timeline.show()
    assert [chip["status"] for chip in sent(panel)["timeline"]] == ["finished", "running"]


def test_a_study_of_another_bench_is_refused_by_name(panel: Panel) -> None:
    ask(panel, what="show_study", study="0009-study")
    assert "this bench has no study 0009-study" in panel.notice.lines[0][1]
