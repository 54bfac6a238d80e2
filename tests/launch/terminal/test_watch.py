"""`job.watch()` on a terminal: it draws, reads keys, leaves the terminal as it was, and the job alone when it is left."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests import warm
from tests.engine.problems import bench, labelled, plain_net
from tests.launch.launched import kill_all_of
from tests.waiting import wait_for
from workbench.commands import Pause
from workbench.events import RunStarted
from workbench.launch.terminal import watch
from workbench.runs.folder import control
from workbench.runs.store import RunFolder

_WATCH = """
import sys, threading
from workbench.events import Message, RunStarted, StatusChanged
from workbench.launch.terminal.watch import watch
events, ended = [RunStarted("0001-fit", "fit", {}, "cpu", (), 10)], threading.Event()
events += [Message(f"warning {n}", "warning") for n in range(9)]
def pause():
    events.append(StatusChanged("paused", 3))
    return "Pause requested."
def refuse():
    raise RuntimeError("only its own process can stop it")
seen = watch("0001-fit", "fit", events, ended.wait, {"p": ("pause", pause), "s": ("stop", refuse)}, shown=2)
print("LEFT", seen, ended.is_set())
"""

_FIT = """
import sys, termios, torch, workbench as wb
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.randn(64, 6), torch.randint(0, 3, (64,)))
bench = wb.Workbench(
    torch.nn.Linear(6, 3), train=data, val=data, loss=torch.nn.functional.cross_entropy, root=sys.argv[1], accelerator="cpu",
    batch_size=8, max_epochs=1_000_000, check_val_every_n_epoch=1_000_000,
)
job = bench.fit()
job.watch()
print("INTERRUPTED", job.status)
job.watch()
print("LEFT", job.result().status, bool(termios.tcgetattr(0)[3] & termios.ICANON))
"""

_SHELL = """
# As a shell with job control: the watch runs in the foreground, then in the background, where it ends.
import os, select, signal, termios
to_shell, to_job = os.pipe(), os.pipe()
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    from workbench.events import RunStarted
    from workbench.launch.terminal.watch import watch
    def ended(seconds):
        os.write(to_shell[1], b".")
        return bool(select.select([to_job[0]], [], [], seconds)[0])
    watch("0001-fit", "fit", [RunStarted("0001-fit", "fit", {}, "cpu", (), 10)], ended, {})
    os._exit(7)
os.read(to_shell[0], 1)
os.tcsetpgrp(0, os.getpgrp())
print("BACKGROUND", flush=True)
select.select([0], [], [])
looks = 0
while looks < 3 and select.select([to_shell[0]], [], [], 5)[0]:
    looks += len(os.read(to_shell[0], 1))
os.write(to_job[1], b".")
status = os.waitpid(pid, os.WUNTRACED)[1]
if os.WIFSTOPPED(status):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print("STOPPED by", os.WSTOPSIG(status))
else:
    print("EXITED", os.waitstatus_to_exitcode(status), bool(termios.tcgetattr(0)[3] & termios.ICANON))
"""


_ON_TERMINAL = """
import fcntl, os, sys, termios
terminal = os.open(sys.argv.pop(1), os.O_RDWR)
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
for number in range(3):
    os.dup2(terminal, number)
os.close(terminal)
"""


class _Terminal:
    """A process on a terminal of its own."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.fd, terminal = pty.openpty()
        # as wide as most terminals
        size = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "40"}
        self._process = warm.python().start(
            "-u",
            "-c",
            _ON_TERMINAL + code,
            os.ttyname(terminal),
            *arguments,
            environment=warm.environment() | size,
        )
        self.pid = self._process.pid
        self._terminal = terminal  # a terminal that nobody has open yet is at its end
        self._text = ""

    def until(self, words: str, seconds: float = 200.0) -> str:
        """Wait for words after those that were waited for before; returns what is before them."""
        end = time.monotonic() + seconds
        while words not in self._text:
            assert time.monotonic() < end, f"no {words!r} in {self._text[-2000:]!r}"
            # asked first: then all that it has written is there
            ended = self._process.poll() is not None
            if select.select([self.fd], [], [], 0 if ended else 0.2)[0]:
                self._text += os.read(self.fd, 1 << 16).decode(errors="replace")
            else:
                assert not ended, f"no {words!r} in {self._text[-2000:]!r}"
        before, _, self._text = self._text.partition(words)
        return before

    def type(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    @property
    def by_line(self) -> bool:
        """Whether the terminal gives its input line by line, as a shell leaves it."""
        return bool(termios.tcgetattr(self.fd)[3] & termios.ICANON)

    def end(self) -> int:
        """The process's exit code, when it has ended."""
        return self._process.wait(200)

    def close(self) -> None:
        kill_all_of(self._process)
        os.close(self.fd)
        os.close(self._terminal)


@pytest.fixture
def terminal() -> Iterator[Callable[..., _Terminal]]:
    made: list[_Terminal] = []

    def make(code: str, *arguments: str) -> _Terminal:
        made.append(_Terminal(code, *arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_keys_act_on_the_job_and_q_leaves_it(terminal: Callable[..., _Terminal]) -> None:
    child = terminal(_WATCH)
    text = child.until("p pause · s stop · q quit")
    assert [text.count(f"warning {n}") for n in range(9)] == [0, *[1] * 8], (
        "all but the one that was told before"
    )
    assert "running" in text
    child.type("p")
    child.until("paused")
    child.type("s")
    child.until("Press s again to stop.")
    child.type("pss")  # after another key it asks again
    child.until("only its own process can stop it")
    child.type("q")
    child.until("LEFT 12 False")
    assert child.end() == 0


def test_an_interrupt_keeps_what_was_shown(terminal: Callable[..., _Terminal]) -> None:
    child = terminal(_WATCH)
    child.until("warning 8")
    for _ in range(2):  # the drawing below the messages, and the next one
        child.until("q quit")
    child.type("\x03")
    child.until("LEFT 10 False")
    assert child.end() == 0


def test_a_fit_obeys_its_keys(terminal: Callable[..., _Terminal], tmp_path: Path) -> None:
    child = terminal(_FIT, str(tmp_path))
    child.until("running")
    child.type("\x03")
    child.until("INTERRUPTED running")
    child.until("q quit")
    for key, answer, shown in (
        ("v", "Validation requested.", "val_loss"),
        ("c", "Checkpoint requested.", "last checkpoint after"),
        ("p", "Pause requested.", "paused"),
    ):
        child.type(key)
        child.until(answer)  # first, since it is shown for seconds, and what it brings about stays
        child.until(shown)
    child.type("p")
    child.until("running")
    child.type("s")
    child.until("Press s again to stop.")
    child.type("ss")
    child.until("LEFT stopped True")
    assert child.end() == 0


_ATTACHED = """
import sys, workbench as wb
for root in sys.argv[1:]:
    print("LEFT", wb.attach("0001-fit", root).watch())
"""


def test_a_run_of_another_process_has_the_keys_that_reach_it(
    terminal: Callable[..., _Terminal], tmp_path: Path
) -> None:
    every = ("", "launched", "takes_commands")
    with contextlib.ExitStack() as folders:
        headers = [{"kind": "fit", **({takes: True} if takes else {})} for takes in every]
        runs = [
            folders.enter_context(RunFolder.create(tmp_path / f"{n}", "0001-fit", header))
            for n, header in enumerate(headers)
        ]
        for run in runs:
            run.append(RunStarted("0001-fit", "fit", {}, "cpu"))
        child = terminal(_ATTACHED, *(str(tmp_path / f"{n}") for n in range(len(runs))))
        for takes, run in zip(every, runs, strict=True):
            assert ("s stop" in child.until("q quit")) == bool(takes)
            if takes:
                child.type("p")
                child.until("Pause requested.")
                wait_for(lambda run=run: [*control.take(run.path)] == [Pause()])
            child.type("q")
            child.until("LEFT False")
        assert child.end() == 0


def test_a_killed_process_leaves_the_terminal_as_it_was(terminal: Callable[..., _Terminal]) -> None:
    child = terminal(_WATCH)
    child.until("q quit")
    assert not child.by_line
    os.kill(child.pid, signal.SIGTERM)
    child.until("\x1b[?25h")
    assert child.by_line
    assert child.end() == -signal.SIGTERM


def test_in_the_background_it_neither_reads_nor_stops(terminal: Callable[..., _Terminal]) -> None:
    child = terminal(_SHELL)
    child.until("BACKGROUND")
    child.type("q")
    child.until("EXITED 7 True")


def test_without_a_terminal_it_shows_the_line_of_wait(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    go = threading.Event()

    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert threading.current_thread() is threading.main_thread() or go.wait(200)
        return F.cross_entropy(output, y)

    def begun(*arguments: Any, **named: Any) -> int | None:
        go.set()
        return watch.watch(*arguments, **named)

    job = bench(plain_net(), labelled(24), tmp_path, loss=loss).fit(max_steps=300)
    with monkeypatch.context() as patched:
        patched.setitem(
            sys.modules, "workbench.launch.terminal.watch", SimpleNamespace(watch=begun)
        )
        assert job.watch()
    assert "300/300" in capsys.readouterr().err
    assert job.watch(), "it has ended"
