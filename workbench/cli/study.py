"""The commands `workbench study`: studies without a notebook."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench.cli.shared import (
    EXIT_CODES,
    Commands,
    UserPath,
    json_option,
    print_json,
    root_option,
)
from workbench.runs.printable import printable

if TYPE_CHECKING:
    from workbench.bench.study import Study


@click.group(cls=Commands, epilog=EXIT_CODES)
def study() -> None:
    """List, show and follow studies, change them while they run, and work on them.

    STUDY is the id of a study (0003-study), its number (3), or a name that no other has (study).
    """


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The ids that begin with what was typed."""
    from workbench.runs.study.find import study_folders

    root = ctx.params.get("root") or Path(".workbench")
    return [f.name for f in study_folders(root) if f.name.startswith(incomplete)]


study_argument = click.argument("study", shell_complete=_complete)
values_argument = click.argument("values", metavar="NAME=VALUE...", nargs=-1, required=True)
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Also a study that somebody else has made: its code runs with your rights.",
)


def _opened(root: Path, text: str) -> Study:
    from workbench.bench.study import Study

    return Study.open(text, root)


@study.command("list")
@root_option
@json_option
def list_(root: Path, as_json: bool) -> None:
    """List all studies, oldest first, each with its best value so far."""
    from workbench.bench.study import Study
    from workbench.runs.study.find import study_folders

    folders = study_folders(root)
    if not folders:
        raise FileNotFoundError(f"No studies are recorded in {root}.")
    shown = []
    for folder in folders:
        try:
            opened = Study(folder)
            shown.append(opened.summary() if as_json else opened.headline)
        except Exception as error:  # noqa: BLE001 - it may be a stranger's; the others are listed
            click.echo(printable(f"{folder.name} cannot be read: {error}"), err=True)
    if as_json:
        print_json(shown)
        return
    for line in shown:
        click.echo(printable(str(line)))


@study.command()
@study_argument
@root_option
@json_option
def show(study: str, root: Path, as_json: bool) -> None:
    """Show one study: its trials, the best one, the verdict, what to do next."""
    opened = _opened(root, study)
    if as_json:
        print_json({**opened.summary(), "trials": opened.table()})
        return
    click.echo(printable(repr(opened), lines=True))


@study.command(short_help="Follow a study in the terminal until it ends.")
@study_argument
@root_option
def watch(study: str, root: Path) -> None:
    """Print a line for each trial as it ends, until the study does. Ctrl-C ends the printing, and
    the study continues. Exits with 1 if it has failed.
    """
    opened = _opened(root, study)
    try:
        opened.follow(lambda text: click.echo(printable(text)))
    except KeyboardInterrupt:
        return
    click.echo(printable(opened.headline))
    if opened.failure:
        raise click.ClickException(printable(opened.failure, lines=True))


@study.command(short_help="Work on a study: train its trials in this process.")
@study_argument
@root_option
@trust_option
@click.option("--name", default="", help="The name of this worker; empty: one is made.")
def work(study: str, root: Path, trust: bool, name: str) -> None:
    """Train trials of a study until it ends. Any number of workers may do so, on any machine that
    sees the folder.

    SIGTERM, SIGUSR1 and Ctrl-C write a checkpoint of the trial that trains and give it back:
    another worker continues it. The exit code is then 0.
    """
    from workbench.bench.study_trial import work as work_on
    from workbench.runs.study.find import find_study

    def tell(text: str) -> None:
        click.echo(printable(text))

    work_on(find_study(root, study), tell, name=name, trust=trust)


@study.command(short_help="End a study, or stop one trial.")
@study_argument
@click.option("--trial", type=int, help="The number of the trial; without it the study ends.")
@root_option
def stop(study: str, trial: int | None, root: Path) -> None:
    """End a study at the next update of the trials that train, or stop one of its trials."""
    opened = _opened(root, study)
    opened.stop(trial)
    subject = opened.id if trial is None else f"trial {trial} of {opened.id}"
    click.echo(printable(f"{subject} is asked to stop."))


@study.command(short_help="Begin no more trials until it is resumed.")
@study_argument
@root_option
def pause(study: str, root: Path) -> None:
    """Begin no more trials of a study until `workbench study resume`. Those that train go on to
    their end.
    """
    opened = _opened(root, study)
    opened.pause()
    click.echo(printable(f"{opened.id} is paused: workbench study resume {opened.id} goes on."))


@study.command(short_help="Go on after a pause.")
@study_argument
@root_option
def resume(study: str, root: Path) -> None:
    """Go on after a pause."""
    opened = _opened(root, study)
    _change(opened.resume, lambda: f"{opened.id} goes on.")


@study.command(short_help="Add a trial of your own.")
@study_argument
@values_argument
@root_option
def add(study: str, values: Sequence[str], root: Path) -> None:
    """Add a trial with these values, written as in YAML: lr=3e-3. It is trained beyond the
    budget.
    """
    opened = _opened(root, study)
    _change(lambda: opened.add(**_read(values)), lambda: f"a trial is added to {opened.id}.")


@study.command(short_help="Change what a study searches.")
@study_argument
@values_argument
@root_option
def space(study: str, values: Sequence[str], root: Path) -> None:
    """Change ranges, or add what is searched: 'lr=(1e-3, 0.3)' is a range, 'width=[32, 64]' has
    values to choose from, lr=... is a range around what a search has found. Trials from now on come
    from the new space.
    """
    opened = _opened(root, study)
    quoted = [f"{text[:-3]}'...'" if text.endswith("=...") else text for text in values]
    ranges = {name: _range(value) for name, value in _read(quoted).items()}
    text = f"trials of {opened.id} come from the new space."
    _change(lambda: opened.space(**ranges), lambda: text)


@study.command(short_help="Give a study a larger budget.")
@study_argument
@click.argument("budget")
@root_option
def more(study: str, budget: str, root: Path) -> None:
    """Add to a study's budget: so many fits (4), or so much time (2h)."""
    opened = _opened(root, study)
    _change(lambda: opened.more(_budget(budget)), lambda: f"{opened.id} has {opened.budget}.")


@study.command(short_help="Train a trial with other seeds.")
@study_argument
@click.argument("trial", type=int)
@click.argument("n", type=int)
@root_option
def seeds(study: str, trial: int, n: int, root: Path) -> None:
    """Train trial TRIAL with N seeds besides its own, and the baseline with the same ones, beyond
    the budget.
    """
    opened = _opened(root, study)
    count = "another seed" if n == 1 else f"{n} other seeds"
    text = f"trial {trial} of {opened.id} and the baseline are trained with {count}."
    _change(lambda: opened.seeds(trial, n), lambda: text)


@study.command(short_help="Train a trial once more.")
@study_argument
@click.argument("trial", type=int)
@root_option
def repeat(study: str, trial: int, root: Path) -> None:
    """Train trial TRIAL once more, as a new trial with the same values and seed, beyond the
    budget.
    """
    opened = _opened(root, study)
    text = f"trial {trial} of {opened.id} is trained once more."
    _change(lambda: opened.repeat(trial), lambda: text)


def _change(make: Callable[[], None], text: Callable[[], str]) -> None:
    """Make a change, and print what was done, and what is still needed for it to be trained."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    click.echo(printable(text()))
    for warning in caught:
        click.echo(printable(str(warning.message)))


def _read(values: Sequence[str]) -> dict[str, Any]:
    """The values of NAME=VALUE as YAML has them."""
    from workbench.bench.config import overrides_from

    return overrides_from(values)


def _range(value: Any) -> Any:
    """A range of the space as Python writes it: (1e-3, 0.3), which YAML reads as a text."""
    if value == "...":
        return ...
    match = re.fullmatch(r"\(([^,()]+),([^,()]+)\)", value) if isinstance(value, str) else None
    if match is None:
        return value
    low, high = (_read([f"end={text}"])["end"] for text in match.groups())
    return low, high


def _budget(text: str) -> float | str:
    """A number of fits, or the text of a time."""
    try:
        return float(text)
    except ValueError:
        return text


@study.command(short_help="Write a script that repeats the best trial.")
@study_argument
@click.argument("file", type=UserPath(path_type=Path))
@click.option("--trial", type=int, help="The number of another trial.")
@root_option
@trust_option
def export(study: str, file: Path, trial: int | None, root: Path, trust: bool) -> None:
    """Write a script, a notebook or a file of settings that repeats the whole fit of the best
    trial. The study has kept its code, which runs here.
    """
    from workbench.bench.study import Study

    click.echo(printable(str(Study.open(study, root, trust=trust).export(file, trial))))
