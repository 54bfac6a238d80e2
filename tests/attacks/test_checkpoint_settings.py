"""A checkpoint of a stranger: it decides what is computed, and never where, by which command, or what is deleted."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.launch import launch_command_parser
from torch import nn

from tests.attacks.strangers import bench, messages, of, poison_checkpoints
from workbench.events import Resumed
from workbench.launch.accelerate import command as accelerate
from workbench.launch.accelerate.command import plan
from workbench.settings import LOCAL, Settings, SettingsError, metadata_of
from workbench.task.errors import TaskError
from workbench.ui.panel import Panel


@pytest.fixture(autouse=True)
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were started; none of them is. There is no accelerate config."""
    started: list[list[str]] = []

    def start(command: list[str], *_: Any, **__: Any) -> None:
        started.append(command)
        raise OSError("no command is started in these tests")

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(accelerate, "default_config_file", str(tmp_path / "none.yaml"))
    return started


def evil(tmp_path: Path) -> dict[str, Any]:
    """The settings of the issue: with `--debug evil.py` the launcher runs evil.py."""
    script = tmp_path / "evil.py"
    script.write_text(f"open({str(tmp_path / 'owned')!r}, 'w').write('owned')\n")
    return {
        "strategy": "launch",
        "launch": {"debug": str(script)},
        "devices": 1,
        "rank_timeout": 1.0,
    }


@pytest.mark.parametrize("here", [{}, {"strategy": "thread"}, {"strategy": "auto", "keep_runs": 7}])
def test_a_checkpoint_does_not_say_what_is_launched(
    tmp_path: Path, launched: list[list[str]], here: dict[str, Any]
) -> None:
    run = bench(tmp_path).fit().result()
    assert run.folder is not None
    poison_checkpoints(run.folder, **evil(tmp_path), keep_runs=1, save_top_k=0)
    job = bench(tmp_path, **here).fit(start=run.id, max_epochs=2)
    on = job.result()
    assert launched == []
    assert on.step == 4
    assert not (tmp_path / "owned").exists()
    expected = Settings.make(**here)
    for name in LOCAL:
        if name != "accelerator":
            assert getattr(job.settings, name) == getattr(expected, name), name
    assert on.settings.launch is None  # nor does the record of the run that continues hand it on
    assert any(
        "it runs with the bench's" in text and "the run had" in text and "evil.py" in text
        for text in messages(job)
    )


def test_the_folder_of_a_stranger_may_be_put_into_the_root(
    tmp_path: Path, launched: list[list[str]]
) -> None:
    theirs = bench(tmp_path / "theirs").fit().result()
    assert theirs.folder is not None
    poison_checkpoints(theirs.folder, **evil(tmp_path), keep_runs=1)
    b = bench(tmp_path / "mine")
    own = [b.fit().result().id for _ in range(3)]
    shutil.copytree(theirs.folder, tmp_path / "mine" / "runs" / "0099-fit")
    for start in ("0099-fit", "0099-fit@last", "0099-fit@2"):
        b.fit(start=start, max_epochs=2).result()
    assert launched == []
    assert {*own} <= {run.id for run in b.runs}


def test_the_continue_button_takes_nothing_from_the_file(
    tmp_path: Path, launched: list[list[str]]
) -> None:
    b = bench(tmp_path, strategy="thread")
    first = b.fit().result()
    assert first.folder is not None
    poison_checkpoints(first.folder, **evil(tmp_path), keep_runs=1)
    panel = Panel.of(b)
    b.set(max_epochs=2)
    panel._continue()
    run = b.jobs[-1].result()
    assert b.jobs[-1] is not b.jobs[0]
    assert (run.step, launched) == (4, [])
    assert {first.id, run.id} == {found.id for found in b.runs}


def test_what_fit_is_given_counts_and_what_the_bench_asked_for_itself_stays(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.fit(strategy="thread", rank_timeout=50.0, save_top_k=3).result()
    job = b.fit(start="continue", max_epochs=2)
    job.result()
    assert (job.settings.strategy, job.settings.rank_timeout, job.settings.save_top_k) == (
        "thread",
        50.0,
        3,
    )
    assert of(job, Resumed)[0].values == {"max_epochs": 2}
    job = b.fit(start="continue", max_epochs=3, save_top_k=-1, keep_runs=9)
    job.result()
    assert (job.settings.rank_timeout, job.settings.save_top_k, job.settings.keep_runs) == (
        50.0,
        -1,
        9,
    )


def test_a_run_of_this_bench_prunes_by_the_bench_too(tmp_path: Path) -> None:
    b = bench(tmp_path)
    b.fit(keep_runs=1).result()
    job = b.fit(start="continue", max_epochs=2)
    job.result()
    assert job.settings.keep_runs == Settings().keep_runs
    assert len(b.runs) == 2


def test_what_decides_the_numbers_stays_the_runs(tmp_path: Path) -> None:
    """Else a run that continues would not be the one that it continues."""
    b = bench(
        tmp_path, seed=5, lr=0.3, monitor="train_loss", monitor_mode="min", checkpoint_every=2
    )
    run = b.fit().result()
    job = bench(tmp_path).fit(start=run.id, max_epochs=2)
    with pytest.raises(SettingsError, match="seed"):
        bench(tmp_path, seed=6).fit(start=run.id, max_epochs=2, seed=6)
    job.result()
    assert (job.settings.seed, job.settings.lr, job.settings.checkpoint_every) == (5, 0.3, 2)


def test_every_setting_of_devices_is_the_benchs_unless_it_decides_numbers() -> None:
    devices = {name for name in Settings.model_fields if metadata_of(name).group == "devices"}
    assert devices - {"seed", "deterministic"} < set(LOCAL)
    assert {"keep_runs", "save_top_k"} < set(LOCAL)


def test_a_backend_of_compile_is_one_that_is_registered(tmp_path: Path) -> None:
    """A string names no module: torch looks it up among its backends."""
    run = bench(tmp_path).fit().result()
    assert run.folder is not None
    poison_checkpoints(run.folder, compile="os.system")
    with pytest.raises(TaskError, match=r"os\.system"):
        bench(tmp_path).fit(start=run.id, max_epochs=2).result()


@pytest.mark.parametrize(("name", "value"), [
    ("epoch", torch.tensor(float("nan"))), ("epoch", None), ("step", "1"), ("step", -1), ("seconds", float("nan")), ("seconds", 10**400),
    ("mid_epoch", 1), ("settings", [1]), ("held", None), ("optimizers", {}), ("checks", "x"),
], ids=lambda value: str(value)[:12])  # fmt: skip
def test_state_of_another_type_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    run = bench(tmp_path).fit().result()
    file = run.checkpoints[-1].path / "state.pt"
    torch.save({**torch.load(file, weights_only=True), name: value}, file)
    with pytest.raises(
        RuntimeError, match=f"state.pt cannot be read .its {name} is .* another checkpoint"
    ):
        bench(tmp_path).fit(start=run.id, max_epochs=2).result()


def test_a_checkpoint_sets_no_machinery_of_a_module(tmp_path: Path) -> None:
    """Attributes of a module's own are state; what every module has (hooks, submodules, its class) is not."""
    run = bench(tmp_path).fit().result()
    assert run.folder is not None
    value = {"value": {"0": 7}, "away": False}
    for state in (run.folder / "checkpoints").glob("*/state.pt"):
        held = torch.load(state, weights_only=True)
        held["held"] = {
            "0:": dict.fromkeys(
                ("_forward_hooks", "_modules", "__class__", "__dict__", "_buffers", "own"), value
            )
        }
        torch.save(held, state)
    b = bench(tmp_path)
    assert b.fit(start=run.id, max_epochs=2).result().step == 4
    assert (type(b.model), dict(b.model._forward_hooks), b.model._modules, b.model._buffers) == (
        nn.Linear,
        {},
        {},
        {},
    )
    assert b.model.own == {"0": 7}


# -- the command


def planned(**launch: Any) -> accelerate.LaunchPlan:
    return plan(Settings.make(strategy="launch", launch=launch), "cpu")


ALONE = sorted(
    {word.lstrip("-").replace("-", "_") for a in launch_command_parser()._actions if a.nargs == 0 for word in a.option_strings if word[:2] == "--"}
    - {"help", "cpu", "multi_gpu", "tpu", "module", "no_python", "use_megatron_lm", "use_fsdp", "use_deepspeed", "use_parallelism_config"}
)  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("value", ["evil.py", "true", 1, "--module"])
def test_an_option_that_stands_alone_takes_no_value(name: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        planned(**{name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    "value", ["evil.py", "--debug", "-m", "a b", "", "=", "x --no_python evil.py"]
)
@pytest.mark.parametrize(
    "name",
    ["role", "log_dir", "rdzv_conf", "rdzv_backend", "tee", "main_process_ip", "fsdp_version"],
)
def test_a_value_stays_the_value_of_its_option(name: str, value: str, tmp_path: Path) -> None:
    if name == "fsdp_version":  # which takes some values alone
        with pytest.raises(SettingsError, match="fsdp_version"):
            planned(**{name: value, "num_processes": 2})
        return
    words = planned(**{name: value, "num_processes": 2}).command(tmp_path)
    read = launch_command_parser().parse_args(words[3:])
    assert read.module
    assert not read.no_python
    assert not read.debug
    assert read.training_script == "workbench.launch.accelerate.worker"
    assert read.training_script_args == [str(tmp_path.absolute())]
    # of one machine the address is not used
    assert name == "main_process_ip" or getattr(read, name) == value


@pytest.mark.parametrize("value", ["--", True, False])
def test_what_is_no_value_is_refused(value: Any) -> None:
    """argparse takes "--" for the end of the options, wherever it stands."""
    with pytest.raises(SettingsError, match="role takes a value"):
        planned(role=value)


@pytest.mark.parametrize("name", ["module", "m", "no_python", "no-python", "training_script", "training_script_args", "help", "h", "q", "t",
                                  "debug=", "numprocesses", "num_proc", "main_training_function", "mpirun_hostfile", "vm", "env", "tpu_use_sudo"])  # fmt: skip
def test_what_is_no_option_or_is_about_the_script_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        planned(**{name: "evil.py"})
    assert name in str(caught.value)


def test_a_list_of_options_is_refused() -> None:
    with pytest.raises(SettingsError, match="debug"):
        planned(debug=["--debug", "evil.py"])


def test_the_script_for_other_machines_quotes_every_value(tmp_path: Path) -> None:
    value = "10.0.0.8; touch owned $(touch owned) `touch owned`"
    found = planned(num_machines=2, num_processes=2, main_process_ip=value)
    line = accelerate.write_script(found, tmp_path).read_text().splitlines()[-1]
    assert f"--main_process_ip={value}" in shlex.split(line)
