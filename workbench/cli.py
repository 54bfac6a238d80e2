"""The command `workbench`: the demo, and recorded runs without a notebook.

Each command imports what it needs when it runs, so that `--help` and completion are quick. Nothing
here reads code or pickles from a run folder, and control characters of records are written out
(`runs/printable.py`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from workbench._version import __version__
from workbench.commands import Command, Pause, Resume, Stop, method_of
from workbench.runs.printable import printable
from workbench.units import counted

if TYPE_CHECKING:
    from workbench.runs.read import RunSummary
    from workbench.runs.run import Run

EXIT_CODES = """\b
Exit codes:
  0  done
  1  not done; the message says why (no such run, an empty or wrong root, ...)
  2  the command line is wrong
"""
PICTURES = (".png", ".svg", ".pdf")
UNSEEN = (
    "running?: the record has no end, and its process cannot be seen from here (another machine,"
    " container or boot). Such a run is never deleted by itself. If you know that it has ended:"
    " workbench runs delete ID --force"
)


class _Commands(click.Group):
    """A group whose commands report errors in one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except (OSError, ValueError, RuntimeError) as error:
            raise click.ClickException(printable(str(error), lines=True)) from None


class _UserPath(click.Path):
    """A path in which `~` is the home folder; a shell does not replace it in `--root=~/runs`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(Path(value).expanduser(), param, ctx)


@click.group(
    cls=_Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="workbench", message="%(prog)s %(version)s")
def main() -> None:
    """Tuning Workbench for PyTorch: run the demo, and look at recorded runs."""


@main.command(short_help="Tune, train and export a model of handwritten digits.")
@click.option(
    "--output",
    type=_UserPath(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Where pictures and the script go.",
)
def demo(output: Path) -> None:
    """Find a batch size and a learning rate for handwritten digits, train, and export.

    Afterwards the exported script runs, and its losses are compared with those of the run. It takes
    about a minute and downloads nothing. The last line of the output is JSON. The exit code is 1 if
    the losses differ.
    """
    from workbench.demo import demo as run_demo

    try:
        outcome = run_demo(output)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sklearn":
            raise
        raise ValueError(
            "the demo needs scikit-learn: pip install 'tuning-workbench[demo]'"
        ) from None
    click.echo(json.dumps(_finite(outcome)))
    if not outcome["losses_equal"]:
        raise click.exceptions.Exit(1)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
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


_root = click.option(
    "--root",
    type=_UserPath(path_type=Path),
    default=Path(".workbench"),
    show_default=True,
    help="The root of a bench: the folder that holds runs/.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
_run = click.argument("run", shell_complete=_complete)


@main.command(short_help="Repeat a fit from what it started from.")
@_run
@click.option(
    "--trust",
    is_flag=True,
    help="Also a run that somebody else has made: its code runs with your rights.",
)
@_root
def rerun(run: str, trust: bool, root: Path) -> None:
    """Repeat a fit, to the last bit, from what it kept in its folder: code, weights, data in
    memory, generators.

    RUN is the id of a run (0012-fit) or its number (12). The repetition is a run of its own. It
    runs in the folder in which the run was made, where there is one. The exit code is 1 if a loss
    or a validation differs.
    """
    from workbench.bench.rerun import rerun_in_this_process
    from workbench.runs.folder.lookup import find_run

    def tell(text: str) -> None:
        click.echo(printable(text), err=True)

    again, compared = rerun_in_this_process(find_run(root, run), tell, trust=trust)
    click.echo(printable(f"{again.id} {compared.text}"))
    if not compared.equal:
        raise click.exceptions.Exit(1)


@main.command(
    short_help="Print the code for completion with Tab.",
    epilog=(
        'Example: eval "$(workbench completion bash)" in ~/.bashrc completes commands, options and'
        " run ids."
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the code that makes a shell complete this command with Tab."""
    kind = get_completion_class(shell)
    assert kind is not None  # click has these three
    click.echo(kind(main, {}, "workbench", "_WORKBENCH_COMPLETE").source())


@main.group(cls=_Commands, epilog=EXIT_CODES)
def runs() -> None:
    """List, show, compare, export and delete recorded runs; stop and pause those that run.

    RUN is the id of a run (0012-fit) or its number (12).
    """


@runs.command("list")
@_root
@_json
def list_(root: Path, as_json: bool) -> None:
    """List all runs, oldest first, each with its last metrics."""
    from workbench.runs.folder.lookup import check_root
    from workbench.runs.read import list_runs

    check_root(root)
    summaries = list_runs(root)
    if not summaries:
        raise FileNotFoundError(f"No runs are recorded in {root}.")
    if as_json:
        from workbench.runs.tables.report import summary_data

        _print_json([summary_data(run) for run in summaries])
        return
    _print_table(summaries)
    if any(run.unseen for run in summaries):
        click.echo(UNSEEN)


@runs.command()
@_run
@_root
@_json
def show(run: str, root: Path, as_json: bool) -> None:
    """Show one run: results, settings, checkpoints, problems."""
    from workbench.runs.folder.lookup import find_run
    from workbench.runs.tables.report import record_data, text_lines

    record = record_data(find_run(root, run))
    if as_json:
        _print_json(record)
    else:
        for line in text_lines(record):
            click.echo(printable(line))


@runs.command(short_help="Follow a run in the terminal until it ends.")
@_run
@_root
def watch(run: str, root: Path) -> None:
    """Draw a run as it trains: progress, loss, metrics, gradient norms, where the time goes.

    Keys pause it, validate, write a checkpoint and stop it. "q" or Ctrl-C ends the drawing, and the
    run continues. Exits with 1 if the run has failed.
    """
    from workbench.launch.attached.attach import attach
    from workbench.runs.folder.lookup import find_run

    job = attach(find_run(root, run).name, root)
    if not job.watch():
        return
    error = job.exception()
    if error is not None:
        raise click.ClickException(printable(" ".join(str(error).split())))
    if not sys.stdout.isatty():
        click.echo(f"{job.id}: {job.status}")


def _request(command: Command, help: str) -> None:
    """Add the command that sends this command to a run."""

    @runs.command(method_of(command), help=help)
    @_run
    @_root
    def request(run: str, root: Path) -> None:
        from workbench.runs.folder import control
        from workbench.runs.folder.lookup import find_run

        path = find_run(root, run)
        control.check_taken(path, command)
        control.send(path, command)
        click.echo(printable(f"{path.name} is asked to {method_of(command)}."))


_request(
    Stop(),
    "Stop a run at its next update. It keeps its results so far. A run that waits for its turn is"
    " dropped.",
)
_request(Pause(), "Pause a fit before its next update.")
_request(Resume(), "Let a fit that is paused continue.")


@runs.command()
@click.argument("compared", metavar="RUN RUN...", nargs=-1, required=True, shell_complete=_complete)
@_root
@_json
def compare(compared: Sequence[str], root: Path, as_json: bool) -> None:
    """Compare fits: settings that differ, last and best values."""
    from workbench.runs.folder.lookup import find_run
    from workbench.runs.run import Run
    from workbench.runs.tables import compare as comparing

    both = comparing.compare(*(Run.open(find_run(root, name)) for name in compared))
    if not as_json:
        click.echo(repr(both))
        return
    names = [*both.settings]
    _print_json(
        [
            {
                "id": name,
                "status": run.status,
                "updates": run.step,
                "seconds": run.seconds,
                "settings": {name: run.settings.get(name) for name in names},
                "changes": {
                    name: {"update": last.step, "value": last.value}
                    for name, last in run.changes.items()
                },
                "last": run.ending,
                "best": run.best,
            }
            for name, run in zip(comparing.names(both.runs), both.runs, strict=True)
        ]
    )


@runs.command(short_help="Write the history, the results or the plots of a run into a file.")
@_run
@click.argument("file", type=_UserPath(path_type=Path, dir_okay=False), required=False)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@_root
def export(run: str, file: Path | None, force: bool, root: Path) -> None:
    """Write what the record of a run holds into FILE; without FILE, print the history as CSV.

    \b
    The ending of FILE says what is written:
      .csv             the history: a row for each update
      .json            settings, results and history
      .png .svg .pdf   the plots as a picture
      .html            the plots to zoom, in one file (5 MB)

    A training script (.py) needs the code of your notebook, which no record holds: call
    bench.export("train.py", "0012-fit") there.
    """
    from workbench.runs.folder.lookup import find_run
    from workbench.runs.run import Run

    path = find_run(root, run)
    opened = Run.open(path)
    if file is None:
        opened.to_csv(_Printable(sys.stdout))  # type: ignore[arg-type]  # pandas only calls its write()
        return
    _check_file(file, force, path.name)
    _write(file, opened)
    click.echo(f"{file} is written.")


@runs.command()
@click.argument("deleted", metavar="RUN...", nargs=-1, required=True, shell_complete=_complete)
@click.option(
    "--force", is_flag=True, help='Also a run shown as "running?", if you know that it has ended.'
)
@_root
@_json
def delete(deleted: Sequence[str], force: bool, root: Path, as_json: bool) -> None:
    """Delete runs for good, with their checkpoints and weights."""
    from workbench.runs.folder.lookup import check_not_linked, find_run

    check_not_linked(root)
    # all are found before one is deleted
    paths = dict.fromkeys([find_run(root, name) for name in deleted])
    gone, errors = _delete(paths, force=force)
    if as_json:
        _print_json({"deleted": gone})
    else:
        for id in gone:
            click.echo(printable(f"{id} is deleted."))
    _raise(errors)


@runs.command(short_help="Delete all but the newest runs; asks before it deletes.")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    required=True,
    help="How many runs of each kind stay: the newest.",
)
@click.option("--kind", help="Delete runs of this kind alone: fit, find_lr, find_batch_size, ...")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_root
@_json
def prune(keep: int, kind: str | None, dry_run: bool, yes: bool, root: Path, as_json: bool) -> None:
    """Delete the oldest runs of each kind, with their checkpoints and weights.

    Runs that are pinned, that may still run, or whose folders were renamed so that they have no
    number are neither deleted nor counted.
    """
    from workbench.runs.folder.annotations import read_annotations
    from workbench.runs.folder.delete import oldest_beyond_keep, remove_leftovers
    from workbench.runs.folder.lookup import check_not_linked, check_root
    from workbench.runs.read import list_runs

    check_root(root)
    check_not_linked(root)
    known = {run.kind for run in list_runs(root)}
    if kind is not None and kind not in known:
        raise ValueError(
            f"there are no runs of kind {kind!r}; there are: {', '.join(sorted(known)) or 'none'}."
        )
    old = oldest_beyond_keep(root, keep, kind)
    if not as_json and old:
        _print_table(old)
    gone, errors = [run.id for run in old], list[str]()
    if old and not dry_run:
        if not yes:
            _confirm(len(old))
        # A run may have been pinned or deleted since they were listed.
        left = [
            run.path for run in old if run.path.is_dir() and not read_annotations(run.path).pinned
        ]
        gone, errors = _delete(left, pinned=False)
    if not dry_run:
        remove_leftovers(root)
    if as_json:
        _print_json({"would_delete" if dry_run else "deleted": gone})
    elif dry_run or not old:
        click.echo(
            f"{counted(len(old), 'run')} would be deleted."
            if old
            else "There is nothing to delete."
        )
    else:
        click.echo(f"{counted(len(gone), 'run')} deleted.")
    _raise(errors)


def _confirm(count: int) -> None:
    """Ask before deleting; any answer but yes is an error, and nothing is deleted."""
    try:
        agreed = click.confirm(f"Delete {counted(count, 'run')} for good?", err=True)
    except click.Abort:
        click.echo(err=True)
        agreed = False
    if not agreed:
        raise click.ClickException("nothing is deleted. --yes deletes without asking.")


def _delete(
    paths: Iterable[Path], *, force: bool = False, pinned: bool = True
) -> tuple[list[str], list[str]]:
    """Delete these runs; returns the deleted ids, and the error of each run that stays."""
    from workbench.runs.folder.delete import delete as delete_run

    gone, errors = [], []
    for path in paths:
        try:
            delete_run(path, {}, force=force, pinned=pinned)
        except (OSError, ValueError, RuntimeError) as error:
            errors.append(printable(str(error), lines=True))
        else:
            gone.append(path.name)
    return gone, errors


def _raise(errors: list[str]) -> None:
    """Raise one error with those of single runs. Called after the results of the other runs were
    printed.
    """
    if errors:
        raise click.ClickException("\n".join(errors))


# -- as text


def _print_table(summaries: Iterable[RunSummary]) -> None:
    from workbench.runs.tables.render import text_table
    from workbench.runs.tables.run_list import table

    click.echo(text_table(table(summaries)))


def _print_json(value: Any) -> None:
    click.echo(_as_json(value))


def _as_json(value: Any) -> str:
    """Return JSON in ASCII without control characters; a number that is not finite becomes null."""
    return json.dumps(_finite(value), indent=1).replace("\x7f", "\\u007f")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- files


def _check_file(file: Path, force: bool, id: str) -> None:
    """Refuse an unknown ending, and a file that exists."""
    ending = file.suffix.lower()
    if ending == ".py":
        raise ValueError(
            "a script cannot be written from a record, which does not hold your code. In the"
            f" notebook: bench.export({file.name!r}, {id!r})"
        )
    if ending not in (".csv", ".json", ".html", *PICTURES):
        raise ValueError(
            f"{file} has an unknown ending: give .csv, .json, .html, {', '.join(PICTURES[:-1])} or"
            f" {PICTURES[-1]}."
        )
    if file.exists() and not force:
        raise FileExistsError(f"{file} exists: give another name, or --force to replace it.")


def _write(file: Path, run: Run) -> None:
    if file.suffix.lower() == ".csv":
        run.to_csv(file)
    elif file.suffix.lower() == ".json":
        from workbench.runs.tables.report import record_data

        assert run.folder is not None  # it was opened from there
        columns = {"history": run.history, "validation": run.validation, "logged": run.logged}
        series = {
            name: {key: array.tolist() for key, array in arrays.items()}
            for name, arrays in columns.items()
        }
        file.write_text(_as_json({**record_data(run.folder), **series}) + "\n", encoding="utf-8")
    else:
        run.figure().save(file)


class _Printable:
    """A file-like object that writes out control characters in text from a record."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(printable(text, lines=True))


if __name__ == "__main__":
    main(prog_name="workbench")
