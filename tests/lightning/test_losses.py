"""Lightning's demos unchanged, here and under its own Trainer: the same loss at every batch, the same weights at the end.

Random numbers are the same where they can be: the Trainer draws some before its first batch, so it is seeded anew in
`on_train_start` as the workbench is when a job begins; loaders have generators of their own. Validation moves the
Trainer's random numbers and not the workbench's, so what is validated here draws none.
"""

import inspect
import textwrap
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from tests.lightning import modules
from tests.lightning.both import (
    Losses,
    boring,
    by_lightning,
    by_workbench,
    loader,
    pl,
    rows,
    same_state,
)

pytestmark = pytest.mark.usefixtures("one_thread")


class Seeds(pl.Callback):
    """The random numbers of a workbench's job, whose default seed is 0, from the first batch on."""

    def on_train_start(self, trainer, module):
        torch.manual_seed(0)


class SeedsEarly(pl.Callback):
    """The same for data that the module draws when it is asked for its loaders."""

    def setup(self, trainer, module, stage):
        torch.manual_seed(0)


def the_same(cls, root, *, seeds=Seeds, exact=True, **how):
    """Run both; the losses and the weights are the same."""
    seen = Losses()
    theirs = by_lightning(cls, hooks=[], callbacks=[seen, seeds()], **how)
    ours = by_workbench(cls, root, hooks=[], **how)
    losses, wanted = ours.extra["result"].history["loss"], torch.tensor(seen.values).numpy()
    assert len(losses) == len(wanted) > 1
    assert len(set(losses.tolist())) > 1
    if exact:
        assert losses.tolist() == wanted.tolist()
    else:
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-5, atol=1e-6)
    same_state(ours.module, theirs.module, exact=exact)
    return ours, theirs


def test_the_demo_on_its_own_random_data(tmp_path):
    """It draws its samples when its loaders are asked for."""
    the_same(boring.BoringModel, tmp_path, seeds=SeedsEarly, max_epochs=2, num_sanity_val_steps=0)


def test_the_demo_of_manual_optimisation_on_its_own_random_data(tmp_path):
    the_same(
        boring.ManualOptimBoringModel,
        tmp_path,
        seeds=SeedsEarly,
        max_epochs=2,
        num_sanity_val_steps=0,
    )


CASES = {
    "plain": {},
    "clipped": {"gradient_clip_val": 0.2},
    "by value": {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"},
    "checks": {"val_check_interval": 0.25},
    "part": {"limit_train_batches": 5, "max_epochs": 3},
    "updates": {"max_steps": 7, "max_epochs": -1},
}


@pytest.mark.parametrize("how", CASES.values(), ids=CASES)
@pytest.mark.parametrize(
    "cls", [boring.BoringModel, boring.DemoModel, modules.Frugal], ids=lambda cls: cls.__name__
)
def test_losses(cls, how, tmp_path):
    val = loader(12, 4, 7) if cls is boring.BoringModel else None
    the_same(cls, tmp_path, train=loader(32), val=val, **{"max_epochs": 2, **how})


@pytest.mark.parametrize(
    "name", ["EachUpdate", "EverySecond", "EachEpoch", "Plateau", "TwoSchedules"]
)
def test_losses_under_schedules(name, tmp_path):
    the_same(getattr(modules, name), tmp_path, train=loader(32), val=loader(12, 4, 7), max_epochs=4)


def test_batches_drawn_alike(tmp_path):
    """A sampler with a generator of its own draws the same order in both.

    (Not torch's RandomSampler: it draws once more behind its last index, which the Trainer never asks for.)
    """

    class Drawn(torch.utils.data.Sampler):
        def __init__(self):
            self.generator = torch.Generator().manual_seed(3)

        def __len__(self):
            return 32

        def __iter__(self):
            return iter(torch.randperm(32, generator=self.generator).tolist())

    def shuffled():
        return DataLoader(rows(32), sampler=Drawn(), batch_size=4)

    seen, how = Losses(), {"val": loader(8), "max_epochs": 2, "hooks": []}
    theirs = by_lightning(boring.BoringModel, train=shuffled(), callbacks=[seen], **how)
    ours = by_workbench(boring.BoringModel, tmp_path, train=shuffled(), **how)
    assert ours.extra["result"].history["loss"].tolist() == torch.tensor(seen.values).tolist()
    same_state(ours.module, theirs.module)


class Noisy(boring.BoringModel):
    """Dropout, batch statistics, and a loss that draws."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(
            torch.nn.Linear(32, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.Dropout(0.4),
            torch.nn.Linear(16, 2),
        )

    def training_step(self, batch, batch_idx):
        return self.step(batch + 0.1 * torch.randn_like(batch))


def drawn(n=32):
    """A loader that draws its seeds from a generator of its own, so that it takes no number of the model's."""
    return DataLoader(rows(n), batch_size=4, generator=torch.Generator().manual_seed(0))


def test_models_that_draw(tmp_path):
    how = {"train": drawn(), "val": loader(8), "max_epochs": 3, "limit_val_batches": 0}
    the_same(Noisy, tmp_path, **how)


def test_gradients_of_windows(tmp_path):
    """A window's loss here is the mean over its samples; Lightning tells one loss a batch, divided by the window."""
    how = {
        "train": drawn(),
        "val": loader(8),
        "max_epochs": 2,
        "limit_val_batches": 0,
        "accumulate_grad_batches": 4,
        "hooks": [],
    }
    seen = Losses()
    theirs = by_lightning(Noisy, callbacks=[seen, Seeds()], **how)
    ours = by_workbench(Noisy, tmp_path, **how)
    windows = torch.tensor(seen.values).view(-1, 4).sum(1)
    torch.testing.assert_close(
        torch.tensor(ours.extra["result"].history["loss"]), windows, rtol=1e-5, atol=1e-6
    )
    same_state(ours.module, theirs.module, exact=False)


# -- the language models, on the standard library's text


@pytest.fixture
def text(tmp_path, monkeypatch):
    """The folder in which the demos look for the text they would download: it holds some of the standard library."""
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    source = "".join(
        Path(inspect.getfile(module)).read_text(encoding="utf-8") for module in (textwrap, inspect)
    )
    (folder / "data" / "wikitext-2.txt").write_text(source[:40000], encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


def demos():
    from lightning.pytorch.demos import lstm, transformer

    return lstm, transformer


def test_the_transformer(text, tmp_path):
    """LightningTransformer, its text and its loaders, all of it unchanged."""
    _, transformer = demos()
    words = transformer.WikiText2().vocab_size

    class OfThisText(transformer.LightningTransformer):
        def __init__(self):
            super().__init__(vocab_size=words)

    ours, _ = the_same(OfThisText, tmp_path, limit_train_batches=12)
    losses = ours.extra["result"].history["loss"]
    assert losses[-3:].mean() < losses[:3].mean()


def test_the_lstm(text, tmp_path):
    """LightningLSTM with its hidden state and its own sampler; a smaller network in it, for time's sake."""
    lstm, transformer = demos()
    words = transformer.WikiText2().vocab_size

    class OfThisText(lstm.LightningLSTM):
        def __init__(self):
            super().__init__(vocab_size=words)
            self.model = lstm.SimpleLSTM(words, ninp=24, nhid=24, nlayers=2)

    ours, theirs = the_same(OfThisText, tmp_path, gradient_clip_val=0.25)
    run = ours.extra["result"]
    assert ours.module.hidden is theirs.module.hidden is None  # dropped in on_train_epoch_end
    assert run.history["train_loss"].tolist() == run.history["loss"].tolist()


def test_the_lstm_over_epochs(text, tmp_path):
    """Its loader given, with a generator of its own."""
    lstm, transformer = demos()
    data = transformer.WikiText2()

    class OfThisText(lstm.LightningLSTM):
        def __init__(self):
            super().__init__(vocab_size=data.vocab_size)
            self.model = lstm.SimpleLSTM(data.vocab_size, ninp=24, nhid=24, nlayers=2)

    batches = DataLoader(
        data,
        batch_sampler=lstm.SequenceSampler(data, 20),
        generator=torch.Generator().manual_seed(0),
    )
    the_same(OfThisText, tmp_path, train=batches, max_epochs=3, gradient_clip_val=0.25)
