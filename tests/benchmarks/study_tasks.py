"""Tasks on which studies are compared: small fits by a plain loop that is halted at rungs, with a cache of their results.

Many fits that differ in numbers alone are trained at once (`torch.func.vmap`), with the same batches and the same random numbers,
so that a result does not depend on the others. A piece is trained from the start up to its rung, which gives what a fit that was
halted and continued gives.
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
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

import workbench as wb

from .lr_regret import batches
from .lr_tasks import (
    Data,
    digits,
    digits_themselves,
    friedman,
    nothing,
    ratings,
    share_of,
    unbalanced,
)

COOLING = 0.1
"""The updates in which the rate falls to 0 at a halt, as a share of those so far."""
Values = Mapping[str, float]


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

    @property
    def present(self) -> dict[str, float]:
        """The settings with which the study begins."""
        if self.optimizer == "adamw":
            return {"lr": 1e-3, "weight_decay": 1e-2, "width": 32, "dropout": 0.0}
        return {"lr": 1e-2, "weight_decay": 1e-4, "width": 32, "dropout": 0.0}

    @property
    def space(self) -> dict[str, Any]:
        """The ranges of all its dimensions, wide enough for somebody who knows nothing."""
        lr, decay = (
            ((1e-5, 1.0), (1e-4, 1.0)) if self.optimizer == "adamw" else ((1e-4, 10.0), (1e-6, 0.1))
        )
        return {"lr": lr, "weight_decay": decay, "width": [8, 16, 32, 64], "dropout": (0.0, 0.5)}


class Drop(nn.Module):
    """Dropout whose rate is a tensor, so that fits with several rates can be trained at once."""

    rate: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.register_buffer("rate", torch.tensor(rate))

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand_like(x) >= self.rate) / (1 - self.rate) if self.training else x


def mlp(inputs: int, outputs: int, hidden: int = 2) -> Callable[[int, float], nn.Module]:
    def build(width: int, dropout: float) -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(inputs, width), nn.ReLU(), Drop(dropout)]
        for _ in range(hidden - 1):
            layers += [nn.Linear(width, width), nn.ReLU(), Drop(dropout)]
        return nn.Sequential(*layers, nn.Linear(width, outputs))

    return build


class Residual(nn.Module):
    """Three residual blocks."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), Drop(dropout), nn.Linear(width, width)
            )
            for _ in range(3)
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


PROBLEMS = [
    Problem("digits mlp adamw", mlp(64, 10), digits, F.cross_entropy),
    Problem("digits mlp sgd", mlp(64, 10), digits, F.cross_entropy, "sgd", "constant"),
    Problem("digits residual adamw", Residual, digits, F.cross_entropy),
    Problem("autoencoder adamw", lambda w, d: nn.Sequential(mlp(64, 8, 1)(w, d), mlp(8, 64, 1)(w, 0.0)), digits_themselves, F.mse_loss, "adamw", "constant", 360, 64),
    Problem("friedman mlp sgd", mlp(10, 1), friedman, F.mse_loss, "sgd", "cosine", 360, 64),
    Problem("unbalanced mlp adamw", mlp(40, 5), unbalanced, F.cross_entropy, "adamw", "one_cycle", 360, 64),
    Problem("ratings factors sgd", Factors, ratings, F.mse_loss, "sgd", "constant", 540, 64),
    Problem("nothing mlp adamw", mlp(20, 4), nothing, F.cross_entropy, updates=270),
]  # fmt: skip


def validated(
    problem: Problem, model: nn.Module, weights: dict[str, Tensor], buffers: dict[str, Tensor]
) -> list[float]:
    """The validation loss of each of the stacked weights."""
    x, y = problem.data()[1]
    model.eval()
    with torch.no_grad():
        losses = vmap(lambda w, b: problem.loss(functional_call(model, (w, b), (x,)), y))(
            weights, buffers
        )
    model.train()
    return [_counted(loss, problem) for loss in losses.tolist()]


@functools.cache
def floor(problem: Problem) -> float:
    """1% of the loss of the initial weights: lower losses count as this."""
    torch.manual_seed(0)
    (x, y), model = problem.data()[1], problem.model(32, 0.0).eval()
    with torch.no_grad():
        return 0.01 * float(problem.loss(model(x), y))


class Stack:
    """Fits of one width and seed, with one update after another of all."""

    def __init__(self, problem: Problem, fits: list[Values], seed: int) -> None:
        torch.manual_seed(seed)
        self.problem = problem
        self.model = problem.model(int(fits[0]["width"]), 0.0)
        models = [self.model] * len(fits)
        self.weights, self.buffers = stack_module_state(models)
        self.weights = {name: weight.detach() for name, weight in self.weights.items()}
        for name in self.buffers:
            self.buffers[name] = torch.tensor([float(values["dropout"]) for values in fits])
        self.lr = torch.tensor([values["lr"] for values in fits])
        self.decay = torch.tensor([values["weight_decay"] for values in fits])
        self.moments = [
            {name: torch.zeros_like(w) for name, w in self.weights.items()} for _ in range(2)
        ]
        self.step = 0
        self.feed = batches(problem.data()[0], problem.batch_size, seed)

        def loss(
            weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor
        ) -> Tensor:
            return problem.loss(functional_call(self.model, (weights, buffers), (x,)), y)

        self.gradients = vmap(grad_and_value(loss), in_dims=(0, 0, None, None), randomness="same")

    def update(self, share: float) -> None:
        """Take one update with this share of the highest rate."""
        gradients, _ = self.gradients(self.weights, self.buffers, *next(self.feed))
        self.step += 1
        first, second = self.moments
        for name, weight in self.weights.items():
            shape = (-1, *[1] * (weight.dim() - 1))
            lr, decay, gradient = (
                (share * self.lr).view(shape),
                self.decay.view(shape),
                gradients[name],
            )
            if self.problem.optimizer == "adamw":
                first[name] = torch.lerp(first[name], gradient, 0.1)
                second[name] = second[name] * 0.999 + gradient * gradient * 0.001
                root = (second[name] / (1 - 0.999**self.step)).sqrt_().add_(1e-8)
                weight = weight * (1 - lr * decay) - lr / (1 - 0.9**self.step) * first[name] / root
            else:
                first[name] = 0.9 * first[name] + gradient + decay * weight
                weight = weight - lr * first[name]
            self.weights[name] = weight

    def cooled(self, share: float) -> list[float]:
        """The losses after the rate has fallen to 0; everything is as before."""
        weights, moments, step, random = (
            dict(self.weights),
            [dict(m) for m in self.moments],
            self.step,
            torch.get_rng_state(),
        )
        n = max(round(COOLING * step), 1)
        for k in range(n):
            self.update(share * (1 - (k + 1) / (n + 1)))
        losses = validated(self.problem, self.model, self.weights, self.buffers)
        self.weights, self.moments, self.step = weights, moments, step
        torch.set_rng_state(random)
        return losses


def trained(
    problem: Problem, fits: list[Values], seed: int, shares: list[float]
) -> list[dict[str, list[float]]]:
    """The cooled and the raw validation loss of each fit at these shares of its length; at 1 they are the same. All have one width."""
    stack = Stack(problem, fits, seed)
    halts = [round(share * problem.updates) for share in shares]
    results: list[dict[str, list[float]]] = [{"cooled": [], "raw": []} for _ in fits]
    for step in range(halts[-1]):
        share = share_of(problem.schedule, step, problem.updates)
        stack.update(share)
        if step + 1 in halts:
            raw = validated(problem, stack.model, stack.weights, stack.buffers)
            cooled = raw if step + 1 == problem.updates else stack.cooled(share)
            for k, result in enumerate(results):
                result["raw"].append(raw[k])
                result["cooled"].append(cooled[k])
    return results


def _counted(loss: float, problem: Problem) -> float:
    return max(loss, floor(problem)) if math.isfinite(loss) else math.inf


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

    def train(self, pieces: list[tuple[Values, int, int]], shares: list[float]) -> None:
        """Train those of these pieces (values, seed, rung) whose results are not known."""
        groups: dict[tuple[Any, ...], dict[str, Values]] = {}
        for values, seed, rung in pieces:
            key = self._key(values, seed, shares[: rung + 1])
            if self._known(values, seed, rung, shares) is None:
                groups.setdefault((values["width"], seed, rung), {})[key] = values
        for (_, seed, rung), fits in groups.items():
            results = trained(self.problem, list(fits.values()), seed, shares[: rung + 1])
            for key, result in zip(fits, results, strict=True):
                self.known[key] = result
                self._keep(key)

    def at(
        self, values: Values, seed: int, rung: int, shares: list[float]
    ) -> dict[str, list[float]]:
        """The losses at the rungs up to this one."""
        self.train([(values, seed, rung)], shares)
        result = self._known(values, seed, rung, shares)
        assert result is not None
        return result

    def _known(
        self, values: Values, seed: int, rung: int, shares: list[float]
    ) -> dict[str, list[float]] | None:
        keys = (
            self._key(values, seed, shares[: last + 1])
            for last in range(len(shares) - 1, rung - 1, -1)
        )
        return next((self.known[key] for key in keys if key in self.known), None)

    @staticmethod
    def _key(values: Values, seed: int, shares: list[float]) -> str:
        return json.dumps([sorted(values.items()), seed, [round(share, 6) for share in shares]])

    def found_lr(self) -> float | None:
        """The rate of `bench.find_lr()` for the present width, after 100 updates."""
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
                    self.known["find_lr"] = bench.find_lr().result().suggestion
                finally:
                    bench.close()
            self._keep("find_lr")
        return self.known["find_lr"]

    def _keep(self, key: str) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([key, self.known[key]]) + "\n")
