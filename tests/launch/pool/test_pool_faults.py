"""What can go wrong in a rank, what its user is told, and that nothing is left and the next job works."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import Dataset

from tests import warm
from tests.conftest import count
from tests.launch.launched import gone, kernel
from tests.launch.pools import bench, losses, named, net, nothing_new, ranks, shared
from tests.waiting import wait_for
from workbench.commands import Mailbox
from workbench.events import Message, RunStarted
from workbench.launch.assignments import FitAssignment
from workbench.launch.pool import pool
from workbench.launch.pool.failures import RankTimeout
from workbench.launch.process import child_handle, run_in_child
from workbench.launch.process.run_in_child import ChildDied, RemoteTraceback

pytestmark = pytest.mark.skipif(not run_in_child.FORK, reason="needs a fork server")


@pytest.fixture(scope="module", autouse=True)
def _two_ranks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """There for the first test; each leaves two for the next one."""
    bench(net(), tmp_path_factory.mktemp("first")).fit().result()


@pytest.fixture(autouse=True)
def _nothing_is_left(_two_ranks: None, one_thread: None, tmp_path: Path) -> Iterator[None]:
    """Whatever happened: nothing is left behind, and the next job works."""
    before = shared()
    yield
    bench(net(), tmp_path).fit().result()
    wait_for(lambda: len(ranks()) == 2)
    wait_for(lambda: nothing_new(before))


def at(step: int, rank: int, act: Callable[[], Any]) -> Callable[[int, int], None]:
    """Do it in this rank's so-manyth step; no step is over at once."""

    def on_step(here: int, now: int) -> None:
        time.sleep(0.01)
        if now == step and rank in (here, -1):
            act()

    return on_step


def fail() -> None:
    raise KeyError("no such word")


def failed(model: Any, root: Path, **given: Any) -> tuple[BaseException, Any]:
    job = bench(model, root, **given).fit()
    error = job.exception()
    assert error is not None
    return error, job


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_in_one_rank_is_the_jobs(tmp_path: Path, rank: int) -> None:
    began = time.monotonic()
    model = net(at(3, rank, fail))
    twin = net()
    error, job = failed(model, tmp_path)
    assert type(error) is KeyError
    assert error.args == ("no such word",)
    assert f"in rank {rank} of 2" in notes(error)
    assert "at update 3, epoch 0" in notes(error)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in fail" in str(error.__cause__)
    # the other rank was not waited for until it is taken for a hang
    assert time.monotonic() - began < 200
    # The weights are those of the last update.
    bench(twin, tmp_path, max_steps=3).fit().result()
    torch.testing.assert_close(model.layers.state_dict(), twin.layers.state_dict())
    assert job.events[-1].step == 3


def test_an_exception_in_all_ranks(tmp_path: Path) -> None:
    error, _ = failed(net(at(2, -1, fail)), tmp_path)
    assert type(error) is KeyError
    assert "in rank " in notes(error)
    assert "and in all others alike" in notes(error)


def test_a_rank_that_leaves(tmp_path: Path) -> None:
    error, _ = failed(net(at(2, 1, lambda: os._exit(3))), tmp_path)
    assert type(error) is ChildDied
    assert "rank 1 of 2 died: exited with code 3" in str(error)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed(tmp_path: Path, rank: int) -> None:
    model = net(at(3, rank, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    before = model.layers[0].weight.clone()
    error, _ = failed(model, tmp_path)
    assert type(error) is ChildDied
    assert (
        f"rank {rank} of 2 died: killed by the system (signal 9), most likely out of memory."
        in str(error)
    )
    kept = "that it had before" if rank == 0 else "of its last update"
    assert f"The model has the weights {kept}; the next job starts new processes." in str(error)
    assert torch.equal(model.layers[0].weight, before) == (rank == 0)


def test_a_rank_that_crashes_says_where(tmp_path: Path) -> None:
    error, _ = failed(net(at(2, 1, lambda: os.kill(os.getpid(), signal.SIGSEGV))), tmp_path)
    assert "rank 1 of 2 died: crashed (signal 11, segmentation fault)" in str(error)
    assert "Fatal Python error: Segmentation fault" in notes(error)


class Numbers(Dataset[Any]):
    """Batches of a loader worker, which does something when it comes to a sample."""

    def __init__(self, act: Callable[[], Any], at: int = 20) -> None:
        self.act, self.at = act, at

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if torch.utils.data.get_worker_info() is not None and index == self.at:
            self.act()
        return torch.full((5,), float(index)), index % 3


def test_a_loader_worker_that_is_killed(tmp_path: Path) -> None:
    data = Numbers(lambda: os.kill(os.getpid(), signal.SIGKILL))
    error, _ = failed(net(), tmp_path, train=data, num_workers=2, shuffle=False)
    assert isinstance(error, RuntimeError)
    assert "DataLoader worker" in str(error)
    assert "killed by signal: Killed" in f"{error}{error.__cause__}"
    assert "of 2" in notes(error)


def test_shared_memory_that_is_full(tmp_path: Path) -> None:
    def full() -> None:
        raise RuntimeError(
            "unable to write to file </torch_123_456_0>: No space left on device (28)"
        )

    error, _ = failed(net(), tmp_path, train=Numbers(full), num_workers=1)
    assert "unable to write to file" in str(error)
    assert "the shared memory of the system (/dev/shm)" in notes(error)
    assert "num_workers=0" in notes(error)


def test_memory_that_runs_out_in_one_rank(tmp_path: Path) -> None:
    def grow() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, resource.RLIM_INFINITY))
        torch.ones(1 << 32)

    error, _ = failed(net(at(2, 1, grow)), tmp_path)
    assert "in rank 1 of 2" in notes(error)
    assert "can't allocate memory" in str(error)
    assert "take a smaller batch_size" in notes(error)


PATIENCE = 6.0
"""Seconds without a step for which a rank may be held up on a busy machine: more is a hang."""


def test_a_rank_that_hangs(tmp_path: Path) -> None:
    def hang() -> None:
        time.sleep(1000)

    model = net(at(3, 1, hang))
    before = model.layers[0].weight.clone()
    error, job = failed(model, tmp_path, rank_timeout=PATIENCE)
    assert isinstance(error, RankTimeout)
    text = str(error)
    assert text.startswith(
        f"no rank has made progress for {PATIENCE:g} s (rank_timeout). One of them hangs"
    )
    first, second = text.split("rank 1 of 2:")
    assert "rank 0 of 2:" in first
    assert "in backward" in first
    assert "in hang" in second
    assert "launch/pool/worker.py" not in text
    assert "The model has the weights of its last update" in text
    assert not torch.equal(model.layers[0].weight, before)
    assert job.events[-1].step == 3


@pytest.mark.slow  # waits for a watchdog
def test_a_rank_that_is_stopped(tmp_path: Path) -> None:
    model = net(at(3, 1, lambda: os.kill(os.getpid(), signal.SIGSTOP)))
    error, _ = failed(model, tmp_path, rank_timeout=PATIENCE)
    assert isinstance(error, RankTimeout)
    assert "Rank 1 is stopped, and the others wait for it:" in str(error)
    assert "rank 1 of 2:\nits process " in str(error)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_second_stop_kills_ranks_of_which_one_is_suspended(tmp_path: Path, rank: int) -> None:
    model = net(at(-1, 0, fail))
    with bench(model, tmp_path, max_epochs=100_000, checkpoint_every=2) as made:
        job = made.fit()
        wait_for(lambda: job.updates > 4)
        (suspended,) = [one for one in ranks() if one.pid == pool._slots[0].pool.members[rank].pid]  # type: ignore[union-attr]
        suspended.suspend()
        wait_for(lambda: suspended.status() == psutil.STATUS_STOPPED)
        job.stop()
        job.stop()
        run = job.result()
        assert run.status == job.status == "stopped"
        assert run.checkpoints
        assert run.checkpoints[-1].resumable
        (said,) = [
            event.text
            for event in run.events
            if isinstance(event, Message) and "second time" in event.text
        ]
        assert f"rank {rank} (process {suspended.pid})" in said


@pytest.mark.slow  # waits for a watchdog
def test_a_pause_may_be_longer_than_the_watchdog_waits(tmp_path: Path) -> None:
    job = bench(net(at(-1, 0, fail)), tmp_path, rank_timeout=PATIENCE, max_epochs=100_000).fit()
    wait_for(lambda: losses(job))
    job.pause()
    wait_for(lambda: job.status == "paused")
    time.sleep(PATIENCE + 1.0)
    job.resume()
    job.stop()
    assert job.result().status == "stopped"


def test_time_that_the_owner_takes_is_not_the_ranks(tmp_path: Path) -> None:
    class Slow:
        """An outlet that holds up whoever hands it an event."""

        def __init__(self) -> None:
            self.heard: list[Any] = []

        def __call__(self, event: Any, /) -> None:
            if not self.heard:
                time.sleep(PATIENCE + 2.0)
            self.heard.append(event)

        def settle(self, seconds: float = 3.0) -> None:
            pass

        def printed(self, line: str) -> None:
            pass

    some = bench(net(at(-1, 0, fail)), tmp_path, rank_timeout=PATIENCE, max_epochs=2)
    training = FitAssignment(some._task, some.settings)
    outlet = Slow()
    done = pool.run(training, "cpu", (0, 1), outlet, Mailbox())
    assert done.status == "finished"
    assert training.updates == 12
    assert isinstance(outlet.heard[0], RunStarted)


class Homeless(torch.nn.Linear):
    """A layer that cannot be unpacked."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise ValueError("not here")


def test_what_cannot_be_read_at_home_is_the_error(tmp_path: Path) -> None:
    def make(rank: int, step: int) -> None:
        sys._getframe(1).f_locals["self"].made = Homeless(2, 2)

    error, _ = failed(net(make), tmp_path)
    assert repr(error) == "ValueError('not here')"
    assert "its result cannot be unpacked in this process" in notes(error)


def test_a_listener_that_raises(tmp_path: Path) -> None:
    def bad(event: Any) -> None:
        raise ValueError("not mine")

    job = bench(net(), tmp_path, listeners=[bad]).fit()
    job.result()
    assert job.status == "finished"


def test_ranks_that_are_killed_between_jobs(tmp_path: Path) -> None:
    killed = ranks()
    for process in killed:
        process.kill()
    psutil.wait_procs(killed)  # one that is still about to die could be given the job
    job = bench(net(), tmp_path).fit()
    job.result()
    assert job.status == "finished"


def test_a_pool_that_is_closed_under_its_job(tmp_path: Path) -> None:
    job = bench(net(at(-1, 0, fail)), tmp_path, max_epochs=100_000).fit()
    wait_for(lambda: losses(job))
    pool.close()
    assert isinstance(job.exception(), ChildDied)


def test_an_interrupt_at_any_moment(tmp_path: Path) -> None:
    """It goes to the whole group of a kernel; the job is stopped, and the next one works. Every other one wants a new pool."""
    numbers, made = random.Random(0), []
    for number in range(count(5, 50)):
        code = f"import os, signal, sys, time; sys.stdin.read(); time.sleep({numbers.random() * 0.7}); os.kill({os.getpid()}, signal.SIGINT)"
        script = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        assert script.stdin is not None
        try:
            with contextlib.suppress(KeyboardInterrupt):
                script.stdin.close()  # its time begins
                some = bench(net(at(-1, 0, fail)), tmp_path, max_epochs=3, devices=2 + number % 2)
                made.append(some)
                some.fit().result()
                script.wait()
                time.sleep(0.2)
        finally:
            script.wait()
    for some in made:  # where it came before anybody waited for the job, that went on
        some.close()
    jobs = [bench(net(), tmp_path).fit() for _ in range(2)]
    assert [job.result().status for job in jobs] == ["finished", "finished"]
    wait_for(lambda: len(ranks()) == len(child_handle._live) == 2)


KERNEL = """
import json, os, sys, psutil, torch
sys.path.insert(0, {home!r})
from tests.launch.pools import bench, net
from tests.launch.pool.test_pool_faults import Numbers
from workbench.events import StepsDone
from workbench.launch.process import fork_client
def hear(event):
    if isinstance(event, StepsDone):
        server = psutil.Process(fork_client.server().process.pid)
        there = [server.pid, *(p.pid for p in server.children(recursive=True))]
        print(json.dumps([there, fork_client.server().temporary]), flush=True)
bench(net(), {root!r}, train=Numbers(int), num_workers=1, max_epochs=10**6, listeners=[hear]).fit()
"""


def test_a_kernel_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    import json

    code = KERNEL.format(home=str(Path(__file__).parents[2]), root=str(tmp_path))
    before = named()
    there, temporary = [], ""
    # which ends it with its group, too, where this fails
    with kernel(code, **warm.FORKED_SERVER) as process:
        while len(there) < 5:  # the server, two ranks and their workers
            there, temporary = json.loads(process.stdout.readline())
        process.kill()
        process.wait()
        wait_for(lambda: all(map(gone, there)))
    assert not os.path.exists(temporary)
    wait_for(lambda: named() <= before)
