"""Helpers of the script's tests: fit from a file, export, run the script in a clean process, compare."""

from __future__ import annotations

import importlib.util
import itertools
import json
import linecache
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from ruff import find_ruff_bin
from torch.distributed import TCPStore

import workbench as wb
from tests.warm import Warm
from workbench.engine import loop
from workbench.engine.session import Session
from workbench.events import Logged, Validated
from workbench.launch.job import Job

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


def clean_environment() -> dict[str, str]:
    """The environment without what would lead to this repository, or to a launcher around the tests."""
    unwanted = ("PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    kept = {
        k: v for k, v in os.environ.items() if k not in unwanted and not k.startswith("ACCELERATE_")
    }
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


def bare(*modules: str) -> Warm:
    """Forks for scripts. What they and their optimizers import is there, and `modules`; the workbench cannot be imported."""
    usual = (
        "accelerate",
        "numpy",
        "safetensors.torch",
        "torch",
        "torch._dynamo",
        "torch.utils.data",
    )
    return Warm([*usual, *modules], blocked=["workbench"], environment=clean_environment())


class Runner:
    """Runs scripts in clean processes, away from this repository."""

    def __init__(self, processes: Warm, folder: Path, **environment: str) -> None:
        self.folder = folder
        self._processes, self._environment = processes, environment
        self._count = 0

    def run(self, script: Path, *options: str) -> Outcome:
        """Run a script to its end."""
        return self._run(script, options, [{}])

    def run_resumed(self, script: Path, kill: str) -> Outcome:
        """Run a script that kills itself by this code after `step += 1`, or before a file is moved into place; then resume it."""
        text = script.read_text()
        place = "path.with_suffix" if "path" in kill else "step += 1"
        line = next(
            line for line in text.splitlines() if place in line and "torch.save" not in line
        )
        indent = " " * (len(line) - len(line.lstrip()))
        dying = (
            f"{indent}if {kill}:\n{indent}    __import__('os').kill(__import__('os').getpid(), 9)"
        )
        mortal = script.with_name("mortal.py")
        mortal.write_text(
            text.replace(line, f"{dying}\n{line}" if "path" in kill else f"{line}\n{dying}", 1)
        )
        start = script.with_name(f"{script.stem}.start.safetensors")
        shutil.copyfile(start, script.with_name(start.name.replace(script.stem, "mortal", 1)))
        there = self._folder()
        codes, _ = self._started(mortal, [], [{}], there)
        assert set(codes) == {-signal.SIGKILL}
        resuming = ["--resume", str(there / "checkpoint.pt")]
        return self._run(script, resuming, [{}], there)

    def run_two(self, script: Path, *options: str) -> Outcome:
        """Run it on two processes, as `torchrun --nproc-per-node 2` starts them: the store where they meet outlives them."""
        return self._run(script, options, self._two())

    def _two(self) -> list[dict[str, str]]:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        all_ranks = {
            "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        return [{**all_ranks, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]

    def _folder(self) -> Path:
        self._count += 1
        there = self.folder / f"{self._count}"
        there.mkdir()
        return there

    def _run(
        self,
        script: Path,
        options: Sequence[str],
        ranks: Sequence[dict[str, str]],
        folder: Path | None = None,
    ) -> Outcome:
        there = self._folder() if folder is None else folder
        codes, said = self._started(script, options, ranks, there)
        assert not any(codes), f"{script} ended with {codes}:\n{said}\n{script.read_text()}"
        return Outcome.read(there, said)

    def _started(
        self, script: Path, options: Sequence[str], ranks: Sequence[dict[str, str]], there: Path
    ) -> tuple[list[int], str]:
        """The exit codes of its processes, and what they printed."""
        argv = [
            str(script),
            *options,
            "--log_file",
            str(there / "log.jsonl"),
            "--output",
            str(there),
        ]
        usual = {**clean_environment(), **self._environment}
        started = [
            self._processes.start(
                *argv, folder=self.folder, environment={**usual, **rank}, leave=True
            )
            for rank in ranks
        ]
        said = "".join(text for process in started for text in process.communicate(280))
        return [process.wait() for process in started], said


@dataclass
class Outcome:
    """What a script did."""

    losses: np.ndarray[Any, np.dtype[np.float64]]
    lrs: np.ndarray[Any, np.dtype[np.float64]]
    validated: list[dict[str, float]]
    """What is known after epochs and validations."""
    weights: dict[str, torch.Tensor]
    said: str

    @classmethod
    def read(cls, folder: Path, said: str) -> Self:
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        rows = [line for line in lines if "loss" in line]
        assert [row["step"] for row in rows] == list(range(len(rows)))
        done = [
            sum("loss" in line for line in lines[:place])
            for place, line in enumerate(lines)
            if "loss" not in line
        ]
        validated = [line for line in lines if "loss" not in line]
        assert [line["step"] for line in validated] == done, (
            "each stands after the updates before it"
        )
        losses = np.array([row["loss"] for row in rows], dtype=np.float64)
        lrs = np.array([row["lr"] for row in rows])
        return cls(losses, lrs, validated, torch.load(folder / "last.pt", weights_only=True), said)


def run_alone(command: Sequence[str], script: Path, folder: Path, *options: str) -> Outcome:
    """Run a script by a command of its own (torchrun, accelerate launch), away from this repository."""
    folder.mkdir(parents=True)
    whole = [
        *command,
        str(script),
        *options,
        "--log_file",
        str(folder / "log.jsonl"),
        "--output",
        str(folder),
    ]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(
        whole, cwd=folder, env=clean_environment(), start_new_session=True, **quiet
    )
    try:
        said, _ = process.communicate(timeout=280)
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


def make_bench(
    folder: Path, arguments: str, before: str = "", prelude: str = PRELUDE
) -> wb.Workbench:
    """A bench made by a file: `before`, then the call with `arguments`."""
    if torch.cuda.is_available() and "accelerator" not in arguments:
        arguments += ", accelerator='cpu'"  # where sums repeat to the last bit
    call = f"bench = wb.Workbench({arguments}, root={str(folder / 'runs')!r})\n"
    found = execute(folder / "user.py", f"{prelude}\n{before}\n{call}")["bench"]
    assert isinstance(found, wb.Workbench)
    return found


def exported(folder: Path, arguments: str, before: str = "", **options: Any) -> Any:
    """The script of a run, as a module."""
    bench = make_bench(folder, arguments, before)
    bench.fit().result()
    spec = importlib.util.spec_from_file_location(
        "train", bench.export(folder / "train.py", **options)
    )
    bench.close()
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["train"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["train"]
    return module


def check(bench: wb.Workbench, run: Any, outcome: Outcome) -> None:
    """The script did what the run did, to the last bit."""
    assert "Not the run's" not in outcome.said
    every = run.settings.log_every_n_steps
    assert np.array_equal(outcome.losses[::every], run.history["loss"], equal_nan=True)
    assert np.array_equal(
        outcome.lrs[::every].astype(np.float32), run.history["lr"].astype(np.float32)
    )
    expected: dict[int, dict[str, float]] = {}
    for event in run.outline:
        if isinstance(event, Logged) or (isinstance(event, Validated) and not event.asked):
            expected[event.step] = {**expected.get(event.step, {}), **event.metrics}
    validated: dict[int, dict[str, float]] = {}
    for line in outcome.validated:
        validated[int(line["step"])] = {**validated.get(int(line["step"]), {}), **line}
    if run.status == "stopped":  # a script looks at its end, too
        validated = dict(itertools.islice(validated.items(), len(expected)))
    assert [*validated] == [*expected]
    for step, metrics in expected.items():
        assert validated[step].keys() - {"step", "train_loss"} == metrics.keys() - {"train_loss"}, (
            step
        )
        for name, value in metrics.items():
            assert np.array_equal(validated[step][name], value, equal_nan=True), (step, name)
    trained = bench.model.state_dict()
    assert list(trained) == list(outcome.weights)
    for name, value in trained.items():
        assert torch.allclose(value, outcome.weights[name], rtol=0, atol=0, equal_nan=True), name


def repeats(bench: wb.Workbench, runner: Runner, folder: Path) -> None:
    """A fit of this bench, exported to `folder`: the script repeats it, prints its validation, and reads clean. Closes the bench."""
    run: Any = bench.fit().result()
    script = bench.export(folder / "out" / "train.py")
    outcome = runner.run(script)
    check(bench, run, outcome)
    lint(script)
    for name, value in run.metrics.items():
        if name.startswith("val_"):
            assert f"{name} {value:.4f}" in outcome.said
    bench.close()


def fit_asking(
    bench: wb.Workbench, ask: Callable[[Job[wb.Run], int], object], **settings: Any
) -> wb.Run:
    """The run of a fit; after each update `ask(job, step)` may request something of its job."""
    update = loop.train_step

    def asking(session: Session, window: Sequence[Any]) -> torch.Tensor | None:
        loss = update(session, window)
        ask(bench.jobs[-1], session.state.step)
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train_step", asking)
        return bench.fit(**settings).result()


def lint(script: Path) -> None:
    """ruff's default rules, and those on imports, names and old syntax, find nothing."""
    command = [
        find_ruff_bin(),
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "E4,E7,E9,F,I,UP",
        str(script),
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
