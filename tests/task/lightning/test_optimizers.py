"""What `configure_optimizers` may return, and what the steps of an object are told."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.factory import task_of
from workbench.task.lightning.task import LightningTask
from workbench.task.protocol import Optimization

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = TensorDataset(torch.zeros(8, 4))


class Two:
    """Two networks; `configure` says what `configure_optimizers` does with an optimizer of each."""

    def __init__(self, configure=lambda self, g, d: [g, d], **attributes):
        torch.manual_seed(0)
        self.g, self.d = nn.Linear(4, 2), nn.Linear(4, 1)
        self._configure = configure
        vars(self).update(attributes)

    def training_step(self, batch, batch_idx, optimizer_idx):
        return (self.g, self.d)[optimizer_idx](batch[0]).square().mean()

    def configure_optimizers(self):
        rate = getattr(self, "lr", 0.1)
        g, d = (
            torch.optim.SGD(net.parameters(), lr=rate * times)
            for net, times in ((self.g, 1), (self.d, 4))
        )
        return self._configure(self, g, d)


def task(thing, train: Any = DATA) -> LightningTask:
    found = task_of(thing, train=train, val=None, test=None, loss=None, optimizer=torch.optim.AdamW, scheduler=None,
                    metrics=None, collate_fn=None)  # fmt: skip
    assert isinstance(found, LightningTask)
    return found


def made(configure, **settings) -> list[Optimization]:
    found = task(Two(configure)).configure(Settings(lr=0.1, **settings), None)
    return [found] if isinstance(found, Optimization) else list(found)


def step(optimizer):
    return lr_scheduler.StepLR(optimizer, 2)


def plateau(optimizer):
    return lr_scheduler.ReduceLROnPlateau(optimizer)


# -- the forms

PAIRS = [
    (lambda self, g, d: [g, d], (0, 0)),
    (lambda self, g, d: (g, d), (0, 0)),
    (lambda self, g, d: ([g, d], []), (0, 0)),
    (lambda self, g, d: ([g, d], [step(d), step(g)]), (1, 1)),
    (lambda self, g, d: ([g, d], step(d)), (0, 1)),
    (lambda self, g, d: ([g, d], [{"scheduler": step(d), "interval": "step"}, step(d)]), (0, 2)),
    (lambda self, g, d: [{"optimizer": g}, {"optimizer": d, "lr_scheduler": step(d)}], (0, 1)),
    (
        lambda self, g, d: (
            {"optimizer": g, "lr_scheduler": {"scheduler": step(g)}},
            {"optimizer": d},
        ),
        (1, 0),
    ),
    (lambda self, g, d: ({"optimizer": g}, d), (0, 0)),
]


@pytest.mark.parametrize(("configure", "schedules"), PAIRS)
def test_two_optimizers_in_every_form(configure, schedules):
    found = made(configure)
    assert tuple(len(one.schedules) for one in found) == schedules
    # in their order
    assert [len(one.optimizer.param_groups[0]["params"][0]) for one in found] == [2, 1]
    assert all(s.scheduler.optimizer is one.optimizer for one in found for s in one.schedules)
    assert [one.frequency for one in found] == [0, 0]


@pytest.mark.parametrize("configure", [
    lambda self, g, d: g,
    lambda self, g, d: [g],
    lambda self, g, d: ([g], []),
    lambda self, g, d: {"optimizer": g},
    lambda self, g, d: [{"optimizer": g, "lr_scheduler": [step(g)]}],
    lambda self, g, d: {"optimizer": g, "frequency": 3},
])  # fmt: skip
def test_one_optimizer_in_every_form(configure):
    (one,) = made(configure)
    assert isinstance(task(Two(configure)).configure(Settings(lr=0.1), None), Optimization)
    assert one.frequency == 0


def test_frequencies():
    turns = [{"frequency": 1}, {"frequency": 5}]
    found = made(
        lambda self, g, d: [{"optimizer": o, **turn} for o, turn in zip((g, d), turns, strict=True)]
    )
    assert [one.frequency for one in found] == [1, 5]
    for wrong in ([{"frequency": 1}, {}], [{"frequency": 0}, {"frequency": 1}]):
        with pytest.raises(TaskError, match=r"frequencies .*each needs one"):
            made(
                lambda self, g, d, w=wrong: [
                    {"optimizer": o, **t} for o, t in zip((g, d), w, strict=True)
                ]
            )


def test_what_a_scheduler_dict_says():
    def configure(self, g, d):
        watching = {
            "scheduler": plateau(g),
            "monitor": "val_accuracy",
            "frequency": 2,
            "strict": False,
        }
        return [g, d], [
            watching,
            {"scheduler": step(d), "interval": "step", "frequency": 3, "name": "d"},
        ]

    g, d = (one.schedules[0] for one in made(configure))
    assert (g.interval, g.frequency, g.monitor) == ("epoch", 2, "val_accuracy")
    assert (d.interval, d.frequency, d.monitor) == ("step", 3, None)
    (one,) = made(
        lambda self, g, d: {"optimizer": g, "lr_scheduler": plateau(g), "monitor": "val_loss"}
    )
    assert one.schedules[0].monitor == "val_loss"


@pytest.mark.parametrize(("scheduler", "message"), [
    (plateau, "a ReduceLROnPlateau without a monitor: name the metric"),
    (lambda o: {"scheduler": plateau(o)}, "a ReduceLROnPlateau without a monitor"),
    (lambda o: {"scheduler": plateau(o), "monitor": "val_loss", "interval": "step"}, "set val_check_interval"),
    (lambda o: {"scheduler": step(o), "reduce_on_plateau": True}, "a StepLR with reduce_on_plateau=True"),
    (lambda o: {"schedule": step(o)}, "belongs under 'scheduler'"),
    (lambda o: {"scheduler": step(o), "interval": "batch"}, "interval='batch'"),
    (lambda o: {"scheduler": step(o), "frequency": 0.5}, "frequency=0.5"),
    (lambda o: 3, "a int, no torch.optim.lr_scheduler.LRScheduler"),
    (lambda o: step(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1)), "an optimizer that it did not return"),
])  # fmt: skip
def test_schedulers_that_are_refused(scheduler, message):
    with pytest.raises(TaskError, match=rf"Two.configure_optimizers\(\) returned .*{message}"):
        made(lambda self, g, d: ([g], [scheduler(g)]))


def test_a_built_in_schedule_beside_the_objects_own():
    def scheduled(self, g, d):
        return [g, d], [step(d)]

    refused = r"cannot go with the scheduler of Two.configure_optimizers\(\)"
    assert made(lambda self, g, d: g, lr_schedule="linear")
    with pytest.raises(TaskError, match=rf"lr_schedule='linear' {refused}"):
        made(scheduled, lr_schedule="linear")
    assert made(scheduled, warmup=10)[1].schedules
    with pytest.raises(TaskError, match=rf"warmup=10 {refused}, which the module's own code steps"):
        task(Two(scheduled, automatic_optimization=False)).configure(Settings(warmup=10), None)


@pytest.mark.parametrize("returned", [None, [], [None], {"lr_scheduler": 1}, ([], []), "adam"])
def test_no_optimizer(returned):
    with pytest.raises(TaskError, match="an optimizer is needed"):
        made(lambda self, g, d: returned)


# -- rates


def test_rates_that_the_object_reads():
    """Each optimizer has made of the job's rate what it wants; nothing is scaled."""
    t = task(Two(lr=0.2))
    assert t.implied["lr"] == 0.2
    with t.running(Settings(lr=0.5)):
        found = t.configure(Settings(lr=0.5), None)
    assert [one.lr for one in found] == [None, None]
    assert [one.optimizer.param_groups[0]["lr"] for one in found] == [0.5, 2.0]


def test_rates_that_are_written_in_the_code():
    t = task(Two())
    assert t.implied["lr"] == 0.1
    assert [one.lr for one in t.configure(Settings(lr=0.5), None)] == [0.1, 0.4]


def test_a_rate_that_only_the_second_optimizer_reads():
    def configure(self, g, d):
        g.param_groups[0]["lr"] = 0.7
        d.param_groups[0]["lr"] = self.lr
        return g, d

    t = task(Two(configure, lr=0.2))
    assert t.implied["lr"] == 0.2
    with t.running(Settings(lr=0.3)):
        found = t.configure(Settings(lr=0.3), None)
    assert [one.lr for one in found] == [None, None]
    assert [one.optimizer.param_groups[0]["lr"] for one in found] == [0.7, 0.3]


def test_weight_decay_is_given_to_all():
    assert [
        one.optimizer.param_groups[0]["weight_decay"] for one in made(PAIRS[0][0], weight_decay=0.3)
    ] == [0.3, 0.3]


def test_the_same_second_optimizer_again():
    kept = []

    def configure(self, g, d):
        kept.append(d)
        return g, kept[0]

    t = task(Two(configure))
    t.configure(Settings(lr=0.1), None)
    with pytest.raises(TaskError, match="returned the same optimizer again"):
        t.configure(Settings(lr=0.1), None)


# -- what a training_step is told, and returns


def with_step(function, **attributes):
    thing = Two(lambda self, g, d: g, **attributes)
    vars(thing)["training_step"] = function
    return task(thing)


@pytest.mark.parametrize(("function", "told"), [
    (lambda batch: told_as(batch), ()),
    (lambda batch, batch_idx: told_as(batch, batch_idx), (7,)),
    (lambda batch, optimizer_idx: told_as(batch, optimizer_idx), (1,)),
    (lambda batch, batch_idx, optimizer_idx: told_as(batch, batch_idx, optimizer_idx), (7, 1)),
    (lambda batch, batch_idx, optimizer_idx, hiddens: told_as(batch, batch_idx, optimizer_idx, hiddens), (7, 1, "h")),
    (lambda batch, batch_idx, hiddens: told_as(batch, batch_idx, hiddens), (7, "h")),
    (lambda batch, batch_idx, **_: told_as(batch, batch_idx), (7,)),
])  # fmt: skip
def test_a_training_step_is_told_what_it_asks_for(function, told):
    extra: dict[str, Any] = {"optimizer_idx": 1}
    if "h" in told:
        extra["hiddens"] = "h"
    loss = with_step(function).training_step("batch", 7, **extra)
    assert (loss["loss"] if isinstance(loss, dict) else loss).told == ("batch", *told)


def test_a_step_for_which_there_is_nothing_to_tell():
    """One optimizer, whole batches: it is the first, and a batch begins without hidden state."""
    loss = with_step(
        lambda batch, optimizer_idx, hiddens: told_as(batch, optimizer_idx, str(hiddens))
    )
    assert loss.training_step("batch", 7).told == ("batch", 0, "None")
    loss = with_step(lambda batch, optimizer_idx=3: told_as(batch, optimizer_idx))
    assert loss.training_step("batch", 7).told == ("batch", 3)


def told_as(*arguments):
    loss = torch.zeros((), requires_grad=True)
    loss.told = arguments
    return {"loss": loss, "hiddens": 1} if "h" in arguments else loss


def test_what_a_training_step_may_return():
    loss = torch.zeros((), requires_grad=True)

    def returned(value, **extra):
        return with_step(lambda batch, hiddens: value).training_step(None, 0, **extra)

    assert returned(loss) is loss
    assert returned({"loss": loss, "log": {"a": 1}}) is loss
    assert returned({"loss": loss, "hiddens": 2}) is loss  # nobody carries it on
    assert returned(None) is None
    assert returned({"loss": loss, "weight": 3}) == {"loss": loss, "weight": 3.0}
    assert returned({"loss": loss, "weight": 3, "hiddens": 2}, hiddens=None) == {
        "loss": loss,
        "weight": 3.0,
        "hiddens": 2,
    }
    assert returned({"loss": loss, "hiddens": None}, hiddens=None) == {
        "loss": loss,
        "hiddens": None,
    }
    for wrong in ({"wrong": loss}, 0.5, {"loss": None}):
        with pytest.raises(TaskError, match="it must return the loss, or a dict with 'loss'"):
            returned(wrong)
    with pytest.raises(TaskError, match=r"must return \{'loss': loss, 'hiddens': hiddens\}"):
        returned(loss, hiddens=None)
    with pytest.raises(TaskError, match="training_step returned weight='3': it must be one number"):
        returned({"loss": loss, "weight": "3"})


def test_a_training_step_that_takes_no_hidden_state():
    with pytest.raises(
        TaskError, match=r"Two.training_step must take the hidden state.*batch_idx, hiddens\)"
    ):
        with_step(lambda batch, batch_idx: None).training_step(None, 0, hiddens=None)


def test_several_optimizers_need_a_step_that_knows_which():
    thing = Two()
    vars(thing)["training_step"] = lambda batch, batch_idx: None
    with pytest.raises(
        TaskError,
        match=r"2 optimizers: let training_step take optimizer_idx.*automatic_optimization = False",
    ):
        task(thing).configure(Settings(lr=0.1), None)
    vars(thing)["automatic_optimization"] = False
    assert len(task(thing).configure(Settings(lr=0.1), None)) == 2


def test_truncated_bptt_as_lightning_1_says_it():
    assert task(Two(truncated_bptt_steps=5)).implied["truncated_bptt_steps"] == 5
    assert "truncated_bptt_steps" not in task(Two(truncated_bptt_steps=0)).implied
    manual = task(Two(truncated_bptt_steps=5, automatic_optimization=False))
    assert "truncated_bptt_steps" not in manual.implied  # there it is the module's own affair
    assert task(Two()).split("abcd", 2, 1) is None
    own = task(
        Two(
            tbptt_split_batch=lambda batch, split_size: (
                batch[i : i + split_size] for i in range(0, 4, split_size)
            )
        )
    )
    assert own.split("abcd", 2, 1) == ["ab", "cd"]


# -- scores and predictions


def test_a_validation_batch_that_reports_its_weight():
    loss = torch.tensor(2.0)
    t = task(
        Two(validation_step=lambda batch, batch_idx: {"loss": loss, "weight": torch.tensor(12)})
    )
    scores = t.validation_step((torch.zeros(3, 4),), 0)
    assert (scores.values, scores.weight) == ({"val_loss": loss}, 12.0)
    assert (
        task(Two(validation_step=lambda batch: loss))
        .validation_step((torch.zeros(3, 4),), 0)
        .weight
        == 3.0
    )


def test_predictions():
    x = torch.ones(3, 4)
    own = Two(
        predict_step=lambda batch, batch_idx, dataloader_idx=0: (batch, batch_idx, dataloader_idx)
    )
    assert task(own).predict_step(x, 7) == (x, 7, 0)
    assert task(Two(predict_step=lambda batch: batch)).predict_step(x, 7) is x
    assert task(Two(forward=lambda batch: batch + 1)).predict_step(x, 0)[0, 0] == 2
    with pytest.raises(TaskError, match="Two defines neither predict_step nor forward"):
        task(Two()).predict_step(x, 0)

    class Module(nn.Module):
        training_step, configure_optimizers = Two.training_step, Two.configure_optimizers

        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 1)

        def forward(self, batch):
            return self.net(batch)

    module = Module()
    assert torch.equal(task(module).predict_step(x, 0), module.net(x))
    del Module.forward
    with pytest.raises(TaskError, match="Module defines neither predict_step nor forward"):
        task(module).predict_step(x, 0)


def test_the_data_to_predict():
    seen = []
    loader = DataLoader(DATA, batch_size=3)
    module = Two(predict_dataloader=lambda: loader, setup=seen.append)
    spec = task(module).predict
    assert seen == ["fit"]
    assert spec is not None
    assert spec.defaults["batch_size"] == 3
    assert seen == ["fit", "predict"]

    class Data:
        def train_dataloader(self):
            return DataLoader(DATA)

        def predict_dataloader(self):
            return loader

    assert task(module, Data()).predict.parts.dataset is DATA
    assert task(Two()).predict is None
