"""How a script shows its progress: a bar on a terminal, else a line now and then, and by one process alone."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest

from tests.export.export_running import Runner, check, clean_environment, lint, make_bench
from tests.warm import Warm

pytestmark = pytest.mark.usefixtures("one_thread")

MANY = "model, train=(x, y), loss=F.cross_entropy, batch_size=4, max_steps=230"


def lines_of_updates(text: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)  loss \d", text, re.MULTILINE)]


def test_lines_where_there_is_no_terminal(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, MANY)
    run = bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    lint(script)
    outcome = runner.run(script)
    check(bench, run, outcome)
    assert lines_of_updates(outcome.said) == [100, 200]
    assert "%|" not in outcome.said
    assert lines_of_updates(runner.run_two(script, "--max_steps", "100").said) == [100]
    bench.close()


def test_a_bar_on_a_terminal(without: Warm, tmp_path: Path) -> None:
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    bench = make_bench(
        tmp_path,
        "model, train=(x, y), val=(x, y), loss=F.cross_entropy, batch_size=20, max_epochs=2",
    )
    bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    ours, theirs = os.openpty()
    # a terminal has a width
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with subprocess.Popen(
        [without.executable, str(script)], stdout=theirs, stderr=theirs, env=clean_environment()
    ) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal
            while part := os.read(ours, 1024):
                shown += part
        os.close(ours)
    assert process.returncode == 0
    lines = shown.decode().replace("\r", "\n").splitlines()
    assert any("100%|" in line and " 10/10 " in line for line in lines)
    printed = [line for line in lines if "val_loss" in line]
    # on lines of their own
    assert [line.split()[:2] for line in printed] == [["epoch", "1/2"], ["epoch", "2/2"]]
    bench.close()
