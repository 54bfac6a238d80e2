"""Runs a call in a spawned process where fork is not safe (macOS, Windows)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

from workbench.launch.process import child_main
from workbench.launch.process.fork_client import POLL, CallOutcome, Deliver, Stop
from workbench.share.segment import Handle

_GRACE = 5.0


def run(handles: Sequence[Handle], deliver: Deliver, stop: Stop | None, take: Callable[[list[Handle]], Any]) -> CallOutcome:
    """Run one call in a spawned process. `take` attaches to the answer while its sender still lives.

    As always with spawn, a script must guard what it runs with `if __name__ == "__main__":`.
    """
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=child_main.run_spawned, args=(list(handles), theirs))
    end = CallOutcome()
    process.start()
    theirs.close()
    try:
        while end.answer is None:
            if stop is not None and stop():
                end.stopped = True
                break
            try:
                if not pipe.poll(POLL):
                    continue
                what, content = pipe.recv()
            except (EOFError, OSError):
                break
            if what == "reply":
                take(content)
                end.answer = content
                pipe.send("taken")
            else:
                deliver(what, content.encode())
        if end.answer is not None or not end.stopped:
            process.join(_GRACE)
    finally:
        process.kill()
        process.join()
        end.code = process.exitcode
        process.close()
        pipe.close()
    return end
