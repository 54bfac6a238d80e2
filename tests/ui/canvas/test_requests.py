"""What a finding advises is done by a click: one call of the bench with plain values, whoever wrote the record."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.fakes import FakeBench
from workbench.events import Called
from workbench.ui.canvas.requests import remedy
from workbench.ui.panel import Panel


def test_a_remedy_is_a_call_of_the_bench_with_plain_values() -> None:
    assert remedy("bench.set(lr=0.003)") == ("set", {"lr": 0.003})
    assert remedy("bench.find_lr()") == ("find_lr", {})
    assert remedy("bench.find_weight_decay(updates=2000)") == (
        "find_weight_decay",
        {"updates": 2000},
    )
    monitor = {"monitor": "val_accuracy", "mode": "max"}
    assert remedy(f"bench.set(early_stopping={monitor!r})") == ("set", {"early_stopping": monitor})


@pytest.mark.parametrize("code", [
    "bench.delete('0001-fit')", "bench.set(lr=open('x'))", "bench.set(**{'lr': 1})", "bench.set(0.1)", "bench.job.stop()", "print()",
    "bench.set(lr=1); print()", "__import__('os').system('x')", "(lambda: bench).set()", "", "bench.set(lr=" + 500 * "(" + "1" + 500 * ")" + ")",
])  # fmt: skip
def test_any_other_line_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match=r"it only runs calls of bench\.set, "):
        remedy(code)


def test_a_click_on_a_remedy_shows_its_code_and_stops_the_fit_that_a_search_would_wait_for() -> (
    None
):
    bench = FakeBench(speed=0.05, epochs=100)
    panel = Panel(bench)
    lines: list[str] = []
    bench.subscribe(lambda event: lines.append(event.code) if isinstance(event, Called) else None)
    ask = {"type": "ask", "what": "remedy", "stop": False}
    panel.canvas._heard(panel.canvas, {**ask, "code": "bench.set(lr=0.02)"}, [])
    assert bench.settings.lr == 0.02
    fit = bench.fit()
    panel.canvas._heard(panel.canvas, {**ask, "code": "bench.find_lr()", "stop": True}, [])
    assert fit.wait(60)
    assert fit.status == "stopped"
    assert bench.jobs[-1].wait(60)
    assert panel.dispatcher.drain(60)
    assert lines == ["bench.set(lr=0.02)", "bench.fit()", "bench.find_lr()"]
    assert panel.canvas._picture.outbox._values["code"] == "bench.job.stop(); bench.find_lr()"
    panel.canvas._heard(panel.canvas, {**ask, "code": "bench.set(lr=-1)"}, [])
    assert panel.dispatcher.drain(60)
    assert "lr=-1" in panel.notice.lines[0][1]
    panel.close()
    bad: Any = {**ask, "code": 3}
    panel.canvas._heard(panel.canvas, bad, [])
    assert "does not know" in panel.notice.lines[0][1]
