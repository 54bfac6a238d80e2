"""The search for a weight decay: what a stretch is, when it moves, and that it leaves nothing behind."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import (
    SizedStream,
    bench,
    labelled,
    loss_of,
    noisy_net,
    plain_net,
    same_weights,
    twin_of,
    weights,
)
from tests.reference import loop
from workbench.events import DecaySearchEnded, DecayTrial
from workbench.settings import SettingsError
from workbench.task.errors import TaskError
from workbench.tuners.decay_search import WeightDecaySearch, conclusion, first_values

pytestmark = pytest.mark.usefixtures("one_thread")


def trials(losses):
    return [DecayTrial(value, 200, loss) for value, loss in losses.items()]


def adamw(params, lr=1e-2, weight_decay=0.01):
    return torch.optim.AdamW(params, lr=lr, weight_decay=weight_decay)


def no_decay(params, lr=1e-2, weight_decay=0.01):
    """As usual for transformers: biases have no decay."""
    params = list(params)
    matrices, others = [p for p in params if p.ndim > 1], [p for p in params if p.ndim == 1]
    return torch.optim.AdamW(
        [
            {"params": others, "weight_decay": 0.0},
            {"params": matrices, "weight_decay": weight_decay},
        ],
        lr=lr,
    )


def test_more_decay_is_suggested_where_it_is_clearly_better():
    found = conclusion(trials({0.01: 0.5, 0.1: 0.4, 1.0: 0.2, 10.0: 3.0}))
    assert found.suggestion == 1.0
    assert found.best == {"weight_decay": 1.0}
    assert "At 1 it is clearly lower than at 0.01" in found.reason
    assert "0.01: 0.5, 0.1: 0.4, 1: 0.2, 10: 3" in found.reason


def test_the_present_value_stays_on_thin_evidence():
    for losses in (
        {0.01: 0.5, 0.1: 0.485, 1.0: 0.49},
        {0.01: 0.5, 0.1: math.inf, 1.0: math.inf},
        {0.01: math.inf, 0.1: 0.5, 1.0: 0.4},
    ):
        found = conclusion(trials(losses))
        assert found.suggestion is None
        assert found.best == {}
        assert "stays" in found.reason


def test_less_decay_needs_more_evidence_than_more():
    assert conclusion(trials({1.0: 0.5, 0.1: 0.42, 10.0: 3.0})).suggestion is None
    assert conclusion(trials({1.0: 0.5, 10.0: 0.42, 0.1: 3.0})).suggestion == 10.0
    assert conclusion(trials({1.0: 0.5, 0.1: 0.2, 10.0: 3.0})).suggestion == 0.1


def test_of_values_that_are_nearly_alike_the_next_one_is_taken():
    assert conclusion(trials({0.01: 0.5, 0.1: 0.301, 1.0: 0.3})).suggestion == 0.1


def test_losses_that_are_nearly_nothing_decide_nothing():
    learned = trials({0.01: 0.002, 0.1: 0.001, 1.0: 0.0015})
    assert conclusion(learned).suggestion == 0.1
    assert conclusion(learned, start=2.0).suggestion is None


def test_the_first_values_are_above_unless_the_present_one_is_large():
    assert first_values(0.01, 0.01) == [0.01, 0.1, 1.0]
    assert first_values(0.0, 1e-4) == [0.0, 1e-3, 1e-2]
    assert first_values(0.5, 0.01) == [0.5, 5.0, 0.05]


def test_a_stretch_is_the_plain_loops(tmp_path):
    """With the run's schedule as short as the stretch, and more decay where the run is longer, by its root."""
    model, data, val = noisy_net(), labelled(600), labelled(40, seed=2)
    twin = twin_of(model)
    b = bench(
        model, data, tmp_path, no_decay, lr_schedule="cosine", max_steps=150, val=val, lr=0.02
    )
    found = b.find_weight_decay(updates=200).result()
    assert [t.weight_decay for t in found.trials[:3]] == [0.01, 0.1, 1.0]
    loader, optimizer = (
        loop.loader_of(data, 8),
        no_decay(twin.parameters(), lr=0.02, weight_decay=math.sqrt(3) * 1.0),
    )
    loop.seed_all(0)
    twin.train()
    for update, batch in enumerate(
        itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 50)
    ):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * 0.5 * (1 + math.cos(math.pi * update / 50))
        loss_of(twin, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    twin.eval()
    with torch.no_grad():
        expected = [loss_of(twin, batch).item() for batch in loop.loader_of(val, 8, shuffle=False)]
    assert found.trials[2].loss == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_a_model_that_overfits_gets_more_decay_and_no_trace_is_left(tmp_path):
    """Forty samples of noise and a little signal in 60 inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(440, 60, generator=generator)
    y = (x[:, 0] + 2 * torch.randn(440, generator=generator) > 0).long()
    train, val = (x[:40], y[:40]), (x[40:], y[40:])

    def made(folder):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 2))
        return bench(
            model,
            train,
            folder,
            adamw,
            val=val,
            lr=1e-2,
            batch_size=8,
            loss=F.cross_entropy,
            max_steps=200,
        )

    plain = made(tmp_path / "plain").fit().result()
    b = made(tmp_path / "searched")
    before, random = weights(b.model), torch.get_rng_state()
    found = b.find_weight_decay().result()
    assert same_weights(before, weights(b.model))
    assert torch.equal(random, torch.get_rng_state())
    assert len(found.trials) == 4
    assert found.suggestion > 0.01
    assert f"weight_decay={found.suggestion:g} (all values tried)" in repr(found)
    assert found.plot() is not None
    assert b.settings.weight_decay is None, "nothing is applied by itself"
    record = wb.attach("0001-find_weight_decay", root=tmp_path / "searched").result()
    assert (record.suggestion, record.reason, record.trials) == (
        found.suggestion,
        found.reason,
        found.trials,
    )
    assert b.fit().result().history["loss"].tolist() == plain.history["loss"].tolist()


def test_groups_keep_their_ratio_and_no_decay_stays_none(tmp_path):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.second(self.first(batch[0])), batch[1])

        def configure_optimizers(self):
            groups = [
                {"params": [self.first.bias, self.second.bias], "weight_decay": 0.0},
                {"params": [self.first.weight], "weight_decay": 0.01},
                {"params": [self.second.weight], "weight_decay": 0.005},
            ]
            self.made = torch.optim.AdamW(groups, lr=0.01)
            return self.made

    model = Own()
    b = wb.Workbench(model, train=labelled(800), root=tmp_path, batch_size=8)
    assert [t.weight_decay for t in b.find_weight_decay(updates=200).result().trials[:3]] == [
        0.01,
        0.1,
        1.0,
    ]
    b.fit(max_steps=1, weight_decay=0.5).result()
    assert [group["weight_decay"] for group in model.made.param_groups] == [0.0, 0.5, 0.25]


def test_the_present_value_is_the_settings_where_a_function_scales_it(tmp_path):
    def halved(params, lr=1e-2, weight_decay=0.1):
        return torch.optim.AdamW(params, lr=lr, weight_decay=weight_decay / 2)

    found = (
        bench(plain_net(), labelled(80), tmp_path, halved, val=labelled(40, seed=2))
        .find_weight_decay(updates=200)
        .result()
    )
    assert found.trials[0].weight_decay == 0.1


def test_without_held_out_batches_nothing_is_tried(tmp_path):
    stream = SizedStream(labelled(80))
    found = bench(plain_net(), stream, tmp_path, adamw, shuffle=False).find_weight_decay().result()
    assert found.trials == ()
    assert found.suggestion is None
    assert "no val_loss to judge by (give val=)" in found.reason
    assert "unchanged" in repr(found)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (torch.optim.Rprop, "Rprop has no weight_decay"),
        (lambda params, lr: torch.optim.AdamW(params, lr), "takes no weight_decay"),
        (
            lambda params, lr, weight_decay=0.1: torch.optim.AdamW(params, lr, weight_decay=0.1),
            "does not change the decay of the AdamW",
        ),
    ],
    ids=["none", "no argument", "unused"],
)
def test_an_optimizer_whose_decay_cannot_be_set_is_named(make, told, tmp_path):
    error = bench(plain_net(), labelled(), tmp_path, make).find_weight_decay().exception()
    assert isinstance(error, TaskError)
    assert told in str(error)


@pytest.mark.parametrize("updates", [199, 0, 800.0, True, "many"])
def test_too_few_updates_are_refused(updates, tmp_path):
    with pytest.raises(SettingsError, match="updates="):
        bench(plain_net(), labelled(), tmp_path).find_weight_decay(updates=updates)


def test_a_search_that_did_not_get_far_suggests_nothing():
    assert WeightDecaySearch.from_events([]).suggestion is None
    cut = WeightDecaySearch.from_events(
        [*trials({0.01: 1.0}), DecaySearchEnded({}, None, "", "stopped")]
    )
    assert (cut.ended, len(cut.trials)) == ("stopped", 1)
    assert cut.plot() is not None


def test_ranks_search_together(tmp_path):
    data, val = labelled(200), labelled(40, seed=2)
    alone = (
        bench(plain_net(), data, tmp_path / "alone", adamw, batch_size=8, val=val, max_steps=50)
        .find_weight_decay(updates=200)
        .result()
    )
    b = bench(
        plain_net(),
        data,
        tmp_path / "two",
        adamw,
        batch_size=4,
        val=val,
        max_steps=50,
        devices=2,
        accelerator="cpu",
    )
    together = b.find_weight_decay(updates=200).result()
    assert [t.weight_decay for t in together.trials] == [t.weight_decay for t in alone.trials]
    assert [t.loss for t in together.trials] == pytest.approx(
        [t.loss for t in alone.trials], rel=1e-3
    )
