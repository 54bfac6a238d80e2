"""Some processes of this machine as the ranks of one job, for tests of the engine: children of the fork server."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from workbench.launch.pool.supervisor import is_echo
from workbench.launch.process.run_in_child import Outcome, run_in_child


def on_ranks(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What `function(*args)` returns on each of `world` ranks; the first error is raised."""
    outcomes: list[Outcome] = [Outcome("stopped")] * world

    def call(rank: int, store: str) -> None:
        given = (rank, world, store, function, args)
        try:
            outcomes[rank] = run_in_child(_as_rank, *given, threads=1)
        except Exception as error:  # no process could be had, say
            outcomes[rank] = Outcome("error", error=error)

    with tempfile.TemporaryDirectory() as folder:
        threads = [
            threading.Thread(target=call, args=(rank, str(Path(folder) / "store")))
            for rank in range(world)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for outcome in sorted(outcomes, key=lambda o: is_echo(o.error)):
        if outcome.kind != "result":
            outcome.get()
    return [outcome.get() for outcome in outcomes]


def _as_rank(
    rank: int, world: int, store: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
        "WORKBENCH_RANK": str(rank), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    try:
        return function(*args)
    finally:
        dist.destroy_process_group()
