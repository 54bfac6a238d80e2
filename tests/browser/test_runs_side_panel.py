"""The Runs panel in JupyterLab's left side bar."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .lab import Lab

pytestmark = pytest.mark.browser


def test_the_panel_is_there(lab: Lab) -> None:
    lab.open_notebook(["1"])
    expect(lab.page.locator("#tuning-workbench-runs")).to_have_count(1)
    assert lab.page.evaluate("() => jupyterapp.isPluginActivated('tuning-workbench:runs')")
