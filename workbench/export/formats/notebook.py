"""Turns a script into a notebook: the same statements in cells, with a call of `main` in place
of the command line.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path

from workbench.export.assembly.names import read, replaced
from workbench.export.errors import ExportError
from workbench.export.script_spec import ScriptSpec
from workbench.export.source.statements import first_line
from workbench.export.source.uses import imported_name

_RULE = re.compile(r"# -{2,} (.+?) -{3,}")
_TRAINING = "the training"
"""The section of a script with the training program."""


def notebook(r: ScriptSpec, script: str) -> str:
    """The script of a run as the text of an .ipynb file (nbformat 4)."""
    if r.distributed:
        raise ExportError(
            f"a notebook trains in one process, and run {r.run} was made by {r.ranks}: export a"
            " script, bench.export('train.py')."
        )
    folder = json.dumps(f"{Path(r.script).stem}-output")
    script = re.sub(r"^OUTPUT = .*$", f"OUTPUT = Path({folder})", script, flags=re.MULTILINE)
    command_line = [node for node in ast.parse(script).body if _is_command_line(node)]
    lines = _without(script.splitlines(), command_line)
    tree = ast.parse("\n".join(lines))
    kept = tree.body[1:]
    unused = {name for node in command_line for name in read(node)} - {
        name for node in kept for name in read(node)
    }
    cells = [_markdown(_title(ast.get_docstring(tree) or ""))]
    for title, group in _groups(lines, kept, unused):
        cells += [_markdown(f"## {title}")] * bool(title)
        # The script's file is this notebook, and its folder is where Jupyter runs it.
        code = replaced(
            "\n".join(group).strip("\n") + "\n", {"__file__": json.dumps(r.script)}
        ).rstrip()
        code = code.replace("; each is an option, as in --seed 1.", ".")
        code = code.replace(f"Path({json.dumps(r.script)}).with_name(", "Path(")
        cells.append(
            {
                "cell_type": "code",
                "execution_count": None,
                "metadata": {},
                "outputs": [],
                "source": code,
            }
        )
    cells.append(_markdown("## Train"))
    cells.append({**cells[-2], "source": f"{_main_of(tree)}(Config())"})
    cells.append(_markdown(f"Written by Tuning Workbench {r.version}."))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
        cell["source"] = str(cell["source"]).splitlines(keepends=True)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _markdown(text: str) -> dict[str, object]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _title(docstring: str) -> str:
    """The script's docstring as Markdown, without the lines about the command line and without
    its last line.
    """
    first, *rest = docstring.split("\n\n")
    paragraphs = [
        f"# {first.removesuffix('.')}",
        (
            "Run all cells. `Config` has the settings: with `Config(lr=1e-3)` in the last cell it"
            " trains at another rate."
        ),
    ]
    for paragraph in rest:
        lines = [
            line
            for line in paragraph.splitlines()
            if "--" not in line and not line.startswith("Written by ")
        ]
        if not all(line.startswith("    ") for line in lines):
            paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def _is_command_line(node: ast.stmt) -> bool:
    """Whether it is the function that reads the command line, or the call at the end."""
    if isinstance(node, ast.If):
        return "__name__" in read(node.test)
    return isinstance(node, ast.FunctionDef) and node.name == "parse"


def _without(lines: list[str], nodes: Iterable[ast.stmt]) -> list[str]:
    """The lines without those of some top-level statements, and without the empty lines below
    them.
    """
    left: list[str] = []
    cut = {
        number
        for node in nodes
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    for number, line in enumerate(lines, 1):
        if number not in cut and (line or number - 1 not in cut):
            left.append(line)
        elif number not in cut:
            cut.add(number)  # an empty line below
    return left


def _groups(
    lines: list[str], kept: list[ast.stmt], unused: set[str]
) -> Iterable[tuple[str, list[str]]]:
    """The lines of each cell, with a title where a section begins.

    The imports are one cell, a section of the script another; the user's own code is split at its
    definitions.
    """
    group: list[str] = []
    title, section, before, was_main = "", "", False, False
    end = 0
    for node in kept:
        start = first_line(node) - 1
        between = lines[end:start] if node is not kept[0] else []
        rule = next((match[1] for line in between if (match := _RULE.match(line))), None)
        between = [line for line in between if not _RULE.match(line)]
        defines = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        is_main = section == _TRAINING and _is_main(node)
        splits = "code of the run" in section and defines != before and bool(group)
        if rule is not None or splits or is_main or was_main:
            if group:
                yield title, group
            group, title = [], "" if rule is None else rule[:1].upper() + rule[1:]
            section = rule if rule is not None else section
            if section == _TRAINING:
                title = "The settings" if rule else "The functions"
                title = "The loop" if is_main else title
        was_main = is_main
        text = lines[start : node.end_lineno]
        if (
            isinstance(node, ast.Import | ast.ImportFrom)
            and not section
            and {imported_name(alias) for alias in node.names} <= unused
        ):
            text = []
        group += (
            [*between, *text] if start >= end else []
        )  # else it shares a line with the statement before
        end, before = max(end, node.end_lineno or 0), defines
    yield title, group


def _is_main(node: ast.stmt) -> bool:
    """Whether it is the function `main`, which has another name where the user's code has that."""
    return isinstance(node, ast.FunctionDef) and node.name.rstrip("_") == "main"


def _main_of(tree: ast.Module) -> str:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return next(node.name for node in functions if _is_main(node))


def cells_as_text(notebook: str) -> str:
    """A notebook as a text to read, with a line above each cell."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        text = "".join(cell["source"])
        marked = cell["cell_type"] == "markdown"
        parts.append(
            "# %% [markdown]\n" + "\n".join(f"# {line}".rstrip() for line in text.split("\n"))
            if marked
            else f"# %%\n{text}"
        )
    return "\n\n".join(parts) + "\n"
