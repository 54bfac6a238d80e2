"""Reads what `workbench train` is given: `key=value` on the command line, and a YAML file with
settings, the function that makes the model, and its parameters.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.runs.read import TARGET
from workbench.settings import Settings, SettingsError
from workbench.settings.file import parsed_value, read
from workbench.settings.spellings import OBJECTS
from workbench.values import shown

_BUILD, _DATA, _START = "build", "data", "start"
_ARGUMENTS = ("root", "trackers", "dry_run")
"""The arguments of a bench that are plain data. The others are objects, which a function makes."""


def overrides_from(texts: Iterable[str]) -> dict[str, Any]:
    """Read `lr=1e-3`, `build.width=256`, each value as in YAML. SettingsError names the text that
    cannot be read.
    """
    overrides: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key.startswith("-"):
            raise SettingsError(
                f"{text}: settings are given as name=value, lr=1e-3. The arguments of a script come"
                " after --."
            )
        if not value or not all(key.split(".")):
            raise SettingsError(
                f"{text!r} is no setting with a value: give name=value, lr=1e-3 (null for None)."
            )
        if key in overrides:
            raise SettingsError(f"{key} is given twice: leave one out.")
        # Python's word, which other places show
        overrides[key] = None if value == "None" else parsed_value(value, text)
    return overrides


def settings_from(overrides: Mapping[str, Any], script: str) -> dict[str, Any]:
    """The settings that replace those of a script. SettingsError: one of them is no setting.

    script: its name, for errors.
    """
    for key, value in overrides.items():
        name, dot, inner = key.partition(".")
        if dot and name in Settings.model_fields:
            raise SettingsError(
                f"{key}: give the whole setting, as in {name}={{{inner}: {json.dumps(value)}}}."
            )
        if dot or name in (_BUILD, _DATA, _START, *_ARGUMENTS):
            raise SettingsError(
                f"{key}: {script} is a script, of which the command line replaces settings alone."
                " Its own arguments come after --."
            )
    return Settings.named(overrides, "train")


@dataclass(frozen=True)
class Target:
    """A function of the user's, and the parameters with which a configuration calls it."""

    key: str
    """Where the configuration has it: "build"."""
    name: str
    """"model.py:make" or "package.module:make"."""
    parameters: dict[str, Any]

    @classmethod
    def of(cls, key: str, value: Any) -> Target:
        """Parse the name of a function, or the dict that has it as `_target_`, with the parameters
        beside it.
        """
        named = _with_target(value)
        name = named.get(TARGET) if isinstance(named, dict) else None
        if not isinstance(name, str) or not all(isinstance(word, str) for word in named):
            raise SettingsError(
                f"{key}={shown(value)}: give the function, {key}: model.py:make or"
                f" package.module:make, or a dict with its parameters, {key}: {{{TARGET}:"
                " model.py:make, width: 64}."
            )
        return cls(key, name, {word: inner for word, inner in named.items() if word != TARGET})

    @property
    def label(self) -> str:
        """Its name in errors."""
        return f"{self.key}: {self.name}"

    def function(self, folder: Path) -> Callable[..., Any]:
        """Import the function. SettingsError: there is no such file, module or function.

        folder: where the path of a .py file begins. An error of the imported code is raised as it
        is.
        """
        source, _, path = self.name.rpartition(":" if ":" in self.name else ".")
        if not source or not path:
            raise SettingsError(
                f"{self.label} names no function: give model.py:make or package.module:make."
            )
        module = self._of_file(folder / source) if source.endswith(".py") else self._of_name(source)
        value: Any = module
        for word in path.split("."):
            if not hasattr(value, word):
                near = difflib.get_close_matches(path, vars(module), n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise SettingsError(f"{self.label}: {source} has no {path!r}.{hint}")
            value = getattr(value, word)
        if not callable(value):
            raise SettingsError(f"{self.label} is {shown(value)}, and no function.")
        return value  # type: ignore[no-any-return]

    def _of_file(self, file: Path) -> ModuleType:
        """Import a file as a script beside it would, so that other processes can import it too."""
        if not file.is_file():
            raise SettingsError(f"{self.label}: there is no file {file}.")
        folder = str(file.parent.resolve())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        module = importlib.import_module(file.stem)
        origin = getattr(module, "__file__", None)
        if origin is None or not Path(origin).samefile(file):
            raise SettingsError(
                f"{self.label}: another module is called {file.stem!r} ({origin or 'built in'}):"
                " rename the file."
            )
        return module

    def _of_name(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # a module that it imports
            raise SettingsError(
                f"{self.label}: there is no module {error.name!r}. It is looked for in the folders"
                " of the YAML file and of this shell, and among the installed packages. A file is"
                " named with its ending, model.py:make."
            ) from None


@dataclass(frozen=True)
class Config:
    """A training as a YAML file and the command line describe it."""

    folder: Path
    """Of the file."""
    build: Target
    data: Target | None
    start: str
    arguments: dict[str, Any]
    """Arguments of the bench, besides settings."""
    settings: dict[str, Any]

    @classmethod
    def read(cls, path: Path, overrides: Mapping[str, Any]) -> Config:
        """Read a file, of which the command line replaces some values. SettingsError names the
        file, and what in it is wrong.
        """
        values = read(path)
        for key, value in overrides.items():
            _replace(values, key, value)
        values = _interpolated(values, path)
        if _BUILD not in values:
            raise SettingsError(
                f"{path} does not say what makes the model: give {_BUILD}: model.py:make, a"
                " function that returns the model, or a dict of arguments of wb.Workbench,"
                ' {"model": …, "train": …}.'
            )
        names = (_BUILD, _DATA, _START, *_ARGUMENTS)
        rest = {name: value for name, value in values.items() if name not in names}
        try:
            objects = {**dict.fromkeys(OBJECTS.values()), **OBJECTS}
            if name := next((word for word in rest if word in objects), None):
                raise SettingsError(
                    f"{name} is an object, which the function of {_BUILD} returns:"
                    f' {{"model": …, "{objects[name] or name}": …}}.'
                )
            return cls(
                path.parent,
                Target.of(_BUILD, values[_BUILD]),
                Target.of(_DATA, values[_DATA]) if _DATA in values else None,
                values.get(_START, "fresh"),
                {name: values[name] for name in _ARGUMENTS if name in values},
                Settings.named(rest, "train", names),
            )
        except SettingsError as error:
            raise SettingsError(f"{path}: {error}") from None

    @property
    def built_by(self) -> dict[str, dict[str, Any]]:
        """The functions that make model and data, with their parameters, as plain data for a
        record.
        """
        targets = [self.build, *([] if self.data is None else [self.data])]
        calls = {target.key: {TARGET: target.name, **target.parameters} for target in targets}
        plain: dict[str, dict[str, Any]] = json.loads(json.dumps(calls, default=str))
        return plain


def _replace(values: dict[str, Any], key: str, value: Any) -> None:
    """Set `a.b.c` in nested dicts."""
    *outer, last = key.split(".")
    inner: Any = values
    for depth, name in enumerate(outer, 1):
        child = inner.setdefault(name, {})
        if depth == 1 and name in (_BUILD, _DATA):
            child = inner[name] = _with_target(child)
        if not isinstance(child, dict):
            raise SettingsError(
                f"{key}={shown(value)}: {'.'.join(outer[:depth])} is {shown(child)}, which has no"
                " names."
            )
        inner = child
    inner[last] = value


def _with_target(value: Any) -> Any:
    """The name of a function, as the dict that has it; any other value unchanged."""
    return {TARGET: value} if isinstance(value, str) else value


def _interpolated(values: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values with what `${…}` in them refers to, which OmegaConf resolves."""
    if not any("${" in text for text in _texts(values)):
        return values
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ModuleNotFoundError:
        raise SettingsError(
            f"{path} has an interpolation, ${{…}}, which needs OmegaConf: pip install"
            " 'tuning-workbench[config]'"
        ) from None
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        raise SettingsError(f"{path}: {' '.join(str(error).split())}") from None
    assert isinstance(resolved, dict)
    return {str(name): value for name, value in resolved.items()}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
