"""Which rank's failure is the error of a job, whatever was known first."""

from __future__ import annotations

import pytest

from workbench.instruments.finite import NonFiniteError
from workbench.launch.pool.failures import cause
from workbench.launch.pool.messages import RankEnded
from workbench.launch.pool.supervisor import JobOutcome, RankOutcome
from workbench.launch.process.run_in_child import ChildDied


def killed(rank: int, at: float) -> RankOutcome:
    return RankOutcome(rank, dead=True, code=-9, at=at)


def raised(rank: int, error: Exception, at: float) -> RankOutcome:
    return RankOutcome(rank, report=RankEnded(failed=True), value=error, at=at)


def seen_by_all() -> NonFiniteError:
    error = NonFiniteError("the sum is not finite")
    error.own = False
    return error


LOST = RuntimeError("Connection closed by peer [127.0.0.1]:4242")


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # it may have died since its partner left
        ([killed(0, 1.0), raised(1, KeyError("own"), 2.0)], KeyError),
        ([raised(0, LOST, 1.0), killed(1, 2.0)], ChildDied),
        ([raised(0, LOST, 1.0), raised(1, KeyError("own"), 2.0)], KeyError),
        ([raised(0, KeyError("later"), 2.0), raised(1, ValueError("first"), 1.0)], ValueError),
        ([raised(0, seen_by_all(), 1.0), raised(1, KeyError("own"), 2.0)], KeyError),
    ],
    ids=[
        "own, death",
        "death, lost partner",
        "own, lost partner",
        "two of their own",
        "own, seen by all",
    ],
)
def test_the_cause(ranks: list[RankOutcome], expected: type[Exception]) -> None:
    assert isinstance(cause(JobOutcome(ranks)), expected)
