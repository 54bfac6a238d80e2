"""Models with hooks of their own, for the tests against the slow twin; and how both sides are run."""

import copy
import functools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import workbench as wb
from tests.engine.problems import plain_net, sgd
from tests.reference import loop
from tests.reference.techniques import train


class Learner(nn.Module):
    """One optimizer. `weighted`: each batch says how much it counts.

    Its step returns None for the batches `drops` of an epoch; `picky`: for those whose labels have an even sum.
    """

    def __init__(self, net=None, lr=0.05, make=sgd, *, weighted=False, drops=(), picky=False):
        super().__init__()
        self.net = plain_net() if net is None else net
        self.lr, self.make, self.weighted = lr, make, weighted
        self.drops, self.picky = list(drops), picky

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        if batch_idx in self.drops or (self.picky and self.training and int(y.sum()) % 2 == 0):
            return None
        loss = F.cross_entropy(self.net(x), y)
        return {"loss": loss, "weight": 1.0 + float((y > 0).sum())} if self.weighted else loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return self.make(self.parameters(), lr=self.lr)


class TwoSided(nn.Module):
    """Two optimizers: a coder that rebuilds and helps to classify, and a head that classifies."""

    def __init__(self, lr=0.05, make=sgd, *, frequencies=None, weighted=False):
        super().__init__()
        torch.manual_seed(0)
        self.coder, self.rebuild, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(8, 3)
        self.lr, self.make, self.weighted, self.frequencies = lr, make, weighted, frequencies

    def training_step(self, batch, batch_idx, optimizer_idx):
        x, y = batch
        code = torch.tanh(self.coder(x))
        loss = F.cross_entropy(self.head(code), y)
        if optimizer_idx == 0:
            loss = 0.5 * loss + F.mse_loss(self.rebuild(code), x)
        return {"loss": loss, "weight": 1.0 + float((y > 0).sum())} if self.weighted else loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self.head(torch.tanh(self.coder(x))), y)

    def configure_optimizers(self):
        coder = [*self.coder.parameters(), *self.rebuild.parameters()]
        made = [self.make(coder, lr=self.lr), self.make(self.head.parameters(), lr=self.lr / 2)]
        if self.frequencies is None:
            return made
        return [
            {"optimizer": o, "frequency": f} for o, f in zip(made, self.frequencies, strict=True)
        ]


@functools.cache
def runs_lstm_in_bfloat16():
    """Whether this processor can: one with AVX-512."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(2, 2)(torch.ones(1, 1, 2))
    except RuntimeError:
        return False
    return True


class Speller(nn.Module):
    """Predicts the next of seven letters; gives its hidden state back. `batch_first=False`: time comes first."""

    def __init__(self, cell="LSTM", batch_first=True):
        super().__init__()
        torch.manual_seed(0)
        self.letters = nn.Embedding(7, 5)
        self.cell = getattr(nn, cell)(5, 8, batch_first=batch_first)
        self.head = nn.Linear(8, 7)

    def forward(self, x, hiddens=None):
        output, hiddens = self.cell(self.letters(x), hiddens)
        return self.head(output), hiddens


class SpellingLearner(Speller):
    """The same with hooks."""

    def __init__(self, cell="GRU", lr=0.05, make=sgd, *, weighted=False):
        super().__init__(cell)
        self.lr, self.make, self.weighted = lr, make, weighted

    def training_step(self, batch, batch_idx, hiddens=None):
        x, y = batch
        output, hiddens = self(x, hiddens)
        loss = letters_loss(output, y)
        weight = {"weight": 1.0 + float((y > 2).sum())} if self.weighted else {}
        return {"loss": loss, "hiddens": hiddens, **weight}

    def validation_step(self, batch, batch_idx):
        return letters_loss(self(batch[0])[0], batch[1])

    def configure_optimizers(self):
        return self.make(self.parameters(), lr=self.lr)


class TwoSpellers(Speller):
    """Two optimizers over one text: the cell with its letters, and the head."""

    def __init__(self, make=sgd, frequencies=None):
        super().__init__("LSTM")
        self.lr, self.make, self.frequencies = 0.05, make, frequencies

    def training_step(self, batch, batch_idx, optimizer_idx, hiddens):
        output, hiddens = self(batch[0], hiddens)
        return {"loss": letters_loss(output, batch[1]), "hiddens": hiddens}

    def validation_step(self, batch, batch_idx):
        return letters_loss(self(batch[0])[0], batch[1])

    def configure_optimizers(self):
        below = [*self.letters.parameters(), *self.cell.parameters()]
        made = [self.make(below, lr=self.lr), self.make(self.head.parameters(), lr=self.lr / 2)]
        if self.frequencies is None:
            return made
        return [
            {"optimizer": o, "frequency": f} for o, f in zip(made, self.frequencies, strict=True)
        ]


def letters_loss(output, y):
    return F.cross_entropy(output.flatten(0, -2), y.flatten())


def sentences(n=20, length=11, seed=1):
    """n texts of `length` letters in a walk, each with the text that is one letter on."""
    g = torch.Generator().manual_seed(seed)
    steps = torch.randint(0, 3, (n, length + 1), generator=g)
    text = (steps.cumsum(1) + torch.randint(0, 7, (n, 1), generator=g)) % 7
    return TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())


def step_of(model, extras=()):
    """A learner's own training_step in the form that the twin calls; extras: "optimizer_idx", "hiddens"."""

    def step(batch, optimizer, hiddens):
        given = {"optimizer_idx": optimizer, "hiddens": hiddens}
        return model.training_step(batch, 0, **{name: given[name] for name in extras})

    return step


def supervised(model, loss, carries=False):
    """The step of a model with a loss; `carries`: the model takes and gives hidden state."""

    def step(batch, optimizer, hiddens):
        x, y = batch
        if not carries:
            return loss(model(x), y)
        output, hiddens = model(x, hiddens)
        return {"loss": loss(output, y), "hiddens": hiddens}

    return step


def checker(data, loss_of):
    """check(model) for the twin: the mean over the samples of validation data."""

    def check(model):
        model.eval()
        total = 0.0
        with torch.no_grad():
            for batch in loop.loader_of(data, 8, shuffle=False):
                total += float(loss_of(model, batch)) * len(batch[-1])
        model.train()
        return {"val_loss": total / len(data)}

    return check


def fitted(model, data, root, *, loss=None, optimizer=sgd, val=None, scheduler=None, collate_fn=None, custom=None,
           **settings):  # fmt: skip
    """The run of a bench with these settings; on the CPU, in batches of 8, at a rate of 0.05."""
    settings = {"accelerator": "cpu", "batch_size": 8, "lr": 0.05, "max_epochs": 3, **settings}
    made = {} if loss is None else {"optimizer": optimizer}  # what is its own task makes its own
    bench = wb.Workbench(model, train=data, val=val, loss=loss, scheduler=scheduler, root=root, collate_fn=collate_fn,
                         **made, **(custom or {}), **settings)  # fmt: skip
    run = bench.fit().result()
    assert run.status == "finished", run.error
    return run


def twin_run(
    twin, data, step, optimizers, *, batch_size=8, shuffle=True, epochs=3, seed=0, **techniques
):
    loader = loop.loader_of(data, batch_size, shuffle=shuffle, seed=seed)
    return train(twin, loader, step, optimizers, epochs=epochs, seed=seed, **techniques)


def copied(model):
    return copy.deepcopy(model)


def column(values):
    return np.asarray(values, dtype=np.float64).astype(np.float32)


def assert_same(run, record, model, *, exact=True, rtol=1e-5, columns=None):
    """Every column that both have, the weights at the end, the checks: bit for bit, or to a tolerance."""
    wanted = columns or [name for name in record.columns if name != "skipped"]
    for name in wanted:
        assert name in run.history, f"the run has no column {name!r}, only {sorted(run.history)}"
        ours, theirs = run.history[name], column(record.columns[name])
        if exact:
            np.testing.assert_array_equal(ours, theirs, err_msg=name)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=1e-7, err_msg=name)
    state = model.state_dict()
    assert list(state) == list(record.weights)
    for name, value in record.weights.items():
        if exact:
            assert torch.equal(state[name], value), name
        else:
            torch.testing.assert_close(
                state[name], value, rtol=rtol, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}"
            )
    assert_same_checks(run, record)


def assert_same_checks(run, record):
    if not record.validations:
        return
    assert run.validation["step"].tolist() == [step for step, _ in record.validations]
    for name in {name for _, metrics in record.validations for name in metrics}:
        theirs = [metrics.get(name, float("nan")) for _, metrics in record.validations]
        np.testing.assert_allclose(run.validation[name], theirs, rtol=1e-5, err_msg=name)
