"""A rate or a batch size found in the middle of a fit, and taken: with the weights of that moment, and no trace else."""

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.combinations import every
from tests.engine.learners import Learner
from tests.engine.problems import adam, bench, labelled, noisy_net, plain_net, same_weights, weights
from tests.waiting import wait_for
from workbench.commands import Change, Mailbox, Pause, Stop
from workbench.engine.setup import open_session
from workbench.events import (
    Changed,
    CurveEnded,
    CurvePoint,
    Message,
    SearchEnded,
    StatusChanged,
    Trial,
    Validated,
)
from workbench.launch.search import scheduled_searches
from workbench.launch.terminal.progress import ProgressBar
from workbench.launch.thread import JobRunner
from workbench.runs.run import Run
from workbench.settings import SettingsError
from workbench.share.package import PackageError
from workbench.task.errors import TaskError
from workbench.tuners import trial
from workbench.tuners.batch_size.batch_size_finder import Trials
from workbench.tuners.learning_rate.lr_finder import LRCurve

pytestmark = pytest.mark.usefixtures("one_thread")


def of(job, kind):
    return [e for e in job.events if isinstance(e, kind)]


def commanded_at(monkeypatch, kind, commands, nth=1):
    """Commands for a job that come as it tells an event of a kind for the nth time, before it goes on."""
    tell, left = JobRunner.__call__, [nth]

    def telling(desk, event):
        tell(desk, event)
        if isinstance(event, kind):
            left[0] -= 1
            if left[0] == 0:
                for command in commands:
                    desk._job._inbox.put(command)

    monkeypatch.setattr(JobRunner, "__call__", telling)


# -- the learning rate


CASES = {
    "adam-batchnorm-dropout": {"optimizer": adam},
    "momentum-accumulate-clip": {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
    "cosine": {"lr_schedule": "cosine", "warmup": 3},
    "one-cycle": {"lr_schedule": "one_cycle"},
    "ema": {"weight_averaging": "ema", "ema_decay": 0.9},
    "swa": {
        "weight_averaging": "swa",
        "swa_epoch_start": 2,
        "swa_lrs": 0.02,
        "annealing_epochs": 1,
    },
    "skip": {"on_nonfinite": "skip"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_fit_with_found_rates_is_the_fit_in_which_they_are_set(case, tmp_path, monkeypatch):
    """At the same updates, bit for bit: the search itself leaves nothing behind."""
    settings = {"max_epochs": 4, **CASES[case]}
    found, told = noisy_net(), noisy_net()
    b = bench(found, labelled(), tmp_path / "a", find_lr_at={0, 2}, **settings)
    job = b.fit()
    run = job.result()
    changes = of(job, Changed)
    updates = run.step // 4
    assert [c.step for c in changes] == [0, 2 * updates]

    # The same values, set by the command that a person gives, at the start of the same epochs.
    at = {0: changes[0].values, 2: changes[1].values}

    def give(session, control):
        control.inbox.put(Change(dict(at[session.state.epoch])))
        return control.apply()

    monkeypatch.setattr(
        scheduled_searches, "searches_by_epoch", lambda session: dict.fromkeys(at, give)
    )
    history = bench(told, labelled(), tmp_path / "b", **settings).fit().result().history
    for name, column in run.history.items():
        np.testing.assert_array_equal(column, history[name], err_msg=name)
    assert same_weights(found, told)
    assert len(of(job, CurveEnded)) == 2


def test_the_weights_of_the_moment_are_what_is_searched_with(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, adam, lr=1e-3, max_epochs=3)
    fresh = b.find_lr().result()
    job = b.fit(find_lr_at={0, 2})
    run = job.result()
    curves = _curves(job.events)
    assert len(curves) == 2
    assert curves[0] == fresh  # at epoch 0 nothing has been trained
    assert len(curves[1].lrs) > 20
    assert curves[1].losses[0] != fresh.losses[0]
    assert curves[1].suggestion != fresh.suggestion
    assert [c.values for c in of(job, Changed)] == [{"lr": curve.suggestion} for curve in curves]
    lrs = run.history["lr"]
    assert set(lrs[:14]) == {np.float32(curves[0].suggestion)}
    assert set(lrs[14:]) == {np.float32(curves[1].suggestion)}

    # And they are the weights that two epochs at that rate give.
    two = bench(
        plain_net(), labelled(), tmp_path / "two", adam, lr=curves[0].suggestion, max_epochs=2
    )
    two.fit().result()
    assert two.find_lr(start="continue").result().losses[0] == curves[1].losses[0]


def _curves(events):
    searches, points = [], []
    for event in events:
        if isinstance(event, CurvePoint | CurveEnded):
            points.append(event)
        if isinstance(event, CurveEnded):
            searches.append(LRCurve.from_events(points))
            points = []
    return searches


def test_a_rate_that_cannot_be_trusted_is_not_taken(tmp_path):
    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(6, 3)

        def forward(self, x):
            return self.line(x) * 0

    b = bench(Flat(), labelled(), tmp_path, max_epochs=1, find_lr_at=0)
    job = b.fit()
    run = job.result()
    assert of(job, CurveEnded)[0].suggestion is None
    assert of(job, Changed) == []
    assert any("no learning rate can be trusted at epoch 0" in m.text for m in of(job, Message))
    assert set(run.history["lr"]) == {np.float32(0.05)}


@pytest.mark.parametrize(("scale", "doubtful"), [(1.0, False), (1e-6, True)])
def test_what_speaks_against_a_rate_is_told(scale, doubtful, tmp_path):
    x, y = labelled(256).tensors
    job = bench(
        plain_net(),
        torch.utils.data.TensorDataset(x * scale, y),
        tmp_path,
        adam,
        max_epochs=1,
        find_lr_at=0,
    ).fit()
    job.result()
    (end,) = of(job, CurveEnded)
    told = [m.text for m in of(job, Message) if "is in doubt" in m.text]
    assert end.suggestion is not None
    assert len(told) == bool(end.doubts) == doubtful
    assert all(doubt in told[0] for doubt in end.doubts)


# -- the batch size


def test_a_batch_size_is_found_first_and_taken(tmp_path):
    b = bench(
        plain_net(), labelled(64), tmp_path, max_epochs=3, find_lr_at={1}, find_batch_size_at={1}
    )
    job = b.fit()
    run = job.result()
    assert run.status == "finished"
    kinds = [type(e) for e in job.events if isinstance(e, SearchEnded | CurveEnded)]
    assert kinds == [SearchEnded, CurveEnded]
    # 16 updates of 4, and 8 of 8, the present size
    assert sorted({t.size for t in of(job, Trial)}) == [2, 4, 8, 64]
    end = of(job, SearchEnded)[0]
    changed = [c.values for c in of(job, Changed)]
    assert end.best in {t.size for t in of(job, Trial)}
    sizes = [{"batch_size": end.best}] if end.best != 8 else []
    assert changed == [*sizes, {"lr": of(job, CurveEnded)[0].suggestion}]
    assert run.step == 8 + 2 * (64 // end.best)
    assert run.epochs == 3
    assert b.settings.batch_size == 8
    assert Run.open(job.folder.path) == run


@pytest.mark.parametrize("size", [4, 32])
def test_batches_have_the_found_size_from_that_epoch_on(size, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduled_searches, "trials", _quick_trials(size))
    seen = []

    def loss(output, y):
        seen.append(len(y))
        return F.cross_entropy(output, y)

    b = bench(plain_net(), labelled(640), tmp_path, max_epochs=2, find_batch_size_at={1}, loss=loss)
    seen.clear()
    job = b.fit()
    job.result()
    assert of(job, Changed) == [Changed(80, {"batch_size": size})]
    assert seen == [8] * 80 + [size] * (640 // size)


def _quick_trials(best):
    import contextlib

    @contextlib.contextmanager
    def trials(task, settings, request, inbox, session=None):
        seconds = {best: 0.001}
        yield Trials(
            lambda size: Trial(
                size, True, seconds.get(size, 1.0), size / seconds.get(size, 1.0), 10
            )
        )

    return trials


@pytest.mark.parametrize(
    "kind", every(3, ["supervised", "compiled", "hooks", "lightning", "manual", "pieces"])
)
def test_any_task_travels_from_the_middle_of_a_fit(kind, tmp_path):
    """The child has the weights of the moment, and nothing of the session."""
    settings = {
        "root": tmp_path,
        "accelerator": "cpu",
        "batch_size": 8,
        "max_epochs": 2,
        "find_batch_size_at": {1},
        "lr": 0.01,
    }
    make = {
        "supervised": lambda: wb.Workbench(noisy_net(), train=labelled(40), val=labelled(9), loss=F.cross_entropy, **settings),
        "compiled": lambda: wb.Workbench(plain_net(), train=labelled(40), loss=F.cross_entropy, compile="eager", **settings),
        "hooks": lambda: wb.Workbench(Learner(), train=labelled(40), val=labelled(9), **settings),
        "lightning": lambda: wb.Workbench(_lightning(), train=labelled(40), **settings),
        "manual": lambda: wb.Workbench(_manual(), train=labelled(40), **settings),
        "pieces": lambda: _speller(settings),
    }  # fmt: skip
    b = make[kind]()
    job = b.fit()
    run = job.result()
    assert run.status == "finished"
    assert len(of(job, Trial)) >= 3
    assert all(t.ok for t in of(job, Trial))


def _lightning():
    import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(6, 3)

        def training_step(self, batch, batch_idx):
            assert self.trainer.current_epoch <= 1
            self.log("now", float(self.global_step))
            return F.cross_entropy(self.line(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    return Module()


class _Manual(torch.nn.Module):
    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.net = plain_net()

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        opt.zero_grad()
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.manual_backward(loss)
        opt.step()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def _manual():
    return _Manual()


def _speller(settings):
    from tests.engine.learners import Speller, letters_loss, sentences

    return wb.Workbench(
        Speller(), train=sentences(20), loss=letters_loss, truncated_bptt_steps=4, **settings
    )


def test_a_trial_inside_the_session_leaves_no_trace(tmp_path, monkeypatch):
    """As on a device, where the memory is the session's own."""
    b = bench(noisy_net(), labelled(), tmp_path, adam, max_epochs=2)
    plain = b.fit().result()
    tried = []

    def give(session, control):
        tried.append(trial.measure_within(session, session.data.settings, 20, 2))
        return False

    monkeypatch.setattr(scheduled_searches, "searches_by_epoch", lambda session: {1: give})
    again = b.fit().result()
    assert tried[0].ok
    assert tried[0].samples_per_second > 0
    for name, column in plain.history.items():
        np.testing.assert_array_equal(column, again.history[name], err_msg=name)


def test_out_of_memory_inside_the_session_is_a_failed_trial_and_no_trace(tmp_path):
    def loss(output, y):
        if len(y) == 16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return F.cross_entropy(output, y)

    b = bench(noisy_net(), labelled(), tmp_path, adam, loss=loss)
    with open_session(b._task, b.settings) as session:
        before = weights(b._task.model)
        failed = trial.measure_within(session, session.data.settings, 16, 2)
        assert (failed.size, failed.ok) == (16, False)
        assert "out of memory" in failed.error
        assert same_weights(before, weights(b._task.model))
        assert session.state.step == 0
        assert not session.state.searching


# -- what is refused before anything is trained


def test_epochs_that_are_never_reached(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, max_epochs=3)
    with pytest.raises(
        SettingsError,
        match=r"find_lr_at=\(0, 3\): epoch 3 is never reached; there are 3 \(max_epochs\)",
    ):
        b.fit(find_lr_at={0, 3})
    with pytest.raises(SettingsError, match=r"find_batch_size_at=\(7,\): epoch 7 is never reached"):
        b.fit(find_batch_size_at=7)
    with pytest.raises(SettingsError, match="there are 10"):
        b.fit(max_epochs=None, find_lr_at=10)
    assert b.jobs == []
    job = b.fit(find_lr_at={2}, max_steps=14)
    with pytest.raises(
        SettingsError, match="epoch 2 is never reached; max_steps=14 ends the run before"
    ):
        job.result()
    assert of(job, CurvePoint) == []
    assert b.fit(find_lr_at={2}, max_steps=15).result().step == 15


def test_what_would_fail_in_the_middle_fails_before(tmp_path):
    x, y = labelled().tensors
    b = wb.Workbench(plain_net(), train=wb.batches([(x[:4], y[:4])]), loss=F.cross_entropy, root=tmp_path, accelerator="cpu", max_epochs=2,
                     find_batch_size_at={1})  # fmt: skip
    with pytest.raises(TaskError, match="yields ready batches"):
        b.fit().result()

    class Locked(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.guard = torch.nn.Linear(6, 3), threading.Lock()

        def forward(self, x):
            return self.line(x)

    job = bench(Locked(), labelled(), tmp_path, max_epochs=2, find_batch_size_at={1}).fit()
    with pytest.raises(PackageError, match=r"model\.guard cannot be sent"):
        job.result()
    assert job.events[-1].step == 0


def test_a_dry_run_has_no_milestones(tmp_path):
    b = bench(
        plain_net(), labelled(), tmp_path, max_epochs=3, find_lr_at={0, 2}, find_batch_size_at={0}
    )
    job = b.fit(fast_dev_run=2)
    assert job.result().step == 2
    assert of(job, CurvePoint) + of(job, Trial) == []


# -- commands meanwhile


@pytest.mark.parametrize("kind", [CurvePoint, Trial])
def test_a_stop_during_a_search_stops_the_fit(kind, tmp_path, monkeypatch):
    commanded_at(monkeypatch, kind, [Stop()])
    b = wb.Workbench(plain_net(), train=labelled(), loss=F.cross_entropy, root=tmp_path, accelerator="cpu", batch_size=8,
                     max_epochs=100, find_lr_at={1}, find_batch_size_at={1})  # fmt: skip
    job = b.fit()
    run = job.result(timeout=200)
    assert run.status == "stopped"
    assert run.step == 7
    assert [c for c in of(job, Changed) if "lr" in c.values] == []


def test_a_change_and_a_pause_during_a_search_are_obeyed_after_it(tmp_path, monkeypatch):
    commanded_at(monkeypatch, CurvePoint, [Change({"lr": 0.0123}), Pause()], nth=3)
    b = wb.Workbench(plain_net(), train=labelled(), loss=F.cross_entropy, root=tmp_path, accelerator="cpu", batch_size=8,
                     max_epochs=2, find_lr_at={1})  # fmt: skip
    job = b.fit()
    wait_for(lambda: job.status == "paused" or job.done())
    job.resume()
    run = job.result(timeout=200)
    assert run.status == "finished"
    steps = [(c.step, c.values) for c in of(job, Changed)]
    assert [step for step, _ in steps] == [7, 7]
    assert steps[1][1] == {"lr": 0.0123}
    assert set(run.history["lr"][7:]) == {np.float32(0.0123)}
    assert [e.status for e in of(job, StatusChanged)] == ["paused", "running"]


def test_the_finder_leaves_commands_where_they_are(tmp_path):
    from workbench.tuners.learning_rate import lr_finder

    b = bench(plain_net(), labelled(), tmp_path)
    inbox = Mailbox()
    inbox.put(Pause())
    inbox.put(Change({"lr": 0.1}))
    with open_session(b._task, b.settings) as session:
        assert (
            lr_finder.run(session, lr_finder.LRRequest(num_training=5), lambda e: None, inbox).ended
            != "stopped"
        )
        inbox.put(Stop())
        assert (
            lr_finder.run(session, lr_finder.LRRequest(num_training=5), lambda e: None, inbox).ended
            == "stopped"
        )
    assert [inbox.take(), inbox.take(), inbox.take()] == [Pause(), Change({"lr": 0.1}), Stop()]


# -- those who hear the events


def test_run_and_progress_are_a_fits(tmp_path, capsys):
    b = bench(
        plain_net(), labelled(64), tmp_path, max_epochs=3, find_lr_at={1}, find_batch_size_at={1}
    )
    job = b.fit()
    run = job.result()
    assert len(run.history["step"]) == run.step
    assert "loss" in list(run.metrics)
    assert any("loss" in str(chart.title).lower() for chart in run.charts())
    assert run.plot("loss") is not None
    assert "fit" in capsys.readouterr().err
    with ProgressBar("fit", 0.0) as bar:
        shown = []
        for n, _event in enumerate(job.events[:-1], 1):
            bar.show(job.events[:n], n - 1)
            shown.append(bar._bar.n)
        assert shown == sorted(shown)  # a search does not move it back
        assert shown[-1] == run.step
        assert "trying lr" not in bar._facts
        assert bar._bar.total is None or of(job, SearchEnded)[0].best == 8
    assert of(job, Validated) == []
