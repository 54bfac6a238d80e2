"""The batch-size search beside its peers: `python -m tests.benchmarks.batch_size [repeats] [maximum] [target]`.

repeats: how often several searches of a model recommend the same size, and what they cost. maximum: trials, updates, time and
distance from the true maximum, beside Lightning's and accelerate's where they are installed. On a CPU a process has a memory limit
there. With `--device cuda` the limits are 8 GiB and all that the device has, and the true maximum is bisected by a plain loop. target:
the time to a validation loss at the recommended size, as a multiple of that at the best of five sizes, with the standard error of the
ratio. Updates are counted in plain loops, with the best rate of a grid for each size; both are means of logarithms over the seeds. The time
of an update is measured alone, in turn. The recommendation is computed from these times and the noise scale that a search measures, at the
middle rate. It takes minutes for each task; `--tasks mlp friedman --seeds 2` is short.
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
from workbench.instruments.noise_scale import NoiseScale
from workbench.launch.process import fork_client
from workbench.settings import Settings
from workbench.task.factory import task_of
from workbench.tuners.batch_size.batch_size_choice import Epoch, choose
from workbench.tuners.batch_size.batch_size_finder import AT_LEAST
from workbench.tuners.batch_size.noise_trial import measure_noise, size_for_noise, stretch_of

from . import lr_tasks
from .lr_regret import batches, initial_loss, val_loss
from .lr_tasks import ADAM, ADAMW, DECAY, MOMENTUM, TASKS, Data, Task, cnn, digit_pictures, split

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


@functools.cache
def signals() -> tuple[Data, Data]:
    """Noisy waves of one of six frequencies, each with a phase of its own."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 6, (2500,), generator=g)
    phase, time = torch.rand(2500, 1, generator=g), torch.linspace(0, 1, 64)
    waves = torch.sin(2 * math.pi * ((3 + 2 * y[:, None]) * time + phase))
    x = waves + 1.5 * torch.randn(2500, 64, generator=g)
    return split(x[:, None], y, torch.long, scaled=False)


def signal_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 16, 9), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 16, 9), nn.ReLU(),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(64, 6),
    )  # fmt: skip


@functools.cache
def bags() -> tuple[Data, Data]:
    """Bags of twenty words from one of eight topics; one label of ten is wrong."""
    g = torch.Generator().manual_seed(0)
    topics = torch.softmax(1.5 * torch.randn(8, 300, generator=g), 1)
    y = torch.randint(0, 8, (3000,), generator=g)
    words = torch.multinomial(topics[y], 20, replacement=True, generator=g)
    wrong = torch.rand(3000, generator=g) < 0.1
    labels = torch.where(wrong, torch.randint(0, 8, (3000,), generator=g), y)
    return split(words, labels, torch.long, scaled=False)


class Bag(nn.Module):
    """The mean of the words' vectors, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(300, 32)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x.long()))  # type: ignore[no-any-return]


class Case(NamedTuple):
    """A task, and the learning rates of which each size takes the best one."""

    task: Task
    rates: tuple[float, ...]


NAMED = {task.name: task for task in TASKS}
CASES = {
    "mlp": Case(NAMED["digits mlp sgd"], (0.2, 0.4, 0.8, 1.5)),
    "friedman": Case(NAMED["friedman mlp momentum"], (0.02, 0.04, 0.08, 0.15)),
    "cnn": Case(
        Task(
            "digits cnn norm adamw",
            functools.partial(cnn, norm=True),
            digit_pictures,
            F.cross_entropy,
            ADAMW,
        ),
        (0.004, 0.01, 0.02, 0.04),
    ),
    "unbalanced": Case(NAMED["unbalanced mlp adamw"], (0.004, 0.008, 0.015, 0.03)),
    "autoencoder": Case(NAMED["autoencoder adam"], (0.004, 0.008, 0.015, 0.03)),
    "convnext": Case(
        Task("digits convnext adamw", ConvNeXt, digit_pictures, F.cross_entropy, DECAY),
        (0.002, 0.004, 0.008, 0.015),
    ),
    "transformer": Case(NAMED["text transformer adamw"], (0.001, 0.002, 0.004, 0.008)),
    # written after the rule
    "signals": Case(
        Task("signals conv1d momentum", signal_net, signals, F.cross_entropy, MOMENTUM),
        (0.01, 0.03, 0.08, 0.2),
    ),
    "bags": Case(
        Task("bags of words adam", Bag, bags, F.cross_entropy, ADAM), (0.003, 0.008, 0.02, 0.05)
    ),
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
SAMPLES, FEWEST, MOST = 12_000, 300, 800
"""A run reads so many samples, in at least and at most so many updates."""
Curve = list[tuple[int, float]]
"""Updates, and the validation loss after them."""


def target(names: Sequence[str], seeds: int) -> None:
    """Print a row for each task."""
    shares = " | ".join(f"{share:.0%}" for share in SHARES)
    print(f"| task | noise scale | recommended | {shares} |")
    print("|---" * (3 + len(SHARES)) + "|")
    for name in names:
        print(row(CASES[name], seeds), flush=True)


def row(case: Case, seeds: int) -> str:
    """The noise scale, the size recommended by it, and the time at this size to each share of the fall."""
    task = case.task
    seconds = update_seconds(task)
    passed = [Trial(size, True, each, size / each) for size, each in seconds.items()]
    noise = searched_noise(case, next(trial for trial in passed if trial.size == PRESENT))
    best = choose(passed, Epoch(len(task.data()[0][0]), 1, 10), noise, PRESENT).best or PRESENT
    curves = {
        (size, lr): [curve(task, size, lr, seed) for seed in range(seeds)]
        for size in SIZES
        for lr in case.rates
    }
    start = statistics.fmean(initial_loss(task, seed) for seed in range(seeds))
    lowest = min(
        statistics.fmean(min(loss for _, loss in run) for run in runs) for runs in curves.values()
    )
    cells = [
        task.name,
        noise.reason.partition(":")[0],
        f"{best} (stays)" if best == PRESENT else str(best),
    ]
    for share in SHARES:
        times = times_to(start - share * (start - lowest), start, curves, seconds)
        least = min(times.values())
        multiple = times[best].seconds / least.seconds
        error = 0.0 if times[best] == least else math.hypot(times[best].error, least.error)
        cells.append(
            f"{multiple:.2f} ± {multiple * error:.2f}" if math.isfinite(multiple) else "not reached"
        )
    return f"| {' | '.join(cells)} |"


class Time(NamedTuple):
    """The time to a loss, and the standard error of its logarithm."""

    seconds: float
    error: float


def times_to(
    loss: float,
    start: float,
    curves: Mapping[tuple[int, float], list[Curve]],
    seconds: Mapping[int, float],
) -> dict[int, Time]:
    """The time of each size to a loss with its best rate; infinite where a seed does not reach it."""
    times = dict.fromkeys(SIZES, Time(math.inf, 0.0))
    for (size, _), runs in curves.items():
        updates = [updates_to(loss, start, run) for run in runs]
        if all(map(math.isfinite, updates)):
            logs = [math.log(number) for number in updates]
            error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
            reached = Time(math.exp(statistics.fmean(logs)) * seconds[size], error)
            times[size] = min(times[size], reached)
    return times


def updates_to(loss: float, start: float, run: Curve) -> float:
    """The updates to a loss, between two validations by their line; inf: it is not reached."""
    before = (0, start)
    for updates, value in run:
        if value <= loss:
            share = (before[1] - loss) / (before[1] - value)
            return before[0] + (updates - before[0]) * share
        before = (updates, value)
    return math.inf


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


def searched_noise(case: Case, trial: Trial) -> NoiseScale:
    """The noise scale that a search measures, at the middle rate."""
    task, planned = case.task, SAMPLES // PRESENT
    torch.manual_seed(0)
    train, val = (TensorDataset(*data) for data in task.data())
    made = task_of(
        task.model(), train=train, val=val, test=None, loss=task.loss, optimizer=task.optimizer,
        scheduler=None, metrics=None, collate_fn=None,
    )  # fmt: skip
    settings = Settings.make(
        batch_size=PRESENT, lr=case.rates[len(case.rates) // 2], max_steps=planned,
        accelerator="cpu", num_workers=0, seed=0,
    )  # fmt: skip
    stretch = stretch_of(trial, planned, max(AT_LEAST, planned * (trial.seconds or 0.0)))
    size = size_for_noise(list(SIZES), len(train))
    return measure_noise(made, settings, size, len(train) // size, stretch=stretch)


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
    parser.add_argument("--seeds", type=int, default=4, help="of `target`")
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
