"""Keeps what a fit starts from in the folder of its run, and reads it to repeat the run
(`wb.rerun`). What the trials of a study start from is kept in the same way, in the study's folder.

    start/
      start.json     plain data: versions, checksums, what is missing, a signature
      code           a pickle, and small tensors and arrays
      1f0c….data     a large tensor or array, named by its checksum

It is code, as every pickle is. All files have mode 600, and a key of the user signs them: a start
with another signature came from somebody else, and is unpacked only with the user's word for it.
Large data that another run of the root has kept already is a hard link.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import linecache
import mmap
import os
import platform
import secrets
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from workbench.events import Message
from workbench.launch.accelerate.private_file import create_private, open_private
from workbench.launch.assignments import FitAssignment
from workbench.launch.job import EventSink
from workbench.launch.job_folder import versions
from workbench.launch.process.process_env import set_flags, torch_flags
from workbench.runs.folder.files import check_no_link, open_regular, read_json
from workbench.runs.printable import printable
from workbench.runs.read import START, START_HEAD, run_folders, why_not_repeated
from workbench.secrets import hide
from workbench.share.portable import Portable, TooLargeError, pack_portable, unpack_portable
from workbench.share.segment import ALIGN, address_of
from workbench.task import rng
from workbench.task.protocol import Task
from workbench.task.state.walk import own_modules

_CODE, _DATA = "code", ".data"
_LARGE = 1 << 20
"""A tensor or array with this many bytes has a file of its own."""
_HERE = -1
"""The place of a buffer in the file of the code."""
_LOOKED = 50
"""In how many runs, the newest first, large data is looked for."""
_HEAD_SIZE = 1 << 26
_KEY = 32
T = TypeVar("T")


@dataclass
class ProcessState:
    """What the numbers of a fit depend on in the process that trains it."""

    random: rng.State
    """The states of the process's generators."""
    flags: dict[str, Any]
    """torch's and NumPy's flags."""
    threads: int
    """The number of torch's threads."""

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Context manager in which this process has the random states, flags and threads; its own
        are restored afterwards.
        """
        flags, threads = torch_flags(), torch.get_num_threads()
        set_flags({name: value for name, value in self.flags.items() if name in flags})
        torch.set_num_threads(self.threads)
        try:
            with rng.restored_process_state(self.random):
                yield
        finally:
            torch.set_num_threads(threads)
            set_flags(flags)


def process_state() -> dict[str, Any]:
    """The state of this process, as arguments of `ProcessState`."""
    return {
        "random": rng.users_state(),
        "flags": torch_flags(),
        "threads": torch.get_num_threads(),
    }


@dataclass
class FitStart(ProcessState):
    """What a fit starts from: its task with weights, data and generators, its settings, and the
    state of the process.
    """

    assignment: FitAssignment


# -- keep


@contextlib.contextmanager
def keeping(
    run: Path | None,
    assignment: FitAssignment,
    megabytes: int | None,
    early: list[Message],
    emit: EventSink,
) -> Iterator[None]:
    """Context manager of a fit. What it starts from is packed at once, and written while it trains.

    Args:
        run: the folder of the run; None: nothing is kept.
        assignment: the fit, before it begins.
        megabytes: the most that is kept (`keep_start`); 0: nothing.
        early: gets a message where the start cannot be kept.
        emit: gets a message where it could not be written.
    """
    if run is None or megabytes == 0:
        yield
        return
    write = _packed(run, assignment, megabytes, early)
    errors: list[Exception] = []
    writer = threading.Thread(
        target=_caught, args=(write, errors), name="workbench-start", daemon=True
    )
    writer.start()
    del write  # the package need not stay in memory
    try:
        yield
    finally:
        writer.join()
        for error in errors:
            emit(
                Message(
                    f"what the run starts from could not be kept for wb.rerun ({error}).", "warning"
                )
            )


def _caught(write: Callable[[], None], errors: list[Exception]) -> None:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - it becomes a message of the job
        errors.append(error)


def _packed(
    run: Path, assignment: FitAssignment, megabytes: int | None, early: list[Message]
) -> Callable[[], None]:
    """Pack a fit's start; returns the function that writes it, or the reason why it is not kept."""
    limit, why = _too_large.get(assignment.task, (None, ""))
    if limit is not None and limit == megabytes:
        return _not_kept(run, why, early)
    start = FitStart(**process_state(), assignment=assignment)
    largest = None if megabytes is None else int(megabytes * 1e6)
    try:
        packed = pack_portable(start, assignment.names(), own_modules(), largest)
    except TooLargeError as error:
        why = f"{error} (keep_start={megabytes} MB; keep_start=None has no limit)"
        _too_large[assignment.task] = megabytes, why
    except Exception as error:  # noqa: BLE001 - objects of the user may raise anything
        why = printable(hide(str(error) or type(error).__name__))
    else:
        head = _head(packed)
        return lambda: _write(run, head, packed)
    return _not_kept(run, why, early)


def keep_for_trials(study: Path, start: Any, parts: Mapping[str, Any]) -> None:
    """Keep what the trials of a study start from in its folder.

    parts: the objects in `start`, by the names that the user knows. Raises PackageError for one
    that cannot be packed, OSError where the folder cannot be written.
    """
    packed = pack_portable(start, parts, own_modules(), None)
    _write(study, _head(packed), packed)


_too_large: WeakKeyDictionary[Task, tuple[int | None, str]] = WeakKeyDictionary()
"""The tasks whose start is too large: the limit in MB, and the reason. No other fit of the bench
tries again.
"""


def _not_kept(run: Path, why: str, early: list[Message]) -> Callable[[], None]:
    """Say why a start is not kept; returns the function that writes it down."""
    text = f"wb.rerun cannot repeat this run, whose start is not kept: {why}"
    early.append(Message(text, "info"))
    return lambda: _write_head(run, {"missing": why})


def _head(packed: Portable) -> dict[str, Any]:
    """What the file beside a package says about it."""
    return {
        **_about(),
        "files": _sources(packed),
        "secrets": packed.secrets,
        "imported": packed.imported,
    }


def _about() -> dict[str, Any]:
    """The properties of this process and machine on which the numbers of a run may depend."""
    begun: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpu = torch.cuda.get_device_name() if begun else ""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = ""
    return {
        "versions": versions(), "cpu": torch.backends.cpu.get_cpu_capability(), "gpu": gpu,
        "folder": folder, "path": [entry for entry in sys.path if entry],
    }  # fmt: skip


def _sources(packed: Portable) -> dict[str, str]:
    """The source text of the cells whose code is packed, for tracebacks. Code of files is not
    among them.
    """
    cells = {name: linecache.cache.get(name, ()) for name in packed.files}
    return {
        name: hide("".join(cell[2]))
        for name, cell in cells.items()
        if len(cell) == 4 and cell[1] is None
    }


def _write(run: Path, head: Mapping[str, Any], packed: Portable) -> None:
    folder = _made(run)
    views = packed.buffers()
    packed.close()
    table, small, files = _placed(views)
    code = hashlib.sha256()
    with os.fdopen(create_private(folder / _CODE), "wb") as file:
        for piece in _pieces(packed.code, table, small):
            code.update(piece)
            file.write(piece)
    others = _other_data(run) if files else {}
    for name, view in files.items():
        other = others.get(name.partition("-")[0])
        if other is None or not _link(other, folder / name, view):
            _write_file(folder / name, view)
    data = {name: view.nbytes for name, view in files.items()}
    unsigned = {**head, "code": code.hexdigest(), "data": data}
    key = _key()
    signature = None if key is None else _signature(key, unsigned)
    _write_head(run, {**unsigned, "signature": signature})


def _placed(
    views: Sequence[memoryview],
) -> tuple[array[int], list[memoryview], dict[str, memoryview]]:
    """The table of the buffers (for each: which file, the place in it, its bytes), the small ones,
    and the large ones by file name.
    """
    table = array("q")
    small: list[memoryview] = []
    files: dict[str, memoryview] = {}
    places: dict[tuple[int, int], tuple[int, int]] = {}
    end = 0
    for view in views:
        source = address_of(np.frombuffer(view, np.uint8)), view.nbytes
        if source not in places and view.nbytes >= _LARGE:
            # Two buffers of the same bytes stay two buffers: one of them may be written to.
            name = f"{hashlib.sha256(view).hexdigest()[:40]}-{len(files)}{_DATA}"
            places[source] = len(files), 0
            files[name] = view
        elif source not in places:
            places[source] = _HERE, end
            small.append(view)
            end += -(-view.nbytes // ALIGN) * ALIGN
        table.extend((*places[source], view.nbytes))
    return table, small, files


def _pieces(
    code: bytes, table: array[int], small: Sequence[memoryview]
) -> Iterator[bytes | memoryview]:
    """The contents of the file of the code: the sizes of the pickle and the table, both, and the
    small buffers.
    """
    yield array("q", [len(code), len(table)]).tobytes()
    yield code
    yield table.tobytes()
    for view in small:
        yield view
        yield bytes(-view.nbytes % ALIGN)


def _other_data(run: Path) -> dict[str, Path]:
    """The large data that other runs of the root have kept, by checksum."""
    others = sorted(run_folders(run.parents[1]), key=lambda folder: folder.name, reverse=True)
    files = (file for other in others[:_LOOKED] for file in (other / START).glob(f"*{_DATA}"))
    return {file.name.partition("-")[0]: file for file in files if file.parents[1] != run}


def _link(other: Path, path: Path, view: memoryview) -> bool:
    """Make a hard link to the data of another run; False: it has other bytes, or the file system
    has no links.
    """
    try:
        number = open_private(other)
    except OSError:
        return False
    try:
        if not _holds(number, view):
            return False
        os.link(other, path, follow_symlinks=False)
    except OSError:
        return False
    finally:
        os.close(number)
    return True


def _holds(number: int, view: memoryview) -> bool:
    """Whether an open file has these bytes, whatever its name says."""
    if os.fstat(number).st_size != view.nbytes:
        return False
    with mmap.mmap(number, view.nbytes, access=mmap.ACCESS_READ) as mapping:
        return bool(np.array_equal(np.frombuffer(mapping, np.uint8), np.frombuffer(view, np.uint8)))


def _write_file(path: Path, data: Any) -> None:
    with os.fdopen(create_private(path), "wb") as file:
        file.write(data)


def _write_head(run: Path, head: Mapping[str, Any]) -> None:
    _write_file(_made(run) / START_HEAD, json.dumps(head, indent=1).encode())


def _made(run: Path) -> Path:
    folder = run / START
    folder.mkdir(mode=0o700, exist_ok=True)
    check_no_link(folder)
    return folder


# -- the signature


def _key_file() -> Path:
    folder = (
        os.environ.get("XDG_DATA_HOME")
        or os.environ.get("LOCALAPPDATA")
        or Path.home() / ".local" / "share"
    )
    return Path(folder) / "tuning-workbench" / "key"


def _key() -> bytes | None:
    """The key with which this user signs starts, made at its first use; None: it cannot be read or
    made.
    """
    path = _key_file()
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside = path.with_name(f".{secrets.token_hex(8)}")
            _write_file(aside, secrets.token_bytes(_KEY))
            try:
                os.link(aside, path)  # another process may have made it meanwhile
            finally:
                aside.unlink()
        with os.fdopen(open_private(path), "rb") as file:
            key = file.read(_KEY + 1)
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    return key if len(key) == _KEY else None


def _signature(key: bytes, head: Mapping[str, Any]) -> str:
    text = json.dumps(
        {name: value for name, value in head.items() if name != "signature"}, sort_keys=True
    )
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _has_signature(head: Mapping[str, Any]) -> bool:
    key, signature = _key(), head.get("signature")
    return (
        key is not None
        and isinstance(signature, str)
        and hmac.compare_digest(signature.encode(), _signature(key, head).encode())
    )


def is_signed(run: Path) -> bool:
    """Whether this user has made the run in this folder, as far as the start that it kept shows."""
    try:
        check_no_link(run / START)
        return _has_signature(read_json(run / START / START_HEAD, _HEAD_SIZE))
    except (OSError, ValueError):
        return False


# -- read


@dataclass(frozen=True)
class StartFile:
    """A kept start that may be unpacked: its user has signed it, or the caller vouches for it."""

    run: Path
    """The folder of the run, or of the study."""
    head: dict[str, Any]
    use: str = "repeated"
    """What the start is read for, in errors."""

    @classmethod
    def of(cls, run: Path, *, trust: bool = False) -> StartFile:
        """Read the head of the start of the run in this folder; no code runs.

        trust: the user vouches for code that somebody else has written.

        Raises FileNotFoundError where nothing was kept, PermissionError where it has not the
        user's signature and `trust` is False, RuntimeError for bytecode of another Python.
        """
        check_no_link(run / START)
        if why := why_not_repeated(run):
            raise FileNotFoundError(f"{run.name} cannot be repeated: {why}.")
        ways = f"wb.rerun(…, trust=True), or workbench rerun {run.name} --trust"
        return cls(run, _checked_head(run, trust, "repeated", ways))

    @classmethod
    def of_study(cls, study: Path, *, trust: bool = False) -> StartFile:
        """The same for the trials of the study in this folder."""
        ways = (
            f'wb.Study.open("{study.name}", trust=True), or workbench study work {study.name}'
            " --trust"
        )
        return cls(study, _checked_head(study, trust, "trained", ways), "trained")

    def differences(self) -> list[str]:
        """What is other here than in the run, and may change its numbers; what it lacks."""
        here, sentences = _about(), []
        for name, version in here["versions"].items():
            was = _text(self.head, "versions", name)
            if was and was != version:
                sentences.append(f"{name} {was} there, {version} here")
        for name in ("cpu", "gpu"):
            was = _text(self.head, name)
            if was and here[name] and was != here[name]:
                sentences.append(f"{name} {was} there, {here[name]} here")
        if self.folder != here["folder"]:
            sentences.append(
                f"it ran in {self.folder}; relative paths in its code begin at "
                f"{here['folder']} here"
            )
        hidden = self.head.get("secrets")
        if isinstance(hidden, list) and hidden:
            names = ", ".join(printable(str(name)) for name in hidden[:5])
            sentences.append(f"secrets are not kept, and code that reads them gets '…': {names}")
        if self.head.get("imported"):
            sentences.append("the modules of your own that it uses are imported as they are now")
        return sentences

    @property
    def folder(self) -> str:
        """The working directory of the run; "": unknown."""
        return _text(self.head, "folder")

    def open(self, kind: type[T]) -> T:
        """Unpack it, which runs code. kind: of which class it is.

        Raises ImportError for a module that is missing, RuntimeError where it cannot be unpacked.
        """
        code, buffers = self._read()
        path = self.head.get("path")
        sys.path += [
            entry
            for entry in (path if isinstance(path, list) else ())
            if isinstance(entry, str) and entry not in sys.path
        ]
        files = self.head.get("files")
        for name, text in (files if isinstance(files, dict) else {}).items():
            if name not in linecache.cache and isinstance(text, str):
                linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        try:
            start = unpack_portable(bytes(code), buffers)
        except ImportError as error:
            raise ImportError(
                f"{self.run.name} cannot be {self.use} here: its code imports what is missing "
                f"({error}).",
                name=error.name,
            ) from error
        except Exception as error:
            raise RuntimeError(
                f"{self.run.name} cannot be {self.use}: what it started from cannot be unpacked "
                f"({type(error).__name__}: {error})."
            ) from error
        if not isinstance(start, kind):
            raise RuntimeError(
                f"{self.run.name} cannot be {self.use}: {self.run / START} holds a "
                f"{type(start).__name__}, and no {kind.__name__}."
            )
        return start

    def _read(self) -> tuple[memoryview, list[memoryview]]:
        """The pickle, and all buffers. Raises RuntimeError for a file that was changed."""
        memory = self._memory(_CODE, str(self.head.get("code")), None)
        data = self.head.get("data")
        files = [
            self._memory(name, name.partition("-")[0], size)
            for name, size in (data if isinstance(data, dict) else {}).items()
        ]
        sizes = memory[:16].cast("q")
        code, entries = 16, 16 + sizes[0]
        table = array("q", bytes(memory[entries : entries + 8 * sizes[1]]))
        rest = memory[entries + 8 * sizes[1] :]
        # A mapping begins at a page, so that tensors are aligned as those of torch are.
        small = memoryview(mmap.mmap(-1, max(1, rest.nbytes)))
        small[: rest.nbytes] = rest
        buffers = []
        shared: dict[tuple[int, int, int], memoryview] = {}
        for number, begin, size in zip(table[::3], table[1::3], table[2::3], strict=True):
            whole = small if number == _HERE else files[number]
            buffers.append(shared.setdefault((number, begin, size), whole[begin : begin + size]))
        return memory[code:entries], buffers

    def _memory(self, name: str, checksum: str, size: int | None) -> memoryview:
        """The contents of a file of the start. size: its bytes, where they are known."""
        path = self.run / START / Path(name).name
        with open_regular(path) as file:
            size_now = os.fstat(file.fileno()).st_size
            memory = memoryview(mmap.mmap(-1, max(1, size_now)))
            file.readinto(memory)  # type: ignore[attr-defined]  # it is a buffered reader
        whole = memory[:size_now]
        if (size is not None and size_now != size) or not hashlib.sha256(
            whole
        ).hexdigest().startswith(checksum):
            raise RuntimeError(
                f"{self.run.name} cannot be {self.use}: {path} was changed since it was written."
            )
        return whole


def _checked_head(folder: Path, trust: bool, use: str, ways: str) -> dict[str, Any]:
    """The head of the start in this folder, which may be unpacked; raises the errors of
    `StartFile.of`.

    ways: how its user says that they trust it.
    """
    check_no_link(folder / START)
    head = read_json(folder / START / START_HEAD, _HEAD_SIZE)
    if not _has_signature(head) and not trust:
        raise PermissionError(
            f"{folder.name} has no signature of yours: another user or another machine has made "
            f"{folder / START}, or it was changed since. It is code, and would run with your "
            f"rights. If you trust whoever made it: {ways}."
        )
    made_by = _text(head, "versions", "python")
    if made_by.split(".")[:2] != platform.python_version().split(".")[:2]:
        raise RuntimeError(
            f"{folder.name} cannot be {use} here: its code is kept as bytecode of Python "
            f"{made_by}, and this is Python {platform.python_version()}."
        )
    return head


def _text(head: Mapping[str, Any], *names: str) -> str:
    """The text under these names in a head, as it can be shown; "": there is none."""
    value: Any = head
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return printable(value) if isinstance(value, str) else ""
