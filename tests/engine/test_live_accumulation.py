"""How many batches make an update, changed while a fit goes on: from the next update on, and to the end of the run."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.combinations import every
from tests.engine.learners import Speller, letters_loss, sentences
from tests.engine.problems import labelled, noisy_net, plain_net, sgd, stepped_by_hand
from tests.engine.resuming import Fit, assert_goes_on_as, learning, resumed, settings_of, supervised
from tests.on_ranks import on_ranks
from tests.reference import loop as twin
from workbench.commands import Change, Pause, Resume
from workbench.engine import loop
from workbench.events import Changed, RunStarted, StepsDone
from workbench.runs.checkpoints import find
from workbench.settings import SettingsError

pytestmark = pytest.mark.usefixtures("one_thread")


def to(size):
    return Change({"accumulate_grad_batches": size})


@pytest.fixture
def windows(monkeypatch):
    """How many batches each update had, in order."""
    update, sizes = loop.train_step, []

    def watched(session, window):
        sizes.append(len(window))
        return update(session, window)

    monkeypatch.setattr(loop, "train_step", watched)
    return sizes


def losses(run):
    return np.concatenate(
        [event.array("loss") for event in run.events if isinstance(event, StepsDone)]
    )


@pytest.mark.parametrize(
    ("begin", "changes"),
    [(1, {4: 3}), (3, {1: 1, 9: 2}), (2, {0: 4, 2: 1, 11: 7}), (1, {7: 2}), (2, {4: 2})],
    ids=["more", "fewer and more", "at once", "behind an epoch", "the same"],
)  # fmt: skip
def test_it_holds_from_the_next_update_on(begin, changes, windows):
    """7 batches in an epoch, in windows that begin anew with each."""
    model = noisy_net()
    expected = copy.deepcopy(model)
    run = Fit(
        supervised(model),
        settings_of(accumulate_grad_batches=begin),
        commands={n: to(size) for n, size in changes.items()},
    )

    def size(step):
        return {0: begin, **changes}[max(first for first in (0, *changes) if first <= step)]

    found = twin.fit(
        expected, lambda m, batch: F.cross_entropy(m(batch[0]), batch[1]), sgd(expected.parameters(), lr=0.05),
        twin.loader_of(labelled(), 8), 3, accumulate=size,
    )  # fmt: skip
    np.testing.assert_array_equal(losses(run), np.float32(found["loss"]))
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(run.weights[f"0.{name}"], value, rtol=0, atol=0)
    assert run.counters[0] == len(windows) == len(found["loss"])
    assert sum(windows) == 21
    assert [e.step for e in run.events if isinstance(e, Changed)] == list(changes)


def test_the_next_key_of_a_plan_still_comes(windows):
    Fit(
        supervised(plain_net()),
        settings_of(accumulate_grad_batches={0: 1, 2: 4}),
        commands={3: to(2)},
    )
    assert windows == [1, 1, 1, 2, 2, 2, 2, 2, 1, 4, 3]


def test_a_plan_that_was_there_and_one_by_hand_are_the_same_run():
    planned = Fit(
        supervised(noisy_net(), val=labelled(20, seed=2)),
        settings_of(accumulate_grad_batches={0: 1, 1: 3}),
    )
    by_hand = Fit(
        supervised(noisy_net(), val=labelled(20, seed=2)),
        settings_of(),
        commands={7: (Pause(), to(3), Resume())},
    )
    assert by_hand.rows() == planned.rows()
    assert by_hand.validations() == planned.validations()


@pytest.mark.parametrize(
    "settings",
    [{}, {"lr_schedule": "cosine"}, {"lr_schedule": "one_cycle", "warmup": 2}, {"val_check_interval": 0.3},
     {"weight_averaging": "ema", "checkpoint_every": 1}],
)  # fmt: skip
@pytest.mark.parametrize("step", every(2, [5, 8, 12]))
def test_a_run_goes_on_from_behind_it(settings, step, tmp_path):
    """One change in the middle of the first epoch, one in the second: 3 + 2 updates, 1 + 3, 4."""

    def make():
        return supervised(noisy_net(), val=labelled(20, seed=2))

    chosen = settings_of(**{"checkpoint_every": 1, "save_top_k": -1, "max_epochs": 4, **settings})
    whole = Fit(make(), chosen, tmp_path / "whole", commands={3: to(2), 6: to(3)})
    point = find(tmp_path / "whole", step)
    now = 2 if step == 5 else 3
    commands = {6: to(3)} if step == 5 else {}
    rest = resumed(
        make,
        chosen.replace(accumulate_grad_batches=now),
        point,
        tmp_path / "rest",
        commands=commands,
    )
    assert_goes_on_as(whole, rest, step)
    if step > 6:  # nothing is to change any more
        assert rest.session.updates == whole.counters[0]


def test_checks_within_the_epoch_stay_where_they_were_to_come():
    """7 updates at the beginning, a check behind each second: with windows of 3 from the third on, these are 2 + 2."""
    task = supervised(plain_net(), val=labelled(20, seed=2))
    run = Fit(task, settings_of(val_check_interval=0.3, max_epochs=2), commands={2: to(3)})
    assert [step for step, *_ in run.validations()] == [2, 5, 6, 7]


def test_pieces_in_time(windows):
    """Texts of 11 letters in pieces of 4, 4 and 3, 9 an epoch: windows run across batches, with the state carried on."""

    def task():
        return supervised(Speller(), train=sentences(), loss=letters_loss)

    chosen = settings_of(truncated_bptt_steps=4, max_epochs=2)
    Fit(task(), chosen, commands={4: to(2)})
    assert windows == [1, 1, 1, 1, 2, 2, 1, 2, 2, 2, 2, 1]
    planned = Fit(task(), chosen.replace(accumulate_grad_batches={0: 1, 1: 2}))
    by_hand = Fit(task(), chosen, commands={9: to(2)})
    assert by_hand.rows() == planned.rows()


def test_the_schedule_keeps_its_length_and_it_is_said():
    run = Fit(supervised(plain_net()), settings_of(lr_schedule="linear"), commands={2: to(7)})
    assert [
        text
        for text in run.said
        if "7 batches make an update, and the schedule keeps the 21 updates" in text
    ]
    assert Fit(supervised(plain_net()), settings_of(), commands={2: to(7)}).said == []


class ByHand(nn.Module):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.net = plain_net()

    def training_step(self, batch, batch_idx):
        stepped_by_hand(self, F.cross_entropy(self.net(batch[0]), batch[1]), batch_idx)

    def configure_optimizers(self):
        return [
            torch.optim.SGD(self.net[0].parameters(), lr=0.1),
            torch.optim.SGD(self.net[2].parameters(), lr=0.1),
        ]


def test_by_hand_it_is_left_out_and_said(windows):
    run = Fit(
        learning(ByHand()),
        settings_of(),
        commands={2: Change({"accumulate_grad_batches": 2, "gradient_clip_val": 3.0}), 3: to(4)},
    )
    assert set(windows) == {1}
    assert [
        text
        for text in run.said
        if text.startswith("accumulate_grad_batches=2 was left out: with manual optimisation")
    ]
    assert [e.values for e in run.events if isinstance(e, Changed)] == [{"gradient_clip_val": 3.0}]


class Asking(nn.Module):
    """Looks at what its trainer says of the updates, and divides as Lightning would."""

    def __init__(self):
        super().__init__()
        self.net, self.seen = plain_net(), []

    def training_step(self, batch, batch_idx):
        self.seen.append(self.trainer.accumulate_grad_batches)
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_the_trainer_of_an_object_knows_of_it():
    model = Asking()
    Fit(learning(model), settings_of(max_epochs=1), commands={3: to(2)})
    assert model.seen == [1] * 3 + [2] * 4


def test_ranks_change_together():
    def rank(size, commands):
        run = Fit(
            supervised(noisy_net()), settings_of(batch_size=size, shuffle=False), commands=commands
        )
        return losses(run), run.weights, [e.step for e in run.events if isinstance(e, Changed)]

    commands = {3: to(2), 6: to(1)}
    here = on_ranks(2, rank, 4, commands)
    for found, _, steps in here:
        np.testing.assert_array_equal(found, here[0][0])
        assert steps == [3, 6]

    # Dropout and batch norm are each rank's own: of a net without them one process has the same.
    def plain(size):
        run = Fit(
            supervised(plain_net()), settings_of(batch_size=size, shuffle=False), commands=commands
        )
        return losses(run)

    np.testing.assert_allclose(on_ranks(2, plain, 4)[0], plain(8), rtol=2e-4)


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({0: 2, 3: 4}, r"accumulate_grad_batches=\{0: 2, 3: 4\}: while a run trains it can only change to one number.*change\("),
        (0, "accumulate_grad_batches=0: should be at least 1"),
        (None, "accumulate_grad_batches=None: should be a number of batches"),
        (True, "accumulate_grad_batches=True: should be a number of batches"),
    ],
)  # fmt: skip
def test_what_it_cannot_become_is_refused_at_once(value, match, tmp_path):
    b = wb.Workbench(
        plain_net(), train=labelled(), loss=F.cross_entropy, root=tmp_path, batch_size=5
    )
    job = b.fit(max_epochs=100_000)
    try:
        with pytest.raises(SettingsError, match=match):
            job.change(accumulate_grad_batches=value)
    finally:
        job.stop()
    assert job.result().changes == ()


def test_a_run_that_is_gone_on_with_says_how_long_it_will_be(tmp_path):
    """10 updates an epoch; from the second on there are 2 batches in each."""
    b = wb.Workbench(
        plain_net(), train=labelled(), loss=F.cross_entropy, root=tmp_path, batch_size=5
    )
    first = b.fit(max_epochs=1).result()
    run = b.fit(start=first.id, accumulate_grad_batches=2, max_epochs=3).result()
    assert next(e.updates for e in run.events if isinstance(e, RunStarted)) == run.step == 20
    assert [(e.step, e.values) for e in run.changes] == [(10, {"accumulate_grad_batches": 2})]
