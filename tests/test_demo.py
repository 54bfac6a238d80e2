"""`workbench demo`, as a person runs it: what it finds, what it leaves, and what it says last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from workbench.cli import main


@pytest.mark.timeout(1800)
def test_demo(tmp_path: Path) -> None:
    output = tmp_path / "with space" / "demo"
    done = CliRunner().invoke(main, ["demo", "--output", str(output)])
    assert done.exit_code == 0, done.output[-4000:]
    words = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    found = re.search(r"batch size (\d+), learning rate (\S+)", words["Found"])
    assert found is not None
    assert 1e-4 < float(found[2]) < 1e-1
    trained = re.search(r"12 epochs; (\S+)% of", words["Trained"])
    assert trained is not None
    assert float(trained[1]) >= 95
    assert str(output / "train.py") in words["Exported"]
    updates = 12 * -(-1437 // int(found[1]))
    assert f"its {updates} losses equal the run's" in words["Verified"]
    assert len((output / "losses.jsonl").read_text().splitlines()) >= updates
    for name in ("lr_curve", "batch_size", "run"):
        assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "updates/s" in done.stderr
