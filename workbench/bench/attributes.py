"""Names the attributes of a bench, and says what to write instead of setting one."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from workbench.settings import Settings
from workbench.values import shown

PUBLIC = ("model", "root", "summary", "jobs")
"""Attributes that are set when a bench is made, and read-only then."""


def why_not_set(bench: type, name: str, value: Any) -> str:
    """What to write instead of `bench.name = value`, as text for an error. bench: its class."""
    text = shown(value) if isinstance(value, (bool, int, float, str, type(None))) else "…"
    if name in Settings.model_fields:
        return f"bench.{name} = {text} would change nothing: settings are changed by bench.set({name}={text})."
    if name == "settings":
        return "bench.settings cannot be set: bench.set(lr=…) replaces some of them."
    if name in inspect.signature(bench).parameters:
        return f"bench.{name} cannot be set: {name} is given when a bench is made, wb.Workbench(…, {name}=…). Make another bench."
    if name in PUBLIC or isinstance(getattr(bench, name, None), property):
        return f"bench.{name} cannot be set: it is read-only."
    near = difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=0.6)
    hint = f" Did you mean bench.set({near[0]}={text})?" if near else " Settings are changed by bench.set(…)."
    return f"bench.{name} = {text} would do nothing: a bench has no attribute of that name.{hint}"
