"""The searches for loader workers and for a precision: what they recommend, and that they leave nothing behind."""

import time

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import workbench as wb
from tests.engine.problems import (
    adam,
    bench,
    labelled,
    noisy_net,
    plain_net,
    same_weights,
    twin_of,
    weights,
)
from workbench.events import SpeedSearchEnded, SpeedTrial
from workbench.settings import SettingsError
from workbench.tuners.speed_search import SpeedSearch, best_precision, best_workers, spread
from workbench.tuners.trial_batches import cycled_windows

pytestmark = pytest.mark.usefixtures("one_thread")


def workers(speeds):
    return [
        SpeedTrial({"num_workers": n}, speed, waiting=waits) for n, (speed, waits) in speeds.items()
    ]


def precisions(found):
    return [
        SpeedTrial({"precision": name}, speed, loss=loss) for name, (speed, loss) in found.items()
    ]


class Slow(Dataset):
    """Batches that take a while to read: once each, as a busy machine lets a process sleep longer each time."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return self.__getitems__([index])[0]

    def __getitems__(self, indices):
        time.sleep(0.1)
        generators = [torch.Generator().manual_seed(index) for index in indices]
        return [
            (torch.randn(6, generator=one), torch.randint(3, (), generator=one))
            for one in generators
        ]


def test_the_fewest_workers_that_are_nearly_as_fast_are_recommended():
    best, reason = best_workers(
        workers({0: (10.0, 0.6), 1: (20.0, 0.4), 2: (39.0, 0.02), 4: (40.0, 0.01)})
    )
    assert best == {"num_workers": 2}
    assert (
        reason
        == "2: training is 3.9 times as fast as with 0. It waits for data 2% of the time, and with 0 60%."
    )
    best, reason = best_workers(workers({0: (40.0, 0.01), 1: (39.0, 0.01), 2: (41.0, 0.01)}))
    assert best == {"num_workers": 0}
    assert "more workers are not faster" in reason


def test_the_fastest_precision_whose_losses_agree_is_recommended():
    found = {"32-true": (10.0, 1.0), "bf16-mixed": (20.0, 1.02), "16-mixed": (30.0, 1.2)}
    best, reason = best_precision(precisions(found), 0.05)
    assert best == {"precision": "bf16-mixed"}
    assert "2 times as fast" in reason
    assert "'16-mixed' differ by more than 5%" in reason
    assert best_precision(precisions(found), 0.5)[0] == {"precision": "16-mixed"}
    assert best_precision(precisions({"32-true": (10.0, 1.0), "bf16-mixed": (10.2, 1.0)}), 0.05)[
        0
    ] == {"precision": "32-true"}
    assert best_precision(
        precisions({"32-true": (10.0, 1.0), "bf16-mixed": (20.0, float("nan"))}), 0.05
    )[0] == {"precision": "32-true"}


def test_what_may_be_noise_is_not_faster():
    def tried(uncertainty):
        return [
            SpeedTrial({"precision": name}, speed, uncertainty, loss=1.0)
            for name, speed in (("32-true", 10.0), ("bf16-mixed", 13.0))
        ]

    assert best_precision(tried(0.02), 0.05)[0] == {"precision": "bf16-mixed"}
    assert best_precision(tried(0.2), 0.05)[0] == {"precision": "32-true"}


def test_workers_whose_speed_may_be_noise_are_not_recommended():
    def tried(uncertainty):
        return [
            SpeedTrial({"num_workers": n}, speed, uncertainty, waiting=0.3)
            for n, speed in ((0, 10.0), (1, 12.0), (2, 13.0))
        ]

    assert best_workers(tried(0.01))[0] == {"num_workers": 2}
    assert best_workers(tried(0.2))[0] == {"num_workers": 0}


def test_the_memory_of_a_device_is_said_where_it_is_known():
    full = SpeedTrial({"precision": "32-true"}, 10.0, loss=1.0, peak_bytes=8 * 2**20)
    half = SpeedTrial({"precision": "bf16-mixed"}, 20.0, loss=1.0, peak_bytes=5 * 2**20)
    best, reason = best_precision([full, half], 0.05)
    assert "It takes 5.24 MB of memory instead of 8.39 MB." in reason
    told = repr(SpeedSearch(best, reason, (full, half), "all tried")).splitlines()
    assert told[-3].endswith("memory")
    assert told[-2].endswith("8.39 MB")
    assert told[-1].endswith("5.24 MB  best")
    assert "memory" not in repr(
        SpeedSearch({}, "", (SpeedTrial({"precision": "32-true"}, 10.0),), "all tried")
    )


@pytest.mark.gpu
def test_precisions_differ_in_memory_on_cuda(tmp_path):
    found = (
        bench(plain_net(), labelled(), tmp_path, accelerator="cuda")
        .find_precision(updates=10)
        .result()
    )
    assert all(t.peak_bytes > 0 for t in found.trials)


def test_spread_is_that_of_the_mean():
    assert spread([1.0] * 9) is None
    assert spread([1.0] * 100) == 0.0
    assert spread([1.0, 2.0] * 50) == 0.0
    assert spread([1.0] * 50 + [2.0] * 50) > 0.2
    bursts = [0.2, 0.0] * 10 + [0.2]
    assert spread(bursts, 2) < 1e-12 < spread(bursts[:15])
    # too few for ten parts of three
    assert spread([0.2, 0.0, 0.0] * 4, 3) == spread([0.2, 0.0, 0.0] * 4) > 0.5


def test_workers_that_load_beside_the_training_are_found(tmp_path, monkeypatch):
    # on a busy machine twice the speed may be noise; the test below has a clock
    monkeypatch.setattr("workbench.tuners.speed_search.spread", lambda times, together: 0.0)
    b = wb.Workbench(
        plain_net(),
        train=Slow(),
        loss=F.cross_entropy,
        root=tmp_path,
        accelerator="cpu",
        batch_size=8,
    )
    found = b.find_num_workers(max_val=2, seconds_per_trial=0.5).result()
    assert found.trials[0].values == {"num_workers": 0}
    assert found.trials[0].waiting > 0.5
    assert found.best["num_workers"] > 0
    assert b.settings.num_workers == 0  # nothing that is found is applied by itself
    b.set(**found.best)
    assert b.settings.num_workers == found.best["num_workers"]
    assert f"best num_workers={found.best['num_workers']}" in repr(found)
    assert found.plot() is not None
    record = wb.attach(b.jobs[0].id, root=tmp_path).result()
    assert record.best == found.best
    assert [t.values for t in record.trials] == [t.values for t in found.trials]


def test_batches_that_arrive_together_are_no_noise(monkeypatch, tmp_path):
    """Workers that begin at once are ready at once: with four of them, one batch in four comes late."""
    now = 0.0

    def windows(task, settings, **rest):
        nonlocal now
        for at, window in enumerate(
            cycled_windows(task, settings.replace(num_workers=0, prefetch_factor=None), **rest)
        ):
            now += 0.5 if at % max(1, settings.num_workers) == 0 else 0.0
            yield window
            now += 0.01

    monkeypatch.setattr("workbench.tuners.speed_search.cycled_windows", windows)
    monkeypatch.setattr("workbench.tuners.speed_search.perf_counter", lambda: now)
    found = bench(plain_net(), labelled(), tmp_path).find_num_workers(max_val=4).result()
    assert found.best == {"num_workers": 4}
    assert [round(t.updates_per_second, 1) for t in found.trials[:4]] == [2.0, 2.0, 3.8, 7.4]
    assert all(t.error is None and t.uncertainty < 0.01 for t in found.trials)


def test_what_else_loaders_can_do_is_tried_where_it_is_off(monkeypatch, tmp_path):
    """Processes that are kept, and reading further ahead where training still waits."""
    tried = []

    def attempt(task, settings, values, emit, **rest):
        tried.append(dict(values))
        speed = 100.0 * (1 + values["num_workers"]) * (2 if values.get("persistent_workers") else 1)
        speed *= 1.5 if values.get("prefetch_factor") == 4 else 1
        trial = SpeedTrial(dict(values), speed, 0.01, waiting=0.5)
        emit(trial)
        return trial

    monkeypatch.setattr("workbench.tuners.speed_search.attempt", attempt)
    found = (
        bench(plain_net(), labelled(), tmp_path, persistent_workers=False)
        .find_num_workers(max_val=2)
        .result()
    )
    kept = {"num_workers": 2, "persistent_workers": True}
    ahead = [{**kept, "prefetch_factor": 4}, {**kept, "prefetch_factor": 8}]
    assert tried == [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 2}, kept, *ahead]
    assert found.best == ahead[0]
    assert "persistent_workers=True makes it 2 times as fast again" in found.reason
    assert "prefetch_factor=4 makes it 1.5 times as fast again" in found.reason


def test_reading_ahead_is_left_where_no_worker_reads(monkeypatch, tmp_path):
    def attempt(task, settings, values, emit, **rest):
        settings.replace(**values)  # the trial's settings are possible
        return SpeedTrial(dict(values), 100.0, 0.01, waiting=0.5)

    monkeypatch.setattr("workbench.tuners.speed_search.attempt", attempt)
    b = bench(plain_net(), labelled(), tmp_path, num_workers=1, prefetch_factor=4)
    found = b.find_num_workers(max_val=2).result()
    assert b.set(**found.best).num_workers == 0


def test_a_search_ends_where_training_does_not_wait(tmp_path, monkeypatch):
    # a busy machine may stop any process for a moment
    monkeypatch.setattr("workbench.tuners.speed_search.KEEPS_UP", 0.5)

    def loss(output, y):
        time.sleep(0.03)
        return F.cross_entropy(output, y)

    found = (
        bench(plain_net(), labelled(), tmp_path, loss=loss)
        .find_num_workers(max_val=4, seconds_per_trial=0.2)
        .result()
    )
    assert [t.values for t in found.trials] == [{"num_workers": 0}]
    assert found.best == {"num_workers": 0}
    assert "training waits" in found.ended


def test_a_run_that_diverges_has_a_speed_but_no_precision(tmp_path):
    calls = []

    def loss(output, y):
        calls.append(len(y))
        return F.cross_entropy(output, y) * (1.0 if len(calls) < 60 else float("nan"))

    found = (
        bench(plain_net(), labelled(), tmp_path, loss=loss)
        .find_num_workers(max_val=1, seconds_per_trial=1.0)
        .result()
    )
    assert found.trials[0].updates_per_second > 0
    assert found.best == {"num_workers": 0}
    b = bench(plain_net(), labelled(), tmp_path, loss=lambda output, y: output.pow(4).sum(), lr=1e3)
    assert "not finite" in str(b.find_precision().exception())


def test_nothing_is_left_of_a_search(tmp_path):
    model, data = noisy_net(), labelled()
    twin = twin_of(model)
    plain = bench(twin, data, tmp_path / "plain", adam).fit(max_epochs=2).result()
    b = bench(model, data, tmp_path / "searched", adam)
    before, random = weights(model), torch.get_rng_state()
    found = b.find_precision(updates=20).result()
    assert same_weights(before, weights(model))
    assert torch.equal(random, torch.get_rng_state())
    assert [t.values["precision"] for t in found.trials] == ["32-true", "bf16-mixed", "16-mixed"]
    assert "needs a GPU" in found.trials[2].error
    assert found.trials[1].loss == pytest.approx(found.trials[0].loss, rel=0.2)
    assert b.fit(max_epochs=2).result().history["loss"].tolist() == plain.history["loss"].tolist()


def test_what_fails_in_the_first_trial_is_the_error(tmp_path):
    calls = []

    def loss(output, y):
        calls.append(len(y))
        if len(calls) > 10:
            raise LookupError("of the user")
        return F.cross_entropy(output, y)

    assert isinstance(
        bench(plain_net(), labelled(), tmp_path, loss=loss).find_precision().exception(),
        LookupError,
    )


def test_as_far_as_it_got():
    trials = workers({0: (10.0, 0.5)})
    assert SpeedSearch.from_events(trials).ended == "not ended"
    assert SpeedSearch.from_events(
        [*trials, SpeedSearchEnded({"num_workers": 0}, "why", "all")]
    ).best == {"num_workers": 0}


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("find_num_workers", {"max_val": 0}), ("find_num_workers", {"max_val": 2.0}), ("find_num_workers", {"seconds_per_trial": 0}),
        ("find_precision", {"updates": 3}), ("find_precision", {"tolerance": 0.0}), ("find_precision", {"tolerance": "5%"}),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(method, given, tmp_path):
    with pytest.raises(SettingsError, match=f"{next(iter(given))}="):
        getattr(bench(plain_net(), labelled(), tmp_path), method)(**given)
