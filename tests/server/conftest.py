"""A Jupyter server with the extension, and run folders without torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_jupyter.jupyter_server import *  # noqa: F403 - its fixtures, and the hooks that run coroutines

from tests.server.records import Record


@pytest.fixture
def jp_server_config():
    """The extension is on, as its file of configuration puts it."""
    return {"ServerApp": {"jpserver_extensions": {"workbench.server": True}}}


@pytest.fixture
def root(jp_root_dir: Path) -> Path:
    """The root of a bench whose notebook is in the server's root folder."""
    return jp_root_dir / ".workbench"


@pytest.fixture
def record(root: Path):
    """Makes records, and closes them at the end."""
    made: list[Record] = []

    def make(id: str, **values) -> Record:
        made.append(Record(values.pop("root", root), id, **values))
        return made[-1]

    yield make
    for one in made:
        one.close()
