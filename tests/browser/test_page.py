"""A run as one HTML file, opened from the disk: its plots can be zoomed and read, and its tabs opened, without a kernel or a server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, expect

import workbench as wb
from tests.browser.lab import ARTEFACTS

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
    file = bench.export(tmp_path / "run.html", run)
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda line: said.append(line.text))
    page.on(
        "request",
        lambda request: said.append(request.url) if request.url.startswith("http") else None,
    )
    page.goto(file.as_uri())

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
    context.close()
