"""What is deleted, and what was said before: fits by their own count, each named in the record of the fit before."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import workbench as wb
from tests.attacks.strangers import bench, messages, poison_checkpoints
from tests.runs.records import read_events
from workbench.events import Message, Resumed
from workbench.launch import job_folder
from workbench.launch.job import AnyJob
from workbench.runs.read import list_runs
from workbench.runs.run import Run
from workbench.ui.panel import Panel


def fitted(b: wb.Workbench, times: int, **settings: Any) -> list[AnyJob]:
    jobs = []
    for _ in range(times):
        jobs.append(b.fit(**settings))
        jobs[-1].result()
    return jobs


def named(run: Path | None) -> str:
    """What the record of a fit says of the fits that the next one deletes."""
    assert run is not None
    events = read_events(run)
    # before it another run speaks
    joint = max((n for n, event in enumerate(events) if isinstance(event, Resumed)), default=0)
    found = [
        e.text
        for e in events[joint:]
        if isinstance(e, Message) and "the next fit deletes" in e.text
    ]
    assert len(found) <= 1
    return found[0] if found else ""


def ids(b: wb.Workbench) -> list[str]:
    return [run.id for run in b.runs]


def test_checks_delete_no_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fit, then more validations than runs are kept: the fit and its checkpoints are there."""
    b = bench(tmp_path, num_sanity_val_steps=0)
    run = b.fit().result()
    for _ in range(52):
        b.validate().result()
    assert ids(b) == [run.id]
    assert Run.open(tmp_path / "runs" / run.id).checkpoints
    assert [found.kind for found in list_runs(tmp_path)].count("validate") == job_folder.OTHERS
    monkeypatch.setattr(job_folder, "OTHERS", 2)
    for job in (
        lambda: b.find_lr(num_training=3),
        lambda: b.predict(torch.zeros(4, 3)),
        b.validate,
    ):
        for _ in range(3):
            job().result()
    kinds = [found.kind for found in list_runs(tmp_path)]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "fit": 1,
        "validate": 2,
        "find_lr": 2,
        "predict": 2,
    }
    b.set(keep_runs=1)
    fitted(b, 3)
    kinds = [found.kind for found in list_runs(tmp_path)]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "fit": 1,
        "validate": 2,
        "find_lr": 2,
        "predict": 2,
    }


def test_a_fit_goes_only_after_a_record_has_named_it(tmp_path: Path) -> None:
    b = bench(tmp_path, keep_runs=3)
    folder = tmp_path / "runs"
    there: list[str] = []
    for number in range(1, 8):
        before = named(folder / there[-1]) if there else ""
        fitted(b, 1)
        gone = [id for id in there if not (folder / id).is_dir()]
        assert all(id in before for id in gone)
        there = ids(b)
        assert len(there) == min(number, 3)
    assert "0005-fit with all checkpoints" in named(folder / "0007-fit")
    assert "bench.set(keep_runs=4) keeps it" in named(folder / "0007-fit")
    b.set(keep_runs=4)
    fitted(b, 1)
    assert ids(b) == ["0005-fit", "0006-fit", "0007-fit", "0008-fit"]


def test_fewer_to_keep_delete_nothing_at_once(tmp_path: Path) -> None:
    b = bench(tmp_path)
    fitted(b, 4)
    b.set(keep_runs=2)
    (job,) = fitted(b, 1)
    assert len(ids(b)) == 5, "nobody had been told"
    assert "0001-fit, 0002-fit, 0003-fit and 0004-fit" in named(tmp_path / "runs" / job.id)
    (job,) = fitted(b, 1)
    assert ids(b) == ["0005-fit", "0006-fit"]
    assert any(
        text.startswith("deleted 0001-fit, 0002-fit, 0003-fit and 0004-fit")
        for text in messages(job)
    )


def test_a_fit_that_stays_longer_is_named_once(tmp_path: Path) -> None:
    """The first one stays, since each of the others starts from it."""
    b = bench(tmp_path, keep_runs=2)
    first, second = fitted(b, 2)
    third = b.fit(start=first.id, max_epochs=2).result()
    assert "0001-fit" in named(tmp_path / "runs" / second.id)
    assert "the next fit deletes 0002-fit with" in named(third.folder)
    assert "bench.set(keep_runs=4) keeps it" in named(third.folder)
    b.fit(start=first.id, max_epochs=2).result()
    assert ids(b) == ["0001-fit", "0003-fit", "0004-fit"]
    (job,) = fitted(b, 1)
    assert "0001-fit" not in ids(b)
    assert "the next fit deletes 0004-fit with" in named(tmp_path / "runs" / job.id)


def test_a_mark_whose_record_names_nothing_is_no_message(tmp_path: Path) -> None:
    b = bench(tmp_path, keep_runs=3)
    first, second = fitted(b, 2)
    (tmp_path / "runs" / first.id / "deleted-next").write_text(f"{second.id}\n")
    (job,) = fitted(b, 1)
    assert "the next fit deletes 0001-fit with" in named(tmp_path / "runs" / job.id)


def test_a_message_that_no_longer_holds_deletes_nothing_later(tmp_path: Path) -> None:
    """Named, then kept by a larger number: it is named anew before it goes."""
    b = bench(tmp_path, keep_runs=2)
    fitted(b, 2)
    b.set(keep_runs=10)
    fitted(b, 1)
    b.set(keep_runs=2)
    fitted(b, 1)
    assert ids(b)[0] == "0001-fit"
    fitted(b, 1)
    assert ids(b) == ["0004-fit", "0005-fit"]


def test_one_that_was_dropped_before_its_turn_has_told_nobody(tmp_path: Path) -> None:
    b = bench(tmp_path)
    fitted(b, 2)
    long = b.fit(max_epochs=100_000)
    b.set(keep_runs=1)
    dropped = b.fit()  # waits for the one that runs
    dropped.stop()
    long.stop()
    long.result()
    dropped.wait()
    before = ids(b)
    (job,) = fitted(b, 1)
    assert ids(b) == [*before, job.id]
    assert "0001-fit" in named(tmp_path / "runs" / job.id)


def test_the_panel_says_it_too(tmp_path: Path) -> None:
    b = bench(tmp_path, keep_runs=2)
    fitted(b, 1)
    panel = Panel.of(b)
    fitted(b, 1)
    until = time.monotonic() + 60
    while not any("the next fit deletes 0001-fit" in text for _, text in panel.notice.lines):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_resumed_fit_prunes_by_the_bench(tmp_path: Path) -> None:
    b = bench(tmp_path, keep_runs=1)
    run = b.fit().result()
    assert run.folder is not None
    poison_checkpoints(run.folder, keep_runs=1)
    other = bench(tmp_path)
    fitted(other, 2)
    for epochs in (2, 3):
        assert not named(other.fit(start=run.id, max_epochs=epochs).result().folder)
    assert len(ids(other)) == 5


def test_a_record_that_cannot_be_marked_keeps_its_run(tmp_path: Path) -> None:
    b = bench(tmp_path, keep_runs=2)
    fitted(b, 1)
    (tmp_path / "runs" / "0001-fit" / "deleted-next").mkdir()
    fitted(b, 1)
    fitted(b, 1)
    assert "0001-fit" in ids(b)


def test_a_link_or_a_strangers_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    fitted(bench(outside), 1)
    root = tmp_path / "root"
    b = bench(root, keep_runs=1)
    fitted(b, 1)
    (root / "runs" / "0000-fit").symlink_to(outside / "runs" / "0001-fit", target_is_directory=True)
    fitted(b, 3)
    assert (outside / "runs" / "0001-fit" / "run.json").exists()
    assert not (outside / "runs" / "0001-fit" / "deleted-next").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"devices": 2, "strategy": "pool"},
        pytest.param({"strategy": "launch"}, marks=pytest.mark.slow),
    ],
)
def test_other_processes_name_it_in_the_record_too(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    b = bench(tmp_path, keep_runs=2, **settings)
    run = b.fit().result(200)
    b.set(strategy="auto", devices=1, keep_runs=1)
    assert not named(run.folder)
    run = b.fit(**settings).result(200)
    assert "0001-fit and 0002-fit" in named(run.folder)
    b.fit().result()
    assert ids(b) == ["0003-fit"]
