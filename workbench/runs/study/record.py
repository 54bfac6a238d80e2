"""Reads the folder of a study: its settings, its trials, their pieces, and what a user changed.

A *trial* is a point of the space. A *piece* is one stretch of training of a trial, given by a seed
and a rung; rung 0 is the shortest, the last one a whole fit. Each file is small JSON, is written
once by one writer and never rewritten, except for a beat. A folder may come from a stranger: types
and sizes are checked, links are not followed, and a file that is no record is left out and named in
`StudyRecord.problems`.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from workbench.runs.folder.files import Folder
from workbench.runs.folder.ids import is_id
from workbench.runs.printable import printable
from workbench.settings.space import Space, assigned, tuples
from workbench.units import counted, number
from workbench.values import is_plain, shown

STUDIES, HEAD, TRIALS, CHANGES, WORKERS = "studies", "study.json", "trials", "changes", "workers"
TRIAL = "trial.json"
FORMAT = 1
"""The version of the files. A reader refuses a later one."""
Mode = Literal["min", "max"]
EndStatus = Literal["completed", "infeasible", "failed", "stopped"]
ChangeKind = Literal[
    "space", "more", "stop", "add", "seeds", "repeat", "pause", "resume", "end", "priors"
]
LARGEST = 1 << 18
"""The most bytes of one file; the workbench writes a few hundred."""
LARGEST_HEAD = 1 << 22
MOST, _PIECES = 20_000, 10_000
"""The most trials of a study, and changes, and the most files of a trial, that are read."""
LONGEST = 10_000
"""The most letters of a cause that are read."""
_SETTLED = 2.0
"""Seconds after which the time of a folder's change tells it from a later change."""
_NAMES = 50_000
"""The most names of a folder that are listed."""
MOST_SEEDS, _RUNGS = 100, 9
"""The most fresh seeds, and rungs, of a study."""
_NUMBER = re.compile(r"[0-9]{4,5}")
_PIECE = re.compile(
    r"s(0|[1-9][0-9]{0,8})r([0-9])(?:g([1-9][0-9]{0,3})\.(claim|beat|back)|\.(end)\.json)"
)
LIVES = "lives"
"""In the note of a worker: from when to when its processes have lived, [begin, last beat] each."""
MOST_LIVES, _ALL_LIVES = 1000, 100_000
"""The most of them that a note keeps, and that are read of it, the last ones; and of all notes."""
_GRACE = 30.0
"""Seconds after its last beat in which a worker that has not left counts as alive."""
_NEVER = (math.inf, math.inf)
_MUST = object()
_SOURCES = {
    "found": "first guess",
    "prior": "near the first guess",
    "even": "whole space",
    "near": "near trial",
    "repeat": "repeat of trial",
}
"""Where the values of a trial come from, by the first word of its origin; others are plain."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is read of a study, whose folder may come from a stranger."""

    size: int = 1 << 27
    """The most bytes of all files together; what is beyond is left out, and named."""
    trials: int = MOST
    """The most trials; a study with more is not read."""
    seconds: float = math.inf
    """How long one reading may take."""


LIMITS = Limits()
"""Those of a process that works on studies of its own."""


@dataclass(frozen=True, slots=True)
class StudyHead:
    """What a study was made with: `study.json`."""

    name: str
    monitor: str
    """The metric that judges a trial."""
    mode: Mode
    """Whether a lower or a higher value of it is better."""
    budget: Mapping[str, float]
    """{"fits": 8.0}, in fits of full length, or {"seconds": 7200}, in time in which at least one
    worker lives, without pauses.
    """
    space: Mapping[str, Any]
    """As `Space.to_record` writes it."""
    length: Mapping[str, Any]
    """{"epochs": 30} or {"updates": 1000}: the length of a whole fit."""
    rungs: tuple[float, ...] = (1.0,)
    """The lengths at which trials are compared, as shares of a whole fit, the last one 1."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """The bench's settings that differ from the defaults, and values of its model's function."""
    priors: Mapping[str, Any] = field(default_factory=dict)
    """By name of a dimension, where its good values are expected: {"lr": {"center": 3e-3,
    "factor": 3.0, "edge": 0.3}}. See `workbench.tuners.study.priors`.
    """
    spent: float = 0.0
    """What the searches before the first trial cost, in whole fits."""
    compare: str = ""
    """The setting whose values are tuned equally and compared; "": none is."""
    method: str = ""
    """The class of the sampler of Optuna that proposes trials, with a hash of what it holds; "":
    the workbench proposes them. The sampler is kept in the study's start.
    """
    seeds: int | None = None
    """How many fresh seeds judge the best trial; None: what the budget allows."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """The largest allowed values of what a trial reports: {"parameters": 200_000}."""
    seed: int = 0
    """Seeds the proposals."""
    fresh_weights: bool = False
    """Whether a repetition with another seed has other first weights, as a function makes them."""
    code: str = ""
    """A hash of the code, and of the size of the data; a study is only continued where it is the
    same.
    """
    data: str = ""
    """Checksums of what is in the data, where the study has a name: equal data continue it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    """When, in seconds since 1970."""

    @property
    def sampler(self) -> str:
        """The name of the sampler's class: "TPESampler"."""
        return self.method.partition(" ")[0].rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class PieceEnd:
    """How a piece ended: `s0r0.end.json`."""

    status: EndStatus
    """"completed", "infeasible" (not finite, out of memory, or above a limit: a result, from which
    proposals learn), "failed" (an error of the code) or "stopped" (by hand or for time).
    """
    cost: float
    """As a share of a whole fit."""
    value: float | None = None
    """The metric at its end, by which trials are compared."""
    run: str = ""
    """The id of its run."""
    seconds: float = 0.0
    cause: str = ""
    """Why it is infeasible or failed, or why it began again, in words."""
    step: int = 0
    """Updates taken so far."""
    best_step: int | None = None
    """The update with the best validation."""
    parameters: int | None = None
    """Of the model."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Absolute values of what the trial gave relative to a search: {"lr": 2.1e-3}."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics of the validation at its end, the share of noise among them where known."""

    def __post_init__(self) -> None:
        """A value that is not finite is none."""
        if self.value is not None and not math.isfinite(self.value):
            object.__setattr__(self, "value", None)


@dataclass(frozen=True, slots=True)
class PieceRecord:
    """One stretch of training of a trial: who trains it, and how it ended."""

    seed: int
    rung: int
    generation: int
    """1 for the first worker, more after take-overs; the largest."""
    state: Literal["claimed", "open", "ended"]
    """"open": its worker gave it back, and another one can continue it."""
    worker: str = ""
    claim: Mapping[str, Any] = field(default_factory=dict)
    """What the claim says of the process (`runs.folder.alive.identity`), and when the first worker
    of the piece began it.
    """
    beats: int = 0
    """A counter that its worker raises every few seconds; it says nothing by itself."""
    run: str = ""
    """The run in which it was last trained, from which a take-over continues."""
    cost: float = 0.0
    """What was trained of it before it was given back, as a share of a whole fit."""
    end: PieceEnd | None = None

    def status(self, lives: bool) -> str:
        """What it does, in a word. lives: whether a worker lives that may train it."""
        if self.end is not None:
            return self.end.status
        if self.state == "open":
            return "waits"
        return "trains" if lives else "interrupted"

    @property
    def spent(self) -> float:
        """Its cost, once it has ended or was given back."""
        return self.cost if self.end is None else self.end.cost


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A point of the space, and what was trained of it."""

    number: int
    values: Mapping[str, Any]
    """Arguments of `bench.fit`."""
    origin: str
    """"baseline", "found", "whole", "prior", "even", "near 4", "by hand" or "repeat 4"."""
    why: str = ""
    pieces: tuple[PieceRecord, ...] = ()

    def __repr__(self) -> str:
        """Its values, and what came of them, in a line."""
        ended = [piece for piece in self.pieces if piece.end is not None]
        last = max((p for p in ended if p.seed == 0), key=lambda p: p.rung, default=None)
        end = None if last is None else last.end
        values = assigned(self.absolute(end)) or self.source
        if end is None:
            return printable(f"trial {self.number} ({values}): it has not ended yet")
        value = end.status if end.value is None else f"value {number(end.value)}"
        run = f" in run {end.run}" if end.run else ""
        seeds = ", ".join(map(str, sorted({piece.seed for piece in ended})))
        return printable(f"trial {self.number} ({values}): {value}{run}, seeds: {seeds}")

    @property
    def source(self) -> str:
        """Where its values come from, in words."""
        # one that is trained whole at once keeps the origin of its values in `why`
        whole = self.origin == "whole" and self.why
        origin = self.why.partition(":")[0] if whole else self.origin
        kind, _, trial = origin.partition(" ")
        return f"{_SOURCES.get(kind, kind)} {trial}".rstrip()

    def piece(self, rung: int, seed: int = 0) -> PieceRecord | None:
        """Its piece at this rung with this seed; None: nobody has begun it."""
        for piece in self.pieces:
            if piece.rung == rung and piece.seed == seed:
                return piece
        return None

    def end(self, rung: int, seed: int = 0) -> PieceEnd | None:
        """How that piece ended; None: it has not."""
        piece = self.piece(rung, seed)
        return None if piece is None else piece.end

    def absolute(self, end: PieceEnd | None) -> dict[str, Any]:
        """Its values. end: of one of its pieces, whose rates stand in place of multiples of what a
        search found.
        """
        return {**self.values, **({} if end is None else end.values)}

    @property
    def infeasible(self) -> bool:
        """Whether a piece of it cannot be trained: not finite, out of memory, above a limit."""
        return any(p.end is not None and p.end.status == "infeasible" for p in self.pieces)


@dataclass(frozen=True, slots=True)
class TrialProposal:
    """A trial to be made. number: the one that it gets, unless somebody else was first."""

    number: int
    values: Mapping[str, Any]
    origin: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What a user changed while the study ran: `changes/0001.json`.

    kind and `values`: "space" {"space": …}, "more" {"fits": 4} or {"seconds": 600}, "stop"
    {"trial": 7}, "add" {"values": {…}}, "seeds" {"trial": 7, "n": 3}, "repeat" {"trial": 7},
    "priors" {"priors": {…}, "spent": 0.3} (written once by the searches before the first trial),
    "pause", "resume" and "end" {}.
    """

    kind: ChangeKind
    values: Mapping[str, Any] = field(default_factory=dict)
    after: int = 0
    """How many trials there were."""
    created: float = 0.0


@dataclass(frozen=True, slots=True)
class Listed:
    """When a trial's folder was listed, to know whether it must be listed again."""

    changed: int
    """When the folder was changed, in nanoseconds, as the file system says."""
    since: float
    """When this change was seen first, by this process's own clock."""
    last: float
    """When the folder was listed last."""


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """All that a study's folder says, at one moment."""

    path: Path
    head: StudyHead
    trials: tuple[TrialRecord, ...] = ()
    changes: tuple[Change, ...] = ()
    workers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    """Files that were left out, each with the reason."""
    unread: int = 0
    """The highest number of a trial that was left out; 0: none was."""
    listed: Mapping[int, Listed] = field(default_factory=dict, compare=False, repr=False)
    """By number, when the folders of trials without problems were listed."""

    @classmethod
    def read(
        cls, path: str | Path, before: StudyRecord | None = None, limits: Limits = LIMITS
    ) -> StudyRecord:
        """Read a study's folder. OSError or ValueError: it has no readable `study.json`, or it is
        larger than a study, or than `limits`.

        before: an earlier reading of the same folder, whose ended pieces are not read again. A
        trial of which all pieces have ended is not listed again until its folder changes.
        """
        path = Path(path)
        reader = _Reader(path, before, limits)
        return reader.record()

    @property
    def pieces(self) -> list[tuple[TrialRecord, PieceRecord]]:
        """All pieces, each with its trial."""
        return [(trial, piece) for trial in self.trials for piece in trial.pieces]

    @property
    def names(self) -> list[str]:
        """The names of the values of its trials, those of the space first."""
        values = dict.fromkeys(name for trial in self.trials for name in trial.values)
        return [*dict.fromkeys(name for name in (*self.space, *values) if name in values)]

    @property
    def last_rung(self) -> int:
        """The rung of whole fits."""
        return len(self.head.rungs) - 1

    @property
    def space(self) -> Mapping[str, Any]:
        """The space from which proposals come now."""
        spaces = [c.values["space"] for c in self.changes if c.kind == "space"]
        return cast("Mapping[str, Any]", spaces[-1] if spaces else self.head.space)

    @property
    def priors(self) -> Mapping[str, Any]:
        """Where good values are expected, as the searches before the first trial say."""
        return {**self.head.priors, **self._searches.get("priors", {})}

    @property
    def _searches(self) -> Mapping[str, Any]:
        """What the searches before the first trial wrote; several workers may have written it."""
        return next((c.values for c in self.changes if c.kind == "priors"), {})

    @property
    def spent(self) -> float:
        """The cost of all that has ended or was given back, in whole fits, with the searches
        before.
        """
        searches = float(self._searches.get("spent", 0.0))
        pieces = (piece for trial in self.trials for piece in trial.pieces)
        return self.head.spent + searches + sum(piece.spent for piece in pieces)

    @property
    def by_hand(self) -> float:
        """The cost of what a user asked for, in whole fits; it is beyond the budget."""
        return sum(
            piece.spent
            for trial in self.trials
            for piece in trial.pieces
            if self.is_by_hand(trial, piece)
        )

    def is_by_hand(self, trial: TrialRecord, piece: PieceRecord) -> bool:
        """Whether a user asked for this piece: it is of a trial that was added or repeated, or has
        a seed that was asked for before somebody began it.
        """
        if trial.origin == "by hand" or trial.origin.startswith("repeat "):
            return True
        began = piece.claim.get("started")
        return piece.seed > 0 and any(
            change.kind == "seeds"
            and piece.seed <= change.values["n"]
            and (change.values["trial"] == trial.number or trial is self.baseline)
            and (type(began) is not float or began >= change.created)
            for change in self.changes
        )

    @property
    def budget(self) -> Mapping[str, float]:
        """The budget with what was added to it, in the unit that it began with."""
        ((unit, amount),) = self.head.budget.items()
        more = sum(c.values.get(unit, 0.0) for c in self.changes if c.kind == "more")
        return {unit: amount + more}

    def seconds_left(self, now: float) -> float:
        """What is left at this moment, in seconds since 1970, of a budget in time; infinite where
        it is one in fits. No time passes while no worker lives, as their beats say, while the
        study is paused, or between its end by hand and more budget. Time that is added after the
        end counts from then on.
        """
        if "seconds" not in self.head.budget:
            return math.inf
        changes = [c for c in self.changes if c.kind in ("pause", "resume", "end", "more")]
        # clocks of several machines may differ a little
        moments = accumulate((c.created for c in changes), max, initial=self.head.created)
        *lived, lived_last = _lived(_lives(self.workers.values()), [*moments, now])
        seconds = self.head.budget["seconds"]
        paused = ended = False
        for change, passed in zip(changes, lived, strict=True):
            if not (paused or ended):
                seconds = max(seconds - passed, 0.0)
            if change.kind in ("pause", "resume"):
                paused = change.kind == "pause"
            else:
                ended = change.kind == "end"
                seconds += change.values.get("seconds", 0.0)
        return seconds if paused or ended else seconds - lived_last

    def lived(self, now: float) -> float:
        """The seconds until this moment in which at least one worker lived."""
        return sum(_lived(_lives(self.workers.values()), [self.head.created, now]))

    @property
    def paused(self) -> bool:
        """Whether a user paused it."""
        kinds = [c.kind for c in self.changes if c.kind in ("pause", "resume")]
        return kinds[-1:] == ["pause"]

    @property
    def ended(self) -> bool:
        """Whether a user ended it; more budget continues it."""
        kinds = [c.kind for c in self.changes if c.kind in ("end", "more")]
        return kinds[-1:] == ["end"]

    @property
    def next_number(self) -> int:
        """The number of the next trial."""
        return max(self.unread, *(trial.number for trial in self.trials[-1:]), 0) + 1

    def trial(self, number: int) -> TrialRecord | None:
        """The trial of this number."""
        # numbers are without gaps, but for files that were left out
        if 0 < number <= len(self.trials) and self.trials[number - 1].number == number:
            return self.trials[number - 1]
        return next((trial for trial in self.trials if trial.number == number), None)

    def trials_by_value(self, space: Space) -> dict[float | None, list[TrialRecord]]:
        """The trials of each value of the setting that is compared, by the value's number from 0 to
        1 in `space`; None: of those outside it, or of all where no setting is compared.
        """
        if not self.head.compare:
            return {None: [*self.trials]}
        index = space.names.index(self.head.compare)
        trials: dict[float | None, list[TrialRecord]] = {}
        for trial in self.trials:
            trials.setdefault(space.units(trial.values)[index], []).append(trial)
        return trials

    @property
    def baseline(self) -> TrialRecord | None:
        """The trial of the bench's own settings."""
        return next((trial for trial in self.trials if trial.origin == "baseline"), None)

    def values_of(self, trial: TrialRecord, end: PieceEnd | None = None) -> dict[str, Any]:
        """The values of a trial, the bench's own where a user gave none. end: see
        `TrialRecord.absolute`.
        """
        first = self.baseline
        if trial.origin != "by hand" or first is None:
            return trial.absolute(end)
        return {**first.values, **trial.absolute(end)}

    def score(self, value: float | None) -> float:
        """A value as a number of which lower is better; infinite where there is none."""
        if value is None:
            return math.inf
        return float(value) if self.head.mode == "min" else -float(value)

    def score_at(self, trial: TrialRecord, rung: int, seed: int = 0) -> float:
        """The score of a trial at a rung; infinite where it is infeasible or has not ended."""
        end = trial.end(rung, seed)
        if end is None or end.status != "completed":
            return math.inf
        return self.score(end.value)

    def whole(self, trial: TrialRecord) -> float | None:
        """The value of a trial's whole fit; None: it has none."""
        end = trial.end(self.last_rung)
        return end.value if end is not None and end.status == "completed" else None

    @property
    def best(self) -> TrialRecord | None:
        """The trial with the best whole fit; None: none has ended."""
        scored = [
            (self.score(value), trial.number, trial)
            for trial in self.trials
            if (value := self.whole(trial)) is not None
        ]
        return min(scored)[2] if scored else None

    @property
    def stopped(self) -> frozenset[int]:
        """The numbers of the trials that a user stopped."""
        return frozenset(c.values["trial"] for c in self.changes if c.kind == "stop")


def _lives(workers: Iterable[Mapping[str, Any]]) -> Iterator[tuple[float, float]]:
    """When at least one of these workers lived: spans of time in order, none within another."""
    until = -math.inf
    lives = (life for worker in workers for life in _lives_of(worker))
    for begin, end in sorted(islice(lives, _ALL_LIVES)):
        begin = max(begin, until)
        if end > begin:
            yield begin, end
            until = end


def _lives_of(worker: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    lives = worker.get(LIVES)
    if not isinstance(lives, list):
        return
    lives = lives[-MOST_LIVES:]
    for k, life in enumerate(lives, 1):
        if isinstance(life, list) and [type(moment) for moment in life] == [float, float]:
            lasts = k == len(lives) and not worker.get("ended")
            yield life[0], life[1] + (_GRACE if lasts else 0.0)


def _lived(lives: Iterator[tuple[float, float]], moments: Iterable[float]) -> Iterator[float]:
    """The seconds of these spans between each two moments that follow each other. Both are in
    order.
    """
    begin, end = next(lives, _NEVER)
    for since, until in pairwise(moments):
        seconds = 0.0
        while end <= until:
            seconds += max(0.0, end - max(begin, since))
            begin, end = next(lives, _NEVER)
        yield seconds + max(0.0, until - max(begin, since))


class _Reader:
    """Reads one folder within its budget of bytes."""

    def __init__(self, path: Path, before: StudyRecord | None, limits: Limits) -> None:
        self._path, self._limits = path, limits
        self._bytes_left = limits.size
        self._until = time.monotonic() + limits.seconds
        self._problems: list[str] = []
        self._unread = 0
        self._rungs, self._compare = 0, ""
        if before is not None and before.path != path:
            before = None
        trials = () if before is None else before.trials
        self._before = {trial.number: trial for trial in trials}
        self._listed_before = {} if before is None else before.listed
        self._listed: dict[int, Listed] = {}
        self._omissions = 0
        self._head = None if before is None else before.head

    def record(self) -> StudyRecord:
        with Folder.opened(self._path) as folder:
            head = self._head
            if head is None:
                head = head_of(folder.read_json(HEAD, LARGEST_HEAD))
            self._rungs, self._compare = len(head.rungs), head.compare
            changes = [change for _, change in sorted(self._changes(folder))]
            record = StudyRecord(
                self._path,
                head,
                tuple(sorted(self._trials(folder), key=lambda trial: trial.number)),
                tuple(changes),
                dict(self._workers(folder)),
                tuple(self._problems),
                self._unread,
                self._listed,
            )
            return _with_tuples(record)

    @contextlib.contextmanager
    def _opened(self, outer: Folder, path: Path) -> Iterator[tuple[Folder, list[str]] | None]:
        """Context manager with a folder in the study and its names; None where there is none."""
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(Folder.opened(path, outer))
                listed = folder.names(_NAMES + 1)
                if len(listed) > _NAMES:
                    within = path.relative_to(self._path)
                    raise ValueError(f"{within} has more than {_NAMES:,} files")
                names = sorted(name for name in listed if not name.startswith("."))
            except FileNotFoundError:
                names = None
            except OSError as error:
                self._left_out(path.relative_to(self._path), error)
                names = None
            yield None if names is None else (folder, names)

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise TimeoutError(f"reading it takes more than {self._limits.seconds:g} s")

    def _left_out(self, name: object, why: object) -> None:
        self._omissions += 1
        if len(self._problems) < 100:
            self._problems.append(f"{name}: {why}")

    def _json(self, folder: Folder, name: str, where: str) -> dict[str, Any] | None:
        """The object in a file; None where it is left out, which is noted."""
        self._check_time()
        try:
            if self._bytes_left <= 0:
                raise ValueError(f"the study has more than {self._limits.size} bytes")
            data = folder.read_json(name, min(LARGEST, self._bytes_left))
            if not is_plain(data):
                raise ValueError("it has numbers that are not finite")
        except (OSError, ValueError) as error:
            self._left_out(f"{where}/{name}", _without_path(error))
            return None
        self._bytes_left -= len(str(data))
        return data

    def _trials(self, study: Folder) -> Iterator[TrialRecord]:
        with self._opened(study, self._path / TRIALS) as opened:
            if opened is None:
                return
            folder, names = opened
            if len(names) > self._limits.trials:
                raise ValueError(f"{TRIALS} has more than {self._limits.trials:,} trials")
            for name in names:
                self._check_time()
                number = number_of(name)
                if number is None:
                    self._left_out(f"{TRIALS}/{name}", "not the number of a trial")
                    continue
                trial = self._unchanged(folder, name, number)
                if trial is not None:
                    yield trial
                    continue
                omissions = self._omissions
                with self._opened(folder, self._path / TRIALS / name) as inner:
                    # without the file its maker is about to write it, or was killed before
                    is_made = inner is None or TRIAL in inner[1]
                    if inner is not None and is_made:
                        trial = self._trial(*inner, number)
                if trial is None or self._omissions > omissions:
                    self._listed.pop(number, None)
                if trial is not None:
                    yield trial
                elif is_made:
                    self._unread = max(self._unread, number)

    def _unchanged(self, trials: Folder, name: str, number: int) -> TrialRecord | None:
        """The trial of the reading before, if its folder needs no look; None: it does."""
        try:
            changed = trials.changed(name)
        except OSError:
            return None
        now = time.monotonic()
        listed, trial = self._listed_before.get(number), self._before.get(number)
        if listed is None or listed.changed != changed:
            self._listed[number] = Listed(changed, now, now)
            return None
        # a change at nearly the same time may have come after the list
        settled = listed.last - listed.since >= _SETTLED
        if not settled or trial is None or any(map(_may_change, trial.pieces)):
            self._listed[number] = replace(listed, last=now)
            return None
        self._listed[number] = listed
        return trial

    def _trial(self, folder: Folder, names: list[str], number: int) -> TrialRecord | None:
        where = f"{TRIALS}/{number:04d}"
        before = self._before.get(number)
        if before is not None:
            trial = before
        else:
            data = self._json(folder, TRIAL, where)
            if data is None:
                return None
            try:
                trial = TrialRecord(
                    number,
                    _of(data, "values", dict),
                    _of(data, "origin", str)[:100],
                    _of(data, "why", str, "")[:1000],
                )
            except ValueError as error:
                self._left_out(f"{where}/{TRIAL}", error)
                return None
        pieces = self._pieces(folder, [n for n in names if n != TRIAL], where, before)
        return replace(trial, pieces=tuple(pieces))

    def _pieces(
        self, folder: Folder, names: list[str], where: str, before: TrialRecord | None
    ) -> Iterator[PieceRecord]:
        by_piece: dict[tuple[int, int], dict[tuple[int, str], str]] = {}
        for name in names[:_PIECES]:
            match = _PIECE.fullmatch(name)
            if match is None:
                self._left_out(f"{where}/{name}", "no file of a study")
                continue
            seed, rung, generation, kind, end = match.groups()
            if int(rung) >= self._rungs:
                self._left_out(f"{where}/{name}", f"the study has {counted(self._rungs, 'rung')}")
                continue
            files = by_piece.setdefault((int(rung), int(seed)), {})
            files[int(generation or 0), kind or end] = name
        for (rung, seed), files in sorted(by_piece.items()):
            ended = None if before is None else before.piece(rung, seed)
            if ended is not None and not _may_change(ended):
                yield ended
                continue
            piece = self._piece(folder, where, rung, seed, files)
            if piece is not None:
                yield piece

    def _piece(
        self,
        folder: Folder,
        where: str,
        rung: int,
        seed: int,
        files: Mapping[tuple[int, str], str],
    ) -> PieceRecord | None:
        generation = max((g for g, kind in files if kind == "claim"), default=0)
        claim: dict[str, Any] = {}
        if generation:
            claim = self._json(folder, files[generation, "claim"], where) or {}
        end = self._end(folder, files[0, "end"], where) if (0, "end") in files else None
        back = files.get((generation, "back"))
        if end is None and not generation:
            return None
        beats, run, cost = 0, "", 0.0
        if end is None:
            beats, run = self._last_run(folder, where, generation, files)
        if end is None and back is not None:
            try:
                cost = _cost(self._json(folder, back, where) or {})
            except ValueError as error:
                self._left_out(f"{where}/{back}", error)
        state: Literal["claimed", "open", "ended"] = "claimed" if back is None else "open"
        return PieceRecord(
            seed,
            rung,
            generation,
            "ended" if end is not None else state,
            str(claim.get("worker", ""))[:100],
            claim,
            beats,
            run if end is None else end.run,
            cost,
            end,
        )

    def _last_run(
        self, folder: Folder, where: str, generation: int, files: Mapping[tuple[int, str], str]
    ) -> tuple[int, str]:
        """The beats of the present generation, and the run of the last one that had one."""
        beats = 0
        for g in range(generation, 0, -1):
            if (g, "beat") not in files:
                continue
            data = self._json(folder, files[g, "beat"], where) or {}
            count, run = data.get("beats"), data.get("run")
            if g == generation and type(count) is int:
                beats = count
            if isinstance(run, str) and run and is_id(run):
                return beats, run
        return beats, ""

    def _end(self, folder: Folder, name: str, where: str) -> PieceEnd:
        """How a piece ended. It has failed where its file cannot be read: nobody trains it again,
        since nobody could write its end.
        """
        data = self._json(folder, name, where)
        error = "it cannot be read"
        if data is not None:
            try:
                return _end(data)
            except ValueError as why:
                self._left_out(f"{where}/{name}", why)
                error = str(why)
        return PieceEnd("failed", 0.0, cause=f"{where}/{name}: {error}")

    def _changes(self, study: Folder) -> Iterator[tuple[int, Change]]:
        with self._opened(study, self._path / CHANGES) as opened:
            if opened is None:
                return
            folder, names = opened
            for name in names:
                number = number_of(name.removesuffix(".json")) if name.endswith(".json") else None
                if number is None:
                    self._left_out(f"{CHANGES}/{name}", "not the number of a change")
                    continue
                data = self._json(folder, name, CHANGES)
                if data is None:
                    continue
                try:
                    change = change_of(data)
                    if change.kind == "space":
                        _check_compare(self._compare, change.values["space"])
                    yield number, change
                except ValueError as error:
                    self._left_out(f"{CHANGES}/{name}", error)

    def _workers(self, study: Folder) -> Iterator[tuple[str, Mapping[str, Any]]]:
        with self._opened(study, self._path / WORKERS) as opened:
            if opened is None:
                return
            folder, names = opened
            for name in names[:_PIECES]:
                if name.endswith(".log"):  # what a worker prints
                    continue
                worker, dot, _ = name.rpartition(".json")
                if not dot or not is_id(worker):
                    self._left_out(f"{WORKERS}/{name}", "no worker's name")
                elif (data := self._json(folder, name, WORKERS)) is not None:
                    yield worker, data


def _may_change(piece: PieceRecord) -> bool:
    """Whether its files say more later: those of a failed one may be readable then."""
    return piece.end is None or piece.end.status == "failed"


def number_of(name: str) -> int | None:
    """The number of a trial or a change from its name; None: the workbench writes no such name."""
    if not _NUMBER.fullmatch(name):
        return None
    number = int(name)
    return number if 0 < number <= MOST and name == f"{number:04d}" else None


def _without_path(error: Exception) -> str:
    text = str(error)
    return text.partition("] ")[2].partition(":")[0] if text.startswith("[Errno") else text


def _of(data: Mapping[str, Any], key: str, kind: type[T], default: object = _MUST) -> T:
    """The value of this type; ValueError: it has another one, or is missing without a default."""
    value = data.get(key)
    if value is None and default is not _MUST:
        return cast("T", default)
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise ValueError(f"{key}={shown(value)} is no {kind.__name__}")
    return value


def _number(data: Mapping[str, Any], key: str) -> float | None:
    """A finite number; None: there is none. ValueError: something else."""
    value = data.get(key)
    if value is None:
        return None
    if type(value) not in (int, float):
        raise ValueError(f"{key}={shown(value)} is no number")
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _whole(data: Mapping[str, Any], key: str) -> int | None:
    number = _number(data, key)
    return None if number is None else int(number)


def head_of(data: Mapping[str, Any]) -> StudyHead:
    """ValueError: it is no head of a study that this version reads."""
    version = data.get("format")
    if version != FORMAT:
        raise ValueError(
            f"{HEAD} has format={shown(version)}, and this version of the workbench reads"
            f" {FORMAT}: open the study with the version that made it."
        )
    if not is_plain(data):
        raise ValueError(f"{HEAD} has numbers that are not finite")
    mode = _of(data, "mode", str)
    if mode not in get_args(Mode):
        raise ValueError(f"{HEAD}: mode={shown(mode)} is none of {get_args(Mode)}")
    budget = _of(data, "budget", dict)
    units = [*budget]
    if units not in (["fits"], ["seconds"]) or not (_number(budget, units[0]) or 0) > 0:
        raise ValueError(f'{HEAD}: budget={shown(budget)} is not {{"fits": n}} or {{"seconds": n}}')
    rungs = tuple(_of(data, "rungs", list, [1.0]))
    ordered = all(type(share) in (int, float) for share in rungs)
    if not rungs or not ordered or [*rungs] != sorted({*rungs}) or rungs[-1] != 1 or rungs[0] <= 0:
        raise ValueError(f"{HEAD}: rungs={shown(rungs)} are no rising shares that end with 1")
    if len(rungs) > _RUNGS:
        raise ValueError(f"{HEAD}: it has {len(rungs)} rungs, and a study has at most {_RUNGS}")
    seeds = _whole(data, "seeds")
    if seeds is not None and not 0 <= seeds <= MOST_SEEDS:
        raise ValueError(
            f"{HEAD}: seeds={shown(seeds)}: a study has at most {MOST_SEEDS} fresh seeds"
        )
    for key in ("length", "limits"):
        numbers = _of(data, key, dict, _MUST if key == "length" else {})
        if not all((_number(numbers, name) or 0) > 0 for name in numbers):
            raise ValueError(
                f"{HEAD}: {key}={shown(numbers)} has other values than numbers above 0"
            )
    if not {"epochs", "updates"} & {*data["length"]}:
        raise ValueError(f"{HEAD}: length={shown(data['length'])} has neither epochs nor updates")
    priors = _of(data, "priors", dict, {})
    _check_priors(priors)
    Space.from_record(_of(data, "space", dict), priors)
    _check_compare(_of(data, "compare", str, ""), data["space"])
    return StudyHead(
        name=_of(data, "name", str)[:100],
        monitor=_of(data, "monitor", str)[:200],
        mode=cast("Mode", mode),
        budget={units[0]: float(budget[units[0]])},
        space=data["space"],
        length=data["length"],
        rungs=tuple(map(float, rungs)),
        base=_of(data, "base", dict, {}),
        priors=priors,
        spent=max(0.0, _number(data, "spent") or 0.0),
        compare=data.get("compare") or "",
        method=_of(data, "method", str, "")[:1000],
        seeds=seeds,
        limits=_of(data, "limits", dict, {}),
        seed=max(0, _whole(data, "seed") or 0),
        fresh_weights=_of(data, "fresh_weights", bool, False),
        code=_of(data, "code", str, "")[:200],
        data=_of(data, "data", str, "")[:1000],
        versions=_of(data, "versions", dict, {}),
        created=_number(data, "created") or 0.0,
    )


def _end(data: Mapping[str, Any]) -> PieceEnd:
    """ValueError: it is no end of a piece."""
    status = _of(data, "status", str)
    if status not in get_args(EndStatus):
        raise ValueError(f"status={shown(status)} is none of {get_args(EndStatus)}")
    run = _of(data, "run", str, "")
    if run and not is_id(run):
        raise ValueError(f"run={shown(run)} is no run's id")
    return PieceEnd(
        status=cast("EndStatus", status),
        cost=_cost(data),
        value=_number(data, "value"),
        run=run,
        seconds=_number(data, "seconds") or 0.0,
        cause=_of(data, "cause", str, "")[:LONGEST],
        step=int(_number(data, "step") or 0),
        best_step=_whole(data, "best_step"),
        parameters=_whole(data, "parameters"),
        values=_of(data, "values", dict, {}),
        metrics={
            key: float(value)
            for key, value in _of(data, "metrics", dict, {}).items()
            if type(value) in (int, float)
        },
    )


def change_of(data: Mapping[str, Any]) -> Change:
    """ValueError: it is no change, or lacks what its kind needs."""
    kind = _of(data, "kind", str)
    if kind not in get_args(ChangeKind):
        raise ValueError(f"kind={shown(kind)} is none of {', '.join(get_args(ChangeKind))}")
    values = _of(data, "values", dict, {})
    if kind in ("stop", "seeds", "repeat"):
        _of(values, "trial", int)
    if kind == "seeds" and not 1 <= _of(values, "n", int) <= MOST_SEEDS:
        raise ValueError(f"n={shown(values['n'])}: a trial has 1 to {MOST_SEEDS} fresh seeds")
    if kind == "space":
        Space.from_record(_of(values, "space", dict))
    if kind == "priors":
        _check_priors(_of(values, "priors", dict))
        _check_amounts(values, "spent")
    if kind == "add":
        _of(values, "values", dict)
    if kind == "more":
        _check_amounts(values, "fits", "seconds")
    return Change(
        cast("ChangeKind", kind),
        values,
        int(_number(data, "after") or 0),
        _number(data, "created") or 0.0,
    )


def _with_tuples(record: StudyRecord) -> StudyRecord:
    """The record with a tuple in place of each list of dimensions whose values are tuples."""
    names = {name for name, entry in record.space.items() if entry.get("tuples") is True}
    if not names:
        return record
    trials = []
    for trial in record.trials:
        values = dict(trial.values)
        for name in names & values.keys():
            (values[name],) = tuples([values[name]])
        trials.append(replace(trial, values=values))
    return replace(record, trials=tuple(trials))


def _check_compare(name: str, space: Mapping[str, Any]) -> None:
    """ValueError: the setting whose values are compared is no choice of the space."""
    if name and ("." in name or name not in space or space[name]["kind"] != "choice"):
        raise ValueError(f"compare={shown(name)} is no choice of the space")


def _cost(data: Mapping[str, Any]) -> float:
    return max(0.0, _number(data, "cost") or 0.0)


def _check_amounts(values: Mapping[str, Any], *keys: str) -> None:
    """ValueError: none of them is there, or one is no number of 0 or more."""
    amounts = [_number(values, key) for key in keys if key in values]
    if not amounts or any(amount is None or amount < 0 for amount in amounts):
        raise ValueError(f"{shown(dict(values))} has no {' or '.join(keys)} of 0 or more")


def _check_priors(priors: Mapping[str, Any]) -> None:
    """ValueError: the numbers of a dimension are not finite."""
    for name in priors:
        for key, value in _of(priors, name, dict).items():
            if type(value) in (int, float) and _number(priors[name], key) is None:
                raise ValueError(f"the prior of {name} has {key}={shown(value)}")
