"""What real fits say of their health: findings where something is wrong, and none where all is well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset

import workbench as wb
from workbench.events import Observed


def data(n: int = 64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 8, generator=generator)
    return x, (x[:, 0] > 0).long()


def net(*more: nn.Module) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *more, nn.Linear(16, 2))


def fit(tmp_path: Path, model: Any, **given: Any) -> wb.Run:
    usual = {
        "train": data(),
        "val": data(32),
        "loss": F.cross_entropy,
        "batch_size": 16,
        "max_epochs": 3,
        "accelerator": "cpu",
    }
    ready = isinstance(given.get("train"), DataLoader) and given["train"].batch_size is None
    chosen = {
        name: value
        for name, value in {**usual, **given}.items()
        if not (ready and name == "batch_size")
    }
    return wb.Workbench(model, root=tmp_path, **chosen).fit().result()


def said(run: wb.Run) -> list[str]:
    return [f"{finding.level}: {finding.text}" for finding in run.health]


# ---- evaluation mode


class Evaluates(nn.Module):
    def __init__(self, *more: nn.Module) -> None:
        super().__init__()
        self.net = net(*more)

    def forward(self, x: Tensor) -> Tensor:
        self.eval()
        out: Tensor = self.net(x)
        return out


def test_a_model_that_trains_in_evaluation_mode(tmp_path: Path) -> None:
    run = fit(tmp_path, Evaluates(nn.Dropout(0.5)))
    assert said(run) == [
        "warning: the model was in evaluation mode at update 0: without dropout and batch statistics"
    ]
    assert "evaluation mode" in repr(run)
    opened = wb.Run.open(run.folder)  # type: ignore[arg-type]
    assert opened.health == run.health


def test_a_mode_that_changes_nothing_is_no_finding(tmp_path: Path) -> None:
    assert said(fit(tmp_path, Evaluates())) == []
    assert said(fit(tmp_path, Evaluates(nn.Dropout(0.0)))) == []


def test_a_part_in_evaluation_mode_is_a_note_unless_it_is_frozen(tmp_path: Path) -> None:
    model = net(nn.BatchNorm1d(16), nn.Dropout(0.1))
    model[2].eval()
    assert said(fit(tmp_path, model)) == [
        "info: 2 trained in evaluation mode: without dropout and batch statistics"
    ]
    model = net(nn.BatchNorm1d(16), nn.Dropout(0.1))
    model[2].eval().requires_grad_(False)
    assert said(fit(tmp_path, model)) == []


def test_a_hook_that_leaves_a_module_in_evaluation_mode(tmp_path: Path) -> None:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net(nn.Dropout(0.5))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def on_train_epoch_end(self) -> None:
            self.eval()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    loader = DataLoader(TensorDataset(*data()), 16, shuffle=True)
    run = (
        wb.Workbench(Module(), train=loader, root=tmp_path, max_epochs=3, accelerator="cpu")
        .fit()
        .result()
    )
    assert said(run) == [
        "warning: the model was in evaluation mode at update 4: without dropout and batch statistics"
    ]


# ---- the order of the samples


class Seeded(Sampler[int]):
    """Draws the same order in each pass, unless somebody counts its epochs."""

    def __init__(self, n: int, seeds_again: bool) -> None:
        self.n, self.seeds_again = n, seeds_again
        self.generator = torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        if self.seeds_again:
            self.generator.manual_seed(3)
        yield from torch.randperm(self.n, generator=self.generator).tolist()


class ByLength(Sampler[int]):
    """The same order in each pass, on purpose."""

    def __len__(self) -> int:
        return 64

    def __iter__(self) -> Iterator[int]:
        yield from sorted(range(64), key=lambda i: i % 7)


def loader(sampler: Sampler[int]) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data()), 16, sampler=sampler)


@pytest.mark.parametrize("in_batches", [False, True])
def test_an_order_that_repeats_although_it_is_shuffled(tmp_path: Path, in_batches: bool) -> None:
    def made(seeds_again: bool) -> DataLoader[Any]:
        sampler = Seeded(64, seeds_again)
        own = BatchSampler(sampler, 16, drop_last=False)
        return (
            DataLoader(TensorDataset(*data()), batch_sampler=own) if in_batches else loader(sampler)
        )

    run = fit(tmp_path, net(), train=made(True))
    assert said(run) == [
        "warning: epoch 1 had its samples in the same order as epoch 0, although they are shuffled"
    ]
    assert run.health[0].step == 8
    assert said(fit(tmp_path, net(), train=made(False))) == []


ON_PURPOSE: dict[str, Callable[[], dict[str, Any]]] = {
    "not shuffled": lambda: {"shuffle": False},
    "a loader in order": lambda: {"train": DataLoader(TensorDataset(*data()), 16)},
    "by length": lambda: {"train": loader(ByLength())},
    "shuffled": dict,
    "a shuffled loader": lambda: {"train": DataLoader(TensorDataset(*data()), 16, shuffle=True)},
    "a random sampler": lambda: {
        "train": loader(RandomSampler(range(64), generator=torch.Generator().manual_seed(1)))
    },
    "overfit_batches": lambda: {"overfit_batches": 1},
    "ready batches": lambda: {"train": DataLoader([data(16), data(16)], batch_size=None)},
}


@pytest.mark.parametrize("case", ON_PURPOSE)
def test_orders_that_repeat_on_purpose_or_not_at_all(tmp_path: Path, case: str) -> None:
    assert said(fit(tmp_path, net(), **ON_PURPOSE[case]())) == []


# ---- options of the loader


class Own(DataLoader[Any]):
    """Makes its batches itself."""

    def __iter__(self) -> Any:
        return super().__iter__()


@pytest.mark.parametrize(
    ("loader", "settings", "expected"),
    [
        (None, {"num_workers": 1, "persistent_workers": False}, [("persistent_workers=False", "setting")]),
        (DataLoader, {}, [("persistent_workers=False", "DataLoader"), ("pin_memory=True", "DataLoader")]),
        (DataLoader, {"persistent_workers": True, "pin_memory": None}, []),
        (Own, {}, [("persistent_workers=False", "own DataLoader"), ("pin_memory=True", "own DataLoader"), ("num_workers=1", "own DataLoader")]),
    ],
    ids=["settings", "a DataLoader", "settings for a DataLoader", "one that is read itself"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
def test_options_of_the_loader_that_cost_time(
    tmp_path: Path, loader: Any, settings: dict[str, Any], expected: list[Any]
) -> None:
    dataset = TensorDataset(*data())
    train = dataset if loader is None else loader(dataset, 16, num_workers=1, pin_memory=True)
    bench = wb.Workbench(
        net(),
        train=train,
        loss=F.cross_entropy,
        root=tmp_path,
        max_epochs=1,
        accelerator="cpu",
        **settings,
    )
    run = bench.fit().result()
    assert [
        e.parts for e in run.events if isinstance(e, Observed) and e.what == "loader_option"
    ] == expected
    assert any(
        found.startswith("info: pin_memory=True is of no use") for found in said(run)
    ) == any("pin" in one for one, _ in expected)


# ---- losses and rates


def test_a_rate_of_a_thousand(tmp_path: Path) -> None:
    run = fit(tmp_path, net(), lr=1e3, max_epochs=15, optimizer=torch.optim.Adam)
    assert any(
        "risen from" in text or "does not fall at a learning rate of 1e3" in text
        for text in said(run)
    )


def test_a_rate_of_nothing(tmp_path: Path) -> None:
    run = fit(tmp_path, net(), lr=1e-12, max_epochs=15, optimizer=torch.optim.SGD)
    assert (
        "warning: the learning rate is 1e-12, and the loss has not changed in 60 updates"
        in said(run)
    )


def test_a_loss_that_diverges(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, _ = data()
    run = fit(tmp_path, nn.Linear(8, 1), train=(x, x[:, :1]), val=None, loss=F.mse_loss, optimizer=torch.optim.SGD, lr=1.2,
              max_epochs=6)  # fmt: skip
    losses = run.history["loss"]
    assert 100 * losses[0] < losses[-1] < float("inf")
    (finding,) = [finding for finding in run.health if "risen" in finding.text]
    assert finding.level == "error"
    assert finding.text.startswith(f"the loss has risen from {losses[0]:.4g} to ")
    assert finding.step == 2  # with these weights it rises from there on


def test_a_metric_that_never_changes(tmp_path: Path) -> None:
    run = fit(tmp_path, net(), metrics={"accuracy": lambda out, y: 0.0983}, max_epochs=6)
    assert said(run) == ["info: val_accuracy was 0.0983 at all 6 validations"]


# ---- runs that are well


def well(name: str) -> dict[str, Any]:
    x, y = data()
    target = x @ torch.arange(8.0)[:, None]
    cases: dict[str, dict[str, Any]] = {
        "classification": {"model": net(nn.BatchNorm1d(16), nn.Dropout(0.2)), "metrics": {"accuracy": lambda o, t: (o.argmax(1) == t).float().mean()}},
        "one_cycle": {"model": net(), "lr_schedule": "one_cycle", "lr": 1e-2},
        "warm-up": {"model": net(), "lr_schedule": "cosine", "warmup": 20, "lr": 1e-2},
        "regression": {"model": nn.Linear(8, 1), "train": (x, target), "val": (x, target), "loss": F.mse_loss, "optimizer": torch.optim.SGD, "lr": 0.05},
        "LBFGS": {"model": nn.Linear(8, 1), "train": (x, target), "val": (x, target), "loss": F.mse_loss, "optimizer": torch.optim.LBFGS, "lr": 1.0, "batch_size": 64},
        "likelihood": {"model": nn.Linear(8, 2), "loss": lambda o, t: (o[:, 1] + 0.5 * ((x.sum() * 0 + t.float() - o[:, 0]) / o[:, 1].exp()) ** 2).mean() - 3},
        "policy": {"model": net(), "loss": lambda o, t: -(F.log_softmax(o, 1)[torch.arange(len(t)), t] * (t.float() - 0.5)).mean()},
        "averaged": {"model": net(nn.BatchNorm1d(16)), "weight_averaging": "ema"},
        "sequences": {"model": Recurrent(), "train": (x[:, :, None], y), "val": (x[:, :, None], y)},
        "frozen": {"model": frozen()},
    }  # fmt: skip
    return cases[name]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = (
            nn.GRU(1, 8, num_layers=2, dropout=0.1, batch_first=True),
            nn.Linear(8, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x)[0][:, -1])
        return out


def frozen() -> nn.Module:
    model = net(nn.BatchNorm1d(16), nn.Dropout(0.1))
    for part in model[:3]:
        part.eval().requires_grad_(False)
    return model


WELL = [
    "classification",
    "one_cycle",
    "warm-up",
    "regression",
    "LBFGS",
    "likelihood",
    "policy",
    "averaged",
    "sequences",
    "frozen",
]


@pytest.mark.parametrize("name", WELL)
def test_runs_that_are_well_have_no_findings(tmp_path: Path, name: str) -> None:
    given = well(name)
    assert said(fit(tmp_path, given.pop("model"), max_epochs=15, **given)) == []


def test_a_game_of_two_has_no_findings(tmp_path: Path) -> None:
    from tests.lightning import gan

    torch.manual_seed(0)
    loader = DataLoader(
        TensorDataset(torch.randn(64, gan.WIDTH).tanh(), torch.zeros(64)), 16, shuffle=True
    )
    run = (
        wb.Workbench(gan.Gan(), train=loader, root=tmp_path, max_epochs=15, accelerator="cpu")
        .fit()
        .result()
    )
    assert said(run) == []
