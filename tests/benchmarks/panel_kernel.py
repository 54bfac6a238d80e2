"""The kernel's part of what the live panel costs, with no browser: `python -m tests.benchmarks.panel_kernel`.

A real kernel, a panel whose view has said that it is open, and a client that takes all that is sent. Training with the panel
against the same without, in interleaved rounds. What `tests.benchmarks.panel slowdown` finds beyond this comes of the page,
which draws on the same machine: where two cores share their insides, a busy neighbour slows whatever runs.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[2]
BENCHES = """
import sys, tempfile, json
sys.path.insert(0, {root!r})
from tests.benchmarks.panels import inside
inside.begin({cores!r})
from tests.benchmarks.panels import fits
from workbench.ui.panel import Panel
folder = tempfile.TemporaryDirectory()
shown, unseen = fits.bench(folder.name), fits.bench(folder.name)
panel = Panel(shown)
panel.canvas._heard(panel.canvas, {{"type": "ready"}}, [])
fits.fit(unseen, 300); fits.fit(shown, 300); fits.beside.clear()
"""
ROUNDS = """
found = inside.against(lambda: fits.fit(shown, {steps}, "shown"), lambda: fits.fit(unseen, {steps}, "unseen"), {rounds})
found["beside"] = {{kind: sorted(used)[len(used) // 2] for kind, used in fits.beside.items()}}
fits.beside.clear()
print(json.dumps({{name: value for name, value in found.items() if name != "spans"}}))
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
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    for words, own in (("the kernel has one core", cores[-1:]), ("it has all", cores)):
        os.sched_setaffinity(0, cores[:-1] if len(cores) > 1 and len(own) == 1 else cores)
        manager, client = start_new_kernel(kernel_name="python3")
        try:
            run(client, BENCHES.format(root=str(ROOT), cores=own))
            found = json.loads(run(client, ROUNDS.format(steps=given.steps, rounds=given.rounds)).splitlines()[-1])
        finally:
            client.stop_channels()
            manager.shutdown_kernel()
        beside = ", ".join(f"{kind} {used:.1f}%" for kind, used in found["beside"].items())
        print(f"{words}: an update of {found['update']:.0f} us is slower by {found['slower']:+.1f}% (quartiles {found['from']:+.1f} to "
              f"{found['to']:+.1f}), work {found['more']:+.1f}%; beside the thread that trains: {beside} of a core; "
              f"{found['messages']:.1f} messages a second, the largest {found['largest'] / 1000:.1f} kB", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
