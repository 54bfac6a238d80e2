"""Writes workbench/settings/kwargs.py from `Settings`: `python -m tests.settings.kwargs`."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from ruff import find_ruff_bin

from workbench.settings import Settings, metadata_of
from workbench.settings.spellings import NONE_IS_DEFAULT

FILE = Path(__file__).resolve().parents[2] / "workbench" / "settings" / "kwargs.py"

_TIME = "str | timedelta | Mapping[str, float]"
_NUMBER = "int | float"
_STOPPING = "str | EarlyStopping | Mapping[str, Any]"
_GIVEN = {
    "Batches": _NUMBER,
    "ByEpoch": "int | Mapping[int, int]",
    "Devices": 'Literal["auto"] | int | str | Sequence[int]',
    "Duration": _TIME,
    "Epochs": "int | Sequence[int] | set[int] | frozenset[int]",
    "Every": f"int | {_TIME}",
    "Interval": f"{_NUMBER} | {_TIME}",
    "LaunchOptions": "Mapping[str, str | bool | int | float]",
    "NamedOptimizer": "str | Mapping[str, Any] | Callable[..., Any] | None",
    "Monitors": f"{_STOPPING} | Sequence[{_STOPPING}] | None",
    "Precision": 'Literal["32-true", "16-mixed", "bf16-mixed", "64-true", "32", "16", "64", "bf16", "fp16", "fp32", "no", 16, 32, 64]',
    "Strategy": 'Literal["auto", "thread", "pool", "launch"] | str',
    "SwaStart": _NUMBER,
    "Unlimited": "int | None",
    "Warmup": _NUMBER,
}
"""By the names of `workbench.values`: what a user may write, which a validator then makes into the type of the setting."""

_HEAD = '''"""Defines the settings as keyword arguments, which editors complete and type checkers check.

`python -m tests.settings.kwargs` writes this file from `Settings`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

from workbench.values import EarlyStopping
'''


def text() -> str:
    """The whole file."""
    others = [name for name in Settings.model_fields if name != "optimizer"]
    live = [name for name in Settings.model_fields if metadata_of(name).live]
    code = "\n".join([
        _HEAD,
        *_class("OtherKwargs", "Settings without `optimizer`, which is an argument of some methods.", others),
        *_class("SettingsKwargs", "Any settings, as keyword arguments.", ["optimizer"], "OtherKwargs"),
        *_class("LiveKwargs", "Settings that can change while a run is running, as keyword arguments.", live, ByEpoch="int"),
    ]).rstrip() + "\n"  # fmt: skip
    ruff = [find_ruff_bin(), "format", "--stdin-filename", str(FILE), "-"]
    return subprocess.run(ruff, input=code, capture_output=True, text=True, check=True).stdout


def _class(
    name: str, doc: str, settings: list[str], base: str = "TypedDict", **other: str
) -> list[str]:
    given = {**_GIVEN, **other}
    return [
        "",
        f"class {name}({base}, total=False):",
        f'    """{doc}"""',
        "",
        *(f"    {one}: {_type(one, given)}" for one in settings),
        "",
    ]


def _type(name: str, given: Mapping[str, str]) -> str:
    """The type of the values that a user may give for this setting."""
    declared = re.sub(
        r"Annotated\[(.*), BeforeValidator\(\w+\)\]", r"\1", Settings.__annotations__[name]
    ).replace("'", '"')
    found = re.sub(
        "|".join(rf"\b{alias}\b" for alias in given), lambda alias: given[alias[0]], declared
    )
    return f"{found} | None" if name in NONE_IS_DEFAULT else found


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
