"""The chips below the stage: what each job found, and its settings, which can be set again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.fakes import FakeBench, diverging
from tests.ui.test_panel import said
from tests.waiting import wait_for
from workbench.ui.panel import Panel


def chips(panel: Panel) -> list[dict[str, Any]]:
    assert panel.dispatcher.drain(60)
    chips: list[dict[str, Any]] = panel.canvas._picture.outbox._values["timeline"]
    return chips


def test_each_job_is_a_chip_with_its_result() -> None:
    bench = FakeBench(epochs=2, updates=40)
    panel = Panel(bench)
    for job in (bench.find_batch_size(), bench.find_lr(), bench.find_clip_val(), bench.fit()):
        assert job.wait(60)
    wait_for(lambda: [chip["status"] for chip in chips(panel)] == ["finished"] * 4)
    labels = [chip["label"] for chip in chips(panel)]
    assert labels[:3] == ["batch 256", "lr 4.7e-3", "clip 0.5"]
    assert labels[3].startswith("fit ")
    assert [chip["show"] for chip in chips(panel)] == [None, None, None, ""], "none has a record"


def test_a_diverged_fit_is_told_as_one() -> None:
    bench = FakeBench()
    panel = Panel(bench)
    assert bench._start("fit", diverging).wait(60)
    wait_for(lambda: chips(panel)[0]["trouble"] == ["error", "diverged"])
    values = panel.canvas._picture.outbox._values
    assert values["progress"]["headline"] == "val_loss 8e8", "and not: the best yet"


def test_a_chip_that_is_pointed_at_lays_its_curve_over_the_plot() -> None:
    bench = FakeBench(epochs=2, updates=40)
    panel = Panel(bench)
    fit, sweep = bench.fit(), bench.find_lr()
    assert sweep.wait(60)
    assert [chip["curve"] for chip in chips(panel)] == ["fit", "find_lr"]
    values = panel.canvas._picture.outbox._values
    for job, columns in ((fit, 4), (sweep, 2)):
        panel.canvas._heard(panel.canvas, {"type": "ask", "what": "overlay", "run": job.id}, [])
        wait_for(lambda run=job.id: values.get("overlay", {}).get("run") == run)
        rows = values["overlay"]["rows"]
        assert 2 < len(rows) <= 201
        assert {len(row) for row in rows} == {columns}
    assert rows[0][0] < rows[-1][0]


def test_live_changes_are_told_at_their_updates() -> None:
    bench = FakeBench(speed=0.02, epochs=100_000)
    panel = Panel(bench)
    job = bench.fit()
    wait_for(lambda: [chip["status"] for chip in chips(panel)] == ["running"])
    job.change(lr=2e-3)
    wait_for(lambda: chips(panel)[0]["note"].startswith("lr→2e-3 at "))
    job.stop()
    assert job.wait(60)


def test_the_settings_of_a_job_can_be_set_again() -> None:
    bench = FakeBench(epochs=2, updates=40)
    panel, lines = Panel(bench), said(bench)
    bench.set(lr=0.01, batch_size=64)
    job = bench.fit()
    assert job.wait(60)
    assert chips(panel)[0]["restores"] == ""
    bench.set(lr=0.5, gradient_clip_val=2.0)
    assert chips(panel)[0]["restores"] == "lr=0.01, gradient_clip_val=none"
    panel.canvas._heard(panel.canvas, {"type": "ask", "what": "restore", "run": job.id}, [])
    assert (bench.settings.lr, bench.settings.gradient_clip_val) == (0.01, None)
    assert lines[-1] == "bench.set(lr=0.01, gradient_clip_val=None)"
    assert chips(panel)[0]["restores"] == ""


@pytest.mark.parametrize("run", ["0099-fit", ""])
def test_an_unknown_job_is_refused_by_name(run: str) -> None:
    bench = FakeBench()
    panel = Panel(bench)
    panel.canvas._heard(panel.canvas, {"type": "ask", "what": "restore", "run": run}, [])
    assert panel.notice.lines == [
        ("error", f"Restore the settings: ValueError: this bench has no job {run}".strip())
    ]
