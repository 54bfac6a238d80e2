"""The bench as a whole: the record, starts, weights, settings, what it says of itself."""

import copy
import inspect
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import (
    adam,
    bench,
    labelled,
    noisy_net,
    plain_net,
    same_weights,
    sgd,
    weights,
)
from workbench.events import Called, Message, RunStarted, SettingsSet
from workbench.runs.run import Run
from workbench.settings import Settings
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


def messages(job):
    return [e.text for e in job.events if isinstance(e, Message)]


# -- the record


def test_a_run_read_back_is_the_run(tmp_path):
    b = wb.Workbench(
        noisy_net(), train=labelled(), val=labelled(20, seed=3), loss=F.cross_entropy, optimizer=adam,
        metrics={"accuracy": lambda output, y: (output.argmax(1) == y).float().mean()}, root=tmp_path,
        accelerator="cpu", batch_size=8, max_epochs=2, gradient_clip_val=0.5, track_grad_norm="inf",
    )  # fmt: skip
    job = b.fit()
    run = job.result()
    back = Run.open(job.folder.path)
    assert back == run
    assert back.settings == run.settings == job.settings
    for name, column in run.history.items():
        assert np.array_equal(column, back.history[name])
    assert run.metrics == back.metrics
    assert set(run.metrics) == {"loss", "val_loss", "val_accuracy"}
    assert [r.id for r in b.runs] == [run.id] == ["0001-fit"]
    assert wb.Run.open(tmp_path / "runs" / run.id) == run


def test_evaluations_and_searches_are_recorded_and_are_no_fits(tmp_path):
    b = wb.Workbench(plain_net(), train=labelled(), val=labelled(20, 3), test=labelled(20, 4), loss=F.cross_entropy,
                     root=tmp_path, accelerator="cpu", batch_size=8, max_epochs=1)  # fmt: skip
    b.fit().result()
    b.find_lr(num_training=3).result()
    validated, tested = b.validate().result(), b.test().result()
    assert set(validated) == {"val_loss"}
    assert set(tested) == {"test_loss"}
    assert [r.kind for r in b.runs] == ["fit"]
    kinds = [Run.open(path).kind for path in sorted((tmp_path / "runs").glob("[!.]*"))]
    assert kinds == ["fit", "find_lr", "validate", "test"]


def test_what_the_bench_takes_beside_settings_is_known_to_them():
    """So that bench.fit(trackers=…) says where it belongs."""
    taken = set(inspect.signature(wb.Workbench).parameters) - set(Settings.model_fields)
    with_a_setting_of_their_own = {"scheduler"}
    for name in taken - with_a_setting_of_their_own:
        with pytest.raises(
            wb.SettingsError,
            match=rf"it is given when the bench is made, wb.Workbench\(…, {name}=…\)",
        ):
            Settings.make(**{name: None})


def test_old_runs_go_and_the_one_in_use_stays(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, max_steps=1, keep_runs=2)
    for _ in range(4):
        b.fit().result()
    assert [r.id for r in b.runs] == ["0003-fit", "0004-fit"]


def test_a_start_is_not_pruned_before_its_run(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, max_steps=1, keep_runs=1)
    first = b.fit().result()
    assert b.fit(start=first.id, max_steps=2).result().status == "finished"


@pytest.mark.parametrize("kind", ["file", "below-a-file"])
def test_a_root_that_cannot_be_written(kind, tmp_path):
    """The run works, and says that nothing is recorded. (A mode of 0o500 would not stop root, who runs this in CI.)"""
    (tmp_path / "file").write_text("mine")
    root = tmp_path / "file" / ("below" if kind == "below-a-file" else "")
    b = bench(plain_net(), labelled(), root, max_epochs=1)
    job = b.fit()
    run = job.result()
    assert run.status == "finished"
    assert run.step == 7
    assert any("no record is kept" in text and str(root) in text for text in messages(job))
    assert b.find_lr(num_training=3).result().ended == "all points done"
    assert len({j.id for j in b.jobs}) == 2
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(OSError):
        b.fit(start="0001-fit")


def test_a_record_that_fails_in_the_middle(tmp_path, monkeypatch):
    from workbench.runs.store import RunFolder

    def full(self, event):
        raise OSError(28, "No space left on device")

    b = bench(plain_net(), labelled(), tmp_path, max_epochs=1)
    monkeypatch.setattr(RunFolder, "append", full)
    job = b.fit()
    assert job.result().step == 7
    assert sum("cannot be written" in text for text in messages(job)) == 1


# -- starts


def test_fresh_is_from_where_the_bench_was_made(tmp_path):
    model = noisy_net()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    first = b.fit().result()
    trained = weights(model)
    second = b.fit().result()
    assert np.array_equal(first.history["loss"], second.history["loss"])
    assert same_weights(model, trained)
    assert messages(b.jobs[-1]) == []


def test_continue_is_the_run_going_on(tmp_path):
    model, twin = noisy_net(), noisy_net()
    b = bench(model, labelled(), tmp_path, adam, max_epochs=1)
    b.fit().result()
    b.fit(start="continue", max_epochs=2).result()
    bench(twin, labelled(), tmp_path / "b", adam, max_epochs=2).fit().result()
    assert same_weights(model, twin)


def test_a_run_is_a_start_and_can_be_loaded(tmp_path):
    model = noisy_net()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    before = weights(model)
    first = b.fit().result()
    trained = weights(model)
    on = b.fit(start="continue", max_epochs=2).result()
    b.fit(max_steps=2).result()
    assert np.array_equal(
        b.fit(start=first.id, max_epochs=2).result().history["loss"], on.history["loss"]
    )
    b.load(first.id)
    assert same_weights(model, trained)
    b.load(first, "start")
    assert same_weights(model, before)
    with pytest.raises(FileNotFoundError, match="best"):
        b.load(first, "best")  # there was no metric to be best by


def test_a_start_that_is_not_there(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, max_steps=1)
    b.fit().result()
    for call in (b.fit, b.find_lr):
        with pytest.raises(FileNotFoundError, match=r"no run 'nonsense'.*there are: 0001-fit"):
            call(start="nonsense")
    b.find_lr(num_training=3).result()
    for call in (b.fit, b.find_lr):
        with pytest.raises(FileNotFoundError, match="0002-find_lr"):
            call(start="0002-find_lr")
    assert len(b.jobs) == 2


def test_weights_that_the_user_changed_are_the_new_start(tmp_path):
    model = plain_net()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    b.fit().result()
    with torch.no_grad():
        model[0].weight.zero_()
    changed = weights(model)
    job = b.fit()
    first = job.result()
    assert sum("changed since the last job" in text for text in messages(job)) == 1
    twin = plain_net()
    twin.load_state_dict(changed)
    expected = bench(twin, labelled(), tmp_path / "b", max_epochs=1).fit().result()
    assert np.array_equal(first.history["loss"], expected.history["loss"])
    again = b.fit()
    assert np.array_equal(again.result().history["loss"], first.history["loss"])
    assert messages(again) == []


def test_a_layer_that_the_user_replaced_is_the_new_start(tmp_path):
    model = plain_net()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    b.fit().result()
    model[2] = torch.nn.Sequential(
        torch.nn.Linear(16, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)
    )
    job = b.fit()
    assert job.result().status == "finished"
    assert any("changed since" in text for text in messages(job))
    assert any(name.startswith("2.0") for name in job.events[0].layers)
    assert b.find_lr(num_training=3).result().ended == "all points done"


def test_a_forward_in_training_mode_asks_for_no_other_start(tmp_path):
    """model(x) in a cell moves BatchNorm's statistics; the next fit must not go on from the trained weights."""
    model = noisy_net()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    first = b.fit().result()
    trained = weights(model)
    model(torch.randn(5, 6))
    assert not same_weights(model, trained)
    job = b.fit()
    assert np.array_equal(job.result().history["loss"], first.history["loss"])
    assert same_weights(model, trained)
    assert any("buffers were changed" in text for text in messages(job))


def test_an_attribute_that_the_user_set_holds(tmp_path):
    model = noisy_net()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    first = b.fit().result()
    model[3].p = 0.0
    second = b.fit().result()
    assert model[3].p == 0.0
    assert second.history["loss"][0] != first.history["loss"][0]
    twin = noisy_net()
    twin[3].p = 0.0
    expected = bench(twin, labelled(), tmp_path / "b", max_epochs=1).fit().result()
    # and from the fresh weights
    assert np.array_equal(second.history["loss"], expected.history["loss"])


class Remembers(torch.nn.Module):
    """Makes attributes at its first forwards: plain ones, and a tensor of which one tells."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.memory = torch.nn.Linear(6, 3), object()
        self.made = 0

    def forward(self, x):
        self.best = max(getattr(self, "best", 0), self.net.weight.abs().max().item())
        self.memory = 1.0
        if not hasattr(self, "noise"):
            self.noise, self.width = torch.zeros(x.shape[1]), x.shape[1]
            self.mark = getattr(self, "mark", None) or object()
            self.made += 1
        return self.net(x + self.noise[: self.width])


def test_a_fresh_fit_has_nothing_of_what_a_fit_first_made(tmp_path):
    model = Remembers()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    seen = []
    for lr in (1.0, 1e-6):  # the first ends far from where both start
        b.fit(lr=lr).result()
        seen.append((model.best, model.made, model.memory))
    twin = Remembers()
    bench(twin, labelled(), tmp_path / "b", max_epochs=1).fit(lr=1e-6).result()
    assert seen[0][0] > seen[1][0]
    assert seen[1] == (twin.best, twin.made, twin.memory)
    b.find_lr(num_training=3).result()
    b.fit("continue", max_epochs=2).result()
    assert model.made == 1  # one that goes on has it still


def test_what_the_user_set_beside_what_a_fit_made_stays(tmp_path):
    model = Remembers()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    b.fit().result()
    model.best, model.mark, model.mine = 1e6, object(), [object()]
    mark, mine = model.mark, model.mine
    for _ in range(2):
        b.fit().result()
        assert model.best == 1e6
        assert model.mark is mark
        assert model.mine is mine


def test_a_layer_that_a_fit_made_keeps_what_was_made_with_it(tmp_path):
    class Late(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net, self.calls = torch.nn.Linear(6, 3), 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 5 and not hasattr(self, "drop"):
                self.drop, self.scale = torch.nn.Dropout(0.0), 2.0
            return self.net(x) if self.calls <= 5 else self.scale * self.drop(self.net(x))

    b = bench(Late(), labelled(), tmp_path, max_epochs=1)
    first, second = b.fit().result(), b.fit().result()
    assert np.array_equal(first.history["loss"], second.history["loss"])


def test_load_and_export_wait_for_no_running_job(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, max_steps=2)
    first = b.fit().result()
    job = b.fit(max_steps=10**7)
    with pytest.raises(RuntimeError, match="a job is running or queued"):
        b.load(first)
    with pytest.raises(RuntimeError, match="a job is running or queued"):
        b.export(tmp_path / "train.py", run=first)
    assert not (tmp_path / "train.py").exists()
    job.stop()
    job.wait()
    b.load(first)


def test_tied_weights_are_trained_saved_and_loaded(tmp_path):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner, self.outer = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
            self.outer.weight = self.inner.weight
            self.head = torch.nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.outer(torch.tanh(self.inner(x))))

    model = Tied()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    run = b.fit().result()
    assert model.outer.weight is model.inner.weight
    trained = weights(model)
    b.fit(max_steps=1).result()
    b.load(run)
    assert same_weights(model, trained)
    assert model.outer.weight is model.inner.weight


def test_the_users_objects_stay_the_same_objects(tmp_path):
    model = plain_net()
    parameters = list(model.parameters())
    mine = torch.optim.Adam(parameters, lr=1e-3)
    model(torch.ones(1, 6)).sum().backward()
    mine.step()
    before = copy.deepcopy(mine.state_dict())
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    b.fit().result()
    b.find_lr(num_training=3).result()
    assert all(a is c for a, c in zip(model.parameters(), parameters, strict=True))
    after = mine.state_dict()
    assert after["param_groups"] == before["param_groups"]
    assert all(
        torch.equal(after["state"][i][k], v)
        for i, s in before["state"].items()
        for k, v in s.items()
    )


# -- settings and what is said


def test_set_replaces_and_tells(tmp_path):
    heard = []
    b = bench(plain_net(), labelled(), tmp_path, max_steps=1)
    b.subscribe(heard.append)
    before = b.settings
    assert b.set(lr=0.003) is b.settings
    assert before.lr == 0.05
    with pytest.raises(wb.SettingsError, match="unknown setting 'larning_rate'"):
        b.set(larning_rate=1)
    assert b.settings.lr == 0.003
    assert [type(e) for e in heard] == [Called, SettingsSet]
    assert heard[0].code == "bench.set(lr=3e-3)"
    b.fit(max_epochs=1, start="fresh").result()
    b.find_lr(num_training=5).result()
    codes = [e.code for e in heard if isinstance(e, Called)]
    assert codes[1:] == ["bench.fit(max_epochs=1)", "bench.find_lr(num_training=5)"]


def test_the_lines_told_can_be_run(tmp_path):
    heard = []
    b = bench(plain_net(), labelled(), tmp_path, max_steps=2, listeners=[heard.append])
    b.fit(lr=1 / 3, gradient_clip_val=None).result()
    (line,) = [e.code for e in heard if isinstance(e, Called)]
    job = eval(line, {"bench": b})
    job.result()
    assert job.settings == b.jobs[0].settings


def test_of_two_threads_that_set_one_thing_each_both_count(tmp_path, monkeypatch):
    b, replace, wants = (
        bench(plain_net(), labelled(), tmp_path),
        Settings.replace,
        threading.Event(),
    )
    second = threading.Thread(target=lambda: b.set(weight_decay=0.5))

    class Lock:
        """Tells when the second is at it."""

        def __init__(self, lock):
            self.lock = lock

        def __enter__(self):
            if threading.current_thread() is second:
                wants.set()
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()

    def slow(settings, **changes):
        # it has read what it changes, and has not put it back
        if threading.current_thread() is not second:
            second.start()
            assert wants.wait(120)
        return replace(settings, **changes)

    b._lock = Lock(b._lock)
    monkeypatch.setattr(Settings, "replace", slow)
    b.set(lr=0.25)
    second.join()
    assert (b.settings.lr, b.settings.weight_decay) == (0.25, 0.5)


def test_a_bench_describes_itself(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, max_steps=1)
    assert "Sequential" in repr(b)
    assert "163 params" in repr(b)
    assert "lr=0.05" in repr(b)
    run = b.fit().result()
    assert "0001-fit" in repr(run)
    assert b.job is b.jobs[0]


def test_settings_that_the_loader_brings(tmp_path):
    loader = torch.utils.data.DataLoader(labelled(), batch_size=5, shuffle=False, drop_last=True)
    b = wb.Workbench(plain_net(), train=loader, loss=F.cross_entropy, optimizer=sgd, root=tmp_path, accelerator="cpu",
                     max_epochs=1)  # fmt: skip
    assert (b.settings.batch_size, b.settings.shuffle, b.settings.drop_last) == (5, False, True)
    assert b.fit().result().step == 10
    assert b.fit(batch_size=25).result().step == 2


def test_a_fit_on_ready_batches_records_no_batch_size(tmp_path):
    x, y = torch.randn(8, 5, 6), torch.randint(0, 3, (8, 5))
    ready = torch.utils.data.DataLoader([*zip(x, y, strict=True)], batch_size=None)

    def recorded(val):
        made = bench(plain_net(), ready, tmp_path, val=val, max_epochs=1)
        started = next(e for e in made.fit().result().events if isinstance(e, RunStarted))
        return made, started.settings.get("batch_size")

    made, size = recorded(val=ready)
    assert size is None
    assert "batch_size" not in repr(made.runs[-1])
    assert made.fit(start="continue", max_epochs=2).result().step == 16
    made, size = recorded(val=labelled())
    assert size == made.settings.batch_size, "validation makes batches of that size"


def test_nothing_is_written_before_a_job(tmp_path):
    bench(plain_net(), labelled(), tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("settings", "given", "step", "first"),
    [
        ({"max_epochs": 2, "max_steps": 3}, {"max_epochs": 4}, 3, "max_steps=3"),
        ({"max_steps": 3}, {"max_epochs": 1}, 3, "max_steps=3"),
        ({"max_epochs": 2, "limit_train_batches": 3}, {"max_steps": 10}, 6, "max_epochs=2"),
        ({"max_epochs": 2, "max_time": {"seconds": 0}}, {"max_epochs": 4}, 0, "max_time="),
        ({"max_steps": 8, "limit_train_batches": 3}, {"max_epochs": 2}, 6, ""),
        ({"max_steps": 6, "limit_train_batches": 3}, {"max_epochs": 2}, 6, ""),
        ({"max_epochs": 2}, {"max_steps": 1}, 1, ""),
        ({"max_steps": 3}, {"max_epochs": 4, "max_steps": 2}, 2, ""),
        ({"max_steps": 3}, {"max_epochs": 4, "fast_dev_run": 1}, 1, ""),
        ({"max_epochs": 2, "max_steps": 3}, {}, 3, ""),
    ],
)
def test_a_fit_that_another_length_ended_says_so(settings, given, step, first, tmp_path):
    run = bench(plain_net(), labelled(), tmp_path, **settings).fit(**given).result()
    said = [text for text in messages(run) if "was reached first" in text]
    assert (run.step, len(said)) == (step, bool(first))
    if first:
        [(name, value)] = given.items()
        assert said[0].startswith(first)
        assert f"before {name}={value}: bench.fit(…, {first.partition('=')[0]}=None)" in said[0]


def test_max_steps_zero_trains_nothing(tmp_path):
    model = plain_net()
    before = weights(model)
    run = bench(model, labelled(), tmp_path).fit(max_steps=0).result()
    assert (run.status, run.step) == ("finished", 0)
    assert len(run.history["loss"]) == 0
    assert same_weights(model, before)


def test_validation_can_be_stopped(tmp_path):
    within = threading.Event()

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 10**8

        def __getitem__(self, index):
            if index == 100:  # further than a fit looks before its first update
                within.set()
            return torch.zeros(6), 0

    b = wb.Workbench(plain_net(), train=labelled(), val=Slow(), loss=F.cross_entropy, root=tmp_path, accelerator="cpu",
                     batch_size=8, max_steps=2)  # fmt: skip
    job = b.validate()
    assert within.wait(120)
    job.stop()
    assert job.wait(timeout=120)
    assert job.status == "stopped"
    within.clear()
    fit = b.fit()  # and the check at the end of a fit
    assert within.wait(120)
    fit.stop()
    assert fit.wait(timeout=120)
    assert fit.result().step == 2


# -- the user's own averaging


def newest(averaged, current, count):
    return current


def test_own_averaging_reaches_the_engine(tmp_path):
    """An average that is the newest weights, taken at every third update, is the weights of the last of these."""
    asked = []

    def third(step, epoch):
        asked.append((step, epoch))
        return step % 3 == 0

    def made(root, **settings):
        return wb.Workbench(plain_net(), train=labelled(), loss=F.cross_entropy, optimizer=sgd, root=root, batch_size=8,
                            accelerator="cpu", avg_fn=newest, should_update=third, **settings)  # fmt: skip

    b = made(tmp_path / "a", weight_averaging="ema")
    asked.clear()
    b.fit(max_steps=11).result()
    assert asked == [(step, (step - 1) // 7) for step in range(1, 12)]
    plain = bench(plain_net(), labelled(), tmp_path / "b", lr=1e-3)
    plain.fit(max_steps=9).result()
    assert same_weights(b.model, plain.model)


def test_own_averaging_with_averaging_off_is_refused_when_a_fit_begins(tmp_path):
    b = wb.Workbench(plain_net(), train=labelled(), val=labelled(20, 3), loss=F.cross_entropy, root=tmp_path, batch_size=8,
                     accelerator="cpu", max_epochs=1, avg_fn=newest)  # fmt: skip
    assert set(b.validate().result()) == {"val_loss"}
    assert b.find_lr(num_training=3).result().ended == "all points done"
    job = b.fit()
    with pytest.raises(TaskError, match="avg_fn= and should_update= belong to weight_averaging"):
        job.result()
    assert "RunEnded" in {type(e).__name__ for e in job.events}
    b.set(weight_averaging="swa")
    assert b.fit().result().status == "finished"


def test_own_averaging_that_is_no_function(tmp_path):
    for name in ("avg_fn", "should_update"):
        with pytest.raises(TaskError, match=f"{name}=3 cannot be called"):
            bench(plain_net(), labelled(), tmp_path, **{name: 3})
    with pytest.raises(
        TaskError,
        match=r"takes other arguments: give a function, avg_fn\(averaged, current, count\)",
    ):
        bench(plain_net(), labelled(), tmp_path, avg_fn=lambda averaged, current: averaged)
    with pytest.raises(
        TaskError, match=r"takes other arguments: give a function, should_update\(step, epoch\)"
    ):
        bench(plain_net(), labelled(), tmp_path, should_update=lambda step: True)


def test_a_scheduler_may_be_several_of_any_kind(tmp_path):
    def schedulers(optimizer, updates):
        half = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return [
            wb.Schedule(half, "epoch"),
            torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=100),
        ]

    b = wb.Workbench(plain_net(), train=labelled(), val=labelled(20, 3), loss=F.cross_entropy, root=tmp_path, lr=0.1,
                     accelerator="cpu", batch_size=8, max_epochs=2, scheduler=schedulers)  # fmt: skip
    assert b.fit().result().history["lr"].tolist() == pytest.approx([0.1] * 7 + [0.05] * 7)


def test_a_start_that_is_none(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path)
    with pytest.raises(wb.SettingsError, match=r"start=3: give .* the id of a run .*max_epochs=3"):
        b.fit(3)
    assert b.jobs == []
