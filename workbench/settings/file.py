"""Reads settings from YAML: a file, or one value of a command line."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from workbench.values import SettingsError

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)$")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")

_LONGEST = 1 << 16
"""The most characters of a file."""
_MOST = 100_000
"""How many values a file may have, those that aliases repeat included."""


def read(path: str | Path) -> dict[str, Any]:
    """Read the settings in a file, by name. `SettingsError` names the file and what in it cannot
    be read.
    """
    with Path(path).expanduser().open(encoding="utf-8") as file:
        text = file.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise SettingsError(
            f"{path} has more than {_LONGEST} characters: write those that settings need."
        )
    return parsed(text, str(path))


def parsed(text: str, name: str) -> dict[str, Any]:
    """Read the settings in YAML text, by name. name: the name of the file, for errors."""
    values = parsed_value(text, name)
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise SettingsError(
            f"{name} should hold settings by their names, each on a line: `lr: 0.01`."
        )
    return values


def parsed_value(text: str, name: str) -> Any:
    """Read one value of YAML text: a number, a text, a list, or a dict. name: what has the text,
    for errors.
    """
    import yaml

    try:
        value = yaml.load(text, _loader())  # a SafeLoader
    except yaml.YAMLError as error:
        raise SettingsError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise SettingsError(
            f"{name} is not valid here: its values are nested too deeply."
        ) from None
    _check_extent(value, name)
    return value


def _check_extent(values: Any, name: str) -> None:
    """Raise SettingsError for lists within lists that an alias (`*a`) repeats a million times."""
    left, waiting = _MOST, [values]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list):
            left -= len(node)
            waiting += node.values() if isinstance(node, dict) else node
        if left < 0:
            raise SettingsError(
                f"{name} has more than {_MOST} values: write those that settings need."
            )


@cache
def _loader() -> Any:
    """Return PyYAML's safe loader with the number formats of YAML 1.2. It refuses a name that is
    there twice.

    YAML 1.1 reads 1e-3 as a string, and 10:00:00:00 as a number.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
            if twice := next((name for name, count in names.items() if count > 1), None):
                raise yaml.YAMLError(f"{twice!r} is there twice")
            return super().construct_mapping(node, deep)

    numbers = {f"tag:yaml.org,2002:{kind}" for kind in ("int", "float")}
    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in numbers]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
    return Loader
