"""Makes the errors for names that the script needs but cannot define: without usable code, or with two meanings."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from workbench.export.errors import ExportError
from workbench.export.source.namespace import Namespace
from workbench.export.source.statements import Statement


def unresolved(program: Namespace, base: str, used: str, stopped_names: Mapping[str, str]) -> ExportError:
    """The error for `base`, which no statement of `program` binds. used: the text after "is used", " by …"."""
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


def remedy_of(node: ast.stmt) -> str:
    """The remedy for a statement that cannot be in a script."""
    if not any(isinstance(part, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for part in ast.walk(node)):
        return "Move it out, before the Workbench is made, or before the block or the function that calls fit."
    names = sorted(target.id for target in ast.walk(node) if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store))
    one = names[0] if names else "result"
    return (
        "Call a function that does not wait, or save what it gives and load that, each in a cell before the Workbench is made: "
        f"`torch.save({one}, '{one}.pt')`, `{one} = torch.load('{one}.pt')`."
    )


def changed_by_workbench(name: str, statement: Statement, kind: str | None) -> ExportError:
    """The error for an object that a statement changed in a way that a script cannot repeat. kind: of the object (`capture.kind`)."""
    what = f"`{name}` is needed, but `{statement.gist}` ({statement.place}) changed it with the workbench, which a script does not have. "
    otherwise = "write the change in a statement of its own, without the workbench in it, and make this Workbench again."
    if kind in ("tensor", "array", "frame"):
        return ExportError(f"{what}W{otherwise[1:]}")
    return ExportError(
        f"{what}If that trained it, save its weights, make it anew and load them, each in a cell: `torch.save({name}.state_dict(), "
        f"'weights.pt')`, `{name} = …`, `{name}.load_state_dict(torch.load('weights.pt'))`. Then make this Workbench again. If it changed it in another way, {otherwise}"
    )


def refuse_set_by_call(program: Namespace, name: str, place: int) -> None:
    """Raise ExportError where the statement at `place` changes `name` using a global that a function set which calls fit: the script lacks that call."""
    found, seen, left = None, {place}, [place]
    while left and found is None:
        at = left.pop()
        scope = program.statements[at].scope
        sources = [(read, before) for read in sorted(program.uses[at].eager) for before in program.reaching(read, at, scope) if program.slicer.tainted(program, before)]
        found = next(((read, before) for read, before in sources if read not in program.uses[before].binds), None)
        left += [before for _, before in sources if before not in seen]
        seen |= set(left)
    if found is not None:
        statement, call = program.statements[place], program.statements[found[1]]
        raise ExportError(
            f"`{name}` is changed by `{statement.gist}` ({statement.place}) with `{found[0]}`, which `{call.gist}` ({call.place}) set, "
            f"and a script does not have that call. Set `{found[0]}` in a statement of its own, make the model and the Workbench anew, fit and export that run."
        )


def changed_through_bench(statement: Statement) -> ExportError:
    """The error for a change of a bench's model that the script would not have."""
    return ExportError(
        f"`{statement.gist}` ({statement.place}) changed the model after the Workbench was made, by a name that the script does not have. Change it "
        "before the Workbench is made, or give it one name beside it: `model = …`, `bench = wb.Workbench(model, …)`; then fit again and export that run."
    )


def refuse_bound_anew(program: Namespace, taken: Iterable[tuple[str, int]]) -> None:
    """Raise ExportError for a name that had one value in the Workbench call and another one in the run: a script can have only one.

    taken: the names that were looked up at the call, each with its binding.
    """
    for name, at in sorted(taken):
        if program.source_of(name, program.called) == program.source_of(name, program.end) is not None:
            continue  # imported again
        for later in range(program.called, program.end):
            statement = program.statements[later]
            again = later in program.kept and name in program.bound(later)
            if again and ast.dump(statement.node) != ast.dump(program.statements[at].node):
                raise ExportError(
                    f"`{name}` was bound anew by `{statement.gist}` ({statement.place}) after the Workbench was made with the former one, "
                    "and the run used both. Make the Workbench again, fit, and export that run."
                )
