"""The batch-size search beside its peers: `python -m tests.benchmarks.batch_size [repeats] [maximum] [target]`.

repeats: how often several searches of a model recommend the same size, and what they cost. maximum: trials, updates, time and
distance from the true maximum, beside Lightning's and accelerate's where they are installed. On a CPU a process has a memory limit
there. With `--device cuda` the limits are 8 GiB and all that the device has, and the true maximum is bisected by a plain loop. target:
the time to a validation loss at the recommended size, as a multiple of that at the best of five sizes. Updates are counted in plain
loops, with the best rate of a grid for each size. Their time is measured alone, in turn. The recommendation is computed from
these times and the noise scale. It takes minutes for each task and seed; `--tasks mlp friedman --seeds 1` is short.
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
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from workbench.events import Trial
from workbench.instruments.core_time import core_seconds
from workbench.instruments.noise_scale import Sketch, noise_scale, rounded
from workbench.launch.process import fork_client
from workbench.tuners.batch_size.batch_size_choice import Epoch, choose

from . import lr_tasks
from .lr_regret import batches, initial_loss, val_loss
from .lr_tasks import ADAMW, DECAY, TASKS, Task, cnn, digit_pictures

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


class ConvNeXt(nn.Module):
    """Three blocks of a depthwise convolution and an MLP (Liu et al., "A ConvNet for the 2020s", 2022)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, width, 2, 2), nn.Linear(width, 10)
        self.depthwise = nn.ModuleList(
            nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(3)
        )
        self.pointwise = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Linear(4 * width, width),
            )
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for depthwise, pointwise in zip(self.depthwise, self.pointwise, strict=True):
            x = x + pointwise(depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


class Case(NamedTuple):
    """A task, and the learning rates of which each size takes the best one."""

    task: Task
    rates: tuple[float, ...]


NAMED = {task.name: task for task in TASKS}
CASES = {
    "mlp": Case(NAMED["digits mlp sgd"], (0.03, 0.1, 0.3, 1, 3)),
    "friedman": Case(NAMED["friedman mlp momentum"], (0.01, 0.03, 0.1)),
    "cnn": Case(
        Task(
            "digits cnn norm adamw",
            functools.partial(cnn, norm=True),
            digit_pictures,
            F.cross_entropy,
            ADAMW,
        ),
        (0.003, 0.01, 0.03),
    ),
    "unbalanced": Case(NAMED["unbalanced mlp adamw"], (0.003, 0.01, 0.03)),
    "autoencoder": Case(NAMED["autoencoder adam"], (0.003, 0.01, 0.03)),
    "convnext": Case(
        Task("digits convnext adamw", ConvNeXt, digit_pictures, F.cross_entropy, DECAY),
        (0.003, 0.01, 0.03),
    ),
    "transformer": Case(NAMED["text transformer adamw"], (0.001, 0.003, 0.01)),
}
REPEATED = ("mlp", "cnn", "convnext", "transformer")


def repeats(names: Sequence[str], searches: int) -> None:
    """Print how often each size was recommended, and what a search costs."""
    # else each trial of a model whose class is there would import scikit-learn, for 2 s
    fork_client.IF_LOADED += (lr_tasks.__name__,)
    for name in names:
        task = CASES[name].task
        train, val = task.data()
        best = collections.Counter[int | None]()
        tried, seconds = list[int](), list[float]()
        with tempfile.TemporaryDirectory() as root:
            torch.manual_seed(0)
            searched_bench = wb.Workbench(
                task.model(), train=train, val=val, loss=task.loss, optimizer=task.optimizer,
                root=root, accelerator="cpu", enable_progress_bar=False, num_workers=0,
            )  # fmt: skip
            with contextlib.closing(searched_bench):
                searched_bench.find_batch_size(max_val=2).result()  # starts the server of trials
                for _ in range(searches):
                    began = time.perf_counter()
                    sizes = searched_bench.find_batch_size().result()
                    seconds.append(time.perf_counter() - began)
                    best[sizes.best] += 1
                    tried.append(len(sizes.trials))
        often = ", ".join(f"{size} in {count}" for size, count in best.most_common())
        print(
            f"repeats, {task.name}: best {often} of {searches};"
            f" {' or '.join(map(str, sorted(set(tried))))} sizes tried;"
            f" {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})",
            flush=True,
        )


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


SIZES = (16, 32, 64, 128, 256)
PRESENT = 32
SHARES = (0.8, 0.9, 0.95)
"""Of the fall from the loss of the initial weights to the lowest of all runs."""
AFTER = (0, 10, 30)
"""The noise scale is measured after so many updates."""
SAMPLES, FEWEST, MOST = 20_000, 300, 1500
"""A run reads so many samples, in at least and at most so many updates."""
Curve = list[tuple[int, float]]
"""Updates, and the validation loss after them."""


def target(names: Sequence[str], seeds: int) -> None:
    """Print a row for each task."""
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    after = f"{', '.join(map(str, AFTER[:-1]))} and {AFTER[-1]}"
    print(f"| task | N after {after} updates | recommended by these | {shares} |")
    print("|---" * (3 + len(SHARES)) + "|")
    for name in names:
        print(row(CASES[name], seeds), flush=True)


def row(case: Case, seeds: int) -> str:
    """The noise scales, the sizes recommended by them, and the time at each to each share of the fall."""
    task = case.task
    seconds = update_seconds(task)
    passed = [Trial(size, True, each, size / each) for size, each in seconds.items()]
    epoch = Epoch(len(task.data()[0][0]), 1, 10)
    noise = noise_scales(case)
    best = [choose(passed, epoch, scale, PRESENT).best or PRESENT for scale in noise]
    curves = {
        (size, lr): [curve(task, size, lr, seed) for seed in range(seeds)]
        for size in SIZES
        for lr in case.rates
    }
    start = statistics.fmean(initial_loss(task, seed) for seed in range(seeds))
    lowest = min(loss for runs in curves.values() for run in runs for _, loss in run)
    recommended = list(dict.fromkeys(best))
    cells = [
        task.name,
        ", ".join("not known" if scale is None else rounded(scale) for scale in noise),
        ", ".join(f"{size} (stays)" if size == PRESENT else str(size) for size in recommended),
    ]
    for share in SHARES:
        times = times_to(start - share * (start - lowest), curves, seconds)
        multiples = (times[size] / min(times.values()) for size in recommended)
        cells.append(
            ", ".join(f"{m:.2f}" if math.isfinite(m) else "not reached" for m in multiples)
        )
    return f"| {' | '.join(cells)} |"


def times_to(
    loss: float, curves: Mapping[tuple[int, float], list[Curve]], seconds: Mapping[int, float]
) -> dict[int, float]:
    """The seconds of each size to a loss with its best rate: the median of the seeds, where all reach it; else infinite."""
    times = dict.fromkeys(SIZES, math.inf)
    for (size, _), runs in curves.items():
        updates = [
            next((update for update, value in run if value <= loss), math.inf) for run in runs
        ]
        if all(map(math.isfinite, updates)):
            times[size] = min(times[size], statistics.median(updates) * seconds[size])
    return times


def update_seconds(task: Task) -> dict[int, float]:
    """The typical seconds of an update at each size. The sizes take turns."""
    updates: dict[int, Callable[[], float]] = {}
    for size in SIZES:
        torch.manual_seed(0)
        model = task.model()
        updates[size] = functools.partial(
            update, task, model, task.optimizer(model.parameters(), lr=1e-4), batches(task.data()[0], size, 0)
        )  # fmt: skip
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(15):
        for size in SIZES:
            times[size] += [core_seconds(updates[size]) for _ in range(6)]
    return {size: statistics.median(of_size) for size, of_size in times.items()}


def update(
    task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, feed: Iterator[Any]
) -> float:
    """Take one update, and return the loss of its batch."""
    x, y = next(feed)
    loss = task.loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def noise_scales(case: Case) -> list[float | None]:
    """The noise scale after each number of updates in `AFTER`, at the middle rate; None: not known."""
    task = case.task
    torch.manual_seed(0)
    model = task.model()
    optimizer = task.optimizer(model.parameters(), lr=case.rates[len(case.rates) // 2])
    feed = batches(task.data()[0], PRESENT, 0)
    scales, updates = list[float | None](), 0
    for after in AFTER:
        for _ in range(after - updates):
            update(task, model, optimizer, feed)
        updates = after
        scales.append(measured_noise(task, model))
    return scales


def measured_noise(task: Task, model: nn.Module, size: int = 16) -> float | None:
    """The noise scale at the present weights, from 80 batches of so many samples."""
    sketch, gradients = Sketch(list(model.parameters())), []
    for x, y in itertools.islice(batches(task.data()[0], size, 5), 80):
        model.zero_grad()
        task.loss(model(x), y).backward()
        gradients.append(sketch.take())
    model.zero_grad()
    return noise_scale(gradients, [size] * len(gradients), size).value


def curve(task: Task, size: int, lr: float, seed: int) -> Curve:
    """The validation losses of a run with a constant rate, ever further apart, while losses are finite."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model.parameters(), lr=lr)
    feed, losses, following = batches(task.data()[0], size, seed), Curve(), 1
    for updates in range(1, min(max(SAMPLES // size, FEWEST), MOST) + 1):
        if not math.isfinite(update(task, model, optimizer, feed)):
            break
        if updates < following:
            continue
        loss = val_loss(task, model)
        if not math.isfinite(loss):
            break
        losses.append((updates, loss))
        following = max(updates + 1, int(updates * 1.1))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=["repeats", "maximum", "target", []])
    parser.add_argument(
        "--tasks", nargs="+", choices=CASES, help=f"of `repeats` ({', '.join(REPEATED)}) and `target` (all)"
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=2, help="of `target`")
    parser.add_argument("--searches", type=int, default=10, help="of `repeats`")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: of `maximum`, which is then all that runs",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    modes: dict[str, Callable[[], None]] = {
        "repeats": functools.partial(repeats, options.tasks or REPEATED, options.searches),
        "maximum": functools.partial(maximum, options.device),
        "target": functools.partial(target, options.tasks or tuple(CASES), options.seeds),
    }
    for what in options.what or (modes if options.device == "cpu" else ["maximum"]):
        modes[what]()


if __name__ == "__main__":
    main()
