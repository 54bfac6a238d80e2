"""A fit that writes checkpoints, and one that goes on from one of them as another process would: with objects of its own."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from tests.engine.problems import labelled, sgd
from workbench.commands import Mailbox
from workbench.engine import loop
from workbench.engine.checkpoint.files import read_state
from workbench.engine.checkpoint.fit_state import restore
from workbench.engine.checkpoint.manager import CheckpointManager
from workbench.engine.setup import open_session
from workbench.engine.validation.schedule import ValidationSchedule
from workbench.events import Logged, Message, Saved, StepsDone, Validated
from workbench.runs.checkpoints import list_checkpoints
from workbench.settings import Settings
from workbench.task.factory import task_of

DEFAULTS = {
    "accelerator": "cpu",
    "batch_size": 8,
    "lr": 0.05,
    "max_epochs": 3,
    "num_sanity_val_steps": 0,
}


def settings_of(**given):
    return Settings.make(**{**DEFAULTS, **given})


def supervised(
    model,
    *,
    train=None,
    val=None,
    loss=F.cross_entropy,
    optimizer=sgd,
    scheduler=None,
    metrics=None,
):
    return task_of(
        model, train=labelled() if train is None else train, val=val, test=None, loss=loss, optimizer=optimizer,
        scheduler=scheduler, metrics=metrics, collate_fn=None,
    )  # fmt: skip


def learning(model, *, train=None, val=None):
    return supervised(model, train=train, val=val, loss=None, optimizer=torch.optim.AdamW)


class Script(Mailbox):
    """Commands that arrive when so many updates are taken, one or several."""

    def __init__(self, commands):
        super().__init__()
        self.session, self.commands = None, dict(commands)

    def __bool__(self):
        command = self.commands.pop(self.session.state.step, ())
        for one in command if isinstance(command, tuple) else (command,):
            self.put(one)
        return super().__bool__()


class Fit:
    """One fit in `folder`, with all that it told and left. state: what it goes on from, or the path of a checkpoint."""

    def __init__(self, task, settings, folder=None, state=None, commands=(), before=None):
        self.events, self.folder, inbox = [], folder, Script(commands)
        if folder is not None:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        past = read_state(state) if isinstance(state, Path) else state
        with open_session(task, settings, past=past) as session:
            self.session = inbox.session = session
            checks = ValidationSchedule(session)
            if state is not None:
                read = session.weights.read_state
                restore(session, checks, read(state) if isinstance(state, Path) else state)
            checkpoints = (
                None
                if folder is None
                else CheckpointManager(session, checks, folder / "checkpoints", self.events.append)
            )
            if before is not None:
                before(session)
            self.status = loop.fit(
                session, self.events.append, inbox, validation=checks, checkpoints=checkpoints
            )
            if checkpoints is not None:
                checkpoints.close()
            self.drawn = (
                torch.get_rng_state(),
                np.random.get_state()[1].tolist(),
                torch.rand(3).tolist(),
            )
            self.counters = (session.state.step, session.state.epoch, session.state.left_out)
            self.average = None if session.average is None else session.average.state_dict()
            self.optimizers = [opt.optimizer.state_dict() for opt in session.optimizers]
        self.weights = {
            f"{number}.{name}": value.detach().clone()
            for number, module in enumerate(task.modules) for name, value in module.state_dict().items()
        }  # fmt: skip

    @property
    def checkpoints(self):
        return list_checkpoints(self.folder)

    @property
    def said(self):
        return [event.text for event in self.events if isinstance(event, Message)]

    @property
    def saved(self):
        return [event for event in self.events if isinstance(event, Saved)]

    def rows(self, since=0):
        """By update: what was measured, as bytes, so that a NaN is equal to itself."""
        found = {}
        for event in self.events:
            if isinstance(event, StepsDone):
                for row, step in enumerate(event.steps):
                    if step >= since:
                        found[int(step)] = {
                            name: event.array(name)[row].tobytes()
                            for name in event.columns
                            if name != "skipped"
                        }
        return found

    def validations(self, since=0):
        return [
            (e.step, e.epoch, e.metrics)
            for e in self.events
            if isinstance(e, Validated) and e.step > since
        ]

    def logged(self, since=0):
        return [
            (e.step, e.epoch, e.metrics)
            for e in self.events
            if isinstance(e, Logged) and e.epoch >= since
        ]


def same(one, other):
    """Whether two trees of containers and tensors are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        )
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and np.array_equal(one, other)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


def assert_goes_on_as(whole, rest, since, epoch=None):
    """`rest`, begun behind `since` updates (and `epoch` epochs, if that is known), is what is left of `whole`."""
    expected, found = whole.rows(since), rest.rows()
    assert list(found) == list(expected)
    for step, row in expected.items():
        assert found[step] == row, f"update {step}"
    assert rest.validations(since) == whole.validations(since)
    if epoch is not None:
        assert rest.logged() == whole.logged(epoch)
    assert rest.counters == whole.counters
    assert same(rest.weights, whole.weights)
    assert same(rest.average, whole.average)
    assert same(rest.optimizers, whole.optimizers)
    assert same(rest.drawn, whole.drawn)


def resumed(make_task, settings, checkpoint, folder, **options):
    return Fit(make_task(), settings, folder, state=read_state(checkpoint.path), **options)
