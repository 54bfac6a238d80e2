"""Works on a study: reads its record, claims a piece, trains it, until the study has ended.

Any number of workers may do so, on any machine that sees the folder. They share nothing but its
files: the plan is a function of the record, and of two that want the same piece one makes the file
of its claim.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from workbench.launch import signals
from workbench.launch.job import AnyJob
from workbench.launch.job_folder import versions
from workbench.launch.study.liveness import (
    BEATS,
    ENDED,
    Attempt,
    Observer,
    attempts,
    why_hopeless,
)
from workbench.runs.folder.alive import identity
from workbench.runs.folder.files import Folder, make_folder
from workbench.runs.folder.ids import check_id
from workbench.runs.printable import printable
from workbench.runs.study.record import (
    LIVES,
    MOST_LIVES,
    WORKERS,
    Change,
    PieceEnd,
    PieceRecord,
    StudyRecord,
    TrialProposal,
    TrialRecord,
)
from workbench.runs.study.tidy import remove_weights
from workbench.runs.study.write import Claim, add_trial, change, claim, take_over
from workbench.settings.space import assigned
from workbench.tracebacks import user_line
from workbench.tuners.study.plan import Ended, NewTrial, Train, Wait, plan_now

_SEARCHES = "searches{}.json"
"""The file that says which worker runs the searches before the first trial: after a dead one, the
next.
"""
_MOST_SEARCHES = 9
"""After so many workers, trials begin without the searches."""
_LARGEST = 1 << 12
"""The most bytes of such a file."""
_LARGEST_NOTE = 1 << 18
"""The most bytes of a worker's note."""
_CAUSE = 500
"""The most characters of an error that a trial's reason has."""
_BEAT = 10.0
"""Seconds between two beats."""
_LOOK = 1.0
"""Seconds between two looks at the record while a worker waits or trains."""
_BY_HAND, _TAKEN = "stopped by hand", "another worker has taken it over"
"""Why a piece is not given back to be continued."""
_POLL = 0.1
"""Seconds within which the end of a job or a signal is noticed."""


@dataclass(frozen=True)
class Piece:
    """What a worker trains: one stretch of a trial."""

    study: Path
    trial: int
    values: Mapping[str, Any]
    seed: int
    rung: int
    continues: str
    """The run whose last checkpoint it continues; "": it begins afresh."""


class Trainer(Protocol):
    """Trains the pieces of a study."""

    def __call__(self, record: StudyRecord, piece: Piece, attend: Attend) -> PieceEnd:
        """Train a piece, and return how it ended. It hands the job to `attend`, which waits for its
        end, and stops it where that is asked for.
        """

    def is_worn(self) -> bool:
        """Whether another process should train the next piece; called after each."""


class Attend(Protocol):
    """Looks after the job of a piece until it ends."""

    def __call__(self, job: AnyJob) -> str:
        """Wait for the job's end; returns why it was asked to stop, "": it was not."""


class Worker:
    """One process that works on a study."""

    def __init__(
        self,
        study: Path,
        train: Trainer,
        prepare: Callable[[StudyRecord, Attend], None],
        tell: Callable[[str], object],
        name: str = "",
        propose: Callable[[StudyRecord, TrialProposal], TrialProposal] = lambda _, planned: planned,
    ) -> None:
        """prepare: runs the searches that come before the first trial, where they did not run yet.
        tell: called with a line for each thing that it does. name: "": one that no other has.
        propose: what is tried in place of a planned trial; it may raise.
        """
        self._study, self._train, self._prepare, self._tell = study, train, prepare, tell
        self._propose = propose
        self._name = name or new_name()
        self._observer = Observer()
        self._signal = ""
        """The signal that asks it to end."""
        self.worn = False
        """Whether it has ended so that another process takes its place."""
        self._wake = threading.Event()
        self._beats: _Beats

    def run(self, device: str) -> str:
        """Work until the study has ended, and return why it did; "": a signal has come. device: on
        which it trains, for the record.

        Raises RuntimeError where the study was made with another version.
        """
        signals.ask_to_stop(self._on_signal, *signals.NUMBERS, signal.SIGINT)
        for text in _other_versions(StudyRecord.read(self._study).head.versions):
            self._tell(text)
        with _Beats(self._study, self._name, device) as self._beats:
            return self._work_on()

    def _work_on(self) -> str:
        record: StudyRecord | None = None
        while not self._signal and not self.worn:
            record = StudyRecord.read(self._study, record)
            ended = self._take_step(record)
            if not ended:
                continue
            remove_weights(record)
            self._beats.leave(ended)
            # a change that counted on this worker was left before its note
            if isinstance(plan_now(StudyRecord.read(self._study, record)), Ended):
                return ended
            self._beats.leave("")
        if self._signal:
            self._beats.leave(f"{self._signal} has come")
            self._tell(f"{self._signal} has come: this worker ends.")
        return ""  # one that is worn has not left: its process goes on with a new program

    def _on_signal(self, number: int) -> None:
        again, self._signal = self._signal, signal.Signals(number).name
        self._wake.set()
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt

    def _take_step(self, record: StudyRecord) -> str:
        """Do the next thing; returns why the study has ended, "": it has not."""
        action = plan_now(record)
        if isinstance(action, Ended):
            return action.why
        for trial, piece in self._observer.abandoned(record):
            # where it cannot be taken over, what is planned is not delayed
            if self._take_over(record, trial, piece):
                return ""
        match action:
            case Wait():
                self._wake.wait(_LOOK)
            case _ if not self._is_prepared(record):
                pass
            case NewTrial(proposal):
                if add_trial(self._study, self._proposed(record, proposal)) is None:
                    self._give_way()
            case Train():
                self._begin(record, action)
        return ""

    def _proposed(self, record: StudyRecord, planned: TrialProposal) -> TrialProposal:
        """The trial to make in place of a planned one. That stays, and says why, where what the
        user gave to propose another one fails: each worker would meet the same error.
        """
        try:
            return self._propose(record, planned)
        except Exception as error:  # noqa: BLE001 - code of the user may raise anything
            where = user_line(error)
            cause = f"{type(error).__name__}: {printable(str(error))[:_CAUSE]}"
            cause += f" ({where})" if where else ""
        why = f"method={record.head.sampler} has failed, {cause}"
        self._tell(f"trial {planned.number}: {why}: the workbench proposes it")
        return replace(planned, why=f"{planned.why}; {why}")

    def _is_prepared(self, record: StudyRecord) -> bool:
        """Whether the searches before the first trial have run. One worker runs them, and the
        others wait, as long as they see that it lives.
        """
        if any(known.kind == "priors" for known in record.changes):
            return True
        with Folder.opened(self._study) as folder:
            names = folder.names()
            count = sum(_SEARCHES.format(n) in names for n in range(1, _MOST_SEARCHES + 1))
            if count:
                searcher = _worker_in(folder, _SEARCHES.format(count))
                if searcher != self._name and self._observer.is_alive(record, searcher):
                    self._wake.wait(_LOOK)
                    return False
            if count == _MOST_SEARCHES:
                self._tell(f"{count} workers have ended during the searches: trials begin without")
                change(self._study, Change("priors", {"priors": {}, "spent": 0.0}))
                return False
            mine = json.dumps({"worker": self._name}).encode()
            if not folder.create(_SEARCHES.format(count + 1), mine):
                return False
        self._tell("searches for where good values are")
        self._prepare(record, _Watch(self, record))
        return False

    def _begin(self, record: StudyRecord, action: Train) -> None:
        """Train what is planned: a piece that nobody has begun, or one that was given back."""
        trial = record.trial(action.trial)
        assert trial is not None  # the plan is of this record
        piece = trial.piece(action.rung, action.seed)
        if piece is not None:
            if not self._take_over(record, trial, piece):
                self._give_way()
            return
        mine = claim(self._study, trial.number, action.seed, action.rung, self._name)
        if mine is None:
            self._give_way()
        else:
            self._train_piece(record, trial, mine, action.continues or "")

    def _take_over(self, record: StudyRecord, trial: TrialRecord, piece: PieceRecord) -> bool:
        """Go on with a piece that its worker gave back, or whose worker is dead; False: another
        worker was faster.
        """
        earlier = attempts(record, trial, piece)
        cost = max((attempt.cost for attempt in earlier), default=0.0)
        end: PieceEnd | None = None
        if trial.number in record.stopped:
            end = PieceEnd("stopped", cost, run=piece.run, cause=_BY_HAND)
        elif hopeless := why_hopeless(earlier):
            end = PieceEnd("failed", cost, run=piece.run, cause=hopeless)
        mine = take_over(self._study, trial.number, piece, self._name)
        if mine is None:
            return False
        if end is not None:
            mine.end(end)
        else:
            continues = _furthest(earlier) or _run_below(trial, piece)
            self._train_piece(record, trial, mine, continues)
        return True

    def _give_way(self) -> None:
        # several workers that were too late at once do not try again at once
        self._wake.wait(random.SystemRandom().uniform(0, 0.05))

    def _train_piece(
        self, record: StudyRecord, trial: TrialRecord, mine: Claim, continues: str
    ) -> None:
        piece = Piece(self._study, trial.number, trial.values, mine.seed, mine.rung, continues)
        self._tell(f"trial {trial.number}: {_shown(trial, piece)}")
        watch = _Watch(self, record, mine)
        began = time.monotonic()
        with self._beats.of(mine):
            end = self._train(record, piece, watch)
        # the trainer's seconds have those of earlier workers of the piece
        end = replace(end, seconds=max(end.seconds, time.monotonic() - began))
        if end.status == "stopped" and watch.why not in ("", _BY_HAND, _TAKEN):
            mine.beat(end.run)
            mine.give_back(end.cost)
            text = f"trial {trial.number} is given back at update {end.step}: {watch.why}"
            self._tell(text)
        elif watch.why != _TAKEN:
            mine.end(end)
            value = "" if end.value is None else f", {record.head.monitor} {end.value:.6g}"
            cause = f": {end.cause}" if end.cause else ""
            self._tell(f"trial {trial.number} {end.status}{value}{cause}")
        self.worn = self._train.is_worn()


class _Watch:
    """Waits for the end of one job, and stops it where its worker, its trial or its study ends."""

    def __init__(self, worker: Worker, record: StudyRecord, mine: Claim | None = None) -> None:
        """mine: the claim of the job's piece; None: it belongs to none."""
        self._worker, self._record, self._claim = worker, record, mine
        self.why = ""
        """Why the job was asked to stop."""

    def __call__(self, job: AnyJob) -> str:
        self._worker._beats.name_run(job.id)
        looked = 0.0
        while not job._ended.wait(_POLL):
            if self.why:
                continue
            if time.monotonic() - looked > _LOOK or self._worker._signal:
                looked = time.monotonic()
                self.why = self._why()
                if self.why:
                    job.stop()
        return self.why

    def _why(self) -> str:
        if self._worker._signal:
            return "its worker ends"
        if self._claim is not None and not self._claim.is_current():
            return _TAKEN
        self._record = record = StudyRecord.read(self._record.path, self._record)
        if self._claim is not None and self._claim.trial in record.stopped:
            return _BY_HAND
        action = plan_now(record)
        return f"the study has ended: {action.why}" if isinstance(action, Ended) else ""


class _Beats:
    """Says every few seconds that this worker lives, and which piece it trains, in a thread of its
    own. Its note, `workers/NAME.json`, says in the end why it has left.
    """

    def __init__(self, study: Path, name: str, device: str) -> None:
        self._study, self._name = study, check_id(name)
        now = time.time()
        self._life = [now, now]
        lives = [*_lives_before(study, name), self._life]
        self._note = {**identity(), "device": device, LIVES: lives, BEATS: 0, ENDED: ""}
        self._claim: Claim | None = None
        self._run = ""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._beat_on, name="workbench-beat", daemon=True)

    def leave(self, why: str) -> None:
        """Note why this worker leaves; "": it stays after all."""
        self._note[ENDED] = why
        self._beat()

    def name_run(self, run: str) -> None:
        """From now on, say in which run it trains."""
        self._run = run
        self._beat()

    @contextlib.contextmanager
    def of(self, claim: Claim) -> Iterator[None]:
        """Context manager in which this piece is trained."""
        self._claim, self._run = claim, ""
        try:
            yield
        finally:
            with self._lock:
                self._claim = None

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        if kind is not None:
            self.leave(kind.__name__)

    def _beat_on(self) -> None:
        while not self._over.wait(_BEAT):
            self._beat()

    def _beat(self) -> None:
        # the disk may be full now, and the next beat come through
        with contextlib.suppress(OSError), self._lock:
            if self._claim is not None:
                self._claim.beat(self._run)
            self._note[BEATS] += 1
            self._life[1] = max(self._life[0], time.time())
            with Folder.opened(make_folder(self._study / WORKERS)) as folder:
                folder.write(f"{self._name}.json", json.dumps(self._note).encode())


def _lives_before(study: Path, name: str) -> list[Any]:
    """When earlier processes of this worker lived: of one that was worn, or preempted."""
    try:
        with Folder.opened(study / WORKERS) as folder:
            lives = folder.read_json(f"{name}.json", _LARGEST_NOTE).get(LIVES)
    except (OSError, ValueError):
        return []
    return lives[-(MOST_LIVES - 1) :] if isinstance(lives, list) else []


def new_name() -> str:
    """A name that no other worker has: the host's, and some letters."""
    host = "".join(letter for letter in platform.node().partition(".")[0] if letter.isalnum())
    return f"{host[:24] or 'worker'}-{os.getpid()}-{secrets.token_hex(3)}"


def _worker_in(folder: Folder, name: str) -> str:
    """The worker that a file names; "": the file cannot be read."""
    try:
        return str(folder.read_json(name, _LARGEST).get("worker", ""))
    except (OSError, ValueError):
        return ""


def _furthest(earlier: list[Attempt]) -> str:
    """The run from which a take-over continues; "": it begins again."""
    reached = [attempt for attempt in earlier if attempt.run and attempt.step > 0]
    return max(reached, key=lambda attempt: attempt.step).run if reached else ""


def _run_below(trial: TrialRecord, piece: PieceRecord) -> str:
    """The run of the piece that a piece continues; "": it continues none."""
    ends = [trial.end(rung, piece.seed) for rung in range(piece.rung - 1, -1, -1)]
    return next((end.run for end in ends if end is not None and end.run), "")


def _shown(trial: TrialRecord, piece: Piece) -> str:
    seed = f", seed {piece.seed}" if piece.seed else ""
    again = f", continues {piece.continues}" if piece.continues else ""
    return printable(f"{assigned(trial.values) or trial.source}{seed}{again}")


def _other_versions(made_with: Mapping[str, str]) -> list[str]:
    """What to say of versions that differ in their last number from those of the study.
    RuntimeError: one differs before it, and the trials would not compare.
    """
    notes = []
    here = versions()
    for name in ("workbench", "torch"):
        was, now = str(made_with.get(name, here[name])), here[name]
        if was.split(".")[:2] != now.split(".")[:2]:
            raise RuntimeError(
                f"the study was made with {name} {was}, and this is {name} {now}: its trials would"
                " not compare. Work on it with the version that made it, or make a new study."
            )
        if was != now:
            notes.append(f"the study was made with {name} {was}, and this is {name} {now}.")
    return notes
