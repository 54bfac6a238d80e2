"""Writes a run as a file: a script on torch and accelerate that repeats it, or the same in another
format.

The script has the code that the run used (`source/` slices it) and the training program with what
the run used. What it does not support raises NotStandAlone; without `format=`, a headless script is
written then, in which the workbench trains. ExportError is left for code that cannot be found; then
nothing is written.
read_run.py       what the script depends on, from the run and the bench: a ScriptSpec
inputs/           ... from the user's data, training step, optimizers, hooks
supported.py      the settings that a script supports
resume_points.py  what changed during the run, and where it continues another one
program/          the training program, with every technique
fold.py           cuts a run's script from it (`folding/`)
assembly/         what a run used, as the program's constants; joins it with the user's code
verification/     runs the written script for its first updates, and compares its losses
formats/          the other formats: a notebook, a script on Lightning, a headless one, the settings
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.engine.checkpoint.files import read_weights, write_tensors
from workbench.export.assembly.text import text_of
from workbench.export.errors import ExportError, NotStandAlone
from workbench.export.file_format import ExportOptions, Format, ScriptOptions, format_of
from workbench.export.formats.headless_script import headless_script
from workbench.export.formats.lightning_script import lightning_script
from workbench.export.formats.notebook import notebook
from workbench.export.formats.settings_yaml import settings_yaml
from workbench.export.inputs.saved_data import SavedData
from workbench.export.read_run import script_spec_of, start_of
from workbench.export.source.capture import CallSite
from workbench.runs.folder.files import aside_of
from workbench.runs.run import Run
from workbench.task.protocol import Task

_OURS = re.compile(r'^[ "#]*Written by Tuning Workbench \S+\.(\\n)?"?,?$', re.MULTILINE)
_USUAL = ExportOptions()
_REMEDY = (
    "A headless script has it, in which the workbench trains: "
    "bench.export('train.py', format='workbench')."
)
_MAKES_BENCH = re.compile(r"\bWorkbench\(")
"""Code that a notebook written by export has only if the user has continued to work in it."""


@dataclass(frozen=True)
class Exported:
    """A file that was written, or its text alone."""

    text: str
    format: Format
    notes: tuple[str, ...] = ()
    """Reasons why it may read other data than the run."""
    headless: str = ""
    """Why it is a headless script, where none was asked for."""
    saved: SavedData | None = None
    """The data next to it."""
    to_verify: Callable[[], str] | None = None
    """Writes what is run to verify it: the same script with a log of its losses and comparisons
    with the run; for a job's script the one that repeats the run. None: it cannot be run so.
    """


def export(
    path: Path, run: Run, site: CallSite, task: Task, options: ExportOptions = _USUAL
) -> Exported:
    """Write `path` and, where needed, its starting weights and data next to it.

    Raises `ExportError`, and writes nothing, where the run has something that is not supported, or
    where a file would be lost that no export has written.
    """
    with _naming(path):
        start, of_settings = start_of(run), format_of(path, options.format) == "settings"
        weights = None if start is None or of_settings else _beside(path, "start")
        _check_free(
            path,
            [
                *([] if weights is None else [weights]),
                *([] if options.data is None else [_beside(path, "data")]),
            ],
            site,
        )
    exported = _made(path, run, site, task, options)
    files: dict[Path, Callable[[Path], object]] = {}
    if start is not None and weights is not None:
        files[weights] = lambda aside: _copy_weights(start, aside)
    if exported.saved is not None:
        tensors = exported.saved.tensors
        files[path.with_name(exported.saved.file)] = lambda aside: write_tensors(aside, tensors)
    files[path] = lambda aside: aside.write_text(exported.text, encoding="utf-8")
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(files)
    return exported


def _copy_weights(start: Path, path: Path) -> None:
    """Copy the file of the starting weights, or join its shards."""
    if start.exists():
        shutil.copyfile(start, path)
    else:
        write_tensors(path, read_weights(start))


def script(
    path: Path, run: Run, site: CallSite, task: Task, options: ExportOptions = _USUAL
) -> str:
    """The text that `export` would write into `path`, without writing it. Raises the same
    ExportErrors.
    """
    return _made(path, run, site, task, options).text


def _made(path: Path, run: Run, site: CallSite, task: Task, options: ExportOptions) -> Exported:
    with _naming(path):
        _beside(path, "start")
    format, data, base = format_of(path, options.format), options.data, options.base
    if data not in (None, "beside"):
        raise ExportError(f"data={data!r} is unknown: give 'beside', or None.")
    if base not in (None, "nn.Module"):
        raise ExportError(f"base={base!r} is unknown: give 'nn.Module', or None.")
    if base is not None and format in ("settings", "lightning", "workbench"):
        raise ExportError(
            f"format={format!r} has no base='nn.Module': export a script, bench.export('train.py',"
            " base='nn.Module')."
        )
    extras = {name: getattr(options, name) for name in ScriptOptions.__annotations__}
    for name, value in extras.items():
        if not isinstance(value, bool):
            raise ExportError(f"{name}={value!r} is unknown: give True or False.")
    asked = [name for name, value in extras.items() if value]
    if asked and format in ("settings", "lightning", "workbench"):
        raise ExportError(
            f"format={format!r} has no {asked[0]}=True: leave it out, or export a script,"
            f" bench.export('train.py', {asked[0]}=True)."
        )
    if format == "settings":
        if data is not None:
            raise ExportError(
                "format='settings' has no data='beside': the file has no code that could read them."
                " Export a script, bench.export('train.py')."
            )
        return Exported(settings_yaml(run, site), format)
    if format == "workbench":
        if data is not None:
            raise ExportError("format='workbench' has no data='beside': leave one of the two out.")
        return _headless(path, run, site, task, options)
    try:
        return _without_workbench(path, run, site, task, options, format)
    except ExportError as error:
        is_script = options.format is None and format == "script" and data is None and base is None
        if is_script and not asked:
            return _headless(path, run, site, task, options, str(error))
        if isinstance(error, NotStandAlone):
            refused = [f"{name}=True" for name in asked]
            refused += [] if data is None else [f"data={data!r}"]
            refused += [] if base is None else [f"base={base!r}"]
            without = f" It has no {' and no '.join(refused)}." if refused else ""
            raise NotStandAlone(f"{error} {_REMEDY}{without}") from error
        raise


def _headless(
    path: Path,
    run: Run,
    site: CallSite,
    task: Task,
    options: ExportOptions,
    reason: str = "",
) -> Exported:
    """A headless script. reason: why it is not stand-alone."""
    weights = None if start_of(run) is None else _beside(path, "start").name
    text, sliced = headless_script(path, run, site, task, weights, reason, options.evidence)
    repeating = text
    if options.job_root is not None:
        text, sliced = headless_script(
            path, run, site, task, weights, reason, options.evidence, options.job_root
        )
    _check(text, path, run)
    sliced.secrets.check(text)
    return Exported(text, "workbench", tuple(sliced.differs), reason, to_verify=lambda: repeating)


def _without_workbench(
    path: Path, run: Run, site: CallSite, task: Task, options: ExportOptions, format: Format
) -> Exported:
    """A script that does not need the workbench, or a notebook of one.

    Raises NotStandAlone for what it cannot have.
    """
    data, base, weights = options.data, options.base, _beside(path, "start")
    data_file = None if data is None else _beside(path, "data").name
    recipe, saved = script_spec_of(
        path,
        run,
        site,
        task,
        None if start_of(run) is None else weights.name,
        options.evidence,
        data_file=data_file,
        plain=base is not None,
    )
    if format == "lightning":
        text = lightning_script(recipe, task)
    else:
        text = text_of(recipe, options)
    _check(text, path, run)
    recipe.sliced.secrets.check(text)
    if format == "notebook":
        text = notebook(recipe, text)
    notes, equipped = tuple(recipe.sliced.differs), replace(options, checks=True, log_file=True)
    to_verify = None if format == "lightning" else lambda: text_of(recipe, equipped)
    return Exported(text, format, notes, saved=saved, to_verify=to_verify)


def _check(text: str, path: Path, run: Run) -> None:
    """Raise ExportError for a text that is no Python."""
    try:
        compile(text, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise ExportError(
            f"the script of run {run.id} would be no valid Python ({error}); nothing was written."
        ) from error


def _beside(path: Path, content: str) -> Path:
    """The path of a file with tensors next to the script."""
    name = (
        path.name if path.suffix == ".ipynb" else path.stem
    )  # train.py may lie beside train.ipynb
    return path.with_name(f"{name}.{content}.safetensors")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Context manager in which an OSError becomes an ExportError that names the path."""
    try:
        yield
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error}") from error


def _check_free(path: Path, beside: Sequence[Path], site: CallSite) -> None:
    """Raise ExportError where this would replace a file that no export wrote, or from which the
    run's own code was read.
    """
    ours = False
    if path.exists():
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        ours = _OURS.search(text) is not None
        ran = text in {piece.source for piece in site.pieces} | set(site.sources.values())
        if not ours or ran or any(_MAKES_BENCH.search(cell) for cell in _cells(path, text)):
            raise ExportError(
                f"{path} was not written by export, and is not overwritten: give another name for"
                " the script."
            )
    for file in beside:
        if file.exists() and not (ours and file.is_file()):
            raise ExportError(
                f"{file} exists without the script that it would belong to, and is not overwritten:"
                " remove it, or give another name for the script."
            )


def _cells(path: Path, text: str) -> list[str]:
    """The code of each cell of a notebook."""
    try:
        cells = json.loads(text)["cells"] if path.suffix == ".ipynb" else []
        return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ):  # it is no notebook, although its name says so
        return []


def _replace(files: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write files under temporary names and, when all are complete, rename them."""
    asides = {target: target.with_name(aside_of(target.name)) for target in files}
    try:
        for target, write in files.items():
            write(asides[target])
        for target, aside in asides.items():
            os.replace(aside, target)
    finally:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
