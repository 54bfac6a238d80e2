"""How a script shows its progress: a line now and then, by one process alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.export.export_running import Runner, check, lint, make_bench

pytestmark = pytest.mark.usefixtures("one_thread")

MANY = "model, train=(x, y), loss=F.cross_entropy, batch_size=4, max_steps=230"


def lines_of_updates(text: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)  loss \d", text, re.MULTILINE)]


def test_a_line_every_hundred_updates(runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, MANY)
    run = bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    lint(script)
    outcome = runner.run(script)
    check(bench, run, outcome)
    assert lines_of_updates(outcome.said) == [100, 200]
    on_two = runner.run_two(script).said
    assert lines_of_updates(on_two) == [100, 200]
    assert "Not the run's" not in on_two  # their batches are others, and it knows
    bench.close()
