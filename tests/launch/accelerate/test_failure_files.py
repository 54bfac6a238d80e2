"""Of the errors that the ranks of a launched job leave, the one that the others came of is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.launch.accelerate import failure_files
from workbench.launch.accelerate.failure_files import LaunchError, Process, SigtermReceived
from workbench.launch.pool.failures import RankTimeout

CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711")


def test_an_own_error_goes_before_those_that_came_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    assert failure_files.root_cause(folder) is None
    failure_files.write(folder, failure_files.failure_of(SigtermReceived("signal 15"), 2, 4))
    failure_files.write(folder, failure_files.failure_of(ValueError("too blue"), 1, 4))
    failure_files.write(folder, failure_files.failure_of(ValueError("too late"), 3, 4))
    found = failure_files.root_cause(folder, failure_files.failure_of(CLOSED, 0, 4))
    assert found is not None
    assert (type(found.error), str(found.error), found.where) == (
        ValueError,
        "too blue",
        "in rank 1 of 4",
    )


def test_an_echo_is_told_where_there_is_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_files, "_GRACE", 0.1)
    mine = failure_files.failure_of(SigtermReceived("signal 15"), 0, 1)
    found = failure_files.root_cause(tmp_path / "launch", mine)
    assert found is mine
    assert isinstance(found.error, LaunchError)
    assert "was ended by SIGTERM" in str(found.error)
    assert found.where == "in the launched process"


@pytest.mark.parametrize(
    "said",
    [
        "Timed out waiting 5000ms for recv operation to complete",
        "Application timeout caused pair closure",
    ],
)
def test_ranks_that_do_not_answer_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(failure_files, "_GRACE", 0.1)
    folder = tmp_path / "launch"
    mine = failure_files.failure_of(RuntimeError(said), 0, 3)
    assert mine.waited
    failure_files.write(folder, failure_files.failure_of(SigtermReceived("signal 15"), 1, 3))
    found = failure_files.hang_error(
        folder,
        mine,
        [Process("another host", os.getpid()), Process("another host", os.getpid())],
        5.0,
    )
    assert isinstance(found.error, RankTimeout)
    assert "rank 1 was here:" in str(found.error)
    assert "rank 2 has not answered" in str(found.error)
    assert not found.echo
