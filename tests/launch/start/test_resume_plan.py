"""`bench.fit(start=…)` as a user sees it: what goes on is the run as if it had never ended, or it is said why not."""

import functools
import json
import threading
import time
from collections import defaultdict

import lightning
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.combinations import every, pairs
from tests.conftest import SOAK
from tests.engine.problems import (
    Augmented,
    adam,
    labelled,
    noisy_net,
    plain_net,
    same_weights,
    sgd,
    weights,
)
from tests.runs.records import read_events
from workbench.engine.checkpoint import files
from workbench.events import (
    Changed,
    Message,
    Resumed,
    RunEnded,
    RunStarted,
    StatusChanged,
    StepsDone,
)
from workbench.launch.process.run_in_child import run_in_child
from workbench.launch.thread import JobRunner
from workbench.runs.run import Run
from workbench.runs.store import RunFolder

pytestmark = pytest.mark.usefixtures("one_thread")

# Everything that a resume must bring back at once: moments of Adam, statistics and masks, a schedule, an average.
RICH = {"max_epochs": 3, "lr": 0.02, "lr_schedule": "cosine", "weight_averaging": "ema", "ema_decay": 0.8,
        "gradient_clip_val": 0.5, "val_check_interval": 0.5}  # fmt: skip
TOTAL = 21  # updates of three epochs
# The best by a metric that gets worse lies in the middle.
AGAINST = {**RICH, "monitor": "val_loss", "monitor_mode": "max"}


CALLS, ACTS = defaultdict(int), defaultdict(dict)
"""Of each `Watched`, by its number: the calls, and what is to happen at one. They are no state of the loss, which fits would restore."""


class Watched:
    """A loss that calls what is asked of it at an update (from 0, counted from now), in its forward."""

    def __init__(self):
        self.number = len(CALLS)
        CALLS[self.number] = 0

    def on(self, update, act):
        ACTS[self.number][CALLS[self.number] + update] = act

    def __call__(self, output, y):
        if torch.is_grad_enabled():  # no check, no pass for the statistics of averaged weights
            act = ACTS[self.number].pop(CALLS[self.number], None)
            CALLS[self.number] += 1
            if act is not None:
                act()
        return output if y is None else F.cross_entropy(output, y)


def make(root, model=None, **settings):
    settings = {
        "accelerator": "cpu",
        "batch_size": 8,
        "lr": 0.05,
        "optimizer": adam,
        "loss": Watched(),
        **settings,
    }
    b = wb.Workbench(
        model or noisy_net(), val=labelled(20, 3), root=root, **{"train": labelled(), **settings}
    )
    vars(b)["on"] = settings["loss"].on
    return b


def whole(root, **settings):
    """The run that nothing interrupts."""
    b = make(root, **settings)
    return b.fit().result(), b.model


def same_runs(run, other):
    """To the last bit: losses, norms, rates, checks."""
    for one, two in ((run.history, other.history), (run.validation, other.validation)):
        assert list(one) == list(two)
        for name in one:
            assert np.array_equal(one[name], two[name], equal_nan=True), name
    return True


def stopped_at(b, update, **settings):
    """A fit that is stopped after so many updates (of its own)."""
    b.on(update - 1, lambda: b.jobs[-1].stop())
    run = b.fit(**settings).result()
    assert run.status == "stopped"
    return run


def held(b, update, act=lambda: None):
    """Hold the next fit at this update until the event is set, so that others can be asked for meanwhile; then act."""
    go = threading.Event()

    def hold():
        assert go.wait(200)
        act()

    b.on(update, hold)
    return go


def raising(error):
    def act():
        raise error

    return act


def of(job, kind):
    return [event for event in job.events if isinstance(event, kind)]


def messages(job):
    return [event.text for event in of(job, Message)]


WATCH = Watched()


# -- exact


@pytest.mark.parametrize("update", every(2, [1, 3, 4, 7, 10, 14, 20]))
def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(tmp_path, update):
    expected, twin = whole(tmp_path / "whole", **RICH)
    b = make(tmp_path / "root", **RICH)
    part = stopped_at(b, update)
    assert part.step == update
    job = b.fit(start="continue")
    run = job.result()
    assert (run.status, run.step) == ("finished", TOTAL)
    assert same_runs(run, expected)
    assert same_weights(b.model, twin)
    assert messages(job) == []
    assert [(e.step, e.run, e.values) for e in of(job, Resumed)] == [(part.step, part.id, {})]
    assert Run.open(run.folder) == run


def schedulers(optimizer, updates):
    half = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    return [
        wb.Schedule(half, "epoch"),
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
    ]


WAYS = {
    "windows": {"accumulate_grad_batches": {0: 1, 1: 3}},
    "swa": {"weight_averaging": "swa", "swa_epoch_start": 1, "swa_lrs": 0.01, "annealing_epochs": 1},
    "own schedulers": {"scheduler": schedulers},
    "one cycle": {"lr_schedule": "one_cycle", "optimizer": sgd},
    "workers": {"num_workers": 2, "max_epochs": 2},
    "augmentation": {"train": Augmented(labelled())},
    "augmentation in workers that end with an epoch": {
        "train": Augmented(labelled()), "num_workers": 1, "persistent_workers": False, "max_epochs": 2},
    "milestones": {"find_lr_at": {0, 2}},
    "every other": {"log_every_n_steps": 2, "drop_last": True, "limit_train_batches": 5, "max_epochs": 4},
    "early stopping": {"early_stopping": {"monitor": "val_loss", "patience": 3, "min_delta": 0.05}, "max_epochs": 9,
                       "val_check_interval": 3},
}  # fmt: skip


@pairs("way, update", list(WAYS), [7, 11])
def test_ways_to_train(tmp_path, way, update):
    settings = {"max_epochs": 3, **WAYS[way]}
    expected, twin = whole(tmp_path / "whole", **settings)
    b = make(tmp_path / "root", **settings)
    stopped_at(b, update)
    job = b.fit(start="continue")
    assert same_runs(job.result(), expected)
    assert same_weights(b.model, twin)
    assert messages(job) == messages(expected)


class Module(lightning.LightningModule):
    """Draws random numbers, keeps a count, logs over epochs."""

    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.net, self.seen, self.collected = noisy_net(), 0, []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.net(x + 0.1 * torch.randn_like(x)), y)
        self.seen += len(x)
        self.collected.append(float(loss.detach()))
        self.log("train_acc", loss * 2, on_step=True, on_epoch=True)
        WATCH(loss, None)
        return loss * (1 + 1e-3 * (self.seen % 7))

    def on_train_epoch_end(self):
        self.log("collected", sum(self.collected))
        self.collected.clear()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "interval": "step"}
        ]


@pytest.mark.parametrize("update", [5, 7, 11])
def test_a_lightning_module(tmp_path, update):
    def made(root):
        return wb.Workbench(Module(), train=labelled(), val=labelled(20, 3), root=root, accelerator="cpu", batch_size=8,
                            max_epochs=3)  # fmt: skip

    b = made(tmp_path / "whole")
    expected, twin, seen = b.fit().result(), weights(b.model), b.model.seen
    b = made(tmp_path / "root")
    WATCH.on(update - 1, lambda: b.jobs[-1].stop())
    assert b.fit().result().step == update
    other = made(tmp_path / "root")
    for bench, start in ((b, "continue"), (other, "0001-fit")):
        run = bench.fit(start=start).result()
        assert same_runs(run, expected)
        for name, column in run.logged.items():
            assert np.array_equal(column, expected.logged[name]), name
        assert same_weights(bench.model, twin)
        assert bench.model.seen == seen


def test_a_child_that_fails_leaves_its_parents_end_and_none_of_its_own(tmp_path):
    b = make(tmp_path, max_epochs=1)
    b.fit().result()
    b.on(3, raising(OSError("away")))
    failed = b.fit(start="continue", max_epochs=3)
    failed.wait()
    assert failed.status == "failed"
    assert [point.name for point in Run.open(failed.folder.path).checkpoints][-1] == "00000007-end"
    job = b.fit(start="continue", max_epochs=3)
    job.result()
    assert of(job, Resumed) == []
    assert (
        "0002-fit failed, and no checkpoint was written at its end; start='0002-fit' continues from update 7"
        in messages(job)[0]
    )
    on = b.fit(start="0002-fit", max_epochs=3).result()
    assert same_runs(on, whole(tmp_path / "whole", max_epochs=3)[0])


def test_it_can_be_stopped_again_and_again(tmp_path):
    expected, twin = whole(tmp_path / "whole", **RICH)
    b = make(tmp_path / "root", **RICH)
    stopped_at(b, 2)
    stopped_at(b, 4, start="continue")
    stopped_at(b, 7, start="continue")
    job = b.fit(start="continue")
    assert same_runs(job.result(), expected)
    assert same_weights(b.model, twin)
    assert [e.run for e in of(job, Resumed)] == ["0001-fit", "0002-fit", "0003-fit"]
    assert len(of(job, RunStarted)) == len(of(job, RunEnded)) == 1
    assert job.events[0].run == job.id == "0004-fit"


def test_from_every_checkpoint(tmp_path):
    settings = {**RICH, "checkpoint_every": 2, "save_top_k": -1}
    b = make(tmp_path / "root", **settings)
    expected = b.fit().result()
    twin = weights(b.model)
    steps = [point.step for point in expected.checkpoints if not point.end]
    assert set(range(2, TOTAL, 2)) <= set(steps)
    other = make(tmp_path / "root", plain_net_of_another_seed(), **settings)
    for step in steps if SOAK else steps[1::3]:
        if step < TOTAL:
            run = other.fit(start=f"{expected.id}@{step}").result()
            assert same_runs(run, expected), step
            assert same_weights(other.model, twin), step


def plain_net_of_another_seed():
    return noisy_net(seed=7)


def test_from_the_best(tmp_path):
    b = make(tmp_path / "root", **AGAINST)
    expected = b.fit().result()
    checks = expected.validation
    best = int(checks["step"][np.argmax(checks["val_loss"])])
    assert best < TOTAL
    twin = weights(b.model)
    job = b.fit(start=f"{expected.id}@best")
    assert same_runs(job.result(), expected)
    assert same_weights(b.model, twin)
    assert of(job, Resumed)[0].step == best


def test_after_an_error(tmp_path):
    settings = {**RICH, "checkpoint_every": 2}
    expected, twin = whole(tmp_path / "whole", **settings)
    b = make(tmp_path / "root", **settings)
    b.on(10, raising(OSError("the disk with the pictures is away")))
    failed = b.fit()
    with pytest.raises(OSError, match="pictures"):
        failed.result()
    job = b.fit(start=failed.id)
    assert same_runs(job.result(), expected)
    assert same_weights(b.model, twin)
    assert of(job, Resumed)[0].step == 10


def test_continue_after_an_error_has_the_weights_alone_and_says_so(tmp_path):
    b = make(tmp_path, max_epochs=2, checkpoint_every=2)
    b.on(5, raising(OSError("away")))
    b.fit().wait()
    job = b.fit(start="continue", max_steps=1)
    assert job.result().status == "finished"
    (text,) = messages(job)
    assert "from the present weights, with fresh optimizers: 0001-fit failed" in text
    assert "start='0001-fit' continues from update 4" in text
    assert of(job, Resumed) == []


def test_in_another_process(tmp_path):
    def part(start):
        b = make(tmp_path / "root", **RICH)
        if start is None:
            stopped_at(b, 10)
        else:
            b.fit(start=start).result()

    for start in (None, "0001-fit"):
        run_in_child(part, start, threads=1).get()
    expected, twin = whole(tmp_path / "whole", **RICH)
    run = Run.open(tmp_path / "root" / "runs" / "0002-fit")
    assert same_runs(run, expected)
    b = make(tmp_path / "root", plain_net_of_another_seed())
    b.load(run)
    assert same_weights(b.model, twin)


@pytest.mark.parametrize("name", ["with space", 'it\'s "quoted"', "größe-数据", "a$b;c&d"])
def test_in_a_folder_of_any_name(tmp_path, name):
    root = tmp_path / name
    b = make(root, max_epochs=1)
    run = b.fit().result()
    on = make(root).fit(start=run.id, max_epochs=2).result()
    assert same_runs(on, whole(tmp_path / "whole", max_epochs=2)[0])


def test_what_lies_between_does_not_matter(tmp_path):
    """Finders, checks and predictions leave no trace in what goes on."""
    expected, twin = whole(tmp_path / "whole", **RICH)
    b = make(tmp_path / "root", **RICH)
    part = stopped_at(b, 9)
    b.find_lr(num_training=5).result()
    b.find_lr(num_training=5, start="continue").result()
    b.find_lr(num_training=5, start=f"{part.id}@best").result()
    b.validate().result()
    b.predict((labelled().tensors[0],)).result()
    b.model(torch.randn(5, 6))  # in training mode: moves the statistics of BatchNorm
    assert same_runs(b.fit(start="continue").result(), expected)
    assert same_weights(b.model, twin)


def test_two_benches_on_one_root(tmp_path):
    one = make(tmp_path / "root", **RICH)
    two = make(tmp_path / "root", **{**RICH, "seed": 5})
    stopped_at(one, 4)
    stopped_at(two, 11)
    first, second = one.fit(start="continue"), two.fit(start="continue")
    assert first.wait()
    assert second.wait()  # what is made below draws random numbers, and so would the fit
    assert same_runs(first.result(), whole(tmp_path / "a", **RICH)[0])
    assert same_runs(second.result(), whole(tmp_path / "b", **{**RICH, "seed": 5})[0])
    # And each can go on from what the other has left.
    crossed = one.fit(start="0002-fit").result()
    assert same_runs(crossed, second.result())


def test_a_queue_of_fits(tmp_path):
    """Asked for at once: each is looked up when it has its turn."""
    b = make(tmp_path, max_epochs=1)
    asked = held(b, 3)
    jobs = [
        b.fit(),
        b.fit(start="continue", max_epochs=2),
        b.fit(start="0002-fit", max_epochs=3),
        b.fit(start="continue", max_epochs=4),
    ]
    asked.set()
    runs = [job.result() for job in jobs]
    assert [run.step for run in runs] == [7, 14, 21, 28]
    assert same_runs(runs[-1], whole(tmp_path / "whole", max_epochs=4)[0])
    assert [job.settings.max_epochs for job in jobs] == [1, 2, 3, 4]


def test_one_that_is_dropped_before_its_turn_is_no_last_fit(tmp_path):
    b = make(tmp_path, max_epochs=1)
    asked = held(b, 3, lambda: b.jobs[1].stop())
    first, dropped, on = b.fit(), b.fit(seed=3, max_epochs=5), b.fit(start="continue", max_epochs=2)
    asked.set()
    run = on.result()
    assert dropped.result().step == 0
    assert of(on, Resumed)[0].run == first.id
    assert same_runs(run, whole(tmp_path / "whole", max_epochs=2)[0])


# -- what the record tells


def test_the_record_of_a_run_that_goes_on_is_whole(tmp_path):
    heard = []
    b = make(tmp_path, max_epochs=2, listeners=[heard.append])
    part = stopped_at(b, 9)
    heard.clear()
    job = b.fit(start="continue", max_epochs=3)
    run = job.result()
    assert run.settings == b.settings.replace(max_epochs=3)
    assert job.events[0].updates == TOTAL
    assert run.history["step"].tolist() == list(range(TOTAL))
    past = job.events[: job.events.index(of(job, Resumed)[0])]
    steps = [step for e in past if isinstance(e, StepsDone) for step in e.steps]
    assert steps == list(range(part.step))
    assert of(job, Resumed)[0].values == {"max_epochs": 3}
    # behind the line of code
    assert [e for e in heard if not isinstance(e, StatusChanged)][1:] == job.events
    assert Run.open(run.folder) == run
    assert run.seconds > [e.seconds for e in past if isinstance(e, StepsDone)][-1]
    assert (run.folder / "checkpoints" / "start.safetensors").read_bytes() == (
        part.folder / "checkpoints" / "start.safetensors").read_bytes()  # fmt: skip


def test_the_parent_stays_as_it_is(tmp_path):
    b = make(tmp_path, **RICH)
    part = stopped_at(b, 9)
    before = {p: p.read_bytes() for p in part.folder.rglob("*") if p.is_file()}
    b.fit(start="continue").result()
    assert {p: p.read_bytes() for p in part.folder.rglob("*") if p.is_file()} == before


def test_its_best_may_lie_before_it_went_on(tmp_path):
    """The folder of a run that goes on is whole too: the parent may go."""
    settings = {**AGAINST, "lr_schedule": "constant"}
    b = make(tmp_path, **settings)
    expected = b.fit().result()
    there = [(point.step, point.value) for point in expected.checkpoints]
    assert there[0][0] < 14
    b.load(expected, "best")
    best = weights(b.model)
    part = make(tmp_path, **{**settings, "max_epochs": 2}).fit().result()
    run = make(tmp_path, **settings).fit(start=part.id, max_epochs=3, keep_runs=1).result()
    assert [(point.step, point.value) for point in run.checkpoints] == there
    b.load(run, "best")
    assert same_weights(b.model, best)


# -- edits


def test_a_new_rate_on_the_way(tmp_path):
    b = make(tmp_path, max_epochs=2)
    part = stopped_at(b, 8)
    job = b.fit(start="continue", lr=0.01, gradient_clip_val=0.1)
    run = job.result()
    assert run.settings.lr == 0.05  # what the run began with
    assert set(run.history["lr"][: part.step]) == {np.float32(0.05)}
    assert set(run.history["lr"][part.step :]) == {np.float32(0.01)}
    clipped = run.history["grad_norm_clipped"]
    assert np.isnan(clipped[: part.step]).all()
    assert (clipped[part.step :] <= 0.1001).all()
    assert of(job, Resumed)[0].values == {"lr": 0.01, "gradient_clip_val": 0.1}
    assert of(job, Changed) == [Changed(part.step, {"lr": 0.01, "gradient_clip_val": 0.1})]
    assert run.changes == (Changed(part.step, {"lr": 0.01, "gradient_clip_val": 0.1}),)
    assert job.settings.lr == 0.01
    assert messages(job) == []


def test_an_edit_on_the_way_is_the_live_change(tmp_path):
    """Going on with another rate is the same as changing it at that update."""
    b, other = make(tmp_path / "a", max_epochs=2), make(tmp_path / "b", max_epochs=2)
    stopped_at(b, 8)
    other.on(7, lambda: other.jobs[-1].change(lr=0.01))
    run, twin = b.fit(start="continue", lr=0.01).result(), other.fit().result()
    assert twin.changes == run.changes == (Changed(8, {"lr": 0.01}),)
    assert same_runs(run, twin)


def test_a_longer_cosine(tmp_path):
    """The schedule goes on from its place, towards the new end."""
    b = make(tmp_path, max_epochs=2, lr_schedule="cosine", lr=0.1)
    run = b.fit().result()
    on = b.fit(start=run.id, max_epochs=4).result()
    assert on.step == 28
    expected = 0.05 * (1 + np.cos(np.pi * np.arange(14, 28) / 28))
    assert on.history["lr"][14:] == pytest.approx(expected, rel=1e-5)
    assert np.array_equal(on.history["lr"][:14], run.history["lr"])


def test_another_batch_size_on_the_way(tmp_path):
    b = make(tmp_path, max_epochs=2)
    part = stopped_at(b, 4)
    job = b.fit(start="continue", batch_size=25)
    run = job.result()
    # from the next epoch on, like a live change
    assert run.history["epoch"].tolist() == [0] * 7 + [1] * 2
    assert of(job, Changed) == [Changed(part.step, {"batch_size": 25})]


def test_what_was_set_since_holds_and_the_rest_is_the_runs_own(tmp_path):
    b = make(tmp_path, max_epochs=2)
    b.set(gradient_clip_val=3.0)
    stopped_at(b, 8, lr=0.02, weight_decay=0.1)
    b.set(gradient_clip_val=1.5)
    job = b.fit(start="continue", track_grad_norm="inf")
    run = job.result()
    assert (job.settings.lr, job.settings.weight_decay, job.settings.gradient_clip_val) == (
        0.02,
        0.1,
        1.5,
    )
    assert of(job, Resumed)[0].values == {"gradient_clip_val": 1.5, "track_grad_norm": "inf"}
    (text,) = messages(job)
    assert (
        "continues with the run's own lr=0.02, weight_decay=0.1 (the bench has lr=0.05, weight_decay=None)"
        in text
    )
    assert run.settings.gradient_clip_val == 3.0
    assert run.settings.track_grad_norm == "inf"
    # Another bench knows nothing of it.
    other = make(tmp_path)
    other.set(lr=0.7)
    on = other.fit(start=run.id, max_epochs=3)
    assert on.result().step == TOTAL
    assert on.settings.lr == 0.02


def test_data_of_another_size_are_named(tmp_path):
    def texts(samples, epochs, start="fresh"):
        data = labelled(samples)
        with wb.Workbench(plain_net(), train=data, loss=F.cross_entropy, root=tmp_path) as bench:
            job = bench.fit(start, max_epochs=epochs)
            run = job.result().id
        return run, [event.text for event in job.events if isinstance(event, Message)]

    run, _ = texts(64, 1)
    assert not any("training data" in text for text in texts(64, 2, run)[1])
    [text] = [text for text in texts(48, 3, run)[1] if "training data" in text]
    assert "64 samples" in text
    assert "48 samples" in text


def test_what_was_changed_live_stands(tmp_path):
    b = make(tmp_path, max_epochs=2)
    b.on(3, lambda: b.jobs[-1].change(lr=0.007))
    part = stopped_at(b, 8)
    assert part.changes[0].values == {"lr": 0.007}
    job = b.fit(start="continue")
    run = job.result()
    assert set(run.history["lr"][part.step :]) == {np.float32(0.007)}
    assert run.settings.lr == 0.05
    assert [e.values for e in of(job, Changed)] == [{"lr": 0.007}]
    assert of(job, Resumed)[0].values == {}
    assert "the run's own lr=7e-3 (the bench has lr=0.05)" in messages(job)[0]


@pytest.mark.parametrize(("name", "value"), [
    ("seed", 4), ("shuffle", False), ("drop_last", True), ("overfit_batches", 2), ("fast_dev_run", 1),
    ("truncated_bptt_steps", 3), ("tbptt_time_dim", 0),
])  # fmt: skip
def test_what_a_run_that_goes_on_keeps(tmp_path, name, value):
    b = make(tmp_path, max_epochs=1)
    run = b.fit().result()
    for start in ("continue", run.id):
        with pytest.raises(
            wb.SettingsError,
            match=rf"{name}=.*keeps .*0001-fit has {name}=.*bench.load\('0001-fit'\)",
        ):
            b.fit(start=start, max_epochs=2, **{name: value})
    b.set(**{name: value})
    with pytest.raises(wb.SettingsError, match=rf"bench.set\({name}=.*puts it back"):
        b.fit(start=run.id, max_epochs=2)
    b.set(**{name: run.settings.model_dump()[name]})
    assert b.fit(start=run.id, max_epochs=2).result().status == "finished"


# -- lengths


@pytest.mark.parametrize(("length", "more"), [({"max_epochs": 2}, {"max_epochs": 3}), ({"max_steps": 14}, {"max_steps": 21}),
                                              ({"max_epochs": 3, "max_steps": 7}, {"max_steps": None})])  # fmt: skip
def test_a_finished_run_goes_on_to_a_larger_length(tmp_path, length, more):
    b = make(tmp_path / "root", **length)
    run = b.fit().result()
    (name,) = more
    for start in ("continue", run.id):
        with pytest.raises(
            wb.SettingsError,
            match=rf"nothing is left to do for 0001-fit.*{name}.*a larger {name}.*bench.load",
        ):
            b.fit(start=start)
    assert len(b.jobs) == 1
    on = b.fit(start="continue", **more).result()
    assert on.step == TOTAL
    expected, twin = whole(tmp_path / "whole", max_epochs=3)
    assert same_runs(on, expected)
    assert same_weights(b.model, twin)


def test_nothing_left_in_a_queue_is_the_jobs_error(tmp_path):
    b = make(tmp_path, max_epochs=1)
    asked = held(b, 3)
    b.fit()
    job = b.fit(start="continue")
    asked.set()
    with pytest.raises(wb.SettingsError, match="nothing is left to do"):
        job.result()
    assert job.status == "failed"
    assert b.fit(start="continue", max_epochs=2).result().step == 14  # it has touched nothing


def test_the_bench_may_know_the_larger_length(tmp_path):
    run = make(tmp_path, max_epochs=1).fit().result()
    b = make(tmp_path, max_epochs=3)
    with pytest.raises(wb.SettingsError, match="give fit\\(\\) max_epochs=3, as the bench has it"):
        b.fit(start=run.id)
    assert b.fit(start=run.id, max_epochs=3).result().step == TOTAL


def test_a_run_that_a_metric_ended(tmp_path):
    b = make(
        tmp_path,
        max_epochs=9,
        lr=1e-6,
        early_stopping={"monitor": "val_loss", "patience": 1, "min_delta": 10.0},
    )
    run = b.fit().result()
    assert run.step < 63
    with pytest.raises(
        wb.SettingsError,
        match=r"the run ended early: val_loss did not improve.*early_stopping=\(\)",
    ):
        b.fit(start="continue")
    job = b.fit(start="continue", early_stopping=())
    assert job.result().step == 63


def test_from_the_end_of_the_run_before_one_that_a_metric_ended(tmp_path):
    """A resumed run keeps the checkpoint that it began from, which is the end of another run and not its own."""
    b = make(
        tmp_path,
        max_epochs=9,
        lr=1e-6,
        early_stopping={"monitor": "val_loss", "patience": 1, "min_delta": 10.0},
    )
    run = b.fit(max_steps=3).result()
    ended = b.fit(start="continue", max_steps=None).result()
    assert ended.step == 14
    again = b.fit(start=f"{ended.id}@00000003-end", max_steps=None).result()
    assert (again.step, run.step) == (14, 3)
    assert same_runs(again, ended)


# -- what is kept of it


def test_no_checkpoint_is_ahead_of_the_record(tmp_path, monkeypatch):
    """Or a process that is killed there leaves a run whose past has a hole."""
    append, write, seen = RunFolder.append, files.write, []

    def slow(self, event):
        time.sleep(0.02)
        append(self, event)

    def looking(folder, name, tensors, state, info):
        steps = [
            step for e in read_events(folder.parent) if isinstance(e, StepsDone) for step in e.steps
        ]
        seen.append((steps, info["step"]))
        write(folder, name, tensors, state, info)

    # what waits so long at most, on any machine
    monkeypatch.setattr(JobRunner.settle, "__defaults__", (200.0,))
    monkeypatch.setattr(RunFolder, "append", slow)
    monkeypatch.setattr(files, "write", looking)
    make(tmp_path, max_epochs=2, checkpoint_every=3, val_check_interval=4).fit().result()
    assert {3, 6, 9, 12, 14} < {step for _, step in seen}  # and some of the best
    assert all(steps == list(range(step)) for steps, step in seen)


def test_a_disk_that_is_full_when_it_goes_on(tmp_path, monkeypatch):
    b = make(tmp_path, max_epochs=1)
    b.fit().result()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.link", full)
    monkeypatch.setattr("shutil.copyfile", full)
    job = b.fit(start="continue", max_epochs=2)
    assert job.result().step == 14
    assert (
        "what the run starts from could not be saved ([Errno 28] No space left on device); the run continues."
        in messages(job)
    )


class Odd(torch.optim.lr_scheduler.LRScheduler):
    """Its state holds what no file can."""

    def __init__(self, optimizer, updates):
        self.odd = object()
        super().__init__(optimizer)

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]


def test_weights_alone(tmp_path):
    b = make(tmp_path, scheduler=Odd, max_epochs=1)
    run = b.fit().result()
    trained = weights(b.model)
    with pytest.raises(
        wb.SettingsError,
        match=r"weights alone \(the state of Odd.*bench.load\('0001-fit', 'last'\), then",
    ):
        b.fit(start=run.id, max_epochs=2)
    job = b.fit(start="continue")
    assert job.result().step == 7
    assert (
        "fresh optimizers: the end of 0001-fit has weights alone (the state of Odd"
        in messages(job)[0]
    )
    b.load(run, "last")
    assert same_weights(b.model, trained)


# -- where it cannot go on


def test_weights_that_were_changed_are_the_start_with_fresh_optimizers(tmp_path):
    b = make(tmp_path / "a", plain_net(), max_epochs=1)
    b.fit().result()
    with torch.no_grad():
        b.model[0].weight.mul_(0.5)
    twin = plain_net()
    twin.load_state_dict(b.model.state_dict())
    job = b.fit(start="continue")
    run = job.result()
    assert any(
        "fresh optimizers: the model's weights are not those that 0001-fit left" in text
        for text in messages(job)
    )
    assert same_runs(run, make(tmp_path / "b", twin, max_epochs=1).fit().result())


def test_continue_after_a_load_is_from_what_was_loaded(tmp_path):
    b = make(tmp_path / "a", max_epochs=1)
    first = b.fit().result()
    b.fit(max_epochs=2).result()
    b.load(first, "start")
    job = b.fit(start="continue")
    assert np.array_equal(job.result().history["loss"], first.history["loss"])
    assert len(messages(job)) == 1


def test_what_was_loaded_is_the_new_start(tmp_path):
    b = make(
        tmp_path / "a",
        plain_net(),
        optimizer=functools.partial(torch.optim.SGD),
        max_epochs=2,
        checkpoint_every=5,
    )
    run = b.fit().result()
    steps = [point.step for point in run.checkpoints]
    b.load(run, steps[0])
    loaded = weights(b.model)
    job = b.fit(max_epochs=1)
    assert job.result().status == "finished"
    assert messages(job) == []
    twin = plain_net()
    twin.load_state_dict(loaded)
    again = b.fit(max_epochs=1).result()
    assert same_runs(job.result(), again)
    assert same_runs(
        again,
        make(tmp_path / "b", twin, optimizer=functools.partial(torch.optim.SGD), max_epochs=1)
        .fit()
        .result(),
    )
    with pytest.raises(FileNotFoundError, match="no checkpoint 12345; it has"):
        b.load(b.runs[-1], 12345)


def test_nothing_to_continue_yet(tmp_path):
    b = make(tmp_path, max_epochs=1)
    job = b.fit(start="continue")
    assert job.result().step == 7
    assert "this bench has trained nothing yet" in messages(job)[0]
    assert job.id not in messages(job)[0]


def test_a_dry_run_is_no_run_to_go_on_from(tmp_path):
    b = make(tmp_path, max_epochs=1)
    b.fit().result()
    b.fit(fast_dev_run=2).result()
    job = b.fit(start="continue")
    assert job.result().step == 7
    assert "fit-dev-1 has no folder" in messages(job)[0]


def test_a_root_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    b = make(tmp_path / "file", max_epochs=1)
    b.fit().result()
    job = b.fit(start="continue")
    assert job.result().step == 7
    assert any("fit-0 has no folder" in text for text in messages(job))


def test_a_parent_that_was_pruned(tmp_path):
    b = make(tmp_path, max_epochs=1, keep_runs=1)
    run = b.fit().result()
    make(tmp_path, max_epochs=1, keep_runs=1).fit().result()
    assert not run.folder.exists()
    job = b.fit(start="continue")
    assert job.result().step == 7
    assert any("the folder of 0001-fit is gone (keep_runs)" in text for text in messages(job))
    with pytest.raises(FileNotFoundError, match="no run '0001-fit'"):
        b.fit(start=run.id)


@pytest.mark.parametrize("start", ["0001-fit", "continue"])
def test_what_a_waiting_fit_goes_on_from_is_not_pruned(tmp_path, start):
    b = make(tmp_path, max_epochs=1, keep_runs=2)
    first = b.fit().result()
    b.on(0, lambda: [b.fit(start=start, max_epochs=2), b.validate(), b.validate(), b.validate()])
    b.find_lr(num_training=3).result()
    assert b.jobs[2].result().step == 14
    assert of(b.jobs[2], Resumed)[0].run == first.id
    for job in b.jobs:
        job.result()


def test_runs_of_another_kind_have_no_checkpoints(tmp_path):
    b = make(tmp_path, max_epochs=1)
    b.find_lr(num_training=3).result()
    with pytest.raises(
        FileNotFoundError, match="'0001-find_lr' is a find_lr job, which leaves no checkpoints"
    ):
        b.fit(start="0001-find_lr")


def test_another_model_is_refused_and_left_alone(tmp_path):
    run = make(tmp_path, max_epochs=1).fit().result()
    other = nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3)
    )
    before = weights(other)
    b = make(tmp_path, other)
    job = b.fit(start=run.id, max_epochs=2)
    with pytest.raises(ValueError, match=r"'0\.(weight|bias)' has shape"):
        job.result()
    assert same_weights(other, before)
    assert b.fit(max_epochs=1).result().status == "finished"


def test_another_optimizer_is_refused(tmp_path):
    run = make(tmp_path, max_epochs=1).fit().result()
    b = make(tmp_path, optimizer=sgd)
    before = weights(b.model)
    with pytest.raises(ValueError, match="SGD"):
        b.fit(start=run.id, max_epochs=2).result()
    assert same_weights(b.model, before)


@pytest.mark.parametrize(("start", "words"), [
    ("0001-fit@", "after the @"), ("0001-fit@3", "0001-fit"), ("0001-fit@" + "9" * 5000, "has no checkpoint"), ("0001-fit@worst", "worst"), ("0001-fit@start", "start"),
])  # fmt: skip
def test_a_checkpoint_that_is_not_there(tmp_path, start, words):
    b = make(tmp_path, max_epochs=1)
    b.fit().result()
    with pytest.raises((FileNotFoundError, wb.SettingsError), match=words):
        b.fit(start=start, max_epochs=2)
    assert len(b.jobs) == 1


def test_what_the_user_set_on_the_model_holds(tmp_path):
    b = make(tmp_path, max_epochs=2)
    run = b.fit().result()
    b.model[3].p = 0.0
    on = b.fit(start=run.id, max_epochs=3).result()
    assert b.model[3].p == 0.0
    plain = make(tmp_path / "b", max_epochs=3).fit().result()
    assert on.history["loss"][14] != plain.history["loss"][14]


# -- what a person sees of checkpoints


def test_a_run_knows_its_checkpoints(tmp_path):
    b = make(tmp_path, max_epochs=2, checkpoint_every=5)
    run = b.fit().result()
    assert [(p.step, p.end) for p in run.checkpoints][-1] == (14, True)
    assert [p.step for p in run.checkpoints] == sorted(p.step for p in run.checkpoints)
    assert (
        json.loads((run.checkpoints[0].path / "info.json").read_text())["step"]
        == run.checkpoints[0].step
    )
    assert Run.from_events(run.events).checkpoints == []
    assert make(tmp_path / "none", max_epochs=1).fit(fast_dev_run=1).result().checkpoints == []


def test_a_sweep_from_a_checkpoint(tmp_path):
    b = make(tmp_path, max_epochs=2, checkpoint_every=4)
    run = b.fit().result()
    step = run.checkpoints[0].step
    sweep = b.find_lr(num_training=4, start=f"{run.id}@{step}").result()
    b.load(run, step)
    assert np.array_equal(sweep.losses, b.find_lr(num_training=4, start="continue").result().losses)
    assert np.array_equal(sweep.losses, b.find_lr(num_training=4).result().losses)
