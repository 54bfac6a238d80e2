"""Of the errors that the ranks of a launched job leave, the one that the others came of is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.launch import remains
from workbench.launch.causes import RankTimeout
from workbench.launch.remains import Ended, LaunchError, Process

CLOSED = RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711")


def test_an_own_error_goes_before_those_that_came_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    assert remains.root(folder) is None
    remains.leave(folder, remains.of(Ended("signal 15"), 2, 4))
    remains.leave(folder, remains.of(ValueError("too blue"), 1, 4))
    remains.leave(folder, remains.of(ValueError("too late"), 3, 4))
    found = remains.root(folder, remains.of(CLOSED, 0, 4))
    assert found is not None
    assert (type(found.error), str(found.error), found.where) == (ValueError, "too blue", "in rank 1 of 4")


def test_an_echo_is_told_where_there_is_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remains, "_GRACE", 0.1)
    mine = remains.of(Ended("signal 15"), 0, 1)
    found = remains.root(tmp_path / "launch", mine)
    assert found is mine
    assert isinstance(found.error, LaunchError)
    assert "told to end" in str(found.error)
    assert found.where == "in the launched process"


@pytest.mark.parametrize("said", ["Timed out waiting 5000ms for recv operation to complete", "Application timeout caused pair closure"])
def test_ranks_that_do_not_answer_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setattr(remains, "_GRACE", 0.1)
    folder = tmp_path / "launch"
    mine = remains.of(RuntimeError(said), 0, 3)
    assert mine.waited
    remains.leave(folder, remains.of(Ended("signal 15"), 1, 3))
    found = remains.hung(folder, mine, [Process("another host", os.getpid()), Process("another host", os.getpid())], 5.0)
    assert isinstance(found.error, RankTimeout)
    assert "rank 1 was here:" in str(found.error)
    assert "rank 2 has not answered" in str(found.error)
    assert not found.echo
