"""Runs the fork server, from which ranks are forked: `python -m
workbench.launch.process.fork_server CONTROL PARENT …`.

The server is a process with one thread that has imported torch and accelerate, has run no operation
and never uses a device. So each child that it forks can start work at once. As their parent it
reaps the children, kills the processes that they leave, and reports how they ended. It ignores
SIGINT and has a process group of its own, because an interrupt or a kill goes to the kernel's whole
group. When its own parent is gone, it ends all children and deletes its temporary folder. Each
message on CONTROL asks for one child: "7 call" or "5 rank". Its 7 or 5 file descriptors are the
caller's channel, a status socket, the pipes for stdout and stderr, and more (a call's message; the
file for a rank's stacks). On the status socket the server writes lines ("pid 12", "exit -9",
"refused why"). When the caller closes that socket, the server kills the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from workbench.launch import signals
from workbench.launch.process.channel import close_fds, receive_fds

PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.nn.parallel",
    "accelerate",
    "cloudpickle",
    "workbench.launch.process.child_main",
    "workbench.launch.pool.worker",
    "workbench.tuners.batch_size.batch_size_finder",
    "workbench.tuners.trial",
    "workbench.task.factory",
)
"""Modules to import before the first fork. The first optimizer of a process imports torch._dynamo,
which takes seconds; accelerate imports the hooks for the first model of a rank.
"""
_PR_SET_CHILD_SUBREAPER = 36
_GRACE = 10.0
"""Seconds until a killed process must be gone. On a busy machine it ends only when it is
scheduled again.
"""


class _Child:
    """One child, from its fork until its whole process group is gone."""

    def __init__(self, pid: int, status: socket.socket) -> None:
        self.pid = pid
        self.status = status
        self.code: int | None = None
        self.deadline = 0.0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether the child and all other processes of its group are gone; each of them may hold
        memory.
        """
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        return time.monotonic() > self.deadline


class Server:
    """The main loop: starts children, watches their ends and their callers."""

    def __init__(self, control: socket.socket, parent: int, temporary: str) -> None:
        self._control = control
        self._parent = parent
        self._temporary = temporary
        self._children: dict[int, _Child] = {}
        self._select = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._select.register(control, selectors.EVENT_READ, self._accept)
        self._select.register(self._woken, selectors.EVENT_READ, lambda: self._woken.recv(4096))

    def serve(self) -> NoReturn:
        """Handle requests and ended children, until the parent is gone."""
        while True:
            ending = any(child.code is not None for child in self._children.values())
            for key, _ in self._select.select(0.005 if ending else 0.5):
                key.data()
            self._reap()
            # also when a process forked from the parent holds its socket
            if os.getppid() != self._parent:
                self._leave()

    def _accept(self) -> None:
        try:
            word, received, lost = receive_fds(self._control, 64)
        except OSError:
            word, received, lost = b"", [], False
        if not word:
            self._leave()
        count, _, kind = word.decode().partition(" ")
        if len(received) != int(count) or lost:
            # Dropping them closes the status socket, which the caller notices; the reason is in the
            # server's log.
            print(
                f"a {kind} came with {len(received)} of {count} file descriptors",
                file=sys.stderr,
                flush=True,
            )
        else:
            status = socket.socket(fileno=os.dup(received[1]))
            if not _caller_closed(status):
                self._start(kind, received, status)
            else:
                status.close()
        close_fds(received)

    def _start(self, kind: str, files: list[int], status: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            status.send(f"refused {error}\n".encode())
            status.close()
            return
        if pid == 0:
            self._become_child(kind, files, status)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # in both processes, whichever comes first
        child = self._children[pid] = _Child(pid, status)
        self._select.register(status, selectors.EVENT_READ, lambda: self._end_abandoned(child))
        _write_status(status, f"pid {pid}\n")

    def _become_child(self, kind: str, files: list[int], status: socket.socket) -> NoReturn:
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._select.close()
            for end in (
                self._control,
                self._woken,
                self._wake,
                status,
                *(c.status for c in self._children.values()),
            ):
                end.close()
            channel, status_fd, out, err, *more = files
            os.close(status_fd)
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)
            # These import torch, which must not happen before the server does it.
            if kind == "rank":
                from workbench.launch.pool.worker import run_rank

                run_rank(channel, more, self._temporary)
            from workbench.launch.process.child_main import run_forked

            run_forked(channel, more, self._temporary)
        except BaseException:  # noqa: BLE001 - the child must never return into the server's loop
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)

    def _end_abandoned(self, child: _Child) -> None:
        """End the child, because its caller closed its end or died."""
        self._select.unregister(child.status)
        child.kill()

    def _reap(self) -> None:
        while True:
            try:
                # WNOWAIT: while the leader is not reaped, no other process can get the id of its
                # group.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                ended = None
            if ended is None:
                break
            child = self._children.get(ended.si_pid)
            if child is not None:
                child.kill()
            _, wait_status = os.waitpid(ended.si_pid, 0)
            if child is not None:
                child.code = os.waitstatus_to_exitcode(wait_status)
                child.deadline = time.monotonic() + _GRACE
        for child in [
            child for child in self._children.values() if child.code is not None and child.is_gone()
        ]:
            del self._children[child.pid]
            _write_status(child.status, f"exit {child.code}\n")
            if child.status in self._select.get_map():
                self._select.unregister(child.status)
            child.status.close()

    def _leave(self) -> NoReturn:
        """End at once, with every child and its children."""
        for child in self._children.values():
            child.kill()
        _wait_for_all()
        # nothing is left that could put something there
        shutil.rmtree(self._temporary, ignore_errors=True)
        os._exit(0)


def _wait_for_all() -> None:
    """Reap the processes that were just killed, for a short time, so that no other process has
    to.
    """
    deadline = time.monotonic() + _GRACE
    try:
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.002)
    except ChildProcessError:
        pass


def _caller_closed(status: socket.socket) -> bool:
    """Whether the caller closed its end before the child was forked."""
    try:
        return status.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _write_status(status: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # the caller has closed it; it is killed elsewhere
        status.send(line.encode())


def _adopt_orphans() -> None:
    """Become the parent of a killed child's loader workers, so that no zombie is left where init
    does not reap.
    """
    with contextlib.suppress(OSError, AttributeError):  # then they are init's
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _while_parent_lives(parent: int, temporary: str, load: Callable[[], None]) -> None:
    """Run `load`, and end the server if the parent ends meanwhile. A timer checks that, since
    the server may have only one thread.
    """

    def look(*_: object) -> None:
        if os.getppid() != parent:
            shutil.rmtree(temporary, ignore_errors=True)
            os._exit(0)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        load()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _load(more: Sequence[str]) -> None:
    for name in PRELOAD:
        importlib.import_module(name)
    for name in more:
        try:
            importlib.import_module(name)
        except ImportError as error:
            # the kernel's import path may differ; a child has that path too
            print(f"{name} is not imported ahead: {error}", file=sys.stderr, flush=True)
    gc.collect()
    gc.freeze()  # a collection in a child does not write into pages that it shares with the server


def main(control: int, parent: int, temporary: str, more: Sequence[str]) -> NoReturn:
    """Run the fork server. control: the socket to the parent. more: the names of modules to
    import in advance.
    """
    # A scheduler sends SIGTERM and SIGUSR1 to all processes of a job. The parent stops its jobs
    # then, for which they are needed.
    for number in (signal.SIGINT, *signals.NUMBERS):
        signal.signal(number, signal.SIG_IGN)
    _adopt_orphans()
    _while_parent_lives(parent, temporary, lambda: _load(more))
    Server(socket.socket(fileno=control), parent, temporary).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
