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
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import nbformat
import psutil
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Playwright, expect
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests import warm
from tests.short_trials import SHORT_TRIALS

from .faces import LAB, Face, write_kernel

T = TypeVar("T")
ARTEFACTS = Path(__file__).resolve().parents[1] / "artefacts"
EXTENSION = Path(__file__).resolve().parents[2] / "workbench" / "server" / "jupyter"
"""Where Jupyter finds the JupyterLab extension and the server's of this working tree."""
BASE = "/user/somebody"
"""Below the server's address, as behind a JupyterHub."""
TIMEOUT = 180.0
"""Long enough for a slow machine that does other things besides; nobody waits longer than he must."""
expect.set_options(timeout=TIMEOUT * 1000)
_AXE = Path(__file__).resolve().parents[2] / "extensions" / "live" / "node_modules" / "axe-core" / "axe.min.js"
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


class LabError(AssertionError):
    """The notebook did something else than the test asked for."""


def on_free_port(start: Callable[[int], T], log: Path) -> T:
    """Call `start` with a free port, and again with another one if `log` says that meanwhile something else has taken it."""
    for attempt in range(3):
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        try:
            return start(port)
        except LabError:
            if attempt == 2 or "already in use" not in log.read_text(errors="replace"):
                raise
    raise AssertionError("it has returned or raised")


class Server:
    """A Jupyter server on loopback, with folders of its own, in a process group of its own.

    kernel: packages that its kernels find before those of this environment (another ipykernel). Such kernels are started as
    a person's are; without, they are forked (tests/warm).
    """

    def __init__(self, folder: Path, face: Face = LAB, kernel: Path | None = None) -> None:
        self.face = face
        self.notebooks = folder / "notebooks"
        self.token = secrets.token_hex(16)
        self.log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = folder
        settings = folder / "config" / "lab" / "user-settings" / "@jupyterlab"
        for path in (self.notebooks, settings / "apputils-extension", settings / "docmanager-extension"):
            path.mkdir(parents=True)
        quiet = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
        (settings / "apputils-extension" / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
        (settings / "docmanager-extension" / "plugin.jupyterlab-settings").write_text('{"autosave": false}')
        (folder / "config" / "labconfig").mkdir()
        # JupyterLab would start node to see whether it could be built anew, and each message to a kernel would load two icons.
        page = {"buildCheck": False, "buildAvailable": False, "disabledExtensions": {"@jupyterlab/application-extension:faviconbusy": True}}
        (folder / "config" / "labconfig" / "page_config.json").write_text(json.dumps(page))
        self._places = [EXTENSION, warm.kernels()] if kernel is None else [EXTENSION]
        if kernel is not None:
            write_kernel(folder / "data", kernel)

    def start(self) -> None:
        """Up and answering, or an error with the server's own words."""
        on_free_port(self._start, self.log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{BASE}"

    def get(self, path: str, method: str = "GET") -> Any:
        """An answer of the server's REST interface."""
        request = urllib.request.Request(
            f"{self.url}/{path}", method=method, headers={"Authorization": f"token {self.token}"}
        )
        with _opener.open(request, timeout=TIMEOUT) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def stop_kernels(self) -> None:
        for session in self.get("api/sessions"):
            try:
                self.get(f"api/sessions/{session['id']}", "DELETE")
            except urllib.error.HTTPError as error:
                if error.code not in (404, 410):  # it has gone by itself
                    raise

    def stop(self) -> None:
        """Ends the server and all that it started; kernels have sessions of their own, so they are counted first."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            family = psutil.Process(process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        _signal_group(process, signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)
            process.wait()
        _, left = psutil.wait_procs(family, timeout=10)
        for child in left:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def _start(self, port: int) -> None:
        self.port = port
        try:
            self._launch()
        except LabError:
            self.stop()
            raise

    def _launch(self) -> None:
        folder = self._folder
        env = {name: value for name, value in os.environ.items() if not name.startswith("JUPYTER")} | {
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_PATH": os.pathsep.join(map(str, self._places)),
            "JUPYTER_CONFIG_PATH": str(EXTENSION),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTER_TOKEN": self.token,
            "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTER_PREFER_ENV_PATH": "0",  # the kernel written into this folder goes before the environment's own
            "PYTHONUNBUFFERED": "1",
        }
        command = [
            sys.executable, "-m", self.face.module, "--allow-root", "--no-browser", "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={self.notebooks}",
            f"--ServerApp.base_url={BASE}", *self.face.options,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.notebooks, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise LabError(f"{self.face.name} ended (exit code {self._process.returncode}):\n{self._said()}")
            try:
                self.get("api/status")
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise LabError(f"{self.face.name} did not answer within {TIMEOUT:.0f} s:\n{self._said()}")

    def _said(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def launch(playwright: Playwright, chromium: str) -> Browser:
    """Debian's Chromium, without a screen."""
    return playwright.chromium.launch(executable_path=chromium, args=FLAGS, timeout=TIMEOUT * 1000)


class Lab:
    """One page of JupyterLab: a notebook, its kernel, and what a person would see."""

    def __init__(self, server: Server, page: Page) -> None:
        self.server = server
        self.page = page
        self.folder = server.notebooks / secrets.token_hex(4)
        """Of the notebooks that are opened here, and of their kernels: nothing that another test left lies there."""
        self.folder.mkdir()
        self.complaints: list[str] = []
        """Errors of the page's own JavaScript: uncaught ones and console.error."""
        page.set_default_timeout(TIMEOUT * 1000)
        page.on("pageerror", lambda error: self._complain(str(error)))
        page.on("console", self._heard)

    # -- notebooks ----------------------------------------------------------------------------------------------

    def open_notebook(self, notebook: Sequence[str] | Path, name: str | None = None) -> None:
        """A notebook with these code cells, or a copy of a notebook file, opened with its kernel ready."""
        if isinstance(notebook, Path):
            content = nbformat.read(notebook, as_version=4)
            name = name or notebook.name
        else:
            cells = [nbformat.v4.new_code_cell(source) for source in notebook]
            content = nbformat.v4.new_notebook(cells=cells)
            name = name or "test.ipynb"
        content.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(content, self.folder / name)
        self.go_to(name)
        self._curtain()
        self.page.evaluate("() => jupyterapp.shell.collapseLeft?.()")

    def go_to(self, name: str) -> None:
        """Open a notebook that is there; its kernel, if it has one, lives on."""
        path = self.server.face.path.format(workspace=secrets.token_hex(4), name=f"{self.folder.name}/{name}")
        self.page.goto(f"{self.server.url}/{path}?token={self.server.token}", wait_until="domcontentloaded")
        self._opened()
        try:
            self.wait_idle(TIMEOUT / 3)
        except PlaywrightTimeout:  # a page that connects to a living kernel can miss its status for good
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
        found: list[dict[str, Any]] = self.page.evaluate("() => __lab.panel().content.model.toJSON().cells")
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

    def panel(self, index: int) -> Locator:
        """The bench's panel in the output of a cell, in view and built up."""
        self.scroll_to(index)
        found = self.output(index).locator(".wb-panel")
        expect(found.locator(".wb-live .wb-progress")).to_be_visible()
        # The canvas names the slider's handle with its first frame, when it knows its colours, too.
        expect(found.locator(".wb-step-lr .noUi-handle")).to_have_attribute("aria-label", re.compile("Learning rate"))
        return found

    def scroll_to(self, index: int) -> None:
        """Brings a cell into view; JupyterLab draws far ones only then."""
        self._wait(f"() => __lab.panel().content.scrollToItem({index}, 'start')", "scrolling", TIMEOUT)

    def save(self) -> Path:
        """The notebook's file, saved."""
        self._wait("() => __lab.panel().context.save()", "saving", TIMEOUT)
        return self.server.notebooks / str(self.page.evaluate("() => __lab.panel().context.path"))

    def layout_saved(self, *texts: str) -> None:
        """Until JupyterLab has saved its layout and state with these words, a little after they changed."""
        end = time.monotonic() + TIMEOUT
        while not all(text in (known := json.dumps(self.server.get("lab/api/workspaces"))) for text in texts):
            if time.monotonic() > end:
                raise LabError(f"the saved layout has not all of {texts}: {known}")
            time.sleep(0.1)

    # -- the kernel ---------------------------------------------------------------------------------------------

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
        self._wait("() => new Promise((yes) => requestAnimationFrame(() => requestAnimationFrame(yes)))", "drawing", TIMEOUT)

    def leaves_nothing(self, act: Callable[[], None]) -> None:
        """`act` leaves no nodes, listeners or memory in the page, but for some of JupyterLab's own.

        More may come once, where JupyterLab has only now come to something; what `act` leaves comes each time.
        """
        session = self.page.context.new_cdp_session(self.page)

        def kept() -> tuple[int, int, int]:
            self.frames()
            session.send("HeapProfiler.collectGarbage")
            counted = session.send("Memory.getDOMCounters")
            return counted["nodes"], counted["jsEventListeners"], session.send("Runtime.getHeapUsage")["usedSize"]

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
        status, text = self._wait(f"() => __lab.execute({json.dumps(code)})", f"executing {code!r}", timeout)
        if status != "ok":
            raise LabError(f"{code!r} in the kernel: {status}\n{text}")
        return str(text).strip()

    def until(self, code: str, wanted: str | Callable[[str], bool], timeout: float = TIMEOUT) -> str:
        """Executes `code` until what it prints is `wanted`, or until `wanted(text)`; the text."""
        end, pause = time.monotonic() + timeout, 0.05
        while True:
            text = self.execute(code, timeout)
            if wanted(text) if callable(wanted) else text == wanted:
                return text
            if time.monotonic() > end:
                raise LabError(f"{code!r} printed {text!r} for {timeout} s")
            time.sleep(pause)
            pause = min(0.5, 1.5 * pause)  # each asks the page, the server and the kernel, which have something to do

    def short_trials(self) -> None:
        """Trials of batch sizes are timed over few updates from now on, before the kernel has run one."""
        self.execute(SHORT_TRIALS)

    def interrupt(self) -> None:
        self._wait("() => __lab.kernel().interrupt()", "interrupting the kernel", TIMEOUT)

    def restart(self) -> None:
        """A new kernel for the same notebook; outputs stay."""
        self._wait("() => __lab.panel().sessionContext.restartKernel()", "restarting the kernel", TIMEOUT)
        self.page.evaluate("() => { __lab.running = null; }")
        self.wait_idle()

    def reload(self) -> None:
        """The page loaded again, as after F5; the kernel lives on."""
        self.page.reload(wait_until="domcontentloaded")
        self._opened()

    # -- what it looks like -------------------------------------------------------------------------------------

    def violations(self, target: str) -> list[str]:
        """What axe finds wrong for people who cannot see or point, serious or worse, within `target` (a CSS selector)."""
        self.page.evaluate(_AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate(
            "async (target) => (await axe.run(target, {resultTypes: ['violations']})).violations", target
        )
        return [
            f"{one['id']} ({one['impact']}): {one['help']}\n  " + "\n  ".join(node["html"][:200] for node in one["nodes"][:5])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]

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
        self._wait(f"() => jupyterapp.commands.execute('apputils:change-theme', {{theme: '{name}'}})", name, TIMEOUT)
        self.page.wait_for_function(
            "(light) => document.body.dataset.jpThemeLight === light", arg="true" if kind == "light" else "false"
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

    # -- within -------------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        """Until the notebook of a page that loads is there, with its kernel."""
        self.page.wait_for_function(
            "() => window.jupyterapp?.shell?.currentWidget && [...jupyterapp.shell.widgets('main')].some((one) => one.sessionContext)"
        )
        self.page.evaluate(_JS)
        self._wait("() => __lab.panel().revealed.then(() => __lab.panel().sessionContext.ready)", "the notebook", TIMEOUT)
        self.page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for(state="attached")  # another pane may be before it

    def _curtain(self) -> None:
        """Until the splash screen is gone, which covers JupyterLab while a theme loads."""
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def _wait(self, script: str, what: str, timeout: float) -> Any:
        return self.page.evaluate(
            f"([seconds, what]) => __lab.within(Promise.resolve().then({script}), seconds, what)", [timeout, what]
        )

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            failed = message.text.startswith("Failed to load resource")
            self._complain(f"{message.text}: {message.location['url']}" if failed else message.text)

    def _complain(self, text: str) -> None:
        if text not in self.server.face.faults:
            self.complaints.append(text)


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
