"""The built-in schedules against torch's own and against rates worked out by hand."""

import copy
import io
import math
import pickle
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.techniques.schedules import (
    WITHOUT_LENGTH,
    built_in,
    fast_forward,
    is_built_in,
    shape_of,
)


def sgd(*rates, momentum=0.0):
    groups = [
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates or (1.0,)
    ]
    return torch.optim.SGD(groups, lr=1.0, momentum=momentum)


def steps(optimizer, scheduler, updates, of="lr"):
    """The value of each group at each update."""
    rows = []
    for _ in range(updates):
        rows.append([group[of] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return rows


def rates(updates, *, told=True, taken=None, **settings):
    optimizer = sgd()
    scheduler = built_in(optimizer, Settings.make(**settings), updates if told else None)
    return [row[0] for row in steps(optimizer, scheduler, taken or updates)]


SHAPES = get_args(Settings.model_fields["lr_schedule"].annotation)
COSINE = [0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(8)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ({"warmup": 0.25}, [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ({"lr_schedule": "linear"}, [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ({"lr_schedule": "linear", "warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 0.75, 0.5, 0.25]),
        ({"lr_schedule": "linear", "warmup": 7}, [1 / 7, 2 / 7, 3 / 7, 4 / 7, 5 / 7, 6 / 7, 1, 1]),
        (
            {"lr_schedule": "cosine", "warmup": 0.5},
            [0.25, 0.5, 0.75, 1, 1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5],
        ),
        (
            {"lr_schedule": "linear", "min_lr_ratio": 0.2},
            [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
        ),
        (
            {"lr_schedule": "wsd", "warmup": 2, "decay_fraction": 0.5, "decay_shape": "linear"},
            [0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25],
        ),
        (
            {"lr_schedule": "wsd", "decay_fraction": 0.5, "min_lr_ratio": 0.5},
            [1, 1, 1, 1, 1, 0.75, 1 - 0.5**1.5, 1 - 0.75**0.5 / 2],
        ),
        ({"lr_schedule": "wsd", "decay_fraction": 1.0, "decay_shape": "cosine"}, COSINE),
        ({"lr_schedule": "polynomial"}, [(1 - k / 8) ** 2 for k in range(8)]),
        ({"lr_schedule": "polynomial", "lr_power": 1.0}, [1 - k / 8 for k in range(8)]),
        (
            {"lr_schedule": "inverse_sqrt", "warmup": 2},
            [0.5, 1, *((2 / k) ** 0.5 for k in range(2, 8))],
        ),
        (
            {"lr_schedule": "inverse_sqrt", "warmup": 1, "min_lr_ratio": 0.5},
            [1, 1, 0.5**0.5, (1 / 3) ** 0.5, 0.5, 0.5, 0.5, 0.5],
        ),
        (
            {"lr_schedule": "cosine_restarts", "restarts": 1},
            [1, 0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5] * 2,
        ),
    ],
)
def test_rates_worked_out_by_hand(settings, expected):
    assert rates(8, **settings) == pytest.approx(expected, abs=1e-15)


@given(updates=st.integers(3, 60), data=st.data())
def test_warm_up_and_cosine_are_torchs_linear_and_cosine_in_a_row(updates, data):
    warmup = data.draw(st.integers(2, updates - 1))
    optimizer = sgd()
    rise = LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1)
    fall = CosineAnnealingLR(optimizer, T_max=updates - warmup)
    twin = steps(optimizer, SequentialLR(optimizer, [rise, fall], milestones=[warmup]), updates)
    ours = rates(updates, lr_schedule="cosine", warmup=warmup)
    assert ours == pytest.approx([row[0] for row in twin], rel=1e-9, abs=1e-12)


def test_a_warm_up_in_updates_leaves_room_for_the_decay():
    settings = Settings.make(lr_schedule="wsd", warmup=6, decay_fraction=0.5)
    with pytest.raises(TaskError, match=r"warmup=6 and decay_fraction=0.5 \(5 updates\) overlap"):
        built_in(sgd(), settings, 10)
    assert built_in(sgd(), settings, 12) is not None


@pytest.mark.parametrize("shape", SHAPES)
def test_groups_keep_their_ratios(shape):
    optimizer = sgd(1.0, 0.1, 0.01)
    scheduler = built_in(optimizer, Settings.make(lr_schedule=shape, warmup=3), 12)
    for first, second, third in steps(optimizer, scheduler, 12):
        assert (second, third) == pytest.approx((first / 10, first / 100), rel=1e-12)


def test_no_schedule_is_no_scheduler():
    optimizer = sgd(0.3)
    assert built_in(optimizer, Settings(), 10) is None
    assert built_in(optimizer, Settings.make(warmup=0.0), None) is None
    # nor for no update at all
    assert built_in(optimizer, Settings.make(lr_schedule="one_cycle"), 0) is None
    assert optimizer.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize("shape", ["linear", "cosine", "wsd", "polynomial", "cosine_restarts"])
def test_behind_its_end_a_schedule_stays_at_zero(shape):
    assert rates(4, taken=9, lr_schedule=shape)[4:] == pytest.approx([0] * 5, abs=1e-15)


def test_an_earlier_scheduler_leaves_no_trace_in_the_base():
    optimizer = sgd(1.0)
    LinearLR(optimizer)
    optimizer.param_groups[0]["lr"] = 0.5
    scheduler = built_in(optimizer, Settings.make(lr_schedule="linear"), 2)
    assert steps(optimizer, scheduler, 2) == [[0.5], [0.25]]


@pytest.mark.parametrize("warmup", [0, 0.25, 2, 5, 19])
def test_one_cycle_is_torchs(warmup):
    optimizer, other = sgd(1.0, 0.1), sgd(1.0, 0.1)
    ours = steps(
        optimizer,
        built_in(optimizer, Settings.make(lr_schedule="one_cycle", warmup=warmup), 20),
        20,
    )
    share = {0: 0.3, 0.25: 0.25, 2: 0.1, 5: 0.25, 19: 0.95}[warmup]
    twin = OneCycleLR(other, [1.0, 0.1], total_steps=20, pct_start=share, cycle_momentum=False)
    assert ours == steps(other, twin, 20)


@given(updates=st.integers(2, 300), data=st.data())
def test_one_cycle_has_its_peak_where_the_warm_up_ends(updates, data):
    """A warm-up of a single update too, where torch alone divides by zero."""
    warmup = data.draw(st.integers(1, updates - 1))
    found = rates(updates, lr_schedule="one_cycle", warmup=warmup)
    assert found[warmup - 1] == pytest.approx(1.0, abs=1e-6)
    assert max(found) == pytest.approx(found[warmup - 1], abs=1e-6)


@pytest.mark.parametrize("updates", [1, 2, 3, 10])
def test_one_cycle_of_few_updates(updates):
    found = rates(updates, lr_schedule="one_cycle")
    assert all(0 < rate <= 1 for rate in found)


def adamw():
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)


def test_one_cycle_cycles_the_momentum_that_there_is():
    settings = Settings.make(lr_schedule="one_cycle", warmup=3)
    optimizer = sgd(1.0, momentum=0.9)
    found = [
        row[0] for row in steps(optimizer, built_in(optimizer, settings, 10), 10, of="momentum")
    ]
    assert (found[0], found[2]) == (0.95, pytest.approx(0.85))
    optimizer = adamw()
    found = [
        row[0][0] for row in steps(optimizer, built_in(optimizer, settings, 10), 10, of="betas")
    ]
    assert (found[0], found[2]) == (0.95, pytest.approx(0.85))
    without = [
        sgd(1.0),
        torch.optim.RMSprop([torch.nn.Parameter(torch.zeros(1))], lr=1.0),
        torch.optim.Adagrad([torch.nn.Parameter(torch.zeros(1))], lr=1.0),
    ]
    for optimizer in without:
        before = [
            {k: v for k, v in group.items() if "momentum" in k} for group in optimizer.param_groups
        ]
        steps(optimizer, built_in(optimizer, settings, 10), 10)
        assert [
            {k: v for k, v in group.items() if "momentum" in k} for group in optimizer.param_groups
        ] == before


def test_one_cycle_turns_no_momentum_on_in_a_group_without():
    optimizer = sgd(1.0, 0.1, momentum=0.9)
    optimizer.param_groups[1]["momentum"] = 0.0
    settings = Settings.make(lr_schedule="one_cycle")
    assert (
        steps(optimizer, built_in(optimizer, settings, 10), 10, of="momentum") == [[0.9, 0.0]] * 10
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_a_saved_schedule_goes_on_as_if_never_stopped(shape):
    settings = Settings.make(lr_schedule=shape, warmup=3)
    optimizer = sgd(1.0, momentum=0.9)
    scheduler = built_in(optimizer, settings, 12)
    steps(optimizer, scheduler, 5)
    file = io.BytesIO()
    torch.save({"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    later = sgd(1.0, momentum=0.9)
    again = built_in(later, settings, 12)
    later.load_state_dict(saved["optimizer"])
    again.load_state_dict(saved["scheduler"])
    assert steps(later, again, 7) == steps(optimizer, scheduler, 7)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("update", [0, 1, 2, 5, 11])
def test_a_fresh_schedule_moved_to_an_update_is_one_that_came_there(shape, update):
    settings = Settings.make(lr_schedule=shape, warmup=3)
    there, moved = sgd(1.0, 0.5, momentum=0.9), sgd(1.0, 0.5, momentum=0.9)
    came, fresh = built_in(there, settings, 12), built_in(moved, settings, 12)
    steps(there, came, update)
    fast_forward(fresh, update)
    # as at the updates that it did not see; or torch warns of a step of the scheduler before one of
    # it
    moved.step()
    for group, other in zip(moved.param_groups, there.param_groups, strict=True):
        assert {k: v for k, v in group.items() if k != "params"} == {
            k: v for k, v in other.items() if k != "params"
        }
    left = 11 - update
    assert steps(moved, fresh, left) == steps(there, came, left)


def test_one_cycle_moved_beyond_its_end_is_at_its_end():
    settings = Settings.make(lr_schedule="one_cycle")
    there, moved = sgd(), sgd()
    came, fresh = built_in(there, settings, 12), built_in(moved, settings, 12)
    steps(there, came, 11)
    fast_forward(fresh, 40)
    assert moved.param_groups[0]["lr"] == there.param_groups[0]["lr"]


def test_built_in_schedules_are_told_from_others():
    settings = Settings.make(lr_schedule="one_cycle")
    assert is_built_in(built_in(sgd(), settings, 12), settings)
    assert not is_built_in(OneCycleLR(sgd(), 1.0, 12), Settings())
    assert is_built_in(built_in(sgd(), Settings.make(warmup=3), 12), Settings.make(warmup=3))
    assert not is_built_in(torch.optim.lr_scheduler.LambdaLR(sgd(), lambda n: 1.0), Settings())
    assert not is_built_in(LinearLR(sgd()), Settings())


def test_a_schedule_can_be_copied_and_pickled():
    scheduler = built_in(sgd(), Settings.make(lr_schedule="cosine", warmup=2), 9)
    multiplier = scheduler.lr_lambdas[0]
    for twin in (copy.deepcopy(multiplier), pickle.loads(pickle.dumps(multiplier))):
        assert [twin(k) for k in range(9)] == [multiplier(k) for k in range(9)]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape not in WITHOUT_LENGTH])
def test_a_run_of_unknown_length_needs_one(shape):
    with pytest.raises(
        TaskError, match=f"^lr_schedule='{shape}' needs the number of updates.*give max_steps"
    ):
        built_in(sgd(), Settings.make(lr_schedule=shape, warmup=3), None)


def test_a_warm_up_alone_needs_a_length_only_as_a_fraction():
    assert rates(None, told=False, taken=4, warmup=2) == [0.5, 1, 1, 1]
    with pytest.raises(TaskError, match=r"^warmup=0.1 needs the number of updates.*give max_steps"):
        built_in(sgd(), Settings.make(warmup=0.1), None)


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine", "one_cycle"])
@pytest.mark.parametrize(
    ("warmup", "said"), [(10, "10"), (500, "500"), (0.99, "0.99 comes to 10 updates, which")]
)
def test_a_warm_up_as_long_as_the_run_is_refused(shape, warmup, said):
    with pytest.raises(
        TaskError, match=f"^warmup={said} is not shorter than the run of 10 updates: "
    ):
        built_in(sgd(), Settings.make(lr_schedule=shape, warmup=warmup), 10)


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine", "one_cycle"])
def test_a_dry_run_tries_a_schedule_that_is_too_long_for_it(shape):
    found = rates(4, lr_schedule=shape, warmup=500, fast_dev_run=4)
    assert found[0] < found[1] < found[2] == pytest.approx(1.0)
    assert len(rates(1, lr_schedule=shape, warmup=500, fast_dev_run=1)) == 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("warmup", [0, 0.25, 5])
def test_its_drawing_has_the_rates_of_a_run(shape, warmup):
    settings = {"lr_schedule": shape, "warmup": warmup}
    drawn = shape_of(Settings.make(**settings), 41, 11)
    if shape == "constant" and not warmup:
        assert drawn == []
        return
    taken = rates(41, **settings)[::4]
    assert drawn == pytest.approx([rate / max(taken) for rate in taken])
