"""Sends commands to runs through their folders, whatever their kernels do meanwhile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from workbench.commands import Change, Scheduled, from_line
from workbench.runs.folder import control
from workbench.runs.live_change import live_change
from workbench.server.errors import ConflictError
from workbench.server.rows import Entry
from workbench.settings import Settings, SettingsError, recorded_settings


def send(entry: Entry, given: Mapping[str, Any]) -> None:
    """Send {"type": …, "values": …}. ValueError or SettingsError: it is not a command;
    ConflictError: the run accepts none.
    """
    try:
        command = from_line(json.dumps(given))
    except ValueError as error:
        raise ValueError(f"This is no command: {error}.") from None
    try:
        control.check_taken(entry.summary.path, command)
    except RuntimeError as error:
        raise ConflictError(str(error)) from None
    if isinstance(command, Change):
        command = live_change(settings_of(entry), command.values)
    elif isinstance(command, Scheduled) and isinstance(command.command, Change):
        change = live_change(settings_of(entry), command.command.values)
        command = Scheduled(command.at, change)
    try:
        control.send(entry.summary.path, command)
    except OSError:
        folder = entry.summary.path / control.CONTROL
        if folder.is_symlink() or folder.is_file():
            raise ConflictError(
                f"{entry.summary.id} cannot get commands: {folder.name} in its folder is a link or"
                " a file. Remove it."
            ) from None
        raise


def settings_of(entry: Entry) -> Settings:
    """Return the settings that a run began with, without those that this version does not know
    or accept.
    """
    try:
        return recorded_settings(entry.settings)
    except SettingsError:
        return Settings()
