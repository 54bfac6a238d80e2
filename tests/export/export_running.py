"""Helpers of the script's tests: fit from a file, export, run the script in a clean process, compare."""

from __future__ import annotations

import json
import linecache
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

import workbench as wb

PRELUDE = """\
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(F.dropout(F.relu(self.norm(self.body(x))), 0.2, self.training))


x = torch.randn(100, 8)
y = torch.randint(0, 3, (100,))
model = Net()
"""

# Forks for each script, so that torch is imported once (and what optimizers import when they first step). A script is run as `python script.py …` would run it.
_SERVER = """\
import json, os, runpy, sys, traceback
import accelerate, numpy, safetensors.torch, torch, torch._dynamo, torch.utils.data
for line in sys.stdin:
    job = json.loads(line)
    if "preload" in job:
        __import__(job["preload"])
        print("0", flush=True)
        continue
    child = os.fork()
    if not child:
        code = 0
        try:
            with open(job["said"], "wb") as said:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
            sys.argv = job["argv"]
            sys.path[0] = os.path.dirname(sys.argv[0])
            runpy.run_path(sys.argv[0], run_name="__main__")
            assert "workbench" not in sys.modules
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def clean_environment() -> dict[str, str]:
    """The environment without what would lead to this repository, or to a launcher around the tests."""
    unwanted = ("PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    kept = {k: v for k, v in os.environ.items() if k not in unwanted and not k.startswith("ACCELERATE_")}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


class Runner:
    """Runs scripts in clean processes, away from this repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            cwd=folder,
            env=clean_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._ask_it, self._answers = self._server.stdin, self._server.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ask_it.close()
        self._server.wait(30)
        self._answers.close()

    def preload(self, module: str) -> None:
        """Import a module for all scripts to come."""
        assert self._ask({"preload": module}) == 0

    def run(self, script: Path, *options: str) -> Outcome:
        """Run a script to its end."""
        self._count += 1
        there = self.folder / f"{self._count}"
        there.mkdir()
        argv = [str(script), *options, "--log_file", str(there / "log.jsonl"), "--output", str(there / "weights.pt")]
        said = there / "said.txt"
        code = self._ask({"argv": argv, "said": str(said)})
        assert code == 0, f"{script} ended with {code}:\n{said.read_text()}\n{script.read_text()}"
        return Outcome.read(there, said.read_text())

    def _ask(self, job: dict[str, Any]) -> int:
        self._ask_it.write(json.dumps(job) + "\n")
        self._ask_it.flush()
        return int(self._answers.readline())


@dataclass
class Outcome:
    """What a script did."""

    losses: np.ndarray[Any, np.dtype[np.float32]]
    lrs: np.ndarray[Any, np.dtype[np.float64]]
    weights: dict[str, torch.Tensor]
    said: str

    @classmethod
    def read(cls, folder: Path, said: str) -> Self:
        rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(len(rows)))
        losses = np.array([row["loss"] for row in rows], dtype=np.float32)
        lrs = np.array([row["lr"] for row in rows])
        return cls(losses, lrs, torch.load(folder / "weights.pt", weights_only=True), said)


def run_alone(command: Sequence[str], script: Path, folder: Path, *options: str) -> Outcome:
    """Run a script by a command of its own (python, torchrun, accelerate launch), away from this repository."""
    folder.mkdir(parents=True)
    log, output = folder / "log.jsonl", folder / "weights.pt"
    whole = [*command, str(script), *options, "--log_file", str(log), "--output", str(output)]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(whole, cwd=folder, env=clean_environment(), start_new_session=True, **quiet)
    try:
        said, _ = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the launcher and its processes
        raise
    assert process.returncode == 0, said
    return Outcome.read(folder, said)


def execute(path: Path, code: str) -> dict[str, Any]:
    """Run `code` as the file `path`, as `python path` would; its namespace."""
    path.write_text(code)
    linecache.checkcache(str(path))
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(code, str(path), "exec", dont_inherit=True), namespace)
    return namespace


def make_bench(folder: Path, arguments: str, before: str = "", prelude: str = PRELUDE) -> wb.Workbench:
    """A bench made by a file: `before`, then the call with `arguments`."""
    if torch.cuda.is_available() and "accelerator" not in arguments:
        arguments += ", accelerator='cpu'"  # where sums repeat to the last bit
    call = f"bench = wb.Workbench({arguments}, root={str(folder / 'runs')!r})\n"
    found = execute(folder / "user.py", f"{prelude}\n{before}\n{call}")["bench"]
    assert isinstance(found, wb.Workbench)
    return found


def check(bench: wb.Workbench, run: Any, outcome: Outcome) -> None:
    """The script did what the run did, to the last bit."""
    every = run.settings.log_every_n_steps
    assert np.array_equal(outcome.losses[::every], run.history["loss"], equal_nan=True)
    assert np.array_equal(outcome.lrs[::every].astype(np.float32), run.history["lr"].astype(np.float32))
    trained = bench.model.state_dict()
    assert list(trained) == list(outcome.weights)
    for name, value in trained.items():
        assert torch.allclose(value, outcome.weights[name], rtol=0, atol=0, equal_nan=True), name


def lint(script: Path) -> None:
    """ruff's default rules find nothing."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
