"""Renders the training program for a run: its templates, without the parts that the run did not
need.

The templates are Python text with these marks:

- `#? condition` at the end of a line: this statement, with its block and its `else`, is kept only
  if the condition holds
- `#| condition` at the end of a header: if the condition does not hold, the header is dropped and
  its block moves to its place
- `${expression}`: the text of its value; alone in a line, as many lines as that has, or none
- `#: if`, `#: for`, `#: macro`, `#: set`: lines of Jinja2; `#: set name` without a value takes the
  lines up to `#: endset`
- `#: from "other.py.jinja" import macro with context`: macros of another template, which read the
  same values
- `#: include "other.py.jinja"`: the text of another template
- `##` at the very beginning of a line: a comment on the template

Besides Jinja's own filters and functions there are `text|code` (whether a block has more than
headers), `lines`, `set` and `zip`.

`layout.py` closes the gaps.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2.ext import Extension

from workbench.export.program.layout import BLOCK, laid_out

_DIRECTIVE = re.compile(r"#: *(\w+)")
_MARKED = re.compile(r"(( *).*\S) +#([?|]) (.+)")
_OPENS, _CLOSES = {"if", "for", "macro", "set"}, {"endif", "endfor", "endmacro", "endset"}


class _Python(Extension):
    """Translates the marks at the end of lines, and lines that are one expression, into Jinja."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        lines = [line or _EMPTY for line in source.split("\n") if not line.startswith("##")]
        return re.sub(
            r"^( *)\$\{([^{}]+)\}$",
            r'${lines("\1", \2)}',
            "\n".join(_unmarked(lines)),
            flags=re.MULTILINE,
        )


def _unmarked(lines: list[str]) -> Iterator[str]:
    """The lines with Jinja directives in place of their marks."""
    number = 0
    while number < len(lines):
        line, end = lines[number], number + 1
        if (marked := _MARKED.fullmatch(line)) is None:
            yield line
        elif marked[3] == "|":
            yield from (
                f"#: if {marked[4]}",
                marked[1],
                "#: else",
                f"{marked[2]}{BLOCK}",
                "#: endif",
            )
        else:
            end = _end_of_statement(lines, number, len(marked[2]))
            yield from (
                f"#: if {marked[4]}",
                marked[1],
                *_unmarked(lines[number + 1 : end]),
                "#: endif",
            )
        number = end


def _end_of_statement(lines: list[str], start: int, indent: int) -> int:
    """The number of the line after a statement and its block, with the directives inside of
    that.
    """
    end, opened = start + 1, 0
    for number, line in enumerate(lines[start + 1 :], start + 1):
        directive = match.group(1) if (match := _DIRECTIVE.match(line)) else ""
        deeper = (
            len(line) - len(line.lstrip()) > indent
            or re.match(r" *(else|elif|except)\b", line) is not None
        )
        if directive in _OPENS and not (directive == "set" and "=" in line):
            opened += 1
        elif directive in _CLOSES:
            opened -= 1
        elif not directive and line != _EMPTY and not deeper:
            break
        if opened < 0 or (opened == 0 and directive in ("elif", "else")):
            break
        if opened == 0 and line != _EMPTY and (directive in _CLOSES or not directive):
            end = number + 1
    return end


def _lines(indent: str, value: str | Iterable[str]) -> str:
    text = value if isinstance(value, str) else "\n".join(value)
    return textwrap.indent(textwrap.dedent(_read(text)).strip("\n"), indent) or _NOTHING.rstrip(
        "\n"
    )


_NOTHING, _EMPTY = "\x1f\n", "\ue000"
"""Marks for a line to drop (white space for Python), and for an empty line, which Jinja would
remove after a directive.
"""


def _read(text: str) -> str:
    return text.replace(_NOTHING, "").replace(_EMPTY, "")


@functools.cache
def environment() -> jinja2.Environment:
    """The Jinja environment that finds and reads the templates."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("workbench.export.program"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        extensions=[_Python],
        line_statement_prefix="#:",
        variable_start_string="${",
        variable_end_string="}",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
        keep_trailing_newline=True,
    )
    made.filters["code"] = has_code
    made.globals |= {"lines": _lines, "zip": zip, "set": set}
    return made


def has_code(text: str) -> bool:
    """Whether a block has more than headers."""
    return any(line.strip() and not line.endswith(":") for line in _read(text).split("\n"))


def rendered(
    template: str, values: Mapping[str, Any], templates: jinja2.Environment | None = None
) -> str:
    """Render a template with these values and lay it out. templates: the environment that has
    it; None: that of this package.
    """
    return laid_out(
        _read((templates or environment()).get_template(template).render(values)), template
    )
