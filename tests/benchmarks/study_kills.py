"""Kills workers of a study, and measures how long they wait: `python -m tests.benchmarks.study_kills`.

`… alone`: one worker, killed 20 times, and each time another one takes its place; the trials, their values and costs are
compared with those of a study that nobody disturbs. `… together`: two workers, killed 20 times in turn; each whole fit is
compared with a fit of its bench. `… idle`: the share of time in which two workers do not train, and a worker's start to its first
update. Without an argument all three.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import workbench as wb
from tests.bench import study_parts
from tests.waiting import wait_for
from workbench.runs.read import list_runs, trial_place
from workbench.runs.study.record import LIVES, PieceRecord, StudyRecord

KILLS = 20
SPACE = {"lr": (1e-3, 1.0), "width": [8, 16, 32]}


@contextlib.contextmanager
def bench(**settings: Any) -> Iterator[wb.Workbench]:
    """A bench whose fits take some seconds, and that keeps a checkpoint in each of them."""
    defaults = {"max_epochs": 40, "batch_size": 16, "checkpoint_every": 50}
    with (
        tempfile.TemporaryDirectory() as root,
        study_parts.bench(
            Path(root), train=study_parts.Noisy(512), **(defaults | settings)
        ) as made,
    ):
        yield made


def trials(record: StudyRecord) -> list[Any]:
    """Each trial, and how each of its pieces ended."""
    ends = [
        [(p.seed, p.rung, p.end.status, p.end.value, p.end.cost) for p in t.pieces if p.end]
        for t in record.trials
    ]
    return [(t.values, t.origin, end) for t, end in zip(record.trials, ends, strict=True)]


def disturb(study: wb.Study, workers: int) -> str:
    """Kill workers at random until the study ends, and start others; returns how often in words."""
    chance, sent = random.Random(1), list[signal.Signals]()
    while study.status != "ended":
        alive = {name: p for name, p in study._processes.items() if p.poll() is None}
        if len(alive) < workers:
            study.work(1)
            continue
        name = chance.choice([*alive])
        trains = any(p.worker == name and p.run for p in pieces(study) if p.state == "claimed")
        # some in their start, in the searches, between pieces, and most while they train
        if len(sent) < KILLS and chance.random() < (0.5 if trains else 0.02):
            time.sleep(chance.uniform(0.5, 3))
            sent.append(signal.SIGKILL if chance.random() < 0.7 else signal.SIGTERM)
            alive[name].send_signal(sent[-1])
        time.sleep(0.3)
    counts = Counter(number.name for number in sent)
    more = sum(piece.generation - 1 for piece in pieces(study))
    return f"{dict(counts)} sent, {more} pieces taken over"


def pieces(study: wb.Study) -> list[PieceRecord]:
    """All pieces of all trials."""
    return [piece for trial in study.record.trials for piece in trial.pieces]


def twice(study: wb.Study) -> list[tuple[int, int, int]]:
    """The trial, seed and rung of each piece of which there are more runs than claims."""
    runs = list_runs(study.path.parents[1])
    places = Counter(place[:4] for run in runs if (place := trial_place(run.header)) is not None)
    return [
        (trial.number, piece.seed, piece.rung)
        for trial in study.record.trials
        for piece in trial.pieces
        if places[study.id, trial.number, piece.seed, piece.rung] > piece.generation
    ]


def alone() -> None:
    """Print how a study with one worker ends that is killed, and whether it ends as another one."""
    with bench() as quiet:
        study = quiet.study(SPACE, budget=4)
        study.result()
        expected, spent = trials(study.record), study.record.spent
    with bench() as killed:
        study = killed.study(SPACE, budget=4)
        how = disturb(study, 1)
        ended, cost = trials(study.record), study.record.spent
        repeated = twice(study)
    equal = sum(one == other for one, other in zip(expected, ended, strict=False))
    print(
        f"one worker: {how}; {equal} of {len(expected)} trials equal to the bit"
        f" ({len(ended)} in all), {cost:.3f} and {spent:.3f} fits, trained twice: {repeated}",
        flush=True,
    )
    if equal < len(expected):
        print(*zip(expected, ended, strict=False), sep="\n")


def together() -> None:
    """Print how many whole fits of two workers that are killed are those of their bench."""
    with bench() as made:
        study = made.study(SPACE, budget=4, workers=2)
        how = disturb(study, 2)
        record = study.record
        equal = [
            record.whole(trial) == made.fit(**trial.values, seed=0).result().metrics["val_loss"]
            for trial in record.trials
            if record.whole(trial) is not None
        ]
        repeated = twice(study)
    print(
        f"two workers: {how}; {sum(equal)} of {len(equal)} whole fits equal to the bit,"
        f" trained twice: {repeated}",
        flush=True,
    )


def idle() -> None:
    """Print the share of time without training, and the seconds until a worker's first update."""
    with bench(max_epochs=200) as made:
        study = made.study(SPACE, budget=8, workers=2)
        study.result()
        record = study.record
        lived = sum(end - begin for note in record.workers.values() for begin, end in note[LIVES])
        ends = [piece.end for trial in record.trials for piece in trial.pieces if piece.end]
        searches = [r.seconds for r in list_runs(made.root) if r.kind != "fit"]
        busy = sum(end.seconds for end in ends) + sum(searches)
        share = 1 - busy / lived
    print(f"idle: {share:.1%} of {lived:.0f} s of two workers, {len(ends)} pieces", flush=True)
    seconds = []
    for _ in range(5):
        with bench() as made:
            began = time.monotonic()
            study = made.study({"width": [8, 16, 32]}, budget=2)
            returned = time.monotonic() - began
            wait_for(lambda made=made: any(run.step for run in list_runs(made.root)))
            seconds.append((time.monotonic() - began, returned))
            study.stop()
            wait_for(lambda study=study: study._processes.popitem()[1].wait() == 0)
    first, returned = (sorted(column)[2] for column in zip(*seconds, strict=True))
    print(f"start to the first update: {first:.1f} s, bench.study returns after {returned:.1f} s")


if __name__ == "__main__":
    for part in sys.argv[1:] or ("alone", "together", "idle"):
        {"alone": alone, "together": together, "idle": idle}[part]()
