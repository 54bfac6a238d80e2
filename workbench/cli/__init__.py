"""The command `workbench`: a training, the demo, and recorded runs without a notebook.

Each command imports what it needs when it runs, so that `--help` and completion are quick. Nothing
here reads code or pickles from a run folder, and control characters of records are written out
(`runs/printable.py`).
"""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import get_completion_class

from workbench._version import __version__
from workbench.cli.runs import runs
from workbench.cli.shared import EXIT_CODES, Commands, UserPath, root_option, run_argument
from workbench.cli.study import study
from workbench.cli.train import train
from workbench.runs.printable import printable


@click.group(
    cls=Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="workbench", message="%(prog)s %(version)s")
def main() -> None:
    """Tuning Workbench for PyTorch: train, run the demo, and look at recorded runs."""


@main.command(short_help="Tune, train and export a model of handwritten digits.")
@click.option(
    "--output",
    type=UserPath(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Where pictures and the script go.",
)
def demo(output: Path) -> None:
    """Find a batch size and a learning rate for handwritten digits, train, and export.

    Afterwards the exported script runs, and its losses are compared with those of the run. Four
    lines say what was found, trained, exported and verified. It takes about a minute and downloads
    nothing. The exit code is 1 if the losses differ.
    """
    click.echo("Loading torch …", err=True)
    from workbench.demo import demo as run_demo

    try:
        equal = run_demo(output)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sklearn":
            raise
        raise ValueError(
            "the demo needs scikit-learn: pip install 'tuning-workbench[demo]'"
        ) from None
    if not equal:
        raise click.exceptions.Exit(1)


@main.command(short_help="Repeat a fit from what it started from.")
@run_argument
@click.option(
    "--trust",
    is_flag=True,
    help="Also a run that somebody else has made: its code runs with your rights.",
)
@root_option
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


main.add_command(train)
main.add_command(runs)
main.add_command(study)
