"""Makes the folder of a job before it runs, and finds it again by its id."""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch

from workbench._version import __version__
from workbench.events import Message
from workbench.launch.job import AnyJob
from workbench.launch.joined.group import Meeting
from workbench.runs.checkpoints import files_of, find
from workbench.runs.folder.control import TAKES
from workbench.runs.folder.delete import FIT, mark_next, marked_by, next_to_go, prune
from workbench.runs.folder.ids import check_id, is_id, new_id
from workbench.runs.folder.lookup import folders_by_id
from workbench.runs.printable import printable
from workbench.runs.read import RUNS, STUDY, age, read_header
from workbench.runs.record.stream import stream
from workbench.runs.run import Run
from workbench.runs.store import RunFolder
from workbench.runs.tables.brief import RunBrief
from workbench.settings import Settings
from workbench.task.summary import ModelSummary
from workbench.values import first_names, shown

T = TypeVar("T")

NAMED = 5
"""The most runs that an error lists."""
OTHERS = 50
"""How many records of each other kind of job are kept: of LR finders, of validations. They hold
no weights.
"""


class JobFolder(NamedTuple):
    """A job's id, its folder if this process writes one, and messages for the job to emit."""

    id: str
    folder: RunFolder | None = None
    messages: tuple[Message, ...] = ()
    record: Path | None = None
    """The folder that rank 0 writes, on the other ranks of a launcher's job."""
    meeting: Meeting | None = None
    """Where the ranks of a launcher's job run it together, their call of it."""

    @property
    def path(self) -> Path | None:
        """The folder, whichever process writes it."""
        return self.record if self.folder is None else self.folder.path

    def agree(self, value: T) -> T:
        """The value of rank 0, where several ranks run the job."""
        return value if self.meeting is None else self.meeting.agree(value)


def new_job_folder(
    root: Path,
    kind: str,
    settings: Settings,
    summary: ModelSummary,
    data: str,
    number: int,
    needed: Collection[str],
    repeats: str = "",
    fingerprint: str = "",
    also: Mapping[str, Any] = MappingProxyType({}),
) -> JobFolder:
    """Make the folder of job `number` of a bench, and delete old ones of its kind, except for the
    `needed`. A dry run has none.

    data: a description of the training data. repeats: the id of the run that it repeats, for which
    no run is deleted. fingerprint: of the code and the settings of a fit, by which another process
    finds it again (`fit(start="auto")`). also: what else its header says: "built_by", the functions
    that made model and data with their parameters, or "study", of which trial it is. A study keeps
    its own runs, and continues them itself.
    """
    if settings.fast_dev_run:
        return JobFolder(f"{kind}-dev-{number}")
    try:
        id = new_id(root, kind)
        about = header(kind, settings, summary, data)
        if repeats:
            about["repeats"] = repeats
        about |= also
        of_study = STUDY in also
        if fingerprint and not of_study:
            about |= {"fingerprint": fingerprint, "scheduler_job": scheduler_job()}
        folder = RunFolder.create(root, id, about)
    except OSError as error:
        text = f"no record is kept: {root} cannot be written ({error}). The job runs all the same."
        return JobFolder(f"{kind}-{number}", None, (Message(text, "warning"),))
    if repeats or of_study:
        return JobFolder(id, folder)
    try:
        gone = prune(root, kind, settings.keep_runs if kind == FIT else OTHERS, needed)
    except OSError as error:
        return JobFolder(
            id, folder, (Message(f"old runs could not be removed ({error}).", "warning"),)
        )
    if not gone or kind != FIT:
        return JobFolder(id, folder)
    return JobFolder(
        id,
        folder,
        (
            Message(
                f"deleted {_named(gone)}, which an earlier message named"
                f" (keep_runs={settings.keep_runs})."
            ),
        ),
    )


def scheduler_job() -> str:
    """The number of the scheduler's job in which this process runs, and how often it was requeued:
    "4711/0"; "": there is none.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    return f"{job}/{os.environ.get('SLURM_RESTART_COUNT', '0')}" if job else ""


def name_next_to_go(run: Path, keep: int) -> Iterator[Message]:
    """Yield a message that names the fits which the next one deletes, for the record of the fit in
    this folder.

    A fit is deleted only after an earlier record has named it.
    """
    root = run.parents[1]
    if read_header(run).get(STUDY):
        return
    try:
        folders = next_to_go(root, keep, run.name)
        names = [folder.name for folder in folders if not _is_named(folder)]
        if names:
            yield Message(
                f"the next fit deletes {_named(names)} with all checkpoints: keep_runs={keep} fits"
                f" are kept. bench.set(keep_runs={keep + len(folders)}) keeps"
                f" {'it' if len(names) == 1 else 'them'}.",
                "warning",
            )
        mark_next(root, folders, run.name)
    except OSError as error:
        yield Message(
            f"the fits that the next one deletes could not be noted ({error}): the next one deletes"
            " none.",
            "warning",
        )


def _is_named(run: Path) -> bool:
    """Whether a message in the record of an earlier fit names this one; a mark in the folder
    notes that.
    """
    by = marked_by(run)
    if by is None:
        return False
    name = re.compile(rf"(?<![\w-]){re.escape(run.name)}(?![\w-])")
    return any(
        isinstance(event, Message) and name.search(event.text)
        for event in stream(run.parent / by, ())
    )


def _named(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{', '.join(ids[:-1])} and {ids[-1]}"


def header(kind: str, settings: Settings, summary: ModelSummary, data: str) -> dict[str, Any]:
    """Return the content of `run.json` before the job runs."""
    return {
        "kind": kind,
        "task": {
            "model": summary.name,
            "parameters": summary.parameters,
            "trainable": summary.trainable,
            "device": summary.device,
            "data": data,
            **({"optimizer": summary.optimizer} if summary.optimizer else {}),
            **({"loss": summary.loss} if summary.loss else {}),
            **({"groups": summary.groups} if summary.groups else {}),
            **({"build": dict(summary.build)} if summary.build else {}),
        },
        "settings": settings.model_dump(),
        "seed": settings.seed,
        "threads": torch.get_num_threads(),
        TAKES: True,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions of what decides a run's numbers, for its header."""
    return {
        "workbench": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "accelerate": _version("accelerate"),
        "numpy": _version("numpy"),
    }


@functools.cache
def _version(package: str) -> str:
    """The installed version; reading it takes a millisecond."""
    return metadata.version(package)


def run_folder(root: Path, id: str) -> Path:
    """The folder of a run; FileNotFoundError names the newest runs, or what to do with a file or
    folder of this path.
    """
    folders = folders_by_id(root)
    if is_id(id) and id in folders:
        return folders[id]
    other = instead_of_run(id)
    if other:
        raise FileNotFoundError(f"{id!r} is not the id of a run in {root}, but {other}.")
    link = root / RUNS / check_id(id)
    if link.is_symlink():
        raise FileNotFoundError(
            f"{link} is a link to {link.resolve()}: use a bench with the root that holds this run."
        )
    ids = [printable(name) for name in sorted(folders, key=age, reverse=True)]
    raise FileNotFoundError(
        f"there is no run {id!r} in {root}; there are: {first_names(ids, NAMED) or 'none'}."
    )


def instead_of_run(path: str | Path) -> str:
    """Say what a path is that was given as a run, and what to do with it; "": the path does not
    exist.
    """
    expanded = Path(path).expanduser()
    name = repr(str(expanded))
    try:
        is_file, is_model = (
            expanded.is_file(),
            str(path) != "" and (expanded / "config.json").is_file(),
        )
    except OSError:  # it is no path
        return ""
    if is_model:
        return (
            "a folder with a config.json, as save_pretrained writes it: make the model from it,"
            f" Model.from_pretrained({name}) with the model's own class, and a new bench with that"
            " model"
        )
    if expanded.parent.name == RUNS and expanded.is_dir():
        return (
            f"the folder of a run: give its id, {expanded.name!r}, to a bench whose root is "
            f"{str(expanded.parent.parent)!r}"
        )
    if not is_file:
        return ""
    read = (
        f"safetensors.torch.load_file({name})"
        if expanded.suffix == ".safetensors"
        else f"torch.load({name}, weights_only=True)"
    )
    return (
        f"a file. If it holds a state dict: bench.model.load_state_dict({read}), then bench.fit(),"
        " which starts from the weights that the model has. A checkpoint of Lightning's Trainer"
        " has a name that ends with .ckpt"
    )


def recorded(run: Run | str, root: Path) -> Path:
    """The folder of a recorded run; FileNotFoundError where no run matches."""
    if not isinstance(run, Run | str):
        raise TypeError(f"{shown(run)} is not a run: give one (bench.runs[-1]) or its id.")
    if isinstance(run, str):
        return run_folder(root, run)
    if run.folder is None or not run.folder.is_dir():
        raise FileNotFoundError(
            f"run {run.id!r} has no record: it was a dry run, or it is deleted."
        )
    return run.folder


def own(run: Run | str, root: Path) -> Path:
    """The folder of a run of this root; ValueError where its id leads to another folder."""
    folder = recorded(run, root)
    if not is_own(folder, root):
        where = f"lies in {folder.resolve().parent}, not among the runs of {root}"
        raise ValueError(f"run {folder.name} {where}: use a bench with that root.")
    return folder


def is_own(folder: Path | None, root: Path) -> bool:
    """Whether this is a folder of this root's runs, and not a link to one."""
    if folder is None or folder.parent.resolve() != (root / RUNS).resolve():
        return False
    return folder.name in folders_by_id(root)


def brief_of(run: Run | str, root: Path) -> RunBrief:
    """A short summary of a fit, for comparisons."""
    if isinstance(run, Run) and run.folder is None:
        return RunBrief.of(run)
    folder = recorded(run, root)
    kind = read_header(folder).get("kind")
    if kind != "fit":
        raise ValueError(f"run {folder.name} is a {kind}: only fits can be compared.")
    return RunBrief.read(folder)


def weights_of(run: Path, which: str | int) -> Path:
    """The file of the weights of the run in this folder: "start", "last", "best", or after so many
    updates.

    FileNotFoundError names those that exist.
    """
    if which != "start":
        return find(run, which).path / "model.safetensors"
    path = run / "checkpoints" / "start.safetensors"
    if not files_of(path):
        raise FileNotFoundError(f"run {run.name!r} has no starting weights: {path} is not there.")
    return path


def run_to_export(run: Run | str | None, root: Path, jobs: Sequence[AnyJob]) -> Run:
    """The run to export: None is the last of these jobs' fits that has a result and was not a
    dry run.
    """
    if isinstance(run, Run):
        return run
    if isinstance(run, str):
        return Run.open(run_folder(root, run))
    if run is not None:
        raise TypeError(
            f"run={shown(run)}: give a run (bench.runs[-1], say), or its id, as in '0012-fit'."
        )
    for job in reversed(jobs):
        if (
            job.kind == "fit"
            and job.status in ("finished", "stopped")
            and not job.settings.fast_dev_run
        ):
            latest: Run = job.result()
            return latest
    from workbench.export.errors import ExportError

    raise ExportError(
        "there is no finished fit to export: call bench.fit().result() first, or give run=."
    )
