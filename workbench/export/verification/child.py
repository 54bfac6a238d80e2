"""Runs a script for its first updates, in the process that `verify.py` starts for it.

    python child.py PLAN OUTCOME SCRIPT OPTIONS…

PLAN is JSON: see `Plan` in `verify.py`. It ends the whole process group when the log has the rows
that the plan asks for, when the time is up, or when the process that asked for it has ended.
OUTCOME is the file that says how the script ended; there is none where the log has all rows.
"""

from __future__ import annotations

import glob
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any


def main(plan: Mapping[str, Any], outcome: str, script: str) -> None:
    """Run the script as `python SCRIPT OPTIONS…` would."""
    sys.argv = sys.argv[3:]
    sys.path[0] = os.path.dirname(script)
    start_others(plan["ranks"])
    threading.Thread(target=watch, args=(plan, outcome), daemon=True).start()
    end: dict[str, Any] = {"ended": True}
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:  # noqa: BLE001 - the other process tells the user
        if not isinstance(error, SystemExit) or error.code not in (0, None):
            end = description(error, script)
            traceback.print_exc()
    end_group(outcome, end)


def start_others(ranks: int) -> None:
    """Become the first of so many processes of the script, and start the others, as torchrun does.
    They end with the process group.
    """
    if ranks == 1:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    for rank in range(1, ranks):
        environment = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        subprocess.Popen([sys.executable, *sys.argv], env=environment)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0"}


def description(error: BaseException, script: str) -> dict[str, Any]:
    """The error in words, the line of the script that raised it, the file that it did not find."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if frame.filename == script]
    message = next(iter(str(error).strip().splitlines()), "")
    if not (isinstance(error, SystemExit) and isinstance(error.code, str)):
        message = ": ".join(filter(None, [type(error).__name__, message]))
    missing = error.filename if isinstance(error, FileNotFoundError) else None
    return {
        "error": message,
        "line": lines[-1].lineno if lines else None,
        "code": lines[-1].line if lines else None,
        "missing": missing if isinstance(missing, str) else None,
    }


def watch(plan: Mapping[str, Any], outcome: str) -> None:
    """End the processes when the plan is done, and at the latest when its time is up."""
    began, first, reached = time.monotonic(), None, None
    late: dict[str, Any] = {"late": True}
    while is_alive(plan["asker"]):
        rows = rows_of(plan["log"])
        now = time.monotonic()
        steps = [row["step"] for row in rows if "loss" in row]
        if steps and first is None:
            first = now
        if steps and steps[-1] >= plan["last"] and reached is None:
            reached = now
        validated = not plan["validates"] or len(steps) < len(rows)
        if reached is not None and (validated or now - reached > plan["until_validation"]):
            end_group()
        if first is not None and now - first > plan["until_last"]:
            end_group(outcome, late)
        if first is None and now - began > plan["until_first"]:
            end_group(outcome, late)
        time.sleep(0.05)
    end_group()


def rows_of(log: str) -> list[dict[str, Any]]:
    """The complete lines of the log; none before it is there.

    log: a script's file, or the folder of runs of a headless script, whose rows have no values:
    this process may be importing what reads them.
    """
    if not os.path.isdir(log):
        return lines_of(log)
    records = sorted(glob.glob(os.path.join(glob.escape(log), "*", "metrics.jsonl")))
    rows: list[dict[str, Any]] = []
    for event in (event for record in records for event in lines_of(record)):
        if event["type"] == "StepsDone":
            rows.append(
                {"step": event["step"] + event["every"] * (event["rows"] - 1), "loss": None}
            )
        elif event["type"] == "Validated":
            rows.append({"step": event["step"]})
    return rows


def lines_of(log: str) -> list[dict[str, Any]]:
    """The complete lines of a file; none before it is there."""
    try:
        with open(log, "rb") as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def is_alive(process: int) -> bool:
    """Whether the process that waits for the outcome still runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def end_group(outcome: str | None = None, end: Mapping[str, Any] | None = None) -> None:
    """End this process and all that it started; write first how the script ended, if given."""
    if outcome is not None:
        with open(f"{outcome}.part", "w", encoding="utf-8") as file:
            json.dump(end, file)
        os.replace(f"{outcome}.part", outcome)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], sys.argv[3])
