"""Asks a sampler of Optuna for the next trial of a study.

The sampler is asked anew each time, on a study in memory that is made of the record. So any worker
can ask it, and nothing but the record has to be kept. A sampler whose answers depend on more, which
it keeps in Optuna's storage, is refused.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.runs.study.record import StudyRecord, TrialProposal, TrialRecord
from workbench.settings.space import OPTIMIZER, Choice, Dimension, Float, Int, Space
from workbench.tuners.study.to_optuna import choice_of, distribution_of
from workbench.values import SettingsError, shown

if TYPE_CHECKING:
    import optuna
    from optuna.samplers import BaseSampler

_TRIES = 8
"""How often a sampler is asked, until it proposes what no trial has."""
_OF_RUNNING = ":relative_params"
"""What a sampler notes for a trial that runs. It reads the values of the trial in its place, which
a record has.
"""
_KNOWN = 12
"""The trials on which a sampler is tried: most draw the first ten at random."""


def refuse_unfit(sampler: Any, space: Space, *, lower_is_better: bool) -> None:
    """Raise SettingsError unless `sampler` is one of Optuna's that proposes trials of this space
    from earlier ones alone.
    """
    name = type(sampler).__name__
    remedy = "give an object of Optuna's, method=optuna.samplers.GPSampler()"
    try:
        from optuna.samplers import BaseSampler
    except ImportError:
        raise SettingsError(
            f"study: method={shown(sampler)}: samplers are Optuna's, which is not installed: pip"
            " install optuna"
        ) from None
    if not isinstance(sampler, BaseSampler):
        raise SettingsError(f"study: method={shown(sampler)} is no sampler: {remedy}.")
    random = np.random.default_rng(0)
    try:
        tried = copy.deepcopy(sampler)
    except Exception as error:
        raise SettingsError(
            f"study: method={name}() cannot be copied ({error}): each trial asks a copy of its own,"
            " so that it does not depend on the worker. Let the sampler open what it needs when it"
            " is asked."
        ) from error
    with _quiet():
        study, storage = _study(tried, lower_is_better=lower_is_better)
        for number in range(_KNOWN):
            values = space.values(list(random.random(len(space.dimensions))))
            _add(study, space, values, "COMPLETE", float(number))
        try:
            _asked(study, space)
        except Exception as error:
            raise SettingsError(
                f"study: method={name}() cannot propose a trial of this space: {error}"
            ) from error
        key = storage.get_study_id_from_name(study.study_name)
        last = storage.get_all_trials(key)[-1]
        stored = [*storage.get_study_system_attrs(key), *last.system_attrs]
    if stored := [name for name in stored if _OF_RUNNING not in name]:
        raise SettingsError(
            f"study: method={name}() keeps what it knows in Optuna's storage"
            f" ({', '.join(stored)}), which a study does not have: take a sampler that learns from"
            " the trials alone, TPESampler() or GPSampler()."
        )


def ask(record: StudyRecord, sampler: BaseSampler, planned: TrialProposal) -> TrialProposal:
    """The trial that the sampler proposes. planned: what the workbench would try, which stays where
    the sampler proposes nothing but what trials have.
    """
    space = Space.from_record(record.space, record.priors)
    values: dict[str, Any] = {}
    for attempt in range(_TRIES):
        asked = seeded(sampler, [record.head.seed, planned.number, attempt])
        with _quiet():
            study, _ = _study(asked, lower_is_better=record.head.mode == "min")
            for trial, state, value in _known(record):
                _add(study, space, trial.values, state, value)
            values = _asked(study, space)
        if all(values != trial.values for trial in record.trials):
            name = record.head.sampler
            return TrialProposal(planned.number, values, name, f"asked of {name}")
    return planned


def seeded(sampler: BaseSampler, seed: list[int]) -> BaseSampler:
    """A copy of a sampler, whose generators are seeded."""
    copied = copy.deepcopy(sampler)
    _seed(copied, seed)
    return copied


def _known(record: StudyRecord) -> Iterator[tuple[TrialRecord, str, float | None]]:
    """The trials with their states, as Optuna calls them, and values. What cannot be trained is as
    bad as the worst of the others, so that a sampler learns from it.
    """
    values = [value for trial in record.trials if (value := record.whole(trial)) is not None]
    worst = max(values, key=record.score, default=None)
    for trial in record.trials:
        value = record.whole(trial)
        if value is None and trial.infeasible:
            value = worst
        if value is not None:
            yield trial, "COMPLETE", value
        elif trial.infeasible or any(piece.state == "ended" for piece in trial.pieces):
            yield trial, "FAIL", None
        else:
            yield trial, "RUNNING", None


def _study(
    sampler: BaseSampler, *, lower_is_better: bool
) -> tuple[optuna.Study, optuna.storages.InMemoryStorage]:
    import optuna

    directions = optuna.study.StudyDirection
    direction = directions.MINIMIZE if lower_is_better else directions.MAXIMIZE
    storage = optuna.storages.InMemoryStorage()
    return optuna.create_study(direction=direction, sampler=sampler, storage=storage), storage


def _add(study: optuna.Study, space: Space, values: Any, state: str, value: float | None) -> None:
    """Add a trial; one that has not all its values in the space would keep a sampler from choosing
    them together, and is left out.
    """
    from optuna.trial import TrialState, create_trial

    placed = space.placed(values)
    names = {dimension.name for dimension, _ in placed}
    units = [0.5 if unit is None else unit for unit in space.units(values)]
    needed = {dimension.name for dimension, _ in space.placed(space.values(units))}
    if names != needed:
        return
    study.add_trial(
        create_trial(
            state=TrialState[state],
            value=value,
            params={d.name: choice_of(v) if isinstance(d, Choice) else v for d, v in placed},
            distributions={dimension.name: distribution_of(dimension) for dimension, _ in placed},
        )
    )


def _asked(study: optuna.Study, space: Space) -> dict[str, Any]:
    """Ask for a trial; returns its values as arguments of a fit."""
    trial = study.ask()
    units: list[float] = []
    optimizer: Any = None
    for dimension in space.dimensions:
        if len(dimension.path) > 1 and dimension.path[1] != optimizer:
            units.append(0.5)  # of another optimizer, which the values leave out
            continue
        units.append(_suggested(trial, dimension))
        if dimension.name == OPTIMIZER:
            optimizer = dimension.value(units[-1])
    return space.values(units)


def _suggested(trial: optuna.Trial, dimension: Dimension) -> float:
    """The number from 0 to 1 of the value that the sampler gives a dimension."""
    name = dimension.name
    if isinstance(dimension, Choice):
        choices = [choice_of(choice) for choice in dimension.choices]
        index = choices.index(trial.suggest_categorical(name, choices))
        return (index + 0.5) / len(choices)
    if isinstance(dimension, Int):
        whole = trial.suggest_int(name, dimension.low, dimension.high, log=dimension.log)
        return dimension.unit(whole) or 0.0
    assert isinstance(dimension, Float)
    low, high = dimension.low, dimension.high
    value = trial.suggest_float(name, low, high, log=dimension.log)
    if dimension.log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _seed(sampler: Any, seed: list[int]) -> None:
    """Seed the generators of a sampler and of those within it, so that the record decides what it
    proposes.
    """
    for name, value in sorted(vars(sampler).items()):
        generator = getattr(value, "rng", None)
        if isinstance(generator, np.random.RandomState):
            numbers = [*seed, *name.encode()]
            generator.seed(np.random.SeedSequence(numbers).generate_state(4))
        elif hasattr(value, "sample_independent"):
            _seed(value, [*seed, 1])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context manager in which Optuna prints nothing below a warning."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
