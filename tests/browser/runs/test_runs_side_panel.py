"""The Runs panel in JupyterLab's left side bar: runs of other processes, with the real server."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from playwright.sync_api import Locator, Route, WebSocketRoute, expect

import workbench as wb
from tests.browser.faces import LAB
from tests.browser.lab import Lab
from tests.conftest import count
from tests.launch.launched import kernel
from tests.server.records import Record
from tests.waiting import wait_for
from workbench.runs.folder.annotations import annotate, read_annotations

pytestmark = pytest.mark.browser

SLOW = """
import sys, time, torch, workbench as wb

def loss(output, y):
    time.sleep(0.02)
    return torch.nn.functional.mse_loss(output, y)

data = torch.randn(64, 3), torch.randn(64, 1)
bench = wb.Workbench(torch.nn.Linear(3, 1), train=data, val=data, loss=loss, root=sys.argv[1], accelerator="cpu", batch_size=8)
print(bench.fit(max_epochs=5000).result().status, flush=True)
"""
"""A fit in another process; it goes on until it is stopped."""
BUSY = "import time\nprint('busy', flush=True)\ntime.sleep(1000)"


def fits(root: Path, *rates: float) -> None:
    """Short fits, one for each learning rate."""
    data = torch.randn(32, 3), torch.randn(32, 1)
    with wb.Workbench(
        torch.nn.Linear(3, 1),
        train=data,
        val=data,
        loss=F.mse_loss,
        root=root,
        accelerator="cpu",
        batch_size=8,
    ) as bench:
        for lr in rates:
            bench.fit(max_epochs=3, lr=lr).result()


class Panel:
    """The Runs panel, opened, with the runs of this test alone."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.root = lab.page.locator("#tuning-workbench-runs")
        self.list = self.root.get_by_role("listbox", name="Training runs")
        self.rows = self.list.get_by_role("option")

    def open(self) -> Panel:
        self.lab.page.locator('.jp-SideBar [data-id="tuning-workbench-runs"]').click()
        expect(self.root).to_be_visible()
        self.filter("Folder", self.lab.folder.name)
        return self

    def filter(self, name: str, label: str | re.Pattern[str]) -> None:
        """Choose in one of the filters."""
        option = self.root.get_by_label(name, exact=True).locator(
            "option", has_text=label if isinstance(label, re.Pattern) else re.compile(f"^{label}$")
        )
        expect(option).to_have_count(1)
        self.root.get_by_label(name, exact=True).select_option(value=option.get_attribute("value"))

    def shows(self, *runs: str) -> None:
        """Until the list has these runs, in this order."""
        expect(self.rows).to_have_count(len(runs))
        for at, run in enumerate(runs):
            expect(self.rows.nth(at)).to_have_attribute("data-run", run)

    def row(self, run: str) -> Locator:
        return self.list.locator(f'[data-run="{run}"]')

    def action(self, name: str) -> Locator:
        return self.root.get_by_role("toolbar").get_by_role("button", name=name, exact=True)

    def pane(self, title: str) -> Locator:
        """The tab of a pane beside the notebook."""
        return self.lab.page.locator("#jp-main-dock-panel .lm-TabBar-tab", has_text=title)

    def close(self, title: str) -> None:
        """A pane, by the cross of its tab."""
        self.pane(title).locator(".lm-TabBar-tabCloseIcon").click()
        expect(self.pane(title)).to_have_count(0)

    def can(self, command: str) -> bool:
        """Whether a command without arguments, as in the palette, is possible now."""
        return bool(
            self.lab.page.evaluate(
                "(command) => jupyterapp.commands.isEnabled(`tuning-workbench:${command}`)", command
            )
        )

    @property
    def dialog(self) -> Locator:
        return self.lab.page.locator(".jp-Dialog")

    def accept(self, label: str) -> None:
        self.dialog.get_by_role("button", name=label, exact=True).click()
        expect(self.dialog).to_have_count(0)


@pytest.fixture
def panel(lab: Lab) -> Panel:
    if lab.server.face is not LAB:
        pytest.skip("a side bar is open in JupyterLab alone")
    # with two folders there is a choice of them
    Record(lab.folder / "elsewhere" / ".workbench", "0001-fit").steps().ended()
    return Panel(lab)


@pytest.mark.new_page
def test_runs_of_another_process(lab: Lab, panel: Panel) -> None:
    root = lab.folder / ".workbench"
    fits(root, 0.1, 0.01)
    lab.open_notebook([BUSY])
    panel.open().shows("0002-fit", "0001-fit")
    for words in ("0002-fit", "finished", "val_loss", "lr 0.01"):
        expect(panel.row("0002-fit")).to_contain_text(words)
    lab.run_cell(0, wait=False)  # the kernel is busy from here on
    expect(lab.output(0)).to_contain_text("busy")
    item = lab.page.locator("#jp-main-statusbar").get_by_role("button", name="Training:")
    expect(item).to_have_count(0)
    with kernel(SLOW, str(root)) as other:
        running = panel.row("0003-fit")
        expect(running).to_contain_text("running")
        panel.shows("0003-fit", "0002-fit", "0001-fit")
        before = running.inner_text()
        expect(running).not_to_have_text(before, use_inner_text=True)
        expect(running).to_contain_text("left")
        expect(item).to_contain_text("0003-fit")
        expect(item).to_contain_text("left")
        running.click()
        expect(panel.pane("0003-fit")).to_have_count(1)
        expect(running).to_be_focused()  # the keyboard stays in the list
        panel.close("0003-fit")
        for theme in ("light", "dark"):
            lab.theme(theme)
            lab.screenshot(f"runs-panel-{theme}")
            assert lab.violations("#tuning-workbench-runs") == []
            assert lab.violations("#jp-main-statusbar .wb-status") == []
        panel.action("Pause").click()
        expect(running).to_contain_text("paused")
        expect(item).to_contain_text("paused")
        panel.action("Resume").click()
        expect(running).to_contain_text("running")

        lab.reload()
        lab.page.locator("#jupyterlab-splash").wait_for(state="detached")
        expect(panel.root).to_be_visible()
        panel.filter("Folder", lab.folder.name)
        panel.shows("0003-fit", "0002-fit", "0001-fit")
        expect(panel.pane("0003-fit")).to_have_count(0)
        item.click()
        expect(panel.pane("0003-fit")).to_have_count(1)
        lab.page.evaluate(AWAY)
        running.click()
        panel.action("Stop…").click()
        panel.accept("Stop")
        expect(running).to_contain_text("stopped")
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "stopped"
    expect(item).to_have_count(0)
    lab.page.wait_for_function("() => window.shown.length === 1")
    ((title, body),) = lab.page.evaluate("() => window.shown")
    assert title == "0003-fit stopped"
    assert "val_loss" in body
    lab.page.locator("#jp-main-statusbar").get_by_title("1 notification").click()
    expect(lab.page.locator(".jp-Notification-List")).to_contain_text("0003-fit stopped")
    lab.theme("light")
    lab.interrupt()
    assert lab.complaints == []


AWAY = """() => {
  window.shown = [];
  Object.defineProperty(document, 'hidden', { get: () => true, configurable: true });
  window.Notification = class {
    static permission = 'granted';
    constructor(title, { body }) { window.shown.push([title, body]); }
    close() {}
  };
}"""
"""The person looks at another tab, and has allowed this one's notifications."""


def test_the_list_by_keyboard_alone(lab: Lab, panel: Panel) -> None:
    root = lab.folder / ".workbench"
    for at, (lr, value) in enumerate([(0.1, 0.3), (0.01, 0.2), (0.001, 0.4)], 1):
        Record(root, f"000{at}-fit", settings={"lr": lr}, created=1767225600.0 + at).steps(
            20
        ).checked(value).ended(val_loss=value)
    place = {"id": "0001-study", "trial": 3, "seed": 0, "rung": 1, "length": 1 / 3}
    Record(root, "0004-fit", created=1767225605.0, study=place).steps(2).ended(
        "failed", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 4x1)"
    )
    annotate(
        root / "runs" / "0001-fit",
        name="wide net",
        tags=["sgd", "baseline"],
        notes="the first one",
        pinned=True,
    )
    lab.open_notebook(["1"])
    panel.open().shows("0004-fit", "0003-fit", "0002-fit", "0001-fit")
    page = lab.page
    expect(panel.row("0004-fit")).to_contain_text("mat1 and mat2")
    expect(panel.row("0004-fit")).to_contain_text("0001-study trial 3, seed 0, 1/3 fit")
    expect(panel.row("0001-fit")).to_contain_text("wide net")
    expect(panel.row("0001-fit")).to_contain_text("baseline")

    panel.root.get_by_label("Search runs").focus()
    page.keyboard.type("lr=0.01")
    panel.shows("0002-fit")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("nothing of that kind")
    expect(panel.root).to_contain_text("No run matches.")
    page.keyboard.press("Tab")  # through the filters
    button = panel.root.get_by_role("button", name="Show all runs")
    for _ in range(6):
        if button.evaluate("(button) => button === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(panel.root.get_by_label("Search runs")).to_be_focused()
    panel.filter("Folder", lab.folder.name)
    panel.shows("0004-fit", "0003-fit", "0002-fit", "0001-fit")
    panel.filter("Order", "Lowest validation value first")
    panel.shows("0002-fit", "0001-fit", "0003-fit", "0004-fit")
    panel.filter("Status", re.compile(r"failed \(1\)"))
    panel.shows("0004-fit")
    panel.filter("Status", "Any status")
    panel.filter("Tag", "sgd")
    panel.shows("0001-fit")
    panel.filter("Tag", "Any tag")
    panel.filter("Order", "Newest first")
    panel.shows("0004-fit", "0003-fit", "0002-fit", "0001-fit")

    panel.list.focus()
    for key, run in (("ArrowDown", "0004-fit"), ("End", "0001-fit"), ("ArrowUp", "0002-fit")):
        page.keyboard.press(key)
        expect(panel.row(run)).to_be_focused()
        expect(panel.row(run)).to_have_attribute("aria-selected", "true")
    assert (panel.can("open-run"), panel.can("compare-runs")) == (True, False)
    page.keyboard.press("Enter")
    expect(panel.pane("0002-fit")).to_have_count(1)
    page.wait_for_function("() => document.activeElement?.closest('.wb-pane')")
    page.keyboard.press("Alt+Shift+R")
    expect(panel.row("0002-fit")).to_be_focused()
    for key, run, number in (
        ("ArrowUp", "0003-fit", 2),
        ("ArrowUp", "0004-fit", 3),
        ("ArrowDown", "0003-fit", 2),
    ):
        page.keyboard.press(f"Shift+{key}")
        expect(panel.row(run)).to_be_focused()
        expect(panel.root).to_contain_text(f"{number} selected")
    assert (panel.can("open-run"), panel.can("compare-runs")) == (False, True)
    panel.action("Compare").focus()
    page.keyboard.press("Enter")
    expect(panel.pane("Comparison of 2 runs")).to_have_count(1)
    page.wait_for_function("() => document.activeElement?.closest('.wb-pane')")
    page.keyboard.press("Alt+Shift+R")
    expect(panel.row("0003-fit")).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Control+ArrowDown")
    page.keyboard.press(" ")
    expect(panel.root).to_contain_text("2 selected")
    page.keyboard.press(" ")

    page.keyboard.press("ArrowDown")
    expect(panel.row("0002-fit")).to_be_focused()
    page.keyboard.press("F2")
    expect(panel.dialog.get_by_label("Name")).to_be_focused()
    page.keyboard.type("narrow <b>net</b>")
    page.keyboard.press("Tab")
    page.keyboard.type("adam, small")
    page.keyboard.press("Tab")
    page.keyboard.type("half as wide")
    assert lab.violations(".jp-Dialog") == []
    lab.screenshot("runs-panel-edit")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(panel.row("0002-fit")).to_contain_text("narrow <b>net</b>")
    kept = read_annotations(root / "runs" / "0002-fit")
    assert (kept.name, kept.tags, kept.notes) == (
        "narrow <b>net</b>",
        ("adam", "small"),
        "half as wide",
    )

    expect(panel.row("0002-fit")).to_be_focused()
    page.keyboard.press("Shift+F10")
    menu = page.locator(".lm-Menu")
    expect(menu).to_contain_text("Copy the run's id")
    lab.screenshot("runs-panel-menu")
    page.keyboard.press("Escape")
    expect(menu).to_have_count(0)

    expect(panel.row("0002-fit")).to_be_focused()
    page.keyboard.press("Delete")
    panel.shows("0004-fit", "0003-fit", "0001-fit")
    undo = panel.root.get_by_role("button", name="Undo the deletion of 0002-fit")
    expect(undo).to_be_focused()
    lab.screenshot("runs-panel-undo", panel.root)
    assert (root / "runs" / "0002-fit").is_dir()
    page.keyboard.press("Enter")
    panel.shows("0004-fit", "0003-fit", "0002-fit", "0001-fit")
    expect(panel.row("0002-fit")).to_be_focused()
    # its ten seconds are over at once
    page.evaluate(
        "() => { const real = setTimeout;"
        " window.setTimeout = (f, ms, ...all) => real(f, ms === 10000 ? 50 : ms, ...all);"
        " window.unhurried = () => { window.setTimeout = real; delete window.unhurried; }; }"
    )
    page.keyboard.press("Delete")
    expect(undo).to_have_count(0)
    page.evaluate("() => window.unhurried()")
    panel.shows("0004-fit", "0003-fit", "0001-fit")
    expect(panel.row("0001-fit")).to_be_focused()  # the one in its place
    wait_for(lambda: not (root / "runs" / "0002-fit").exists())
    # its pane asks for it once more
    assert all("404" in line for line in lab.complaints), lab.complaints


def test_a_command_is_for_the_run_in_use_and_there_may_be_many(lab: Lab, panel: Panel) -> None:
    root = lab.folder / ".workbench"
    for at in (1, 2):
        Record(root, f"000{at}-fit", created=1767225600.0 + at).steps(20).ended()
    lab.open_notebook(["1"])
    panel.open().shows("0002-fit", "0001-fit")
    panel.row("0001-fit").click()
    panel.row("0002-fit").click()
    expect(panel.pane("0002-fit")).to_have_class(re.compile("lm-mod-current"))

    def edits(run: str) -> None:
        lab.page.evaluate("() => void jupyterapp.commands.execute('tuning-workbench:annotate-run')")
        expect(panel.dialog).to_contain_text(f"Name, tags and notes of {run}")
        lab.page.keyboard.press("Escape")
        expect(panel.dialog).to_have_count(0)

    edits("0002-fit")
    panel.pane("0001-fit").click()
    edits("0001-fit")  # the pane, although another run is selected in the list
    panel.row("0002-fit").press("F2")
    expect(panel.dialog).to_contain_text("Name, tags and notes of 0002-fit")
    annotate(root / "runs" / "0002-fit", tags=["by another"])
    panel.dialog.get_by_label("Name").fill("deep net")
    panel.accept("Save")
    expect(panel.row("0002-fit")).to_contain_text("deep net")
    kept = read_annotations(root / "runs" / "0002-fit")
    assert (kept.name, kept.tags) == ("deep net", ("by another",))
    panel.close("0001-fit")
    panel.close("deep net")
    lab.page.locator('.jp-SideBar [data-id="tuning-workbench-runs"]').click()
    expect(panel.root).to_be_hidden()
    assert not panel.can("annotate-run")  # what is selected is out of sight
    lab.page.evaluate("() => void jupyterapp.commands.execute('tuning-workbench:compare-runs')")
    expect(panel.dialog).to_contain_text("Select at least 2 runs first.")
    panel.accept("Close")
    many_runs_and_a_narrow_panel(lab, panel)
    # the browser tells of the refusal that made the panel merge both
    assert ["412" in line for line in lab.complaints] == [True]


def many_runs_and_a_narrow_panel(lab: Lab, panel: Panel) -> None:
    root = lab.folder / ".workbench"
    for at in range(3, 71):
        tags = (
            {
                "tags": ["a tag with several words", "sgd"],
                "name": "a rather long name that a person gave to it",
            }
            if at == 70
            else {}
        )
        run = (
            Record(
                root,
                f"{at:04d}-fit",
                settings={"lr": at / 1000, "max_epochs": at},
                created=1767225600.0 + at,
            )
            .steps(20)
            .ended()
        )
        if tags:
            annotate(run.path, **tags)  # type: ignore[arg-type]
    panel.open()
    expect(panel.rows).to_have_count(50)
    expect(panel.root).to_contain_text("70 of")
    more = panel.root.get_by_role("button", name="Show 20 more")
    more.focus()
    lab.page.keyboard.press("Enter")
    expect(panel.rows).to_have_count(70)
    expect(more).to_have_count(0)
    panel.row("0070-fit").scroll_into_view_if_needed()
    panel.row("0070-fit").click()
    panel.row("0068-fit").click(modifiers=["Shift"])
    expect(panel.root).to_contain_text("3 selected")
    # JupyterLab's side bar is at least 250 px wide; themes may change that.
    narrow = lab.page.add_style_tag(
        content="#tuning-workbench-runs { min-width: 0 !important; width: 200px !important; }"
    )
    overflowing = "(node) => [...node.querySelectorAll('.wb-side-row, .wb-side-filters, .wb-side-actions')].filter((one) => one.scrollWidth > one.clientWidth).length"
    assert panel.root.evaluate(overflowing) == 0
    lab.screenshot("runs-panel-narrow-light", panel.root)
    lab.theme("dark")
    lab.screenshot("runs-panel-narrow-dark", panel.root)
    lab.theme("light")
    assert lab.violations("#tuning-workbench-runs") == []
    narrow.evaluate("(style) => style.remove()")


@pytest.mark.new_page
def test_no_runs_an_error_and_a_lost_connection(lab: Lab, panel: Panel) -> None:
    state = {"answer": "empty"}
    sockets: list[WebSocketRoute] = []
    empty = {
        "rows": [],
        "matching": 0,
        "total": 0,
        "columns": [],
        "statuses": {},
        "tags": [],
        "roots": [],
        "reading": False,
    }

    def runs(route: Route) -> None:
        if state["answer"] == "empty":
            route.fulfill(json=empty)
        elif state["answer"] == "refused":
            route.fulfill(status=500, body=json.dumps({"message": "the disk <i>is full</i>"}))
        else:
            route.continue_()

    def events(socket: WebSocketRoute) -> None:
        socket.connect_to_server()
        sockets.append(socket)

    lab.page.route(re.compile("workbench/api/runs[?]"), runs)
    lab.route_web_socket(re.compile("workbench/api/events"), events)
    Record(lab.folder / ".workbench", "0001-fit").steps().ended()
    lab.open_notebook(["1"])
    lab.page.locator('.jp-SideBar [data-id="tuning-workbench-runs"]').click()
    expect(panel.root).to_contain_text("No runs yet.")
    lab.screenshot("runs-panel-empty", panel.root)
    state["answer"] = "refused"
    panel.root.get_by_label("Search runs").fill("fit")
    expect(panel.root).to_contain_text("The runs could not be loaded: the disk <i>is full</i>")
    lab.screenshot("runs-panel-error", panel.root)
    state["answer"] = "real"
    panel.root.get_by_role("button", name="Try again").click()
    expect(panel.rows).not_to_have_count(0)
    assert all("500" in line for line in lab.complaints), lab.complaints

    for again in ("Try again", ""):  # by its button, and by itself
        lab.page.evaluate(WATCH, again)
        sockets[-1].close()
        lab.page.wait_for_function("() => window.wasLost")
        expect(panel.root).not_to_contain_text("The connection to the server is lost.")


WATCH = """(again) => {
  const root = document.querySelector('#tuning-workbench-runs');
  window.wasLost = false;
  new MutationObserver((_, observer) => {
    const button = [...root.querySelectorAll('button')].find((button) => button.innerText === again);
    if (!root.innerText.includes('The connection to the server is lost.') || (again && !button)) return;
    observer.disconnect();
    button?.click();
    window.wasLost = true;
  }).observe(root, { subtree: true, childList: true, characterData: true, attributes: true });
}"""
"""Note in the page that the panel says that its connection is lost, and press this button then. A test that looks from outside could miss it: the panel connects again by itself after half a second.
"""


@pytest.mark.new_page
def test_an_hour_of_messages_leaves_nothing_behind(lab: Lab, panel: Panel) -> None:
    sockets: list[WebSocketRoute] = []
    lab.route_web_socket(re.compile("workbench/api/events"), lambda socket: sockets.append(socket))
    Record(lab.folder / ".workbench", "0001-fit").steps(2)
    # The server looks for folders every 5 s at most, and the page gets no message of a folder that it finds later.
    wait_for(
        lambda: any(
            one["name"] == lab.folder.name
            for one in lab.server.get("workbench/api/runs?limit=200")["roots"]
        )
    )
    lab.open_notebook(["1"])
    panel.open().shows("0001-fit")
    page = lab.server.get("workbench/api/runs?limit=200")
    (row,) = [
        row
        for row in page["rows"]
        if row["status"] == "running"
        and row["root"] in [one["key"] for one in page["roots"] if one["name"] == lab.folder.name]
    ]

    steps = itertools.count(2)

    def hear(messages: int) -> None:
        for step in itertools.islice(steps, messages):
            sockets[-1].send(
                json.dumps(
                    {
                        "type": "rows",
                        "rows": [
                            {
                                **row,
                                "step": step,
                                "total": None,
                                "progress": None,
                                "left": "",
                                "spark": [step % 100, 50],
                            }
                        ],
                    }
                )
            )
        expect(panel.row("0001-fit")).to_contain_text(f"{step} updates")
        expect(lab.page.locator("#jp-main-statusbar")).to_contain_text(f"{step} updates")

    hear(200)
    lab.leaks_nothing(lambda: hear(count(1200, 3600)))
