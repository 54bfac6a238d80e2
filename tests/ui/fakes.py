"""A bench that trains nothing: jobs that say what real ones say, with the numbers of a plausible small network.

Tests drive it at once (`speed=0`: as fast as it goes); a notebook may run it at a life-like speed and look.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.events import (
    BenchEvent,
    Called,
    Changed,
    ClipSearchEnded,
    Compared,
    CurveEnded,
    CurvePoint,
    DecaySearchEnded,
    DecayTrial,
    Event,
    ProfileEnded,
    RaceTrial,
    RecipeSearchEnded,
    RecipeTrial,
    RunEnded,
    RunStarted,
    SearchEnded,
    SettingsSet,
    SpeedSearchEnded,
    SpeedTrial,
    Status,
    StatusChanged,
    StepsDone,
    Suggestion,
    Trial,
    TrialStarted,
    TuneStep,
    TuneTrial,
    Validated,
    pack,
)
from workbench.export.errors import NotResumable
from workbench.settings import Settings

LAYERS = (
    "stem.conv",
    "stem.norm",
    *(f"block{b}.{p}" for b in range(1, 5) for p in ("conv1", "conv2", "norm")),
    "head",
)


@dataclass(frozen=True)
class Summary:
    name: str = "ResNet"
    parameters: int = 11_181_642
    trainable: int = 11_181_642
    bytes: int = 44_765_160
    device: str = "cuda:0"
    optimizers: int = 1
    optimizer: str = "adamw"
    own_schedule: bool = False


@dataclass(eq=False)
class FakeJob:
    """A job whose events come from a generator."""

    id: str
    kind: str
    settings: Settings
    make: Callable[[FakeJob], Iterator[Event]]
    events: list[Event] = field(default_factory=list)
    status: Status = "queued"
    changes: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False
    folder: Any = None
    waits_for: str = ""
    going: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        self.stopped = True
        self.going.set()

    def pause(self) -> None:
        self.going.clear()

    def resume(self) -> None:
        self.going.set()

    def change(self, **values: Any) -> None:
        self.changes.update(values)

    def done(self) -> bool:
        return self.over.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        return self.over.wait(timeout)


class FakeBench:
    """The part of a Workbench that the panel sees."""

    def __init__(
        self, speed: float = 0.0, epochs: int = 5, updates: int = 196, **settings: Any
    ) -> None:
        self.settings = Settings.make(**settings)
        self.summary = Summary()
        self.root = Path("no-such-folder")
        self.jobs: list[FakeJob] = []
        self.studies: list[Any] = []
        self.exported: list[str] = []
        self.export_options: dict[str, bool] = {}
        """Of the last export."""
        self.not_resumable = ""
        """Why its scripts cannot have `resume=True`; "": they can."""
        self.trouble: Exception | None = None
        """Raised by the next request, as a bench would."""
        self._speed, self._epochs, self._updates = speed, epochs, updates
        self._callbacks: list[Callable[[BenchEvent], None]] = []
        self._one = threading.Lock()

    @property
    def job(self) -> FakeJob | None:
        found = [job for job in self.jobs if job.status in ("running", "paused")] or self.jobs
        return found[-1] if found else None

    def on_close(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def subscribe(self, callback: Callable[[BenchEvent], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def tell(self, event: BenchEvent) -> None:
        for callback in list(self._callbacks):
            callback(event)

    def set(self, **changes: Any) -> None:
        self.settings = self.settings.replace(**changes)
        self.tell(SettingsSet(self.settings.model_dump()))
        self.tell(Called(f"bench.set({', '.join(f'{k}={v!r}' for k, v in changes.items())})"))

    def _rate_change(self, settings: Settings) -> None:
        return None

    def find_lr(self, **said: Any) -> FakeJob:
        return self._start("find_lr", lambda job: sweep(job, **said), **said)

    def find_batch_size(self, **said: Any) -> FakeJob:
        return self._start("find_batch_size", lambda job: sizes(job, **said), **said)

    def find_num_workers(self) -> FakeJob:
        return self._start("find_num_workers", speeds)

    def find_precision(self) -> FakeJob:
        return self._start(
            "find_precision", lambda job: speeds(job, "precision", ("32-true", "bf16-mixed"))
        )

    def find_clip_val(self) -> FakeJob:
        return self._start("find_clip_val", clips)

    def find_weight_decay(self) -> FakeJob:
        return self._start("find_weight_decay", decays)

    def find_recipe(self) -> FakeJob:
        return self._start("find_recipe", recipes)

    def tune(self, **said: Any) -> FakeJob:
        return self._start("tune", tuning, **said)

    def profile(self) -> FakeJob:
        return self._start("profile", profiling)

    def fit(self, start: str = "fresh", **settings: Any) -> FakeJob:
        said = {**({} if start == "fresh" else {"start": start}), **settings}
        return self._start("fit", lambda job: training(job, self._epochs, self._updates), **said)

    def compare(self, *runs: str) -> None:
        self.tell(Compared(runs))

    def export(
        self, path: str, run: str | None = None, *, format: str | None = None, **options: bool
    ) -> None:
        if self.trouble:
            raise self.trouble
        self.export_options = options
        self.exported.append(path if run is None else f"{path} of {run}")

    def script(self, run: str | None = None, *, format: str | None = None, **options: bool) -> str:
        if self.trouble:
            raise self.trouble
        if self.not_resumable and options.get("resume"):
            raise NotResumable(self.not_resumable)
        if format == "notebook":
            return '{"cells": [{"cell_type": "markdown", "source": ["# A"]}, {"cell_type": "code", "source": ["x = 1\\n", "y = 2"]}]}'
        return "".join(
            [f"# the script of {run or 'the last fit'}\n", *(f"# {o}\n" for o in options)]
        )

    def _start(self, kind: str, make: Callable[[FakeJob], Iterator[Event]], **said: Any) -> FakeJob:
        if self.trouble:
            raise self.trouble
        job = FakeJob(f"{kind}-{len(self.jobs) + 1}", kind, self.settings, make)
        job.going.set()
        self.jobs.append(job)
        self.tell(Called(f"bench.{kind}({', '.join(f'{k}={v!r}' for k, v in said.items())})"))
        self.tell(StatusChanged("queued"))
        threading.Thread(target=self._run, args=(job,), daemon=True).start()
        return job

    def _run(self, job: FakeJob) -> None:
        with self._one:
            for event in job.make(job):
                self._say(job, event)
                if not job.going.is_set() and not isinstance(event, RunEnded):
                    self._say(job, StatusChanged("paused"))
                    job.going.wait()
                    self._say(job, StatusChanged("running"))
                if self._speed and isinstance(event, StepsDone | CurvePoint | Trial):
                    time.sleep(self._speed * (5 if isinstance(event, Trial) else 1))
        job.over.set()

    def _say(self, job: FakeJob, event: Event) -> None:
        if isinstance(event, RunStarted):
            job.status = "running"
        elif isinstance(event, StatusChanged | RunEnded):
            job.status = event.status
        job.events.append(event)
        self.tell(event)


def flush(
    step: int, rows: int, epoch: int = 0, *, every: int = 1, layers: int = len(LAYERS), total: int = 1000,
    rng: np.random.Generator | None = None, lr: float = 1e-3, clip: float | None = None,
) -> StepsDone:  # fmt: skip
    """One flush of a run that learns."""
    rng = rng or np.random.default_rng(step)
    steps = step + every * np.arange(rows)
    share = steps / total
    loss = 0.32 + 2.0 * np.exp(-5 * share) + rng.normal(0, 0.10 + 0.12 * np.exp(-4 * share))
    norm = (0.6 + 3.5 * np.exp(-7 * share)) * rng.lognormal(0, 0.3, rows)
    depth = np.linspace(1.2, 0.15, layers)[None] * rng.lognormal(0, 0.12, (rows, layers))
    grown = np.exp(-2.5 * share)[:, None] * (1 + np.linspace(0, 2, layers)[None] * share[:, None])
    per_layer = (
        norm[:, None] * depth * grown * np.where(np.arange(layers) % 3 == 1, 0.06, 1.0)[None] / 2
    )
    columns = {
        "loss": pack(loss),
        "lr": pack(np.full(rows, lr)),
        "grad_norm": pack(norm),
        "grad_norm_clipped": pack(np.minimum(norm, clip) if clip else norm),
        "layer_norms": pack(per_layer),
    }
    return StepsDone(step, every, rows, epoch, float(steps[-1] + 1) / 7.6, columns)


def diverging(job: FakeJob) -> Iterator[Event]:
    """A fit whose loss grows until its only validation."""
    yield RunStarted(job.id, "fit", job.settings.model_dump(), "cuda:0", LAYERS, 60, 1)
    steps = flush(0, 60)
    losses = {"loss": pack(np.geomspace(2.0, 1e9, 60))}
    yield replace(steps, columns={**steps.columns, **losses})
    yield Validated(60, 0, {"val_loss": 8e8})
    yield RunEnded("finished", 60, 4.0, metrics={"val_loss": 8e8})


def training(job: FakeJob, epochs: int, updates: int) -> Iterator[Event]:
    total = epochs * updates
    settings = job.settings.model_dump()
    yield RunStarted(job.id, "fit", settings, "cuda:0", LAYERS, total, epochs)
    step = 0
    rng = np.random.default_rng(1)
    while step < total and not job.stopped:
        if job.changes:
            # at once: more may be asked for while this is told
            changes, job.changes = job.changes, {}
            settings |= changes
            yield Changed(step, changes)
        rows = min(7, total - step, updates - step % updates)
        yield flush(
            step,
            rows,
            step // updates,
            total=total,
            rng=rng,
            lr=settings["lr"],
            clip=settings["gradient_clip_val"],
        )
        step += rows
        if step % updates == 0 or step == total // 2:
            yield Validated(
                step,
                (step - 1) // updates,
                {"val_loss": 0.42 + 1.7 * math.exp(-4.6 * step / total)},
            )
    yield RunEnded(
        "stopped" if job.stopped else "finished", step, step / 7.6, metrics={"val_loss": 0.437}
    )


def speeds(
    job: FakeJob, name: str = "num_workers", values: tuple[Any, ...] = (0, 2)
) -> Iterator[Event]:
    """A search in which the last value is the fastest."""
    yield RunStarted(job.id, job.kind, job.settings.model_dump(), "cuda:0")
    for number, value in enumerate(values):
        yield SpeedTrial({name: value}, 100.0 * (1 + number), waiting=0.1)
    yield SpeedSearchEnded({name: values[-1]}, "twice as fast", "all tried")
    yield RunEnded("finished", 0, 4.0)


def clips(job: FakeJob) -> Iterator[Event]:
    """A search that finds a clip value."""
    yield RunStarted(job.id, "find_clip_val", job.settings.model_dump(), "cuda:0")
    yield ClipSearchEnded(
        {"gradient_clip_val": 0.5},
        0.5,
        ((0.1, 0.2, 3.0),),
        "some norms are up to 15 times those around them",
        "all taken",
    )
    yield RunEnded("finished", 0, 4.0)


def decays(job: FakeJob) -> Iterator[Event]:
    """A search in which more weight decay is better."""
    yield RunStarted(job.id, "find_weight_decay", job.settings.model_dump(), "cuda:0")
    yield DecayTrial(0.01, 200, 0.5)
    yield DecayTrial(0.1, 200, 0.25)
    yield DecaySearchEnded(
        {"weight_decay": 0.1}, 0.1, "at 0.1 it is clearly lower", "all values tried"
    )
    yield RunEnded("finished", 0, 4.0)


def recipes(job: FakeJob) -> Iterator[Event]:
    """A race of recipes that Muon wins."""
    muon = {"optimizer": "muon", "lr": 0.03, "lr_schedule": "cosine"}
    yield RunStarted(job.id, "find_recipe", job.settings.model_dump(), "cuda:0")
    yield RecipeTrial({}, 200, 0.5)
    yield RecipeTrial(muon, 200, 0.25)
    yield RecipeSearchEnded(muon, "it is clearly lower", "few updates", "all recipes tried")
    yield RunEnded("finished", 0, 4.0)


def profiling(job: FakeJob) -> Iterator[Event]:
    """A profile of updates that wait for their data."""
    yield RunStarted(job.id, "profile", job.settings.model_dump(), "cuda:0")
    yield ProfileEnded(
        "62% of an update is waiting for data: raise num_workers.",
        "all updates taken",
        20,
        parts={"data": 0.0062, "forward": 0.0038},
        memory=((0.0, 1e6), (0.01, 2e6)),
    )
    yield RunEnded("finished", 0, 4.0)


def tuning(job: FakeJob) -> Iterator[Event]:
    """A batch-size search and a raced sweep in one job."""
    yield RunStarted(job.id, "tune", job.settings.model_dump(), "cuda:0")
    inner = (RunStarted, RunEnded)
    yield from (event for event in sizes(job) if not isinstance(event, inner))
    yield TuneStep("find_batch_size", {"batch_size": 256}, "why")
    yield from (event for event in sweep(job, race=True) if not isinstance(event, inner))
    yield TuneStep("find_lr", {"lr": 4.7e-3}, "why")
    for values, loss in (({"batch_size": 256, "lr": 4.7e-3}, 0.5), ({}, 0.4)):
        yield TuneTrial(values, 100, loss)
    yield TuneStep("check", {}, "why")
    yield RunEnded("finished", 0, 20.0)


def sweep(
    job: FakeJob, optimizer: int = 0, shift: float = 1.0, race: bool = False
) -> Iterator[Event]:
    """shift: the curve lies at rates that are so many times as high."""
    groups = ((("backbone", 1.0), ("head", 10.0)), (("", 0.5),))
    yield RunStarted(
        job.id, "find_lr", job.settings.model_dump(), "cuda:0", updates=100, groups=groups,
        request={"min_lr": 1e-5, "max_lr": 10.0, "optimizer": optimizer},
    )  # fmt: skip
    rng = np.random.default_rng(3)
    smoothed, debias = 0.0, 1.0
    lrs = np.geomspace(1e-5, 10, 100)
    for i, lr in enumerate(lrs):
        if job.stopped or lr > 2.2 * shift:
            break
        base = 2.3 - 1.5 / (1 + (3e-3 * shift / lr) ** 1.3) + 0.9 * (lr / shift / 0.35) ** 2.2
        loss = base + float(rng.normal(0, 0.09))
        smoothed, debias = 0.9 * smoothed + 0.1 * loss, debias * 0.9
        yield CurvePoint(i, float(lr), loss, smoothed / (1 - debias))
    rules = [
        ("landmarks", 4.7e-3),
        ("steepest", 2.1e-3),
        ("valley", 3.6e-3),
        ("slide", 1.2e-2),
        ("minimum", 2.4e-2),
    ]
    found = [(name, lr * shift) for name, lr in rules]
    suggestions = tuple(
        Suggestion(name, lr, int(np.argmin(abs(lrs - lr))), "why it says so") for name, lr in found
    )
    notes = (
        "24x below divergence",
        "Worth trying: 2.3e-3 to 9.4e-3",
        "The loss fell by only 9%: the curve says little.",
    )
    for lr, loss in (
        ((4.7e-3, 0.5), (1.9e-3, 0.9), (1.2e-2, float("inf")), (3e-3, 0.6)) if race else ()
    ):
        yield RaceTrial(lr * shift, 75, loss)
    yield CurveEnded(
        "the loss diverged, as expected (smoothed loss above 4 x its best)",
        suggestions,
        4.7e-3 * shift,
        notes,
        notes[2:],
        2.1 * shift,
    )
    yield RunEnded("stopped" if job.stopped else "finished", 93, 11.0)


def sizes(job: FakeJob, keep_effective: bool = False) -> Iterator[Event]:
    settings, limit = job.settings.model_dump(), int(4.3e10)
    request = {"max_memory": None, "keep_effective": keep_effective}
    yield RunStarted(
        job.id, "find_batch_size", settings, "cuda:0", memory=int(8e10), request=request
    )
    for size in (2, 4, 8, 16, 32, 64, 128, 256, 512):
        rate, many = 5200 * size / (size + 38), max(1, 512 // size) if keep_effective else None
        yield TrialStarted(size, many)
        yield Trial(
            size,
            True,
            0.1,
            rate,
            int(2.1e8 + 3.9e7 * size),
            accumulate_grad_batches=many,
            limit_bytes=limit,
        )
    if not keep_effective:
        yield TrialStarted(1024)
        said = "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of 79.10 GiB, of which 1.2 GiB is free."
        yield Trial(1024, False, peak_bytes=int(4.2e10), error=said, limit_bytes=limit)
    ended = "512 x 1 reached" if keep_effective else "1024 did not fit"
    yield SearchEnded(256, 512, ended, 2 if keep_effective else None)
    yield RunEnded("finished", 10, 7.2)
