"""Renders the training program for a run: its templates with what the run did not need left out.

The program is Python text. `#: if`, `#: for`, `#: macro` are lines of Jinja2, and `${…}` is an expression of it; a line that
is one expression alone stands for as many lines as that has, or for none. `layout.py` closes the gaps.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
from jinja2.ext import Extension

from workbench.export.program.layout import BLOCK, laid_out


_DIRECTIVE = re.compile(r" *#: *(\w+)")
_HEADER = re.compile(r"( *)(?!#)\S.*:(  #.*)?$")


class _Python(Extension):
    """Reads two things in a template as Python is read, by lines and blocks.

    A line that is one expression stands for the lines of its value, at the same indentation. A header that is left out
    (`with …:` alone under an `#: if`) leaves its block.
    """

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        lines = [line or _EMPTY for line in source.split("\n") if not line.startswith("##")]
        source = "\n".join(_with_blocks(lines))
        return re.sub(r"^( *)\$\{([^{}]+)\}$", r'${lines("\1", \2)}', source, flags=re.MULTILINE)


def _with_blocks(lines: list[str]) -> list[str]:
    """The lines, with a header that layout drops where one that is conditional is left out."""
    found: list[str] = []
    opened: list[list[list[str]]] = []  # of each `#: if` that is open: its branches, each with its lines
    for line in lines:
        directive = match.group(1) if (match := _DIRECTIVE.match(line)) else ""
        if directive == "endif":
            branches = opened.pop()
            headers = [_HEADER.fullmatch(branch[0]) if len(branch) == 1 else None for branch in branches]
            if headers[0] and all(headers):
                found += ["#: else", f"{headers[0].group(1)}{BLOCK}"]
        if directive in ("elif", "else") and opened:
            opened[-1].append([])
        elif directive != "endif" and not line.lstrip().startswith("##"):
            for branches in opened:
                branches[-1].append(line)
        if directive == "else" and opened:
            opened[-1][-1].append("")  # nothing is left out
        if directive == "if":
            opened.append([[]])
        found.append(line)
    return found


def _lines(indent: str, value: str | Iterable[str]) -> str:
    text = value if isinstance(value, str) else "\n".join(value)
    return textwrap.indent(textwrap.dedent(_read(text)).strip("\n"), indent) or _NOTHING.rstrip("\n")


_NOTHING, _EMPTY = "\x1f\n", "\ue000"
"""A line that is not there (white space for Python), and one that is empty, which Jinja would take for the end of a directive."""


def _read(text: str) -> str:
    return text.replace(_NOTHING, "").replace(_EMPTY, "")


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("workbench.export.program"), undefined=jinja2.StrictUndefined, autoescape=False, extensions=[_Python],
        line_statement_prefix="#:", variable_start_string="${", variable_end_string="}",
        block_start_string="<%", block_end_string="%>", comment_start_string="<#", comment_end_string="#>", keep_trailing_newline=True,
    )  # fmt: skip
    made.filters["code"] = has_code
    made.globals |= {"lines": _lines, "zip": zip, "set": set}
    return made


def has_code(text: str) -> bool:
    """Whether a block has more than headers."""
    return any(line.strip() and not line.endswith(":") for line in _read(text).split("\n"))


def rendered(template: str, values: Mapping[str, Any]) -> str:
    """A template for these values, laid out."""
    return laid_out(_read(_environment().get_template(template).render(values)))
