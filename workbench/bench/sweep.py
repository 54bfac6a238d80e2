"""Tries settings by Optuna: each trial is a fit of one bench, and a run that stays.

    study = wb.sweep(bench, {"lr": (1e-4, 1e-1), "weight_decay": (1e-5, 1.0)}, n_trials=20)
How to read it: `study.best_params` are settings for `bench.set`. Every fit of a bench starts from
the same weights, so only the settings differ.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from workbench.bench.arguments import refuse_unreported_monitor, settings_named
from workbench.events import RunStarted, Validated
from workbench.launch.job import Job
from workbench.metric_mode import Mode, known_mode
from workbench.runs.folder.annotations import TAG
from workbench.runs.run import Run
from workbench.settings import Settings, SettingsError
from workbench.units import RATES
from workbench.values import first_names, shown

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

    from workbench.bench.workbench import Workbench

Direction = Literal["minimize", "maximize"]


def sweep(
    bench: Workbench,
    space: Mapping[str, Any],
    *,
    n_trials: int | None = 20,
    timeout: float | None = None,
    monitor: str | None = None,
    direction: Direction | None = None,
    sampler: BaseSampler | None = None,
    pruner: BasePruner | None = None,
    study: Study | None = None,
    **settings: Any,
) -> Study:
    """Let Optuna choose settings for `n_trials` fits of a bench, one after another; returns
    Optuna's study.

    Each validation is reported to the trial by its number, and a fit is stopped when the pruner
    says so. Each run has the sweep's name as a tag, "sweep-1", by which the panel's table of runs
    can be filtered, and each trial its run's id: `study.best_trial.user_attrs["run"]`. A loss that
    is not finite fails its trial alone. Stop in the panel ends one trial; an interrupt of the cell
    ends the sweep. Nothing is applied: `bench.set(**study.best_params)`.

    Args:
        space: settings by name. A tuple (low, high) is a range: of integers, or of floats, which is
            logarithmic for rates (`lr`, `weight_decay`, `gradient_clip_val`, `swa_lrs`). A list has
            the values to choose from. Or one of Optuna's distributions.
        n_trials, timeout: how many trials, and for how many seconds trials begin, as in Optuna's
            `Study.optimize`.
        monitor: the metric of the last validation that counts. None: the bench's `monitor`, else
            "val_loss".
        direction: "minimize" or "maximize". None: as the metric's name says.
        sampler, pruner: Optuna's. None: its defaults, of which the pruner stops none of the first
            five trials.
        study: one of yours, with a storage, say, that this sweep continues; it has sampler, pruner
            and direction.
        settings: of all these fits: `max_epochs=5`.

    Raises `SettingsError` for a setting or a value that does not exist, or a metric that no
    validation reports. Source: Optuna.
    """
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "wb.sweep() needs Optuna, which is not installed: pip install optuna"
        ) from None
    if not isinstance(space, Mapping):
        raise SettingsError(
            f'sweep: space={shown(space)}: give settings by name, {{"lr": (1e-4, 1e-1)}}.'
        )
    overrides = settings_named(settings, bench.fit)
    distributions = {
        name: _distribution(bench.settings, name, value)
        for name, value in settings_named(space, bench.fit, "sweep").items()
    }
    if not distributions:
        raise SettingsError('sweep({}): give settings to choose, {"lr": (1e-4, 1e-1)}.')
    if twice := distributions.keys() & overrides.keys():
        raise SettingsError(
            f"{min(twice)} is in the space and given for all trials too: leave one out."
        )
    fixed = bench.settings.replace(**overrides)
    mode = fixed.monitor_mode if monitor in (None, fixed.monitor) else None
    monitor = monitor or fixed.monitor or "val_loss"
    mode = mode or known_mode(monitor)
    refuse_unreported_monitor(bench._task, fixed.replace(monitor=monitor, monitor_mode="min"))
    tag = _new_name(bench.runs)
    if study is None:
        study = optuna.create_study(
            direction=direction or _direction(monitor, mode),
            sampler=sampler,
            pruner=pruner,
            study_name=tag,
        )
    else:
        _refuse_unfit(study, monitor, mode, direction=direction, sampler=sampler, pruner=pruner)
        # Optuna's own names are longer
        tag = study.study_name if len(study.study_name) <= TAG else tag

    def objective(trial: Trial) -> float:
        chosen = {
            key: _suggested(trial, key, distribution) for key, distribution in distributions.items()
        }
        run = _fit(bench, trial, monitor, {**overrides, **chosen}, tag)
        if run.status == "stopped":
            raise optuna.TrialPruned(f"run {run.id} was stopped after {run.step} updates")
        if monitor not in run.metrics:
            raise SettingsError(
                f"monitor={monitor!r}: run {run.id} has no such metric. It has"
                f" {first_names([*run.metrics], 8)}."
            )
        return float(run.metrics[monitor])

    study.optimize(objective, n_trials=n_trials, timeout=timeout, catch=(FloatingPointError,))
    return study


def _fit(
    bench: Workbench, trial: Trial, monitor: str, settings: Mapping[str, Any], tag: str
) -> Run:
    """Run one fit, report its validations to the trial, and stop it when the pruner says so; its
    run gets the tag.
    """
    begun = threading.Event()
    jobs: list[Job[Run]] = []
    running, count, pruned = "", 0, False

    def listen(event: object) -> None:
        nonlocal running, count, pruned
        if isinstance(event, RunStarted):
            running = event.run
        if (
            isinstance(event, Validated)
            and monitor in event.metrics
            and not pruned
            and not event.asked
        ):
            begun.wait()  # until `job` is set; events of the bench's other jobs arrive here too
            if jobs and running == jobs[0].id and event.step > 0:
                count += 1  # not the update: it depends on the batch size
                trial.report(event.metrics[monitor], count)
                if trial.should_prune():
                    pruned = True
                    jobs[0].stop()

    end = bench.subscribe(listen)
    try:
        jobs.append(bench.fit(**settings))
        begun.set()
        trial.set_user_attr("run", jobs[0].id)
        return jobs[0].result()
    finally:  # also for a trial that failed or was interrupted
        begun.set()
        end()
        if jobs and (folder := jobs[0].folder) is not None and folder.path.is_dir():
            bench.annotate(jobs[0].id, tags=[tag])


def _direction(monitor: str, mode: Mode | None) -> Direction:
    if mode is None:
        raise SettingsError(
            f"monitor={monitor!r}: its name does not say whether lower or higher is better; give"
            " direction='minimize' or 'maximize'."
        )
    return "minimize" if mode == "min" else "maximize"


def _refuse_unfit(study: Study, monitor: str, mode: Mode | None, **arguments: Any) -> None:
    """Raise SettingsError for a study with another direction, or for an argument given with
    `study=` that the study already has.
    """
    for name, value in arguments.items():
        if value is not None:
            raise SettingsError(
                f"{name}={shown(value)} is given together with study=: the study has its own,"
                f" optuna.create_study({name}=…)."
            )
    if len(study.directions) > 1:
        raise SettingsError(
            f"study= has {len(study.directions)} objectives; a sweep has one metric, monitor=…"
        )
    way = study.direction.name.lower()
    if mode is not None and way != _direction(monitor, mode):
        raise SettingsError(
            f"study= would {way} {monitor}: make it with"
            f" optuna.create_study(direction={_direction(monitor, mode)!r})."
        )


def _new_name(runs: Sequence[Run]) -> str:
    """ "sweep-1" or the first number that no run has as a tag."""
    tags = {tag for run in runs for tag in run.tags}
    return next(
        name
        for name in (f"sweep-{number}" for number in range(1, len(tags) + 2))
        if name not in tags
    )


def _distribution(base: Settings, name: str, value: Any) -> BaseDistribution:
    """Return Optuna's distribution for the values of one setting. SettingsError: the setting
    does not accept its ends or choices.
    """
    from optuna import distributions

    if isinstance(value, distributions.BaseDistribution):
        if isinstance(value, distributions.CategoricalDistribution):
            _check(base, name, value.choices)
        else:
            numbers: Any = value
            whole = isinstance(value, distributions.IntDistribution) or bool(numbers.step)
            _check_range(base, name, numbers.low, numbers.high, whole=whole)
        return value
    if isinstance(value, list) and value:
        _check(base, name, value)
        return distributions.CategoricalDistribution(value)
    numbers = (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(end, int | float) and not isinstance(end, bool) for end in value)
    )
    if not numbers:
        raise SettingsError(
            f"sweep: {name}={shown(value)}: give a tuple (low, high) for a range, a list of values"
            " to choose from, or one of Optuna's distributions."
        )
    low, high = value
    whole = all(isinstance(end, int) for end in value)
    _check_range(base, name, low, high, whole=whole)
    if not low < high:
        raise SettingsError(f"sweep: {name}={value!r}: give (low, high), the lower one first.")
    if name in RATES and low <= 0:
        raise SettingsError(
            f"sweep: {name}={value!r}: the range of a rate is logarithmic and begins above 0; give"
            f" a list, {name}=[0, 1e-3, 1e-2], to try 0."
        )
    if whole and name not in RATES:
        return distributions.IntDistribution(low, high)
    return distributions.FloatDistribution(low, high, log=name in RATES)


def _check(base: Settings, name: str, values: Iterable[Any]) -> None:
    for value in values:
        base.replace(**{name: value})


def _check_range(base: Settings, name: str, low: float, high: float, *, whole: bool) -> None:
    # a setting that takes only whole numbers refuses this value
    between = () if whole else (low + 0.3819660113 * (high - low),)
    _check(base, name, (low, high, *between))


def _suggested(trial: Trial, name: str, distribution: Any) -> Any:
    from optuna import distributions

    if isinstance(distribution, distributions.CategoricalDistribution):
        return trial.suggest_categorical(name, distribution.choices)
    if isinstance(distribution, distributions.IntDistribution):
        return trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    return trial.suggest_float(
        name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
    )
