"""The commands `workbench runs`: recorded runs without a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from workbench.cli.shared import (
    EXIT_CODES,
    Commands,
    UserPath,
    as_json_text,
    complete_ids,
    json_option,
    print_json,
    root_option,
    run_argument,
)
from workbench.commands import Command, Pause, Resume, Stop, method_of
from workbench.runs.printable import printable
from workbench.units import counted

if TYPE_CHECKING:
    from workbench.runs.folder.pack import Which
    from workbench.runs.read import RunSummary
    from workbench.runs.run import Run

PICTURES = (".png", ".svg", ".pdf")
UNSEEN = (
    "running?: the record has no end, and its process cannot be seen from here (another machine,"
    " container or boot). Such a run is never deleted by itself. If you know that it has ended:"
    " workbench runs delete ID --force"
)


@click.group(cls=Commands, epilog=EXIT_CODES)
def runs() -> None:
    """List, show, compare, export, pack and delete recorded runs; stop and pause those that run.

    RUN is the id of a run (0012-fit) or its number (12).
    """


@runs.command("list")
@root_option
@json_option
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

        print_json([summary_data(run) for run in summaries])
        return
    _print_table(summaries)
    if any(run.unseen for run in summaries):
        click.echo(UNSEEN)


@runs.command()
@run_argument
@root_option
@json_option
def show(run: str, root: Path, as_json: bool) -> None:
    """Show one run: results, settings, checkpoints, problems."""
    from workbench.runs.folder.lookup import find_run
    from workbench.runs.tables.report import record_data, text_lines

    record = record_data(find_run(root, run))
    if as_json:
        print_json(record)
    else:
        for line in text_lines(record):
            click.echo(printable(line))


@runs.command(short_help="Follow a run in the terminal until it ends.")
@run_argument
@root_option
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
    @run_argument
    @root_option
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
@click.argument(
    "compared", metavar="RUN RUN...", nargs=-1, required=True, shell_complete=complete_ids
)
@root_option
@json_option
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
    print_json(
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
@run_argument
@click.argument("file", type=UserPath(path_type=Path, dir_okay=False), required=False)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@root_option
def export(run: str, file: Path | None, force: bool, root: Path) -> None:
    """Write what the record of a run holds into FILE; without FILE, print the history as CSV.

    \b
    The ending of FILE says what is written:
      .csv             the history: a row for each update
      .json            settings, results and history
      .png .svg .pdf   the plots as a picture
      .html            the panel's plots and tables, in one file that opens in a browser

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


@runs.command(short_help="Write a run into one file, for another machine.")
@run_argument
@click.argument("file", type=UserPath(path_type=Path, dir_okay=False), required=False)
@click.option(
    "--checkpoints",
    type=click.Choice(["all", "last", "best", "none"]),
    default="all",
    metavar="WHICH",
    show_default=True,
    help="Which are packed: all, last, best or none (no weights at all).",
)
@click.option(
    "--start",
    is_flag=True,
    help="Also what `workbench rerun` needs: your code, and the data in memory.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@root_option
def pack(
    run: str, file: Path | None, checkpoints: Which, start: bool, force: bool, root: Path
) -> None:
    """Write a run into FILE (its id with .tar): the record and the checkpoints.

    `workbench runs unpack FILE` puts it among other runs. It shows, exports and continues there,
    and with --start it can be repeated. What a launched run has printed stays here.
    """
    from workbench.runs.folder.lookup import find_run
    from workbench.runs.folder.pack import pack as pack_run
    from workbench.units import size

    path = find_run(root, run)
    file = file or Path(f"{path.name}.tar")
    if file.exists() and not force:
        raise FileExistsError(f"{file} exists: give another name, or --force to replace it.")
    pack_run(path, file, checkpoints, start)
    click.echo(f"{file} is written ({size(file.stat().st_size)}).")


@runs.command(short_help="Put a packed run among the runs here.")
@click.argument("file", type=UserPath(path_type=Path))
@root_option
def unpack(file: Path, root: Path) -> None:
    """Put a run that `workbench runs pack` has written among the runs here.

    It keeps its id; where the numbers here have got that far, it gets the next one. FILE may come
    from somebody else: it is read as data, and no code of it runs.
    """
    from workbench.runs.folder.pack import unpack as unpack_run

    folder, id = unpack_run(file, root)
    renamed = "" if folder.name == id else f" as {folder.name}, the next id here"
    click.echo(printable(f"{id} is unpacked{renamed}."))


@runs.command()
@click.argument("deleted", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_ids)
@click.option(
    "--force", is_flag=True, help='Also a run shown as "running?", if you know that it has ended.'
)
@root_option
@json_option
def delete(deleted: Sequence[str], force: bool, root: Path, as_json: bool) -> None:
    """Delete runs for good, with their checkpoints and weights."""
    from workbench.runs.folder.lookup import check_not_linked, find_run

    check_not_linked(root)
    # all are found before one is deleted
    paths = dict.fromkeys([find_run(root, name) for name in deleted])
    gone, errors = _delete(paths, force=force)
    if as_json:
        print_json({"deleted": gone})
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
@root_option
@json_option
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
        print_json({"would_delete" if dry_run else "deleted": gone})
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
        file.write_text(
            as_json_text({**record_data(run.folder), **series}) + "\n", encoding="utf-8"
        )
    elif file.suffix.lower() == ".html":
        from workbench.ui.page import write_run

        write_run(file, run, force=True)  # an existing file was refused without --force
    else:
        run.figure().save(file)


class _Printable:
    """A file-like object that writes out control characters in text from a record."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(printable(text, lines=True))
