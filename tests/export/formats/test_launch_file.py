"""Files that start a training on a cluster: `bench.launch_script`. tests/slurm submits them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench as wb
from tests.export.export_running import fit_asking, make_bench
from tests.launch.joined.test_joined import environment
from tests.warm import python
from workbench.export.errors import ExportError
from workbench.export.formats.launch_file import LaunchFile
from workbench.settings import Settings

PAIR = "model, train=(x, y), loss=F.cross_entropy, batch_size=5, accelerator='cpu'"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[wb.Workbench]:
    """A bench that has taken a few updates."""
    made = make_bench(tmp_path, PAIR)
    made.fit(max_steps=2).result()
    yield made
    made.close()


def directives(file: Path) -> dict[str, str]:
    """The options of a file for sbatch; "" for one without a value."""
    lines = [line for line in file.read_text().splitlines() if line.startswith("#SBATCH ")]
    pairs = [line.removeprefix("#SBATCH --").partition("=") for line in lines]
    return {name: value for name, _, value in pairs}


def test_options_of_sbatch_are_added_changed_and_left_out(
    bench: wb.Workbench, tmp_path: Path
) -> None:
    file = bench.launch_script(
        tmp_path / "jobs" / "job.sbatch", nodes=2, devices=4, verify=False, time=timedelta(days=1, hours=2, seconds=3),
        partition="gpu", exclusive=True, mem="32G", signal="B:USR1@300", open_mode=None, cpus_per_task=3,
    )  # fmt: skip
    assert directives(file) == {
        "job-name": "job",
        "nodes": "2",
        "ntasks-per-node": "4",
        "requeue": "",
        "time": "1-02:00:03",
        "partition": "gpu",
        "exclusive": "",
        "mem": "32G",
        "signal": "B:USR1@300",
        "cpus-per-task": "3",
    }
    assert "srun --kill-on-bad-exit=1 --cpus-per-task=3" in file.read_text()
    subprocess.run(["sh", "-n", str(file)], check=True)
    assert file.with_name("job.start.safetensors").is_file()


def launch_file(path: str, here: tuple[str, int], **options: Any) -> LaunchFile:
    return LaunchFile(Path(path), None, 1, None, here, Settings.make(), options)


@pytest.mark.parametrize(
    ("here", "options", "gpus", "processes"),
    [
        (("cuda", 4), {}, "--gpus-per-node=4", 4),
        (("cuda", 4), {"gres": "gpu:h100:2"}, None, 2),
        (("cpu", 1), {"gpus_per_node": 8}, "--gpus-per-node=8", 8),
        (("cpu", 1), {"gpus_per_node": "a100:2"}, "--gpus-per-node=a100:2", 2),
        (("cpu", 1), {}, None, 1),
    ],
)
def test_a_process_has_a_gpu(
    here: tuple[str, int], options: dict[str, Any], gpus: str | None, processes: int
) -> None:
    text = launch_file("job.sbatch", here, **options).text()
    assert f"#SBATCH --ntasks-per-node={processes}\n" in text
    assert (f"#SBATCH {gpus}\n" in text) if gpus else ("--gpus-per-node" not in text)


def test_a_job_that_is_not_requeued_does_not_submit_itself(tmp_path: Path) -> None:
    text = launch_file("job.sbatch", ("cpu", 1), requeue=False).text()
    assert "requeue" not in text
    assert "--signal=USR1@120" in text  # it writes a checkpoint all the same


def test_two_hosts_without_a_scheduler_are_one_training(
    bench: wb.Workbench, tmp_path: Path
) -> None:
    """Two processes on this machine stand for the hosts."""
    port = free_port()
    file = bench.launch_script(
        tmp_path / "it's a job.sh", nodes=2, rdzv_endpoint=f"127.0.0.1:{port}", verify=False
    )
    hosts = [
        subprocess.Popen(
            ["sh", str(file), str(number), "--max_steps", "9"],
            cwd="/",
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for host in hosts:
        _, output = host.communicate(timeout=200)
        assert host.returncode == 0, output
    _, together = bench.runs
    assert together.step == 9
    notebook = bench.fit(max_steps=9, devices=2).result()
    assert np.allclose(together.history["loss"], notebook.history["loss"], rtol=1e-5)
    assert "which host: a number from 0 to 1" in refused_host(file)
    # the launcher decides how many processes there are
    other = bench.launch_script(tmp_path / "job.sbatch", verify=False)
    assert directives(other)["ntasks-per-node"] == "2"
    assert "devices" not in other.with_suffix(".py").read_text()


def free_port() -> int:
    """A port that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def refused_host(file: Path) -> str:
    """What the file says where it is started without the number of its host."""
    ended = subprocess.run(["sh", str(file)], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    return ended.stderr


def test_a_stopped_run_is_trained_to_its_end(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, PAIR)
    run = fit_asking(bench, lambda job, step: job.stop() if step == 3 else None, max_steps=9)
    assert run.status == "stopped"
    file = bench.launch_script(tmp_path / "job.sh", verify=False)
    ended = python().run(str(file.with_suffix(".py")), folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert bench.runs[-1].step == 9
    bench.close()


def test_what_is_not_one_fit_is_refused(bench: wb.Workbench, tmp_path: Path) -> None:
    bench.fit("continue", max_steps=4).result()
    with pytest.raises(ExportError, match="0002-fit continues 0001-fit, and a job trains one fit"):
        bench.launch_script(tmp_path / "job.sbatch")
    fit_asking(bench, lambda job, step: job.change(lr=0.1) if step == 2 else None, max_steps=6)
    with pytest.raises(ExportError, match=r"0003-fit was changed while it trained \(lr\)"):
        bench.launch_script(tmp_path / "job.sbatch")
    assert not (tmp_path / "job.sbatch").exists()
    assert not (tmp_path / "job.py").exists()


def test_files_are_replaced_only_where_that_is_asked_for(
    bench: wb.Workbench, tmp_path: Path
) -> None:
    file = bench.launch_script(tmp_path / "job.sbatch", verify=False)
    with pytest.raises(ExportError, match=r"job\.sbatch exists, .* overwrite=True"):
        bench.launch_script(file)
    bench.launch_script(file, verify=False, overwrite=True, partition="other")
    assert directives(file)["partition"] == "other"
    file.unlink()
    with pytest.raises(ExportError, match=r"job\.py exists"):
        bench.launch_script(file)
    file.with_suffix(".py").write_text("precious = 1\n")
    with pytest.raises(ExportError, match="was not written by export"):
        bench.launch_script(file, overwrite=True)


@pytest.mark.parametrize(
    ("path", "arguments", "message"),
    [
        ("job", {}, r"'.*job' ends in none of \.sbatch, \.slurm \(SLURM\) and \.sh \(torchrun\)"),
        ("job.py", {}, r"the script that it starts has this name: give job\.sbatch"),
        ("job\n.sh", {}, "has a line break or another control character"),
        ("job.sbatch", {"format": "pbs"}, "format='pbs' is unknown: give 'slurm' or 'torchrun'"),
        ("job.sbatch", {"nodes": 0}, "nodes=0 should be a whole number, 1 or more"),
        ("job.sbatch", {"nodes": True}, "nodes=True should be a whole number"),
        ("job.sbatch", {"devices": [0, 1]}, r"devices=\[0, 1\] should be .* numbers the GPUs"),
        ("job.sbatch", {"comment": "a\n#SBATCH --uid=0"}, r"comment='a\\n#SBATCH .* line break"),
        ("job.sbatch", {"comment": "a\0"}, "control character"),
        ("job.sbatch", {"comment": ["a"]}, r"comment=\['a'\]: give text, a number, True or None"),
        ("job.sbatch", {"ntasks": 4}, "ntasks=4: nodes= and devices= decides that"),
        ("job.sbatch", {"chdir": "/tmp"}, "chdir='/tmp': the folder of path= decides that"),
        ("job.sbatch", {"a b": 4}, "'a b' is no name of an option"),
        ("job.sbatch", {"max_epochs": 9}, r"write it after the file: sbatch .* --max_epochs 9"),
        ("job.sbatch", {"warmup": 9}, "warmup=9 is a setting of the training, .* give that run"),
        ("job.sbatch", {"gpus": 2}, "gpus=2: the run has accelerator='cpu'"),
        ("job.sbatch", {"partitoin": "gpu"}, "no such option. Did you mean 'partition'"),
        ("job.sh", {"nodes": 2, "rdzv_endpoint": "host0"}, "rdzv_endpoint='host0': the hosts"),
        ("job.sh", {"nodes": 2}, "the hosts must find each other: .* rdzv_endpoint='host0:29500'"),
        ("job.sh", {"partition": "gpu"}, "torchrun has no option --partition"),
        ("job.sh", {"max_restarts": True}, "torchrun's --max-restarts takes a value"),
        ("job.sh", {"no_python": "x"}, "torchrun's --no-python takes no value"),
        ("job.sh", {"node_rank": 1}, r"node_rank=1: the first argument of the file \(sh job"),
    ],
)
def test_what_cannot_be_written_is_named(
    path: str, arguments: dict[str, Any], message: str, tried: wb.Workbench, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=message):
        tried.launch_script(tmp_path / path, **arguments)
    assert [file.name for file in tmp_path.iterdir()] == []


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wb.Workbench]:
    """A bench that no test changes."""
    made = make_bench(tmp_path_factory.mktemp("bench"), PAIR)
    made.fit(max_steps=2).result()
    yield made
    made.close()


def test_a_call_without_a_finished_fit_is_refused(tmp_path: Path) -> None:
    with (
        make_bench(tmp_path, PAIR) as bench,
        pytest.raises(ExportError, match="there is no finished fit to export"),
    ):
        bench.launch_script(tmp_path / "job.sbatch")


def test_the_python_of_the_notebook_runs_the_script() -> None:
    text = launch_file("job.sh", ("cpu", 1)).text()
    assert f"exec {sys.executable} -m torch.distributed.run --nnodes=1" in text
    assert "--standalone" in text
