"""Runs an exported script for its first updates, and compares its losses with those of the run.

Reading code cannot find everything that a notebook has done (`exec`, magics, the clock, a generator
that has moved). A run of the script finds what changes its first losses. It runs in an empty folder
with its own files alone, in a process of its own (`child.py`), with this interpreter and the
environment with which this process was started.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from workbench.events import Checksums, RunStarted
from workbench.export.verification import child
from workbench.runs.read import RUNS
from workbench.runs.run import Run
from workbench.values import first_names

UPDATES = 3
"""How many recorded updates of the run the script repeats at least, if the run has as many."""
_CLOSE = 1e-3
"""The relative difference up to which a loss on a GPU is repeated: sums differ there each time."""
_BORROWED = 4
"""How many files or folders of the working directory the script may read."""
_OF_LAUNCHER = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)"
    r"|(TORCHELASTIC|ACCELERATE|FSDP|SLURM|OMPI|PMIX?|PRTE)_.*"
)
"""The environment variables of a launcher, which the script would take for its own."""
_NOT_THE_RUNS = re.compile(r"^Not the run's (\w+)", re.MULTILINE)
"""What a script prints where it begins with something else than the run."""
_CAUSES = {
    "weights": "it begins with other weights",
    "order": "its samples come in another order: the generator that shuffles them had moved",
    "batches": (
        "its first batches are others, so its code makes other data: look for numbers drawn without"
        " a seed, or after other draws that the script does not have (set the seed where the data"
        " are made, fit again and export that run; or export with data='beside'), for values that"
        " the notebook changed without an assignment (%env, %run, exec, setattr), for the clock,"
        " the order of a set, a generator that had moved"
    ),
    "setup": (
        "its model is set up in another way (an attribute, requires_grad, a hook, train() or"
        " eval()), so something changed it before the fit that the script does not have. Write the"
        " change in a statement of its own, without the workbench in it (as `model.scale = 2.0`),"
        " make the model and the Workbench anew, fit and export that run"
    ),
}
_SAME_START = (
    "its weights and first batches are the run's, so its model or loss computes in another way: "
    "look for values that the notebook changed without an assignment (%env, %run, exec, globals(), "
    "setattr), for attributes, modes or hooks of the model that changed before the fit, and for "
    "results that were kept from earlier calls"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the process of the script must know about its end. Times are in seconds."""

    asker: int
    """The process that waits for the outcome."""
    log: str
    """The file to which the script writes a line for each update and validation; of a headless
    script the folder of its runs."""
    last: int
    """The update that is enough."""
    validates: bool
    """Whether a validation is wanted, too, if it comes soon."""
    ranks: int = 1
    """The number of processes that the script has."""
    until_first: float = 90.0
    """From the start to the first update: imports, the data, the model."""
    until_last: float = 60.0
    """From the first update to the last one."""
    until_validation: float = 2.0
    """From the last update to the validation."""


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether a script repeats the run."""

    text: str
    """One sentence, with possible causes if the script differs."""
    repeats: bool | None
    """None: not known, `text` says why."""
    notes: tuple[str, ...] = ()
    """The notes of the export that are still to be said."""

    @property
    def level(self) -> Literal["info", "warning"]:
        """The level of a message with this text."""
        return "warning" if self.repeats is False else "info"


def verify(
    path: Path, text: str, run: Run, notes: Sequence[str] = (), *, headless: bool = False
) -> Verification:
    """Run the script that an export wrote to `path`, and compare its first losses.

    text: the code to run. For a script or notebook it is the same program with a log of its losses
    and comparisons with the run. headless: the workbench trains in it, so its losses are those of a
    run that it records.
    notes: why it may differ, as far as reading its code tells. They are possible causes of a
    difference that is measured; a script that repeats the updates and a validation answers them.
    """
    if reason := _obstacle(run, headless=headless):
        return Verification(f"not verified: {reason}", None, tuple(notes))
    losses = _recorded(run)
    steps = [*losses][:UPDATES]
    borrowed: list[str] = []
    with tempfile.TemporaryDirectory(
        prefix="workbench-verify-", ignore_cleanup_errors=True
    ) as temporary:
        folder = Path(temporary).resolve()
        files = folder / "files"
        files.mkdir()
        script = _placed(path, text, files, headless=headless)
        log = files / ".workbench" / RUNS if headless else folder / "log.jsonl"
        ranks = 1 if headless else _ranks(run)
        plan = Plan(os.getpid(), str(log), steps[-1], len(run.validation["step"]) > 0, ranks)
        options = [] if headless else ["--log_file", plan.log, "--output", str(folder / "output")]
        code = _run(script, options, plan, folder)
        end = _end_of(folder / "outcome.json")
        while len(borrowed) < _BORROWED and (name := _borrow(end.get("missing"), files)):
            borrowed.append(name)
            code = _run(script, options, plan, folder)
            end = _end_of(folder / "outcome.json")
        if headless:
            rows, others = _recorded_rows(log, run)
        else:
            rows = child.rows_of(plan.log)
            printed = (folder / "printed.txt").read_text(encoding="utf-8", errors="replace")
            others = [*dict.fromkeys(_NOT_THE_RUNS.findall(printed))]
    exact = torch.device(_device(run)).type == "cpu"
    compared = _first(rows, steps[-1], validated=exact)
    difference, updates, validations = compare(
        compared, losses, _validations(run), 0.0 if exact else _CLOSE
    )
    if difference is not None:
        causes = [*_measured(others, run), *notes]
        return Verification(f"it does not repeat the run: {difference}. {_sentence(causes)}", False)
    if end.get("error"):
        return Verification(_failure(end, script.name), False)
    if updates < len(steps) and not end.get("late"):
        why = "the script ended" if "ended" in end else f"its process ended with code {code}"
        return Verification(
            f"not verified: {why} after {updates} updates, and the run made more",
            None,
            tuple(notes),
        )
    if not updates:
        why = f"it made no update in {plan.until_first:g} s; verify=False leaves this out"
        return Verification(f"not verified: {why}", None, tuple(notes))
    done = f"{updates} update{'s' * (updates > 1)}{' and a validation' * (validations > 0)}"
    verb = "repeat" if updates + validations > 1 else "repeats"
    text = f"verified: {done} {verb} the run{'' if exact else f' to {_CLOSE:.1%}'}"
    if borrowed:
        text += (
            f" where it finds {first_names(borrowed, 3)}, as in {os.getcwd()}: "
            "start the script in that folder"
        )
    return Verification(text, True, () if validations or not plan.validates else tuple(notes))


def _first(
    rows: Sequence[Mapping[str, Any]], last: int, *, validated: bool
) -> list[Mapping[str, Any]]:
    """The rows of the updates up to `last`, and if wanted those up to the first validation.

    How many come later depends on the time.
    """
    updates = [index for index, row in enumerate(rows) if "loss" in row and row["step"] <= last]
    checks = [index for index, row in enumerate(rows) if "loss" not in row]
    if not validated or not checks:
        return [rows[index] for index in updates]
    return [*rows[: max(checks[0], *updates[-1:]) + 1]]


def compare(
    rows: Iterable[Mapping[str, Any]],
    losses: Mapping[int, float],
    validations: Mapping[int, Mapping[str, float]],
    tolerance: float,
) -> tuple[str | None, int, int]:
    """The first difference in words, or None; how many updates and validations were compared.

    rows: those of the script's log. losses: the run's, by update. validations: the metrics of the
    run's validations, by the number of updates before them.
    """
    updates = checks = 0
    for row in rows:
        step = int(row["step"])
        if "loss" in row:
            recorded, where = (
                {"loss": losses[step]} if step in losses else {},
                f"at update {step + 1}",
            )
            updates += bool(recorded)
        else:
            known = validations.get(step, {})
            recorded = {
                name: value
                for name, value in known.items()
                if name in row and not math.isnan(value)
            }
            where = f"in the validation after update {step}"
            checks += bool(recorded)
        for name, value in recorded.items():
            if not _equal(float(row[name]), value, tolerance):
                return (
                    f"{where} its {name} is {float(row[name]):.9g}, and the run's {value:.9g}",
                    updates,
                    checks,
                )
    return None, updates, checks


def _equal(value: float, recorded: float, tolerance: float) -> bool:
    both_nan = math.isnan(value) and math.isnan(recorded)
    return both_nan or value == recorded or math.isclose(value, recorded, rel_tol=tolerance)


# -- the run


def _obstacle(run: Run, *, headless: bool) -> str:
    """Why the script of this run cannot be verified here; "": it can."""
    ranks = _ranks(run)
    if headless and run.settings.strategy == "launch":
        return (
            "the script launches its training, which would outlive this check. "
            "wb.rerun repeats the run here"
        )
    if ranks > 1 and not headless and (run.settings.num_nodes > 1 or not _has_devices(run)):
        return f"the run trained on {ranks} processes, for which there are not the devices here"
    here, recorded_device = _script_device(run), torch.device(_device(run)).type
    if here != recorded_device:
        return (
            f"the run trained on {recorded_device}, and a script that is started here takes {here}"
        )
    if not _recorded(run):
        return "the run has no update"
    if not hasattr(os, "killpg"):
        return "this system cannot end a group of processes"
    return ""


def _ranks(run: Run) -> int:
    """How many processes made the run."""
    started = (event for event in run.outline if isinstance(event, RunStarted))
    return next((int(event.ranks) for event in started), 1)


def _has_devices(run: Run) -> bool:
    """Whether each process of the run has a device here, and would take the one that it had."""
    if torch.device(_device(run)).type == "cpu":
        return True
    chosen = isinstance(run.settings.devices, tuple)
    return not chosen and torch.accelerator.device_count() >= _ranks(run)


def _device(run: Run) -> str:
    """The device of a rank."""
    started = (event for event in run.outline if isinstance(event, RunStarted))
    return next((event.device.rpartition(" x ")[2] for event in started), "cpu")


def _script_device(run: Run) -> str:
    """The kind of device that the script takes in this process."""
    device = (
        None
        if run.settings.accelerator == "cpu" or not torch.accelerator.is_available()
        else torch.accelerator.current_accelerator()
    )
    return "cpu" if device is None else device.type


def _recorded(run: Run) -> dict[int, float]:
    """The recorded losses by update."""
    history = run.history
    return dict(zip(history["step"].tolist(), history["loss"].tolist(), strict=True))


def _validations(run: Run) -> dict[int, dict[str, float]]:
    """The metrics of the recorded validations by the number of updates before them."""
    columns = {
        name: values.tolist()
        for name, values in run.validation.items()
        if name not in ("epoch", "train_loss")
    }
    steps = columns.pop("step")
    return {
        step: {name: values[index] for name, values in columns.items()}
        for index, step in enumerate(steps)
    }


def _recorded_rows(runs: Path, original: Run) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of the last run of a headless script, which has those of the runs that it continues,
    and the names of what it begins with and is not the original's.
    """
    recorded = [Run.open(folder) for folder in sorted(runs.glob("*")) if folder.is_dir()]
    again = next((run for run in reversed(recorded) if _recorded(run)), None)
    if again is None:
        return [], []
    checks = [{"step": step, **metrics} for step, metrics in _validations(again).items()]
    updates = [{"step": step, "loss": loss} for step, loss in _recorded(again).items()]
    rows = sorted([*checks, *updates], key=lambda row: row["step"])  # checks come first
    here, expected = _checksums(again), _checksums(original)
    names = [
        name
        for name in ("weights", "setup", "order", "batches")
        if getattr(here, name)
        and getattr(expected, name)
        and getattr(here, name) != getattr(expected, name)
    ]
    return rows, names


def _checksums(run: Run) -> Checksums:
    """The first ones: a run that continues another has those of the other first."""
    known = (event for event in run.outline if isinstance(event, Checksums))
    return next(known, Checksums())


# -- the script


def _placed(path: Path, text: str, folder: Path, *, headless: bool) -> Path:
    """The script, put into this folder with its files."""
    stem = path.name if path.suffix == ".ipynb" else path.stem
    files = (path.with_name(f"{stem}.{kind}.safetensors") for kind in ("start", "data"))
    for file in filter(Path.exists, files):
        try:  # weights may be large
            if headless:  # the workbench follows no symbolic links
                os.link(file.resolve(), folder / file.name)
            else:
                (folder / file.name).symlink_to(file.resolve())
        except OSError:
            shutil.copyfile(file, folder / file.name)
    script = folder / f"{path.stem}.py"
    script.write_text(text, encoding="utf-8")
    return script


def _borrow(missing: str | None, folder: Path) -> str:
    """Link a file that the script did not find, or its folder, from the working directory.

    Returns the name of the link, or "" where there is no such file.
    """
    parts = Path(missing or ".").parts
    if missing is None or os.path.isabs(missing) or not parts or ".." in parts:
        return ""
    source, link = Path(parts[0]).absolute(), folder / parts[0]
    if not Path(missing).exists() or os.path.lexists(link):
        return ""
    with contextlib.suppress(OSError):
        link.symlink_to(source, target_is_directory=source.is_dir())
        return parts[0]
    return ""


def _run(script: Path, options: Sequence[str], plan: Plan, folder: Path) -> int:
    """Run the script until the plan is done, then end all its processes. Returns the exit code."""
    # These are of a run without a file that is there now.
    if Path(plan.log).is_dir():
        shutil.rmtree(plan.log)
    for file in (Path(plan.log), folder / "outcome.json"):
        file.unlink(missing_ok=True)
    command = [
        sys.executable,
        child.__file__,
        json.dumps(asdict(plan)),
        str(folder / "outcome.json"),
        str(script),
        *options,
    ]
    with (folder / "printed.txt").open("wb") as printed:
        process = subprocess.Popen(
            command,
            cwd=script.parent,
            env=started_with(),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(plan.until_first + plan.until_last + plan.until_validation + 5)
        finally:
            if process.poll() is None or plan.ranks > 1:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return process.returncode


def started_with() -> dict[str, str]:
    """The environment with which this process was started, without a launcher's variables.

    Variables that were set since are not the script's. Where the system does not tell them, it is
    the present environment.
    """
    present = dict(os.environ)
    with contextlib.suppress(OSError):
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
        pairs = [os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry]
        first = {name: value for name, _, value in pairs}
        present = first if "PATH" in first else present  # some programs write their title over it
    return {name: value for name, value in present.items() if not _OF_LAUNCHER.fullmatch(name)}


def _end_of(outcome: Path) -> Mapping[str, Any]:
    """How the script ended: "error" and its place, "ended" by itself, or "late"; else nothing."""
    return json.loads(outcome.read_text(encoding="utf-8")) if outcome.exists() else {}


# -- the sentence


def _failure(end: Mapping[str, Any], script: str) -> str:
    location = "" if end["line"] is None else f" ({script}, line {end['line']}: `{end['code']}`)"
    if end["missing"] is not None and not os.path.isabs(end["missing"]):
        return (
            f"it fails{location}: it reads {end['missing']}, which is neither beside the script nor"
            f" in {os.getcwd()}. Start it in the folder where this file lies, or name the file by"
            " its whole path, fit again and export that run"
        )
    variable = re.fullmatch(r"KeyError: '(\w+)'", end["error"])
    if variable is not None and "environ" in (end["code"] or ""):
        return (
            f"it fails{location}: set {variable[1]} in the environment of the script. "
            "This process was started without it"
        )
    return f"it fails: {end['error']}{location}"


def _measured(names: Sequence[str], run: Run) -> Iterator[str]:
    """Why the losses differ. names: what the script begins with and is not the run's."""
    yield from (_CAUSES[name] for name in names if name in _CAUSES)
    if not names and len(_recorded(run)) > 1:
        yield _SAME_START


def _sentence(causes: Sequence[str]) -> str:
    return " ".join(f"{cause[:1].upper()}{cause[1:].removesuffix('.')}." for cause in causes)
