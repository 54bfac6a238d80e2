"""What people get wrong: each error names what was given and says what to do."""

import itertools
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import workbench as wb
from tests.engine.problems import bench, labelled, plain_net, same_weights, sgd, weights
from workbench.events import Message, StepsDone
from workbench.instruments.finite import NonFiniteError
from workbench.runs.run import Run
from workbench.settings import SettingsError
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

X, Y = labelled().tensors


def make(tmp_path, model=None, data=(X, Y), **more):
    ready = isinstance(data, (Iterator, type(wb.batches([]))))
    more = {
        "loss": F.cross_entropy,
        "root": tmp_path,
        "accelerator": "cpu",
        **({} if ready else {"batch_size": 8}),
        **more,
    }
    return wb.Workbench(plain_net() if model is None else model, train=data, **more)


def refused(kind, *words):
    """An error of this kind that says all these words."""
    return pytest.raises(kind, match="(?s)" + "".join(f"(?=.*{re.escape(word)})" for word in words))


# -- data


@pytest.mark.parametrize(
    "data", [(torch.zeros(0, 6), torch.zeros(0)), torch.utils.data.TensorDataset(torch.zeros(0, 6)), [], {}, iter([])],
    ids=["arrays", "dataset", "list", "dict", "iterator"],
)  # fmt: skip
def test_no_data_in_it(data, tmp_path):
    with refused(TaskError, "train is empty"):
        make(tmp_path, data=data)


def test_a_collate_function_that_forgets_its_return(tmp_path):
    with refused(TaskError, "its first batches", "are None", "a collate_fn that returns nothing"):
        make(tmp_path, collate_fn=lambda rows: None)


@pytest.mark.parametrize(("name", "ours"), [
    ("criterion", "loss"), ("loss_fn", "loss"), ("train_loader", "train"), ("train_dataset", "train"), ("dls", "train"), ("eval_dataset", "val"),
    ("valid_loader", "val"), ("validation_data", "val"), ("compute_metrics", "metrics"), ("data_collator", "collate_fn"),
    ("net", "model"),
])  # fmt: skip
def test_other_libraries_names_of_arguments(name, ours, tmp_path):
    with refused(wb.SettingsError, f"unknown setting '{name}'", f"Did you mean '{ours}'?"):
        make(tmp_path, **{name: object()})
    with pytest.raises(
        wb.SettingsError,
        match=rf"'{name}': it is given when the bench is made, wb.Workbench\(…, {ours}=…\)",
    ):
        wb.Settings.named({name: object()}, "fit")


def test_early_stopping_without_a_validation_asks_for_its_data(tmp_path):
    with refused(wb.SettingsError, "'val_loss'", "give wb.Workbench(…, val=…)", "'train_loss'"):
        make(tmp_path, early_stopping="val_loss")


def test_no_data_at_all(tmp_path):
    with refused(TaskError, "no training data: give train=", "DataLoader", "arrays (x, y)"):
        make(tmp_path, data=None)


@pytest.mark.parametrize("data", [5, "train.csv", object()], ids=["number", "path", "object"])
def test_what_is_no_data(data, tmp_path):
    with refused(TaskError, f"train={type(data).__name__} is not data", "give a Dataset"):
        make(tmp_path, data=data)


def test_a_batch_larger_than_the_data(tmp_path):
    with refused(
        TaskError,
        "batch_size=64 is larger than the train data (50 samples)",
        "take batch_size=50 or less",
    ):
        make(tmp_path, batch_size=64)
    b = make(tmp_path)
    with refused(TaskError, "batch_size=51", "50 samples"):
        b.fit(batch_size=51).result()
    with refused(TaskError, "batch_size=51", "50 samples"):
        b.find_lr(batch_size=51).result()


def test_arrays_of_different_length(tmp_path):
    with refused(TaskError, "arrays of train differ in length: [50, 49]"):
        make(tmp_path, data=(X, Y[:49]))
    with refused(TaskError, "arrays of val differ in length: [50, 3]"):
        make(tmp_path, val={"x": X, "y": Y[:3]})


def test_a_single_number(tmp_path):
    with refused(TaskError, "single number", "first dimension"):
        make(tmp_path, data=(np.array(3.0, dtype="float32"), Y))


def test_float64_from_numpy(tmp_path):
    with refused(TaskError, "float64", "numpy makes float64; convert with x.astype('float32')"):
        make(tmp_path, data=(X.numpy().astype("float64"), Y.numpy()))


def test_float32_for_a_float64_model(tmp_path):
    with refused(TaskError, "dtype", "give a float64 model float64 data (x.double())"):
        make(tmp_path, model=nn.Linear(X.shape[1], 3).double())


def test_a_label_out_of_range(tmp_path):
    with refused(
        TaskError,
        "Target",
        "out of bounds",
        "label 8 is not below the number of the model's outputs",
    ):
        make(tmp_path, data=(X, Y + 7))


def test_a_layer_that_the_processor_cannot_run(tmp_path):
    class Recurrent(nn.Linear):
        def forward(self, x):
            raise RuntimeError(
                "could not create a primitive descriptor for the LSTM forward propagation primitive."
            )

    with refused(TaskError, "LSTM", "needs AVX-512", "precision='32'"):
        make(tmp_path, model=Recurrent(X.shape[1], 3))


def test_labels_of_the_wrong_type(tmp_path):
    with refused(
        TaskError,
        "labels are float32 of shape (2,)",
        "int64",
        "loss=lambda output, y: F.cross_entropy(output, y.long())",
    ):
        make(tmp_path, data=(X, Y.float()))


def test_inputs_of_the_wrong_shape(tmp_path):
    with refused(TaskError, "0: (2, 5) float32", "shape that the model expects"):
        make(tmp_path, data=(X[:, :5], Y))


def test_broadcasting_of_output_and_target(tmp_path):
    with refused(
        TaskError,
        "broadcast to (2, 2)",
        "each sample against every other",
        "F.mse_loss(output.squeeze(-1), y)",
    ):
        make(tmp_path, nn.Linear(6, 1), (X, X[:, 0]), loss=F.mse_loss)
    make(tmp_path, nn.Linear(6, 1), (X, X[:, :1]), loss=F.mse_loss)


def test_nan_in_the_first_samples(tmp_path):
    x = X.clone()
    x[1, 2] = float("nan")
    with refused(
        TaskError,
        "the loss of the first 2 samples is nan",
        "NaN or infinite values in element 0",
        "clean it",
    ):
        make(tmp_path, data=(x, Y))


def test_a_loss_that_is_not_finite_on_finite_data(tmp_path):
    with refused(
        TaskError, "the loss of the first 2 samples is", "The data is finite: look for log(0)"
    ):
        make(
            tmp_path, loss=lambda output, y: F.cross_entropy(output, y) + torch.log(torch.zeros(()))
        )


@pytest.mark.parametrize("every", [1, 50])
@pytest.mark.parametrize("p", [2.0, None])
def test_nan_later_on(every, p, tmp_path):
    x = X.clone()
    x[33] = float("inf")
    model = plain_net()
    b = bench(
        model,
        (x, Y),
        tmp_path,
        shuffle=False,
        max_epochs=1,
        track_grad_norm=p,
        log_every_n_steps=every,
    )
    job = b.fit()
    with refused(NonFiniteError, "update 4", "the batch itself holds NaN or infinite values: batch[0]", "(6 of 48",
                 "Clean the data", "was skipped"):  # fmt: skip
        job.result()
    assert job.status == "failed"
    run = Run.open(job.folder.path)
    assert (run.status, run.step) == ("failed", 4)
    kept = [int(s) for e in job.events if isinstance(e, StepsDone) for s in e.steps]
    assert kept == run.history["step"].tolist() == ([0, 1, 2, 3] if every == 1 else [0])
    twin = plain_net()
    bench(twin, (x[:32], Y[:32]), tmp_path / "b", shuffle=False, max_epochs=1).fit().result()
    assert same_weights(model, twin)
    with refused(NonFiniteError, "update 1", "batch 0 of the window"):
        b.fit(accumulate_grad_batches=4).result()


@pytest.mark.parametrize("search", ["find_lr", "find_recipe", "tune", "find_clip_val"])
def test_a_search_blames_the_data_and_no_rate(search, tmp_path):
    """One NaN among many samples: what the search measured until then recommends nothing."""
    x, y = torch.randn(320, 6), torch.randint(0, 3, (320,))
    x[160, 1] = float("nan")
    b = make(tmp_path, data=(x, y), val=(x[:80], y[:80]), max_epochs=5)
    with refused(NonFiniteError, "the batch itself holds NaN or infinite values: batch[0] (1 of"):
        getattr(b, search)().result()


def test_a_search_goes_on_where_the_loss_leaves_such_values_out(tmp_path):
    """The sweep ends with a rate that is too high, in a batch with missing targets."""

    def loss(output, y):
        known = ~torch.isnan(y)
        return (output.squeeze(1) - y)[known].square().mean()

    x = torch.randn(320, 6)
    y = x.sum(1)
    y[::3] = float("nan")
    b = make(tmp_path, nn.Linear(6, 1), (x, y), loss=loss, optimizer=sgd)
    curve = b.find_lr(early_stop_threshold=None, max_lr=1e8).result()
    assert (curve.ended, curve.suggestion is None) == ("loss not finite", False)


def test_a_validation_loss_that_is_not_finite(tmp_path):
    held_out = X.clone()
    held_out[11, 2] = float("nan")
    b = make(tmp_path, val=(held_out, Y), max_epochs=2, early_stopping="val_loss")
    (finding,) = b.fit().result().health
    assert (finding.level, finding.trouble) == ("error", "val_loss not finite")
    assert "in batch 1 of the validation data: the batch itself holds NaN" in finding.text
    assert "batch[0] (1 of 48 values)" in finding.text


def diverging(limit):
    """Gradients that are not finite while the loss is."""

    class Sqrt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * limit

    return Sqrt.apply


@pytest.mark.parametrize("p", [2.0, None])
@pytest.mark.parametrize("every", [1, 50])
def test_a_gradient_that_is_not_finite_while_the_loss_is(p, every, tmp_path):
    calls = itertools.count()
    infinite = diverging(float("inf"))

    def loss(output, y):
        found = F.cross_entropy(output, y)
        # the dry step's one, then updates 0..2
        return infinite(found) if next(calls) == 4 else found

    model = plain_net()
    b = bench(
        model,
        labelled(),
        tmp_path,
        loss=loss,
        max_epochs=1,
        track_grad_norm=p,
        log_every_n_steps=every,
    )
    with refused(
        NonFiniteError,
        "gradient is not finite at update 3, first in '0.weight'; the loss is",
        "was skipped",
    ):
        b.fit().result()
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_gradients_that_are_large_but_finite_are_no_error(tmp_path):
    """Their 2-norm is infinite in float32; each entry is a number, and the step can be taken."""
    large = diverging(1e30)
    b = bench(plain_net(), labelled(), tmp_path, lambda params, lr: torch.optim.SGD(params, lr=lr),
              loss=lambda output, y: large(F.cross_entropy(output, y)), lr=1e-35, max_steps=3)  # fmt: skip
    run = b.fit().result()
    assert run.status == "finished"
    assert np.isinf(run.history["grad_norm"]).all()


# -- loaders that are unusual


class Stream(IterableDataset):
    """No length."""

    def __iter__(self):
        yield from zip(X, Y, strict=True)


def test_data_without_a_length(tmp_path):
    b = make(tmp_path, data=Stream(), optimizer=sgd)
    assert b.fit(max_steps=10).result().step == 10
    assert b.fit(max_epochs=2).result().step == 14
    assert b.fit(max_epochs=1, accumulate_grad_batches=3).result().step == 3
    assert b.find_lr(num_training=9).result().ended == "all points done"
    assert b.jobs[0].events[0].updates == 10
    assert b.jobs[1].events[0].updates is None


def test_validation_data_without_a_length(tmp_path):
    b = make(tmp_path, val=Stream(), max_epochs=2)
    assert b.fit().result().validation["val_loss"].shape == (2,)
    assert set(b.validate().result()) == {"val_loss"}


def test_validation_data_that_can_be_read_once(tmp_path):
    with refused(
        TaskError, "val can be read only once", "each validation reads it all", "wb.batches(list)"
    ):
        make(tmp_path, val=iter([(X, Y)]))


def test_a_scheduler_needs_to_know_how_long(tmp_path):
    def cosine(optimizer, updates):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)

    with refused(
        TaskError, "scheduler= needs the number of updates", "no length", "give max_steps"
    ):
        make(tmp_path, data=Stream(), scheduler=cosine)
    with refused(
        TaskError,
        "scheduler= needs the number of updates",
        "truncated_bptt_steps",
        "give max_steps",
    ):
        make(tmp_path, scheduler=cosine, truncated_bptt_steps=2)
    with refused(
        TaskError, "scheduler= needs the number of updates", "no number of epochs", "give max_steps"
    ):
        make(tmp_path, scheduler=cosine, max_time="00:00:01:00")
    b = make(tmp_path, data=Stream(), scheduler=cosine, max_steps=5)
    assert b.fit().result().history["lr"][-1] < b.settings.lr


def test_an_iterator_that_can_be_read_once(tmp_path):
    """The dry step gives its batch back, and a second epoch is a clear error."""
    model = plain_net()
    b = make(
        tmp_path,
        model,
        data=((X[i : i + 10], Y[i : i + 10]) for i in range(0, 50, 10)),
        optimizer=sgd,
    )
    run = b.fit(max_epochs=1).result()
    assert run.step == 5
    twin = plain_net()
    ready = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 50, 10)]
    other = (
        make(tmp_path / "b", twin, data=wb.batches(ready), optimizer=sgd).fit(max_epochs=1).result()
    )
    assert np.array_equal(run.history["loss"], other.history["loss"])
    for length in ({"max_epochs": 2}, {}):  # before the first update
        again = make(tmp_path, data=iter(ready), **length).fit()
        with refused(
            TaskError,
            "read only once",
            f"max_epochs={length.get('max_epochs', 10)} reads it",
            "max_epochs=1",
        ):
            again.result()
        assert not any(isinstance(e, StepsDone) for e in again.events)
    # a batch an epoch
    assert (
        make(tmp_path, data=iter(ready), max_epochs=2, limit_train_batches=1).fit().result().step
        == 2
    )
    # which may be enough for all that it gives
    again = make(tmp_path, data=iter(ready), max_steps=9).fit()
    with refused(
        TaskError, "no batch in epoch 1", "read only once", "give a Dataset or a DataLoader"
    ):
        again.result()
    assert sum(e.rows for e in again.events if isinstance(e, StepsDone)) == 5
    with refused(TaskError, "read only once", "would use it up", "give a Dataset"):
        make(tmp_path, data=iter(ready)).find_lr().result()


class TooLong(IterableDataset):
    """Its length says 80 samples, and it has 50."""

    def __len__(self):
        return 80

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class OfStages(Dataset):
    """Of stages: each epoch has as many samples as are given for it."""

    def __init__(self, *samples):
        self.samples, self.epoch = samples, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.samples[self.epoch]

    def __getitem__(self, index):
        return X[index], Y[index]


LENGTHS = {
    "a stream": (TooLong(), "gave 7 batches in epoch 0, and their length (len) says 10"),
    "grows": (OfStages(16, 48), "have 6 batches in epoch 1, and had 2 when the run began"),
    "shrinks": (OfStages(48, 16), "gave 2 batches in epoch 1, and their length (len) says 6"),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_data_of_another_length_than_planned(name, tmp_path):
    data, words = LENGTHS[name]
    run = make(tmp_path, data=data, max_epochs=2, num_sanity_val_steps=0).fit().result()
    told = [
        event
        for event in run.events
        if isinstance(event, Message) and "the training data" in event.text
    ]
    assert len(told) == 1
    assert words in told[0].text
    assert told[0].level == "warning"


def test_nothing_is_told_of_data_of_the_planned_length(tmp_path):
    for data in (TooLong(), OfStages(16, 48)):
        run = make(tmp_path, data=data, max_epochs=2, limit_train_batches=2).fit().result()
        assert not [
            event
            for event in run.events
            if isinstance(event, Message) and "the training data" in event.text
        ]
    run = make(tmp_path, data=OfStages(48, 48), max_epochs=2, max_steps=9).fit().result()
    assert not [
        event
        for event in run.events
        if isinstance(event, Message) and "the training data" in event.text
    ]


def test_drop_last_leaves_nothing(tmp_path):
    loader = torch.utils.data.DataLoader(labelled(10), batch_size=16, drop_last=True)
    with refused(TaskError, "batch_size=16", "10 samples"):
        wb.Workbench(
            plain_net(), train=loader, loss=F.cross_entropy, root=tmp_path, accelerator="cpu"
        )


def test_a_sample_that_cannot_be_read(tmp_path):
    class Broken(Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, index):
            raise OSError("no such image: 0.png")

    with refused(TaskError, "reading 2 samples of train failed with OSError: no such image: 0.png"):
        make(tmp_path, data=Broken())


def test_text_that_a_collator_cannot_make_tensors_of(tmp_path):
    """A Trainer leaves out what the model does not take; here the user does."""

    def collate(samples):
        raise ValueError("Unable to create tensor.")  # as a collator of transformers

    samples = [{"text": "a film", "input_ids": [1, 2], "label": 0}] * 8
    with refused(
        TaskError,
        "Unable to create tensor. The samples hold text ('text'): tokenize it",
        "dataset.remove_columns(['text'])",
    ):
        make(tmp_path, data=samples, collate_fn=collate)
    without = [{"input_ids": [1, 2], "label": 0}] * 8
    with pytest.raises(TaskError, match=r"Unable to create tensor\.$"):
        make(tmp_path, data=without, collate_fn=collate)


# -- model, loss, optimizer


def test_a_class_and_no_instance(tmp_path):
    with refused(
        TaskError,
        "model=Linear is a class",
        "needs in_features, out_features",
        "Linear(in_features=…",
    ):
        make(tmp_path, nn.Linear)


def test_what_is_no_model(tmp_path):
    with refused(TaskError, "is not an nn.Module", "training_step and configure_optimizers"):
        make(tmp_path, "resnet18")
    with refused(TaskError, "model=build is a function", "needs x", "build(x=…)"):
        make(tmp_path, lambda x: x)


def test_nothing_to_train(tmp_path):
    frozen = plain_net().requires_grad_(False)
    for model in (frozen, nn.Sequential(nn.Flatten())):
        with refused(TaskError, "no trainable parameters"):
            make(tmp_path, model)


def test_weights_without_a_shape(tmp_path):
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 3))
    with refused(TaskError, "0.weight (and", "has no shape yet", "call the model once on a batch"):
        make(tmp_path, model)
    with torch.no_grad():
        model(X[:2])
    make(tmp_path, model)

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.LazyLinear(3)

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.head(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    with refused(
        TaskError, "head.weight (and", "has no shape yet", "call the model once on a batch"
    ):
        make(tmp_path, Own(), loss=None)


def test_a_loss_of_the_wrong_shape(tmp_path):
    with refused(
        TaskError,
        "the loss has shape (2,) for a batch of 2",
        "must be one number",
        ".mean()",
        "reduction",
    ):
        make(tmp_path, loss=nn.CrossEntropyLoss(reduction="none"))


def test_a_loss_that_depends_on_nothing(tmp_path):
    with refused(TaskError, "does not depend on any trainable parameter", "detach()", ".item()"):
        make(tmp_path, loss=lambda output, y: F.cross_entropy(output.detach(), y))
    with refused(TaskError, "the loss is 0.5, no tensor"):
        make(tmp_path, loss=lambda output, y: 0.5)


def test_no_loss_anywhere(tmp_path):
    with refused(
        TaskError, "no loss= was given", "has no .loss", "torch.nn.functional.cross_entropy"
    ):
        make(tmp_path, loss=None, data=X)


def test_a_loss_that_cannot_be_called(tmp_path):
    with refused(TaskError, "loss='mse' cannot be called", "give a function of (output, target)"):
        make(tmp_path, loss="mse")


def test_a_loss_without_a_target(tmp_path):
    with refused(TaskError, "a batch is a Tensor", "(x, y)"):
        make(tmp_path, data=X)
    with refused(TaskError, "a batch is 1 element(s)", "(x, y)"):
        make(tmp_path, data=(X,))
    with refused(TaskError, "dict with ['a', 'b']", "name it one of", "'labels'"):
        make(tmp_path, data={"a": X, "b": Y})


def test_a_model_that_is_called_wrongly(tmp_path):
    with refused(
        TaskError,
        "all parts of a batch but the last, its target",
        "a batch has 3 parts",
        "default_collate([(x, y)",
    ):
        make(tmp_path, data=(X, X, Y))


def test_an_optimizer_that_is_already_made(tmp_path):
    model = plain_net()
    with refused(TaskError, "optimizer=Adam(…) is an optimizer that is already made", "optimizer=torch.optim.Adam",
                 "functools.partial"):  # fmt: skip
        make(tmp_path, model, optimizer=torch.optim.Adam(model.parameters()))
    with refused(TaskError, "optimizer=5 cannot be called", "torch.optim.AdamW"):
        make(tmp_path, optimizer=5)
    with refused(TaskError, "returned a dict, no torch.optim.Optimizer"):
        make(tmp_path, optimizer=lambda params, lr: {})


def test_what_makes_no_scheduler(tmp_path):
    def foreign(optimizer, updates):
        return torch.optim.lr_scheduler.StepLR(torch.optim.SGD(plain_net().parameters(), lr=1.0), 1)

    with refused(TaskError, "scheduler='cosine' cannot be called", "lr_schedule='cosine'"):
        make(tmp_path, scheduler="cosine")
    with refused(TaskError, "cannot be called as scheduler(optimizer, updates)"):
        make(tmp_path, scheduler=lambda optimizer: None)
    with refused(
        TaskError,
        "scheduler=StepLR(…) is a scheduler that is already made",
        "lambda optimizer, updates",
    ):
        make(tmp_path, scheduler=foreign(None, 1))
    with refused(TaskError, "a StepLR of another optimizer"):
        make(tmp_path, scheduler=foreign)


def test_hidden_state_where_none_is_carried(tmp_path):
    class Recurrent(torch.nn.LSTM):
        def forward(self, x, hiddens=None):
            return super().forward(x, hiddens)

    sequences = (torch.randn(8, 6, 3), torch.randn(8, 6, 4))
    with refused(
        TaskError, "the model returned 2 parts", "truncated_bptt_steps when the bench is made"
    ):
        make(tmp_path, Recurrent(3, 4, batch_first=True), data=sequences, loss=F.mse_loss)
    with refused(TaskError, "model(x, hiddens)", "forward does not take", "leave the setting off"):
        make(
            tmp_path,
            torch.nn.Sequential(torch.nn.Linear(3, 4)),
            data=sequences,
            loss=F.mse_loss,
            truncated_bptt_steps=2,
        )


def test_weight_decay_where_there_is_none(tmp_path):
    with refused(
        TaskError, "weight_decay=0.1", "Rprop takes no weight_decay", "leave the setting at None"
    ):
        make(tmp_path, optimizer=torch.optim.Rprop, weight_decay=0.1)
    b = make(tmp_path, optimizer=torch.optim.Rprop)
    with refused(TaskError, "weight_decay=0.1", "Rprop"):
        b.fit(weight_decay=0.1).result()
    assert b.fit(max_steps=1).result().status == "finished"


def test_schedulers_that_are_none(tmp_path):
    with refused(TaskError, "scheduler(optimizer, updates) returned a NoneType"):
        make(tmp_path, scheduler=lambda o, n: None)


def test_an_optimizer_without_sparse_gradients(tmp_path):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.table(x).mean(1))

    job = make(
        tmp_path,
        Words(),
        (torch.randint(0, 5, (50, 3)), Y),
        optimizer=torch.optim.AdamW,
        max_steps=1,
    ).fit()
    with pytest.raises(RuntimeError, match="does not support sparse gradients") as caught:
        job.result()
    assert "torch.optim.SparseAdam" in str(caught.value)


def test_batch_normalisation_of_one_sample(tmp_path):
    """17 = 2 x 8 + 1: the last batch has one sample; the error comes from torch, and what was trained is kept."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    job = make(tmp_path, model, (X[:17], Y[:17]), max_epochs=1).fit()
    with refused(ValueError, "more than 1 value per channel"):
        job.result()
    assert sum(e.rows for e in job.events if isinstance(e, StepsDone)) == 2


# -- settings and calls


def test_a_setting_that_does_not_exist(tmp_path):
    with refused(SettingsError, "unknown setting 'learning_rate'", "Did you mean 'lr'"):
        make(tmp_path, learning_rate=0.1)
    b = make(tmp_path)
    for wrong, right in (
        ("epochs", "max_epochs"),
        ("batchsize", "batch_size"),
        ("clip", "gradient_clip_val"),
    ):
        for call in (b.set, b.fit, b.find_lr, b.find_batch_size, b.validate):
            with refused(SettingsError, f"unknown setting '{wrong}'", f"Did you mean '{right}'"):
                call(**{wrong: 1})
    assert b.jobs == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"lr": -1}, ["lr=-1", "at least 0"]),
        ({"lr": "fast"}, ["lr='fast'", "number"]),
        ({"lr": float("nan")}, ["lr=nan"]),
        ({"batch_size": 0}, ["batch_size=0", "at least 1"]),
        ({"batch_size": 2.5}, ["batch_size=2.5", "whole number"]),
        ({"gradient_clip_val": -1}, ["gradient_clip_val=-1", "at least 0", "None and 0: off"]),
        (
            {"gradient_clip_algorithm": "magic"},
            ["gradient_clip_algorithm='magic'", "'norm' or 'value'"],
        ),
        ({"accumulate_grad_batches": 0}, ["accumulate_grad_batches=0"]),
        ({"accelerator": "tpu"}, ["accelerator='tpu'", "'cpu'"]),
        ({"max_steps": -2}, ["max_steps=-2"]),
        ({"track_grad_norm": 0}, ["track_grad_norm=0"]),
        ({"track_grad_norm": -2}, ["track_grad_norm=-2"]),
    ],
)
def test_a_value_that_a_setting_cannot_take(wrong, words, tmp_path):
    with refused(SettingsError, *words):
        make(tmp_path, **wrong)
    b = make(tmp_path)
    with refused(SettingsError, *words):
        b.set(**wrong)
    assert b.settings == make(tmp_path).settings


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("wanted", ["cuda", "gpu"])
def test_no_gpu_here(wanted, tmp_path):
    if wanted == "gpu" and torch.backends.mps.is_available():
        pytest.skip("mps is a gpu")
    with refused(SettingsError, f"accelerator={wanted!r}", "no such device", "'auto' or 'cpu'"):
        make(tmp_path, accelerator=wanted)
    b = make(tmp_path)
    with refused(SettingsError, f"accelerator={wanted!r}"):
        b.fit(accelerator=wanted).result()
    assert b.fit(max_steps=1).result().status == "finished"


def test_a_start_that_cannot_be(tmp_path):
    b = make(tmp_path)
    with refused(FileNotFoundError, "there is no run 'nonsense'", "there are: none"):
        b.fit(start="nonsense")
    with refused(FileNotFoundError, "start='continu': there is no run", "Did you mean 'continue'"):
        b.fit(start="continu")
    for wrong in ("../../etc", "", "Fresh start"):
        with refused(ValueError, repr(wrong), "run's id"):
            b.fit(start=wrong)
    with refused(ValueError, "''", "run's id"):
        b.find_lr(start="@best")
    with refused(SettingsError, "start='0001-fit@'", "'last', 'best' or a number of updates"):
        b.fit(start="0001-fit@")
    with refused(SettingsError, "start=None", "'fresh', 'continue', 'auto', the id of a run"):
        b.find_lr(start=None)
    for wrong in ("Fresh", "best", "continue@best"):
        with refused(
            SettingsError,
            f"start={wrong!r}",
            "'fresh', 'continue', 'auto', or a run's id",
            "'0012-fit@best'",
        ):
            b.fit(start=wrong)
    with refused(SettingsError, "start='auto' continues a fit", "'fresh', 'continue' or"):
        b.find_lr(start="auto")
    run = b.fit(max_steps=1).result()
    with refused(SettingsError, "start=<Run 0001-fit", "That of this one is '0001-fit'."):
        b.fit(start=run)
    with refused(
        SettingsError, "no optimizer state", "bench.load('0001-fit', 'start'), then bench.fit()"
    ):
        b.fit(start="0001-fit@start")
    assert b.find_lr(start="0001-fit@start", num_training=3).result().lrs.size == 3


def test_what_cannot_be_loaded(tmp_path):
    b = make(tmp_path)
    b.fit(max_steps=1).result()
    for wrong in (None, 1, b"0001-fit"):
        with refused(TypeError, f"load({wrong!r})", "give a run", "its id"):
            b.load(wrong)
    for wrong in (None, "bset", -1, "../.."):
        with refused(FileNotFoundError, f"no checkpoint {wrong!r}", "00000001-end (update 1)"):
            b.load("0001-fit", wrong)


def test_what_is_said_elsewhere(tmp_path):
    """Arguments of the bench, and those by which other libraries do the same."""
    b = make(tmp_path)
    for name, words in {
        "trackers": ["wb.Workbench(…, trackers=…)"], "val": ["wb.Workbench(…, val=…)"], "report_to": ["trackers='tensorboard'"],
        "ckpt_path": ["bench.fit(start='0012-fit')"], "output_dir": ["root='.workbench'"],
    }.items():  # fmt: skip
        for call in (b.fit, b.set, b.find_lr):
            with refused(SettingsError, f"unknown setting {name!r}", *words):
                call(**{name: None})
    for call in (b.validate, b.test, b.predict):
        with refused(
            SettingsError,
            "unknown setting 'ckpt_path'",
            "bench.load('0012-fit', 'best')",
            f"then bench.{call.__name__}()",
        ):
            call(ckpt_path="best")
    for name, words in {
        "default_root_dir": ["root='.workbench'"],
        "callbacks": ["early_stopping", "listeners=[f]"],
    }.items():
        for call in (b.fit, b.set, b.find_lr):
            with refused(SettingsError, f"{name}='x'", *words):
                call(**{name: "x"})


def test_listeners_that_are_none(tmp_path):
    import lightning

    class Mine(lightning.pytorch.callbacks.ModelCheckpoint):
        pass

    for given in ([Mine()], [print, lightning.pytorch.callbacks.EarlyStopping("x")], Mine()):
        with refused(TaskError, "listeners=:", "of Lightning's is not used here. Instead:"):
            make(tmp_path, listeners=given)
    with refused(TaskError, "callbacks=:", "checkpoint_every"):
        make(tmp_path, callbacks=[Mine()])
    with refused(TaskError, "logger=:", "trackers="):
        make(tmp_path, logger=lightning.pytorch.loggers.CSVLogger(str(tmp_path / "logs")))
    with refused(SettingsError, "callbacks=", "listeners=[f]"):
        make(tmp_path, callbacks=[print])
    with refused(TaskError, "give a list of functions, listeners=[f]"):
        make(tmp_path, listeners=print)
    with refused(TaskError, "listeners=: 3 cannot be called"):
        make(tmp_path, listeners=[3])
    b = make(tmp_path)
    with refused(TaskError, "'told' cannot be called"):
        b.subscribe("told")


def test_no_validation_data(tmp_path):
    b = make(tmp_path)
    with refused(TaskError, "no val data: give val="):
        b.validate().result()
    with refused(TaskError, "no test data: give test="):
        b.test().result()


def test_validation_that_cannot_be_scored(tmp_path):
    with refused(
        TaskError,
        "the model or a metric failed on a batch of val",
        "ZeroDivisionError",
        "more than two samples",
        "dry_run=False",
    ):
        make(tmp_path, val=labelled(), metrics={"broken": lambda output, y: 1 / 0})

    class Nearest:
        def reset(self):
            self.found = []

        def update(self, output, y):
            self.found.append(torch.cdist(output, output).topk(3).values)

        def compute(self):
            return torch.cat(self.found).mean()

    with refused(
        TaskError,
        "metrics['nearest'] of Nearest did not take",
        "more than two samples",
        "dry_run=False",
    ):
        make(tmp_path, val=labelled(), metrics={"nearest": Nearest()})
    make(
        tmp_path, val=labelled(16), metrics={"nearest": Nearest()}, dry_run=False, max_epochs=1
    ).fit().result()
    with refused(TaskError, "failed on a batch of val", "0: (2, 5)"):
        make(tmp_path, val=(X[:, :5], Y))


def test_a_mistake_leaves_the_model_as_it_was(tmp_path):
    model = plain_net()
    before = weights(model)
    with pytest.raises(TaskError):
        make(tmp_path, model, data=(X, Y + 7))
    assert same_weights(model, before)
    assert all(p.grad is None for p in model.parameters())
    assert not list(tmp_path.iterdir())
