"""Whether a writer lives: by number and birth, by host and boot, and by silence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from workbench.runs.folder import alive

CLOCKS = [alive._by_psutil, *([alive._by_proc] if sys.platform == "linux" else [])]


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_process_has_a_birth_until_it_is_gone(clock: Callable[[int], float | None]) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        born = clock(child.pid)
        assert born is not None
        time.sleep(0.05)
        assert clock(child.pid) == born
        assert clock(os.getpid()) != born
        child.kill()
        end = time.monotonic() + 120
        while clock(child.pid) is not None:  # a zombie, until it is waited for
            assert time.monotonic() < end
            time.sleep(0.01)
    assert clock(child.pid) is None


def test_this_process_lives() -> None:
    assert alive.is_alive(alive.identity())


def test_a_number_used_again_is_another_process() -> None:
    me = alive.identity()
    assert not alive.is_alive(me | {"pid_started": me["pid_started"] - 1})


@pytest.mark.parametrize("header", [{}, {"pid": None}, {"pid": "7"}, {"pid": 7}])
def test_where_nothing_is_known_it_may_live(header: dict[str, object]) -> None:
    assert alive.is_alive(header)
    assert alive.liveness(header) == "unknown"


@pytest.mark.parametrize("key", ["host", "boot", "pid_namespace"])
def test_one_that_cannot_be_asked_may_live(key: str) -> None:
    """Whatever the process of that number is here, and however long nothing was written."""
    me = alive.identity()
    for header in (me | {key: "another"}, me | {key: "another", "pid": 4_000_000}):
        assert alive.liveness(header) == "unknown"
        assert alive.is_alive(header)


def test_a_proc_of_another_namespace_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc that was mounted outside a container lists other processes under these numbers."""
    me = alive.identity()
    monkeypatch.setattr(
        os, "readlink", lambda path: "123456" if str(path) == "/proc/self" else "pid:[7]"
    )
    assert alive.liveness(me) == ("unknown" if sys.platform.startswith("linux") else "alive")
