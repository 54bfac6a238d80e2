"""The two finders in a browser: what they show, and that mouse, keyboard and code do the same."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from .lab import Lab

pytestmark = pytest.mark.browser

BENCH = """import torch, workbench as wb
torch.manual_seed(0)

class Two(torch.nn.Module):
    '''Two networks with an optimizer each; the first has two groups, the second trains at half the rate.'''

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        self.two = torch.nn.Linear(20, 4)

    def training_step(self, batch, batch_idx, optimizer_idx):
        x, y = batch
        return torch.nn.functional.cross_entropy((self.one, self.two)[optimizer_idx](x), y)

    def configure_optimizers(self):
        slow, fast = self.one[0].parameters(), self.one[2].parameters()
        groups = [{"params": slow, "name": "body"}, {"params": fast, "name": "head", "lr": 0.1}]
        return [torch.optim.SGD(groups, lr=0.01, momentum=0.9), torch.optim.Adam(self.two.parameters(), lr=0.005)]

x = torch.randn(512, 20)
y = (x @ torch.randn(20, 4)).argmax(1)
bench = wb.Workbench(Two(), train=(x, y), batch_size=64, accelerator="cpu", num_workers=0)
bench"""


@pytest.fixture
def panel(lab: Lab) -> Locator:
    lab.viewport(1300, 1500)
    lab.open_notebook([BENCH], name="searches.ipynb")
    lab.run_cell(0)
    found = lab.output(0).locator(".wb-panel")
    expect(found).to_be_visible()
    return found


def swept(lab: Lab, **said: object) -> None:
    lab.execute(f"job = bench.find_lr(**{said!r})")
    lab.until("print(job.status)", "finished", timeout=60)


def rate(lab: Lab) -> float:
    return float(lab.execute("print(bench.settings.lr)"))


def test_the_finder(lab: Lab, panel: Locator) -> None:
    card, grip = panel.locator(".wb-finder"), panel.locator(".wb-finder .wb-grip")
    swept(lab)
    swept(lab, min_lr=1e-4, num_training=60)
    panel.locator(".wb-step-lr button", has_text="Find").click()
    lab.until("print(len(bench.jobs), bench.job.status)", "3 finished", timeout=60)

    # Every rule has its name and value at its mark, none upon another; the last two sweeps lie behind.
    found = lab.execute("print(sum(s.lr is not None for s in bench.job.result().suggestions.values()))").splitlines()[-1]
    flags = card.locator(".wb-flag")
    expect(flags).to_have_count(int(found))
    boxes = [box for box in (flag.bounding_box() for flag in flags.all()) if box is not None]
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            beside = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            assert beside or abs(a["y"] - b["y"]) >= 13, flags.all_inner_texts()
    expect(card.locator(".wb-key")).to_contain_text("0001")
    expect(card.locator(".wb-key")).to_contain_text("0002")
    expect(card.locator(".wb-verdict-line")).to_contain_text("Recommended")
    card.locator("summary").focus()
    card.locator("summary").press("Enter")
    expect(card.locator(".wb-rules tr")).to_have_count(5)

    assert lab.violations(".wb-panel") == []

    # Which of them lies under the mouse is said.
    over = card.locator(".u-over").bounding_box()
    assert over is not None
    for i in range(60):
        lab.page.mouse.move(over["x"] + 0.6 * over["width"], over["y"] + i / 60 * over["height"])
        if card.locator(".wb-tag").is_visible():
            break
    expect(card.locator(".wb-tag")).to_contain_text(": suggested ")

    # The band to divergence, in words; code beyond it, and beyond the slider's end.
    expect(card.locator(".wb-handle-value")).to_contain_text("below divergence")
    lab.execute("bench.set(lr=50.0)")
    expect(card.locator(".wb-handle-value")).to_contain_text("beyond divergence")
    expect(card.locator(".wb-band")).to_have_class("wb-band wb-beyond")
    expect(panel.locator(".wb-step-lr input[type=number]")).to_have_value("50")
    lab.screenshot("finder-beyond", panel)
    grip.focus()
    grip.press("Home")
    lab.until("print(bench.settings.lr < 2e-5)", "True", timeout=10)
    for _ in range(3):
        grip.press("Shift+ArrowRight")
    lab.until("print(5e-5 < bench.settings.lr < 6e-5)", "True", timeout=10)
    expect(panel.locator(".wb-step-lr input[type=number]")).to_have_value("0.0000564")
    expect(card.locator(".wb-handle-value")).to_contain_text("5.64e-5")

    # A group's own rates: the setting stays the base rate.
    card.locator(".wb-groups select").select_option(index=1)
    expect(card.locator(".wb-handle-value")).to_contain_text("5.64e-4")
    assert rate(lab) == 5.64e-5

    # The other optimizer: its own curve, whose marker is at half of the setting.
    panel.locator(".wb-step-lr select").select_option(index=1)
    expect(card.locator(".wb-hint")).to_be_visible()
    panel.locator(".wb-step-lr button", has_text="Find").click()
    lab.until("print(len(bench.jobs), bench.job.status)", "4 finished", timeout=60)
    expect(panel.locator(".wb-code")).to_contain_text("bench.find_lr(optimizer=1)")
    expect(card.locator(".wb-whose")).to_contain_text("Optimizer 1 of 2")
    expect(card.locator(".wb-handle-value")).to_contain_text("2.82e-5")
    panel.locator(".wb-step-lr button.wb-use").click()
    expect(panel.locator(".wb-code")).to_contain_text("bench.set(lr=")
    half = float(lab.execute("print(bench.job.result().suggestion)").splitlines()[-1])
    assert rate(lab) == pytest.approx(2 * half, rel=1e-2)
    lab.screenshot("finder-optimizer-1", panel)

    panel.locator(".wb-step-lr select").select_option(index=0)
    expect(card.locator(".wb-key")).to_contain_text("0001")
    lab.save()
    lab.reload()
    again = lab.output(0).locator(".wb-finder")
    expect(again.locator(".wb-key")).to_contain_text("0002", timeout=30_000)
    assert lab.complaints == []


def test_the_batch_sizes(lab: Lab, panel: Locator) -> None:
    card = panel.locator(".wb-sizes")
    lab.execute("bench.set(batch_size=8, accumulate_grad_batches=4)")
    step = panel.locator(".wb-step").first
    step.get_by_label("keep 32 an update").check()
    step.get_by_role("button", name="Find").click()
    expect(card.locator(".wb-trying")).to_contain_text("trying", timeout=30_000)
    lab.until("print(bench.job.status)", "finished", timeout=90)
    expect(panel.locator(".wb-code")).to_contain_text("bench.find_batch_size(keep_effective=True)")
    expect(card.locator(".wb-trying")).to_have_count(0)
    expect(card).to_contain_text("A trial could take")

    use = card.get_by_role("button", name="Use 2 x 16")
    use.focus()
    use.press("Enter")
    lab.until("print(bench.settings.batch_size, bench.settings.accumulate_grad_batches)", "16 2", timeout=10)
    expect(panel.locator(".wb-code")).to_contain_text("bench.set(batch_size=16, accumulate_grad_batches=2)")
    used = card.get_by_role("button", name="2 x 16 in use")
    expect(used).to_have_attribute("aria-pressed", "true")
    expect(used).to_be_focused()
    lab.screenshot("sizes-kept", panel)

    lab.execute("from workbench.events import RunStarted, Trial, TrialStarted; from workbench.ui.panel import Panel; hear = Panel.of(bench)._hear")
    lab.execute("hear(RunStarted('x', 'find_batch_size', {}, 'cpu')); hear(Trial(4, False, error='out of memory\\n' + 'more words ' * 30))")
    lab.execute("Panel.of(bench).pump.wake()")
    expect(card).to_contain_text("out of memory")
    card.locator("summary").focus()
    card.locator("summary").press("Enter")
    expect(card.locator(".wb-error pre")).to_contain_text("more words")
    assert lab.complaints == []
