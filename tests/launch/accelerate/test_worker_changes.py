"""Changes that come as files, from anybody who may write to the folder: what no run can obey is refused in words."""

from __future__ import annotations

import pytest

from workbench.commands import Change, Checkpoint, Pause, Validate
from workbench.launch.accelerate.worker import _refused
from workbench.settings import Settings


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"lr": True}, "a change was left out: lr=True: input should be a number."),
        ({"lr": -1.0}, "a change was left out: lr=-1.0"),
        ({"batch_size": 8}, "a change was left out: batch_size cannot change while a run is running."),
        ({"accumulate_grad_batches": 2.5}, "a change was left out: accumulate_grad_batches=2.5: should be a number of batches"),
    ],
)
def test_what_cannot_be_obeyed(values: dict[str, float | None], why: str) -> None:
    told = _refused(Change(values), Settings())
    assert told is not None
    assert told.startswith(why)


@pytest.mark.parametrize(
    "command",
    [Pause(), Validate(), Checkpoint(), Change({"lr": 0.5, "track_update_ratio": True}), Change({"accumulate_grad_batches": 4})],
)
def test_what_can(command: Change | Pause | Validate | Checkpoint) -> None:
    assert _refused(command, Settings(accumulate_grad_batches=2)) is None
