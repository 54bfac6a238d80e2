"""What the commands share: how they report errors, their options, JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from workbench.runs.printable import printable

EXIT_CODES = """\b
Exit codes:
  0  done
  1  not done; the message says why (no such run, an empty or wrong root, ...)
  2  the command line is wrong
"""


class Commands(click.Group):
    """A group whose commands report errors in one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except (OSError, ValueError, RuntimeError) as error:
            raise click.ClickException(printable(str(error), lines=True)) from None


class UserPath(click.Path):
    """A path in which `~` is the home folder; a shell does not replace it in `--root=~/runs`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(Path(value).expanduser(), param, ctx)


def complete_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The ids that begin with what was typed, for a shell's Tab, which does not quote them."""
    from workbench.runs.folder.ids import is_id
    from workbench.runs.read import run_folders

    root = ctx.params.get("root") or Path(".workbench")
    try:
        return sorted(
            folder.name
            for folder in run_folders(root)
            if folder.name.startswith(incomplete) and is_id(folder.name)
        )
    except OSError:
        return []


root_option = click.option(
    "--root",
    type=UserPath(path_type=Path),
    default=Path(".workbench"),
    show_default=True,
    help="The root of a bench: the folder that holds runs/.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
run_argument = click.argument("run", shell_complete=complete_ids)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(as_json_text(value))


def as_json_text(value: Any) -> str:
    """Return JSON in ASCII without control characters; a number that is not finite becomes null."""
    return json.dumps(finite(value), indent=1).replace("\x7f", "\\u007f")


def finite(value: Any) -> Any:
    """Return the value with null for each number in it that is not finite."""
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
