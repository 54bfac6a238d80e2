"""`workbench train`: a script or a YAML file, in a process of its own, with the settings of the command line."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

import workbench as wb
from tests import warm
from tests.cli import net
from tests.launch.joined.test_joined import TORCHRUN, environment
from tests.waiting import wait_for
from workbench.runs.read import list_runs

HERE = Path(__file__).parent
CONFIG = """\
build:
  _target_: net.py:make
  width: 8
data: net.py:data
lr: 1e-2
batch_size: 8
max_epochs: 2
accelerator: cpu
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("net.py", "script.py"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "small.yaml").write_text(CONFIG)
    return tmp_path


def train(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.python().run("-m", "workbench", "train", *arguments, folder=folder)


def refused(folder: Path, *arguments: str) -> str:
    done = train(folder, *arguments)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / ".workbench").exists()
    return done.stderr


def losses(folder: Path) -> list[float]:
    return newest(folder).history["loss"].tolist()


def newest(folder: Path) -> wb.Run:
    return wb.Run.open(list_runs(folder / ".workbench")[-1].path)


# -- a script


def test_a_script_trains_with_the_settings_of_the_command_line(folder: Path) -> None:
    """To the last bit as with the same settings in its text."""
    done = train(
        folder, "script.py", "lr=1e-2", "max_epochs=2", "weight_decay=0.1", "--", "--width", "4"
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("By")] == [
        "By the command line: lr=0.01 (instead of 0.5), max_epochs=2, weight_decay=0.1.",
        "By the command line, set(): lr=0.01 (instead of 0.25).",
        "By the command line, fit(): max_epochs=2 (instead of 7).",
    ]
    run = newest(folder)
    assert (run.settings.lr, run.epochs, run.settings.weight_decay) == (0.01, 2, 0.1)
    torch.manual_seed(0)
    with wb.Workbench(
        **net.both(4), lr=0.01, batch_size=8, max_epochs=2, weight_decay=0.1, accelerator="cpu", root=folder / "typed"
    ) as bench:  # fmt: skip
        assert bench.fit().result().history["loss"].tolist() == losses(folder)


def test_an_exported_script_takes_them_too(folder: Path) -> None:
    torch.manual_seed(0)
    (folder / "train.py").write_text(
        "from net import both\nimport workbench as wb\n"
        "given = both(4)\nbench = wb.Workbench(**given, lr=0.5, batch_size=8, max_epochs=1, accelerator='cpu', root='first')\n"
        "bench.fit().result()\nbench.export('again.py', format='workbench', verify=False)\nbench.close()\n"
    )
    assert warm.python().run("train.py", folder=folder).returncode == 0
    done = train(folder, "again.py", "lr=1e-3", "--", "--batch_size", "16")
    assert done.returncode == 0, done.stderr
    run = newest(folder)
    assert (run.settings.lr, run.settings.batch_size, run.step) == (1e-3, 16, 4)


def test_a_dry_run_records_nothing(folder: Path) -> None:
    for words in (["script.py", "--dry-run"], ["small.yaml", "fast_dev_run=1"]):
        done = train(folder, *words)
        assert done.returncode == 0, done.stderr
        assert list_runs(folder / ".workbench") == []


def test_what_a_script_raises_is_shown_as_python_shows_it(folder: Path) -> None:
    (folder / "broken.py").write_text(
        "import sys\ndef f():\n    raise OSError('no picture')\nf()\n"
    )
    done = train(folder, "broken.py")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert 'broken.py", line 3, in f' in done.stderr
    assert "workbench/" not in done.stderr  # its own frames are not the user's
    assert done.stderr.endswith("OSError: no picture\n")
    (folder / "ends.py").write_text("import sys\nsys.exit(7)\n")
    assert train(folder, "ends.py").returncode == 7
    # what the bench refuses has the line of the script
    done = train(folder, "script.py", "lr=-1")
    assert done.returncode == 1
    assert "lr=-1: should be at least 0" in done.stderr
    assert "script.py, line 16" in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_without_a_bench_are_an_error(folder: Path) -> None:
    (folder / "other.py").write_text("print('trained')\n")
    done = train(folder, "other.py", "lr=1e-3")
    assert (done.returncode, done.stdout) == (1, "trained\n")
    assert (
        "other.py has made no wb.Workbench, so lr of the command line had no effect" in done.stderr
    )
    assert train(folder, "other.py").returncode == 0


# -- a YAML file


def test_a_yaml_file_trains_as_the_same_bench_does(folder: Path) -> None:
    done = train(folder, "small.yaml", "build.width=4", "lr=0.1")
    assert done.returncode == 0, done.stderr
    first, updates, epochs, *_ = [line.split() for line in done.stdout.splitlines()]
    assert first == ["Run", "0001-fit", "fit", "finished"]
    assert [updates, epochs] == [["updates", "16"], ["epochs", "2"]]
    torch.manual_seed(0)  # the setting `seed`
    with wb.Workbench(
        net.make(4), **net.data(), lr=0.1, batch_size=8, max_epochs=2, accelerator="cpu", root=folder / "typed"
    ) as bench:  # fmt: skip
        assert bench.fit().result().history["loss"].tolist() == losses(folder)
    shown = warm.python().run("-m", "workbench", "runs", "show", "1", folder=folder).stdout
    assert "net.py:make(width=4)" in shown
    assert "net.py:data()" in shown
    again = warm.python().run("-m", "workbench", "rerun", "1", folder=folder)
    assert (again.returncode, again.stdout) == (
        0, "0002-fit repeats 0001-fit: 16 of 16 losses equal, and 2 of 2 validations.\n",
    )  # fmt: skip


def test_a_stopped_one_is_submitted_again(folder: Path) -> None:
    """fit("auto") knows it by what it builds, too."""
    slow = folder / "slow.py"
    slow.write_text(
        "import time\nfrom net import both as make\n"
        "def both(width=8, pause=0.02):\n    parts = make(width)\n"
        "    parts['model'].register_forward_hook(lambda *_: time.sleep(pause))\n    return parts\n"
    )
    (folder / "slow.yaml").write_text(
        "build: slow.py:both\nstart: auto\nmax_epochs: 12\nbatch_size: 8\ncheckpoint_every: 5\naccelerator: cpu\n"
    )
    job = warm.python().start("-m", "workbench", "train", "slow.yaml", folder=folder)
    root = folder / ".workbench"
    wait_for(lambda: (list_runs(root) and list_runs(root)[-1].step > 20) or job.poll() is not None)
    job.send_signal(signal.SIGTERM)
    assert job.wait(60) != 0
    assert list_runs(root)[-1].status == "stopped"
    assert train(folder, "slow.yaml", "build.pause=0").returncode == 0  # another one
    assert train(folder, "slow.yaml").returncode == 0
    runs = [wb.Run.open(run.path) for run in list_runs(root)]
    assert [(run.status, len(run.resumes)) for run in runs] == [
        ("stopped", 0),
        ("finished", 0),
        ("finished", 1),
    ]
    assert runs[2].history["loss"].tolist() == runs[1].history["loss"].tolist()


@pytest.mark.parametrize("form", ["module", "command"])
def test_ranks_of_a_launcher_are_one_training(form: str, folder: Path) -> None:
    if form == "module":
        command = ["-m", "workbench", "train", "script.py", "max_epochs=2"]
    else:
        command = [
            "--no-python",
            str(warm.python().executable),
            "-m",
            "workbench",
            "train",
            "small.yaml",
        ]
    done = warm.python().run(
        *TORCHRUN[1:], *command, "lr=0.1", folder=folder, environment=environment()
    )
    assert done.returncode == 0, done.stderr
    run = newest(folder)
    assert (run.id, run.status, run.step, run.settings.lr) == ("0001-fit", "finished", 8, 0.1)
    # rank 0 alone speaks
    assert done.stderr.count("By the command line:") == (form == "module")
    assert done.stdout.count("Run 0001-fit") == (form == "command")


# -- errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["script.py", "lrr=1"], "unknown setting 'lrr'. Did you mean 'lr'?"),
        (["nothing.py"], "there is no file nothing.py"),
        ([".", "lr=1"], "give a script (.py) or a configuration (.yaml)"),
        (
            ["small.yaml", "build=net.py:both"],
            "= is given to the bench, and both() returned one too",
        ),
        (["small.yaml", "build.widht=4"], "Did you mean 'width'?"),
        (["small.yaml", "lr=-1"], "lr=-1: should be at least 0"),
    ],
)
def test_bad_input_is_named(arguments: list[str], words: str, folder: Path) -> None:
    assert words in refused(folder, *arguments)


def test_an_error_of_the_users_function_is_shown_whole(folder: Path) -> None:
    done = train(folder, "small.yaml", "build={_target_: 'net.py:fails'}")
    assert done.returncode == 1
    assert "\nLookupError: no such picture\n" in done.stderr
    assert "in fails" in done.stderr


def test_arguments_after_dashes_are_for_scripts(folder: Path) -> None:
    done = train(folder, "small.yaml", "--", "--width", "4")
    assert done.returncode == 2
    assert "'--width' comes after --, which is for scripts" in done.stderr
