"""Helpers of the slicer's tests: notebooks and scripts that make a stand-in Workbench, and what its slice gives."""

from __future__ import annotations

import ast
import linecache
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import workbench
from workbench.export.source.capture import CallSite, Frame, Piece, Spot, kind
from workbench.export.source.source import CODE_ARGUMENTS, Sliced, slice_call


class Workbench:
    """Stands in for the real one: remembers its arguments and where it was made."""

    __module__ = "workbench"
    made: ClassVar[list[Workbench]] = []

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.given = {**dict(zip(["model"], args, strict=False)), **settings}
        self.site = CallSite.capture(sys._getframe(1), self.given)
        self.model = self.given.get("model")
        Workbench.made.append(self)

    def fit(self, **settings: Any) -> Workbench:
        return self

    def result(self) -> Workbench:
        return self

    def set(self, **settings: Any) -> None:
        self.settings = settings


def install() -> None:
    """Put the stand-in where `import workbench as wb` finds it."""
    workbench.Workbench = Workbench  # type: ignore[misc, assignment]


@dataclass
class Outcome:
    """What a notebook gave its last Workbench, and what the slice of it gives."""

    given: dict[str, Any]
    again: dict[str, Any]
    sliced: Sliced
    namespace: dict[str, Any] = field(default_factory=dict)


def run_cells(*cells: str, then: Sequence[str] = ()) -> CallSite:
    """Run cells one after the other as a notebook would; the call site of the last Workbench. then: cells between it and its fit."""
    install()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    pieces: list[Piece] = []
    for number, cell in enumerate([*cells, *then], 1):
        filename = f"<cell {number}>"
        stopped = None
        linecache.cache[filename] = (len(cell), None, cell.splitlines(True), filename)
        try:
            exec(compile(cell, filename, "exec", dont_inherit=True), namespace)
        except ZeroDivisionError as error:
            stopped = traceback.extract_tb(error.__traceback__)[1].lineno
        pieces.append(Piece(f"In [{number}]", cell, stopped))
    # The kernel tests check the capture; here the last call in the last cell is the one.
    calls = [
        n
        for n in ast.walk(ast.parse(cells[-1]))
        if isinstance(n, ast.Call) and "Workbench" in ast.unparse(n.func)
    ]
    call = max(calls, key=lambda node: (node.lineno, node.col_offset))
    spot = Spot(
        len(cells) - 1,
        call.lineno,
        call.col_offset,
        call.end_lineno or -1,
        call.end_col_offset or -1,
    )
    kinds = {name: kind(value) for name, value in namespace.items()}
    captured = Workbench.made[-1].site
    names = {name: "" for name, value in namespace.items() if value is Workbench.made[-1]}
    fit = (Frame(Spot(len(pieces) - 1, sys.maxsize), {}, names),) if then else ()
    return CallSite(
        tuple(pieces),
        spot,
        spot,
        captured.values,
        captured.top_values,
        kinds,
        "",
        captured.sources,
        given=captured.given,
        module=captured.module,
        fit=fit,
    )


def slice_cells(*cells: str, then: Sequence[str] = ()) -> Outcome:
    """Run cells, slice the last Workbench call, run the slice in a fresh namespace."""
    site = run_cells(*cells, then=then)
    return replay(site, Workbench.made[-1].given)


def replay(site: CallSite, given: Mapping[str, Any]) -> Outcome:
    """Slice `site` and run what it gives in a fresh namespace."""
    sliced = slice_call(site)
    namespace = execute(sliced)
    again = {
        name: eval(text, dict(namespace))
        for name, text in sliced.arguments.items()
        if name in CODE_ARGUMENTS
    }
    return Outcome(dict(given), again, sliced, namespace)


def execute(sliced: Sliced) -> dict[str, Any]:
    """The namespace that the slice makes."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(
        compile(sliced.imports + "\n" + sliced.code, "<sliced>", "exec", dont_inherit=True),
        namespace,
    )
    return namespace


def run_file(path: Path, text: str) -> Workbench:
    """Run `text` as the file `path`; the last Workbench it made."""
    install()
    path.write_text(text)
    linecache.checkcache(str(path))
    exec(
        compile(text, str(path), "exec", dont_inherit=True),
        {"__name__": "__main__", "__file__": str(path)},
    )
    return Workbench.made[-1]
