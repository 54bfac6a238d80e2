"""Which checkpoints a run has, which is meant, and which may go."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.runs.checkpoints import (
    Checkpoint,
    best_values,
    find,
    list_checkpoints,
    mode_of,
    name_of,
    obsolete,
    replaced,
)
from workbench.settings import SettingsError

INFO = {
    "epoch": 0, "monitor": None, "value": None, "mode": "min", "best": False, "resumable": True, "why": None, "format": 1,
    "time": 0.0,
}  # fmt: skip


def put(run, step, value=None, *, end=False, **info):
    folder = run / "checkpoints" / name_of(step, end)
    folder.mkdir(parents=True)
    known = {
        **INFO,
        "step": step,
        "end": end,
        "value": value,
        "monitor": None if value is None else "val_loss",
        **info,
    }
    (folder / "info.json").write_text(json.dumps(known))
    return folder


def test_they_are_listed_by_age_and_what_is_no_checkpoint_is_not(tmp_path):
    put(tmp_path, 900)
    put(tmp_path, 1200, end=True)
    put(tmp_path, 1200, 0.5)
    put(tmp_path, 123456789)
    torn = put(tmp_path, 1000)
    (torn / "info.json").write_text("{")
    (tmp_path / "checkpoints" / "00001100").mkdir()
    (tmp_path / "checkpoints" / "start.safetensors").write_bytes(b"")
    found = list_checkpoints(tmp_path)
    assert [one.name for one in found] == ["00000900", "00001200", "00001200-end", "123456789"]
    assert found[1] == Checkpoint(
        "00001200",
        1200,
        0,
        False,
        "val_loss",
        0.5,
        True,
        None,
        tmp_path / "checkpoints" / "00001200",
        "min",
    )
    assert list_checkpoints(tmp_path / "none") == []


@pytest.mark.parametrize(
    "info",
    [{"step": -5}, {"step": 10**30}, {"step": 1e300}, {"step": 6}, {"end": True}, "[" * 100_000],
)
def test_absurd_info_makes_none(info, tmp_path):
    """What says to be another one than its directory would be taken for the last, and found by no number."""
    put(tmp_path, 3)
    folder = put(tmp_path, 5)
    known = json.loads((folder / "info.json").read_text())
    (folder / "info.json").write_text(
        info if isinstance(info, str) else json.dumps({**known, **info})
    )
    assert [one.step for one in list_checkpoints(tmp_path)] == [3]
    assert find(tmp_path, "last").step == 3


def test_one_whose_replacement_was_never_finished_is_there(tmp_path):
    put(tmp_path, 5, 0.25).rename(replaced(tmp_path / "checkpoints" / "00000005"))
    (found,) = list_checkpoints(tmp_path)
    assert (found.name, found.value, found.path.name) == ("00000005", 0.25, ".00000005.old")
    put(tmp_path, 5, 0.125)
    (found,) = list_checkpoints(tmp_path)
    assert (found.name, found.value, found.path.name) == ("00000005", 0.125, "00000005")


def test_last_best_a_step_and_a_name(tmp_path):
    put(tmp_path, 10, 0.5)
    put(tmp_path, 20, 0.3)
    put(tmp_path, 30, 0.4)
    put(tmp_path, 30, end=True)
    assert find(tmp_path, "last").name == "00000030-end"
    assert find(tmp_path, "best").name == "00000020"
    assert find(tmp_path, 10).name == "00000010"
    assert find(tmp_path, 30).name == "00000030-end"
    assert find(tmp_path, "00000030").name == "00000030"


def test_what_is_not_there_is_told_with_what_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no checkpoint 'last'; it has: none"):
        find(tmp_path, "last")
    put(tmp_path, 10)
    with pytest.raises(
        FileNotFoundError, match=r"has no checkpoint 7; it has: 00000010 \(update 10\)"
    ):
        find(tmp_path, 7)
    with pytest.raises(
        FileNotFoundError, match="has no best checkpoint: none with a value of a monitor"
    ):
        find(tmp_path, "best")


def test_the_best_is_by_the_monitor_that_was_watched_last(tmp_path):
    put(tmp_path, 10, 0.1)
    put(tmp_path, 20, 0.6, monitor="val_accuracy", mode="max")
    put(tmp_path, 30, 0.7, monitor="val_accuracy", mode="max")
    put(tmp_path, 40, 0.5, monitor="val_accuracy", mode="max")
    assert find(tmp_path, "best").step == 30
    assert best_values(list_checkpoints(tmp_path), "val_accuracy") == [0.7, 0.6, 0.5]
    assert [one.step for one in obsolete(list_checkpoints(tmp_path), 1, "max")] == [10, 20]


def test_a_value_that_is_no_number_is_none(tmp_path):
    put(tmp_path, 10, float("nan"))
    put(tmp_path, 20, float("-inf"))
    assert [one.value for one in list_checkpoints(tmp_path)] == [None, None]


def made(values):
    """Checkpoints of steps 1, 2, … with these values."""
    names = ((step, value, name_of(step, False)) for step, value in enumerate(values, 1))
    return [
        Checkpoint(n, s, 0, False, None if v is None else "m", v, True, None, Path(n))
        for s, v, n in names
    ]


@given(
    values=st.lists(st.one_of(st.none(), st.integers(-3, 3).map(float))), top_k=st.integers(-1, 4),
    mode=st.sampled_from(["min", "max"]),
)  # fmt: skip
def test_the_last_and_the_best_stay(values, top_k, mode):
    there = made(values)
    gone = obsolete(there, top_k, mode)
    stay = [one for one in there if one not in gone]
    if top_k < 0:
        assert not gone
        return
    assert there[-1:] == stay[-1:]
    known = sorted((v for v in values if v is not None), reverse=mode == "max")
    kept = sorted((one.value for one in stay[:-1] if one.value is not None), reverse=mode == "max")
    last = [] if not there or there[-1].value is None else [there[-1].value]
    assert sorted([*kept, *last], reverse=mode == "max")[:top_k] == known[:top_k]
    assert len(stay) <= top_k + 1


def test_the_end_and_the_check_of_one_moment_take_one_place(tmp_path):
    put(tmp_path, 10, 0.3)
    put(tmp_path, 20, 0.4)
    put(tmp_path, 30, 0.1)
    put(tmp_path, 30, 0.1, end=True)
    there = list_checkpoints(tmp_path)
    assert [one.name for one in obsolete(there, 2, "min")] == ["00000020"]
    assert [one.name for one in obsolete(there, 1, "min")] == ["00000010", "00000020"]
    assert [one.name for one in obsolete(there, 0, "min")] == ["00000010", "00000020", "00000030"]
    # and so does whoever asks if a value is among the best
    assert best_values(there, "val_loss") == [0.1, 0.3, 0.4]
    assert find(tmp_path, "best").end


def test_of_equal_ones_the_earlier_stays():
    """As in Lightning, whose callback wants a better value before it replaces a checkpoint."""
    assert [one.step for one in obsolete(made([0.5, 0.5, 0.5, None]), 1, "min")] == [2, 3]
    assert [one.step for one in obsolete(made([0.5, 0.9, 0.9, 0.8]), 1, "max")] == [1, 3]
    assert [one.step for one in obsolete(made([0.5, 0.6, 0.9, 0.9, 0.9]), 2, "max")] == [1, 2]


def test_a_name_that_says_neither_is_asked_about():
    with pytest.raises(
        SettingsError, match=r"monitor='val_thing'.*give monitor_mode='min' or 'max'"
    ):
        mode_of("val_thing", None)
    assert mode_of("val_thing", "min") == "min"
    assert mode_of("val_accuracy", "min") == "min"
    assert mode_of("val_accuracy", None) == "max"
