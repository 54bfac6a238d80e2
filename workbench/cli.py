"""The command `workbench`: the demo, and the list of recorded runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from workbench.runs.printable import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has closed the pipe
        return 0
    except (OSError, ValueError, RuntimeError) as error:
        print(printable(f"workbench: {error}", lines=True), file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("workbench", description="Tuning Workbench for PyTorch.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="find, fit, export and check on handwritten digits")
    demo.add_argument("--output", type=Path, default=Path("demo-output"), help="default: %(default)s")
    demo.set_defaults(run=_demo)
    runs = commands.add_parser("runs", help="what was recorded").add_subparsers(required=True, metavar="COMMAND")
    listing = runs.add_parser("list", help="all runs, oldest first")
    listing.set_defaults(run=_list)
    show = runs.add_parser("show", help="one run")
    show.add_argument("id")
    show.add_argument("--csv", action="store_true", help="its history as CSV")
    show.set_defaults(run=_show)
    delete = runs.add_parser("delete", help="delete one run for good")
    delete.add_argument("id")
    delete.add_argument("--force", action="store_true", help="also one shown as running?: only you can know that it has ended")
    delete.set_defaults(run=_delete)
    for command in (listing, show, delete):
        command.add_argument("--root", type=Path, default=Path(".workbench"), help="default: %(default)s")
    return parser


def _demo(options: argparse.Namespace) -> int:
    try:
        from workbench.demo import demo
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise ValueError("the demo needs scikit-learn: pip install 'tuning-workbench[demo]'") from None
    found = demo(options.output)
    print(json.dumps(found))
    return 0 if found["losses_equal"] else 1


def _list(options: argparse.Namespace) -> int:
    from workbench.runs.read import list_runs, shown_status
    from workbench.runs.run import duration

    unseen = False
    for found in list_runs(options.root):
        unseen |= found.unseen
        status = shown_status(found.status, found.unseen)
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in found.metrics.items())
        _say(f"{found.id:<24} {status:<9} {found.step:>8} updates  {duration(found.seconds):>8}  {metrics}")
    if unseen:
        _say(
            "running?: the record has no end, and its process cannot be seen from here (another machine, container or boot). Such a run "
            "is never deleted by itself. If you know that it has ended: workbench runs delete ID --force"
        )
    return 0


def _delete(options: argparse.Namespace) -> int:
    from workbench.runs.delete import delete

    path = _folder(options)
    delete(path, {}, force=options.force)
    _say(f"{path.name} is deleted.")
    return 0


def _folder(options: argparse.Namespace) -> Path:
    from workbench.runs.read import RUNS, list_runs
    from workbench.runs.store import check_id

    path: Path = options.root / RUNS / check_id(options.id)
    if path.is_symlink() or not path.is_dir():
        known = ", ".join(found.id for found in list_runs(options.root)) or "none"
        raise FileNotFoundError(f"there is no run {options.id!r} in {options.root}; there are: {known}")
    return path


def _show(options: argparse.Namespace) -> int:
    from workbench.runs.run import Run

    path = _folder(options)
    run = Run.open(path)
    if options.csv:
        run.to_csv(_Printable(sys.stdout))  # type: ignore[arg-type]  # it writes, which is all that is asked
        return 0
    _say(str(run))
    for name, value in run.settings.changed().items():
        _say(f"  {name} = {value!r}")
    for event in run.resumes:
        values = "".join(f", {name}={value!r}" for name, value in event.values.items())
        _say(f"  resumed at update {event.step} from {event.run}@{event.checkpoint}{values}")
    for text in _checkpoints(path):
        _say(f"  {text}")
    if run.error:
        _say(f"  {run.error}", lines=True)
    return 0


def _say(text: str, *, lines: bool = False) -> None:
    """Print what may come from a record."""
    print(printable(text, lines=lines))


class _Printable:
    """A file that text from a record is written to."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(printable(text, lines=True))


def _checkpoints(run: Path) -> Iterator[str]:
    """The checkpoints of a run, a line each, oldest first."""
    from workbench.runs.checkpoints import find, list_checkpoints

    there = list_checkpoints(run)
    best = find(run, "best").name if any(one.value is not None for one in there) else None
    for one in there:
        value = "" if one.value is None else f"{one.monitor} {one.value:.4g}"
        best_of_all = "best" if one.name == best else ""
        weights = "" if one.resumable else f"weights alone: {one.why}"
        place = f"checkpoint {one.name:<12}  epoch {one.epoch}"
        yield "  ".join(filter(None, [place, value, best_of_all, weights]))


if __name__ == "__main__":
    sys.exit(main())
