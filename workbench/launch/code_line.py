"""Writes the line of code for a call: what the panel shows and a user can run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.secrets import without_secrets
from workbench.units import RATES, rate
from workbench.values import plain


@dataclass(frozen=True, repr=False)
class Name:
    """A variable name in the line, in place of a value that no short code makes."""

    name: str

    def __repr__(self) -> str:
        return self.name


def line(name: str, keywords: Mapping[str, Any], *positional: Any, of: str = "bench") -> str:
    """`bench.name(…)` with these arguments, without secrets; `of`: the object of the method."""
    arguments = [repr(value) for value in positional]
    arguments += [argument(key, without_secrets(value, key)) for key, value in keywords.items()]
    return f"{of}.{name}({', '.join(arguments)})"


def attached(run: Path) -> str:
    """`wb.attach('0012-fit')`, for the run in this folder."""
    return of_folder("attach", run)


def of_folder(name: str, run: Path) -> str:
    """`wb.name('0012-fit')`, for the run in this folder, with its root where that is not the
    default.
    """
    root = run.parents[1]
    # it lies elsewhere, or the working directory was deleted
    with contextlib.suppress(ValueError, OSError):
        root = root.relative_to(Path.cwd())
    return f"wb.{name}({run.name!r}{'' if root == Path('.workbench') else f', {str(root)!r}'})"


def differing(request: Any, default: Any) -> dict[str, Any]:
    """The fields of a request that differ from the default's."""
    return {name: value for name, value in vars(request).items() if value != getattr(default, name)}


def argument(name: str, value: Any) -> str:
    """`lr=3e-3`: an argument of a call."""
    value = plain(value)
    short = name in RATES and isinstance(value, float) and math.isfinite(value)
    return f"{name}={rate(value, None) if short else repr(value)}"
