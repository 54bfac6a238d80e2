"""What a run that goes on takes over: the record until a checkpoint, its files."""

import os

import numpy as np
import pytest

from workbench.events import (
    Changed,
    CurvePoint,
    Logged,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    Saved,
    StatusChanged,
    StepsDone,
    Validated,
    pack,
)
from workbench.runs.checkpoints import Checkpoint
from workbench.runs.folder import inherited


def rows(step, count, every=1, layers=2):
    numbers = step + every * np.arange(count)
    return StepsDone(step, every, count, 0, 1.0, {
        "loss": pack(numbers), "lr": pack(np.full(count, 0.1)), "train_acc": pack(-numbers),
        "layer_norms": pack(np.stack([numbers + i for i in range(layers)], 1)),
    })  # fmt: skip


def point(step, epoch=0, end=False, name=None):
    return Checkpoint(name=name or f"{step:08d}{'-end' * end}", step=step, epoch=epoch, end=end, monitor=None, value=None,
                      resumable=True, why=None, path=None)  # fmt: skip


STARTED = RunStarted("0001-fit", "fit", {}, "cpu")


def test_a_flush_that_reaches_beyond_is_cut():
    events = [STARTED, rows(0, 4), rows(4, 10), Message("later", step=14)]
    found = inherited.record_until(events, point(6), -1)
    assert [(e.step, e.rows) for e in found] == [(0, 4), (4, 2)]
    assert found[0] is events[1]
    assert found[1].array("loss").tolist() == [4, 5]
    assert found[1].array("train_acc").tolist() == [-4, -5]
    assert found[1].array("layer_norms").tolist() == [[4, 5], [5, 6]]


@pytest.mark.parametrize(
    ("step", "steps"),
    [(0, []), (1, [0]), (5, [0]), (6, [0, 5]), (11, [0, 5, 10]), (99, [0, 5, 10])],
)
def test_a_flush_of_every_fifth_update(step, steps):
    found = inherited.record_until([rows(0, 3, every=5)], point(step), -1)
    assert [n for e in found for n in e.steps] == steps


def test_what_came_before_it_was_saved_is_there_and_what_came_behind_is_not():
    before = [STARTED, rows(0, 5), Changed(5, {"lr": 1.0}), CurvePoint(0, 0.1, 1.0, 1.0), Validated(5, 0, {"val_loss": 1.0}),
              Message("before", step=5), Resumed(2, "0000-fit", "00000002"), Saved(5, 0, "00000005")]  # fmt: skip
    after = [Changed(5, {"lr": 2.0}), CurvePoint(1, 0.2, 1.0, 1.0), rows(5, 5), Message("after", step=5),
             RunEnded("finished", 10, 1.0)]  # fmt: skip
    assert inherited.record_until([*before, *after], point(5), 5) == before[1:]


def test_one_name_saved_twice_is_the_later_one():
    check = Validated(5, 0, {"val_loss": 1.0})
    events = [
        rows(0, 5),
        Saved(5, 0, "00000005"),
        check,
        Saved(5, 0, "00000005", best=True),
        Message("x", step=5),
    ]
    assert inherited.record_until(events, point(5), 5) == events[:4]


def test_where_the_saving_was_not_told():
    """Killed between the two: the record ends with what the checkpoint came behind."""
    check, logged = Validated(5, 0, {"val_loss": 1.0}), Logged(5, 0, {"acc": 1.0})
    events = [rows(0, 5), check, logged, Changed(6, {"lr": 2.0}), rows(6, 1)]
    assert inherited.record_until(events, point(5, epoch=1), 5) == events[:3]
    # A second writing under the same name, which only the first one is told of.
    again = [rows(0, 5), Saved(5, 0, "00000005"), check, logged]
    assert inherited.record_until(again, point(5, epoch=1), 5) == again
    assert inherited.record_until(again, point(5, epoch=0), -1) == again[:2]


def test_what_tells_of_a_job_alone_is_left_out():
    events = [
        STARTED,
        StatusChanged("paused", 3),
        StatusChanged("running", 3),
        rows(0, 5),
        RunEnded("stopped", 5, 1.0),
    ]
    assert inherited.record_until(events, point(5, end=True), -1) == [events[3]]


@pytest.mark.parametrize(("events", "step", "lacks"), [
    ([rows(0, 5)], 5, None), ([rows(0, 5)], 6, 5), ([], 0, None), ([], 3, 0), ([rows(0, 3, every=5)], 15, None),
    ([rows(0, 3, every=5)], 16, 15), ([rows(0, 5), rows(5, 2)], 9, 7),
])  # fmt: skip
def test_what_a_record_lacks(events, step, lacks):
    assert inherited.missing(events, step) == lacks


# -- files


@pytest.fixture
def runs(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new" / "checkpoints"
    new.mkdir(parents=True)
    for name in ("00000003", "00000006", "00000009", "00000009-end"):
        folder = old / "checkpoints" / name
        folder.mkdir(parents=True)
        step, end = int(name[:8]), name.endswith("end")
        (folder / "info.json").write_text(
            f'{{"step": {step}, "epoch": 0, "end": {str(end).lower()}, "monitor": null, "value": null, "mode": null, "best": false, '
            '"resumable": true, "why": null, "format": 1, "time": 0.0}'
        )
        (folder / "state.pt").write_bytes(b"x" * 100)
    (old / "checkpoints" / "start.safetensors").write_bytes(b"s" * 100)
    return old, new


def test_its_files_are_taken_over_until_there(runs):
    old, new = runs
    inherited.take_over(old, new, point(9))
    assert sorted(p.name for p in new.iterdir()) == [
        "00000003",
        "00000006",
        "00000009",
        "start.safetensors",
    ]
    assert (new / "00000006" / "state.pt").read_bytes() == b"x" * 100
    for file in (old / "checkpoints" / "00000006").iterdir():
        file.unlink()  # the parent may lose its own
    assert (new / "00000006" / "state.pt").read_bytes() == b"x" * 100


def test_a_file_system_without_links(runs, monkeypatch):
    def no_links(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    old, new = runs
    inherited.take_over(old, new, point(9, end=True))
    there = sorted(p.relative_to(new).as_posix() for p in new.rglob("*") if p.is_file())
    assert there == sorted(
        p.relative_to(old / "checkpoints").as_posix()
        for p in (old / "checkpoints").rglob("*")
        if p.is_file()
    )


def test_a_full_disk_leaves_nothing_half_written(runs, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr("shutil.copyfile", full)
    old, new = runs
    with pytest.raises(OSError, match="No space"):
        inherited.take_over(old, new, point(9))
    assert list(new.iterdir()) == []
