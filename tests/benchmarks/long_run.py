"""What a long run takes of memory and disk, and how fast it opens: `python -m tests.benchmarks.long_run`.

Nothing is trained: numbers go through the meter, a job, its record and what reads it, as those of a run do. The default is
1,000,000 updates of a model with 300 weight matrices, 100 updates in a flush (an update of 1 ms).
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch

from workbench.engine.metrics.meter import Meter
from workbench.events import RunEnded, RunStarted
from workbench.launch.job import Job
from workbench.launch.thread import JobRunner
from workbench.runs.read import list_runs
from workbench.runs.run import Run
from workbench.runs.store import RunFolder
from workbench.settings import Settings

RSS = psutil.Process()


def memory() -> float:
    """MB that this process has, of which nothing is garbage."""
    gc.collect()
    return RSS.memory_info().rss / 1e6


class Peak(threading.Thread):
    """The most memory that was in use while it ran."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self._over = 0.0, threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, RSS.memory_info().rss / 1e6)

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def work(updates: int, layers: int, rows: int) -> Any:
    """What a job does that measures and does not train."""
    names = tuple(f"block{i // 4}.part{i % 4}.weight" for i in range(layers))
    table = torch.rand(rows, layers) + 0.1
    losses = torch.rand(rows) + 1

    class Work(SimpleNamespace):
        def __call__(self, emit: Any, inbox: Any) -> str:
            emit(
                RunStarted("0001-fit", "fit", self.settings.model_dump(), "cpu", names, updates, 10)
            )
            meter = Meter(layers, torch.device("cpu"), 1, norm=2.0)
            for step in range(updates):
                row = step % rows
                meter.total[0][row].copy_(table[row, 0])
                meter.layers[row].copy_(table[row])
                meter.record(step, (1e-3,), losses[row])
                if row == rows - 1:
                    for event in meter.flush(step * 10 // updates):
                        emit(event)
                    if step % (50 * rows) == 50 * rows - 1:
                        emit.settle(60.0)  # no run is faster than its record
            self.updates = updates
            return "finished"

    return Work(settings=Settings.make(max_steps=updates), updates=0)


def timed(what: str, look: Any) -> Any:
    """Do it, and print what it took."""
    before = memory()
    with Peak() as peak:
        began = time.process_time()
        found = look()
        seconds = time.process_time() - began
    print(
        f"  {what:<42} {seconds:8.2f} s of CPU   memory {memory() - before:+8.0f} MB (peak {max(0.0, peak.most - before):+8.0f})",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1_000_000)
    parser.add_argument("--layers", type=int, default=300)
    parser.add_argument("--rows", type=int, default=100, help="updates in a flush, 256 at most")
    parser.add_argument("--root", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.root) as name:
        root = Path(name)
        todo = work(options.updates, options.layers, options.rows)
        folder = RunFolder.create(
            root, "0001-fit", {"kind": "fit", "settings": todo.settings.model_dump()}
        )
        job: Any = Job("0001-fit", "fit", folder, todo, lambda job: None)
        print(f"{options.updates} updates x {options.layers} layers, {options.rows} in a flush")
        timed("the job, measured and recorded", JobRunner(job, lambda job, event: ()).run)
        assert isinstance(job.events[-1], RunEnded)
        size = sum(path.stat().st_size for path in folder.path.iterdir())
        print(f"  on disk: {size / 1e6:.0f} MB, {size / options.updates:.0f} bytes an update")
        timed("list_runs", lambda: list_runs(root))
        run = timed("Run.open", lambda: Run.open(folder.path))
        timed("its metrics and repr", lambda: (run.metrics, repr(run)))
        timed("the charts of all of it", run.charts)
        again = Run.open(folder.path)
        history = timed("its history, all columns", lambda: again.history)
        assert len(history["loss"]) == options.updates


if __name__ == "__main__":
    main()
