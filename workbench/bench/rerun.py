"""Implements `wb.rerun`: repeats a recorded fit from what it started from."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from workbench.bench.base import BenchBase
from workbench.bench.recipe import Prepared, Recipe
from workbench.launch.job import Job
from workbench.launch.job_folder import recorded
from workbench.launch.start.kept_start import FitStart, StartFile
from workbench.launch.start.repeat import Repetition, repetition
from workbench.launch.work import RerunWork
from workbench.runs.printable import printable
from workbench.runs.read import build_values, read_header
from workbench.runs.run import Run

_LONG = timedelta(days=365)


def rerun(run: Run | str, root: str | Path = ".workbench", *, trust: bool = False) -> Job[Run]:
    """Repeat a recorded fit, to the last bit, in any process: `wb.rerun("0012-fit").result()`.

    A fit keeps what it starts from in its folder: its code by value, weights, data in memory, the
    states of generators, settings (`keep_start=`). The repetition is a run of its own, beside the
    first. Live changes are made again, before the same updates. A message at its end says whether
    all losses and validations are equal, or which is the first to differ. It deletes no other run,
    and reaches no tracker.

    Args:
        run: a run (`bench.runs[-1]`) or its id.
        root: where the run of an id is recorded.
        trust: also repeat a run that another user or another machine has made. What it kept is
            code, which runs with your rights.

    Raises:
        FileNotFoundError: there is no such run, it kept no start, or the checkpoint that it
            continues is gone.
        PermissionError: somebody else has made the run, and `trust` is False.
        ImportError: its code imports a module that is missing here.
        RuntimeError: it was made with another version of Python, or its files were changed.

    A warning names what is other here than in the run: versions, the device, the folder.
    """
    return submit(
        recorded(run, Path(root).expanduser().absolute()),
        trust,
        lambda text: warnings.warn(text, stacklevel=4),
    )


def rerun_in_this_process(
    folder: Path, tell: Callable[[str], object], *, trust: bool = False
) -> tuple[Run, Repetition]:
    """Repeat the fit in this folder, in the working directory of the first, and wait for it;
    returns the run, and the comparison.

    For a process that does nothing else. tell: called with a text that names what is other here.
    It raises the errors of `rerun`, and the error with which the first has failed.
    """
    folder = folder.absolute()
    with contextlib.suppress(OSError):  # it is on another machine, or gone
        os.chdir(StartFile.of(folder, trust=trust).folder or ".")
    again = submit(folder, trust, tell).result()
    return again, repetition(Run.open(folder), again)


def submit(folder: Path, trust: bool, tell: Callable[[str], object]) -> Job[Run]:
    """Submit the repetition of the run in this folder. tell: called with a text that names what is
    other here.
    """
    original = Run.open(folder)
    if original.kind != "fit":
        raise ValueError(
            f"run {original.id} is a {printable(original.kind)}: only fits can be repeated."
        )
    if original.status in ("queued", "running", "paused"):
        raise RuntimeError(
            f"run {original.id} is not over ({original.status}): wait for its end, since the two "
            "runs are compared."
        )
    file = StartFile.of(folder, trust=trust)
    start = file.open(FitStart)
    training = start.assignment
    if training.settings.max_time is not None:  # it ends at the update at which the first has ended
        training.settings = training.settings.replace(max_time=_LONG)
    training.task.use_trackers(())
    model = training.task.model
    prepared = Prepared(model, training.task, training.settings)
    recipe = Recipe(model, built=build_values(read_header(folder)))
    bench = BenchBase(prepared, recipe, folder.parents[1])
    built_by = read_header(folder).get("built_by")
    bench._header = {"built_by": built_by} if built_by else {}
    differences = [*file.differences(), *_other_device(folder, bench.summary.device)]
    if differences:
        tell(f"{original.id} is repeated under other conditions: {'; '.join(differences)}.")
    work = RerunWork(start, bench._start, original)
    needs = {original.id, *(resumed.run for resumed in original.resumes)}
    return bench._submit("fit", training.settings, {}, work, _result, needs, repeats=original.id)


def _other_device(folder: Path, here: str) -> list[str]:
    """A text where the run trained on another kind of device."""
    task = read_header(folder).get("task")
    was = task.get("device") if isinstance(task, dict) else None
    return (
        [f"its device was {printable(was)}, and it is {here} here"]
        if was not in (None, here)
        else []
    )


def _result(job: Job[Run]) -> Run:
    return Run.from_events(job.events, job._run_path)
