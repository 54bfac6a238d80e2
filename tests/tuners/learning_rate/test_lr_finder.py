"""The finder against a plain loop; and that it leaves no trace, however it ends."""

import copy
import functools
import random
import sys
import textwrap

import numpy as np
import psutil
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import WeightedRandomSampler

from tests import warm
from tests.engine.problems import (
    Augmented,
    adam,
    adamw,
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
from tests.reference import finder, loop
from tests.waiting import wait_for
from workbench.commands import Stop
from workbench.settings import SettingsError
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("make", [sgd, adamw], ids=["sgd", "adamw"])
def test_the_curve_is_the_plain_loops(make, accumulate, tmp_path):
    model, data = noisy_net(), labelled()
    twin = twin_of(model)
    curve = (
        bench(model, data, tmp_path, make, accumulate_grad_batches=accumulate)
        .find_lr(num_training=60)
        .result()
    )
    lrs, losses, smoothed = finder.sweep(
        twin,
        loss_of,
        make(twin.parameters(), lr=0.05),
        loop.loader_of(data, 8),
        n=60,
        accumulate=accumulate,
    )
    assert len(curve.lrs) == len(lrs) > 7  # more than one epoch: a short loader is cycled
    np.testing.assert_allclose(curve.lrs, lrs, rtol=1e-12)
    # exact while the rates have the same bits; a last-bit difference of `**` moves the last bit of a loss
    np.testing.assert_allclose(curve.losses, losses, rtol=1e-4)
    assert np.array_equal(curve.losses[:5].astype(np.float32), np.float32(losses[:5]))
    np.testing.assert_allclose(curve.smoothed, smoothed, rtol=1e-4)


def test_ended_says_how(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path)
    assert b.find_lr(num_training=5, max_lr=1e-3).result().ended == "all points done"
    assert b.find_lr(num_training=50, max_lr=1e6).result().ended.startswith("the loss diverged")

    line = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 1))
    data = torch.randn(40, 6), torch.randn(40, 1)
    steep = (
        bench(line, data, tmp_path, loss=F.mse_loss)
        .find_lr(max_lr=1e9, early_stop_threshold=None)
        .result()
    )
    assert steep.ended == "loss not finite"
    assert not np.isfinite(steep.losses[-1])


def test_param_groups_keep_their_ratio(tmp_path):
    model, data = plain_net(), labelled()
    twin = twin_of(model)
    curve = bench(model, data, tmp_path, two_groups).find_lr(num_training=40).result()
    _, losses, _ = finder.sweep(
        twin, loss_of, two_groups(twin.parameters(), lr=0.05), loop.loader_of(data, 8), n=40
    )
    np.testing.assert_allclose(curve.losses, losses, rtol=1e-4)


def test_warmup_from_zero_does_not_hide_the_ratio(tmp_path):
    """A schedule that starts at 0 makes every group's rate 0 when the sweep begins."""
    import workbench as wb

    def curve(root, scheduler):
        b = wb.Workbench(plain_net(), train=labelled(), loss=F.cross_entropy, optimizer=two_groups, scheduler=scheduler,
                         root=root, accelerator="cpu", batch_size=8)  # fmt: skip
        return b.find_lr(num_training=20).result()

    plain = curve(tmp_path / "a", None)
    warm = curve(
        tmp_path / "b", lambda o, n: torch.optim.lr_scheduler.LambdaLR(o, lambda k: min(1.0, k / 5))
    )
    assert np.array_equal(plain.losses, warm.losses)


def test_a_frozen_layer_in_eval_mode_is_swept_as_the_fit_would_train_it(tmp_path):
    model, data = noisy_net().train(), labelled()
    model[1].eval()
    b = bench(model, data, tmp_path)
    first = b.fit(lr=1e-5, max_steps=1).result().history["loss"][0]
    assert b.find_lr(num_training=3).result().losses[0] == pytest.approx(first, abs=0)


def test_bad_ranges_are_refused_at_once(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path)
    for wrong, words in (
        ({"num_training": 2}, "num_training=2"),
        ({"min_lr": 1.0, "max_lr": 0.1}, "max_lr=0.1 is not above min_lr=1.0"),
        ({"mode": "cubic"}, "mode='cubic'"),
        ({"early_stop_threshold": 0.5}, "early_stop_threshold=0.5"),
        ({"min_lr": 0.0}, "min_lr=0.0"),
    ):
        with pytest.raises(SettingsError, match=words.replace(".", r"\.")):
            b.find_lr(**wrong)
    assert b.jobs == []


# -- no trace


class Trace:
    """All that a finder could leave behind, at one moment."""

    def __init__(self, model):
        self.weights = weights(model)
        self.modes = [m.training for m in model.modules()]
        self.grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        self.identities = [id(p) for p in model.parameters()]
        self.attributes = [sorted(vars(m)) for m in model.modules()]
        self.python, self.numpy, self.torch = (
            random.getstate(),
            np.random.get_state(),
            torch.get_rng_state(),
        )
        self.threads, self.switch = torch.get_num_threads(), sys.getswitchinterval()

    def same(self, other):
        assert same_weights(self.weights, other.weights)
        assert self.modes == other.modes
        assert self.identities == other.identities
        assert self.attributes == other.attributes
        assert all((a is None) == (b is None) and (a is None or torch.equal(a, b))
                   for a, b in zip(self.grads, other.grads, strict=True))  # fmt: skip
        assert self.python == other.python
        assert all(np.array_equal(a, b) for a, b in zip(self.numpy, other.numpy, strict=True))
        assert torch.equal(self.torch, other.torch)
        assert (self.threads, self.switch) == (other.threads, other.switch)


class FailingLoss:
    """Raises at its n-th call; counts across copies."""

    def __init__(self):
        self.calls, self.at = 0, None

    def __call__(self, output, y):
        self.calls += 1
        if self.calls == self.at:
            raise ValueError("the loss has had enough")
        return F.cross_entropy(output, y)


class Interrupted:
    """At its n-th call a person asks for a stop; the sweep goes on once that has arrived."""

    def __init__(self):
        self.calls, self.at, self.ask, self.asked = 0, None, None, None

    def __call__(self, output, y):
        self.calls += 1
        if self.calls == self.at:
            self.ask()
            wait_for(self.asked)
        return F.cross_entropy(output, y)

    def hold(self, bench, points, ask):
        """Holds the next job of this bench after so many batches; its Stop stays in its inbox."""
        number = len(bench.jobs)
        self.at, self.ask = self.calls + points + 1, ask
        self.asked = lambda: bench.jobs[number]._inbox.has(Stop)


CASES = {
    "sgd-momentum": (plain_net, sgd, {}, labelled),
    "adam-batchnorm-dropout": (noisy_net, adam, {}, labelled),
    "clip-and-accumulate": (noisy_net, adamw, {"gradient_clip_val": 0.5, "accumulate_grad_batches": 3}, labelled),
    "augmented": (noisy_net, adam, {}, lambda: Augmented(labelled())),
    "workers": (noisy_net, adam, {"num_workers": 2}, lambda: Augmented(labelled())),
    "workers-not-kept": (
        noisy_net, sgd, {"num_workers": 2, "persistent_workers": False}, lambda: Augmented(labelled()),
    ),
}  # fmt: skip


def make_bench(case, root, **more):
    net, make, settings, data = CASES[case]
    model = net()
    return model, bench(model, data(), root, make, max_epochs=2, **settings, **more)


def alone(case, root, **more):
    model, b = make_bench(case, root, **more)
    run = b.fit().result()
    return run.history["loss"], weights(model)


def check_fit(b, model, expected):
    run = b.fit().result()
    losses, trained = expected
    assert np.array_equal(run.history["loss"], losses)
    assert same_weights(model, trained)


@pytest.mark.parametrize("case", CASES)
def test_find_then_fit_is_fit_alone(case, tmp_path):
    expected = alone(case, tmp_path / "alone")
    model, b = make_bench(case, tmp_path / "found")
    before = Trace(model)
    curve = b.find_lr(num_training=12).result()
    assert len(curve.lrs) == 12
    before.same(Trace(model))
    check_fit(b, model, expected)


@pytest.mark.parametrize("case", ["adam-batchnorm-dropout", "clip-and-accumulate"])
def test_no_trace_after_an_error_in_the_middle(case, tmp_path):
    expected = alone(case, tmp_path / "alone")
    loss = FailingLoss()
    model, b = make_bench(case, tmp_path / "found", loss=loss)
    before = Trace(model)
    loss.at = loss.calls + 6
    job = b.find_lr(num_training=20)
    with pytest.raises(ValueError, match="had enough"):
        job.result()
    assert job.status == "failed"
    before.same(Trace(model))
    loss.at = None  # its calls count anew
    check_fit(b, model, expected)


def test_no_trace_after_a_stop(tmp_path):
    expected = alone("augmented", tmp_path / "alone")
    loss = Interrupted()
    model, b = make_bench("augmented", tmp_path / "found", loss=loss)
    before = Trace(model)
    loss.hold(b, 20, lambda: b.jobs[-1].stop())
    job = b.find_lr(num_training=5000)
    curve = job.result()
    assert job.status == "stopped"
    assert curve.ended == "stopped"
    assert 20 <= len(curve.lrs) < 5000
    assert np.isfinite(curve.losses).all()
    before.same(Trace(model))
    check_fit(b, model, expected)


def test_no_trace_after_an_interrupt(tmp_path):
    """Ctrl-C in result(): in a process of its own, as the main thread's signal handling is what is tested."""
    script = textwrap.dedent(
        """
        import sys, threading, _thread
        import numpy as np, torch
        from tests.waiting import wait_for
        from tests.tuners.learning_rate.test_lr_finder import Interrupted, Trace, alone, make_bench, check_fit
        from pathlib import Path
        torch.set_num_threads(1)
        root = Path(sys.argv[1])
        expected = alone("adam-batchnorm-dropout", root / "alone")
        loss = Interrupted()
        model, b = make_bench("adam-batchnorm-dropout", root / "found", loss=loss)
        before = Trace(model)
        fired = []
        def in_result():
            frame = sys._current_frames()[threading.main_thread().ident]
            while frame is not None and frame.f_code.co_name != "_watch":
                frame = frame.f_back
            return frame is not None
        def press():
            wait_for(in_result)  # elsewhere an interrupt would be no matter of the job's
            fired.append(1)
            _thread.interrupt_main()
        loss.hold(b, 50, press)
        job = b.find_lr(num_training=100000)
        try:
            job.result()
        except KeyboardInterrupt:
            print("interrupted", job.status, job.done())
        assert fired
        before.same(Trace(model))
        kept = job.result()
        print(kept.ended, 20 < len(kept.lrs) < 100000)
        loss.at = None  # its calls count anew
        check_fit(b, model, expected)
        print("as alone")
        """
    )
    out = warm.python().run("-c", script, str(tmp_path))
    assert out.returncode == 0, out.stderr
    lines = out.stdout.splitlines()
    assert [
        line
        for line in lines
        if line.endswith(("stopped True", "as alone")) or line == "stopped True"
    ]
    assert "interrupted stopped True" in out.stdout
    assert "as alone" in out.stdout


def test_no_trace_after_a_fit(tmp_path):
    """fit, find, fit: the second fit is the first; and "continue" after a finder is "continue" without one."""
    one, b = make_bench("adam-batchnorm-dropout", tmp_path / "one")
    first = b.fit().result()
    trained = Trace(one)
    b.find_lr(num_training=10).result()
    # the finder sweeps from the start, and the trained weights are there after
    trained.same(Trace(one))
    b.find_lr(num_training=10, start="continue").result()
    trained.same(Trace(one))
    on = b.fit(start="continue", max_epochs=3).result()
    two, other = make_bench("adam-batchnorm-dropout", tmp_path / "two")
    other.fit().result()
    assert np.array_equal(
        on.history["loss"], other.fit(start="continue", max_epochs=3).result().history["loss"]
    )
    assert same_weights(one, two)
    again = b.fit().result()
    assert np.array_equal(first.history["loss"], again.history["loss"])
    assert not any(type(e).__name__ == "Message" for e in again.events)


def test_finders_give_the_same_curve_whenever(tmp_path):
    _, b = make_bench("workers", tmp_path)
    first = b.find_lr(num_training=9).result()
    b.fit(max_epochs=1).result()
    assert np.array_equal(first.losses, b.find_lr(num_training=9).result().losses)


@pytest.mark.parametrize("how", ["linear", "cosine", "the user's cosine"])
def test_a_rate_that_falls_to_zero_may_be_higher(how, tmp_path):
    own = {
        "scheduler": lambda optimizer, updates: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, updates
        )
    }
    given = own if how == "the user's cosine" else {"lr_schedule": how}
    constant = bench(plain_net(), labelled(), tmp_path / "a", sgd).find_lr().result()
    falling = bench(plain_net(), labelled(), tmp_path / "b", sgd, **given).find_lr().result()
    assert np.array_equal(constant.losses, falling.losses)
    assert falling.suggestion == pytest.approx(constant.suggestion * 1.33 / 0.75)


def test_start_chooses_where_the_sweep_begins(tmp_path):
    model, b = make_bench("sgd-momentum", tmp_path)
    fresh = b.find_lr(num_training=5).result()
    run = b.fit().result()
    trained = copy.deepcopy(model)
    on = b.find_lr(num_training=5, start="continue").result()
    by_id = b.find_lr(num_training=5, start=run.id).result()
    assert on.losses[0] < fresh.losses[0]
    assert np.array_equal(on.losses, by_id.losses)
    assert same_weights(model, trained)


def test_a_sampler_with_a_generator_of_its_own_is_not_moved(tmp_path):
    def make(root):
        data, model = labelled(), noisy_net()
        sampler = WeightedRandomSampler(
            torch.ones(50).double(), 50, generator=torch.Generator().manual_seed(5)
        )
        loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
        return model, bench(model, loader, root, max_epochs=1), sampler

    model, b, _ = make(tmp_path / "alone")
    expected = b.fit().result().history["loss"], weights(model)
    model, b, sampler = make(tmp_path / "found")
    state = sampler.generator.get_state()
    b.find_lr(num_training=10).result()
    assert torch.equal(state, sampler.generator.get_state())
    check_fit(b, model, expected)


def test_counters_and_flags_of_a_module_come_back(tmp_path):
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.calls, self.seen = plain_net(), 0, []

        def forward(self, x):
            self.calls += 1
            self.seen.append(len(x))
            return self.net(x)

    model = Counting()
    b = bench(model, labelled(), tmp_path, max_epochs=1)
    assert (model.calls, model.seen) == (0, [])
    b.find_lr(num_training=6).result()
    assert (model.calls, model.seen) == (0, [])
    b.fit().result()
    assert model.calls == 7


def test_nothing_is_written_beside_the_record(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    b = bench(plain_net(), labelled(), tmp_path / "root")
    b.find_lr(num_training=5).result()
    assert list(here.iterdir()) == []
    assert not list((tmp_path / "root").rglob("*.safetensors"))


def test_no_loader_process_is_left_by_a_failure(tmp_path):
    loss, before = FailingLoss(), set(loaders())
    _, b = make_bench("workers", tmp_path, loss=loss)
    loss.at = loss.calls + 3
    job = b.find_lr(num_training=20)
    with pytest.raises(ValueError, match="had enough"):
        job.result()
    loss.at = loss.calls + 3
    fit = b.fit()
    with pytest.raises(ValueError, match="had enough"):
        fit.result()
    # else they live on, held by the traceback of the error
    wait_for(lambda: set(loaders()) <= before)
    assert job.exception() is not None  # which the job still holds


def loaders():
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def test_the_record_is_the_curve(tmp_path):
    from workbench.runs.run import Run
    from workbench.tuners.learning_rate.curve import LRCurve

    b = bench(plain_net(), labelled(), tmp_path)
    job = b.find_lr(num_training=30)
    curve = job.result()
    assert LRCurve.from_events(Run.open(job.folder.path).events) == curve
    assert "suggestion" in repr(curve)


def test_it_is_refused_for_data_that_can_be_read_once(tmp_path):
    x, y = labelled().tensors
    batches = iter([(x[:8], y[:8]), (x[8:16], y[8:16])])
    b = bench(plain_net(), batches, tmp_path, max_epochs=1)
    with pytest.raises(TaskError, match="read only once"):
        b.find_lr().result()
    assert len(b.fit().result().history["loss"]) == 2  # nothing was used up


def test_no_data_loader_setting_is_lost(tmp_path):
    """A collate function sees lists of samples in the finder as in the fit."""
    seen = []

    def collate(samples):
        seen.append(len(samples))
        return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])

    b = bench(plain_net(), labelled(), tmp_path, collate_fn=collate)
    seen.clear()
    b.find_lr(num_training=3).result()
    assert seen == [8, 8, 8]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "make", [functools.partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam]
)
def test_no_trace_on_cuda(make, tmp_path):
    def one(root):
        model = noisy_net()
        return model, bench(
            model, labelled(), root, make, accelerator="cuda", deterministic=True, max_epochs=2
        )

    model, b = one(tmp_path / "a")
    expected = b.fit().result().history["loss"], weights(model)
    model, b = one(tmp_path / "b")
    state = torch.cuda.get_rng_state()
    b.find_lr(num_training=12).result()
    assert torch.equal(state, torch.cuda.get_rng_state())
    check_fit(b, model, expected)
