"""A run's id is the name of its folder, whatever its record says: nothing done to a copied or foreign folder reaches another run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import workbench as wb
from tests.attacks.strangers import bench
from workbench.events import Resumed, RunStarted
from workbench.launch.attached.attach import attach


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The root of a user with the fit 0001-fit, and the fit of a stranger, which has the same id."""
    mine, theirs = tmp_path_factory.mktemp("mine"), tmp_path_factory.mktemp("theirs")
    bench(mine).fit().result()
    return mine, bench(theirs, lr=0.05).fit(max_epochs=3).result().folder or theirs


@pytest.fixture
def root(trained: tuple[Path, Path], tmp_path: Path) -> Path:
    """The user's root, into which the stranger's folder was put as 0099-theirs."""
    mine, theirs = trained
    shutil.copytree(mine, tmp_path / "root")
    shutil.copytree(theirs, tmp_path / "root" / "runs" / "0099-theirs")
    return tmp_path / "root"


def test_a_folder_of_somebody_else_is_called_by_its_name(root: Path) -> None:
    b = bench(root)
    mine, theirs = b.runs
    assert [(run.id, run.step) for run in b.runs] == [("0001-fit", 2), ("0099-theirs", 6)]
    assert (b.runs["99"].id, wb.Run.open(root / "runs" / "0099-theirs").id) == (
        "0099-theirs",
        "0099-theirs",
    )
    assert [event.run for event in theirs.events if isinstance(event, RunStarted)] == [
        "0099-theirs"
    ]
    assert repr(wb.compare(mine, theirs)).splitlines()[0].split() == ["0001-fit", "0099-theirs"]
    b.load(theirs.id)
    weights = b.model.weight.clone()
    b.load("0001-fit")
    assert not weights.equal(b.model.weight)
    job = attach("0099-theirs", root)
    assert (
        {event.run for event in job.events if isinstance(event, RunStarted)}
        == {job.id}
        == {"0099-theirs"}
    )
    assert job.result().id == "0099-theirs"
    again = b.fit(start=theirs.id, max_epochs=4).result()
    assert (
        again.id,
        again.step,
        [event.run for event in again.events if isinstance(event, Resumed)],
    ) == ("0100-fit", 8, ["0099-theirs"])


def test_deleting_it_deletes_no_run_of_the_user(root: Path) -> None:
    b = bench(root)
    b.annotate(b.runs[-1].id, name="not mine")
    assert b.runs[0].name == ""
    b.delete(b.runs[-1].id)
    assert [run.id for run in b.runs] == ["0001-fit"]


def test_a_renamed_folder_has_its_new_name_and_keep_runs_leaves_it(root: Path) -> None:
    runs = root / "runs"
    (runs / "0001-fit").rename(runs / "the-best")
    b = bench(root, keep_runs=1)
    assert [run.id for run in b.runs] == ["the-best", "0099-theirs"]
    for call in (b.load, b.delete, b.show):
        with pytest.raises(
            FileNotFoundError, match=r"no run '0001-fit'.*there are: 0099-theirs, the-best"
        ):
            call("0001-fit")
    for _ in range(3):
        b.fit().result()
    assert [run.id for run in b.runs] == ["the-best", "0102-fit"]  # nobody but its owner deletes it
    b.delete("the-best")
    assert len(b.runs) == 1


def test_a_run_object_finds_its_folder_from_anywhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root / "runs" / "0099-theirs")
    assert wb.Run.open(Path()).id == "0099-theirs"
    link = tmp_path / "link"
    link.symlink_to(root / "runs" / "0099-theirs")
    assert wb.Run.open(link).id == "0099-theirs"


def test_an_id_in_other_letters_is_no_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system that does not distinguish them, there is a folder of that name. A job may need the run by its own id."""
    real = Path.is_dir
    monkeypatch.setattr(
        Path, "is_dir", lambda path, **options: real(path.parent / path.name.lower(), **options)
    )
    b = bench(root)
    for call in (b.delete, b.load, b.show, lambda id: attach(id, root)):
        with pytest.raises(FileNotFoundError, match="no run '0001-FIT'"):
            call("0001-FIT")
    assert sorted(name for name in os.listdir(root / "runs") if not name.startswith(".")) == [
        "0001-fit",
        "0099-theirs",
    ]


def test_runs_of_two_roots_with_one_id_are_told_apart(trained: tuple[Path, Path]) -> None:
    mine, theirs = wb.Run.open(trained[0] / "runs" / "0001-fit"), wb.Run.open(trained[1])
    both = wb.compare(mine, theirs)
    names = [f"0001-fit ({trained[0].name})", f"0001-fit ({trained[1].parents[1].name})"]
    assert all(name in repr(both).splitlines()[0] for name in names)
    assert [line.name for line in both.chart().series if line.name] == names
    assert [*both.to_pandas().index] == names
