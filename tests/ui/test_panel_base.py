"""What marimo shows of a bench: the anywidget of its panel, which lives as long as the cell that has made it."""

from __future__ import annotations

import weakref
from pathlib import Path

import torch
from ipywidgets.widgets.widget import _instances
from torch import nn

import workbench as wb
from tests.ui.test_panel import collected
from tests.waiting import wait_for
from workbench.ui.canvas.widget import LiveView
from workbench.ui.panel import Panel


def make_bench(root: Path, **settings: int) -> wb.Workbench:
    return wb.Workbench(
        nn.Linear(4, 1),
        train=(torch.randn(8, 4), torch.randn(8, 1)),
        loss=nn.functional.mse_loss,
        root=root,
        **settings,
    )


def cell_runs_again(shown: LiveView) -> None:
    """What marimo does to the widgets of a cell before it runs again."""
    for widget in (shown, shown.layout):
        widget.comm.close()


def test_marimo_shows_the_panel_until_its_cell_runs_again(tmp_path: Path) -> None:
    with make_bench(tmp_path) as bench:
        shown = bench._display_()
        panel = Panel.of(bench)
        assert shown is panel.canvas
        assert bench._display_() is shown
        cell_runs_again(shown)
        sent = []
        panel.canvas.comm.send = lambda **message: sent.append(message)
        panel.canvas.send({"type": "draw"})
        assert sent == []
        again = bench._display_()
        new = Panel.of(bench)
        assert again is new.canvas
        assert new is not panel
        bench.set(lr=0.02)
        assert new.dispatcher.drain(60)
        assert (new.canvas.marker, panel.canvas.marker) == (0.02, 1e-3)


def test_a_new_panel_closes_those_of_other_benches_that_no_cell_shows(tmp_path: Path) -> None:
    """What it showed is freed, the bench, its model and its data too."""
    old = make_bench(tmp_path)
    shown = old._display_()
    models, bench, module = (
        {shown.model_id, shown.layout.model_id},
        weakref.ref(old),
        weakref.ref(old.model),
    )
    cell_runs_again(shown)
    del old, shown
    with make_bench(tmp_path) as new, make_bench(tmp_path) as beside:
        Panel.of(beside)
        panel = Panel.of(new)
        assert models.isdisjoint(_instances)
        wait_for(lambda: collected(bench) and collected(module))
        assert panel.notice.lines == []
        assert Panel.of(beside).canvas.comm is not None, "a panel that is still shown stays"


def test_a_job_of_a_bench_that_no_cell_shows_can_be_stopped(tmp_path: Path) -> None:
    with (
        make_bench(tmp_path, max_epochs=1_000_000) as old,
        make_bench(tmp_path, max_epochs=1) as new,
    ):
        shown, job, queued = old._display_(), old.fit(), old.fit()
        cell_runs_again(shown)
        panel = Panel.of(new)
        level, text = panel.notice.lines[0]
        assert level == "warning"
        assert f"{job.id}, {queued.id}" in text
        fit = new.fit()
        [(number, [offer])] = panel.notice.offers.items()
        assert offer == f"Stop {job.id}, {queued.id}"
        ask = {"type": "ask", "what": "answer_notice", "number": number, "offer": offer}
        panel.canvas._heard(panel.canvas, ask, [])
        assert fit.wait(120)
        assert (job.status, queued.status, fit.status) == ("stopped", "stopped", "finished")
        assert panel.notice.lines == []
        assert panel.notice.offers == {}
