"""SIGTERM and SIGUSR1, which a scheduler sends before it kills, end a fit as stop() does; then the process ends as the signal ends it."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch.nn.functional as F

from tests import warm
from tests.engine.problems import bench, labelled, noisy_net, plain_net
from tests.launch.launched import ended, processes_of
from tests.waiting import wait_for
from workbench.launch.process import run_in_child
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
LENGTH = {"max_epochs": 30}

_SCRIPT = """
import json, sys, time
from tests.engine.problems import bench, labelled, noisy_net
import torch, torch.nn.functional as F

torch.set_num_threads(1)
root, settings = sys.argv[1], json.loads(sys.argv[2])
seconds = settings.pop("seconds", 0.02)

def slow(output, y):
    if seconds > 1:
        print("inside", flush=True)
    time.sleep(seconds)
    return F.cross_entropy(output, y)

def hear(event):
    if type(event).__name__ == "StepsDone":
        print("going", flush=True)

made = bench(noisy_net(), labelled(), root, loss=slow, dry_run=False, listeners=[hear], enable_progress_bar=False)
made.fit(**settings).result()
print("went on", flush=True)
"""


def begun(root: Path, **settings: object) -> warm.Script:
    """A script that trains, when it has taken some updates."""
    script = warm.python().start(
        "-c", _SCRIPT, str(root), json.dumps({**LENGTH, **settings}), environment=warm.environment()
    )
    assert script.stdout.readline() == "going\n", script.said()
    return script


def run_of(root: Path) -> Run:
    return Run.open(root / "runs" / "0001-fit")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_script_saves_and_ends_as_the_signal_ends_it(tmp_path: Path, number: int) -> None:
    script = begun(tmp_path / "cut")
    script.send_signal(number)
    out, said = script.communicate(120)
    assert script.wait() == -number, said
    assert "went on" not in out
    cut = run_of(tmp_path / "cut")
    assert cut.status == "stopped"
    assert cut.step > 0
    assert any(signal.Signals(number).name in message for message in said.splitlines())
    whole = bench(noisy_net(), labelled(), tmp_path / "whole").fit(**LENGTH).result()
    with bench(noisy_net(), labelled(), tmp_path / "cut") as made:
        rest = made.fit(start=cut.id, **LENGTH).result()
    np.testing.assert_array_equal(rest.history["loss"], whole.history["loss"])


def test_a_second_signal_ends_a_script_whose_update_does_not_end(tmp_path: Path) -> None:
    script = warm.python().start(
        "-c",
        _SCRIPT,
        str(tmp_path),
        json.dumps({"seconds": 1000.0, "max_epochs": 1}),
        environment=warm.environment(),
    )
    assert script.stdout.readline() == "inside\n", script.said()

    def sent_again() -> bool:
        script.send_signal(signal.SIGTERM)
        return script.poll() is not None

    wait_for(sent_again)
    assert script.wait() == -signal.SIGTERM
    assert run_of(tmp_path).status == "failed"  # its process ended without ending it


@pytest.mark.skipif(not run_in_child.FORK, reason="needs a fork server")
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_all_processes_of_a_job_with_ranks(tmp_path: Path, number: int) -> None:
    """As SLURM sends it; ranks, their server and loaders' workers wait for what the process decides that trains."""
    script = begun(tmp_path, devices=2, strategy="pool")
    for process in [
        psutil.Process(script.pid),
        *psutil.Process(script.pid).children(recursive=True),
    ]:
        process.send_signal(number)
    out, said = script.communicate(120)
    assert (script.wait(), "went on" in out) == (-number, False), said
    run = run_of(tmp_path)
    assert run.status == "stopped"
    assert run.checkpoints[-1].step == run.step > 0


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with ended(tmp_path / "wb"):
        yield tmp_path / "wb"


@pytest.mark.slow  # starts processes that import torch
@pytest.mark.parametrize("number", SIGNALS)
def test_a_launched_process_saves(root: Path, number: int) -> None:
    script = begun(root, strategy="launch", devices=1)
    run = run_of(root)
    assert run.folder is not None
    for process in processes_of(run.folder):
        if "accelerate.commands" not in " ".join(process.cmdline()):
            process.send_signal(number)
    out, _ = script.communicate(200)
    assert (script.wait(), "went on" in out) == (0, True)  # it was not told to end
    run = run_of(root)
    assert run.status == "stopped"
    assert run.checkpoints[-1].step == run.step > 0


def held(update: Callable[[], object], root: Path) -> str:
    """What `update` returns when it is called in an update of a fit."""
    seen: list[object] = []

    def loss(output: object, y: object) -> object:
        seen.append(update())
        return F.cross_entropy(output, y)  # type: ignore[arg-type]

    with bench(plain_net(), labelled(), root, loss=loss, dry_run=False) as made:
        made.fit(max_steps=1).result()
    return str(seen[0])


def test_handlers_of_the_user_stay_and_the_usual_ones_come_back(tmp_path: Path) -> None:
    def theirs(number: int, frame: object) -> None: ...

    handlers = lambda: [signal.getsignal(number) for number in SIGNALS]  # noqa: E731
    before = handlers()
    try:
        for number in SIGNALS:
            signal.signal(number, theirs)
        assert held(lambda: handlers() == [theirs, theirs], tmp_path) == "True"
        assert handlers() == [theirs, theirs]
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        assert held(lambda: signal.SIG_DFL in handlers(), tmp_path) == "False"
        assert handlers() == [signal.SIG_DFL, signal.SIG_DFL]
        if sys.platform == "linux":
            with open(os.devnull, "w") as file:
                faulthandler.register(signal.SIGUSR1, file=file)
                try:
                    assert (
                        held(lambda: signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, tmp_path)
                        == "True"
                    )
                finally:
                    faulthandler.unregister(signal.SIGUSR1)
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
