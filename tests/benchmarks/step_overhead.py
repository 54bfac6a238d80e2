"""What an update costs here against the same update in a raw PyTorch loop: `python -m tests.benchmarks.step_overhead`.

One thread, interleaved rounds, the median of the rounds' ratios. The raw loop records nothing; the workbench
records loss and per-layer gradient norms, writes its run folder and listens for commands. For the case "tiny" a raw loop
that reads the loss and computes the same norms runs too: what recording alone costs. Steady state: the
first flush of a run is left out, and of the raw loop as many updates.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from workbench.events import StepsDone

PEERS = {
    "MLP": "accelerate 1.60, Lightning 2.2-4.3, fastai 2.9, ignite 1.19",
    "CNN": "1.14, 1.2-1.5, 1.3, 1.05",
    "tiny": "none measured",
}


def data() -> tuple[Tensor, Tensor]:
    pictures, labels = load_digits(return_X_y=True)
    return torch.tensor(pictures, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(
        labels
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def shuffled(batch_size: int) -> DataLoader[Any]:
    return DataLoader(
        TensorDataset(*data()), batch_size, shuffle=True, generator=torch.Generator().manual_seed(0)
    )


def ready(batch_size: int) -> DataLoader[Any]:
    """Batches that are made already: next to nothing but the update itself costs time."""
    return DataLoader(list(shuffled(batch_size)), batch_size=None)


def raw(
    model: nn.Module,
    loader: DataLoader[Any],
    steps: int,
    device: str,
    optimizer: Any = torch.optim.AdamW,
    *,
    measures: bool = False,
) -> float:
    """Seconds for one update of a plain loop. measures: it reads the loss, and the norms of all gradients and of each."""
    model.to(device)
    parameters = list(model.parameters())
    optimizer = optimizer(model.parameters(), lr=1e-3)
    warm, done, began = steps // 10, 0, 0.0
    while True:
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            if measures:
                norms = torch.stack(
                    torch._foreach_norm([p.grad for p in parameters if p.grad is not None])
                )
                _ = loss.item(), torch.linalg.vector_norm(norms).item()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done not in (warm, steps):
                continue
            if device == "cuda":
                torch.cuda.synchronize()
            if done == warm:
                began = time.perf_counter()
            else:
                return (time.perf_counter() - began) / (steps - warm)


def ours(
    model: nn.Module, batch_size: int, steps: int, root: str, device: str = "cpu", **where: Any
) -> float:
    """Seconds for one update of a fit."""
    bench = wb.Workbench(
        model,
        train=data(),
        loss=F.cross_entropy,
        root=root,
        batch_size=batch_size,
        accelerator=device,
    )
    return of_bench(bench, steps, **where)


def of_bench(bench: wb.Workbench, steps: int, **where: Any) -> float:
    """Seconds for one update of a fit of this bench."""
    job = bench.fit(max_steps=steps, **where)
    job._ended.wait()
    return an_update(job, steps)


def an_update(job: Any, steps: int) -> float:
    """Seconds for one update of a fit that is over, without its beginning."""
    job.result()
    flushes = [event for event in job.events if isinstance(event, StepsDone)]
    first = next(f for f in flushes if f.step + f.rows >= steps // 10)
    last = flushes[-1]
    updates = (last.step + last.rows) - (first.step + first.rows)
    return (last.seconds - first.seconds) / updates


def pair(name: str, steps: int, root: str, device: str) -> tuple[float, float]:
    """Seconds for one update of a case: of the plain loop, and of a fit."""
    if name == "tiny":
        sgd, loss = torch.optim.SGD, F.cross_entropy
        bench = wb.Workbench(
            mlp(), train=ready(32), loss=loss, optimizer=sgd, root=root, accelerator=device
        )
        return raw(mlp(), ready(32), steps, device, sgd), of_bench(bench, steps)
    make, batch_size = (cnn, 64) if name == "CNN" else (mlp, 32)
    return raw(make(), shuffled(batch_size), steps, device), ours(
        make(), batch_size, steps, root, device
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument(
        "--case", choices=tuple(PEERS), help="this one alone; tiny: ready batches and SGD"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        for name in PEERS if options.case is None else (options.case,):
            pairs = [pair(name, options.steps, root, options.device) for _ in range(options.rounds)]
            ratio = statistics.median(b / a for a, b in pairs)
            usual = statistics.median(a for a, _ in pairs) * 1e6
            if name == "tiny":
                both = [
                    tuple(
                        raw(
                            mlp(),
                            ready(32),
                            options.steps,
                            options.device,
                            torch.optim.SGD,
                            measures=m,
                        )
                        for m in (False, True)
                    )
                    for _ in pairs
                ]
                print(
                    f"{name}: a raw loop that measures the same {statistics.median(b / a for a, b in both):.3f}x"
                )
            print(
                f"{name}: raw {usual:.0f} us an update, workbench {ratio:.3f}x   (peers, on CPU: {PEERS[name]})"
            )


if __name__ == "__main__":
    main()
