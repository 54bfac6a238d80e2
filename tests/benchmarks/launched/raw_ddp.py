"""An update in a plain loop under DDP: `python -m tests.benchmarks.launched.raw_ddp RANK WORLD STORE STEPS`.

Rank 0 prints the seconds of an update; then of one that also sums a few numbers over the ranks, as a job does that can
be stopped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.benchmarks.step_overhead import cnn, data

NUMBERS = 8


def loop(steps: int, batch_size: int, agreed: bool) -> float:
    """Seconds for one update."""
    model = DistributedDataParallel(cnn(), gradient_as_bucket_view=True)
    dataset = TensorDataset(*data())
    sampler: DistributedSampler[Any] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm, done, began, epoch = steps // 10, 0, 0.0, 0
    while True:
        sampler.set_epoch(epoch)
        for x, y in loader:
            if agreed:
                dist.all_reduce(torch.zeros(NUMBERS, dtype=torch.float64))
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == warm:
                began = time.perf_counter()
            if done == steps:
                return (time.perf_counter() - began) / (steps - warm)
        epoch += 1


def measured(world: int, steps: int, batch_size: int) -> tuple[float, float]:
    """Seconds for one update of the plain loop, and of the one that agrees; in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(rank), str(world), str(Path(folder, "store")), str(steps), str(batch_size)],
                stdout=subprocess.PIPE, text=True, env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            )
            for rank in range(world)
        ]  # fmt: skip
        said = [rank.communicate(timeout=300)[0] for rank in ranks]
    plain, agreed = map(float, said[0].split())
    return plain, agreed


def main() -> None:
    rank, world, store, steps, batch_size = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, int(world)), rank=int(rank), world_size=int(world)
    )
    found = [loop(int(steps), int(batch_size), agreed) for agreed in (False, True)]
    if dist.get_rank() == 0:
        print(*found, flush=True)
    dist.barrier()
    os._exit(0)  # gloo's threads may abort a process that takes itself apart


if __name__ == "__main__":
    main()
