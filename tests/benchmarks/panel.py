"""What the live panel costs, in a real browser: `python -m tests.benchmarks.panel [part …]`.

Parts: `slowdown` (training with the panel open against the same without), `drawing` (ten updates a second of 10 lines x 2000
points and a heat map of 50 x 500), `reload` (a page with many panels, loaded again while one trains), `long` (a run of a million updates, opened), `latency` (from the loss to the screen),
`memory` (what page and kernel hold while one trains for `--minutes`) and `peers` (other displays of a training loop). The kernel has a core of its own, and torch one thread; browser and server have
the other cores. "Slower" is by the clock, medians of interleaved rounds, with their quartiles; "work" is by the processor
time of the kernel's process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import Any

from tests.benchmarks.panels import turns
from tests.benchmarks.panels.stage import Watch, ask, renderers, stage
from tests.benchmarks.panels.tape import SOCKET, recorded

PARTS = ("slowdown", "drawing", "reload", "long", "latency", "memory", "peers")
_PAINTS = """() => {
  window.__paints = {};
  const clear = CanvasRenderingContext2D.prototype.clearRect;
  CanvasRenderingContext2D.prototype.clearRect = function (...args) {
    const card = this.canvas.closest && this.canvas.closest('.wb-card');
    const name = card && card.className.split(' ').find((one) => /^wb-(loss|norm|heat)$/.test(one));
    if (name) window.__paints[name] = (window.__paints[name] || 0) + 1;
    return clear.apply(this, args);
  };
}"""
# The time is taken in a task behind the frame that painted the words.
_SEEN = """() => {
  const words = document.querySelector('.wb-panel .wb-words');
  window.__seen = [];
  new MutationObserver(() => {
    const behind = new MessageChannel();
    const done = parseInt(words.textContent, 10);
    behind.port1.onmessage = () => window.__seen.push([done, Date.now() / 1000]);
    behind.port2.postMessage(0);
  }).observe(words, { childList: true, characterData: true, subtree: true });
}"""


def table_row(name: str, found: dict[str, Any], browser: float) -> None:
    if "missing" in found:
        print(f"{name:<42} {found['missing']}")
        return
    spread = f"({found['from']:+.1f} to {found['to']:+.1f})"
    print(f"{name:<42} {found['slower']:+7.1f}% {spread:>18} {found['more']:+7.1f}% {browser:8.0f}% "
          f"{found['messages']:8.1f} {found['bytes'] / 1000:9.1f} {found['largest'] / 1000:9.1f}")  # fmt: skip


def heading() -> None:
    print(
        f"{'':<42} {'slower':>8} {'quartiles':>18} {'work':>8} {'browser':>9} {'msg/s':>8} {'kB/s':>9} {'largest':>9}"
    )


def slowdown(rounds: int) -> None:
    """Three kinds of turns within one fit: shown, as without a panel, and as without one while the page draws what it drew of a
    fit that was shown: on a machine whose cores share more than memory, a page that draws slows whatever runs."""
    cells = [
        "from tests.benchmarks.panels import fits, turns\nimport tempfile\nbench = fits.bench(tempfile.mkdtemp(), fits.noted_loss)",
        "bench",
    ]
    arms = turns.order(["shown", "quiet", "drawing"], rounds)
    with stage(cells, script=SOCKET) as lab:
        with recorded(lab.page):
            lab.execute("bench.fit(max_steps=2000).result()")
        watch, began = Watch(), time.time() + 5
        plan = [[arm == "drawing" for arm in arms], 1000 * began, 1000 * turns.SECONDS]
        lab.page.evaluate("(plan) => __tape.playIn(...plan)", plan)
        lab.execute(
            f"found = turns.by_turns(bench, {arms!r}, {began!r})",
            60 + 2 * turns.SECONDS * len(arms),
        )
        for words, other in (("the panel", "quiet"), ("the same page drawing in both", "drawing")):
            found = ask(lab, f"turns.compared(found['shown'], found[{other!r}])")
            table_row(words, found, watch.share(found["spans"]))
            print(turns.said(found))
        print(turns.paid(ask(lab, "turns.around(found['shown'])")))
        spans = ask(lab, "{arm: [turn.span for turn in of if turn] for arm, of in found.items()}")
        print("page: " + ", ".join(f"{arm} {watch.share(of):.0f}%" for arm, of in spans.items()))
        watch.close()
        lab.screenshot("benchmark-slowdown")


def drawing(seconds: float) -> None:
    cells = ["from tests.benchmarks.panels import load\nfrom tests.ui.fakes import FakeBench\nbench = FakeBench()\n"
             "panel = load.largest_panel(bench)", "panel"]  # fmt: skip
    with stage(cells) as lab:
        lab.page.locator(".wb-heat canvas").wait_for()
        lab.execute("panel.dispatcher.drain(); inside.settled()")
        lab.page.evaluate(_PAINTS)
        watch = Watch()
        idle = ask(lab, "(lambda t, u: (__import__('time').sleep(5), [t, __import__('time').time(), __import__('time').process_time() - u])[1])"
                        "(__import__('time').time(), __import__('time').process_time())")  # fmt: skip
        lab.page.evaluate("() => { window.__paints = {}; }")
        began, ended, used = ask(lab, f"load.go(bench, {seconds})")
        paints = lab.page.evaluate("() => window.__paints")
        found = ask(lab, f"inside.traffic([({began}, {ended})])")
        lab.page.wait_for_timeout(600)
        took = ended - began
        print(f"kernel {100 * used / took:.1f}% of a core (idle {100 * idle[2] / (idle[1] - idle[0]):.1f}%), "
              f"page {watch.share([(began, ended)]):.0f}% (idle {watch.share([idle[:2]]):.0f}%)")  # fmt: skip
        print(
            "paints a second: "
            + ", ".join(f"{name[3:]} {count / took:.1f}" for name, count in sorted(paints.items()))
        )
        print(
            f"{found['messages']:.1f} messages a second, {found['bytes'] / 1000:.0f} kB/s, the largest {found['largest'] / 1000:.1f} kB"
        )
        watch.close()
        lab.screenshot("benchmark-drawing")


_BACK = """(many) => {
  const titles = [...document.querySelectorAll('.wb-panel .wb-title b')].filter((title) => title.textContent);
  return titles.length === many && document.querySelector('.wb-panel .wb-loss .wb-key')?.textContent.includes('smoothed');
}"""


def reload(many: int) -> None:
    """A cell that shows `many` benches, of which the last one trains: how long after its notebook is there all panels are.

    Without the tables that stay: JupyterLab shows 50 outputs of a cell.
    """
    cells = [
        "from tests.benchmarks.panels import fits\nimport tempfile\nfrom ipywidgets.widgets.widget import _instances\n"
        f"benches = [fits.bench(tempfile.mkdtemp(), fits.noted_loss) for _ in range({many})]",
        "before = len(_instances)\nfor bench in benches[::-1]:\n    display(bench._display_())",
    ]
    with stage(cells) as lab:
        lab.page.wait_for_function(
            "(many) => document.querySelectorAll('.wb-panel').length === many", arg=many
        )
        models = ask(lab, "(len(_instances) - before) / len(benches)")
        lab.save()
        lab.execute("job = benches[-1].fit(max_steps=10**9)")
        took = []
        for _ in range(3):
            began = time.monotonic()
            lab.page.reload(wait_until="domcontentloaded")
            lab.page.locator(".jp-NotebookPanel .jp-Cell .cm-content").first.wait_for()
            there = time.monotonic()
            lab.page.wait_for_function(_BACK, arg=many, polling=20)
            took.append((there - began, time.monotonic() - there))
        lab.screenshot(f"benchmark-reload-{many}")
    page, panels = (statistics.median(one[i] for one in took) for i in (0, 1))
    print(
        f"{many} panels of {models:.0f} models: the notebook is there {page:.1f} s after the page is asked for, "
        f"all panels {panels:.1f} s later"
    )


def long_runs() -> None:
    with tempfile.TemporaryDirectory() as root:
        cells = [
            f"from pathlib import Path\nfrom tests.benchmarks.panels import fits, load\nbench = fits.bench({root!r})",
            "bench",
        ]
        with stage(cells) as lab:
            model = "(bench.summary.name, bench.summary.parameters)"
            for updates in (100_000, 1_000_000):
                lab.execute(f"load.write_run(Path({root!r}), {updates}, {model})", 300)
            lab.page.wait_for_timeout(500)
            for updates in (100_000, 1_000_000, 100_000, 1_000_000):
                lab.execute("inside.settled()")
                before = ask(lab, "__import__('psutil').Process().memory_info().rss")
                lab.page.evaluate("() => { window.__due = undefined; }")
                lab.page.evaluate(
                    "(end) => { const look = () => { const words = document.querySelector('.wb-panel .wb-words').textContent;"
                    " const done = document.querySelector('.wb-progress').dataset.status === 'finished';"
                    " const there = parseInt(words, 10) === end && done && document.querySelector('.wb-loss canvas');"
                    " if (there) window.__due = Date.now() / 1000; else requestAnimationFrame(look); }; look(); }", updates,
                )  # fmt: skip
                began = ask(lab, f"(__import__('time').time(), bench.show('{updates}-fit'))[0]")
                lab.page.wait_for_function("() => window.__due", timeout=60_000)
                took = lab.page.evaluate("() => window.__due") - began
                lab.execute("inside.settled(); import gc; gc.collect()")
                after = ask(lab, "__import__('psutil').Process().memory_info().rss")
                heap = lab.page.evaluate(
                    "() => { if (window.gc) gc(); return performance.memory.usedJSHeapSize; }"
                )
                print(
                    f"{updates:>9} updates: drawn after {took:.2f} s, kernel {(after - before) / 1e6:+.0f} MB, page {heap / 1e6:.0f} MB"
                )
                lab.execute("bench.show()")
            lab.screenshot("benchmark-long")


def latency(steps: int) -> None:
    cells = ["from tests.benchmarks.panels import fits\nimport tempfile\nroot = tempfile.mkdtemp()\n"
             "bench = fits.bench(root, LOSS)", "bench"]  # fmt: skip
    for words, loss in (
        ("waits most of the time", "fits.slow_loss"),
        ("works all the time", "fits.heavy_loss"),
    ):
        with stage([cells[0].replace("LOSS", loss), cells[1]]) as lab:
            lab.page.locator(".wb-panel .wb-words").wait_for()
            lab.page.evaluate(_SEEN)
            noted = ask(lab, f"fits.followed(bench, {steps})")
            lab.page.wait_for_timeout(1000)
            seen = lab.page.evaluate("() => window.__seen")
        first = [
            min((when for done, when in seen if done >= i), default=float("inf"))
            for i in range(1, steps + 1)
        ]
        # the last waits for the end of the run
        waits = sorted(1000 * (shown - known) for shown, known in zip(first, noted, strict=True))[
            :-1
        ]
        p95 = waits[int(0.95 * len(waits))]
        print(f"from the loss to the screen, where the kernel {words}: median {statistics.median(waits):.0f} ms, p95 {p95:.0f} ms, "
              f"of {len(waits)} updates at 10 a second")  # fmt: skip


def memory(minutes: float) -> None:
    """Ten updates a second with validations; each look is behind a collection of garbage."""
    cells = [
        "from tests.benchmarks.panels import fits\nimport tempfile\n"
        "bench = fits.bench(tempfile.mkdtemp(), fits.slow_loss, val=fits.data(), val_check_interval=100)",
        "bench",
    ]
    with stage(cells) as lab:
        lab.page.locator(".wb-panel .wb-words").wait_for()
        lab.execute("job = bench.fit(max_steps=10**9)")
        lab.page.locator(".wb-loss canvas").wait_for()
        began, looks = time.monotonic(), 6
        for look in range(looks + 1):
            due = began + 60 + look * 60 * minutes / looks
            lab.page.wait_for_timeout(1000 * max(0.0, due - time.monotonic()))
            heap, nodes = lab.page.evaluate(
                "() => { if (window.gc) gc();"
                " return [performance.memory.usedJSHeapSize, document.querySelectorAll('*').length]; }"
            )
            kernel, steps = ask(
                lab,
                "(__import__('gc').collect(), [__import__('psutil').Process().memory_info().rss, len(fits.noted)])[1]",
            )
            page = sum(process.memory_info().rss for process in renderers())
            print(
                f"{(time.monotonic() - began) / 60:5.0f} min, {steps:>6} updates: page {heap / 1e6:.0f} MB of objects in"
                f" {nodes} elements, its processes {page / 1e6:.0f} MB, kernel {kernel / 1e6:.0f} MB",
                flush=True,
            )
        lab.screenshot("benchmark-memory")


def peers(rounds: int, steps: int, packages: str | None) -> None:
    calls = [f"peers.plotly(1, {rounds}, {steps})", f"peers.plotly(10, {rounds}, {steps})",
             f"peers.fastprogress({rounds}, {steps})", f"peers.lightning({rounds}, {steps})"]  # fmt: skip
    path = f"sys.path.append({packages!r})\n" if packages else ""
    with stage([f"{path}from tests.benchmarks.panels import peers", *["pass"] * len(calls)]) as lab:
        for i, call in enumerate(calls):
            watch = Watch()
            lab.page.evaluate(
                "([i, code]) => __lab.panel().content.widgets[i].model.sharedModel.setSource(code)",
                [i + 2, call],
            )
            lab.run_cell(i + 2, 500)
            name, found = json.loads(json.dumps(ask(lab, "list(peers.results.items())[-1]")))
            table_row(name, found, watch.share(found["spans"]) if "spans" in found else 0.0)
            watch.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="part")
    parser.add_argument(
        "--rounds",
        type=int,
        default=12,
        help="of slowdown ten times as many, of peers half as many",
    )
    parser.add_argument("--steps", type=int, default=2000, help="updates of each loop of peers")
    parser.add_argument("--minutes", type=float, default=60, help="how long memory looks")
    parser.add_argument(
        "--packages",
        help="a folder with fastprogress, which fastai draws with (pip install --target)",
    )
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"{', '.join(unknown)}: the parts are {', '.join(PARTS)}")
    if {"slowdown", "peers"} & set(given.parts):
        heading()
    for part in PARTS:
        if part not in given.parts:
            continue
        match part:
            case "slowdown":
                slowdown(10 * given.rounds)
            case "drawing":
                drawing(20.0)
            case "reload":
                for many in (1, 8, 20):
                    reload(many)
            case "long":
                long_runs()
            case "latency":
                latency(100)
            case "memory":
                memory(given.minutes)
            case "peers":
                peers(max(2, given.rounds // 2), given.steps, given.packages)


if __name__ == "__main__":
    main()
