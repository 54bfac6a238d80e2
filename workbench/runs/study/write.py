"""Writes into the folder of a study: trials, claims of their pieces, how pieces ended, changes.

A file is written completely or not at all, and is never replaced, except for a beat. Where several
workers want the same one, exactly one of them makes it (`Folder.create`), and the others read
again. So there is no lock, and a killed process leaves nothing half done.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from workbench.runs.folder.alive import identity
from workbench.runs.folder.files import Folder, make_folder
from workbench.runs.folder.ids import numbered_folder, runs_folder
from workbench.runs.study.record import (
    CHANGES,
    FORMAT,
    HEAD,
    LARGEST,
    LARGEST_HEAD,
    LONGEST,
    MOST,
    STUDIES,
    TRIAL,
    TRIALS,
    WORKERS,
    Change,
    PieceEnd,
    PieceRecord,
    StudyHead,
    TrialProposal,
    change_of,
    head_of,
    number_of,
)
from workbench.values import is_plain, shown


def new_study(root: Path, head: StudyHead) -> Path:
    """Make the folder of a new study, `<root>/studies/0003-study`, named after `head.name`.
    ValueError: the head has something that a reader would not take.
    """
    record = {"format": FORMAT, **_plain(asdict(head))}
    data = _data(record, LARGEST_HEAD)
    head_of(record)
    studies = runs_folder(root).parent / STUDIES
    # as private as the runs
    studies.mkdir(mode=runs_folder(root).stat().st_mode & 0o777, exist_ok=True)
    path = numbered_folder(studies, head.name or "study")
    for name in (TRIALS, CHANGES, WORKERS):
        make_folder(path / name)
    with Folder.opened(path) as folder:
        folder.create(HEAD, data)
    return path


def add_trial(path: Path, proposal: TrialProposal) -> int | None:
    """Make the trial of a proposal; returns its number, or None where somebody else has made the
    trial of this number first: read the record again, and plan again. ValueError: its values are
    not plain or too large, or a study has no more trials.
    """
    if proposal.number > MOST:
        raise ValueError(f"a study has at most {MOST:,} trials, and this would be another one")
    data = _data(
        {
            "number": proposal.number,
            "values": _plain(proposal.values),
            "origin": proposal.origin,
            "why": proposal.why,
        }
    )
    with Folder.opened(make_folder(_trial(path, proposal.number))) as folder:
        return proposal.number if folder.create(TRIAL, data) else None


def change(path: Path, change: Change) -> int:
    """Leave a change for all workers; returns its number. ValueError: a reader would not
    take it, or a study has no more changes.
    """
    record = {**_plain(asdict(change)), "created": change.created or time.time()}
    data = _data(record)
    change_of(record)
    with Folder.opened(make_folder(path / CHANGES)) as folder:
        while True:
            numbers = [number_of(name.removesuffix(".json")) for name in folder.names()]
            number = max(filter(None, numbers), default=0) + 1
            if number > MOST:
                raise ValueError(f"a study has at most {MOST:,} changes, and this would be another")
            if folder.create(f"{number:04d}.json", data):
                return number


@dataclass
class Claim:
    """A worker's right to train a piece. It ends with `end` or `give_back`, or with its process."""

    path: Path
    """Of the study."""
    trial: int
    seed: int
    rung: int
    generation: int
    worker: str
    continues: str = ""
    """The run of an earlier generation, from which this one continues."""
    beats: int = 0

    def beat(self, run: str = "") -> None:
        """Say that its worker lives, every few seconds, and in which run it trains."""
        self.beats += 1
        with self._opened() as folder:
            folder.write(self._name("beat"), _data({"beats": self.beats, "run": run}))

    def end(self, end: PieceEnd) -> bool:
        """Write how it ended; False: a later generation, which took it over, was first. The cause
        is cut to what a reader takes.
        """
        end = replace(end, cause=end.cause[:LONGEST])
        with self._opened() as folder:
            return folder.create(_end_name(self.seed, self.rung), _data(_plain(asdict(end))))

    def give_back(self, cost: float = 0.0) -> None:
        """Leave it to another worker, which continues from the run of the last beat. cost: of what
        was trained of the piece, as a share of a whole fit.
        """
        with self._opened() as folder:
            folder.create(self._name("back"), _data({"worker": self.worker, "cost": cost}))

    def is_current(self) -> bool:
        """Whether no later generation has taken it over, and it has not ended."""
        with self._opened() as folder:
            names = folder.names()
        later = f"s{self.seed}r{self.rung}g{self.generation + 1}.claim"
        return later not in names and _end_name(self.seed, self.rung) not in names

    def _name(self, kind: str) -> str:
        return f"s{self.seed}r{self.rung}g{self.generation}.{kind}"

    def _opened(self) -> contextlib.AbstractContextManager[Folder]:
        return Folder.opened(_trial(self.path, self.trial))


def claim(path: Path, trial: int, seed: int, rung: int, worker: str) -> Claim | None:
    """Claim a piece that nobody has begun; None: somebody else was first."""
    return _claimed(Claim(path, trial, seed, rung, 1, worker), time.time())


def take_over(path: Path, trial: int, piece: PieceRecord, worker: str) -> Claim | None:
    """Claim a piece that its worker gave back, or whose worker is dead, as its next generation;
    None: somebody else was first.
    """
    started = piece.claim.get("started")
    return _claimed(
        Claim(path, trial, piece.seed, piece.rung, piece.generation + 1, worker, piece.run),
        started if type(started) is float else time.time(),
    )


def _claimed(claim: Claim, started: float) -> Claim | None:
    """started: when the first worker of the piece began it, which tells whether it was asked for
    before.
    """
    data = _data({"worker": claim.worker, **identity(), "started": started})
    with claim._opened() as folder:
        ended = _end_name(claim.seed, claim.rung) in folder.names()
        created = not ended and folder.create(claim._name("claim"), data)
    return claim if created else None


def _end_name(seed: int, rung: int) -> str:
    return f"s{seed}r{rung}.end.json"


def _trial(path: Path, number: int) -> Path:
    return path / TRIALS / f"{number:04d}"


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them: tuples as lists. ValueError names one that is not plain."""
    for name, value in values.items():
        if not is_plain(_listed(value)):
            raise ValueError(
                f"{name}={shown(value)}: a study's record holds numbers, texts, booleans, None,"
                " lists and dicts of these."
            )
    return {name: _listed(value) for name, value in values.items()}


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _listed(item) for key, item in value.items()}
    return value


def _data(values: Mapping[str, Any], largest: int = LARGEST) -> bytes:
    """The bytes of a file. ValueError: a reader would leave it out for its size."""
    data = (json.dumps(values, indent=1, allow_nan=False) + "\n").encode()
    if len(data) > largest:
        raise ValueError(
            f"{shown(values)} has {len(data):,} bytes, and a study's record holds at most"
            f" {largest:,} of them: give smaller values."
        )
    return data
