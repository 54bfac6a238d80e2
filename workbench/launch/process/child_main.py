"""Runs one call in a child process: unpacks the function and its arguments, limits the memory,
sends the result back.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

import numpy as np
import torch

from workbench.instruments.memory import limited, peak_bytes, reset_peak
from workbench.launch import signals
from workbench.launch.process.process_env import ProcessEnv
from workbench.share import segment
from workbench.share.package import Package, pack, read_message, unpack, write_message
from workbench.share.segment import Handle


@dataclass(frozen=True)
class Request:
    """A call, without the package of its function and arguments."""

    name: str
    threads: int
    memory_limit: int | None
    variables: dict[str, str]
    """Its environment variables."""
    process: ProcessEnv


@dataclass(frozen=True)
class Reply:
    """The outcome of a call, without the package of its result or exception."""

    kind: Literal["result", "error"]
    traceback: str
    peak_bytes: int


@dataclass(frozen=True)
class CallInput:
    """Stands for an argument that is in a package of its own."""

    index: int


class RemoteError(RuntimeError):
    """An exception of a child that could not be sent; its type and text are in the message."""


def run_forked(channel: int, handles: Sequence[Handle], temporary: str) -> NoReturn:
    """Run one call in a child of the fork server, and end the process."""
    connection = socket.socket(fileno=channel)
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    become_child(temporary)
    reply, package = work(handles)
    cover, answer = write_message(reply, [package])
    flush()
    socket.send_fds(connection, [b"R"], [handle for handle in answer if isinstance(handle, int)])
    cover.close()
    os._exit(0)


def become_child(temporary: str) -> None:
    """Set up a process that the fork server has forked: streams, random state, out-of-memory
    score.
    """
    # Killed loader workers leave the folder of their sockets behind; the server removes this one.
    getattr(multiprocessing.current_process(), "_config", {}).setdefault("tempdir", temporary)
    with contextlib.suppress(OSError):
        # If memory runs out, the system kills this child and not the notebook.
        Path("/proc/self/oom_score_adj").write_text("1000")
    sys.stdout = sys.__stdout__ = _stream(1)  # type: ignore[misc, assignment]
    sys.stderr = sys.__stderr__ = _stream(2)  # type: ignore[misc, assignment]
    for number in signals.NUMBERS:  # the server ignores them
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable()
    np.random.seed()  # every child would have the server's state; Python reseeds `random` itself


def run_spawned(handles: Sequence[Handle], pipe: Connection) -> NoReturn:
    """Run one call in a spawned process, where there is no fork server: output and reply go
    through one pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    segment.MEMFD = False  # only names go through a pipe
    threading.Thread(target=_end_with_spawner, daemon=True).start()
    lock = threading.Lock()

    def send(message: Any) -> None:
        with lock:
            pipe.send(message)

    sys.stdout, sys.stderr = _PipeWriter("out", send), _PipeWriter("err", send)
    reply, package = work(handles)
    flush()
    cover, answer = write_message(reply, [package])
    send(("reply", answer))
    pipe.recv()  # named segments stay until the parent has attached to them
    cover.close()
    package.close()
    os._exit(0)


def work(handles: Sequence[Handle]) -> tuple[Reply, Package]:
    """Unpack a call and run it. Every error, here or in the function, goes into the reply."""
    peak = 0
    limits = contextlib.ExitStack()
    try:
        request, packages = read_message(handles)
        apply_environment(request)
        (function, plain), *inputs = unpacked(request.name, packages)
        arguments = [inputs[a.index] if isinstance(a, CallInput) else a for a in plain]
        try:
            limits.enter_context(limited(request.memory_limit))
            reset_peak()
            result = function(*arguments)
        finally:
            limits.close()  # packing the result needs memory too
            peak = peak_bytes()
        return Reply("result", "", peak), pack(
            result, names={f"the result of {request.name}": result}
        )
    except BaseException as error:  # noqa: BLE001 - the caller gets it, SystemExit and KeyboardInterrupt too
        return Reply("error", format_traceback(error), peak), pack_error(error)


def apply_environment(request: Request) -> None:
    """Give this process the caller's environment variables, import path, torch flags and number
    of threads.
    """
    os.environ.clear()
    os.environ.update(request.variables)
    request.process.take()
    torch.set_num_threads(request.threads)


def unpacked(name: str, packages: list[Package]) -> list[Any]:
    """The contents of the packages, which are closed afterwards; an error gets a note that it
    came from unpacking the input of `name`.
    """
    try:
        values = [unpack(package) for package in packages]
    except BaseException as error:
        error.add_note(f"raised in the child process while it unpacked the arguments of {name}")
        raise
    for package in packages:
        package.close()
    return values


def format_traceback(error: BaseException, own: Sequence[str] = (__file__,)) -> str:
    """The traceback without the frames of our `own` files at its top."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))


def pack_error(error: BaseException) -> Package:
    """Pack the exception itself, or else a copy made without its constructor, or else a
    RemoteError with its name and text.
    """
    bare = _PackedError(type(error), error.args, dict(error.__dict__))
    last = RemoteError(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
    for candidate in (error, bare):
        try:
            package = pack(candidate)
            if type(unpack(package)) is type(error):
                return package
        except Exception:  # noqa: BLE001 - the next candidate is simpler
            continue
    return pack(last)


class _PackedError:
    """Packs an exception whose constructor does not take its `args`: it is rebuilt without
    calling it.
    """

    def __init__(
        self, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
    ) -> None:
        self._made_of = (kind, args, state)

    def __reduce__(self) -> Any:
        return _make_bare, self._made_of


def _make_bare(
    kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def _end_with_parent(connection: socket.socket) -> None:
    """End this process with its parent: the parent never writes to this pipe, so the wait ends
    when it dies or closes the pipe.
    """
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
    return open(
        number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def flush() -> None:
    """Flush everything that was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


class _PipeWriter(io.TextIOBase):
    """A stdout or stderr that writes into the pipe."""

    def __init__(self, name: str, send: Callable[[Any], None]) -> None:
        self._name = name
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._send((self._name, text))
        return len(text)
