"""Writes the file that starts a script on a cluster: for SLURM's sbatch, or a shell script with
torchrun for hosts without a scheduler.

Sources: the manuals of sbatch and srun; torch.distributed.run.
"""

from __future__ import annotations

import difflib
import functools
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from workbench._version import __version__
from workbench.export.errors import ExportError
from workbench.runs.folder.files import write_whole
from workbench.settings import Settings
from workbench.values import shown

LaunchFormat = Literal["slurm", "torchrun"]
LaunchOption = str | int | float | timedelta | None

_BY_ENDING: Mapping[str, LaunchFormat] = {
    ".sbatch": "slurm",
    ".slurm": "slurm",
    ".sh": "torchrun",
}
_OF_ARGUMENTS: Mapping[str, str] = {
    "nnodes": "nodes=",
    "ntasks": "nodes= and devices=",
    "ntasks_per_node": "devices=",
    "nproc_per_node": "devices=",
    "chdir": "the folder of path=",
    "node_rank": "the first argument of the file (sh job.sh 1)",
}
"""Options of sbatch and torchrun that other arguments decide."""
_GPUS = ("gpus_per_node", "gpus", "gpus_per_task", "gres")
"""The options of sbatch that ask for GPUs."""
_SBATCH = (
    "account acctg_freq array batch bb bbf begin clusters comment constraint container contiguous"
    " core_spec cores_per_socket cpu_freq cpus_per_gpu cpus_per_task deadline delay_boot dependency"
    " distribution error exclude exclusive export export_file extra extra_node_info get_user_env"
    " gid gpu_bind gpu_freq gpus gpus_per_node gpus_per_socket gpus_per_task gres gres_flags"
    " hint hold input job_name kill_on_invalid_dep licenses mail_type mail_user mcs_label mem"
    " mem_bind mem_per_cpu mem_per_gpu mincpus network nice no_kill no_requeue nodefile nodelist"
    " ntasks_per_core ntasks_per_gpu ntasks_per_socket open_mode output overcommit oversubscribe"
    " partition power prefer priority profile propagate qos reboot requeue reservation segment"
    " signal sockets_per_node spread_job switches thread_spec threads_per_core time time_min tmp"
    " tres_per_task uid use_min_nodes wait_all_nodes wckey"
).split()
"""The options of sbatch, with underscores."""
_IN_SCRIPT = ("lr", "batch_size", "max_epochs", "max_steps", "seed")
"""The settings that the script has as options of its command line."""
_GRACE = 120
"""Seconds before its time limit at which a job of SLURM is told to write a checkpoint."""
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
"""A value that sbatch reads as it stands."""


@dataclass(frozen=True)
class LaunchFile:
    """A file to start a script with. Raises ExportError for what cannot be written."""

    path: Path
    format: LaunchFormat | None
    nodes: int
    devices: int | None
    """Processes on each host; None: as many as GPUs are asked for, else as here."""
    here: tuple[str, int]
    """The kind of device and the number of processes that a job on this host would have."""
    settings: Settings
    options: Mapping[str, LaunchOption]

    def __post_init__(self) -> None:
        if not self.path.name.strip(".") or self.path.is_dir():
            raise ExportError(f"{str(self.path)!r} is no name for a file: give 'job.sbatch', say.")
        _check_text(f"path={str(self.path)!r}", str(self.path.absolute()))
        if self.path.suffix == ".py":
            raise ExportError(
                f"path={str(self.path)!r}: the script that it starts has this name: give"
                f" {self.path.stem}.sbatch (SLURM) or {self.path.stem}.sh (torchrun)."
            )
        if self.format not in (None, "slurm", "torchrun"):
            raise ExportError(f"format={self.format!r} is unknown: give 'slurm' or 'torchrun'.")
        if self.format is None and self.path.suffix not in _BY_ENDING:
            raise ExportError(
                f"path={str(self.path)!r} ends in none of .sbatch, .slurm (SLURM) and .sh"
                " (torchrun): give one of these, or format='slurm' or 'torchrun'."
            )
        for name, count in (("nodes", self.nodes), ("devices", self.devices)):
            if count is not None and (type(count) is not int or count < 1):
                raise ExportError(
                    f"{name}={shown(count)} should be a whole number, 1 or more."
                    + (" The launcher numbers the GPUs." if name == "devices" else "")
                )
        for name, value in self.options.items():
            self._check_option(name, value)
        self._check_gpus()
        endpoint = self.options.get("rdzv_endpoint") or ""
        if self._torchrun and self.nodes > 1 and not re.fullmatch(r".+:\d+", str(endpoint)):
            raise ExportError(
                f"nodes={self.nodes}, rdzv_endpoint={endpoint!r}: the hosts must find each other:"
                " give the address of the first and a port that is free there,"
                " rdzv_endpoint='host0:29500'."
            )

    @property
    def script(self) -> Path:
        """The script that it starts."""
        return self.path.with_suffix(".py")

    @property
    def usage(self) -> str:
        """The command that starts it, on each host."""
        if self._torchrun and self.nodes > 1:
            last = f"{self._command} {self.nodes - 1}"
            to = "and" if self.nodes == 2 else "to"
            return f"{self._call} on the first host {to} {last} on the last one"
        return self._call

    @property
    def _command(self) -> str:
        command = "sh" if self._torchrun else "sbatch"
        return f"{command} {shlex.quote(str(self.path))}"

    @property
    def _call(self) -> str:
        """The command on the first host."""
        return f"{self._command} 0" if self._torchrun and self.nodes > 1 else self._command

    @property
    def _torchrun(self) -> bool:
        return (self.format or _BY_ENDING[self.path.suffix]) == "torchrun"

    @property
    def _processes(self) -> int:
        """Processes on each host."""
        gpus = self.options.get("gpus_per_node") or self.options.get("gres") or ""
        count = re.search(r"(?:^|:)(\d+)$", str(gpus))
        return self.devices or (self.here[1] if count is None else int(count[1]))

    def check_free(self, *, overwrite: bool) -> None:
        """Raise ExportError where a file of these names exists and is not to be replaced."""
        existing = [path for path in (self.path, self.script) if path.exists() or path.is_symlink()]
        if existing and not overwrite:
            raise ExportError(
                f"{existing[0]} exists, and a job that waits may still need it: give another name,"
                " or overwrite=True."
            )

    def text(self) -> str:
        """The text of the file."""
        return "\n".join([*(self._of_hosts() if self._torchrun else self._of_slurm()), ""])

    def write(self) -> None:
        """Write the file."""
        try:
            write_whole(self.path, self.text().encode())
        except OSError as error:
            raise ExportError(f"{self.path} cannot be written: {error}") from error

    def _check_option(self, name: str, value: object) -> None:
        option = f"{name}={shown(value)}"
        if name in _OF_ARGUMENTS:
            raise ExportError(f"{option}: {_OF_ARGUMENTS[name]} decides that.")
        if name in Settings.model_fields:
            remedy = "set it, fit (a few updates are enough), and give that run"
            if name in _IN_SCRIPT:
                remedy = f"write it after the file: {self._call} --{name} {shown(value)}"
            raise ExportError(
                f"{option} is a setting of the training, and not of the job: {remedy}."
            )
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ExportError(f"{option}: {name!r} is no name of an option.")
        if not isinstance(value, (str, int, float, timedelta, type(None))):
            raise ExportError(f"{option}: give text, a number, True or None.")
        _check_text(option, str(value))
        if not self._torchrun:
            near = difflib.get_close_matches(name, _SBATCH, n=1, cutoff=0.8)
            if name not in _SBATCH and near:  # others may be those of a site's plugins
                raise ExportError(f"{option}: sbatch has no such option. Did you mean {near[0]!r}?")
            return
        flags = _torchrun_options()
        if name not in flags:
            raise ExportError(
                f"{option}: torchrun has no option --{name.replace('_', '-')} (torchrun --help"
                " lists them)."
            )
        if flags[name] == (isinstance(value, bool) and value):
            wanted = "a value" if flags[name] else "no value: give True, or leave it out"
            raise ExportError(f"{option}: torchrun's --{name.replace('_', '-')} takes {wanted}.")

    def _check_gpus(self) -> None:
        asked = [name for name in _GPUS if self.options.get(name)]
        if asked and self.settings.accelerator == "cpu":
            raise ExportError(
                f"{asked[0]}={shown(self.options[asked[0]])}: the run has accelerator='cpu', and"
                " its job would use no GPU: leave it out, or give a run with accelerator='auto'."
            )
        for name in ("gpus", "gpus_per_task"):
            if name in asked and self.devices is None:
                raise ExportError(
                    f"{name}={shown(self.options[name])} does not say how many processes a host"
                    " has: give devices=, or gpus_per_node= instead."
                )

    def _of_slurm(self) -> Iterator[str]:
        options: dict[str, LaunchOption] = {
            "job_name": self.path.stem,
            "nodes": self.nodes,
            "ntasks_per_node": self._processes,
            "requeue": True,
            "open_mode": "append",
        }
        if self.here[0] in ("cuda", "xpu") and not any(self.options.get(name) for name in _GPUS):
            options["gpus_per_node"] = self._processes
        options |= self.options
        requeues = bool(options["requeue"])
        # to the shell alone, which passes it on
        options.setdefault("signal", f"B:USR1@{_GRACE}" if requeues else f"USR1@{_GRACE}")
        yield "#!/bin/bash"
        for name, value in options.items():
            if value is not None and value is not False:
                yield f"#SBATCH {_sbatch_option(name, value)}"
        yield from self._head()
        step = ["srun", "--kill-on-bad-exit=1"]
        if options.get("cpus_per_task"):
            step.append(f"--cpus-per-task={options['cpus_per_task']}")
            yield f"export OMP_NUM_THREADS={shlex.quote(str(options['cpus_per_task']))}"
        call = f'{shlex.join([*step, sys.executable, self.script.name])} "$@"'
        if not requeues:
            yield f"exec {call}"
            return
        yield "# Shortly before the time limit SLURM sends SIGUSR1. The training writes a"
        yield "# checkpoint and ends; then the job is submitted again, and continues there."
        yield "trap 'again=yes; kill -USR1 $!' USR1"
        yield f"{call} &"
        yield "wait $!; status=$?"
        yield 'if [ "$again" ]; then'
        yield "    wait $!; status=$?"
        yield '    [ "$status" = 0 ] || scontrol requeue "$SLURM_JOB_ID"'
        yield "fi"
        yield 'exit "$status"'

    def _of_hosts(self) -> Iterator[str]:
        yield "#!/bin/sh"
        yield from self._head()
        if self.nodes > 1:
            numbers = f"which host: a number from 0 to {self.nodes - 1}"
            yield f'node_rank="${{1:?{numbers}}}"; shift'
        words = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={self.nodes}"]
        words.append(f"--nproc-per-node={self._processes}")
        options: dict[str, LaunchOption] = dict(self.options)
        if self.nodes == 1 and "rdzv_endpoint" not in options:
            options.setdefault("standalone", True)
        for name, value in options.items():
            flag = f"--{name.replace('_', '-')}"
            if value is True:
                words.append(flag)
            elif value is not None and value is not False:
                words.append(f"{flag}={value}")
        script = shlex.quote(self.script.name)
        rank = ' --node-rank="$node_rank"' if self.nodes > 1 else ""
        yield f'exec {shlex.join(words)}{rank} {script} "$@"'

    def _head(self) -> Iterator[str]:
        hosts = "1 host" if self.nodes == 1 else f"{self.nodes} hosts"
        several = "1 process" if self._processes == 1 else f"{self._processes} processes"
        yield f"# Trains {self.script.name} on {hosts} with {several} each."
        yield f"#     {self.usage}"
        name, value = next(
            (name, value)
            for name in ("max_epochs", "max_steps", "seed")
            if (value := getattr(self.settings, name)) is not None
        )
        yield f"#     {self._call} --{name} {value}   (what comes last goes to {self.script.name})"
        yield f"# Written by Tuning Workbench {__version__}."
        yield ""
        yield "# all hosts see this folder, and this Python in the next lines"
        yield f"cd {shlex.quote(str(self.path.absolute().parent))} || exit 1"


@functools.cache
def _torchrun_options() -> dict[str, bool]:
    """The options of torchrun, as its own parser has them, and whether each takes a value."""
    from torch.distributed.run import get_args_parser

    return {
        word.removeprefix("--").replace("-", "_"): action.nargs != 0
        for action in get_args_parser()._actions
        for word in action.option_strings
        if word.startswith("--")
    }


def _sbatch_option(name: str, value: LaunchOption) -> str:
    """An option as sbatch reads it from a comment: in quotes, backslashes are special, too."""
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return option
    text = _duration(value) if isinstance(value, timedelta) else str(value)
    if _PLAIN.fullmatch(text) is None:
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{option}={text}"


def _duration(time: timedelta) -> str:
    """A time as SLURM writes it: days-hours:minutes:seconds."""
    seconds = round(time.total_seconds())
    hours, rest = divmod(seconds % 86400, 3600)
    return f"{seconds // 86400}-{hours:02}:{rest // 60:02}:{rest % 60:02}"


def _check_text(name: str, text: str) -> None:
    """Raise ExportError for a line break or another control character, which no line can hold."""
    if not text.isprintable():
        raise ExportError(f"{name} has a line break or another control character: leave it out.")
