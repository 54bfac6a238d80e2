"""reload_dataloaders_every_n_epochs: the same loaders, batches and weights as with Lightning's Trainer, and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import workbench as wb
from tests.lightning.both import Losses, boring, pl, rows, same_state, trainer
from workbench.events import Message

pytestmark = pytest.mark.usefixtures("one_thread")


class Growing(boring.BoringModel):
    """Its data grow from epoch to epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int]] = []

    def train_dataloader(self) -> DataLoader[Any]:
        self.asked.append(("train", self.trainer.current_epoch))
        return DataLoader(rows(8 + 4 * self.trainer.current_epoch), batch_size=4)

    def val_dataloader(self) -> DataLoader[Any]:
        self.asked.append(("val", self.trainer.current_epoch))
        return DataLoader(rows(8, seed=self.trainer.current_epoch), batch_size=4)


def made(cls: type = Growing) -> Any:
    torch.manual_seed(0)
    return cls()


def bench_of(module: Any, root: Path, **settings: Any) -> wb.Workbench:
    return wb.Workbench(module, root=root, accelerator="cpu", num_sanity_val_steps=0, **settings)


@pytest.mark.parametrize("every", [0, 1, 2])
def test_as_lightning_reloads(every: int, tmp_path: Path) -> None:
    theirs, losses = made(), Losses()
    trainer(
        max_epochs=5,
        reload_dataloaders_every_n_epochs=every,
        num_sanity_val_steps=0,
        callbacks=[losses],
    ).fit(theirs)
    ours = made()
    with bench_of(ours, tmp_path, max_epochs=5, reload_dataloaders_every_n_epochs=every) as bench:
        ours.asked.clear()
        run = bench.fit().result()
    assert run.history["loss"].tolist() == np.float32(losses.values).tolist()
    assert sorted(ours.asked) == sorted(theirs.asked)
    same_state(ours, theirs)


class Drawn(pl.LightningModule):
    """Each loader holds other samples, drawn at random, in a random order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=4, shuffle=True)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("steps", [7, 10, 17, 20])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_resumed_fit_has_the_loaders_of_the_run(every: int, steps: int, tmp_path: Path) -> None:
    with bench_of(
        made(Drawn), tmp_path / "whole", max_epochs=5, reload_dataloaders_every_n_epochs=every
    ) as bench:
        whole, weights = bench.fit().result(), bench.model.state_dict()
    with bench_of(
        made(Drawn), tmp_path / "cut", max_epochs=5, reload_dataloaders_every_n_epochs=every
    ) as bench:
        cut = bench.fit(max_steps=steps).result()
    with bench_of(
        made(Drawn), tmp_path / "cut", max_epochs=5, reload_dataloaders_every_n_epochs=every
    ) as bench:
        rest = bench.fit(start=cut.id, max_steps=None).result()
        assert rest.history["loss"].tolist() == whole.history["loss"].tolist()
        assert all(
            torch.equal(value, weights[name]) for name, value in bench.model.state_dict().items()
        )


class Fixed(Drawn):
    """Always the same samples."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(
            TensorDataset(torch.arange(80.0).reshape(20, 4)), batch_size=4, shuffle=True
        )


def test_the_order_of_samples_is_another_one_in_each_epoch(tmp_path: Path) -> None:
    seen: list[list[float]] = []
    for every in (0, 1):
        with bench_of(
            made(Fixed),
            tmp_path / str(every),
            max_epochs=3,
            reload_dataloaders_every_n_epochs=every,
            lr=0.0,
        ) as bench:
            bench.fit().result()
            seen.append(bench.runs[-1].history["loss"].tolist())
    assert seen[0] == seen[1]


class Noisy(TensorDataset):
    """Each sample is drawn anew, in a worker."""

    def __getitem__(self, index: int) -> Any:
        return (super().__getitem__(index)[0] + torch.rand(4),)


class FromWorkers(Drawn):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Noisy(torch.ones(8, 4)), batch_size=4, num_workers=1)


def test_workers_draw_other_numbers_in_each_epoch(tmp_path: Path) -> None:
    found = []
    for every in (0, 1):
        with bench_of(
            made(FromWorkers),
            tmp_path / str(every),
            max_epochs=3,
            reload_dataloaders_every_n_epochs=every,
        ) as bench:
            found.append(bench.fit().result().history["loss"].tolist())
    assert found[0] == found[1]
    assert len({*found[0]}) == 6


class Sampled(Drawn):
    """All ranks read one order, which a sampler without a generator draws."""

    def train_dataloader(self) -> DataLoader[Any]:
        sampler = WeightedRandomSampler(torch.ones(16).tolist(), 16)
        return DataLoader(
            TensorDataset(torch.arange(64.0).reshape(16, 4)), batch_size=4, sampler=sampler
        )


def test_ranks_have_another_order_in_each_epoch(tmp_path: Path) -> None:
    found = []
    for every in (0, 1):
        with bench_of(
            made(Sampled),
            tmp_path / str(every),
            max_epochs=3,
            reload_dataloaders_every_n_epochs=every,
            devices=2,
            lr=0.0,
        ) as bench:
            found.append(bench.fit().result().history["loss"].tolist())
    assert found[0] == found[1]


class Dies(Growing):
    """Its fit fails at an update."""

    at = -1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.trainer.global_step == self.at:
            raise OSError("no more")
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("at", [4, 6, 10])
def test_a_schedule_keeps_its_plan_after_a_resume(at: int, tmp_path: Path) -> None:
    """It is planned for the epochs as the first one is, and a message says that they are not."""
    given = {
        "max_epochs": 4,
        "reload_dataloaders_every_n_epochs": 1,
        "lr_schedule": "cosine",
        "checkpoint_every": 1,
    }
    with bench_of(made(Dies), tmp_path / "whole", **given) as bench:
        whole = bench.fit().result()
        (told,) = [
            event.text
            for event in whole.events
            if isinstance(event, Message) and "lr_schedule" in event.text
        ]
        assert told.startswith(
            "epoch 1 has 3 batches, and the one before had 2: lr_schedule='cosine' was planned for 8 updates"
        )
    dies = made(Dies)
    dies.at = at
    with (
        bench_of(dies, tmp_path / "cut", **given) as bench,
        pytest.raises(OSError, match="no more"),
    ):
        bench.fit().result()
    with bench_of(made(Dies), tmp_path / "cut", **given) as bench:
        rest = bench.fit(start="0001-fit").result()
    assert rest.resumes[0].step == at
    assert rest.history["lr"].tolist() == whole.history["lr"].tolist()
    assert rest.history["loss"].tolist() == whole.history["loss"].tolist()


class Empty(Growing):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(rows(8)[: 8 * (self.trainer.current_epoch == 0)], batch_size=4)


def test_loaders_that_become_empty(tmp_path: Path) -> None:
    with (
        bench_of(made(Empty), tmp_path, max_epochs=2, reload_dataloaders_every_n_epochs=1) as bench,
        pytest.raises(wb.TaskError, match=r"train.* no samples"),
    ):
        bench.fit().result()


class Stream(IterableDataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Any:
        return iter(rows(self.count))


class Streaming(Growing):
    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Stream(8 + 4 * self.trainer.current_epoch), batch_size=4)


def test_streams_without_a_length(tmp_path: Path) -> None:
    theirs, losses = made(Streaming), Losses()
    trainer(
        max_epochs=4,
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        callbacks=[losses],
    ).fit(theirs)
    ours = made(Streaming)
    with bench_of(ours, tmp_path, max_epochs=4, reload_dataloaders_every_n_epochs=1) as bench:
        assert bench.fit().result().history["loss"].tolist() == np.float32(losses.values).tolist()


def test_data_that_were_given_stay(tmp_path: Path) -> None:
    data = DataLoader(rows(24), batch_size=4, shuffle=True)
    found = []
    for every in (0, 1):
        with wb.Workbench(
            made(boring.BoringModel),
            train=data,
            val=None,
            root=tmp_path / str(every),
            accelerator="cpu",
            max_epochs=3,
            reload_dataloaders_every_n_epochs=every,
        ) as bench:
            found.append(bench.fit().result().history["loss"].tolist())
    assert found[0] == found[1]


def test_what_does_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(
        wb.SettingsError, match="reload_dataloaders_every_n_epochs=1 with preload=True"
    ):
        bench_of(made(), tmp_path, preload=True, reload_dataloaders_every_n_epochs=1)
    with bench_of(made(), tmp_path, max_epochs=2, reload_dataloaders_every_n_epochs=1) as bench:
        bench.fit().result()
        with pytest.raises(
            wb.SettingsError, match="a continued run keeps the settings that fix the sample order"
        ):
            bench.fit(start="continue", max_epochs=3, reload_dataloaders_every_n_epochs=2)
        with pytest.raises(
            wb.ExportError,
            match=r"reload_dataloaders_every_n_epochs.*a script makes each loader once",
        ):
            bench.export(tmp_path / "train.py", format="script")
