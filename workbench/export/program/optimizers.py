"""Makes the values about optimizers and schedules that the templates read: their names in the
script, their rates, when each steps.
"""

from __future__ import annotations

import math

from workbench.export.errors import NotStandAlone
from workbench.export.inputs.collect import Schedule
from workbench.export.program.data import scheduled_updates
from workbench.export.script_spec import ScriptSpec

_SHAPES = {
    "constant": "stays",
    "linear": "falls to 0 in a straight line",
    "cosine": "falls to 0 along a cosine",
}


def values(r: ScriptSpec) -> dict[str, object]:
    """The values of the templates that make optimizers and schedules."""
    one = not (r.several or r.manual)
    names = [name for own in schedulers(r) for name in own]
    places = [schedule.place for schedule in r.schedules]
    return {
        "schedulers": schedulers(r),
        "own_schedulers": names,
        "told_schedulers": (
            names[0] if len(names) == 1 else f"[{', '.join(names)}]" if names else "None"
        ),
        "manual_schedulers": (
            ", ".join(f"ManualScheduler({name})" for name in names)
            if r.accumulates
            else ", ".join(names)
        ),
        "places": places,
        "as_pair": r.several and _is_pair(r, places),
        "shape": _SHAPES.get(r.settings.lr_schedule, ""),
        "takes_updates": takes_updates(r),
        "scheduled_updates": scheduled_updates(r),
        "needs_parameters": one and not r.lightning.freezes and _needs_parameters(r),
        "trained": (
            "parameters_of(network, optimizer)"
            if r.lightning.freezes
            else "owned[turn]"
            if r.several
            else "parameters"
        ),
        "own_rates": [] if r.hooks is None else _own_rates(r),
        "turns": " + ".join(
            f"[{n}]" + (f" * {one.frequency}" if one.frequency > 1 else "")
            for n, one in enumerate(r.optimizers)
        ),
        "counts_taken": counts_taken(r),
        "counts_turns": counts_turns(r),
        "frozen_groups": any(optimizer.frozen_groups for optimizer in r.optimizers),
        "rate": (
            f'{"optimizers[0]" if r.several else "optimizer"}.param_groups[{r.optimizers[0].leading}]["lr"]'
        ),
        "follow_metric": [
            (name, schedule)
            for optimizer, names in zip(r.optimizers, schedulers(r), strict=True)
            for schedule, name in zip(optimizer.schedules, names, strict=False)
            if schedule.monitor is not None and not r.manual
        ],
    }


def changes(r: ScriptSpec) -> str:
    """The table of the changes during the run."""
    if not r.changes:
        return ""
    rows: dict[int, list[str]] = {}
    for step, changed in r.changes:
        rows.setdefault(step, []).extend(
            f'("{name}", {_number(value)})' for name, value in changed.items()
        )
    text = "".join(f"    {int(step)}: [{', '.join(pairs)}],\n" for step, pairs in rows.items())
    return f"# What was changed while it ran, and before which update.\nCHANGES = {{\n{text}}}"


def _number(value: object) -> str:
    if value is None or value == math.inf:
        return 'float("inf")'
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise NotStandAlone(
            f"a live change to {value!r:.60} is in the record, and a script can only set numbers."
        )
    return repr(value)


def schedulers(r: ScriptSpec) -> list[list[str]]:
    """The names of each optimizer's schedulers."""
    if r.built_in:
        return (
            [[f"schedulers[{n}]"] for n in range(len(r.optimizers))]
            if r.several
            else [["scheduler"]]
        )
    counts = [len(optimizer.schedules) for optimizer in r.optimizers]
    if sum(counts) == 1:
        return [["scheduler"] * count for count in counts]
    names = iter([f"scheduler_{n}" for n in range(sum(counts))])
    return [[next(names) for _ in range(count)] for count in counts]


def _is_pair(r: ScriptSpec, places: list[str]) -> bool:
    """Whether optimizers are returned as a plain list, or as two lists (optimizers, schedulers),
    in their order.
    """
    at = "[0]" if places else ""
    listed = [optimizer.place for optimizer in r.optimizers] == [
        f"{at}[{n}]" for n in range(len(r.optimizers))
    ]
    return listed and places == [f"[1][{n}]" for n in range(len(places))]


def takes_updates(r: ScriptSpec) -> bool:
    """Whether the built-in schedule depends on the number of updates of the run."""
    return r.settings.lr_schedule != "constant" or isinstance(r.settings.warmup, float)


def _needs_parameters(r: ScriptSpec) -> bool:
    """Whether the loop reads the parameters of each optimizer."""
    made_up = r.accumulates and (r.may_skip_batches or r.reports_weight or r.train.empty)
    clips = r.clips and not r.owns("configure_gradient_clipping")
    return clips or r.settings.on_nonfinite == "skip" or made_up or r.distributed


def set_lr(r: ScriptSpec, old: str, new: str, number: int = 0, begun: bool = True) -> str:
    """The call that sets an optimizer's base rate. begun: the run continues another one, so
    SWA's own schedule may have begun.
    """
    names = [*schedulers(r)[number], *(["annealing"] if r.has_swa_lrs and begun else [])]
    own = f"[{', '.join(names)}], " if r.scheduled else ""
    return f"set_lr({f'optimizers[{number}]' if r.several else 'optimizer'}, {own}{old}, {new})"


def _own_rates(r: ScriptSpec) -> list[str]:
    """The lines that set the run's rate, for objects that make their optimizers at a rate of
    their own.
    """
    if r.optimizers[0].made_lr is None:
        return []
    first = next((one.made_lr for one in r.optimizers if one.made_lr), 0.0)
    lines = [set_lr(r, repr(first), "config.lr", begun=False)]
    for number, optimizer in enumerate(r.optimizers[1:], 1):
        new = (
            "config.lr"
            if optimizer.made_lr == first
            else f"{optimizer.made_lr!r} * (config.lr / {first!r})"
        )
        lines.append(set_lr(r, repr(optimizer.made_lr), new, number, begun=False))
    return lines


def counts_taken(r: ScriptSpec) -> bool:
    """Whether updates that were taken must be counted apart from those that were skipped."""
    return r.may_not_step and any(s.frequency > 1 and s.interval == "step" for s in r.schedules)


def counts_turns(r: ScriptSpec) -> bool:
    """Whether the steps of each optimizer must be counted."""
    return r.optimizers_alternate and any(
        s.frequency > 1 and s.interval == "step" for s in r.schedules
    )


def due(r: ScriptSpec, schedule: Schedule, counter: str) -> str:
    """The condition under which a scheduler steps; "": it always steps. counter: the expression
    for the number of updates or epochs so far.
    """
    count = f"({counter})" if " " in counter else counter
    if schedule.by_batches and schedule.interval == "step" and not r.tbptt:
        count = "(window[-1][0] + 1)" if r.accumulates else "(number + 1)"
    return f"{count} % {schedule.frequency} == 0" if schedule.frequency != 1 else ""
