"""Tasks on which studies are compared: small fits by a plain loop that is halted at rungs, with a cache of their results.

Many fits that differ in numbers alone are trained at once (`torch.func.vmap`), with the same batches and the same random numbers,
so that a result does not depend on the others. A narrow model is a wide one with zeros, which stay zeros. A piece is trained from the
start up to its rung, which gives what a fit that was halted and continued gives.
"""

from __future__ import annotations

import functools
import json
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import workbench as wb

from .lr_regret import batches
from .lr_tasks import (
    Data,
    diabetes,
    digits,
    digits_themselves,
    friedman,
    nothing,
    ratings,
    share_of,
    unbalanced,
)

SHARES = (1 / 9, 1 / 3, 1.0)
"""The lengths at which fits are halted."""
COOLING = 0.1
"""The updates in which the rate falls to 0 at a halt, as a share of those so far."""
WIDTHS = [8, 16, 32, 64]
MOST = 300
"""The most fits that are trained at once."""
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """One task. `model` takes width and dropout; `optimizer` is "adamw" or "sgd" (with momentum)."""

    name: str
    model: Callable[[int, float], nn.Module]
    data: Callable[[], tuple[Data, Data]]
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: str = "adamw"
    schedule: str = "cosine"
    updates: int = 360
    batch_size: int = 32
    metric: Callable[[Tensor, Tensor], Tensor] | None = None
    """What is validated; None: the loss."""

    @property
    def present(self) -> dict[str, Any]:
        """The settings with which the study begins."""
        lr, decay = (1e-3, 1e-2) if self.optimizer == "adamw" else (1e-2, 1e-4)
        others = {"width": 32, "dropout": 0.0, "warmup": 0, "gradient_clip_val": None}
        return {"lr": lr, "weight_decay": decay, **others}

    @property
    def space(self) -> dict[str, Any]:
        """The ranges of all its dimensions, wide enough for somebody who knows nothing."""
        lr, decay = (
            ((1e-5, 1.0), (1e-4, 1.0)) if self.optimizer == "adamw" else ((1e-4, 10.0), (1e-6, 0.1))
        )
        return {
            "lr": lr,
            "weight_decay": decay,
            "width": WIDTHS,
            "dropout": (0.0, 0.5),
            "warmup": [0, 0.01, 0.05, 0.1],
            "gradient_clip_val": [None, 0.3, 1.0, 3.0],
        }


class Drop(nn.Module):
    """Dropout whose rate is a tensor, so that fits with several rates can be trained at once."""

    rate: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.register_buffer("rate", torch.tensor(rate))

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) >= self.rate) / (1 - self.rate) if self.training else x


class Norm(nn.Module):
    """Divides by the root of the mean square of so many numbers, whatever zeros follow them."""

    width: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.register_buffer("width", torch.tensor(float(width)))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x * ((x * x).sum(-1, keepdim=True) / self.width + 1e-5).rsqrt()


def mlp(inputs: int, outputs: int, hidden: int = 2) -> Callable[[int, float], nn.Module]:
    def build(width: int, dropout: float) -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU(), Drop(dropout)]
        for _ in range(hidden - 1):
            layers += [nn.Linear(width, width), nn.ReLU(), Drop(dropout)]
        return nn.Sequential(*layers, nn.Linear(width, outputs))

    return build


class Residual(nn.Module):
    """Two residual blocks."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                Norm(width), nn.Linear(width, width), nn.GELU(), Drop(dropout), nn.Linear(width, width)
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


class Factors(nn.Module):
    """One vector for each user and each thing."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.users, self.things = nn.Embedding(200, width // 4), nn.Embedding(300, width // 4)
        for embedding in (self.users, self.things):
            nn.init.normal_(embedding.weight, std=0.3)
        self.dropout = Drop(dropout)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.dropout(self.users(pairs[:, 0])) * self.things(pairs[:, 1])).sum(1)


def error(out: Tensor, y: Tensor) -> Tensor:
    """The share of wrong answers."""
    return (out.argmax(1) != y).float().mean()


PROBLEMS = [
    Problem("digits mlp adamw", mlp(64, 10), digits, F.cross_entropy),
    Problem("digits mlp sgd", mlp(64, 10), digits, F.cross_entropy, "sgd", "constant"),
    Problem("digits residual adamw", Residual, digits, F.cross_entropy),
    Problem("autoencoder adamw", lambda w, d: nn.Sequential(mlp(64, 8, 1)(w, d), mlp(8, 64, 1)(w, 0.0)), digits_themselves, F.mse_loss, "adamw", "constant", 360, 64),
    Problem("friedman mlp sgd", mlp(10, 1), friedman, F.mse_loss, "sgd", "cosine", 900, 64),
    Problem("diabetes mlp adamw", mlp(10, 1), diabetes, F.mse_loss, "adamw", "cosine", 360, 32),
    Problem("unbalanced mlp adamw", mlp(40, 5), unbalanced, F.cross_entropy, "adamw", "one_cycle", 900, 64),
    Problem("ratings factors sgd", Factors, ratings, F.mse_loss, "sgd", "constant", 540, 64),
    Problem("nothing mlp adamw", mlp(20, 4), nothing, F.cross_entropy, updates=270, metric=error),
]  # fmt: skip


@functools.cache
def floor(problem: Problem) -> float:
    """1% of the loss of the initial weights: lower losses count as this."""
    torch.manual_seed(0)
    (x, y), model = problem.data()[1], problem.model(32, 0.0).eval()
    with torch.no_grad():
        return 0.01 * float(problem.loss(model(x), y))


def first_weights(problem: Problem, width: int, seed: int) -> dict[str, Tensor]:
    """The first weights of a model of this width, with zeros up to the widest one."""
    torch.manual_seed(seed)
    model, widest = problem.model(width, 0.0), problem.model(WIDTHS[-1], 0.0)
    weights = {name: torch.zeros_like(weight) for name, weight in widest.named_parameters()}
    for name, weight in model.named_parameters():
        weights[name][tuple(slice(size) for size in weight.shape)] = weight.detach()
    return weights


class Stack:
    """Fits of one seed, with one update after another of all. A row of each tensor belongs to a fit."""

    def __init__(self, problem: Problem, fits: list[Values], seed: int) -> None:
        self.problem = problem
        self.model = problem.model(WIDTHS[-1], 0.0)
        widths = {int(values["width"]) for values in fits}
        first = {width: first_weights(problem, width, seed) for width in widths}
        shapes = {name: weight.shape for name, weight in self.model.named_parameters()}
        rows = {w: torch.cat([first[w][name].flatten() for name in shapes]) for w in widths}
        self.weights = torch.stack([rows[int(values["width"])] for values in fits])
        self.moments = [torch.zeros_like(self.weights) for _ in range(2)]
        self.buffers = {}
        for name, _ in self.model.named_buffers():
            setting = "dropout" if name.endswith("rate") else "width"
            self.buffers[name] = torch.tensor([float(values[setting]) for values in fits])

        def column(name: str, nothing: float) -> Tensor:
            numbers = [nothing if values[name] is None else values[name] for values in fits]
            return torch.tensor(numbers, dtype=torch.float32)[:, None]

        self.lr, self.decay = column("lr", 0.0), column("weight_decay", 0.0)
        self.warmup = column("warmup", 0.0) * problem.updates
        self.clip = column("gradient_clip_val", math.inf)
        self.step = 0
        self.feed = batches(problem.data()[0], problem.batch_size, seed)
        torch.manual_seed(seed)

        def judged(
            by: Callable[[Tensor, Tensor], Tensor], flat: Tensor, buffers: dict[str, Tensor], x: Tensor, y: Tensor
        ) -> Tensor:  # fmt: skip
            pieces = flat.split([shape.numel() for shape in shapes.values()])
            weights = {
                name: piece.view(shape)
                for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
            }
            return by(functional_call(self.model, (weights, buffers), (x,)), y)

        metric = functools.partial(judged, problem.metric or problem.loss)
        loss = functools.partial(judged, problem.loss)
        self.metrics = vmap(metric, in_dims=(0, 0, None, None), randomness="same")
        self.gradients = vmap(grad(loss), in_dims=(0, 0, None, None), randomness="same")

    def update(self, share: float) -> None:
        """Take one update with this share of the highest rate."""
        gradients = self.gradients(self.weights, self.buffers, *next(self.feed))
        gradients *= (self.clip / (gradients.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
        self.step += 1
        lr = share * self.lr * (self.step / self.warmup).clamp(max=1.0)
        first, second = self.moments
        if self.problem.optimizer == "adamw":
            first.lerp_(gradients, 0.1)
            second.mul_(0.999).addcmul_(gradients, gradients, value=0.001)
            root = (second / (1 - 0.999**self.step)).sqrt_().add_(1e-8)
            self.weights.mul_(1 - lr * self.decay).sub_(lr / (1 - 0.9**self.step) * (first / root))
        else:
            first.mul_(0.9).add_(gradients.add_(self.decay * self.weights))
            self.weights.sub_(lr * first)

    def validated(self) -> list[float]:
        """What is validated of each fit."""
        self.model.eval()
        with torch.no_grad():
            losses = self.metrics(self.weights, self.buffers, *self.problem.data()[1])
        self.model.train()
        return [
            max(loss, floor(self.problem)) if math.isfinite(loss) else math.inf
            for loss in losses.tolist()
        ]

    def cooled(self, share: float) -> list[float]:
        """The losses after the rate has fallen to 0; the weights are as before."""
        weights, moments, step = self.weights.clone(), [m.clone() for m in self.moments], self.step
        random, feed = torch.get_rng_state(), self.feed
        self.feed = batches(self.problem.data()[0], self.problem.batch_size, 1000 + step)
        n = max(round(COOLING * step), 1)
        for k in range(n):
            self.update(share * (1 - (k + 1) / (n + 1)))
        losses = self.validated()
        self.weights, self.moments, self.step, self.feed = weights, moments, step, feed
        torch.set_rng_state(random)
        return losses


def trained(
    problem: Problem, fits: list[Values], seed: int, depth: int
) -> list[dict[str, list[float]]]:
    """The raw and the cooled validation loss of each fit at its lengths up to this one; at the end they are the same."""
    stack = Stack(problem, fits, seed)
    halts = [round(share * problem.updates) for share in SHARES[: depth + 1]]
    results: list[dict[str, list[float]]] = [{"raw": [], "cooled": []} for _ in fits]
    for step in range(halts[-1]):
        share = share_of(problem.schedule, step, problem.updates)
        stack.update(share)
        if step + 1 in halts:
            raw = stack.validated()
            cooled = raw if step + 1 == problem.updates else stack.cooled(share)
            for k, result in enumerate(results):
                result["raw"].append(raw[k])
                result["cooled"].append(cooled[k])
    return results


Piece = tuple[Values, int, int]
"""The settings of a fit, its seed, and the number of its last length."""


class Results:
    """The results of pieces of one problem, each trained once: a file of lines holds them."""

    def __init__(self, problem: Problem, folder: Path) -> None:
        self.problem = problem
        self.path = folder / f"{problem.name.replace(' ', '-')}.jsonl"
        self.known: dict[str, Any] = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                key, value = json.loads(line)
                self.known[key] = value

    def train(self, pieces: list[Piece]) -> None:
        """Train those of these pieces whose results are not known."""
        groups: dict[tuple[int, int], dict[str, Values]] = {}
        for values, seed, depth in pieces:
            if not self.knows(values, seed, depth):
                groups.setdefault((seed, depth), {})[self._key(values, seed)] = values
        for (seed, depth), fits in groups.items():
            for k in range(0, len(fits), MOST):
                keys = [*fits][k : k + MOST]
                results = trained(self.problem, [fits[key] for key in keys], seed, depth)
                self._keep(dict(zip(keys, results, strict=True)))

    def at(self, values: Values, seed: int, depth: int = len(SHARES) - 1) -> dict[str, list[float]]:
        """The losses at the lengths up to this one, or further."""
        self.train([(values, seed, depth)])
        return self.known[self._key(values, seed)]

    def knows(self, values: Values, seed: int, depth: int) -> bool:
        known = self.known.get(self._key(values, seed))
        return known is not None and len(known["raw"]) > depth

    @staticmethod
    def _key(values: Values, seed: int) -> str:
        return json.dumps([sorted(values.items()), seed])

    def found(self) -> dict[str, float]:
        """What `bench.find_lr()` finds for the present settings: the suggestion, and where training diverges."""
        if "find_lr" not in self.known:
            problem = self.problem
            kinds = {
                "adamw": torch.optim.AdamW,
                "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
            }
            with tempfile.TemporaryDirectory() as root:
                torch.manual_seed(0)
                bench = wb.Workbench(
                    problem.model(32, 0.0), train=problem.data()[0], val=problem.data()[1], loss=problem.loss, optimizer=kinds[problem.optimizer],
                    batch_size=problem.batch_size, max_steps=problem.updates, lr_schedule=problem.schedule, root=root, enable_progress_bar=False, accelerator="cpu",
                )  # fmt: skip
                try:
                    curve = bench.find_lr().result()
                finally:
                    bench.close()
            found = {"center": curve.suggestion, "edge": curve.diverged}
            self._keep({"find_lr": {k: float(v) for k, v in found.items() if v is not None}})
        return self.known["find_lr"]

    def _keep(self, results: dict[str, Any]) -> None:
        self.known |= results
        with self.path.open("a") as file:
            file.writelines(json.dumps([*entry]) + "\n" for entry in results.items())
