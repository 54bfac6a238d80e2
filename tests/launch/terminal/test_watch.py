"""`job.watch()` on a terminal: it draws, hears keys, and leaves the job alone when it is left."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Callable

import pytest

import workbench as wb
from tests.engine.problems import bench, labelled, plain_net

_CHILD = """
import sys, threading
from workbench.events import RunStarted, StatusChanged
from workbench.launch.terminal.watch import watch
events, ended = [RunStarted("0001-fit", "fit", {}, "cpu", (), 10)], threading.Event()
def pause():
    events.append(StatusChanged("paused", 3))
def refuse():
    raise RuntimeError("only its own process can stop it")
seen = watch("0001-fit", "fit", events, ended.wait, {"p": ("pause", pause), "s": ("stop", refuse)})
print("LEFT", seen, ended.is_set())
"""


class _Terminal:
    """A child process on a terminal of its own."""

    def __init__(self, code: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color")
            os.execv(sys.executable, [sys.executable, "-c", code])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.text = ""

    def until(self, words: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < end, f"no {words!r} in {self.text[-2000:]!r}"
            if select.select([self._fd], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self._fd, 1 << 16).decode(errors="replace")
                except OSError:  # the child has ended
                    assert words in self.text, f"no {words!r} in {self.text[-2000:]!r}"

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def end(self) -> int:
        status = os.waitpid(self.pid, 0)[1]
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)


def test_keys_act_on_the_job_and_q_leaves_it() -> None:
    terminal = _Terminal(_CHILD)
    terminal.until("p pause · s stop · q quit watching")
    assert "running" in terminal.text
    terminal.type("p")
    terminal.until("paused")
    terminal.type("s")
    terminal.until("only its own process can stop it")
    terminal.type("q")
    terminal.until("LEFT 2 False")
    assert terminal.end() == 0


def test_without_a_terminal_it_shows_the_line_of_wait(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    job = bench(plain_net(), labelled(24), tmp_path).fit(max_steps=3)
    assert job.watch()
    assert "3/3" in capsys.readouterr().err
    assert job.watch(), "it has ended"


def test_an_interrupt_ends_the_drawing_and_not_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    job = bench(plain_net(), labelled(24), tmp_path).fit(max_steps=50)

    def interrupted(*_: object) -> Callable[[], int]:
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.launch.terminal.watch.watch", interrupted)
    job.watch()
    run = job.result()
    assert isinstance(run, wb.Run)
    assert job.status == "finished"
