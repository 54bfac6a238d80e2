"""`workbench demo`, as a person runs it: what it finds, what it leaves, and what it says last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from workbench.cli import main


@pytest.mark.timeout(1800)
def test_demo(tmp_path: Path) -> None:
    output = tmp_path / "with space" / "demo"
    done = CliRunner().invoke(main, ["demo", "--output", str(output)])
    assert done.exit_code == 0, done.output[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["losses_equal"] is True
    assert found["updates_compared"] == 12 * -(-1437 // found["batch_size"])
    assert found["val_accuracy"] >= 0.95
    assert 1e-4 < found["lr"] < 1e-1
    assert Path(found["script"]) == output / "train.py"
    for name in ("lr_curve", "batch_size", "run"):
        assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "updates/s" in done.stderr
