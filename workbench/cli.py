"""The command `workbench`: the demo, and the runs that were recorded."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read has seen enough
        return 0
    except (OSError, ValueError) as error:
        print(f"workbench: {error}", file=sys.stderr)
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
    for command in (listing, show):
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
    from workbench.runs.read import list_runs
    from workbench.runs.run import duration

    for found in list_runs(options.root):
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in found.metrics.items())
        print(f"{found.id:<24} {found.status:<9} {found.step:>8} updates  {duration(found.seconds):>8}  {metrics}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from workbench.runs.read import RUNS, list_runs
    from workbench.runs.run import Run
    from workbench.runs.store import check_id

    path = options.root / RUNS / check_id(options.id)
    if not path.is_dir():
        known = ", ".join(found.id for found in list_runs(options.root)) or "none"
        raise FileNotFoundError(f"there is no run {options.id!r} in {options.root}; there are: {known}")
    run = Run.open(path)
    if options.csv:
        run.to_csv(sys.stdout)
        return 0
    print(run)
    for name, value in run.settings.changed().items():
        print(f"  {name} = {value!r}")
    for event in run.resumes:
        values = "".join(f", {name}={value!r}" for name, value in event.values.items())
        print(f"  resumed at update {event.step} from {event.run}@{event.checkpoint}{values}")
    for text in _checkpoints(path):
        print(f"  {text}")
    if run.error:
        print(f"  {run.error}")
    return 0


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
