"""Holds the settings of a command line, which replace those that a script gives its benches
(`workbench train train.py lr=1e-3`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workbench.settings import Settings, SettingsError
from workbench.values import shown

_EVERY = ("Workbench", "fit")
"""The calls that get all settings of the command line. Others get those which they name."""


class Overrides:
    """Settings that every bench of this process and its fits have, whatever the script says."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._tell: Callable[[str], object] = print
        self.used = False
        """Whether the script has made a bench."""

    def set(self, values: Mapping[str, Any], tell: Callable[[str], object]) -> None:
        """Replace these settings from now on. tell: called with a line for each bench, and for each
        call that wanted others.
        """
        self._values, self._tell, self.used = dict(values), tell, False

    def applied(self, settings: dict[str, Any], method: str) -> dict[str, Any]:
        """The settings of a call of this method, with those of the command line."""
        if not self._values:
            return settings
        self.used = True
        values = {
            name: value
            for name, value in self._values.items()
            if method in _EVERY or name in settings
        }
        # a value may be the same in other words: 10 and 10.0
        differing = {
            name
            for name in values.keys() & settings.keys()
            if not _same(name, settings[name], values[name])
        }
        if differing or method == "Workbench":
            texts = [
                f"{name}={shown(value)}"
                + (f" (instead of {shown(settings[name])})" if name in differing else "")
                for name, value in values.items()
                if method == "Workbench" or name in differing
            ]
            call = "" if method == "Workbench" else f", {method}()"
            self._tell(f"By the command line{call}: {', '.join(texts)}.")
        return {**settings, **values}


def _same(name: str, one: Any, other: Any) -> bool:
    """Whether both values of a setting mean the same; False for one that it cannot take."""
    try:
        return Settings.make(**{name: one}) == Settings.make(**{name: other})
    except SettingsError:
        return False


OVERRIDES = Overrides()
"""Those of this process."""
