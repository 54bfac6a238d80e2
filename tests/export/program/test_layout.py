"""Code that a template left with gaps is laid out as it would be written by hand."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from workbench.export.program.layout import BLOCK, WIDTH, laid_out


def laid(text: str) -> str:
    return laid_out(dedent(text).strip("\n"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (f"a()\n{BLOCK}\n    b()\n    if c:\n        d()\ne()", "a()\nb()\nif c:\n    d()\ne()"),
        (
            f"for x in y:\n    {BLOCK}\n        {BLOCK}\n            z(x)\nend()",
            "for x in y:\n    z(x)\nend()",
        ),
        (f"{BLOCK}\nend()", "end()"),
        (
            f'def f():\n    {BLOCK}\n        """Text.\n\n          Indented.\n        """',
            'def f():\n    """Text.\n\n      Indented.\n    """',
        ),
    ],
)
def test_a_block_without_its_header_stands_where_the_header_would(written: str, meant: str) -> None:
    assert laid_out(written) == meant


def test_a_line_below_nothing_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"no header above this line: b\(\)"):
        laid_out("a()\n    b()")


def test_a_header_with_nothing_below_it_is_left_out() -> None:
    assert laid("e()\nif a:\n    for b in c:\nd()") == "e()\nd()"
    assert laid("if a:\n    for b in c:\nelse:\n    d()") == "if a:\n    pass\nelse:\n    d()"
    assert laid("try:\n    if a:\nfinally:\n    d()") == "try:\n    pass\nfinally:\n    d()"
    assert (
        laid("with a:\n    if b:\n\n    # why\n    c()\nwhile d:") == "with a:\n    # why\n    c()"
    )


def test_a_condition_joins_one_that_is_alone_below_it() -> None:
    assert (
        laid("if a or b:\n    if c:\n        d()\n        e()\nf()")
        == "if (a or b) and c:\n    d()\n    e()\nf()"
    )
    for apart in (
        "if a:\n    if b:\n        c()\n    d()",
        "if a:\n    if b:\n        c()\nelse:\n    d()",
        "if a:\n    if b:\n        c()\n    else:\n        d()",
    ):
        assert laid_out(apart) == apart


def test_what_means_something_else_afterwards_is_an_error() -> None:
    with pytest.raises(
        AssertionError,
        match=r"some\.jinja changes its meaning when it is laid out:\nif a if b else c and d:",
    ):
        laid_out("if a if b else c:\n    if d:\n        e()", "some.jinja")
    with pytest.raises(AssertionError, match=r"some\.jinja is no Python"):
        laid_out("f(\n    a = = b,\n)", "some.jinja")


def test_brackets_close_where_they_fit() -> None:
    assert laid("f(\n    a,\n    b=1,\n)") == "f(a, b=1)"
    assert laid("x = [\n    a,\n]\ny = (\n    a,\n)") == "x = [a]\ny = (a,)"
    assert laid("def f(\n    a,\n    b=None,\n):\n    pass") == "def f(a, b=None):\n    pass"
    long = [f"argument_{n}=value_{n}" for n in range(9)]
    assert (
        laid_out(f"f(\n    {long[0]},\n    # why\n    {long[1]},\n)")
        == f"f(\n    {long[0]},\n    # why\n    {long[1]},\n)"
    )
    some, all_ = ",\n    ".join(long[:4]), ",\n    ".join(long)
    assert laid_out(f"function(\n    {some},\n)") == f"function({', '.join(long[:4])})"
    assert laid_out(f"f(\n    {all_},\n)") == f"f(\n    {all_},\n)"


def test_what_is_too_long_is_written_in_several_lines() -> None:
    names = [f"a_rather_long_name_{n}" for n in range(6)]
    for text in (
        f"result = function({', '.join(names)})",
        f"if {' and '.join(names)}:\n    pass",
        f"if a and {' or '.join(names)}:\n    pass",
        f"result = {' + '.join(names[:3])} if another_condition else y",
        f"raise Error('{'-'.join(names[:4])}') from error",
        f"first, second = (function({', '.join(names[:3])}) for one in x)",
        f"results = [one for one in [{', '.join(names[:3])}] if one > 0]",
    ):
        found = laid_out(text)
        assert ("[\n" in found) == text.startswith("results = [")
        assert max(map(len, found.split("\n"))) <= WIDTH < len(text.split("\n")[0])
        assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(text))


def test_text_in_strings_is_no_code() -> None:
    text = 'x = f("(", "# no comment, if a:", \'}\')  # a comment: (\ny = """if a:\n  b,\n"""'
    assert laid_out(text) == text


def test_functions_stand_apart() -> None:
    assert (
        laid("def f():\n    a()\n    def g():\n        b()\n    return g")
        == "def f():\n    a()\n\n    def g():\n        b()\n\n    return g"
    )
    assert (
        laid("def f():\n\n\n    a()\n\n\n\n    b()\n\n\n\n\ndef g():\n    c()\n\n")
        == "def f():\n    a()\n\n    b()\n\n\ndef g():\n    c()"
    )
