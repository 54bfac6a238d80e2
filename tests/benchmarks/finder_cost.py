"""What a learning-rate sweep costs beside 100 raw updates: `python -m tests.benchmarks.finder_cost`.

Processor time of this process, one thread of torch, interleaved rounds, the median of the rounds' ratios: making the bench and
sweeping, the sweep alone, and with a race of 300 further updates beside 400 raw ones.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb

from .step_overhead import cnn, data, mlp, raw, shuffled

UPDATES, RACE, RAW = 100, 300, 300


def sweeps(make: Callable[[], nn.Module], batch_size: int, root: str) -> tuple[float, float, float]:
    """Seconds of the processor for the bench and a sweep, for a sweep alone, and for one with a race."""
    model, train = make(), data()
    began = time.process_time()
    bench = wb.Workbench(
        model, train=train, val=tuple(part[:360] for part in train), loss=F.cross_entropy, root=root, batch_size=batch_size, accelerator="cpu",
        enable_progress_bar=False,
    )  # fmt: skip
    made = time.process_time()
    found = bench.find_lr(num_training=UPDATES, early_stop_threshold=None).result()
    swept = time.process_time()
    share = len(found.lrs) / UPDATES  # a loss that is not finite ends a sweep
    bench.find_lr(
        num_training=UPDATES, early_stop_threshold=None, race=True, race_updates=RACE
    ).result()
    raced = time.process_time()
    bench.close()
    return made - began + (swept - made) / share, (swept - made) / share, raced - swept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for name, make, batch_size in (("MLP", mlp, 32), ("CNN", cnn, 64)):
        ratios = []
        with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
            sweeps(make, batch_size, root)  # imports, and what torch makes once
            for _ in range(rounds):
                model, loader, began = make(), shuffled(batch_size), time.process_time()
                raw(model, loader, RAW, "cpu")
                update = (time.process_time() - began) / RAW
                whole, sweep, raced = sweeps(make, batch_size, root)
                ratios.append(
                    (
                        whole / (UPDATES * update),
                        sweep / (UPDATES * update),
                        raced / ((UPDATES + RACE) * update),
                    )
                )
        whole, sweep, raced = (statistics.median(column) for column in zip(*ratios, strict=True))
        print(
            f"{name}: bench and sweep {whole:.2f}x, sweep {sweep:.2f}x of {UPDATES} raw updates; with a race {raced:.2f}x of {UPDATES + RACE}"
        )


if __name__ == "__main__":
    main()
