"""Writes the base learning rate: live changes, and objects that make their own optimizer."""

from __future__ import annotations

import math
from textwrap import dedent

from workbench.export.errors import ExportError
from workbench.export.script_spec import ScriptSpec


def changes(r: ScriptSpec) -> str:
    """The table of what was changed during the run."""
    if not r.changes:
        return ""
    rows: dict[int, list[str]] = {}
    for step, values in r.changes:
        rows.setdefault(step, []).extend(f'("{name}", {_number(value)})' for name, value in values.items())
    text = "".join(f"    {int(step)}: [{', '.join(pairs)}],\n" for step, pairs in rows.items())
    return f"# What was changed while it ran, and before which update.\nCHANGES = {{\n{text}}}"


def _number(value: object) -> str:
    if value is None or value == math.inf:
        return 'float("inf")'
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ExportError(f"a live change to {value!r:.60} is in the record, which is no number that a script can set.")
    return repr(value)


def set_lr(r: ScriptSpec) -> str:
    """A function that sets a new base rate, for live changes and for objects that make their own optimizer."""
    if not r.sets_lr:
        return ""
    if not r.scheduled:
        return dedent('''\
            def set_lr(optimizer, old, new):
                """A new learning rate; the ratios of parameter groups stay."""
                for group in optimizer.param_groups:
                    group["lr"] = new if group["lr"] == old else group["lr"] * (new / old)''')
    keys = ["lr", "initial_lr", "max_lr", "min_lr", *(["swa_lr"] if r.settings.swa_lrs is not None else [])]
    return dedent('''\
        def set_lr(optimizer, schedulers, old, new):
            """A new base rate; schedules and the ratios of parameter groups multiply it."""

            def scaled(rate):
                return new if rate == old else rate * (new / old)

            for group in optimizer.param_groups:
                for key in (@@):
                    if key in group:
                        group[key] = scaled(group[key])
            for scheduler in schedulers:  # it grows: a chain of schedulers holds others
                schedulers += getattr(scheduler, "_schedulers", ())
                for name in ("base_lrs", "max_lrs", "min_lrs"):
                    if hasattr(scheduler, name):
                        setattr(scheduler, name, [scaled(rate) for rate in getattr(scheduler, name)])
                if isinstance(getattr(scheduler, "eta_min", None), float):
                    scheduler.eta_min = scaled(scheduler.eta_min)''').replace("@@", ", ".join(f'"{key}"' for key in keys))
