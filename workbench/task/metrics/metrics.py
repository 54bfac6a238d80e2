"""Reads `metrics=`: functions of one batch, and objects that are updated by batch and computed
over a validation.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from workbench.task.errors import TaskError
from workbench.task.metrics.over_epoch import OverEpoch
from workbench.task.signature import fits, parameters
from workbench.values import shown

_METHODS = ("update", "compute", "reset")
_TARGET_FIRST = "y_true"
"""The name of the first argument of scikit-learn's metrics."""
_OF_LOSS = ("loss", "loss_averaged")
"""The names under which a validation reports the loss: of the weights, and of the averaged
weights.
"""


def is_metric_object(metric: Any) -> bool:
    """Whether an object is updated by batch and computed at the end (torchmetrics, torcheval,
    ignite, …).
    """
    return not isinstance(metric, type) and all(
        callable(getattr(metric, name, None)) for name in _METHODS
    )


def checked_metrics(metrics: Any) -> dict[str, Callable[[Any, Any], Any] | Any]:
    """The metrics by name, as given in `metrics=`. Raises TaskError for one that is not a
    metric.
    """
    if metrics is None:
        return {}
    if is_metric_object(metrics) and callable(getattr(metrics, "items", None)):
        return {"metrics": metrics}  # a collection, which names its own values
    if not isinstance(metrics, Mapping | nn.ModuleDict):
        raise TaskError(f"metrics= takes a dict of names: {_example(metrics)}.")
    by_name = dict(metrics.items())
    for name, metric in by_name.items():
        _check(name, metric)
    return by_name


def split(metrics: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The functions of one batch, and the objects that are computed over a validation."""
    running = {name: metric for name, metric in metrics.items() if is_metric_object(metric)}
    return {name: metric for name, metric in metrics.items() if name not in running}, running


def takes_pair(metric: Any) -> bool:
    """Whether `update` takes one pair of output and target (pytorch-ignite) instead of both."""
    return not fits(metric.update, None, None) and fits(metric.update, None)


def describe_arguments(output: Any, target: Any) -> str:
    """A description of the arguments of a metric, for an error."""
    return f"the model's output ({_what(output)}) and the target ({_what(target)})"


def synchronises(metric: Any) -> bool:
    """Whether its `compute` synchronises the states of all processes (torchmetrics)."""
    return any(kind.__module__.partition(".")[0] == "torchmetrics" for kind in type(metric).__mro__)


def epoch_values(stage: str, name: str, value: Any) -> dict[str, float]:
    """The values of a metric over a validation, by the names under which they are reported; a
    dict has its own names.
    """
    return {key: _number(where, component) for key, where, component in _named(stage, name, value)}


def batch_values(
    stage: str, name: str, value: Any, samples: Collection[int]
) -> dict[str, Tensor | float]:
    """The values of a function for one batch: a number, one for each of `samples` samples, or a
    dict of these.

    Tensors stay on their device.
    """
    values: dict[str, Tensor | float] = {}
    for key, where, component in _named(stage, name, value):
        if (
            isinstance(component, Tensor)
            and not component.is_complex()
            and (component.numel() == 1 or (component.ndim == 1 and len(component) in samples))
        ):
            values[key] = component
        elif (
            isinstance(component, np.ndarray) and component.ndim == 1 and len(component) in samples
        ):
            values[key] = float(component.mean())
        else:
            values[key] = _number(where, component)
    return values


def _named(stage: str, name: str, value: Any) -> list[tuple[str, str, Any]]:
    """For each value: the name under which it is reported, its name in an error, the value."""
    where = f"metrics[{name!r}]"
    if not isinstance(value, Mapping):
        return [(f"{stage}_{name}", where, value)]
    prefix = f"{stage}_"
    named = [
        (
            key if (key := str(own_name)).startswith(prefix) else prefix + key,
            f"{where}, {key!r},",
            component,
        )
        for own_name, component in value.items()
    ]
    if any(key == f"{prefix}loss" for key, _, _ in named):
        raise _named_loss(f"{where} gave a value by the name 'loss', which")
    return named


def _named_loss(subject: str) -> TaskError:
    """The error for a metric that would replace the loss."""
    return TaskError(
        f"{subject} would be reported as val_loss in place of the loss itself, which early"
        " stopping, checkpoints and schedules follow: give it another name."
    )


def _number(where: str, value: Any) -> float:
    single = isinstance(value, bool | int | float | np.number | np.bool_) and not isinstance(
        value, np.complexfloating
    )
    if isinstance(value, Tensor):
        single = value.numel() == 1 and not value.is_complex()
    elif isinstance(value, np.ndarray):
        single = value.size == 1 and value.dtype.kind in "buif"
    if single:
        return float(value.item() if isinstance(value, np.ndarray) else value)
    got = f"a {type(value).__name__}"
    if isinstance(value, Tensor | np.ndarray):
        kind = {1: "a vector", 2: "a matrix"}.get(value.ndim, "a tensor")
        got = f"{kind} of shape {tuple(value.shape)}"
    raise TaskError(
        f"{where} gave {got}, and a metric is one number: take its mean, ask for one"
        " (average='macro' in torchmetrics and scikit-learn), or return a dict of numbers by name."
    )


def _what(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


def _check(name: Any, metric: Any) -> None:
    if not isinstance(name, str):
        raise TaskError(
            f"metrics= has the key {name!r}: the name of a metric is a text, as in"
            " metrics={'accuracy': …}."
        )
    where = f"metrics[{name!r}]"
    if name in _OF_LOSS:
        raise _named_loss(where)
    if isinstance(metric, type):
        raise TaskError(
            f"{where}={metric.__name__} is a class: give an instance, {metric.__name__}(…)."
        )
    function = metric.function if isinstance(metric, OverEpoch) else metric
    if isinstance(metric, OverEpoch) and is_metric_object(function):
        raise TaskError(
            f"{where}: {type(function).__name__} is computed over a validation already: give it"
            " without wb.over_epoch."
        )
    if callable(getattr(metric, "increment", None)):
        raise TaskError(
            f"{where}: a {type(metric).__name__} keeps values of epochs, as the run's record does:"
            " give the metric in it."
        )
    if is_metric_object(metric):
        first = next(iter(parameters(metric.update) or ()), "")
        if first == "value":  # torchmetrics' aggregators
            raise TaskError(
                f"{where}={type(metric).__name__}(…) takes (value, weight), not (output, target): a"
                " function of a batch is such a mean already, metrics={'name': lambda output, y:"
                " …}."
            )
        if not (fits(metric.update, None, None) or takes_pair(metric)):
            names = ", ".join(parameters(metric.update) or ())
            raise TaskError(
                f"{where}: update({names}) of {type(metric).__name__} is called as update(output,"
                " target), which it does not take: give a metric of these two."
            )
    if not (is_metric_object(function) or callable(function)):
        raise TaskError(
            f"{where}={shown(function)} cannot be called, and has no update, compute and reset:"
            " give a function of (output, target), a metric object (torchmetrics), or"
            " wb.over_epoch(function)."
        )
    if not is_metric_object(function):
        _warn_of_inner(where, function, over=isinstance(metric, OverEpoch))
    if (
        not is_metric_object(function)
        and next(iter(parameters(function) or ()), "") == _TARGET_FIRST
    ):
        called = getattr(function, "__name__", "f")
        swapped = f"lambda output, y: {called}(y, output)"
        raise TaskError(
            f"{where}: {called} takes the targets first"
            f" ({', '.join(list(parameters(function) or ())[:2])}), and a metric is called with"
            f" (output, target): give wb.over_epoch({swapped}) for its value over the validation."
        )


def _warn_of_inner(where: str, function: Any, *, over: bool) -> None:
    """Warn of a metric object that a function calls: the call returns the value of one batch,
    and accumulates state.
    """
    try:
        variables = inspect.getclosurevars(function)
    except (TypeError, ValueError):
        return
    inner = {
        name: value
        for name, value in {**variables.globals, **variables.nonlocals}.items()
        if is_metric_object(value)
    }
    for name, value in inner.items():
        why = (
            "and keeps the state of all batches"
            if over
            else "and the mean over batches may differ from its value over a validation"
        )
        warnings.warn(
            f"{where} calls {name}, a {type(value).__name__}, {why}: give the object itself, or a"
            " function that keeps nothing (torchmetrics.functional) in wb.over_epoch.",
            stacklevel=2,
        )


def _example(metrics: Any) -> str:
    """How to give a metric, or several, that came without a name."""
    several = isinstance(metrics, list | tuple | set | nn.ModuleList)
    listed = list(metrics) if several else [metrics]
    words = [
        f"{_called(metric).removesuffix('(…)').lower()!r}: {_called(metric)}"
        for metric in listed
        if callable(metric)
    ][:3]
    return f"metrics={{{', '.join(words) or repr('accuracy') + ': f'}}}"


def _called(metric: Any) -> str:
    name = getattr(metric, "__name__", None)
    if name == "<lambda>":
        return "f"
    return str(name) if name is not None else f"{type(metric).__name__}(…)"
