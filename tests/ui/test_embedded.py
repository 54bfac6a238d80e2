"""What marimo shows of a bench: its panel within one anywidget, which lives as long as the cell that has made it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import workbench as wb
from workbench.ui.controls.widget_utils import tree
from workbench.ui.embedded import EmbeddedPanel
from workbench.ui.panel import Panel


def test_marimo_shows_the_panel_until_its_cell_runs_again(tmp_path: Path) -> None:
    with wb.Workbench(nn.Linear(4, 1), train=(torch.randn(8, 4), torch.randn(8, 1)), loss=nn.functional.mse_loss, root=tmp_path) as bench:
        shown = bench._display_()
        assert isinstance(shown, EmbeddedPanel)
        panel = shown.panel
        assert panel is Panel.of(bench)
        assert bench._display_() is shown
        assert {widget._model_name: widget.keys for widget in tree(panel)} == shown.names
        for widget in (shown, *tree(panel)):  # what marimo does
            widget.comm.close()
        again = bench._display_()
        assert again.panel is Panel.of(bench) is not panel
        bench.set(lr=0.02)
        assert again.panel.dispatcher.drain()
        assert (again.panel.canvas.marker, panel.canvas.marker) == (0.02, 1e-3)
