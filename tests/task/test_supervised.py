"""A module with a loss: hidden state, weights, targets in what is predicted, schedulers, packed sequences."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

import workbench as wb
from tests.engine.problems import labelled, plain_net, same_weights, twin_of
from workbench.settings import Settings
from workbench.task.batch import describe, leaves, sample_count, to_device
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.factory import task_of

pytestmark = pytest.mark.usefixtures("one_thread")


def task(model: nn.Module, **more: Any) -> Any:
    given: dict[str, Any] = {
        "train": labelled(20), "val": None, "test": None, "loss": F.cross_entropy, "optimizer": torch.optim.SGD,
        "scheduler": None, "metrics": None, "collate_fn": None, **more,
    }  # fmt: skip
    return task_of(model, **given)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.RNN(3, 4, batch_first=True)

    def forward(self, x, hiddens):
        return self.net(x, hiddens)


def series(n=4, length=6):
    torch.manual_seed(1)
    return torch.randn(n, length, 3), torch.randn(n, length, 4)


# -- hidden state


def test_hidden_state_is_handed_on():
    x, y = series()
    t = task(Recurrent(), loss=F.mse_loss, train=(x, y))
    with t.running(Settings(truncated_bptt_steps=3)):
        first = t.training_step((x[:, :3], y[:, :3]), 0, hiddens=None)
        second = t.training_step((x[:, 3:], y[:, 3:]), 0, hiddens=first["hiddens"])
        whole = t.validation_step((x, y), 0)
        predicted = t.predict_step((x, y), 0)
    output, state = t.model(x, None)
    assert torch.allclose(second["hiddens"], state)
    assert torch.equal(predicted, output)
    assert torch.equal(whole.values["val_loss"], F.mse_loss(output, y))
    assert torch.allclose((first["loss"] + second["loss"]) / 2, F.mse_loss(output, y))


def test_hidden_state_of_a_model_that_takes_a_dict():
    class Named(Recurrent):
        def forward(self, x, hiddens=None):
            return self.net(x, hiddens)

    x, y = series()
    t = task(Named(), loss=F.mse_loss, train={"x": x, "y": y})
    found = t.training_step({"x": x, "y": y}, 0, hiddens=None)
    assert set(found) == {"loss", "hiddens"}


def test_metrics_see_the_output_alone():
    x, y = series()
    t = task(Recurrent(), loss=F.mse_loss, train=(x, y), metrics={"l1": F.l1_loss})
    with t.running(Settings(truncated_bptt_steps=3)):
        assert set(t.validation_step((x, y), 0).values) == {"val_loss", "val_l1"}
    with pytest.raises(TypeError):  # and behind the job the model is called as it was
        t.validation_step((x, y), 0)


def test_a_model_that_returns_no_hidden_state():
    class Forgets(Recurrent):
        def forward(self, x, hiddens):
            return super().forward(x, hiddens)[0]

    x, y = series()
    with pytest.raises(
        TaskError,
        match=r"model\(x, hiddens\).*must return \(output, hiddens\); Forgets returned a Tensor",
    ):
        task(Forgets(), loss=F.mse_loss, train=(x, y)).training_step((x, y), 0, hiddens=None)


# -- weights


def by_tokens(output, y):
    return {"loss": F.cross_entropy(output, y), "weight": (y > 0).sum()}


def test_a_loss_that_reports_its_weight():
    x, y = labelled(20).tensors
    t = task(plain_net(), loss=by_tokens)
    found = t.training_step((x, y), 0)
    assert float(found["weight"]) == float((y > 0).sum())
    assert torch.equal(found["loss"], F.cross_entropy(t.model(x), y))
    scores = t.validation_step((x, y), 0)
    assert scores.weight == float((y > 0).sum())
    assert isinstance(scores.weight, float)
    assert torch.equal(scores.values["val_loss"], F.cross_entropy(t.model(x), y))
    assert task(plain_net()).validation_step((x, y), 0).weight == 20.0


@pytest.mark.parametrize("weight", ["many", torch.ones(3), True])
def test_weights_that_are_none(weight):
    t = task(
        plain_net(), loss=lambda output, y: {"loss": F.cross_entropy(output, y), "weight": weight}
    )
    with pytest.raises(TaskError, match=r"the loss returned weight=.*one number"):
        t.training_step(labelled(4).tensors, 0)


@pytest.mark.parametrize("weight", [-1, float("nan"), torch.tensor(-2.0), float("inf")])
def test_weights_that_cannot_weigh(weight):
    t = task(
        plain_net(), loss=lambda output, y: {"loss": F.cross_entropy(output, y), "weight": weight}
    )
    with pytest.raises(TaskError, match=r"the loss returned weight=.*0 or more"):
        t.training_step(labelled(4).tensors, 0)


def test_a_loss_dict_without_a_loss():
    t = task(plain_net(), loss=lambda output, y: {"nll": F.cross_entropy(output, y)})
    with pytest.raises(
        TaskError, match=r"a dict with \['nll'\]: it needs the loss, a tensor, under 'loss'"
    ):
        t.training_step(labelled(4).tensors, 0)


# -- prediction


def test_predicting_with_and_without_targets():
    x, y = labelled(6).tensors
    t = task(plain_net())
    t.training_step([x, y], 0)
    output = t.model(x)
    for batch in ([x, y], (x, y), [x], (x,), x):
        assert torch.equal(t.predict_step(batch, 0), output)


def test_predicting_from_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = plain_net()

        def forward(self, a, b):
            return self.net(a + b)

    x, y = labelled(6).tensors
    t = task(Two(), train=(x, x, y))
    t.training_step([x, 2 * x, y], 0)
    # two parts are two inputs, once batches of three were seen
    for batch in ([x, 2 * x, y], [x, 2 * x]):
        assert torch.equal(t.predict_step(batch, 0), t.model(x, 2 * x))


def test_predicting_from_a_dict():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = plain_net()

        def forward(self, x):
            return self.net(x)

    x, y = labelled(6).tensors
    t = task(Named(), train={"x": x, "labels": y})
    for batch in ({"x": x, "labels": y}, {"x": x}):
        assert torch.equal(t.predict_step(batch, 0), t.model(x))


def test_predicting_without_a_loss_gives_the_model_all_of_the_batch():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = plain_net()

        def forward(self, x, labels=None):
            output = self.net(x)
            return (
                {"logits": output}
                if labels is None
                else {"logits": output, "loss": F.cross_entropy(output, labels)}
            )

    x, y = labelled(6).tensors
    t = task(Own(), loss=None, train={"x": x, "labels": y})
    t.training_step({"x": x, "labels": y}, 0)
    assert "loss" in t.predict_step({"x": x, "labels": y}, 0)
    assert set(t.predict_step({"x": x}, 0)) == {"logits"}


def test_an_output_of_transformers_stays_one_on_another_device():
    from transformers.modeling_outputs import SequenceClassifierOutput

    output = SequenceClassifierOutput(loss=torch.ones(()), logits=torch.ones(2, 3))
    moved = to_device(output, torch.device("meta"))
    assert type(moved) is SequenceClassifierOutput
    assert moved.keys() == {"loss", "logits"}
    assert moved.logits.is_meta
    assert moved["logits"].is_meta
    assert not output.logits.is_meta


# -- schedulers


def plateau(optimizer, _):
    return lr_scheduler.ReduceLROnPlateau(optimizer)


def constant(optimizer, updates):
    return lr_scheduler.ConstantLR(optimizer, total_iters=updates)


def test_schedulers_in_all_their_forms():
    def several(optimizer, updates):
        own = wb.Schedule(plateau(optimizer, updates), frequency=2, monitor="val_l1")
        return [constant(optimizer, updates), wb.Schedule(constant(optimizer, 3), "epoch", 4), own]

    def forms(scheduler):
        found = task(plain_net(), scheduler=scheduler).configure(Settings(), 10)
        return [(s.interval, s.frequency, s.monitor) for s in found.schedules]

    assert forms(constant) == [("step", 1, None)]
    assert forms(plateau) == [("epoch", 1, "val_loss")]
    assert forms(lambda o, n: wb.Schedule(plateau(o, n))) == [("epoch", 1, "val_loss")]
    assert forms(several) == [("step", 1, None), ("epoch", 4, None), ("epoch", 2, "val_l1")]
    assert forms(None) == []


@pytest.mark.parametrize(("scheduler", "message"), [
    (lambda o, n: None, "returned a NoneType"),
    (lambda o, n: [constant(o, n), 3], "returned a int"),
    (lambda o, n: wb.Schedule(constant(o, n), "batch"), "interval='batch'"),
    (lambda o, n: wb.Schedule(constant(o, n), frequency=0), "frequency=0"),
])  # fmt: skip
def test_schedulers_that_are_refused(scheduler, message):
    with pytest.raises(TaskError, match=message):
        task(plain_net(), scheduler=scheduler).configure(Settings(), 10)


def test_a_built_in_schedule_beside_the_users_own():
    settings = Settings(lr_schedule="cosine")
    with pytest.raises(TaskError, match="lr_schedule='cosine' cannot go with scheduler="):
        task(plain_net(), scheduler=constant).configure(settings, 10)
    assert task(plain_net()).configure(settings, 10).schedules == ()


# -- packed sequences


class Sequences(Dataset):
    """Of different lengths, with one label each."""

    def __init__(self, n=12):
        g = torch.Generator().manual_seed(0)
        self.data = [(torch.randn(3 + i % 4, 3, generator=g), i % 2) for i in range(n)]

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index]


def pack(samples):
    return pack_sequence([x for x, _ in samples], enforce_sorted=False), torch.tensor(
        [y for _, y in samples]
    )


class Packed(nn.Module):
    """The last output of each sequence."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.out = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, packed):
        padded, lengths = pad_packed_sequence(self.net(packed)[0], batch_first=True)
        return self.out(padded[torch.arange(len(lengths)), lengths - 1])


def test_packed_sequences_train_like_a_plain_loop(tmp_path):
    data, model = Sequences(), Packed()
    twin = twin_of(model)
    b = wb.Workbench(
        model, train=data, val=data, loss=F.cross_entropy, collate_fn=pack, optimizer=torch.optim.SGD, root=tmp_path,
        accelerator="cpu", batch_size=5, lr=0.1, max_epochs=2, shuffle=False, accumulate_grad_batches=2,
    )  # fmt: skip
    run = b.fit().result()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for _ in range(2):
        for window in ([range(5), range(5, 10)], [range(10, 12)]):
            total = sum(map(len, window))
            for part in window:
                x, y = pack([data[i] for i in part])
                loss = F.cross_entropy(twin(x), y)
                (loss if len(window) == 1 else loss * (len(part) / total)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert run.step == 4
    assert same_weights(model, twin)
    x, y = pack([data[i] for i in range(12)])
    assert run.metrics["val_loss"] == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-5)


def test_validations_tests_and_predictions_have_a_collate_fn_of_their_own(tmp_path):
    x, y = torch.randn(24, 6, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 3
    data, model = TensorDataset(x, y), nn.Linear(6, 3)
    noise = torch.Generator()

    def noisy(samples):
        inputs, targets = default_collate(samples)
        return inputs + torch.randn(inputs.shape, generator=noise), targets

    def halved(samples):
        inputs, targets = default_collate(samples)
        return inputs / 2, targets

    twin = twin_of(model)
    b = wb.Workbench(
        model, train=data, val={"a": data, "b": data}, test=data, loss=F.cross_entropy, collate_fn=noisy, val_collate_fn=halved,
        optimizer=torch.optim.SGD, root=tmp_path, accelerator="cpu", batch_size=8, lr=0.1, max_epochs=1, shuffle=False,
    )  # fmt: skip
    noise.manual_seed(0)
    run = b.fit().result()
    noise.manual_seed(0)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for i in range(0, 24, 8):
        inputs, targets = noisy([data[k] for k in range(i, i + 8)])
        F.cross_entropy(twin(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert same_weights(model, twin)
    held_out = F.cross_entropy(twin(x / 2), y).item()
    assert run.metrics["val_loss/a"] == run.metrics["val_loss/b"] == pytest.approx(held_out)
    assert b.test().result()["test_loss"] == pytest.approx(held_out)
    assert torch.allclose(torch.cat(b.predict(data).result()), twin(x / 2))


def test_two_collate_functions_for_one_loader_are_refused(tmp_path):
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    data, model = TensorDataset(x, y), nn.Linear(6, 3)

    def own(samples):
        return default_collate(samples)

    def given(samples):
        return default_collate(samples)

    loader = DataLoader(data, 8, collate_fn=own)
    rest = {"loss": F.cross_entropy, "root": tmp_path, "accelerator": "cpu"}
    with pytest.raises(
        TaskError,
        match=r"the DataLoader of train has a collate_fn, .*own.*, which collate_fn= would replace with .*given.*: give the data set.*val_collate_fn=",
    ):
        wb.Workbench(model, train=loader, collate_fn=given, **rest)
    with pytest.raises(
        TaskError,
        match=r"the DataLoader of val has a collate_fn, .*own.*which collate_fn= or val_collate_fn= would replace",
    ):
        wb.Workbench(model, train=data, val=loader, collate_fn=given, **rest)
    assert (
        wb.Workbench(model, train=data, val=loader, collate_fn=given, val_collate_fn=own, **rest)
        .fit(max_epochs=1)
        .result()
        .step
    )
    with pytest.raises(
        TaskError, match=r"^val_collate_fn=5 cannot be called: give a function of a list of samples"
    ):
        wb.Workbench(model, train=data, val=data, val_collate_fn=5, **rest)


def test_a_collate_function_beside_a_model_that_makes_its_loaders_is_refused(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, batch):
            return self.layer(batch[0])

        def training_step(self, batch, batch_idx):
            return self(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

        def train_dataloader(self):
            return DataLoader(TensorDataset(torch.ones(8, 6)), 4)

    with pytest.raises(
        TaskError,
        match=r"^collate_fn= has no effect on train, whose loader Own makes: give it to that loader",
    ):
        wb.Workbench(Own(), collate_fn=default_collate, root=tmp_path, accelerator="cpu")
    data = TensorDataset(torch.ones(8, 6))
    assert (
        wb.Workbench(
            Own(), train=data, val_collate_fn=default_collate, root=tmp_path, accelerator="cpu"
        )
        .predict(data)
        .result()
    )


def test_a_packed_sequence_is_one_thing():
    packed, y = pack(Sequences(4).data)
    assert sample_count((packed, y)) == sample_count(packed) == 4
    assert [name for name, _ in leaves((packed, y))] == ["0", "1"]
    assert leaves(packed)[0][1] is packed.data
    assert (
        describe((packed, y))
        == "0: (18, 3) float32 packed from 4 sequences of up to 6, 1: (4,) int64"
    )
    moved = to_device((packed, y), torch.device("cpu"))
    assert torch.equal(moved[0].data, packed.data)
    assert describe(DataSpec.of("train", wb.batches([(packed, y)])).peek(2)) == describe(
        (packed, y)
    )

    class Scored(Packed):
        def forward(self, packed):
            return {"loss": super().forward(packed).square().mean()}

    t = task(Scored(), loss=None, train=wb.batches([packed]))
    assert t.training_step(packed, 0).ndim == 0
    with pytest.raises(
        TaskError, match=r"a batch is a PackedSequence; with loss= it must be \(x, y\)"
    ):
        task(Packed()).training_step(packed, 0)


def test_a_nan_in_a_packed_sequence_is_named(tmp_path):
    data = Sequences()
    data.data[0][0][0, 0] = float("nan")
    with pytest.raises(
        TaskError, match="The data holds NaN or infinite values in element 0: clean it first"
    ):
        wb.Workbench(
            Packed(),
            train=data,
            loss=F.cross_entropy,
            collate_fn=pack,
            root=tmp_path,
            accelerator="cpu",
        )


def test_samples_that_are_lists_of_numbers_are_explained(tmp_path):
    """torch's own collation makes one tensor for each place in a list, which few models take."""
    samples = [{"x": [0.0, 1.0, 2.0, 3.0, 4.0], "y": n % 2} for n in range(6)]

    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x)

    with pytest.raises(
        TaskError, match=r"'x' is a list of 5 tensors.*torch\.tensor\(x\).*collate_fn="
    ) as error:
        wb.Workbench(Net(5, 2), train=samples, loss=F.cross_entropy, root=tmp_path)
    assert "x: 5 of (2,) float64, y: (2,) int64" in str(error.value)


def test_a_loss_that_returns_more_than_itself_is_explained(tmp_path):
    net = nn.Linear(5, 3)
    with pytest.raises(
        TaskError,
        match=r"give the loss alone \(loss=lambda output, y: your_loss\(output, y\)\[0\], say\)",
    ) as error:
        wb.Workbench(
            net,
            train=(torch.randn(20, 5), torch.zeros(20).long()),
            loss=lambda o, y: (F.cross_entropy(o, y), o),
            root=tmp_path,
        )
    assert len(str(error.value)) < 300


def test_labels_that_are_texts_are_explained(tmp_path):
    samples = [(torch.randn(5), "cat") for _ in range(20)]
    with pytest.raises(
        TaskError, match=r"the labels are texts \('cat', …\): make numbers of them in the data set"
    ):
        wb.Workbench(
            nn.Linear(5, 3), train=samples, loss=F.cross_entropy, batch_size=4, root=tmp_path
        )


@pytest.mark.parametrize("at", [0, 1])
def test_a_sample_that_is_none_is_named(at, tmp_path):
    samples = [(torch.randn(5), 0) for _ in range(20)]
    samples[at] = None
    with pytest.raises(
        TaskError,
        match=r"train: a sample is None: leave such samples out of the data set, or give collate_fn=",
    ):
        wb.Workbench(
            nn.Linear(5, 3), train=samples, loss=F.cross_entropy, batch_size=4, root=tmp_path
        )


def test_many_tensors_are_described_in_part():
    many = describe([(torch.zeros(2, n), torch.zeros(2)) for n in range(20)])
    assert many.endswith("and 28 more")
    assert (
        describe({"x": [torch.zeros(2)] * 20, "y": torch.zeros(2)})
        == "x: 20 of (2,) float32, y: (2,) float32"
    )


def test_a_dict_for_a_model_that_takes_it_whole_is_explained(tmp_path):
    class Whole(nn.Linear):
        def forward(self, batch):
            return {"loss": super().forward(batch["x"]).mean()}

    with pytest.raises(
        TaskError,
        match=r"passed by its names \(x, y\), which Whole.forward\(batch\) does not take.*training_step",
    ):
        wb.Workbench(
            Whole(5, 3), train={"x": torch.randn(20, 5), "y": torch.zeros(20)}, root=tmp_path
        )


def test_a_loss_that_is_none_in_a_validation_is_explained(tmp_path):
    def some(output, target):
        return F.cross_entropy(output, target) if target[0] == 0 else None

    x, y = torch.randn(4, 5), torch.tensor([0, 0, 1, 1])
    made = wb.Workbench(
        nn.Linear(5, 3),
        train=(x, y),
        val=(x, y),
        loss=some,
        batch_size=2,
        max_epochs=1,
        root=tmp_path,
        accelerator="cpu",
    )
    with (
        made,
        pytest.raises(
            TaskError,
            match=r"the loss returned None.*a number for each: return one where torch.is_grad_enabled\(\) is False",
        ),
    ):
        made.fit().result()


# -- parameters() of the model's own


class HeadOnly(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.body(x))

    def parameters(self, recurse=True):
        return self.head.parameters(recurse)


def test_an_overridden_parameters_decides_what_is_trained(tmp_path, recwarn):
    model, twin = HeadOnly(), HeadOnly()
    settings = {
        "batch_size": 20,
        "max_steps": 4,
        "lr": 0.1,
        "accelerator": "cpu",
        "root": tmp_path,
        "shuffle": False,
    }
    with wb.Workbench(
        model, train=labelled(20), loss=F.cross_entropy, optimizer=torch.optim.SGD, **settings
    ) as b:
        run = b.fit().result()
    assert not [w for w in recwarn if "optimizer" in str(w.message)], "the class says so itself"
    optimizer, (x, y) = torch.optim.SGD(twin.parameters(), lr=0.1), labelled(20).tensors
    for loss in run.history["loss"]:
        own = F.cross_entropy(twin(x), y)
        assert own.item() == loss
        optimizer.zero_grad()
        own.backward()
        optimizer.step()
    same_weights(model, twin)


def test_parameters_that_are_groups_are_refused_with_a_remedy_that_works(tmp_path):
    class Groups(HeadOnly):
        def parameter_groups(self):
            return [
                {"params": self.body.parameters(), "lr": 0.01},
                {"params": self.head.parameters()},
            ]

        parameters = nn.Module.parameters

    class Wrong(Groups):
        def parameters(self, recurse=True):
            return self.parameter_groups()

    with pytest.raises(
        TaskError,
        match=r"Wrong.parameters\(\) returns parameter groups.*model.parameter_groups\(\), lr=lr",
    ):
        task(Wrong())
    model = Groups()
    settings = {"max_steps": 2, "lr": 0.1, "accelerator": "cpu", "root": tmp_path}
    with wb.Workbench(
        model,
        train=labelled(),
        loss=F.cross_entropy,
        optimizer=lambda params, lr: torch.optim.SGD(model.parameter_groups(), lr=lr),
        **settings,
    ) as b:
        assert len(b.fit().result().history["loss"]) == 2


# -- more in a batch than the model takes


def test_texts_that_forward_does_not_take_are_left_out(tmp_path):
    x, y = labelled(20).tensors
    samples = [
        {"input": one, "label": label, "path": f"{n}.png"}
        for n, (one, label) in enumerate(zip(x, y, strict=True))
    ]
    settings = {
        "loss": F.cross_entropy,
        "accelerator": "cpu",
        "max_epochs": 2,
        "batch_size": 4,
        "root": tmp_path,
    }
    losses = []
    for data in (labelled(20), samples):
        with wb.Workbench(twin_of(plain_net()), train=data, val=data, **settings) as b:
            losses.append(list(b.fit().result().history["loss"]))
    assert losses[0] == losses[1]

    class Sees(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.seen = nn.Linear(6, 3), []

        def forward(self, input, path):
            self.seen.extend(path)
            return self.net(input)

    model = Sees()
    t = task(model, train=samples)
    t.training_step(default_collate(samples[:2]), 0)
    assert model.seen == ["0.png", "1.png"]


def test_numbers_that_forward_does_not_take_are_refused_with_a_remedy():
    x, y = labelled(4).tensors
    with pytest.raises(
        TaskError,
        match=r"Linear.forward\(input\) does not take 'idx' of the batch: leave it out .* or let forward take it, idx=None",
    ):
        task(nn.Linear(6, 3)).training_step({"input": x, "y": y, "idx": y, "path": ["a"] * 4}, 0)
    with pytest.raises(TaskError, match=r"takes 'input', and the batch has 'inputs': rename it"):
        task(nn.Linear(6, 3)).training_step({"inputs": x, "y": y}, 0)
    with pytest.raises(
        TaskError,
        match=r"a batch has 3 parts: .*default_collate\(\[\(x, y\) for x, y, \*_ in samples\]\)",
    ):
        task(nn.Linear(6, 3)).training_step((x, y, ["a"] * 4), 0)


@pytest.mark.parametrize(
    "loss", [nn.TripletMarginLoss(), F.triplet_margin_loss, nn.CosineEmbeddingLoss(), nn.CTCLoss()]
)
def test_a_loss_of_more_than_output_and_target_is_refused_with_a_remedy_that_works(loss, tmp_path):
    with pytest.raises(
        TaskError,
        match=r"is called as loss\(output, target\)\. Leave loss= out.*\{'loss': the_loss",
    ):
        task(nn.Linear(6, 3), loss=loss)


class Triplets(nn.Module):
    """The remedy, as the message has it."""

    def __init__(self):
        super().__init__()
        self.net, self.loss = plain_net(), nn.TripletMarginLoss()

    def forward(self, anchor, positive, negative):
        return {"loss": self.loss(self.net(anchor), self.net(positive), self.net(negative))}


def test_triplets(tmp_path):
    x = labelled(20).tensors[0]
    with wb.Workbench(
        Triplets(),
        train=(x, x + 0.1, -x),
        val=(x, x + 0.1, -x),
        max_epochs=1,
        accelerator="cpu",
        root=tmp_path,
        batch_size=4,
    ) as b:
        assert b.fit().result().metrics["val_loss"] > 0


# -- detection, as torchvision has it


class Detector(nn.Module):
    """Its losses by name in train mode, predictions in eval mode; images of different sizes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Conv2d(3, 4, 3)

    def forward(self, images, targets=None):
        found = [self.net(image[None]).mean((2, 3)) for image in images]
        if not self.training:
            return [{"boxes": boxes} for boxes in found]
        near = [
            F.l1_loss(boxes, target["boxes"]) for boxes, target in zip(found, targets, strict=True)
        ]
        return {
            "loss_box": torch.stack(near).mean(),
            "loss_size": torch.stack(found).square().mean(),
        }


class Distance:
    def reset(self):
        self.seen = []

    def update(self, predictions, targets):
        self.seen += [
            F.l1_loss(p["boxes"], t["boxes"]) for p, t in zip(predictions, targets, strict=True)
        ]

    def compute(self):
        return torch.stack(self.seen).mean()


def pictures():
    g = torch.Generator().manual_seed(0)
    return [
        (torch.rand(3, 8 + n % 3, 9, generator=g), {"boxes": torch.rand(1, 4, generator=g)})
        for n in range(8)
    ]


def in_lists(samples):
    return tuple(zip(*samples, strict=True))


def test_a_detection_model_gives_its_losses_and_its_predictions(tmp_path):
    model, twin = Detector(), Detector()
    given = {
        "train": pictures(),
        "collate_fn": in_lists,
        "batch_size": 4,
        "lr": 0.1,
        "shuffle": False,
        "max_epochs": 2,
        "accelerator": "cpu",
    }
    given |= {"optimizer": torch.optim.SGD, "root": tmp_path}
    with wb.Workbench(model, val=pictures(), metrics={"map": Distance()}, **given) as b:
        run = b.fit().result()
        assert [len(one) for one in b.predict(pictures()).result()] == [4, 4]
    assert "val_loss" not in run.metrics
    assert {"loss_box", "loss_size", "val_map"} <= run.metrics.keys()
    optimizer, losses = torch.optim.SGD(twin.parameters(), lr=0.1), []
    for images, targets in [*DataLoader(pictures(), 4, collate_fn=in_lists)] * 2:
        loss = sum(twin(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert list(run.history["loss"]) == losses
    with pytest.raises(
        TaskError, match=r"in eval mode .* has no \.loss.*give metrics=\{'map'.*or leave val out"
    ):
        wb.Workbench(Detector(), val=pictures(), **given)


def test_a_dict_with_more_than_losses_is_no_sum_of_losses(tmp_path):
    class Both(Detector):
        def forward(self, images, targets=None):
            losses = super().forward(images, targets)
            return {**losses, "accuracy": torch.tensor(0.5)} if self.training else losses

    with pytest.raises(TaskError, match=r"has no \.loss.*or nothing but losses by name"):
        wb.Workbench(
            Both(),
            train=pictures(),
            collate_fn=in_lists,
            batch_size=4,
            accelerator="cpu",
            root=tmp_path,
        )
