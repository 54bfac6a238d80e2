"""Does the work of a job in the process that submitted it: run folder, starting weights,
launcher, result.
"""

from __future__ import annotations

import abc
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch.autograd import profiler

from workbench.commands import Mailbox, Stop
from workbench.engine.checkpoint.files import save_weights
from workbench.engine.setup import open_session
from workbench.engine.validation.watch import Watcher
from workbench.events import (
    Event,
    Message,
    RunStarted,
    SearchEnded,
    SpeedSearchEnded,
    Status,
    StatusChanged,
    Trial,
    TuneStep,
    last_of,
)
from workbench.instruments.finite import NonFiniteError, refuse_bad_data
from workbench.instruments.memory import available_memory, total_memory
from workbench.launch import select_launcher
from workbench.launch.assignments import (
    Assignment,
    Done,
    FindSettingsAssignment,
    FitAssignment,
    TuneAssignment,
)
from workbench.launch.cell_context import CellContext
from workbench.launch.first_events import FirstEvents, FirstMessages
from workbench.launch.job import JobSink
from workbench.launch.job_folder import JobFolder, name_next_to_go
from workbench.launch.search import scheduled_searches
from workbench.launch.search.distributed_search import RankSearch, trials_of_ranks
from workbench.launch.search.trial_process import trials
from workbench.launch.start.initial_weights import InitialWeights
from workbench.launch.start.kept_start import FitStart, keeping
from workbench.launch.start.repeat import commands_of, history_of, inherited_of, repetition
from workbench.launch.start.resume_plan import LightningPlan, ResumeHistory, ResumePlan
from workbench.launch.start.start_spec import StartResolver, StartSpec
from workbench.launch.turns import Claim, Turn, cpu_jobs
from workbench.runs.checkpoints import Checkpoint
from workbench.runs.folder.files import make_folder
from workbench.runs.folder.inherited import take_over
from workbench.runs.run import Run
from workbench.settings import Settings
from workbench.share.package import PackageError
from workbench.task.data.preload import preload
from workbench.task.data.spec import DataSpec
from workbench.task.device.dtensor import in_shards
from workbench.task.errors import TaskError
from workbench.task.modules import in_training_mode
from workbench.task.protocol import Phase, Task
from workbench.task.state.of_task import copy_all
from workbench.trackers.listener import TrackerListener
from workbench.tuners.batch_size import batch_size_finder
from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest, Trials
from workbench.tuners.batch_size.effective_batch import effective_batch
from workbench.tuners.batch_size.longest_first import longest_first
from workbench.tuners.plan_search import PlanRequest
from workbench.tuners.speed_search import WorkersRequest
from workbench.tuners.stages import data_of_stage

_MOVED = (
    "the job runs in a worker process, since another one runs in this process: what its code stores"
    " outside of the model stays there. With strategy='thread' it waits for this process."
)


class BenchWork(abc.ABC):
    """The work of a job that knows its run; the launcher calls it with an event sink and an
    inbox.
    """

    moves: ClassVar[bool] = True
    """Whether a worker process can do it where another job has this process."""
    alone: ClassVar[bool] = False
    """Whether no other job may run beside it."""

    def __init__(self, task: Task, settings: Settings) -> None:
        self._task = task
        self.settings = settings
        self.updates = 0
        self._place = JobFolder("")
        self._trackers: Sequence[TrackerListener] = ()
        self.turn = Turn("", "", Claim())
        self.changes: Mapping[Hashable, str] = {}
        """What the job changes besides its task and its run, with its names."""
        select_launcher.check(settings)

    def bind(self, place: JobFolder, turn: Turn, trackers: Sequence[TrackerListener] = ()) -> None:
        """Set the run folder of this work, its turn, and the trackers that a launched process can
        run.
        """
        self._place, self.turn, self._trackers = place, turn, trackers

    def claim(
        self,
        objects: Mapping[int, str],
        run: Path | None,
        reads: Iterable[Path],
        trackers: Sequence[TrackerListener],
    ) -> Claim:
        """What the job needs to itself; called in the cell.

        objects: those of its task that have a state (`objects_with_state`). run: its folder. reads:
        the folders of runs that it reads. trackers: those to which it logs.
        """
        changes: dict[Hashable, str] = {**dict[Hashable, str](objects.items()), **self.changes}
        if run is not None:
            changes[run.resolve()] = f"run {run.name}"
        changes |= {
            tracker.exclusive: f"tracker {tracker.name}"
            for tracker in trackers
            if tracker.exclusive is not None
        }
        choice = select_launcher.select_launcher(self.settings)
        stays = self.settings.preload or CellContext.stays_here()
        return Claim(
            choice.names,
            "this" if stays else select_launcher.process_of(self.settings, moves=self.moves),
            changes,
            frozenset(path.resolve() for path in reads),
            self.alone,
            cpu_jobs(),
        )

    @abc.abstractmethod
    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status:
        """Do the work, and return the job's status."""

    def _run_assignment(
        self,
        assignment: Assignment,
        emit: JobSink,
        inbox: Mailbox,
        messages: Sequence[Message] = (),
        history: ResumeHistory | None = None,
        after_start: _InitRunFolder | None = None,
    ) -> Done:
        """Run the assignment on the selected launcher. messages, history, after_start: see
        `FirstMessages`.
        """
        notes = [*self._place.messages, *_not_recorded(), *messages]
        opening = FirstEvents(emit, FirstMessages(notes, history, after_start, self._trackers))
        assignment.id = self._place.id
        assignment.folder = self._place.path
        try:
            if self.turn.in_process or not select_launcher.is_here(assignment.settings):
                return select_launcher.run(assignment, opening, inbox)
            notes.append(Message(_MOVED, "info"))
            try:
                return select_launcher.run_in_worker(assignment, opening, inbox)
            except PackageError as error:
                notes[-1] = Message(f"the job waited for this process: {error}", "info")

            def on_wait() -> None:
                emit(StatusChanged("queued", why=self.turn.why))

            if not self.turn.take_process(lambda: inbox.has(Stop), on_wait):
                return Done("stopped")
            return select_launcher.run(assignment, opening, inbox)
        finally:
            self.updates = assignment.updates

    def _read_ahead(self, method: Phase, *data: DataSpec | None) -> list[Message]:
        """With `preload`, read the samples of these data into memory now; returns messages."""
        if not self.settings.preload:
            return []
        messages: list[Message | None] = []
        with self._task.running(self.settings, method):
            for whole in data:
                for spec in () if whole is None else whole.sets:
                    messages.append(preload(spec, self.settings, available_memory))
        return [message for message in messages if message is not None]


def _not_recorded() -> Iterator[Message]:
    """Yield a message while torch.profiler records, since it does not record a job."""
    if profiler._is_profiler_enabled:
        yield Message(
            "torch.profiler records by default the thread in which it was started, and this job"
            " runs in another one: bench.profile() makes a trace of a fit's updates, and says what"
            " limits their speed. Your own one records a job of this process with"
            " experimental_config=_ExperimentalConfig(profile_all_threads=True), which"
            " torch._C._profiler has.",
            "warning",
        )


class FitWork(BenchWork):
    """Trains, and leaves the trained weights in the model and in the run's folder."""

    def __init__(
        self,
        task: Task,
        settings: Settings,
        start: InitialWeights,
        origin: StartResolver,
        notes: Sequence[Message] = (),
    ) -> None:
        super().__init__(task, settings)
        scheduled_searches.check(settings)
        self._start = start
        self._origin = origin
        self._notes = notes
        self.halt: float | None = None
        """See `FitAssignment.halt`."""
        self.watched: Sequence[Watcher] = ()
        """See `FitAssignment.watched`."""
        self.asked: Collection[str] = ()
        """See `FitAssignment.asked`."""
        if origin.is_auto:
            self.changes = {("auto", origin.fingerprint): "unfinished run"}

    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status:
        on = self._resolved()
        self.settings = self._origin.asked if on is None else on.settings
        scheduled_searches.check(self.settings)
        select_launcher.check(self.settings)
        early = [*self._notes, *([] if self._origin.note is None else [self._origin.note])]
        if isinstance(on, ResumePlan) and self._task.train is not None:
            early += on.other_data(self._task.train.label)
        with self._start.placed(
            None, self._origin.fresh, early.append, fit=self._place.id, resumed=on is not None
        ):
            training = FitAssignment(
                self._task,
                self.settings if on is None else on.begun,
                None if on is None else on.past(),
                None if on is None else on.path,
                keeps_lr=on is not None and on.keeps_lr,
            )
            training.halt, training.asked = self.halt, self.asked
            past = None if on is None else on.inherited
            history = None if on is None else on.history()
            status = self._train(
                training, emit, inbox, early, history, past, self.settings.keep_runs
            )
        if status == "finished":
            self._origin.note_finished()
        return status

    def _resolved(self) -> ResumePlan | LightningPlan | None:
        """What the fit continues. Of several ranks, rank 0 decides what "auto" finds. TaskError
        where they find different checkpoints: a network file system shows new files late.
        """
        meeting, origin = self._place.meeting, self._origin
        if meeting is not None and origin.is_auto:
            if not meeting.ranks.first:
                return origin.continuing(meeting.agree(None))
            plan = origin.resolve(self._start.untouched_since)
            meeting.agree(plan.run if isinstance(plan, ResumePlan) else None)
            return plan
        on = origin.resolve(self._start.untouched_since)
        checkpoint = None if on is None else str(on.path)
        first = self._place.agree(checkpoint)
        if first != checkpoint:
            raise TaskError(
                f"rank 0 begins with {first or 'fresh weights'}, and this rank with"
                f" {checkpoint or 'fresh weights'}: the hosts see the run folders differently."
                " Start the script again, or name the run: bench.fit('0012-fit')."
            )
        return on

    def _train(
        self,
        training: FitAssignment,
        emit: JobSink,
        inbox: Mailbox,
        early: list[Message],
        history: ResumeHistory | None,
        past: tuple[Path, Checkpoint] | None,
        keep_runs: int | None,
    ) -> Status:
        """Run a fit from the weights that the model has now; what it starts from is kept in its
        folder.

        history, past: of a fit that continues another. keep_runs: see `_InitRunFolder`.
        """
        folder = None if self._place.folder is None else self._place.folder.path
        begun = None if folder is None else _InitRunFolder(folder, training.task, past, keep_runs)
        with keeping(folder, training, self.settings.keep_start, early, emit):
            training.watched = self.watched  # a rerun repeats the numbers, and needs none of them
            early += self._read_ahead(training.phase, *training.data())
            return self._run_assignment(training, emit, inbox, early, history, begun).status


class RerunWork(FitWork):
    """Repeats a recorded fit from the start that it kept, and says at the end whether it did."""

    alone = True  # it sets the flags of the process

    def __init__(self, start: FitStart, initial: InitialWeights, original: Run) -> None:
        training = start.assignment
        BenchWork.__init__(self, training.task, training.settings)
        self._kept, self._start, self._original = start, initial, original
        self.watched = ()
        self._scheduled, self._history = commands_of(original), history_of(original)
        self._past = None if training.point is None else inherited_of(original, training.point)

    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status:
        training, original, early = self._kept.assignment, self._original, [self._announced()]
        training.scheduled, training.halt, training.asked = self._scheduled, None, ()
        if self._past is not None:
            training.point = self._past[1].path
        try:
            resumed = training.point is not None
            placed = self._start.placed(
                None, False, early.append, fit=self._place.id, resumed=resumed
            )
            with placed, self._kept.restored():
                return self._train(training, emit, inbox, early, self._history, self._past, None)
        finally:
            if self._place.folder is not None:
                emit.settle()
                emit(repetition(original, Run.open(self._place.folder.path)).message)

    def _announced(self) -> Message:
        return Message(f"this run repeats {self._original.id} from what it started from.", "info")


@dataclass(frozen=True)
class _InitRunFolder:
    """Prepares the folder of a fit when RunStarted is in the record; yields messages.

    It saves the starting weights, or copies the checkpoints of the run that the fit continues
    (`past`). And it names the fits that the next one deletes (keep_runs=None: it deletes none).
    """

    run: Path
    task: Task
    past: tuple[Path, Checkpoint] | None
    keep_runs: int | None

    def __call__(self) -> Iterator[Message]:
        folder = self.run / "checkpoints"
        try:
            make_folder(folder)
            if self.past is not None:
                run, point = self.past
                take_over(run, folder, point)
            elif not any(map(in_shards, self.task.model.parameters())):
                # each rank saves its own shards (`CheckpointManager.save_start`)
                with in_training_mode(self.task.modules):
                    save_weights(self.task.trained_modules, folder / "start.safetensors")
        except OSError as error:
            yield Message(
                f"what the run starts from could not be saved ({error}); the run continues.",
                "warning",
            )
        if self.keep_runs is not None:
            yield from name_next_to_go(self.run, self.keep_runs)


@dataclass(frozen=True)
class StartWeights:
    """Gives the model the weights that a search starts from."""

    task: Task
    initial: InitialWeights
    wanted: StartSpec
    root: Path

    @contextmanager
    def placed(self, early: list[Message]) -> Iterator[None]:
        """Context manager in which the model has these weights; afterwards it has its own again.
        Messages are appended to `early`.
        """
        before = copy_all(self.task)
        with self.initial.placed(
            self.wanted.weights(self.root), self.wanted.text == "fresh", early.append
        ):
            try:
                yield
            finally:
                before.put(searched=True)


class AssignmentWork(BenchWork):
    """Runs an assignment that leaves the model as it was: a search, an evaluation, a prediction."""

    def __init__(self, assignment: Assignment, start: StartWeights | InitialWeights) -> None:
        """start: the weights that a search starts from; or, where it starts from the present
        ones, those from which fits start.
        """
        super().__init__(assignment.task, assignment.settings)
        self._assignment, self._start = assignment, start
        self.value: Any = None
        """Its result besides events (predictions)."""

    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status:
        early: list[Message] = []
        with (
            self._start.placed(early)
            if isinstance(self._start, StartWeights)
            else self._start.evaluated()
        ):
            early += self._read_ahead(self._assignment.phase, *self._assignment.data())
            done = self._run_assignment(self._assignment, emit, inbox, early)
        self.value = done.value
        return done.status


class TuneWork(BenchWork):
    """Searches for workers and batch sizes that are fast, then for a learning rate, a batch size
    and a clip value by the losses to which they lead (`PlanSearch`).
    """

    moves = False

    def __init__(
        self,
        task: Task,
        settings: Settings,
        start: InitialWeights,
        root: Path,
        searches: Sequence[str],
        apply: Callable[[Mapping[str, Any]], object] | None,
    ) -> None:
        """apply: gets the settings at the end; None: nothing is applied."""
        super().__init__(task, settings)
        if select_launcher.select_launcher(settings).strategy == "launch":
            raise TaskError(
                "tune() cannot run in launched processes: call find_num_workers, find_batch_size,"
                " find_lr and find_clip_val one by one."
            )
        self._start, self._root, self._searches, self._apply = start, root, searches, apply

    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status:
        sink = _OneStart(emit)
        decided, speeds, reason = dict[str, Any](), dict[int, float](), ""
        trained = [name for name in self._searches if name != "find_num_workers"]
        for name in self._searches:
            if name not in ("find_num_workers", "find_batch_size"):
                continue
            if self._place.agree(inbox.has(Stop)):
                return "stopped"
            settings = self.settings.replace(**decided)
            sink.events = []
            try:
                if self._run(self._work(name, settings), sink, inbox) == "stopped":
                    return "stopped"
            except (TaskError, NonFiniteError) as error:  # such as data that can be read only once
                refuse_bad_data(error)
                step: TuneStep | None = TuneStep(name, {}, str(error))
            else:
                step = _workers_step(sink.events) if name == "find_num_workers" else None
                if step is None:
                    step, speeds, reason = _sizes(sink.events, settings.batch_size)
            step, speeds, reason = self._place.agree((step, speeds, reason))
            if step is not None:
                decided |= step.values
                emit(step)
                trained = [other for other in trained if other != name]
        if trained:
            if self._place.agree(inbox.has(Stop)):
                return "stopped"
            settings = self.settings.replace(**decided)
            start = StartWeights(self._task, self._start, StartSpec.of("fresh"), self._root)
            request = PlanRequest(tuple(trained), decided, speeds, reason)
            sink.events = []
            work = AssignmentWork(TuneAssignment(self._task, settings, request), start)
            if self._run(work, sink, inbox) == "stopped":
                return "stopped"
            decided = dict(self._place.agree(_checked(sink.events)))
        if self._apply is not None:
            self._apply(decided)
        return "finished"

    def _run(self, work: BenchWork, sink: _OneStart, inbox: Mailbox) -> Status:
        folder = self._place._replace(messages=()) if sink.started else self._place
        work.bind(folder, self.turn)
        return work(sink, inbox)

    def _work(self, name: str, settings: Settings) -> BenchWork:
        if name == "find_num_workers":
            return AssignmentWork(
                FindSettingsAssignment(self._task, settings, name, WorkersRequest()), self._start
            )
        return FindBatchSizeWork(self._task, settings, BatchSizeRequest())


def _workers_step(events: Sequence[Event]) -> TuneStep:
    """What the search for workers of these events recommends."""
    end = last_of(events, SpeedSearchEnded({}, "it found nothing", ""))
    return TuneStep("find_num_workers", dict(end.best), end.reason)


def _sizes(events: Sequence[Event], present: int) -> tuple[TuneStep | None, dict[int, float], str]:
    """What a batch-size search says about speed: samples/s of the sizes up to the recommended one,
    and the reason for that. And the size for a run whose present one does not fit.
    """
    end = last_of(events, SearchEnded(None, None, "it found nothing"))
    trials = [event for event in events if isinstance(event, Trial)]
    reason = end.reason or end.ended
    if end.best is None:
        return TuneStep("find_batch_size", {}, reason), {}, ""
    failed = any(not t.ok and t.size <= present for t in trials)
    if failed and end.best < present:
        reason = f"{present} does not fit. {reason}"
        return TuneStep("find_batch_size", {"batch_size": end.best}, reason), {}, ""
    speeds = {
        t.size: t.samples_per_second
        for t in trials
        if t.ok and t.samples_per_second is not None and t.size <= end.best
    }
    return None, speeds, reason


def _checked(events: Sequence[Event]) -> Mapping[str, Any]:
    """The settings that the last comparison of these events has left."""
    return last_of(events, TuneStep("", {}, "")).values


class _OneStart:
    """An event sink for several searches in one job. It passes only the first RunStarted;
    `events` has those of the present search.
    """

    def __init__(self, sink: JobSink) -> None:
        self.sink, self.started = sink, False
        self.settle, self.printed, self.away, self.recorded = (
            sink.settle,
            sink.printed,
            sink.away,
            sink.recorded,
        )
        self.events: list[Event] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)
        if not isinstance(event, RunStarted):
            self.sink(event)
        elif not self.started:
            self.started = True
            self.sink(replace(event, kind="tune", updates=None, epochs=None, request={}))


class FindBatchSizeWork(BenchWork):
    """Searches a batch size; the model is only read."""

    moves = False  # each of its trials has a process of its own, or all memory of this one

    def __init__(
        self,
        task: Task,
        settings: Settings,
        request: BatchSizeRequest,
        longest: Callable[[Any], Any] | None = None,
    ) -> None:
        """longest: the length of a sample; trials take the longest ones."""
        super().__init__(task, settings)
        self._longest = longest
        if request.keep_effective:
            effective_batch(settings)  # refuses what it cannot keep
        self._request = request
        self._early: list[Message] = []

    def __call__(self, emit: JobSink, inbox: Mailbox) -> Status:
        choice, ranks = (
            select_launcher.select_launcher(self.settings),
            select_launcher.ranks(self.settings),
        )
        batch_size_finder.cap_of(self._task, self._request.method, ranks)
        in_order = longest_first(self._task, self._request.method, self._longest)
        if in_order is not self._task:
            self._task, self._request = in_order, replace(self._request, longest=True)
        self._early = self._read_ahead(
            "fit", data_of_stage(self._task, self._request.method), self._task.val
        )
        if choice.strategy in ("launch", "joined"):
            searching = RankSearch(self._task, self.settings, self._request)
            return self._run_assignment(searching, emit, inbox, self._early).status
        if choice.strategy == "thread":
            with select_launcher.on_device(choice):
                return self._search_here(emit, inbox)
        names = tuple(
            name for name, p in self._task.trained_parameters().items() if p.requires_grad
        )
        self._tell_start(emit, f"{ranks} x {choice.accelerator}", names, ranks)
        trial = trials_of_ranks(
            self._place.id, self._task, self.settings, self._request, emit, inbox, ranks
        )
        return self._search(emit, inbox, trial, ranks)

    def _search_here(self, emit: JobSink, inbox: Mailbox) -> Status:
        with open_session(self._task, self.settings) as session:
            self._tell_start(
                emit,
                session.device_name,
                tuple(session.parameters),
                memory=total_memory(session.device),
            )
        with trials(self._task, self.settings, self._request, inbox) as trial:
            return self._search(emit, inbox, trial)

    def _tell_start(
        self,
        emit: JobSink,
        device: str,
        names: tuple[str, ...],
        ranks: int = 1,
        memory: int | None = None,
    ) -> None:
        settings = self.settings.model_dump()
        asked = dict(vars(self._request))
        started = RunStarted(
            self._place.id,
            "find_batch_size",
            settings,
            device,
            names,
            ranks=ranks,
            memory=memory,
            request=asked,
        )
        FirstEvents(emit, FirstMessages([*self._place.messages, *self._early]))(started)

    def _search(self, emit: JobSink, inbox: Mailbox, trial: Trials, ranks: int = 1) -> Status:
        sizes = batch_size_finder.run(
            self._task, self.settings, self._request, emit, inbox, trial, ranks
        )
        return "stopped" if sizes.ended == "stopped" else "finished"
