"""The race: what it tries, what it concludes, what a stretch is, and that nothing of it is left."""

import contextlib
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer
from torch import nn

import workbench as wb
from tests.benchmarks.lr_regret import fitted
from tests.benchmarks.lr_tasks import TASKS
from tests.engine.problems import (
    SizedStream,
    adam,
    bench,
    labelled,
    loss_of,
    noisy_net,
    plain_net,
    same_weights,
    sgd,
    twin_of,
    weights,
)
from tests.engine.resuming import settings_of, supervised
from tests.on_ranks import on_ranks
from tests.reference import loop
from tests.tuners.learning_rate.test_ranks_lr_finder import sweep
from workbench.engine.setup import open_session
from workbench.events import RaceTrial
from workbench.settings import SettingsError
from workbench.task.errors import TaskError
from workbench.tuners.learning_rate.lr_finder import LRRequest
from workbench.tuners.learning_rate.lr_race import SPACING, Start, Watch, climb, conclusion
from workbench.tuners.learning_rate.sweep import Level
from workbench.tuners.stretch import HELD_OUT, next_value, starting_loss
from workbench.tuners.trial_batches import cycled_windows
from workbench.units import rate

pytestmark = pytest.mark.usefixtures("one_thread")


def trials(losses):
    return [RaceTrial(lr, 75, loss) for lr, loss in losses.items()]


def start_at(loss):
    return Start(loss, Level.of(np.array([loss])))


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({0.1: 1.0, 1.0: 2.0, 10.0: 3.0}, 0.01),
        ({0.1: 3.0, 1.0: 2.0, 10.0: 1.0}, 100.0),
        ({0.1: 2.0, 1.0: 1.0, 10.0: 3.0}, 0.1**0.5),
        ({0.1: 3.0, 1.0: 1.0, 10.0: 2.0}, 10**0.5),
        ({0.1: 3.0, 1.0: 1.0, 10.0: math.inf}, 0.1**0.5),
        ({1e-3: 1.0, 1.0: 2.0}, 1e-4),
    ],
    ids=["below", "above", "left", "right", "one diverged", "ten times at most"],
)
def test_the_fourth_rate_is_beyond_the_best_or_beside_it(losses, expected):
    assert next_value(losses) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "one_cycle"])
def test_the_suggestion_is_drawn_to_the_better_rates(schedule):
    def found(losses):
        return conclusion(1.0, trials(losses), start_at(9.0), schedule).lr / (
            0.5 if schedule == "constant" else 1.0
        )

    assert found({0.1: 0.5, 1.0: 5.0, 10.0: 5.0}) == pytest.approx(0.1, rel=0.01)
    assert found({0.1: 5.0, 1.0: 5.0, 10.0: 0.5}) == pytest.approx(10.0, rel=0.01)
    assert found({0.01: 1.0, 0.1: 1.0, 1.0: 9.0}) == pytest.approx(0.001**0.5, rel=0.01)
    assert found({0.1: 1.0, 1.0: math.inf, 10.0: math.inf, 0.01: 9.0}) == pytest.approx(
        0.1, rel=0.01
    )
    assert found({0.1: 1.0, 1.0: math.nan, 10.0: math.inf}) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("best", "schedule"),
    [(1.0, "cosine"), (0.7, "cosine"), (1.5, "one_cycle"), (2.0, "constant"), (3.0, "constant")],
)
def test_a_rate_close_to_the_sweeps_confirms_it(best, schedule):
    kept = conclusion(1.0, trials({0.1: 9.0, best: 0.5, 10.0: 9.0}), start_at(9.0), schedule)
    assert kept.lr == 1.0
    confirmed = "These losses confirm 1" in kept.why
    assert confirmed == (best == 1.0)
    assert confirmed or "is close to it and stays" in kept.why
    assert conclusion(
        1.0, trials({0.1: 9.0, best / 3: 0.5, 10.0: 9.0}), start_at(9.0), schedule
    ).lr == pytest.approx(best / 3 * (0.5 if schedule == "constant" else 1), rel=0.01)


def test_losses_that_count_as_equal_confirm_nothing():
    """They differ fivefold, and are nothing beside the loss at the start."""
    losses = {0.3: 1390.0, 1.0: 1330.0, 3.2: 285.0, 10.0: 991.0}
    kept = conclusion(1.0, trials(losses), start_at(2e7), "constant")
    assert kept.lr == 1.0
    assert "confirm" not in kept.why
    assert "Beside the loss at the start, 2e+07, these losses count as equal" in kept.why


def test_another_rate_must_be_clearly_better():
    kept = conclusion(
        1.0, trials({0.1: 9.0, 1.0: 1.02, 3.0: 1.0, 10.0: 1.0}), start_at(9.0), "cosine"
    )
    assert kept.lr == 1.0
    assert "No rate above 1 is clearly better" in kept.why
    assert (
        conclusion(
            1.0, trials({0.1: 9.0, 1.0: 1.1, 3.0: 1.0, 10.0: 1.0}), start_at(9.0), "cosine"
        ).lr
        > 2
    )
    below = {0.1: 1.0, 0.3: 1.0, 1.0: 1.02, 10.0: 9.0}
    kept = conclusion(1.0, trials(below), start_at(9.0), "cosine")
    assert kept.lr == 1.0
    assert "No rate below 1 is clearly better" in kept.why
    assert conclusion(1.0, trials({**below, 1.0: 1.1}), start_at(9.0), "cosine").lr < 0.5
    assert conclusion(1.0, trials(below), start_at(9.0), "constant").lr < 0.3


@pytest.mark.parametrize("loss", [math.inf, math.nan, 5.1])
def test_a_higher_rate_is_far_from_those_that_break_the_training(loss):
    near = conclusion(
        1.0, trials({0.4: 5.0, 1.0: 3.0, 2.5: 1.0, 4.0: loss}), start_at(9.0), "cosine"
    )
    assert near.lr == 1.0
    assert "too near 4, which breaks the training" in near.why
    far = conclusion(
        1.0, trials({0.4: 5.0, 1.0: 3.0, 2.5: 1.0, 6.0: loss}), start_at(9.0), "cosine"
    )
    assert far.lr == pytest.approx(6 / SPACING)
    assert conclusion(
        1.0, trials({0.4: 5.0, 1.0: 3.0, 2.5: 1.0, 4.0: 4.0}), start_at(9.0), "cosine"
    ).lr == pytest.approx(2.5, rel=0.01)


def test_without_losses_to_compare_the_rate_stays():
    assert (
        conclusion(
            1.0, trials({0.1: math.inf, 1.0: 1.0, 10.0: math.inf}), start_at(9.0), "cosine"
        ).lr
        == 1.0
    )
    none = conclusion(
        1.0, trials({0.1: math.inf, 1.0: math.inf, 10.0: math.inf}), start_at(9.0), "cosine"
    )
    assert none.lr == 1.0
    assert "no rate ends with a finite held-out loss" in none.why


@pytest.mark.parametrize("shift", [0.0, -2.0, -100.0])
def test_losses_below_zero_are_compared_by_the_share_of_their_fall(shift):
    """By the ratio, no loss on a high floor is clearly better than another, and none below zero is."""
    for losses, expected in (
        ({0.1: 9.0, 1.0: 9.6, 10.0: 9.9}, 0.1),
        ({0.1: 9.9, 1.0: 9.6, 10.0: 8.6}, 10.0),
    ):
        shifted = trials({lr: loss + shift for lr, loss in losses.items()})
        start = Start(10.0 + shift, Level(10.0 + shift, 10.0 + shift, 1.0 if shift else None))
        assert conclusion(1.0, shifted, start, "cosine").lr == pytest.approx(expected, rel=0.3)


def test_the_present_rate_is_beaten_or_it_stays():
    raced = trials({0.1: 9.0, 1.0: 1.0, 10.0: 9.0})
    kept = conclusion(1.0, raced, start_at(9.0), "constant", RaceTrial(0.02, 75, 0.9))
    assert kept.lr == 0.02
    assert "0.02: 0.9" in kept.why
    assert "No rate is better than the present one" in kept.why
    beaten = conclusion(1.0, raced, start_at(9.0), "constant", RaceTrial(0.02, 75, 1.1))
    assert beaten.lr == conclusion(1.0, raced, start_at(9.0), "constant").lr
    diverged = trials({0.1: math.inf, 1.0: math.inf, 10.0: math.inf})
    present = RaceTrial(0.001, 75, 2.0)
    assert conclusion(1.0, diverged, start_at(9.0), "cosine", present).lr == 0.001


@pytest.mark.parametrize(("present", "raced"), [(1e-4, True), (None, False)])
def test_the_present_rate_trains_unless_another_is_close_to_it(present, raced, tmp_path):
    lr = bench(plain_net(), labelled(800), tmp_path, adam).find_lr().result().suggestion
    present = present or 1.1 * lr
    b = bench(plain_net(), labelled(800), tmp_path, adam, lr=present)
    curve = b.find_lr(race=True, race_updates=200).result()
    assert [t.updates for t in curve.race if t.lr == present] == [50] * raced
    assert len(curve.race) == 4 + raced


def test_a_rate_that_is_far_too_high_gives_way_to_a_lower_one(tmp_path):
    """Codes of a network that collapses at high rates: then the loss stays where it was, as on a plateau."""
    task = next(task for task in TASKS if task.name == "floor simclr momentum")
    torch.manual_seed(0)
    train, val = task.data()
    planned = {"batch_size": task.batch_size, "max_steps": task.updates}
    b = bench(task.model(), train, tmp_path, task.optimizer, val=val, loss=task.loss, **planned)
    curve = b.find_lr(race=True).result()
    sweeps = curve.suggestions["landmarks"].lr
    assert [t.lr for t in curve.race[:2]] == pytest.approx([sweeps, sweeps / 10])
    assert curve.suggestion < sweeps / 5
    assert len(curve.race) >= 5, "the lower rate is not taken from the others"


@pytest.mark.parametrize("judge", ["val", "training batches"])
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_stretch_is_the_plain_loops_with_a_rate_that_falls_at_its_end(schedule, judge, tmp_path):
    model, data, val = noisy_net(), labelled(600), labelled(40, seed=2)
    twin = twin_of(model)
    b = bench(
        model,
        data,
        tmp_path,
        sgd,
        lr_schedule=schedule,
        max_epochs=2,
        **({"val": val} if judge == "val" else {}),
    )
    first = b.find_lr(race=True, race_updates=200).result().race[0]
    assert first.updates == 50
    loader, optimizer = loop.loader_of(data, 8), sgd(twin.parameters(), lr=1.0)
    loop.seed_all(0)
    feed = itertools.chain.from_iterable(itertools.repeat(loader))
    held = (
        loop.loader_of(val, 8, shuffle=False)
        if judge == "val"
        else list(itertools.islice(feed, HELD_OUT))
    )
    twin.train()
    for update, batch in enumerate(itertools.islice(feed, 50)):
        share = 1.0 if update < 40 else 0.5 * (1 + math.cos(math.pi * (update - 40) / 10))
        optimizer.param_groups[0]["lr"] = first.lr * share
        loss_of(twin, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    twin.eval()
    with torch.no_grad():
        expected = [loss_of(twin, batch).item() for batch in held]
    assert first.loss == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_what_it_tries_and_what_it_leaves(tmp_path):
    model, data = noisy_net(), labelled(800)
    twin = twin_of(model)
    plain = bench(twin, data, tmp_path / "plain", adam).fit(max_epochs=2).result()
    b = bench(model, data, tmp_path / "raced", adam)
    before, random = weights(model), torch.get_rng_state()
    found = b.find_lr(race=True).result()
    assert same_weights(before, weights(model))
    assert torch.equal(random, torch.get_rng_state())
    lr = found.suggestions["landmarks"].lr
    assert [t.lr for t in found.race[:3]] == pytest.approx([lr, lr / SPACING, lr * SPACING])
    assert len(found.race) == 4
    assert all(t.updates == 75 and math.isfinite(t.loss) for t in found.race)
    assert found.suggestion == found.suggestions["race"].lr
    assert min(t.lr for t in found.race) / 2 <= found.suggestion <= max(t.lr for t in found.race)
    assert "race" in repr(found)
    assert b.fit(max_epochs=2).result().history["loss"].tolist() == plain.history["loss"].tolist()


def test_the_notes_are_about_the_rate_that_it_chose(tmp_path):
    x, y = load_breast_cancer(return_X_y=True)
    data = torch.utils.data.TensorDataset(
        torch.tensor((x - x.mean(0)) / x.std(0)).float(), torch.tensor(y)
    )
    torch.manual_seed(0)
    found = (
        bench(nn.Linear(30, 2), data, tmp_path, sgd).find_lr(race=True, race_updates=200).result()
    )
    assert found.suggestion != pytest.approx(found.suggestions["landmarks"].lr, rel=0.02)
    [note] = [note for note in found.notes if note.startswith("Worth trying")]
    assert f"{rate(found.suggestion / 2, 2)} to {rate(found.suggestion * 2, 2)}" in note


def test_where_no_rate_moves_the_loss_the_suggestion_is_called_a_guess(tmp_path):
    """Labels that the samples do not tell: what the losses differ by is noise."""
    x = torch.zeros(400, 6)
    y = torch.arange(400) % 3
    model = plain_net()
    before = weights(model)
    b = bench(model, (x, y), tmp_path, adam, val=(x, y), lr_schedule="cosine")
    found = b.find_lr(race=True, race_updates=200).result()
    assert same_weights(before, weights(model))
    lr = found.suggestions["landmarks"].lr
    assert [t.lr for t in found.race[:2]] == pytest.approx([lr, lr / 10])
    assert sum(t.updates for t in found.race) <= 200 + 2 * 50
    assert found.suggestion == min(found.race, key=lambda t: t.loss).lr
    assert found.notes[0].startswith("This rate is a guess")
    assert "no rate moves the loss" in found.suggestions["race"].why


def test_on_a_plateau_a_higher_rate_is_found_that_leaves_it(tmp_path):
    """Small factors: around 0 the product hardly depends on them, so a sweep sees nothing."""
    task = next(task for task in TASKS if task.name == "plateau factors momentum")
    torch.manual_seed(0)
    train, val = task.data()
    planned = {"batch_size": task.batch_size, "max_steps": task.updates, "lr_schedule": "cosine"}
    b = bench(task.model(), train, tmp_path, task.optimizer, val=val, loss=task.loss, **planned)
    found = b.find_lr(race=True).result()
    assert found.suggestions["landmarks"].lr is None
    sweeps = found.race[0].lr
    losses = {t.lr: t.loss for t in found.race}
    assert sum(t.updates for t in found.race) <= 300 + 75
    assert any(t.loss == math.inf and t.updates < 75 for t in found.race), (
        "a rate that breaks the training costs few updates"
    )
    assert min(losses.values()) < 0.8 * losses[sweeps]
    assert sweeps < found.suggestion < min(t.lr for t in found.race if t.loss == math.inf)
    assert not any("guess" in note for note in found.notes)
    assert fitted(task, 0, "cosine", found.suggestion) < 0.5 * fitted(task, 0, "cosine", sweeps)


class Plateau:
    """Stretches of a made-up task: a rate from `breaks` on breaks within `within` updates; the loss falls once rate times updates is `far`."""

    def __init__(self, breaks, far, within=20):
        self.breaks, self.far, self.within, self.tried = breaks, far, within, []

    def __call__(self, rate, updates, watch=None):
        if rate >= self.breaks:
            trial = RaceTrial(
                rate, updates if watch is None else min(updates, self.within), math.inf
            )
        else:
            trial = RaceTrial(
                rate, updates, 0.3 if rate * updates >= self.far else 1 - 1e-5 * rate * updates
            )
        self.tried.append(trial)
        return trial


def climbed(task, schedule="cosine", left=225):
    found = climb([task(1.0, 75)], start_at(1.0), left, schedule, task)
    assert sum(t.updates for t in task.tried[1:]) <= left
    return found, [(round(t.lr, 2), t.updates) for t in task.tried[1:]]


def test_the_rate_rises_tenfold_until_it_breaks_and_one_between_gets_the_rest():
    found, tried = climbed(Plateau(breaks=5.0, far=400.0))
    assert tried == [(10.0, 20), (3.16, 205)]
    assert found.suggestion.lr == pytest.approx(0.7 * 10**0.5)
    assert found.loss == 0.3
    assert not found.doubt
    assert "10: broken after 20 updates" in found.suggestion.why
    found, tried = climbed(Plateau(breaks=50.0, far=2000.0))
    assert tried == [(10.0, 75), (100.0, 20), (31.62, 130)]
    assert found.suggestion.lr == pytest.approx(0.7 * 1000**0.5)
    found, tried = climbed(Plateau(breaks=2.0, far=300.0))
    assert tried == [(10.0, 20), (3.16, 20), (1.78, 185)]
    assert found.suggestion.lr == pytest.approx(0.7 * 10**0.25)
    found, tried = climbed(Plateau(breaks=1.5, far=200.0))
    assert tried[-1] == (1.33, 165)
    assert found.suggestion.lr == 1.0, "no lower than the highest rate that does not break it"


def test_a_rate_that_moves_the_loss_in_a_usual_stretch_is_raced():
    found, tried = climbed(Plateau(breaks=50.0, far=500.0))
    assert tried == [(10.0, 75), (100.0, 75), (3.16, 75)]
    assert found.suggestion.lr == pytest.approx(10.0, rel=0.01)
    assert climbed(Plateau(breaks=50.0, far=500.0), "constant")[0].suggestion.lr == pytest.approx(
        found.suggestion.lr / 2, rel=0.01
    )


def test_without_a_rate_that_moves_the_loss_the_lowest_is_a_guess():
    found, tried = climbed(Plateau(breaks=5.0, far=math.inf))
    assert tried == [(10.0, 20), (3.16, 205)]
    assert found.suggestion.lr == pytest.approx(10**0.5)
    assert found.doubt.startswith("This rate is a guess")
    found, tried = climbed(Plateau(breaks=1.01, far=math.inf, within=75))
    assert found.suggestion.lr == 1.0
    assert found.loss is None
    assert "The sweep's rate stays" in found.suggestion.why


def test_a_higher_rate_must_come_further_in_an_update():
    """What trains for longer comes further at any rate."""

    def slow(rate, updates, watch=None):
        return RaceTrial(
            rate, *((20, math.inf) if rate > 5 else (updates, 1 - 0.001 * updates**0.99))
        )

    found = climb([slow(1.0, 75)], start_at(1.0), 225, "cosine", slow)
    assert found.suggestion.lr == 1.0
    assert "no higher rate lowers the loss faster" in found.suggestion.why
    assert not found.doubt


def test_a_loss_that_has_clearly_risen_bounds_the_rate_too():
    class Risen(Plateau):
        def __call__(self, rate, updates, watch=None):
            return (
                super().__call__(rate, updates, watch)
                if rate < 5
                else self.tried.append(RaceTrial(rate, updates, 1.07)) or self.tried[-1]
            )

    assert climbed(Risen(breaks=9.0, far=400.0))[1] == [(10.0, 75), (3.16, 150)]


def test_training_is_broken_where_ten_losses_are_twice_their_level():
    level = Level.of(np.array([1.0]))
    calm, broken, spike = Watch(level), Watch(level), Watch(level)
    assert not any(calm(1.9) for _ in range(30))
    assert [broken(2.1) for _ in range(10)] == [False] * 9 + [True]
    assert broken.updates == 10
    assert not any(spike(9.0 if update == 20 else 1.0) for update in range(40))
    assert [Watch(level)(math.nan), broken(math.nan)] == [False, True]


def test_losses_of_single_samples_break_no_training():
    for seed in range(50):
        losses = np.random.default_rng(seed).chisquare(1, 85)
        watch = Watch(Level.of(losses[:10]))
        assert not any(map(watch, losses[10:].tolist()))


def test_below_zero_a_training_is_broken_by_its_range():
    watch = Watch(Level.of(np.array([-2.0, -1.0, 0.0])))
    assert not any(watch(0.9) for _ in range(20))
    assert any(watch(1.1) for _ in range(20))


def test_ranks_climb_together():
    def raced():
        data = torch.utils.data.TensorDataset(torch.zeros(800, 6), torch.arange(800) % 3)
        _, end, untouched = sweep(
            plain_net(),
            data,
            {"batch_size": 4},
            LRRequest(num_training=40, race=True, race_updates=200),
        )
        return end, untouched

    (end, untouched), other = on_ranks(2, raced)
    assert untouched
    assert other == (end, True)
    assert "no rate moves the loss" in end.suggestions[0].why
    assert end.doubts[0].startswith("This rate is a guess")


def test_in_a_short_epoch_samples_are_left_out_of_all_epochs(tmp_path):
    """Ten batches an epoch: two judge, and no later batch of any epoch has one of their samples."""
    model, data = noisy_net(), labelled(80)
    twin = twin_of(model)
    race = bench(model, data, tmp_path, sgd).find_lr(race=True, race_updates=200).result().race
    assert len(race) == 4
    optimizer = sgd(twin.parameters(), lr=1.0)
    loop.seed_all(0)
    batches = loop.loader_of(list(range(80)), 8)
    first = [batch.tolist() for batch in batches]
    held = {index for batch in first[:2] for index in batch}
    feed = first[2:]
    while len(feed) < 50:
        left = [index for batch in batches for index in batch.tolist() if index not in held]
        feed += [left[i : i + 8] for i in range(0, 64, 8)]
    twin.train()
    for update, indices in enumerate(feed[:50]):
        share = 1.0 if update < 40 else 0.5 * (1 + math.cos(math.pi * (update - 40) / 10))
        optimizer.param_groups[0]["lr"] = race[0].lr * share
        loss_of(twin, data[indices]).backward()
        optimizer.step()
        optimizer.zero_grad()
    twin.eval()
    with torch.no_grad():
        expected = [loss_of(twin, data[indices]).item() for indices in first[:2]]
    assert race[0].loss == pytest.approx(sum(expected) / 2, rel=1e-5)


@pytest.mark.parametrize("kind", ["workers", "batch sampler", "ready batches", "replacement"])
def test_no_window_after_those_that_judge_has_a_sample_of_theirs(kind):
    data, settings, workers = labelled(80), settings_of(), kind == "workers"
    if workers:
        settings = settings.replace(num_workers=1)
    match kind:
        case "batch sampler":
            own = [[9, 8, 1], [2, 3], [4, 5], [6, 7, 0]]
            data = torch.utils.data.DataLoader(data, batch_sampler=own)
        case "ready batches":
            ready = [data[i : i + 4] for i in range(0, 80, 4)]
            data = torch.utils.data.DataLoader(ready, batch_size=None, shuffle=True)
        case "replacement":
            sampler = torch.utils.data.RandomSampler(data, replacement=True)
            data = torch.utils.data.DataLoader(data, 8, sampler=sampler)
    task = supervised(plain_net(), train=data)
    with contextlib.closing(cycled_windows(task, settings, held_out=2)) as feed:
        windows = [
            {tuple(x.tolist()) for x in window[0][0]} for window in itertools.islice(feed, 60)
        ]
    judging = windows[0] | windows[1]
    assert len(set().union(*windows[2:])) >= (5 if kind == "batch sampler" else 40)
    assert not judging & set().union(*windows[2:])


def test_where_samples_cannot_be_left_out_short_epochs_have_no_race(tmp_path):
    stream = SizedStream(labelled(80))
    found = bench(plain_net(), stream, tmp_path, shuffle=False).find_lr(race=True).result()
    assert found.race == ()
    assert found.suggestion == found.suggestions["landmarks"].lr
    assert "no val_loss to judge by (give val=)" in found.suggestions["race"].why
    assert found.notes[0].startswith("There was no race: an epoch has fewer than 91 updates")
    raced = bench(plain_net(), stream, tmp_path, shuffle=False, val=labelled(40, seed=2))
    assert len(raced.find_lr(race=True).result().race) == 4


def test_several_validation_sets_judge_by_the_mean_of_their_losses():
    sets = {"clean": labelled(24, seed=2), "shifted": labelled(40, seed=3)}
    losses = []
    for val in (sets["clean"], sets["shifted"], sets):
        with open_session(supervised(plain_net(), val=val), settings_of()) as session:
            losses.append(starting_loss(session, 1000)[0])
    assert losses[0] != losses[1]
    assert losses[2] == pytest.approx(sum(losses[:2]) / 2)


def test_losses_that_are_nearly_nothing_decide_little():
    learned = trials({0.1: 0.001, 1.0: 0.003, 10.0: 0.002})
    assert conclusion(1.0, learned, start_at(2.0), "cosine").lr == 1.0
    assert conclusion(1.0, learned, start_at(0.02), "cosine").lr < 0.2


def test_without_a_race_there_is_none(tmp_path):
    found = bench(plain_net(), labelled(), tmp_path).find_lr(num_training=60).result()
    assert found.race == ()
    assert "race" not in found.suggestions


@pytest.mark.parametrize("updates", [199, 0, 300.0, True, "300"])
def test_too_few_updates_are_refused(updates, tmp_path):
    with pytest.raises(SettingsError, match="race_updates="):
        bench(plain_net(), labelled(), tmp_path).find_lr(race=True, race_updates=updates)
    with pytest.raises(SettingsError, match="race='yes': give True or False"):
        bench(plain_net(), labelled(), tmp_path).find_lr(race="yes")


def test_what_cannot_be_judged_is_refused(tmp_path):
    pytest.importorskip("lightning")
    import lightning as L

    class Manual(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.net = nn.Linear(6, 3)

        def training_step(self, batch, batch_idx):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    job = wb.Workbench(
        Manual(), train=(torch.randn(40, 6), torch.randint(3, (40,))), root=tmp_path
    ).find_lr(race=True)
    assert isinstance(job.exception(), TaskError)
    assert "race=True" in str(job.exception())


def test_ranks_race_together():
    def raced():
        _, end, untouched = sweep(
            plain_net(),
            labelled(800),
            {"batch_size": 4},
            LRRequest(num_training=40, race=True, race_updates=200),
        )
        return end, untouched

    (end, untouched), other = on_ranks(2, raced)
    assert untouched
    assert other == (end, True)
    assert end.suggestions[0].name == "race"
    assert end.suggestion == end.suggestions[0].lr
