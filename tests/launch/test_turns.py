"""Several jobs at once: which run side by side, which wait and for what; each as if it were alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from tests.launch.pools import losses, ranks
from tests.waiting import wait_for
from workbench import Workbench
from workbench.events import Message, StatusChanged
from workbench.launch import turns
from workbench.launch.pool import pool
from workbench.launch.process import run_in_child
from workbench.launch.turns import Claim, Turn, alone
from workbench.runs import read
from workbench.settings import SettingsError

PATIENCE = 200.0
"""Seconds for what is bound to come, as long as a slow machine may take."""


@pytest.fixture(autouse=True)
def _alone(one_thread: None) -> Iterator[None]:
    """No job is left from another test, or to another test."""
    yield
    idle = turns.is_idle()
    for turn in (*turns._waiting, *turns._running):
        turn.end()
    assert idle


# -- the queue


def at_once(turn: Turn) -> bool:
    """Whether it begins without waiting."""
    looks = iter([False])
    return turn.begin(lambda: next(looks, True))


def submitted(job: str, kind: str = "fit", **claim: Any) -> Turn:
    turn = Turn(job, kind, Claim(**claim))
    turn.submit()
    return turn


def gpus(*numbers: int) -> frozenset[str]:
    return frozenset(f"cuda:{number}" for number in numbers)


@pytest.fixture
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_LOOK", 0.0)


@pytest.mark.usefixtures("_no_wait")
def test_disjoint_devices_side_by_side_and_a_shared_one_in_order() -> None:
    first, second, third, fourth = (
        submitted(f"000{number}-fit", devices=gpus(*devices), process="any")
        for number, devices in enumerate([(0,), (1,), (0, 1), (1,)], 1)
    )
    assert [at_once(turn) for turn in (second, first, third, fourth)] == [True, True, False, False]
    assert third.why == "waiting for device 0: 0001-fit trains on it"
    assert fourth.why == "waiting for device 1: 0002-fit trains on it"
    second.end()
    assert not at_once(fourth)
    assert fourth.why == "waiting for device 1: 0003-fit comes before"
    first.end()
    assert at_once(third)
    assert not at_once(fourth)
    third.end()
    assert at_once(fourth)
    assert fourth.why == ""
    fourth.end()


@pytest.mark.usefixtures("_no_wait")
def test_a_job_that_waits_for_its_bench_reserves_no_device() -> None:
    """Device 1 would be idle, as long as the job before it trains the same model on device 0."""
    model = {1: "Net"}
    first = submitted("0001-fit", devices=gpus(0), process="any", changes=model)
    second = submitted("0002-fit", devices=gpus(1), process="any", changes=model)
    third = submitted("0003-fit", devices=gpus(1), process="any")
    assert at_once(first)
    assert not at_once(second)
    assert second.why == "waiting for 0001-fit, which uses the same Net"
    assert at_once(third)
    first.end()
    fourth = submitted("0004-fit", devices=gpus(1), process="any")
    assert not at_once(fourth)
    third.end()
    assert not at_once(fourth)
    assert at_once(second)
    for turn in (second, fourth):
        turn.end()


@pytest.mark.usefixtures("_no_wait")
def test_the_cpu_has_room_for_as_many_jobs_as_were_asked_for() -> None:
    first, second, third = (
        submitted(f"000{n}-find_lr", "find_lr", devices={"cpu"}, process="other", cpu_jobs=2)
        for n in (1, 2, 3)
    )
    assert [at_once(turn) for turn in (first, second, third)] == [True, True, False]
    assert third.why == "waiting for the CPU: 0001-find_lr runs on it"
    for turn in (first, second, third):
        turn.end()


@pytest.mark.usefixtures("_no_wait")
def test_one_job_has_the_process() -> None:
    first, second = (submitted(f"000{n}-fit", devices=gpus(n), process="any") for n in (1, 2))
    third = submitted("0003-fit", devices=gpus(3), process="this")
    fourth = submitted("0004-fit", devices=gpus(4), process="any")
    assert at_once(first)
    assert at_once(second)
    assert not at_once(third)
    assert third.why == "waiting for this process: 0001-fit trains in it"
    first.end()
    assert at_once(fourth)  # the process is for the one that can run nowhere else
    assert (second.in_process, fourth.in_process) == (False, False)
    assert at_once(third)
    assert third.in_process
    looks = iter([False])
    assert not second.take_process(lambda: next(looks, True), lambda: None)
    third.end()
    assert second.take_process(lambda: False, lambda: None)
    assert second.in_process
    for turn in (second, fourth):
        turn.end()


@pytest.mark.usefixtures("_no_wait")
def test_a_run_that_a_job_writes_is_read_when_it_has_ended() -> None:
    run = Path("runs/0001-fit")
    writes = submitted("0001-fit", process="any", changes={run: "run 0001-fit"})
    reads = [submitted(f"000{n}-fit", process="any", reads=frozenset({run})) for n in (2, 3)]
    assert at_once(writes)
    assert not at_once(reads[0])
    assert reads[0].why == "waiting for 0001-fit, which uses the same run 0001-fit"
    writes.end()
    assert [at_once(turn) for turn in reads] == [True, True]
    for turn in reads:
        turn.end()


def test_whatever_comes_no_two_that_collide_run_and_none_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Against a slow twin: in each state it is checked anew which running ones collide."""
    monkeypatch.setattr(turns, "_LOOK", 0.0)
    draw = random.Random(0)
    for _ in range(30):
        waiting: list[Turn] = []
        running: list[Turn] = []
        claims: dict[Turn, Claim] = {}
        for number in range(25):
            claim = Claim(
                frozenset(draw.sample(["cpu", "cuda:0", "cuda:1", "cuda:2"], draw.randint(1, 2))),
                draw.choice(["this", "any", "any", "other"]),  # type: ignore[arg-type]
                {draw.randint(0, 9): "Net"},
                alone=draw.random() < 0.1,
                cpu_jobs=2,
            )
            turn = Turn(f"{number:04}-fit", "fit", claim)
            turn.submit()
            waiting.append(turn)
            claims[turn] = claim
            if draw.random() < 0.4 and running:
                running.pop(draw.randrange(len(running))).end()
            for candidate in draw.sample(waiting, len(waiting)):
                if at_once(candidate):
                    waiting.remove(candidate)
                    running.append(candidate)
            check(running, claims)
        while waiting:
            begun = [turn for turn in waiting if at_once(turn)]
            running += begun
            waiting = [turn for turn in waiting if turn not in begun]
            check(running, claims)
            assert running, "none of them can ever begin"
            running.pop(0).end()
        for turn in running:
            turn.end()


def check(running: list[Turn], claims: dict[Turn, Claim]) -> None:
    assert sum(turn.in_process for turn in running) <= 1
    assert all(turn.in_process for turn in running if claims[turn].process == "this")
    assert sum("cpu" in claims[turn].devices for turn in running) <= 2
    users = [device for turn in running for device in claims[turn].devices if device != "cpu"]
    assert len(users) == len(set(users))
    objects = [key for turn in running for key in claims[turn].changes]
    assert len(objects) == len(set(objects))
    assert len(running) == 1 or not any(claims[turn].alone for turn in running)


def test_what_no_number_of_jobs_is_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = bench(1, tmp_path)
    for value in ("zero", "0", "-1", "1.5", "", "²"):
        monkeypatch.setenv("WORKBENCH_CPU_JOBS", value)
        with pytest.raises(SettingsError, match=rf"WORKBENCH_CPU_JOBS={value!r} .* 1 or more"):
            some.fit()
    assert some.jobs == []


# -- jobs


class Noisy(nn.Module):
    """It draws from torch's generator, and counts."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Tanh(), nn.Linear(16, 3)
        )
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.layers(x)
        return out


def data(seed: int = 0) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    return torch.randn(64, 6, generator=numbers), torch.randint(0, 3, (64,), generator=numbers)


def bench(seed: int, root: Path, model: nn.Module | None = None, **given: Any) -> Workbench:
    usual = {"train": data(), "val": data(1), "loss": F.cross_entropy, "batch_size": 8, "lr": 0.05}
    where = {"accelerator": "cpu", "root": root, "max_epochs": 2, "enable_progress_bar": False}
    return Workbench(model or Noisy(seed), **{**usual, **where, **given})


class Holder:
    """A job that has this process, from its first update until it is released."""

    def __init__(self, root: Path) -> None:
        self._bench = bench(9, root, max_epochs=1)
        self._expected = self._bench.fit()
        self._expected.result(PATIENCE)
        self.job = self._expected

    def begin(self, **settings: Any) -> Any:
        self.job = self._bench.fit(**settings)
        self.job.pause()
        wait_for(lambda: self.job.status == "paused")
        return self.job

    def go(self) -> None:
        self.job.resume()

    def check(self) -> None:
        """The jobs beside it have not changed its numbers."""
        if not self.job.done():
            self.go()
        self.job.result(PATIENCE)
        assert losses(self.job) == losses(self._expected)
        self._bench.close()


@pytest.fixture
def holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holder]:
    monkeypatch.setenv("WORKBENCH_CPU_JOBS", "2")
    one = Holder(tmp_path / "held")
    yield one
    one.check()


pytestmark = pytest.mark.skipif(not run_in_child.FORK, reason="needs a fork server")


def test_two_fits_side_by_side_are_as_each_alone(tmp_path: Path, holder: Holder) -> None:
    some = bench(1, tmp_path)
    alone_job = some.fit()
    before = {
        name: value.clone()
        for name, value in alone_job.result() and some.model.state_dict().items()
    }
    calls = some.model.calls
    first = holder.begin()
    beside = some.fit()
    beside.result(PATIENCE)
    assert (first.status, beside.status) == ("paused", "finished")
    assert losses(beside) == losses(alone_job)
    torch.testing.assert_close(some.model.state_dict(), before, rtol=0, atol=0)
    assert some.model.calls == calls
    assert any("worker process" in e.text for e in beside.events if isinstance(e, Message))
    there = {process.pid for process in ranks()}
    again = some.fit()
    again.result(PATIENCE)
    assert losses(again) == losses(alone_job)
    assert {process.pid for process in ranks()} == there  # its worker has stayed


def test_searches_and_evaluations_are_as_alone(tmp_path: Path, holder: Holder) -> None:
    some = bench(1, tmp_path)

    def results() -> list[Any]:
        curve = some.find_lr(num_training=12).result(PATIENCE)
        outputs = some.predict(data(3)).result(PATIENCE)
        return [curve.losses, some.validate().result(PATIENCE), torch.cat(outputs)]

    here = results()
    first = holder.begin()
    curve, metrics, outputs = results()
    assert first.status == "paused"
    np.testing.assert_array_equal(curve, here[0])
    assert metrics == here[1]
    assert torch.equal(outputs, here[2])


def test_what_cannot_be_sent_waits_for_the_process(tmp_path: Path, holder: Holder) -> None:
    lock = threading.Lock()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        with lock:
            return F.cross_entropy(output, target)

    some = bench(1, tmp_path, loss=loss)
    expected = some.fit()
    expected.result(PATIENCE)
    first = holder.begin()
    waits = some.fit()
    wait_for(lambda: "this process" in waits.waits_for)
    assert waits.waits_for == f"waiting for this process: {first.id} trains in it"
    assert waits.status == "queued"
    holder.go()
    waits.result(PATIENCE)
    assert losses(waits) == losses(expected)
    (said,) = [e.text for e in waits.events if isinstance(e, Message) and "waited for" in e.text]
    assert "lock" in said


def test_a_job_that_waits_for_the_process_can_be_stopped(tmp_path: Path, holder: Holder) -> None:
    lock = threading.Lock()
    some = bench(1, tmp_path, loss=lambda output, y: lock and F.cross_entropy(output, y))
    first = holder.begin()
    job = some.fit()
    wait_for(lambda: "this process" in job.waits_for)
    job.stop()
    assert job.result(PATIENCE).status == "stopped"
    assert first.status == "paused"
    assert not ranks_of_jobs()


def ranks_of_jobs() -> bool:
    return any(slot.has_job for slot in pool._slots)


def test_a_thread_asked_for_is_waited_for(tmp_path: Path, holder: Holder) -> None:
    some = bench(1, tmp_path, strategy="thread")
    first = holder.begin()
    job = some.fit()
    assert job.status == "queued"
    assert job.waits_for == f"waiting for this process: {first.id} trains in it"
    summary = read.summary(job.folder.path)
    assert (summary.status, summary.waits_for) == ("queued", job.waits_for)
    assert job.waits_for in repr(some.runs)
    assert [e.why for e in job.events if isinstance(e, StatusChanged)] == [job.waits_for]
    holder.go()
    assert job.result(PATIENCE).status == "finished"
    assert job.waits_for == read.summary(job.folder.path).waits_for == ""


def test_jobs_with_an_object_in_common_take_turns(tmp_path: Path, holder: Holder) -> None:
    class Rows(Dataset[Any]):
        def __init__(self, chance: torch.Generator | None) -> None:
            self.x, self.y = data()
            self.chance = chance

        def __len__(self) -> int:
            return len(self.x)

        def __getitem__(self, at: int) -> Any:
            noise = torch.randn(6, generator=self.chance) if self.chance else 0.0
            return self.x[at] + noise, self.y[at]

    plain, drawing = Rows(None), Rows(torch.Generator().manual_seed(3))
    model = Noisy(4)
    pairs = [
        [bench(number, tmp_path, train=train, max_epochs=100_000) for number in (1, 2)]
        for train in (plain, drawing)
    ]
    holder.begin()
    for (one, other), shared in zip(pairs, (False, True), strict=True):
        first = one.fit()
        wait_for(lambda first=first: first.status == "running")
        second = other.fit()
        assert ("which uses the same" in second.waits_for) is shared
        for job in (second, first):
            job.stop()
            job.result(PATIENCE)
    running = bench(1, tmp_path, model, max_epochs=100_000).fit()
    wait_for(lambda: running.status == "running")
    waits = bench(1, tmp_path, model).fit()
    assert waits.waits_for == f"waiting for {running.id}, which uses the same Noisy"
    running.stop()
    assert waits.result(PATIENCE).status == "finished"


def test_an_error_and_a_closed_bench_leave_the_other_job_alone(
    tmp_path: Path, holder: Holder
) -> None:
    def fails(output: Tensor, target: Tensor) -> Tensor:
        if torch.is_grad_enabled() and output.shape[0] == 8:
            raise ValueError("its own error")
        return F.cross_entropy(output, target)

    failing, some = bench(1, tmp_path, loss=fails), bench(2, tmp_path, max_epochs=100_000)
    first = holder.begin()
    with pytest.raises(ValueError, match="its own error"):
        failing.fit().result(PATIENCE)
    job = some.fit()
    wait_for(lambda: losses(job))
    some.close()
    assert job.status == "stopped"
    assert first.status == "paused"


def test_a_worker_has_the_flags_of_the_cell(tmp_path: Path, holder: Holder) -> None:
    """Not those of the job that has the process meanwhile."""
    some = bench(1, tmp_path, metrics={"flag": flag}, max_epochs=1)
    expected = some.fit().result(PATIENCE)
    holder.begin(deterministic=True)
    run = some.fit().result(PATIENCE)
    assert run.metrics["val_flag"] == expected.metrics["val_flag"]


def flag(output: Tensor, target: Tensor) -> float:
    return float(torch.are_deterministic_algorithms_enabled()) + 2 * torch.get_num_threads()


def test_two_pools_stay_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_CPU_JOBS", "2")
    pool.close()
    expected: list[Any] = []
    benches = [bench(n, tmp_path, strategy="pool", max_epochs=20) for n in (1, 2)]
    for some in benches:
        expected.append(some.fit())
        expected[-1].result(PATIENCE)
    rounds = []
    for _ in range(2):
        jobs = [some.fit() for some in benches]
        wait_for(lambda jobs=jobs: all(job.status == "running" or job.done() for job in jobs))
        for job, one in zip(jobs, expected, strict=True):
            job.result(PATIENCE)
            assert losses(job) == losses(one)
        rounds.append({process.pid for process in ranks()})
    assert len(rounds[0]) == 2
    assert rounds[0] == rounds[1]
    monkeypatch.setenv("WORKBENCH_CPU_JOBS", "1")
    benches[0].fit(max_epochs=1).result(PATIENCE)
    assert len(ranks()) == 1


def test_nothing_else_begins_while_a_bench_is_read(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 0.1)
    holder.begin()
    with pytest.raises(RuntimeError, match="a job of another bench runs"), alone():
        pass
