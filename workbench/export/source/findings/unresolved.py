"""Says why a name that the script needs is defined by no code that it can have."""

from __future__ import annotations

from collections.abc import Mapping

from workbench.export.errors import ExportError
from workbench.export.source.namespace import Namespace


def unresolved(program: Namespace, base: str, used: str, stopped_names: Mapping[str, str]) -> ExportError:
    """The error for `base`, which no statement of `program` binds. used: by what it is used, after "is used"."""
    if base == "__file__":
        return ExportError(f"`__file__` is used{used}; in the script it is another file. Write the path as text.")
    if base in ("display", "get_ipython", "In", "Out", "exit", "quit") or set(base) == {"_"}:
        return ExportError(
            f"`{base}` is used{used}, but only a notebook has it. "
            + ("Write `from IPython.display import display`." if base == "display" else "Use plain Python instead.")
        )
    places = [at for at in program.binders.get(base, ()) if base in program.uses[at].deletes]
    if places:
        statement = program.statements[places[-1]]
        what = f"`{statement.gist}` ({statement.place}) deleted it before the Workbench was made"
    elif base in stopped_names:
        what = f"{stopped_names[base]} raised an error before it was defined"
    elif program.name == "" and base in program.kinds:
        what = "no code that can be read defines it (a magic such as %run or %store, exec, or the kernel did)"
    else:
        what = f"nothing in {program.label} defines it before the Workbench is made"
    return ExportError(f"`{base}` is used{used}, but {what}. Define it in plain code before you make the Workbench.")
