"""Secrets in the text of an error: nothing that is written or sent anywhere holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import GeneralTracker
from click.testing import CliRunner

from tests.attacks.strangers import bench
from workbench.cli import main
from workbench.launch.accelerate import failure_files
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")
KEYS = ("sk-proj-abcdefghijklmnop1234", "hf_AbCdEfGhIjKlMnOpQrSt", "hunter2secret")
SAID = f"refused: Bearer {KEYS[0]}, HF_TOKEN={KEYS[1]}, db_password={KEYS[2]}"


class Listed(GeneralTracker):
    """Keeps what it is sent."""

    name = "listed"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []

    @property
    def tracker(self) -> None:
        return None

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.sent.append(values)

    def log(self, values: dict[str, Any], step: int | None = None, **more: Any) -> None:
        self.sent.append(values)


def refused(outputs: object, targets: object) -> None:
    raise PermissionError(SAID)


def test_an_error_s_text_reaches_no_file_and_no_tracker(tmp_path: Path) -> None:
    tracker = Listed()

    def failing(event: object) -> None:
        raise ValueError(SAID)

    made = bench(tmp_path, trackers=[tracker], listeners=[failing], loss=refused, dry_run=False)
    with made:
        job = made.fit()
        with pytest.raises(PermissionError, match=KEYS[0]):  # the error itself is the user's own
            job.result()
    run = Run.open(job.folder.path)
    shown = CliRunner().invoke(main, ["runs", "show", run.id, "--root", str(tmp_path)]).output
    assert "PermissionError: refused: …" in shown
    texts = [str(event) for event in job.events] + [
        shown,
        repr(run),
        run._repr_html_(),
        repr(tracker.sent),
    ]
    texts += [
        path.read_text(errors="replace") for path in job.folder.path.rglob("*") if path.is_file()
    ]
    for key in KEYS:
        assert not [text for text in texts if key in text]


def test_a_rank_s_traceback_holds_none(tmp_path: Path) -> None:
    failure = failure_files.failure_of(PermissionError(SAID), 1, 2)
    assert "PermissionError" in failure.text
    assert not [key for key in KEYS if key in failure.text]
