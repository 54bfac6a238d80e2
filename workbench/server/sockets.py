"""Defines the two websockets: what happens to runs, and the canvas of a run or a study."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from workbench.server.canvas import (
    COMPARED,
    Canvas,
    ComparisonCanvas,
    RunCanvas,
    StudyCanvas,
    change_of,
)
from workbench.server.commands import send
from workbench.server.errors import ConflictError, NotFoundError
from workbench.server.http import COMMANDS, RESOURCE, THREADS
from workbench.server.rows import Entry
from workbench.server.studies import find
from workbench.server.watcher import Watcher
from workbench.settings import SettingsError
from workbench.ui import texts
from workbench.values import shown

T = TypeVar("T")
_INTERVAL, _IDLE = 0.2, 0.5
"""The least seconds between two messages of a canvas, and the seconds between two checks of a
record that has not grown.
"""
_LARGEST = 1 << 14
"""The most bytes of a message from a page."""
_WAITING = 100
"""The most waiting messages for a slow page; if there are more, the page gets a message to fetch
its list again.
"""
_FETCH_AGAIN = {"type": "list"}


class Socket(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """The base class of both. Only a user with read permission can open one, from a page of the
    server's own origin.
    """

    auth_resource = RESOURCE

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Open the websocket, or refuse it."""
        if not await self.may("read"):
            raise web.HTTPError(403)
        await self.prepared()
        await super().get(*args, **kwargs)

    async def prepared(self) -> None:
        """Read the arguments, before the socket opens."""

    async def may(self, action: str) -> bool:
        """Whether the user may do this with runs."""
        return bool(
            await ensure_async(
                self.authorizer.is_authorized(self, self.current_user, action, RESOURCE)
            )
        )

    def get_compression_options(self) -> dict[str, Any] | None:
        """Return the compression in the server's settings, which the websockets of kernels use
        too.
        """
        options: dict[str, Any] | None = self.settings.get("websocket_compression_options")
        return options

    @property
    def watcher(self) -> Watcher:
        """The watcher that all handlers share."""
        watcher: Watcher = self.settings["workbench_watcher"]
        return watcher

    async def in_thread(self, work: Callable[[], T], threads: str = THREADS) -> T:
        """Run `work` in a thread, so that the event loop does not wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self.settings[threads], work)

    async def until_closed(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work of an open socket. An error is logged and closes the socket, so that the
        page connects again.
        """
        try:
            await work
        except (WebSocketClosedError, StreamClosedError):
            pass
        except Exception as error:
            self.log.exception(
                "A page's websocket (%s) is closed, since its messages cannot be made.",
                self.request.path,
            )
            self.close(1011, f"{type(error).__name__}: see the server's log")


class Events(Socket):
    """Tells a page what happens to runs. A slow page gets only the newest row of each run."""

    def initialize(self, **kwargs: Any) -> None:
        """Prepare the state of one connection."""
        super().initialize(**kwargs)
        self._rows: dict[tuple[str, str], dict[str, Any]] | None = None
        """Return the rows to send; None: there are none."""
        self._others: list[dict[str, Any]] = []
        self._waits = asyncio.Event()
        self._end: Callable[[], None] | None = None
        self._closed = False

    async def open(self, *_: str) -> None:
        super().open()
        self._loop = asyncio.get_running_loop()
        self._writer = asyncio.create_task(self.until_closed(self._write()))
        self._end = await self.in_thread(lambda: self.watcher.listen(self._hear))
        if self._closed:  # meanwhile
            self._leave()

    def on_message(self, message: str | bytes) -> None:
        """Ignore messages: this socket only sends."""

    def on_close(self) -> None:
        self._closed = True
        self._leave()
        self._waits.set()
        super().on_close()

    def _leave(self) -> None:
        """Stop listening. This may have to wait for the watcher, so a thread does it."""
        if self._end is not None:
            # the server is ending, and its thread pool is closed
            with contextlib.suppress(RuntimeError):
                self.settings[THREADS].submit(self._end)

    def _hear(self, message: dict[str, Any]) -> None:
        """Take a message in the watcher's thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended with the server
            self._loop.call_soon_threadsafe(self._take, message)

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "rows":
            self._rows = (self._rows or {}) | {
                (row["root"], row["run"]): row for row in message["rows"]
            }
        elif message not in self._others:
            self._others.append(message)
            if len(self._others) > _WAITING:
                self._others = [_FETCH_AGAIN]
        self._waits.set()

    async def _write(self) -> None:
        while not self._closed:
            await self._waits.wait()
            self._waits.clear()
            rows, others = self._rows, self._others
            self._rows, self._others = None, []
            for message in (
                [] if rows is None else [{"type": "rows", "rows": [*rows.values()]}]
            ) + others:
                await self.write_message(json.dumps(message, allow_nan=False))


class CanvasSocket(Socket):
    """Draws a run, several over one another, or a study; takes what `model.send` of the canvas
    sends.
    """

    async def prepared(self) -> None:
        """Find what the address names, before the socket opens."""
        self._woken, self._closed = asyncio.Event(), False
        self._entries: list[Entry] = []
        try:
            arguments = _texts(self.request.query_arguments)
            if "study" in arguments:
                key, id = _study(arguments)
                self._canvas: Canvas = await self.in_thread(lambda: self._of_study(key, id))
            else:
                names = _names(arguments)
                self._entries = await self.in_thread(
                    lambda: [self.watcher.find(*name) for name in names]
                )
        except NotFoundError as error:
            raise web.HTTPError(404, "%s", error) from None
        except (ValueError, OSError) as error:
            raise web.HTTPError(400, "%s", error) from None

    async def open(self, *_: str) -> None:
        super().open()
        if len(self._entries) == 1:
            self._canvas = RunCanvas(self._entries[0])
        elif self._entries:
            self._canvas = ComparisonCanvas(self._entries)
        self._writer = asyncio.create_task(self.until_closed(self._draw()))

    def on_close(self) -> None:
        self._closed = True
        self._woken.set()
        super().on_close()

    async def on_message(self, message: str | bytes) -> None:
        try:
            content = json.loads(message) if len(message) <= _LARGEST else None
        except (ValueError, RecursionError):
            content = None
        match content:
            case {"type": "ready"}:
                await self.in_thread(self._canvas.everything)
            case {"type": "ask", **asked}:
                refusal = await self._asked({str(name): value for name, value in asked.items()})
                # a study's view forgets why its last line was refused
                if refusal or isinstance(self._canvas, StudyCanvas):
                    await self.write_message(json.dumps({"type": "refused", "text": refusal}))
            case _:
                await self.write_message(
                    json.dumps(
                        {
                            "type": "refused",
                            "text": f"This is no message of a canvas: {shown(message, 80)}.",
                        }
                    )
                )
        self._woken.set()

    async def _asked(self, message: dict[str, Any]) -> str:
        """Do what a message asks for; return "", or why it cannot be done."""
        try:
            if await self.in_thread(lambda: self._canvas.look(message)):
                return ""
            work = self._work(message)
            if work is None:
                return texts.not_of_attached(message)
            if not await self.may("write"):
                return (
                    "You may look at runs here, and not change them: the server's authorizer"
                    " says so."
                )
            await self.in_thread(work, COMMANDS)
        except (
            ConflictError,
            NotFoundError,
            SettingsError,
            ValueError,
            TypeError,
            OSError,
        ) as error:
            return str(error)
        return ""

    def _work(self, message: dict[str, Any]) -> Callable[[], None] | None:
        """What carries out a message; None: another process cannot do that."""
        canvas = self._canvas
        if isinstance(canvas, StudyCanvas):
            match message:
                case {"what": "study", "code": str(code)}:
                    return partial(canvas.call, code)
            return None
        command = change_of(message)
        return None if command is None or len(self._entries) > 1 else partial(self._send, command)

    def _of_study(self, key: str, id: str) -> StudyCanvas:
        return StudyCanvas(find(self.watcher.roots().get(key), key, id))

    def _send(self, command: dict[str, Any]) -> None:
        key, id = self._entries[0].key
        send(self.watcher.find(key, id), command)

    async def _draw(self) -> None:
        idle = _INTERVAL
        while not self._closed:
            self._woken.clear()
            frame = await self.in_thread(self._canvas.frame)
            if frame is not None:
                await self.write_message(frame, binary=True)
                await asyncio.sleep(_INTERVAL)
                idle = _INTERVAL
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), None if self._canvas.over else idle)
            idle = min(_IDLE, 1.5 * idle)


def _texts(arguments: Mapping[str, list[bytes]]) -> dict[str, list[str]]:
    return {
        name: [value.decode(errors="replace") for value in values]
        for name, values in arguments.items()
    }


def _study(arguments: Mapping[str, list[str]]) -> tuple[str, str]:
    """Return the key and the id in the address of a study's canvas. ValueError: it names more."""
    roots, ids = arguments.get("root", []), arguments["study"]
    if len(roots) == len(ids) == 1 and not {"run", "compare"} & {*arguments}:
        return roots[0], ids[0]
    raise ValueError("Give root=KEY&study=ID of one study.")


def _names(arguments: Mapping[str, list[str]]) -> list[tuple[str, str]]:
    """Return the keys and ids in the address of a canvas. ValueError: it names neither one run
    nor several to compare.
    """
    compared, roots, runs = (arguments.get(name, []) for name in ("compare", "root", "run"))
    if len(roots) == len(runs) == 1 and not compared:
        return [(roots[0], runs[0])]
    pairs = [tuple(pair.split("/", 1)) for pair in compared]
    if roots or runs or len(pairs) not in COMPARED or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            "Give root=KEY&run=ID, root=KEY&study=ID, or compare=KEY/ID of"
            f" {COMPARED.start} to {COMPARED.stop - 1} runs."
        )
    return [(pair[0], pair[1]) for pair in pairs]


ROUTES = [(r"workbench/api/events", Events), (r"workbench/api/canvas", CanvasSocket)]
