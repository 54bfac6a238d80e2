"""torchvision and timm: models, transforms, data sets, optimizers and schedules."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import workbench as wb
from tests.ecosystem.twins import fit, in_batches, losses, plain, refused_by_name

torchvision = pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")
for part in ("optim", "scheduler", "loss", "data", "utils"):
    importlib.import_module(f"timm.{part}")


def pictures(transform: Any = None, n: int = 16) -> Any:
    from torchvision.transforms import v2

    whole = transform or v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    return torchvision.datasets.FakeData(n, (3, 32, 32), 4, whole)


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def test_resnet_on_fake_data(tmp_path: Path) -> None:
    model = torchvision.models.resnet18(num_classes=4)
    expected = plain(model, in_batches(pictures()), cross_entropy)
    assert (
        losses(fit(tmp_path, model, train=pictures(), val=pictures(n=8), loss=F.cross_entropy))
        == expected
    )


def test_deterministic_transforms_are_preloaded(tmp_path: Path) -> None:
    from torchvision.transforms import v2

    steps = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize(16),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4))
    expected = plain(model, in_batches(pictures(steps)), cross_entropy)
    assert (
        losses(fit(tmp_path, model, train=pictures(steps), loss=F.cross_entropy, preload=True))
        == expected
    )


def test_random_transforms_are_not_preloaded(tmp_path: Path) -> None:
    from torchvision.transforms import v2

    steps = v2.Compose(
        [v2.ToImage(), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    with pytest.raises(Exception, match="random"):
        fit(tmp_path, model, train=pictures(steps), loss=F.cross_entropy, preload=True)


def test_random_transforms_repeat_with_workers(tmp_path: Path) -> None:
    from torchvision.transforms import v2

    steps = v2.Compose([v2.ToImage(), v2.RandomCrop(24), v2.ToDtype(torch.float32, scale=True)])
    given: dict[str, Any] = {
        "train": pictures(steps),
        "loss": F.cross_entropy,
        "num_workers": 2,
        "shuffle": True,
    }
    made = [nn.Sequential(nn.Flatten(), nn.Linear(3 * 24 * 24, 4)) for _ in range(2)]
    made[1].load_state_dict(made[0].state_dict())
    assert losses(fit(tmp_path, made[0], **given)) == losses(fit(tmp_path, made[1], **given))


def test_cut_mix_in_the_collate_function(tmp_path: Path) -> None:
    from torch.utils.data import default_collate
    from torchvision.transforms import v2

    mix = v2.CutMix(num_classes=4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    run = fit(
        tmp_path,
        model,
        train=pictures(),
        loss=F.cross_entropy,
        collate_fn=lambda batch: mix(*default_collate(batch)),
    )
    assert np.isfinite(losses(run)).all()


def test_tv_tensors_stay_what_they_are(tmp_path: Path) -> None:
    from torchvision import tv_tensors

    seen = []

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(12, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(type(x))
            return self.head(x.flatten(1).as_subclass(torch.Tensor))

    samples = [(tv_tensors.Image(torch.rand(3, 2, 2)), i % 2) for i in range(8)]
    given = in_batches(samples)
    fit(tmp_path, Looks(), train=samples, loss=F.cross_entropy, max_epochs=1)
    assert set(seen) == {type(given[0][0])}


@pytest.mark.parametrize("name", ["resnet10t", "vit_tiny_patch16_224", "mobilenetv3_small_050"])
def test_timm_models(tmp_path: Path, name: str) -> None:
    size = {"img_size": 32} if name.startswith("vit") else {}
    model = timm.create_model(name, num_classes=4, drop_rate=0.0, **size)
    expected = plain(model, in_batches(pictures()), cross_entropy)
    assert losses(fit(tmp_path, model, train=pictures(), loss=F.cross_entropy)) == expected


def test_timm_optimizers(tmp_path: Path) -> None:
    for name in ("lamb", "adamp", "madgradw", "lion", "nadamw"):
        kind = timm.optim.get_optimizer_class(name)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
        expected = plain(model, in_batches(pictures()), cross_entropy, optimizer=kind, lr=1e-3)
        assert (
            losses(
                fit(
                    tmp_path, model, train=pictures(), loss=F.cross_entropy, optimizer=kind, lr=1e-3
                )
            )
            == expected
        ), name


def test_groups_of_timm_keep_their_ratios(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", num_classes=4, img_size=32)

    def make(params: Any, lr: float) -> Any:
        return timm.optim.create_optimizer_v2(model, "adamw", lr=lr, layer_decay=0.5)

    run = fit(tmp_path, model, train=pictures(), loss=F.cross_entropy, optimizer=make)
    assert np.isfinite(losses(run)).all()


def test_a_timm_schedule_is_used_as_timm_does_or_refused(tmp_path: Path) -> None:
    """Its step() takes the epoch or the number of updates: it is no LRScheduler of torch."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))

    def schedule(optimizer: Any, updates: int) -> Any:
        return timm.scheduler.CosineLRScheduler(optimizer, t_initial=updates, t_in_epochs=False)

    try:
        run = fit(tmp_path, model, train=pictures(), loss=F.cross_entropy, scheduler=schedule)
    except Exception as error:
        refused_by_name(error, "CosineLRScheduler")
        return
    other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-2)
    reference, rates = schedule(other, 4), []
    for update in range(4):
        rates.append(other.param_groups[0]["lr"])
        reference.step_update(update + 1)
    assert run.history["lr"].tolist() == pytest.approx(rates)


def test_timm_losses_and_soft_targets(tmp_path: Path) -> None:
    mix = timm.data.Mixup(num_classes=4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))

    def collate(batch: Any) -> Any:
        x, y = torch.utils.data.default_collate(batch)
        return mix(x, y)

    run = fit(
        tmp_path,
        model,
        train=DataLoader(pictures(), 8, collate_fn=collate),
        loss=timm.loss.SoftTargetCrossEntropy(),
    )
    assert np.isfinite(losses(run)).all()


def test_a_timm_average_beside_the_model(tmp_path: Path) -> None:
    average: list[Any] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
    average.append(timm.utils.ModelEmaV3(model))
    bench = wb.Workbench(
        average[0].module,
        train=pictures(),
        loss=F.cross_entropy,
        root=tmp_path,
        max_epochs=1,
        accelerator="cpu",
    )
    assert np.isfinite(losses(bench.fit().result())).all()


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    from PIL import Image
    from torchvision.transforms import v2

    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(
                tmp_path / "pictures" / name / f"{number}.png"
            )
    steps = v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    own = torchvision.datasets.ImageFolder(str(tmp_path / "pictures"), steps)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    expected = plain(model, in_batches(own), cross_entropy)
    assert losses(fit(tmp_path, model, train=own, val=own, loss=F.cross_entropy)) == expected
    with pytest.raises(Exception, match=r"PIL Image.*ToTensor") as error:
        fit(
            tmp_path,
            model,
            train=torchvision.datasets.ImageFolder(str(tmp_path / "pictures")),
            loss=F.cross_entropy,
        )
    refused_by_name(error.value, "train")


def test_mixup_of_timm_is_resumed(tmp_path: Path) -> None:
    """It draws from NumPy's random numbers of the process."""
    mix = timm.data.Mixup(mixup_alpha=0.8, num_classes=4)

    def collate(samples: Any) -> Any:
        return mix(*torch.utils.data.default_collate(samples))

    def bench(name: str) -> wb.Workbench:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 4))
        return wb.Workbench(model, train=pictures(), loss=timm.loss.SoftTargetCrossEntropy(), collate_fn=collate, batch_size=8, max_epochs=3,
                            lr=1e-3, root=tmp_path / name, accelerator="cpu", seed=3)  # fmt: skip

    whole = bench("whole").fit().result()
    parts = bench("parts")
    first = parts.fit(max_epochs=1).result()
    assert losses(parts.fit(start=first.id, max_epochs=3).result()) == losses(whole)


def test_a_loader_of_timm_that_keeps_its_workers(tmp_path: Path) -> None:
    """It iterates in a way of its own, over a sampler without an end."""
    samples = [
        (x, n % 4)
        for n, x in enumerate(torch.randn(16, 3, 4, 4, generator=torch.Generator().manual_seed(0)))
    ]
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
    own = timm.data.loader.MultiEpochsDataLoader(samples, batch_size=8)
    expected = plain(model, in_batches(samples), cross_entropy)
    assert losses(fit(tmp_path, model, train=own, loss=F.cross_entropy, dry_run=False)) == expected
