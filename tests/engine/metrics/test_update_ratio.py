"""How far updates move the weights: measured now and then, for the layers of the optimizers that stepped, and only while it is on."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.engine.learners import TwoSided
from tests.engine.problems import noisy_net, plain_net
from tests.engine.resuming import Fit, learning, settings_of, supervised
from tests.on_ranks import on_ranks
from tests.runs.records import history
from workbench.commands import Change
from workbench.engine import loop
from workbench.engine.metrics import update_ratio
from workbench.events import RunStarted, StepsDone
from workbench.instruments.update_ratio import copies, update_ratios

pytestmark = pytest.mark.usefixtures("one_thread")


def on(wanted=True):
    return Change({"track_update_ratio": wanted})


@pytest.fixture
def always(monkeypatch):
    """Every recorded update is measured."""
    monkeypatch.setattr(update_ratio, "PERIOD", 0.0)


@pytest.fixture
def moves(monkeypatch):
    """The weights of each parameter before and after each update, in order."""
    update, seen = loop.train_step, []

    def watched(session, window):
        before = [p.detach().clone().double() for p in session.parameters.values()]
        loss = update(session, window)
        seen.append(
            [
                (b, p.detach().double())
                for b, p in zip(before, session.parameters.values(), strict=True)
            ]
        )
        seen[-1] = [(b, a.clone()) for b, a in seen[-1]]
        return loss

    monkeypatch.setattr(loop, "train_step", watched)
    return seen


def table(run):
    """Updates x layers."""
    found = history([RunStarted("t", "fit", {}, "cpu", tuple(run.session.parameters)), *run.events])
    return np.stack(
        [found[f"update_ratio/{name}"] for name in tuple(run.session.parameters)], axis=1
    )


def expected(moves):
    rows = [
        [float((a - b).norm() / b.norm()) if float(b.norm()) else np.nan for b, a in row]
        for row in moves
    ]
    return np.array(rows, dtype=np.float32)


def test_they_are_how_far_the_whole_step_went(always, moves):
    """Momentum, weight decay, clipping and a bias that begins at zero."""
    net = plain_net()
    nn.init.zeros_(net[0].bias)
    task = supervised(net, optimizer=lambda p, lr: torch.optim.AdamW(p, lr=lr, weight_decay=0.3))
    run = Fit(
        task, settings_of(track_update_ratio=True, gradient_clip_val=0.1, accumulate_grad_batches=2)
    )
    found = table(run)
    np.testing.assert_allclose(found, expected(moves), rtol=1e-5)
    assert np.isnan(found[0]).tolist() == [False, True, False, False]
    assert not np.isnan(found[1:]).any()


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.complex64])
def test_weights_of_any_kind_have_them(kind):
    """torch takes norms of 64 bits and of complex numbers in no narrower type."""
    before = [torch.tensor([3.0, 4.0], dtype=kind), torch.zeros(2, dtype=kind), torch.ones(1)]
    after = [before[0] + 1, before[1] + 1, torch.ones(1)]
    found = update_ratios(copies(before), after)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, [2**0.5 / 5, np.nan, 0.0], rtol=1e-5)


def test_the_run_is_the_same_with_them(always):
    with_them, without = (
        Fit(supervised(noisy_net()), settings_of(track_update_ratio=wanted))
        for wanted in (True, False)
    )
    assert not any("update_ratios" in e.columns for e in without.events if isinstance(e, StepsDone))
    rows = with_them.rows()
    for row in rows.values():
        del row["update_ratios"]
    assert rows == without.rows()
    assert all(
        torch.equal(value, with_them.weights[name]) for name, value in without.weights.items()
    )


def test_only_recorded_updates_are_measured(always, moves):
    run = Fit(supervised(plain_net()), settings_of(track_update_ratio=True, log_every_n_steps=4))
    np.testing.assert_allclose(table(run), expected(moves)[::4], rtol=1e-5)


def test_about_one_in_a_second_is_measured(monkeypatch):
    """A clock that goes on by 0.3 s whenever it is read: at each update, and behind one that was measured."""
    monkeypatch.setattr(update_ratio, "perf_counter", itertools.count(0.0, 0.3).__next__)
    found = table(Fit(supervised(plain_net()), settings_of(track_update_ratio=True)))
    assert (np.flatnonzero(~np.isnan(found[:, 0])) % 4).tolist() == [0] * 6


def test_it_can_be_turned_on_and_off_on_the_way(always, moves):
    run = Fit(supervised(plain_net()), settings_of(), commands={5: on(), 12: on(False), 17: on()})
    found = table(run)
    measured = np.isin(np.arange(21), [*range(5, 12), *range(17, 21)])
    np.testing.assert_array_equal(~np.isnan(found).all(axis=1), measured)
    np.testing.assert_allclose(found[measured], expected(moves)[measured], rtol=1e-5)
    assert run.session.settings.track_update_ratio


@pytest.mark.parametrize("frequencies", [None, (1, 3)])
def test_each_layer_when_its_own_optimizer_steps(frequencies, always, moves):
    run = Fit(learning(TwoSided(frequencies=frequencies)), settings_of(track_update_ratio=True))
    found, moved = table(run), expected(moves)
    head = np.array([name.startswith("head") for name in tuple(run.session.parameters)])
    turn = np.ones(21, bool) if frequencies is None else np.arange(21) % 4 != 0
    np.testing.assert_allclose(found[turn][:, head], moved[turn][:, head], rtol=1e-5)
    others = turn if frequencies is None else ~turn
    np.testing.assert_allclose(found[others][:, ~head], moved[others][:, ~head], rtol=1e-5)
    if frequencies is not None:
        assert np.isnan(found[turn][:, ~head]).all()
        assert np.isnan(found[~turn][:, head]).all()


def test_optimizers_that_take_turns_are_all_measured(monkeypatch):
    """A second for each: one for both would fall on the same turn again and again."""
    monkeypatch.setattr(update_ratio, "perf_counter", itertools.count(0.0, 0.25).__next__)
    run = Fit(
        learning(TwoSided(frequencies=(1, 3))), settings_of(track_update_ratio=True, max_epochs=6)
    )
    assert (~np.isnan(table(run))).any(axis=0).all()


class Breaking(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain_net()
        self.forwards = 0

    def training_step(self, batch, batch_idx):
        self.forwards += 1
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        return loss * float("nan") if batch_idx == 3 else loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


def test_an_update_that_is_left_out_moves_nothing(always):
    run = Fit(
        learning(Breaking()),
        settings_of(track_update_ratio=True, on_nonfinite="skip", max_epochs=1),
    )
    assert np.isnan(table(run)).all(axis=1).tolist() == [
        False,
        False,
        False,
        True,
        False,
        False,
        False,
    ]


def test_of_several_ranks_the_first_one_tells(monkeypatch):
    def rank():
        update_ratio.PERIOD = 0.0
        run = Fit(supervised(plain_net()), settings_of(track_update_ratio=True, batch_size=4))
        return any(
            "update_ratios" in e.columns for e in run.events if isinstance(e, StepsDone)
        ) and table(run)

    first, second = on_ranks(2, rank)
    assert np.isfinite(first).all()
    assert second is False


def test_weights_of_half_precision_are_measured_in_single():
    before = [torch.full((300,), 0.1, dtype=torch.bfloat16), torch.zeros(3)]
    after = [before[0] * 1.01, torch.ones(3)]
    found = update_ratios(copies(before), after)
    assert found.dtype == torch.float32
    assert found[0].item() == pytest.approx(
        float((after[0].float() - before[0].float()).norm() / before[0].float().norm()), rel=1e-2
    )
    assert torch.isnan(found[1])
    assert torch.equal(before[1], torch.zeros(3))
