"""Implements `wb.attach`: follows a job of another process, or one that has ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workbench.commands import Command, Mailbox
from workbench.events import Event, Message, Status
from workbench.launch.accelerate.failure_files import LaunchError
from workbench.launch.attached.attached_job import LaunchedJob, in_words
from workbench.launch.code_line import attached, line
from workbench.launch.job import WORKERS, Job, JobSink, metrics_of
from workbench.launch.thread import JobRunner
from workbench.runs.folder import control
from workbench.runs.folder.ids import check_id
from workbench.runs.folder.lookup import folders_by_id
from workbench.runs.printable import printable
from workbench.runs.read import list_runs, read_header, summary
from workbench.runs.record.event_log import EventLog
from workbench.runs.run import Run
from workbench.settings import recorded_settings
from workbench.tuners.batch_size.batch_size_finder import BatchSizes
from workbench.tuners.clip_search import ClipSearch
from workbench.tuners.decay_search import WeightDecaySearch
from workbench.tuners.learning_rate.lr_finder import LRCurve
from workbench.tuners.plan import Plan
from workbench.tuners.profiling.profile import Profile
from workbench.tuners.recipe_search import RecipeSearch
from workbench.tuners.speed_search import SpeedSearch

_PATIENCE = 30.0
"""The most seconds that `attach` waits until the record is read."""
_FOUND: Mapping[str, Callable[[Sequence[Event]], Any]] = {
    "find_lr": LRCurve.from_events,
    "find_batch_size": BatchSizes.from_events,
    "find_num_workers": SpeedSearch.from_events,
    "find_precision": SpeedSearch.from_events,
    "find_clip_val": ClipSearch.from_events,
    "find_weight_decay": WeightDecaySearch.from_events,
    "find_recipe": RecipeSearch.from_events,
    "tune": Plan.from_events,
}
"""What a search of each kind found, from its events."""


def attach(run_id: str, root: str | Path = ".workbench") -> Job[Any]:
    """Follow a run of another process with its full history, or one that has ended.

    The job is like that of its own bench: `events` grow, `result()` waits and gives a `Run` (or
    what a finder found). `stop()`, `pause()`, `resume()`, `change()`, `validate()` and
    `checkpoint()` reach the run through its folder, also while a cell of its own notebook runs. An
    interrupt of a wait ends the wait and not the run. `events` holds the whole record when it
    returns. The record is empty while the processes of a launched run start, which takes some
    seconds. Raises FileNotFoundError where `root` has no such run, ValueError where its folder is
    not a record.
    """
    folder = _folder(run_id, Path(root).expanduser().absolute())
    header = read_header(folder)
    # an unreadable record raises an error here, and not in the thread that follows it
    summary(folder)
    kind, work = header.get("kind") or "", _Following(folder, header)
    job = Attached(run_id, kind, work, _finish(kind, folder))
    runner = JobRunner(job, lambda job, event: ())
    threading.Thread(target=runner.run, name=WORKERS[0], daemon=True).start()
    if work.follower.caught_up.wait(_PATIENCE):
        if summary(folder).over:
            job._ended.wait(_PATIENCE)
        else:
            runner.settle(_PATIENCE)
    return job


class Attached(Job[Any]):
    """A job that belongs to another process."""

    def __init__(
        self, run_id: str, kind: str, work: _Following, finish: Callable[[Job[Any]], Any]
    ) -> None:
        super().__init__(run_id, kind, None, work, finish, Attached._say)
        self.events = EventLog(record=work.folder)
        self._following = work.folder
        self._inbox = _CheckingMailbox(work.folder)
        self._code = attached(work.folder)
        self._report: Callable[[str], None] = lambda code: None

    @property
    def recorded_in(self) -> Path:
        """The folder of its run."""
        return self._following

    def on_request(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the line of code of each later request:
        "wb.attach('0012-fit').pause()".
        """
        self._report = callback

    @staticmethod
    def _say(
        job: Job[Any], method: str, arguments: Mapping[str, Any], of: str
    ) -> Callable[[], None]:
        assert isinstance(job, Attached)
        return partial(job._report, line(method, arguments, of=job._code))

    def _begin(self) -> None:
        """Show the job's recorded status: it may still wait for its turn."""

    def _interrupted(self) -> None:
        """Let the job continue: this process did not start it."""

    def _keys(self) -> Mapping[str, tuple[str, Callable[[], str]]]:
        return {} if control.why_not_taken(self._following) else super()._keys()

    def _repr_mimebundle_(self, **_: Any) -> Any:
        return self._panel()._repr_mimebundle_()

    def _display_(self) -> Any:
        """What marimo shows."""
        return self._panel()._display_()

    def _panel(self) -> Any:
        from workbench.ui.attached import AttachedPanel

        return AttachedPanel.of(self)


class _Following:
    """The `Work` of an attached job: it follows the record of another process."""

    def __init__(self, folder: Path, header: Mapping[str, Any]) -> None:
        self.follower = LaunchedJob(
            folder, lambda command: control.send(folder, command), threading.Event()
        )
        self.folder, self.updates = folder, 0
        self.settings = recorded_settings(header.get("settings") or {})
        """The settings of the job."""

    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status:
        if summary(self.folder).unseen:
            text = (
                f"whether {self.folder.name} still runs is not known: its process is of another"
                " machine, container or boot. Its record is followed."
            )
            emit(Message(text, "warning"))
        try:
            end = self.follower.follow(emit, inbox)
        except LaunchError:
            self.updates = summary(self.folder).step
            raise in_words(self.folder) from None
        self.updates = end.step
        emit(end)
        if end.status == "failed":
            raise in_words(self.folder, end)
        return end.status


class _CheckingMailbox(Mailbox):
    """A mailbox that raises an error where no process reads the command, for example because the
    run has ended.
    """

    def __init__(self, run: Path) -> None:
        super().__init__()
        self._run = run

    def put(self, command: Command) -> None:
        control.check_taken(self._run, command)
        super().put(command)


def _folder(run_id: str, root: Path) -> Path:
    path = folders_by_id(root).get(check_id(run_id))
    if path is None:
        run_ids = ", ".join(printable(run.id) for run in list_runs(root)) or "none"
        raise FileNotFoundError(
            f"there is no run {run_id!r} in {root}; there are: {run_ids}. Another root: "
            f"wb.attach({run_id!r}, root=…)."
        )
    return path


def _finish(kind: str, folder: Path) -> Callable[[Job[Any]], Any]:
    """The result of a job of this kind."""
    if kind in ("validate", "test"):
        return metrics_of
    if kind == "profile":
        return lambda job: Profile.from_events(job.events, folder)
    if kind in _FOUND:
        return lambda job: _FOUND[kind](job.events)
    return lambda job: Run.open(folder)
