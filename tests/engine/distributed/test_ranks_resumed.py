"""A fit on ranks that is resumed from a checkpoint continues as the uninterrupted one, to the last bit, on every rank."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

import workbench as wb
from tests.combinations import every
from tests.conftest import SOAK
from tests.engine.data.test_loaders_position import Noisy
from tests.engine.learners import SpellingLearner, sentences
from tests.engine.problems import (
    Augmented,
    Shares,
    Stream,
    labelled,
    noisy_net,
    plain_net,
    stepped_by_hand,
)
from tests.engine.resuming import Fit, assert_goes_on_as, learning, settings_of, supervised
from tests.on_ranks import on_ranks
from workbench.commands import Stop
from workbench.engine.checkpoint import manager
from workbench.engine.checkpoint.files import read_state
from workbench.runs.checkpoints import list_checkpoints
from workbench.task.errors import TaskError
from workbench.task.state.serialization import NotPlainError


@pytest.fixture(autouse=True)
def _one_thread(one_thread):
    """Sums repeat."""


val = functools.partial(labelled, 19, seed=2)


class Own(nn.Module):
    """A forward moves a number, a buffer and a generator that are others on each rank, and they count."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.calls, self.generator = noisy_net(), 0.0, torch.Generator().manual_seed(3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        if self.training:
            self.calls += float(x.detach().mean())
            with torch.no_grad():
                self.seen += x.detach().mean()
        noise = torch.randn(6, generator=self.generator) * 0.1
        return self.net(x + noise) * (1 + 0.01 * torch.tanh(self.seen + self.calls))


class ByHand(nn.Module):
    """Gradients of a part add up over updates, on each rank its own until then."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.b(torch.tanh(self.a(batch[0]))), batch[1])
        stepped_by_hand(self, loss, batch_idx)
        return loss

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.05) for part in (self.a, self.b)]


CASES = {
    "plain": (lambda: supervised(noisy_net(), val=val()), {"weight_averaging": "ema", "ema_decay": 0.5}),
    "accumulated": (lambda: supervised(Own(), val=val()), {"accumulate_grad_batches": 2, "val_check_interval": 2}),
    "noise": (lambda: supervised(noisy_net(), train=Noisy(Augmented(labelled(50))), val=val()), {"gradient_clip_val": 0.1}),
    "workers": (lambda: supervised(noisy_net(), train=Augmented(labelled(50)), val=val()), {"num_workers": 1}),
    "stream": (lambda: supervised(noisy_net(), train=Stream(labelled(50)), val=val()), {"weight_averaging": "swa", "swa_epoch_start": 1}),
    "knows": (lambda: supervised(noisy_net(), train=Stream(labelled(50), knows=True), val=val()), {}),
    "by rank": (lambda: supervised(noisy_net(), train=Shares(labelled(48)), val=Shares(val())), {"streams": "shard"}),
    "by rank, knows": (
        lambda: supervised(noisy_net(), train=Shares(labelled(48), knows=True, most_first=True), val=val()),
        {"streams": "shard", "accumulate_grad_batches": {0: 1, 1: 2}},
    ),
    "ready": (lambda: supervised(noisy_net(), train=wb.batches(list(DataLoader(labelled(50), 4))), val=val()), {"monitor": "val_loss"}),
    "pieces": (
        lambda: learning(SpellingLearner(), train=sentences(22)), {"truncated_bptt_steps": 3, "accumulate_grad_batches": 2},
    ),
    "by hand": (lambda: learning(ByHand(), train=labelled(48)), {}),
}  # fmt: skip


def cut_and_gone_on(make, settings, whole, folder, at):
    """Of one rank: the fit `whole` stopped behind `at` updates, and one that goes on from there."""
    stopped = Fit(make(), settings, folder / "stopped", commands={at: Stop()})
    assert stopped.status == "stopped"
    dist.barrier()
    point = list_checkpoints(folder / "stopped")[-1]
    assert (point.step, point.resumable) == (at, True)
    rest = Fit(make(), settings, folder / "rest", state=read_state(point.path))
    assert rest.said == []
    assert_goes_on_as(whole, rest, at)
    dist.barrier()
    assert [p.name for p in list_checkpoints(folder / "rest")][-1:] == [
        p.name for p in list_checkpoints(whole.folder)
    ][-1:]


@pytest.mark.parametrize("case", every(2, [*CASES]))
def test_to_the_bit_on_every_rank(case, tmp_path):
    make, given = CASES[case]
    settings = settings_of(
        **{"batch_size": 4, "persistent_workers": False, "max_epochs": 2, **given}
    )
    updates = {"accumulated": 4, "pieces": 4}.get(case, 7)

    def rank():
        torch.set_num_threads(1)
        whole = Fit(make(), settings, tmp_path / "whole")
        for at in (updates, updates + 2, *([3] if SOAK else [])):
            cut_and_gone_on(make, settings, whole, tmp_path / str(at), at)
        return whole.drawn[2]

    first, other = on_ranks(2, rank)
    assert first != other, "each rank draws numbers of its own"


def test_a_checkpoint_in_the_middle_and_one_behind_an_epoch(tmp_path):
    """All that are written every so often, also where a rank has no batch in the last round of an epoch."""
    make = lambda: supervised(noisy_net(), train=labelled(26), val=val())  # noqa: E731  # 7 batches of 4: rounds of 3, 3 and 1
    settings = settings_of(batch_size=4, max_epochs=2, checkpoint_every=1, save_top_k=-1)

    def rank():
        torch.set_num_threads(1)
        whole = Fit(make(), settings, tmp_path / "whole")
        dist.barrier()
        points = [point for point in list_checkpoints(tmp_path / "whole") if not point.end]
        for point in points:
            assert_goes_on_as(
                whole, Fit(make(), settings, state=read_state(point.path)), point.step
            )
        return [(point.step, point.epoch) for point in points], whole.counters

    (points, counters), *others = on_ranks(3, rank)
    assert points == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2)]
    assert counters[0] == 6
    assert all(other == (points, counters) for other in others)


def test_the_best_are_chosen_alike_and_written_once(tmp_path):
    def rank():
        run = Fit(
            supervised(plain_net(), val=val()),
            settings_of(batch_size=4, lr=1.0, max_epochs=4, save_top_k=2),
            tmp_path,
        )
        dist.barrier()
        return [(p.name, p.value) for p in list_checkpoints(tmp_path)], run.validations(), run.saved

    first, other = on_ranks(2, rank)
    assert first[:2] == other[:2]
    assert first[2], "nothing was written"
    assert not other[2], "rank 0 alone writes, and says so"
    values = {step: metrics["val_loss"] for step, _, metrics in first[1]}
    assert {name[:8] for name, _ in first[0]} == {
        f"{step:08d}" for step in [*sorted(values, key=values.get)[:2], 28]
    }


@pytest.fixture
def of_two(tmp_path):
    """The folder of a fit on two ranks: checkpoints in the middle of an epoch, and behind it."""

    def rank():
        Fit(make_task(), SHORT.replace(checkpoint_every=3), tmp_path / "two")

    on_ranks(2, rank)
    return tmp_path / "two"


def make_task():
    return supervised(noisy_net(), val=val())


SHORT = settings_of(batch_size=4, max_epochs=2, save_top_k=-1)


def test_another_number_of_ranks_goes_on_behind_an_epoch_alone(tmp_path, of_two):
    there = {point.step: point for point in list_checkpoints(of_two)}
    assert {3, 7} <= there.keys()
    with pytest.raises(
        TaskError,
        match=r"is of 2 ranks in the middle of an epoch.*to 1 process: set devices=2 .*bench\.load",
    ):
        Fit(make_task(), SHORT, state=read_state(there[3].path))
    rest = Fit(make_task(), SHORT, state=read_state(there[7].path))
    assert any(
        "continues with 1 process where there was another number" in text for text in rest.said
    )
    assert rest.counters[:2] == (7 + 13, 2)  # an epoch of one process has 13 batches

    def rank(point):
        try:
            run = Fit(make_task(), SHORT, state=read_state(point.path))
        except TaskError as error:
            return str(error)
        return run.counters[:2], run.drawn[2], run.said

    for text in on_ranks(3, rank, there[3]):
        assert "to 3 ranks: set devices=2" in text
    found = on_ranks(3, rank, there[7])
    assert [counters for counters, *_ in found] == [(7 + 5, 2)] * 3
    assert len({tuple(drawn) for _, drawn, _ in found}) == 3
    assert found[0][2]


def test_the_checkpoint_of_one_process_goes_on_on_ranks(tmp_path):
    alone = Fit(make_task(), SHORT, tmp_path / "one")
    point = next(point for point in alone.checkpoints if point.epoch == 1)
    state = read_state(point.path)
    assert state["world"] == 1
    del state["world"]  # as those that were written before there were ranks

    def rank():
        run = Fit(make_task(), SHORT, state=state)
        return run.counters, run.weights["0.0.weight"]

    (counters, weight), (_, other) = on_ranks(2, rank)
    assert counters[:2] == (13 + 7, 2)
    assert torch.equal(weight, other)


def test_what_one_rank_cannot_keep_is_told_and_no_rank_waits(tmp_path):
    def refuse(*_):
        raise NotPlainError("the model holds a Thing")

    def rank():
        if dist.get_rank():
            manager.state_of = refuse
        return Fit(supervised(plain_net()), settings_of(batch_size=4, max_epochs=1), tmp_path).said

    said, _ = on_ranks(2, rank)
    assert any(
        "checkpoints have weights alone, and no fit can continue from them: the model holds a Thing"
        in text
        for text in said
    )
    assert not list_checkpoints(tmp_path)[-1].resumable
