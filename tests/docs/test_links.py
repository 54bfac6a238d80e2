"""Links of README and docs lead somewhere, the site lists every page, and no sentence needs two breaths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import script
from tests.docs.pages import DOCS, PAGES, ROOT, anchors, blocks, links, name_of, prose
from tests.notebooks import NOTEBOOKS, THUMBNAILS

LONGEST = 35
"""Words of a sentence at most."""
WIDEST = 104
"""Characters of a line of code that a page shows without scrolling, on a screen of 1280 pixels."""
LARGEST_THUMBNAIL = 30_000
"""Bytes of the picture that stands for a notebook."""
GENERATED = ("docs/reference/cli.md", "docs/reference/settings.md", "docs/reference/events.md")
"""Pages whose sentences are those of the code."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        outside = (
            page != ROOT / "README.md" and DOCS not in target.parents and target not in NOTEBOOKS
        )
        if not target.exists() or outside or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_names_in_the_repository_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    modules = [name.replace(".", "/") for name in re.findall(r"python -m (tests[\w.]+)", text)]
    named = [
        *(f"{name}.py" for name in modules),
        *re.findall(r"\b(?:tests|notebooks)/[\w/.-]*\w", text),
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_lines_of_code_fit_on_the_site() -> None:
    # whose script has lines as they come out
    shown = [page for page in PAGES if page != script.PAGE]
    lines = [
        (name_of(page), line)
        for page in shown
        for block in blocks(page)
        for line in block.code.splitlines()
    ]
    assert [line for line in lines if len(line[1]) > WIDEST] == []


def test_the_site_lists_every_page() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[\w/-]+\.md", text[text.index("nav:") :])
    assert sorted(listed) == sorted(
        page.relative_to(DOCS).as_posix() for page in PAGES if DOCS in page.parents
    )


def test_a_page_lists_every_notebook() -> None:
    page = DOCS / "notebooks.md"
    listed = [link for link in links(page) if link.endswith(".ipynb")]
    assert sorted((page.parent / link).resolve() for link in listed) == NOTEBOOKS
    for path in NOTEBOOKS:
        assert f"thumbnails/{path.stem}.png" in links(page)
        assert (THUMBNAILS / f"{path.stem}.png").stat().st_size <= LARGEST_THUMBNAIL


@pytest.mark.parametrize(
    "page", [page for page in PAGES if name_of(page) not in GENERATED], ids=name_of
)
def test_no_sentence_is_too_long(page: Path) -> None:
    text = re.sub(r"\]\([^)]*\)|`[^`\n]*`", " x ", prose(page))
    parts = re.split(r"\n\s*\n|\n(?=[#>|\s]*[-*|\d#])|\|", text)
    sentences = [one for part in parts for one in re.split(r"(?<=[.!?])\s+", part)]
    assert [
        " ".join(one.split()) for one in sentences if len(re.findall(r"\w[\w'’.-]*", one)) > LONGEST
    ] == []
