"""Commands that come through the folder of a run which this process, another one, a kernel or a pool of ranks trains."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jupyter_client.manager import KernelManager

import workbench as wb
from tests import warm
from tests.launch import pools
from tests.launch.commanded import SECOND, ask, commanded, told
from tests.launch.launched import kernel
from tests.runs.records import read_events
from tests.waiting import wait_for
from workbench.commands import Change, Checkpoint, Command, Pause, Resume, Stop, Validate
from workbench.events import (
    BenchEvent,
    Called,
    Changed,
    Message,
    Saved,
    StatusChanged,
    StepsDone,
    Validated,
)
from workbench.launch.job import Job
from workbench.runs.folder import control
from workbench.runs.read import read_header
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")


def messages(job: Job[Any]) -> list[str]:
    return [event.text for event in job.events if isinstance(event, Message)]


def folder_of(job: Job[Any]) -> Path:
    assert job.folder is not None
    return job.folder.path


def listens() -> bool:
    """Whether this process looks for commands."""
    return any(thread.name == "workbench-control" for thread in threading.enumerate())


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the same commands make of a run when its own job gets them at the same updates."""
    root = tmp_path_factory.mktemp("own")
    bench, _ = commanded(root)
    job = bench.fit()
    ask(job, root)
    found = told(job.result(200), [*job.events])
    assert found["end"] == ("stopped", SECOND + 1)
    assert [change.values for change in found["changes"]] == [
        {"lr": 0.02},
        {"gradient_clip_val": None},
    ]
    assert len(found["validated"]) == 3  # two epochs, and the one that was asked for
    return found


# -- whoever trains


def test_a_run_of_this_process(tmp_path: Path, expected: dict[str, Any]) -> None:
    bench, loss = commanded(tmp_path)
    own = bench.fit()
    job = wb.attach(own.id, tmp_path)
    ask(job, tmp_path)
    assert told(own.result(200), [*own.events]) == expected
    assert told(job.result(200), [*job.events]) == expected
    methods = [
        "change(lr=0.02)",
        "change(gradient_clip_val=None)",
        "validate()",
        "checkpoint()",
        "pause()",
        "resume()",
        "stop()",
    ]
    assert loss.requests == [
        f"wb.attach('0001-fit', {str(tmp_path)!r}).{method}" for method in methods
    ]
    assert list((folder_of(own) / "control").iterdir()) == []
    assert messages(own) == []
    wait_for(lambda: not listens())


TRAINS = """
import sys
from pathlib import Path
from tests.launch.commanded import commanded
bench, _ = commanded(Path(sys.argv[1]))
job = bench.fit()
print(job.id, flush=True)
run = job.result()
print(run.status, run.step, flush=True)
"""


def test_a_run_of_another_process_whose_main_thread_waits_for_it(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    with kernel(TRAINS, str(tmp_path)) as trains:
        assert trains.stdout.readline() == "0001-fit\n"
        job = wb.attach("0001-fit", tmp_path)
        ask(job, tmp_path)
        run = job.result(200)
        assert trains.stdout.readline() == f"stopped {SECOND + 1}\n"
        assert trains.wait(200) == 0
    assert told(run, [*job.events]) == expected
    with pytest.raises(RuntimeError, match=r"stop\(\) comes too late: fit 0001-fit has stopped"):
        job.stop()


@pytest.fixture
def notebook(forked_kernels: None) -> Iterator[Any]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(Path(__file__).parents[2]))
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=200)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_run_of_a_kernel_whose_cell_is_busy(
    tmp_path: Path, expected: dict[str, Any], notebook: Any
) -> None:
    printed: list[str] = []

    def hear(message: Any) -> None:
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            printed.append(message["content"]["text"])

    def cell() -> None:
        code = f"import sys; sys.argv[1:] = [{str(tmp_path)!r}]\n{TRAINS}"
        printed.append(
            notebook.execute_interactive(code, timeout=200, output_hook=hear)["content"]["status"]
        )

    waits = threading.Thread(target=cell)
    waits.start()
    wait_for(lambda: "0001-fit" in "".join(printed))
    job = wb.attach("0001-fit", tmp_path)
    ask(job, tmp_path)
    run = job.result(200)
    waits.join(200)
    assert "".join(printed).split() == ["0001-fit", "stopped", str(SECOND + 1), "ok"]
    assert told(run, [*job.events]) == expected


RANKS = """
import sys
from pathlib import Path
from tests.launch import pools
from workbench.events import Called

def hear(event):
    if isinstance(event, Called) and event.code.startswith("wb.attach('0002-fit'"):
        print(event.code, flush=True)

bench = pools.bench(pools.net(), Path(sys.argv[1]), val=pools.data(9), gradient_clip_val=1.0, listeners=[hear])
first, second = bench.fit(max_epochs=100_000), bench.fit(start="fresh")
print("asked", flush=True)
print(first.result().status, second.result().status, flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there are ranks in a pool on Linux alone")
def test_a_run_in_a_pool_of_ranks_and_one_that_waits_for_it(tmp_path: Path) -> None:
    with kernel(RANKS, str(tmp_path), **warm.FORKED_SERVER) as trains:
        assert trains.stdout.readline() == "asked\n"
        first, second = wb.attach("0001-fit", tmp_path), wb.attach("0002-fit", tmp_path)
        assert second.status == "queued"
        second.change(lr=0.25)
        assert trains.stdout.readline().endswith(".change(lr=0.25)\n")
        wait_for(lambda: any(isinstance(event, StepsDone) for event in first.events))
        first.change(lr=0.02)
        first.change(gradient_clip_val=None)
        first.validate()
        first.checkpoint()
        first.pause()
        wait_for(lambda: first.status == "paused")
        first.resume()
        wait_for(lambda: first.status == "running")
        first.stop()
        assert (first.result(200).status, second.result(200).status) == ("stopped", "finished")
        assert trains.stdout.readline() == "stopped finished\n"
    assert [event.values for event in first.events if isinstance(event, Changed)] == [
        {"lr": 0.02},
        {"gradient_clip_val": None},
    ]
    assert sum(isinstance(event, Validated) and event.asked for event in first.events) == 1
    # the one that was asked for, and that of the end
    assert sum(isinstance(event, Saved) for event in first.events) >= 2
    run = second.result()
    assert run.changes == (Changed(0, {"lr": 0.25}),)
    made = pools.bench(
        pools.net(), tmp_path / "own", val=pools.data(9), lr=0.25, gradient_clip_val=1.0
    )
    assert np.array_equal(run.history["loss"], made.fit(start="fresh").result().history["loss"])


# -- while a run waits


def test_a_run_that_waits_is_stopped_and_changed(tmp_path: Path) -> None:
    bench, _ = commanded(tmp_path)
    first, second, third = bench.fit(), bench.fit(), bench.fit(max_steps=3)
    control.send(folder_of(third), Change({"lr": 0.25}))
    (folder_of(third) / "control" / "0.json").write_text("{")
    attached = wb.attach(second.id, tmp_path)
    wait_for(lambda: first.status == "running")
    attached.stop()
    assert second.result(200).status == "stopped"
    assert attached.result(200).step == 0
    assert first.status == "running"
    ask(first, tmp_path)
    run = third.result(200)
    assert run.changes == (Changed(0, {"lr": 0.25}),)
    assert len(messages(third)) == 1
    assert "0.json in control/ is no command" in messages(third)[0]


def test_a_run_that_waits_for_the_turn_of_another_bench_is_stopped(tmp_path: Path) -> None:
    first, _ = commanded(tmp_path / "first")
    second, _ = commanded(tmp_path / "second")
    trains = first.fit()
    wait_for(lambda: trains.status == "running")  # so the turn is not the other one's
    waits = second.fit()
    control.send(folder_of(waits), Stop())
    assert waits.result(200).step == 0
    assert trains.status == "running"
    ask(trains, tmp_path / "first")
    trains.result(200)


def test_a_search_stops_and_takes_nothing_else(tmp_path: Path) -> None:
    bench, loss = commanded(tmp_path)
    loss.wanted = {}
    search = bench.find_lr(num_training=100_000)
    wait_for(lambda: loss.updates)
    control.send(folder_of(search), Pause())
    wait_for(lambda: messages(search))
    assert messages(search) == [
        "a command of another process was left out: pause() is for fits; a find_lr job can only be stopped."
    ]
    with pytest.raises(RuntimeError, match=r"resume\(\) is for fits"):
        control.check_taken(folder_of(search), Resume())
    control.send(folder_of(search), Stop())
    search.result(200)
    assert search.status == "stopped"


# -- what is refused


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"lr": True}, "lr=True: input should be a number."),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"lr": 0.0}, "cannot become 0"),
        ({"batch_size": 4}, "batch_size cannot change while a run is running"),
        (
            {"accumulate_grad_batches": 2.5},
            "accumulate_grad_batches=2.5: should be a number of batches",
        ),
        ({"rate": 0.1}, "rate"),
    ],
)
def test_a_change_that_its_own_job_would_refuse_becomes_a_warning(
    tmp_path: Path, values: dict[str, Any], why: str
) -> None:
    bench, loss = commanded(tmp_path)
    job = bench.fit()
    control.send(folder_of(job), Change(values))
    wait_for(lambda: messages(job))
    [text] = messages(job)
    assert text.startswith("a command of another process was left out: ")
    assert why in text
    assert loss.requests == []
    ask(job, tmp_path)
    assert [change.values for change in job.result(200).changes] == [
        {"lr": 0.02},
        {"gradient_clip_val": None},
    ]


def test_a_change_may_have_any_live_settings(tmp_path: Path) -> None:
    bench, loss = commanded(tmp_path, accumulate_grad_batches=2)
    job = bench.fit()
    changes: list[dict[str, float | None]] = [
        {"lr": 0.5, "track_update_ratio": True},
        {"accumulate_grad_batches": 4},
    ]
    for values in changes:
        control.send(folder_of(job), Change(values))
    wait_for(lambda: len(loss.requests) == 2)
    loss.requests.extend([""] * 5)
    job.stop()
    assert [change.values for change in job.result(200).changes] == changes
    assert messages(job) == []


def test_a_change_of_the_working_directory_does_not_cut_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench, loss = commanded(Path("here"))
    loss.wanted = {}
    job = bench.fit()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    control.send(tmp_path / "here" / "runs" / job.id, Change({"lr": 0.5}))
    wait_for(lambda: loss.requests)
    assert loss.requests == [f"wb.attach('0001-fit', {str(tmp_path / 'here')!r}).change(lr=0.5)"]
    bench.close()


def test_the_record_says_that_it_takes_commands(tmp_path: Path) -> None:
    bench, loss = commanded(tmp_path)
    loss.wanted = {}
    found = [bench.fit(max_steps=2), bench.validate(), bench.find_lr(num_training=5)]
    for job in found:
        job.result(200)
        assert read_header(folder_of(job))["takes_commands"] is True
    assert json.loads((folder_of(found[0]) / "run.json").read_text())["takes_commands"] is True
    assert not [
        event
        for job in found
        for event in job.events
        if isinstance(event, Called) or (isinstance(event, StatusChanged) and not event.why)
    ]
    assert Run.open(folder_of(found[0])).status == "finished"


# -- what may hold up a command, and what may lose it


class Holding:
    """A listener that waits at the first request of another process until it is let go."""

    def __init__(self) -> None:
        self.holds, self.go = threading.Event(), threading.Event()

    def __call__(self, event: BenchEvent) -> None:
        if isinstance(event, Called) and event.code.startswith("wb.attach"):
            self.holds.set()
            assert self.go.wait(200)


def test_a_slow_listener_delays_no_command(tmp_path: Path) -> None:
    """Not one to the same run, and not one to a run that waits for its turn."""
    slow = Holding()
    bench, loss = commanded(tmp_path, slow)
    loss.wanted = {}
    trains, waits, last = bench.fit(), bench.fit(), bench.fit(max_steps=2)
    wait_for(lambda: trains.status == "running")
    try:
        control.send(folder_of(trains), Change({"lr": 0.5}))
        assert slow.holds.wait(200)
        control.send(folder_of(waits), Stop())
        wait_for(waits.done)
        assert (waits.result().step, trains.status) == (0, "running")
        control.send(folder_of(trains), Stop())
        wait_for(trains.done)
        assert [change.values for change in trains.result().changes] == [{"lr": 0.5}]
        assert last.result(200).step == 2
    finally:
        slow.go.set()
    wait_for(lambda: len(loss.requests) == 3)
    wait_for(lambda: not listens())


def test_a_listener_of_a_command_cannot_wait_for_a_job(tmp_path: Path) -> None:
    refused: list[str] = []

    def wait(event: BenchEvent) -> None:
        if isinstance(event, Called) and event.code.startswith("wb.attach"):
            try:
                job.result()
            except RuntimeError as error:
                refused.append(str(error))

    bench, loss = commanded(tmp_path, wait)
    loss.wanted = {}
    job = bench.fit()
    control.send(folder_of(job), Change({"lr": 0.5}))
    wait_for(lambda: refused)
    assert refused == [
        "result() and wait() would deadlock in a listener or a model of fit 0001-fit: the job waits for this call to return."
    ]
    bench.close()


def test_a_folder_that_hangs_holds_up_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network folder, say. Runs of its root begin and end; those of other roots get their commands, too."""
    stalled, other = (commanded(tmp_path / name) for name in ("stalled", "other"))
    stalled[1].wanted = other[1].wanted = {}
    hangs, go, take = threading.Event(), threading.Event(), control.take

    def hanging(run: Path) -> Iterator[Command | str]:
        if run == tmp_path / "stalled" / "runs" / "0001-fit":
            hangs.set()
            assert go.wait(200)
        return take(run)

    monkeypatch.setattr(control, "take", hanging)
    held, waits = stalled[0].fit(), stalled[0].fit()
    try:
        assert hangs.wait(200)
        waits.stop()
        assert waits.done()
        elsewhere = other[0].fit()
        control.send(folder_of(elsewhere), Stop())
        wait_for(elsewhere.done)
        after = stalled[0].fit(max_steps=2)
    finally:
        go.set()
    held.stop()
    assert (held.result(200).status, after.result(200).step) == ("stopped", 2)
    wait_for(lambda: not listens())


def test_what_comes_too_late_is_told_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that come between the last look and the end of the run."""
    bench, loss = commanded(tmp_path)
    loss.wanted, take = {2: 1}, control.take
    looks = "workbench-control"
    monkeypatch.setattr(
        control,
        "take",
        lambda run: iter(()) if threading.current_thread().name == looks else take(run),
    )
    job = bench.fit(max_steps=3)
    for command in (Validate(), Change({"lr": 0.5}), *[Checkpoint()] * 4, Stop()):
        control.send(folder_of(job), command)
    (folder_of(job) / "control" / "0.json").write_text("{")
    loss.requests.append("")
    run = job.result(200)
    assert (run.status, run.step, run.changes) == ("finished", 3, ())
    unread, late = messages(job)
    assert "0.json in control/ is no command" in unread
    calls = "job.validate(), job.change(lr=0.5), job.checkpoint(), job.checkpoint(), job.checkpoint() and 1 more."
    assert late == f"fit 0001-fit ended before it did what was asked: {calls}"
    assert [event.text for event in read_events(folder_of(job)) if isinstance(event, Message)] == [
        unread,
        late,
    ]
    assert list((folder_of(job) / "control").iterdir()) == []


class _LastWord:
    """A job's lock of refusals, which lets the job's work end as soon as the thread that takes commands has released it."""

    def __init__(self, lock: threading.Lock, end: Callable[[], None]) -> None:
        self._lock, self._end, self._ended = lock, end, threading.Event()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if threading.current_thread().name == "workbench-control":
            self._end()
            assert self._ended.wait(200)
        else:
            self._ended.set()


def test_what_is_refused_as_the_work_ends_is_told(tmp_path: Path) -> None:
    bench, loss = commanded(tmp_path)
    loss.wanted = {2: 1}
    job = bench.fit(max_steps=3)
    wait_for(lambda: loss.updates == 2)
    job._refusing = _LastWord(job._refusing, lambda: loss.requests.append(""))  # type: ignore[assignment]
    control.send(folder_of(job), Change({"lr": -1.0}))
    assert job.result(200).status == "finished"
    [text] = messages(job)
    assert text.startswith("a command of another process was left out: ")
    wait_for(lambda: not listens())


def test_what_a_run_took_and_could_not_do_is_told_before_its_end(tmp_path: Path) -> None:
    bench, loss = commanded(tmp_path)
    loss.wanted = {}
    first, waits = bench.fit(), bench.fit()
    control.send(folder_of(waits), Change({"lr": 0.25}))
    wait_for(lambda: loss.requests)
    control.send(folder_of(waits), Stop())
    assert waits.result(200).step == 0
    assert messages(waits) == [
        "fit 0002-fit ended before it did what was asked: job.change(lr=0.25)."
    ]
    bench.close()
    assert messages(first) == []
