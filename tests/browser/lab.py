"""A real JupyterLab, a real Chromium, and `Lab`: one browser page of them, as a test drives it.

    def test_something(lab):
        lab.open_notebook(["import workbench as wb", "wb.Workbench(…)"])
        lab.run_cell(0)
        lab.run_cell(1)
        lab.page.click('button:has-text("Fit")')
        lab.until("print(bench.job and bench.job.status)", "running")
        lab.screenshot("fit-running")

Every wait has a timeout, in seconds. `lab.page` is Playwright's page, for all that is not here. The page, the kernel and
the test may each stand still for some seconds at any time: what is read is waited for, with `expect` or `until`.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import nbformat
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    Playwright,
    WebSocketRoute,
    expect,
)
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.short_trials import SHORT_TRIALS

from .faces import LAB
from .server import TIMEOUT, LabError, Server

ARTEFACTS = Path(__file__).resolve().parents[1] / "artefacts"
expect.set_options(timeout=TIMEOUT * 1000)
_AXE = (
    Path(__file__).resolve().parents[2]
    / "extensions"
    / "live"
    / "node_modules"
    / "axe-core"
    / "axe.min.js"
)
# V8 does not optimize: the pages live for seconds, and its compilers cost more than they save.
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --js-flags=--no-opt,--no-maglev "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --no-proxy-server"
).split()

# A wait inside the page: Playwright's `evaluate` has no timeout of its own.
_JS = """
(() => {
  const bench = window.__lab = {};
  bench.within = (promise, seconds, what) => Promise.race([
    promise,
    new Promise((_, no) => setTimeout(() => no(new Error(`${what}: not within ${seconds} s`)), seconds * 1000)),
  ]);
  bench.panel = () => {
    const { shell } = window.jupyterapp;
    const panel = [shell.currentWidget, ...shell.widgets('main')].find((one) => one?.sessionContext);
    if (!panel) throw new Error('no notebook is open');
    return panel;
  };
  bench.kernel = () => bench.panel().sessionContext.session?.kernel;
  bench.run = (command) => {
    const run = bench.running = { done: false, error: null };
    window.jupyterapp.commands.execute(command).then(
      () => { run.done = true; },
      (error) => { run.done = true; run.error = String(error); });
  };
  bench.idle = () => (!bench.running || bench.running.done) && bench.kernel()?.status === 'idle';
  bench.execute = async (code) => {
    const future = bench.kernel().requestExecute({ code, store_history: false, allow_stdin: false });
    let text = '';
    future.onIOPub = ({ header, content }) => {
      if (header.msg_type === 'stream') text += content.text;
      if (header.msg_type === 'execute_result' || header.msg_type === 'display_data') {
        text += content.data['text/plain'] + '\\n';
      }
      if (header.msg_type === 'error') text += content.traceback.join('\\n');
    };
    const reply = await future.done;
    return [reply.content.status, text];
  };
})()
"""


# JupyterLab shows its launcher where nothing else is open.
_ONLY = """async () => {
  const made = await jupyterapp.commands.execute('docmanager:open', { path: %s });
  for (const one of [...jupyterapp.shell.widgets('main')]) if (one !== made) one.dispose();
}"""
_CLOSE_ALL = """() => {
  if (!window.__lab) return false;
  const { shell } = jupyterapp;
  for (const one of [...shell.widgets('main')]) one.dispose();
  shell.collapseLeft();
  shell.collapseRight();
  __lab.running = null;
  return true;
}"""
_AS_NEW = """() => jupyterapp.shell.mode === 'multiple-document' && document.body.dataset.jpThemeLight === 'true'
  && document.querySelector('.jp-Dialog, .lm-Menu, .Toastify__toast') === null"""


def launch(playwright: Playwright, chromium: str) -> Browser:
    """Debian's Chromium, without a screen."""
    return playwright.chromium.launch(executable_path=chromium, args=FLAGS, timeout=TIMEOUT * 1000)


def violations(
    page: Page, target: str, impacts: Sequence[str] = (), without: Sequence[str] = ()
) -> list[str]:
    """What axe finds wrong for people who cannot see or point, within `target` (a CSS selector).

    impacts: those that count; none: all. without: rules that are not checked.
    """
    page.evaluate(_AXE.read_text(encoding="utf-8"))
    found = page.evaluate(
        """async ([target, without]) => (await axe.run(target, {
          resultTypes: ['violations'], rules: Object.fromEntries(without.map((rule) => [rule, {enabled: false}])),
        })).violations""",
        [target, list(without)],
    )
    return [
        f"{one['id']} ({one['impact']}): {one['help']}\n  "
        + "\n  ".join(node["html"][:200] for node in one["nodes"][:5])
        for one in found
        if not impacts or one["impact"] in impacts
    ]


class Lab:
    """One page of JupyterLab: a notebook, its kernel, and what a person would see."""

    def __init__(self, server: Server, page: Page) -> None:
        self.server = server
        self.page = page
        self.folder = server.notebooks / secrets.token_hex(4)
        """Of the notebooks that are opened here, and of their kernels: no other test has files there."""
        self.folder.mkdir()
        self.complaints: list[str] = []
        """Errors of the page's own JavaScript: uncaught ones and console.error."""
        self._reusable = server.face is LAB
        page.set_default_timeout(TIMEOUT * 1000)
        page.on("pageerror", self._raised)
        page.on("console", self._heard)

    def reset(self) -> bool:
        """Close all that is open, without a question, and end the kernels; whether another test can use the page then."""
        if not (self._reusable and self.page.evaluate(_CLOSE_ALL)):
            return False
        self.server.stop_kernels()
        self.page.unroute_all()
        self.page.emulate_media(
            media="null",
            color_scheme="null",
            reduced_motion="null",
            forced_colors="null",
            contrast="null",
        )
        as_new = bool(self.page.evaluate(_AS_NEW))
        # Errors that come with the end of a notebook or a kernel were this test's, not the next one's.
        self.page.remove_listener("pageerror", self._raised)
        self.page.remove_listener("console", self._heard)
        return as_new

    def route_web_socket(
        self, url: re.Pattern[str], handler: Callable[[WebSocketRoute], None]
    ) -> None:
        """Playwright's; it cannot be undone, so no other test uses this page."""
        self._reusable = False
        self.page.route_web_socket(url, handler)

    # -- notebooks ---------------------------------------------------------------------------------

    def open_notebook(self, notebook: Sequence[str] | Path, name: str | None = None) -> None:
        """A notebook with these code cells, or a copy of a notebook file, opened with its kernel ready."""
        if isinstance(notebook, Path):
            content = nbformat.read(notebook, as_version=4)
            name = name or notebook.name
        else:
            cells = [nbformat.v4.new_code_cell(source) for source in notebook]
            content = nbformat.v4.new_notebook(cells=cells)
            name = name or "test.ipynb"
        content.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(content, self.folder / name)
        self.go_to(name)
        self._curtain()
        self.page.evaluate("() => jupyterapp.shell.collapseLeft?.()")

    def go_to(self, name: str) -> None:
        """Open a notebook that is there, in the page as it is or in a page that loads; its kernel, if it has one, lives on."""
        name = f"{self.folder.name}/{name}"
        if self.page.url == "about:blank":
            path = self.server.face.path.format(workspace=secrets.token_hex(4), name=name)
            self.page.goto(
                f"{self.server.url}/{path}?token={self.server.token}", wait_until="domcontentloaded"
            )
        else:
            self._wait(_ONLY % json.dumps(name), "opening the notebook", TIMEOUT)
        self._opened()
        try:
            self.wait_idle(TIMEOUT / 3)
        except PlaywrightTimeout:
            # a page that connects to a living kernel can miss its status for good
            self.reload()
            self.wait_idle()

    def run_cell(self, index: int, timeout: float = TIMEOUT, *, wait: bool = True) -> None:
        """Runs one cell; with `wait` until the kernel is done, and the cell may not fail."""
        self.page.evaluate(
            "(index) => { const content = __lab.panel().content; content.deselectAll();"
            " content.activeCellIndex = index; __lab.run('notebook:run-cell'); }",
            index,
        )
        if wait:
            self.wait_idle(timeout)
            self.check_cells(index)

    def wait_idle(self, timeout: float = TIMEOUT) -> None:
        """Until what was run is over and the kernel is idle."""
        self.page.wait_for_function("() => __lab.idle()", timeout=timeout * 1000, polling=50)
        error = self.page.evaluate("() => __lab.running?.error ?? null")
        if error:
            raise LabError(f"JupyterLab could not run the cells: {error}")

    def cells(self) -> list[dict[str, Any]]:
        """The notebook's cells as they would be saved now, outputs included."""
        found: list[dict[str, Any]] = self.page.evaluate(
            "() => __lab.panel().content.model.toJSON().cells"
        )
        return found

    def check_cells(self, index: int | None = None) -> None:
        """A `LabError` with the traceback of the first cell (or of cell `index`) that failed."""
        for number, cell in enumerate(self.cells()):
            for output in cell.get("outputs", []):
                if output["output_type"] == "error" and index in (None, number):
                    raise LabError(f"cell {number} failed:\n" + "\n".join(output["traceback"]))

    def output(self, index: int) -> Locator:
        """The output area of a cell."""
        return self.page.locator(".jp-NotebookPanel .jp-Cell").nth(index).locator(".jp-OutputArea")

    def tab(self, panel: Locator, name: str) -> None:
        """Open a tab of the panel's drawer."""
        panel.locator(".wb-drawer-tabs").get_by_role("button", name=name).click()

    def panel(self, index: int) -> Locator:
        """The bench's panel in the output of a cell, in view and built up."""
        self.scroll_to(index)
        found = self.output(index).locator(".wb-panel")
        expect(found.locator(".wb-live .wb-progress")).to_be_visible()
        expect(found.locator(".wb-step-lr input[type=range]")).to_be_visible()
        return found

    def scroll_to(self, index: int) -> None:
        """Brings a cell into view; JupyterLab draws far ones only then."""
        self._wait(
            f"() => __lab.panel().content.scrollToItem({index}, 'start')", "scrolling", TIMEOUT
        )

    def save(self) -> Path:
        """The notebook's file, saved."""
        self._wait("() => __lab.panel().context.save()", "saving", TIMEOUT)
        return self.server.notebooks / str(self.page.evaluate("() => __lab.panel().context.path"))

    def layout_saved(self, *texts: str) -> None:
        """Until JupyterLab has saved the layout and state of this page with these words, a little after they changed."""
        # other pages may have saved the same words before
        own = re.findall(r"/workspaces/(\w+)", self.page.url)[0]
        end = time.monotonic() + TIMEOUT
        while not all(
            text in (known := json.dumps(self.server.get(f"lab/api/workspaces/{own}")))
            for text in texts
        ):
            if time.monotonic() > end:
                raise LabError(f"the saved layout has not all of {texts}: {known}")
            time.sleep(0.1)

    # -- the kernel --------------------------------------------------------------------------------

    def settle(self) -> None:
        """Until the page shows all that the jobs of `bench` have said, to their very end; none goes on."""
        panel = "__import__('workbench.ui.panel', fromlist=['Panel']).Panel.of(bench)"
        code = f"[job.wait() for job in bench.jobs]; print(); print({panel}.dispatcher.drain({TIMEOUT / 2}))"
        heard = self.execute(code).splitlines()[-1]
        if heard != "True":
            raise LabError("the panel has not heard all that was said")
        self.frames()  # its messages came before that answer

    def frames(self) -> None:
        """Until the page has drawn all that it knows."""
        self._wait(
            "() => new Promise((yes) => requestAnimationFrame(() => requestAnimationFrame(yes)))",
            "drawing",
            TIMEOUT,
        )

    def leaks_nothing(self, act: Callable[[], None]) -> None:
        """`act` leaks no nodes, listeners or memory in the page, but for some of JupyterLab's own.

        More may come once, where JupyterLab has only now come to something; what `act` leaks comes each time.
        """
        session = self.page.context.new_cdp_session(self.page)

        def kept() -> tuple[int, int, int]:
            self.frames()
            session.send("HeapProfiler.collectGarbage")
            counted = session.send("Memory.getDOMCounters")
            return (
                counted["nodes"],
                counted["jsEventListeners"],
                session.send("Runtime.getHeapUsage")["usedSize"],
            )

        before = kept()
        for _ in range(3):
            act()
            after = kept()
            grown = [now - then for now, then in zip(after, before, strict=True)]
            if grown[0] <= 50 and grown[1] <= 50 and grown[2] <= 500_000:
                return
            before = after
        raise LabError(f"each time the page keeps more nodes, listeners, bytes: {grown}")

    def execute(self, code: str, timeout: float = TIMEOUT) -> str:
        """What `code` prints in the notebook's kernel, behind the cells that are queued; no cell is made for it."""
        status, text = self._wait(
            f"() => __lab.execute({json.dumps(code)})", f"executing {code!r}", timeout
        )
        if status != "ok":
            raise LabError(f"{code!r} in the kernel: {status}\n{text}")
        return str(text).strip()

    def until(
        self, code: str, wanted: str | Callable[[str], bool], timeout: float = TIMEOUT
    ) -> str:
        """Executes `code` until what it prints is `wanted`, or until `wanted(text)`; the text."""
        end, pause = time.monotonic() + timeout, 0.05
        while True:
            text = self.execute(code, timeout)
            if wanted(text) if callable(wanted) else text == wanted:
                return text
            if time.monotonic() > end:
                raise LabError(f"{code!r} printed {text!r} for {timeout} s")
            time.sleep(pause)
            # each asks the page, the server and the kernel, which have something to do
            pause = min(0.5, 1.5 * pause)

    def short_trials(self) -> None:
        """Trials of batch sizes are timed over few updates from now on, before the kernel has run one."""
        self.execute(SHORT_TRIALS)

    def interrupt(self) -> None:
        self._wait("() => __lab.kernel().interrupt()", "interrupting the kernel", TIMEOUT)

    def restart(self) -> None:
        """A new kernel for the same notebook; outputs stay."""
        self._wait(
            "() => __lab.panel().sessionContext.restartKernel()", "restarting the kernel", TIMEOUT
        )
        self.page.evaluate("() => { __lab.running = null; }")
        self.wait_idle()

    def reload(self) -> None:
        """The page loaded again, as after F5; the kernel lives on."""
        self.page.reload(wait_until="domcontentloaded")
        self._opened()

    def reopen(self) -> None:
        """The notebook saved, closed and opened again; the kernel lives on. It costs a fifth of loading the page again."""
        name = self.save().name
        if self.server.face is LAB:
            self.page.evaluate("() => __lab.panel().dispose()")
        else:
            self.page.goto("about:blank")
        self.go_to(name)

    # -- what it looks like ------------------------------------------------------------------------

    def violations(self, target: str) -> list[str]:
        """What axe finds wrong for people who cannot see or point, serious or worse, within `target` (a CSS selector)."""
        return violations(self.page, target, impacts=("serious", "critical"))

    def drag(self, target: Locator, dx: float, dy: float = 0.0, steps: int = 8) -> None:
        """Takes hold of the middle of `target` with the mouse and moves it by so many pixels."""
        target.hover()  # in view, where it stands still and nothing lies over it
        box = target.bounding_box()
        if box is None:
            raise LabError(f"{target} cannot be seen")
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + dx, y + dy, steps=steps)
        self.page.mouse.up()

    def theme(self, kind: Literal["light", "dark"]) -> None:
        """JupyterLab's own light or dark theme, fully loaded."""
        name = f"JupyterLab {kind.title()}"
        self._wait(
            f"() => jupyterapp.commands.execute('apputils:change-theme', {{theme: '{name}'}})",
            name,
            TIMEOUT,
        )
        self.page.wait_for_function(
            "(light) => document.body.dataset.jpThemeLight === light",
            arg="true" if kind == "light" else "false",
        )
        self._curtain()

    def viewport(self, width: int, height: int) -> None:
        self.page.set_viewport_size({"width": width, "height": height})

    def screenshot(self, name: str, target: Locator | None = None) -> Path:
        """What can be seen now (or `target` of it), as tests/artefacts/NAME.png."""
        ARTEFACTS.mkdir(exist_ok=True)
        path = ARTEFACTS / f"{name}.png"
        (target or self.page).screenshot(path=path)
        return path

    # -- within ------------------------------------------------------------------------------------

    def _opened(self) -> None:
        """Until the notebook of a page that loads is there, with its kernel."""
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell?.currentWidget && [...jupyterapp.shell.widgets('main')].some((one) => one.sessionContext)"
        )
        self.page.evaluate(_JS)
        self._wait(
            "() => __lab.panel().revealed.then(() => __lab.panel().sessionContext.ready)",
            "the notebook",
            TIMEOUT,
        )
        # another pane may be before it
        self.page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for(state="attached")

    def _curtain(self) -> None:
        """Until the splash screen is gone, which covers JupyterLab while a theme loads."""
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def _wait(self, script: str, what: str, timeout: float) -> Any:
        return self.page.evaluate(
            f"([seconds, what]) => __lab.within(Promise.resolve().then({script}), seconds, what)",
            [timeout, what],
        )

    def _raised(self, error: Error) -> None:
        self._complain(str(error))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            failed = message.text.startswith("Failed to load resource")
            self._complain(f"{message.text}: {message.location['url']}" if failed else message.text)

    def _complain(self, text: str) -> None:
        if text not in self.server.face.faults:
            self.complaints.append(text)
