"""Makes an Optuna study in memory of a study's record, for Optuna's plots, importances and
dashboards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.runs.study.record import PieceEnd, StudyRecord, TrialRecord
from workbench.settings.space import Choice, Dimension, Float, Int, Space
from workbench.values import is_plain

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

_SCALARS = (type(None), bool, int, float, str)


def to_optuna(record: StudyRecord) -> optuna.Study:
    """The trials of a study as an Optuna study in memory.

    Its value is the one of a whole fit; a trial that was halted at a rung is "pruned", with its
    values as intermediate ones, and an infeasible one has failed. A trial whose values lie outside
    the present space has them as user attributes alone, as it has its run's id and its origin.
    ImportError: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ImportError(
            "study.optuna() needs Optuna, which is not installed: pip install optuna"
        ) from None
    space = Space.from_record(record.space, record.priors)
    study = optuna.create_study(
        direction="minimize" if record.head.mode == "min" else "maximize",
        sampler=optuna.samplers.RandomSampler(),
        study_name=record.path.name,
    )
    states = optuna.trial.TrialState
    for trial in record.trials:
        parameters, distributions = _parameters(space, trial)
        ends = [(piece.rung, piece.end) for piece in trial.pieces if piece.end and not piece.seed]
        if not ends:
            continue
        whole = record.whole(trial)
        values = {rung: end.value for rung, end in ends if end.value is not None}
        if whole is not None:
            state = states.COMPLETE
        else:
            state = states.PRUNED if values and not trial.infeasible else states.FAIL
        study.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=whole,
                params=parameters,
                distributions=distributions,
                intermediate_values=values,
                user_attrs=_attributes(trial, ends[-1][1]),
            )
        )
    return study


def _attributes(trial: TrialRecord, end: PieceEnd) -> dict[str, Any]:
    attributes = {
        "trial": trial.number,
        "run": end.run,
        "origin": trial.source,
        "cause": end.cause,
        "values": dict(trial.values),
    }
    return {name: value for name, value in attributes.items() if is_plain(value)}


def _parameters(
    space: Space, trial: TrialRecord
) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """The values of a trial by the names of the space, with their distributions."""
    placed = space.placed(trial.values)
    parameters = {d.name: choice_of(v) if isinstance(d, Choice) else v for d, v in placed}
    return parameters, {dimension.name: distribution_of(dimension) for dimension, _ in placed}


def distribution_of(dimension: Dimension) -> BaseDistribution:
    """A dimension as Optuna has it."""
    from optuna import distributions

    if isinstance(dimension, Choice):
        return distributions.CategoricalDistribution([choice_of(c) for c in dimension.choices])
    if isinstance(dimension, Int):
        return distributions.IntDistribution(dimension.low, dimension.high, log=dimension.log)
    assert isinstance(dimension, Float)
    return distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def choice_of(value: Any) -> Any:
    """A value as Optuna's categories have it: what is no scalar is a text."""
    return value if isinstance(value, _SCALARS) else repr(value)
