"""Runs a function in a child process, so that a crash or a lack of memory ends only that
process, and reports how it ended.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from workbench.instruments.memory import available_memory as available_memory
from workbench.instruments.memory import is_out_of_memory
from workbench.launch.process import child_main, fork_client
from workbench.launch.process.child_main import CallInput, Reply, Request
from workbench.launch.process.fork_client import POLL, CallOutcome, Deliver, Stop
from workbench.launch.process.fork_client import ServerError as ServerError
from workbench.launch.process.output_lines import OutputLines
from workbench.launch.process.process_env import ProcessEnv
from workbench.share import segment
from workbench.share.package import Package, pack, read_message, unpack, write_message
from workbench.share.segment import Handle

FORK = sys.platform == "linux" and segment.MEMFD
"""Whether children are forked from a server. On macOS a process that has imported torch cannot
be forked safely.
"""
_GRACE = 5.0
"""Seconds in which a spawned process that has answered ends by itself."""


class ChildDied(RuntimeError):
    """A child process ended without a result; the message says how."""


class Stopped(RuntimeError):
    """A child process was killed because `stop` returned True."""


class RemoteTraceback(Exception):
    """The traceback of an exception in its child, shown as the cause of the exception here."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass(frozen=True)
class Outcome:
    """How a call in a child ended: with a result, with an exception, dead, or stopped."""

    kind: Literal["result", "error", "died", "stopped"]
    result: Any = None
    error: BaseException | None = None
    """The function's exception, of its own type where that can be sent. Its cause is the child's
    traceback.
    """
    traceback: str = ""
    """The traceback in the child; for a child that died, the end of its stderr."""
    died: str = ""
    """A sentence about what ended it."""
    code: int | None = None
    """Its exit code; negative: the number of the signal that ended it."""
    peak_bytes: int | None = None
    """The most memory that it held while the function ran, above what it held before. None:
    unknown.
    """

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out: by the error, or because the child died of SIGKILL, which the
        system sends when memory runs out.
        """
        if self.error is not None:
            return is_out_of_memory(self.error)
        killed = self.code == -getattr(signal, "SIGKILL", 9)
        return self.kind == "died" and (killed or "std::bad_alloc" in self.traceback)

    def get(self) -> Any:
        """Return the result; without one, raise the exception that says why."""
        if self.kind == "result":
            return self.result
        if self.error is not None:
            raise self.error
        raise ChildDied(self.died) if self.kind == "died" else Stopped("the child was stopped")


def run_in_child(
    function: Callable[..., Any],
    *args: Any,
    memory_limit: int | None = None,
    on_message: Callable[[str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    threads: int,
) -> Outcome:
    """Run `function(*args)` in a child process and wait for its end.

    Function and arguments may come from a notebook; the child has copies. An argument that is a
    `Package` is unpacked in the child, so that data for many calls is packed once. `memory_limit`:
    bytes it may allocate beyond its inputs. `on_message` gets each line it prints, in this thread;
    without it the lines go to stdout and stderr. `stop` is called every 20 ms; the child is killed
    when it returns True. Any thread may call `run_in_child`. Raises `PackageError` for what cannot
    be pickled, `ServerError` when no process can be started.
    """
    packages = [arg for arg in args if isinstance(arg, Package)]
    places = iter(range(len(packages)))
    plain = [CallInput(next(places)) if isinstance(arg, Package) else arg for arg in args]
    asked = request(_name(function), threads, memory_limit)
    lines = OutputLines(on_message)
    with pack((function, plain), names=_names(function, plain, asked.name)) as packed_call:
        cover, handles = write_message(asked, [packed_call, *packages])
        with cover:
            answers: list[tuple[Reply, Package]] = []
            take = partial(_take, answers)
            if FORK:
                end = fork_client.run(handles, lines.feed, stop)
                if end.answer is not None:
                    take(end.answer)
            else:
                end = _run_spawned(handles, lines.feed, stop, take)
    lines.finish()
    return _outcome(end, answers, lines.tail)


def close() -> None:
    """End this process's server and all children. The next call starts a new one."""
    fork_client.close()


def request(name: str, threads: int, memory_limit: int | None = None) -> Request:
    """The request for a call named `name` from this process."""
    # a job in another thread may hide some for a moment
    present = ((variable, os.environ.get(variable)) for variable in [*os.environ])
    variables = {variable: value for variable, value in present if value is not None}
    return Request(name, threads, memory_limit, variables, ProcessEnv.here())


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _names(function: Callable[..., Any], args: list[Any], name: str) -> dict[str, Any]:
    """The names of a call's parts in an error: the function's name, and its parameters'."""
    try:
        parameters = list(inspect.signature(function).bind(*args).arguments)
    except (TypeError, ValueError):
        parameters = []
    if len(parameters) != len(args):
        parameters = [f"argument {index}" for index in range(len(args))]
    return {name: function, **dict(zip(parameters, args, strict=True))}


def _take(answers: list[tuple[Reply, Package]], handles: list[Handle]) -> None:
    reply, (package,) = read_message(handles)
    answers.append((reply, package))


def _outcome(
    end: fork_client.CallOutcome, answers: list[tuple[Reply, Package]], tail: str
) -> Outcome:
    if end.stopped:
        for _, package in answers:
            package.close()
        return Outcome("stopped", code=end.code)
    if not answers:
        return Outcome("died", traceback=tail, died=end.lost or in_words(end.code), code=end.code)
    reply, package = answers[0]
    with package:
        try:
            value = unpack(package)
        except Exception as error:  # noqa: BLE001 - it is the outcome
            error.add_note(
                "the function in the child ended, but its result cannot be unpacked in this process"
            )
            return Outcome(
                "error",
                error=error,
                traceback=reply.traceback,
                code=end.code,
                peak_bytes=reply.peak_bytes,
            )
    if reply.kind == "result":
        return Outcome("result", result=value, code=end.code, peak_bytes=reply.peak_bytes)
    value.__cause__ = RemoteTraceback(reply.traceback)
    return Outcome(
        "error", error=value, traceback=reply.traceback, code=end.code, peak_bytes=reply.peak_bytes
    )


_WORDS = {
    "SIGKILL": "killed by the system (signal 9), most likely out of memory",
    "SIGSEGV": "crashed (signal 11, segmentation fault)",
    "SIGABRT": "aborted (signal 6)",
    "SIGBUS": "crashed (signal 7, bus error), most likely because shared memory ran out",
    "SIGFPE": "crashed (signal 8, arithmetic error)",
    "SIGILL": "crashed (signal 4): it was built for another kind of processor",
    "SIGTERM": "ended by another process (signal 15)",
}


def in_words(code: int | None) -> str:
    """Say how a child ended of which only the exit code is known."""
    if code is None:
        return "ended, and it is not known how"
    if code >= 0:
        return f"exited with code {code} before there was a result"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = ""
    return _WORDS.get(name, f"ended by signal {-code} {name}".rstrip())


def _run_spawned(
    handles: Sequence[Handle],
    deliver: Deliver,
    stop: Stop | None,
    take: Callable[[list[Handle]], Any],
) -> CallOutcome:
    """Run one call in a spawned process. `take` attaches to the answer while its sender still
    lives.

    As always with spawn, a script must guard what it runs with `if __name__ == "__main__":`.
    """
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=child_main.run_spawned, args=(list(handles), theirs))
    end = CallOutcome()
    process.start()
    theirs.close()
    try:
        while end.answer is None:
            if stop is not None and stop():
                end.stopped = True
                break
            try:
                if not pipe.poll(POLL):
                    continue
                kind, content = pipe.recv()
            except (EOFError, OSError):
                break
            if kind == "reply":
                take(content)
                end.answer = content
                pipe.send("taken")
            else:
                deliver(kind, content.encode())
        if end.answer is not None or not end.stopped:
            process.join(_GRACE)
    finally:
        process.kill()
        process.join()
        end.code = process.exitcode
        process.close()
        pipe.close()
    return end
