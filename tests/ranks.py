"""Some processes of this machine as the ranks of one job, for tests of the engine: children of the fork server."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from workbench.launch.child import Outcome, run_in_child


def on_ranks(world: int, function: Callable[..., Any], *args: Any, memory_limit: int | None = None) -> list[Any]:
    """What `function(*args)` returns on each of `world` ranks; the first error is raised."""
    outcomes: list[Outcome | None] = [None] * world

    def call(rank: int, store: str) -> None:
        given = (rank, world, store, function, args)
        outcomes[rank] = run_in_child(_as_rank, *given, threads=1, memory_limit=memory_limit)

    with tempfile.TemporaryDirectory() as folder:
        threads = [threading.Thread(target=call, args=(rank, str(Path(folder) / "store"))) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = [outcome for outcome in outcomes if outcome is not None]
    for outcome in sorted(found, key=lambda o: "closed by peer" in str(o.error)):
        if outcome.kind != "result":
            outcome.get()
    return [outcome.get() for outcome in found]


def _as_rank(rank: int, world: int, store: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world),
        "WORKBENCH_RANK": str(rank), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world)
    try:
        return function(*args)
    finally:
        dist.destroy_process_group()
