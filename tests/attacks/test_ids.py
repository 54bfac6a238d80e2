"""No run gets the id of another one, whatever was deleted and whatever is in the file of the numbers that were given."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.attacks.strangers import bench
from workbench.runs.folder.delete import remove_folder
from workbench.runs.folder.ids import new_id
from workbench.runs.store import RunFolder

GIVEN = ".given"


def test_a_deleted_run_finds_no_other_run_in_its_place(tmp_path: Path) -> None:
    b = bench(tmp_path)
    run = b.fit().result()
    b.delete(run)
    after = b.fit().result()
    assert after.id != run.id
    assert run.checkpoints == []
    with pytest.raises(FileNotFoundError):
        b.load(run)
    assert len(after.checkpoints) > 0


def test_a_run_that_keep_runs_deleted_leaves_its_number(tmp_path: Path) -> None:
    b = bench(tmp_path, keep_runs=1)
    ids = [b.fit().result().id for _ in range(3)]
    for run in list(b.runs):
        b.delete(run)
    ids.append(bench(tmp_path).fit().result().id)
    assert ids == ["0001-fit", "0002-fit", "0003-fit", "0004-fit"]


def test_a_folder_removed_by_hand_leaves_its_number(tmp_path: Path) -> None:
    ids = []
    for kind in ("fit", "find_lr", "fit"):
        ids.append(new_id(tmp_path, kind))
        shutil.rmtree(tmp_path / "runs" / ids[-1])
    assert ids == ["0001-fit", "0002-find_lr", "0003-fit"]


def test_the_numbers_are_known_after_many_old_runs_were_deleted(tmp_path: Path) -> None:
    """They may be deleted in any order; the file does not grow by them."""
    for number in (7, 1, 5):
        RunFolder.create(tmp_path, f"{number:04d}-fit", {}).close()
    for number in (7, 1, 5):  # of a version that kept no numbers
        assert remove_folder(tmp_path / "runs" / f"{number:04d}-fit")
    assert (tmp_path / "runs" / GIVEN).read_text().split() == ["0007"]
    assert new_id(tmp_path, "fit") == "0008-fit"


@pytest.mark.parametrize("found", [
    b"", b"\n", b"x", b"-5", b"1e9", b"9" * 5000, b"1000000000", b"\xff\xfe", b"0x10 nan", "٣".encode(), b"999999999999",
], ids=lambda found: str(found)[:16])  # fmt: skip
def test_a_file_of_somebody_s_making_is_no_number(tmp_path: Path, found: bytes) -> None:
    assert new_id(tmp_path, "fit") == "0001-fit"
    (tmp_path / "runs" / GIVEN).write_bytes(found)
    assert new_id(tmp_path, "fit") == "0002-fit"
    shutil.rmtree(tmp_path / "runs" / "0002-fit")
    assert new_id(tmp_path, "fit") == "0003-fit"  # what is added to it counts


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_what_is_no_file_is_left_alone(tmp_path: Path, kind: str) -> None:
    root, theirs = tmp_path / "root", tmp_path / "theirs"
    theirs.write_text("41")
    assert new_id(root, "fit") == "0001-fit"
    given = root / "runs" / GIVEN
    given.unlink()
    if kind == "pipe":
        os.mkfifo(given)
    elif kind == "folder":
        given.mkdir()
    else:
        given.symlink_to(theirs if kind == "link" else tmp_path / "nothing")
    assert bench(root).fit().result().id == "0002-fit"
    assert theirs.read_text() == "41"
    assert not (tmp_path / "nothing").exists()


def test_the_largest_number_blocks_nothing(tmp_path: Path) -> None:
    for name in ("999999999-fit", "1000000000-fit", "9" * 60 + "-fit"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / GIVEN).write_text("999999999")
    assert [new_id(tmp_path, "fit") for _ in range(2)] == ["1000000001-fit", "1000000002-fit"]
    assert bench(tmp_path).fit().result().status == "finished"
