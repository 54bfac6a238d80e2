"""A fit that is killed at any moment and resumed, again and again, ends to the bit where an undisturbed one does."""

import random
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import warm
from tests.conftest import count
from workbench.runs.checkpoints import find, list_checkpoints
from workbench.runs.read import list_runs
from workbench.runs.run import Run

PLACES = ("update", "validation", "checkpoint", "rename", "record", "outside")
TIMES = {"update": 90, "validation": 70, "checkpoint": 25, "rename": 25, "record": 4}
"""How often about a whole run comes there."""
KILLED = -9


def begin(root: Path, start: str, place: str = "never", count: int = 0) -> warm.Script:
    """A victim in a process of its own."""
    return warm.python().start(
        "-m", "tests.killed.victim", str(root), start, place, str(count), leave=True
    )


def end(process: warm.Script) -> int:
    """Its exit code, when it has ended."""
    _, said = process.communicate(250)
    code = process.wait()
    assert code in (0, KILLED), said
    return code


def live(
    root: Path, start: str, place: str = "never", count: int = 0, seconds: float | None = None
) -> int:
    process = begin(root, start, place, count)
    if seconds is not None:
        time.sleep(seconds)
        process.kill()
    return end(process)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Run:
    root = tmp_path_factory.mktemp("undisturbed")
    assert live(root, "fresh") == 0
    return Run.open(list_runs(root)[-1].path)


def readable(root: Path) -> str:
    """Where the next process starts from; whatever is there can be read."""
    start = "fresh"
    for found in list_runs(root):
        run = Run.open(found.path)
        assert run.status in ("failed", "finished")
        steps = run.history["step"].tolist()
        assert steps == list(range(len(steps)))
        for kept in list_checkpoints(found.path):
            assert kept.resumable
            assert kept.step <= len(steps), "a checkpoint lies behind its record"
            assert load_file(kept.path / "model.safetensors")
            start = found.id
    return start


@pytest.mark.parametrize("seed", range(count(2, 50)))
def test_killed_and_resumed(seed, undisturbed, tmp_path):
    draw = random.Random(seed)
    first = PLACES[seed % len(PLACES)]
    for place in [first, draw.choice(PLACES)]:
        start = readable(tmp_path)
        if place == "outside":
            code = live(tmp_path, start, seconds=draw.uniform(0.1, 1.5))
        else:
            code = live(tmp_path, start, place, draw.randint(1, TIMES[place]))
        if code == 0:
            break
    start = readable(tmp_path)
    ended = list_runs(tmp_path) and Run.open(list_runs(tmp_path)[-1].path).status == "finished"
    if not ended:
        assert live(tmp_path, start) == 0
    run = Run.open(list_runs(tmp_path)[-1].path)
    assert run.status == "finished"
    for name, column in undisturbed.history.items():
        np.testing.assert_array_equal(run.history[name], column, err_msg=name)
    for name, column in undisturbed.validation.items():
        np.testing.assert_array_equal(run.validation[name], column, err_msg=name)
    assert run.folder is not None
    assert undisturbed.folder is not None
    mine, theirs = (
        load_file(find(r.folder, "last").path / "model.safetensors") for r in (run, undisturbed)
    )
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[name], theirs[name]) for name in theirs)
