"""Whether a profile measures the speed of a fit, and what it costs: `python -m tests.benchmarks.profile_speed [--rounds 5]`.

Updates a second of `bench.profile()` relative to those of a fit of the same settings, in interleaved rounds, and the
seconds of a profile from the call to the result.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb


def problems() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]]:
    y = torch.randint(0, 10, (1280,))
    mlp = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))  # fmt: skip
    conv = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18432, 10))  # fmt: skip
    return {
        "MLP": (mlp, (torch.randn(1280, 64), y)),
        "convolutions": (conv, (torch.randn(1280, 1, 28, 28), y)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for name, (model, data) in problems().items():
        ratios, seconds = [], []
        with tempfile.TemporaryDirectory() as root:
            bench = wb.Workbench(
                model, train=data, loss=F.cross_entropy, root=Path(root), accelerator="cpu",
                batch_size=64, enable_progress_bar=False,
            )  # fmt: skip
            with bench:
                for _ in range(rounds):
                    run = bench.fit(max_epochs=5).result()
                    began = time.perf_counter()
                    profile = bench.profile().result()
                    seconds.append(time.perf_counter() - began)
                    # validations and checkpoints apart, which a profile leaves out
                    parts = run.time_spent
                    training = sum(parts.values()) - parts.get("checkpoints", 0.0)
                    ratios.append(profile.updates_per_second * training / run.step)
        print(
            f"{name}: {statistics.median(ratios):.2f} of the speed of a fit"
            f" ({min(ratios):.2f} to {max(ratios):.2f}); a profile takes"
            f" {statistics.median(seconds):.1f} s"
        )


if __name__ == "__main__":
    main()
