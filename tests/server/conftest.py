"""A Jupyter server with the extension, what asks it, and records without torch."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_jupyter.jupyter_server import *  # noqa: F403 - its fixtures, and the hooks that run coroutines
from tornado.httpclient import HTTPClientError

from tests.server.records import Record
from workbench.server import watcher

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer waits until all is read, however slow the machine is: what comes with the answer, and what later, is not by chance."""
    for most in ("_PATIENCE", "_FOR_ROWS", "_FOR_ONE"):
        monkeypatch.setattr(watcher, most, PATIENCE)


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    """The extension is on, as its file of configuration has it."""
    return {"ServerApp": {"jpserver_extensions": {"workbench.server": True}}}


@pytest.fixture
def root(jp_root_dir: Path) -> Path:
    """The root of a bench whose notebook is in the server's root folder."""
    folder = jp_root_dir / ".workbench"
    (folder / "runs").mkdir(parents=True)
    return folder


@pytest.fixture
def record(root: Path) -> Iterator[Callable[..., Record]]:
    """Makes records, and closes them at the end."""
    made: list[Record] = []

    def make(id: str, root: Path = root, **values: Any) -> Record:
        made.append(Record(root, id, **values))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Api:
    """What a page asks of the server."""

    def __init__(self, client: Any, base: str, headers: dict[str, str], connect: Any) -> None:
        self._client, self._base, self._connect = client, base, connect
        self.headers = headers

    async def ask(
        self,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """The status and the JSON that came; `path` as it stands in the address, with what is escaped in it."""
        text = body if isinstance(body, str | bytes | None) else json.dumps(body)
        options = {
            "method": method,
            "headers": self.headers if headers is None else headers,
            "body": text,
            "request_timeout": PATIENCE,
        }
        try:
            answer = await self._client.fetch(
                f"{self._base}workbench/{path}",
                allow_nonstandard_methods=True,
                follow_redirects=False,
                **options,
            )
        except HTTPClientError as error:
            if error.response is None:
                raise
            answer = error.response
        self.last = answer
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return answer.code, json.loads(answer.body) if is_json and answer.body else answer.body

    async def get(self, path: str, **params: Any) -> Any:
        """The JSON of an answer that must be good."""
        status, found = await self.ask(f"{path}?{urllib.parse.urlencode(params)}")
        assert status == 200, (status, found)
        return found

    async def refused(self, status: int, path: str, method: str = "GET", body: Any = None) -> str:
        """The reason of an answer of this status."""
        code, found = await self.ask(path, method, body)
        assert code == status, (code, found)
        text: str = found["message"]
        return text

    async def rows(self, **params: Any) -> list[dict[str, Any]]:
        """The rows of a page, when all is read."""
        return (await self.page(**params))["rows"]

    async def page(self, **params: Any) -> dict[str, Any]:
        """A page, when all is read."""
        async with asyncio.timeout(PATIENCE):
            while (page := await self.get("api/runs", **params))["reading"]:
                pass
        return page

    async def address(self, id: str) -> str:
        """The address of a run."""
        (found,) = [row for row in await self.rows(limit=200) if row["run"] == id]
        return f"api/runs/{found['root']}/{id}"

    async def socket(self, path: str, params: Any = (), **headers: str) -> Socket:
        return Socket(
            await self._connect(
                "workbench", *path.split("/"), params=[*params], headers={**self.headers, **headers}
            )
        )


class Socket:
    """An open websocket of a page."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def read(self) -> Any:
        """The next message: of text its JSON."""
        async with asyncio.timeout(PATIENCE):
            message = await self.connection.read_message()
        return json.loads(message) if isinstance(message, str) else message

    async def until(self, wanted: Callable[[Any], bool]) -> list[Any]:
        """The messages that come until this one, which is the last."""
        found = [await self.read()]
        while not wanted(found[-1]):
            assert found[-1] is not None, found
            found.append(await self.read())
        return found

    async def send(self, message: Any) -> None:
        text = message if isinstance(message, str | bytes) else json.dumps(message)
        await self.connection.write_message(text, binary=isinstance(text, bytes))


@pytest.fixture
def api(
    jp_serverapp: Any,
    http_server_client: Any,
    jp_base_url: str,
    jp_auth_header: dict[str, str],
    jp_ws_fetch: Any,
) -> Api:
    return Api(http_server_client, jp_base_url, dict(jp_auth_header), jp_ws_fetch)
