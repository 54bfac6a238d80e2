"""Every text of the panel that a person reads is in `workbench.ui.texts`, ready for translation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench.ui

ROOT = Path(workbench.ui.__file__).parent
SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;.)]? (# )?[A-Za-z]{2,}|^[A-Z][a-z]+")
SHOWN = {"description", "tooltip", "placeholder"}
"""Arguments of a widget that are shown: no word may stand there."""
MARKUP = re.compile(r"<[^>]*(?:>|$)")
CODE = re.compile(
    r"^export default|^default-src |^(Traceback|NonFiniteError: )$|^\[job\.stop|^batches or a fraction$| is too long for one message|^only arguments by name"
)
"""Texts that are compared with, code, and errors of programmers."""


def strays(source: str) -> Iterator[str]:
    """The texts in a module that a person would read."""
    tree = ast.parse(source)
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword)]
    shown = {id(part) for node in keywords if node.arg in SHOWN for part in branches(node.value)}
    skipped = {id(part) for node in keywords if node.arg == "help" for part in branches(node.value)}
    # docstrings
    skipped |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    skipped |= {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        text = text_of(node)
        if text is None or id(node) in skipped or CODE.search(text):
            continue
        text = MARKUP.sub(" ", text).strip()
        if SENTENCE.search(text) or (id(node) in shown and re.search(r"[A-Za-z]{2}", text)):
            yield f"line {getattr(node, 'lineno', 0)}: {text!r}"


def branches(value: ast.expr) -> Iterator[ast.expr]:
    """An expression, or what it may be: the branches of a condition."""
    if isinstance(value, ast.IfExp):
        yield from branches(value.body)
        yield from branches(value.orelse)
    yield value


def text_of(node: ast.AST) -> str | None:
    """The text of a string, with # for what is computed in it; None for anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "#" for part in node.values
        )
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def test_no_text_stands_elsewhere() -> None:
    paths = [path for path in ROOT.rglob("*.py") if path.name != "texts.py"]
    found = {
        str(path.relative_to(ROOT)): list(strays(path.read_text(encoding="utf-8")))
        for path in paths
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        'Button(description="find")',
        'say(f"run {run} ended")',
        'title = "Loss"',
        "page = f\"<div id='{id}'>no run ended</div>\"",
    ],
)
def test_a_stray_text_is_found(source: str) -> None:
    assert list(strays(source))
