"""Makes the errors for names that the script needs but cannot define: without usable code, or
with two meanings.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from workbench.export.errors import ExportError
from workbench.export.source.namespace import Namespace


def unresolved(
    program: Namespace, base: str, used: str, stopped_names: Mapping[str, str]
) -> ExportError:
    """The error for `base`, which no statement of `program` binds. used: the text after "is
    used", " by …".
    """
    remedy = "Define it in plain code before you make the Workbench."
    places = [at for at in program.binders.get(base, ()) if base in program.uses[at].deletes]
    if base == "__file__":
        reason, remedy = "in the script it is another file", "Write the path as text."
    elif base in ("display", "get_ipython", "In", "Out", "exit", "quit") or set(base) == {"_"}:
        reason, remedy = "only a notebook has it", "Use plain Python instead."
        if base == "display":
            remedy = "Write `from IPython.display import display`."
    elif places:
        statement = program.statements[places[-1]]
        reason = f"`{statement.gist}` ({statement.place}) deleted it before the Workbench was made"
    elif base in stopped_names:
        reason = f"{stopped_names[base]} raised an error before it was defined"
    elif program.name == "" and base in program.kinds:
        reason = (
            "no code that can be read defines it (a magic such as %run or %store, exec, or the "
            "kernel did)"
        )
    else:
        reason = f"nothing in {program.label} defines it before the Workbench is made"
    return ExportError(f"`{base}` is used{used}, but {reason}. {remedy}")


def remedy_of(node: ast.stmt) -> str:
    """The remedy for a statement that cannot be in a script."""
    if not any(
        isinstance(child, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for child in ast.walk(node)
    ):
        return (
            "Move it out, before the Workbench is made, or before the block or the function that"
            " calls fit."
        )
    names = sorted(
        target.id
        for target in ast.walk(node)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
    )
    name = names[0] if names else "result"
    return (
        "Call a function that does not wait, or save what it gives and load that, each in a cell"
        f" before the Workbench is made: `torch.save({name}, '{name}.pt')`, `{name} ="
        f" torch.load('{name}.pt')`."
    )
