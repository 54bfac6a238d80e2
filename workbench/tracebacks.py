"""Shortens tracebacks of errors that the user can fix to the user's own lines, and names the
line that raised an error.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType

INSTALLED = tuple(
    f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
"""The folders of Python's library and of installed packages."""


class UserError(ValueError):
    """Raised for something from the user that cannot be used; the message says what to do.

    IPython shows only the frames of the user's own code. `%xmode Verbose`, `%debug` and
    `traceback.print_exception(error)` show all frames, as a process without IPython does.
    """

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows for this error."""
        ipython = sys.modules.get("IPython")
        shell = None if ipython is None else ipython.get_ipython()
        if shell is None:
            return traceback.format_exception(self)
        show = shell.InteractiveTB
        if show.mode in ("Verbose", "Docs"):
            lines: list[str] = show.structured_traceback(type(self), self, self.__traceback__)
            return lines
        with contextlib.ExitStack() as stack:
            stack.enter_context(_cut(self, _of_the_user))
            for cause in _causes(self):
                stack.enter_context(_cut(cause, _of_others))
            lines = show.structured_traceback(type(self), self, self.__traceback__)
        return lines


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes of an error that Python shows with it."""
    seen = {id(error)}
    while True:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause
        error = cause


@contextlib.contextmanager
def _cut(error: BaseException, wanted: Callable[[list[str]], list[bool]]) -> Iterator[None]:
    """Context manager in which the error's traceback has only the frames that `wanted` selects
    by their files; at least one.
    """
    whole = error.__traceback__
    frames = []
    link = whole
    while link is not None:
        frames.append(link)
        link = link.tb_next
    kept = wanted([frame.tb_frame.f_code.co_filename for frame in frames])
    short: TracebackType | None = None
    for frame in reversed(
        [frame for frame, keep in zip(frames, kept, strict=True) if keep] or frames[:1]
    ):
        short = TracebackType(short, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = short
    try:
        yield
    finally:
        error.__traceback__ = whole


_OWN = f"{os.path.dirname(_causes.__code__.co_filename)}/"


def _of_the_user(files: list[str]) -> list[bool]:
    """Select all frames before the first one of the workbench, and those of user code that the
    workbench called.
    """
    first = next((n for n, file in enumerate(files) if file.startswith(_OWN)), len(files))
    return [
        n < first or not file.startswith((_OWN, "<frozen", *INSTALLED))
        for n, file in enumerate(files)
    ]


def _of_others(files: list[str]) -> list[bool]:
    """Select all frames except those of the workbench, and those of torch that call a module's
    forward.
    """
    return [
        not file.startswith(_OWN) and not file.endswith("torch/nn/modules/module.py")
        for file in files
    ]


_FRAME = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in .*\n(?: {4,}(?P<code>\S.*)\n)?',
    re.MULTILINE,
)
_CELL = re.compile(r"ipykernel_\d+[\\/]\d+\.py$|^<ipython-input-(\d+)-")
"""Matches the file name that IPython gives a cell; in a terminal it contains the number of the
cell.
"""
LONGEST = 1 << 20
"""The most characters of a traceback that are looked at; a longer one loses its beginning."""


def user_line(error: BaseException) -> str:
    """Return the last line of the user's code in an error's traceback: 'cell 4, line 7: loss =
    self.net(x)'; "" if there is none.

    An error from another process has the traceback of that process among its causes.
    """
    frames = [
        match
        for match in _FRAME.finditer(_text(error))
        if not match["file"].startswith((_OWN, "<frozen", "<string>", *INSTALLED))
    ]
    if not frames:
        return ""
    last = frames[-1]
    code = f": {last['code'].strip()}" if last["code"] else ""
    return f"{shown_line(last['file'], last['line'])}{code}"


def whole_text(error: BaseException) -> str:
    """Return the traceback as text, with the numbers of cells in place of their file names."""
    return _FRAME.sub(
        lambda match: (
            match[0].replace(
                f'File "{match["file"]}"', _place(match["file"], whole=True).capitalize(), 1
            )
            if _CELL.search(match["file"])
            else match[0]
        ),
        _text(error),
    )


def _text(error: BaseException) -> str:
    """The traceback, or the end of a very long one."""
    return "".join(traceback.format_exception(error))[-LONGEST:]


def shown_line(file: str, line: int | str) -> str:
    """Name a line of code for the user: 'cell 4, line 7' or 'model.py, line 7'."""
    return f"{_place(file)}, line {line}"


def _place(file: str, whole: bool = False) -> str:
    """Name a file for the user: the number of a cell, or the name of the file."""
    cell = _CELL.search(file)
    if cell is None:
        return file if whole else os.path.basename(file)
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    number = cell[1] or getattr(getattr(shell, "compile", None), "_filename_map", {}).get(file)
    return "a cell" if number is None else f"cell {number}"
