"""The life of a job in a thread: asked for, queued, commanded, ended; and what the process has afterwards."""

import itertools
import os
import random
import re
import signal
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests import warm
from tests.engine.problems import (
    adam,
    bench,
    labelled,
    loss_of,
    noisy_net,
    plain_net,
    same_weights,
    sgd,
    twin_of,
    two_groups,
    weights,
)
from tests.reference import loop
from tests.waiting import wait_for
from workbench.bench import base
from workbench.events import (
    Called,
    Changed,
    Message,
    RunEnded,
    RunStarted,
    StatusChanged,
    StepsDone,
)
from workbench.launch import folder_commands, thread
from workbench.launch import job as protocol
from workbench.launch.terminal.progress import ProgressBar
from workbench.runs.run import Run
from workbench.settings import SettingsError

pytestmark = pytest.mark.usefixtures("one_thread")

LONG = {"max_epochs": 100_000}
PATIENCE = 200.0
"""Seconds for what is bound to come, as long as a slow machine may take."""


class Gate:
    """A loss that holds the training at given calls until it is opened, so that a test knows where the run is."""

    def __init__(self):
        self.calls = 0
        self.holds = {}

    def hold(self, update):
        """Hold when the forward of `update` (from 0, counted from now) is reached."""
        arrived, go = threading.Event(), threading.Event()
        self.holds[self.calls + update] = arrived, go
        return arrived, go

    def __call__(self, output, y):
        held = self.holds.pop(self.calls, None)
        self.calls += 1
        if held is not None:
            held[0].set()
            assert held[1].wait(PATIENCE)
        return F.cross_entropy(output, y)


def of(job, kind):
    return [e for e in job.events if isinstance(e, kind)]


# -- asked for, waited for


def test_a_job_returns_at_once_and_result_waits(tmp_path):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_epochs=2)
    arrived, go = gate.hold(3)
    job = b.fit()
    assert arrived.wait(PATIENCE)
    assert job.status == "running"
    assert not job.done()
    assert b.job is job
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="it continues to run"):
        job.result(timeout=0.3)
    assert 0.2 < time.monotonic() - began < PATIENCE / 2  # the job was not waited for
    assert job.wait(timeout=0) is False
    with pytest.raises(TimeoutError):
        job.exception(timeout=0)
    go.set()
    run = job.result()
    assert job.done()
    assert job.wait() is True
    assert job.exception() is None
    assert job.status == run.status == "finished"
    assert job.result() == run


def test_progress_is_shown_while_waiting(tmp_path, capsys, monkeypatch):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_epochs=2)
    _, go = gate.hold(3)

    class Shown(ProgressBar):
        def __enter__(self):
            go.set()  # not before somebody waits
            return super().__enter__()

    monkeypatch.setattr(protocol, "ProgressBar", Shown)
    b.fit().result()
    assert "14/14" in capsys.readouterr().err


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("shows", [True, False])
def test_warnings_are_shown_once_with_and_without_a_bar(tmp_path, capsys, shows, late):
    """Of a job that has ended before anybody waits for it, too."""
    b = bench(
        plain_net(), labelled(), tmp_path, max_epochs=1, keep_runs=1, enable_progress_bar=shows
    )
    b.fit().result()
    b.fit().result()
    capsys.readouterr()
    job = b.fit()
    if late:
        wait_for(job.done)
    job.wait(0.01)
    job.result()
    job.result()
    shown = capsys.readouterr().err
    assert shown.count("keep_runs=1 fits are kept") == 1
    if late or not shows:
        assert "updates/s" not in shown


def test_the_updates_run_off_the_thread_that_asked(tmp_path):
    seen = []

    def loss(output, y):
        seen.append(threading.current_thread())
        return F.cross_entropy(output, y)

    b = bench(plain_net(), labelled(), tmp_path, loss=loss, max_steps=1)
    seen.clear()
    b.fit().result()
    assert seen[0] is not threading.main_thread()


def test_a_job_says_where_its_result_is(tmp_path):
    job = bench(plain_net(), labelled(), tmp_path, max_steps=1).find_lr(num_training=3)
    with pytest.raises(AttributeError, match=r"use \.result\(\)\.plot"):
        job.plot()
    with pytest.raises(AttributeError, match=r"use \.result\(\)\.suggestion"):
        job.suggestion
    assert ".result()" in repr(job)
    job.result()


def test_jobs_run_one_after_another_in_the_order_asked(tmp_path):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_steps=5)
    arrived, go = gate.hold(2)
    first, second, third = b.fit(), b.find_lr(num_training=5), b.fit(max_steps=3)
    assert arrived.wait(PATIENCE)
    assert (first.status, second.status, third.status) == ("running", "queued", "queued")
    go.set()
    assert third.result().step == 3
    assert first.done()
    assert second.done()
    ends = [
        (type(e).__name__, j)
        for j in b.jobs
        for e in j.events
        if isinstance(e, RunStarted | RunEnded)
    ]
    assert [name for name, _ in ends] == ["RunStarted", "RunEnded"] * 3
    assert third.result() == b.jobs[-1].result()


def test_two_benches_take_turns(tmp_path):
    one = bench(noisy_net(), labelled(), tmp_path / "one", max_epochs=3)
    two = bench(noisy_net(), labelled(), tmp_path / "two", max_epochs=3)
    jobs = [one.fit(), two.fit(), one.fit(), two.fit()]
    losses = [job.result().history["loss"] for job in jobs]
    assert all(np.array_equal(losses[0], other) for other in losses[1:])


def test_a_job_that_waits_for_another_benchs_turn_can_be_stopped(tmp_path):
    gate = Gate()
    one = bench(plain_net(), labelled(), tmp_path / "one", loss=gate, **LONG)
    two = bench(plain_net(), labelled(), tmp_path / "two", **LONG)
    arrived, go = gate.hold(1)
    first = one.fit()
    assert arrived.wait(PATIENCE)
    second, third = two.fit(), two.fit()
    second.stop()
    assert (second.result(timeout=PATIENCE).status, second.result().step) == ("stopped", 0)
    assert Run.open(second.folder.path).status == "stopped"
    assert third.status == "queued"
    two.close()
    assert (third.status, first.status) == ("stopped", "running")
    first.stop()
    go.set()
    assert first.result().status == "stopped"
    assert bench(plain_net(), labelled(), tmp_path / "two", max_steps=2).fit().result().step == 2, (
        "the turn is free again"
    )


def test_settings_of_a_job_hold_for_it_alone(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, max_steps=2)
    job = b.fit(lr=0.3)
    assert job.settings.lr == 0.3
    assert b.settings.lr == 0.05
    assert job.result().history["lr"].tolist() == [np.float32(0.3)] * 2
    queued = b.fit()
    b.set(lr=0.7)
    assert queued.result().history["lr"][0] == np.float32(0.05)
    assert b.fit().result().history["lr"][0] == np.float32(0.7)


# -- commands


def test_stop_keeps_what_there_is(tmp_path):
    gate = Gate()
    model = plain_net()
    b = bench(model, labelled(), tmp_path, loss=gate, **LONG)
    arrived, go = gate.hold(9)
    job = b.fit()
    assert arrived.wait(PATIENCE)
    job.stop()
    go.set()
    run = job.result()
    assert (job.status, run.status) == ("stopped", "stopped")
    assert run.step == 10  # the update that was under way is taken, and no other
    assert run.history["step"].tolist() == list(range(10))
    twin = plain_net()
    loop.fit(
        twin,
        loss_of,
        sgd(twin.parameters(), lr=0.05),
        loop.loader_of(labelled(), 8),
        9,
        max_steps=10,
    )
    assert same_weights(model, twin)


def test_stop_of_a_job_that_waits_leaves_the_model_alone(tmp_path):
    """It never had its turn: the weights that the job before it trained stay."""
    gate = Gate()
    model = plain_net()
    b = bench(model, labelled(), tmp_path, loss=gate, max_epochs=1)
    arrived, go = gate.hold(3)
    first, second = b.fit(), b.fit(lr=0.5)
    assert arrived.wait(PATIENCE)
    second.stop()
    stopped = second.result(timeout=PATIENCE)  # it leaves the queue at once
    assert first.status == "running"
    go.set()
    trained = first.result()
    assert (stopped.status, stopped.step) == ("stopped", 0)
    assert Run.open(second.folder.path).status == "stopped"
    twin = plain_net()
    loop.fit(twin, loss_of, sgd(twin.parameters(), lr=0.05), loop.loader_of(labelled(), 8), 1)
    assert same_weights(model, twin)
    assert trained.step == 7


def test_close_drops_what_waits(tmp_path):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, **LONG)
    arrived, go = gate.hold(5)
    running, waiting = b.fit(), b.fit()
    assert arrived.wait(PATIENCE)
    threading.Timer(0.1, go.set).start()
    b.close()
    assert (running.status, waiting.status) == ("stopped", "stopped")
    assert running.result().step > 0
    assert waiting.result().step == 0
    folders = sorted((tmp_path / "runs").glob("[!.]*"))
    with pytest.raises(RuntimeError, match="closed"):
        b.fit()
    assert len(b.jobs) == 2
    assert sorted((tmp_path / "runs").glob("[!.]*")) == folders


def test_a_bench_is_a_context(tmp_path):
    with bench(plain_net(), labelled(), tmp_path, **LONG) as b:
        job = b.fit()
        wait_for(lambda: job.status == "running")
    assert job.status == "stopped"


def test_pause_and_resume(tmp_path):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_epochs=3)
    arrived, go = gate.hold(4)
    began = time.perf_counter()
    job = b.fit()
    assert arrived.wait(PATIENCE)
    job.pause()
    go.set()
    wait_for(lambda: job.status == "paused")
    paused = time.perf_counter()
    calls = gate.calls
    time.sleep(0.6)
    assert gate.calls == calls == 5  # five updates; the trial has put back its own
    assert [e.rows for e in of(job, StepsDone)]  # what was measured is told before the pause
    assert sum(e.rows for e in of(job, StepsDone)) == 5
    paused = time.perf_counter() - paused
    job.resume()
    run = job.result()
    most = time.perf_counter() - began - paused
    assert run.status == "finished"
    assert [(e.status, e.step) for e in of(job, StatusChanged)] == [("paused", 5), ("running", 5)]
    assert run.seconds < most  # pauses are left out, in every place
    assert of(job, StepsDone)[-1].seconds < most
    reference = bench(plain_net(), labelled(), tmp_path / "b", max_epochs=3).fit().result()
    assert np.array_equal(run.history["loss"], reference.history["loss"])


def test_stop_while_paused(tmp_path):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, **LONG)
    arrived, go = gate.hold(4)
    job = b.fit()
    assert arrived.wait(PATIENCE)
    job.pause()
    go.set()
    wait_for(lambda: job.status == "paused")
    job.stop()
    assert job.result(timeout=PATIENCE).step == 5
    assert job.status == "stopped"


@pytest.mark.parametrize("at", [0, 6])  # in the middle of an epoch of seven, and before anything
def test_a_change_holds_from_exactly_its_update(at, tmp_path):
    gate = Gate()
    model, data = noisy_net(), labelled()
    twin = twin_of(model)
    b = bench(model, data, tmp_path, adam, loss=gate, max_epochs=3, gradient_clip_val=0.5)
    job, _ = change_at(b, gate, at, lr=0.002, gradient_clip_val=0.1)
    run = job.result()
    held_from = at + 1
    assert of(job, Changed) == [
        Changed(held_from, {"lr": 0.002}),
        Changed(held_from, {"gradient_clip_val": 0.1}),
    ]
    assert run.changes == tuple(of(job, Changed))

    def before_update(step, optimizer, clip):
        if step == held_from:
            optimizer.param_groups[0]["lr"] = 0.002
            return 0.1
        return clip

    expected = loop.fit(twin, loss_of, adam(twin.parameters(), lr=0.05), loop.loader_of(data, 8), 3, clip=0.5,
                        before_update=before_update)  # fmt: skip
    for name in ("loss", "lr", "grad_norm", "grad_norm_clipped"):
        assert np.array_equal(run.history[name], np.float32(expected[name])), name
    assert same_weights(model, twin)
    # the record has it before the first update that it holds for
    events = [e for e in job.events if isinstance(e, Changed | StepsDone)]
    first = next(i for i, e in enumerate(events) if isinstance(e, Changed))
    assert all(e.steps[-1] < held_from for e in events[:first])
    assert all(e.steps[0] >= held_from for e in events[first:] if isinstance(e, StepsDone))


def change_at(b, gate, update, **values):
    arrived, go = gate.hold(update)
    job = b.fit()
    assert arrived.wait(PATIENCE)
    for name, value in values.items():
        job.change(**{name: value})
    go.set()
    return job, go


def test_clipping_can_be_turned_off_and_on(tmp_path):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_epochs=2, gradient_clip_val=0.01)
    job, _ = change_at(b, gate, 6, gradient_clip_val=None)
    history = job.result().history
    assert np.isfinite(history["grad_norm_clipped"]).tolist() == [True] * 7 + [False] * 7


@pytest.mark.parametrize("name", ["cosine", "one_cycle", "sequential", "groups"])
@pytest.mark.filterwarnings("ignore:The epoch parameter in")
def test_schedules_and_ratios_multiply_a_changed_rate(name, tmp_path):
    import workbench as wb
    from tests.engine.twins.test_fit_against_twin import SCHEDULES

    scheduler = SCHEDULES["cosine" if name == "groups" else name]
    make = two_groups if name == "groups" else torch.optim.SGD

    def run(root, change):
        gate = Gate()
        b = wb.Workbench(plain_net(), train=labelled(), loss=gate, optimizer=make, scheduler=scheduler, root=root,
                         accelerator="cpu", batch_size=8, lr=0.05, max_epochs=3)  # fmt: skip
        return change_at(b, gate, 9, **change)[0].result().history["lr"]

    plain = run(tmp_path / "a", {})
    changed = run(tmp_path / "b", {"lr": 0.01})
    assert np.array_equal(plain[:10], changed[:10])
    np.testing.assert_allclose(changed[10:], plain[10:] / 5, rtol=1e-5, atol=1e-12)


def test_what_cannot_be_commanded_says_so(tmp_path):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_epochs=1)
    arrived, go = gate.hold(1)
    job = b.fit()
    assert arrived.wait(PATIENCE)
    with pytest.raises(
        SettingsError,
        match="batch_size cannot change while a run is running; these can: lr, accumulate_grad_batches, gradient",
    ):
        job.change(batch_size=4)
    with pytest.raises(SettingsError, match=r"lr=-1.*at least 0"):
        job.change(lr=-1)
    with pytest.raises(SettingsError, match="Did you mean 'gradient_clip_val'"):
        job.change(gradient_clip=1)
    with pytest.raises(SettingsError, match=r"change\(\) changes nothing: name a setting"):
        job.change()
    go.set()
    assert job.result().changes == ()
    with pytest.raises(RuntimeError, match="is for fits"):
        b.find_lr(num_training=3).pause()
    b.close()


def test_commands_to_a_job_that_waits_hold_when_it_begins(tmp_path):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_steps=4)
    arrived, go = gate.hold(1)
    b.fit()
    assert arrived.wait(PATIENCE)
    second = b.fit()
    second.change(lr=0.5)
    go.set()
    run = second.result()
    assert run.changes == (Changed(0, {"lr": 0.5}),)
    assert run.history["lr"].tolist() == [0.5] * 4


def test_what_is_asked_of_a_job_is_a_line_that_asks_the_same(tmp_path):
    gate, heard = Gate(), []
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_epochs=3, listeners=[heard.append])
    arrived, go = gate.hold(1)
    job = b.fit()
    assert arrived.wait(PATIENCE)
    waits = b.fit()
    heard.clear()
    for ask in (job.pause, job.resume, job.validate, job.checkpoint, job.stop, waits.stop):
        ask()
    job.change(lr=0.01, gradient_clip_val=None)
    with pytest.raises(SettingsError):
        job.change(lr=-1)
    lines = [e.code for e in heard if isinstance(e, Called)]
    assert lines == [
        "bench.job.pause()", "bench.job.resume()", "bench.job.validate()", "bench.job.checkpoint()", "bench.job.stop()",
        "bench.jobs[1].stop()", "bench.job.change(lr=0.01, gradient_clip_val=None)",
    ]  # fmt: skip
    asked = [list(one._inbox._commands) for one in (job, waits)]
    for one in (job, waits):
        one._inbox._commands.clear()
    for line in lines:
        eval(line, {"bench": b})
    assert [list(one._inbox._commands) for one in (job, waits)] == asked
    go.set()
    job.result()
    waits.result()
    heard.clear()
    job.stop()
    b.close()  # what it drops nobody has asked to be stopped
    assert heard == []
    assert not [e for e in job.events if isinstance(e, Called)], "no part of the record"


def test_what_a_listener_asks_for_does_not_come_back_to_it(tmp_path):
    heard = []

    def listener(event):
        heard.append(event)
        if isinstance(event, Called):
            b.jobs[0].change(lr=0.25)

    b = bench(plain_net(), labelled(), tmp_path, max_steps=2, listeners=[listener])
    run = b.fit().result()
    assert [e.code for e in heard if isinstance(e, Called)] == ["bench.fit()"]
    assert run.changes == (Changed(0, {"lr": 0.25}),)


# -- failures


def test_a_failed_job_raises_its_error_and_keeps_its_history(tmp_path):
    calls = itertools.count()

    def loss(output, y):
        if next(calls) == 8:  # the dry step's one, then updates 0..6
            raise ZeroDivisionError("in the user's own code")
        return F.cross_entropy(output, y)

    model = plain_net()
    b = bench(model, labelled(), tmp_path, loss=loss, max_epochs=2)
    job = b.fit()
    with pytest.raises(ZeroDivisionError, match="the user's own code") as caught:
        job.result()
    assert "raise ZeroDivisionError" in str(caught.traceback[-1])  # leads to the user's line
    assert job.status == "failed"
    assert isinstance(job.exception(), ZeroDivisionError)
    kept = Run.open(job.folder.path)
    assert (kept.status, kept.step) == ("failed", 7)
    assert "ZeroDivisionError" in kept.error
    (begun,), (end,) = of(kept, RunStarted), of(kept, RunEnded)
    assert begun.supervised
    assert re.fullmatch(
        r"test_thread\.py, line \d+: raise ZeroDivisionError\(\"in the user's own code\"\)",
        end.where,
    )
    assert "ZeroDivisionError: in the user's own code\nat update 7" in end.traceback
    assert kept.health[0].text.startswith(
        f"an error ended it after 7 updates in {end.where}: ZeroDivisionError"
    )
    assert kept.history["step"].tolist() == list(range(7))
    twin = plain_net()
    loop.fit(twin, loss_of, sgd(twin.parameters(), lr=0.05), loop.loader_of(labelled(), 8), 1)
    assert same_weights(model, twin)
    assert b.fit().result().status == "finished"


def test_data_that_fails_in_the_middle(tmp_path):
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index == 33:
                raise OSError("cannot read image 33")
            return torch.zeros(6), 0

    b = bench(plain_net(), Broken(), tmp_path, shuffle=False, max_epochs=1)
    job = b.fit()
    with pytest.raises(OSError, match="image 33"):
        job.result()
    assert sum(e.rows for e in of(job, StepsDone)) == 4


def test_exit_in_the_users_code_is_an_error_of_the_job(tmp_path):
    calls = itertools.count()

    def loss(output, y):
        if next(calls) == 3:
            sys.exit(3)
        return F.cross_entropy(output, y)

    b = bench(plain_net(), labelled(), tmp_path, loss=loss, max_epochs=1)
    job = b.fit()
    with pytest.raises(SystemExit):
        job.result()
    assert job.status == "failed"
    assert b.fit().result().status == "finished"


def test_a_listener_that_raises_is_told_once_and_the_run_goes_on(tmp_path):
    heard = []

    def broken(event):
        raise RuntimeError("no view today")

    b = bench(plain_net(), labelled(), tmp_path, max_epochs=2, listeners=[broken])
    b.subscribe(heard.append)
    job = b.fit()
    run = job.result()
    told = [e for e in of(job, Message) if "no view today" in e.text]
    assert len(told) == 1
    assert told[0].level == "error"
    assert run.status == "finished"
    assert [type(e).__name__ for e in heard if not isinstance(e, Message)] == [
        "Called",
        "StatusChanged",
        *(type(e).__name__ for e in job.events if not isinstance(e, Message)),
    ]
    b.set(lr=0.1)  # tells its listeners too
    assert b.settings.lr == 0.1
    assert b.fit().result().status == "finished"


def test_a_listener_that_is_slow_does_not_hold_up_the_updates(tmp_path):
    gate, hold = Gate(), threading.Event()

    def slow(event):
        if isinstance(event, RunStarted):
            assert hold.wait(PATIENCE)

    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_epochs=3, listeners=[slow])
    job = b.fit()
    wait_for(lambda: gate.calls == 21)  # all of them, and nobody has heard of the first yet
    assert not of(job, StepsDone)
    assert not job.done()
    hold.set()
    assert job.result().step == 21


def test_listeners_hear_off_the_training_thread_and_can_stop_to(tmp_path):
    threads, events = set(), []

    def listener(event):
        threads.add(threading.current_thread().name)
        events.append(event)

    b = bench(plain_net(), labelled(), tmp_path, max_steps=2)
    leave = b.subscribe(listener)
    job = b.fit()
    job.result()
    assert [e for e in events if e in job.events] == job.events
    assert "workbench-runner" not in threads
    leave()
    leave()
    count = len(events)
    b.fit().result()
    assert len(events) == count


# -- the process around it


def test_random_states_and_flags_are_put_back(tmp_path):
    b = bench(noisy_net(), labelled(), tmp_path, max_epochs=1)
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    switch, flags = sys.getswitchinterval(), torch.are_deterministic_algorithms_enabled()
    environment = dict(os.environ)
    b.fit(deterministic=True).result()
    b.find_lr(num_training=4).result()
    assert random.getstate() == before[0]
    assert all(np.array_equal(a, c) for a, c in zip(np.random.get_state(), before[1], strict=True))
    assert torch.equal(torch.get_rng_state(), before[2])
    assert sys.getswitchinterval() == switch
    assert torch.are_deterministic_algorithms_enabled() == flags
    assert dict(os.environ) == environment


def test_making_a_bench_leaves_no_trace_on_the_model(tmp_path):
    model = noisy_net().eval()
    before, attributes = weights(model), [sorted(vars(m)) for m in model.modules()]
    state = torch.get_rng_state()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    assert same_weights(before, weights(model))
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert [sorted(vars(m)) for m in model.modules()] == attributes
    b.fit().result()
    assert [sorted(vars(m)) for m in model.modules()] == attributes


def test_the_users_own_accelerator_is_left_alone(tmp_path):
    out = python(
        """
        import sys, torch, functools
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, GradientState, PartialState
        from tests.engine.problems import bench, plain_net, labelled
        states = AcceleratorState, GradientState, PartialState
        model = plain_net()
        b = bench(model, labelled(), sys.argv[1], max_epochs=1)
        b.fit().result()
        assert not any(s._shared_state for s in states)  # none of ours is seen
        mine = Accelerator(cpu=True, gradient_accumulation_steps=3, mixed_precision="bf16")
        assert mine.mixed_precision == "bf16"
        before = [(id(s._shared_state), dict(s._shared_state)) for s in states]
        b.fit().result()
        b.find_lr(num_training=3).result()
        assert [(id(s._shared_state), dict(s._shared_state)) for s in states] == before
        assert mine.gradient_accumulation_steps == 3 and mine.device.type == "cpu"
        net = torch.nn.Linear(2, 1)
        net, optimizer = mine.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        with mine.accumulate(net):
            mine.backward(net(torch.ones(1, 2)).sum())
            optimizer.step()
        later = Accelerator(cpu=True)
        b.fit().result()
        assert later.num_processes == 1
        # a model that a bench has trained is new to the user's accelerator
        assert not hasattr(model, "_is_accelerate_prepared")
        mine.prepare(model)
        assert b.fit().result().status == "finished"
        assert model._is_accelerate_prepared
        print("well")
        """,
        tmp_path,
    )
    assert "well" in out.stdout


def python(source, *args):
    script = "import torch; torch.set_num_threads(1)\n" + textwrap.dedent(source)
    out = warm.python().run("-c", script, *map(str, args))
    assert out.returncode == 0, out.stderr
    return out


def test_a_plain_process_waits_for_its_jobs(tmp_path):
    python(
        """
        import sys
        from tests.engine.problems import bench, plain_net, labelled
        b = bench(plain_net(), labelled(), sys.argv[1], max_epochs=40)
        b.fit()
        b.fit(max_steps=3)
        b.find_lr(num_training=5, num_workers=1)
        """,
        tmp_path,
    )
    runs = [Run.open(path) for path in sorted((tmp_path / "runs").glob("[!.]*"))]
    assert [(run.kind, run.status, run.step) for run in runs] == [
        ("fit", "finished", 280), ("fit", "finished", 3), ("find_lr", "finished", 0),
    ]  # fmt: skip


def test_an_interrupt_stops_the_fit_and_keeps_its_history(tmp_path):
    out = python(
        """
        import sys, _thread, threading
        from tests.engine.problems import bench, plain_net, labelled
        from workbench.launch import job as launch_job
        waits = threading.Event()
        class Shown(launch_job.ProgressBar):
            def __enter__(self):
                waits.set()
                return super().__enter__()
        launch_job.ProgressBar = Shown
        def listener(event):
            if type(event).__name__ == "StepsDone" and event.step > 200 and waits.is_set():
                waits.clear()  # once, and while somebody waits
                _thread.interrupt_main()
        b = bench(plain_net(), labelled(), sys.argv[1], max_epochs=10**6)
        leave = b.subscribe(listener)
        job = b.fit()
        try:
            job.result()
        except KeyboardInterrupt:
            print("raised again", job.status)
        leave()
        run = job.result()
        assert run.step > 200 and len(run.history["loss"]) == run.step
        on = b.fit(start="continue", max_steps=run.step + 2).result()
        assert (on.status, on.step) == ("finished", run.step + 2)
        assert on.history["loss"][: run.step].tolist() == run.history["loss"].tolist()
        """,
        tmp_path,
    )
    assert "raised again stopped" in out.stdout


def test_an_interrupt_while_waiting_for_one_behind_another(tmp_path):
    """The one that was asked for is dropped; the one that runs goes on."""
    out = python(
        """
        import sys, _thread, threading, time
        from tests.engine.problems import bench, plain_net, labelled
        from workbench.launch import job as launch_job
        class Shown(launch_job.ProgressBar):
            def __enter__(self):  # somebody waits now
                threading.Timer(0.5, _thread.interrupt_main).start()
                return super().__enter__()
        b = bench(plain_net(), labelled(), sys.argv[1], max_epochs=10**6)
        running, waiting = b.fit(), b.fit()
        while running.status != "running":
            time.sleep(0.01)
        shown, launch_job.ProgressBar = launch_job.ProgressBar, Shown
        try:
            waiting.result()
        except KeyboardInterrupt:
            print("raised again", running.status)
        launch_job.ProgressBar = shown
        running.stop()
        running.result()
        print(waiting.result().status, waiting.result().step)
        """,
        tmp_path,
    )
    assert "raised again running" in out.stdout
    assert "stopped 0" in out.stdout


SUBMITS = [(folder_commands, "listen"), (base, "line")]


@pytest.mark.parametrize(
    ("place", "behind_another"),
    [((thread.ThreadLauncher, "_start_runner"), False), *itertools.product(SUBMITS, (False, True))],
    ids=lambda value: str(value) if isinstance(value, bool) else value[1],
)
def test_an_interrupt_while_a_job_is_submitted(place, behind_another, tmp_path, monkeypatch):
    """The job is stopped, the next one trains, and the bench can be closed."""
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_steps=3)
    if behind_another:
        _, go = gate.hold(0)
        first = b.fit()
    with monkeypatch.context() as patch:
        patch.setattr(*place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            b.fit()
    job = b.jobs[-1]
    assert job.wait(PATIENCE)
    assert (job.status, Run.open(job.folder.path).status) == ("stopped", "stopped")
    if behind_another:
        go.set()
        assert first.result(PATIENCE).status == "finished"
    assert b.fit().result(PATIENCE).status == "finished"
    b.close()


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_prediction_that_is_stopped_before_its_turn_has_no_outputs(tmp_path):
    gate = Gate()
    b = bench(plain_net(), labelled(), tmp_path, loss=gate, max_steps=3)
    _, go = gate.hold(0)
    first, waiting = b.fit(), b.predict(labelled())
    waiting.stop()
    assert waiting.result(PATIENCE) == []
    go.set()
    first.result(PATIENCE)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_killed_process_leaves_a_readable_record(tmp_path):
    script = textwrap.dedent(
        """
        import sys, torch
        torch.set_num_threads(1)
        from tests.engine.problems import bench, plain_net, labelled
        def told(event):
            if type(event).__name__ == "StepsDone" and event.step > 100:
                print("far enough", event.step, flush=True)
        bench(plain_net(), labelled(), sys.argv[1], max_epochs=10**6, listeners=[told]).fit()
        """
    )
    child = warm.python().start("-c", script, str(tmp_path))
    line = child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    reached = int(line.split()[-1])
    (folder,) = (tmp_path / "runs").glob("[!.]*")
    run = Run.open(folder)
    assert run.status == "failed"
    assert "ended without ending the run" in run.error
    assert run.step > reached
    assert run.history["step"].tolist() == list(range(run.step))
    losses = run.history["loss"]
    again = bench(plain_net(), labelled(), tmp_path, max_steps=50).fit().result()
    assert np.array_equal(again.history["loss"], losses[:50])


# -- on a device


@pytest.mark.gpu
def test_a_fit_on_cuda_is_the_plain_loop(tmp_path):
    model, data = plain_net(), labelled(400)
    twin = twin_of(model).cuda()
    run = bench(model, data, tmp_path, accelerator="cuda", deterministic=True, gradient_clip_val=0.5).fit(
        max_epochs=3).result()  # fmt: skip
    torch.use_deterministic_algorithms(True)
    try:
        expected = loop.fit(
            twin, lambda m, b: F.cross_entropy(m(b[0].cuda()), b[1].cuda()), sgd(twin.parameters(), lr=0.05),
            loop.loader_of(data, 8), 3, clip=0.5,
        )  # fmt: skip
    finally:
        torch.use_deterministic_algorithms(False)
    np.testing.assert_allclose(run.history["loss"], expected["loss"], rtol=1e-6)
    np.testing.assert_allclose(run.history["grad_norm"], expected["grad_norm"], rtol=1e-5)
    torch.testing.assert_close({k: v.cpu() for k, v in model.state_dict().items()},
                               {k: v.cpu() for k, v in twin.state_dict().items()})  # fmt: skip


@pytest.mark.gpu
def test_the_ring_gives_the_same_history_as_a_sync_at_every_update(tmp_path, monkeypatch):
    from workbench.engine.metrics import meter

    b = bench(
        plain_net(), labelled(2000), tmp_path, accelerator="cuda", deterministic=True, max_epochs=4
    )
    ring = b.fit().result()
    monkeypatch.setattr(meter, "CAPACITY", 1)
    each = b.fit().result()
    for name in ("loss", "lr", "grad_norm", "step"):
        assert np.array_equal(ring.history[name], each.history[name])


@pytest.mark.gpu
def test_a_loss_that_is_nan_on_cuda_ends_the_run(tmp_path):
    from workbench.instruments.finite import NonFiniteError

    x, y = labelled(800).tensors
    x = x.clone()
    x[500] = float("nan")
    b = bench(plain_net(), (x, y), tmp_path, accelerator="cuda", shuffle=False, max_epochs=1)
    job = b.fit()
    with pytest.raises(NonFiniteError, match="update 62"):
        job.result()
    assert sum(e.rows for e in of(job, StepsDone)) > 62
