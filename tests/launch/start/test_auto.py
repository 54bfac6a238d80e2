"""`fit("auto")`: the newest unfinished fit of the same code and settings goes on, and no other one."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from workbench.events import Message, Resumed
from workbench.launch.start import start_spec

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTH = 16  # updates of two epochs


@pytest.fixture(autouse=True)
def _new_process() -> None:
    start_spec._finished.clear()


CALLS = {"left": 10**6}
"""How many calls of the loss are left until it fails. It is no state of the loss, which a fit would restore."""


def failing(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    CALLS["left"] -= 1
    if CALLS["left"] < 0:
        raise ValueError("bad sample")
    return F.cross_entropy(output, target)


def bench(root: Path, **settings: Any) -> wb.Workbench:
    """A bench of "another process": all make the same one, in the same line."""
    torch.manual_seed(0)
    data = torch.randn(32, 4), torch.randint(0, 3, (32,))
    return wb.Workbench(
        nn.Linear(4, 3),
        train=data,
        loss=failing,
        batch_size=4,
        max_epochs=2,
        checkpoint_every=4,
        accelerator="cpu",
        dry_run=False,
        root=root,
        **settings,
    )


def interrupted(root: Path, **settings: Any) -> str:
    """The id of a fit that failed after ten updates, and left a checkpoint."""
    CALLS["left"] = 10
    job = bench(root, **settings).fit("auto")
    assert isinstance(job.exception(), ValueError)
    CALLS["left"] = 10**6
    return job.id


def resumed_from(run: wb.Run) -> list[str]:
    return [event.run for event in run.events if isinstance(event, Resumed)]


def notes(run: wb.Run) -> str:
    return " ".join(event.text for event in run.events if isinstance(event, Message))


def test_a_failed_fit_goes_on_and_a_finished_one_does_not(tmp_path: Path) -> None:
    calm = bench(tmp_path / "calm").fit().result()
    first = interrupted(tmp_path)
    run = bench(tmp_path).fit("auto").result()
    assert resumed_from(run) == [first]
    assert list(run.history["loss"]) == list(calm.history["loss"])
    assert len(run.history["loss"]) == LENGTH
    again = bench(tmp_path).fit("auto").result()  # the newest one has finished
    assert resumed_from(again) == []
    assert list(again.history["loss"]) == list(calm.history["loss"])


def test_other_settings_begin_afresh_and_another_place_does_not(tmp_path: Path) -> None:
    first = interrupted(tmp_path)
    assert resumed_from(bench(tmp_path).fit("auto", lr=0.5).result()) == []
    elsewhere = bench(tmp_path, keep_runs=7, enable_progress_bar=False)
    assert resumed_from(elsewhere.fit("auto").result()) == [first]


def test_other_code_begins_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(tmp_path)
    changed = bench(tmp_path)
    monkeypatch.setattr(type(changed), "_code", lambda bench: "model = nn.Linear(4, 4)")
    assert resumed_from(changed.fit("auto").result()) == []


@pytest.mark.parametrize(
    ("job", "silent", "writes", "goes_on"),
    [("77/1", 0.0, False, True), ("78/0", 0.0, True, False), ("78/0", 1000.0, False, True)],
    ids=["requeued", "it writes", "silent for long"],
)
def test_a_fit_of_another_host(
    job: str,
    silent: float,
    writes: bool,
    goes_on: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    first = interrupted(tmp_path)
    folder = tmp_path / "runs" / first
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**header, "host": "node7"}))
    record = folder / "metrics.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(line for line in lines if '"RunEnded"' not in line))
    os.utime(record, (time.time() - silent,) * 2)
    number, _, starts = job.partition("/")
    monkeypatch.setenv("SLURM_JOB_ID", number)
    monkeypatch.setenv("SLURM_RESTART_COUNT", starts)
    if writes:
        threading.Timer(0.5, os.utime, [record]).start()
    run = bench(tmp_path).fit("auto").result()
    assert resumed_from(run) == ([first] if goes_on else [])
    assert (f"{first} has the same code and settings, and still runs" in notes(run)) != goes_on


def test_each_fit_of_a_script_goes_on_by_itself(tmp_path: Path) -> None:
    """A script with a fit for each fold: the second one does not continue the third."""
    finished = bench(tmp_path).fit("auto").result()
    second = interrupted(tmp_path)
    start_spec._finished.clear()  # another process
    again = bench(tmp_path).fit("auto").result()
    assert resumed_from(again) == []
    assert list(again.history["loss"]) == list(finished.history["loss"])
    assert resumed_from(bench(tmp_path).fit("auto").result()) == [second]


def test_what_the_run_changed_itself_is_kept(tmp_path: Path) -> None:
    waiting = bench(tmp_path)
    CALLS["left"] = 10
    job = waiting.fit("auto", lr=0.1)
    job.change(lr=0.01, at=3)
    assert isinstance(job.exception(), ValueError)
    CALLS["left"] = 10**6
    run = bench(tmp_path).fit("auto", lr=0.1).result()
    assert resumed_from(run) == [job.id]
    assert run.history["lr"][-1] == pytest.approx(0.01)
