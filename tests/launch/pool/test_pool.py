"""The pool: jobs on ranks leave the notebook's objects as a job in this process would, and the ranks stay."""

from __future__ import annotations

import importlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests import warm
from tests.launch.pools import Net, bench, data, losses, net, nothing_new, ranks, shared, warmed
from tests.waiting import wait_for
from workbench.commands import Change, Command, Mailbox
from workbench.events import Changed, Event, LayersMeasured, StepsDone, Validated
from workbench.launch.assignments import FitAssignment
from workbench.launch.job import NullSink
from workbench.launch.pool import pool
from workbench.launch.process import fork_client, run_in_child
from workbench.share.package import PackageError

pytestmark = pytest.mark.skipif(not run_in_child.FORK, reason="needs a fork server")


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Sums repeat."""


def pids() -> set[int]:
    return {process.pid for process in ranks()}


def slow(rank: int, step: int) -> None:
    time.sleep(0.02)


def test_a_fit_trains_the_model_in_place_and_the_ranks_stay(tmp_path: Path) -> None:
    model = net()
    weight, before = model.layers[0].weight, model.layers[0].weight.clone()
    two = bench(model, tmp_path, val=data(9))
    first = two.fit()
    first.result()
    assert model.layers[0].weight is weight
    assert not torch.equal(weight, before)
    assert model.steps == 12  # of rank 0, which has half of the batches
    there, left = pids(), shared()
    assert len(there) == 2
    stop_watching = two.watch(lambda batch, outputs: f"{len(batch[0])} {outputs.device}")
    again = two.fit()
    samples = again.result().samples
    stop_watching()
    steps = [event.step for event in again.events if isinstance(event, Validated)]
    assert [sample.step for sample in samples] == steps, "rank 0 alone has called it"
    assert samples[0].texts[""].endswith(" cpu")
    assert pids() == there
    wait_for(lambda: nothing_new(left))
    assert losses(again) == losses(first)
    one = bench(net(), tmp_path, batch_size=8, devices=1, strategy="thread", val=data(9)).fit()
    one.result()
    np.testing.assert_allclose(losses(first), losses(one), rtol=1e-4)
    checks = [
        [e.metrics["val_loss"] for e in job.events if isinstance(e, Validated)]
        for job in (first, one)
    ]
    np.testing.assert_allclose(*checks, rtol=1e-4)


def test_hooks_on_parameters_hold_in_ranks(tmp_path: Path) -> None:
    """As in torch's DDP they see the gradient of their own rank; the mask, of a cell, goes with them."""
    found = []
    mask = torch.ones(8, 1)
    mask[:3] = 0

    def zeroed(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad *= 0

    for options in ({}, {"batch_size": 8, "devices": 1, "strategy": "thread"}):
        model = net()
        model.layers[0].weight.register_hook(lambda gradient: gradient * mask)
        model.layers[2].bias.register_post_accumulate_grad_hook(zeroed)
        before = model.layers[0].weight.detach().clone(), model.layers[2].bias.detach().clone()
        made = bench(
            model, tmp_path, optimizer=torch.optim.SGD, weight_decay=None, lr=0.5, **options
        )
        made.fit().result()
        assert torch.equal(model.layers[0].weight[:3], before[0][:3])
        assert not torch.equal(model.layers[0].weight[3:], before[0][3:])
        assert torch.equal(model.layers[2].bias, before[1])
        found.append(model.state_dict())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_other_jobs_in_the_same_pool(tmp_path: Path) -> None:
    model = net()
    bench_of_two = bench(model, tmp_path, val=data(9), test=data(9))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    there: list[set[int]] = []
    for job in (
        bench_of_two.find_lr(num_training=20),
        bench_of_two.validate(),
        bench_of_two.test(),
    ):
        job.result()
        there.append(pids())
    assert there[0] == there[1] == there[2]
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    outputs = bench_of_two.predict(data(10)).result()
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(outputs), model(data(10)[0]))


def test_commands_reach_all_ranks(tmp_path: Path) -> None:
    job = bench(net(slow), tmp_path, max_epochs=100_000).fit()
    wait_for(lambda: losses(job))
    job.pause()
    wait_for(lambda: job.status == "paused")
    paused = len(job.events)
    time.sleep(0.2)
    assert len(job.events) <= paused + 1  # what was on its way
    job.change(lr=0.01)
    job.histograms()
    job.resume()
    wait_for(lambda: any(isinstance(event, Changed) for event in job.events))
    wait_for(lambda: job.status == "running")
    wait_for(lambda: any(isinstance(event, LayersMeasured) for event in job.events))
    job.stop()
    assert len(job.result().histograms) == 1, "of rank 0"
    assert job.status == "stopped"
    assert len(pids()) == 2


class Heard(NullSink):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event, /) -> None:
        self.events.append(event)


class TakenLate(Mailbox):
    """An inbox from which nothing is taken before the first update, as where another process has the core of this one."""

    def __init__(self, heard: Heard) -> None:
        super().__init__()
        self.heard = heard

    def take(self) -> Command | None:
        return (
            super().take()
            if any(isinstance(event, StepsDone) for event in self.heard.events)
            else None
        )


def run_with_a_change(root: Path) -> None:
    """A job that has a change in its inbox, which is that of its first update."""
    some = bench(net(), root, max_epochs=20)
    heard = Heard()
    inbox = TakenLate(heard)
    inbox.put(Change({"lr": 0.25}))
    done = pool.run(FitAssignment(some._task, some.settings), "cpu", (0, 1), heard, inbox)
    assert done.status == "finished"
    assert [(event.step, event.values) for event in heard.events if isinstance(event, Changed)] == [
        (0, {"lr": 0.25})
    ]
    assert inbox.waiting() == ()


def test_a_change_of_a_job_that_waits_comes_before_its_first_update(tmp_path: Path) -> None:
    run_with_a_change(tmp_path)


@pytest.mark.slow  # starts a server
def test_a_change_of_a_job_whose_first_ranks_never_begin(tmp_path: Path) -> None:
    pool.close()
    server = fork_client.server().process
    server.send_signal(signal.SIGSTOP)

    def kill() -> None:
        wait_for(lambda: any(slot.pool and len(slot.pool.members) == 2 for slot in pool._slots))
        time.sleep(0.2)
        server.kill()

    kills = threading.Thread(target=kill)
    kills.start()
    run_with_a_change(tmp_path)
    kills.join()


def test_another_number_of_ranks_is_another_pool(tmp_path: Path) -> None:
    model = net()
    some = bench(model, tmp_path)
    some.fit().result()
    two = pids()
    some.set(devices=3)
    warmed()
    some.fit().result()
    assert len(pids()) == 3
    assert not pids() & two
    some.set(devices=1, strategy="pool")
    warmed()
    alone = some.fit()
    alone.result()
    assert len(pids()) == 1
    here = bench(net(), tmp_path, devices=1, strategy="thread").fit()
    here.result()
    assert losses(alone) == losses(here)


def test_pools_of_disjoint_gpus_stay_and_one_that_needs_both_replaces_them() -> None:
    pool.close()
    pool._slots.clear()
    jobs = [pool._slot_for("cuda", devices) for devices in ((0,), (1,))]
    assert jobs[0] is not jobs[1]
    for slot in jobs:
        slot.has_job = False
    assert pool._slot_for("cuda", (1,)) is jobs[1]  # its ranks are warm
    jobs[1].has_job = False
    both = pool._slot_for("cuda", (0, 1))
    assert pool._slots == [both]
    pool._slots.clear()


def test_benches_share_the_pool_and_take_turns(tmp_path: Path) -> None:
    jobs = [bench(net(slow), tmp_path).fit() for _ in range(2)]
    there = []
    for job in jobs:
        job.result()
        there.append(pids())
    assert there[0] == there[1]
    assert losses(jobs[0]) == losses(jobs[1])


def test_it_can_be_closed_and_warmed(tmp_path: Path) -> None:
    pool.warm("cpu", (0, 1))
    warmed()
    wait_for(lambda: len(pids()) == 2)
    there = pids()
    some = bench(net(), tmp_path)
    some.fit().result()
    assert pids() == there
    pool.close()
    assert not pids()
    assert shared()[1] == 0
    some.fit().result()
    assert len(pids()) == 2


def test_closing_a_bench_stops_its_job_and_the_pool_stays(tmp_path: Path) -> None:
    some = bench(net(slow), tmp_path, max_epochs=100_000)
    job = some.fit()
    wait_for(lambda: losses(job))
    there = pids()
    some.close()
    assert job.status == "stopped"
    assert pids() == there


def test_a_process_forked_from_this_one_has_no_part_in_it(tmp_path: Path) -> None:
    some = bench(net(), tmp_path)
    some.fit().result()
    there = pids()
    pid = os.fork()
    if pid == 0:
        pool.close()  # not its own
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    some.fit().result()
    assert pids() == there


def test_what_ranks_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def say(rank: int, step: int) -> None:
        if step == 0:
            print(f"hello from {rank}")
            print("trouble", file=sys.stderr)

    job = bench(net(say), tmp_path).fit()
    assert job._ended.wait(200)  # nobody waits by result(), whose bar would stand before a line
    assert sorted(job.output) == [
        "[rank 1] hello from 1",
        "[rank 1] trouble",
        "hello from 0",
        "trouble",
    ]
    seen = capsys.readouterr()
    assert "\n[rank 1] hello from 1\n" in f"\n{seen.out}"
    assert sorted(line for line in seen.err.splitlines() if "trouble" in line) == [
        "[rank 1] trouble",
        "trouble",
    ]


class Stateful(Net):
    """With all that a module may keep."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("later", None)
        self.batches: list[int] = []
        self.latest = torch.zeros(2)
        self.seen: list[torch.Tensor] = []
        self.torch_numbers = torch.Generator().manual_seed(3)
        self.numpy_numbers = np.random.default_rng(3)
        self.python_numbers = random.Random(3)
        self.first = True
        self.lock = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        if self.training:
            self.mean += x.detach().mean(0)
            self.later = torch.ones(3)
            self.batches.append(len(x))
            self.latest.fill_(float(out.detach().sum()))
            self.seen.append(out.detach().mean())
            self.last = out.detach()
            (
                torch.rand(1, generator=self.torch_numbers),
                self.numpy_numbers.random(),
                self.python_numbers.random(),
            )
            if self.first:
                del self.first
                self.first = False
        return out


def test_whatever_a_module_keeps_comes_back(tmp_path: Path) -> None:
    models = []
    for where in ({"devices": 1, "strategy": "thread"}, {"devices": 1, "strategy": "pool"}):
        torch.manual_seed(1)
        model = Stateful()
        model.layers[0].bias.requires_grad_(False)
        kept = model.batches, model.latest, model.mean, model.seen
        bench(model, tmp_path, **where).fit().result()
        assert all(
            a is b
            for a, b in zip(
                kept, (model.batches, model.latest, model.mean, model.seen), strict=True
            )
        )
        models.append(model)
    here, there = models
    torch.testing.assert_close(here.state_dict(), there.state_dict(), rtol=0, atol=0)
    for name in ("batches", "latest", "seen", "first", "last"):
        torch.testing.assert_close(getattr(here, name), getattr(there, name), rtol=0, atol=0)
    assert torch.equal(here.torch_numbers.get_state(), there.torch_numbers.get_state())
    assert here.numpy_numbers.random() == there.numpy_numbers.random()
    assert here.python_numbers.random() == there.python_numbers.random()
    assert [p.requires_grad for p in there.parameters()] == [
        p.requires_grad for p in here.parameters()
    ]


def test_a_layer_that_is_made_while_it_trains(tmp_path: Path) -> None:
    class Growing(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if "extra" not in self._modules and "RANK" in os.environ:
                self.extra = nn.Linear(2, 2)
            return super().forward(x)

    torch.manual_seed(1)
    model = Growing()
    bench(model, tmp_path).fit().result()
    assert isinstance(model.extra, nn.Linear)


def test_code_is_as_it_is_when_the_job_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of the notebook that was changed between two jobs; a module of the user's that was written anew."""
    # of this run of the test: a rank may have that of another one
    module = f"users_of_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text("FACTOR = 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    class Scaled(Net):
        scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                print(self.scale, importlib.import_module(module).FACTOR)
            return super().forward(x)

    some = bench(Scaled(), tmp_path, devices=1, strategy="pool", max_epochs=1)

    def said() -> set[str]:
        job = some.fit()
        job.result()
        return set(job.output)

    assert said() == {"1.0 1.0"}
    there = pids()
    Scaled.scale = 2.0
    assert said() == {"2.0 1.0"}
    assert pids() == there
    (tmp_path / f"{module}.py").write_text("FACTOR = 30.0\n")
    assert said() == {"2.0 30.0"}
    assert len(pids()) == 1


def test_what_cannot_be_sent_is_named(tmp_path: Path) -> None:
    model = net()
    some = bench(model, tmp_path)
    some.fit().result()
    there = pids()
    model.layers[1].lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(
        PackageError,
        match=r"^model\.\S*lock cannot be sent to another process: it is a _thread.lock",
    ):
        some.fit().result()
    del model.layers[1].lock
    some.fit().result()
    assert pids() == there
    theirs = torch.utils.data.TensorDataset(*data())
    theirs.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(PackageError, match=r"^train\.dataset\.lock cannot be sent"):
        bench(model, tmp_path, train=theirs).fit().result()


def test_a_script_with_everything_in_main(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("""
import torch, workbench as wb
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x) * FACTOR

class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, n):
        return torch.full((4,), float(n)), n % 2

def collate(samples):
    return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])

FACTOR = 0.5
torch.ones(3) @ torch.ones(3)
bench = wb.Workbench(Net(), train=Noise(), collate_fn=collate, loss=nn.functional.cross_entropy, batch_size=4, num_workers=1,
                     devices=2, accelerator="cpu", max_epochs=1, optimizer=lambda params, lr: torch.optim.SGD(params, lr))
for _ in range(2):
    print(bench.fit().result().status)
bench.fit()
""")
    done = warm.python().run(
        "script.py", folder=tmp_path, environment=warm.environment() | warm.FORKED_SERVER
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished") == 2
    assert "Traceback" not in done.stderr
