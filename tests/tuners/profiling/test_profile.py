"""A profile: what it says is what the trace says, and the model is as before."""

from __future__ import annotations

import gzip
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import adam, bench, labelled, noisy_net, plain_net, same_weights, weights
from workbench.events import Message, ProfileEnded
from workbench.tuners.profiling import flops, measure
from workbench.tuners.profiling.flops import Flops, utilization
from workbench.tuners.profiling.profile import Profile
from workbench.tuners.profiling.recording import PYTHON, READ

pytestmark = pytest.mark.usefixtures("one_thread", "short")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few updates for the speed: these tests assert no time."""
    monkeypatch.setattr(measure, "SECONDS", 0.02)


def trace_of(profile: Profile) -> list[dict[str, Any]]:
    assert profile.trace is not None
    events: list[dict[str, Any]] = json.loads(gzip.decompress(profile.trace.read_bytes()))[
        "traceEvents"
    ]
    return events


def own_times(trace: list[dict[str, Any]]) -> dict[str, float]:
    """The slow twin: microseconds of each name, without what ran within it."""
    ranges = [e for e in trace if e.get("cat") in ("cpu_op", "user_annotation")]
    times: dict[str, float] = {}
    for outer in ranges:
        end = outer["ts"] + outer["dur"]
        inner = [
            e for e in ranges
            if e is not outer and e["tid"] == outer["tid"] and outer["ts"] <= e["ts"] and e["ts"] + e["dur"] <= end
            and (e["dur"] < outer["dur"] or e["args"]["Ev Idx"] > outer["args"]["Ev Idx"])
        ]  # fmt: skip
        children = [
            e for e in inner
            if not any(o is not e and o["ts"] <= e["ts"] and e["ts"] + e["dur"] <= o["ts"] + o["dur"] for o in inner)
        ]  # fmt: skip
        own = outer["dur"] - sum(e["dur"] for e in children)
        times[outer["name"]] = times.get(outer["name"], 0.0) + own
    return times


def test_it_says_what_the_trace_says(tmp_path):
    model = plain_net()
    b = bench(model, labelled(64), tmp_path, adam)
    profile = b.profile(updates=3).result()
    trace = trace_of(profile)
    assert profile.updates == sum(e.get("name", "").startswith("update ") for e in trace) == 3
    expected = own_times(trace)
    seconds = {operator.name: operator.seconds for operator in profile.operators}
    for name in ("aten::addmm", "aten::mm", "aten::tanh", "aten::_log_softmax"):
        assert 3e6 * seconds[name] == pytest.approx(expected[name], abs=1.0), name
    read = sum(t for name, t in expected.items() if name == READ or name.startswith("enumerate"))
    assert 3e6 * seconds[READ] == pytest.approx(read, rel=0.05, abs=20)
    assert PYTHON in seconds
    calls = {operator.name: operator.calls for operator in profile.operators}
    assert (calls["aten::addmm"], calls["aten::tanh"]) == (2, 1)
    # one way is 2 * 8 * (6 * 16 + 16 * 3) operations; backward has twice as many, but none for x
    assert profile.flops == 2 * 8 * (3 * (6 * 16 + 16 * 3) - 6 * 16)
    changes = sorted(
        ((e["ts"], e["args"]) for e in trace if e.get("name") == "[memory]"), key=lambda c: c[0]
    )
    (_, first), totals = changes[0], [change["Total Allocated"] for _, change in changes]
    assert profile.peak_bytes == max(totals) - (first["Total Allocated"] - first["Bytes"])
    assert len(profile.seconds) == len(profile.memory) > 10
    assert sum(profile.parts.values()) == pytest.approx(1 / profile.updates_per_second, rel=0.3)
    assert profile.samples_per_second == pytest.approx(8 * profile.updates_per_second)
    assert profile.tokens_per_second is None
    assert (profile.mfu, profile.busy, profile.kernels) == (None, None, ())
    assert "no CPU" in profile.mfu_reason
    for text in (profile.verdict, str(profile.trace), "aten::addmm", "forward", "samples/s"):
        assert text in repr(profile)


def test_operations_are_those_of_a_whole_batch(tmp_path):
    """Every other update has two samples."""
    b = bench(plain_net(), labelled(10), tmp_path)
    counted = {b.profile(updates=updates).result().flops for updates in (1, 2)}
    assert counted == {2 * 8 * (3 * (6 * 16 + 16 * 3) - 6 * 16)}


def test_the_record_has_the_same_and_draws_it(tmp_path):
    b = bench(plain_net(), labelled(64), tmp_path)
    job = b.profile(updates=2)
    profile = job.result()
    attached = wb.attach(job.id, root=tmp_path).result()
    assert repr(attached) == repr(profile)
    assert attached.trace == profile.trace
    (parts, memory) = wb.Run.open(profile.trace.parent).charts()
    assert parts.x.ticks == tuple(profile.parts)
    assert memory.series[0].y.max() == pytest.approx(profile.peak_bytes / 1e6)
    assert profile.plot().axes
    assert "aten::" not in repr(Profile.from_events([]))
    assert wb.Run.open(profile.trace.parent).answer == profile.verdict


class Tokens(nn.Module):
    """Reports the number of its tokens, seven a sample."""

    def __init__(self):
        super().__init__()
        self.net = noisy_net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"loss": F.cross_entropy(self.net(x), y), "weight": torch.tensor(7.0 * len(x))}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Scheduled(Tokens):
    """Has a schedule that ends with the fit, before a profile has taken all its updates."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Manual(nn.Module):
    """Steps two optimizers itself."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.one, self.two = plain_net(), plain_net(1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        for optimizer, part in zip(self.optimizers(), (self.one, self.two), strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(part(x), y)
            self.manual_backward(loss)
            optimizer.step()
        return loss

    def configure_optimizers(self):
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.one, self.two)]


def made_bench(model, data, root, **settings):
    """A bench of a module with a training step, or of a plain one."""
    if not hasattr(model, "training_step"):
        return bench(model, data, root, adam, **settings)
    return wb.Workbench(model, train=data, root=root, batch_size=8, accelerator="cpu", **settings)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (Tokens, {"accumulate_grad_batches": 2, "weight_averaging": "ema", "shuffle": True}),
        (Manual, {}),
        (Scheduled, {"max_epochs": 1}),
        (noisy_net, {"compile": "eager", "lr_schedule": "one_cycle", "max_epochs": 1}),
    ],
)
def test_no_trace_is_left_in_a_fit_afterwards(tmp_path, make, settings):
    losses = []
    for profiled in (False, True):
        torch.manual_seed(0)
        model = make()
        b = made_bench(model, labelled(40), tmp_path / str(profiled), **settings)
        if profiled:
            before, random = weights(model), torch.get_rng_state()
            profile = b.profile(updates=2).result()
            assert same_weights(before, weights(model))
            assert torch.equal(random, torch.get_rng_state())
            assert profile.flops
            if make is not Manual and make is not noisy_net:
                assert profile.tokens_per_second == pytest.approx(7 * profile.samples_per_second)
        losses.append(b.fit(max_epochs=1).result().history["loss"].tolist())
    assert losses[0] == losses[1]


def test_what_torch_compile_takes_comes_before(tmp_path):
    torch._dynamo.reset()
    profile = bench(plain_net(), labelled(64), tmp_path, compile="aot_eager").profile().result()
    assert profile.compile_seconds > 0
    assert "compile" not in profile.parts


def test_of_many_events_a_few_updates_are_traced(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "MOST_EVENTS", 500)
    profile = bench(plain_net(), labelled(64), tmp_path, adam).profile(updates=20).result()
    assert 1 <= profile.updates < 20
    assert f"trace of {profile.updates} update" in repr(profile)


def test_two_ranks_step_and_one_is_profiled(tmp_path):
    b = made_bench(Tokens(), labelled(64), tmp_path, devices=2)
    profile = b.profile(updates=2).result()
    assert {f"update {n}" for n in range(2)} <= {e.get("name") for e in trace_of(profile)}
    assert profile.samples_per_second == pytest.approx(16 * profile.updates_per_second)
    assert profile.tokens_per_second == pytest.approx(7 * profile.samples_per_second)
    job = b.profile(updates=1000, batch_size=2)
    while not job.events and not job.done():
        time.sleep(0.01)
    job.stop()
    assert job.wait(200)
    assert job.status in ("stopped", "finished")


@pytest.mark.parametrize(
    ("device", "settings", "dtype", "share", "reason"),
    [
        ("NVIDIA A100-SXM4-80GB", {"precision": "bf16-mixed"}, torch.float32, 1e12 / 312e12, ""),
        ("NVIDIA A100-SXM4-80GB", {}, torch.float32, 1e12 / 19.5e12, ""),
        ("NVIDIA H100 80GB HBM3", {}, torch.bfloat16, 1e12 / 989.4e12, ""),
        ("NVIDIA H100 PCIe", {"precision": "16-mixed"}, torch.float32, 1e12 / 756e12, ""),
        ("NVIDIA A100-SXM4-80GB", {"precision": "64-true"}, torch.float64, None, "no float64"),
        ("NVIDIA A10G", {}, torch.float32, None, "no NVIDIA A10G"),
        ("Tesla V100-SXM2-16GB", {"precision": "16-mixed"}, torch.float32, 1e12 / 125e12, ""),
        ("Tesla T4", {"precision": "16-mixed"}, torch.float32, 1e12 / 65e12, ""),
        ("NVIDIA L40S", {"precision": "bf16-mixed"}, torch.float32, 1e12 / 362e12, ""),
        ("NVIDIA GH200 480GB", {"precision": "bf16-mixed"}, torch.float32, 1e12 / 989.4e12, ""),
        ("A Device of Tomorrow", {}, torch.float32, None, "no A Device of Tomorrow"),
    ],
)
def test_mfu_is_known_for_known_devices(monkeypatch, device, settings, dtype, share, reason):
    monkeypatch.setattr(flops, "device_name", lambda _: device)
    session: Any = SimpleNamespace(
        device=torch.device("cuda", 0),
        settings=wb.Settings.make(**settings),
        parameters={"weight": torch.zeros(1, dtype=dtype)},
    )
    used = utilization(session, Flops(5e11), 0.5)
    assert used.share == (None if share is None else pytest.approx(share))
    assert reason in used.reason
    assert utilization(session, Flops(None, "why"), 0.5).reason == "why"


def test_a_profiler_around_a_fit_gets_a_message_and_around_a_profile_an_error(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path, max_epochs=1)
    with torch.profiler.profile() as outer:
        run = b.fit().result()
        refused = b.profile().exception()
    texts = [event.text for event in run.events if isinstance(event, Message)]
    assert any("bench.profile()" in text for text in texts)
    assert not outer.events()
    assert isinstance(refused, wb.TaskError)
    assert "torch.profiler records already" in str(refused)
    everything = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(experimental_config=everything) as outer:
        b.fit().result()
    assert "aten::addmm" in {event.name for event in outer.events()}, "as the message says"
    plain = b.fit().result()
    assert not [event for event in plain.events if isinstance(event, Message)]


def test_bad_input_is_named_and_a_stop_is_no_result(tmp_path):
    b = bench(plain_net(), labelled(), tmp_path)
    for updates in (0, True, "many", 1.5, 1001):
        with pytest.raises(wb.SettingsError, match="updates="):
            b.profile(updates=updates)
    with pytest.raises(wb.SettingsError, match="batchsize"):
        b.profile(batchsize=3)
    once = bench(plain_net(), iter([labelled()[:8]]), tmp_path).profile().exception()
    assert isinstance(once, wb.TaskError)
    assert "read only once" in str(once)
    job = b.profile(updates=1000)
    job.stop()
    assert job.wait(200)
    assert job.result().verdict == ""
    assert job.status == "stopped"
    assert repr(job.result()).startswith("Profile: ")


def test_a_folder_of_a_stranger_cannot_say_where_the_trace_lies(tmp_path):
    (tmp_path / "trace.json.gz").symlink_to("/etc/hostname")
    profile = Profile.from_events(
        [ProfileEnded("\x1b[31mred", "done", 1, parts={"a\x1b": 0.0})], tmp_path
    )
    assert profile.trace is None
    assert "\x1b" not in repr(profile)
