"""The two finders in a browser: what they show, and that mouse, keyboard and code do the same."""

from __future__ import annotations

import itertools
import re

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.lab import Lab
from tests.browser.server import TIMEOUT

pytestmark = pytest.mark.browser

BENCH = """import pathlib, time, torch, workbench as wb
torch.manual_seed(0)

class Two(torch.nn.Module):
    '''Two networks with an optimizer each; the first has two groups, the second trains at half the rate.'''

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
        self.two = torch.nn.Linear(20, 4)

    def training_step(self, batch, batch_idx, optimizer_idx):
        while pathlib.Path("hold").exists():
            time.sleep(0.02)
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
    return lab.panel(0)


def swept(lab: Lab, **said: object) -> None:
    lab.execute(f"job = bench.find_lr(**{said!r})")
    lab.until("print(job.status)", "finished")


def rate(lab: Lab) -> float:
    return float(lab.execute("print(bench.settings.lr)"))


def test_the_finders(lab: Lab, panel: Locator) -> None:
    learning_rates(lab, panel)
    lab.run_cell(0)  # another bench
    batch_sizes(lab, lab.panel(0))
    assert lab.complaints == []


def learning_rates(lab: Lab, panel: Locator) -> None:
    card, grip = panel.locator(".wb-finder"), panel.locator(".wb-finder .wb-grip")
    swept(lab)
    swept(lab, min_lr=1e-4, num_training=60)
    panel.locator(".wb-step-lr button", has_text="Find").click()
    lab.until("print(len(bench.jobs), bench.job.status)", "3 finished")

    # Every rule has its name and value at its mark, none upon another; the last two sweeps lie behind.
    found = lab.execute(
        "print(sum(s.lr is not None for s in bench.job.result().suggestions.values()))"
    ).splitlines()[-1]
    flags = card.locator(".wb-flag")
    lab.settle()  # as many may have stood there of the sweep before
    expect(flags).to_have_count(int(found))
    boxes = flags.evaluate_all(
        "all => all.map((one) => [one.innerText, one.getBoundingClientRect().toJSON()])"
    )
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        beside = a["right"] <= b["left"] or b["right"] <= a["left"]
        assert beside or abs(a["y"] - b["y"]) >= 13, (one, other)
    expect(card.locator(".wb-key")).to_contain_text("0001")
    expect(card.locator(".wb-key")).to_contain_text("0002")
    expect(panel.locator(".wb-answers")).to_contain_text("Recommended learning rate")
    card.locator("summary").focus()
    card.locator("summary").press("Enter")
    expect(card.locator(".wb-rules tr")).to_have_count(5)

    assert lab.violations(".wb-panel") == []

    # Which of them lies under the mouse is said.
    card.locator(".u-over").hover(position={"x": 1, "y": 1})  # in view, where it stands still
    over = card.locator(".u-over").bounding_box()
    assert over is not None
    for i in range(60):
        lab.page.mouse.move(over["x"] + 0.6 * over["width"], over["y"] + i / 60 * over["height"])
        lab.frames()
        if card.locator(".wb-tag").is_visible():
            break
    expect(card.locator(".wb-tag")).to_contain_text(": suggested ")

    # The curve is read by keyboard, too.
    plot, said = card.locator(".u-over"), card.locator(".uplot > .wb-spoken")
    plot.press("Home")
    expect(said).to_have_text(re.compile(r"^each update .*, smoothed .* at 1e-5\b"))
    plot.press("ArrowRight")
    expect(said).to_have_text(re.compile(r"^each update .*, smoothed .* at 1\.\d+e-5\b"))
    plot.press("Escape")
    expect(said).to_be_empty()

    # The band to divergence, in words; code beyond it, and beyond the slider's end.
    expect(card.locator(".wb-handle-value")).to_contain_text("below divergence")
    lab.execute("bench.set(lr=50.0)")
    expect(card.locator(".wb-handle-value")).to_contain_text("beyond divergence")
    expect(card.locator(".wb-band")).to_have_class("wb-band wb-beyond")
    expect(panel.locator(".wb-step-lr input[type=text]")).to_have_value("50")
    lab.screenshot("finder-beyond", panel)
    grip.focus()
    grip.press("Home")
    lab.until("print(bench.settings.lr < 2e-5)", "True")
    for _ in range(3):
        grip.press("Shift+ArrowRight")
    lab.until("print(5e-5 < bench.settings.lr < 6e-5)", "True")
    expect(panel.locator(".wb-step-lr input[type=text]")).to_have_value("5.64e-5")
    expect(card.locator(".wb-handle-value")).to_contain_text("5.64e-5")

    # A group's own rates: the setting stays the base rate.
    card.locator(".wb-groups select").select_option(index=1)
    whose = card.locator(".wb-groups option:checked").inner_text()
    expect(card.locator(".wb-handle-value")).to_contain_text("5.64e-4")
    assert rate(lab) == 5.64e-5

    # The other optimizer: its own curve, whose marker is at half of the setting.
    panel.locator(".wb-step-lr select").select_option(index=1)
    expect(card.locator(".wb-hint")).to_be_visible()
    panel.locator(".wb-step-lr button", has_text="Find").click()
    lab.until("print(len(bench.jobs), bench.job.status)", "4 finished")
    expect(panel.locator(".wb-code")).to_contain_text("bench.find_lr(optimizer=1)")
    expect(card.locator(".wb-whose")).to_contain_text("Optimizer 1 of 2")
    expect(card.locator(".wb-handle-value")).to_contain_text("2.82e-5")
    panel.locator(".wb-answers button").click()
    expect(panel.locator(".wb-code")).to_contain_text("bench.set(lr=")
    use = panel.locator(".wb-answers button")
    expect(use).to_contain_text("in use")
    expect(use).to_be_focused()
    half = float(lab.execute("print(bench.job.result().suggestion)").splitlines()[-1])
    assert rate(lab) == pytest.approx(2 * half, rel=1e-2)
    lab.screenshot("finder-optimizer-1", panel)

    panel.locator(".wb-step-lr select").select_option(index=0)
    expect(card.locator(".wb-key")).to_contain_text("0001")
    lab.reopen()
    again = lab.panel(0).locator(".wb-finder")
    expect(again.locator(".wb-key")).to_contain_text("0002")
    expect(again.locator(".wb-groups option:checked")).to_have_text(whose)
    # Of a sweep that another process does nothing is chosen here.
    expect(again.locator(".wb-handle")).to_be_visible()
    lab.execute(
        "from workbench.ui.panel import Panel; canvas = Panel.of(bench).canvas; canvas.unobserve_all('marker'); canvas.marker = 0.0"
    )
    expect(again.locator(".wb-handle")).to_be_hidden()
    expect(again.locator(".wb-key")).not_to_contain_text("current")


def batch_sizes(lab: Lab, panel: Locator) -> None:
    card = panel.locator(".wb-sizes")
    lab.execute("bench.set(batch_size=8, accumulate_grad_batches=4)")
    step = panel.locator(".wb-step").first
    step.get_by_label("Keep effective batch at 32").check()
    (lab.folder / "hold").touch()  # in its first trial, until that was seen
    step.get_by_role("button", name="Find").click()
    expect(card.locator(".wb-trying")).to_contain_text("Trying")
    (lab.folder / "hold").unlink()
    lab.until("print(bench.job.status)", "finished", timeout=2 * TIMEOUT)
    expect(panel.locator(".wb-code")).to_contain_text("bench.find_batch_size(keep_effective=True)")
    expect(card.locator(".wb-trying")).to_have_count(0)
    expect(card).to_contain_text("A trial could take")

    use = card.get_by_role("button", name=re.compile("^Use 2 x 16"))
    use.focus()
    use.press("Enter")
    lab.until("print(bench.settings.batch_size, bench.settings.accumulate_grad_batches)", "16 2")
    expect(panel.locator(".wb-code")).to_contain_text(
        "bench.set(batch_size=16, accumulate_grad_batches=2)"
    )
    used = card.get_by_role("button", name=re.compile("^2 x 16 in use"))
    expect(used).to_have_attribute("aria-pressed", "true")
    expect(used).to_be_focused()
    lab.screenshot("sizes-kept", panel)

    lab.execute(
        "from workbench.events import RunStarted, Trial, TrialStarted; from workbench.ui.panel import Panel; hear = Panel.of(bench)._hear"
    )
    lab.execute(
        "hear(RunStarted('x', 'find_batch_size', {}, 'cpu')); hear(Trial(4, False, error='out of memory\\n' + 'more words ' * 30))"
    )
    lab.execute("Panel.of(bench).dispatcher.wake()")
    expect(card).to_contain_text("out of memory")
    card.locator("summary").focus()
    card.locator("summary").press("Enter")
    expect(card.locator(".wb-error pre")).to_contain_text("more words")
    # all bars are measured anew
    lab.execute("hear(Trial(8, True, 0.1, 100.0, 10**9)); Panel.of(bench).dispatcher.wake()")
    expect(card.get_by_role("button", name="Use 8")).to_have_attribute(
        "title", "100 samples/s, 1 GB"
    )
    expect(card.locator("summary")).to_be_focused()
    expect(card.locator(".wb-error pre")).to_be_visible()
    # a search of another process has nothing to set here
    lab.execute("Panel.of(bench).canvas.put('followed', True)")
    expect(card.get_by_role("button", name="Use")).to_have_count(0)
