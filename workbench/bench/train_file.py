"""Trains what a file describes: a script that makes a bench, or a YAML file (`workbench train`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.bench.build import arguments_from
from workbench.bench.config import Config, Target
from workbench.bench.overrides import OVERRIDES
from workbench.bench.workbench import Workbench
from workbench.runs.run import Run
from workbench.settings import Settings, SettingsError
from workbench.task import rng


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
    arguments = _called(config.build, config.folder)
    if config.data is not None:
        data = _called(config.data, config.folder)
        if twice := arguments.keys() & data.keys():
            raise SettingsError(
                f"{config.build.label} and {config.data.label} have both returned"
                f" {', '.join(sorted(twice))}: leave it out of one."
            )
        arguments |= data
    with Workbench(**{**arguments, **config.arguments, **config.settings}) as bench:
        bench._built_by = built_by
        return bench.fit(config.start).result()


def _called(target: Target, folder: Path) -> dict[str, Any]:
    return arguments_from(target.function(folder), target.parameters, target.label)
