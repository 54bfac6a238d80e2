"""In the kernel: one long fit that the panel hears of by turns.

Whole fits one after the other differ by more than a panel costs, since a machine's speed drifts from second to second. Turns of
a second and a half within one fit share that drift. Closer still are the updates right behind a message to those before the
next one: what the messages cost shows there, and nothing that changes more slowly.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from tests.benchmarks.panels import fits, inside
from workbench.events import BenchEvent, StepsDone
from workbench.ui.panel import Panel

SECONDS = 1.5
"""One turn."""
LEAD = 0.4
"""Of which so much is not counted: what the turn before has left behind is drawn in it."""
NEAR, FAR = 0.05, 0.095
"""Seconds behind a message in which updates pay for it, and until which they show what an update takes without: then the engine
flushes."""
Marks = list[tuple[float, float, int, float, float]]


class Turn(NamedTuple):
    """What was measured in one turn."""

    update: float
    """Seconds for an update."""
    work: float
    """Processor seconds of the whole process for one."""
    span: tuple[float, float]
    beside: float
    """Percent of a core that all threads used but the one that trains."""


def order(arms: Sequence[str], rounds: int) -> list[str]:
    """Each round has all arms, in another order."""
    orders = list(permutations(arms))
    return [arm for i in range(rounds) for arm in orders[i % len(orders)]]


def by_turns(
    bench: Any, arms: Sequence[str], began: float, shown: str = "shown"
) -> dict[str, list[Turn | None]]:
    """A fit whose panel hears of its updates in the turns called `shown` alone. The first turn begins at `began`, by the clock.

    A turn in which the machine stood still has no measure: None.
    """
    panel, marks = Panel.of(bench), Marks()
    trains: list[int] = []

    def hear(event: BenchEvent) -> None:
        at = int((time.time() - began) // SECONDS)
        if isinstance(event, StepsDone):
            marks.append(
                (
                    time.time(),
                    event.seconds,
                    event.step + event.rows,
                    time.process_time(),
                    time.clock_gettime(trains[0]),
                )
            )
            if not (0 <= at < len(arms) and arms[at] == shown):
                return
        panel.dispatcher.put(event)

    panel._unsubscribe()
    job = bench.fit(max_steps=100_000_000)
    while job.status != "running":
        time.sleep(0.01)
    trains.append(
        [_clock(thread) for thread in threading.enumerate() if thread.name == "workbench-runner"][
            -1
        ]
    )
    panel._unsubscribe = bench.subscribe(hear)
    time.sleep(max(0.0, began + SECONDS * len(arms) - time.time()))
    job.stop()
    job._ended.wait()
    found: dict[str, list[Turn | None]] = {arm: [] for arm in arms}
    for i, arm in enumerate(arms):
        found[arm].append(_turn(marks, began + i * SECONDS + LEAD, began + (i + 1) * SECONDS))
    return found


def _clock(thread: threading.Thread) -> int:
    assert thread.ident is not None
    return time.pthread_getcpuclockid(thread.ident)


def _turn(marks: Marks, start: float, end: float) -> Turn | None:
    within = [mark for mark in marks if start <= mark[0] < end]
    if len(within) < 2:
        return None
    (when, seconds, step, process, own), last = within[0], within[-1]
    updates, used = last[2] - step, last[3] - process
    beside = 100 * (used - (last[4] - own)) / (last[0] - when)
    return Turn((last[1] - seconds) / updates, used / updates, (when, last[0]), beside)


def compared(a: Sequence[Turn | None], b: Sequence[Turn | None]) -> dict[str, Any]:
    """The first against the second, round by round."""
    rounds = [
        (one, other)
        for one, other in zip(a, b, strict=True)
        if one is not None and other is not None
    ]
    found = inside.compared([(one[:3], other[:3]) for one, other in rounds])
    # of a median, 95% (McGill, Tukey & Larsen 1978)
    within = 1.57 * (found["to"] - found["from"]) / len(rounds) ** 0.5
    beside = [statistics.mean(turn.beside for turn in turns) for turns in zip(*rounds, strict=True)]
    return {**found, "within": within, "beside": beside}


def around(turns: Sequence[Turn | None]) -> dict[str, float]:
    """What the messages cost in these turns: percent of the training time, milliseconds each, and within how many percent (95%)."""
    ended, sends = np.array(fits.noted), np.array([when for when, _ in inside.sent])
    took, ended = np.diff(ended), ended[1:]
    took = np.minimum(took, np.percentile(took, 99.5))  # what the machine lost elsewhere
    within = np.zeros(len(took), bool)
    for turn in turns:
        if turn is not None:
            within |= (ended - took >= turn.span[0]) & (ended <= turn.span[1])
    at = np.searchsorted(sends, ended) - 1
    behind = np.where(at >= 0, ended - sends[np.maximum(at, 0)], np.inf)
    paying, free = took[within & (behind < NEAR)], took[within & (behind >= NEAR) & (behind < FAR)]
    messages = len(np.unique(at[within]))
    cost, spread = (
        (paying - free.mean()).sum(),
        1.96 * paying.std() * len(paying) ** 0.5 * (1 + len(paying) / len(free)) ** 0.5,
    )
    trained = took[within].sum() - cost
    return {
        "percent": 100 * cost / trained,
        "each": 1000 * cost / messages,
        "within": 100 * spread / trained,
    }


def said(found: dict[str, Any]) -> str:
    """What `compared` found, in words."""
    with_it, without = found["beside"]
    return (
        f"an update of {found['update']:.0f} us is slower by {found['slower']:+.1f}% (within {found['within']:.1f}), "
        f"work {found['more']:+.1f}%; beside the thread that trains: {with_it:.1f}% of a core against {without:.1f}%; "
        f"{found['messages']:.1f} messages a second, the largest {found['largest'] / 1000:.1f} kB"
    )


def paid(found: dict[str, float]) -> str:
    """What `around` found, in words."""
    return f"around a message updates take {found['each']:.1f} ms longer in all: {found['percent']:.1f}% (within {found['within']:.1f})"
