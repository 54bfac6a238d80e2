"""Parses `start=`, and finds its checkpoint or weights when the job's turn comes."""

from __future__ import annotations

import difflib
import hashlib
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.engine.checkpoint.lightning_file import is_one
from workbench.events import Message, RunStarted
from workbench.launch.cell_context import in_kernel
from workbench.launch.job import AnyJob
from workbench.launch.job_folder import instead_of_run, run_folder, scheduler_job, weights_of
from workbench.launch.start.resume_plan import ASIDE, LightningPlan, ResumePlan, ResumeSettings
from workbench.runs.checkpoints import Checkpoint, find, list_checkpoints
from workbench.runs.folder.ids import check_id, is_id
from workbench.runs.printable import printable
from workbench.runs.read import RECORD, RunSummary, list_runs, read_header
from workbench.runs.record.event_log import Recorded
from workbench.settings import Settings, SettingsError
from workbench.values import shown

_WORDS = ("fresh", "continue", "auto")
"""The starts that name no run."""
_SILENT = 600.0
"""Seconds without a word after which a process of another machine counts as gone."""


_finished: Counter[str] = Counter()
"""How many fits of each code and settings have finished in this process."""


@dataclass(frozen=True)
class StartSpec:
    """Where a job starts: "fresh", "continue", "auto", a checkpoint of a run, or a file that
    Lightning's Trainer wrote.
    """

    text: str
    run: str | None = None
    which: str | int = "last"
    file: Path | None = None

    @classmethod
    def of(cls, start: Any) -> StartSpec:
        """Parse `start=`: "fresh", "continue", "auto", "0012-fit", "0012-fit@best",
        "0012-fit@1200" or "last.ckpt".
        """
        if isinstance(start, str) and start in _WORDS:
            return cls(start)
        if isinstance(start, str | Path) and is_one(Path(start)):
            return cls(str(start), file=Path(start).expanduser().absolute())
        other = instead_of_run(start) if isinstance(start, Path) else ""
        if other:
            raise SettingsError(f"start={str(start)!r} is {other}.")
        if not isinstance(start, str):
            hint = f" A number of epochs is max_epochs={start!r}." if type(start) is int else ""
            hint = " The bench has its model and data: bench.fit()." if callable(start) else hint
            id = getattr(start, "id", None)
            hint = f" That of this one is {id!r}." if isinstance(id, str) else hint
            raise SettingsError(
                f"start={shown(start)}: give 'fresh', 'continue', 'auto', the id of a run (run.id)"
                f" or the path of a checkpoint of Lightning, which ends with .ckpt.{hint}"
            )
        run, at, which = start.partition("@")
        if run.lower() in (*_WORDS, "start", "last", "best"):
            raise SettingsError(
                f"start={start!r}: give 'fresh', 'continue', 'auto', or a run's id as in"
                " '0012-fit', '0012-fit@best'."
            )
        if not is_id(run) and (other := instead_of_run(start)):
            raise SettingsError(f"start={start!r} is {other}.")
        check_id(run)
        if at and not which:
            raise SettingsError(
                f"start={start!r}: after the @ comes 'last', 'best' or a number of updates."
            )
        return cls(
            start, run, int(which) if which.isdecimal() and len(which) < 20 else which or "last"
        )

    @property
    def needs(self) -> set[str]:
        """The run that it names, which must not be deleted before the job has begun."""
        return set() if self.run is None else {self.run}

    @property
    def keywords(self) -> dict[str, str]:
        """The argument `start=` in the code of a call; empty for the default."""
        return {} if self.text == "fresh" else {"start": self.text}

    def weights(self, root: Path) -> Path | None:
        """The file with the weights; None: "fresh" or "continue", which need no file."""
        if self.text == "auto":
            raise SettingsError(
                "start='auto' continues a fit, and this is none: give 'fresh', 'continue' or the id"
                " of a run."
            )
        return self.file if self.run is None else weights_of(self.folder(root), self.which)

    def folder(self, root: Path) -> Path:
        """The folder of the run that it names; FileNotFoundError where there is none."""
        assert self.run is not None
        try:
            return run_folder(root, self.run)
        except FileNotFoundError as error:
            near = difflib.get_close_matches(self.text, _WORDS, n=1, cutoff=0.7)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise FileNotFoundError(f"start={self.text!r}: {error}{hint}") from None


@dataclass(frozen=True)
class SubmittedFit:
    """An earlier fit of this bench, and what `bench.set` has changed since."""

    job: AnyJob
    since: Mapping[str, Any]


class StartResolver:
    """Finds where a fit starts: as far as possible in the call of `fit`, and exactly when the
    job's turn comes.
    """

    def __init__(
        self,
        root: Path,
        wanted: StartSpec,
        bench: Settings,
        given: Mapping[str, Any],
        fits: Sequence[SubmittedFit],
        code: str = "",
    ) -> None:
        """code: what makes the bench, as text, by which "auto" finds a fit of another process."""
        self.fresh = wanted.text in ("fresh", "auto")
        """Whether it starts from the weights that the bench was made with."""
        self.note: Message | None = None
        """The message of a fit with start="continue" that starts from the present weights
        instead.
        """
        self.asked = bench.replace(**given)
        """Its settings, if it does not continue a run."""
        self._recipe = _fingerprint(code, self.asked)
        # a script may have several fits of the same code, one for each fold of its data
        number = 0 if in_kernel() else _finished[self._recipe]
        self.fingerprint = f"{self._recipe}-{number}"
        self._continued: set[str] = set()
        """The run that a fit with start="auto" continues."""
        self._root = root
        self._wanted = wanted
        self._terms = ResumeSettings(wanted.text, bench, given)
        self._fits = fits

    @property
    def needs(self) -> set[str]:
        """The runs that must not be deleted until this fit has begun."""
        if self.is_auto:
            return self._continued
        if self._wanted.text != "continue":
            return self._wanted.needs
        return {asked.job.id for asked in self._candidates()}

    def predict_settings(self, untouched: Callable[[str], bool], idle: bool) -> Settings:
        """The settings that it will have, as far as they are known in the call of `fit`; raises the
        errors that are known then.

        idle: whether no job of the bench runs or waits, so that the model may be read.
        """
        named = self._submitted(self._wanted.run)
        to_come = named if named is not None and not named.job.done() else None
        if self._wanted.text == "continue":
            to_come = next(iter(self._candidates()), None) if not idle else None
        if to_come is not None:
            submitted = to_come.job.settings
            settings = submitted.replace(
                **{**self._terms.local(submitted), **to_come.since, **self._terms.given}
            )
            self._terms.refuse_fixed(to_come.job.id, submitted, settings)
            return settings
        if self.is_auto:  # its fingerprint is that of these settings
            self._unfinished()
            return self.asked
        plan = self.resolve(untouched) if idle or self._wanted.text != "continue" else None
        return self.asked if plan is None else plan.settings

    @property
    def is_auto(self) -> bool:
        """Whether it continues a fit that it finds by itself."""
        return self._wanted.text == "auto"

    def note_finished(self) -> None:
        """Note that the fit has finished; the next one of the same code is another."""
        _finished[self._recipe] += 1

    def resolve(self, untouched: Callable[[str], bool]) -> ResumePlan | LightningPlan | None:
        """The plan to continue from a checkpoint; None: the fit continues no run."""
        if self.is_auto:
            return self._unfinished(waits=True)
        if self.fresh:
            return None
        if self._wanted.file is not None:
            return self._terms.plan_from_file(self._wanted.file)
        if self._wanted.run is None:
            return self._last_fit(untouched)
        return self._checkpoint(self._wanted.run, self._wanted.which)

    def _submitted(self, id: str | None) -> SubmittedFit | None:
        return next((asked for asked in self._fits if asked.job.id == id), None)

    # -- "continue"

    def _candidates(self) -> list[SubmittedFit]:
        """The fits that may be the last one when this one's turn comes; cancelled ones are left
        out.
        """
        candidates = []
        for asked in reversed(self._fits):
            if not asked.job.done() or _has_begun(asked.job):
                candidates.append(asked)
            if asked.job.done() and _has_begun(asked.job):
                break
        return candidates

    def _last_fit(self, untouched: Callable[[str], bool]) -> ResumePlan | None:
        self.note = None
        last = next((asked for asked in reversed(self._fits) if _has_begun(asked.job)), None)
        if last is None:
            self.note = _as_they_are(f"this bench has trained nothing yet{self._known()}")
            return None
        job = last.job
        end, why = _end_of(job)
        if not untouched(job.id):
            why = f"the model's weights are not those that {job.id} left"
        if end is None or why:
            self.note = _as_they_are(why)
            return None
        assert job._run_path is not None
        return self._terms.plan_from(
            job.id, job._run_path, end, lambda: job.events, last.since, job.settings
        )

    def _known(self) -> str:
        """A hint with the last run in the root that can be continued, also of another bench or
        an earlier kernel; "": there is none.
        """
        try:
            # With checkpoints, which leaves out the folder of this job.
            fits = [
                run.id
                for run in list_runs(self._root)
                if run.kind == "fit" and list_checkpoints(run.path)
            ]
        except OSError:  # it is not a folder
            return ""
        return f"; start={fits[-1]!r} continues from the last run in {self._root}" if fits else ""

    # -- "auto"

    def _unfinished(self, *, waits: bool = False) -> ResumePlan | None:
        """The plan to continue the newest fit of the same code and settings, unless that one has
        finished.

        waits: until it is known whether a process of another host still runs.
        """
        self.fresh, self.note, self._continued = True, None, set()
        try:
            fits = [
                run
                for run in list_runs(self._root)
                if run.header.get("fingerprint") == self.fingerprint and list_checkpoints(run.path)
            ]
        except OSError:  # there is no such folder; the job says so
            return None
        if not fits or fits[-1].status == "finished":
            return None
        run = fits[-1]
        if not run.over and not _is_gone(run, waits):
            self._begin_afresh(f"{run.id} has the same code and settings, and still runs")
            return None
        try:
            return self.continuing(run.id)
        except SettingsError as error:  # it has weights alone, or nothing is left to do
            self._begin_afresh(str(error).rstrip("."))
            return None

    def continuing(self, run: str | None) -> ResumePlan | None:
        """The plan to continue this run, which "auto" has found; None: it found none."""
        self.fresh, self._continued = run is None, set()
        if run is None:
            return None
        # the arguments are those that the run began with, and it may have changed them since
        arguments = {name: value for name, value in self._terms.given.items() if name in ASIDE}
        plan = self._checkpoint(run, "last", replace(self._terms, given=arguments))
        self._continued = {run}
        return plan

    def _begin_afresh(self, why: str) -> None:
        self.fresh, self._continued = True, set()
        self.note = Message(f"start='auto' starts afresh: {why}.", "warning")

    # -- a run

    def _checkpoint(
        self, id: str, which: str | int, terms: ResumeSettings | None = None
    ) -> ResumePlan:
        terms = terms or self._terms
        folder = run_folder(self._root, id)
        kind = _kind(folder)
        if kind not in ("fit", ""):
            raise FileNotFoundError(
                f"run {id!r} is a {kind} job, which leaves no checkpoints to start from; a fit"
                " does."
            )
        if which == "start":
            raise SettingsError(
                f"start={self._wanted.text!r}: the weights that a run starts with have no optimizer"
                f" state. To train on from them: bench.load({id!r}, 'start'), then bench.fit()."
            )
        point = find(folder, which)
        if not point.resumable:
            raise SettingsError(
                f"start={self._wanted.text!r}: that checkpoint has weights alone"
                f" ({printable(str(point.why))}). To train on from them: bench.load({id!r},"
                f" {which!r}), then bench.fit()."
            )
        submitted = self._submitted(id)
        if submitted is None:
            return terms.plan_from(id, folder, point, lambda: Recorded(folder, True), {})
        return terms.plan_from(
            id, folder, point, lambda: submitted.job.events, submitted.since, submitted.job.settings
        )


def _fingerprint(code: str, settings: Settings) -> str:
    """The fingerprint of a fit: of the code, and of the settings that its numbers depend on."""
    values = settings.model_dump(exclude={*ASIDE, "enable_progress_bar"})
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(sorted(values.items())))
    return hashlib.sha256(f"{code}\0{text}".encode(errors="replace")).hexdigest()[:32]


def _is_gone(run: RunSummary, waits: bool) -> bool:
    """Whether the process of a run that cannot be seen from here has ended: the scheduler's job,
    of which it was, was started again; or it writes nothing for a while.

    waits: until it has written nothing for that long, or writes.
    """
    if not run.unseen:
        return False
    job, _, starts = scheduler_job().partition("/")
    its_job, _, its_starts = str(run.header.get("scheduler_job") or "").partition("/")
    if job and its_job == job and its_starts != starts:
        return True
    record = run.path / RECORD
    try:
        written = record.stat().st_mtime
        while waits and time.time() - written < _SILENT:
            time.sleep(min(1.0, _SILENT))
            if record.stat().st_mtime != written:
                return False
    except OSError:
        return True
    return time.time() - written >= _SILENT


def _has_begun(job: AnyJob) -> bool:
    return any(isinstance(event, RunStarted) for event in job.events)


def _end_of(job: AnyJob) -> tuple[Checkpoint | None, str]:
    """The checkpoint at the end of a fit, or why a run cannot continue from its end."""
    if job._run_path is None:
        return None, f"{job.id} has no folder"
    if not job._run_path.is_dir():
        return None, f"the folder of {job.id} is gone (keep_runs)"
    checkpoints = list_checkpoints(job._run_path)
    # The last checkpoint may be a copy from the run that this one continued.
    end = (
        checkpoints[-1]
        if checkpoints and checkpoints[-1].end and checkpoints[-1].step == job.updates
        else None
    )
    if end is None:
        mid = (
            f"; start={job.id!r} continues from update {checkpoints[-1].step}"
            if checkpoints
            else ""
        )
        return None, f"{job.id} {job.status}, and no checkpoint was written at its end{mid}"
    return (
        end,
        (
            ""
            if end.resumable
            else f"the end of {job.id} has weights alone ({printable(str(end.why))})"
        ),
    )


def _as_they_are(why: str) -> Message:
    return Message(
        f"start='continue' starts from the present weights, with fresh optimizers: {why}.",
        "warning",
    )


def _kind(folder: Path) -> str:
    try:
        return printable(str(read_header(folder).get("kind", "")))
    except (OSError, ValueError):
        return ""
