"""The marks of a template: statements and headers under a condition, lines of an expression, directives."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import jinja2
import pytest

from workbench.export.program import render

TEMPLATES = Path(render.__file__).with_name("templates")


def rendered(text: str, **values: Any) -> str:
    """A text as one of the templates would be rendered."""
    environment = render.environment().overlay(
        loader=jinja2.DictLoader({"text": dedent(text).strip("\n") + "\n"})
    )
    return render.rendered("text", values, environment)


def test_a_statement_is_there_with_its_block() -> None:
    text = """
        a()  #? one
        for x in y:  #? two
            b(x)

            if x:
                c(x)
        else:
            d()
        e()  # why  #? two and not one
    """
    whole = "for x in y:\n    b(x)\n\n    if x:\n        c(x)\nelse:\n    d()\n"
    assert rendered(text, one=True, two=True) == f"a()\n{whole}".rstrip()
    assert rendered(text, one=False, two=True) == f"{whole}e()  # why"
    assert rendered(text, one=True, two=False) == "a()"


def test_the_directives_in_its_block_are_its() -> None:
    text = """
        #: if outer
        while a:  #? inner
        #: for x in names
            ${x}()
        #: endfor
        #: else
        b()
        #: endif
        c()
    """
    assert (
        rendered(text, outer=True, inner=True, names=["f", "g"])
        == "while a:\n    f()\n    g()\nc()"
    )
    assert rendered(text, outer=True, inner=False, names=["f"]) == "c()"
    assert rendered(text, outer=False, inner=True, names=["f"]) == "b()\nc()"


def test_the_block_of_a_header_stays_without_it() -> None:
    text = """
        with a:  #| one
            for x in y:  #| two
                b(x)
            c()
        d()
    """
    for one, two in itertools.product((True, False), repeat=2):
        inner = "for x in y:\n    b(x)\nc()" if two else "b(x)\nc()"
        block = "with a:\n    " + inner.replace("\n", "\n    ") if one else inner
        assert rendered(text, one=one, two=two) == f"{block}\nd()"


def test_a_line_that_is_one_expression_has_the_lines_of_its_value() -> None:
    text = """
        #: macro block(name)
        if ${name}:
            ${inner}

            ${after}
        #: endmacro
        def f():
            ${inner}
            ${block("x")}
    """
    assert (
        rendered(text, inner=["a()", "b()"], after="c()")
        == "def f():\n    a()\n    b()\n    if x:\n        a()\n        b()\n\n        c()"
    )
    assert rendered(text, inner="", after="c()") == "def f():\n    if x:\n        c()"


def test_a_name_that_is_not_there_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="nothing_of_this_name"):
        rendered("a()  #? nothing_of_this_name")


def test_text_of_a_value_is_no_template() -> None:
    assert (
        rendered("x = ${value}  # ${value}", value="'${other} <% raise %>'")
        == "x = '${other} <% raise %>'  # '${other} <% raise %>'"
    )


@pytest.mark.parametrize(
    "path",
    sorted(TEMPLATES.rglob("*.jinja")),
    ids=lambda path: path.relative_to(TEMPLATES).as_posix(),
)
def test_every_template_says_what_it_is_for(path: Path) -> None:
    assert path.name.endswith(".py.jinja")
    text = path.read_text()
    assert text.startswith("## ")
    assert len(text.splitlines()) <= 500
    render.environment().get_template(path.relative_to(TEMPLATES).as_posix())


@pytest.mark.parametrize(
    "path",
    sorted(TEMPLATES.rglob("*.jinja")),
    ids=lambda path: path.relative_to(TEMPLATES).as_posix(),
)
def test_no_template_calls_a_function_within_an_f_string(path: Path) -> None:
    """Python 3.11 has no tokens for it, so that a name of the user's could not replace the function's."""
    text = re.sub(r"\$\{(?:[^{}]|\{[^{}]*\})*\}", "", path.read_text())
    strings = re.findall(r"""\bf("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""", text)
    assert not [
        field
        for string in strings
        for field in re.findall(r"\{[^{}]*\}", string)
        if re.search(r"(?<!\.)\b\w+\(", field)
    ]
