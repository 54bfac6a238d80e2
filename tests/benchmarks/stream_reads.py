"""What a rank reads of a stream, whole and by rank: `python -m tests.benchmarks.stream_reads [--samples 2048] [--rounds 3]`.

For 1, 2 and 4 ranks: the samples that a rank reads in an epoch, relative to all of them, and the seconds of two epochs where
reading is what takes long (each sample is 1 MB that is decompressed), relative to one process. The cases of a round follow
each other, and the medians of the rounds are printed. The ranks need cores of their own for the seconds to fall.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import workbench as wb

PACKED = zlib.compress(bytes(1_000_000))
CASES = (("whole", 1), ("whole", 2), ("shard", 2), ("whole", 4), ("shard", 4))


class Packed(IterableDataset[Any]):
    """Samples that take long to read; `by_rank`: those of this rank alone. It writes down how many a pass has read."""

    def __init__(self, samples: int, folder: Path, by_rank: bool) -> None:
        self.samples, self.folder, self.by_rank = samples, folder, by_rank

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rank, world = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
        first, step = (int(rank), world) if self.by_rank else (0, 1)
        read = 0
        for number in range(first, self.samples, step):
            zlib.decompress(PACKED)
            read += 1
            yield torch.full((4,), number / self.samples), torch.tensor(number % 2)
        (self.folder / rank).write_text(str(read))


def epoch(streams: str, ranks: int, samples: int, folder: Path) -> tuple[int, float]:
    """The samples that the rank with the most has read in the last epoch, and the seconds of both epochs."""
    reads = folder / f"{streams}-{ranks}"
    reads.mkdir(exist_ok=True)
    bench = wb.Workbench(
        nn.Linear(4, 2), train=Packed(samples, reads, streams == "shard"), loss=F.cross_entropy, batch_size=16,
        max_epochs=2, lr=0.1, accelerator="cpu", devices=ranks, streams=streams, root=folder, dry_run=False,
        enable_progress_bar=False, keep_start=0,
    )  # fmt: skip
    run = bench.fit().result()
    bench.close()
    return max(int(path.read_text()) for path in reads.iterdir()), run.seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rounds = [
            [epoch(*case, options.samples, Path(folder)) for case in CASES]
            for _ in range(options.rounds)
        ]
    alone = median(measured[0][1] for measured in rounds)
    print(f"{'streams':>8} {'ranks':>6} {'read by a rank':>15} {'seconds':>8}")
    for number, (streams, ranks) in enumerate(CASES):
        reads, _ = rounds[0][number]
        seconds = median(measured[number][1] for measured in rounds)
        print(f"{streams:>8} {ranks:>6} {reads / options.samples:>15.3f} {seconds / alone:>8.2f}")


if __name__ == "__main__":
    main()
