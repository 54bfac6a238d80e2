"""What checks, searches and failures leave behind: nothing. And what cannot go well is refused before it starts."""

import multiprocessing
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import DataLoader, Dataset, IterableDataset

import workbench as wb
from tests.engine.problems import labelled, noisy_net, plain_net, sgd
from tests.waiting import wait_for
from workbench.engine.backward import WindowBackward
from workbench.engine.replay import Replay
from workbench.engine.setup import open_session
from workbench.engine.state import TrainState
from workbench.settings import Settings
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError
from workbench.task.protocol import Optimization, Task
from workbench.techniques.tbptt import Piece

pytestmark = pytest.mark.usefixtures("one_thread")


def bench(tmp_path, model=None, train=None, **settings):
    size = {} if isinstance(train, Iterator) else {"batch_size": 10}
    calm = {"max_epochs": 3, **size, "lr": 0.05, "accelerator": "cpu", "root": tmp_path}
    return wb.Workbench(
        model or plain_net(), train=train or labelled(), val=labelled(20, seed=2), loss=F.cross_entropy, optimizer=sgd,
        **{**calm, **settings},
    )  # fmt: skip


def test_a_batch_norm_that_the_user_keeps_in_eval_mode_keeps_its_statistics(tmp_path):
    """As in fine-tuning: the pass for the averaged weights is no reason to move what training does not move."""
    model = noisy_net().train()
    model[1].eval()
    bench(tmp_path, model, weight_averaging="ema", ema_decay=0.5).fit().result()
    assert torch.equal(model[1].running_mean, torch.zeros(16))
    assert torch.equal(model[1].running_var, torch.ones(16))
    assert not model[1].training


def test_the_pass_for_averaged_weights_does_not_move_the_training(tmp_path):
    """A spectral norm turns its vectors a little at each forward in training mode."""

    def losses(**averaging):
        torch.manual_seed(0)
        model = nn.Sequential(
            spectral_norm(nn.Linear(6, 16)), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)
        )
        return bench(tmp_path, model, **averaging).fit().result().history["loss"]

    np.testing.assert_array_equal(losses(), losses(weight_averaging="ema", ema_decay=0.5))


def test_a_dry_run_tries_swa_whenever_it_would_begin(tmp_path):
    settings = {"weight_averaging": "swa", "swa_epoch_start": 8, "swa_lrs": 0.01, "max_epochs": 10}
    job = bench(tmp_path, **settings).fit(fast_dev_run=2)
    assert "val_loss_averaged" in job.result().validation


def test_batch_norm_of_an_average_needs_data_that_can_be_read_again(tmp_path):
    batches = iter(list(DataLoader(labelled(), 10)))
    with pytest.raises(TaskError, match="only once"):
        bench(tmp_path, noisy_net(), batches, weight_averaging="ema", max_steps=3)


def test_the_limit_that_was_asked_for_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"overfit_batches=0.2 of 2 batches is less than one batch"):
        bench(tmp_path, overfit_batches=0.2)


class Broken(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        if index >= 40:
            raise KeyError(index)
        return labelled()[index]


@pytest.mark.parametrize("persistent", [False, True])
def test_no_loader_process_outlives_a_failed_fit(tmp_path, persistent):
    """Also while its error is looked at: the traceback would keep an iterator, and that its processes."""
    before = multiprocessing.active_children()
    job = bench(
        tmp_path, train=Broken(), num_workers=2, persistent_workers=persistent, shuffle=False
    ).fit()
    with pytest.raises(KeyError):
        job.result()
    # one that is slow to end is told to, and not waited for
    wait_for(lambda: set(multiprocessing.active_children()) <= set(before))
    assert job.exception() is not None  # which the job still holds


class Silent(nn.Module):
    """Has nothing to learn from any batch."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(6, 1)

    def training_step(self, batch, batch_idx):
        return None

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_run_that_would_never_end_says_so(tmp_path):
    job = wb.Workbench(
        Silent(), train=labelled(), root=tmp_path, max_steps=5, accelerator="cpu"
    ).fit()
    with pytest.raises(TaskError, match="every batch of epoch 0 was left out"):
        job.result(timeout=60)


class Understated(IterableDataset):
    """Says that it has half of the samples that it has."""

    def __len__(self):
        return 30

    def __iter__(self):
        yield from labelled(60)


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_one_cycle_stays_at_its_end_where_the_run_goes_on(tmp_path):
    lrs = (
        bench(tmp_path, train=Understated(), lr_schedule="one_cycle", max_epochs=2)
        .fit()
        .result()
        .history["lr"]
    )
    assert len(lrs) == 12
    assert lrs[5] == lrs.min()
    assert (lrs[6:] == lrs[5]).all()


class Carrying(Task):
    """Adds up what it was handed; leaves a batch out where the settings of the test say so."""

    def __init__(self):
        self.model = nn.Linear(1, 1)
        self.train = DataSpec.of("train", labelled())
        self.told = []
        self.left_out = ()

    def training_step(self, batch, batch_idx, **extra):
        self.told.append(extra["hiddens"])
        if len(self.told) - 1 in self.left_out:
            return None
        return {"loss": self.model(batch).sum(), "hiddens": batch.sum()}

    def validation_step(self, batch, batch_idx, stage="val"):
        raise NotImplementedError

    def configure(self, settings, updates):
        return Optimization(torch.optim.SGD(self.model.parameters(), lr=settings.lr))


def test_no_state_of_the_batch_before_where_the_first_piece_is_left_out():
    task = Carrying()
    with open_session(
        task, Settings(truncated_bptt_steps=1, max_steps=9, accelerator="cpu")
    ) as session:
        task.left_out = (2,)
        window = [Piece(torch.full((1, 1), float(n)), n % 2 == 0, 1) for n in range(4)]
        work = WindowBackward(session, session.optimizers[0], window)
        work.accumulate()
        work.finish()
    assert task.told == [None, 0.0, None, None]


def moments(device, every, steps):
    """The updates that are kept to be taken again, of so many."""
    replay, state = Replay(torch.device(device)), TrainState()
    for step in range(steps):
        state.step, state.records = step, step % every == 0
        replay.remember(state, [step], look=True)
    return [step for step in range(steps) if replay.at(step) is not None]


def test_only_updates_that_will_be_looked_at_are_kept(monkeypatch):
    """Every batch of the updates between would be kept for nothing, until memory is full."""
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.zeros(1))
    assert moments("cuda", every=100, steps=250) == [0, 100, 200]
