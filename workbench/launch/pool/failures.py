"""Finds which of a job's failed ranks is the cause, and writes its error."""

from __future__ import annotations

import re
from collections.abc import Sequence

from workbench.instruments.finite import NonFiniteError
from workbench.instruments.memory import is_out_of_memory
from workbench.launch.module_diff import ModuleDiff
from workbench.launch.pool.supervisor import JobOutcome, RankOutcome
from workbench.launch.process.run_in_child import ChildDied, RemoteTraceback, in_words


class RankTimeout(TimeoutError):
    """The ranks of a job hang; the message has the stack of each."""


_NO_ROOM = re.compile(
    r"(unable to|could not) [^\n]*(/torch_|shared memory|shm)|out of shared memory|killed by signal: Bus|"
    r"multiprocessing/(?:synchronize|heap)\.py[\s\S]*No space left"
)
"""The message of a loader worker, or of its parent, where /dev/shm is full."""
_CRASH = "Fatal Python error"
_FRAMES = 12


def cause(course: JobOutcome) -> BaseException:
    """The error of the job."""
    if course.hung:
        return RankTimeout(f"{course.hung}\n\n{_kept(course)}")
    first = min((fate for fate in course.fates if fate.failed), key=_rank_of_cause)
    world = len(course.fates)
    error = _error_of_dead_rank(first, course) if first.dead else _own(first)
    if world > 1 and not first.dead:
        error.add_note(f"in rank {first.rank} of {world}{_with(first, course.fates)}")
    hint = _hint(error, "" if first.said is None else first.said.traceback)
    if hint:
        error.add_note(hint)
    return error


def _rank_of_cause(fate: RankOutcome) -> tuple[int, float, int]:
    """A rank's own error comes before a death, which may be its consequence, and before errors about a lost partner."""
    if fate.dead:
        kind = 1
    elif fate.follows:
        kind = 3
    else:
        # An error that all ranks raise for what one of them saw.
        kind = 2 if isinstance(fate.value, NonFiniteError) and not getattr(fate.value, "own", True) else 0
    return kind, fate.at if kind == 0 else 0.0, fate.rank


def _own(fate: RankOutcome) -> BaseException:
    error: BaseException = fate.value
    if fate.said is not None and fate.said.traceback:
        error.__cause__ = RemoteTraceback(fate.said.traceback)
    return error


def _error_of_dead_rank(fate: RankOutcome, course: JobOutcome) -> BaseException:
    world = len(course.fates)
    who = f"rank {fate.rank} of {world}" if world > 1 else "the process of the job"
    error = ChildDied(f"{who} died: {fate.lost or in_words(fate.code)}. {_kept(course)}")
    if fate.tail:
        error.add_note(f"the end of what it wrote:\n{_end_of(fate.tail)}")
    return error


def _end_of(tail: str) -> str:
    """The last lines of its output; of a crash Python's message and the thread's stack."""
    _, crash, rest = tail.partition(_CRASH)
    if not crash:
        return "\n".join(tail.splitlines()[-_FRAMES:])
    what, _, threads = rest.partition("\n")
    return "\n".join([crash + what, *(threads[max(0, threads.find("Current thread")) :].splitlines()[:_FRAMES])])


def _kept(course: JobOutcome) -> str:
    if not isinstance(course.left, ModuleDiff):
        return "The model has the weights that it had before; the next job starts new processes."
    return "The model has the weights of its last update; the next job starts new processes."


def _with(first: RankOutcome, fates: Sequence[RankOutcome]) -> str:
    """Whether the other ranks failed alike."""
    same = [f for f in fates if not f.dead and f.failed and (type(f.value), str(f.value)) == (type(first.value), str(first.value))]
    return "" if len(same) < len(fates) else ", and in all others alike"


def _hint(error: BaseException, traceback: str) -> str:
    if _NO_ROOM.search(f"{error}\n{traceback}"):
        return (
            "the shared memory of the system (/dev/shm), through which loader workers hand over batches, is full: give it "
            "more (docker run --shm-size=8g), or take fewer workers, a smaller prefetch_factor, or num_workers=0."
        )
    if is_out_of_memory(error):
        return "each rank holds a model, its gradients and its optimizer of its own: take a smaller batch_size, or fewer devices."
    return ""
