"""What a person adds to a run: kept in its folder, checked when it is given and when it is read, listed, and spared by keep_runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.runs.tables.test_brief import events, recorded
from workbench.runs.folder.annotations import FILE, Annotations, annotate, read_annotations
from workbench.runs.folder.delete import next_to_go, prune
from workbench.runs.run import Run


def test_they_stay_in_the_run_folder(tmp_path: Path) -> None:
    folder = recorded(tmp_path, events(20))
    run = Run.open(folder)
    assert (run.name, run.notes, run.tags, run.pinned) == ("", "", (), False)
    run.annotate(name=" baseline ", notes="lr too high?\nnext: 0.01", tags=["sgd", "sgd", ""], pinned=True)
    assert (run.name, run.notes, run.tags, run.pinned) == ("baseline", "lr too high?\nnext: 0.01", ("sgd",), True)
    assert "name baseline" in repr(run)
    Run.open(folder).annotate(notes="")
    assert read_annotations(folder) == Annotations("baseline", "", ("sgd",), True)
    assert not [name for name in os.listdir(folder) if name.startswith(f".{FILE}")], "nothing is left half-written"


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"name": 3}, TypeError, "name=3: give text"),
        ({"name": "x" * 81}, ValueError, "give at most 80"),
        ({"name": "a\x1b[2J"}, ValueError, "cannot be shown"),
        ({"notes": "x" * 3001}, ValueError, "notes=.*give at most 3000"),
        ({"tags": "sgd"}, TypeError, r"tags='sgd': give a list of words"),
        ({"tags": [1]}, TypeError, "tags=1: give text"),
        ({"tags": ["a,b"]}, ValueError, "no comma"),
        ({"tags": map(str, range(21))}, TypeError, "give a list"),
        ({"tags": [*map(str, range(21))]}, ValueError, "at most 20"),
        ({"pinned": 1}, TypeError, "pinned=1: give True or False"),
    ],
)
def test_a_mistake_names_the_argument_and_changes_nothing(tmp_path: Path, given: dict[str, Any], error: type[Exception], words: str) -> None:
    folder = recorded(tmp_path, events(20))
    annotate(folder, name="before")
    with pytest.raises(error, match=words):
        Run.open(folder).annotate(**given)
    assert read_annotations(folder) == Annotations("before")


@pytest.mark.parametrize(
    "text",
    [
        "[1]", "{", '{"name": 3, "tags": {"a": 1}, "pinned": "yes", "notes": null}', '{"name": "a\\nb"}', json.dumps({"notes": "x" * 4000}),
        json.dumps({"notes": "x" * (1 << 18)}), "[" * 100_000,
    ],
)  # fmt: skip
def test_a_strangers_file_is_read_as_far_as_its_types_are_right(tmp_path: Path, text: str) -> None:
    folder = recorded(tmp_path, events(20))
    (folder / FILE).write_text(text)
    assert read_annotations(folder) == Annotations()
    (folder / FILE).write_text('{"name": [], "tags": ["kept"], "pinned": true, "more": 1}')
    assert read_annotations(folder) == Annotations(tags=("kept",), pinned=True)
    (folder / FILE).unlink()
    (folder / FILE).symlink_to(tmp_path / "elsewhere.json")
    (tmp_path / "elsewhere.json").write_text('{"name": "not its own"}')
    assert read_annotations(folder) == Annotations()


def test_a_pinned_run_is_not_pruned_and_not_counted(tmp_path: Path) -> None:
    paths = [recorded(tmp_path, events(20, id=f"{i:04d}-x"), f"{i:04d}-x", kind="x", created=float(i)) for i in range(1, 5)]
    annotate(paths[0], pinned=True)
    assert prune(tmp_path, "x", 2) == ["0002-x"]
    fits = [recorded(tmp_path, events(20, id=f"{i:04d}-fit"), f"{i:04d}-fit", created=float(i)) for i in range(11, 14)]
    annotate(fits[0], pinned=True)
    assert next_to_go(tmp_path, 2, fits[2].name) == [fits[1]]


def test_a_run_without_a_record_has_none(tmp_path: Path) -> None:
    run = Run.from_events(events(20))
    assert run.tags == ()
    with pytest.raises(FileNotFoundError, match="no record to annotate"):
        run.annotate(name="x")
