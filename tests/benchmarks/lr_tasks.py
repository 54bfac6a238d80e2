"""Tasks on which learning-rate finders are compared: models, data and optimizers of many kinds, small enough for a CPU."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import schedulefree
import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import Tensor, nn

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """One task. `data` gives the training and the validation set, `updates` is the planned length of a fit."""

    name: str
    model: Callable[[], nn.Module]
    data: Callable[[], tuple[Data, Data]]
    loss: Callable[[Any, Tensor], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]
    batch_size: int = 32
    updates: int = 400


def split(x: Any, y: Any, kind: torch.dtype, scaled: bool = True) -> tuple[Data, Data]:
    """Four fifths to train on, one to validate on, in an order that is always the same."""
    x, y = (
        torch.as_tensor(np.asarray(x), dtype=torch.float32),
        torch.as_tensor(np.asarray(y)).to(kind),
    )
    if scaled:
        x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    cut = len(x) * 4 // 5
    return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])


@functools.cache
def digits() -> tuple[Data, Data]:
    x, y = datasets.load_digits(return_X_y=True)
    return split(x / 16, y, torch.long, scaled=False)


@functools.cache
def digit_pictures() -> tuple[Data, Data]:
    (x, y), (xv, yv) = digits()
    return (x.reshape(-1, 1, 8, 8), y), (xv.reshape(-1, 1, 8, 8), yv)


@functools.cache
def digits_themselves() -> tuple[Data, Data]:
    (x, _), (xv, _) = digits()
    return (x, x), (xv, xv)


@functools.cache
def cancer() -> tuple[Data, Data]:
    return split(*datasets.load_breast_cancer(return_X_y=True), torch.long)


@functools.cache
def wine() -> tuple[Data, Data]:
    return split(*datasets.load_wine(return_X_y=True), torch.long)


@functools.cache
def diabetes() -> tuple[Data, Data]:
    x, y = datasets.load_diabetes(return_X_y=True)
    return split(x, ((y - y.mean()) / y.std())[:, None], torch.float32)


@functools.cache
def friedman() -> tuple[Data, Data]:
    x, y = datasets.make_friedman1(2000, noise=1.0, random_state=0)
    return split(x, ((y - y.mean()) / y.std())[:, None], torch.float32)


@functools.cache
def moons() -> tuple[Data, Data]:
    return split(*datasets.make_moons(1500, noise=0.2, random_state=0), torch.long)


@functools.cache
def unbalanced() -> tuple[Data, Data]:
    x, y = datasets.make_classification(
        3000,
        40,
        n_informative=12,
        n_classes=5,
        weights=[0.6, 0.2, 0.1, 0.05, 0.05],
        class_sep=0.8,
        flip_y=0.05,
        random_state=0,
    )
    return split(x, y, torch.long)


@functools.cache
def wave() -> tuple[Data, Data]:
    x = torch.linspace(-1, 1, 2000)[:, None]
    y = torch.sin(20 * x) * torch.cos(7 * x) + 0.05 * torch.randn(
        2000, 1, generator=torch.Generator().manual_seed(0)
    )
    return split(x, y, torch.float32, scaled=False)


@functools.cache
def sums() -> tuple[Data, Data]:
    """The adding problem: two of twenty numbers are marked, and the answer is their sum."""
    g = torch.Generator().manual_seed(0)
    numbers, marks = torch.rand(3000, 20, generator=g), torch.zeros(3000, 20)
    places = torch.rand(3000, 20, generator=g).topk(2).indices
    marks.scatter_(1, places, 1.0)
    return split(
        torch.stack([numbers, marks], 2),
        (numbers * marks).sum(1, keepdim=True),
        torch.float32,
        scaled=False,
    )


@functools.cache
def text() -> tuple[Data, Data]:
    """Characters of the descriptions of scikit-learn's data sets, in pieces of 33."""
    loaders = (
        datasets.load_digits,
        datasets.load_wine,
        datasets.load_breast_cancer,
        datasets.load_diabetes,
        datasets.load_iris,
    )
    codes = (
        np.frombuffer(
            "".join(load().DESCR for load in loaders).encode("ascii", "replace"), dtype=np.uint8
        )
        % 128
    )
    pieces = torch.as_tensor(codes[: len(codes) // 33 * 33].astype(np.int64)).reshape(-1, 33)
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))
    cut = len(pieces) * 4 // 5
    train, val = pieces[order[:cut]], pieces[order[cut:]]
    return (train[:, :-1], train[:, 1:]), (val[:, :-1], val[:, 1:])


@functools.cache
def ratings() -> tuple[Data, Data]:
    """Ratings of 200 users for 300 things, of rank 4 with noise."""
    g = torch.Generator().manual_seed(0)
    users, things = torch.randn(200, 4, generator=g), torch.randn(300, 4, generator=g)
    pairs = torch.stack(
        [torch.randint(200, (12000,), generator=g), torch.randint(300, (12000,), generator=g)], 1
    )
    y = (users[pairs[:, 0]] * things[pairs[:, 1]]).sum(1) / 2 + 0.1 * torch.randn(
        12000, generator=g
    )
    return (pairs[:9600], y[:9600]), (pairs[9600:], y[9600:])


@functools.cache
def faint() -> tuple[Data, Data]:
    """Targets of which the samples tell 4%."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 20, generator=g)
    return split(x, 0.2 * x[:, :1] + torch.randn(3000, 1, generator=g), torch.float32, scaled=False)


@functools.cache
def nothing() -> tuple[Data, Data]:
    """Labels of which the samples tell nothing."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 20, generator=g)
    return split(x, torch.randint(4, (2000,), generator=g), torch.long, scaled=False)


@functools.cache
def counts() -> tuple[Data, Data]:
    """Counts whose logarithmic rate is a function of ten numbers; a tenth of them are large."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 10, generator=g)
    rates = (0.5 + 0.8 * x[:, :1] + 0.5 * torch.sin(2 * x[:, 1:2])).exp()
    return split(x, torch.poisson(rates, generator=g), torch.float32, scaled=False)


@functools.cache
def doubtful_digits() -> tuple[Data, Data]:
    """Whether a digit is odd, where a quarter of the labels are wrong: the loss has a high floor."""
    (x, y), (xv, yv) = digits()
    g = torch.Generator().manual_seed(0)

    def odd(labels: Tensor) -> Tensor:
        return (labels + (torch.rand(len(labels), generator=g) < 0.25)) % 2

    return (x, odd(y)), (xv, odd(yv))


@functools.cache
def rings() -> tuple[Data, Data]:
    """Which of three shells a point of four dimensions is from, beside six dimensions of noise."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(3, (1800,), generator=g)
    x = torch.randn(1800, 10, generator=g)
    radius = (1 + y + 0.35 * torch.randn(1800, generator=g))[:, None]
    x[:, :4] = radius * F.normalize(x[:, :4], dim=1)
    return split(x, y, torch.long)


@functools.cache
def tails() -> tuple[Data, Data]:
    """A regression whose noise has heavy tails, larger for some samples than for others."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1200, 15, generator=g)
    noise = torch.randn(1200, 1, generator=g) / torch.rand(1200, 1, generator=g).sqrt()
    y = x[:, :1] * x[:, 1:2] + x[:, 2:3].abs() + 0.2 * x[:, 3:4].exp() * noise
    return split(x, y, torch.float32)


@functools.cache
def waveforms() -> tuple[Data, Data]:
    """Sines, squares and saw teeth of any phase and frequency, in noise."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(3, (1500,), generator=g)
    cycles, phase = 1 + 3 * torch.rand(1500, 1, generator=g), torch.rand(1500, 1, generator=g)
    turns = torch.linspace(0, 1, 64) * cycles + phase
    sines = torch.sin(2 * math.pi * turns)
    shapes = torch.stack([sines, sines.sign(), 2 * (turns % 1) - 1])
    x = shapes[y, torch.arange(1500)] + 0.7 * torch.randn(1500, 64, generator=g)
    return split(x[:, None], y, torch.long, scaled=False)


@functools.cache
def few() -> tuple[Data, Data]:
    """Few samples of 60 numbers, of which four tell the class; a tenth of the classes are wrong."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(500, 60, generator=g)
    y = (x[:, 0] + x[:, 1] - x[:, 2] * x[:, 3] > 0).long()
    return split(x, (y + (torch.rand(500, generator=g) < 0.1)) % 2, torch.long)


@functools.cache
def spirals() -> tuple[Data, Data]:
    """Which of three arms of a spiral a point is from."""
    g = torch.Generator().manual_seed(0)
    y, way = torch.randint(3, (1500,), generator=g), torch.rand(1500, generator=g)
    angle = 2 * math.pi * (way + y / 3) + 0.2 * torch.randn(1500, generator=g)
    x = torch.stack([angle.cos(), angle.sin()], 1) * (0.1 + way[:, None])
    return split(x, y, torch.long)


@functools.cache
def recalls() -> tuple[Data, Data]:
    """Twelve of six symbols; the answer is the one that follows the last 0, and 0 where none does."""
    g = torch.Generator().manual_seed(0)
    x = torch.randint(6, (2500, 12), generator=g)
    y = torch.zeros(2500, dtype=torch.long)
    for before, symbol in zip(x.T[:-1], x.T[1:], strict=True):
        y = torch.where(before == 0, symbol, y)
    cut = 2000
    return (x[:cut], y[:cut]), (x[cut:], y[cut:])


@functools.cache
def moved_digits() -> tuple[Data, Data]:
    """Noisy digits somewhere in a larger picture."""
    (x, y), (xv, yv) = digit_pictures()
    g = torch.Generator().manual_seed(0)

    def moved(pictures: Tensor) -> Tensor:
        frames = 0.3 * torch.randn(len(pictures), 1, 12, 12, generator=g)
        corners = torch.randint(5, (len(pictures), 2), generator=g).tolist()
        for frame, picture, (row, column) in zip(frames, pictures, corners, strict=True):
            frame[:, row : row + 8, column : column + 8] += picture
        return frames

    return (moved(x), y), (moved(xv), yv)


@functools.cache
def bumps() -> tuple[Data, Data]:
    """A surface of bumps over five dimensions, with noise."""
    g = torch.Generator().manual_seed(0)
    x, centres = torch.randn(1500, 5, generator=g), torch.randn(12, 5, generator=g)
    heights = torch.randn(12, 1, generator=g)
    y = (-(torch.cdist(x, centres) ** 2) / 4).exp() @ heights
    return split(x, y / y.std() + 0.3 * torch.randn(1500, 1, generator=g), torch.float32)


def mlp(*sizes: int, norm: bool = False, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), *([nn.BatchNorm1d(b)] if norm else []), act()]
    return nn.Sequential(*layers[: -2 if norm else -1])


def group_norm_cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((1, 12), (12, 24)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(4, after),
            nn.GELU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(216, 10))


def cnn(norm: bool = False) -> nn.Module:
    def block(a: int, b: int) -> list[nn.Module]:
        return [
            nn.Conv2d(a, b, 3, padding=1),
            *([nn.BatchNorm2d(b)] if norm else []),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    return nn.Sequential(*block(1, 16), *block(16, 32), nn.Flatten(), nn.Linear(128, 10))


def waveform_cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((1, 12), (12, 24)):
        layers += [
            nn.Conv1d(before, after, 7, padding=3),
            nn.BatchNorm1d(after),
            nn.ReLU(),
            nn.MaxPool1d(4),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 3))


class Residual(nn.Module):
    """Twelve residual blocks on digits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 48), nn.Linear(48, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 48))
            for _ in range(12)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


@functools.cache
def pretrained() -> dict[str, Tensor]:
    """The weights of a residual network that has learned digits."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model, (x, y) = Residual(), digits()[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for update in range(300):
        of_batch = torch.arange(update * 32, update * 32 + 32) % len(x)
        optimizer.zero_grad()
        F.cross_entropy(model(x[of_batch]), y[of_batch]).backward()
        optimizer.step()
    torch.set_rng_state(state)
    return {name: value for name, value in model.state_dict().items() if "last" not in name}


def finetuned() -> Residual:
    """A residual network that has learned digits, with a new last layer of zeros for two classes."""
    model = Residual()
    model.last = nn.Linear(48, 2)
    nn.init.zeros_(model.last.weight)
    model.load_state_dict(pretrained(), strict=False)
    return model


class Mixer(nn.Module):
    """Two mixer blocks over the 16 patches of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 32), nn.Linear(32, 10)
        self.tokens = nn.ModuleList(mlp(16, 32, 16, act=nn.GELU) for _ in range(2))
        self.channels = nn.ModuleList(mlp(32, 64, 32, act=nn.GELU) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(F.unfold(x, 2, stride=2).mT)
        for k, (tokens, channels) in enumerate(zip(self.tokens, self.channels, strict=True)):
            x = x + tokens(self.norms[2 * k](x).mT).mT
            x = x + channels(self.norms[2 * k + 1](x))
        return self.last(x.mean(1))


class Contrastive(nn.Module):
    """An encoder that sees two noisy halves of each digit (SimCLR)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = mlp(64, 64, 64, 16)

    def forward(self, x: Tensor) -> Tensor:
        views = [x * (torch.rand_like(x) < 0.5) + 0.1 * torch.randn_like(x) for _ in range(2)]
        return F.normalize(self.encoder(torch.cat(views)), dim=1)


def info_nce(codes: Tensor, x: Tensor) -> Tensor:
    """The loss of SimCLR at a temperature of 0.1; the first half and the second are the views."""
    logits = (codes @ codes.mT / 0.1).fill_diagonal_(-math.inf)
    half = len(codes) // 2
    return F.cross_entropy(logits, torch.arange(2 * half).roll(half))


class Lion(torch.optim.Optimizer):
    """Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023)."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.sub_(mean.lerp(p.grad, 1 - group["betas"][0]).sign(), alpha=group["lr"])
                mean.lerp_(p.grad, 1 - group["betas"][1])


class CharTransformer(nn.Module):
    """A decoder of two layers over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, 48), nn.Parameter(0.02 * torch.randn(32, 48))
        layer = nn.TransformerEncoderLayer(
            48, 4, 96, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body, self.head = (
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            nn.Linear(48, 128),
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(
            self.body(self.embed(x) + self.place[: x.shape[1]], mask=mask, is_causal=True)
        )


class CharGRU(nn.Module):
    """A GRU over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.head = (
            nn.Embedding(128, 32),
            nn.GRU(32, 64, batch_first=True),
            nn.Linear(64, 128),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(x))[0])


class Recall(nn.Module):
    """A GRU that reads symbols and answers at their end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(6, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(x))[0][:, -1])


class Adder(nn.Module):
    """An LSTM that reads a sequence and answers at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(2, 32, batch_first=True), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Factors(nn.Module):
    """A factorisation: one vector for each user and each thing."""

    def __init__(self, std: float = 0.3, size: int = 8) -> None:
        super().__init__()
        self.users, self.things = nn.Embedding(200, size), nn.Embedding(300, size)
        for part in (self.users, self.things):
            nn.init.normal_(part.weight, std=std)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.things(pairs[:, 1])).sum(1)


class VAE(nn.Module):
    """A variational autoencoder of digits; returns the picture and the parameters of its code."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 64, 16), mlp(8, 64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_var / 2).exp() if self.training else mean
        return self.decoder(code), mean, log_var


class Sine(nn.Module):
    """The sine activation of implicit representations (SIREN)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(3 * x)


def elbo(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    picture, mean, log_var = out
    kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
    return F.binary_cross_entropy_with_logits(picture, x, reduction="none").sum(1).mean() + kl


def gaussian_nll(out: Tensor, y: Tensor) -> Tensor:
    """The mean and the logarithm of the deviation are predicted; below 0 for small deviations."""
    mean, log_std = out.chunk(2, 1)
    return (log_std + 0.5 * ((y - mean) / log_std.exp()) ** 2).mean()


def next_character(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
MOMENTUM = functools.partial(SGD, momentum=0.9)
NESTEROV = functools.partial(SGD, momentum=0.9, nesterov=True, weight_decay=5e-4)
DECAY = functools.partial(ADAMW, weight_decay=0.05)

TASKS = [
    Task("digits mlp sgd", lambda: mlp(64, 64, 10), digits, F.cross_entropy, SGD),
    Task("digits mlp adam", lambda: mlp(64, 64, 10), digits, F.cross_entropy, ADAM),
    Task("digits cnn momentum", cnn, digit_pictures, F.cross_entropy, MOMENTUM, updates=300),
    Task(
        "digits cnn norm nesterov",
        lambda: cnn(norm=True),
        digit_pictures,
        F.cross_entropy,
        NESTEROV,
        updates=300,
    ),
    Task("digits residual adamw", Residual, digits, F.cross_entropy, DECAY, updates=300),
    Task(
        "autoencoder adam", lambda: mlp(64, 32, 8, 32, 64), digits_themselves, F.mse_loss, ADAM, 64
    ),
    Task(
        "autoencoder momentum",
        lambda: mlp(64, 32, 8, 32, 64, act=nn.Tanh),
        digits_themselves,
        F.mse_loss,
        MOMENTUM,
        64,
    ),
    Task("vae adam", VAE, digits_themselves, elbo, ADAM, 64),
    Task("cancer logistic sgd", lambda: nn.Linear(30, 2), cancer, F.cross_entropy, SGD),
    Task(
        "wine mlp rmsprop",
        lambda: mlp(13, 32, 3),
        wine,
        F.cross_entropy,
        torch.optim.RMSprop,
        16,
        200,
    ),
    Task("diabetes mlp adam", lambda: mlp(10, 32, 1), diabetes, F.mse_loss, ADAM, 32, 200),
    Task("friedman mlp momentum", lambda: mlp(10, 64, 64, 1), friedman, F.mse_loss, MOMENTUM, 64),
    Task(
        "moons mlp adagrad", lambda: mlp(2, 64, 64, 2), moons, F.cross_entropy, torch.optim.Adagrad
    ),
    Task(
        "unbalanced mlp norm sgd",
        lambda: mlp(40, 64, 64, 5, norm=True),
        unbalanced,
        F.cross_entropy,
        SGD,
        64,
    ),
    Task("unbalanced mlp adamw", lambda: mlp(40, 128, 5), unbalanced, F.cross_entropy, DECAY, 64),
    Task("wave siren adam", lambda: mlp(1, 64, 64, 1, act=Sine), wave, F.mse_loss, ADAM, 64),
    Task("sums lstm adam", Adder, sums, F.mse_loss, ADAM, 64),
    Task("text gru adam", CharGRU, text, next_character, ADAM, 32),
    Task("text transformer adamw", CharTransformer, text, next_character, DECAY, 32, 300),
    Task("ratings factors sgd", Factors, ratings, F.mse_loss, MOMENTUM, 64, 600),
    Task("plateau factors momentum", lambda: Factors(0.1), ratings, F.mse_loss, MOMENTUM, 64, 600),
    Task("plateau factors adam", lambda: Factors(0.1), ratings, F.mse_loss, ADAM, 64, 600),
    Task("plateau factors sgd", lambda: Factors(size=32), ratings, F.mse_loss, SGD, 64, 600),
    Task(
        "plateau sigmoid sgd",
        lambda: mlp(64, 64, 64, 10, act=nn.Sigmoid),
        digits,
        F.cross_entropy,
        SGD,
        32,
        500,
    ),
    Task("plateau faint sgd", lambda: mlp(20, 32, 1), faint, F.mse_loss, SGD, 32, 300),
    Task("plateau faint adam", lambda: mlp(20, 32, 1), faint, F.mse_loss, ADAM, 32, 300),
    Task(
        "plateau nothing momentum",
        lambda: mlp(20, 32, 4),
        nothing,
        F.cross_entropy,
        MOMENTUM,
        32,
        300,
    ),
    *(
        Task(
            f"noisy diabetes batch {size} {name}",
            lambda: mlp(10, 32, 1),
            diabetes,
            F.mse_loss,
            optimizer,
            size,
            updates,
        )
        for size, name, optimizer, updates in (
            (1, "sgd", SGD, 800),
            (2, "adam", ADAM, 600),
            (4, "adamw", DECAY, 400),
        )
    ),
    *(
        Task(
            f"noisy counts batch {size} adam",
            lambda: mlp(10, 32, 1),
            counts,
            F.poisson_nll_loss,
            ADAM,
            size,
        )
        for size in (4, 16)
    ),
    Task("below zero nll adam", lambda: mlp(1, 64, 64, 2, act=Sine), wave, gaussian_nll, ADAM, 64),
    Task("below zero nll momentum", lambda: mlp(10, 64, 2), friedman, gaussian_nll, MOMENTUM, 64),
    Task("floor simclr momentum", Contrastive, digits_themselves, info_nce, MOMENTUM, 128),
    Task("floor simclr adam", Contrastive, digits_themselves, info_nce, ADAM, 128),
    Task("floor finetune adamw", finetuned, doubtful_digits, F.cross_entropy, DECAY, updates=300),
    Task(
        "floor finetune momentum",
        finetuned,
        doubtful_digits,
        F.cross_entropy,
        MOMENTUM,
        updates=300,
    ),
    Task("kind mixer adamw", Mixer, digit_pictures, F.cross_entropy, DECAY, updates=300),
    Task("kind residual lion", Residual, digits, F.cross_entropy, Lion, updates=300),
    Task(
        "kind mlp adamw schedule-free",
        lambda: mlp(64, 64, 10),
        digits,
        F.cross_entropy,
        schedulefree.AdamWScheduleFree,
    ),
    Task(
        "kind friedman sgd schedule-free",
        lambda: mlp(10, 64, 64, 1),
        friedman,
        F.mse_loss,
        schedulefree.SGDScheduleFree,
        64,
    ),
    Task(
        "kind residual adamw schedule-free",
        Residual,
        digits,
        F.cross_entropy,
        schedulefree.AdamWScheduleFree,
        updates=300,
    ),
    Task(
        "fresh rings mlp rmsprop",
        lambda: mlp(10, 48, 48, 3),
        rings,
        F.cross_entropy,
        torch.optim.RMSprop,
        32,
        300,
    ),
    Task(
        "fresh tails mlp dropout adamw",
        lambda: nn.Sequential(mlp(15, 64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1)),
        tails,
        F.smooth_l1_loss,
        ADAMW,
        64,
    ),
    Task(
        "fresh waveforms cnn norm momentum",
        waveform_cnn,
        waveforms,
        F.cross_entropy,
        MOMENTUM,
        64,
        250,
    ),
    Task("fresh few mlp adam", lambda: mlp(60, 64, 2), few, F.cross_entropy, ADAM, 16, 300),
    Task(
        "fresh spirals mlp nadam",
        lambda: mlp(2, 64, 64, 3, act=nn.Tanh),
        spirals,
        F.cross_entropy,
        torch.optim.NAdam,
    ),
    Task("fresh recall gru adam", Recall, recalls, F.cross_entropy, ADAM, 64, 300),
    Task(
        "fresh moved cnn tuned nesterov",
        group_norm_cnn,
        moved_digits,
        F.cross_entropy,
        functools.partial(SGD, lr=0.05, momentum=0.9, nesterov=True),
        32,
        300,
    ),
    Task(
        "fresh bumps mlp norm adamw",
        lambda: mlp(5, 64, 64, 1, norm=True),
        bumps,
        F.mse_loss,
        ADAMW,
        32,
        300,
    ),
]
SCHEDULES = ("constant", "cosine", "one_cycle")


def share_of(schedule: str, update: int, total: int) -> float:
    """The learning rate of this update, as a share of the highest."""
    if schedule == "constant":
        return 1.0
    if schedule == "linear":
        return 1 - update / total
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * update / total))
    rise = 0.3 * total
    if update < rise:
        return 0.04 + 0.96 * 0.5 * (1 - math.cos(math.pi * update / rise))
    return 0.5 * (1 + math.cos(math.pi * (update - rise) / (total - rise)))
