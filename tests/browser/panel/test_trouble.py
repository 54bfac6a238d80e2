"""What goes wrong, as a person sees it: a fit that diverges, an error in a step, values that are not finite, a kernel that dies."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import Lab

pytestmark = pytest.mark.browser

BENCH = """import torch
import workbench as wb

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.fails, self.seen = torch.nn.Linear(20, 1), False, 0

    def forward(self, x):
        self.seen += self.training
        if self.fails and self.seen > 30:
            return self.net(x[:, :3])
        return self.net(x)

torch.manual_seed(0)
model, x = Net(), torch.randn(2000, 20)
bench = wb.Workbench(model, train=(x, x.sum(1, keepdim=True)), loss=torch.nn.functional.mse_loss, optimizer=torch.optim.Adam, lr=1e3)
bench"""


def test_trouble_is_seen(lab: Lab) -> None:
    lab.viewport(1300, 1500)
    lab.open_notebook([BENCH], name="trouble.ipynb")
    lab.run_cell(0)
    panel = lab.panel(0)
    diverged(lab, panel)
    failed(lab, panel)
    not_finite(lab, panel)
    assert lab.complaints == []
    dead_kernel(lab, panel)


def diverged(lab: Lab, panel: Locator) -> None:
    """Found while it trains: in the status, right below it with a remedy to click, and in the table of runs."""
    status, health = panel.locator(".wb-progress"), panel.locator(".wb-health")
    lab.execute("bench.set(max_epochs=100_000)")
    panel.get_by_role("button", name="Train").click()
    expect(status.locator(".wb-trouble")).to_have_text("diverged")
    expect(status).to_contain_text("Training")
    assert lab.execute("print(bench.job.status)") == "running"
    line = health.locator(".wb-finding-error")
    expect(line).to_contain_text("The loss has risen from")
    lab.tab(panel, "Runs")
    expect(panel.locator(".wb-runs tbody tr").first.locator(".wb-trouble")).to_have_text("diverged")
    lab.screenshot("trouble-diverges", panel)

    # The remedy: the search would wait for the fit, which is stopped.
    line.get_by_role("button", name="Stop, and find a learning rate").click()
    expect(panel.locator(".wb-code")).to_contain_text("bench.job.stop(); bench.find_lr()")
    lab.until("print([job.status for job in bench.jobs])", "['stopped', 'finished']")
    expect(status.locator(".wb-trouble")).to_be_hidden()  # of the sweep there is none
    expect(health).to_contain_text("The loss has risen from")

    lab.execute("bench.fit(max_epochs=6)")
    lab.until("print(bench.job.status)", "finished")
    expect(status).to_contain_text("Training: finished")
    expect(status.locator(".wb-trouble")).to_have_text("diverged")
    expect(status.locator(".wb-dot")).to_have_text("!")
    expect(line.get_by_role("button", name="Set lr=")).to_be_visible()  # the sweep has found one
    assert lab.violations(".wb-live") == []
    lab.screenshot("trouble-diverged", panel)
    lab.theme("dark")
    lab.screenshot("trouble-diverged-dark", panel)
    lab.theme("light")


def failed(lab: Lab, panel: Locator) -> None:
    """An error in a step: once, with the user's own line, and gone when the next job starts."""
    lab.execute("bench.set(lr=0.01); model.fails = True; bench.fit(max_epochs=6)")
    lab.until("print(bench.job.status)", "failed")
    failure = panel.locator(".wb-failure")
    expect(failure).to_contain_text(
        "Training failed: RuntimeError mat1 and mat2 shapes cannot be multiplied"
    )
    expect(failure.locator(".wb-failure-where")).to_have_text(
        "cell 1, line 12: return self.net(x[:, :3])"
    )
    expect(panel.get_by_text("mat1 and mat2").locator("visible=true")).to_have_count(1)
    failure.locator("summary").click()
    expect(failure.locator("pre")).to_contain_text("Cell 1, line 12, in forward")
    expect(failure.get_by_role("button", name="copy")).to_be_visible()
    assert lab.violations(".wb-live") == []
    lab.screenshot("trouble-failed", panel)
    lab.theme("dark")
    lab.screenshot("trouble-failed-dark", panel)
    lab.theme("light")
    lab.execute("model.fails = False; bench.fit(max_epochs=6)")
    lab.until("print(bench.job.status)", "finished")
    expect(panel.locator(".wb-progress")).to_contain_text("Training: finished")
    expect(failure).to_be_hidden()


def not_finite(lab: Lab, panel: Locator) -> None:
    """One message."""
    lab.execute("x[3] = float('inf'); bench.fit(max_epochs=6)")
    lab.until("print(bench.job.status)", "failed")
    expect(panel.locator(".wb-progress .wb-trouble")).to_have_text("not finite")
    expect(
        panel.get_by_text(re.compile("not finite .*at update")).locator("visible=true")
    ).to_have_count(1)
    expect(panel.locator(".wb-failure")).to_be_hidden()
    lab.screenshot("trouble-not-finite", panel)


def dead_kernel(lab: Lab, panel: Locator) -> None:
    """One banner, the last picture, no control that could be used, no broken icons; and the way back."""
    lab.page.evaluate(
        "() => { __lab.kernel().requestExecute({code: 'import os; os.kill(os.getpid(), 9)'}); }"
    )
    lost = panel.locator(".wb-lost")
    expect(lost).to_contain_text("The kernel has ended.")
    lab.page.get_by_role("button", name="Ok", exact=True).click()  # JupyterLab's own dialog
    expect(lost.locator("code")).to_have_text(f"bench.show({json.dumps(lab_run(panel))})")
    lab.screenshot("trouble-dead-kernel", panel)
    expect(panel.locator(".wb-loss canvas").first).to_be_visible()
    enabled = panel.locator(".wb-live :is(button, input, select):enabled:visible")
    expect(enabled).to_have_count(1)  # the banner's own
    broken = "panel => [panel, ...panel.querySelectorAll('*')].filter(e => getComputedStyle(e, '::before').content.includes('\\uf127')).length"
    assert panel.evaluate(broken) == 0
    lab.theme("dark")
    lab.screenshot("trouble-dead-kernel-dark", panel)

    # A restart that was asked for, and the same cell again.
    lab.restart()
    expect(lost).to_be_visible()
    assert panel.evaluate(broken) == 0
    lab.screenshot("trouble-restarted", panel)
    lab.run_cell(0)
    again = lab.panel(0)
    expect(again.locator(".wb-lost")).to_be_hidden()
    lab.execute("bench.show(bench.runs[0].id)")
    expect(again.locator(".wb-loss canvas").first).to_be_visible()


def lab_run(panel: Locator) -> str:
    """The newest run in the table."""
    return panel.locator(".wb-runs tbody tr .wb-run-name").first.inner_text().split()[0]
