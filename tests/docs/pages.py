"""Reads README and the pages of docs/: their Python blocks, their links and their headings.

A page is run as one script, its Python blocks in order. Two comments in its Markdown change that:
`<!-- continues: ../index.md -->` runs the first block of that page before; `<!-- not run: why -->` above a block leaves it out.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.DOTALL | re.MULTILINE,
)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: (?P<why>[^\n]+?) -->\n+ *$")
_CONTINUES = re.compile(r"<!-- continues: (?P<page>\S+) -->")
_LINK = re.compile(r"(?<!\\)\]\((?P<target>[^)\s]+)\)|\b(?:src|href)=\"(?P<html>[^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A Python block. line: of the page, counted from 1; why_not: why the tests do not run it, "" where they do."""

    code: str
    line: int
    why_not: str


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The Python blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        if fence["language"] == "python":
            marked = _NOT_RUN.search(text[: fence.start()])
            line = text.count("\n", 0, fence.start("code")) + 1
            found.append(
                Block(textwrap.dedent(fence["code"]), line, marked["why"] if marked else "")
            )
    return found


def script(page: Path) -> str:
    """What the blocks of a page are together, "" where none is run; lines have the numbers that they have in the page."""
    run = [block for block in blocks(page) if not block.why_not]
    if not run:
        return ""
    lines = [""] * (run[-1].line + run[-1].code.count("\n"))
    for block in run:
        for number, line in enumerate(block.code.splitlines(), block.line - 1):
            lines[number] = line
    continued = _CONTINUES.search(page.read_text(encoding="utf-8"))
    before = blocks((page.parent / continued["page"]).resolve())[0].code if continued else ""
    return before + "\n".join(lines) + "\n"


def prose(page: Path) -> str:
    """A page without its code blocks and comments."""
    return _COMMENT.sub("", _FENCE.sub("", page.read_text(encoding="utf-8")))


def links(page: Path) -> list[str]:
    """The targets of a page's links and pictures, those in code left out."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return [link["target"] or link["html"] for link in _LINK.finditer(text)]


def anchors(page: Path) -> set[str]:
    """What a link to a part of this page may name."""
    return {
        slug(heading["text"])
        for heading in _HEADING.finditer(_FENCE.sub("", page.read_text(encoding="utf-8")))
    }


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    plain = re.sub(r"\]\([^)]*\)", "", heading)
    return re.sub(
        r"\s",
        "-",
        re.sub(r"[^\w\s-]", "", plain.encode("ascii", "ignore").decode()).strip().lower(),
    )
