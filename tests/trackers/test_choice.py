"""What trackers are told of a run, and which tracker is meant; the events are made here."""

import importlib
import math
import sys
import threading
from typing import ClassVar

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, on_main_process
from accelerate.utils import LoggerType

from workbench.engine.runtime.runtime import OwnState
from workbench.events import (
    Changed,
    CurvePoint,
    Logged,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    SettingsSet,
    StatusChanged,
    StepsDone,
    Validated,
    pack,
)
from workbench.settings import Settings, SettingsError
from workbench.trackers import listener
from workbench.trackers.listener import BURST, RATE, TrackerError, tracker_listeners
from workbench.trackers.select import flat


class Recorder(GeneralTracker):
    """Keeps what it is told; `fail` names the calls that raise, `gate` holds up each value until it is open."""

    name = "recorder"
    requires_logging_directory = False

    def __init__(self, *fail, gate=None):
        super().__init__()
        self.calls, self.fail, self.gate = [], fail, gate

    @property
    def tracker(self):
        return self.calls

    def _take(self, what, *values):
        self.calls.append((what, *values))
        if what in self.fail:
            raise OSError(f"no {what} today")

    @on_main_process
    def start(self):
        self._take("start")

    @on_main_process
    def store_init_configuration(self, values):
        self._take("settings", values)

    @on_main_process
    def log(self, values, step=None, **kwargs):
        if self.gate is not None:
            self.gate.wait()
        self._take("log", step, values)

    @on_main_process
    def finish(self):
        self._take("finish")

    def logged(self, name="loss"):
        """The steps and values of one name."""
        return [
            (call[1], call[2][name]) for call in self.calls if call[0] == "log" and name in call[2]
        ]

    @property
    def order(self):
        return [call[0] for call in self.calls]


def started(run="0001-fit", kind="fit", **settings):
    return RunStarted(run, kind, Settings(**settings).model_dump(), "cpu", ("a", "b"), 10, 1)


def steps(first, rows, seconds, every=1, **columns):
    values = [float(first + every * row) for row in range(rows)]
    made = {
        "loss": pack(values),
        "lr": pack([0.5] * rows),
        **{name: pack(v) for name, v in columns.items()},
    }
    return StepsDone(first, every, rows, 0, seconds, made)


def heard(follower, *events):
    """The failures that the listener raised, on hearing a whole fit of these events."""
    failures = []
    for event in (started(), *events, RunEnded("finished", 10, 1.0)):
        try:
            follower(event)
        except TrackerError as error:
            failures.append(error)
    return failures


def follower_of(tracker, tmp_path, model=None):
    (follower,) = tracker_listeners(tracker, tmp_path, model)
    return follower


def test_a_short_fit_is_told_as_a_whole(tmp_path):
    tracker = Recorder()
    norms = {
        "grad_norm": [1.0, math.nan, 3.0],
        "layer_norms": [1.0] * 6,
        "acc": [math.nan, 0.5, math.nan],
    }
    assert not heard(
        follower_of(tracker, tmp_path),
        steps(0, 3, 0.01, every=2, **norms),
        Validated(5, 0, {"val_loss": 0.25}),
        Logged(5, 0, {"train_acc": 0.75}),
        Changed(6, {"lr": 0.125, "gradient_clip_val": None}),
        Message("only seen by those who take words", "warning", 6),
        Resumed(6, "0000-fit", "00000006"),
        CurvePoint(0, 1.0, 1.0, 1.0),
    )
    assert tracker.order == ["start", "settings", *["log"] * 6, "finish"]
    assert [call[1:] for call in tracker.calls if call[0] == "log"] == [
        (0, {"loss": 0.0, "lr": 0.5, "grad_norm": 1.0, "epoch": 0}),
        (2, {"loss": 2.0, "lr": 0.5, "acc": 0.5, "epoch": 0}),
        (4, {"loss": 4.0, "lr": 0.5, "grad_norm": 3.0, "epoch": 0}),
        (5, {"val_loss": 0.25, "epoch": 0}),
        (5, {"train_acc": 0.75, "epoch": 0}),
        (6, {"changed/lr": 0.125}),
    ]


def test_a_loss_that_is_no_number_is_told(tmp_path):
    tracker = Recorder()
    heard(follower_of(tracker, tmp_path), steps(0, 1, 0.1, loss=[math.nan]))
    ((step, loss),) = tracker.logged()
    assert step == 0
    assert math.isnan(loss)


def test_of_a_fast_fit_about_ten_updates_a_second_are_told(tmp_path):
    tracker = Recorder()
    flushes = [steps(100 * n, 100, 0.1 * (n + 1)) for n in range(100)]
    heard(follower_of(tracker, tmp_path), *flushes)
    told = [step for step, _ in tracker.logged()]
    assert told == sorted(set(told))
    assert told[-1] == 9999
    assert 10 * RATE <= len(told) <= 10 * RATE + BURST + 1
    assert all(step == loss for step, loss in tracker.logged())


def test_of_a_slow_fit_every_update_is_told(tmp_path):
    tracker = Recorder()
    heard(follower_of(tracker, tmp_path), *[steps(n, 1, 0.25 * (n + 1)) for n in range(3 * BURST)])
    assert [step for step, _ in tracker.logged()] == list(range(3 * BURST))


def test_the_last_update_before_a_check_and_at_the_end_is_told(tmp_path):
    tracker = Recorder()
    short = [steps(n, 1, 0.0) for n in range(BURST + 20)]
    heard(follower_of(tracker, tmp_path), *short, Validated(BURST + 20, 0, {"val_loss": 1.0}),
          *[steps(BURST + 20 + n, 1, 0.0) for n in range(5)])  # fmt: skip
    assert [step for step, _ in tracker.logged()] == [*range(BURST), BURST + 19, BURST + 24]


def test_the_settings_arrive_flat_with_the_models_own(tmp_path):
    class Model:
        hparams: ClassVar = {
            "width": 64,
            "layers": {"kind": torch.nn.ReLU, "sizes": [1, 2]},
            "table": torch.zeros(10_000),
        }

    tracker = Recorder()
    event = started("0007-fit", lr=0.25, early_stopping="val_loss", accumulate_grad_batches={0: 2})
    follower = follower_of(tracker, tmp_path, Model())
    follower(event)
    follower(RunEnded("finished", 0, 0.0))
    (values,) = [call[1] for call in tracker.calls if call[0] == "settings"]
    assert values["run"] == "0007-fit"
    assert values["lr"] == 0.25
    assert values["early_stopping/0/monitor"] == "val_loss"
    assert values["accumulate_grad_batches/0"] == 2
    assert values["hparams/width"] == 64
    assert values["hparams/layers/kind"] == "ReLU"
    assert values["hparams/layers/sizes/1"] == 2
    assert all(value is None or type(value) in (bool, int, float, str) for value in values.values())
    assert max(len(str(value)) for value in values.values()) <= 250


def test_long_lists_stay_one_value():
    assert flat({"many": list(range(100)), "none": ()}) == {
        "many": str(list(range(100)))[:249] + "…",
        "none": "()",
    }


def test_only_fits_that_are_recorded_are_runs(tmp_path):
    tracker = Recorder()
    follower = follower_of(tracker, tmp_path)
    for first in (started(kind="find_lr"), started(fast_dev_run=2)):
        for event in (
            first,
            steps(0, 1, 0.1),
            Validated(1, 0, {"val_loss": 1.0}),
            RunEnded("finished", 1, 1.0),
        ):
            follower(event)
    follower(SettingsSet({}))
    follower(StatusChanged("queued"))
    follower.close()
    assert tracker.calls == []


@pytest.mark.parametrize("what", ["start", "settings", "log", "finish"])
def test_a_failure_is_raised_once_and_the_run_is_ended(tmp_path, what):
    tracker = Recorder(what)
    failures = heard(follower_of(tracker, tmp_path), *[steps(n, 1, n / 10) for n in range(10)])
    assert len(failures) == 1
    assert f"no {what} today" in str(failures[0])
    assert "0001-fit" in str(failures[0])
    assert isinstance(failures[0].__cause__, OSError)
    assert (
        tracker.order
        == {
            "start": ["start"],
            "settings": ["start", "settings", *["log"] * 10, "finish"],
            "log": ["start", "settings", *["log"] * listener.PATIENCE, "finish"],
            "finish": ["start", "settings", *["log"] * 10, "finish"],
        }[what]
    )


def test_the_next_run_is_tried_again(tmp_path):
    tracker = Recorder("log")
    follower = follower_of(tracker, tmp_path)
    heard(follower, steps(0, 1, 0.1))
    tracker.fail = ()
    assert not heard(follower, steps(0, 1, 0.1))
    assert tracker.order == ["start", "settings", "log", "finish"] * 2


def test_a_slow_tracker_holds_up_nobody_and_runs_stay_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "WAIT", 0.01)
    gate = threading.Event()
    tracker = Recorder(gate=gate)
    follower = follower_of(tracker, tmp_path)
    for _ in range(2):
        failures = heard(follower, steps(0, 1, 0.1))
        assert "it is still sending" in str(failures[0])
    assert "finish" not in tracker.order
    gate.set()
    monkeypatch.setattr(listener, "WAIT", 60.0)
    follower.close()
    assert tracker.order == ["start", "settings", "log", "finish"] * 2


def test_a_tracker_that_falls_behind_is_told_less_but_every_check(tmp_path, monkeypatch):
    monkeypatch.setattr(listener, "BEHIND", 4)
    gate = threading.Event()
    tracker = Recorder(gate=gate)
    follower = follower_of(tracker, tmp_path)
    follower(started())
    for n in range(20):
        follower(steps(n, 1, n))
        follower(Validated(n + 1, 0, {"val_loss": float(n)}))
    gate.set()
    follower(RunEnded("finished", 20, 20.0))
    assert len(tracker.logged("val_loss")) == 20
    assert tracker.logged()[-1][0] == 19


def test_a_run_whose_end_is_not_heard_is_ended_by_close(tmp_path):
    tracker = Recorder()
    follower = follower_of(tracker, tmp_path)
    follower(started())
    follower(steps(0, 1, 0.1))
    follower.close()
    follower.close()
    assert tracker.order == ["start", "settings", "log", "finish"]


# -- accelerate's state


def test_a_state_of_ones_own_is_seen_by_ones_own_thread_alone():
    there, seen = threading.Event(), threading.Event()
    found = {}

    def inside():
        with OwnState().here():
            found["empty"] = not PartialState._shared_state
            PartialState(cpu=True).process_index = 7
            there.set()
            seen.wait()
            found["index"] = PartialState().process_index
        found["after"] = PartialState._shared_state

    PartialState._reset_state()
    thread = threading.Thread(target=inside)
    thread.start()
    there.wait()
    try:
        assert not PartialState._shared_state
        mine = Accelerator(cpu=True)
        assert mine.process_index == 0
        before = PartialState._shared_state
    finally:
        seen.set()
        thread.join()
    assert found == {"empty": True, "index": 7, "after": before}
    assert PartialState().process_index == 0
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def test_a_dict_that_somebody_puts_in_the_place_of_accelerates_is_the_users(monkeypatch):
    with OwnState().here():
        PartialState(cpu=True)
    theirs = {}
    monkeypatch.setattr(PartialState, "_shared_state", theirs)
    with OwnState().here():
        PartialState(cpu=True)
        assert PartialState._shared_state
    assert PartialState._shared_state is theirs
    assert not theirs


# -- which tracker


class TensorBoardLogger:
    pass


TensorBoardLogger.__module__ = "lightning.pytorch.loggers.tensorboard"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("tensorbord", "Did you mean 'tensorboard'"),
        ("TensorBoard", "Did you mean 'tensorboard'"),
        ("comet", "Did you mean 'comet_ml'"),
        ("neptune", "comet_ml, dvclive, mlflow, swanlab, tensorboard, trackio, wandb"),
        (["tensorboard", 3], "trackers=3"),
        (True, "trackers=True"),
        (Recorder, r"give an object, Recorder\(…\)"),
        (TensorBoardLogger(), "trackers='tensorboard' instead"),
        ("aim", "pip install aim"),
        ({"tensorboard": "logs"}, "give a dict of arguments for 'tensorboard'"),
        ({"mlflow": {"nested": True}}, "nested.*it takes: experiment_name"),
        (["tensorboard", {"tensorboard": {}}], "twice"),
    ],
)
def test_what_is_no_tracker_is_refused(tmp_path, given, said):
    with pytest.raises(SettingsError, match=said):
        tracker_listeners(given, tmp_path, None)
    assert not list(tmp_path.iterdir())


def test_one_object_twice_is_refused(tmp_path):
    tracker = Recorder()
    with pytest.raises(SettingsError, match="twice"):
        tracker_listeners([tracker, tracker], tmp_path, None)


def test_a_folder_named_like_a_package_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match="pip install wandb"):
        tracker_listeners("wandb", tmp_path, None)


@pytest.mark.parametrize(
    ("given", "number"),
    [(None, 0), ([], 0), ("tensorboard", 1), (LoggerType.TENSORBOARD, 1), (("tensorboard", Recorder()), 2),
     ([{"tensorboard": {"flush_secs": 1}, "mlflow": {}}, Recorder(), Recorder()], 4)],
)  # fmt: skip
def test_ways_to_say_it(tmp_path, given, number):
    assert len(tracker_listeners(given, tmp_path, None)) == number


class Registered(Recorder):
    """Registered with accelerate under a name of its own."""

    name = "../mine"
    requires_logging_directory = True
    made: ClassVar = []

    def __init__(self, project, folder, color="blue"):
        super().__init__()
        self.project, self.folder, self.color = project, folder, color
        self.made.append(self)


def test_a_class_that_the_user_registered_is_there_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, Registered.name, Registered)
    monkeypatch.setattr(Registered, "made", [])
    assert not heard(follower_of({"../mine": {"color": "red"}}, tmp_path), steps(0, 1, 0.1))
    (made,) = Registered.made
    assert (made.project, made.color) == ("0001-fit", "red")
    assert made.folder == str(tmp_path / "trackers" / "_mine")
    assert made.order == ["start", "settings", "log", "finish"]


FAKE = """
from unittest.mock import MagicMock
__version__ = "9.0.0"
calls = MagicMock()
calls.Task.current_task.return_value = None
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(calls, name)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """The packages are not installed in the tests: a stand-in keeps what accelerate's tracker asks of it."""

    def made(name):
        package = tmp_path / "packages" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(FAKE)
        (package / "plots.py").write_text(
            "class Metric:\n    could_log = staticmethod(lambda value: True)\n"
        )
        monkeypatch.syspath_prepend(package.parent)
        names.extend((name, f"{name}.plots"))
        return importlib.import_module(name)

    names = []
    yield made
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "given", "entry", "keywords"),
    [
        ("wandb", {"project": "mine"}, "init", {"project": "mine", "name": "0001-fit", "dir": "{folder}"}),
        ("trackio", {}, "init", {"project": "workbench", "name": "0001-fit"}),
        ("swanlab", {}, "init",
         {"project": "workbench", "experiment_name": "0001-fit", "logdir": "{folder}"}),
        ("comet_ml", {"project_name": "mine"}, "start", {"project_name": "mine"}),
        ("aim", {}, "Run", {"repo": "{folder}"}),
        ("clearml", {}, "Task.init", {"project_name": "workbench", "task_name": "0001-fit"}),
        ("dvclive", {"report": None}, "Live", {"dir": "{folder}/0001-fit", "report": None}),
    ],
)  # fmt: skip
def test_what_a_package_is_started_with(tmp_path, stand_in, name, given, entry, keywords):
    if name not in LOGGER_TYPE_TO_CLASS:
        pytest.skip("this accelerate does not have it")
    package = stand_in(name)
    failures = heard(
        follower_of({name: given}, tmp_path), steps(0, 1, 0.1), Message("look", "warning")
    )
    assert failures == []
    calls = package.calls
    folder = tmp_path / "trackers" / name
    for part in entry.split("."):
        calls = getattr(calls, part)
    wanted = {
        key: value.format(folder=folder) if isinstance(value, str) else value
        for key, value in keywords.items()
    }
    calls.assert_called_once_with(**wanted)
    assert folder.is_dir()


def test_wandb_takes_words_and_hears_that_a_run_has_failed(tmp_path, stand_in):
    package = stand_in("wandb")
    follower = follower_of("wandb", tmp_path)
    follower(started())
    follower(Resumed(2, "0000-fit", "00000002"))
    follower(Message("all is well", "info", 2))
    follower(Message("look here", "warning", 2))
    follower(RunEnded("failed", 3, 1.0, "ValueError: no"))
    run = package.calls.init.return_value
    run.finish.assert_called_once_with(exit_code=1)
    assert [(call.args[0], call.kwargs["step"]) for call in run.log.call_args_list] == [
        ({"resumed": "0000-fit, checkpoint 00000002"}, 2),
        ({"warning": "look here"}, 2),
        ({"status": "failed: ValueError: no"}, 3),
    ]
