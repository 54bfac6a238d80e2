"""Optimizers of other packages: the same losses as in a plain loop, and the same again when resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.ecosystem.twins import fit, in_batches, losses, plain, refused_by_name


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 64, generator=generator)
    return x, (x[:, 0] > 0).long()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def cross_entropy(net: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


def _bnb(name: str) -> Callable[[], Any]:
    return lambda: getattr(pytest.importorskip("bitsandbytes").optim, name)


def _po(name: str) -> Callable[[], Any]:
    return lambda: getattr(pytest.importorskip("pytorch_optimizer"), name)


def _to(name: str) -> Callable[[], Any]:
    return lambda: getattr(pytest.importorskip("torch_optimizer"), name)


KINDS: dict[str, Callable[[], Any]] = {
    "lion_pytorch.Lion": lambda: pytest.importorskip("lion_pytorch").Lion,
    "pytorch_optimizer.Lion": _po("Lion"),
    "pytorch_optimizer.AdaBelief": _po("AdaBelief"),
    "pytorch_optimizer.Ranger21": lambda: lambda params, lr: pytest.importorskip("pytorch_optimizer").Ranger21(params, lr=lr, num_iterations=8),
    "pytorch_optimizer.SophiaH": _po("SophiaH"),
    "pytorch_optimizer.SOAP": _po("SOAP"),
    "pytorch_optimizer.Lamb": _po("Lamb"),
    "pytorch_optimizer.CAME": _po("CAME"),
    "torch_optimizer.RAdam": _to("RAdam"),
    "torch_optimizer.Yogi": _to("Yogi"),
    "torch_optimizer.DiffGrad": _to("DiffGrad"),
    "bitsandbytes.Adam8bit": _bnb("Adam8bit"),
    "bitsandbytes.AdamW8bit": _bnb("AdamW8bit"),
    "bitsandbytes.Lion8bit": _bnb("Lion8bit"),
    "bitsandbytes.SGD8bit": lambda: lambda params, lr: pytest.importorskip("bitsandbytes").optim.SGD8bit(params, lr=lr, momentum=0.9),
    "bitsandbytes.AdamW": _bnb("AdamW"),
}  # fmt: skip


def _works(kind: Any) -> None:
    """Skip where the optimizer itself does not run here (some need a GPU)."""
    try:
        plain(
            model(),
            in_batches(list(zip(*data(), strict=True))),
            cross_entropy,
            optimizer=kind,
            lr=1e-3,
            epochs=1,
        )
    except Exception as error:
        pytest.skip(
            f"it does not work in a plain loop here: {type(error).__name__}: {str(error)[:80]}"
        )


@pytest.mark.parametrize("name", KINDS)
def test_the_losses_of_a_plain_loop(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]()
    _works(kind)
    net = model()
    expected = plain(
        net, in_batches(list(zip(*data(), strict=True))), cross_entropy, optimizer=kind, lr=1e-3
    )
    assert (
        losses(fit(tmp_path, net, train=data(), loss=F.cross_entropy, optimizer=kind, lr=1e-3))
        == expected
    )


@pytest.mark.parametrize("name", KINDS)
def test_resumed_it_is_the_same_or_refused_by_name(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]()
    _works(kind)
    net = model()
    expected = plain(
        net,
        in_batches(list(zip(*data(), strict=True))),
        cross_entropy,
        optimizer=kind,
        lr=1e-3,
        epochs=3,
    )
    bench = wb.Workbench(net, train=data(), loss=F.cross_entropy, optimizer=kind, lr=1e-3, root=tmp_path, batch_size=8, shuffle=False,
                         max_epochs=1, accelerator="cpu")  # fmt: skip
    first = bench.fit().result()
    try:
        again = bench.fit(start=first.id, max_epochs=3).result()
    except Exception as error:
        refused_by_name(error, name.rpartition(".")[2])
        return
    assert losses(again) == expected


def test_a_sharpness_aware_optimizer_is_not_used_as_if_it_were_plain(tmp_path: Path) -> None:
    """SAM takes two steps per update, the second with a gradient of its own: it trains by hand, or not at all."""
    kind = pytest.importorskip("pytorch_optimizer").SAM

    def make(params: Any, lr: float) -> Any:
        return kind(params, base_optimizer=torch.optim.SGD, lr=lr)

    with pytest.raises(Exception, match="SAM"):
        fit(tmp_path, model(), train=data(), loss=F.cross_entropy, optimizer=make)


@pytest.mark.parametrize("name", ["AdamWScheduleFree", "SGDScheduleFree", "RAdamScheduleFree"])
def test_schedule_free(tmp_path: Path, name: str) -> None:
    kind = getattr(pytest.importorskip("schedulefree"), name)
    net = model()
    expected = plain(
        net, in_batches(list(zip(*data(), strict=True))), cross_entropy, optimizer=kind, modes=True
    )
    bench = wb.Workbench(net, train=data(), val=data(), loss=F.cross_entropy, optimizer=kind, lr=1e-2, root=tmp_path, batch_size=8,
                         shuffle=False, max_epochs=2, accelerator="cpu")  # fmt: skip
    run = bench.fit().result()
    assert losses(run) == expected
    # The weights that are handed over, and validated, are those for evaluation.
    with torch.no_grad():
        net.eval()
        assert run.metrics["val_loss"] == pytest.approx(
            F.cross_entropy(net(data()[0]), data()[1]).item(), rel=1e-5
        )


def test_accelerates_own_objects(tmp_path: Path) -> None:
    """What a user has prepared with an Accelerator of their own is used, or refused by name."""
    accelerate = pytest.importorskip("accelerate")
    mine = accelerate.Accelerator(cpu=True)
    loader = torch.utils.data.DataLoader(list(zip(*data(), strict=True)), 8)
    net = model()
    expected = plain(net, in_batches(list(zip(*data(), strict=True))), cross_entropy)
    prepared_model, prepared = mine.prepare(net, loader)
    try:
        run = fit(tmp_path, prepared_model, train=prepared, loss=F.cross_entropy)
    except Exception as error:
        refused_by_name(error, "prepare")
        return
    assert losses(run) == expected
