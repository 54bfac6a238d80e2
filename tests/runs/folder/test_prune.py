"""Deleting the oldest runs: those that are over and named, and nothing outside the root."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.records import write_run
from workbench.launch.job_folder import run_folder
from workbench.runs.folder.delete import mark_next, next_to_go, oldest_beyond_keep, prune
from workbench.runs.read import list_runs
from workbench.runs.tables.run_list import RunList
from workbench.ui.canvas.runs.runs_table import fits


def a_dead_process() -> dict[str, object]:
    """The identity of a process that is gone."""
    code = "import json; from workbench.runs.folder.alive import identity; print(json.dumps(identity()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(out.stdout)
    return found


def prune_named(root: Path, keep: int) -> list[str]:
    """Prune as a fit does that comes after one whose record names all."""
    mark_next(root, [run.path for run in list_runs(root)], "last")
    return prune(root, "fit", keep)


def test_prune_takes_the_oldest_that_are_over(tmp_path: Path) -> None:
    for i in range(6):
        write_run(tmp_path, f"000{i}-fit", created=float(i), over=i != 1)
    assert prune_named(tmp_path, 10) == []
    # 0001-fit runs: this process is its writer
    assert prune_named(tmp_path, 3) == ["0000-fit", "0002-fit", "0003-fit"]
    assert [r.id for r in list_runs(tmp_path)] == ["0001-fit", "0004-fit", "0005-fit"]
    assert prune_named(tmp_path, 0) == ["0004-fit", "0005-fit"]
    assert sorted(os.listdir(tmp_path / "runs")) == [".given", "0001-fit"]
    with pytest.raises(ValueError):
        prune(tmp_path, "fit", -1)
    assert prune(tmp_path / "nowhere", "fit", 0) == []


def test_prune_takes_no_fit_that_was_not_named(tmp_path: Path) -> None:
    paths = [write_run(tmp_path, f"000{i}-fit", created=float(i)) for i in range(4)]
    assert prune(tmp_path, "fit", 1) == []
    assert next_to_go(tmp_path, 2, "0003-fit") == paths[:3]  # with one more there would be five
    mark_next(tmp_path, paths[:1], "0003-fit")
    assert prune(tmp_path, "fit", 1) == ["0000-fit"]
    mark_next(tmp_path, paths[1:], "0003-fit")
    mark_next(tmp_path, [], "0004-fit")  # that no longer holds
    assert prune(tmp_path, "fit", 1) == []


def test_prune_keeps_to_one_kind(tmp_path: Path) -> None:
    for i in range(4):
        write_run(
            tmp_path, f"000{i}-fit", created=float(i), kind="validate" if i % 2 else "find_lr"
        )
    assert prune(tmp_path, "validate", 1) == ["0001-fit"]
    assert prune(tmp_path, "fit", 0) == []
    assert [r.id for r in list_runs(tmp_path)] == ["0000-fit", "0002-fit", "0003-fit"]


def test_prune_takes_the_dead_and_spares_what_may_live(tmp_path: Path) -> None:
    dead = a_dead_process()
    write_run(tmp_path, "0001-dead", over=False, **dead)
    write_run(tmp_path, "0002-elsewhere", over=False, **dead | {"host": "another-machine"})
    write_run(tmp_path, "0003-rebooted", over=False, **dead | {"boot": "another boot"})
    write_run(tmp_path, "0004-contained", over=False, **dead | {"pid_namespace": "pid:[1]"})
    write_run(tmp_path, "0005-nameless", over=False, pid=None)
    for file in (tmp_path / "runs").glob("*/*"):
        then = file.stat().st_mtime - 30 * 86400
        os.utime(file, (then, then))
    assert prune_named(tmp_path, 0) == ["0001-dead"]


def test_prune_stays_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    (outside / "run.json").write_text("{}")
    (outside / "metrics.jsonl").write_text("")
    root = tmp_path / "root"
    path = write_run(root, "0001-fit", created=5.0)
    (path / "link").symlink_to(outside, target_is_directory=True)
    (root / "runs" / "linked").symlink_to(outside, target_is_directory=True)
    (root / "runs" / ".gone-link").symlink_to(outside, target_is_directory=True)
    (root / "runs" / "notes").mkdir()
    (root / "runs" / "notes" / "mine.txt").write_text("keep")
    (root / "runs" / "file.txt").write_text("keep")
    assert prune_named(root, 0) == ["0001-fit"]
    assert not path.exists()
    assert (outside / "precious").read_text() == "keep"
    assert (root / "runs" / "notes" / "mine.txt").exists()
    assert (root / "runs" / "file.txt").exists()
    linked = tmp_path / "linked"
    linked.mkdir()
    write_run(root, "0002-fit")
    (linked / "runs").symlink_to(root / "runs", target_is_directory=True)
    assert prune(linked, "fit", 0) == []


def test_what_a_killed_prune_left_goes_next_time(tmp_path: Path) -> None:
    write_run(tmp_path, "a")
    (tmp_path / "runs" / "a").rename(tmp_path / "runs" / ".gone-a")
    assert list_runs(tmp_path) == []
    prune(tmp_path, "fit", 5)
    assert os.listdir(tmp_path / "runs") == []


def test_the_newest_is_that_of_the_highest_number(tmp_path: Path) -> None:
    """The clock was set back before each of these runs was made; there are more than 9999 of them; one was renamed by its user."""
    ids = ["0002-fit", "0011-fit", "0100-fit", "9999-fit", "10000-fit", "10001-fit"]
    for at, id in enumerate(ids):
        write_run(tmp_path, id, created=1000.0 - at)
    write_run(tmp_path, "my-best", created=2000.0)
    assert [run.id for run in list_runs(tmp_path)] == ["my-best", *ids]
    assert RunList.of(tmp_path)[-1].id == "10001-fit"
    assert [path.name for path in fits(tmp_path)] == [*ids[::-1], "my-best"]
    with pytest.raises(FileNotFoundError, match="there are: 10001-fit, 10000-fit, 9999-fit"):
        run_folder(tmp_path, "0001-fit")
    assert [run.id for run in oldest_beyond_keep(tmp_path, 4)] == ids[:2]
    assert prune_named(tmp_path, 2) == ids[:4]
    assert [path.name for path in next_to_go(tmp_path, 2, ids[-1])] == ["10000-fit"]
    assert [run.id for run in list_runs(tmp_path)] == ["my-best", *ids[4:]]
