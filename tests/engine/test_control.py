"""A look at the validation data and a checkpoint, asked for between two updates: the run goes on as if nobody had asked."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Sampler

from tests.engine.problems import Stream, labelled, noisy_net, plain_net
from tests.engine.resuming import Fit, assert_goes_on_as, learning, resumed, settings_of, supervised
from tests.on_ranks import on_ranks
from workbench.commands import Checkpoint, Mailbox, Pause, Resume, Stop, Validate
from workbench.engine import control, loop
from workbench.engine.checkpoint.files import read_state
from workbench.engine.setup import open_session
from workbench.events import Message, StatusChanged, Validated
from workbench.runs.checkpoints import find

pytestmark = pytest.mark.usefixtures("one_thread")

OFTEN = {
    0: Validate(),
    3: Validate(),
    9: (Pause(), Validate(), Checkpoint(), Resume()),
    14: Validate(),
}


class Drawn(Sampler):
    """Another order in each pass."""

    def __init__(self, size):
        self.size, self.generator = size, torch.Generator().manual_seed(5)

    def __len__(self):
        return self.size

    def __iter__(self):
        return iter(torch.randperm(self.size, generator=self.generator).tolist())


def shuffled():
    return DataLoader(labelled(20, seed=2), 6, sampler=Drawn(20))


class Counting(nn.Module):
    """Its buffers count forwards, of evaluations too, in place and by new tensors, and the output depends on them."""

    def __init__(self):
        super().__init__()
        self.net = noisy_net()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("renewed", torch.zeros(1).expand(3))  # into which torch does not copy

    def forward(self, x):
        self.count += 1
        self.renewed = self.renewed + 1
        return self.net(x) * (1 + 0.01 * self.count + 0.01 * self.renewed[0])


class Logging(nn.Module):
    """Like a LightningModule, with hooks that a check calls; one of them asks for the end when it has seen enough."""

    def __init__(self, patience=100):
        super().__init__()
        self.net, self.heard, self.patience = noisy_net(), [], patience

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("before", float(self.trainer.callback_metrics.get("now", -1.0)))
        self.log("now", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("val_loss", loss, prog_bar=True)
        self.log("now", loss)

    def on_validation_epoch_end(self):
        self.heard.append(
            (self.trainer.global_step, float(self.trainer.callback_metrics["val_loss"]))
        )
        self.trainer.should_stop = len(self.heard) == self.patience

    def on_train_epoch_end(self):
        self.log("last_check", float(self.trainer.callback_metrics.get("val_loss", -1.0)))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=0.01)


def checks(run, *, asked):
    return [
        event.step for event in run.events if isinstance(event, Validated) and event.asked == asked
    ]


PLATEAU = {
    "scheduler": lambda o, updates: torch.optim.lr_scheduler.ReduceLROnPlateau(
        o, factor=0.5, patience=0
    )
}
CASES = {
    "plain": (lambda: supervised(noisy_net(), val=labelled(20, seed=2)), {}),
    "part of validation that shuffles": (lambda: supervised(noisy_net(), val=shuffled()), {"limit_val_batches": 2}),
    "a stream with a generator": (lambda: supervised(plain_net(), val=Stream(labelled(20, seed=2))), {}),
    "part of a stream that knows its place": (
        lambda: supervised(plain_net(), val=Stream(labelled(20, seed=2), knows=True)), {"limit_val_batches": 2},
    ),
    "buffers": (lambda: supervised(Counting(), val=labelled(20, seed=2)), {}),
    "early stopping": (lambda: supervised(plain_net(), val=labelled(20, seed=2)), {"early_stopping": "val_loss", "lr": 1.0}),
    "averages": (
        lambda: supervised(noisy_net(), val=labelled(20, seed=2)),
        {"weight_averaging": "ema", "monitor": "val_loss_averaged", "save_top_k": 2},
    ),
    "a plateau": (lambda: supervised(plain_net(), val=labelled(20, seed=2), **PLATEAU), {"lr": 0.5, "max_epochs": 5}),
    "checks in the middle": (lambda: supervised(noisy_net(), val=labelled(20, seed=2)), {"val_check_interval": 0.5}),
    "accumulation": (lambda: supervised(noisy_net(), val=labelled(20, seed=2)), {"accumulate_grad_batches": 2, "max_epochs": 6}),
    "hooks": (lambda: learning(Logging(), val=labelled(20, seed=2)), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_run_goes_on_as_if_nobody_had_asked(case, tmp_path):
    make, settings = CASES[case]
    alone = Fit(make(), settings_of(**settings), tmp_path / "alone")
    asked = Fit(make(), settings_of(**settings), tmp_path / "asked", commands=OFTEN)
    assert len(checks(asked, asked=True)) == len(
        [step for step in OFTEN if step < alone.counters[0]]
    )
    assert checks(asked, asked=False) == checks(alone, asked=False)
    # at the end of an epoch both look at the same
    if asked.counters[0] > 14 and "shuffles" not in case:
        own, *usual = [e.metrics for e in asked.events if isinstance(e, Validated) and e.step == 14]
        assert usual in ([], [own])
    asked.events = [
        event for event in asked.events if not (isinstance(event, Validated) and event.asked)
    ]
    assert_goes_on_as(alone, asked, 0, epoch=0)
    assert asked.logged() == alone.logged()
    stay = [one.name for one in asked.checkpoints if not one.kept]
    assert stay == [one.name for one in alone.checkpoints if one.name in stay]
    assert {one.name for one in alone.checkpoints} == {one.name for one in asked.checkpoints} - {
        "00000009"
    }


def test_what_is_asked_for_is_what_a_check_there_finds(tmp_path):
    def make():
        return supervised(noisy_net(), val=labelled(20, seed=2))

    usual = Fit(
        make(), settings_of(val_check_interval=3, weight_averaging="ema"), tmp_path / "usual"
    )
    asked = Fit(
        make(), settings_of(weight_averaging="ema"), tmp_path / "asked", commands={3: Validate()}
    )
    expected = next(e.metrics for e in usual.events if isinstance(e, Validated) and e.step == 3)
    found = next(e.metrics for e in asked.events if isinstance(e, Validated) and e.asked)
    assert found == expected
    assert set(found) == {"val_loss", "val_loss_averaged"}


def test_hooks_run_and_what_they_ask_for_has_no_effect(tmp_path):
    model = Logging(patience=2)
    run = Fit(
        learning(model, val=labelled(20, seed=2)),
        settings_of(),
        tmp_path,
        commands={2: Validate(), 4: Validate()},
    )
    assert [step for step, _ in model.heard] == [2, 4, 7, 14, 21]
    assert run.counters[0] == 21
    asked = [e for e in run.events if isinstance(e, Validated) and e.asked]
    assert [e.prog_bar for e in asked] == [("val_loss",)] * 2
    assert [e.metrics["val_loss"] for e in asked] == pytest.approx(
        [value for _, value in model.heard[:2]]
    )


def test_a_pause_is_when_it_is_done(tmp_path):
    run = Fit(
        supervised(plain_net(), val=labelled(20, seed=2)), settings_of(), tmp_path, commands=OFTEN
    )
    told = [e for e in run.events if getattr(e, "step", None) == 9 and not isinstance(e, Message)]
    kinds = [e.status if isinstance(e, StatusChanged) else type(e).__name__ for e in told]
    assert [kind for kind in kinds if kind != "StepsDone"] == [
        "paused",
        "Validated",
        "Saved",
        "running",
    ]


def test_the_clock_of_the_run_stands_still_meanwhile(tmp_path, monkeypatch):
    """A clock that goes on by 1000 s whenever it is read: one look of 1000, and one in a pause of 2000."""
    monkeypatch.setattr(control, "perf_counter", itertools.count(0, 1000).__next__)
    commands = {3: Validate(), 9: (Pause(), Validate(), Resume())}
    run = Fit(
        supervised(plain_net(), val=labelled(20, seed=2)),
        settings_of(),
        tmp_path,
        commands=commands,
    )
    assert -3000 <= run.session.meter.seconds < -2000


@pytest.mark.parametrize("commands", [(Pause(), Stop()), (Pause(), Validate(), Stop())])
def test_a_pause_that_a_stop_ends_is_left_out_too(commands, tmp_path, monkeypatch):
    """The same clock: one of 1000 s, or of 2000 with the look in it. A fit that goes on from the end has it from its state."""
    monkeypatch.setattr(control, "perf_counter", itertools.count(0, 1000).__next__)
    run = Fit(
        supervised(plain_net(), val=labelled(20, seed=2)),
        settings_of(),
        tmp_path,
        commands={3: commands},
    )
    assert run.status == "stopped"
    assert 0 <= run.session.meter.seconds + 1000 * (len(commands) - 1) < 1000
    assert read_state(run.checkpoints[-1].path)["seconds"] < 0


def test_a_look_that_a_stop_ends_is_left_out_too(monkeypatch):
    monkeypatch.setattr(control, "perf_counter", itertools.count(0, 1000).__next__)
    inbox = Mailbox()
    inbox.put(Validate())
    with open_session(
        supervised(Stopping(inbox), val=labelled(20, seed=2)), settings_of()
    ) as session:
        assert loop.fit(session, lambda event: None, inbox) == "stopped"
        assert -1000 <= session.meter.seconds < 0


@pytest.mark.parametrize(
    ("val", "settings", "why"),
    [
        (None, {}, "there is no validation data: make the bench with val="),
        (labelled(20, seed=2), {"limit_val_batches": 0}, "limit_val_batches=0 leaves no batch"),
        (iter([tuple(labelled(20, seed=2)[:8])]), {}, "can be read only once"),
    ],
)  # fmt: skip
def test_where_there_is_nothing_to_look_at_it_says_so(val, settings, why, tmp_path):
    run = Fit(
        supervised(plain_net(), val=val),
        settings_of(**settings),
        tmp_path,
        commands={3: Validate()},
    )
    assert [text for text in run.said if why in text and text.startswith("nothing was validated")]
    assert checks(run, asked=True) == []


class Stopping(nn.Module):
    """Stops the fit in the middle of a check."""

    def __init__(self, inbox):
        super().__init__()
        self.net, self.inbox, self.looks = plain_net(), inbox, 0

    def forward(self, x):
        if not self.training:
            self.looks += 1
            self.inbox.put(Stop())
        return self.net(x)


def test_a_stop_ends_the_look():
    inbox, events = Mailbox(), []
    model = Stopping(inbox)
    inbox.put(Validate())
    inbox.put(Checkpoint())
    with open_session(supervised(model, val=labelled(20, seed=2)), settings_of()) as session:
        assert loop.fit(session, events.append, inbox) == "stopped"
    assert model.looks == 1
    assert [type(event) for event in events] == [Message]
    assert events[0].text == "checkpoint() was left out: the run stops here."


# -- checkpoints


def test_one_that_was_asked_for_stays(tmp_path):
    commands = {2: Checkpoint(), 9: Checkpoint()}
    run = Fit(
        supervised(plain_net(), val=labelled(20, seed=2)),
        settings_of(checkpoint_every=4, max_epochs=4),
        tmp_path,
        commands=commands,
    )
    assert {2, 9} < {one.step for one in run.checkpoints}
    assert [one.step for one in run.checkpoints if one.kept] == [2, 9]
    assert [e.step for e in run.saved if e.step in (2, 9)] == [2, 9]
    assert len(run.checkpoints) <= 5  # beside them the best, the last and the end


@pytest.mark.parametrize("step", [3, 7])
def test_a_fit_goes_on_from_it_as_the_run_did(step, tmp_path):
    def make():
        return supervised(noisy_net(), val=labelled(20, seed=2))

    whole = Fit(make(), settings_of(), tmp_path / "whole", commands={step: Checkpoint()})
    rest = resumed(make, settings_of(), find(tmp_path / "whole", step), tmp_path / "rest")
    assert_goes_on_as(whole, rest, step, epoch=step // 7)


def test_one_that_is_there_already_is_marked_and_one_that_takes_its_place_is_too(tmp_path):
    """At update 8 one is written because it is time; at 3 a check comes that is among the best."""
    every = settings_of(checkpoint_every=4, max_epochs=2)
    run = Fit(
        supervised(plain_net(), val=labelled(20, seed=2)),
        every,
        tmp_path / "a",
        commands={8: (Checkpoint(), Checkpoint())},
    )
    assert [one.step for one in run.checkpoints if one.kept] == [8]
    assert [
        text for text in run.said if text == "checkpoint 00000008 was there already, and stays."
    ]
    often = settings_of(val_check_interval=3, max_epochs=2, lr=0.05)
    run = Fit(
        supervised(plain_net(), val=labelled(20, seed=2)),
        often,
        tmp_path / "b",
        commands={3: Checkpoint()},
    )
    kept = next(one for one in run.checkpoints if one.kept)
    assert (kept.step, kept.monitor) == (3, "val_loss")
    assert len([e for e in run.saved if e.step == 3]) == 2


def test_nothing_is_kept_of_a_fit_without_a_folder(tmp_path):
    run = Fit(supervised(plain_net()), settings_of(), commands={3: Checkpoint()})
    assert [
        text for text in run.said if "no checkpoint was written: this run has no folder" in text
    ]
    run = Fit(supervised(plain_net()), settings_of(fast_dev_run=3), commands={1: Checkpoint()})
    assert [text for text in run.said if "fast_dev_run=3 is a dry run, which keeps nothing" in text]


# -- several ranks


def test_ranks_look_together(tmp_path):
    def rank(folder, commands):
        run = Fit(
            supervised(noisy_net(), val=labelled(21, seed=2)),
            settings_of(batch_size=4),
            folder,
            commands=commands,
        )
        return (
            run.rows(),
            checks(run, asked=True),
            run.weights,
            [one.step for one in run.checkpoints if one.kept],
        )

    alone = on_ranks(2, rank, tmp_path / "alone", {})
    asked = on_ranks(2, rank, tmp_path / "asked", OFTEN)
    for (rows, _, weights, _), (others, there, own, kept) in zip(alone, asked, strict=True):
        assert others == rows
        assert all(torch.equal(own[name], value) for name, value in weights.items())
        assert there == [0, 3, 9, 14]
        assert kept == [9]
