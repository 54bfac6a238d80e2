"""The pane of a run in JupyterLab: of a kernel that is busy, of one that was killed, of several runs that are compared."""

from __future__ import annotations

import hashlib
import re
import shutil
from urllib.error import HTTPError

import pytest
from playwright.sync_api import Locator, Page, Request, Route, WebSocket, WebSocketRoute, expect

from tests import warm
from tests.browser.faces import LAB
from tests.browser.lab import Lab
from tests.conftest import count
from tests.launch.launched import ended
from tests.server.records import Record
from tests.waiting import wait_for

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def in_jupyterlab(lab: Lab) -> None:
    if lab.server.face is not LAB:
        pytest.skip("Notebook 7 has one notebook in a page, and no launcher")


BENCH = """import time, torch
import workbench as wb

def slow(output, target):
    time.sleep(0.02)
    return torch.nn.functional.mse_loss(output, target)

torch.manual_seed(0)
x = torch.randn(400, 8)
data = x, x.sum(1, keepdim=True)
study = wb.Workbench(torch.nn.Linear(8, 1), train=data, val=data, loss=slow, batch_size=20, lr=1e-2, accelerator="cpu")"""
BUSY = 'print("training", flush=True)\nprint(study.fit(max_epochs=5000).result().status)'


class Pane:
    """The pane that is in front: of one run of the notebook's folder, which is opened, or of several."""

    def __init__(self, lab: Lab, *runs: str) -> None:
        self.lab = lab
        self.root = lab.page.locator(".wb-pane:visible")
        self.status = self.root.locator(".wb-pane-status")
        self.canvas = self.root.locator(".wb-live")
        if runs:
            self.open(*runs)

    def open(self, *runs: str) -> None:
        lab = self.lab
        refs = [{"root": key_of(lab), "run": run} for run in runs]
        wait_for(lambda: all(listed(lab, ref) for ref in refs))
        command, args = (
            ("open-run", refs[0]) if len(refs) == 1 else ("compare-runs", {"runs": refs})
        )
        lab.page.evaluate(
            "([command, args]) => void jupyterapp.commands.execute(`tuning-workbench:${command}`, args)",
            [command, args],
        )

    @property
    def message(self) -> Locator:
        return self.root.locator(".wb-pane-content > .wb-pane-message")

    def button(self, name: str) -> Locator:
        return self.root.locator(".wb-pane-bar").get_by_role("button", name=name, exact=True)

    def section(self, title: str) -> Locator:
        """A part below the plots, unfolded."""
        found = self.root.locator(
            ".wb-pane-section", has=self.lab.page.get_by_role("heading", name=title, exact=True)
        )
        if found.get_attribute("open") is None:
            found.locator("summary").first.click()
        return found

    def moves(self) -> None:
        """Wait until the canvas is at a later update than now."""
        done = self.canvas.locator(".wb-progress")
        expect(done).to_contain_text(re.compile(r"\d+/"))
        before = done.inner_text()
        expect(done).not_to_have_text(before, use_inner_text=True)


def key_of(lab: Lab) -> str:
    """The key of the notebook's folder of runs."""
    return hashlib.sha256(str((lab.folder / ".workbench").resolve()).encode()).hexdigest()[:12]


def listed(lab: Lab, ref: dict[str, str]) -> bool:
    """Whether the server has found the folder of a new root, and the run in it."""
    try:
        rows = lab.server.get(f"workbench/api/runs?root={ref['root']}")["rows"]
    except HTTPError as error:
        if error.code != 404:
            raise
        return False
    return any(row["run"] == ref["run"] for row in rows)


def accept(page: Page, label: str) -> None:
    page.locator(".jp-Dialog").get_by_role("button", name=label, exact=True).click()


@pytest.mark.new_page
def test_a_run_of_a_busy_kernel(lab: Lab) -> None:
    lab.viewport(1500, 1000)
    lab.open_notebook([BENCH, BUSY], name="busy.ipynb")
    lab.run_cell(0)
    lab.run_cell(1, wait=False)
    expect(lab.output(1)).to_contain_text("training")
    pane = Pane(lab, "0001-fit")
    expect(pane.status).to_contain_text("running")
    pane.moves()
    assert lab.violations(".wb-pane") == []
    lab.screenshot("run-pane-beside")
    commands_by_keyboard_alone(lab, pane)
    every_look(lab, pane)
    a_page_loaded_again(lab, pane)
    pane.button("Stop…").click()
    accept(lab.page, "Stop")
    expect(pane.status).to_contain_text("stopped")
    lab.until("print([job.status for job in study.jobs])", "['stopped']")  # its cell has ended
    cells_of_the_run(lab, pane)
    benches_of_another_folder(lab, pane)
    its_script(lab, pane)
    assert lab.complaints == []


def commands_by_keyboard_alone(lab: Lab, pane: Pane) -> None:
    keyboard = lab.page.keyboard
    lab.page.wait_for_function("() => document.activeElement?.closest('.wb-pane')")
    keyboard.press("Tab")
    expect(pane.button("Pause")).to_be_focused()
    keyboard.press("Enter")
    expect(pane.status).to_contain_text("paused")
    expect(pane.canvas.locator(".wb-progress")).to_contain_text("paused")
    expect(pane.button("Resume")).to_be_focused()
    keyboard.press("Enter")
    expect(pane.status).to_contain_text("running")
    expect(pane.button("Pause")).to_be_focused()
    for name in ("Stop…", "Validate now", "Write a checkpoint now"):
        keyboard.press("Tab")
        expect(pane.button(name)).to_be_focused()
    keyboard.press("Enter")
    checkpoints = pane.section("Checkpoints")
    expect(checkpoints.locator("tbody tr")).to_have_count(1)
    pane.button("More…").focus()
    keyboard.press("Enter")
    expect(lab.page.get_by_role("menuitem", name="Copy the run's id")).to_be_visible()
    keyboard.press("Escape")
    expect(lab.page.get_by_role("menuitem", name="Copy the run's id")).to_have_count(0)
    expect(pane.button("More…")).to_be_focused()
    keyboard.press("Enter")
    lab.page.get_by_role("menuitem", name="Pin", exact=True).click()

    def can_be_unpinned() -> bool:
        pane.button("More…").click()
        found = lab.page.get_by_role("menuitem", name="Unpin", exact=True).count()
        keyboard.press("Escape")
        return found == 1

    wait_for(can_be_unpinned)


def every_look(lab: Lab, pane: Pane) -> None:
    """Dark, and in a narrow pane: nothing is cut off, and nothing needs a bar to scroll sideways."""
    expect(pane.section("Settings").locator("tbody tr").first).to_contain_text("lr")
    lab.theme("dark")
    expect(pane.canvas).to_have_attribute("data-dark", "")
    assert lab.violations(".wb-pane") == []
    lab.screenshot("run-pane-dark")
    lab.viewport(520, 900)
    lab.frames()
    assert pane.root.evaluate("(pane) => pane.scrollWidth - pane.clientWidth") <= 0
    lab.screenshot("run-pane-narrow")
    lab.viewport(1500, 1000)
    lab.theme("light")
    expect(pane.canvas).not_to_have_attribute("data-dark", "")


def a_page_loaded_again(lab: Lab, pane: Pane) -> None:
    """The pane is there again, with the switches of its cards as they were; a connection that is lost comes back by itself."""
    log = pane.canvas.locator(".wb-loss").locator(".wb-tool", has_text="log")
    pressed = log.get_attribute("aria-pressed")
    log.click()
    now = "false" if pressed == "true" else "true"
    expect(log).to_have_attribute("aria-pressed", now)
    sockets: list[WebSocketRoute] = []
    down = False

    def connect(socket: WebSocketRoute) -> None:
        if down:
            socket.close(code=1012)
            return
        socket.connect_to_server()
        sockets.append(socket)

    lab.route_web_socket(re.compile("/workbench/api/canvas"), connect)
    lab.save()
    lab.layout_saved("tuning-workbench-run-", '"loss.log": "' + ("on" if now == "true" else "off"))
    lab.reload()
    pane.moves()
    expect(log).to_have_attribute("aria-pressed", now)
    lost = pane.root.get_by_text("The connection to the Jupyter server is lost.")
    expect(lost).to_be_hidden()
    down = True
    sockets[-1].close(code=1012)
    expect(lost).to_be_visible()
    down = False
    expect(lost).to_be_hidden()
    pane.moves()


def cells_of_the_run(lab: Lab, pane: Pane) -> None:
    """Lines for the bench as the notebook calls it."""
    pane.button("Insert its settings as a cell").click()
    lab.page.wait_for_function("() => __lab.panel().content.widgets.length === 3")
    sources = [cell["source"] for cell in lab.cells()]
    assert any(re.fullmatch(r"study\.set\(.*lr=0\.01.*\)", source) for source in sources), sources
    pane.button("Continue in the notebook").click()
    lab.page.wait_for_function("() => __lab.panel().content.widgets.length === 4")
    sources = [cell["source"] for cell in lab.cells()]
    assert any(source.startswith("study.fit(start=") for source in sources), sources
    pane.button("Rerun in the notebook").click()
    lab.page.wait_for_function("() => __lab.panel().content.widgets.length === 5")
    sources = [cell["source"] for cell in lab.cells()]
    assert any("\nwb.rerun('0001-fit', '/" in source for source in sources), sources


def benches_of_another_folder(lab: Lab, pane: Pane) -> None:
    """A run is continued by a bench that keeps its runs where the run is: there may be a run of the same id elsewhere."""
    dialog = lab.page.locator(".jp-Dialog")
    before = len(lab.cells())
    another = (
        "wb.Workbench(torch.nn.Linear(8, 1), train=data, loss=slow, accelerator='cpu', root={!r})"
    )
    lab.execute(f"_kept = study\nstudy = {another.format('elsewhere/.workbench')}")
    pane.button("Continue in the notebook").click()
    expect(dialog).to_contain_text(
        "No bench in the kernel of busy.ipynb keeps its runs where 0001-fit is."
    )
    accept(lab.page, "Close")
    lab.execute(f"first = _kept\nsecond = {another.format('.workbench')}")
    pane.button("Continue in the notebook").click()
    expect(dialog).to_contain_text("For which bench?")
    expect(dialog.locator("option")).to_have_text(["first", "second"])
    dialog.locator("select").select_option("second")
    accept(lab.page, "Ok")
    lab.page.wait_for_function(
        "(count) => __lab.panel().content.widgets.length === count", arg=before + 1
    )
    assert any(cell["source"].startswith("second.fit(start=") for cell in lab.cells())
    lab.execute("study = _kept\ndel first, second")


def its_script(lab: Lab, pane: Pane) -> None:
    """Written by the kernel's bench, and opened; what it cannot do is told in a dialog."""
    pane.button("Export as a script…").click()
    lab.page.locator(".jp-Dialog input").fill("busy.ipynb")
    accept(lab.page, "Export")
    expect(lab.page.locator(".jp-Dialog")).to_contain_text("busy.ipynb")
    accept(lab.page, "Close")
    pane.button("Export as a script…").click()
    lab.page.locator(".jp-Dialog input").fill("trained.py")
    accept(lab.page, "Export")
    expect(lab.page.locator(".jp-FileEditor .cm-content")).to_contain_text(
        "Written by Tuning Workbench"
    )
    assert (lab.folder / "trained.py").is_file()


def test_a_launched_run_outlives_its_kernel(lab: Lab) -> None:
    lab.viewport(1500, 1000)
    lab.open_notebook(
        [BENCH, 'job = study.fit(strategy="launch", max_epochs=5000)'], name="launched.ipynb"
    )
    with ended(lab.folder / ".workbench"):
        lab.run_cell(0)
        forked = str(warm.python().executable)  # the launcher and its rank have torch already
        lab.execute(f"import os, sys; sys.executable = os.environ['PYTHON_EXEC'] = {forked!r}")
        lab.run_cell(1)
        pane = Pane(lab, "0001-fit")
        expect(pane.status).to_contain_text("running")
        pane.moves()
        for session in lab.server.get("api/sessions"):
            lab.server.get(f"api/sessions/{session['id']}", "DELETE")
        pane.moves()
        output = pane.section("Output").get_by_role(
            "region", name="What the processes of the run have printed"
        )
        expect(output).to_be_visible()
        pane.button("Pause").click()
        expect(pane.status).to_contain_text("paused")
        pane.button("Stop…").click()
        accept(lab.page, "Stop")
        expect(pane.status).to_contain_text("stopped")
        lab.screenshot("run-pane-launched")


def tab(lab: Lab, name: str) -> Locator:
    return lab.page.locator("#jp-main-dock-panel .lm-TabBar-tab", has_text=name)


def test_comparisons_runs_that_are_gone_and_a_server_without_the_extension(lab: Lab) -> None:
    root = lab.folder / ".workbench"
    for at in range(1, 5):
        Record(root, f"{at:04d}-fit", settings={"lr": at / 100}).steps(20).ended()
    asked: list[str] = []

    def ask(one: Request | WebSocket) -> None:
        asked.append(one.url)

    lab.page.on("request", ask)
    lab.page.on("websocket", ask)
    lab.page.route(re.compile("/workbench/static/"), like_a_hub)
    lab.open_notebook(["1"], name="gone.ipynb")
    Pane(lab, "0004-fit")
    Pane(lab, "0003-fit")
    Pane(lab, "0001-fit", "0002-fit", "0003-fit")
    pane = Pane(lab)
    expect(pane.canvas.locator(".wb-compare table")).to_contain_text("0003-fit")
    lab.save()
    lab.layout_saved(
        *(
            f"tuning-workbench-{kind}-{key_of(lab)}/{run}"
            for kind, run in (("compare", "0001-fit"), ("run", "0003-fit"), ("run", "0004-fit"))
        )
    )
    assert lab.complaints == []

    shutil.rmtree(root / "runs" / "0003-fit")
    asked.clear()
    lab.reload()
    expect(pane.message).to_contain_text("0003-fit cannot be shown")
    table = pane.canvas.locator(".wb-compare table")
    expect(table).to_contain_text("0002-fit")
    expect(table).not_to_contain_text("0003-fit")
    expect(table).to_contain_text("0.02")
    expect(pane.canvas.locator(".wb-card:visible")).to_have_count(1)
    expect(pane.canvas.locator(".wb-progress")).to_be_hidden()  # it is of one run
    assert lab.violations(".wb-pane:not(.lm-mod-hidden *)") == []
    lab.screenshot("run-pane-gone")
    assert not any("0004-fit" in url for url in asked)  # what is not seen is not asked for
    tab(lab, "0003-fit").click()
    expect(pane.message).to_contain_text("there is no such run")
    expect(pane.message).not_to_contain_text("connection")
    pane.message.get_by_role("button", name="Close this pane").click()
    expect(tab(lab, "0003-fit")).to_have_count(0)
    assert not any("api/canvas" in url and "0003-fit" in url for url in asked)
    tab(lab, "0004-fit").click()
    expect(pane.status).to_contain_text("finished")
    expect(pane.canvas.locator(".wb-progress")).to_contain_text("finished")

    lab.save()
    lab.page.route(
        re.compile("/workbench/"),
        lambda route: route.fulfill(status=404, content_type="text/html", body="<html>404</html>"),
    )
    lab.complaints.clear()
    lab.reload()
    tab(lab, "0004-fit").click()  # the layout was perhaps not saved since
    expect(pane.message).to_contain_text("does not run Tuning Workbench's server extension")
    assert lab.violations(".wb-pane:not(.lm-mod-hidden *)") == []
    assert len(lab.complaints) < 10, lab.complaints
    lab.page.locator('.jp-SideBar [data-id="tuning-workbench-runs"]').click()
    expect(lab.page.locator("#tuning-workbench-runs")).to_contain_text(
        "does not run Tuning Workbench's server extension"
    )
    lab.page.unroute_all()
    pane.message.get_by_role("button", name="Try again").click()
    expect(pane.canvas.locator(".wb-progress")).to_contain_text("finished")
    expect(pane.message).to_be_hidden()
    lab.page.remove_listener("request", ask)
    lab.page.remove_listener("websocket", ask)


def like_a_hub(route: Route) -> None:
    """A JupyterHub refuses scripts that come without its token."""
    if {"authorization", "x-xsrftoken"} & route.request.headers.keys():
        route.continue_()
    else:
        route.fulfill(status=403)


@pytest.mark.new_page
def test_frames_and_panes_leave_nothing_behind(lab: Lab) -> None:
    sockets: list[WebSocketRoute] = []
    frames: list[bytes] = []
    closed: set[WebSocketRoute] = set()

    def connect(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()
        sockets.append(socket)

        def heard(message: str | bytes) -> None:
            if isinstance(message, bytes):
                frames.append(message)
            socket.send(message)

        def end(code: int | None, reason: str | None) -> None:
            closed.add(socket)
            server.close()

        server.on_message(heard)
        socket.on_close(end)

    lab.route_web_socket(re.compile("/workbench/api/canvas"), connect)
    Record(lab.folder / ".workbench", "0001-fit").steps(90).checked(0.5).ended()
    lab.open_notebook(["1"], name="closed.ipynb")
    pane = Pane(lab, "0001-fit")
    expect(pane.canvas.locator(".wb-progress")).to_contain_text("finished")

    def draw(times: int) -> None:
        for _ in range(times):
            for frame in drawn:
                sockets[0].send(frame)

    drawn = [*frames]
    assert drawn
    draw(100)
    lab.leaks_nothing(lambda: draw(count(600, 1800)))

    for _ in range(15):
        lab.page.evaluate(CLOSE)
        expect(pane.root).to_have_count(0)
        pane.open("0001-fit")
        expect(pane.canvas.locator(".wb-progress")).to_contain_text("finished")
    # Playwright passes on what the page reports only while it is called
    wait_for(lambda: forgotten(lab) and len(closed) == len(sockets) - 1)


def forgotten(lab: Lab) -> bool:
    """Whether nothing refers to the parts of panes that were closed."""
    lab.page.context.new_cdp_session(lab.page).send("HeapProfiler.collectGarbage")
    return bool(lab.page.evaluate("() => __closed.every((one) => one.deref() === undefined)"))


CLOSE = """() => {
  const pane = jupyterapp.shell.currentWidget;
  const parts = [pane, pane.content, pane.node, ...['.wb-live', '.wb-pane-bar', '.u-over'].map((part) => pane.node.querySelector(part))];
  (window.__closed ??= []).push(...parts.map((part) => new WeakRef(part)));
  pane.close();
}"""
"""Close the pane that is in front, and remember its parts only until nothing else does."""
