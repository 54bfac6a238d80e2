"""What a notebook can be looked at with, and what can be behind it: JupyterLab 4 or Notebook 7, one ipykernel or another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Face:
    """A front end: how it is started, and where it shows a notebook."""

    name: str
    module: str
    options: tuple[str, ...]
    path: str
    """Of a notebook; {workspace} and {name} are filled in."""
    faults: tuple[str, ...] = ()
    """Errors that its own scripts raise in an empty notebook, too."""


LAB = Face(
    "JupyterLab 4", "jupyterlab", ("--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"),
    "lab/workspaces/{workspace}/tree/{name}",
)  # fmt: skip
NOTEBOOK = Face(
    "Notebook 7", "notebook", ("--JupyterNotebookApp.expose_app_in_browser=True",), "notebooks/{name}",
    ("Cannot read properties of undefined (reading 'schema')",),
)  # fmt: skip

OLDER_KERNEL = "7.3.0"
"""An ipykernel that serves a widget's messages on a subshell by itself, as 7.4 does not."""


def older_kernel(folder: Path) -> Path:
    """That ipykernel alone, beside the packages of this environment; installed once."""
    target = folder / f"ipykernel-{OLDER_KERNEL}"
    if not target.is_dir():
        aside = folder / f".{target.name}.part"
        command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--upgrade",
                   "--target", str(aside), f"ipykernel=={OLDER_KERNEL}"]  # fmt: skip
        subprocess.run(command, check=True, timeout=900)
        aside.rename(target)
    return target


def write_kernel(data: Path, packages: Path) -> None:
    """Make `python3` of the Jupyter whose data folder this is a kernel that finds these packages first."""
    spec = data / "kernels" / "python3"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    path = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
    kernel = {"argv": argv, "display_name": "Python 3", "language": "python", "env": {"PYTHONPATH": path},
              "metadata": {"debugger": False}}  # fmt: skip
    (spec / "kernel.json").write_text(json.dumps(kernel))
