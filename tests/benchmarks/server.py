"""What Jupyter's server spends on runs beside the notebook: `python -m tests.benchmarks.server`.

A server of its own, and records that no fit has written: 1,000 runs of 2,000 updates that have ended, and 3 that a process of
its own writes with ten flushes a second, as a fit does. Goals: the first page of 1,000 runs within a second of the server's
start, less than 2% of a core while pages are open, and a size of the server that does not grow with a live run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from workbench.events import RunEnded, RunStarted, StepsDone, Validated, pack, to_line
from workbench.runs.store import RunFolder
from workbench.settings import Settings

JUPYTER = Path(__file__).parents[2] / "workbench" / "server" / "jupyter"
LIVE, ROWS = 3, 20
"""Live runs, and updates in a flush of theirs: an update of 5 ms, ten flushes a second."""
SECONDS = 20.0


def header(at: int) -> dict[str, Any]:
    settings = Settings.make(lr=10 ** -(1 + at % 4), batch_size=2 ** (3 + at % 5)).model_dump(
        mode="json"
    )
    return {
        "kind": "fit",
        "settings": settings,
        "task": {"model": "Net", "parameters": 12},
        "created": 1.7e9 + at,
        "takes_commands": True,
    }


def flush(at: int, rows: int) -> StepsDone:
    steps = np.arange(at, at + rows)
    columns = {
        "loss": pack(2 / (1 + 0.01 * steps)),
        "lr": pack(0 * steps + 0.1),
        "grad_norm": pack(1 + 0 * steps),
    }
    return StepsDone(at, 1, rows, at // 1000, 0.005 * (at + rows), columns)


def write_runs(root: Path, count: int, updates: int = 2000) -> None:
    """So many runs that have ended."""
    flushes = [flush(at, 250) for at in range(0, updates, 250)]
    checks = [
        Validated(at, at // 1000, {"val_loss": 1 / (1 + at)}) for at in range(500, updates + 1, 500)
    ]
    body = "".join(
        to_line(event) + "\n"
        for event in [
            *flushes,
            *checks,
            RunEnded("finished", updates, 0.005 * updates, None, {"loss": 0.1, "val_loss": 0.2}),
        ]
    )
    for number in range(1, count + 1):
        id = f"{number:05d}-fit"
        facts = header(number)
        with RunFolder.create(root, id, facts) as folder:
            folder.append(RunStarted(id, "fit", facts["settings"], "cpu", (), updates, 2))
        with (folder.path / "metrics.jsonl").open("a") as file:
            file.write(body)


def write_live(root: Path, number: int, rows: int) -> None:
    """Be the process of a live run, until it is ended."""
    id = f"{number:05d}-fit"
    folder = RunFolder.create(root, id, {**header(number), "created": time.time()})
    folder.append(RunStarted(id, "fit", header(number)["settings"], "cpu", (), 10**6, 1000))
    at, due = 0, time.monotonic()
    while True:
        folder.append(flush(at, rows))
        at, due = at + rows, due + 0.1
        time.sleep(max(0.0, due - time.monotonic()))


class Server:
    """A Jupyter server with the extension, on this machine alone."""

    def __init__(self, top: Path) -> None:
        self.token = secrets.token_hex(16)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        env = {
            **os.environ,
            "JUPYTER_CONFIG_PATH": str(JUPYTER),
            "JUPYTER_PATH": str(JUPYTER),
            "JUPYTER_TOKEN": self.token,
        }
        env |= {
            name: str(top / name)
            for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
        }
        options = [
            f"--ServerApp.port={self.port}",
            "--ServerApp.ip=127.0.0.1",
            f"--ServerApp.root_dir={top}",
            "--no-browser",
            "--allow-root",
        ]
        self.log = (top / "server.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *options],
            env=env,
            stdout=self.log,
            stderr=self.log,
        )
        self.seen = psutil.Process(self.process.pid)
        while True:
            try:
                self.get("api/status")
                return
            except OSError:
                assert self.process.poll() is None, (top / "server.log").read_text()
                time.sleep(0.1)

    def get(self, path: str) -> tuple[float, int, Any]:
        """Seconds, bytes and the answer."""
        began = time.perf_counter()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}", headers={"Authorization": f"token {self.token}"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            body = answer.read()
        return time.perf_counter() - began, len(body), json.loads(body)

    async def socket(self, path: str, hear: Any) -> WebSocketClientConnection:
        request = HTTPRequest(
            f"ws://127.0.0.1:{self.port}/{path}", headers={"Authorization": f"token {self.token}"}
        )
        return await websocket_connect(request, on_message_callback=hear)

    def share(self, seconds: float) -> tuple[float, float]:
        """The share of a core that it uses meanwhile, and its MB at the end."""
        began, before = time.monotonic(), self.seen.cpu_times()
        time.sleep(seconds)
        after = self.seen.cpu_times()
        return (after.user + after.system - before.user - before.system) / (
            time.monotonic() - began
        ), self.seen.memory_info().rss / 1e6

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def first_pages(top: Path, count: int) -> Server:
    server = Server(top)
    seconds, size, page = server.get("workbench/api/runs")
    print(
        f"{count} runs: the first page after {seconds:.2f} s, {size / 1000:.0f} kB, {page['total']} runs read, sparklines in {sum(bool(row['spark']) for row in page['rows'])} rows"
    )
    began = time.perf_counter()
    while page["reading"]:
        time.sleep(0.1)
        page = server.get("workbench/api/runs")[2]
    print(
        f"{count} runs: all read after {time.perf_counter() - began:.2f} s more; {server.seen.memory_info().rss / 1e6:.0f} MB"
    )
    for what in ("", "?offset=500", "?sort=time&order=asc", "?search=lr%3D0.1", "?limit=200"):
        seconds, size, page = server.get(f"workbench/api/runs{what}")
        print(
            f"  runs{what}: {seconds * 1000:.0f} ms, {size / 1000:.0f} kB, {page['matching']} match, still reading: {page['reading']}"
        )
    return server


async def watch(server: Server, seconds: float) -> None:
    """The cost of open pages."""
    loop = asyncio.get_running_loop()
    _, _, page = server.get("workbench/api/runs")
    live = [row for row in page["rows"] if row["status"] == "running"]
    assert len(live) == LIVE, [row["status"] for row in page["rows"]]
    sizes: dict[str, list[int]] = {"events": [], "canvas": []}
    print(
        f"no page is open: {(await loop.run_in_executor(None, server.share, seconds))[0]:.2%} of a core"
    )
    opened = [
        await server.socket(
            "workbench/api/events", lambda message: sizes["events"].append(len(message or ""))
        )
    ]
    await asyncio.sleep(2)
    share, mb = await loop.run_in_executor(None, server.share, seconds)
    print(
        f"the list is open: {share:.2%} of a core, {mb:.0f} MB; {len(sizes['events'])} messages, at most {max(sizes['events']) / 1000:.1f} kB"
    )
    names = f"root={live[0]['root']}&run={live[0]['run']}"
    opened.append(
        await server.socket(
            f"workbench/api/canvas?{names}",
            lambda message: sizes["canvas"].append(len(message or b"")),
        )
    )
    await asyncio.sleep(2)
    for _ in range(3):
        share, mb = await loop.run_in_executor(None, server.share, seconds)
        print(
            f"and the plots of one run: {share:.2%} of a core, {mb:.0f} MB; canvas: {len(sizes['canvas'])} messages, at most {max(sizes['canvas']) / 1000:.1f} kB"
        )
    for one in opened:
        one.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of each measurement of the share of a core"
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=ROWS,
        help="updates in a flush of a live run; 2000 for a long run in a short time",
    )
    parser.add_argument("--write-live", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write_live:
        write_live(Path(given.write_live[0]), int(given.write_live[1]), given.rows)
    for count in given.runs:
        with tempfile.TemporaryDirectory() as folder:
            top = Path(folder)
            root = top / "project" / ".workbench"
            write_runs(root, count)
            server = first_pages(top, count)
            server.close()
            if count != given.runs[0]:
                continue
            writers = [
                subprocess.Popen([sys.executable, "-m", "tests.benchmarks.server", "--write-live", str(root), str(count + 1 + i), "--rows", str(given.rows)]) for i in range(LIVE)
            ]  # fmt: skip
            server = Server(top)
            try:
                while len(server.get("workbench/api/runs?status=running")[2]["rows"]) < LIVE:
                    time.sleep(0.2)
                asyncio.run(watch(server, given.seconds))
            finally:
                server.close()
                for one in writers:
                    one.terminate()
                    one.wait()


if __name__ == "__main__":
    main()
