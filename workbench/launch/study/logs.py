"""Reads what the workers of a study on this machine have printed."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

from workbench.runs.folder.files import Folder
from workbench.runs.folder.ids import is_id

LOGS = "logs"
"""The folder in a study with what its workers on this machine have printed."""
_MOST = 1000
"""The most of them that are looked at."""


def last_words(study: Path, most: int = 2000) -> tuple[str, str]:
    """The worker on this machine that has printed last, and the end of what it has printed;
    ("", ""): there was none.
    """
    last = 0.0, "", b""
    with contextlib.suppress(OSError), Folder.opened(study / LOGS) as folder:
        for file in folder.names(_MOST):
            name = file.removesuffix(".log")
            if not is_id(name):  # the folder may be a stranger's
                continue
            with contextlib.suppress(OSError, ValueError), folder.path_of(file) as path:
                state = path.stat()
                if state.st_mtime > last[0]:
                    with path.open("rb") as log:
                        log.seek(max(0, state.st_size - most))
                        last = state.st_mtime, name, log.read(most)
    return last[1], last[2].decode(errors="replace").strip()


def how_ended(code: int) -> str:
    """How a worker's process with this exit code has ended, in words."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.strsignal(-code) or f"signal {-code}"
    memory = ": the system kills a process where memory is short" if code == -9 else ""
    return f"{name}{memory}"
