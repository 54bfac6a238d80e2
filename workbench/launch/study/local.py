"""Starts workers of a study on this machine. They have a session of their own, so that they
outlive the process that starts them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from workbench.launch import select_launcher
from workbench.launch.study.logs import LOGS
from workbench.runs.folder.files import append_to, make_folder
from workbench.settings import Settings, SettingsError

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which a process would take itself for one of several ranks."""


def devices_of(settings: Settings, workers: int) -> list[str]:
    """The GPUs that each of so many workers sees, as CUDA_VISIBLE_DEVICES names them; "": those
    that this process sees.

    SettingsError: there are more workers than GPUs.
    """
    if select_launcher.select_launcher(settings).accelerator != "cuda" or workers < 2:
        return [""] * workers
    count = torch.cuda.device_count()
    visible = [entry for entry in os.environ.get(_VISIBLE, "").split(",") if entry]
    names = visible[:count] or [str(number) for number in range(count)]
    if workers > len(names):
        raise SettingsError(
            f"workers={workers}: torch sees {len(names)} GPUs, and each worker trains on its own:"
            f" give workers={len(names)}."
        )
    each = len(names) // workers
    return [",".join(names[n * each : (n + 1) * each]) for n in range(workers)]


def start(
    study: Path, names: Sequence[str], devices: Sequence[str], *, trust: bool
) -> dict[str, subprocess.Popen[bytes]]:
    """Start a worker for each of these names, and return their processes by name. What a worker
    prints is in `logs/NAME.log`.

    devices: see `devices_of`. trust: see `StartFile.of_study`.
    """
    package, known = Path(__file__).parents[3], os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(package), *([known] if known else [])])
    environment = {name: text for name, text in os.environ.items() if name not in _LAUNCHERS}
    environment |= {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "workbench", "study", "work", study.name]
    command += ["--root", str(study.parents[1]), *(["--trust"] if trust else [])]
    folder = make_folder(study / LOGS)
    processes = {}
    for name, device in zip(names, devices, strict=True):
        with os.fdopen(append_to(folder / f"{name}.log"), "ab") as output:
            processes[name] = subprocess.Popen(
                [*command, "--name", name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment | ({_VISIBLE: device} if device else {}),
                start_new_session=True,
            )
    return processes
