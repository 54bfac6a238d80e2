"""Where the time of a fit goes: the parts add up, and each takes the time that was spent in it."""

import types

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch.utils.data import Dataset

import workbench as wb
from tests.engine.problems import bench, labelled, plain_net
from tests.on_ranks import on_ranks
from workbench.engine.metrics import meter, step_timer
from workbench.engine.metrics.step_timer import StepTimer
from workbench.events import TimeSpent
from workbench.launch import thread

pytestmark = pytest.mark.usefixtures("one_thread")


WORK = 1 / 16


class Clock:
    """The clock of a fit: it stands still except in `works`."""

    seconds = 0.0

    def works(self, seconds):
        self.seconds += seconds

    def read(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (meter, step_timer):
        monkeypatch.setattr(module, "perf_counter", made.read)
    monkeypatch.setattr(thread, "time", types.SimpleNamespace(perf_counter=made.read))
    return made


class Slow(Dataset):
    """Samples that take a while to read."""

    def __init__(self, clock):
        self.clock = clock

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.clock.works(WORK / 4)
        return torch.randn(6), index % 3


def slow_backward(output, clock):
    """The same output, whose gradient takes its time."""
    output = output.clone()
    output.register_hook(lambda grad: clock.works(WORK))
    return output


class SlowSGD(torch.optim.SGD):
    clock = None

    def step(self, closure=None):
        self.clock.works(WORK)
        return super().step(closure)


def spent(run):
    return [e for e in run.events if isinstance(e, TimeSpent)]


def test_each_part_has_its_time_and_all_add_up(tmp_path, clock, monkeypatch):
    monkeypatch.setattr(SlowSGD, "clock", clock)

    def slow_loss(output, y):
        if not torch.is_grad_enabled():
            clock.works(2 * WORK)
            return F.cross_entropy(output, y)
        clock.works(WORK)
        return F.cross_entropy(slow_backward(output, clock), y)

    b = bench(
        plain_net(),
        Slow(clock),
        tmp_path,
        loss=slow_loss,
        val=labelled(8),
        optimizer=lambda p, lr: SlowSGD(p, lr=lr),
    )
    # 4 updates, 2 validations of 2 batches
    run = b.fit(max_epochs=2, batch_size=4, num_sanity_val_steps=0).result()
    parts = run.time_spent
    assert len(spent(run)) > 1
    assert sum(parts.values()) == pytest.approx(sum(e.seconds for e in spent(run)), rel=1e-6)
    assert sum(parts.values()) <= run.seconds
    expected = {
        "validation": 8,
        "forward": 4,
        "backward": 4,
        "optimizer": 4,
        "data": 2,
        "first batch": 2,
    }
    assert {part: seconds / WORK for part, seconds in parts.items() if seconds} == pytest.approx(
        expected
    )
    assert next(iter(parts)) == "validation"
    assert list(parts.values()) == sorted(parts.values(), reverse=True)
    (chart,) = run.charts("time")
    assert chart.x.ticks == tuple(parts)
    assert wb.Run.open(run.folder).time_spent == parts


def test_what_torch_compile_takes_is_a_part_of_its_own(tmp_path, clock):
    """In the first update, in the first validation, and again in the middle, where a batch has another size."""
    compiled = []

    def backend(graph, _):
        compiled.append(torch.is_grad_enabled())
        clock.works(16 * WORK)
        return graph

    def slow_loss(output, y):
        clock.works(WORK)
        return F.cross_entropy(output, y)

    torch._dynamo.reset()
    model = torch.compile(plain_net(), backend=backend, dynamic=False)
    try:
        b = bench(model, labelled(20), tmp_path, loss=slow_loss, val=labelled(8), dry_run=False)
        run = b.fit(max_epochs=1, batch_size=8, num_sanity_val_steps=0, compile=True).result()
    finally:
        torch._dynamo.reset()
    assert set(compiled) == {True, False}
    assert compiled.count(True) > 1, "the last batch of 4 is another shape"
    parts = {part: seconds / WORK for part, seconds in run.time_spent.items() if seconds}
    assert parts == pytest.approx({"compile": 16 * len(compiled), "forward": 3, "validation": 1})
    handler = torch._dynamo.callback.callback_handler
    assert (handler.start_callbacks, handler.end_callbacks) == ([], [])


def test_manual_optimization_and_lbfgs_have_the_same_parts(tmp_path, clock):
    def slow_loss(output, y):
        clock.works(WORK)
        return F.cross_entropy(slow_backward(output, clock), y)

    lbfgs = bench(
        plain_net(),
        labelled(8),
        tmp_path,
        loss=slow_loss,
        optimizer=lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=2),
    )
    parts = lbfgs.fit(max_epochs=1, batch_size=8).result().time_spent
    assert {"forward", "backward"} == {part for part in parts if parts[part] > 0}


def test_ranks_tell_how_long_one_waits_for_the_others(tmp_path):
    def work():
        from tests.engine.problems import labelled, plain_net
        from tests.engine.resuming import Fit, settings_of, supervised

        run = Fit(supervised(plain_net(), val=labelled(20, seed=2)), settings_of(), None)
        return [e.parts for e in run.events if isinstance(e, TimeSpent)]

    parts = on_ranks(2, work)[0]
    assert any(part.get("sync", 0.0) > 0 for part in parts)


def test_what_lies_within_another_part_counts_once(monkeypatch):
    """Logging within a validation; an update that a validation interrupts; time in no part is shared out."""
    now = [0.0]
    monkeypatch.setattr(step_timer, "perf_counter", lambda: now[0])

    def later(seconds):
        now[0] += seconds

    timer = StepTimer(torch.device("cpu"), lambda: now[0])
    timer.begin()
    timer.wait(now[0])
    later(1)
    timer.arrived(1.0, first=True)
    with timer.timed("validation"):
        later(4)
        with timer.timed("logging"):
            later(2)
    later(3)
    timer.mark("forward")
    later(9)
    timer.mark("backward")
    timer.end()
    later(12)  # between two updates
    assert timer.due()
    event = timer.take(7)
    assert event == TimeSpent(
        7,
        31.0,
        {
            "first batch": 1.0,
            "validation": 4.0,
            "logging": 2.0,
            "workbench": 0.0,
            "forward": 6.0,
            "backward": 18.0,
        },
    )
    assert not timer.due()
    assert timer.take(7) is None


def test_a_first_update_of_seconds_has_its_parts(tmp_path, clock):
    """An event is due within it, when its parts are not known yet."""

    class Net(torch.nn.Linear):
        def forward(self, x):
            clock.works(3.0)
            return super().forward(x)

    run = (
        wb.Workbench(
            Net(6, 3),
            train=labelled(16),
            loss=F.cross_entropy,
            root=tmp_path,
            accelerator="cpu",
            batch_size=8,
        )
        .fit(max_steps=2)
        .result()
    )
    found = spent(run)
    assert sum(event.parts.get("forward", 0.0) for event in found) == 6.0
    assert not any("other" in event.parts for event in found)


def test_what_comes_after_the_last_update_is_in_the_last_event(monkeypatch):
    """The timer waits for batches that do not come."""
    now = [0.0]
    monkeypatch.setattr(step_timer, "perf_counter", lambda: now[0])
    timer = StepTimer(torch.device("cpu"), lambda: now[0])
    timer.begin()
    timer.wait(now[0])
    timer.arrived(0.0, first=True)
    now[0] += 2.0
    timer.mark("forward")
    timer.end()
    assert timer.due()
    assert timer.take(1) == TimeSpent(1, 2.0, {"forward": 2.0})
    timer.wait(now[0])
    with timer.timed("checkpoint"):
        now[0] += 5.0
    assert not timer.due()
    assert timer.take(1) == TimeSpent(1, 5.0, {"checkpoint": 5.0})


def test_an_update_that_is_not_timed_has_no_marks(monkeypatch):
    """One in ten milliseconds is timed in parts, and the first one after an event."""
    now = [100.0]
    monkeypatch.setattr(step_timer, "perf_counter", lambda: now[0])
    timer = StepTimer(torch.device("cpu"), lambda: now[0])
    timer.begin()

    def update(part):
        timer.wait(now[0])
        timer.arrived(0.0, first=True)
        now[0] += 0.004
        timer.mark(part)
        timer.end()

    update("forward")
    update("backward")  # it comes too soon
    assert timer.take(2).parts == pytest.approx({"forward": 0.008})
    update("optimizer")
    assert timer.take(3).parts == pytest.approx({"optimizer": 0.004})


class FakeEvent:
    """An event of a stream that runs `behind` seconds behind the host."""

    now, reached = 0.0, float("inf")
    made = 0

    def __init__(self, enable_timing):
        assert enable_timing
        FakeEvent.made += 1

    def record(self):
        self.at = FakeEvent.now

    def query(self):
        return self.at <= FakeEvent.reached

    def elapsed_time(self, later):
        return 1000 * (later.at - self.at)


def test_on_a_device_marks_are_events_that_are_read_when_it_has_passed_them(monkeypatch):
    """Waiting for data counts where the device waits; what it has not done yet waits for the next event."""
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    clock = [0.0]
    timer = StepTimer(torch.device("cuda"), lambda: clock[0])
    timer.begin()

    def update(wait, forward, first=False):
        timer.wait(FakeEvent.now)
        FakeEvent.now += wait
        timer.arrived(wait, first=first)
        FakeEvent.now += forward
        timer.mark("forward")
        timer.end()
        clock[0] = FakeEvent.now

    update(2.0, 1.0, first=True)
    update(1.0, 3.0)
    event = timer.take(2)
    assert event.parts == pytest.approx(
        {"first batch": 2.0, "data": 5 * 1 / 5, "forward": 5 * 4 / 5}
    )
    made = FakeEvent.made
    FakeEvent.reached = FakeEvent.now
    update(0.0, 5.0)
    assert timer.take(3) is None, "the device has not come to the end of it"
    FakeEvent.reached = float("inf")
    update(0.0, 4.0)
    event = timer.take(4)
    assert event.parts["forward"] == pytest.approx(event.seconds) == pytest.approx(9.0)
    assert FakeEvent.made <= made + 3, "events are used again"
