"""What a rank with sharded weights holds: `python -m tests.benchmarks.fsdp_memory [--layers 12] [--ranks 2]`.

A fit under FSDP on CPU processes, with Adam. Each rank samples its private memory (RssAnon: pages that it shares with no
other process) from the moment when it unpacks the job, and writes the peaks down: until the first update, during the
updates before the first checkpoint, from there on, and until the first update of a fit that continues from it. A fit of
a tiny model shows what the libraries take.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import workbench as wb

EVERY = 4
"""Updates between two checkpoints."""
FOLDER = "WORKBENCH_BENCHMARK_FOLDER"


def private() -> int:
    """Bytes of this process that no other process shares."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise OSError("the system does not say it")


class Sampler(threading.Thread):
    """Samples the private memory of a rank.

    It is a thread, and no attribute of the loss, since a fit that continues restores those.
    """

    def __init__(self) -> None:
        super().__init__(name="sampler", daemon=True)
        self.calls, self.phase = 0, "start"
        self.peaks = dict[str, int]()

    def run(self) -> None:
        while True:
            self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), private())
            time.sleep(0.001)

    def step(self) -> None:
        """Count an update, and write the peaks down."""
        self.calls += 1
        self.phase = "updates" if self.calls <= EVERY else "checkpoint"
        path = Path(os.environ[FOLDER], f"{os.environ['RANK']}.json")
        path.write_text(json.dumps(self.peaks))


class Loss:
    """A loss whose unpickling starts the sampler."""

    def __reduce__(self) -> Any:
        return _with_sampler, ()

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for thread in threading.enumerate():
            if isinstance(thread, Sampler):
                thread.step()
        return (output - target).square().mean()


def _with_sampler() -> Loss:
    Sampler().start()
    return Loss()


def network(layers: int, wide: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(wide, wide, bias=False) for _ in range(layers)))


class Fit(NamedTuple):
    """What one fit has shown."""

    size: int
    """Bytes of the model."""
    peaks: list[dict[str, int]]
    """Of each rank, the private bytes by phase."""
    resumed: list[dict[str, int]]
    """The same of a fit that continues from the last checkpoint."""
    waited: float
    """Seconds that training waited for checkpoints."""
    files: dict[str, int]


def measured(layers: int, wide: int, ranks: int, steps: int) -> Fit:
    """A fit of a model of so many square layers."""
    x = torch.randn(16, wide)
    model = network(layers, wide)
    launch = {
        "use_fsdp": True, "fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": "Linear",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as root:
        os.environ[FOLDER] = root
        bench = wb.Workbench(
            model, train=(x, x), loss=Loss(), optimizer=torch.optim.Adam, root=root, dry_run=False
        )
        options: dict[str, Any] = {
            "strategy": "launch", "devices": ranks, "accelerator": "cpu", "launch": launch, "batch_size": 4,
            "checkpoint_every": EVERY, "keep_start": 0, "track_grad_norm": None,
        }  # fmt: skip
        run = bench.fit(max_steps=steps, **options).result()
        peaks = _peaks(root)
        bench.fit(max_steps=steps + 2, start=run.id, **options).result()
        resumed = _peaks(root)
        files = {
            str(file.relative_to(run.folder)): file.stat().st_size
            for file in sorted(run.folder.rglob("*.*")) if file.suffix in (".safetensors", ".pt")
        }  # fmt: skip
    size = sum(p.nbytes for p in model.parameters())
    return Fit(size, peaks, resumed, run.time_spent["checkpoints"], files)


def _peaks(root: str) -> list[dict[str, int]]:
    return [json.loads(file.read_text()) for file in sorted(Path(root).glob("*.json"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--wide", type=int, default=2048, help="12 layers of it are 201 MB")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3 * EVERY)
    options = parser.parse_args()
    small = measured(options.layers, 8, options.ranks, options.steps)
    large = measured(options.layers, options.wide, options.ranks, options.steps)
    print(f"model {large.size / 1e6:.0f} MB, {options.ranks} ranks, torch {torch.__version__}")
    for rank in range(options.ranks):
        phases = {**large.peaks[rank], "continues": large.resumed[rank]["start"]}
        without = {**small.peaks[rank], "continues": small.resumed[rank]["start"]}
        for phase, peak in phases.items():
            more = peak - without[phase]
            print(
                f"rank {rank}, {phase:10} {more / 1e6:6.0f} MB = {more / large.size:.2f} of the model"
                f" beyond the {without[phase] / 1e6:.0f} MB of a fit of a tiny one"
            )
    count = options.steps // EVERY
    print(f"training waited {large.waited / count:.2f} s for each of {count} checkpoints")
    for name, size in large.files.items():
        print(f"  {name}: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
