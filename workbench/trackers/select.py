"""Reads `trackers=`: which of accelerate's trackers, with which arguments, or the user's own."""

from __future__ import annotations

import abc
import difflib
import enum
import importlib.util
import inspect
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from workbench.events import RunEnded
from workbench.secrets import HIDDEN, hide, secrets_in, without_secrets
from workbench.settings import SettingsError
from workbench.trackers.mlflow import MLflow
from workbench.values import shown

PROJECT = "workbench"
"""The project, or experiment, of a tracker that has one, unless the arguments name another."""

_ARGUMENTS: dict[str, Callable[[str, Path], dict[str, Any]]] = {
    "aim": lambda run, folder: {"run_name": run, "logging_dir": str(folder)},
    "clearml": lambda run, folder: {"project_name": PROJECT, "task_name": run},
    "comet_ml": lambda run, folder: {"run_name": PROJECT},
    "dvclive": lambda run, folder: {"dir": str(folder / run)},
    "mlflow": lambda run, folder: {"experiment_name": PROJECT, "run_name": run},
    "swanlab": lambda run, folder: {
        "run_name": PROJECT,
        "experiment_name": run,
        "logdir": str(folder),
    },
    "tensorboard": lambda run, folder: {"run_name": run, "logging_dir": str(folder)},
    "trackio": lambda run, folder: {"run_name": PROJECT, "name": run},
    "wandb": lambda run, folder: {"run_name": PROJECT, "name": run, "dir": str(folder)},
}
"""The default arguments of each; the user's own replace them."""
_PROJECT = {
    "comet_ml": "project_name",
    "swanlab": "project",
    "trackio": "project",
    "wandb": "project",
}
"""The package's own argument for what accelerate calls `run_name`."""
_WORDS = ("comet_ml", "tensorboard", "wandb")
"""Trackers that accept text among their values."""
_SEVERAL = ("mlflow", "tensorboard")
"""Trackers whose open run belongs to a thread, or to an object."""
_SPOKEN = {
    "tb": "tensorboard",
    "comet": "comet_ml",
    "w&b": "wandb",
    "weights & biases": "wandb",
    "dvc": "dvclive",
}
_LONGEST = 250


class Choice(abc.ABC):
    """A tracker that was asked for."""

    name: str
    key: object
    """Equal for two that are the same tracker."""
    words: bool = False
    """Whether it accepts text among its values."""
    several: bool = False
    """Whether several of its runs may be open in one process."""

    @abc.abstractmethod
    def start(self, run: str) -> GeneralTracker:
        """Start the tracker for this run and return it."""

    @abc.abstractmethod
    def end(self, tracker: GeneralTracker, event: RunEnded) -> None:
        """End the run in the tracker."""

    def hide(self, text: str) -> str:
        """Return `text` without the secrets among the tracker's arguments."""
        return hide(text)


class Own(Choice):
    """A tracker object that the user made: one object for all fits, one after another."""

    def __init__(self, tracker: GeneralTracker) -> None:
        self._tracker = tracker
        self.name = type(tracker).__name__
        self.key = id(tracker)

    def start(self, run: str) -> GeneralTracker:
        self._tracker.start()
        return self._tracker

    def end(self, tracker: GeneralTracker, event: RunEnded) -> None:
        tracker.finish()


class Named(Choice):
    """A tracker that accelerate makes from its name: a new one for each fit."""

    def __init__(self, name: str, given: Mapping[str, Any], root: Path) -> None:
        self.name = self.key = name
        self.words, self.several = name in _WORDS, name in _SEVERAL
        self._class: Any = MLflow if name == "mlflow" else LOGGER_TYPE_TO_CLASS[name]
        self._given = {
            "run_name" if key == _PROJECT.get(name) else key: value for key, value in given.items()
        }
        self._folder = root / re.sub(r"[^\w-]+", "_", name)
        _check_installed(name, self._class)
        self._check_arguments()

    def start(self, run: str) -> GeneralTracker:
        self._folder.mkdir(parents=True, exist_ok=True)
        tracker: GeneralTracker = self._class(**self._arguments(run))
        tracker.start()
        if self.name == "comet_ml":
            tracker.tracker.set_name(run)
        return tracker

    def end(self, tracker: GeneralTracker, event: RunEnded) -> None:
        if isinstance(tracker, MLflow):
            tracker.ended = event.status
        if self.name == "wandb" and event.status == "failed":
            tracker.tracker.finish(exit_code=1)
        else:
            tracker.finish()

    def hide(self, text: str) -> str:
        for secret in sorted(secrets_in(self._given), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return super().hide(text)

    def _arguments(self, run: str) -> dict[str, Any]:
        return {**self._usual(run), **self._given}

    def _usual(self, run: str) -> dict[str, Any]:
        if self.name in _ARGUMENTS:
            return _ARGUMENTS[self.name](run, self._folder)
        # A class that the user has registered with accelerate gets the run's name first, then the
        # folder.
        values = [run, str(self._folder)] if self._class.requires_logging_directory else [run]
        return dict(zip(inspect.signature(self._class).parameters, values, strict=False))

    def _check_arguments(self) -> None:
        signature = inspect.signature(self._class)
        try:
            signature.bind(**self._arguments("run"))
        except TypeError as error:
            takes = ", ".join(signature.parameters)
            raise SettingsError(
                f"trackers={{{self.name!r}: …}}: {error}; it takes: {takes}."
            ) from None


def choices(trackers: Any, root: Path) -> list[Choice]:
    """Return the trackers in `trackers=`; SettingsError for one that is unknown, not installed,
    or of another type.
    """
    chosen: list[Choice] = []
    for item, arguments in _listed(trackers):
        if isinstance(item, enum.Enum):
            item = item.value  # accelerate's LoggerType
        if isinstance(item, GeneralTracker):
            chosen.append(Own(item))
        elif isinstance(item, str) and item in LOGGER_TYPE_TO_CLASS:
            chosen.append(Named(item, arguments, root))
        else:
            raise SettingsError(f"trackers={item!r}: {_why_not(item)}")
    if len({choice.key for choice in chosen}) < len(chosen):
        raise SettingsError(
            f"trackers={shown(without_secrets(trackers))}: one of them is given twice."
        )
    return chosen


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested values: names are joined with slashes, and each value is a bool, a number,
    a string or None.
    """
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            flattened |= flat(value, f"{prefix}{name}/")
        elif isinstance(value, list | tuple) and value and len(value) <= 20:
            flattened |= flat(
                {str(index): item for index, item in enumerate(value)}, f"{prefix}{name}/"
            )
        else:
            flattened[f"{prefix}{name}"] = _plain(value)
    return flattened


def _plain(value: Any) -> bool | int | float | str | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    text = getattr(value, "__qualname__", None) if callable(value) else None
    text = text or str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _listed(trackers: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Yield the given trackers, each with its arguments."""
    if trackers is None:
        return
    if isinstance(trackers, Mapping):
        for name, arguments in trackers.items():
            if not isinstance(arguments, Mapping):
                raise SettingsError(
                    f"trackers={shown(without_secrets(trackers))}: give a dict of arguments for"
                    f" {name!r}, {{}} for none."
                )
            yield name, arguments
    elif isinstance(trackers, Sequence | set | frozenset) and not isinstance(trackers, str):
        for item in trackers:
            yield from _listed(item)
    else:
        yield trackers, {}


def _why_not(item: Any) -> str:
    names = sorted(LOGGER_TYPE_TO_CLASS)
    known = f"The trackers are: {', '.join(names)}; or an object of accelerate's GeneralTracker."
    if isinstance(item, type):
        return f"give an object, {item.__name__}(…), or a name. {known}"
    if isinstance(item, str):
        near = _near(item, names)
        return "there is no such tracker. " + (f"Did you mean {near!r}? " if near else "") + known
    if any(
        base.__module__.split(".")[0].startswith(("lightning", "pytorch_lightning"))
        for base in type(item).__mro__
    ):
        near = _near(type(item).__name__.removesuffix("Logger"), names)
        instead = (
            f"give trackers={near!r} instead"
            if near
            else "give one of the trackers there are instead"
        )
        return f"a Lightning logger gets no values here; {instead}. {known}"
    return known


def _near(word: str, names: Iterable[str]) -> str | None:
    known = {name: name for name in names} | _SPOKEN
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.6)
    return known[near[0]] if near else None


def _check_installed(name: str, tracker_class: Any) -> None:
    """Raise SettingsError for a tracker whose package is missing: accelerate accepts its name
    all the same.
    """
    if name not in _ARGUMENTS or not tracker_class.__module__.startswith(
        ("accelerate.", "workbench.")
    ):
        return  # the user's own class, whose package may have any name
    packages = ("tensorboard", "tensorboardX") if name == "tensorboard" else (name,)
    if not any(_there(package) for package in packages):
        raise SettingsError(
            f"trackers={name!r}: its package is not installed; do: pip install {name}"
        )


def _there(package: str) -> bool:
    """Whether a package can be imported. A folder of the same name, which some trackers create,
    does not count.
    """
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
