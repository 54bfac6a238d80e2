"""What runs in the notebook's kernel: the load, and a count of what the kernel sends to the page."""

from __future__ import annotations

import gc
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

SHOWN = (
    "comm_msg",
    "comm_open",
    "display_data",
    "update_display_data",
    "clear_output",
    "stream",
    "execute_result",
)
sent: list[tuple[float, int]] = []
"""When each message went to the page, and its bytes."""


def begin(cores: list[int]) -> None:
    """One thread for torch, one core for this process, and from now on every message is counted."""
    torch.set_num_threads(1)
    if cores:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cores)
    count_messages()


def count_messages() -> None:
    """Note the size of each message as it is serialized; nothing is packed twice for that."""
    from IPython import get_ipython

    session = get_ipython().kernel.session  # type: ignore[no-untyped-call, union-attr]
    here = threading.local()
    send, serialize = session.send, session.serialize

    def sending(stream: Any, what: Any, *args: Any, **how: Any) -> Any:
        here.buffers = sum(memoryview(one).nbytes for one in how.get("buffers") or ())
        return send(stream, what, *args, **how)

    def serializing(message: Any, *args: Any, **how: Any) -> Any:
        parts = serialize(message, *args, **how)
        if message["header"]["msg_type"] in SHOWN:
            sent.append((time.time(), sum(map(len, parts)) + getattr(here, "buffers", 0)))
        return parts

    session.send, session.serialize = sending, serializing


def traffic(spans: list[tuple[float, float]]) -> dict[str, float]:
    """What was sent in these spans: messages and bytes a second, and the largest message."""
    sizes = [size for when, size in sent if any(start <= when <= end for start, end in spans)]
    seconds = sum(end - start for start, end in spans)
    return {
        "messages": len(sizes) / seconds,
        "bytes": sum(sizes) / seconds,
        "largest": max(sizes, default=0),
    }


def settled(limit: float = 30.0) -> None:
    """Wait until this process has nothing left to do for what went before."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(0.3)
        if time.process_time() - before < 0.015:
            return


Timed = tuple[float, float, tuple[float, float]]
"""Seconds for an update, processor seconds of the whole process for one, and when (from, to)."""


def timed(work: Callable[[], float | None], updates: int) -> Timed:
    """`work` may say itself what an update took, if it knows better than the clock around it."""
    settled()
    gc.collect()
    used, began = time.process_time(), time.time()
    told = work()
    ended, used = time.time(), time.process_time() - used
    return told or (ended - began) / updates, used / updates, (began, ended)


def against(
    with_it: Callable[[], Timed], without: Callable[[], Timed], rounds: int
) -> dict[str, Any]:
    """Round by round one after the other, the order turned each time."""
    pairs = []
    for i in range(rounds):
        if i % 2:
            b, a = without(), with_it()
        else:
            a, b = with_it(), without()
        pairs.append((a, b))
    return compared(pairs)


def compared(pairs: Sequence[tuple[Timed, Timed]]) -> dict[str, Any]:
    """Of rounds with and without something: the medians of the rounds' ratios."""
    spans = [a[2] for a, _ in pairs]
    slower = sorted(100 * (a[0] / b[0] - 1) for a, b in pairs)
    return {
        "slower": statistics.median(slower),
        "from": slower[len(slower) // 4],
        "to": slower[-1 - len(slower) // 4],
        "more": statistics.median(100 * (a[1] / b[1] - 1) for a, b in pairs),
        "update": 1e6 * statistics.median(b[0] for _, b in pairs),
        "spans": spans,
        **traffic(spans),
    }
