"""Inside a child: unpack what was sent, run it under its limits, send back what came of it."""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import linecache
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

import numpy as np
import torch

from workbench.instruments.memory import data_bytes, peak_bytes, reset_peak
from workbench.launch import letter
from workbench.share import segment
from workbench.share.parcel import Parcel, pack, unpack
from workbench.share.segment import Handle

if sys.platform != "win32":
    import resource


@dataclass(frozen=True)
class Request:
    """What a call asks for, beside the parcel of its function and arguments."""

    name: str
    threads: int
    memory_limit: int | None
    path: list[str]
    argv: list[str]
    folder: str | None
    environment: dict[str, str]
    sources: dict[str, Any]
    """linecache's entries of code that is in no file: notebook cells, for tracebacks and inspect.getsource."""


@dataclass(frozen=True)
class Reply:
    """What came of a call, beside the parcel of its result or exception."""

    kind: Literal["result", "error"]
    traceback: str
    peak_bytes: int


@dataclass(frozen=True)
class Given:
    """Stands for an argument that came as a parcel of its own."""

    index: int


class RemoteError(RuntimeError):
    """An exception of a child that could not be sent; its type and text are in the message."""


def run_forked(channel: int, handles: Sequence[Handle], temporary: str) -> NoReturn:
    """The whole life of a child of the fork server. Never returns."""
    connection = socket.socket(fileno=channel)
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    # Loader workers that are killed would leave their socket's folder behind: the server removes this one.
    getattr(multiprocessing.current_process(), "_config", {}).setdefault("tempdir", temporary)
    with contextlib.suppress(OSError):
        # If the system must end something, then this trial and not the notebook.
        Path("/proc/self/oom_score_adj").write_text("1000")
    sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc, assignment]
    sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc, assignment]
    faulthandler.enable()
    np.random.seed()  # the server's state would be the same in every child; Python reseeds its own
    reply, parcel = work(handles)
    cover, answer = letter.write(reply, [parcel])
    _flush()
    socket.send_fds(connection, [b"R"], [handle for handle in answer if isinstance(handle, int)])
    cover.close()
    os._exit(0)


def run_spawned(handles: Sequence[Handle], pipe: Connection) -> NoReturn:
    """The whole life of a child where there is no fork: lines and the reply go through one pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    segment.MEMFD = False  # only names go through a pipe
    threading.Thread(target=_end_with_spawner, daemon=True).start()
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock:
            pipe.send(message)

    sys.stdout, sys.stderr = _Teller("out", send), _Teller("err", send)
    reply, parcel = work(handles)
    _flush()
    cover, answer = letter.write(reply, [parcel])
    send(("reply", answer))
    pipe.recv()  # named segments stay until the parent has taken them over
    cover.close()
    parcel.close()
    os._exit(0)


def work(handles: Sequence[Handle]) -> tuple[Reply, Parcel]:
    """Unpack a call and run it. Whatever goes wrong, here or in the function, is in the reply."""
    peak = 0
    limited = contextlib.ExitStack()
    try:
        request, parcels = letter.read(handles)
        function, arguments = _set_up(request, parcels)
        try:
            limited.enter_context(_limit(request.memory_limit))
            reset_peak()
            result = function(*arguments)
        finally:
            limited.close()  # what follows needs memory too
            peak = peak_bytes()
        return Reply("result", "", peak), pack(result, names={f"the result of {request.name}": result})
    except BaseException as error:  # noqa: BLE001 - it is the caller's, SystemExit and KeyboardInterrupt too
        return Reply("error", _traceback(error), peak), _pack_error(error)


def _set_up(request: Request, parcels: list[Parcel]) -> tuple[Callable[..., Any], list[Any]]:
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[:], sys.argv[:] = request.path, request.argv
    if request.folder is not None:
        os.chdir(request.folder)
    linecache.cache.update(request.sources)
    importlib.invalidate_caches()  # the server's are as old as the server
    torch.set_num_threads(request.threads)
    try:
        own, *given = (unpack(parcel) for parcel in parcels)
    except BaseException as error:
        error.add_note(f"raised in the child while what {request.name} was given was unpacked there")
        raise
    for parcel in parcels:
        parcel.close()
    function, arguments = own
    return function, [given[a.index] if isinstance(a, Given) else a for a in arguments]


@contextlib.contextmanager
def _limit(memory: int | None) -> Iterator[None]:
    """No more than `memory` bytes of new private memory. What is here already does not count."""
    if memory is None:
        yield
        return
    held = data_bytes()
    if sys.platform == "win32" or not held:
        print("memory_limit: this system cannot limit a process's memory; the trial runs without.", file=sys.stderr)
        yield
        return
    torch.ones(torch.get_num_threads() << 15).mul_(2)  # starts the threads: their stacks are not the function's
    before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [data_bytes() + memory, *(old for old in (soft, hard) if old != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _traceback(error: BaseException) -> str:
    """The traceback without this file's own frames at its top."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def _pack_error(error: BaseException) -> Parcel:
    """The exception as it is, or without its constructor's wishes, or at least its name and text."""
    bare = _Bare(type(error), error.args, dict(error.__dict__))
    last = RemoteError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
    for candidate in (error, bare):
        try:
            parcel = pack(candidate)
            if type(unpack(parcel)) is type(error):
                return parcel
        except Exception:  # noqa: BLE001 - the next candidate is simpler
            continue
    return pack(last)


class _Bare:
    """Packs an exception whose constructor does not take its `args`: it arrives without having been called."""

    def __init__(self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> None:
        self._made_of = (kind, args, state)

    def __reduce__(self) -> Any:
        return _make_bare, self._made_of


def _make_bare(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _end_with_parent(connection: socket.socket) -> None:
    """The parent never writes here: what ends this wait is its end, or its letting go."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # loader workers too
    os._exit(1)


def _end_with_spawner() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _stream(number: int) -> TextIO:
    return open(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


class _Teller(io.TextIOBase):
    """A stdout or stderr that goes through the pipe."""

    def __init__(self, name: str, send: Callable[[Any], None]) -> None:
        self._name = name
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._send((self._name, text))
        return len(text)
