"""The line of an error that is the user's own, with its file or its cell, also where another process raised it."""

from __future__ import annotations

import linecache
import types

import pytest

from workbench.launch.process.run_in_child import RemoteTraceback
from workbench.tracebacks import LONGEST, user_line, whole_text

CELL = "/tmp/ipykernel_123/456.py"
SOURCE = "def loss(x):\n    return x[:, :3] @ x\n"


def error_of_a_cell(file: str = CELL) -> BaseException:
    """An error of code that a notebook's cell defined."""
    linecache.cache[file] = (len(SOURCE), None, SOURCE.splitlines(True), file)
    there: dict[str, object] = {}
    exec(compile(SOURCE, file, "exec"), there)
    try:
        eval("loss(1)", there)
    except TypeError as error:
        return error
    raise AssertionError


def test_the_last_line_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    error = error_of_a_cell()
    # the number of a cell is known in its kernel alone
    assert user_line(error) == "a cell, line 2: return x[:, :3] @ x"
    shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={CELL: 4}))
    monkeypatch.setitem(
        __import__("sys").modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell)
    )
    assert user_line(error) == "cell 4, line 2: return x[:, :3] @ x"
    assert "Cell 4, line 2, in loss" in whole_text(error)
    assert CELL not in whole_text(error)
    assert (
        user_line(error_of_a_cell(file="<ipython-input-7-abc>"))
        == "cell 7, line 2: return x[:, :3] @ x"
    )
    assert (
        user_line(error_of_a_cell(file="/project/train.py"))
        == "train.py, line 2: return x[:, :3] @ x"
    )
    remote = RuntimeError("in rank 1 of 2")
    remote.__cause__ = RemoteTraceback("".join(__import__("traceback").format_exception(error)))
    assert user_line(remote) == "cell 4, line 2: return x[:, :3] @ x"


def test_an_error_without_a_line_of_the_users_own() -> None:
    assert user_line(ValueError("no")) == ""


def test_a_long_traceback_keeps_its_end() -> None:
    text = whole_text(ValueError("x" * 2 * LONGEST + " the end"))
    assert len(text) <= LONGEST
    assert text.endswith(" the end\n")
