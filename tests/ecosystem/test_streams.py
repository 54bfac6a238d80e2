"""Streams of other packages of which each rank reads its own share: with two devices, and in a script under torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ecosystem import streams_by_rank
from tests.launch.joined.test_joined import TORCHRUN, environment

SCRIPT = Path(streams_by_rank.__file__)
PACKAGES = {"mosaic": "streaming", "litdata": "litdata", "webdataset": "webdataset"}
CASES = [
    ("datasets", "devices"),
    ("datasets shuffled", "devices"),
    ("datasets of odd shards", "devices"),
    ("datasets split", "torchrun"),
    ("litdata", "devices"),
    ("litdata", "torchrun"),
    ("mosaic", "torchrun"),
    ("webdataset", "devices"),
    ("webdataset", "torchrun"),
]


@pytest.mark.parametrize(("kind", "place"), CASES)
def test_ranks_read_each_sample_once(kind: str, place: str, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES.get(kind, "datasets"))
    writing = (
        "import sys, pathlib, streams_by_rank as s; s.write(sys.argv[1], pathlib.Path(sys.argv[2]))"
    )
    known = environment() | {
        "PYTHONPATH": f"{environment()['PYTHONPATH']}:{SCRIPT.parent}:{':'.join(sys.path[1:])}"
    }
    written = [sys.executable, "-c", writing, kind, str(tmp_path / "samples")]
    subprocess.run(written, env=known, check=True, timeout=200)
    launcher, devices = (TORCHRUN, []) if place == "torchrun" else ([sys.executable], ["2"])
    command = [*launcher, str(SCRIPT), kind, str(tmp_path), *devices]
    ended = subprocess.run(
        command, env=known, capture_output=True, text=True, timeout=250, check=False
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads((tmp_path / "rank0.json").read_text())
    assert sorted(said["predicted"]) == [float(n) for n in range(streams_by_rank.SAMPLES)]
    assert (len(said["loss"]), said["updates"]) == (12, 18)
