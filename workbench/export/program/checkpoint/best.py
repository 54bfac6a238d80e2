"""Writes how the weights with the best value of a metric are kept."""

from __future__ import annotations

from workbench.export.inputs.collect import quoted
from workbench.export.program.lines import indented
from workbench.export.script_spec import ScriptSpec

_AVERAGED = "_averaged"


def begun(r: ScriptSpec) -> list[str]:
    """The line before the first epoch."""
    if r.best is None:
        return []
    _, mode = r.best
    return [f'best = {"-" if mode == "max" else ""}float("inf")']


def kept(r: ScriptSpec, averaged: bool = False) -> list[str]:
    """The lines after a validation, while the model has the weights that were validated. averaged: they are the average."""
    if r.best is None or r.best[0].endswith(_AVERAGED) != averaged:
        return []
    name, mode = r.best
    value = f"averages[{quoted(name.removesuffix(_AVERAGED))}]" if averaged else f"scores[{quoted(name)}]"
    lines = [f"best = {value}", saved(r, "best")]
    return [f"if {value} {'>' if mode == 'max' else '<'} best:", *indented(lines)]  # of equal ones the earlier, as in the run


def saved(r: ScriptSpec, name: str) -> str:
    """The line that saves the model's present weights."""
    weights = f"{r.weights_of}.state_dict()"
    if r.trains_loss:
        own = f'{{f"{r.loss_prefix}{{name}}": value for name, value in loss_function.state_dict().items()}}'
        weights += f" | {own}"
    return f'save(accelerator, {weights}, output / "{name}.pt")'
