"""Names for an axis: of layers, shortened so that they stay distinct, and of recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.units import RATES, rate


def shorten(name: str, most: int = 40) -> str:
    """`name` with its middle left out if it is longer than `most` characters."""
    if len(name) <= most:
        return name
    head = most // 3
    return f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"


def fold(names: Sequence[str], most: int = 28) -> tuple[list[str], str]:
    """Labels for `names`, and the pattern they have in common ("model.layers.*.weight"; empty:
    none).

    Dotted parts that all names begin or end with are only in the pattern.
    """
    parts = [name.split(".") for name in names]
    shortest = min((len(p) for p in parts), default=0)
    if len(set(names)) < 2:
        return [shorten(name, most) for name in names], ""
    head = _common(parts, shortest - 1)
    tail = _common([p[::-1] for p in parts], shortest - 1 - head)
    if not head and not tail:
        return [shorten(name, most) for name in names], ""
    labels = [shorten(".".join(p[head : len(p) - tail]), most) for p in parts]
    return labels, ".".join([*parts[0][:head], "*", *parts[0][len(parts[0]) - tail :]])


def _common(parts: list[list[str]], most: int) -> int:
    """How many parts all have in common at the beginning, at most `most`."""
    count = 0
    while count < most and len({p[count] for p in parts}) == 1:
        count += 1
    return count


def recipe_name(values: Mapping[str, Any]) -> str:
    """The settings of a recipe in short: "adamw, lr=0.01, cosine, warmup=0.05"."""
    texts = []
    for name, value in values.items():
        if name == "optimizer" and isinstance(value, Mapping):
            for kind, arguments in value.items():
                texts.append(f"{kind}({', '.join(f'{key}={arguments[key]}' for key in arguments)})")
        elif name in ("optimizer", "lr_schedule"):
            texts += [] if value in (None, "constant") else [str(value)]
        elif value and name != "max_steps":  # it follows from the batch size
            number = rate(value) if name in RATES and isinstance(value, float) else value
            texts.append(f"{name}={number}")
    return ", ".join(texts) or "present settings"
