"""How many planted spikes are found, how many false alarms there are, and what looking costs.

    python -m tests.benchmarks.spikes --updates 100000
    python -m tests.benchmarks.spikes --parts found cost

`false`: clean trainings by plain loops, whose losses and norms the detector gets. `found`: the same
tasks, each trained for a while, then one spike: a batch with its inputs times -10 (tokens at
random), one with wrong labels, or ten updates at a hundred times the learning rate. `cost`: fits of
a bench with each `on_spike`, in turns.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench as wb
from workbench.techniques.spikes import SpikeDetector

WITHIN = 20
"""A spike counts as found up to so many updates later."""
BEFORE = 1500
"""The updates before a planted spike."""
KINDS = ("inputs", "labels", "rate")


@dataclass
class Case:
    """A training: its model, data, loss, batch size, and optimizer."""

    model: nn.Module
    x: Tensor
    y: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    batch_size: int
    optimizer: torch.optim.Optimizer
    curriculum: bool = False
    """Whether the samples are sorted by how hard they are, and the hard ones come later."""


class SmallGPT(nn.Module):
    """One transformer layer over 16 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(27, 16), nn.Parameter(torch.zeros(16, 16))
        self.layer = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(16, 27)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(16))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(self.tokens(x) + self.places, src_mask=self.mask, is_causal=True)
        return self.head(hidden).transpose(1, 2)


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(72, 10),
    )  # fmt: skip


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def characters(g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pieces of a Markov chain of 27 characters."""
    chances = torch.softmax(3 * torch.randn(27, 27, generator=g), 1).cumsum(1)
    draws = torch.rand(20_000, generator=g)
    text = [0]
    for draw in draws:
        text.append(min(26, int(torch.searchsorted(chances[text[-1]], draw))))
    pieces = torch.tensor(text).unfold(0, 17, 1)
    return pieces[:, :-1], pieces[:, 1:]


def case(name: str, seed: int) -> Case:
    """Make a training by its name."""
    torch.manual_seed(seed)
    g = torch.Generator().manual_seed(seed)
    size = 1 if name.endswith("batch 1") else 32
    if name.startswith("digits"):
        x, y = digits()
        if "wrong labels" in name:
            wrong = torch.rand(len(y), generator=g) < 0.02
            y[wrong] = torch.randint(0, 10, (int(wrong.sum()),), generator=g)
        model = cnn() if "CNN" in name else mlp(64, 10)
        made: torch.optim.Optimizer = torch.optim.AdamW(
            model.parameters(), 1e-3 if size > 1 else 3e-4
        )
        if "CNN" in name:
            made = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
        return Case(model, x, y, F.cross_entropy, size, made)
    if name == "small GPT":
        x, y = characters(g)
        model = SmallGPT()
        return Case(model, x, y, F.cross_entropy, 8, torch.optim.AdamW(model.parameters(), 1e-3))
    x, model = torch.randn(5000, 8, generator=g), mlp(8, 1)
    adam = torch.optim.AdamW(model.parameters(), 1e-3)
    signal = x @ torch.randn(8, 1, generator=g)
    if name.startswith("counts"):
        return Case(
            model,
            x,
            torch.poisson((0.4 * signal + 1).exp(), generator=g),
            F.poisson_nll_loss,
            size,
            adam,
        )
    if "heavy" in name:
        torch.manual_seed(seed)
        return Case(
            model,
            x,
            signal + torch.distributions.StudentT(2.2).sample((5000, 1)),
            F.mse_loss,
            size,
            adam,
        )
    noise = torch.randn(5000, 1, generator=g)
    if name == "curriculum":
        noise = noise * torch.linspace(0.1, 2, 5000)[:, None]
        return Case(model, x, signal + noise, F.mse_loss, size, adam, curriculum=True)
    return Case(model, x, signal + 0.1 * noise, F.mse_loss, size, adam)


CLEAN = (
    "digits, MLP", "digits, MLP, batch 1", "digits, MLP, 2% wrong labels, batch 1", "digits, CNN",
    "counts", "counts, batch 1", "targets", "targets, batch 1", "targets, heavy tails", "curriculum",
    "small GPT",
)  # fmt: skip
PLANTED = ("digits, MLP", "digits, CNN", "counts", "targets", "targets, batch 1", "small GPT")


def batches(of: Case, updates: int) -> Iterator[Tensor]:
    """Indices of batches, pass after pass; the last batch of a pass is smaller. A curriculum has
    ever more of its samples.
    """
    g = torch.Generator().manual_seed(0)
    done = 0
    while done < updates:
        count = len(of.x)
        if of.curriculum:
            count = max(500, int(count * min(1.0, 2 * done / updates)))
        for indices in torch.randperm(count, generator=g).split(of.batch_size):
            yield indices
            done += 1


def spoiled(kind: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A bad batch."""
    if kind == "inputs":
        return (-10 * x if x.is_floating_point() else torch.randint_like(x, 27)), y
    if not y.is_floating_point():
        return x, (y + 5) % (27 if y.ndim > 1 else 10)
    return x, (20 + 10 * y if bool((y >= 0).all()) else -5 * y)


def train(
    of: Case, updates: int, planted: str = "", at: int = 0
) -> Iterator[tuple[float, float, int]]:
    """Yield loss, gradient norm and samples of each update, with a warm-up of 200 updates."""
    rate = of.optimizer.param_groups[0]["lr"]
    for step, indices in enumerate(batches(of, updates)):
        if step == updates:
            return
        if step == at and planted in ("inputs", "labels"):
            indices = torch.arange(of.batch_size)
        x, y = of.x[indices], of.y[indices]
        if step == at and planted in ("inputs", "labels"):
            x, y = spoiled(planted, x, y)
        jumps = planted == "rate" and at <= step < at + 10
        of.optimizer.param_groups[0]["lr"] = (
            rate * min(1.0, (step + 1) / 200) * (100 if jumps else 1)
        )
        of.optimizer.zero_grad()
        loss = of.loss(of.model(x), y)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in of.model.parameters()])
        of.optimizer.step()
        yield loss.item(), norm.item(), len(indices)


def false_alarms(updates: int, seed: int, names: tuple[str, ...]) -> None:
    total = alarms = 0
    for name in names:
        began = time.perf_counter()
        detector = SpikeDetector()
        steps = [
            n
            for n, update in enumerate(train(case(name, seed), updates))
            if detector.is_spike(*update)
        ]
        total, alarms = total + updates, alarms + len(steps)
        print(f"{name:40} {updates:8,} updates  {len(steps):3} alarms {steps[:5]}"
              f"  {time.perf_counter() - began:.0f} s", flush=True)  # fmt: skip
    print(
        f"{'all':40} {total:8,} updates  {alarms:3} alarms: {1e6 * alarms / total:.1f} in a million"
    )


def found(seeds: int) -> None:
    for name in PLANTED:
        cells = []
        for kind in KINDS:
            delays, ratios = [], []
            for seed in range(seeds):
                detector, losses = SpikeDetector(), list[float]()
                delay, expected = math.inf, math.nan
                run = train(case(name, seed), BEFORE + WITHIN, kind, BEFORE)
                for step, (loss, norm, samples) in enumerate(run):
                    if step == BEFORE:
                        expected = detector.expected[0]
                    spikes = detector.is_spike(loss, norm, samples)
                    if step >= BEFORE:
                        losses.append(loss)
                        if spikes and delay == math.inf:
                            delay = step - BEFORE
                delays.append(delay)
                ratios.append(max(losses) / expected if expected > 0 else math.nan)
            hits = [delay for delay in delays if delay < math.inf]
            after = f"{statistics.median(hits):g}" if hits else "-"
            cells.append(
                f"{kind}: {len(hits)} of {seeds}, after {after}, loss x {statistics.median(ratios):.3g}"
            )
        print(f"{name:20} {'; '.join(cells)}", flush=True)


def cost(rounds: int) -> None:
    """Milliseconds of CPU time for an update, by setting, in rounds of each."""
    x = torch.randn(4096, 8)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(4096, 1)
    for title, width in (("8-16-1", 16), ("8-512-512-1", 512)):
        times: dict[str | None, list[float]] = {}
        for _ in range(rounds):
            for action in (None, "report", "skip", "rollback"):
                torch.manual_seed(0)
                layers = [nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1)]
                if width > 16:
                    layers[2:2] = [nn.Linear(width, width), nn.ReLU()]
                with tempfile.TemporaryDirectory() as root:
                    bench = wb.Workbench(
                        nn.Sequential(*layers), train=(x, y), loss=F.mse_loss, root=root,
                        batch_size=32, max_steps=2000, on_spike=action, enable_progress_bar=False,
                    )  # fmt: skip
                    began = time.process_time()
                    bench.fit().result()
                    times.setdefault(action, []).append(time.process_time() - began)
        without = times[None]
        for action, seconds in times.items():
            ratios = [mine / its for mine, its in zip(seconds, without, strict=True)]
            print(f"{title:12} on_spike={action!s:9} {1e6 * min(seconds) / 2000:7.1f} us/update,"
                  f" ratio {statistics.median(ratios):.3f}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=["found", "cost", "false"])
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tasks", nargs="+", default=CLEAN)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if "found" in options.parts:
        found(options.seeds)
    if "cost" in options.parts:
        cost(options.rounds)
    if "false" in options.parts:
        false_alarms(options.updates, options.seed, tuple(options.tasks))


if __name__ == "__main__":
    main()
