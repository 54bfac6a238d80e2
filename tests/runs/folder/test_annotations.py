"""What a person adds to a run: kept in its folder, checked when it is given and when it is read, listed, and spared by keep_runs."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.runs.tables.test_brief import events, recorded
from workbench.runs.folder import delete, files
from workbench.runs.folder.annotations import (
    FILE,
    Annotations,
    StaleAnnotationsError,
    annotate,
    read_annotations,
)
from workbench.runs.folder.delete import next_to_go, prune
from workbench.runs.folder.files import Folder, give_usual_mode, replace_by, write_whole
from workbench.runs.run import Run


def test_they_stay_in_the_run_folder(tmp_path: Path) -> None:
    folder = recorded(tmp_path, events(20))
    run = Run.open(folder)
    assert (run.name, run.notes, run.tags, run.pinned) == ("", "", (), False)
    run.annotate(
        name=" baseline ", notes="lr too high?\nnext: 0.01", tags=["sgd", "sgd", ""], pinned=True
    )
    assert (run.name, run.notes, run.tags, run.pinned) == (
        "baseline",
        "lr too high?\nnext: 0.01",
        ("sgd",),
        True,
    )
    assert "name baseline" in repr(run)
    Run.open(folder).annotate(notes="")
    assert read_annotations(folder) == Annotations("baseline", "", ("sgd",), True)
    assert not [name for name in os.listdir(folder) if name.startswith(f".{FILE}")], (
        "nothing is left half-written"
    )


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
def test_a_mistake_names_the_argument_and_changes_nothing(
    tmp_path: Path, given: dict[str, Any], error: type[Exception], words: str
) -> None:
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
    paths = [
        recorded(tmp_path, events(20, id=f"{i:04d}-x"), f"{i:04d}-x", kind="x", created=float(i))
        for i in range(1, 5)
    ]
    annotate(paths[0], pinned=True)
    assert prune(tmp_path, "x", 2) == ["0002-x"]
    fits = [
        recorded(tmp_path, events(20, id=f"{i:04d}-fit"), f"{i:04d}-fit", created=float(i))
        for i in range(11, 14)
    ]
    annotate(fits[0], pinned=True)
    assert next_to_go(tmp_path, 2, fits[2].name) == [fits[1]]


def test_a_run_without_a_record_has_none(tmp_path: Path) -> None:
    run = Run.from_events(events(20))
    assert run.tags == ()
    with pytest.raises(FileNotFoundError, match="no record to annotate"):
        run.annotate(name="x")


def a_run(root: Path) -> Path:
    folder = root / "runs" / "0001-fit"
    folder.mkdir(parents=True)
    annotate(folder, name="precious", notes="N" * 3000, tags=["keep"], pinned=True)
    return folder


@contextlib.contextmanager
def readers(folder: Path, states: list[Annotations]) -> Iterator[None]:
    """A thread that reads the file as it stands, all the time."""
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            found = json.loads((folder / FILE).read_text())
            states.append(
                Annotations(found["name"], found["notes"], tuple(found["tags"]), found["pinned"])
            )

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            yield
        finally:
            over.set()
            reading.result()


def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(number: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", flock)


@pytest.mark.parametrize("locks", [True, False], ids=["locks", "no locks"])
def test_nothing_of_several_threads_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """Each writes one of the values; what another wrote stays, and whoever reads finds a whole file. NFS may have no locks."""
    if not locks:
        no_locks(monkeypatch)
    folder, states = a_run(tmp_path), list[Annotations]()
    own: list[dict[str, list[Any]]] = [
        {"name": [f"name {i}" for i in range(25)]}, {"notes": [f"{i} " * 900 for i in range(25)]}, {"tags": [[f"t{i}"] for i in range(25)]},
        {"pinned": [i % 2 == 0 for i in range(25)]},
    ]  # fmt: skip

    def write(values: dict[str, list[Any]]) -> None:
        ((name, each),) = values.items()
        for value in each:
            annotate(folder, **{name: value})
            now = getattr(read_annotations(folder), name)
            assert now == (
                tuple(value)
                if name == "tags"
                else value.strip()
                if isinstance(value, str)
                else value
            )

    with readers(folder, states), ThreadPoolExecutor(4) as pool:
        assert [*pool.map(write, own)] == [None] * 4
    assert read_annotations(folder) == Annotations("name 24", ("24 " * 900).strip(), ("t24",), True)
    assert states
    assert os.listdir(folder) == [FILE]


def test_nothing_of_several_processes_is_lost(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    code = (
        "import sys; from pathlib import Path; from workbench.runs.folder.annotations import *\n"
        "for i in range(20): annotate(Path(sys.argv[1]), **{sys.argv[2]: f'{sys.argv[2]} {i}'})"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(folder), name])
        for name in ("name", "notes")
    ]
    for at in itertools.count():
        over = all(writer.poll() is not None for writer in writers)
        annotate(folder, tags=[f"t{at}"])
        assert read_annotations(folder).tags == (f"t{at}",)
        if over:
            break
    assert [writer.wait() for writer in writers] == [0, 0]
    assert read_annotations(folder) == Annotations("name 19", "notes 19", (f"t{at}",), True)


def test_a_lock_of_a_killed_writer_holds_nobody_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_locks(monkeypatch)
    monkeypatch.setattr(files, "_PATIENCE", 0.05)
    folder = a_run(tmp_path)
    (folder / ".lock").touch()
    annotate(folder, name="after all")
    assert read_annotations(folder).name == "after all"
    assert os.listdir(folder) == [FILE]


def test_a_lock_that_somebody_keeps_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PATIENCE", 0.05)
    folder = a_run(tmp_path)
    with (
        Folder.opened(folder) as held,
        held.locked(),
        pytest.raises(TimeoutError, match="0001-fit has been locked by another process"),
    ):
        annotate(folder, name="never")
    annotate(folder, name="now")
    assert read_annotations(folder).name == "now"


def test_a_run_that_is_pinned_at_the_last_moment_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is pinned after keep_runs has chosen it."""
    paths = [
        recorded(tmp_path, events(20, id=f"{i:04d}-x"), f"{i:04d}-x", kind="x") for i in (1, 2)
    ]
    real = delete.remove_folder

    def late(path: Path, **options: Any) -> bool:
        annotate(path, pinned=True)
        return real(path, **options)

    monkeypatch.setattr(delete, "remove_folder", late)
    assert prune(tmp_path, "x", 0) == []
    assert all(path.is_dir() for path in paths)


def test_annotations_of_a_folder_that_is_gone_are_refused(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    with Folder.opened(folder) as held:
        folder.rename(folder.with_name("0002-fit"))
        folder.mkdir()
        with pytest.raises(FileNotFoundError, match="another folder has its place"), held.locked():
            pass


def test_what_the_system_does_not_read_is_not_taken_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_run(tmp_path)
    with monkeypatch.context() as broken:

        def read(*_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        broken.setattr(files.Folder, "read", read)
        with pytest.raises(OSError, match="Input/output error"):
            annotate(folder, name="only this would stay")
        assert not delete.remove_folder(folder, pinned=False)
    assert read_annotations(folder).pinned


def test_a_version_stands_for_what_was_read(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    before = read_annotations(folder)
    annotate(folder, name="theirs", version=before.version)
    with pytest.raises(StaleAnnotationsError, match="0001-fit were changed meanwhile"):
        annotate(folder, name="mine", version=before.version)
    assert read_annotations(folder).name == "theirs"
    assert annotate(folder, name="precious").version == before.version


def test_files_of_several_writers_are_whole(tmp_path: Path) -> None:
    """All of them have one process, and one name."""
    texts = [bytes([65 + at]) * 50_000 for at in range(4)]
    write_whole(tmp_path / "file", texts[0])
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(write_whole, tmp_path / "file", text) for text in texts * 8]
        writing += [
            pool.submit(
                replace_by, tmp_path / "file", lambda aside, text=text: aside.write_bytes(text)
            )
            for text in texts * 8
        ]
        writing += [pool.submit(give_usual_mode, tmp_path / "file") for _ in range(8)]
        while not all(one.done() for one in writing):
            assert (tmp_path / "file").read_bytes() in texts
        for one in writing:
            one.result()
    assert os.listdir(tmp_path) == ["file"]
