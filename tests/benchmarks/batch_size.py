"""The batch-size search beside its peers: `python -m tests.benchmarks.batch_size [repeat] [maximum] [target]`.

repeat: how often twenty searches on the digits recommend the same size. maximum: trials, updates and distance from the
true maximum on a real memory limit, beside Lightning's and accelerate's. target: updates, epochs and seconds to 97% of
the validation digits at the recommended size and at the fastest one, each with the rate that find_lr suggests there.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from workbench.demo import DigitNet, accuracy, digits

TARGET = 0.97
EACH = 256 * 1024
"""Bytes that a sample takes in a forward pass."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def bench(root: str, **settings: Any) -> wb.Workbench:
    torch.manual_seed(0)
    train, val = digits()
    return wb.Workbench(
        DigitNet(), train=train, val=val, loss=F.cross_entropy, metrics={"accuracy": accuracy}, optimizer=torch.optim.AdamW,
        root=root, accelerator="cpu", enable_progress_bar=False, num_workers=0, **settings,
    )  # fmt: skip


def repeat(count: int = 20) -> None:
    with tempfile.TemporaryDirectory() as root:
        some, seconds = bench(root), list[float]()
        best, fastest = collections.Counter[int | None](), collections.Counter[int | None]()
        for _ in range(count):
            began = time.perf_counter()
            found = some.find_batch_size().result()
            seconds.append(time.perf_counter() - began)
            best[found.best] += 1
            fastest[found.fastest] += 1
    print(f"repeat: {count} searches of {statistics.median(seconds):.1f} s; best {dict(best)}, fastest {dict(fastest)}")
    print(found)


class Hungry(nn.Module):
    """A model whose memory grows by `EACH` for a sample, and ends at `limit` (0: nowhere in this process)."""

    def __init__(self, limit: int = 0) -> None:
        super().__init__()
        self.layer, self.limit, self.calls = nn.Linear(8, 2), limit, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        if self.limit and len(x) * EACH > self.limit:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        room = torch.ones(len(x), EACH // 4)
        return self.layer(x) + room[:, :1] * 0  # type: ignore[no-any-return]


def maximum(limits: tuple[int, ...] = (64, 256, 1024)) -> None:
    """In MiB. The true maximum is what fits in the peer's process, where no other memory is counted."""
    data = torch.randn(20_000, 8), torch.randint(0, 2, (20_000,))
    for limit in limits:
        true = limit * 2**20 // EACH
        with tempfile.TemporaryDirectory() as root, quiet():
            ours = wb.Workbench(
                Hungry(), train=data, loss=F.cross_entropy, optimizer=torch.optim.SGD, root=root, accelerator="cpu", num_workers=0
            )
            began = time.perf_counter()
            found = ours.find_batch_size(mode="binsearch", max_memory=limit * 2**20).result()
            seconds = time.perf_counter() - began
        print(f"maximum, {limit} MiB ({true} samples and no more): ours {found.largest}, {found.ended}; {len(found.trials)} trials, {seconds:.1f} s")
        for name, search in (("Lightning binsearch", by_lightning), ("accelerate", by_accelerate)):
            with quiet():
                began = time.perf_counter()
                size, tried = search(Hungry(limit * 2**20), data)
                seconds = time.perf_counter() - began
            print(f"    {name}: {size}, {tried} trials, {seconds:.1f} s")


def by_lightning(model: Hungry, data: Any) -> tuple[int, int]:
    import lightning.pytorch as pl
    from lightning.pytorch.tuner import Tuner

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = model, 2

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*data), self.batch_size)

    with tempfile.TemporaryDirectory() as root:
        trainer = pl.Trainer(accelerator="cpu", default_root_dir=root, logger=False, enable_checkpointing=False, max_epochs=1)
        size = Tuner(trainer).scale_batch_size(Module(), mode="binsearch")
    return int(size or 0), len(set(model.calls))


def by_accelerate(model: Hungry, data: Any) -> tuple[int, int]:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=16_384)
    def train(batch_size: int) -> int:
        for n, (x, y) in enumerate(DataLoader(TensorDataset(*data), batch_size)):
            F.cross_entropy(model(x), y).backward()
            if n == 2:
                break
        return batch_size

    size = train()
    return int(size), len(set(model.calls))


def target(seeds: int = 3) -> None:
    with tempfile.TemporaryDirectory() as root:
        found = bench(root).find_batch_size().result()
        for role, size in (("best", found.best), ("fastest", found.fastest)):
            rows = [to_target(root, size or 32, seed) for seed in range(seeds)]
            epochs, updates, seconds = (statistics.median(column) for column in zip(*rows, strict=True))
            print(f"target: {role} {size}: {epochs:g} epochs, {updates:g} updates, {seconds:.1f} s to {TARGET:.0%}")


def to_target(root: str, size: int, seed: int) -> tuple[float, float, float]:
    """Epochs, updates and seconds until the validation accuracy is reached."""
    some = bench(root, batch_size=size, seed=seed, max_epochs=100, lr_schedule="constant")
    some.set(lr=some.find_lr().result().suggestion or 1e-3)
    began = time.perf_counter()
    job = some.fit(early_stopping=wb.EarlyStopping("val_accuracy", mode="max", patience=100, stopping_threshold=TARGET))
    run = job.result()
    return run.epochs, run.step, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["repeat", "maximum", "target", []])
    torch.set_num_threads(1)
    for what in parser.parse_args().what or ("repeat", "maximum", "target"):
        {"repeat": repeat, "maximum": maximum, "target": target}[what]()


if __name__ == "__main__":
    main()
