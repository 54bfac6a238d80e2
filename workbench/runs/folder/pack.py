"""Packs a run into one file, and unpacks such a file, which may come from a stranger.

It is a tar archive of plain files: `0012-fit/run.json`, `0012-fit/metrics.jsonl`, … Unpacking takes
the names of a run's files alone, and nothing but files; so a link, a path that leads elsewhere and
a file that commands a job are refused. Nothing is compressed: an archive becomes no larger than it
is.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from workbench.events import RunEnded, to_line
from workbench.runs.checkpoints import FILES, NAME, files_of, find, list_checkpoints
from workbench.runs.folder.annotations import FILE as ANNOTATIONS
from workbench.runs.folder.files import aside_of, check_no_link, open_regular
from workbench.runs.folder.ids import check_id, reserve_id, runs_folder
from workbench.runs.printable import printable
from workbench.runs.read import HEADER, OVER, RECORD, START, START_HEAD, read_header, state, summary
from workbench.runs.record.event_log import Recorded
from workbench.runs.samples import FILE as SAMPLE_FILE
from workbench.runs.samples import SAMPLES
from workbench.units import size

Which = Literal["all", "last", "best", "none"]
"""Which checkpoints are packed."""

_CHECKPOINTS, _INITIAL = "checkpoints", "start.safetensors"
_CODE = "code"
_KEPT = re.compile(rf"{re.escape(START_HEAD)}|{_CODE}|[0-9a-f]{{40}}-[0-9]+\.data")
"""The files of what a fit starts from (`launch/start/kept_start.py`)."""
_KNOWN = re.compile(
    "|".join(
        [
            *map(re.escape, (HEADER, RECORD, ANNOTATIONS, f"{_CHECKPOINTS}/{_INITIAL}")),
            rf"{_CHECKPOINTS}/start-shard-\d{{5}}-of-\d{{5}}\.safetensors",
            f"{_CHECKPOINTS}/{NAME.pattern}/({FILES.pattern})",
            f"{START}/({_KEPT.pattern})",
            f"{SAMPLES}/{SAMPLE_FILE.pattern}",
        ]
    ),
    re.ASCII,
)
"""The files of a run that an archive may have."""
_MOST = 10_000
"""The most files of an archive."""
_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1 << 20
_SIZE_OF_USTAR = 1 << 33
"""The first size that the portable form of a header cannot say."""


# -- pack


def pack(run: Path, file: Path, checkpoints: Which = "all", start: bool = False) -> None:
    """Write the run in this folder into one file, which replaces another of its name.

    checkpoints: "all", "last", "best" or "none", which leaves out the weights that the fit began
    with, too. start: with what `wb.rerun` needs, which is code and data; the file then has mode
    600.

    Raises ValueError for another word, RuntimeError while the run trains, FileNotFoundError where
    there is no such checkpoint, or no start was kept.
    """
    if checkpoints not in get_args(Which):
        raise ValueError(
            f"checkpoints={checkpoints!r}: give {', '.join(map(repr, get_args(Which)))}."
        )
    run_summary = summary(run)
    if run_summary.status not in OVER and not run_summary.unseen:
        raise RuntimeError(
            f"run {run.name} is not over ({run_summary.status}): wait for its end, or stop it."
        )
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder: give a file, {file / f'{run.name}.tar'}.")
    files = [*_files(run, checkpoints, start)]
    aside = file.with_name(aside_of(file.name))
    mode = 0o600 if start else 0o666
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as archive:
            for name, path in files:
                with open_regular(path) as source:
                    end = _end(run, source) if name == RECORD else b""
                    _add(archive, f"{run.name}/{name}", source, end)
            archive.write(bytes(2 * _BLOCK))
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)


def _files(run: Path, checkpoints: Which, start: bool) -> Iterator[tuple[str, Path]]:
    """The files to pack, each with its name in the folder of the run."""
    yield HEADER, run / HEADER
    yield RECORD, run / RECORD
    if (run / ANNOTATIONS).is_file():
        yield ANNOTATIONS, run / ANNOTATIONS
    if (run / SAMPLES).is_dir():
        check_no_link(run / SAMPLES)
        for path in sorted((run / SAMPLES).iterdir()):
            if SAMPLE_FILE.fullmatch(path.name):
                yield f"{SAMPLES}/{path.name}", path
    if checkpoints != "none":
        yield from _weights(run, checkpoints)
    if not start:
        return
    check_no_link(run / START)
    if not (run / START / _CODE).is_file():
        raise FileNotFoundError(f"run {run.name} has kept no start, from which it is repeated.")
    for path in sorted((run / START).iterdir()):
        if _KEPT.fullmatch(path.name):
            yield f"{START}/{path.name}", path


def _weights(run: Path, which: Which) -> Iterator[tuple[str, Path]]:
    folder = run / _CHECKPOINTS
    check_no_link(folder)
    for path in files_of(folder / _INITIAL):
        yield f"{_CHECKPOINTS}/{path.name}", path
    chosen = list_checkpoints(run) if which == "all" else [find(run, which)]
    for checkpoint in chosen:
        check_no_link(checkpoint.path)
        for path in sorted(checkpoint.path.iterdir()):
            if FILES.fullmatch(path.name):
                yield f"{_CHECKPOINTS}/{checkpoint.name}/{path.name}", path


def _end(run: Path, record: BinaryIO) -> bytes:
    """What the record of a run lacks whose process has died: elsewhere nobody can see that."""
    known = summary(run)
    if known.unseen or state(Recorded(run, True)).status in OVER:
        return b""
    is_whole = record.seek(0, os.SEEK_END) == 0 or _last_byte(record) == b"\n"
    record.seek(0)
    ended = RunEnded(known.status, known.step, known.seconds, known.error)
    return (b"" if is_whole else b"\n") + to_line(ended).encode() + b"\n"


def _last_byte(file: BinaryIO) -> bytes:
    file.seek(-1, os.SEEK_END)
    return file.read(1)


def _add(archive: BinaryIO, name: str, source: BinaryIO, end: bytes) -> None:
    """Add a file to an archive, with these bytes at its end."""
    stat = os.fstat(source.fileno())
    member = tarfile.TarInfo(name)
    member.size, member.mtime = stat.st_size + len(end), int(stat.st_mtime)
    large = member.size >= _SIZE_OF_USTAR
    archive.write(member.tobuf(tarfile.GNU_FORMAT if large else tarfile.USTAR_FORMAT))
    _copy(source, archive, stat.st_size, name)
    archive.write(end + bytes(-member.size % _BLOCK))


# -- unpack


def unpack(file: Path, root: Path) -> tuple[Path, str]:
    """Unpack a run into a root; returns its folder there, and the id that it had.

    It keeps its id; where the numbers of the root have got that far, it gets the next one. Raises
    ValueError for a file that is no packed run, or has something that no run has; then nothing is
    left of it. No code of it runs.
    """
    runs = runs_folder(root)
    aside = runs / aside_of("unpacked")
    with open_regular(file) as archive:
        whole, free = os.fstat(archive.fileno()).st_size, shutil.disk_usage(runs).free
        if whole > free:
            raise OSError(f"{file} has {size(whole)}, and {size(free)} are free in {runs}.")
        aside.mkdir()
        try:
            try:
                id = _extract(archive, aside)
                header = read_header(aside)
            except FileNotFoundError:
                raise ValueError("it has no run.json") from None
            except (ValueError, tarfile.TarError) as error:
                raise ValueError(str(error)) from None
            folder = runs / reserve_id(root, id, str(header.get("kind") or ""))
            aside.rename(folder)  # that folder is empty
        except ValueError as error:
            raise ValueError(f"{file} is no packed run: {error}.") from None
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return folder, id


def _extract(archive: BinaryIO, folder: Path) -> str:
    """Extract the files of an archive into an empty folder; returns the id of its run."""
    ids: set[str] = set()
    for count in range(_MOST + 1):
        block = archive.read(_BLOCK)
        if block == bytes(_BLOCK):
            break
        member = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        shown = printable(repr(member.name))
        id, _, name = member.name.partition("/")
        if member.type != tarfile.REGTYPE or not _KNOWN.fullmatch(name):
            raise ValueError(f"{shown} is no file of a run that this version knows")
        ids.add(check_id(id))
        if len(ids) > 1 or count == _MOST:
            raise ValueError("it has several runs" if len(ids) > 1 else f"more than {_MOST} files")
        _write(archive, folder / name, member.size, shown)
    if not ids:
        raise ValueError("it is empty")
    return ids.pop()


def _write(archive: BinaryIO, path: Path, length: int, shown: str) -> None:
    """Write the next bytes of an archive into a new file; what is kept for a rerun is closed to
    others.
    """
    private = path.parent.name == START
    path.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        number = os.open(path, flags, 0o600 if private else 0o666)
    except FileExistsError:
        raise ValueError(f"{shown} is in it twice") from None
    with os.fdopen(number, "wb") as target:
        _copy(archive, target, length, shown)
    archive.read(-length % _BLOCK)


def _copy(source: BinaryIO, target: BinaryIO, length: int, shown: str) -> None:
    """Copy so many bytes. ValueError: there are fewer."""
    left = length
    while left > 0:
        chunk = source.read(min(left, _CHUNK))
        if not chunk:
            raise ValueError(f"{shown} is cut off")
        target.write(chunk)
        left -= len(chunk)
