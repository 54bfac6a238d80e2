"""Starts the fork server, sends it calls, and follows each call to its end."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import shutil
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workbench.launch.process.channel import FIXED_FDS, MOST_FDS, close_fds, receive_fds
from workbench.launch.process.child_handle import Child, Kind
from workbench.launch.process.child_handle import Deliver as Deliver
from workbench.share.segment import Handle

POLL = 0.02
"""Seconds between two checks of `stop`."""

_GRACE = 15.0
"""Seconds after a kill until a child, or the server, must be gone: longer than the server itself
waits.
"""
Stop = Callable[[], bool]
IF_LOADED = ("lightning.pytorch", "pytorch_lightning")
"""Modules that the server also imports where the kernel has them: else every child with a
LightningModule would need a second or more to import them.
"""


class ServerError(RuntimeError):
    """The fork server could not be started or did not take a call."""


@dataclass
class CallOutcome:
    """How a child ended. `answer` is its reply; `code` as in `subprocess`: negative is a signal."""

    answer: list[Handle] | None = None
    code: int | None = None
    stopped: bool = False
    lost: str = ""
    """Why its end is unknown: the server died with the child."""


class ForkServer:
    """One server process. It starts with this process's environment variables; each call sends
    the present ones.
    """

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.temporary = tempfile.mkdtemp(prefix="workbench-")
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
        self._lock = threading.Lock()
        fd, pid = str(theirs.fileno()), str(os.getpid())
        more = [name for name in IF_LOADED if name in sys.modules]
        with theirs:
            self.process = subprocess.Popen(
                # -P: a random.py in the notebook's folder is not the standard library's.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "workbench.launch.process.fork_server",
                    fd,
                    pid,
                    self.temporary,
                    *more,
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                # Jupyter kills the kernel's whole process group: the server needs a moment more, to
                # clean up.
                process_group=0,
                env=_environment(),
            )

    def submit(self, kind: Kind, files: Sequence[int]) -> None:
        """Ask the server to fork a child; raises OSError when the server is gone."""
        with self._lock:
            socket.send_fds(self.control, [f"{len(files)} {kind}".encode()], list(files))

    def alive(self) -> bool:
        """Whether the server takes calls. Its socket closes a moment before its process has
        ended.
        """
        try:
            return (
                self.process.poll() is None
                and self.control.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) != b""
            )
        except BlockingIOError:
            return True
        except OSError:
            return False

    def how_it_ended(self) -> str:
        """Wait until the server's process has ended, up to 5 s, and say how: its sockets close a
        moment earlier.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)
        code = self.process.returncode
        return "it is still running" if code is None else f"it ended with code {code}"

    def last_words(self) -> str:
        """The end of its output."""
        if self._log.closed:
            return ""
        # pread, since this process and the server, which appends, share the file's position.
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")[-4000:]

    def close(self) -> None:
        """End it and all its children."""
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.control.close()
        try:
            self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def forget(self) -> None:
        """Close this process's copy of the socket, after a fork: the copy would keep the server
        alive.
        """
        self.control.close()


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    # OpenBLAS starts threads when numpy is imported, and a process with threads cannot be forked
    # safely.
    environment["OPENBLAS_NUM_THREADS"] = "1"
    # Otherwise torch.cuda.is_available() initializes CUDA, which no forked child could use then.
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    home = str(Path(__file__).parents[3])  # of the package
    if home not in (*site.getsitepackages(), site.getusersitepackages()):
        python_path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([python_path, home] if python_path else [home])
    return environment


_server: ForkServer | None = None
_starting = threading.Lock()


def server() -> ForkServer:
    """This process's server; a new one is started where none runs."""
    global _server
    with _starting:
        if _server is not None and not _server.alive():
            _server.close()
            _server = None
        if _server is None:
            _server = ForkServer()
        return _server


def close() -> None:
    """End this process's server, if it has one, with everything that runs in it."""
    global _server
    with _starting:
        if _server is not None:
            _server.close()
            _server = None


def _forget() -> None:
    global _server, _starting
    _starting = threading.Lock()
    if _server is not None:
        _server.forget()
        _server = None


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run(handles: Sequence[Handle], deliver: Deliver, stop: Stop | None) -> CallOutcome:
    """Run one call in a child of the server and follow it to its end."""
    descriptors = [handle for handle in handles if isinstance(handle, int)]
    if len(descriptors) + FIXED_FDS > MOST_FDS:
        raise ValueError(f"at most {MOST_FDS - FIXED_FDS - 1} packages can be given to one call")
    for attempt in range(2):
        used = server()
        call = Call(deliver)
        try:
            end = call.run(used, descriptors, stop)
        finally:
            call.close()
        if not end.lost:
            return end
        how = used.how_it_ended()
        if call.pid is not None:
            end.lost += f" ({how}); the next call starts a new one"
            return end
        # the server did not die between two calls: it cannot start, or it refuses the call
        if attempt or used.alive():
            break
    raise ServerError(
        f"the fork server took no call: {end.lost}, {how}. {used.last_words()}".rstrip()
    )


class Call(Child):
    """One message for one child, and its answer."""

    def __init__(self, deliver: Deliver) -> None:
        super().__init__(deliver)
        self._answer: list[Handle] | None = None
        self._stopped = False

    def run(self, used: ForkServer, descriptors: Sequence[int], stop: Stop | None) -> CallOutcome:
        """Submit the call and wait for its end. If an exception interrupts the wait, the child
        is ended.
        """
        if self.begin(used, "call", descriptors):
            try:
                self._follow(stop)
            except BaseException:
                self.mute()
                self.kill()
                self._follow(None)
                raise
        return CallOutcome(self._answer, self.code, self._stopped, self.lost)

    def _follow(self, stop: Stop | None) -> None:
        deadline = float("inf")
        with selectors.DefaultSelector() as select:
            if self._answer is None:
                select.register(self._end, selectors.EVENT_READ, self._hear_answer)
            for fd, hear in self.sources():
                select.register(fd, selectors.EVENT_READ, hear)
            while not self.over and time.monotonic() < deadline:
                for key, _ in select.select(POLL if stop is not None or self.killed else None):
                    if not key.data():
                        select.unregister(key.fileobj)
                if stop is not None and not self.killed and self._answer is None and stop():
                    self._stopped = True
                    self.kill()
                if self.killed and deadline == float("inf"):
                    # The server does not fork for a caller that has closed its end: a call that has
                    # not begun never will.
                    deadline = time.monotonic() + (_GRACE if self.pid is not None else 0)
        if self._answer is None:
            self._hear_answer()
        self.drain()

    def _hear_answer(self) -> bool:
        with contextlib.suppress(OSError):
            data, received, lost = receive_fds(self._end, 1, socket.MSG_DONTWAIT)
            if lost:
                close_fds(received)
                raise ServerError(
                    "no file descriptors are left to receive a child's result: raise `ulimit -n`"
                )
            if data:
                self._answer = list(received)
        return False
