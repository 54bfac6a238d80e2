"""Where a job runs, and what is refused when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
import torch.nn.functional as F
from accelerate import DeepSpeedPlugin

import workbench as wb
from workbench.engine.runtime import runtime
from workbench.launch.process import run_in_child
from workbench.launch.select_launcher import check, process_of, ranks, select_launcher
from workbench.settings import Settings, SettingsError


def made(**given: Any) -> Settings:
    return Settings.make(accelerator="cpu", **given)


@pytest.mark.parametrize(
    ("given", "strategy"), [({}, "thread"), ({"devices": 2}, "pool"), ({"num_nodes": 2}, "launch")]
)
def test_auto_is_the_simplest_that_can_do_it(given: dict[str, Any], strategy: str) -> None:
    assert select_launcher(made(**given)).strategy == strategy


@pytest.mark.parametrize(
    ("given", "devices", "process"),
    [
        ({"devices": [1]}, {"cuda:1"}, "any"),
        ({"devices": 1}, {"cuda:0"}, "any"),
        ({"devices": [1], "strategy": "thread"}, {"cuda:1"}, "this"),
        ({"devices": [0, 1]}, {"cuda:0", "cuda:1"}, "other"),
        ({"accelerator": "cpu"}, {"cpu"}, "any"),
        ({"accelerator": "cpu", "devices": 2}, {"cpu"}, "other"),
    ],
)
def test_the_devices_and_the_process_of_a_job(
    given: dict[str, Any], devices: set[str], process: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    settings = Settings.make(**given)
    assert select_launcher(settings).names == devices
    assert process_of(settings, moves=True) == process
    assert process_of(settings, moves=False) == process.replace("any", "this")


@pytest.mark.parametrize("given", [{"devices": 2}, {"strategy": "pool", "devices": 1}])
def test_without_fork_there_is_no_pool(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_in_child, "FORK", False)
    with pytest.raises(
        SettingsError, match=rf"devices={given['devices']}, .* needs fork .* take strategy='thread'"
    ):
        check(made(**given))
    check(made(devices=1))


@pytest.mark.parametrize("strategy", ["auto", "thread", "pool"])
def test_options_of_a_launch_are_not_left_aside(strategy: str) -> None:
    options = {"main_process_port": 2000}
    with pytest.raises(
        SettingsError,
        match=rf"launch={options} with strategy='{strategy}': .* take strategy='launch'",
    ):
        check(made(strategy=strategy, launch=options))
    check(made(strategy="launch", launch=options))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"strategy": "thread", "devices": 2},
            "strategy='thread' .* devices=2: take strategy='pool'",
        ),
        (
            {"strategy": "pool", "num_nodes": 2},
            "num_nodes=2 with strategy='pool': .* strategy='launch'",
        ),
        ({"devices": [0, 1]}, r"devices=\[0, 1\]: .* devices=2"),
    ],
)
def test_what_cannot_be_is_told_with_its_remedy(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        check(made(**given))


def test_a_launched_job_has_as_many_ranks_as_its_config_says(tmp_path: Path) -> None:
    config = tmp_path / "two_hosts.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_machines: 2\nnum_processes: 6\nmachine_rank: 0\n"
        "main_process_ip: 127.0.0.1\nmain_process_port: 2999\nuse_cpu: true\nmixed_precision: 'no'\n"
    )
    assert ranks(made(strategy="launch", launch={"config_file": str(config)})) == 6
    assert ranks(made(strategy="launch", launch={"config_file": str(config)}, devices=2)) == 4
    assert ranks(made(strategy="launch", launch={"num_processes": 3})) == 3
    assert [ranks(made(devices=devices)) for devices in (1, 2)] == [1, 2]


@pytest.mark.parametrize("strategy", ["auto", "thread", "pool", "launch"])
@pytest.mark.parametrize("value", ["true", "TRUE"])
def test_an_environment_that_asks_for_deepspeed_is_refused_on_every_launcher(
    strategy: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", value)
    with pytest.raises(
        SettingsError,
        match=rf"ACCELERATE_USE_DEEPSPEED='{value}'.*distributed_type: FSDP.*docs/fsdp\.md.*del os\.environ",
    ):
        check(made(strategy=strategy))
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "false")
    check(made(strategy=strategy))


def test_a_rank_refuses_deepspeed_before_it_makes_an_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setattr(runtime, "Accelerator", None)
    with pytest.raises(SettingsError, match="DeepSpeed is not supported"):
        runtime.Runtime(made())


def test_an_accelerator_of_the_user_with_a_deepspeed_plugin_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # which accelerate overwrites, and pytest restores
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "false")
    monkeypatch.setattr("accelerate.accelerator.is_deepspeed_available", lambda: False)
    bench = wb.Workbench(
        torch.nn.Linear(2, 1),
        train=(torch.ones(4, 2), torch.ones(4, 1)),
        loss=F.mse_loss,
        root=tmp_path,
        accelerator="cpu",
    )
    with pytest.raises(ImportError, match="DeepSpeed is not installed"):
        accelerate.Accelerator(deepspeed_plugin=DeepSpeedPlugin.__new__(DeepSpeedPlugin))
    with pytest.raises(SettingsError, match="an Accelerator with a DeepSpeedPlugin sets it, too"):
        bench.fit(max_epochs=1)
