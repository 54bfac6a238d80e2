"""Commands: frozen dataclasses of plain data, which the user sends to a running job.

The engine reads its inbox between updates; nothing else changes the engine's state.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, get_args

from workbench.values import from_json


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next update."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue after a pause."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End at the next update and keep the results so far."""


@dataclass(frozen=True, slots=True)
class Change:
    """Apply new values of live settings, from the next update on."""

    values: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Validate:
    """Validate once before the next update. Nothing else in the run depends on the result."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Write a checkpoint before the next update. It is kept as long as the run."""


@dataclass(frozen=True, slots=True)
class Histograms:
    """Measure weights and activations of these layers in the next update; none: of all."""

    layers: tuple[str, ...] = ()


Plain = Pause | Resume | Stop | Change | Validate | Checkpoint | Histograms


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Carry out a command after `at` updates; if more have been taken, before the next one."""

    at: int
    command: Stop | Change | Validate | Checkpoint


Command = Plain | Scheduled

_MOST_LAYERS = 1000
_TYPES: dict[str, type[Plain]] = {kind.__name__: kind for kind in get_args(Plain)}


def check(method: str, id: str, kind: str, ended: str | None) -> None:
    """Raise RuntimeError where a job does not support `method` ("pause") or has ended. ended:
    how; None: it has not.
    """
    why = why_not_of(method, kind) or (
        "" if ended is None else too_late(f"{method}()", id, kind, ended)
    )
    if why:
        raise RuntimeError(why)


def why_not_of(method: str, kind: str) -> str:
    """Say why jobs of this kind do not support `method`; "" if they do."""
    return (
        f"{method}() is for fits; a {kind} job can only be stopped."
        if kind != "fit" and method != "stop"
        else ""
    )


def too_late(what: str, id: str, kind: str, ended: str) -> str:
    """Say why a job that has ended cannot carry out a method ("pause()")."""
    return f"{what} comes too late: {kind} {id} has {ended}."


def method_of(command: Command) -> str:
    """Return the name of the job's method that sends this command."""
    if isinstance(command, Scheduled):
        return method_of(command.command)
    return type(command).__name__.lower()


def arguments_of(command: Command) -> dict[str, Any]:
    """Return the arguments of that method."""
    if isinstance(command, Scheduled):
        return {**arguments_of(command.command), "at": command.at}
    if isinstance(command, Histograms) and command.layers:
        return {"layers": [*command.layers]}
    return dict(command.values) if isinstance(command, Change) else {}


def to_line(command: Command) -> str:
    """Write one command as one line of JSON."""
    plain, at = command, {}
    if isinstance(command, Scheduled):
        plain, at = command.command, {"at": command.at}
    return json.dumps({"type": type(plain).__name__, **asdict(plain), **at})


def from_line(line: str) -> Command:
    """Read a command that `to_line` wrote; ValueError says why the line is not a command."""
    record: Any = from_json(line)
    if (
        not isinstance(record, dict)
        or not isinstance(record.get("type"), str)
        or record["type"] not in _TYPES
    ):
        raise ValueError(f"it has none of the types {', '.join(_TYPES)}")
    kind, at = _TYPES[record.pop("type")], record.pop("at", None)
    if at is None:
        return _plain(kind, record)
    command = _plain(kind, record)
    if not isinstance(command, Stop | Change):
        raise ValueError(f"a {kind.__name__} has no at")
    if type(at) is not int or at < 0:
        raise ValueError(f"at={at!r} is no number of updates")
    return Scheduled(at, command)


def _plain(kind: type[Plain], record: Mapping[str, Any]) -> Plain:
    """The command of this kind with these fields; ValueError says why there is none."""
    if kind is Histograms:
        return _histograms(record)
    if kind is not Change:
        if record:
            raise ValueError(f"a {kind.__name__} has no {', '.join(map(str, record))}")
        return kind()  # type: ignore[call-arg]
    values = record.get("values")
    if set(record) != {"values"} or not isinstance(values, dict) or not values:
        raise ValueError("a Change has values, by the names of settings")
    for name, value in values.items():
        if not isinstance(value, bool | int | float | None):
            raise ValueError(f"{name}={value!r} is neither a number nor true or false")
    return Change(values)


def _histograms(record: Mapping[str, Any]) -> Histograms:
    layers = record.get("layers", [])
    if set(record) - {"layers"} or not isinstance(layers, list) or len(layers) > _MOST_LAYERS:
        raise ValueError(f"Histograms have layers, a list of at most {_MOST_LAYERS} names")
    for name in layers:
        if not isinstance(name, str):
            raise ValueError(f"the layer {name!r} is no name")
    return Histograms(tuple(layers))


class Inbox(Protocol):
    """The commands that were sent to a job and not yet taken."""

    def __bool__(self) -> bool:
        """Whether a command is waiting; called at every update, so it must be cheap."""

    def take(self) -> Command | None:
        """The next command, or None."""

    def has(self, kind: type[Command]) -> bool:
        """Whether a command of this kind is waiting; it stays there."""

    def wait(self, timeout: float) -> bool:
        """Wait until a command arrives, at most `timeout` seconds; returns whether one is
        waiting.
        """


class Mailbox:
    """An inbox within one process: any thread can add a command, and the engine's thread takes
    them.
    """

    def __init__(self) -> None:
        self._commands: deque[Command] = deque()
        self._arrived = threading.Condition()

    def put(self, command: Command) -> None:
        """Add a command, and wake a thread that waits for one."""
        with self._arrived:
            if isinstance(command, Validate) and self.has(Validate):
                return  # the same command is waiting already
            self._commands.append(command)
            self._arrived.notify_all()

    def __bool__(self) -> bool:
        return bool(self._commands)

    def take(self) -> Command | None:
        """Remove and return the oldest command; None: no command is waiting."""
        return self._commands.popleft() if self._commands else None

    def has(self, kind: type[Command]) -> bool:
        """Whether a command of this kind is waiting; it stays there."""
        return any(isinstance(command, kind) for command in self.waiting())

    def waiting(self) -> tuple[Command, ...]:
        """The commands that wait, the oldest first; they stay there."""
        return tuple(self._commands)

    def wait(self, timeout: float) -> bool:
        """Wait until a command arrives, at most `timeout` seconds; returns whether one is
        waiting.
        """
        with self._arrived:
            return self._arrived.wait_for(lambda: bool(self._commands), timeout)
