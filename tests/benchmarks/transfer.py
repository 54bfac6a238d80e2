"""Measures whether the best learning rate transfers between widths under `wb.mup`, and how well the law of
`bench.scaling` predicts the best rate at twice the largest width that it was fitted to.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.transfer [mlp transformer cnn] [--plot transfer.png]
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import workbench as wb
from workbench.tuners.transfer.scaling import Scaling


def digits() -> tuple[Tensor, Tensor]:
    """The handwritten digits of scikit-learn, shuffled."""
    from sklearn.datasets import load_digits

    pictures, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(pictures, dtype=torch.float32) / 16
    return x[order], torch.tensor(labels)[order]


def noisy_digits() -> tuple[Tensor, Tensor]:
    """The digits, with a random label in one of four."""
    x, y = digits()
    generator = torch.Generator().manual_seed(1)
    wrong = torch.rand(len(y), generator=generator) < 0.25
    return x, torch.where(wrong, torch.randint(10, (len(y),), generator=generator), y)


def sequences() -> tuple[Tensor, Tensor]:
    """Each token is the sum of the tokens one and three places before, modulo 11, and one of ten is noise."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(11, (6000, 17), generator=generator)
    for place in range(3, 17):
        follows = torch.rand(6000, generator=generator) < 0.9
        sums = (tokens[:, place - 1] + tokens[:, place - 3]) % 11
        tokens[:, place] = torch.where(follows, sums, tokens[:, place])
    return tokens[:, :-1], tokens[:, 1:]


def mlp(width: int = 64) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)),
    )


def cnn(width: int = 16) -> nn.Module:
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, width, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(width, width, 3, 2, padding=1), nn.ReLU()),
        *(nn.Conv2d(width, width, 3, 2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(4 * width, 10)),
    )


class Transformer(nn.Module):
    """Two blocks with heads of 8 dimensions."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(11, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 11)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place.weight
        mask = nn.Transformer.generate_square_subsequent_mask(16)
        for block in self.blocks:
            h = block(h, mask, is_causal=True)
        return self.head(self.norm(h)).flatten(0, 1)


def token_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target.flatten())


TASKS: dict[str, tuple[Any, Any, Any, list[int], int]] = {
    "mlp": (mlp, digits, nn.CrossEntropyLoss(), [32, 64, 128, 256, 512], 200),
    "transformer": (Transformer, sequences, token_loss, [16, 32, 64, 128], 300),
    "cnn": (cnn, noisy_digits, nn.CrossEntropyLoss(), [8, 16, 32, 64], 120),
}
"""The factory, the data, the loss, the widths, and the updates of a training."""


def measured(name: str, kind: str, seeds: int, optimizer: str) -> Scaling:
    """The best rate of a task at each width. kind: "standard" or "muP"."""
    build, data, loss, widths, length = TASKS[name]
    x, y = data()
    cut = len(x) * 3 // 4
    with tempfile.TemporaryDirectory() as root:
        bench = wb.Workbench(
            build if kind == "standard" else wb.mup(build, base_width=widths[0]),
            train=(x[:cut], y[:cut]),
            val=(x[cut:], y[cut:]),
            loss=loss,
            optimizer=optimizer,
            lr=4e-3 if optimizer == "adamw" else 0.1,
            max_epochs=1,
            lr_schedule="cosine",
            accelerator="cpu",
            root=Path(root),
        )
        return bench.scaling(widths=widths, lengths=[length], seeds=seeds)


def report(name: str, kind: str, result: Scaling, seconds: float) -> str:
    """A row of the table: the best rates, how far apart they are, and the law's error at the largest width."""
    sizes = sorted(result.sizes, key=lambda size: size.size["width"])
    steps = [math.log2(size.lr) for size in sizes]
    grid = [math.log2(size.best_of_grid) for size in sizes]
    rates = ", ".join(f"{size.size['width']}: {size.lr:.2g}" for size in sizes)
    law = Scaling(tuple(sizes[:-1])).predict(width=sizes[-1].size["width"])
    error = law.lr / sizes[-1].lr - 1
    inside = law.low <= sizes[-1].lr <= law.high
    return (
        f"{name:12} {kind:9} {rates} | apart {max(steps) - min(steps):.1f} steps"
        f" (grid {max(grid) - min(grid):.0f}) | exponent {result.exponents['width'][0]:.2f}"
        f" | law {law.lr:.2g} ({law.low:.2g} to {law.high:.2g}), error {error:+.0%}"
        f"{'' if inside else ', outside'} | {seconds:.0f} s"
    )


def draw(results: dict[tuple[str, str], Scaling], path: str) -> None:
    """The losses by rate: a row for each parametrisation, a column for each task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for name, _ in results))
    figure, axes = plt.subplots(2, len(names), figsize=(3.6 * len(names), 5.6), squeeze=False)
    for (name, kind), result in results.items():
        ax = axes[0 if kind == "standard" else 1][names.index(name)]
        sizes = sorted(result.sizes, key=lambda size: size.size["width"])
        for number, size in enumerate(sizes):
            colour = plt.cm.viridis(0.9 * number / len(sizes))
            means = {lr: sum(values) / len(values) for lr, values in size.losses.items()}
            ax.plot(
                list(means),
                list(means.values()),
                "o-",
                ms=3,
                color=colour,
                label=str(size.size["width"]),
            )
            ax.axvline(size.lr, color=colour, lw=0.8, ls=":")
        least = min(min(map(min, size.losses.values())) for size in sizes)
        ax.set(xscale="log", title=f"{name}, {kind}", xlabel="lr", ylabel="held-out loss")
        ax.set_yscale("log")
        ax.set_ylim(0.8 * least, min(3.0, ax.get_ylim()[1]))
        ax.xaxis.set_minor_formatter("")
        ax.yaxis.set_minor_formatter("")
        ax.legend(title="width", fontsize=7, title_fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--plot")
    parser.add_argument("--kinds", nargs="*", default=["standard", "muP"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--optimizer", default="adamw")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    results = {}
    for name in options.tasks:
        for kind in options.kinds:
            begun = time.perf_counter()
            result = measured(name, kind, options.seeds, options.optimizer)
            results[name, kind] = result
            print(report(name, kind, result, time.perf_counter() - begun), flush=True)
            if options.plot:
                draw(results, options.plot)


if __name__ == "__main__":
    main()
