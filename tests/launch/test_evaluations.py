"""Scores and predictions: what they read, how much of it, and that nothing is trained or moved."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from tests.engine.learners import Learner
from tests.engine.problems import adam, labelled, noisy_net, plain_net, same_weights, weights
from workbench.events import Called
from workbench.runs.run import Run
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


def made(model, root, **given):
    return wb.Workbench(model, **{"train": labelled(), "loss": F.cross_entropy, "root": root, "accelerator": "cpu",
                                  "batch_size": 8, "max_epochs": 1, **given})  # fmt: skip


def expected(model, x):
    training = model.training
    model.eval()
    with torch.no_grad():
        found = model(x)
    model.train(training)
    return found


# -- predictions


def test_predictions_are_the_models_in_order(tmp_path):
    """Batch by batch what the model gives; joined they are those of all of the data."""
    model, x = noisy_net(), torch.randn(21, 6)
    b = made(model, tmp_path)
    b.fit().result()
    before, state = weights(model), torch.get_rng_state()
    outputs = b.predict(x).result()
    assert isinstance(outputs, list)
    assert [len(output) for output in outputs] == [8, 8, 5]
    for output, rows in zip(outputs, x.split(8), strict=True):
        assert torch.equal(output, expected(model, rows))
        assert output.device.type == "cpu"
        assert not output.requires_grad
    assert [len(output) for output in b.predict(x, batch_size=21).result()] == [21]
    assert same_weights(before, weights(model))
    assert torch.equal(state, torch.get_rng_state())
    assert b.jobs[-1].kind == "predict"
    assert [r.kind for r in b.runs] == ["fit"]
    assert Run.open(b.jobs[-1].folder.path).status == "finished"


def test_data_of_every_kind(tmp_path):
    model = plain_net()
    data = labelled(20, seed=5)
    x, y = data.tensors
    b = made(model, tmp_path)
    right = torch.cat([expected(model, rows) for rows in x.split(8)])
    batches = [(x[:8], y[:8]), (x[8:16], y[8:16]), (x[16:], y[16:])]
    kinds = {
        "dataset": data,
        "no targets": TensorDataset(x),
        "loader, shuffled": DataLoader(data, batch_size=3, shuffle=True),
        "tensor": x,
        "array": x.numpy(),
        "arrays": (x.numpy(), y.numpy()),
        "one in a tuple": (x,),
        "batches": wb.batches(batches),
        "a generator": iter(batches),
        "inputs in a dict": {"input": x, "y": y},
    }
    for name, kind in kinds.items():
        outputs = b.predict(kind).result()
        assert torch.equal(torch.cat(outputs), right), name
    assert [len(o) for o in b.predict(kinds["loader, shuffled"]).result()] == [8, 8, 4]


def test_without_data_it_is_the_test_data(tmp_path):
    model, held_out = plain_net(), labelled(12, seed=7)
    b = made(model, tmp_path, test=held_out)
    right = torch.cat([expected(model, rows) for rows in held_out.tensors[0].split(8)])
    assert torch.equal(torch.cat(b.predict().result()), right)
    with pytest.raises(
        TaskError, match=r"no data to predict: give bench\.predict\(data\), or test="
    ):
        made(model, tmp_path).predict().result()


def test_an_object_predicts_on_its_own_data(tmp_path):
    class Own(Learner):
        def predict_dataloader(self):
            return DataLoader(torch.arange(30.0).view(5, 6), batch_size=2)

        def predict_step(self, batch, batch_idx):
            return {"batch": batch_idx, "sum": batch.sum(1)}

    b = made(Own(), tmp_path, loss=None, test=None)
    outputs = b.predict(batch_size=2).result()
    assert [o["batch"] for o in outputs] == [0, 1, 2]
    assert torch.equal(torch.cat([o["sum"] for o in outputs]), torch.arange(30.0).view(5, 6).sum(1))
    given = b.predict(Own()).result()  # an object that makes the loader
    assert len(given) == 1  # at the bench's batch size


def test_a_collate_function_is_for_samples(tmp_path):
    def collate(samples):
        return torch.stack([x for x, _ in samples]) * 2, torch.stack([y for _, y in samples])

    model, data = plain_net(), labelled(10)
    b = made(model, tmp_path, collate_fn=collate)
    right = expected(model, data.tensors[0][:8] * 2)
    assert torch.equal(b.predict(data).result()[0], right)
    assert torch.equal(
        b.predict(DataLoader(data)).result()[0], expected(model, data.tensors[0][:8])
    )
    assert torch.equal(b.predict(data.tensors[0]).result()[0], expected(model, data.tensors[0][:8]))


def test_a_stopped_prediction_has_what_was_done(tmp_path):
    class Slow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.calls = torch.nn.Linear(6, 3), 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 5:
                b.jobs[-1].stop()
            return self.line(x)

    model = Slow()
    b = made(model, tmp_path)
    model.calls = 0
    job = b.predict(torch.randn(80, 6))
    assert [len(o) for o in job.result()] == [8] * 5
    assert job.status == "stopped"


def test_what_is_no_data_is_refused_at_once(tmp_path):
    b = made(plain_net(), tmp_path)
    for wrong, words in (
        (7, "not data"),
        (torch.tensor(1.0), "single number"),
        (torch.empty(0, 6), "is empty"),
    ):
        with pytest.raises(TaskError, match=words):
            b.predict(wrong)
    assert b.jobs == []
    assert b.predict([]).result() == []  # no batches, no outputs


def test_the_line_of_a_prediction(tmp_path):
    heard = []
    b = made(plain_net(), tmp_path, listeners=[heard.append])
    b.predict(torch.randn(8, 6), batch_size=4).result()
    assert [e.code for e in heard if isinstance(e, Called)] == ["bench.predict(data, batch_size=4)"]


# -- limits


def test_limits_of_each_stage(tmp_path):
    seen = []

    def loss(output, y):
        seen.append(len(y))
        return F.cross_entropy(output, y)

    model, data = plain_net(), labelled(40, seed=3)
    b = made(model, tmp_path, val=data, test=data, loss=loss)
    x, y = data.tensors

    def mean(count):
        return float(F.cross_entropy(expected(model, x[:count]), y[:count]))

    for limit, count in ((2, 16), (0.5, 16), (1.0, 40), (99, 40)):
        seen.clear()
        assert b.validate(limit_val_batches=limit).result()["val_loss"] == pytest.approx(
            mean(count), rel=1e-6
        )
        assert sum(seen) == count
        assert b.test(limit_test_batches=limit).result()["test_loss"] == pytest.approx(
            mean(count), rel=1e-6
        )
        assert sum(map(len, b.predict(limit_predict_batches=limit).result())) == count
    assert b.predict(limit_predict_batches=0).result() == []
    with pytest.raises(
        TaskError, match=r"limit_predict_batches=0\.1 of 5 batches .*limit_predict_batches=0\.2"
    ):
        b.predict(limit_predict_batches=0.1).result()
    assert b.validate(fast_dev_run=1).result()["val_loss"] == pytest.approx(mean(8), rel=1e-6)
    assert sum(map(len, b.predict(fast_dev_run=2).result())) == 16
    assert b.validate(overfit_batches=3).result()["val_loss"] == pytest.approx(mean(24), rel=1e-6)


# -- a dry run


def test_a_dry_run_is_not_recorded(tmp_path):
    model, root = noisy_net(), tmp_path / "root"
    b = made(model, root, val=labelled(30, 3), test=labelled(30, 4), optimizer=adam, max_epochs=5)
    first = b.fit()
    first.result()
    folders = sorted(root.rglob("*"))
    job = b.fit(fast_dev_run=2)
    run = job.result()
    assert run.status == "finished"
    assert run.step == len(run.history["loss"]) == 2
    assert np.isfinite(run.history["loss"]).all()
    assert "val_loss" in run.metrics
    assert job.folder is None
    assert run.folder is None
    b.find_lr(num_training=3, fast_dev_run=1).result()
    b.validate(fast_dev_run=1).result()
    assert sorted(root.rglob("*")) == folders
    assert [r.id for r in b.runs] == [first.id]
    assert len({j.id for j in b.jobs}) == 4
    with pytest.raises(FileNotFoundError, match=f"there is no run '{job.id}'"):
        b.fit(start=job.id)
    again = b.fit(max_steps=2).result()
    assert np.array_equal(again.history["loss"], run.history["loss"])
    assert again.id == "0002-fit"


def test_a_dry_run_is_not_the_fit_that_is_exported(tmp_path):
    from workbench.export.errors import ExportError

    b = made(plain_net(), tmp_path)
    b.fit(fast_dev_run=1).result()
    with pytest.raises(ExportError, match="no finished fit"):
        b.export(tmp_path / "train.py")
