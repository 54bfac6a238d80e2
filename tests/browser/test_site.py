"""Some pages of the site as they are read: what axe finds wrong, the search from the disk, and the page for a wrong address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from playwright.sync_api import Browser, Route, expect

from tests.browser.lab import violations
from tests.docs.pages import ROOT

pytestmark = pytest.mark.browser

ADDRESS = "http://site.test"
PAGES = ("index", "gallery", "howto/learning-rate")
OF_THE_THEME = ("landmark-unique",)
"""Rules that the theme breaks: each of its buttons of copying is a `nav` without a name."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with these pages alone, which takes seconds to build."""
    built = tmp_path_factory.mktemp("site")
    kept = [*(f"/{page}.md" for page in PAGES), "/assets/**", "*.png", "*.css", "*.js"]
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        site_dir=str(built),
        nav=[f"{page}.md" for page in PAGES],
        hooks=[],
        exclude_docs="\n".join(["**", *(f"!{name}" for name in kept)]),
        validation={"links": {"not_found": "ignore", "unrecognized_links": "ignore"}},
    )
    build(config)
    return built


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_read_it(
    browser: Browser, site: Path, scheme: Literal["light", "dark"]
) -> None:
    """Pictures have texts, colours contrast, headings are in order; a wrong address leads on."""

    def serve(route: Route) -> None:
        file = site / route.request.url.removeprefix(f"{ADDRESS}/")
        status = 200 if file.is_file() else 404
        route.fulfill(path=file if status == 200 else site / "404.html", status=status)

    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.route(f"{ADDRESS}/**", serve)
    wrong: list[str] = []
    for name in (*PAGES, "howto/a-page-that-was"):
        page.goto(f"{ADDRESS}/{name}.html")
        wrong += [f"{name}: {line}" for line in violations(page, "html", without=OF_THE_THEME)]
    assert wrong == []
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    page.locator("article").get_by_role("link", name="Gallery").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("^Gallery"))
    context.close()


def test_it_is_searched_from_the_disk_on_a_small_screen(browser: Browser, site: Path) -> None:
    context = browser.new_context(viewport={"width": 400, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.keyboard.press("s")
    expect(page.locator(".md-search-result")).to_contain_text("Type to start searching")
    page.get_by_role("textbox", name="Search").press_sequentially("coordinate")
    page.locator(".md-search-result a").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(re.compile("^Gallery"))
    assert [url for url in asked if not url.startswith("file:")] == []
    context.close()
