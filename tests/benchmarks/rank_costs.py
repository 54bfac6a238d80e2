"""What several ranks cost, beside other launchers: `python -m tests.benchmarks.rank_costs [--gib 1] [memory start update alone beside]`.

memory: of a job's processes at its last update, relative to the data; what the same job takes with next to no data is
taken off. "added": by all processes beyond the kernel's own copy; "at most": the same at the worst moment.
start: seconds to the end of the first update: of a new kernel's first job, from its first import on ("imports on") and from
the making of the bench or the trainer ("bench on"); from the call where the bench is there, for the first time and later
ones. update: of a small CNN, beside a plain loop under DDP.
alone: one device, in the kernel or in a pool of one rank. Each case has a process of its own. All that is said of other
launchers is measured here.
beside: two fits of a small CNN side by side (WORKBENCH_CPU_JOBS=2) and one after the other, one torch thread each: the time
of both, and from the call to the first update of the one in a worker.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

import torch
import torch.nn.functional as F

import workbench as wb
from tests.benchmarks.launched import memory, raw_ddp, start
from tests.benchmarks.launched.launchers import PEERS
from tests.benchmarks.launched.memory import Case
from tests.benchmarks.step_overhead import cnn, data, ours

PARTS = ("memory", "start", "update", "alone", "beside")
OURS = "workbench pool"
PLACES = ((2, 0), (4, 0), (2, 2), (4, 2))
"""Ranks, and loader workers of each."""


def in_memory(gib: float, items: int, peers_gib: float) -> None:
    titles = {
        "tensor": f"a tensor of {gib:g} GiB",
        "array": f"a numpy array of {gib:g} GiB in a Dataset",
        "list": f"a list of {items} dicts",
    }
    sizes, peers = (
        {"tensor": gib, "array": gib, "list": items},
        {"tensor": peers_gib, "array": peers_gib, "list": items // 4},
    )
    print(memory.HEAD)
    for kind, title in titles.items():
        print(f"{title}; {peers[kind]:g} for the others")
        for ranks, workers in PLACES:
            print("  " + memory.row(Case(OURS, kind, sizes[kind], ranks, workers)), flush=True)
        # the notebook's tensors are in the segment by then
        print("  " + memory.row(Case(OURS, kind, sizes[kind], jobs=2)), flush=True)
        for launcher in PEERS:
            print("  " + memory.row(Case(launcher, kind, peers[kind])), flush=True)


def to_first_update() -> None:
    print("  " + start.HEAD)
    for launcher, ranks in (
        (OURS, 2),
        (OURS, 4),
        *((peer, 2) for peer in PEERS),
        (OURS, 1),
        ("workbench thread", 1),
    ):
        print("  " + start.row(launcher, ranks), flush=True)


def an_update(rounds: int, steps: int) -> None:
    """Interleaved, the median of the rounds' ratios."""
    rows = []
    with tempfile.TemporaryDirectory() as root:
        for _ in range(rounds):
            plain, agreed = raw_ddp.measured(2, steps, 64)
            rows.append((plain, agreed, ours(cnn(), 64, steps, root, strategy="pool", devices=2)))
    plain = median(row[0] for row in rows) * 1e6
    print(
        f"CNN on 2 ranks: plain DDP {plain:.0f} us an update; with a few numbers summed {median(a / p for p, a, _ in rows):.3f}x;"
    )
    print(
        f"  workbench {median(o / p for p, _, o in rows):.3f}x, of the loop that sums numbers {median(o / a for _, a, o in rows):.3f}x"
    )


def side_by_side(rounds: int, steps: int) -> None:
    """Interleaved, the median of the rounds' ratios; the first one starts the worker."""
    os.environ["WORKBENCH_CPU_JOBS"] = "2"
    torch.set_num_threads(1)
    ratios, starts = [], []
    with tempfile.TemporaryDirectory() as root:
        first, second = (
            wb.Workbench(
                cnn(),
                train=data(),
                loss=F.cross_entropy,
                root=root,
                accelerator="cpu",
                enable_progress_bar=False,
            )
            for _ in range(2)
        )
        for _ in range(rounds):
            seconds = []
            for beside in (False, True):
                began = time.perf_counter()
                jobs = [first.fit(max_steps=steps)]
                if not beside:
                    jobs[0].result()
                asked = time.perf_counter()
                jobs.append(second.fit(max_steps=steps))
                while not jobs[1].updates:
                    time.sleep(1e-3)
                started = time.perf_counter() - asked
                for job in jobs:
                    job.result()
                seconds.append(time.perf_counter() - began)
            starts.append(started)
            ratios.append(seconds[1] / seconds[0])
    print(
        f"two fits of {steps} updates, side by side: {median(ratios[1:]):.3f}x of the time of one after the other"
    )
    print(f"  the first updates of the second: {starts[0]:.2f} s, later {median(starts[1:]):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="part", help=", ".join(PARTS))
    parser.add_argument("--gib", type=float, default=1.0, help="of the tensor and the array")
    parser.add_argument("--items", type=int, default=1_000_000, help="of the list")
    parser.add_argument(
        "--peers-gib", type=float, default=0.25, help="the same for the other launchers"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(unknown)}: {', '.join(PARTS)}")
    if "memory" in given.parts:
        in_memory(given.gib, given.items, given.peers_gib)
    if "start" in given.parts:
        to_first_update()
    if "update" in given.parts:
        an_update(given.rounds, given.steps)
    if "beside" in given.parts:
        side_by_side(given.rounds, given.steps)
    if "alone" in given.parts:
        subprocess.run([sys.executable, "-m", "tests.benchmarks.launched.alone"], check=True)


if __name__ == "__main__":
    main()
