"""A run, or a study, as one HTML file, opened from the disk: its plots can be zoomed and read, without a kernel or a server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page, expect

import workbench as wb
from tests.bench.study_parts import recorded
from tests.browser.lab import ARTEFACTS
from workbench.runs.study.record import TrialProposal
from workbench.runs.study.write import add_trial

pytestmark = pytest.mark.browser


def test_a_page_from_the_disk(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.rand(256, 16)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    bench = wb.Workbench(
        net,
        train=(x, x.sin().sum(1, keepdim=True)),
        val=(x[:64], x[:64].sin().sum(1, keepdim=True)),
        loss=torch.nn.functional.mse_loss,
        max_epochs=10,
        root=tmp_path,
    )
    bench.watch(
        lambda batch, outputs: {"input": batch[0][:6].reshape(-1, 1, 4, 4), "said": "</script>"}
    )
    run = bench.fit().result()
    page, said = opened(browser, bench.export(tmp_path / "run.html", run))

    expect(page.get_by_role("heading", level=1)).to_have_text("0001-fit")
    expect(page.locator(".wb-samples img")).to_have_count(6)
    expect(page.locator(".wb-samples pre")).to_have_text("</script>")
    loss = page.locator(".wb-loss")
    box = loss.locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(loss.locator(".wb-at")).to_contain_text("at update")
    zoom = loss.get_by_role("button", name="Zoom out")
    expect(zoom).to_be_disabled()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    expect(zoom).to_be_enabled()

    page.get_by_role("button", name="Gradients and clipping").click()
    heat = page.locator(".wb-heat")
    expect(heat.locator("canvas").first).to_be_visible()
    expect(heat.get_by_role("button", name="update ratio")).to_be_hidden()
    expect(page.get_by_role("button", name="All settings")).to_be_hidden()
    expect(page.get_by_role("table").filter(has_text="Chosen settings")).to_contain_text(
        "max_epochs"
    )
    page.get_by_text("All settings").last.click()
    expect(page.get_by_role("rowheader", name="weight_decay")).to_be_visible()
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / "page.png", full_page=True)
    assert said == []
    page.context.close()


def test_a_page_of_a_study(browser: Browser, tmp_path: Path) -> None:
    study = recorded(tmp_path)
    add_trial(study.path, TrialProposal(13, {"width": 64}, "by hand"))
    page, said = opened(browser, study.export(tmp_path / "study.html"))

    expect(page.get_by_role("heading", level=1)).to_have_text("0001-study")
    view = page.locator(".wb-study")
    expect(view.locator(".wb-study-cost canvas")).to_be_visible()
    expect(view.locator(".wb-slice")).to_have_count(2)
    heads = view.locator(".wb-study-table thead")
    for name in ("lr", "width", "length", "val_loss"):
        expect(heads.get_by_role("button", name=name, exact=True)).to_be_visible()
    # a setting that a user has not given is the bench's own
    expect(view.locator(".wb-study-table tbody tr", has_text="by hand")).to_contain_text("1.78e-4")
    for line in ("study.add", "study.space", "study.seeds", "study.more"):
        expect(view.locator("button", has_text=line)).to_have_count(0)
    for name in ("Stop", "Pause", "Export", "Repeat"):
        expect(view.get_by_role("button", name=name)).to_have_count(0)
    expect(view.get_by_role("slider")).to_have_count(0)
    view.get_by_role("button", name="Mark trial 5 in all plots").click()
    expect(view.locator("tr[data-selected]")).to_contain_text("whole")
    page.get_by_text("All trials with their runs").click()
    expect(page.locator("details table")).to_contain_text("1/3")
    ARTEFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTEFACTS / "study-page.png", full_page=True)
    assert said == []
    page.context.close()


def opened(browser: Browser, file: Path) -> tuple[Page, list[str]]:
    """The page of a file, and a list to which its errors are added, and what it loads."""
    page = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda line: said.append(line.text))
    page.on(
        "request",
        lambda request: said.append(request.url) if request.url.startswith("http") else None,
    )
    page.goto(file.as_uri())
    return page, said
