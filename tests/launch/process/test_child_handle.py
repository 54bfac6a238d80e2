"""Whole parents: scripts with their own __main__, interrupted, and killed without warning."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.launch.launched import gone, kill_all_of
from tests.waiting import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs a fork server")


@contextlib.contextmanager
def started(folder: Path, code: str, **environment: str) -> Iterator[warm.Script]:
    (folder / "script.py").write_text(code)
    script = warm.python().start(
        "script.py", folder=folder, environment=warm.environment() | environment
    )
    try:
        yield script
    finally:
        kill_all_of(script)


def test_classes_of_main_and_of_a_local_module(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "nets.py").write_text("class Net:\n    bias = 2\n")
    (tmp_path / "random.py").write_text("raise SystemExit('not the library')")
    code = """
import os, sys
sys.path.pop(0)  # the folder's random.py is a trap for a server that looks there first
from workbench.launch.process import fork_client
fork_client.server()
sys.path.append("local")
import nets
from dataclasses import dataclass
from workbench.launch.process.run_in_child import run_in_child

SCALE = 3

@dataclass
class Config:
    net: nets.Net
    seen: int = 0

def train(config):
    config.seen = SCALE * config.net.bias
    print(os.getcwd())
    os.environ["HERE"]
    return config

os.environ["HERE"] = "later than the server"
for _ in range(2):
    out = run_in_child(train, Config(nets.Net()), threads=1).get()
assert type(out) is Config and type(out.net) is nets.Net and out.seen == 6, out
print("good")
"""
    with started(tmp_path, code) as script:
        out, said = script.communicate(timeout=200)
    assert out.splitlines() == [str(tmp_path), str(tmp_path), "good"], said


SLEEPER = """
from workbench.launch.process import fork_client
fork_client.server()
import json, os, psutil, signal, time, torch
from torch.utils.data import DataLoader, TensorDataset
from workbench.launch.process.run_in_child import run_in_child

def sleep():
    loader = DataLoader(TensorDataset(torch.zeros(64, 3)), num_workers=1, persistent_workers=True)
    next(iter(loader)); iterator = iter(loader); next(iterator)
    while True:
        print(json.dumps([os.getpid(), os.getppid(), *[p.pid for p in psutil.Process().children()]]), flush=True)
        while not os.path.exists("again"):
            time.sleep(0.02)
        os.unlink("again")

if os.fork() == 0:  # a sibling that has copies of all sockets must not keep anything alive
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.close(1)  # where the script ends without a word, the test sees it
    time.sleep(1000)
    os._exit(0)
signal.signal(signal.SIGINT, signal.SIG_IGN)
def hear(line):
    print(json.dumps({"pids": json.loads(line), "temporary": fork_client.server().temporary}), flush=True)
run_in_child(sleep, threads=1, on_message=hear)
"""


def pids_and_folder(script: warm.Script) -> tuple[list[int], str]:
    told = json.loads(script.stdout.readline())
    return told["pids"], told["temporary"]


def test_an_interrupt_reaches_nobody_and_a_killed_parent_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path, SLEEPER) as script:
        pids, temporary = pids_and_folder(script)
        child, server, worker = pids
        assert os.path.isdir(temporary)
        # An interrupt goes to the whole group of the kernel; it reaches none of them, wherever it is sent.
        for group in (script.pid, child):
            os.killpg(group, signal.SIGINT)
        os.kill(server, signal.SIGINT)
        (tmp_path / "again").touch()
        assert pids_and_folder(script)[0] == [child, server, worker]
        script.kill()  # the sibling goes on
        script.wait()
        wait_for(lambda: all(map(gone, pids)))
        assert not os.path.exists(temporary)


def test_a_group_killed_while_the_server_starts(tmp_path: Path) -> None:
    code = """
import time
from workbench.launch.process import fork_client
server = fork_client.server()
print(server.process.pid, server.temporary, flush=True)
time.sleep(1000)
"""
    with started(tmp_path, code) as script:
        # then it is killed, as Jupyter ends a kernel
        pid, temporary = script.stdout.readline().split()
    wait_for(lambda: gone(int(pid)))
    assert not os.path.exists(temporary)
