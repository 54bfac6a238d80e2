"""Kills workers of a study 20 times, and compares the values of its whole fits with those of its bench: `python -m tests.benchmarks.study_kills`."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from pathlib import Path

import workbench as wb
from tests.bench import study_parts
from workbench.runs.folder.alive import liveness
from workbench.runs.study.record import PieceRecord

KILLS, WORKERS = 20, 2


def trained(study: wb.Study) -> list[PieceRecord]:
    """The pieces that living workers have begun to train."""
    pieces = (piece for trial in study.record.trials for piece in trial.pieces)
    return [p for p in pieces if p.state == "claimed" and p.run and liveness(p.claim) == "alive"]


def main() -> None:
    """Print how many whole fits are equal to the bit."""
    chance, kills, begun = random.Random(1), 0, time.monotonic()
    with (
        tempfile.TemporaryDirectory() as root,
        study_parts.bench(
            Path(root),
            train=study_parts.Noisy(512),
            max_epochs=40,
            batch_size=16,
            checkpoint_every=50,
        ) as bench,
    ):
        study = bench.study({"lr": (1e-3, 1.0), "width": [8, 16, 32]}, budget=4, workers=WORKERS)
        while study.status != "ended":
            if sum(process.poll() is None for process in study._processes) < WORKERS:
                study.work(1)
            busy = trained(study)
            if busy and kills < KILLS and chance.random() < 0.4:
                number = signal.SIGKILL if chance.random() < 0.7 else signal.SIGTERM
                os.kill(chance.choice(busy).claim["pid"], number)
                kills += 1
            time.sleep(chance.uniform(0.5, 3))
        record = study.record
        pieces = [piece for trial in record.trials for piece in trial.pieces]
        equal = [
            record.whole(trial) == bench.fit(**trial.values, seed=0).result().metrics["val_loss"]
            for trial in record.trials
            if record.whole(trial) is not None
        ]
    print(
        f"{kills} kills, {sum(piece.generation - 1 for piece in pieces)} take-overs,"
        f" {sum(equal)} of {len(equal)} whole fits equal to the bit,"
        f" {time.monotonic() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
