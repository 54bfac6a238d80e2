"""Trains what a file describes: a script that makes a bench, or a YAML file (`workbench train`)."""

from __future__ import annotations

import difflib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.bench.config import Config, Target
from workbench.bench.overrides import OVERRIDES
from workbench.bench.recipe import OBJECTS
from workbench.bench.workbench import Workbench
from workbench.runs.run import Run
from workbench.settings import Settings, SettingsError
from workbench.task import rng
from workbench.values import shown


def train_script(
    path: Path,
    settings: Mapping[str, Any],
    arguments: Sequence[str],
    tell: Callable[[str], object],
) -> None:
    """Run a script as `python path …arguments` does. Its benches and their fits have these
    settings, whatever it gives them itself.

    It is for a process that does nothing else: the script becomes its main module. tell: called
    with a line for each bench, with the settings. SettingsError: it made no bench, on which they
    would have an effect.
    """
    OVERRIDES.set(settings, tell)
    main = ModuleType("__main__")
    main.__file__ = str(path.absolute())
    code = compile(path.read_bytes(), main.__file__, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    sys.argv = [str(path), *arguments]
    if not sys.flags.safe_path:  # then Python puts no folder there
        sys.path[0] = str(path.absolute().parent)
    try:
        exec(code, vars(main))
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    if settings and not OVERRIDES.used:
        raise SettingsError(
            f"{path.name} has made no wb.Workbench, so {', '.join(settings)} of the command line"
            " had no effect. A script that needs no workbench has options of its own: python"
            f" {path.name} --help."
        )


def train_config(config: Config) -> Run:
    """Train what a YAML file describes, and wait for it.

    It is for a process that does nothing else. Python, NumPy and torch are seeded with the setting
    `seed` before the model is made.
    """
    for folder in (Path.cwd(), config.folder.resolve()):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    built_by = config.built_by
    # by its command line, among others, fit("auto") knows a training again
    sys.argv = [sys.argv[0], json.dumps(built_by)]
    rng.seed(Settings.make(**config.settings).seed)
    function = config.build.function(config.folder)
    _check_parameters(config.build, function)
    arguments: dict[str, Any] = {"model": function}
    if config.data is not None:
        arguments |= _data(config.data, config.folder)
    arguments |= config.build.parameters
    with Workbench(**{**arguments, **config.arguments, **config.settings}) as bench:
        bench._header = {"built_by": built_by}
        # a fit that continues has the settings of its run, but for those that it is given
        continues = config.start not in ("fresh", "auto")
        return bench.fit(config.start, **(config.settings if continues else {})).result()


def _check_parameters(target: Target, function: Callable[..., Any]) -> None:
    """Raise SettingsError for a parameter that the function does not have: the bench would take it
    for a setting.
    """
    names = list(inspect.signature(function).parameters)
    unknown = next((name for name in target.parameters if name not in names), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, names, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(names) or 'none'}."
        raise SettingsError(f"{target.label} has no parameter {unknown!r}. {hint}")


def _data(target: Target, folder: Path) -> dict[str, Any]:
    """The data that a function makes, as arguments of a bench."""
    function = target.function(folder)
    _check_parameters(target, function)
    data = function(**target.parameters)
    if not isinstance(data, Mapping) or "model" in data or not data.keys() <= {*OBJECTS}:
        names = list(data) if isinstance(data, Mapping) else shown(data)
        raise SettingsError(
            f"{target.label} has returned {names}: let it return a dict of arguments of"
            f' wb.Workbench, {{"train": …, "val": …}}: {", ".join(OBJECTS)}.'
        )
    return dict(data)
