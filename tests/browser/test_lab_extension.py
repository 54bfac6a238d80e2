"""The JupyterLab extension around a notebook: the panel out of its cell, notebooks from templates, cells and scripts of a run."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from .lab import Lab

pytestmark = pytest.mark.browser

BENCH = """import torch
import workbench as wb

torch.manual_seed(0)
x = torch.randn(200, 8)
study = wb.Workbench(torch.nn.Linear(8, 1), train=(x, x.sum(1, keepdim=True)), loss=torch.nn.functional.mse_loss, batch_size=20)"""
CELLS = [BENCH, "study", *(f"print({i})" for i in range(40))]
PANE = ".wb-pane-panel"


def test_the_panel_beside_its_notebook(lab: Lab) -> None:
    lab.viewport(1500, 900)
    lab.open_notebook(CELLS, name="beside.ipynb")
    button = lab.page.locator(".jp-NotebookPanel-toolbar [data-jp-item-name='tuning-workbench-panel']")
    expect(button).to_be_hidden()
    lab.run_cell(0)
    lab.run_cell(1)
    lab.panel(1)
    expect(button).to_be_visible()
    button.get_by_role("button").click()
    pane = lab.page.locator(PANE)
    expect(pane.locator(".wb-live .wb-progress")).to_be_visible()
    expect(pane.locator(".wb-pane-message")).to_be_hidden()
    lab.screenshot("panel-beside")
