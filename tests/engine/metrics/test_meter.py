"""What the meter tells beside measurements: how long training has waited for batches, and the memory in use."""

import gc
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import workbench as wb
from tests.engine.problems import labelled, plain_net
from tests.engine.resuming import Fit, resumed, settings_of, supervised
from tests.on_ranks import on_ranks
from workbench.engine.metrics import meter
from workbench.events import StepsDone
from workbench.instruments.grad_norm import total_norm
from workbench.instruments.memory import memory_in_use, total_memory
from workbench.runs.checkpoints import find

pytestmark = pytest.mark.usefixtures("one_thread")


def flushes(run):
    return [event for event in run.events if isinstance(event, StepsDone)]


@pytest.fixture
def ticking(monkeypatch):
    """A clock that goes on by a second whenever it is read: each wait for a batch takes one."""
    monkeypatch.setattr(meter, "perf_counter", itertools.count(0.0).__next__)


def test_the_time_until_each_batch_is_there_is_added_up(ticking, tmp_path):
    """7 windows an epoch and its end, which has to be waited for as well; checks are left out."""
    task = supervised(plain_net(), val=labelled(20, seed=2))
    run = Fit(task, settings_of(), tmp_path)
    ends = [event.waited for event in flushes(run) if (event.step + event.rows) % 7 == 0]
    assert [waited - 8 * number for number, waited in enumerate(ends)] in (
        [7, 7, 7],
        [8, 8, 8],
        [7, 8, 8],
        [8, 8, 7],
    )
    assert all(a.waited <= b.waited < b.seconds for a, b in itertools.pairwise(flushes(run)))


def test_a_run_that_goes_on_has_waited_before(ticking, tmp_path):
    def make():
        return supervised(plain_net())

    whole = Fit(make(), settings_of(), tmp_path / "whole")
    before = flushes(whole)[-1].waited
    point = find(tmp_path / "whole", "last")
    rest = resumed(make, settings_of(max_epochs=4), point, tmp_path / "rest")
    assert flushes(rest)[-1].waited >= before + 7


def test_of_ranks_each_counts_its_own_batches(monkeypatch):
    def rank():
        meter.perf_counter = itertools.count(0.0).__next__
        return flushes(Fit(supervised(plain_net()), settings_of(batch_size=4)))[-1].waited

    assert all(waited >= 3 * 7 for waited in on_ranks(2, rank))


def test_the_ends_of_epochs_do_not_set_the_rhythm(monkeypatch, tmp_path):
    """An update takes 30 ms here, and an epoch 7 of them: flushes come after each fourth, and where an epoch ends."""
    now = [0.0]

    class Slow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = plain_net()

        def forward(self, x):
            now[0] += 0.03
            return self.net(x)

    monkeypatch.setattr(meter, "perf_counter", lambda: now[0])
    run = Fit(supervised(Slow()), settings_of(num_sanity_val_steps=0), tmp_path)
    ends = [event.step + event.rows for event in flushes(run)]
    assert ends == sorted({*range(4, 22, 4), 7, 14, 21})


COUNTED = [
    {},
    {"accumulate_grad_batches": 3},
    {"log_every_n_steps": 7},
    {"log_every_n_steps": 3, "find_lr_at": [1]},
]


@pytest.mark.parametrize(
    ("devices", "more", "period"), [*((1, more, period) for more in COUNTED for period in (0.0, math.inf)), *((2, more, 0.0) for more in COUNTED[:3])],
)  # fmt: skip
def test_the_samples_of_the_updates_are_counted(devices, more, period, monkeypatch, tmp_path):
    """Up to each flush's last row: no event counts more, wherever the flushes end, nor updates of a search within the fit. Of two ranks, one
    has no batch in an epoch's last update.
    """
    monkeypatch.setattr(meter, "PERIOD", period)
    batches = [8] * 6 + [2]
    size = devices * more.get("accumulate_grad_batches", 1)
    updates = [sum(batches[at : at + size]) for at in range(0, 7, size)] * 2
    model = torch.nn.Linear(2, 1)
    with wb.Workbench(model, train=(torch.randn(50, 2), torch.randn(50, 1)), loss=F.mse_loss, max_epochs=2, batch_size=8, devices=devices,
                      accelerator="cpu", root=tmp_path, **more) as bench:  # fmt: skip
        job = bench.fit()
        job.result()
        events = [event for event in job.events if isinstance(event, StepsDone)]
    assert all(event.rows for event in events)
    assert np.cumsum([event.samples for event in events]).tolist() == [
        sum(updates[: event.done]) for event in events
    ]


def test_the_samples_of_a_run_that_continues(monkeypatch, tmp_path):
    """Its record has those of the updates before, which end between two of its rows."""
    monkeypatch.setattr(meter, "PERIOD", 0.0)
    x, y = torch.randn(50, 2), torch.randn(50, 1)
    with wb.Workbench(
        torch.nn.Linear(2, 1),
        train=(x, y),
        loss=F.mse_loss,
        max_epochs=3,
        batch_size=8,
        log_every_n_steps=3,
        root=tmp_path,
    ) as bench:
        bench.fit(max_steps=12).result()
        job = bench.fit(start="continue", max_steps=17)
        job.result()
        events = [event for event in job.events if isinstance(event, StepsDone)]
    assert events[-1].done == 16
    assert sum(event.samples for event in events) == 100 + 2 * 8


def test_samples_of_which_nobody_knows_are_not_counted(tmp_path):
    ready = [(torch.randn(8, 2), torch.randn(8, 1)) for _ in range(4)]
    with wb.Workbench(
        torch.nn.Linear(2, 1),
        train=DataLoader(ready, batch_size=None),
        loss=F.mse_loss,
        max_epochs=1,
        root=tmp_path,
    ) as bench:
        job = bench.fit()
        job.result()
        assert {event.samples for event in job.events if isinstance(event, StepsDone)} == {None}


def test_memory_is_looked_at_once_a_second(monkeypatch):
    looks = itertools.count(1000)
    monkeypatch.setattr(meter, "memory_in_use", lambda device: next(looks))
    monkeypatch.setattr(meter, "LOOK", 1e9)
    assert {event.memory for event in flushes(Fit(supervised(plain_net()), settings_of()))} == {
        1000
    }
    monkeypatch.setattr(meter, "LOOK", 0.0)
    found = [event.memory for event in flushes(Fit(supervised(plain_net()), settings_of()))]
    assert found == list(range(found[0], found[0] + len(found)))


def test_what_is_in_use_is_part_of_what_there_is():
    cpu = torch.device("cpu")
    gc.collect()  # what other tests have left is not let go of between the looks
    there = total_memory(cpu)

    def grows():
        used = memory_in_use(cpu)
        block = torch.ones(1 << 25)
        return 0 < used < used + block.nbytes // 2 < memory_in_use(cpu) <= there

    assert any(grows() for _ in range(20)), (
        "the system may take pages of files from the process in between, but not each time"
    )
    assert memory_in_use(torch.device("meta")) is None
    assert total_memory(torch.device("meta")) is None


class StepsNowAndThen(torch.nn.Module):
    """By hand: it steps at every second batch; the gradient of the `last` one is not finite."""

    automatic_optimization = False

    def __init__(self, last):
        super().__init__()
        self.net, self.last = plain_net(), last

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1]) * (
            float("nan") if batch_idx == self.last else 1.0
        )
        if batch_idx % 2:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(("last", "measured"), [(1, [False]), (3, [False, True, False])])
def test_norms_of_an_update_that_fails_are_in_no_other_row(last, measured, tmp_path):
    data = DataLoader(labelled(40), 8)
    job = wb.Workbench(
        StepsNowAndThen(last),
        train=data,
        root=tmp_path,
        accelerator="cpu",
        max_epochs=1,
        dry_run=False,
    ).fit()
    with pytest.raises(ArithmeticError):
        job.result()
    norms = [event.array("layer_norms") for event in job.events if isinstance(event, StepsDone)]
    rows = torch.tensor(
        [not row.all() for array in norms for row in torch.isnan(torch.tensor(array))]
    ).tolist()
    assert rows == measured


@pytest.mark.parametrize("order", [2.0, 1.0, float("inf")])
def test_totals_that_a_flush_computes_are_those_of_each_update(order):
    """On a device an update computes no total that nothing reads; a second step within an update replaces the first."""
    norms = torch.rand(5, 3, generator=torch.Generator().manual_seed(0))
    measured = meter.Meter(3, torch.device("cpu"), 1, order, kind=torch.float32)
    for step, row in enumerate(norms):
        if step == 3:
            measured.put_norms(0, torch.tensor(100.0), row[:2], (0, 1))
        if step != 1:  # nothing had a gradient
            measured.put_norms(0, None, row)
        measured.record(step, [0.1], torch.tensor(1.0))
    (event,) = measured.flush(0, wait=True)
    totals = [total_norm(row, order).item() for row in norms]
    found = event.array("grad_norm").tolist()
    assert math.isnan(found.pop(1))
    assert found == pytest.approx(
        [total for step, total in enumerate(totals) if step != 1], rel=1e-6
    )


@pytest.mark.parametrize(
    "others",
    [
        (),
        ("replaced",),
        (
            "without a gradient",
            "another loss",
            "a loss that changed",
            "some norms again",
            "all norms again",
            "replaced",
        ),
    ],
)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_losses_and_norms_that_are_put_together(others, kind):
    """What a device copies at once reads as what is written one by one, whatever the updates between did."""
    together, apart = (
        meter.Meter(
            3, torch.device("cpu"), 1, 2.0, kind=torch.float32, double=kind is torch.float64
        )
        for _ in range(2)
    )
    for measured in (together, apart):
        measured._host = None  # as on a device
    generator = torch.Generator().manual_seed(0)
    for step, what in enumerate(("plain", "plain", *others, "plain")):
        (first, loss, *norms), again = (
            torch.rand(5, generator=generator, dtype=kind).unbind(),
            torch.rand(3, generator=generator, dtype=kind),
        )
        if what == "replaced":
            together.put_update(first, norms[::-1])
        if what != "without a gradient":
            together.put_update(first if what == "another loss" else loss, norms)
            apart.put_norms(0, None, torch.stack(norms))
        for measured in (together, apart):
            if what == "some norms again":
                measured.put_norms(0, again.norm(), again[:2], (0, 1))
            if what == "all norms again":
                measured.put_norms(0, None, again)
        if what == "a loss that changed":  # in a hook
            loss.mul_(100)
        for measured in (together, apart):
            measured.record(step, [0.1], loss)
    (one,), (other,) = together.flush(0, wait=True), apart.flush(0, wait=True)
    assert one.columns == other.columns
    assert one.array("loss").dtype == torch.empty(0, dtype=kind).numpy().dtype
    assert not torch.isnan(torch.tensor(one.array("loss"))).any()
