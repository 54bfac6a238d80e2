"""Names and lists the checkpoints of a run's folder: all, the last, the best, and those that may be
deleted.

`<run>/checkpoints/<name>/` holds `model.safetensors`, `state.pt` and `info.json`;
engine/checkpoint/files.py writes them. Ranks that share the weights (FSDP) write
`model-shard-00001-of-00002.safetensors` … instead, each its rows, and the large tensors of the
state into `state-shard-00001-of-00002.safetensors` ….
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.events import LARGEST
from workbench.metric_mode import Mode, known_mode
from workbench.runs.folder.files import Folder, read_json, write_whole
from workbench.values import SettingsError

FORMAT = 2
"""The format that is written. Format 1 stores each integer of a list separately."""
KNOWN = (1, 2)
"""The formats that are read."""
FILES = re.compile(
    r"info\.json|model\.safetensors|state\.pt|(model|state)-shard-\d{5}-of-\d{5}\.safetensors"
)
"""The names of the files in a checkpoint's directory."""
NAME = re.compile(r"\d{8,}(-end)?")
"""The name of a checkpoint's directory."""
LARGEST_INFO = 1 << 20
"""The most bytes of an `info.json`; the workbench writes some hundred."""

UNSTORED = "cannot be stored in a checkpoint"
"""What messages say of state for which a file has no form."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, taken after `step` updates and `epoch` epochs.

    `end`: whether it was written at the end of a fit. `value`: the value of `monitor` for its
    weights, if known; `mode`: "min" or "max", whichever is better. `resumable`: whether a fit can
    continue from it; if not, it has weights alone, and `why` has the reason.
    """

    name: str
    step: int
    epoch: int
    end: bool
    monitor: str | None
    value: float | None
    resumable: bool
    why: str | None
    path: Path
    mode: Mode = "min"
    kept: bool = False
    """Whether the user requested it (`job.checkpoint()`); it is then kept as long as its run."""


def name_of(step: int, end: bool) -> str:
    """The name of the checkpoint after `step` updates."""
    return f"{step:08d}-end" if end else f"{step:08d}"


def replaced(path: Path) -> Path:
    """The path of the older of two checkpoints of this name while the newer one replaces it."""
    return path.with_name(f".{path.name}.old")


def shard_of(path: Path, index: int, count: int) -> Path:
    """The path of one of the shards (0, 1, …) in which `count` ranks write a file of weights."""
    return path.with_name(f"{path.stem}-shard-{index + 1:05d}-of-{count:05d}{path.suffix}")


def files_of(path: Path) -> list[Path]:
    """The file of weights at this path, or all its shards; [] if neither exists. FileNotFoundError
    where a shard is missing.
    """
    if os.path.lexists(path):
        return [path]
    shard = re.compile(re.escape(path.stem) + r"-shard-\d{5}-of-(\d{5})" + re.escape(path.suffix))
    try:
        names = os.listdir(path.parent)
    except OSError:
        return []
    counts = {int(match[1]) for match in map(shard.fullmatch, names) if match}
    if not counts:
        return []
    shards = [shard_of(path, index, max(counts)) for index in range(max(counts))]
    missing = [file for file in shards if file.name not in names]
    if missing:
        raise FileNotFoundError(errno.ENOENT, "a shard of the weights is missing", str(missing[0]))
    return shards


def list_checkpoints(run: Path) -> list[Checkpoint]:
    """List the checkpoints in the folder of a run, oldest first; leave out links and directories
    without a readable info file.
    """
    path = run / "checkpoints"
    try:
        with Folder.opened(path) as folder:
            names = {
                name.removeprefix(".").removesuffix(".old") if name.startswith(".") else name
                for name in folder.names()
            }
            paths = [path / name for name in sorted(names) if NAME.fullmatch(name)]
            # If the writer was killed at the wrong moment, the older one is still under its
            # temporary name.
            checkpoints = [_read(path, folder) or _read(replaced(path), folder) for path in paths]
    except OSError:
        return []
    return sorted((checkpoint for checkpoint in checkpoints if checkpoint is not None), key=_age)


def find(run: Path, which: str | int) -> Checkpoint:
    """Find a checkpoint: "last", "best", a number of updates, or a name. FileNotFoundError lists
    those that exist.
    """
    checkpoints = list_checkpoints(run)
    if which == "last" and checkpoints:
        return checkpoints[-1]
    if which == "best" and (ranked := _ranked(checkpoints)):
        return ranked[0]
    named = [
        checkpoint for checkpoint in checkpoints if which in (checkpoint.step, checkpoint.name)
    ]
    if named:
        return named[-1]
    missing = f"no checkpoint {which!r}"
    if which == "best":
        missing = "no best checkpoint: none with a value of a monitor"
    has = (
        ", ".join(f"{checkpoint.name} (update {checkpoint.step})" for checkpoint in checkpoints)
        or "none"
    )
    remedy = "" if checkpoints else " A fit with checkpoint_every=500 writes one every 500 updates."
    raise FileNotFoundError(f"run {run.name!r} has {missing}; it has: {has}.{remedy}")


def obsolete(checkpoints: Iterable[Checkpoint], top_k: int, mode: Mode) -> list[Checkpoint]:
    """List the checkpoints that may be deleted: all but the best `top_k` (-1: none may), the last,
    and those that the user requested.

    The one at a fit's end and the one after its last validation often are of the same update; these
    two count as one.
    """
    if top_k < 0:
        return []
    ordered = sorted(checkpoints, key=_age)
    ranked = _ranked(ordered, mode)
    best = _moments(ranked)[:top_k]
    stay = [*(checkpoint for checkpoint in ranked if _moment(checkpoint) in best), *ordered[-1:]]
    return [checkpoint for checkpoint in ordered if checkpoint not in stay and not checkpoint.kept]


def keep(one: Checkpoint) -> None:
    """Mark a checkpoint to be kept as long as its run. OSError: the mark could not be written."""
    info = read_json(one.path / "info.json", LARGEST_INFO)
    # A new file, since another run may have a hard link to the old one.
    write_whole(one.path / "info.json", json.dumps({**info, "kept": True}).encode())


def best_values(there: Iterable[Checkpoint], monitor: str) -> list[float]:
    """List the values of this monitor in the checkpoints, the best first; two checkpoints of one
    moment count once.
    """
    return [value for _, value in _moments(ranked_by(monitor, there)) if value is not None]


def ranked_by(
    monitor: str, checkpoints: Iterable[Checkpoint], mode: Mode | None = None
) -> list[Checkpoint]:
    """List the checkpoints that have a value of this monitor, the best first."""
    return _ranked(
        [checkpoint for checkpoint in checkpoints if checkpoint.monitor == monitor], mode
    )


def _ranked(checkpoints: Sequence[Checkpoint], mode: Mode | None = None) -> list[Checkpoint]:
    """List the checkpoints that have a value of the most recent monitor, the best first; of
    equal ones the earlier first, as in Lightning.
    """
    known = [checkpoint for checkpoint in checkpoints if checkpoint.value is not None]
    if not known:
        return []
    sign = -1.0 if (mode or known[-1].mode) == "max" else 1.0
    same = [checkpoint for checkpoint in known if checkpoint.monitor == known[-1].monitor]
    return sorted(
        same,
        key=lambda checkpoint: (
            sign * (checkpoint.value or 0.0),
            checkpoint.step,
            not checkpoint.end,
        ),
    )


def _moments(ranked: Iterable[Checkpoint]) -> list[tuple[int, float | None]]:
    return list(dict.fromkeys(map(_moment, ranked)))


def _moment(checkpoint: Checkpoint) -> tuple[int, float | None]:
    return checkpoint.step, checkpoint.value


def _age(checkpoint: Checkpoint) -> tuple[int, bool]:
    return checkpoint.step, checkpoint.end


def _read(path: Path, within: Folder) -> Checkpoint | None:
    try:
        with Folder.opened(path, within) as folder:
            info = folder.read_json("info.json", LARGEST_INFO)
        value = None if info["value"] is None else float(info["value"])
        name, step, end = (
            path.name.removeprefix(".").removesuffix(".old"),
            _count(info["step"]),
            info["end"] is True,
        )
        if name != name_of(step, end):  # the file does not belong to this directory
            return None
        known = info["format"] in KNOWN
        return Checkpoint(
            name=name,
            step=step,
            epoch=_count(info["epoch"]),
            end=end,
            monitor=_text(info["monitor"]),
            value=value if value is not None and math.isfinite(value) else None,
            resumable=info["resumable"] is True and known,
            why=_text(info["why"]) if known else f"it was written in format {info['format']!r:.40}",
            path=path,
            mode="max" if info["mode"] == "max" else "min",
            kept=info.get("kept") is True,
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise TypeError(f"{value!r:.40} counts nothing")
    return value


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def mode_of(monitor: str, given: Mode | None) -> Mode:
    """Whether lower or higher values of a metric are better: as given, or as its name says."""
    mode = given or known_mode(monitor)
    if mode is None:
        raise SettingsError(
            f"monitor={monitor!r}: its name does not say whether lower or higher is better; give"
            " monitor_mode='min' or 'max'."
        )
    return mode
