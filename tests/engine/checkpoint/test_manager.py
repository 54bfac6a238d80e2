"""When a fit writes checkpoints, which of them stay, and what it does where they cannot be written."""

import errno
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tests.engine.problems import labelled, noisy_net, plain_net
from tests.engine.resuming import Fit, settings_of, supervised
from workbench.commands import Stop
from workbench.engine.checkpoint import files, manager
from workbench.engine.checkpoint.files import load_weights, tensors_of
from workbench.engine.checkpoint.manager import CheckpointManager
from workbench.engine.state import TrainState
from workbench.events import Saved, StepsDone, Validated
from workbench.runs.checkpoints import find
from workbench.settings import SettingsError
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


def fit(tmp_path, *, commands=(), before=None, net=None, metrics=None, folder=None, **settings):
    """Epochs of 7 updates."""
    task = supervised(net or plain_net(), val=labelled(20, seed=2), metrics=metrics)
    return Fit(task, settings_of(**settings), folder or tmp_path, commands=commands, before=before)


def names(run):
    return [point.name for point in run.checkpoints]


def test_with_nothing_asked_for_there_is_the_best_and_the_end(tmp_path):
    run = fit(tmp_path, lr=1.0)
    losses = {step: metrics["val_loss"] for step, _, metrics in run.validations()}
    best = min(losses, key=losses.get)
    assert best != 21, "or the test shows nothing"
    assert names(run) == [f"{best:08d}", "00000021-end"]
    assert find(tmp_path, "best").value == losses[best]


def test_each_one_is_told_behind_the_updates_before_it(tmp_path):
    run = fit(tmp_path, checkpoint_every=4, save_top_k=-1)
    told = 0
    for event in run.events:
        if isinstance(event, StepsDone):
            told = int(event.steps[-1]) + 1
        if isinstance(event, Saved):
            assert told == event.step
    assert [(e.step, e.epoch, e.name) for e in run.saved] == [
        (4, 0, "00000004"), (7, 1, "00000007"), (8, 1, "00000008"), (12, 1, "00000012"), (14, 2, "00000014"), (16, 2, "00000016"),
        (20, 2, "00000020"), (21, 3, "00000021"), (21, 3, "00000021-end"),
    ]  # fmt: skip
    values = {step: metrics["val_loss"] for step, _, metrics in run.validations()}
    for event in run.saved:
        expected = (None, None) if event.step % 7 else ("val_loss", values[event.step])
        assert (event.monitor, event.value) == expected
        info = json.loads((tmp_path / "checkpoints" / event.name / "info.json").read_text())
        assert (info["value"], info["best"], info["epoch"], info["resumable"]) == (
            event.value,
            event.best,
            event.epoch,
            True,
        )


def test_only_those_that_are_the_best_so_far_say_so(tmp_path):
    run = fit(tmp_path, lr=1.0, save_top_k=-1, max_epochs=5)
    best = float("inf")
    for event in run.saved:
        assert event.best == (event.value <= best)
        best = min(best, event.value)


def test_the_best_k_and_the_last_stay(tmp_path):
    run = fit(tmp_path, lr=1.0, save_top_k=2, checkpoint_every=3, max_epochs=5)
    values = {step: metrics["val_loss"] for step, _, metrics in run.validations()}
    best = sorted(values, key=values.get)[:2]
    assert sorted({point.step for point in run.checkpoints}) == sorted({*best, 35})
    assert len(run.checkpoints) == 3 - (35 in best)
    assert len(run.saved) > 10


def test_none_for_being_the_best(tmp_path):
    run = fit(tmp_path, save_top_k=0, monitor="nothing")
    assert names(run) == ["00000021-end"]


def test_a_metric_of_which_more_is_better(tmp_path):
    def accuracy(output, y):
        return (output.argmax(1) == y).float().mean()

    run = fit(
        tmp_path, lr=1.0, metrics={"accuracy": accuracy}, monitor="val_accuracy", max_epochs=5
    )
    values = {step: metrics["val_accuracy"] for step, _, metrics in run.validations()}
    assert find(tmp_path, "best").value == max(values.values())


def test_a_value_that_is_no_number_is_never_the_best(tmp_path):
    def unsure(output, y):
        return torch.tensor(float("nan"))

    run = fit(
        tmp_path, metrics={"loss2": unsure}, monitor="val_loss2", monitor_mode="min", save_top_k=-1
    )
    assert names(run) == ["00000021-end"]
    assert run.checkpoints[0].value is None


def test_without_validation_there_is_no_best(tmp_path):
    run = Fit(supervised(plain_net()), settings_of(), tmp_path)
    assert names(run) == ["00000021-end"]


def test_the_training_loss_can_be_watched(tmp_path):
    run = Fit(supervised(plain_net()), settings_of(monitor="train_loss"), tmp_path)
    assert run.checkpoints[-1].monitor == "train_loss"


def test_a_monitor_that_nothing_reports_is_refused_before_the_first_update(tmp_path):
    with pytest.raises(
        TaskError, match=r"monitor='val_f1': there is no such metric.* are: val_loss, train_loss"
    ):
        fit(tmp_path, monitor="val_f1")


def test_a_monitor_whose_name_does_not_say_which_is_better_is_told_before_the_first_update(
    tmp_path,
):
    with pytest.raises(SettingsError, match="give monitor_mode"):
        fit(tmp_path, monitor="val_thing", metrics={"thing": lambda output, y: 0.5})


def test_an_average_that_is_to_come_can_be_watched(tmp_path):
    run = fit(
        tmp_path,
        weight_averaging="ema",
        averaging_start=9,
        monitor="val_loss_averaged",
        net=noisy_net(),
        save_top_k=-1,
    )
    assert [(point.step, point.value is not None) for point in run.checkpoints] == [
        (14, True),
        (21, True),
        (21, True),
    ]


def test_the_value_of_the_end_is_of_the_weights_of_the_end(tmp_path):
    """A model that gets averaged weights at the end has no value of a metric of the raw ones."""
    averaging = {"weight_averaging": "ema", "ema_decay": 0.5}
    run = fit(tmp_path / "raw", **averaging)
    assert run.checkpoints[-1].end
    assert run.checkpoints[-1].value is None
    run = fit(tmp_path / "averaged", **averaging, monitor="val_loss_averaged")
    assert run.checkpoints[-1].value == run.validations()[-1][2]["val_loss_averaged"]
    stopped = fit(tmp_path / "stopped", commands={10: Stop()})  # three updates behind the check
    assert stopped.checkpoints[-1].end
    assert stopped.checkpoints[-1].value is None


def test_the_end_has_the_weights_that_the_model_keeps(tmp_path):
    run = fit(tmp_path, weight_averaging="swa", swa_epoch_start=1, net=noisy_net())
    net = noisy_net()
    load_weights(net, run.checkpoints[-1].path / "model.safetensors")
    for name, value in tensors_of(net).items():
        assert torch.equal(run.weights[f"0.{name}"], value)


# -- by time


class Clock:
    """In the place of the meter's: each look at it after an update is ten seconds later."""

    def __init__(self, session):
        self.session = session

    @property
    def seconds(self):
        return 10.0 * self.session.state.step

    def __getattr__(self, name):
        return getattr(self.meter, name)


def ticking(session):
    clock = Clock(session)
    clock.meter, session.meter = session.meter, clock


def test_by_time(tmp_path):
    run = fit(tmp_path, before=ticking, checkpoint_every="00:00:00:45", save_top_k=0)
    assert [event.step for event in run.saved] == [5, 10, 15, 20, 21]


def test_at_ends_of_epochs_that_lie_ten_minutes_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(manager, "AUTOMATIC", 130.0)
    run = fit(tmp_path, before=ticking, max_epochs=6, save_top_k=0)
    assert [event.step for event in run.saved] == [14, 28, 42, 42]
    assert manager.AUTOMATIC == 130.0


def test_asking_whether_it_is_time_touches_nothing_but_counters():
    """It is asked before every update."""
    session = SimpleNamespace(state=TrainState(step=12), meter=SimpleNamespace(seconds=3.0))
    asked = CheckpointManager.__new__(CheckpointManager)
    asked._session, asked._updates, asked._time, asked._step, asked._seconds = (
        session,
        6,
        None,
        0,
        0.0,
    )
    assert asked.due()
    session.state.step = 13
    assert not asked.due()


# -- where they cannot be written


def failing(monkeypatch, steps, error):
    real = files.write

    def write(folder, name, *rest):
        if int(name[:8]) in steps:
            raise error
        real(folder, name, *rest)

    monkeypatch.setattr(files, "write", write)


def test_a_full_disk_is_told_once_and_the_fit_goes_on(tmp_path, monkeypatch):
    whole = fit(tmp_path, folder=tmp_path / "whole")
    failing(monkeypatch, range(5, 99), OSError(errno.ENOSPC, "No space left on device"))
    run = fit(tmp_path, checkpoint_every=2)
    assert run.status == "finished"
    assert run.rows() == whole.rows()
    assert names(run) == ["00000004"]
    assert run.said == [
        "no checkpoint was written at update 6 ([Errno 28] No space left on device); the fit continues."
    ]


def test_trouble_of_another_kind_is_told_too_and_what_can_be_written_is(tmp_path, monkeypatch):
    failing(monkeypatch, [5, 10], OSError(errno.ENOSPC, "No space left on device"))
    inner = files.write

    def write(folder, name, *rest):
        if name == "00000015":
            raise OSError(errno.EROFS, "Read-only file system")
        inner(folder, name, *rest)

    monkeypatch.setattr(files, "write", write)
    run = fit(tmp_path, checkpoint_every=5, save_top_k=0)
    assert len(run.said) == 2
    assert "Read-only" in run.said[1]
    assert [event.step for event in run.saved] == [20, 21]


def test_an_old_one_that_cannot_be_removed_is_told(tmp_path, monkeypatch):
    def remove(path):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files, "remove", remove)
    run = fit(tmp_path, checkpoint_every=5, save_top_k=0)
    assert run.status == "finished"
    assert run.said == ["an old checkpoint could not be removed ([Errno 13] Permission denied)."]


def test_an_error_in_the_fit_leaves_what_was_written_and_no_end(tmp_path):
    class Bad(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.calls = plain_net(), 0

        def forward(self, x):
            self.calls += self.training
            if self.calls == 12:
                raise RuntimeError("no")
            return self.net(x)

    with pytest.raises(RuntimeError, match="no"):
        fit(tmp_path, net=Bad(), checkpoint_every=5, save_top_k=-1)
    assert [one.name for one in manager.list_checkpoints(tmp_path)] == [
        "00000005",
        "00000007",
        "00000010",
    ]


def test_checks_and_checkpoints_leave_the_record_as_it_is(tmp_path):
    plain = Fit(supervised(noisy_net(), val=labelled(20, seed=2)), settings_of())
    kept = fit(tmp_path, net=noisy_net(), checkpoint_every=1, save_top_k=-1)
    assert kept.rows() == plain.rows()
    assert [e for e in kept.events if isinstance(e, Validated)] == [
        e for e in plain.events if isinstance(e, Validated)
    ]
