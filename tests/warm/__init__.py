"""Forks Python processes for tests from one that has imported torch, which saves 3 seconds of each start.

Where what is tested is the start itself, or what a start imports, a test starts Python.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO

HOME = Path(__file__).parents[2]
RUN = "WORKBENCH_TEST_RUN"
"""The environment's name for the folder of a run of the tests, which all its processes share."""

FORKED_SERVER = {"WORKBENCH_TEST_FORKED_SERVER": "1"}
"""In the environment of what is forked here: its first fork server is forked, too, and does not import torch for seconds."""


def begin_run() -> Path:
    """Make the folder that all processes of this run of the tests share. The forking processes end with this process."""
    folder = Path(tempfile.mkdtemp())
    (folder / "pid").write_text(str(os.getpid()))
    os.environ[RUN] = str(folder)
    return folder


def _run() -> Path:
    """The folder of this run, also where something else than pytest uses this package."""
    if RUN not in os.environ:
        atexit.register(shutil.rmtree, begin_run(), ignore_errors=True)
    return Path(os.environ[RUN])


def environment() -> dict[str, str]:
    """This process's, with this repository on the path."""
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(HOME), known]))}


def _umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


ENVIRONMENT, UMASK = environment(), _umask()
"""Before any test has changed them: whichever test is the first to need a shared process, that one has these."""


class Script:
    """A process that runs a script, as `subprocess.Popen` would show it: stdout is a pipe, stderr is kept in a file."""

    def __init__(
        self, argv: Sequence[str], status: socket.socket, stdout: IO[str], stderr: int
    ) -> None:
        self.argv, self.stdout = argv, stdout
        self.returncode: int | None = None
        self._stderr = stderr
        weakref.finalize(self, os.close, stderr)
        with status:
            lines = status.makefile("r")
        first = lines.readline().strip()
        if not first.isdigit():
            raise OSError(
                f"no process was forked for {list(argv)}: {first or 'the forking process has ended'}"
            )
        self.pid = int(first)
        self._waiting = threading.Thread(target=self._wait_for_end, args=(lines,), daemon=True)
        self._waiting.start()

    def _wait_for_end(self, lines: IO[str]) -> None:
        with lines:
            line = lines.readline()
        # the forking process has ended, and all of its own with it
        self.returncode = int(line) if line else -signal.SIGKILL

    def said(self) -> str:
        """What it has written to stderr."""
        return os.pread(self._stderr, 1 << 24, 0).decode()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._waiting.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(list(self.argv), timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """All that it printed, when it has ended. One that takes longer is killed, which is a `TimeoutExpired`."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self.kill()

        timer = threading.Timer(timeout or threading.TIMEOUT_MAX, end)
        timer.daemon = True
        timer.start()
        try:
            with self.stdout:
                out = self.stdout.read()
            self.wait(timeout)
        finally:
            timer.cancel()
        if late.is_set():
            raise subprocess.TimeoutExpired(list(self.argv), timeout or 0, out, self.said())
        return out, self.said()


class Warm:
    """A process that has imported `modules` and forks for scripts; none of them can import what is `blocked`."""

    def __init__(
        self,
        modules: Sequence[str],
        blocked: Sequence[str] = (),
        environment: dict[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        """environment: that of its scripts; None: this process's at the time of each, with this repository on the path.

        name: all processes of a run of the tests share the one of this name, which the first of them starts. It ends with the run.
        """
        self._environment = environment
        self._modules, self._blocked = list(modules), list(blocked)
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp()) if name is None else _run() / name
        self.folder.mkdir(mode=0o700, exist_ok=True)
        # short: the path of a socket has at most 107 characters
        self._address = str(self.folder / "s")
        self._connected().close()

    @property
    def executable(self) -> Path:
        """Stands for `python` where another process starts it, which stdin does not reach."""
        self._connected().close()
        return self.folder / "python"

    def _connected(self) -> socket.socket:
        """A connection to the forking process; a new one is started where none runs."""
        with contextlib.suppress(OSError):
            return self._connect()
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.suppress(OSError):  # another process has started it meanwhile
                return self._connect()
            self._start()
            return self._connect()

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(self._address)
        except OSError:
            connection.close()
            raise
        return connection

    def _start(self) -> None:
        if self._process is not None:
            self._process.wait(120)  # it takes no jobs any more
        stand_in = shlex.join(
            [sys.executable, "-S", str(Path(__file__).with_name("stand_in.py")), self._address]
        )
        executable = self.folder / "python"
        executable.write_text(f'#!/bin/sh\nexec {stand_in} "$@"\n')
        executable.chmod(0o700)
        Path(self._address).unlink(missing_ok=True)
        run = _run()
        given = {
            "modules": self._modules,
            "blocked": self._blocked,
            "run": str(run),
            "controller": int((run / "pid").read_text()),
        }
        known = ENVIRONMENT if self._environment is None else self._environment
        # OpenBLAS starts threads when numpy is imported, and a process with threads is no clean one to fork. Without the other,
        # asking whether there is a GPU starts CUDA, which no forked process could use then.
        known = {**known, "OPENBLAS_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._address)
            listener.listen()
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("forking_process.py")), str(listener.fileno()), json.dumps(given)],
                pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, env=known, umask=UMASK,
            )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        """That of a script which is started now."""
        return environment() if self._environment is None else dict(self._environment)

    def start(
        self,
        *argv: str,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
        leave: bool = False,
    ) -> Script:
        """`python argv…` in this folder. leave: without the interpreter's own end."""
        here, there = socket.socketpair()
        reading, writing = os.pipe()
        stderr, name = tempfile.mkstemp()
        os.unlink(name)
        job = {
            "argv": argv,
            "folder": os.getcwd() if folder is None else str(folder),
            "environment": self.environment if environment is None else environment,
            "leave": leave,
        }
        with there, self._connected() as connection:
            socket.send_fds(
                connection, [json.dumps(job).encode()], [there.fileno(), writing, stderr]
            )
        os.close(writing)
        return Script(argv, here, os.fdopen(reading), stderr)

    def run(
        self,
        *argv: str,
        timeout: float = 250.0,
        folder: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """`python argv…` to its end."""
        script = self.start(*argv, folder=folder, environment=environment)
        out, err = script.communicate(timeout)
        return subprocess.CompletedProcess(list(argv), script.wait(), out, err)

    def close(self) -> None:
        """End one that this process alone has."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(120)
        shutil.rmtree(self.folder)


@functools.cache
def python() -> Warm:
    """The one that has the workbench imported, for all tests."""
    modules = (
        "torch._dynamo", "accelerate.commands.launch", "torch.distributed.run", "safetensors.torch", "workbench.bench",
        "workbench.launch.accelerate.worker",
    )  # fmt: skip
    return Warm(modules, name="python")


@functools.cache
def _kernels() -> Warm:
    modules = (
        "ipykernel.kernelapp", "torch._dynamo", "sklearn.datasets", "accelerate", "safetensors.torch", "pydantic", "matplotlib.figure",
        "matplotlib.backends.backend_agg", "workbench.bench",
    )  # fmt: skip
    inline = {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # as ipykernel sets it
    return Warm(modules, environment=ENVIRONMENT | inline, name="kernels")


def kernels() -> Path:
    """A folder for JUPYTER_PATH: in it, `python3` is a kernel that has imported what a notebook imports.

    Its first fork server is forked, too. Without this folder, a test takes the kernel of this environment, which starts Python.
    """
    made = _kernels()
    spec = made.folder / "kernels" / "python3"
    spec.mkdir(parents=True, exist_ok=True)
    # ipywidgets, which accelerate imports, registers in the kernel where it is imported, and there was none yet. Without this a
    # page that is loaded again asks for each widget alone.
    widgets = "--IPKernelApp.exec_lines=__import__('ipywidgets').register_comm_target()"
    argv = [str(made.executable), "-m", "ipykernel_launcher", "-f", "{connection_file}", widgets]
    known = {
        "argv": argv,
        "env": FORKED_SERVER,
        "display_name": "Python 3",
        "language": "python",
        "metadata": {"debugger": False},
    }
    written = spec / f"{os.getpid()}.json"
    written.write_text(json.dumps(known))
    written.replace(spec / "kernel.json")  # another process may read it
    return made.folder
