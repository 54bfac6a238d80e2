"""The ids of runs: counted up, unique, and names of folders within runs/."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from tests.runs.records import write_run
from workbench.runs.folder.ids import check_id, new_id
from workbench.runs.store import RunFolder


@pytest.mark.parametrize(
    "id",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "/etc",
        "../up",
        "a..b",
        ".hidden",
        "-x",
        "a b",
        "a\0",
        "x" * 65,
        "a.",
    ],
)
def test_ids_stay_within_the_folder(tmp_path: Path, id: str) -> None:
    with pytest.raises(ValueError, match="id"):
        RunFolder.create(tmp_path, id, {})
    assert not list(tmp_path.rglob("run.json"))


def test_names_of_one_s_own_are_fine() -> None:
    for id in ("baseline", "2024-05-01_a", "größe.v2", "0012-fit"):
        assert check_id(id) == id


@pytest.mark.skipif(os.name == "nt", reason="no modes here")
def test_a_private_root_is_closed_to_other_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mode(path: Path) -> int:
        return stat.S_IMODE(path.stat().st_mode)

    write_run(tmp_path / "open", "0001-fit")
    before = mode(tmp_path / "open")
    monkeypatch.setenv("WORKBENCH_PRIVATE", "1")
    write_run(tmp_path / "new" / "root", "0001-fit")
    assert mode(tmp_path / "new" / "root") == mode(tmp_path / "new" / "root" / "runs") == 0o700
    write_run(tmp_path / "open", "0002-fit")
    assert (mode(tmp_path / "open"), mode(tmp_path / "open" / "runs")) == (before, 0o700)


def test_the_root_is_hidden_from_git_unless_it_holds_other_things(tmp_path: Path) -> None:
    write_run(tmp_path / ".workbench", "a")
    write_run(tmp_path / ".workbench", "b")
    assert (tmp_path / ".workbench" / ".gitignore").read_text() == "*\n"
    project = tmp_path / "project"
    project.mkdir()
    (project / "model.py").write_text("x = 1\n")
    write_run(project, "a")
    assert not (project / ".gitignore").exists()


def test_ids_count_up(tmp_path: Path) -> None:
    assert [new_id(tmp_path, k) for k in ("fit", "find_lr", "a/b c")] == [
        "0001-fit",
        "0002-find_lr",
        "0003-a-b-c",
    ]
    write_run(tmp_path, "0041-fit")
    write_run(tmp_path, "baseline")
    write_run(tmp_path, "2031-05-01")
    assert new_id(tmp_path, "fit") == "0042-fit"
    RunFolder.create(tmp_path, "0042-fit", {}).close()  # the reserved folder may be used


def _ids(root: str, kind: str, out: multiprocessing.Queue[list[str]]) -> None:
    out.put([new_id(Path(root), kind) for _ in range(15)])


def test_ids_are_unique_among_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    workers = [
        context.Process(target=_ids, args=(str(tmp_path), kind, out))
        for kind in ("fit", "fit", "find_lr")
    ]
    for worker in workers:
        worker.start()
    ids = [id for _ in workers for id in out.get(timeout=240)]
    for worker in workers:
        worker.join()
    numbers = [id.split("-")[0] for id in ids]
    assert len(ids) == len(set(numbers)) == 45
