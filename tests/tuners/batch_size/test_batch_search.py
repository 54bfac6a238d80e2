"""The batch-size search: whatever the limit, only what was tried and passed is returned."""

import math
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import events
from workbench.events import Message, SearchEnded, Trial
from workbench.settings import SettingsError
from workbench.tuners.batch_size.batch_size_choice import Epoch
from workbench.tuners.batch_size.batch_size_search import (
    BatchSizes,
    ModelDoesNotFit,
    ended_event,
    search,
)


class Device:
    """Fits up to `limit` samples; speed rises until `busy` samples."""

    def __init__(self, limit, busy=10**9):
        self.limit, self.busy, self.tried = limit, busy, []

    def __call__(self, size):
        self.tried.append(size)
        if size > self.limit:
            return Trial(
                size, False, peak_bytes=self.limit * 2**20, error="OutOfMemoryError: no\nmore"
            )
        speed = 100.0 * min(size, self.busy)
        return Trial(size, True, 3 * size / speed, speed, size * 2**20)


class Measured:
    """Fits `most` samples into `limit` bytes, a fifteenth of which is there with any size; `bend`: how far from a straight line."""

    def __init__(self, most, limit, noise=0, bend=0.0, seed=0):
        self.limit, self.noise, self.bend, self.random = limit, noise, bend, random.Random(seed)
        self.fixed, self.most = limit / 15, most
        self.each = (limit - self.fixed) / (most + 0.5)

    def __call__(self, size):
        needed = self.fixed + self.each * size * (1 + self.bend * (size / self.most - 1))
        if needed > self.limit:
            return Trial(size, False, error="OutOfMemoryError: no")
        return Trial(
            size,
            True,
            0.001 * size,
            1000.0,
            int(self.random.gauss(needed, self.noise)),
            limit_bytes=self.limit,
        )


def sizes(found):
    return [t.size for t in found.trials]


class Refusing:
    """Fits up to `limit` samples; the model refuses a batch of one sample, also as the last one of an epoch of `samples`."""

    def __init__(self, samples, limit=10**6, why="Expected more than 1 value per channel"):
        self.samples, self.limit, self.why = samples, limit, why

    def __call__(self, size):
        if size > self.limit:
            return Trial(size, False, error="OutOfMemoryError: no")
        refused = next((batch for batch in (size, self.samples % size) if batch == 1), None)
        known = {
            "samples_per_second": 100.0,
            "peak_bytes": 2**20 * size,
            "limit_bytes": 2**20 * self.limit,
        }
        return Trial(
            size,
            refused is None,
            error=None if refused is None else self.why,
            refused=refused,
            **known,
        )


class TestRefused:
    @pytest.mark.parametrize("mode", ["power", "binsearch"])
    @pytest.mark.parametrize("init_val", [1, 2, 64])
    def test_what_is_recommended_leaves_no_last_batch_that_the_model_refuses(self, mode, init_val):
        for samples in (*range(2, 40), 64, 65, 129, 1001):
            found = search(Refusing(samples), mode=mode, init_val=init_val, cap=samples)
            assert found.best > 1
            assert samples % found.best != 1
            assert samples % found.largest != 1

    def test_a_refused_size_is_no_limit_of_memory(self):
        found = search(Refusing(101, limit=80), mode="binsearch", init_val=1, cap=101, headroom=0.0)
        assert "exact maximum 80" in found.ended
        assert found.largest == 80
        assert sizes(search(Refusing(101, limit=80), init_val=1)) == [
            1,
            2,
            4,
            3,
            8,
            16,
            32,
            64,
            128,
        ]

    def test_where_every_size_is_refused_the_reason_says_why(self):
        found = search(
            Refusing(65, why="the last batch of train has 1 sample: drop_last=True leaves it out"),
            max_val=64,
        )
        assert (found.best, found.largest) == (None, None)
        assert (
            found.reason
            == "None: the last batch of train has 1 sample: drop_last=True leaves it out"
        )
        assert repr(found).count("refused") == 6

    def test_an_error_in_the_middle_names_the_size_that_leaves_it_out(self):
        def trial(size):
            if size == 65:
                raise ValueError("needs an even batch")
            return Trial(size, True, samples_per_second=float(size))

        with pytest.raises(ValueError, match="needs an even batch") as raised:
            search(trial, cap=65)
        assert "max_val=64" in raised.value.__notes__[0]


class TestPower:
    def test_a_data_set_of_100(self):
        """A peer returns 128 for it, untried."""
        found = search(Device(10**6), cap=100)
        assert sizes(found) == [2, 4, 8, 16, 32, 64, 100]
        assert (found.best, found.largest, found.ended) == (
            100,
            100,
            "stopped at the size of the data set (100)",
        )

    def test_doubles_until_a_size_fails(self):
        found = search(Device(100))
        assert sizes(found) == [2, 4, 8, 16, 32, 64, 128]
        assert (found.largest, found.ended) == (64, "128 did not fit")

    def test_sizes_that_leave_an_epoch_too_few_updates_are_not_tried_one_by_one(self):
        """The digits: 1,437 samples make eleven updates of 128."""
        found = search(Device(10**6), cap=1437, epoch=Epoch(1437, 1, 10))
        assert sizes(found) == [2, 4, 8, 16, 32, 64, 128, 1437]
        assert found.ended == "stopped at the size of the data set (1437)"
        assert (found.best, found.largest) == (128, 1437)

    @pytest.mark.parametrize(("limit", "largest"), [(600, 512), (200, 128), (1100, 1024)])
    def test_where_all_of_the_data_does_not_fit_they_are(self, limit, largest):
        found = search(Device(limit), cap=1437, epoch=Epoch(1437, 1, 10))
        assert found.largest == largest
        assert found.ended == f"{min(2 * largest, 1437)} did not fit"

    def test_no_size_is_tried_for_longer_than_a_reason_allows(self):
        found = search(
            Device(10**6),
            too_long=lambda passed, size: f"{size} takes too long" if len(passed) > 3 else "",
        )
        assert sizes(found) == [2, 4, 8, 16]
        assert found.ended == "32 takes too long"
        assert found.best == 16

    @pytest.mark.parametrize("present", [12, 100])
    def test_the_present_size_is_tried_however_long_it_takes(self, present):
        found = search(
            Device(10**6),
            present=present,
            too_long=lambda passed, size: f"{size} takes too long" if len(passed) > 3 else "",
        )
        assert sizes(found) == [2, 4, 8, 16, present]
        assert found.ended == "32 takes too long"
        assert search(Device(64), present=100).largest == 64
        assert 100 not in sizes(search(Device(10**6), present=100, max_val=50))

    def test_max_val_is_tried_itself(self):
        found = search(Device(10**6), max_val=24, cap=1000)
        assert sizes(found) == [2, 4, 8, 16, 24]
        assert found.ended == "stopped at max_val (24)"

    @pytest.mark.parametrize(
        ("limit", "tried"), [(30, [64, 32, 16]), (1, [64, 32, 16, 8, 4, 2, 1])]
    )
    def test_goes_down_where_the_start_fails(self, limit, tried):
        """A peer returns 1 after everything failed, or the start after no trial."""
        found = search(Device(limit), init_val=64)
        assert sizes(found) == tried
        assert found.largest == tried[-1]
        assert found.ended == f"{tried[-2]} did not fit"

    @pytest.mark.parametrize("mode", ["power", "binsearch"])
    def test_the_start_is_tried_even_where_no_more_fit(self, mode):
        found = search(Device(10**6), mode=mode, init_val=50, cap=50)
        assert sizes(found) == [50]
        assert found.largest == 50

    @pytest.mark.parametrize("mode", ["power", "binsearch"])
    def test_a_start_above_the_cap_begins_at_it(self, mode):
        assert sizes(search(Device(10**6), mode=mode, init_val=512, cap=100)) == [100]
        assert sizes(search(Device(10**6), mode=mode, init_val=2, cap=1)) == [1]


class TestBinsearch:
    def test_finds_the_maximum_and_verifies_the_headroom(self):
        device = Device(635)
        found = search(device, mode="binsearch")
        low, high = found.largest, min(t.size for t in found.trials if not t.ok)
        assert low <= 635 < high <= 1.01 * low
        safe = math.floor(0.95 * low)
        assert safe in sizes(found)
        assert found.best == 576  # tried on the way, and as fast as the safe one to a tenth
        assert found.ended == f"{low} fits, {high} does not; with 5% headroom {safe} passed"
        assert len(device.tried) == len(set(device.tried))

    def test_finds_the_exact_maximum_where_no_headroom_is_taken(self):
        found = search(Device(635), mode="binsearch", headroom=0)
        assert found.largest == 635
        assert found.ended == "exact maximum 635, no headroom taken"

    @pytest.mark.parametrize("megabytes", [300, 80_000])
    @pytest.mark.parametrize("most", [1, 3, 50, 1000, 20_000])
    def test_the_memory_of_the_sizes_tried_leads_to_the_maximum(self, most, megabytes):
        device = Measured(most, megabytes * 2**20)
        found = search(device, mode="binsearch")
        assert found.largest <= most <= 1.01 * found.largest
        assert len(found.trials) <= 8

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("most", [50, 1000, 20_000])
    def test_memory_that_is_noisy_or_no_straight_line_takes_a_few_more(self, most, seed):
        device = Measured(most, 300 * 2**20, noise=2**20, bend=0.1, seed=seed)
        found = search(device, mode="binsearch")
        assert found.largest <= most <= 1.01 * found.largest
        assert len(found.trials) <= 15

    def test_best_is_never_above_the_headroom(self):
        found = search(Device(100), mode="binsearch", headroom=0.3)
        assert (found.best, found.largest) == (64, 100)
        assert 70 in sizes(found)
        assert search(Device(100), mode="binsearch", headroom=0).best >= 90

    def test_headroom_of_one_sample_at_least_where_it_is_not_zero(self):
        found = search(Device(3), mode="binsearch")
        assert (found.best, found.largest) == (2, 3)
        found = search(Device(1), mode="binsearch")
        assert (found.best, found.largest) == (1, 1)
        assert found.ended == "exact maximum 1, no headroom taken"

    def test_no_headroom_where_memory_is_not_the_limit(self):
        found = search(Device(10**6), mode="binsearch", cap=100)
        assert (found.best, found.largest) == (100, 100)
        assert sizes(found) == [2, 4, 8, 16, 32, 64, 100]

    def test_steps_further_down_when_the_smaller_size_fails(self):
        """Memory that something else took meanwhile: when the headroom is verified only 520 fit."""
        device = Device(635)
        plain = len(search(Device(635), mode="binsearch").trials)

        def shrinking(size):
            if len(device.tried) == plain - 1:
                device.limit = 520
            return device(size)

        found = search(shrinking, mode="binsearch")
        assert sizes(found)[-4:] == [600, 570, 541, 513]
        assert (found.best, found.largest) == (512, 513)
        assert found.ended == "632 fits, 636 does not; with 5% headroom 513 passed"

    def test_trials_run_out(self):
        found = search(Device(10_000), mode="binsearch", max_trials=16)
        assert len(found.trials) == 16
        assert found.ended == "max_trials=16 trials did not reach the limit"
        assert found.best <= found.largest <= 10_000


class TestEnds:
    @pytest.mark.parametrize("mode", ["power", "binsearch"])
    def test_nothing_fits(self, mode):
        device = Device(0)
        with pytest.raises(
            ModelDoesNotFit, match=r"model alone does not fit.*1 sample.*OutOfMemoryError: no$"
        ):
            search(device, mode=mode, init_val=8)
        assert device.tried == [8, 4, 2, 1]

    def test_the_error_says_its_memory_and_travels(self):
        def trial(size):
            return Trial(size, False, peak_bytes=3 * 2**29, error="oom")

        with pytest.raises(ModelDoesNotFit, match=r"1\.61 GB") as caught:
            search(trial, init_val=1)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)

    def test_other_errors_come_as_they_are(self):
        error = ZeroDivisionError("mine")

        def trial(size):
            if size == 8:
                raise error
            return Device(10**6)(size)

        with pytest.raises(ZeroDivisionError) as caught:
            search(trial)
        assert caught.value is error

    def test_stop(self):
        device = Device(10**6)
        found = search(device, stop=lambda: len(device.tried) == 3)
        assert (sizes(found), found.largest, found.ended) == ([2, 4, 8], 8, "stopped")

    @pytest.mark.parametrize("mode", ["power", "binsearch"])
    def test_stopped_before_the_first(self, mode):
        found = search(Device(10), mode=mode, stop=lambda: True)
        assert found == BatchSizes(None, None, (), "stopped")

    def test_stopped_on_the_way_down(self):
        device = Device(1)
        found = search(device, init_val=64, mode="binsearch", stop=lambda: len(device.tried) == 2)
        assert (found.best, found.largest, found.ended) == (None, None, "stopped")

    def test_max_trials(self):
        found = search(Device(10**9), max_trials=5)
        assert sizes(found) == [2, 4, 8, 16, 32]
        assert found.largest == 32
        assert found.ended == "max_trials=5 trials did not reach the limit"

    def test_the_last_trial_may_be_the_one_that_ends_it(self):
        assert (
            search(Device(10**6), cap=8, max_trials=3).ended
            == "stopped at the size of the data set (8)"
        )
        assert search(Device(5), max_trials=3).ended == "8 did not fit"


class TestBest:
    def test_the_smallest_within_ten_percent_of_the_fastest(self):
        assert search(Device(1000, busy=32)).best == 32
        assert search(Device(1000, busy=18)).best == 32  # 16 / 18 is 0.889
        assert search(Device(1000, busy=17.7)).best == 16  # 16 / 17.7 is 0.904

    def test_without_speeds_the_largest(self):
        found = search(lambda size: Trial(size, size <= 9))
        assert (found.best, found.largest) == (8, 8)

    def test_a_lucky_pass_above_a_failure_is_no_answer(self):
        found = search(lambda size: Trial(size, size not in (64, 59)), mode="binsearch")
        assert (found.best, found.largest) == (56, 56)


class TestProperties:
    @given(
        limit=st.integers(1, 5000),
        cap=st.none() | st.integers(1, 3000),
        more=st.none() | st.integers(0, 3000),
        init_val=st.integers(1, 4000),
        samples=st.none() | st.integers(1, 6000),
        mode=st.sampled_from(["power", "binsearch"]),
        max_trials=st.integers(1, 60),
        headroom=st.sampled_from([0.0, 0.05, 0.5, 0.99]),
        busy=st.integers(1, 5000),
    )
    def test_what_is_returned_was_tried_and_passed(
        self, limit, cap, more, init_val, samples, mode, max_trials, headroom, busy
    ):
        device, max_val = Device(limit, busy), None if more is None else init_val + more
        found = search(
            device,
            mode=mode,
            init_val=init_val,
            max_trials=max_trials,
            max_val=max_val,
            cap=cap,
            headroom=headroom,
            epoch=None if samples is None else Epoch(samples, 1, 10),
        )
        passed = {t.size for t in found.trials if t.ok}
        bound = min(v for v in (cap, max_val, limit, 10**9) if v is not None)
        assert sizes(found) == device.tried
        assert len(device.tried) == len(set(device.tried)) <= max_trials
        assert max(device.tried) <= min(v for v in (cap, max_val, 10**9) if v is not None)
        assert found.largest == max(passed, default=None)
        assert (found.best is None) == (found.largest is None) == (not passed)
        assert found.best is None or found.best in passed
        assert all(size <= bound for size in passed)
        if max_trials > 40 and mode == "binsearch":
            assert found.largest <= bound <= max(found.largest, 1.01 * found.largest)
            assert headroom or found.largest == bound
        if max_trials > 40 and mode == "power":
            assert bound // 2 < found.largest
        if (
            "max_trials" not in found.ended
            and mode == "binsearch"
            and bound == limit < max(device.tried)
        ):
            assert found.best <= max(1, limit * (1 - headroom) + 1e-9)

    @given(limit=st.integers(1, 500), cap=st.integers(1, 500), init_val=st.integers(1, 500))
    def test_a_slow_twin_that_tries_every_size(self, limit, cap, init_val):
        largest = max(size for size in range(1, cap + 1) if Device(limit)(size).ok)
        assert (
            search(
                Device(limit),
                mode="binsearch",
                init_val=init_val,
                cap=cap,
                headroom=0,
                max_trials=50,
            ).largest
            == largest
        )


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"mode": "linear"}, "mode='linear'"),
            ({"init_val": 0}, "init_val=0"),
            ({"init_val": 2.0}, "init_val=2.0"),
            ({"init_val": True}, "init_val=True"),
            ({"max_trials": 0}, "max_trials=0"),
            ({"max_val": 0}, "max_val=0"),
            ({"max_val": "8"}, "max_val='8'"),
            ({"init_val": 64, "max_val": 32}, "max_val=32 is below init_val=64"),
            ({"cap": 0}, "data set is empty"),
            ({"headroom": 1.0}, "headroom=1.0"),
            ({"headroom": -0.1}, "headroom=-0.1"),
            ({"headroom": None}, "headroom=None"),
        ],
    )
    def test_errors_name_the_argument_before_any_trial(self, arguments, named):
        device = Device(10)
        with pytest.raises(SettingsError, match=named):
            search(device, **arguments)
        assert device.tried == []


class TestResult:
    def test_from_events_and_from_a_record(self):
        found = search(Device(100), mode="binsearch")
        told = [Message("before"), *found.trials, ended_event(found)]
        assert BatchSizes.from_events(told) == found
        assert BatchSizes.from_events(events.from_line(events.to_line(e)) for e in told) == found
        assert (
            BatchSizes.from_events([*search(Device(7)).trials, SearchEnded(1, 1, "x"), *told])
            == found
        )

    def test_a_search_that_did_not_end(self):
        found = BatchSizes.from_events([Trial(2, True)])
        assert (found.best, found.largest, found.ended) == (None, None, "not ended")

    def test_repr_is_a_table(self):
        text = repr(search(Device(100, busy=16)))
        assert text.splitlines()[0] == "BatchSizes: best 16, largest 64 (128 did not fit)"
        assert "1,600" in text
        assert any(line.endswith("best") for line in text.splitlines())
        assert any(
            "failed" in line and "OutOfMemoryError: no" in line for line in text.splitlines()
        )
        assert "more" not in text

    def test_a_data_frame_has_a_row_a_trial(self):
        pytest.importorskip("pandas")
        frame = search(Device(100, busy=16)).to_pandas()
        assert frame["size"][frame["ok"]].tolist() == [2, 4, 8, 16, 32, 64]
        assert frame["size"].tolist()[-1] == 128
        assert frame.set_index("size")["samples_per_second"][16] == 1600

    def test_is_frozen(self):
        with pytest.raises(AttributeError):
            search(Device(4)).best = 100

    @pytest.mark.parametrize("device", [Device(100), lambda size: Trial(size, size < 9)])
    def test_draws(self, device):
        from matplotlib.figure import Figure

        found = search(device)
        assert found.figure().data
        assert isinstance(found.plot(), Figure)
        ax = Figure().subplots()
        assert found.plot(ax) is ax
