"""The JupyterLab extension around a notebook: the panel out of its cell, notebooks from templates, cells and scripts of a run."""

from __future__ import annotations

import nbformat
import pytest
from playwright.sync_api import Locator, expect

from .faces import LAB
from .lab import Lab

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def in_jupyterlab(lab: Lab) -> None:
    if lab.server.face is not LAB:
        pytest.skip("Notebook 7 has one notebook in a page, and no launcher")


BENCH = """import torch
import workbench as wb

torch.manual_seed(0)
x = torch.randn(200, 8)
study = wb.Workbench(torch.nn.Linear(8, 1), train=(x, x.sum(1, keepdim=True)), loss=torch.nn.functional.mse_loss, batch_size=20)"""
CELLS = [BENCH, "study", *(f"study.model(x[{i} : {i + 10}]).mean()" for i in range(0, 200, 10))]
BUTTON = ".jp-NotebookPanel-toolbar [data-jp-item-name='tuning-workbench-panel']"
PANE = ".wb-pane-panel"


def test_the_panel_beside_its_notebook_and_another_from_a_template(lab: Lab) -> None:
    lab.viewport(1500, 900)
    lab.open_notebook(CELLS, name="beside.ipynb")
    expect(lab.page.locator(BUTTON)).to_be_hidden()
    lab.run_cell(0)
    lab.run_cell(1)
    lab.panel(1)
    expect(lab.page.locator(BUTTON)).to_be_visible()
    lab.page.keyboard.press("Alt+Shift+P")
    pane = lab.page.locator(PANE)
    the_panel_lives(lab, pane)
    lab.page.locator(BUTTON).get_by_role("button").click()
    expect(pane).to_have_count(1)
    lab.scroll_to(len(CELLS) - 1)  # JupyterLab takes the cell of the panel out of the page
    expect(lab.page.locator(".jp-NotebookPanel .wb-panel")).not_to_be_in_viewport()
    pane.get_by_role("button", name="Train").click()
    lab.until("print([job.status for job in study.jobs])", "['finished']")
    expect(pane.locator(".wb-progress")).to_contain_text("Training: finished")
    lab.screenshot("panel-beside")
    assert lab.violations(PANE) == []
    a_page_loaded_again(lab)
    a_kernel_that_was_restarted(lab)
    a_notebook_from_a_template(lab)
    assert lab.complaints == []
    a_notebook_that_was_closed(lab)


def the_panel_lives(lab: Lab, pane: Locator) -> None:
    expect(pane.locator(".wb-live .wb-progress")).to_be_visible()
    expect(pane.locator(".wb-pane-message")).to_be_hidden()


def a_page_loaded_again(lab: Lab) -> None:
    """The layout and the panel are there again, and the panel still reaches its kernel."""
    lab.save()
    lab.layout_saved(f"tuning-workbench-panels:{lab.folder.name}/")
    lab.reload()
    pane = lab.page.locator(PANE)
    the_panel_lives(lab, pane)
    box = pane.get_by_role("textbox", name="Epochs", exact=True)
    box.fill("7")
    box.press("Tab")
    lab.until("print(study.settings.max_epochs)", "7")


def a_notebook_that_was_closed(lab: Lab) -> None:
    lab.save()
    lab.page.evaluate("() => __lab.panel().dispose()")
    message = lab.page.locator(PANE).locator(".wb-pane-message")
    expect(message).to_contain_text("The panel appears here when")
    message.get_by_role("button", name="Open the notebook").click()
    the_panel_lives(lab, lab.page.locator(PANE))


def a_kernel_that_was_restarted(lab: Lab) -> None:
    lab.restart()
    message = lab.page.locator(PANE).locator(".wb-pane-message")
    expect(message).to_contain_text("has ended or was restarted")
    message.get_by_role("button", name="Show the panel").click()
    expect(message).to_contain_text("has no bench")
    lab.screenshot("panel-without-kernel")
    lab.run_cell(0)
    message.get_by_role("button", name="Show the panel").click()
    the_panel_lives(lab, lab.page.locator(PANE))


def a_notebook_from_a_template(lab: Lab) -> None:
    """From its card in the launcher: in the folder of the file browser, with its kernel."""
    lab.page.get_by_role("button", name="New Launcher").first.click()
    section = lab.page.locator(".jp-Launcher-section", has_text="Tuning Workbench")
    titles = [template["title"] for template in lab.server.get("workbench/api/templates")]
    assert len(titles) == 3
    for title in titles:
        expect(section.locator(".jp-LauncherCard", has_text=title)).to_be_visible()
    lab.screenshot("launcher")
    assert lab.violations(".jp-Launcher") == []
    section.locator(".jp-LauncherCard", has_text=titles[0]).press("Enter")
    name = lab.server.get("workbench/api/templates")[0]["name"]
    lab.page.wait_for_function(
        "(name) => jupyterapp.shell.currentWidget?.context?.path.endsWith(`${name}.ipynb`)",
        arg=name,
    )
    lab.page.wait_for_function(
        "() => jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'"
    )
    path = str(lab.page.evaluate("() => jupyterapp.shell.currentWidget.context.path"))
    made = nbformat.read(lab.server.notebooks / path, as_version=4)
    assert "wb.Workbench(" in "".join(cell.source for cell in made.cells)
    assert lab.page.evaluate(
        "() => jupyterapp.shell.currentWidget.context.model.cells.length"
    ) == len(made.cells)
    lab.page.evaluate("() => jupyterapp.shell.currentWidget.dispose()")
