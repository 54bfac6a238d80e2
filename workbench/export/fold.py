"""Cuts a run's script from the training program: folds the constants that say what the run used.

`program/` is ordinary Python. It reads constants in capitals (`program/constants.py`), each of
which says whether a run used something (`if CLIPS:`), or how (`"norm"`). Folding puts a run's
values in their place and leaves out what never runs then: branches, conditional expressions,
arguments that have their default, parameters that nobody reads, functions that nobody calls.
Comments stay.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from workbench.export.folding.layout import bare, laid_out
from workbench.export.folding.rewriter import Rewriter, literal, names_read, stays
from workbench.export.folding.simplify import inlined, names, parameters, unneeded


def fold(source: str, constants: Mapping[str, object], known: Mapping[str, Any]) -> str:
    """`source` as it runs with these constants, without what does not run then.

    known: the libraries' names that it uses, whose functions tell the defaults of their arguments.
    What `main` and the statements at the top level do not need is left out. A constant that is a
    dict or list with items stays a constant.
    """
    settled = set[str]()
    text = Rewriter(source, known, constants).rewritten()
    program, before = Rewriter(text, known, settled=settled), ""
    while program.text != before:
        before = program.text
        for edits_of in (unneeded, parameters, inlined, names):
            while edits := edits_of(program.tree, program.code):
                program = Rewriter(program.rewritten(edits), known, settled=settled)
    text = laid_out(bare(program.text))
    read = names_read(ast.parse(text))
    kept = [name for name, value in constants.items() if stays(value) and name in read]
    return "".join(laid_out(f"{name} = {literal(constants[name])}\n") for name in kept) + text
