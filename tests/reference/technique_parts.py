"""The parts of the slow twin that are not the loop: multipliers, pieces in time, averages, patience."""

import contextlib
import math
from dataclasses import dataclass, field

import torch
from torch.optim.swa_utils import (
    SWALR,
    AveragedModel,
    get_ema_multi_avg_fn,
    get_swa_multi_avg_fn,
    update_bn,
)


@dataclass
class Record:
    """What a run leaves: one row per update in `columns`, (step, metrics) per check, the weights at the end."""

    columns: dict = field(default_factory=dict)
    validations: list = field(default_factory=list)
    weights: dict = field(default_factory=dict)
    epochs: int = 0

    @property
    def losses(self):
        return self.columns.get("loss", [])

    @property
    def lrs(self):
        return self.columns["lr"]

    @property
    def grad_norms(self):
        return self.columns["grad_norm"]

    @property
    def clipped_norms(self):
        return self.columns["grad_norm_clipped"]

    def row(self, **values):
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)


@dataclass
class Scheduled:
    """A torch scheduler and when it steps: "step" (updates), "batch" (updates, at every n-th batch of an epoch), "epoch", or "check" (a plateau one, with its metric)."""

    scheduler: object
    when: str = "step"
    frequency: int = 1
    monitor: str = "val_loss"


def size_at(accumulate, epoch):
    """Batches in a window of this epoch."""
    if isinstance(accumulate, int):
        return accumulate
    size = 1
    for begin in sorted(accumulate):
        if begin <= epoch:
            size = accumulate[begin]
    return size


def updates_in(batches, accumulate, epochs):
    """Updates of so many epochs of so many batches."""
    return sum(math.ceil(batches / size_at(accumulate, epoch)) for epoch in range(epochs))


def multiplier(kind, updates, warmup):
    """k -> the factor on the base rate at update k of so many, as docs/concepts/techniques.md has it."""
    rise = round(warmup * updates) if isinstance(warmup, float) else warmup

    def factor(k):
        if k < rise:
            return (k + 1) / rise
        if kind == "linear":
            return (updates - k) / (updates - rise)
        if kind == "cosine":
            return 0.5 * (1 + math.cos(math.pi * (k - rise) / (updates - rise)))
        return 1.0

    return factor


def one_cycle(optimizer, updates, warmup):
    """torch's OneCycleLR with its peak at the group's own rate."""
    rise = round(warmup * updates) if isinstance(warmup, float) else warmup
    first = optimizer.param_groups[0]
    return torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [group["lr"] for group in optimizer.param_groups], total_steps=updates,
        pct_start=rise / updates if warmup else 0.3, cycle_momentum="betas" in first or bool(first.get("momentum")),
    )  # fmt: skip


def pieces(batches, length, time_dim):
    """(batch, whether hidden state begins anew, its weight in time); whole batches where `length` is None."""
    for batch in batches:
        if length is None or batch is None:
            yield batch, True, 1
            continue
        parts = list(zip(*(x.split(length, time_dim) for x in batch), strict=True))
        for number, part in enumerate(parts):
            yield part, number == 0, part[0].shape[time_dim]


def detached(hiddens):
    if isinstance(hiddens, (tuple, list)):
        return tuple(detached(h) for h in hiddens)
    return hiddens.detach() if isinstance(hiddens, torch.Tensor) else hiddens


class Average:
    """EMA over updates or SWA over the ends of epochs, in torch's AveragedModel.

    batches: makes the pass over the training data for BatchNorm. start: the epoch (SWA) or update (EMA) it begins at.
    """

    def __init__(
        self,
        kind,
        batches,
        *,
        decay=0.999,
        every=1,
        start=0,
        start_epoch=0,
        lr=None,
        epochs=10,
        strategy="cos",
        warmup=True,
    ):
        self.kind, self.batches, self.decay = kind, batches, decay
        self.every, self.start, self.start_epoch = every, start, start_epoch
        self.lr, self.epochs, self.strategy = lr, epochs, strategy
        self.warmup = warmup
        self.averaged = None

    @property
    def there(self):
        return self.averaged is not None

    def takes_over(self, epoch):
        return self.kind == "swa" and self.lr is not None and epoch == self.start

    def schedules(self, optimizers):
        return [
            Scheduled(SWALR(o, self.lr, self.epochs, self.strategy), "epoch") for o in optimizers
        ]

    def after_update(self, model, count, epoch):
        if (
            self.kind == "ema"
            and count > self.start
            and count % self.every == 0
            and epoch >= self.start_epoch
        ):
            self._take(model)

    def after_epoch(self, model, epoch):
        if self.kind == "swa" and epoch >= self.start:
            self._take(model)

    def _take(self, model):
        if self.averaged is None:
            # torch's own default on the CPU is another formula for the same mean: other last bits.
            fn = self._of_ema if self.kind == "ema" else get_swa_multi_avg_fn()
            self.averaged = AveragedModel(model, multi_avg_fn=fn)
        self.averaged.update_parameters(model)

    def _of_ema(self, averages, values, count):
        n = int(count)
        decay = min(self.decay, (1 + n) / (10 + n)) if self.warmup else self.decay
        get_ema_multi_avg_fn(decay)(averages, values, count)

    def copy_to(self, model, autocast):
        with torch.random.fork_rng(devices=[]), autocast():
            update_bn(self.batches(), self.averaged)
        model.load_state_dict(self.averaged.module.state_dict())

    @contextlib.contextmanager
    def in_place_of(self, model, autocast):
        raw = {name: value.clone() for name, value in model.state_dict().items()}
        self.copy_to(model, autocast)
        yield
        model.load_state_dict(raw)


class Stopper:
    """Patience with one metric, written out from the help of `wb.EarlyStopping`."""

    def __init__(self, setting):
        self.setting, self.monitor = setting, setting.monitor
        self.best, self.waited, self.checks = None, 0, 0

    def ends(self, value):
        s = self.setting
        self.checks += 1
        sign = 1 if s.direction == "min" else -1  # from here on lower is better
        value = sign * value
        if s.check_finite and not math.isfinite(value):
            return True
        if s.stopping_threshold is not None and value < sign * s.stopping_threshold:
            return True
        if s.divergence_threshold is not None and value > sign * s.divergence_threshold:
            return True
        if self.best is None or value < self.best - s.min_delta:
            self.best, self.waited = value, 0
            return False
        self.waited += 1
        return self.waited >= s.patience and self.checks > s.warmup
