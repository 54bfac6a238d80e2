"""Finds which of a job's failed ranks is the cause, and makes the error that is raised."""

from __future__ import annotations

import re
from collections.abc import Sequence

from workbench.instruments.finite import NonFiniteError
from workbench.instruments.memory import is_out_of_memory
from workbench.launch.module_diff import ModuleDiff
from workbench.launch.pool.supervisor import JobOutcome, RankOutcome
from workbench.launch.process.run_in_child import ChildDied, RemoteTraceback, in_words


class RankTimeout(TimeoutError):
    """The ranks of a job hang; the message contains the stack of each."""


_NO_ROOM = re.compile(
    r"(unable to|could not) [^\n]{0,1000}(/torch_|shared memory|shm)|out of shared memory|killed by"
    r" signal: Bus|"
    r"multiprocessing/(?:synchronize|heap)\.py[\s\S]{0,10000}?No space left"
)
"""The message of a loader worker, or of its parent, where /dev/shm is full."""
_CRASH = "Fatal Python error"
_FRAMES = 12


def cause(outcome: JobOutcome) -> BaseException:
    """The error that ended the job."""
    if outcome.hung:
        return RankTimeout(f"{outcome.hung}\n\n{_kept(outcome)}")
    first = min(
        (rank_outcome for rank_outcome in outcome.ranks if rank_outcome.failed), key=_rank_of_cause
    )
    world = len(outcome.ranks)
    error = _error_of_dead_rank(first, outcome) if first.dead else _own(first)
    if world > 1 and not first.dead:
        error.add_note(f"in rank {first.rank} of {world}{_with(first, outcome.ranks)}")
    hint = _hint(error, "" if first.report is None else first.report.traceback)
    if hint:
        error.add_note(hint)
    return error


def _rank_of_cause(rank_outcome: RankOutcome) -> tuple[int, float, int]:
    """The order of the ranks as the cause: those with an error of their own; then those that died,
    which may be a consequence; then those with errors about a lost partner.
    """
    if rank_outcome.dead:
        kind = 1
    elif rank_outcome.follows:
        kind = 3
    else:
        # Not "own": another rank found the values, and this one raises the same error.
        kind = (
            2
            if isinstance(rank_outcome.value, NonFiniteError)
            and not getattr(rank_outcome.value, "own", True)
            else 0
        )
    return kind, rank_outcome.at if kind == 0 else 0.0, rank_outcome.rank


def _own(rank_outcome: RankOutcome) -> BaseException:
    error: BaseException = rank_outcome.value
    if rank_outcome.report is not None and rank_outcome.report.traceback:
        error.__cause__ = RemoteTraceback(rank_outcome.report.traceback)
    return error


def _error_of_dead_rank(rank_outcome: RankOutcome, outcome: JobOutcome) -> BaseException:
    world = len(outcome.ranks)
    who = f"rank {rank_outcome.rank} of {world}" if world > 1 else "the process of the job"
    error = ChildDied(
        f"{who} died: {rank_outcome.lost or in_words(rank_outcome.code)}. {_kept(outcome)}"
    )
    if rank_outcome.tail:
        error.add_note(f"the end of what it wrote:\n{_end_of(rank_outcome.tail)}")
    return error


def _end_of(tail: str) -> str:
    """The last lines of a rank's output; after a crash, Python's message and the thread's stack."""
    _, crash, rest = tail.partition(_CRASH)
    if not crash:
        return "\n".join(tail.splitlines()[-_FRAMES:])
    reason, _, threads = rest.partition("\n")
    return "\n".join(
        [
            crash + reason,
            *(threads[max(0, threads.find("Current thread")) :].splitlines()[:_FRAMES]),
        ]
    )


def _kept(outcome: JobOutcome) -> str:
    if not isinstance(outcome.left, ModuleDiff):
        return "The model has the weights that it had before; the next job starts new processes."
    return "The model has the weights of its last update; the next job starts new processes."


def _with(first: RankOutcome, outcomes: Sequence[RankOutcome]) -> str:
    """Text for the case that all other ranks failed with the same error; else ""."""
    same = [
        f
        for f in outcomes
        if not f.dead
        and f.failed
        and (type(f.value), str(f.value)) == (type(first.value), str(first.value))
    ]
    return "" if len(same) < len(outcomes) else ", and in all others alike"


def _hint(error: BaseException, traceback: str) -> str:
    if _NO_ROOM.search(f"{error}\n{traceback}"):
        return (
            "the shared memory of the system (/dev/shm), through which loader workers hand over"
            " batches, is full: give it more (docker run --shm-size=8g), or take fewer workers, a"
            " smaller prefetch_factor, or num_workers=0."
        )
    if is_out_of_memory(error):
        return (
            "each rank holds a model, its gradients and its optimizer of its own: take a smaller"
            " batch_size, or fewer devices."
        )
    return ""
