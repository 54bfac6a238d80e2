"""A fork waits until the threads of gloo and NCCL sleep."""

import ctypes
import hashlib
import os
import sys
import threading
import types
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.on_ranks import on_ranks
from tests.waiting import wait_for
from workbench.engine.distributed import safe_fork
from workbench.engine.distributed.process_group import MultiProcessGroup

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the states of threads are in Linux's /proc"
)
PR_SET_NAME = 15


@pytest.mark.parametrize("name", [b"pt_gloo_runloop", b"pt_nccl_watchdg"])
def test_a_thread_that_works_is_told_from_one_that_sleeps(name):
    named, asleep, left = threading.Event(), threading.Event(), threading.Event()

    def work():
        assert ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0) == 0
        named.set()
        while not asleep.is_set():
            hashlib.sha256(bytes(1 << 24))  # without Python's lock, as those work
        left.wait()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        named.wait(60)
        thread = Path(f"/proc/self/task/{worker.native_id}")
        assert thread in {*safe_fork._threads()}
        wait_for(lambda: safe_fork._runs(thread))
        asleep.set()
        wait_for(lambda: not safe_fork._runs(thread))
        safe_fork.wait_for_collectives()
    finally:
        asleep.set()
        left.set()
        worker.join()


@pytest.mark.parametrize(
    ("states", "looks"), [([False], 1), ([True, True, False], 3), ([True] * 1000, 11)]
)
def test_a_fork_waits_while_a_thread_works_but_not_for_ever(monkeypatch, states, looks):
    now, seen = 0.0, iter(states)

    def runs(thread):
        nonlocal now
        now += 0.1
        return next(seen)

    monkeypatch.setattr(safe_fork, "_threads", lambda: ["thread"])
    monkeypatch.setattr(safe_fork, "_runs", runs)
    monkeypatch.setattr(safe_fork, "time", types.SimpleNamespace(monotonic=lambda: now))
    safe_fork.wait_for_collectives()
    assert round(now / 0.1) == looks


def guarded():
    calls = []
    safe_fork.HANGS = True
    os.register_at_fork = lambda **hooks: calls.append(hooks)
    for _ in range(2):
        MultiProcessGroup(dist.get_rank(), 2).sums([1.0])
    return calls == [{"before": safe_fork.wait_for_collectives}], len([*safe_fork._threads()])


def test_the_forks_of_a_rank_are_guarded_and_its_threads_are_known():
    for once, threads in on_ranks(2, guarded):
        assert once
        assert threads > 0
