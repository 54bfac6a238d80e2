"""Deleting a run: it is gone, and what must stay stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runs.tables.test_brief import events, recorded
from workbench.runs.folder.delete import delete
from workbench.runs.read import list_runs
from workbench.runs.store import RunFolder


def test_a_run_is_gone_for_good(tmp_path: Path) -> None:
    path, other = recorded(tmp_path, events(20)), recorded(tmp_path, events(20), "0002-fit")
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / "start.safetensors").write_bytes(b"weights")
    delete(path, {})
    assert not path.exists()
    assert [run.path for run in list_runs(tmp_path)] == [other]
    assert [entry.name for entry in (tmp_path / "runs").iterdir() if entry.is_dir()] == ["0002-fit"]


def test_one_that_goes_on_or_is_needed_stays(tmp_path: Path) -> None:
    path = recorded(tmp_path, events(20))
    with pytest.raises(RuntimeError, match=r"0001-fit is needed: 0003-fit starts from it"):
        delete(path, {"0001-fit": "0003-fit"})
    with RunFolder.create(tmp_path, "0002-fit", {"kind": "fit"}) as folder:
        folder.append(events(20)[0])
        with pytest.raises(
            RuntimeError,
            match=r"0002-fit is not over \(running, process \d+ on .*\): stop it first",
        ):
            delete(folder.path, {})
    assert len(list_runs(tmp_path)) == 2
