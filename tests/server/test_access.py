"""Who may ask the server for runs: nobody without a token, nobody whom the authorizer refuses, and no page of another site."""

from __future__ import annotations

import json
import re

import pytest
from jupyter_server.auth import AllowAllAuthorizer
from jupyter_server.base.handlers import JupyterHandler
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.web import HTTPError
from tornado.websocket import websocket_connect

from workbench.runs.folder import control
from workbench.server import http, sockets

RUN = "api/runs/{root}/0001-fit"
REQUESTS = [
    ("GET", "api/runs", None), ("GET", RUN, None), ("PATCH", RUN, {"name": "x"}), ("DELETE", RUN, None), ("POST", RUN + "/commands", {"type": "Stop"}),
    ("GET", RUN + "/output", None), ("GET", "api/studies", None), ("GET", "api/templates", None), ("GET", "api/templates/own-data", None),
    ("GET", "static/live.js", None), ("HEAD", "static/live.js", None), ("GET", "static/live.css", None),
]  # fmt: skip
SOCKETS = ["api/events", "api/canvas"]
NOBODY = {"Authorization": "token of-nobody"}


def test_every_address_is_here():
    asked = [path.format(root="0" * 12) for _, path, _ in REQUESTS] + SOCKETS
    for pattern, *_ in http.ROUTES + sockets.ROUTES:
        assert any(re.fullmatch(pattern, f"workbench/{path}") for path in asked), pattern


async def test_without_a_token_nothing_is_answered(api, record):
    run = record("0001-fit").steps()
    root = (await api.rows())[0]["root"]
    for method, path, body in REQUESTS:
        status, _ = await api.ask(path.format(root=root), method, body, headers=NOBODY)
        assert status == 403, (method, path)
    for path in SOCKETS:
        with pytest.raises(HTTPClientError) as refused:
            await api.socket(path, {"root": root, "run": "0001-fit"}.items(), **NOBODY)
        assert refused.value.code == 403
    untouched(run)


def untouched(run):
    assert sorted(path.name for path in run.path.iterdir()) == [
        ".reserve",
        "metrics.jsonl",
        "run.json",
    ]


class ReadOnly(AllowAllAuthorizer):
    """Lets nobody change runs."""

    def is_authorized(self, handler, user, action, resource):
        return resource != "workbench" or action == "read"


class Nothing(AllowAllAuthorizer):
    """Lets nobody near them."""

    def is_authorized(self, handler, user, action, resource):
        return resource != "workbench"


class TestReadOnly:
    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        return {"ServerApp": {**jp_server_config["ServerApp"], "authorizer_class": ReadOnly}}

    async def test_a_reader_changes_nothing(self, api, record):
        run = record("0001-fit").steps()
        root = (await api.rows())[0]["root"]
        for method, path, body in REQUESTS:
            status, _ = await api.ask(path.format(root=root), method, body)
            assert status == (200 if method in ("GET", "HEAD") else 403), (method, path)
        socket = await api.socket("api/canvas", {"root": root, "run": "0001-fit"}.items())
        await socket.send({"type": "ask", "what": "use_clip", "value": 0.5})
        refused = (await socket.until(lambda one: isinstance(one, dict)))[-1]
        assert "the server's authorizer says so" in refused["text"]
        untouched(run)


class TestNothing:
    @pytest.fixture
    def jp_server_config(self, jp_server_config):
        return {"ServerApp": {**jp_server_config["ServerApp"], "authorizer_class": Nothing}}

    async def test_who_may_not_read_gets_nothing(self, api, record):
        run = record("0001-fit").steps()
        for method, path, body in REQUESTS:
            status, _ = await api.ask(path.format(root="0" * 12), method, body)
            assert status == 403, (method, path)
        for path in SOCKETS:
            with pytest.raises(HTTPClientError) as refused:
                await api.socket(path)
            assert refused.value.code == 403
        untouched(run)


async def logged_in(api, server):
    """The cookie of a browser that has logged in, and the token against requests from other sites."""
    await api.ask(f"../login?token={server.identity_provider.token}", headers={})
    cookies = {
        cookie.split("=")[0]: cookie.split(";")[0]
        for cookie in api.last.headers.get_list("Set-Cookie")
    }
    (login,) = [text for name, text in cookies.items() if name.startswith("username-")]
    return login, cookies["_xsrf"].partition("=")[2]


async def test_a_cookie_alone_changes_nothing(api, record, jp_serverapp):
    """A page of another site can send a browser's cookies along, and not the token that is in them."""
    run = record("0001-fit").steps()
    root = (await api.rows())[0]["root"]
    login, token = await logged_in(api, jp_serverapp)
    for method, path, body in REQUESTS:
        if method not in ("GET", "HEAD"):
            status, _ = await api.ask(
                path.format(root=root), method, body, headers={"Cookie": login}
            )
            assert status == 403, (method, path, status)
    untouched(run)
    given = {"Cookie": f"{login}; _xsrf={token}", "X-XSRFToken": token}
    status, _ = await api.ask(
        f"{RUN.format(root=root)}/commands", "POST", {"type": "Stop"}, headers=given
    )
    assert status == 204
    assert len(list(control.take(run.path))) == 1


async def test_a_page_of_another_site_opens_no_socket(
    api, record, jp_serverapp, jp_http_port, jp_base_url
):
    record("0001-fit").steps()
    root = (await api.rows())[0]["root"]
    login, _ = await logged_in(api, jp_serverapp)
    for path in SOCKETS:
        url = f"ws://127.0.0.1:{jp_http_port}{jp_base_url}workbench/{path}?root={root}&run=0001-fit"
        with pytest.raises(HTTPClientError) as refused:
            await websocket_connect(
                HTTPRequest(url, headers={"Origin": "http://elsewhere.example", "Cookie": login})
            )
        assert refused.value.code == 403
        own = await websocket_connect(
            HTTPRequest(
                url, headers={"Origin": f"http://127.0.0.1:{jp_http_port}", "Cookie": login}
            )
        )
        assert await own.read_message()


async def test_the_bundle_is_that_of_the_notebook(api):
    for name, kind in (("live.js", "javascript"), ("live.css", "css")):
        status, text = await api.ask(f"static/{name}")
        assert status == 200
        assert kind in api.last.headers["Content-Type"]
        assert text == (http.STATIC / name).read_bytes()
    for name in (
        "THIRD-PARTY-NOTICES.txt",
        "../texts.py",
        "..%2ftexts.py",
        "live.js/../../texts.py",
        "live%2ejs%00",
    ):
        status, _ = await api.ask(f"static/{name}")
        assert status == 404, name


async def test_the_bundle_comes_where_scripts_need_the_token_against_other_sites(api, monkeypatch):
    """JupyterHub asks for it in each request of a script, also one that only reads; JupyterLab sends it in a header, or the address."""

    def check(self):
        if not (self.get_argument("_xsrf", "") or self.request.headers.get("X-XSRFToken")):
            raise HTTPError(403)

    monkeypatch.setattr(JupyterHandler, "check_xsrf_cookie", check)
    for path in ("static/live.js", "static/live.css", "api/runs"):
        assert (
            await api.ask(f"{path}?1795725271623", headers={**api.headers, "X-XSRFToken": "a"})
        )[0] == 200
        assert (await api.ask(f"{path}?_xsrf=a"))[0] == 200
    assert (await api.ask("static/live.js"))[0] == 403


async def test_what_is_answered_is_json_that_no_browser_takes_for_a_page(api, record):
    record("0001-fit").steps()
    for path in (
        "api/runs",
        "api/runs?search=<script>alert(1)</script>",
        "api/runs/<script>/0001-fit",
        "api/templates/<script>",
    ):
        await api.ask(path.replace("<", "%3C").replace(">", "%3E"))
        assert api.last.headers["Content-Type"].startswith("application/json")
        assert api.last.headers["X-Content-Type-Options"] == "nosniff"
        json.loads(api.last.body)
