"""Writes a headless script: the user's code, a Workbench with the run's settings, and its fit.

In a headless script the workbench trains, so it has what a stand-alone script cannot have. It needs
the workbench where it runs, and shows no panel.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench._version import __version__
from workbench.events import Changed, CurveEnded, Event, Resumed, SearchEnded
from workbench.export.assembly.text import free, plain, rule
from workbench.export.errors import ExportError
from workbench.export.inputs.collect import quoted
from workbench.export.read_run import check_run, check_start, header_of, left_out
from workbench.export.resume_points import refuse_other_start
from workbench.export.source.capture import BuildCall, CallSite
from workbench.export.source.origins import Import
from workbench.export.source.rewrite.source_text import join, parsed_imports, set_imports
from workbench.export.source.source import CODE_ARGUMENTS, Sliced, slice_call
from workbench.export.supported import LENGTHS
from workbench.runs.run import Run
from workbench.settings import Settings, SettingsError
from workbench.settings.without_effect import without_effect
from workbench.task import rng
from workbench.task.errors import TaskError
from workbench.task.protocol import Task
from workbench.task.supervised import Supervised
from workbench.values import EarlyStopping

_OPTIONS = {"lr": float, "batch_size": int, "max_epochs": int, "max_steps": int, "seed": int}
"""The settings that the script has options for, where they are numbers."""
_OF_PLACE = ("devices", "strategy", "num_nodes", "launch")
"""The settings that a launcher decides."""
_WIDTH = 100


@dataclasses.dataclass
class _Fit:
    """A fit of the script. A run that continues others has several."""

    settings: Settings
    edited: Resumed | None = None
    """Where it continues the fit before it, with other settings."""
    changes: list[tuple[int, dict[str, Any]]] = dataclasses.field(default_factory=list)
    """Its live changes, each with the number of updates before it."""
    stop_at: int | None = None
    """After how many updates it stops; None: its length ends it."""

    def change(self, event: Changed) -> None:
        """Note a live change. The settings with which a fit continues are recorded as one, too."""
        continued_with = (
            self.edited.values if self.edited and self.edited.step == event.step else {}
        )
        values = {name: value for name, value in event.values.items() if name not in continued_with}
        if values:
            self.changes.append((int(event.step), values))


def headless_script(
    path: Path,
    run: Run,
    site: CallSite,
    task: Task,
    weights: str | None,
    reason: str = "",
    evidence: tuple[str, ...] = (),
    job_root: Path | None = None,
) -> tuple[str, Sliced]:
    """The text of the script at `path`, and the user's code in it.

    weights: the name of the file with the starting weights. reason: why it is not stand-alone.
    job_root: see `ExportOptions`. Such a script trains as the run was asked to, with as many
    processes as its launcher starts.
    Raises ExportError where the code, or the record of a run that this one continues, is missing.
    """
    header = header_of(run)
    check_run(run, header, task)
    check_start(run, task)
    fits = _fits(run)
    sliced = slice_call(site, left_out(task, run.settings), headless=True)
    threads = int(header.get("threads") or 0)
    if job_root is not None:
        fits, threads = [_fit_of_job(run, fits)], 0
        folder = path.absolute().parent  # they can be moved together
        job_root = job_root.relative_to(folder) if job_root.is_relative_to(folder) else job_root
    script = _Script(sliced, task, run, weights, threads, job_root, site.build)
    notes = [*_notes(path, run, weights, reason), *sliced.notes, *sliced.differs]
    notes += ["Where its settings come from:", *evidence] if evidence else []
    title = (
        f"Train {plain(type(task.model).__name__)} on the workbench, as run {plain(run.id)} did."
    )
    body = script.main(fits, title)
    sections = [_head(title, path, notes), script.imports(), script.code(), body]
    return "\n\n".join(section for section in sections if section), sliced


# ---- the run ------------------------------------------------------------------------------------


def _fits(run: Run) -> list[_Fit]:
    """The fits that repeat the run: those that it continues, each up to the update at which another
    one does, and the last one.
    """
    for resumed in run.resumes:
        refuse_other_start(run, resumed)
    fits = [_Fit(_first_settings(run))]
    before: Event | None = None
    for event in run.outline:
        if isinstance(event, Resumed):
            fits[-1].stop_at = int(event.step)
            fits.append(_Fit(fits[-1].settings.replace(**event.values), edited=event))
        elif isinstance(event, Changed) and not isinstance(before, (SearchEnded, CurveEnded)):
            fits[-1].change(event)  # after a search inside the fit, it is the search's own
        before = event
    if run.status == "stopped":
        fits[-1].stop_at = int(run.step)
    return fits


def _fit_of_job(run: Run, fits: list[_Fit]) -> _Fit:
    """The fit of a job that starts again until it is done. Where it trains is left to the launcher.

    Raises ExportError for what cannot be part of one fit.
    """
    why = ""
    if len(fits) > 1:
        why = f"run {run.id} continues {Path(run.resumes[0].run).name}"
    elif fits[0].changes:
        why = f"run {run.id} was changed while it trained ({', '.join(fits[0].changes[0][1])})"
    if why:
        raise ExportError(
            f"{why}, and a job trains one fit, so that it can start again: fit with these settings"
            " from the beginning (a few updates are enough), and give that run."
        )
    usual = {name: Settings.model_fields[name].default for name in _OF_PLACE}
    return _Fit(fits[0].settings.replace(**usual))


def _first_settings(run: Run) -> Settings:
    """The settings with which the first of these fits began. The run itself has its own length."""
    edited = {name for event in run.resumes for name in event.values}
    if LENGTHS.isdisjoint(edited):
        return run.settings
    first = run.resumes[0].run
    try:
        assert run.folder is not None
        return Run.open(run.folder.parent / Path(first).name).settings
    except FileNotFoundError as error:
        raise ExportError(
            f"run {run.id} continues {first}, whose record is gone, so its length is not known: "
            f"{error}"
        ) from error


# ---- the script ---------------------------------------------------------------------------------


def _head(title: str, path: Path, notes: list[str]) -> str:
    text = "\n\n".join(textwrap.fill(plain(note), 98, break_long_words=False) for note in notes)
    call = f"    python {plain(path.name)}"
    return f'"""{title}\n\n{call}\n\n{text}\nWritten by Tuning Workbench {__version__}.\n"""'


def _notes(path: Path, run: Run, weights: str | None, reason: str) -> Iterator[str]:
    if reason:
        yield f"It needs the workbench, since a script without it was not possible: {reason}"
    else:
        yield "It needs the workbench, which trains."
    yield (
        "It begins with the weights that its code makes: the run's were not recorded."
        if weights is None
        else f"The weights that the run began with are read from {weights}."
    )
    if run.settings.max_time is not None:
        yield "max_time ends it, on another machine perhaps after another update than the run."


class _Script:
    """Writes the parts of one script. Where the user's code has a name of the script's, the script
    takes another.
    """

    def __init__(
        self,
        sliced: Sliced,
        task: Task,
        run: Run,
        weights: str | None,
        threads: int,
        job_root: Path | None,
        build: BuildCall | None,
    ) -> None:
        """job_root: where a job records its runs, from the script's folder; None: it is no job."""
        self._sliced, self._task, self._weights, self._threads = sliced, task, weights, threads
        self._job_root = job_root
        self._theirs, self._futures = parsed_imports(sliced.imports)
        self._taken = set(sliced.names) | {item.binds for item in self._theirs}
        self._ours: list[Import] = []
        self._status = run.status if job_root is None else "finished"
        self._has_callbacks = "callbacks" in sliced.arguments
        self._build = {} if build is None else dict(build.values)

    def imports(self) -> str:
        """The import statements."""
        return set_imports([*self._ours, *self._theirs], self._futures).strip()

    def code(self) -> str:
        """The user's code."""
        code = join(self._sliced.blocks).strip("\n")
        return f"{rule('the code of the run')}\n\n{code}\n" if code else ""

    def main(self, fits: list[_Fit], title: str) -> str:
        """The function that makes the bench and fits, and its call."""
        main, job, run = (free(name, self._taken) for name in ("main", "job", "run"))
        wb, bench = self._import("workbench", None, "wb"), free("bench", self._taken)
        settings = self._settings(fits[-1].settings, wb)
        options = [name for name in _OPTIONS if name in settings]
        parsed = free("options", self._taken)
        for name in options:
            settings[name] = f"{parsed}.{name}"
        lines = self._parser(options, fits[-1].settings, title, parsed)
        if self._threads:
            torch_ = self._import("torch")
            lines.append(f"{torch_}.set_num_threads({self._threads})  # sums depend on it")
        code = {
            name: text.strip()
            for name, text in self._sliced.arguments.items()
            if name in (*CODE_ARGUMENTS, "callbacks")
        }
        model = code.pop("model")
        # Callbacks may stand for settings, which the bench then takes from them alone.
        of_fit = settings if self._has_callbacks else {}
        of_bench = {**self._build, **code, **({} if self._has_callbacks else settings)}
        if self._job_root is not None:
            folder = f"{self._import('pathlib', 'Path')}(__file__).absolute().parent / "
            from_script = "" if self._job_root.is_absolute() else folder
            of_bench["root"] = from_script + quoted(str(self._job_root))
        lines += _call(f"{bench} = {wb}.Workbench", [model], of_bench)
        if self._weights is not None:
            folder = self._import("pathlib", "Path")
            lines.append(f"{bench}.load({folder}(__file__).with_name({quoted(self._weights)}))")
        for number, fit in enumerate(fits):
            # One that continues has the settings of the fit before it, the first one the bench's.
            start, other = (['"continue"'], fits[number - 1]) if number else ([], fits[-1])
            if self._job_root is not None:  # where the job was stopped, it continues
                start = ['"auto"']
            expressions = settings if fit is fits[-1] else {}
            changed = _differing(fit.settings, other.settings, wb, expressions)
            keywords = {**of_fit, **changed}
            if fit is fits[-1] and not fit.changes and fit.stop_at is None:
                *head, last = _call(f"{run} = {bench}.fit", start, keywords)
                lines += [*head, f"{last}.result()"]
                break
            lines += _call(f"{job} = {bench}.fit", start, keywords)
            lines += [_change(job, step, values, wb) for step, values in fit.changes]
            lines += [] if fit.stop_at is None else [f"{job}.stop(at={fit.stop_at})"]
            lines.append(f"{job}.result()" if fit is not fits[-1] else f"{run} = {job}.result()")
        status = quoted(self._status)
        lines += [] if self._job_root is not None else [f"print({run})"]  # each rank would
        lines += [f"return 0 if {run}.status == {status} else 1"]
        body = textwrap.indent("\n".join(lines), "    ")
        exits = f"{self._import('sys')}.exit({main}())"
        guard = f'if __name__ == "__main__":\n    {exits}\n'
        return f"{rule('the training')}\n\n\ndef {main}():\n{body}\n\n\n{guard}"

    def _import(self, module: str, name: str | None = None, alias: str | None = None) -> str:
        """The name by which the script imports this."""
        item = Import(module, name, alias)
        same = next(
            (imported for imported in self._theirs if imported.identity == item.identity), None
        )
        if same is not None:
            return same.binds
        binds = free(item.binds, self._taken)
        if binds != item.binds:
            item = Import(module, name, binds)
        if item not in self._ours:
            self._ours.append(item)
        return binds

    def _settings(self, settings: Settings, wb: str) -> dict[str, str]:
        """The settings that the user's code does not imply, each as an expression."""
        task = self._task
        compiled = {} if task.compiler is None else {"compile": True}
        with rng.preserved():
            implied = task.implied
        usual = Settings.make(**{**compiled, **implied})
        always = {"batch_size", "seed", *(["lr"] if isinstance(task, Supervised) else [])}
        if self._job_root is not None and settings.max_epochs is not None:
            always.add("max_epochs")  # what was tried on a few is submitted with more
        explicit = {
            name: value
            for name, value in settings
            if name in always or repr(value) != repr(getattr(usual, name))
        }
        idle = without_effect(settings, explicit)
        return {
            name: _literal(value, wb)
            for name, value in explicit.items()
            if name not in idle and _is_used(task, name, value)
        }

    def _parser(self, options: list[str], settings: Settings, title: str, parsed: str) -> list[str]:
        argparse, parser = self._import("argparse"), free("parser", self._taken)
        lines = [f"{parser} = {argparse}.ArgumentParser(description={quoted(title)})"]
        for name in options:
            kind, value = _OPTIONS[name].__name__, quoted(getattr(settings, name))
            argument = f'{parser}.add_argument("--{name}", type={kind}, default={value}'
            lines.append(f'{argument}, help="(%(default)s)")')
        return [*lines, f"{parsed} = {parser}.parse_args()"]


def _differing(
    settings: Settings, other: Settings, wb: str, expressions: Mapping[str, str]
) -> dict[str, str]:
    """The settings that differ from others: by these expressions, or else by their values."""
    return {
        name: expressions.get(name) or _literal(value, wb)
        for name, value in settings
        if repr(value) != repr(getattr(other, name))
    }


def _is_used(task: Task, name: str, value: Any) -> bool:
    """Whether a bench accepts this setting for its data: ready batches have no batch_size."""
    try:
        task.refuse_unused({name: value})
    except (SettingsError, TaskError):
        return False
    return True


def _change(job: str, step: int, values: Mapping[str, Any], wb: str) -> str:
    arguments = ", ".join(f"{name}={_literal(value, wb)}" for name, value in values.items())
    return f"{job}.change({arguments}, at={step})"


def _call(called: str, positional: list[str], keywords: Mapping[str, str]) -> list[str]:
    """The lines of a call, one for each argument where they do not fit on one line."""
    arguments = [*positional, *(f"{name}={text}" for name, text in keywords.items())]
    line = f"{called}({', '.join(arguments)})"
    if len(line) <= _WIDTH - 4 and "\n" not in line and len(arguments) < 5:
        return [line]
    return [f"{called}(", *(f"    {argument}," for argument in arguments), ")"]


def _literal(value: Any, wb: str) -> str:
    """The value of a setting as an expression."""
    if isinstance(value, EarlyStopping):
        options = value.model_dump(exclude_defaults=True, exclude={"monitor"})
        arguments = [quoted(value.monitor), *(f"{name}={quoted(v)}" for name, v in options.items())]
        return f"{wb}.EarlyStopping({', '.join(arguments)})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_literal(item, wb) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{quoted(key)}: {_literal(v, wb)}' for key, v in value.items())}}}"
    return quoted(value)
