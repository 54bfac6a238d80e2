"""The command that a job is launched with, from its settings and the user's accelerate config."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

import workbench as wb
from workbench.launch.accelerate import command
from workbench.launch.accelerate.command import LaunchPlan, plan
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError

CONFIG = {
    "compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "num_processes": 4, "num_machines": 2,
    "machine_rank": 0, "main_process_ip": "10.0.0.7", "main_process_port": 2222, "mixed_precision": "bf16", "use_cpu": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user's accelerate config lies; there is none until a test writes one."""
    path = tmp_path / "default_config.yaml"
    monkeypatch.setattr(command, "default_config_file", str(path))
    monkeypatch.setattr("accelerate.commands.launch.default_config_file", str(path))
    monkeypatch.setattr("accelerate.commands.config.config_args.default_config_file", str(path))
    monkeypatch.setattr("accelerate.commands.config.default_config_file", str(path))
    return path


def planned(kind: str = "cpu", **settings: Any) -> LaunchPlan:
    return plan(Settings.make(strategy="launch", **settings), kind)


def understood(found: LaunchPlan, machine: int = 0) -> Any:
    """The options as accelerate itself reads them, with its config."""
    words = found.command(Path("run"), machine)
    assert words[1:3] == ["-m", "accelerate.commands.launch"]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words[3:]))
    assert arguments.module
    assert arguments.training_script == "workbench.launch.accelerate.worker"
    assert arguments.training_script_args == [str(Path("run").absolute())]
    return arguments


def test_a_search_counts_the_ranks_of_the_config(tmp_path: Path) -> None:
    made = wb.Workbench(
        torch.nn.Linear(2, 1),
        train=(torch.ones(3, 2), torch.ones(3, 1)),
        loss=F.mse_loss,
        root=tmp_path,
        accelerator="cpu",
    )
    with pytest.raises(TaskError, match="3 samples, too few for 4 ranks"):
        made.find_batch_size(strategy="launch", launch={"num_processes": 4}).result(200)


def test_without_a_config_there_is_one_process_on_the_cpu() -> None:
    found = planned()
    assert (found.processes, found.machines, found.local) == (1, 1, 1)
    given = understood(found)
    assert given.cpu
    assert not given.multi_gpu
    assert given.num_processes == 1
    assert found.environment()["ACCELERATE_USE_CPU"] == "true"
    assert int(found.environment()["OMP_NUM_THREADS"]) == torch.get_num_threads()


def test_several_processes_find_a_free_port() -> None:
    found = planned(devices=2)
    given = understood(found)
    assert (given.multi_gpu, given.num_processes, given.num_machines, given.main_process_port) == (
        True,
        2,
        1,
        0,
    )
    assert int(found.environment()["OMP_NUM_THREADS"]) == max(1, torch.get_num_threads() // 2)


def test_what_is_not_given_the_config_says(default: Path) -> None:
    default.write_text(yaml.safe_dump(CONFIG))
    found = planned()
    given = understood(found, 1)
    assert (given.num_processes, given.num_machines, given.machine_rank) == (4, 2, 1)
    assert (given.main_process_ip, given.main_process_port, given.mixed_precision) == (
        "10.0.0.7",
        2222,
        "no",
    )
    assert any("mixed_precision='bf16'" in note and "32-true" in note for note in found.notes)
    assert planned(precision="bf16-mixed").notes == ()


def test_what_is_given_goes_before_the_config(default: Path, tmp_path: Path) -> None:
    default.write_text(yaml.safe_dump(CONFIG))
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump({**CONFIG, "num_machines": 1, "num_processes": 8}))
    given = understood(planned(launch={"config_file": str(other)}))
    assert (given.num_processes, given.num_machines, given.config_file) == (8, 1, str(other))
    given = understood(
        planned(
            devices=3, num_nodes=2, launch={"main_process_ip": "10.0.0.8", "rdzv_conf": "timeout=5"}
        )
    )
    assert (
        given.num_processes,
        given.num_machines,
        given.main_process_ip,
        given.main_process_port,
    ) == (6, 2, "10.0.0.8", 2222)
    assert given.rdzv_conf == "timeout=5"
    given = understood(
        planned(
            launch={
                "num_machines": 1,
                "num_processes": 2,
                "num_cpu_threads_per_process": 5,
                "debug": True,
            }
        )
    )
    assert (
        given.num_processes,
        given.num_machines,
        given.num_cpu_threads_per_process,
        given.debug,
    ) == (2, 1, 5, True)


def test_a_config_for_cpus_is_one_where_nothing_else_is_said(
    default: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default.write_text(
        yaml.safe_dump(
            {
                **CONFIG,
                "distributed_type": "NO",
                "num_machines": 1,
                "num_processes": 1,
                "use_cpu": True,
            }
        )
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert planned("cuda").cpu
    assert not planned("cuda", accelerator="gpu").cpu


def test_gpus_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert understood(planned("cuda", devices=[1, 3])).gpu_ids == "1,3"
    assert planned("cuda").processes == 4
    assert understood(planned("cuda", devices=[2])).gpu_ids == "2"
    with pytest.raises(SettingsError, match="a GPU of its own"):
        planned("cuda", devices=[0, 0])


def test_the_script_for_other_machines(tmp_path: Path) -> None:
    found = planned(num_nodes=3, launch={"main_process_ip": "10.0.0.8"})
    script = command.write_script(found, tmp_path).read_text()
    line = script.splitlines()[-1]
    assert line.startswith("exec ")
    assert '--machine_rank "${1:?which machine}"' in line
    words = shlex.split(line)[1:]
    assert words == [
        "${1:?which machine}" if word == "N" else word for word in found.command(tmp_path, "N")
    ]
    assert "export OMP_NUM_THREADS=" in script
    assert "export ACCELERATE_USE_CPU=true" in script
    assert "from 1 to 2" in script


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"launch": {"num_procs": 2}}, "has no option 'num_procs'"),
        ({"launch": {"config_file": "nowhere.yaml"}}, "nowhere.yaml"),
        ({"launch": {"monitor_interval": "soon"}}, "invalid float value: 'soon'"),
        ({"launch": {"mixed_precision": "bf16"}}, "precision="),
        ({"launch": {"dynamo_backend": "inductor"}}, "compile="),
        ({"launch": {"max_restarts": 3}}, "a job of the bench cannot have it"),
        ({"launch": {"num_processes": 4}, "devices": 2}, "contradict each other"),
        ({"launch": {"num_machines": 3}, "num_nodes": 2}, "contradict each other"),
        (
            {"launch": {"num_machines": 2, "num_processes": 3, "main_process_ip": "10.0.0.7"}},
            "as many as the others",
        ),
        (
            {
                "launch": {
                    "num_machines": 2,
                    "num_processes": 2,
                    "main_process_ip": "10.0.0.7",
                    "machine_rank": 1,
                }
            },
            "launch.sh",
        ),
        ({"num_nodes": 2}, "main_process_ip"),
        ({"fast_dev_run": 2}, "fast_dev_run=2"),
    ],
)
def test_what_cannot_be_is_said_when_it_is_asked_for(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        planned(**settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(("kind", "words"), [("MEGATRON_LM", "Megatron"), ("XLA", "TPUs")])
def test_a_config_for_another_kind_of_training_is_refused_by_name(
    default: Path, kind: str, words: str
) -> None:
    default.write_text(yaml.safe_dump({**CONFIG, "distributed_type": kind}))
    with pytest.raises(SettingsError) as caught:
        planned()
    assert words in str(caught.value)
    assert "your accelerate config" in str(caught.value)


@pytest.mark.parametrize(
    "launch", [None, {"use_fsdp": True, "num_processes": 2}, {"num_processes": 2}]
)
def test_a_config_of_deepspeed_is_refused_by_its_file_whatever_launch_has(
    default: Path, launch: dict[str, Any] | None
) -> None:
    default.write_text(
        yaml.safe_dump(
            {
                **CONFIG,
                "num_machines": 1,
                "distributed_type": "DEEPSPEED",
                "deepspeed_config": {"zero_stage": 3},
            }
        )
    )
    with pytest.raises(
        SettingsError,
        match=r"distributed_type: DEEPSPEED: DeepSpeed is not supported.*distributed_type: FSDP.*docs/fsdp\.md",
    ) as caught:
        planned(launch=launch)
    assert str(default) in str(caught.value)


def test_a_named_config_of_deepspeed_is_refused_by_its_file(tmp_path: Path) -> None:
    file = tmp_path / "zero.yaml"
    file.write_text(yaml.safe_dump({**CONFIG, "distributed_type": "DEEPSPEED"}))
    with pytest.raises(
        SettingsError, match=r"zero\.yaml, distributed_type: DEEPSPEED: DeepSpeed is not supported"
    ):
        planned(launch={"config_file": str(file)})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_deepspeed", True),
        ("zero_stage", 2),
        ("offload_optimizer_device", "cpu"),
        ("deepspeed_config_file", "ds.json"),
    ],
)
def test_an_option_of_deepspeed_is_refused_with_fsdp_as_the_remedy(name: str, value: Any) -> None:
    with pytest.raises(
        SettingsError, match=rf"launch=.*{name}.*: {name}: DeepSpeed is not supported.*use_fsdp"
    ) as caught:
        planned(launch={name: value})
    assert repr(value) in str(caught.value)


def test_every_option_of_deepspeed_that_accelerate_has_is_refused() -> None:
    """A later accelerate may have more of them."""
    group = next(
        found
        for found in launch_command_parser()._action_groups
        if found.title == "DeepSpeed Arguments"
    )
    names = [action.dest for action in group._group_actions]
    assert "zero_stage" in names
    # a setting of the bench decides gradient_clipping and gradient_accumulation_steps
    for name in names:
        with pytest.raises(
            SettingsError,
            match=rf"{name}: (DeepSpeed is not supported|the setting \w+= decides that)",
        ):
            planned(launch={name: "1"})


def test_use_deepspeed_false_asks_for_nothing() -> None:
    assert planned(launch={"use_deepspeed": False}).processes == 1


def test_a_config_that_cannot_be_read_is_said_with_its_file(default: Path) -> None:
    default.write_text(yaml.safe_dump({**CONFIG, "colour": "blue"}))
    with pytest.raises(SettingsError, match=r"default_config\.yaml cannot be taken: .*colour"):
        planned()


@pytest.mark.parametrize("text", ["a: " + "[" * 5000, "- 1", "a: [", "7"])
def test_a_config_that_is_none_is_said_with_its_file(default: Path, text: str) -> None:
    default.write_text(text)
    with pytest.raises(SettingsError, match=r"default_config\.yaml cannot be taken: "):
        planned()


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_processes", "x"), ("num_processes", 0), ("num_machines", 1.5), ("machine_rank", -1)],
)
def test_a_count_that_is_none_is_named(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=rf"launch=.*{name}.*: {name} should be a whole number"):
        planned(launch={name: value})
