"""Writes the settings of a run as YAML, which `wb.Settings.load` reads."""

from __future__ import annotations

from typing import Any, get_args

from workbench._version import __version__
from workbench.export.errors import ExportError
from workbench.export.source.capture import CallSite
from workbench.export.source.source import given_names
from workbench.runs.run import Run
from workbench.settings import Group, Settings, metadata_of
from workbench.settings.file import parsed

_ALWAYS = ("lr", "batch_size")
"""Settings that are written even if they have their defaults: else a new bench would take the
values of its optimizer or loader.
"""


def settings_yaml(run: Run, site: CallSite) -> str:
    """The settings of a run that differ from their defaults, by group; a comment names what the
    file lacks.
    """
    settings = run.settings
    values = {name: value for name, value in settings if name in {*settings.changed(), *_ALWAYS}}
    lines = [*_head(run, site)]
    for group in get_args(Group):
        named = [name for name in values if metadata_of(name).group == group]
        lines += [
            "",
            f"# {group}",
            *(line for name in named for line in _entry(name, values[name])),
        ] * bool(named)
    text = "\n".join(lines) + "\n"
    if Settings.make(**parsed(text, "the text")) != settings:
        raise ExportError(
            f"the settings of run {run.id} cannot be written as YAML: Settings.load would read"
            " others."
        )
    return text


def _entry(name: str, value: Any) -> list[str]:
    import yaml

    plain = Settings.model_construct(**{name: value}).model_dump(mode="json", include={name})
    lines: list[str] = yaml.safe_dump(
        plain, allow_unicode=True, width=10_000, sort_keys=False
    ).splitlines()
    unit = metadata_of(name).unit
    return [f"{lines[0]}  # {unit}" if unit and len(lines) == 1 else lines[0], *lines[1:]]


def _head(run: Run, site: CallSite) -> list[str]:
    lines = [
        f"# The settings of run {run.id}; those that are not here have their defaults.",
        (
            "# bench.set(**wb.Settings.load(FILE).model_dump(exclude_unset=True)) gives them to a"
            " bench."
        ),
    ]
    code = given_names(site) - Settings.model_fields.keys() - {"root"}
    named = ", ".join(sorted(code)) or "the model, the data, the loss and so on"
    lines.append(f"# Not here, because YAML holds no code and no data: {named}.")
    if changed := sorted({name for change in run.changes for name in change.values}):
        lines.append(
            "# Not here, because it was changed during the run: the later values of"
            f" {', '.join(changed)}."
        )
    return [*lines, f"# Written by Tuning Workbench {__version__}."]
