"""The batch-size search beside its peers: `python -m tests.benchmarks.batch_size [repeat] [maximum] [target]`.

repeat: how often twenty searches on the digits recommend the same size. maximum: trials, updates, time and distance from the
true maximum, beside Lightning's and accelerate's where they are installed. On a CPU a process has a memory limit there. With
`--device cuda` the limits are 8 GiB and all that the device has, and the true maximum is bisected by a plain loop. target:
updates, epochs and seconds to 97% of the validation digits at the recommended size, at the fastest one and at the noise scale, each
with the rate that find_lr suggests there.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import gc
import importlib.util
import io
import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
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
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
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
    print(
        f"repeat: {count} searches of {statistics.median(seconds):.1f} s; best {dict(best)}, fastest {dict(fastest)}"
    )
    print(found)


class Counted(nn.Module):
    """A model that notes in a file, which other processes share, each size that it is given, and each update that it passes."""

    def __init__(self, log: str) -> None:
        super().__init__()
        self.log = log

    def note(self, what: str, size: int) -> None:
        if self.training:
            with open(self.log, "a") as file:
                file.write(f"{what} {size}\n")


class Hungry(Counted):
    """A model whose memory grows by `EACH` for a sample, and ends at `limit` (0: nowhere in this process)."""

    def __init__(self, log: str, limit: int = 0) -> None:
        super().__init__(log)
        self.layer, self.limit = nn.Linear(8, 2), limit

    def forward(self, x: Tensor) -> Tensor:
        self.note("tried", len(x))
        if self.limit and len(x) * EACH > self.limit:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        room = torch.ones(len(x), EACH // 4)
        out = self.layer(x) + room[:, :1] * 0
        self.note("passed", len(x))
        return out  # type: ignore[no-any-return]


class Blocks(Counted):
    """Eight residual blocks over 512 tokens, which take about 20 MB for a sample."""

    def __init__(self, log: str) -> None:
        super().__init__(log)
        self.first, self.last = nn.Linear(8, 256), nn.Linear(256, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
            for _ in range(8)
        )

    def forward(self, x: Tensor) -> Tensor:
        self.note("tried", len(x))
        x = self.first(x)[:, None].expand(-1, 512, -1)
        for block in self.blocks:
            x = x + block(x)
        out = self.last(x.mean(1))
        self.note("passed", len(x))
        return out  # type: ignore[no-any-return]


def maximum(device: str) -> None:
    data = torch.randn(20_000, 8), torch.randint(0, 2, (20_000,))
    for limit in (64, 256, 1024) if device == "cpu" else (8 * 1024, None):
        with limited(limit, device):
            # On a CPU the true maximum is what fits in the peer's process, where no other memory is counted.
            true = bisected(data) if limit is None or device == "cuda" else limit * 2**20 // EACH
            print(
                f"maximum, {'all memory' if limit is None else f'{limit} MiB'}: {true} samples and no more"
            )
            for name, search in (
                ("workbench", by_workbench),
                ("Lightning", by_lightning),
                ("accelerate", by_accelerate),
            ):
                if importlib.util.find_spec(name.lower()):
                    print(f"    {name}: {searched(search, data, limit, device, true)}", flush=True)


@contextlib.contextmanager
def limited(limit: int | None, device: str) -> Iterator[None]:
    """On CUDA, give this process so many MiB at the most; None: all there are."""
    if device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else limit * 2**20 / total)
    yield
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0)


def bisected(data: Any) -> int:
    """The largest size at which a plain loop makes three updates on the device."""
    with tempfile.NamedTemporaryFile() as log:
        model = Blocks(log.name).cuda()
        low, high = 1, 2
        while fits(model, data, high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(model, data, middle) else (low, middle)
    return low


def fits(model: nn.Module, data: Any, size: int) -> bool:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        for x, y in itertools.islice(DataLoader(TensorDataset(*data), size), 3):
            F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        return False
    finally:
        optimizer.zero_grad()
        gc.collect()
        torch.cuda.empty_cache()
    return len(data[0]) >= size


def searched(
    search: Callable[..., int], data: Any, limit: int | None, device: str, true: int
) -> str:
    """What a search finds, and what it costs."""
    with tempfile.NamedTemporaryFile("r") as log, tempfile.TemporaryDirectory() as root, quiet():
        began = time.perf_counter()
        size = search(log.name, data, limit, device, root)
        seconds = time.perf_counter() - began
        noted = [line.split() for line in log]
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    trials = len({size for what, size in noted if what == "tried"})
    updates = sum(what == "passed" for what, _ in noted)
    return f"{size}, {size / true - 1:+.1%} of the true maximum; {trials} trials, {updates} updates, {seconds:.1f} s"


def by_workbench(log: str, data: Any, limit: int | None, device: str, root: str) -> int:
    model = Blocks(log) if device == "cuda" else Hungry(log)
    ours = wb.Workbench(
        model,
        train=data,
        loss=F.cross_entropy,
        optimizer=torch.optim.SGD,
        root=root,
        accelerator=device,
        num_workers=0,
    )
    try:
        found = ours.find_batch_size(
            mode="binsearch",
            max_memory=None if limit is None or device == "cuda" else limit * 2**20,
        ).result()
    finally:
        ours.close()
    return found.largest or 0


def by_lightning(log: str, data: Any, limit: int | None, device: str, root: str) -> int:
    import lightning.pytorch as pl
    from lightning.pytorch.tuner import Tuner

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = (
                Blocks(log) if device == "cuda" else Hungry(log, (limit or 0) * 2**20),
                2,
            )

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*data), self.batch_size)

    accelerator = "gpu" if device == "cuda" else "cpu"
    trainer = pl.Trainer(
        accelerator=accelerator,
        devices=1,
        default_root_dir=root,
        logger=False,
        enable_checkpointing=False,
        max_epochs=1,
    )
    return int(Tuner(trainer).scale_batch_size(Module(), mode="binsearch") or 0)


def by_accelerate(log: str, data: Any, limit: int | None, device: str, root: str) -> int:
    from accelerate.utils import find_executable_batch_size

    model = Blocks(log).cuda() if device == "cuda" else Hungry(log, (limit or 0) * 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @find_executable_batch_size(starting_batch_size=16_384)
    def train(batch_size: int) -> int:
        for x, y in itertools.islice(DataLoader(TensorDataset(*data), batch_size), 3):
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
            optimizer.zero_grad()
        return batch_size

    return int(train())


def target(seeds: int = 3) -> None:
    with tempfile.TemporaryDirectory() as root:
        found = bench(root).find_batch_size().result()
        noise = None if found.noise_scale is None else max(1, round(found.noise_scale))
        for role, size in (
            ("best", found.best),
            ("fastest", found.fastest),
            ("noise scale", noise),
        ):
            rows = [to_target(root, size or 32, seed) for seed in range(seeds)]
            epochs, updates, seconds = (
                statistics.median(column) for column in zip(*rows, strict=True)
            )
            print(
                f"target: {role} {size}: {epochs:g} epochs, {updates:g} updates, {seconds:.1f} s to {TARGET:.0%}"
            )


def to_target(root: str, size: int, seed: int) -> tuple[float, float, float]:
    """Epochs, updates and seconds until the validation accuracy is reached."""
    some = bench(root, batch_size=size, seed=seed, max_epochs=100, lr_schedule="constant")
    some.set(lr=some.find_lr().result().suggestion or 1e-3)
    began = time.perf_counter()
    job = some.fit(
        early_stopping=wb.EarlyStopping(
            "val_accuracy", mode="max", patience=100, stopping_threshold=TARGET
        )
    )
    run = job.result()
    return run.epochs, run.step, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=["repeat", "maximum", "target", []])
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: of `maximum`, which is then all that runs",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    for what in options.what or (
        ("repeat", "maximum", "target") if options.device == "cpu" else ("maximum",)
    ):
        {"repeat": repeat, "maximum": functools.partial(maximum, options.device), "target": target}[
            what
        ]()


if __name__ == "__main__":
    main()
