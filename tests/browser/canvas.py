"""The live canvas alone in a page: the bundle and a `LiveView`, without a notebook, a kernel or a training.

canvas.draw(RunStarted(…), StepsDone(…))
canvas.page.get_by_role("button", name="Zoom out").click()
canvas.settle()
assert canvas.asked == [{"what": "monitor", …}]
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, Route

from workbench.events import BenchEvent
from workbench.ui.canvas.widget import LiveView
from workbench.ui.panel import Panel

from .lab import ARTEFACTS
from .server import TIMEOUT

_ADDRESS = "http://canvas.test/"
_PAGE = """<!doctype html><html><head><meta charset="utf-8"><link rel="stylesheet" href="live.css">
<style>body { margin: 0; padding: 8px; background: var(--paper); } body { --paper: #fff } body.dark { --paper: #111418; color: #e6e9ed }</style>
</head><body><div id="host"></div><script type="module">
import make from "./live.js";
const listeners = {}, traits = %s;
const model = {
  get: (name) => traits[name],
  set: (name, value) => { traits[name] = value; (listeners[`change:${name}`] ?? []).forEach((f) => f()); changed.add(name); },
  save_changes: () => { changed.forEach((name) => window.toPython({ trait: name, value: traits[name] })); changed.clear(); },
  send: (content) => window.toPython({ content }),
  on: (name, listener) => (listeners[name] ??= []).push(listener),
};
const changed = new Set();
window.fromTrait = (name, value) => { traits[name] = value; (listeners[`change:${name}`] ?? []).forEach((f) => f()); };
window.fromPython = (content, buffers) => {
  const views = buffers.map((text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
  (listeners["msg:custom"] ?? []).forEach((f) => f(content, views));
};
const widget = make();
widget.initialize({ model });
widget.render({ model, el: document.getElementById("host") });
</script></body></html>"""


class Canvas:
    """One page with one canvas. What the page asks for is answered when the test next settles it."""

    def __init__(self, page: Page, panel: Panel | None = None) -> None:
        """panel: whose canvas it is; None: one without a bench."""
        self.page, self.view = page, LiveView() if panel is None else panel.canvas
        self.asked: list[dict[str, Any]] = []
        """What a bench was asked for; of a panel nothing, which has its own."""
        self._traits: dict[str, Any] = {}
        self.complaints: list[str] = []
        self._from_page: list[dict[str, Any]] = []
        self._to_page: list[tuple[dict[str, Any], list[str]]] = []
        self.view.send = lambda content, buffers: self._to_page.append(
            (content, [base64.b64encode(b).decode() for b in buffers])
        )
        self.view.wake = lambda: None
        if panel is None:
            self.view.on_request = lambda message: self.asked.append(dict(message))
        page.set_default_timeout(TIMEOUT * 1000)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "console",
            lambda said: self.complaints.append(said.text) if said.type == "error" else None,
        )
        page.expose_function("toPython", lambda message: self._from_page.append(message))
        page.route(f"{_ADDRESS}**", self._serve)

    def open(self, dark: bool = False) -> None:
        """Load the page, with all that the canvas knows; `dark`: on a dark page."""
        self._from_page.clear()
        self._dark = dark
        self._traits = self._moving()
        self.page.goto(_ADDRESS)
        self.page.wait_for_function("() => document.querySelector('.wb-live') !== null")
        self.settle()

    def draw(self, *events: BenchEvent) -> None:
        """Draw these events, and wait until they are on the screen."""
        for event in events:
            self.view.draw(event)
        self.settle()

    def settle(self) -> None:
        """Until the page and Python have nothing more to tell each other, and all is drawn."""
        while True:
            self.page.evaluate(
                "() => new Promise((yes) => requestAnimationFrame(() => requestAnimationFrame(yes)))"
            )
            heard, self._from_page[:] = list(self._from_page), []
            for message in heard:
                if "trait" in message:
                    setattr(self.view, message["trait"], message["value"])
                else:
                    self.view._heard(self.view, message["content"], [])
            while self.view.flush():
                pass
            sent, self._to_page = self._to_page, []
            now = self._moving()
            moved = {name: at for name, at in now.items() if self._traits.get(name) != at}
            self._traits = now
            if not heard and not sent and not moved:
                return
            for name, at in moved.items():
                self.page.evaluate("([name, at]) => window.fromTrait(name, at)", [name, at])
            self.page.evaluate(
                "(all) => all.forEach(([content, buffers]) => window.fromPython(content, buffers))",
                sent,
            )

    def _moving(self) -> dict[str, Any]:
        return {name: getattr(self.view, name) for name in ("marker", "clip")}

    def tab(self, name: str) -> None:
        """Open a tab of the drawer."""
        self.page.locator(".wb-drawer-tabs").get_by_role("button", name=name).click()
        self.settle()

    def screenshot(self, name: str) -> None:
        """A picture of the whole page in tests/artefacts."""
        ARTEFACTS.mkdir(exist_ok=True)
        self.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)

    def saved(self, kind: str, card: str) -> bytes:
        """The file that a card saves as "PNG", "SVG" or "CSV"."""
        root = self.page.locator(card)
        root.get_by_role("button", name="Save this plot").click()
        with self.page.expect_download() as found:
            root.get_by_role("button", name=kind, exact=True).click()
        return found.value.path().read_bytes()

    def _serve(self, route: Route) -> None:
        name = route.request.url.removeprefix(_ADDRESS)
        if name == "live.js":
            route.fulfill(body=self.view._esm, content_type="text/javascript")
        elif name == "live.css":
            route.fulfill(body=self.view._css, content_type="text/css")
        elif name == "":
            traits = json.dumps(
                {name: getattr(self.view, name) for name in ("marker", "looks", "clip", "subject")}
            )
            body = (_PAGE % traits).replace(
                "<body>", '<body class="dark">' if self._dark else "<body>"
            )
            route.fulfill(body=body, content_type="text/html")
        else:
            route.fulfill(status=404)


@contextmanager
def canvas_in(browser: Browser, width: int = 1200, panel: Panel | None = None) -> Iterator[Canvas]:
    """A canvas, or this panel, in a page of this width."""
    context = browser.new_context(viewport={"width": width, "height": 1000}, accept_downloads=True)
    try:
        yield Canvas(context.new_page(), panel)
    finally:
        context.close()
