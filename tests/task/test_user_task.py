"""A Task of the user's own, which knows nothing but the protocol."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled, same_weights, twin_of
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.protocol import Optimization, Scores

pytestmark = pytest.mark.usefixtures("one_thread")


class Pair(nn.Module):
    """A network that encodes and decodes, and one that tells classes by the code."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.code = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 6))
        self.tell = nn.Linear(6, 3)


def losses(model, batch, index):
    x, y = batch
    code = model.code(x)
    return F.mse_loss(code, x) if index == 0 else F.cross_entropy(model.tell(code), y)


class Both(wb.Task):
    def __init__(self, **data):
        self.model = Pair()
        vars(self).update(data)

    def weight(self, batch):
        return float(len(batch[0]))

    def training_step(self, batch, batch_idx, **extra):
        return losses(self.model, batch, extra["optimizer_idx"])

    def validation_step(self, batch, batch_idx, stage="val"):
        return Scores(
            {f"{stage}_{n}": losses(self.model, batch, n) for n in (0, 1)}, self.weight(batch)
        )

    def configure(self, settings, updates):
        code = torch.optim.SGD(self.model.code.parameters(), lr=settings.lr)
        tell = torch.optim.Adam(self.model.tell.parameters(), lr=settings.lr / 10)
        return Optimization(code), Optimization(tell)

    def predict_step(self, batch, batch_idx):
        return self.model.tell(self.model.code(batch[0])).argmax(1)


def by_hand(model, data, epochs):
    code = torch.optim.SGD(model.code.parameters(), lr=0.05)
    tell = torch.optim.Adam(model.tell.parameters(), lr=0.005)
    x, y = data.tensors
    found = []
    for _ in range(epochs):
        for batch in zip(x.split(8), y.split(8), strict=True):
            row = []
            for index, (optimizer, net) in enumerate(((code, model.code), (tell, model.tell))):
                loss = losses(model, batch, index)
                gradients = torch.autograd.grad(loss, list(net.parameters()))
                for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                optimizer.step()
                row.append(float(loss.detach()))
            found.append(row)
    return found


def test_two_optimizers_by_the_protocol_alone(tmp_path):
    data, mine = labelled(40), Both()
    twin = twin_of(mine.model)
    b = wb.Workbench(mine, train=data, val=data, root=tmp_path, accelerator="cpu", batch_size=8, lr=0.05,
                     shuffle=False, max_epochs=2)  # fmt: skip
    assert b.summary.name == "Pair"
    run = b.fit().result()
    rows = by_hand(twin, data, 2)
    assert same_weights(mine.model, twin)
    for n in (0, 1):
        assert run.history[f"loss.{n}"].tolist() == torch.tensor(rows)[:, n].tolist()
    assert run.history["lr.1"][0] == pytest.approx(0.005)
    assert set(b.validate().result()) == {"val_0", "val_1"}


def test_it_may_bring_its_data():
    from workbench.task.factory import task_of

    nothing = {
        "val": None,
        "test": None,
        "loss": None,
        "optimizer": torch.optim.AdamW,
        "scheduler": None,
        "metrics": None,
    }
    brought, given = labelled(10), labelled(20)
    task = task_of(
        Both(train=brought, predict=wb.batches([(torch.zeros(2, 6),)])),
        train=None,
        collate_fn=None,
        **nothing,
    )
    assert isinstance(task.train, DataSpec)
    assert task.train.samples == 10
    assert task.predict.parts.ready
    task = task_of(Both(train=brought), train=given, collate_fn=None, **nothing)
    assert task.train.samples == 20
    with pytest.raises(TaskError, match="loss= is given, but Both brings its own"):
        task_of(Both(), train=given, collate_fn=None, **{**nothing, "loss": F.mse_loss})
    empty = Both()
    del empty.model
    with pytest.raises(TaskError, match=r"Both has no model: set self.model"):
        task_of(empty, train=given, collate_fn=None, **nothing)


def test_a_task_that_does_not_predict():
    class Silent(Both):
        predict_step = wb.Task.predict_step

    with pytest.raises(TaskError, match="Silent defines no predict_step"):
        Silent().predict_step(None, 0)
