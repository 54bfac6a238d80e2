"""Children: what comes back, how they die, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm.std import tqdm

from tests.conftest import count
from tests.launch.launched import gone
from tests.launch.pools import named
from tests.waiting import wait_for
from workbench.instruments.memory import is_out_of_memory
from workbench.launch.process import fork_client
from workbench.launch.process import run_in_child as child
from workbench.launch.process.output_lines import OutputLines
from workbench.launch.process.run_in_child import (
    ChildDied,
    Outcome,
    ServerError,
    Stopped,
    run_in_child,
)
from workbench.share import segment
from workbench.share.package import PackageError, pack

pytestmark = pytest.mark.skipif(not child.FORK, reason="needs a fork server")


def call(function: Callable[..., Any], *args: Any, **how: Any) -> Outcome:
    return run_in_child(function, *args, **{"threads": 1, **how})


class Picky(Exception):
    def __init__(self, size: int, why: str) -> None:
        super().__init__(f"{size}: {why}")
        self.size = size


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__("cannot travel")
        self.lock = threading.Lock()


class Unreadable:
    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise ZeroDivisionError("while unpacking")


def test_the_result_comes_back() -> None:
    state = {"weight": torch.arange(4.0)}

    def double(values: dict[str, torch.Tensor], by: int) -> Any:
        values["weight"] *= by
        return values, torch.get_num_threads(), os.getpid()

    outcome = call(double, state, 2, threads=2)
    values, threads, pid = outcome.get()
    assert values["weight"].tolist() == [0, 2, 4, 6]
    assert state["weight"].tolist() == [0, 1, 2, 3]
    assert threads == 2
    assert gone(pid)
    assert outcome.kind == "result"
    assert outcome.code == 0


def test_an_exception_comes_back_as_itself() -> None:
    def fail() -> None:
        raise Picky(3, "too small")

    outcome = call(fail)
    assert outcome.kind == "error"
    assert type(outcome.error) is Picky
    assert outcome.error.size == 3
    assert str(outcome.error) == "3: too small"
    assert "in fail" in outcome.traceback
    assert "worker.py" not in outcome.traceback
    with pytest.raises(Picky) as caught:
        outcome.get()
    assert "in fail" in str(caught.value.__cause__)


def test_an_exception_that_cannot_travel_still_says_what_it_was() -> None:
    def fail() -> None:
        raise Locked

    outcome = call(fail)
    assert "Locked: cannot travel" in str(outcome.error)
    assert "raise Locked" in outcome.traceback


@pytest.mark.parametrize("stopper", [SystemExit(4), KeyboardInterrupt()])
def test_even_exits_are_told(stopper: BaseException) -> None:
    def leave() -> None:
        raise stopper

    assert type(call(leave).error) is type(stopper)


def test_an_exception_while_unpacking_there() -> None:
    outcome = call(len, Unreadable())
    assert isinstance(outcome.error, ZeroDivisionError)
    assert "while it unpacked the arguments of len" in outcome.traceback


def test_an_exception_while_reading_the_result_here() -> None:
    outcome = call(lambda: Unreadable())
    assert isinstance(outcome.error, ZeroDivisionError)
    assert "cannot be unpacked in this process" in outcome.error.__notes__[0]


def test_what_cannot_be_sent_is_refused_by_name() -> None:
    def train(task: Any) -> Any:
        return threading.Lock()

    with pytest.raises(PackageError, match=r"^task\['lock'\] cannot be sent.*_thread\.lock"):
        call(train, {"lock": threading.Lock()})
    outcome = call(train, 1)
    assert isinstance(outcome.error, PackageError)
    assert "the result of test_what" in str(outcome.error)


def test_out_of_memory_under_a_limit() -> None:
    def torch_hungry() -> None:
        torch.ones(100_000_000)

    def numpy_hungry() -> None:
        np.ones(100_000_000)

    def modest() -> float:
        return float(torch.ones(25_000_000).sum())

    limit = 200 << 20
    outcome = call(torch_hungry, memory_limit=limit, threads=2)
    assert type(outcome.error) is RuntimeError
    assert "DefaultCPUAllocator" in str(outcome.error)
    assert is_out_of_memory(outcome.error)
    assert outcome.out_of_memory
    assert isinstance(call(numpy_hungry, memory_limit=limit).error, MemoryError)
    fits = call(modest, memory_limit=limit, threads=2)
    assert fits.get() == 25_000_000
    assert fits.peak_bytes is not None
    assert 95 < fits.peak_bytes / 1e6 < 130
    assert not fits.out_of_memory


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "most likely out of memory"), (signal.SIGSEGV, "segmentation")],
)
def test_a_killed_child(number: int, words: str) -> None:
    outcome = call(lambda: os.kill(os.getpid(), number))
    assert outcome.kind == "died"
    assert outcome.code == -number
    assert words in outcome.died
    assert outcome.out_of_memory == (number == signal.SIGKILL)
    with pytest.raises(ChildDied, match=words):
        outcome.get()
    if number == signal.SIGSEGV:
        assert "Segmentation fault" in outcome.traceback
    assert "code 3" in call(os._exit, 3).died


def test_stop_ends_it_at_once() -> None:
    begun = time.monotonic()
    outcome = call(time.sleep, 1000, stop=lambda: time.monotonic() - begun > 0.3)
    assert outcome.kind == "stopped"
    # at once, as a slow machine has it: it was not waited for
    assert time.monotonic() - begun < 100
    with pytest.raises(Stopped):
        outcome.get()


def test_an_exception_in_the_caller_leaves_no_child() -> None:
    seen: list[str] = []

    def speak() -> None:
        print(os.getpid())
        time.sleep(1000)

    def listen(line: str) -> None:
        seen.append(line)
        raise ValueError("the listener's")

    with pytest.raises(ValueError, match="listener"):
        call(speak, on_message=listen)
    assert gone(int(seen[0]))


def test_lines_are_passed_on_whole(capsys: pytest.CaptureFixture[str]) -> None:
    def speak() -> None:
        os.write(1, b"one\ntw")
        time.sleep(0.05)
        print("o", flush=True)
        print("10%\r100%", file=sys.stderr)
        os.system("echo from a shell")
        print("no end", end="")

    lines: list[str] = []
    call(speak, on_message=lines.append)
    assert sorted(lines) == sorted(["one", "two", "100%", "from a shell", "no end"])
    call(speak)
    assert capsys.readouterr() == ("one\ntwo\nfrom a shell\nno end\n", "100%\n")


def test_lines_do_not_stand_behind_a_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    lines = OutputLines(prefix="[rank 1] ")
    with tqdm(total=10, file=sys.stdout, mininterval=0) as bar:
        bar.update(5)
        lines.feed("out", b"said\n")
        lines.feed("err", b"warned\n")
    out, err = capsys.readouterr()
    assert "[rank 1] said" in out.splitlines()  # which parts at every return of the carriage, too
    assert err == "[rank 1] warned\n"
    assert "50%" in out[out.index("said") :], "the bar is drawn again"


def test_much_output_does_not_block() -> None:
    lines: list[str] = []
    call(lambda: [print("x" * 99) for _ in range(20_000)] and None, on_message=lines.append)
    assert len(lines) == 20_000


def own_kb() -> int:
    """Memory written by this process or one it was forked from. Not Private_*: that counts a page of a shared
    file too while only one process maps it."""
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return next(int(row[1]) for row in rows if row[0] == "Anonymous:")


def test_a_big_tensor_is_not_copied_per_child() -> None:
    big = torch.ones(64 << 20)  # 256 MB
    array = np.ones(1_000)

    def look(
        tensor: torch.Tensor, small: np.ndarray[Any, Any], tag: int
    ) -> tuple[float, int, int | None]:
        before = own_kb()
        return float(tensor.sum()), own_kb() - before, tag

    with pack(big) as data:
        del big
        for tag in range(2):  # packed once, for any number of calls
            total, private, same = call(look, data, array, tag).get()
            assert total == 64 << 20
            assert private < 10_000
            assert same == tag


def test_a_huge_result_comes_back_mapped() -> None:
    before = own_kb()
    result = call(
        lambda: [torch.full((40 << 20,), 2.0), np.zeros(5_000_000), b"x" * 10_000_000]
    ).get()
    assert own_kb() - before < 40_000
    assert result[0][-1] == 2
    assert len(result[2]) == 10_000_000
    result[0][0] = 5
    assert result[0][0] == 5


def test_pages_of_the_parcel_are_no_trials_peak() -> None:
    with pack(torch.ones(30_000_000)) as data:
        outcome = call(lambda x: float(x.sum()), data)
    assert outcome.peak_bytes is not None
    assert outcome.peak_bytes < 20e6


def load(workers: int, wait: bool) -> Any:
    data = TensorDataset(torch.arange(4096.0).view(64, 64))
    loader = DataLoader(data, batch_size=4, num_workers=workers, persistent_workers=True)
    total = sum(float(batch[0].sum()) for batch in loader)
    print(*[process.pid for process in psutil.Process().children()])
    if wait:
        time.sleep(1000)
    return total


def test_loader_workers_in_the_child_end_with_it() -> None:
    lines: list[str] = []
    assert call(load, 2, False, on_message=lines.append).get() == sum(range(4096))
    assert (
        call(load, 2, True, on_message=lines.append, stop=lambda: len(lines) > 1).kind == "stopped"
    )
    pids = [int(pid) for line in lines for pid in line.split()]
    assert len(pids) == 4
    assert all(not psutil.pid_exists(pid) for pid in pids)  # not even a zombie


def test_a_killed_server_is_replaced() -> None:
    pids: list[str] = []

    def kill_server(line: str) -> None:
        pids.extend(line.split())
        fork_client.server().process.kill()

    outcome = call(load, 2, True, on_message=kill_server)
    assert outcome.kind == "died"
    assert "fork server" in outcome.died
    wait_for(lambda: all(gone(int(pid)) for pid in pids))
    assert call(len, "abc").get() == 3


@pytest.mark.slow  # another fork server
def test_close_ends_everything_and_the_next_call_starts_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = fork_client.server()
    temporary = used.temporary
    child.close()
    assert used.process.poll() is not None
    assert not os.path.exists(temporary)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/bin/false")
        with pytest.raises(ServerError, match="ended with code 1"):
            call(len, "abc")
    assert call(len, "abc").get() == 3


def test_the_server_is_clean() -> None:
    call(len, "")
    server = psutil.Process(fork_client.server().process.pid)
    assert server.num_threads() == 1
    assert server.children() == []


def test_two_threads_may_call() -> None:
    def work(tag: int) -> tuple[int, float]:
        for _ in range(5):
            print(f"{tag} " * 30)
        return tag, float(torch.ones(1_000).sum())

    results: dict[int, Any] = {}
    lines: dict[int, list[str]] = {tag: [] for tag in range(6)}

    def caller(tag: int) -> None:
        results[tag] = call(work, tag, on_message=lines[tag].append).get()

    threads = [threading.Thread(target=caller, args=(tag,)) for tag in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {tag: (tag, 1000.0) for tag in range(6)}
    assert all(lines[tag] == [f"{tag} " * 30] * 5 for tag in range(6))


def test_no_file_descriptors_are_lost() -> None:
    tensor = torch.ones(500_000)
    call(lambda x: x, tensor)
    here, there = psutil.Process(), psutil.Process(fork_client.server().process.pid)

    def counts() -> tuple[int, int, int]:
        return here.num_fds(), there.num_fds(), len(here.children())

    # The server closes its last end when it has told us; it sleeps when it has done all, and waits for more.
    wait_for(lambda: there.status() == psutil.STATUS_SLEEPING)
    before = counts()
    kinds: list[str] = []
    calls = count(10, 50)

    def caller() -> None:
        for index in range(calls):
            kinds.append(call(lambda x, i: x * i, tensor, index).kind)
            kinds.append(call(os._exit, 1).kind)

    threads = [threading.Thread(target=caller) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kinds.count("result") == kinds.count("died") == 2 * calls
    wait_for(lambda: all(now <= then for now, then in zip(counts(), before, strict=True)))


@pytest.fixture
def spawning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(child, "FORK", False)
    monkeypatch.setattr(segment, "MEMFD", False)
    before = named()
    yield
    # a stranger's name that nobody has mapped yet is there for a moment
    wait_for(lambda: named() <= before)


def test_where_there_is_no_fork(spawning: None) -> None:
    tensor = torch.ones(1_000_000)

    def work(x: torch.Tensor) -> torch.Tensor:
        print("from far")
        x += 1
        return x

    lines: list[str] = []
    outcome = call(work, tensor, on_message=lines.append)
    assert torch.equal(outcome.get(), tensor + 1)
    assert lines == ["from far"]
    begun = time.monotonic()
    outcome = call(time.sleep, 1000, stop=lambda: time.monotonic() - begun > 0.2)
    assert outcome.kind == "stopped"
