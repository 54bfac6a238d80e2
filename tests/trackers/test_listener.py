"""Fits that are runs in TensorBoard and in MLflow, read back with their own readers; and the user's own tracker."""

import json
import os

import numpy as np
import pytest
import torch
from accelerate.tracking import GeneralTracker

import workbench as wb
from tests import warm
from tests.engine.problems import bench, labelled, plain_net
from tests.lightning.both import boring, loader
from workbench.events import Changed, Message

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    """MLflow has been told nothing by whoever runs the tests, and tells nobody."""
    for name in tuple(os.environ):
        if name.startswith("MLFLOW_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A slow machine makes a new database for longer than the end of a fit waits for it."""
    monkeypatch.setattr("workbench.trackers.listener.WAIT", 250.0)


def made(root, trackers, model=None, **settings):
    return bench(model or plain_net(), labelled(), root, val=labelled(20, seed=2), trackers=trackers,
                 **{"max_epochs": 3, **settings})  # fmt: skip


def scalars(folder):
    """{tag: ([steps], [values])} of a run's event file, as TensorBoard reads it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    events = {tag: read.Scalars(tag) for tag in read.Tags()["scalars"]}
    return {
        tag: ([e.step for e in listed], [e.value for e in listed]) for tag, listed in events.items()
    }


def words(folder):
    """{tag: text} of a run's event file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return {tag.removesuffix("/text_summary"): read.Tensors(tag)[-1].tensor_proto.string_val[0].decode()
            for tag in read.Tags()["tensors"]}  # fmt: skip


def errors(job):
    return [
        event.text for event in job.events if isinstance(event, Message) and event.level == "error"
    ]


class Failing(torch.nn.Module):
    """Learns until it is asked for the seventh time."""

    def __init__(self):
        super().__init__()
        self.net, self.calls = plain_net(), 0

    def forward(self, x):
        self.calls += self.training
        if self.calls > 7:
            raise ValueError("no more")
        return self.net(x)


def fits(root, trackers):
    """A fit that finishes, one that is stopped and one that fails; their jobs."""
    b = made(root, trackers)
    finished = b.fit()
    finished.result()
    stopped = b.fit(max_epochs=10**6)
    leave = b.subscribe(lambda event: stopped.stop())
    stopped.result()
    leave()
    failed = made(root, trackers, Failing()).fit()
    assert isinstance(failed.exception(), ValueError)
    assert not errors(finished) + errors(stopped) + errors(failed)
    return finished, stopped, failed


def test_tensorboard_has_each_fit(tmp_path):
    root = tmp_path / 'a root\'s "folder"'
    jobs = fits(root, "tensorboard")
    runs = root / "trackers" / "tensorboard"
    assert sorted(path.name for path in runs.iterdir()) == [job.id for job in jobs]

    found, run = scalars(runs / jobs[0].id), jobs[0].result()
    assert found["loss"][0] == list(run.history["step"])
    for name in ("loss", "lr", "grad_norm"):
        np.testing.assert_array_equal(np.float32(found[name][1]), np.float32(run.history[name]))
    assert found["val_loss"][0] == list(run.validation["step"])
    np.testing.assert_array_equal(
        np.float32(found["val_loss"][1]), np.float32(run.validation["val_loss"])
    )
    assert not any("layer_norms" in tag for tag in found)
    assert [words(runs / job.id)["status"] for job in jobs] == [
        "finished",
        "stopped",
        "failed: ValueError: no more",
    ]
    assert scalars(runs / jobs[2].id)["loss"][0] == list(
        wb.Run.open(jobs[2].folder.path).history["step"]
    )
    (hparams,) = (runs / jobs[0].id).glob("*/hparams.yml")
    assert "max_epochs: 3" in hparams.read_text()


def mlflow_runs(uri):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("workbench").experiment_id
    return client, {run.info.run_name: run for run in client.search_runs([experiment])}


# of MLflow's own database code
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
@pytest.mark.parametrize("store", ["files", "database"])
def test_mlflow_has_each_fit(tmp_path, monkeypatch, store):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    if store == "files":
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        uri = (tmp_path / "mlflow").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.chdir(tmp_path)  # MLflow's own place for the files of a run in a database
    jobs = fits(tmp_path / "root", "mlflow")
    client, runs = mlflow_runs(uri)
    assert sorted(runs) == [job.id for job in jobs]
    assert [runs[job.id].info.status for job in jobs] == ["FINISHED", "KILLED", "FAILED"]

    first, run = runs[jobs[0].id], jobs[0].result()
    assert first.data.params["max_epochs"] == "3"
    assert first.data.params["run"] == run.id
    history = client.get_metric_history(first.info.run_id, "loss")
    assert [metric.step for metric in history] == list(run.history["step"])
    np.testing.assert_array_equal([metric.value for metric in history], run.history["loss"])
    checks = client.get_metric_history(first.info.run_id, "val_loss")
    np.testing.assert_allclose([metric.value for metric in checks], run.validation["val_loss"])


def test_mlflow_keeps_a_users_hyperparameter_of_the_name_of_a_setting(tmp_path, monkeypatch):
    class Tells(boring.BoringModel):
        def on_fit_start(self):
            self.logger.log_hyperparams({"seed": 12345, "max_epochs": 1, "width": 32})

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlflow").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with wb.Workbench(
        Tells(),
        train=loader(),
        root=tmp_path / "root",
        accelerator="cpu",
        max_epochs=1,
        trackers="mlflow",
        dry_run=False,
    ) as bench:
        job = bench.fit()
        job.result()
    _, runs = mlflow_runs(uri)
    found = runs[job.id].data.params
    names = ("seed", "hparams/seed", "max_epochs", "width")
    assert [found[name] for name in names] == ["0", "12345", "1", "32"]
    assert "hparams/max_epochs" not in found


def test_mlflow_leaves_the_users_run_alone(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlflow").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    given = {"mlflow": {"tags": {"kind": "test"}, "description": "a try"}}
    with mlflow.start_run(run_name="the user's") as mine:
        job = made(
            tmp_path, given, metrics={"acc@1": lambda out, y: (out.argmax(1) == y).float().mean()}
        ).fit()
        job.result()
        assert mlflow.active_run().info.run_id == mine.info.run_id
        mlflow.log_metric("own", 1.0)
        assert mlflow.get_tracking_uri() == uri
    assert not errors(job)
    client, runs = mlflow_runs(uri)
    (run,) = runs.values()
    assert run.data.tags["kind"] == "test"
    assert run.data.tags["mlflow.note.content"] == "a try"
    assert "val_acc_1" in run.data.metrics
    assert client.get_run(mine.info.run_id).data.metrics == {"own": 1.0}


def test_mlflow_continues_a_run_given_by_its_id(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlflow").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.create_run(client.create_experiment("workbench"), run_name="before")
    job = made(tmp_path, {"mlflow": {"run_id": run.info.run_id}}).fit()
    job.result()
    assert not errors(job)
    assert list(mlflow_runs(uri)[1]) == ["before"]
    assert "loss" in client.get_run(run.info.run_id).data.metrics


class Own(GeneralTracker):
    """The user's: keeps what it is told."""

    name = "own"
    requires_logging_directory = False

    def __init__(self):
        super().__init__()
        self.calls = []

    @property
    def tracker(self):
        return self.calls

    def start(self):
        self.calls.append("start")

    def store_init_configuration(self, values):
        self.calls.append(values["run"])

    def log(self, values, step=None, **kwargs):
        self.calls.append((step, values))

    def finish(self):
        self.calls.append("finish")


class Broken(Own):
    name = "broken"

    def log(self, values, step=None, **kwargs):
        raise ConnectionError("no network here")


def test_the_users_tracker_hears_and_a_broken_one_is_said_once(tmp_path):
    own, broken = Own(), Broken()
    plain = made(tmp_path / "plain", None).fit().result()
    b = made(tmp_path, [broken, "tensorboard", own])
    first, second = b.fit(), b.fit()
    runs = first.result(), second.result()
    assert [run.status for run in runs] == ["finished", "finished"]
    np.testing.assert_array_equal(runs[0].history["loss"], plain.history["loss"])
    (text,) = errors(first)
    assert "tracker 'Broken' failed at taking values for 0001-fit" in text
    assert "no network here" in text
    assert not errors(second)
    assert broken.calls == ["start", "0001-fit", "finish", "start", "0002-fit", "finish"]
    losses = [
        values["loss"]
        for step, values in (c for c in own.calls if isinstance(c, tuple))
        if "loss" in values
    ]
    np.testing.assert_array_equal(losses, np.concatenate([run.history["loss"] for run in runs]))
    assert scalars(tmp_path / "trackers" / "tensorboard" / "0002-fit")["loss"][0] == list(
        runs[1].history["step"]
    )


def test_finders_and_dry_runs_are_no_runs(tmp_path):
    own = Own()
    with made(tmp_path, [own, "tensorboard"]) as b:
        b.find_lr(num_training=3).result()
        b.fit(fast_dev_run=1).result()
        b.validate().result()
    assert own.calls == []
    assert not (tmp_path / "trackers").exists()


def test_a_live_change_is_told(tmp_path):
    own = Own()
    b = made(tmp_path, own, max_epochs=10**6)
    b.subscribe(lambda event: b.job.stop() if isinstance(event, Changed) else None)
    job = b.fit()
    job.change(lr=0.125)
    job.result(timeout=240)
    assert [c[1] for c in own.calls if isinstance(c, tuple) and "changed/lr" in c[1]] == [
        {"changed/lr": 0.125}
    ]


def test_what_is_no_tracker_is_said_before_anything_is_tried(tmp_path):
    with pytest.raises(wb.SettingsError, match="tensorboard"):
        made(tmp_path, "tensor_board")
    with pytest.raises(wb.SettingsError, match="pip install trackio"):
        made(tmp_path, "trackio")


SCRIPT = """
import json, sys
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from tests.engine.problems import bench, labelled, plain_net
states = AcceleratorState, GradientState, PartialState
b = bench(plain_net(), labelled(), sys.argv[1], max_epochs=1, trackers="tensorboard")
assert "tensorboard" not in sys.modules and "mlflow" not in sys.modules
b.fit().result()
assert not any(state._shared_state for state in states)
mine = Accelerator(cpu=True, gradient_accumulation_steps=3)
before = [(id(s._shared_state), dict(s._shared_state)) for s in states]
run = b.fit().result()
assert [(id(s._shared_state), dict(s._shared_state)) for s in states] == before
assert mine.gradient_accumulation_steps == 3 and mine.is_main_process
b.fit(max_steps=4, max_epochs=None)
print(json.dumps(run.id))
"""


def test_no_accelerator_is_made_and_the_users_own_goes_on(tmp_path):
    """Also: the end of the process waits for the last fit and for its tracker."""
    done = warm.python().run("-c", SCRIPT, str(tmp_path), timeout=280)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == "0002-fit"
    runs = tmp_path / "trackers" / "tensorboard"
    assert sorted(path.name for path in runs.iterdir()) == ["0001-fit", "0002-fit", "0003-fit"]
    assert scalars(runs / "0003-fit")["loss"][0] == [0, 1, 2, 3]
    assert words(runs / "0003-fit")["status"] in ("finished", "stopped")
