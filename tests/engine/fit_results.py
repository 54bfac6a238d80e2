"""A fit as one rank takes it, or the only process: what tests of several ranks compare."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from workbench.commands import Command, Mailbox
from workbench.engine.dry_run.dry_run import dry_run
from workbench.events import Changed, Event, Message, StepsDone, Validated
from workbench.launch.assignments import FitAssignment
from workbench.settings import Settings
from workbench.task.device.dtensor import whole
from workbench.task.factory import task_of


class Heard(list[Event]):
    """An outlet that keeps what comes; at the first numbers `commands` are put into `inbox`."""

    def __init__(self, inbox: Mailbox | None = None, commands: Sequence[Command] = ()) -> None:
        super().__init__()
        self._inbox, self._commands = inbox, commands

    def __call__(self, event: Event) -> None:
        self.append(event)
        if isinstance(event, StepsDone) and self._inbox is not None:
            for command in self._commands:
                self._inbox.put(command)
            self._inbox = None

    def settle(self, seconds: float = 3.0) -> None:
        """All of it is here."""


def fit(
    model: Any, given: dict[str, Any], settings: dict[str, Any], commands: Sequence[Command] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What came of a fit: losses, norms, checks, messages, weights. `commands`: come to it once it has begun.

    environment: what a launcher has set for the fit, and not for what comes before it.
    """
    torch.set_num_threads(1)
    usual = dict.fromkeys(("train", "val", "test", "loss", "scheduler", "metrics", "collate_fn"))
    given = {**usual, "optimizer": torch.optim.AdamW, **given}
    task, chosen = task_of(model, **given), Settings.make(**settings)
    dry_run(task, chosen)
    os.environ.update(environment or {})
    inbox = Mailbox()
    heard = Heard(inbox, commands)
    done = FitAssignment(task, chosen)(heard, inbox)
    steps = [event for event in heard if isinstance(event, StepsDone)]
    return {
        "status": done.status,
        "loss": np.concatenate([s.array("loss") for s in steps]),
        "norm": np.concatenate([s.array("grad_norm") for s in steps]),
        "layers": np.concatenate([s.array("layer_norms") for s in steps]),
        "lr": np.concatenate([s.array("lr") for s in steps]),
        "checks": [(e.step, e.metrics) for e in heard if isinstance(e, Validated)],
        "changes": [(e.step, e.values) for e in heard if isinstance(e, Changed)],
        "said": [e.text for e in heard if isinstance(e, Message)],
        "weights": {
            name: whole(value).detach().clone()
            for name, value in task.model.state_dict(keep_vars=True).items()
        },
    }


def same(one: dict[str, Any], other: dict[str, Any], rtol: float = 2e-4) -> None:
    """Equal to float tolerance."""
    assert one["status"] == other["status"]
    for name in ("loss", "norm", "layers", "lr"):
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=1e-5, err_msg=name)
    assert [step for step, _ in one["checks"]] == [step for step, _ in other["checks"]]
    for (_, a), (_, b) in zip(one["checks"], other["checks"], strict=True):
        assert a == {name: float(np.float64(a[name])) for name in b}
        np.testing.assert_allclose(list(a.values()), [b[name] for name in a], rtol=rtol)
    torch.testing.assert_close(one["weights"], other["weights"], rtol=5 * rtol, atol=rtol / 20)
