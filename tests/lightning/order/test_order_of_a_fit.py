"""A fit calls a module's hooks in Lightning's order, and each finds what it finds there: counters, modes, gradients.

What differs, and is meant to:
- The bench is made first: it prepares the data, asks for the optimizers and tries two samples. So the records begin with
  the fit, and leave out what is asked as often as somebody wants to know (recorder.ASKED) and what is around a job.
- The end of a fit is always validated; in Lightning only where the cadence says so (`ends` below).
- `val_check_interval` counts updates, Lightning's batches.
- A window that the end of an epoch cuts short is divided by its own length, Lightning's by the usual one.
- A schedule of every n-th step counts updates; Lightning counts batches, and misses some where an update takes several.
- An epoch that is cut short by a length or by `should_stop` is an epoch all the same: its schedules step.
"""

import pytest

from tests.lightning import modules
from tests.lightning.both import agree, boring, by_lightning, by_workbench, loader, pl, same_order
from tests.lightning.recorder import ALL, AROUND, ASKED, EVALUATION, OF_A_FIT, STEPS

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = {
    "one epoch": {},
    "two epochs": {"max_epochs": 2},
    "checks in the middle": {"val_check_interval": 0.5, "max_epochs": 2},
    "checks by count": {"val_check_interval": 2},
    "checks at some epochs": {"check_val_every_n_epoch": 2, "max_epochs": 4},
    "part of the data": {"limit_train_batches": 3, "limit_val_batches": 1, "max_epochs": 2},
    "a fraction of it": {"limit_train_batches": 0.5, "limit_val_batches": 0.5},
    "no validation": {"limit_val_batches": 0},
    "no sanity check": {"num_sanity_val_steps": 0},
    "all of it first": {"num_sanity_val_steps": -1},
    "clipped": {"gradient_clip_val": 0.3, "gradient_clip_algorithm": "norm"},
    "clipped by value": {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "value"},
    "updates at an end": {"max_epochs": -1, "max_steps": 12},
    "a trial of it all": {"fast_dev_run": 2},
}
SCHEDULES = [
    "EachUpdate",
    "EverySecond",
    "EachEpoch",
    "EverySecondEpoch",
    "Plateau",
    "TwoSchedules",
    "OwnScheduleStep",
]
FIRST_OF_CHECK, LAST_OF_CHECK = "on_validation_model_zero_grad", "on_validation_model_train"
BATCHES = ("EverySecond", 2)  # see above
# Within an update nothing is wanted: the engine's short way.
OUTSIDE = [*OF_A_FIT[:6], *EVALUATION, *STEPS]


def data():
    return {"train": loader(), "val": loader(8, 4, 2)}


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_hooks_come_in_lightnings_order(length, tmp_path):
    same_order(boring.BoringModel, tmp_path, **data(), **length)


@pytest.mark.parametrize(
    "length", ["two epochs", "checks in the middle", "all of it first", "clipped"]
)
def test_where_nothing_within_an_update_is_defined(length, tmp_path):
    same_order(boring.BoringModel, tmp_path, hooks=OUTSIDE, **data(), **LENGTHS[length])


@pytest.mark.parametrize("hook", [name for name in ALL if name not in {*STEPS, *ASKED, *AROUND}])
def test_each_hook_alone(hook, tmp_path):
    """None counts on another one being defined."""
    verb = "test" if "_test_" in hook else "predict" if "_predict_" in hook else "fit"
    how = data() | ({"max_epochs": 2, "accumulate_grad_batches": 2} if verb == "fit" else {})
    theirs = by_lightning(boring.BoringModel, verb, hooks=[hook, "training_step"], **how)
    ours = by_workbench(boring.BoringModel, tmp_path, verb, hooks=[hook, "training_step"], **how)
    assert hook in [line.split()[0] for line in theirs.lines()]
    agree(ours.lines(), theirs.lines())


@pytest.mark.parametrize(
    ("name", "size"),
    [(name, size) for name in SCHEDULES for size in (1, 2) if (name, size) != BATCHES],
)
def test_schedules_step_where_lightnings_do(name, size, tmp_path):
    how = {"max_epochs": 4, "accumulate_grad_batches": size}
    same_order(getattr(modules, name), tmp_path, **data(), **how)


# -- windows


def test_windows(tmp_path):
    same_order(boring.BoringModel, tmp_path, **data(), accumulate_grad_batches=3, max_epochs=2)


def test_windows_cut_short_by_the_end_of_an_epoch(tmp_path):
    """Their order; what the last loss counts is another matter (see above)."""
    how = {
        "train": loader(20),
        "val": loader(8, 4, 2),
        "accumulate_grad_batches": 2,
        "max_epochs": 2,
        "values": False,
    }
    same_order(boring.BoringModel, tmp_path, alike=False, **how)


def test_windows_that_grow_with_the_epochs(tmp_path):
    sizes = {0: 1, 1: 2, 2: 3}
    grow = pl.callbacks.GradientAccumulationScheduler(scheduling=sizes)
    theirs = by_lightning(boring.BoringModel, **data(), max_epochs=3, callbacks=[grow])
    ours = by_workbench(
        boring.BoringModel, tmp_path, **data(), max_epochs=3, accumulate_grad_batches=sizes
    )
    agree(ours.lines(), theirs.lines())


def test_checks_in_the_middle_of_an_epoch_of_windows(tmp_path):
    """Two windows of three: half an epoch is one window, here and there."""
    same_order(
        boring.BoringModel,
        tmp_path,
        **data(),
        accumulate_grad_batches=3,
        max_epochs=2,
        val_check_interval=0.5,
    )


# -- the end


@pytest.mark.parametrize(
    "length",
    [{"max_steps": 4, "max_epochs": -1}, {"check_val_every_n_epoch": 2, "max_epochs": 3}],
    ids=["updates", "epochs"],
)
def test_the_end_is_always_validated(length, tmp_path):
    theirs = by_lightning(boring.BoringModel, **data(), **length)
    ours = by_workbench(boring.BoringModel, tmp_path, **data(), **length)
    lines = without_last_check(ours.lines())
    if "max_steps" in length:
        (cut_short,) = [line for line in lines if line.startswith("lr_scheduler_step")]
        lines.remove(cut_short)
    agree(lines, theirs.lines())


def without_last_check(lines):
    """The lines but for those of the last check."""
    where = {
        name: max(n for n, line in enumerate(lines) if line.startswith(name))
        for name in (FIRST_OF_CHECK, LAST_OF_CHECK)
    }
    return lines[: where[FIRST_OF_CHECK]] + lines[where[LAST_OF_CHECK] + 1 :]
