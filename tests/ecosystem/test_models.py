"""Models of all kinds: parametrized, wrapped, averaged, compiled, with tensors that are not plain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import workbench as wb
from tests.ecosystem.twins import fit, in_batches, losses, plain, refused_by_name


def data(n: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


def batches() -> list[Any]:
    return in_batches(list(zip(*data(), strict=True)))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


def _weight_norm() -> nn.Module:
    made = net()
    parametrizations.weight_norm(made[0])
    return made


def _old_weight_norm() -> nn.Module:
    made = net()
    torch.nn.utils.weight_norm(made[0])
    return made


def _spectral() -> nn.Module:
    made = net()
    parametrizations.spectral_norm(made[0])
    return made


def _symmetric() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    parametrize.register_parametrization(made[0], "weight", Symmetric())
    return made


def _einops() -> nn.Module:
    from einops.layers.torch import Rearrange

    return nn.Sequential(Rearrange("b (h w) -> b h w", h=2), nn.Flatten(), *net())


def _tied() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    made[1].weight = made[0].weight
    return made


MODELS = {
    "weight_norm": _weight_norm,
    "the old weight_norm": _old_weight_norm,
    "spectral_norm": _spectral,
    "a parametrization": _symmetric,
    "einops layers": _einops,
    "tied weights": _tied,
    "DataParallel on a CPU": lambda: nn.DataParallel(net()),
}


def plain_of(name: str, epochs: int = 2) -> list[float]:
    """The losses of a loop. It gets a model of its own, for some cannot be copied."""
    model, found = MODELS[name](), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(epochs):
        for batch in batches():
            loss = cross_entropy(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(float(np.float32(loss.item())))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_losses_of_a_plain_loop(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    expected = plain_of(name)
    assert losses(fit(tmp_path, model, train=data(), loss=F.cross_entropy)) == expected


@pytest.mark.parametrize("name", MODELS)
def test_resumed_it_is_the_same(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    expected = plain_of(name, epochs=3)
    bench = wb.Workbench(model, train=data(), loss=F.cross_entropy, lr=1e-2, root=tmp_path, batch_size=8, shuffle=False, max_epochs=1,
                         accelerator="cpu")  # fmt: skip
    first = bench.fit().result()
    assert losses(bench.fit(start=first.id, max_epochs=3).result()) == expected


@pytest.mark.parametrize("name", MODELS)
def test_the_finder_leaves_no_trace(tmp_path: Path, name: str) -> None:
    model = MODELS[name]()
    expected = plain_of(name)
    bench = wb.Workbench(model, train=data(), loss=F.cross_entropy, lr=1e-2, root=tmp_path, batch_size=8, shuffle=False, max_epochs=2,
                         accelerator="cpu")  # fmt: skip
    bench.find_lr(num_training=10).result()
    assert losses(bench.fit().result()) == expected


def test_an_average_of_another_package(tmp_path: Path) -> None:
    """EMA(model) holds the model and its average: the average does not train, and is updated by who made it."""
    EMA = pytest.importorskip("ema_pytorch").EMA
    model = net()
    average = EMA(model, beta=0.9, update_every=1, update_after_step=0)
    before = {name: p.detach().clone() for name, p in average.ema_model.named_parameters()}
    expected = plain(model, batches(), cross_entropy)
    assert losses(fit(tmp_path, model, train=data(), loss=F.cross_entropy)) == expected
    assert all(torch.equal(p, before[name]) for name, p in average.ema_model.named_parameters())


def test_complex_numbers(tmp_path: Path) -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(4, 2, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (torch.fft.fft(x) @ self.weight).abs()

    model = Complex()
    expected = plain(model, batches(), cross_entropy)
    run = fit(tmp_path, model, train=data(), loss=F.cross_entropy)
    assert losses(run) == expected
    assert np.isfinite(run.history["grad_norm"]).all()


def test_sparse_inputs(tmp_path: Path) -> None:
    x, y = data()

    def collate(samples: list[Any]) -> Any:
        own = torch.utils.data.default_collate(samples)
        return own[0].to_sparse(), own[1]

    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(4, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(x, self.weight)

    model, samples = Sparse(), list(zip(x, y, strict=True))
    expected = plain(model, in_batches(samples, collate), cross_entropy)
    assert (
        losses(fit(tmp_path, model, train=samples, loss=F.cross_entropy, collate_fn=collate))
        == expected
    )


def test_sparse_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(10, 4, sparse=True), nn.Linear(4, 2))
    x, y = torch.randint(0, 10, (24, 3)), torch.arange(24) % 2
    expected = plain(
        model, in_batches(list(zip(x, y, strict=True))), cross_entropy, optimizer=torch.optim.SGD
    )
    try:
        run = fit(tmp_path, model, train=(x, y), loss=F.cross_entropy, optimizer=torch.optim.SGD)
    except Exception as error:
        refused_by_name(error, "sparse")
        return
    assert losses(run) == expected


def test_nested_tensors(tmp_path: Path) -> None:
    def collate(samples: list[Any]) -> Any:
        return torch.nested.nested_tensor(
            [s[0] for s in samples], layout=torch.jagged
        ), torch.stack([s[1] for s in samples])

    class Pools(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.line = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.line(part).mean(0) for part in x.unbind()])

    samples = [(torch.randn(2 + i % 3, 4), torch.tensor(i % 2)) for i in range(16)]
    model = Pools()
    expected = plain(
        model, torch.utils.data.DataLoader(samples, 8, collate_fn=collate), cross_entropy
    )
    try:
        run = fit(
            tmp_path, model, train=samples, val=samples, loss=F.cross_entropy, collate_fn=collate
        )
    except Exception as error:
        refused_by_name(error, "nested", "Nested")
        return
    assert losses(run) == expected


def test_jaxtyping_annotations(tmp_path: Path) -> None:
    jaxtyping = pytest.importorskip("jaxtyping")

    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.line = nn.Linear(4, 2)

        @jaxtyping.jaxtyped(typechecker=None)
        def forward(
            self,
            x: jaxtyping.Float[torch.Tensor, "b 4"],  # noqa: F722
        ) -> jaxtyping.Float[torch.Tensor, "b 2"]:  # noqa: F722
            return self.line(x)

    model = Typed()
    assert losses(fit(tmp_path, model, train=data(), loss=F.cross_entropy)) == plain(
        model, batches(), cross_entropy
    )


def test_a_diffusion_step(tmp_path: Path) -> None:
    """A noise schedule of diffusers: its draws in training_step repeat with the seed."""
    diffusers = pytest.importorskip("diffusers")
    schedule = diffusers.DDPMScheduler(num_train_timesteps=10)

    class Denoises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 4))

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            x = batch[0]
            noise, t = torch.randn_like(x), torch.randint(0, 10, (len(x),))
            noisy = schedule.add_noise(x, noise, t)
            return F.mse_loss(self.net(torch.cat([noisy, t[:, None] / 10], 1)), noise)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    loader = torch.utils.data.DataLoader(list(zip(*data(), strict=True)), 8)
    made = [
        wb.Workbench(Denoises(), train=loader, root=tmp_path, max_epochs=2, accelerator="cpu")
        .fit()
        .result()
        for _ in range(2)
    ]
    assert losses(made[0]) == losses(made[1])


def test_a_training_loop_of_a_hypernetwork(tmp_path: Path) -> None:
    """torch.func: parameters that are given by a function."""
    base = nn.Linear(4, 2)

    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight, self.bias = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(
                base, {"weight": self.weight, "bias": self.bias}, (x,)
            )

    model = Hyper()
    assert losses(fit(tmp_path, model, train=data(), loss=F.cross_entropy)) == plain(
        model, batches(), cross_entropy
    )


def in_8_bits() -> nn.Module:
    bnb = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    layers = (nn.Linear(4, 8), bnb.nn.Linear8bitLt(8, 8, has_fp16_weights=False), nn.Linear(8, 2))
    return nn.Sequential(*layers).to("cpu")  # where it is quantized


def test_a_quantized_layer(tmp_path: Path) -> None:
    """Its first forward takes the scales out of the weight; weights that were saved go into a new model alone."""
    x, y = torch.randn(24, 4), torch.randint(0, 2, (24,))
    given: dict[str, Any] = {
        "train": (x, y),
        "loss": F.cross_entropy,
        "lr": 1e-2,
        "batch_size": 8,
        "shuffle": False,
        "accelerator": "cpu",
    }
    model, expected = in_8_bits(), []
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        for own, target in zip(x.split(8), y.split(8), strict=True):
            loss = F.cross_entropy(model(own), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            expected.append(loss.item())
    bench = wb.Workbench(in_8_bits(), max_epochs=1, root=tmp_path, **given)
    first = bench.fit().result()
    with pytest.raises(Exception, match="Make the model anew") as error:
        bench.fit(start=first.id, max_epochs=3).result()
    refused_by_name(error.value, "weights")
    again = (
        wb.Workbench(in_8_bits(), root=tmp_path, **given).fit(start=first.id, max_epochs=3).result()
    )
    assert again.history["loss"].tolist() == expected
