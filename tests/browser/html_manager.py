"""A page of @jupyter-widgets/html-manager, as Voilà has it, connected to this process.

    with page_of(browser, monkeypatch, 1200) as page:
        page.show(bench_panel)
        page.page.get_by_role("button", name="Stop").click()
        page.until(lambda: bench.job.done())

The widgets are those of the test: their comms lead to the page, and no kernel is between them.
"""

from __future__ import annotations

import base64
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anywidget
import comm
import ipywidgets
import pytest
from comm.base_comm import BaseComm
from playwright.sync_api import Browser, Page, Route

from .server import TIMEOUT

_ADDRESS = "http://html-manager.test/"
_MODULES = Path(__file__).resolve().parents[2] / "extensions" / "live" / "node_modules"
_FOLDERS = [
    _MODULES / "@jupyter-widgets" / "html-manager" / "dist",
    _MODULES / "requirejs",
    Path(anywidget.__file__).parent / "nbextension",
]
"""Of the files of the page: the manager looks for its fonts at several addresses, so the name alone counts."""
_PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>body { margin: 0; padding: 8px }</style>
<script src="require.js"></script><script>requirejs.config({ paths: { anywidget: "index" } });</script>
<script src="embed-amd.js"></script></head><body><div id="host"></div><script>
const connected = new Promise((yes) => {
  require(["@jupyter-widgets/html-manager", "@jupyter-widgets/html-manager/dist/libembed-amd"], ({ HTMLManager }, { requireLoader }) => {
    yes(new HTMLManager({ loader: requireLoader }));
  });
});
const heard = {};
const commOf = (id) => ({
  comm_id: id, target_name: "jupyter.widget", close: () => "", open: () => "", on_close: () => {},
  on_msg: (listener) => { heard[id] = listener; },
  send: (data, callbacks) => {
    window.toPython({ id, data }).then(() => callbacks?.iopub?.status?.({ content: { execution_state: "idle" } }));
    return crypto.randomUUID?.() ?? String(Math.random());
  },
});
window.fromPython = async (messages) => {
  const manager = await connected;
  for (const { type, id, data, buffers } of messages) {
    const views = buffers.map((text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer));
    const message = { content: { comm_id: id, data }, metadata: { version: "2.1.0" }, buffers: views, parent_header: {}, header: {} };
    if (type === "comm_open") await manager.handle_comm_open(commOf(id), message);
    else if (type === "comm_msg") await heard[id]?.(message);
  }
};
window.show = async (id) => {
  const manager = await connected;
  await manager.display_view(manager.create_view(await manager.get_model(id)), document.getElementById("host"));
};
</script></body></html>"""


class WidgetPage:
    """One page, and the comms of the widgets that are made as long as it is open."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.elsewhere: list[str] = []
        """Addresses outside of the page that it asked for."""
        self.complaints: list[str] = []
        self._to_page: deque[dict[str, Any]] = deque()
        self._from_page: deque[dict[str, Any]] = deque()
        self._comms: dict[str, _Comm] = {}
        page.set_default_timeout(TIMEOUT * 1000)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "console",
            lambda said: self.complaints.append(said.text) if said.type == "error" else None,
        )
        page.expose_function("toPython", lambda message: self._from_page.append(message))
        page.route("**/*", self._serve)
        page.goto(_ADDRESS)

    def make_comm(self, **arguments: Any) -> BaseComm:
        """What ipywidgets calls for each widget."""
        made = _Comm(self._to_page.append, **arguments)
        self._comms[made.comm_id] = made
        return made

    def show(self, widget: ipywidgets.Widget) -> None:
        self.settle()
        self.page.evaluate("(id) => window.show(id)", widget.model_id)
        self.settle()

    def settle(self) -> None:
        """Deliver what the page and the widgets have to tell each other now."""
        end = time.monotonic() + TIMEOUT
        while True:
            assert time.monotonic() < end, "the page and the widgets do not come to rest"
            self.page.evaluate(
                "() => new Promise((yes) => requestAnimationFrame(() => requestAnimationFrame(yes)))"
            )
            if not self._from_page and not self._to_page:
                return
            while self._from_page:
                message = self._from_page.popleft()
                self._comms[message["id"]].handle_msg(
                    {"content": {"data": message["data"]}, "buffers": []}
                )
            messages = [self._to_page.popleft() for _ in range(len(self._to_page))]
            self.page.evaluate("(messages) => window.fromPython(messages)", messages)

    def until(self, true: Callable[[], bool]) -> None:
        """Settle until this is true."""
        end = time.monotonic() + TIMEOUT
        while not true():
            assert time.monotonic() < end, "it did not become true"
            self.settle()

    def _serve(self, route: Route) -> None:
        url = route.request.url
        name = url.partition("?")[0].rpartition("/")[2]
        found = [path for path in (folder / name for folder in _FOLDERS) if path.is_file()]
        if url == _ADDRESS:
            route.fulfill(body=_PAGE, content_type="text/html")
        elif url.startswith(_ADDRESS) and found:
            route.fulfill(path=found[0])
        else:
            self.elsewhere.append(url)
            route.abort()


class _Comm(BaseComm):
    def __init__(self, publish: Callable[[dict[str, Any]], None], **arguments: Any) -> None:
        self._publish = publish
        super().__init__(**arguments)

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        texts = [base64.b64encode(buffer).decode() for buffer in buffers or []]
        self._publish({"type": msg_type, "id": self.comm_id, "data": data, "buffers": texts})


@contextmanager
def page_of(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, width: int, scale: float = 1.0
) -> Iterator[WidgetPage]:
    """A page of this width, with so many pixels a unit; widgets that are made meanwhile are connected to it."""
    missing = [str(folder) for folder in _FOLDERS if not folder.is_dir()]
    assert missing == [], "run `make live`"
    context = browser.new_context(
        viewport={"width": width, "height": 1000}, device_scale_factor=scale
    )
    try:
        page = WidgetPage(context.new_page())
        with monkeypatch.context() as patch:
            patch.setattr(comm, "create_comm", page.make_comm)
            yield page
    finally:
        context.close()
