"""Python processes for tests, each forked from one that has imported torch already: that takes 3 seconds of a start.

Where what is tested is the start itself, or what a start imports, a test starts Python.
"""

from __future__ import annotations

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
from typing import IO, Any

HOME = Path(__file__).parents[2]
RUN = "WORKBENCH_TEST_RUN"
"""The environment's name for the process that all others of a run of the tests end with: pytest, or what has started its workers."""

RANKS = {"WORKBENCH_TEST_RANKS": "1"}
"""In the environment of what is forked here: its first fork server is forked with it, and does not import torch for seconds either."""


class Script:
    """A process that runs a script, as `subprocess.Popen` would show it: stdout is a pipe, stderr is kept in a file."""

    def __init__(self, argv: Sequence[str], told: socket.socket, stdout: IO[str], stderr: int) -> None:
        self.argv, self.stdout = argv, stdout
        self.returncode: int | None = None
        self._stderr = stderr
        weakref.finalize(self, os.close, stderr)
        with told:
            lines = told.makefile("r")
        self.pid = int(lines.readline())
        self._over = threading.Thread(target=self._hear, args=(lines,), daemon=True)
        self._over.start()

    def _hear(self, lines: IO[str]) -> None:
        with lines:
            line = lines.readline()
        self.returncode = int(line) if line else -signal.SIGKILL  # the server itself has gone

    def said(self) -> str:
        """What it has written to stderr."""
        return os.pread(self._stderr, 1 << 24, 0).decode()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._over.join(timeout)
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
        """All that it printed, when it has ended. One that takes longer is killed."""
        late = threading.Timer(timeout or threading.TIMEOUT_MAX, self.kill)
        late.daemon = True
        late.start()
        try:
            with self.stdout:
                out = self.stdout.read()
            self.wait(timeout)
        finally:
            late.cancel()
        return out, self.said()


class Warm:
    """A process that has imported `modules` and forks for scripts; none of them can import what is `blocked`."""

    def __init__(
        self, modules: Sequence[str], blocked: Sequence[str] = (), environment: dict[str, str] | None = None, name: str | None = None
    ) -> None:
        """environment: that of its scripts; None: this process's at the time of each, with this repository on the path.

        name: all processes of a run of the tests share the one of this name, which the first of them starts. It ends with the run.
        """
        run = int(os.environ.get(RUN, os.getpid()))
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.folder = Path(tempfile.mkdtemp()) if name is None else Path(tempfile.gettempdir(), f"workbench-tests-{run}-{name}")
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.executable = self.folder / "python"
        """Stands for `python` where another process starts it, which stdin does not reach."""
        self._address = str(self.folder / "asked")
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._runs():
                self._start({"modules": list(modules), "blocked": list(blocked), "folder": str(self.folder), "run": run})

    def _runs(self) -> bool:
        try:
            self._ask().close()
        except OSError:
            return False
        return True

    def _start(self, given: dict[str, Any]) -> None:
        client = shlex.join([sys.executable, "-S", str(Path(__file__).with_name("client.py")), self._address])
        self.executable.write_text(f'#!/bin/sh\nexec {client} "$@"\n')
        self.executable.chmod(0o700)
        Path(self._address).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._address)
            listener.listen()
            # OpenBLAS starts threads when numpy is imported, and a process with threads is no clean one to fork.
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("server.py")), str(listener.fileno()), json.dumps(given)],
                pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL, env={**self.environment, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip

    def _ask(self) -> socket.socket:
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            asking.connect(self._address)
        except OSError:
            asking.close()
            raise
        return asking

    @property
    def environment(self) -> dict[str, str]:
        """That of a script which is started now."""
        return environment() if self._environment is None else dict(self._environment)

    def start(
        self, *argv: str, folder: Path | None = None, environment: dict[str, str] | None = None, leave: bool = False
    ) -> Script:
        """`python argv…` in this folder. leave: without the interpreter's own end."""
        told, status = socket.socketpair()
        reading, writing = os.pipe()
        stderr, name = tempfile.mkstemp()
        os.unlink(name)
        job = {
            "argv": argv,
            "folder": os.getcwd() if folder is None else str(folder),
            "environment": self.environment if environment is None else environment,
            "leave": leave,
        }
        with status, self._ask() as asking:
            socket.send_fds(asking, [json.dumps(job).encode()], [status.fileno(), writing, stderr])
        os.close(writing)
        return Script(argv, told, os.fdopen(reading), stderr)

    def run(
        self, *argv: str, timeout: float = 250.0, folder: Path | None = None, environment: dict[str, str] | None = None
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


def environment() -> dict[str, str]:
    """This process's, with this repository on the path."""
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(HOME), known]))}


@functools.cache
def python() -> Warm:
    """The one that has the workbench imported, for all tests."""
    modules = (
        "torch._dynamo", "accelerate.commands.launch", "torch.distributed.run", "safetensors.torch", "workbench.bench",
        "workbench.launch.accelerate.worker",
    )  # fmt: skip
    return Warm(modules, name="python")


@functools.cache
def kernels() -> Path:
    """A folder for JUPYTER_PATH: in it, `python3` is a kernel that has imported what a notebook imports.

    A test of a kernel's own start takes the one of this environment.
    """
    made = Warm(
        ["ipykernel.kernelapp", "torch._dynamo", "sklearn.datasets", "accelerate", "safetensors.torch", "pydantic",
         "matplotlib.figure", "matplotlib.backends.backend_agg", "workbench.bench"],
        environment=environment() | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"},  # as ipykernel sets it
        name="kernels",
    )  # fmt: skip
    spec = made.folder / "kernels" / "python3"
    spec.mkdir(parents=True, exist_ok=True)
    # ipywidgets, which accelerate imports, registers in the kernel where it is imported, and there was none yet. Without this a
    # page that is loaded again asks for each widget alone.
    widgets = "--IPKernelApp.exec_lines=__import__('ipywidgets').register_comm_target()"
    argv = [str(made.executable), "-m", "ipykernel_launcher", "-f", "{connection_file}", widgets]
    known = {"argv": argv, "env": RANKS, "display_name": "Python 3", "language": "python", "metadata": {"debugger": False}}
    written = spec / f"{os.getpid()}.json"
    written.write_text(json.dumps(known))
    written.replace(spec / "kernel.json")  # another process may read it
    return made.folder
