"""Events and records of the size that the budgets name, made before anything is timed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.ui.fakes import LAYERS, FakeBench, flush
from workbench.events import RunEnded, RunStarted, StepsDone, Validated
from workbench.instruments import layer_groups
from workbench.runs.store import RunFolder
from workbench.ui.canvas import model as picture
from workbench.ui.panel import Panel

MANY = tuple(f"layer{i:02d}.weight" for i in range(50))
POINTS = 2000


def largest_panel(bench: FakeBench) -> Panel:
    """A panel with 2000 points a line and a row for each of 50 layers: more than it draws of itself."""
    picture.LINE_BUCKETS = POINTS
    layer_groups.rows.__defaults__ = (0, None, len(MANY))
    panel = Panel.of(bench)
    settings = bench.settings.model_dump() | {"gradient_clip_val": 1.0}
    bench.tell(RunStarted("0001-fit", "fit", settings, "cpu", MANY, 10_000, 10))
    bench.tell(flush(0, POINTS - 210, layers=len(MANY), total=3000, clip=1.0))
    for step in range(100, POINTS - 210, 100):
        bench.tell(Validated(step, 0, {"val_loss": 0.5, "val_loss_averaged": 0.45}))
    for i in range(5):
        panel.canvas._heard(
            None, {"type": "ask", "what": "pick_layer", "first": 10 * i, "end": 10 * i + 1}, None
        )
    return panel


def go(bench: FakeBench, seconds: float, rate: float = 10.0) -> tuple[float, float, float]:
    """An update `rate` times a second. When it began, when it ended, and processor seconds of the process meanwhile."""
    count = int(seconds * rate)
    first = POINTS - 210
    coming: list[StepsDone] = [
        flush(first + i, 1, layers=len(MANY), total=3000, clip=1.0) for i in range(count)
    ]
    over = threading.Event()
    spent: list[float] = []

    def run() -> None:
        used, began = time.process_time(), time.time()
        for i, event in enumerate(coming):
            bench.tell(event)
            time.sleep(max(0.0, began + (i + 1) / rate - time.time()))
        spent.extend([began, time.time(), time.process_time() - used])
        over.set()

    threading.Thread(target=run, daemon=True).start()
    over.wait()
    return spent[0], spent[1], spent[2]


def write_run(root: Path, updates: int, model: tuple[str, int]) -> str:
    """A record of so many updates at a thousand a second, as a fit writes it, flush by flush; its id."""
    task: dict[str, Any] = {"model": model[0], "parameters": model[1]}
    id = f"{updates}-fit"
    with RunFolder.create(root, id, {"kind": "fit", "task": task}) as folder:
        settings = {"lr": 1e-3, "gradient_clip_val": 1.0}
        folder.append(RunStarted(id, "fit", settings, "cpu", LAYERS, updates, 10))
        rng = np.random.default_rng(0)
        for step in range(0, updates, 100):
            folder.append(flush(step, 100, 10 * step // updates, total=updates, rng=rng, clip=1.0))
            if (step + 100) % (updates // 10) == 0:
                folder.append(Validated(step + 100, 10 * step // updates, {"val_loss": 0.5}))
        folder.append(RunEnded("finished", updates, updates / 1000, metrics={"val_loss": 0.5}))
    return id
