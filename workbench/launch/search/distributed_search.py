"""Searches a batch size on several ranks.

In a pool the notebook's process runs the search, and each trial is a job of the ranks: if one of
them is killed, new ranks try the next size. Ranks of `accelerate launch` run the whole search
themselves.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

from workbench.commands import Command, Inbox, Mailbox, Stop
from workbench.engine.setup import open_session
from workbench.events import Trial
from workbench.instruments.memory import is_out_of_memory
from workbench.launch import select_launcher
from workbench.launch.assignments import Assignment, Done
from workbench.launch.job import EventSink, NullSink
from workbench.launch.search.trial_process import in_all
from workbench.settings import Settings
from workbench.task.protocol import Task
from workbench.tuners.batch_size import batch_size_finder
from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest, Seconds, Trials
from workbench.tuners.batch_size.batch_size_search import NotEnoughData, TrialStopped
from workbench.tuners.batch_size.distributed_trial import measure_on_ranks
from workbench.tuners.batch_size.speeds import compare_within
from workbench.tuners.trial import at_size, make_average


class RankTrial(Assignment):
    """Tries one batch size on all ranks; `Done.value` is the `Trial`, or `NotEnoughData`."""

    kind = "find_batch_size"

    def __init__(
        self, task: Task, settings: Settings, request: BatchSizeRequest, size: int
    ) -> None:
        users = request.settings_at(settings, size)
        super().__init__(task, at_size(users, size, request.method))
        self._request, self._size, self._users = request, size, users

    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        asked = self._request
        with open_session(self.task, self.settings) as session:
            inbox = session.ranks.listen(inbox)
            emit(self._started(session, None, None))
            make_average(session.average, asked.method)
            try:
                trial = measure_on_ranks(
                    session, self._users, self._size, asked.steps_per_trial, asked.method,
                    max_memory=asked.max_memory, stop=lambda: inbox.has(Stop),
                )  # fmt: skip
            except TrialStopped:
                return Done("stopped")
            except NotEnoughData as error:
                return Done("finished", error)
        return Done("finished", trial)


class RankSpeeds(Assignment):
    """Compares the speeds of these trials on all ranks; `Done.value` is the list of them."""

    kind = "find_batch_size"

    def __init__(
        self,
        task: Task,
        settings: Settings,
        request: BatchSizeRequest,
        trials: Sequence[Trial],
        seconds: Seconds,
    ) -> None:
        super().__init__(task, at_size(settings, settings.batch_size, request.method))
        self._request, self._users = request, settings
        self._trials, self._seconds = list(trials), seconds

    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        with open_session(self.task, self.settings) as session:
            inbox = session.ranks.listen(inbox)
            emit(self._started(session, None, None))
            try:
                trials = compare_within(
                    session, self._users, self._request, self._trials, self._seconds,
                    session.state.epoch, lambda: inbox.has(Stop),
                )  # fmt: skip
            except TrialStopped:
                return Done("stopped")
        return Done("finished", trials)


class RankSearch(Assignment):
    """Runs the whole search in one session of all ranks."""

    kind = "find_batch_size"

    def __init__(self, task: Task, settings: Settings, request: BatchSizeRequest) -> None:
        super().__init__(task, settings)
        self._request = request

    def __call__(self, emit: EventSink, inbox: Inbox) -> Done:
        settings, request = self.settings, self._request
        with open_session(
            self.task, at_size(settings, settings.batch_size, request.method)
        ) as session:
            inbox = session.ranks.listen(inbox)
            emit(self._started(session, None, None, vars(request)))
            make_average(session.average, request.method)
            gc.collect()
            # each trial calls gc.collect(), which would spend most of its time on imported modules
            gc.freeze()
            trial = in_all(settings, request, inbox, session)
            sizes = batch_size_finder.run(
                self.task, settings, request, emit, inbox, trial, session.ranks.world
            )
        return Done("stopped" if sizes.ended == "stopped" else "finished")


def trials_of_ranks(
    id: str,
    task: Task,
    settings: Settings,
    request: BatchSizeRequest,
    emit: EventSink,
    inbox: Mailbox,
    ranks: int,
) -> Trials:
    """Trials on the ranks of these settings; a trial in which a rank was killed for lack of
    memory counts as failed.
    """

    def trial(size: int) -> Trial:
        trying = RankTrial(task, settings, request, size)
        trying.id = id
        try:
            done = select_launcher.run(trying, _Lines(emit), _StopInbox(inbox))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return Trial(size, False, error=str(error), ranks=ranks)
        if done.status == "stopped":
            raise TrialStopped
        if isinstance(done.value, NotEnoughData):
            raise done.value
        assert isinstance(done.value, Trial)
        return done.value

    def speeds(passed: Sequence[Trial], seconds: Seconds) -> Sequence[Trial]:
        comparing = RankSpeeds(task, settings, request, passed, seconds)
        comparing.id = id
        try:
            done = select_launcher.run(comparing, _Lines(emit), _StopInbox(inbox))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return passed
        if done.status == "stopped":
            raise TrialStopped
        compared: list[Trial] = done.value
        return compared

    return Trials(trial, speeds=speeds if request.method == "fit" else None)


class _Lines(NullSink):
    """Passes on only what a trial's ranks print; the search emits the rest."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink

    def printed(self, line: str) -> None:
        self._sink.printed(line)


class _StopInbox(Mailbox):
    """The inbox of one trial: it passes a Stop from the search's inbox on once, and leaves it
    there for the search.
    """

    def __init__(self, own: Mailbox) -> None:
        super().__init__()
        self._own, self._told = own, False

    def __bool__(self) -> bool:
        return not self._told and self._own.has(Stop)

    def take(self) -> Command | None:
        if not self:
            return None
        self._told = True
        return Stop()

    def has(self, kind: type[Command]) -> bool:
        return kind is Stop and bool(self)

    def wait(self, timeout: float) -> bool:
        # After a Stop the search's inbox is never empty, so its `wait` would return at once.
        return super().wait(timeout) if self._told else self._own.wait(timeout)
