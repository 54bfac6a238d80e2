"""The kernel's part of what the live panel costs, with no browser: `python -m tests.benchmarks.panel_kernel`.

A real kernel, a panel whose view has said that it is open, and a client that takes all that is sent. Training with the panel
against the same without, by turns within one fit. What `tests.benchmarks.panel slowdown` finds beyond this comes of the page,
which draws on the same machine: where two cores share their insides, a busy neighbour slows whatever runs.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

from tests.benchmarks.panels import turns

ROOT = Path(__file__).resolve().parents[2]
BENCH = """
import sys, tempfile, json, time
sys.path.insert(0, {root!r})
from tests.benchmarks.panels import inside
inside.begin({cores!r})
from tests.benchmarks.panels import fits, turns
from workbench.ui.panel import Panel
folder = tempfile.TemporaryDirectory()
bench = fits.bench(folder.name, fits.noted_loss)
panel = Panel.of(bench)
panel.canvas._heard(panel.canvas, {{"type": "ready"}}, [])
bench.fit(max_steps=300).result()
"""
ROUNDS = """
found = turns.by_turns(bench, {arms!r}, time.time() + 2)
print(turns.said(turns.compared(found["shown"], found["unseen"])), turns.paid(turns.around(found["shown"])), sep="; ")
"""


def run(client: Any, code: str) -> str:
    """What these lines print in the kernel."""
    printed: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])
        elif message["msg_type"] == "error":
            raise RuntimeError("\n".join(message["content"]["traceback"]))

    client.execute_interactive(code, timeout=3600, output_hook=hear)
    return "".join(printed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    for words, own in (("the kernel has one core", cores[-1:]), ("it has all", cores)):
        os.sched_setaffinity(0, cores[:-1] if len(cores) > 1 and len(own) == 1 else cores)
        manager, client = start_new_kernel(kernel_name="python3")
        try:
            run(client, BENCH.format(root=str(ROOT), cores=own))
            found = run(
                client, ROUNDS.format(arms=turns.order(["shown", "unseen"], given.rounds))
            ).splitlines()[-1]
        finally:
            client.stop_channels()
            manager.shutdown_kernel()
        print(f"{words}: {found}", flush=True)


if __name__ == "__main__":
    main()
