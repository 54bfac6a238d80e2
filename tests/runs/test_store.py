"""Writing run folders: ids, headers, events, failed writes, pruning."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workbench.events import Message, RunEnded, RunStarted
from workbench.runs.alive import identity
from workbench.runs.read import list_runs, read_events, read_header, read_record
from workbench.runs.store import RunFolder, check_id, mark_next, new_id, next_to_go, prune


def make(root: Path, id: str, *, created: float = 0.0, over: bool = True, **header: object) -> Path:
    with RunFolder.create(root, id, {"kind": "fit", "created": created, **header}) as folder:
        folder.append(RunStarted(id, "fit", {}, "cpu"))
        if over:
            folder.append(RunEnded("finished", 1, 0.1))
    return folder.path


def a_dead_process() -> dict[str, object]:
    """The identity of a process that is gone."""
    code = "import json; from workbench.runs.alive import identity; print(json.dumps(identity()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(out.stdout)
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    events = [
        RunStarted("a", "fit", {"lr": 0.1}, "cpu"),
        Message("größe\nline"),
        RunEnded("finished", 3, 0.5),
    ]
    with RunFolder.create(tmp_path, "a", {"kind": "fit", "task": "Net", "seed": 3}) as folder:
        for event in events:
            folder.append(event)
            assert read_events(folder.path)[-1] == event  # at once, not at close
    assert read_events(tmp_path / "runs" / "a") == events
    header = json.loads((tmp_path / "runs" / "a" / "run.json").read_text())
    assert header["id"] == "a"
    assert header["task"] == "Net"
    assert header["seed"] == 3
    assert header["pid"] == os.getpid()


def test_a_closed_folder_takes_no_more(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "a", {"kind": "fit"})
    header = json.loads((folder.path / "run.json").read_text())
    assert header == folder.header
    folder.close()
    folder.close()
    with pytest.raises(ValueError):
        folder.append(Message("late"))


def test_subfolders_are_made_when_asked_for(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "a", {}) as folder:
        assert sorted(os.listdir(folder.path)) == [".reserve", "metrics.jsonl", "run.json"]
        assert folder.checkpoints.is_dir()
        assert folder.control.is_dir()


def test_a_taken_id_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = make(tmp_path, "mine")
    before = (path / "run.json").read_text(), read_events(path)
    with pytest.raises(FileExistsError, match="mine"):
        RunFolder.create(tmp_path, "mine", {})
    assert ((path / "run.json").read_text(), read_events(path)) == before


def test_a_header_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        RunFolder.create(tmp_path, "a", {"task": object()})
    assert list_runs(tmp_path) == []
    RunFolder.create(tmp_path, "a", {}).close()


@pytest.mark.parametrize(
    "id",
    ["", ".", "..", "a/b", "a\\b", "/etc", "../up", "a..b", ".hidden", "-x", "a b", "a\0", "x" * 65, "a."],
)
def test_ids_stay_within_the_folder(tmp_path: Path, id: str) -> None:
    with pytest.raises(ValueError, match="id"):
        RunFolder.create(tmp_path, id, {})
    assert not list(tmp_path.rglob("run.json"))


def test_names_of_one_s_own_are_fine() -> None:
    for id in ("baseline", "2024-05-01_a", "größe.v2", "0012-fit"):
        assert check_id(id) == id


def test_the_root_is_hidden_from_git_unless_it_holds_other_things(tmp_path: Path) -> None:
    make(tmp_path / ".workbench", "a")
    make(tmp_path / ".workbench", "b")
    assert (tmp_path / ".workbench" / ".gitignore").read_text() == "*\n"
    project = tmp_path / "project"
    project.mkdir()
    (project / "model.py").write_text("x = 1\n")
    make(project, "a")
    assert not (project / ".gitignore").exists()


def test_ids_count_up(tmp_path: Path) -> None:
    assert [new_id(tmp_path, k) for k in ("fit", "find_lr", "a/b c")] == [
        "0001-fit",
        "0002-find_lr",
        "0003-a-b-c",
    ]
    make(tmp_path, "0041-fit")
    make(tmp_path, "baseline")
    make(tmp_path, "2031-05-01")
    assert new_id(tmp_path, "fit") == "0042-fit"
    RunFolder.create(tmp_path, "0042-fit", {}).close()  # the reserved folder may be used


def _ids(root: str, kind: str, out: multiprocessing.Queue[list[str]]) -> None:
    out.put([new_id(Path(root), kind) for _ in range(15)])


def test_ids_are_unique_among_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    workers = [
        context.Process(target=_ids, args=(str(tmp_path), kind, out)) for kind in ("fit", "fit", "find_lr")
    ]
    for worker in workers:
        worker.start()
    ids = [id for _ in workers for id in out.get(timeout=240)]
    for worker in workers:
        worker.join()
    numbers = [id.split("-")[0] for id in ids]
    assert len(ids) == len(set(numbers)) == 45


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "a", {}) as folder:
        threads = [
            threading.Thread(
                target=lambda i=i: [folder.append(Message(f"{i}" * 5000, step=j)) for j in range(50)]
            )
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    record = read_record(folder.path)
    assert (len(record.events), record.skipped) == (200, 0)


FULL = """
import resource, signal, sys
from pathlib import Path
from workbench.events import Message
from workbench.runs.store import RunFolder

folder = RunFolder.create(Path(sys.argv[1]), "a", {"kind": "fit"})
folder.append(Message("first"))
limit = (folder.path / "metrics.jsonl").stat().st_size + 40
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
failed = 0
for i in range(3):
    try:
        folder.append(Message(f"kept {i}"))
    except OSError:
        failed += 1
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
folder.append(Message("last"))
print(failed)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limit to set")
def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "3"
    record = read_record(tmp_path / "runs" / "a")
    assert [e.text for e in record.events if isinstance(e, Message)] == ["first", "kept 0", "kept 1", "kept 2", "last"]
    assert record.skipped >= 1


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_torn_line_never_glues_or_reads_whole(tmp_path: Path, cut: int) -> None:
    """Each place where a write may be cut, its end without the newline included."""
    folder = RunFolder.create(tmp_path, "a", {})
    folder.append(Message("first"))
    real = folder._record

    class Full:
        """A disk that takes all but the last bytes of the first write, then nothing for one write."""

        calls = 0

        def write(self, data: bytes) -> int:
            self.calls += 1
            if self.calls == 1:
                return real.write(data[: len(data) - cut])
            if self.calls == 2:
                raise OSError(28, "No space left on device")
            return real.write(data)

        def close(self) -> None:
            real.close()

        closed = False

    folder._record = Full()  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        folder.append(Message("kept"))
    folder.append(Message("last"))
    folder.close()
    record = read_record(folder.path)
    assert [e.text for e in record.events if isinstance(e, Message)] == ["first", "kept", "last"]
    assert record.skipped == 1


def prune_named(root: Path, keep: int) -> list[str]:
    """As the fit that comes behind one whose record names all."""
    mark_next(root, [run.path for run in list_runs(root)], "last")
    return prune(root, "fit", keep)


def test_prune_takes_the_oldest_that_are_over(tmp_path: Path) -> None:
    for i in range(6):
        make(tmp_path, f"r{i}", created=float(i), over=i != 1)
    assert prune_named(tmp_path, 10) == []
    assert prune_named(tmp_path, 3) == ["r0", "r2", "r3"]  # r1 runs: this process is its writer
    assert [r.id for r in list_runs(tmp_path)] == ["r1", "r4", "r5"]
    assert prune_named(tmp_path, 0) == ["r4", "r5"]
    assert sorted(os.listdir(tmp_path / "runs")) == ["r1"]
    with pytest.raises(ValueError):
        prune(tmp_path, "fit", -1)
    assert prune(tmp_path / "nowhere", "fit", 0) == []


def test_prune_takes_no_fit_that_was_not_named(tmp_path: Path) -> None:
    paths = [make(tmp_path, f"r{i}", created=float(i)) for i in range(4)]
    assert prune(tmp_path, "fit", 1) == []
    assert next_to_go(tmp_path, 2, "r3") == paths[:3]  # with one more there would be five
    mark_next(tmp_path, paths[:1], "r3")
    assert prune(tmp_path, "fit", 1) == ["r0"]
    mark_next(tmp_path, paths[1:], "r3")
    mark_next(tmp_path, [], "r4")  # that no longer holds
    assert prune(tmp_path, "fit", 1) == []


def test_prune_keeps_to_one_kind(tmp_path: Path) -> None:
    for i in range(4):
        make(tmp_path, f"r{i}", created=float(i), kind="validate" if i % 2 else "find_lr")
    assert prune(tmp_path, "validate", 1) == ["r1"]
    assert prune(tmp_path, "fit", 0) == []
    assert [r.id for r in list_runs(tmp_path)] == ["r0", "r2", "r3"]


def test_prune_takes_the_dead_and_spares_what_may_live(tmp_path: Path) -> None:
    dead = a_dead_process()
    make(tmp_path, "dead", over=False, **dead)
    make(tmp_path, "elsewhere", over=False, **dead | {"host": "another-machine"})
    make(tmp_path, "rebooted", over=False, **dead | {"boot": "another boot"})
    make(tmp_path, "contained", over=False, **dead | {"pid_namespace": "pid:[1]"})
    make(tmp_path, "nameless", over=False, pid=None)
    for file in (tmp_path / "runs").glob("*/*"):
        then = file.stat().st_mtime - 30 * 86400
        os.utime(file, (then, then))
    assert prune_named(tmp_path, 0) == ["dead"]


def test_prune_stays_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    (outside / "run.json").write_text("{}")
    (outside / "metrics.jsonl").write_text("")
    root = tmp_path / "root"
    path = make(root, "a", created=5.0)
    (path / "link").symlink_to(outside, target_is_directory=True)
    (root / "runs" / "linked").symlink_to(outside, target_is_directory=True)
    (root / "runs" / ".gone-link").symlink_to(outside, target_is_directory=True)
    (root / "runs" / "notes").mkdir()
    (root / "runs" / "notes" / "mine.txt").write_text("keep")
    (root / "runs" / "file.txt").write_text("keep")
    assert prune_named(root, 0) == ["a"]
    assert not path.exists()
    assert (outside / "precious").read_text() == "keep"
    assert (root / "runs" / "notes" / "mine.txt").exists()
    assert (root / "runs" / "file.txt").exists()
    linked = tmp_path / "linked"
    linked.mkdir()
    make(root, "b")
    (linked / "runs").symlink_to(root / "runs", target_is_directory=True)
    assert prune(linked, "fit", 0) == []


def test_what_a_killed_prune_left_goes_next_time(tmp_path: Path) -> None:
    make(tmp_path, "a")
    (tmp_path / "runs" / "a").rename(tmp_path / "runs" / ".gone-a")
    assert list_runs(tmp_path) == []
    prune(tmp_path, "fit", 5)
    assert os.listdir(tmp_path / "runs") == []


def test_another_process_takes_over_the_record_of_a_run(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "a", {"kind": "fit"}) as made:
        made.append(Message("before"))
        made.name_writer(os.getppid(), launched=True)
        header = read_header(made.path)
        assert (header["pid"], header["launched"], header["kind"]) == (os.getppid(), True, "fit")
        with RunFolder.take_over(made.path) as taken:
            assert read_header(made.path) == taken.header == {**header, **identity()}
            taken.append(Message("there"))
        with (made.path / "metrics.jsonl").open("a") as file:
            file.write('{"type":"Message","te')  # it was killed in the middle of a line
        made.write_again()
        made.append(Message("behind"))
    assert [e.text for e in read_events(made.path) if isinstance(e, Message)] == ["before", "there", "behind"]


def test_what_is_no_run_cannot_be_taken_over(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(FileNotFoundError):
        RunFolder.take_over(tmp_path)
