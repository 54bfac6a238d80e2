"""Whether a writer lives: by number and birth, by host and boot, and by silence."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workbench.runs import alive

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


def test_this_process_lives(tmp_path: Path) -> None:
    assert alive.is_alive(alive.identity(), tmp_path)


def test_a_number_used_again_is_another_process(tmp_path: Path) -> None:
    me = alive.identity()
    assert not alive.is_alive(me | {"pid_started": me["pid_started"] - 1}, tmp_path)


@pytest.mark.parametrize("header", [{}, {"pid": None}, {"pid": "7"}, {"pid": 7}])
def test_where_nothing_is_known_it_may_live(tmp_path: Path, header: dict[str, object]) -> None:
    assert alive.is_alive(header, tmp_path)


@pytest.mark.parametrize(
    ("key", "limit"), [("host", alive._OTHER_HOST_SILENCE), ("boot", alive._SAME_NAME_SILENCE)]
)
def test_one_that_cannot_be_asked_is_judged_by_its_silence(tmp_path: Path, key: str, limit: float) -> None:
    file = tmp_path / "metrics.jsonl"
    file.touch()
    header = alive.identity() | {key: "another"}
    assert alive.is_alive(header, tmp_path)
    then = time.time() - limit - 5
    os.utime(file, (then, then))
    assert not alive.is_alive(header, tmp_path)
