"""A Jupyter server for the tests in a browser, on a port of its own."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests import warm

from .faces import LAB, Face, write_kernel

T = TypeVar("T")
EXTENSION = Path(__file__).resolve().parents[2] / "workbench" / "server" / "jupyter"
"""Where Jupyter finds the JupyterLab extension and the server's of this working tree."""
BASE = "/user/somebody"
"""Below the server's address, as behind a JupyterHub."""
TIMEOUT = 180.0
"""Long enough for a slow machine that does other things besides; nobody waits longer than he must."""


class LabError(AssertionError):
    """The notebook did something else than the test asked for."""


def on_free_port(start: Callable[[int], T], log: Path) -> T:
    """Call `start` with a free port, and again with another one if `log` says that meanwhile something else has taken it."""
    for attempt in range(3):
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        try:
            return start(port)
        except LabError:
            if attempt == 2 or "already in use" not in log.read_text(errors="replace"):
                raise
    raise AssertionError("it has returned or raised")


class Server:
    """A Jupyter server on loopback, with folders of its own, in a process group of its own.

    kernel: packages that its kernels find before those of this environment (another ipykernel). Such kernels are started as
    a person's are; without, they are forked (tests/warm).
    """

    def __init__(self, folder: Path, face: Face = LAB, kernel: Path | None = None) -> None:
        self.face = face
        self.notebooks = folder / "notebooks"
        self.token = secrets.token_hex(16)
        self.log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = folder
        settings = folder / "config" / "lab" / "user-settings" / "@jupyterlab"
        for path in (
            self.notebooks,
            settings / "apputils-extension",
            settings / "docmanager-extension",
        ):
            path.mkdir(parents=True)
        quiet = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
        (settings / "apputils-extension" / "notification.jupyterlab-settings").write_text(
            json.dumps(quiet)
        )
        (settings / "docmanager-extension" / "plugin.jupyterlab-settings").write_text(
            '{"autosave": false}'
        )
        (folder / "config" / "labconfig").mkdir()
        # JupyterLab would start node to see whether it could be built anew and which language servers are there, and each message
        # to a kernel would load two icons.
        (folder / "config" / "jupyter_server_config.json").write_text(
            '{"LanguageServerManager": {"autodetect": false}}'
        )
        page = {
            "buildCheck": False,
            "buildAvailable": False,
            "disabledExtensions": {"@jupyterlab/application-extension:faviconbusy": True},
        }
        (folder / "config" / "labconfig" / "page_config.json").write_text(json.dumps(page))
        self._places = [EXTENSION, warm.kernels()] if kernel is None else [EXTENSION]
        if kernel is not None:
            write_kernel(folder / "data", kernel)

    def start(self) -> None:
        """Up and answering, or an error with the server's own words."""
        on_free_port(self._start, self.log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{BASE}"

    def get(self, path: str, method: str = "GET") -> Any:
        """An answer of the server's REST interface."""
        request = urllib.request.Request(
            f"{self.url}/{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with _opener.open(request, timeout=TIMEOUT) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def stop_kernels(self) -> None:
        for session in self.get("api/sessions"):
            try:
                self.get(f"api/sessions/{session['id']}", "DELETE")
            except urllib.error.HTTPError as error:
                if error.code not in (404, 410):  # it has gone by itself
                    raise

    def stop(self) -> None:
        """Ends the server and all that it started; kernels have sessions of their own, so they are counted first."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            family = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        _signal_group(process, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)
            process.wait()
        _, alive = psutil.wait_procs(family, timeout=10)
        for child in alive:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def _start(self, port: int) -> None:
        self.port = port
        try:
            self._launch()
        except LabError:
            self.stop()
            raise

    def _launch(self) -> None:
        folder = self._folder
        env = {
            name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")
        } | {
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_PATH": os.pathsep.join(map(str, self._places)),
            "JUPYTER_CONFIG_PATH": str(EXTENSION),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTER_TOKEN": self.token,
            "IPYTHONDIR": str(folder / "ipython"),
            # the kernel written into this folder goes before the environment's own
            "JUPYTER_PREFER_ENV_PATH": "0",
            "PYTHONUNBUFFERED": "1",
        }
        command = [
            sys.executable, "-m", self.face.module, "--allow-root", "--no-browser", "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={self.notebooks}",
            f"--ServerApp.base_url={BASE}", *self.face.options,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.notebooks, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise LabError(
                    f"{self.face.name} ended (exit code {self._process.returncode}):\n{self._said()}"
                )
            try:
                self.get("api/status")
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise LabError(f"{self.face.name} did not answer within {TIMEOUT:.0f} s:\n{self._said()}")

    def _said(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
