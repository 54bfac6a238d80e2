"""Reads from the environment which rank of a launcher's job this process is: of torchrun,
accelerate, srun or mpirun.

A launcher starts the same script several times and gives each process its number in environment
variables. Those of torchrun are the field's standard; the others are translated into them. Sources:
the manuals of torchrun, srun (output environment variables), Open MPI and MPICH.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_LOOPBACK = ("", "127.0.0.1", "localhost", "::1")
_PORT = 29500
"""torch's own default port."""
_PORTS = range(15000, 55000)
"""The ports from which that of a job without MASTER_PORT is taken, by its number."""


class Place(NamedTuple):
    """The place of this process in a launcher's job."""

    launcher: str
    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    """The host of rank 0."""
    port: int

    @property
    def variables(self) -> dict[str, str]:
        """The same as torchrun's environment variables, which torch and accelerate read."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


class _Names(NamedTuple):
    """The environment variables of one launcher."""

    launcher: str
    rank: str
    world: str
    local_rank: str
    local_world: str
    job: tuple[str, ...]
    """Those with the number of the job, from which its port is made."""


_LAUNCHERS = (
    _Names("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", ()),
    # Those of the step: in the script that sbatch runs, SLURM_NTASKS tells what srun would start.
    _Names(
        "srun",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ),
    _Names(
        "mpirun",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        ("PMIX_NAMESPACE",),
    ),
    _Names("mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", ()),
)


def place_in(variables: Mapping[str, str]) -> Place | None:
    """The place of this process among several, from its environment; None: it is alone.

    Raises ValueError for variables that contradict each other.
    """
    for names in _LAUNCHERS:
        world = _number(variables, names.world)
        if names.rank in variables and world is not None and world > 1:
            return _place(variables, names, world)
    return None


def _place(variables: Mapping[str, str], names: _Names, world: int) -> Place:
    rank = _number(variables, names.rank)
    if rank is None or rank >= world:
        raise ValueError(
            f"{names.rank}={variables[names.rank]!r} with {names.world}={world}: a rank is a number"
            f" from 0 to {world - 1}."
        )
    local_rank = _number(variables, names.local_rank)
    local_world = _number(variables, names.local_world)
    nodes = _number(variables, "SLURM_STEP_NUM_NODES") if names.launcher == "srun" else None
    address = variables.get("MASTER_ADDR", "")
    if not address and nodes is not None and nodes > 1:
        address = first_host(variables.get("SLURM_STEP_NODELIST", ""))
    if local_world is None and nodes is not None:
        local_world = world // nodes
    if local_world is None:
        # all processes on this host, or one on each
        local_world = world if address in _LOOPBACK else 1
    if not address and local_world < world:
        raise ValueError(
            f"{names.launcher} started {world} processes, {local_world} of them on this host: set"
            " MASTER_ADDR to the host of rank 0, and MASTER_PORT to a port that is free there"
        )
    if local_rank is None:
        local_rank = rank if local_world == world else 0
    return Place(
        names.launcher,
        rank,
        world,
        local_rank,
        local_world,
        address or "127.0.0.1",
        _number(variables, "MASTER_PORT")
        or _port("".join(variables.get(name, "") for name in names.job)),
    )


def _number(variables: Mapping[str, str], name: str) -> int | None:
    """The number that a variable begins with (SLURM writes "2(x3)" for 2 on each of 3 hosts)."""
    begins = re.match(r"\d+", variables.get(name, ""))
    return None if begins is None else int(begins[0])


def _port(job: str) -> int:
    """A port that all processes of a job choose, and other jobs of the host hardly ever."""
    numbers = re.findall(r"\d+", job)
    return _PORTS[int("".join(numbers)) % len(_PORTS)] if numbers else _PORT


def first_host(hosts: str) -> str:
    """The first host of SLURM's list: "gpu03" of "gpu[03-06,11],login1"."""
    name = re.match(r"([^,\[]*)(?:\[(\d+)[^\]]*\]([^,\[]*))?", hosts)
    return "" if name is None else "".join(text or "" for text in name.groups())
