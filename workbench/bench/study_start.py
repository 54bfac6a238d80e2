"""Keeps what the trials of a study start from in its folder, and reads it, in any process."""

from __future__ import annotations

import contextlib
import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from workbench.bench.base import BenchBase
from workbench.bench.recipe import OBJECTS, Prepared, Recipe
from workbench.bench.searches import Searches
from workbench.engine.data.checksums import of_data
from workbench.engine.setup import open_session
from workbench.export.source.capture import CallSite
from workbench.launch import select_launcher
from workbench.launch.job import Job
from workbench.launch.start.kept_start import (
    ProcessState,
    StartFile,
    keep_for_trials,
    process_state,
)
from workbench.launch.start.start_spec import StartSpec
from workbench.launch.turns import alone
from workbench.launch.work import StartWeights
from workbench.runs.run import Run
from workbench.settings import Settings
from workbench.settings.kwargs import SettingsKwargs
from workbench.share.portable import pack_portable
from workbench.task import ranks
from workbench.task.errors import TaskError
from workbench.task.state.walk import own_modules
from workbench.tuners.study.sampler import seeded
from workbench.values import first_names

if TYPE_CHECKING:
    from workbench.events import Message


class TrialBench(Searches):
    """A bench as the trials of a study need it. `Workbench` has these methods."""

    _halt: float | None = None
    """At which share of its updates each fit halts."""

    if TYPE_CHECKING:
        export: Callable[..., Path]

    @classmethod
    @abstractmethod
    def _of(
        cls, recipe: Recipe, prepared: Prepared, root: Path, site: CallSite, sets: dict[str, Any]
    ) -> Self:
        """A bench made of the recipe of another one. sets: the settings that were set since the
        other one was made.
        """

    @abstractmethod
    def fit(self, start: str | Path = "fresh", **settings: Unpack[SettingsKwargs]) -> Job[Run]:
        """Train."""

    @abstractmethod
    def close(self) -> None:
        """Stop its jobs."""


@dataclass
class TrialStart(ProcessState):
    """What each trial of a study starts from: the arguments of a bench with the weights and the
    state of its objects, its settings, its code, and the state of the process.
    """

    kind: type[TrialBench]
    """The class of the bench."""
    recipe: Recipe
    sets: Mapping[str, Any]
    """The settings that were set since the bench was made."""
    site: CallSite
    device: str
    """On which the first bench trains, for people."""
    method: Any = None
    """The sampler of Optuna that proposes trials; None: the workbench proposes them."""


def keep(
    bench: TrialBench,
    site: CallSite,
    study: Path,
    values: Mapping[str, Any],
    settings: Mapping[str, Any],
    method: Any = None,
) -> None:
    """Keep what the trials of this bench start from in the folder of a study.

    site: where the bench was made. values, settings: of the function's parameters, and settings,
    that all trials have. method: a sampler of Optuna that proposes trials.

    Raises TaskError where its weights cannot be kept, PackageError for an object that cannot be
    packed.
    """
    bench._check_idle("study")
    recipe = bench._recipe
    if recipe.build is not None and bench._start.are_changed:
        raise TaskError(
            f"the weights of bench.model were changed or loaded, and each trial lets {recipe.name}"
            " make new ones: let it load them, or give the model itself to the bench."
        )
    kept = replace(
        recipe,
        joined=None,
        trackers=[tracker for tracker in recipe.trackers if tracker.is_sent_along],
        model=None if recipe.build is not None else recipe.model,
        values={**recipe.values, **values},
        sets=[],
        of_jobs={},
    )
    sets = {**bench._all_sets(), **settings}
    start = TrialStart(
        **process_state(),
        kind=type(bench),
        recipe=kept,
        sets=sets,
        site=site,
        device=bench.summary.device,
        method=method,
    )
    names = ("model", *OBJECTS)
    objects = {"model": recipe.model, **recipe.objects}
    parts = {name: objects[name] for name in names if objects.get(name) is not None}
    if method is not None:
        parts["method"] = method
    with _at_start(bench):
        keep_for_trials(study, start, parts)


def identity_of(sampler: Any) -> str:
    """What is equal for two samplers of Optuna that propose alike: the class, and a hash of what
    they hold. Their seeds do not count, since the study seeds them.

    Raises PackageError where it cannot be packed.
    """
    alike = seeded(sampler, [0])
    packed = pack_portable(alike, {"method": alike}, own_modules(), None)
    with contextlib.closing(packed):
        hashed = hashlib.sha256(packed.code)
        for buffer in packed.buffers():
            hashed.update(buffer)
    kind = type(sampler)
    return f"{kind.__module__}.{kind.__qualname__} {hashed.hexdigest()[:32]}"


def length_of(bench: BenchBase, settings: Settings) -> Length:
    """How long a whole fit with these settings is."""
    here = settings.replace(strategy="thread", devices=1)  # it counts, and trains nothing
    ranks = select_launcher.ranks(settings)
    with _at_start(bench), open_session(bench._task, here) as session:
        updates, epoch = session.updates, session.data.updates_in(0)
        checked = session.settings.val_check_interval
    if updates is None or epoch is None:
        return Length(None, None)
    if isinstance(checked, float) and checked < 1:
        epoch = math.ceil(epoch * checked)
    return Length(math.ceil(updates / ranks), math.ceil(epoch / ranks))


def data_of(bench: BenchBase) -> str:
    """A checksum of what is in the data of train and val."""
    specs = [spec for spec in (bench._task.train, bench._task.val) if spec is not None]
    with _at_start(bench):
        return " ".join(
            of_data(data.parts.dataset, samples=bench._recipe.samples)
            for spec in specs
            for data in spec.sets
        )


@dataclass(frozen=True)
class Length:
    """The length of a whole fit; None: it is unknown before."""

    updates: int | None
    check: int | None
    """Updates until its first validation."""


@contextlib.contextmanager
def _at_start(bench: BenchBase) -> Iterator[None]:
    """Context manager in which no job begins, and the bench's objects are as a fresh fit finds
    them; afterwards they are as before.
    """
    lost: list[Message] = []
    fresh = StartWeights(bench._task, bench._start, StartSpec.of("fresh"), bench.root)
    with alone(), ranks.alone():
        bench._check_idle("study")
        with fresh.placed(lost):
            broken = [message.text for message in lost if "cannot be restored" in message.text]
            if broken:
                raise TaskError(f"trials could not begin alike: {first_names(broken, 3)}")
            yield


def bench_of(start: TrialStart, root: Path, values: Mapping[str, Any], seed: int) -> TrialBench:
    """A bench as the one of a study was, whose model is made with these values of the function's
    parameters. It takes the objects of `start`, which can be used once.
    """
    recipe, sets = start.recipe, dict(start.sets)
    recipe.built, recipe.seed = {**recipe.values, **values}, seed
    prepared = recipe.prepare(recipe.built, seed, sets)
    return start.kind._of(recipe, prepared, root, start.site, sets)


def open_start(study: Path, *, trust: bool = False) -> TrialStart:
    """Unpack what the trials of the study in this folder start from, which runs its code; each call
    makes new objects.

    Raises the errors of `StartFile.of_study` and of `StartFile.open`.
    """
    return StartFile.of_study(study, trust=trust).open(TrialStart)
