"""Whose process has ended, and what can only be guessed: nothing is taken for dead that may be alive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.attacks.strangers import bench, messages
from workbench.events import Event, RunEnded, RunStarted
from workbench.runs.folder import alive
from workbench.runs.folder.delete import delete, mark_next, prune
from workbench.runs.read import list_runs, read_header, summary
from workbench.runs.run import Run
from workbench.runs.store import RunFolder

NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
WRITER = """
import sys
from pathlib import Path
from workbench.events import RunStarted
from workbench.runs.store import RunFolder
folder = RunFolder.create(Path(sys.argv[1]), "0001-fit", {"kind": "fit"})
folder.append(RunStarted("0001-fit", "fit", {}, "cpu"))
print("there", flush=True)
sys.stdin.read()
"""


def unseen_here(root: Path, id: str, age: float = 0.0, *, end: bool = False, **header: Any) -> Path:
    """A run whose process has ended, with a header as another place or another version would have written it."""
    gone = subprocess.run([sys.executable, "-c", ""], check=True) and {
        "pid": 4_000_000,
        "pid_started": 1.0,
    }
    events: list[Event] = [
        RunStarted(id, "fit", {}, "cpu"),
        *([RunEnded("finished", 1, 0.1)] if end else []),
    ]
    with RunFolder.create(root, id, {"kind": "fit", **gone, **header}) as folder:
        for event in events:
            folder.append(event)
    for file in folder.path.iterdir():
        os.utime(file, (time.time() - age,) * 2)
    return folder.path


ELSEWHERE = [
    {"pid_namespace": "pid:[1]"},
    {"pid_namespace": None},
    {"host": "another-host"},
    {"boot": "another-boot"},
    {"pid_started": None},
]


@pytest.mark.parametrize("header", ELSEWHERE)
@pytest.mark.parametrize("age", [0.0, 660.0, 30 * 86400.0])
def test_what_cannot_be_judged_counts_as_running_however_long_it_is_silent(
    tmp_path: Path, header: dict[str, Any], age: float
) -> None:
    path = unseen_here(tmp_path, "0001-fit", age, **header)
    found = summary(path)
    assert (found.status, found.over, found.unseen) == ("running", False, True)
    assert "running?" in repr(Run.open(path))
    mark_next(tmp_path, [path], "0002-fit")
    assert prune(tmp_path, "fit", 0) == []
    assert path.is_dir()


def test_the_header_of_the_version_before_cannot_be_judged_where_there_are_namespaces(
    tmp_path: Path,
) -> None:
    path = unseen_here(tmp_path, "0001-fit", 700.0)
    header = read_header(path)
    del header["pid_namespace"]
    (path / "run.json").write_text(json.dumps(header))
    assert summary(path).over == (not sys.platform.startswith("linux"))


def test_a_process_of_this_namespace_is_judged_exactly(tmp_path: Path) -> None:
    path = unseen_here(tmp_path, "0001-fit")
    assert summary(path).status == "failed"
    assert not summary(path).unseen
    live = unseen_here(tmp_path, "0002-fit", **alive.identity())
    assert (summary(live).status, summary(live).unseen) == ("running", False)
    assert (
        alive.liveness(alive.identity() | {"pid_started": alive.identity()["pid_started"] - 1})
        == "gone"
    )


@pytest.mark.skipif(subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode != 0 if sys.platform == "linux" else True,
                    reason="no PID namespace can be made here")  # fmt: skip
@pytest.mark.parametrize("age", [0.0, 700.0])
def test_a_run_of_another_container_is_not_pruned_under_its_writer(
    tmp_path: Path, age: float
) -> None:
    """The attack as it was: host and boot are the same there, and the process number means somebody else here."""
    command = [*NAMESPACE, sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "there\n"
        path = tmp_path / "runs" / "0001-fit"
        header = read_header(path)
        assert (header["host"], header["boot"]) == (
            alive.identity()["host"],
            alive.identity()["boot"],
        )
        for file in path.iterdir():
            os.utime(file, (time.time() - age,) * 2)
        assert (summary(path).status, summary(path).unseen) == ("running", True)
        mark_next(tmp_path, [path], "0002-fit")
        assert prune(tmp_path, "fit", 0) == []
        with pytest.raises(RuntimeError, match="may still run"):
            delete(path, {})
        assert path.is_dir()
        writer.communicate("")


def test_a_run_that_only_counts_as_running_takes_no_place_of_others(tmp_path: Path) -> None:
    """Else fifty of a container that is gone would have every new fit delete the one before."""
    for number in range(4):
        unseen_here(tmp_path, f"000{number}-fit", host="another")
    b = bench(tmp_path, keep_runs=3)
    own = [b.fit().result().id for _ in range(3)]
    assert [run.id for run in list_runs(tmp_path) if run.over] == own
    assert b.fit().result().id
    assert len([run for run in list_runs(tmp_path) if not run.over]) == 4


def test_a_person_who_knows_that_it_ended_deletes_it(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from workbench.cli import main

    first, second = (
        unseen_here(tmp_path, "0001-fit", host="another"),
        unseen_here(tmp_path, "0002-fit", boot="another"),
    )
    live = unseen_here(tmp_path, "0003-fit", **alive.identity())
    b = bench(tmp_path)
    with pytest.raises(
        RuntimeError, match=r"may still run.*bench\.delete\('0001-fit', force=True\)"
    ):
        b.delete("0001-fit")
    b.delete("0001-fit", force=True)
    assert not first.exists()
    for force in (False, True):
        with pytest.raises(RuntimeError, match="is not over"):
            b.delete("0003-fit", force=force)
    assert live.exists()

    def command(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["runs", *arguments, "--root", str(tmp_path)])
        return done.exit_code, done.output

    code, out = command("list")
    assert code == 0
    assert "0002-fit  running?" in out
    assert "workbench runs delete" in out
    code, out = command("delete", "0002-fit")
    assert code == 1
    assert "may still run" in out
    assert second.exists()
    assert command("prune", "--keep", "0", "--yes")[0] == 0
    assert second.exists()
    assert command("delete", "2", "--force")[0] == 0
    assert not second.exists()
    assert command("delete", "../x")[0] == 1


def test_the_panels_table_says_that_it_does_not_know(tmp_path: Path) -> None:
    from workbench.runs.tables.brief import RunBrief
    from workbench.ui.canvas.runs.runs_page import Pages, View

    path = unseen_here(tmp_path, "0001-fit", host="another")
    page = Pages().page(View(), [RunBrief.read(path)], (1, 0), {})
    assert page.parts[0][0]["status"] == "running?"


def test_who_attaches_to_it_is_told(tmp_path: Path) -> None:
    unseen_here(tmp_path, "0001-fit", host="another")
    job = wb.attach("0001-fit", tmp_path)
    try:
        assert "whether 0001-fit still runs is not known" in messages(job)[0]
        assert job.status == "running"
        with RunFolder.take_over(tmp_path / "runs" / "0001-fit") as folder:  # for the test to end
            folder.append(RunEnded("finished", 1, 0.1))
    finally:
        assert job.wait(60)
