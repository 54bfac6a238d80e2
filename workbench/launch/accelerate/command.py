"""Builds and starts the `accelerate launch` command of a job, from its settings and the user's
accelerate config.

A setting overrides the config (`accelerate config` makes one), which decides what the settings
leave open. Precision and compilation come from the settings alone. Source:
accelerate.commands.launch.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.commands.config.config_args import default_config_file, load_config_from_file
from accelerate.commands.launch import launch_command_parser
from yaml import YAMLError

from workbench.engine.distributed.fsdp import ENVIRONMENT as SHARDS
from workbench.engine.runtime.runtime import FSDP_REMEDY, RANK
from workbench.launch.accelerate import fsdp_config
from workbench.runs.folder.files import append_to, write_whole
from workbench.runs.read import OUTPUT as OUTPUT
from workbench.settings import Settings, SettingsError

SCRIPT = "launch.sh"
_PORT = 29500
_OURS = {
    "module": "",
    "no_python": "",
    "cpu": "accelerator='cpu'",
    "multi_gpu": "devices=",
    "mixed_precision": "precision=",
    "dynamo_backend": "compile=",
    "gradient_accumulation_steps": "accumulate_grad_batches=",
    "gradient_clipping": "gradient_clip_val=",
    "max_restarts": "",
    "use_megatron_lm": "",
    "mpirun_hostfile": "",
    "help": "",
    "main_training_function": "",
    "vm": "",
    "env": "",
    "no_tpu_cluster": "",
}
"""Options that launch= may not have: each with the setting to use instead; "" where a job cannot
have it at all.
"""
_NEVER = ("tpu", "aws_", "megatron_lm_", "parallelism_config_")
"""Prefixes of further options that are refused."""
_TRUTHS = ("fsdp_", "fp8_")
"""Prefixes of options that take "true" or "false" as a word."""
_DEEPSPEED = ("use_deepspeed", "deepspeed_", "zero", "offload_")
"""Prefixes of the options of DeepSpeed."""
_OTHERS = {"MEGATRON_LM": "Megatron-LM's", "TP": "tensor-parallel"}
"""Kinds of training that accelerate knows and the workbench does not support."""
_MALLOC = "MALLOC_MMAP_THRESHOLD_"
"""Sets from which size glibc gives memory back as soon as it is free."""
_PROCESS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "ACCELERATE_USE_CPU",
    "ACCELERATE_USE_FSDP",
    RANK,
    SHARDS,
)
"""Variables that this process has where a launcher started it. The launched processes do not
inherit them: they would read them as their own.
"""


@dataclass(frozen=True)
class LaunchPlan:
    """How a job is launched. notes: messages about options without effect. shards: how weights
    are sharded; None: not at all.
    """

    options: tuple[str, ...]
    processes: int
    machines: int
    cpu: bool
    notes: tuple[str, ...] = ()
    shards: str | None = None

    @property
    def local(self) -> int:
        """Processes on each machine."""
        return self.processes // self.machines

    def command(self, folder: Path, machine: int | str = 0) -> list[str]:
        """The command on one machine, for the run in this folder."""
        rank = ["--machine_rank", str(machine)] if self.machines > 1 else []
        start = [sys.executable, "-m", "accelerate.commands.launch", *self.options, *rank]
        return [*start, "-m", "workbench.launch.accelerate.worker", str(folder.absolute())]

    def environment(self) -> dict[str, str]:
        """The environment variables that the processes get in addition to this process's."""
        variables = {
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // self.local)),
        }
        package, known = Path(__file__).parents[3], os.environ.get("PYTHONPATH")
        if not package.name.endswith("-packages"):  # not installed: the processes would not find it
            variables["PYTHONPATH"] = os.pathsep.join([str(package), *([known] if known else [])])
        if self.shards is not None:
            variables[SHARDS] = self.shards
        if self.shards is not None and self.cpu:
            # Else glibc keeps the memory of the units that were whole, which is several models.
            variables[_MALLOC] = os.environ.get(_MALLOC, str(1 << 20))
        return {**variables, "ACCELERATE_USE_CPU": "true"} if self.cpu else variables


def plan(settings: Settings, accelerator: str) -> LaunchPlan:
    """Return the plan for these settings and the user's config; raise SettingsError for what is
    impossible.

    accelerator: the kind of device of this machine.
    """
    if accelerator == "tpu" and settings.devices != "auto":
        settings = settings.replace(devices=1)  # one process drives all cores
    launch = dict(settings.launch or {})
    if isinstance(launch.get("config_file"), str):
        launch["config_file"] = str(Path(str(launch["config_file"])).expanduser())
    _check_names(launch)
    _check_counts(launch)
    config = _config(launch)
    kind = _kind(launch, config)
    if settings.fast_dev_run:
        raise SettingsError(
            f"fast_dev_run={settings.fast_dev_run}: the bench follows a launched job by its record,"
            " and a dry run has none: take strategy='pool' or 'thread' for it."
        )
    cpu = accelerator == "cpu" or (settings.accelerator == "auto" and bool(config.get("use_cpu")))
    machines = _machines(settings, launch, config)
    processes = _processes(
        settings, launch, config, machines, 0 if cpu else torch.cuda.device_count()
    )
    bench_options = {
        "num_processes": processes,
        "num_machines": machines,
        "mixed_precision": "no",
        "dynamo_backend": "no",
    }
    shards = fsdp_config.way(kind, launch, config, processes)
    fsdp_config.check(settings, shards)
    bench_options |= _devices(settings, launch, cpu, processes, shards)
    bench_options |= _address(launch, config, machines, processes)
    for name in (
        "num_processes",
        "num_machines",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "gpu_ids",
        "use_fsdp",
        "use_deepspeed",
    ):
        launch.pop(name, None)
    options = tuple(
        word for name, value in {**launch, **bench_options}.items() for word in _words(name, value)
    )
    _check_values(settings.launch, options)
    notes = (*_notes(settings, config), *fsdp_config.notes(kind, launch, config, processes))
    return LaunchPlan(options, processes, machines, cpu, notes, shards)


def start(launch_plan: LaunchPlan, folder: Path) -> subprocess.Popen[bytes]:
    """Start the job of the run in this folder: it has no terminal, and outlives this process."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name not in _PROCESS and not name.startswith("FSDP_")
    }
    environment = ours | launch_plan.environment()
    with os.fdopen(append_to(folder / OUTPUT), "ab") as output:
        return subprocess.Popen(
            launch_plan.command(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def write_script(launch_plan: LaunchPlan, folder: Path) -> Path:
    """Write a shell script that runs the command on another machine; its argument is the number
    of that machine.
    """
    lines = [
        "#!/bin/sh",
        (
            f"# Starts this run's processes on one more machine: sh {SCRIPT} NUMBER, from 1 to "
            f"{launch_plan.machines - 1}."
        ),
        "set -e",
    ]
    lines += [f"cd {shlex.quote(os.getcwd())}"]
    lines += [
        f"export {name}={shlex.quote(value)}" for name, value in launch_plan.environment().items()
    ]
    command = shlex.join(launch_plan.command(folder, "MACHINE")).replace(
        "--machine_rank MACHINE", '--machine_rank "${1:?which machine}"'
    )
    path = folder / SCRIPT
    write_whole(path, "\n".join([*lines, f"exec {command}", ""]).encode())
    return path


@functools.cache
def _options() -> dict[str, bool]:
    """The options of `accelerate launch`, as its own parser has them, and whether each takes a
    value.
    """
    options: dict[str, bool] = {}
    for action in launch_command_parser()._actions:
        for word in action.option_strings:
            if word.startswith("--"):
                options[word.removeprefix("--").replace("-", "_")] = action.nargs != 0
    return options


def _check_names(launch: Mapping[str, Any]) -> None:
    """Raise SettingsError for an unknown option, one that the bench sets itself, or a wrong
    value.
    """
    for name, value in launch.items():
        if name in _OURS or name.startswith(("dynamo_", *_NEVER)):
            setting = _OURS.get(name, "compile=" if name.startswith("dynamo_") else "")
            remedy = (
                f"the setting {setting} decides that"
                if setting
                else "a job of the bench cannot have it"
            )
            raise SettingsError(f"launch={dict(launch)!r}: {name}: {remedy}.")
        if name not in _options():
            raise SettingsError(
                f"launch={dict(launch)!r}: `accelerate launch` has no option {name!r} (accelerate "
                "launch --help lists them)."
            )
        if not _options()[name] and not isinstance(value, bool):
            raise SettingsError(
                f"launch={dict(launch)!r}: {name} takes no value: give {name}=True, or leave it "
                "out."
            )
        if _options()[name] and (
            value == "--" or (isinstance(value, bool) and not name.startswith(_TRUTHS))
        ):
            raise SettingsError(
                f"launch={dict(launch)!r}: {name} takes a value, and {value!r} is not one."
            )


def _check_counts(launch: Mapping[str, Any]) -> None:
    for name, least in (("num_processes", 1), ("num_machines", 1), ("machine_rank", 0)):
        value = launch.get(name, least)
        if type(value) is not int or value < least:
            raise SettingsError(
                f"launch={dict(launch)!r}: {name} should be a whole number, {least} or more."
            )


def _check_values(launch: Mapping[str, Any] | None, options: tuple[str, ...]) -> None:
    """Raise SettingsError for a wrong value: accelerate's own parser would report it in a detached
    process, with a page of its usage.
    """
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            launch_command_parser().parse_args([*options, "script"])
        except SystemExit:
            raise SettingsError(
                f"launch={launch!r}: "
                f"{said.getvalue().strip().splitlines()[-1].partition('error: ')[2]}."
            ) from None


def _config(launch: Mapping[str, Any]) -> dict[str, Any]:
    """The user's accelerate config: the named file, or the default one; empty without a file."""
    file = launch.get("config_file")
    if file is None and not os.path.isfile(default_config_file):
        return {}
    try:
        return dict(vars(load_config_from_file(file)))
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        YAMLError,
    ) as error:
        said = (
            "its values are nested too deeply"
            if isinstance(error, RecursionError)
            else " ".join(str(error).split())
        )
        raise SettingsError(
            f"the accelerate config {file or default_config_file} cannot be taken: {said}"
        ) from None


def _kind(launch: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """The kind of training in accelerate's words; raises SettingsError for one that is not
    supported.
    """
    configured = kind = str(getattr(config.get("distributed_type"), "value", "NO"))
    for name, asked in (("FSDP", "use_fsdp"), ("TP", "use_parallelism_config")):
        kind = name if launch.get(asked) else kind
    file = (
        f"your accelerate config {launch.get('config_file', default_config_file)}, "
        f"distributed_type: {configured}"
    )
    where = f"launch={dict(launch)!r}" if kind != configured else file
    named = [
        name for name, value in launch.items() if name.startswith(_DEEPSPEED) and value is not False
    ]
    if named:
        raise SettingsError(f"launch={dict(launch)!r}: {named[0]}: {FSDP_REMEDY}.")
    # whatever launch= has: accelerate itself would follow the config for one process
    if configured == "DEEPSPEED":
        raise SettingsError(
            f"{file}: {FSDP_REMEDY}. Name such a config in launch={{'config_file': …}}, or run"
            " `accelerate config` again."
        )
    if kind in _OTHERS:
        raise SettingsError(
            f"{where}: training that is {_OTHERS[kind]} needs optimizers, norms and checkpoints of"
            " its own, which the bench's loop does not have. It launches data-parallel training"
            " and FSDP: take a config of type MULTI_GPU or FSDP (launch={'config_file': …}), or"
            " train with the exported script, which you can adapt."
        )
    if kind == "XLA" or "ec2_instance_type" in config or config.get("mpirun_config"):
        if kind == "XLA":
            system = "TPUs"
        else:
            system = "SageMaker" if "ec2_instance_type" in config else "mpirun"
        raise SettingsError(f"{where}: {system}: the bench does not launch jobs there.")
    return kind


def _machines(settings: Settings, launch: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    named = launch.get("num_machines")
    if named is not None and settings.num_nodes > 1 and named != settings.num_nodes:
        raise SettingsError(
            f"num_nodes={settings.num_nodes} and launch num_machines={named!r} contradict each"
            " other: give one of them."
        )
    machines = int(
        named
        or (settings.num_nodes if settings.num_nodes > 1 else config.get("num_machines", 1))
        or 1
    )
    rank = int(launch.get("machine_rank", config.get("machine_rank")) or 0)
    if machines > 1 and rank != 0:
        raise SettingsError(
            f"machine_rank={rank}: the job must be started on machine 0, which writes the record;"
            f" the others run the {SCRIPT} of the run's folder. Give launch={{'machine_rank': 0}},"
            " or start it there."
        )
    return machines


def _processes(
    settings: Settings,
    launch: Mapping[str, Any],
    config: Mapping[str, Any],
    machines: int,
    gpus: int,
) -> int:
    named, asked = launch.get("num_processes"), None
    if settings.devices != "auto":
        asked = settings.devices if isinstance(settings.devices, int) else len(settings.devices)
    if named is not None and asked is not None and named != asked * machines:
        raise SettingsError(
            f"devices={settings.devices!r} on {machines} machine{'s' if machines > 1 else ''} and"
            f" launch num_processes={named!r} contradict each other: give one of them"
            " (num_processes counts over all machines)."
        )
    configured = config.get("num_processes", -1)
    if asked is not None:
        return asked * machines
    processes = int(named or (configured if configured > 0 else max(gpus, 1) * machines))
    if processes % machines:
        raise SettingsError(
            f"num_processes={processes} on {machines} machines: each must have as many as the"
            " others."
        )
    return processes


def _devices(
    settings: Settings, launch: Mapping[str, Any], cpu: bool, processes: int, shards: str | None
) -> dict[str, Any]:
    """The options for GPUs and for several processes. `multi_gpu` also starts several processes
    on CPUs.
    """
    options: dict[str, Any] = {
        "multi_gpu": processes > 1 and shards is None,
        "use_fsdp": shards == fsdp_config.FSDP,
    }
    if cpu:
        return {**options, "cpu": processes == 1, "gpu_ids": "all"}
    if isinstance(settings.devices, tuple):
        if len(set(settings.devices)) < len(settings.devices):
            raise SettingsError(
                f"devices={list(settings.devices)}: a launched process has a GPU of its own;"
                " strategy='pool' can share one."
            )
        return {**options, "gpu_ids": ",".join(map(str, settings.devices))}
    return {**options, **({"gpu_ids": launch["gpu_ids"]} if "gpu_ids" in launch else {})}


def _address(
    launch: Mapping[str, Any], config: Mapping[str, Any], machines: int, processes: int
) -> dict[str, Any]:
    """The address at which the processes find each other."""
    ip = launch.get("main_process_ip", config.get("main_process_ip"))
    port = launch.get("main_process_port", config.get("main_process_port"))
    if machines == 1:
        return {} if processes == 1 else {"main_process_port": port or 0}  # 0: a free one
    if not ip:
        raise SettingsError(
            f"num_nodes={machines}: the machines must find each other: give this one's address,"
            " launch={'main_process_ip': '10.0.0.1'}, or run `accelerate config`."
        )
    return {"main_process_ip": ip, "main_process_port": port or _PORT}


def _words(name: str, value: Any) -> list[str]:
    """An option and its value as one argument, so that a value like "--x" is not parsed as an
    option.
    """
    if not _options()[name]:
        return [f"--{name}"] if value else []
    return [f"--{name}={str(value).lower() if isinstance(value, bool) else value}"]


def _notes(settings: Settings, config: Mapping[str, Any]) -> tuple[str, ...]:
    theirs = str(config.get("mixed_precision") or "no")
    same = settings.precision in {
        "no": ("32-true", "64-true"),
        "fp16": ("16-mixed",),
        "bf16": ("bf16-mixed",),
    }.get(theirs, ())
    if theirs == "no" or same:
        return ()
    return (
        (
            f"the accelerate config has mixed_precision={theirs!r}; the bench's own"
            f" precision={settings.precision!r} holds."
        ),
    )
