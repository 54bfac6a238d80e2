"""Where a job runs, and what is refused when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from workbench.launch.process import run_in_child
from workbench.launch.select_launcher import check, ranks, select_launcher
from workbench.settings import Settings, SettingsError


def made(**given: Any) -> Settings:
    return Settings.make(accelerator="cpu", **given)


@pytest.mark.parametrize(("given", "strategy"), [({}, "thread"), ({"devices": 2}, "pool"), ({"num_nodes": 2}, "launch")])
def test_auto_is_the_simplest_that_can_do_it(given: dict[str, Any], strategy: str) -> None:
    assert select_launcher(made(**given)).strategy == strategy


@pytest.mark.parametrize("given", [{"devices": 2}, {"strategy": "pool", "devices": 1}])
def test_without_fork_there_is_no_pool(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_in_child, "FORK", False)
    with pytest.raises(SettingsError, match=rf"devices={given['devices']}, .* needs fork .* take strategy='thread'"):
        check(made(**given))
    check(made(devices=1))


@pytest.mark.parametrize("strategy", ["auto", "thread", "pool"])
def test_options_of_a_launch_are_not_left_aside(strategy: str) -> None:
    options = {"main_process_port": 2000}
    with pytest.raises(SettingsError, match=rf"launch={options} with strategy='{strategy}': .* take strategy='launch'"):
        check(made(strategy=strategy, launch=options))
    check(made(strategy="launch", launch=options))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"strategy": "thread", "devices": 2}, "strategy='thread' .* devices=2: take strategy='pool'"),
        ({"strategy": "pool", "num_nodes": 2}, "num_nodes=2 with strategy='pool': .* strategy='launch'"),
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
