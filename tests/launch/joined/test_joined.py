"""A plain script with a bench under torchrun, srun and mpirun: its processes are one training."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import workbench as wb
from tests import warm
from tests.slurm import cluster

HERE = Path(__file__).parent
STARTS_TWO = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TORCHRUN = (sys.executable, *STARTS_TWO)
OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def environment() -> dict[str, str]:
    """The environment of a launcher that nothing has launched."""
    kept = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHERS}
    return kept | {"PYTHONPATH": str(HERE.parents[2]), "OMP_NUM_THREADS": "1"}


def run(
    launcher: Sequence[str], script: str, folder: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*launcher, str(HERE / script), *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same calls with devices=2, as in a notebook."""
    folder = tmp_path_factory.mktemp("notebook")
    ended = warm.python().run(
        str(HERE / "all_calls.py"),
        "devices",
        folder=folder,
        environment=environment() | warm.FORKED_SERVER,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "rank0.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("launcher", ["torchrun", "srun", "mpirun"])
def test_each_call_gives_the_numbers_of_two_devices(
    launcher: str, notebook: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command: Sequence[str] = TORCHRUN
    around = contextlib.ExitStack()
    if launcher != "torchrun":
        if shutil.which(launcher) is None or (launcher == "srun" and not cluster.installed()):
            pytest.skip(f"there is no {launcher} here")
        if launcher == "srun":
            variables = around.enter_context(cluster.slurm(tmp_path / "slurm"))
            monkeypatch.setenv("SLURM_CONF", variables["SLURM_CONF"])
        flags = ["--allow-run-as-root", "--oversubscribe"] if launcher == "mpirun" else []
        command = [launcher, *flags, "-n", "2", sys.executable]
    with around:
        ended = run(command, "all_calls.py", tmp_path)
    assert ended.returncode == 0, ended.stderr
    first, second = written(tmp_path)
    assert first == second  # ids and metrics, too
    # batches of the search depend on the machine's speed, and its sizes do not
    assert first["sizes"] == notebook["sizes"]
    assert first["profile"][1] == notebook["profile"][1], "operations of an update"
    assert Path(first["profile"][2]).is_file()
    for name in ("loss", "continued", "validated", "predicted", "lr"):
        torch.testing.assert_close(
            torch.tensor(first[name]), torch.tensor(notebook[name]), rtol=1e-5, atol=1e-7
        )
    # one run each, and one script, which repeats the run
    kinds = [run.kind for run in sorted_runs(tmp_path)]
    assert kinds == ["fit", "validate", "predict", "find_lr", "find_batch_size", "profile", "fit"]
    assert ended.stdout.count("repeat the run") == 1
    assert ended.stderr.count("fit: 100%") >= 1


def sorted_runs(folder: Path) -> list[Any]:
    return [wb.Run.open(path) for path in sorted((folder / ".workbench" / "runs").glob("[0-9]*"))]


@pytest.mark.usefixtures("forked_ranks")
def test_what_goes_wrong_is_named_on_each_rank(tmp_path: Path) -> None:
    ended = run([sys.executable, *STARTS_TWO], "failing.py", tmp_path)
    assert ended.returncode == 0, ended.stderr
    first, second = written(tmp_path)
    for rank, errors in enumerate((first["errors"], second["errors"])):
        where = f"this is rank {rank} of 2 (torchrun)"
        assert errors["pool"].startswith(f"SettingsError: strategy='pool': {where}")
        assert errors["devices"].startswith(f"SettingsError: devices=3: {where}, and there are 2")
        assert f"'true' in the environment: {where}, and the ranks" in errors["sharded"]
        calls = "rank 0 calls bench.fit(lr=0.1, max_epochs=1) and rank 1 calls bench.fit(lr=0.2"
        assert errors["settings"].startswith(f"RankError: {calls}")
        assert "the model of rank 0 is Linear with 63 parameters" in errors["model"]
        assert errors["all fail"] == "ValueError: bad sample"
        assert "the ranks have lost each other" in errors["after it"]
    assert second["errors"]["one fails"] == "ValueError: bad sample"
    assert "rank 1 failed: ValueError: bad sample (failing.py" in first["errors"]["one fails"]
    # Those that train alone have a run each; all others are runs of both, which rank 0 records.
    assert first["alone"] != second["alone"]
    assert first["together"] == second["together"]
    runs = {run.id: run for run in sorted_runs(tmp_path)}
    assert [run.status for run in runs.values()] == ["finished"] * 2 + [
        "failed",
        "finished",
        "failed",
    ]
    assert "rank 1 failed: ValueError: bad sample" in list(runs.values())[-1].error
    alone = [list(runs[ranks["alone"]].history["loss"]) for ranks in (first, second)]
    assert alone[0] == alone[1]
