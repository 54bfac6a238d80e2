"""Calls in the user's code that make training wait: found by their line, with the time that was measured."""

import gc
import threading
import time

import numpy as np
import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

from tests.engine.problems import bench, labelled, noisy_net, plain_net
from workbench.events import Observed
from workbench.instruments import slow_calls
from workbench.instruments.slow_calls import CallTimer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def no_compiled_code():
    """Whatever other tests of this process have compiled."""
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


LARGE = torch.randn(1_000_000)


def observed(run):
    return [e for e in run.events if isinstance(e, Observed) and e.what == "slow_calls"]


def reading_loss(output, y):
    LARGE.tolist()  # what reads a million values
    return F.cross_entropy(output, y)


def usual_loss(output, y):
    loss = F.cross_entropy(output, y)
    return loss if loss.item() > -1 else -loss  # which costs nothing on a CPU


def test_a_line_that_reads_many_values_is_found_with_its_time(tmp_path):
    run = bench(noisy_net(), labelled(400), tmp_path, loss=reading_loss).fit(max_steps=25).result()
    (event,) = observed(run)
    (sentence,) = event.parts
    assert sentence.startswith(
        "`LARGE.tolist()  # what reads a million values` (test_slow_calls.py, line "
    )
    assert sentence.endswith("% of an update in tolist()")
    finding = next(f for f in run.health if "tolist" in f.text)
    assert (finding.level, finding.step) == ("warning", event.step)
    assert "keep it a tensor" in finding.advice


def test_what_costs_nothing_is_not_reported_and_the_fit_is_the_same(tmp_path, monkeypatch):
    # a machine that stops for a moment in `item()` costs less
    monkeypatch.setattr(slow_calls, "LEAST", 0.3)
    losses = []
    for loss in (usual_loss, F.cross_entropy, reading_loss):
        run = (
            bench(noisy_net(), labelled(400), tmp_path / loss.__name__, loss=loss)
            .fit(max_steps=25)
            .result()
        )
        losses.append(run.history["loss"].tolist())
        assert bool(observed(run)) == (loss is reading_loss)
    assert losses[0] == losses[1] == losses[2]


def calls_of_libraries():
    net = nn.Sequential(
        *(layer for _ in range(4) for layer in (nn.Linear(2, 2), nn.BatchNorm1d(2)))
    )
    adam = torch.optim.Adam(net.parameters(), lr=0.1, foreach=False)
    schedule, scaler = torch.optim.lr_scheduler.ReduceLROnPlateau(adam), torch.amp.GradScaler("cpu")
    net(torch.randn(4, 2)).sum().backward()
    return {
        "Adam reads its step": adam.step,
        "a schedule": lambda: schedule.step(torch.ones(())),
        "clip_grad_norm_": lambda: nn.utils.clip_grad_norm_(
            net.parameters(), 1.0, error_if_nonfinite=True
        ),
        "GradScaler": lambda: (scaler.scale(torch.ones(())), scaler.step(adam), scaler.update()),
        "BatchNorm": lambda: net(torch.randn(4, 2)),
        "a library's comparison": lambda: torch.testing.assert_close(torch.ones(3), torch.ones(3)),
    }


@pytest.mark.parametrize("what", calls_of_libraries())
def test_calls_that_a_library_makes_itself_do_not_count(what, monkeypatch):
    """The user's line has no `item()` that it could leave out."""
    monkeypatch.setattr(slow_calls, "LEAST", 0.0)
    calls_by_name = calls_of_libraries()
    with (calls := CallTimer()):
        calls_by_name[what]()
    assert calls.found() == ()


def test_reading_a_tensor_through_its_methods_or_numpy_counts_for_the_line(monkeypatch):
    monkeypatch.setattr(slow_calls, "LEAST", 0.0)
    kept = torch.randn(10)
    with (calls := CallTimer()):
        float(kept.sum())
        np.percentile(kept, 50)
        with torch.device("cpu"):
            kept.tolist()
    assert {sentence.split("`")[1] for sentence in calls.found()} == {
        "float(kept.sum())",
        "np.percentile(kept, 50)",
        "kept.tolist()",
    }


def test_a_tensor_that_is_moved_counts_where_it_goes_to_a_device(monkeypatch):
    seconds = 0.0
    monkeypatch.setattr(slow_calls, "perf_counter", lambda: seconds)

    class Slow(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            nonlocal seconds
            if func is torch.Tensor.to:
                seconds += 0.05
            return super().__torch_function__(func, types, args, kwargs)

    x = torch.ones(3).as_subclass(Slow)
    with (calls := CallTimer()):
        x.to(torch.float64)  # it stays where it is
        x.to("meta")
    (sentence,) = calls.found()
    assert sentence.startswith('`x.to("meta")`')
    assert sentence.endswith("in to()")
    with (calls := CallTimer()):
        bool(torch.ones(()))
        seconds += 0.05
    assert calls.found() == ()


def test_values_that_are_copied_to_a_device_count_where_the_tensor_is_made():
    values = [0.5] * 300_000
    with (calls := CallTimer()):
        torch.tensor(values[:3])
        torch.tensor(values, device="meta")
    (sentence,) = calls.found()
    assert sentence.startswith('`torch.tensor(values, device="meta")`')
    assert sentence.endswith("in tensor()")


def collecting_loss(output, y):
    gc.collect()
    torch.cuda.empty_cache()
    return F.cross_entropy(output, y)


def test_freeing_memory_in_each_update_is_found_with_its_time(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: time.sleep(0.01))
    monkeypatch.setattr(gc, "collect", lambda: time.sleep(0.01))
    before = torch.cuda.empty_cache, gc.collect
    run = (
        bench(noisy_net(), labelled(200), tmp_path, loss=collecting_loss).fit(max_epochs=1).result()
    )
    assert (torch.cuda.empty_cache, gc.collect) == before
    (event,) = observed(run)
    assert {part.split("`")[1] for part in event.parts} == {
        "gc.collect()",
        "torch.cuda.empty_cache()",
    }
    found = {f.text.rpartition("in ")[2]: f for f in run.health if "takes" in f.text}
    assert "torch uses that memory again by itself" in found["empty_cache()"].advice
    assert "once an epoch" in found["collect()"].advice


def test_two_threads_that_time_their_calls_put_the_functions_back():
    users = gc.collect
    with (one := CallTimer()):
        other = threading.Thread(target=lambda: CallTimer().__enter__().__exit__(None, None, None))
        other.start()
        other.join()
        assert gc.collect is not users
        gc.collect()
    assert gc.collect is users
    (sentence,) = one.found()
    assert sentence.startswith("`gc.collect()`")


def test_a_model_that_is_compiled_is_left_alone(tmp_path):
    """Its code would be compiled once more; the user may have compiled it, and the workbench not know."""
    model = torch.compile(plain_net(), backend="eager")
    job = bench(model, labelled(400), tmp_path, loss=reading_loss, dry_run=False)
    job.fit(max_steps=15).result()
    compiled = torch._dynamo.utils.counters["frames"]["total"]
    assert compiled > 0
    assert not observed(job.fit(max_steps=25).result())
    assert torch._dynamo.utils.counters["frames"]["total"] == compiled
