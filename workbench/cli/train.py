"""The command `workbench train`: a training from a script or a YAML file, with other settings."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from workbench.cli.shared import UserPath
from workbench.runs.printable import printable

_OWN = f"{Path(__file__).parents[1]}{os.sep}"
"""Where the workbench's code is."""


class _WithScriptArguments(click.Command):
    """A command that hands what comes after `--` to the script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        dashes = args.index("--") if "--" in args else len(args)
        ctx.obj = args[dashes + 1 :]
        return super().parse_args(ctx, args[:dashes])


@click.command(
    cls=_WithScriptArguments,
    short_help="Train from a script or a YAML file, with other settings.",
    context_settings={"ignore_unknown_options": True},
    epilog="""\b
Examples:
  workbench train train.py lr=1e-3 max_epochs=5
  workbench train train.py lr=1e-3 -- --data /data/pictures
  workbench train small.yaml build.width=256 'early_stopping={monitor: val_loss, patience: 3}'
  torchrun --nproc-per-node 2 -m workbench train small.yaml
""",
)
@click.argument("file", type=UserPath(path_type=Path))
@click.argument("overrides", metavar="[NAME=VALUE]... [-- ARGUMENT...]", nargs=-1)
@click.option(
    "--dry-run", is_flag=True, help="Try a batch of each kind of data; the same as fast_dev_run=1."
)
@click.pass_obj
def train(arguments: Sequence[str], file: Path, overrides: Sequence[str], dry_run: bool) -> None:
    """Train what FILE describes, with the settings of the command line. Values are written as in
    YAML.

    A script (.py) runs as `python FILE` does. Each bench that it makes, and each fit, has the
    settings given here, whatever the script itself says; a line on stderr names them. After `--`
    come the arguments of the script.

    A configuration (.yaml) has settings, the function that makes the model (`build`) with its
    parameters, and the one that makes the data (`data`), where that is another one. Each value in
    it can be replaced: build.width=256.

    Under torchrun, srun or mpirun all processes are one training.
    """
    from workbench.bench.config import Config, overrides_from, settings_from

    values = overrides_from(overrides)
    if dry_run:
        values.setdefault("fast_dev_run", 1)
    _check(file)
    if file.suffix == ".py":
        settings = settings_from(values, file.name)
        from workbench.bench.train_file import train_script

        with _errors_as_python_shows_them():
            train_script(file, settings, arguments, _tell)
        return
    if arguments:
        raise click.UsageError(
            f"{arguments[0]!r} comes after --, which is for scripts (.py) alone."
        )
    config = Config.read(file, values)
    from workbench.bench.train_file import train_config

    with _errors_as_python_shows_them():
        run = train_config(config)
    if _is_first():
        click.echo(printable(str(run), lines=True))


def _check(file: Path) -> None:
    """Raise an error for a file that is no script and no configuration."""
    if not file.exists():
        raise FileNotFoundError(f"there is no file {file}.")
    if not file.is_file() or file.suffix not in (".py", ".yaml", ".yml"):
        raise ValueError(f"{file}: give a script (.py) or a configuration (.yaml).")


def _is_first() -> bool:
    """Whether this process is rank 0 of a launcher's job, or alone."""
    from workbench.launch.joined.environment import place_in

    ranks = place_in(os.environ)
    return ranks is None or ranks.rank == 0


def _tell(text: str) -> None:
    if _is_first():
        click.echo(printable(text), err=True)


@contextlib.contextmanager
def _errors_as_python_shows_them() -> Iterator[None]:
    """Context manager for the user's code: an error of it is shown with its traceback, without the
    workbench's own frames before it, and the exit code is 1.
    """
    from workbench.tracebacks import UserError, user_line

    try:
        yield
    except UserError as error:
        where = user_line(error)
        raise click.ClickException(
            printable(str(error), lines=True) + (f"\n  {printable(where)}" if where else "")
        ) from None
    except Exception as error:  # noqa: BLE001 - of the user's code, which may raise anything
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
            trace = trace.tb_next
        traceback.print_exception(error.with_traceback(trace or error.__traceback__))
        raise click.exceptions.Exit(1) from None
