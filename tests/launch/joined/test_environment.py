"""What a launcher's environment says about a process."""

from __future__ import annotations

import pytest

from workbench.launch.joined.environment import Place, first_host, place_in

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def test_torchrun() -> None:
    place = place_in({**TORCHRUN, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4321"})
    assert place == Place("torchrun", 3, 4, 1, 2, "10.0.0.1", 4321)


def test_srun_on_two_hosts() -> None:
    place = place_in(
        {
            "SLURM_PROCID": "5",
            "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_LOCALID": "1",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
            "SLURM_STEP_NODELIST": "gpu[07-08]",
            "SLURM_JOB_ID": "4711",
        }
    )
    assert place is not None
    assert place[:6] == ("srun", 5, 8, 1, 4, "gpu07")
    assert place.variables["LOCAL_WORLD_SIZE"] == "4"
    assert 15000 <= place.port < 55000


@pytest.mark.parametrize(
    "names",
    [
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "77"},
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
    ],
)
def test_mpirun_on_one_host(names: dict[str, str]) -> None:
    place = place_in(names)
    assert place is not None
    assert place[:6] == ("mpirun", 1, 2, 1, 2, "127.0.0.1")


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "1"},
        # the script of sbatch, in which no srun has started a step
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "1"},
    ],
)
def test_a_process_alone(names: dict[str, str]) -> None:
    assert place_in(names) is None


def test_ranks_that_a_scheduler_starts_one_on_each_host() -> None:
    names = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "pod-0", "MASTER_PORT": "1234"}
    place = place_in(names)
    assert place is not None
    assert place[:6] == ("torchrun", 1, 2, 0, 1, "pod-0")


def test_mpirun_on_two_hosts_needs_an_address() -> None:
    names = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    names["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1"
    with pytest.raises(ValueError, match="set MASTER_ADDR to the host of rank 0"):
        place_in(names)


def test_a_rank_beyond_the_last_is_refused() -> None:
    with pytest.raises(ValueError, match=r"RANK='3' with WORLD_SIZE=2: .* from 0 to 1"):
        place_in({**TORCHRUN, "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("node7", "node7"),
        ("node7,node9", "node7"),
        ("gpu[03-06,11],login1", "gpu03"),
        ("rack2-[1,5]-a", "rack2-1-a"),
        ("", ""),
    ],
)
def test_the_first_host_of_a_list(hosts: str, first: str) -> None:
    assert first_host(hosts) == first
