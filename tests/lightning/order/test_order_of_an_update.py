"""Modules that do a part of the update their own way: the same calls, counters and weights as under Lightning.

What differs, and is meant to:
- `on_train_batch_start` returning -1 ends the epoch, which is still validated (docs/concepts/techniques.md); Lightning 2 leaves that out.
- A batch whose `training_step` returns None makes no update; Lightning steps with no gradients, and counts that.
- An epoch that is cut short by `should_stop` is an epoch all the same: its schedules step.
- A module that optimises manually: every batch is an update, so `global_step` counts batches, in Lightning the steps of all
  optimizers; `self.clip_gradients` clips at the optimizer's next step, behind `on_before_optimizer_step`.
"""

import inspect

import pytest

import workbench as wb
from tests.lightning import modules
from tests.lightning.both import (
    GLOBAL_STEP,
    agree,
    boring,
    by_lightning,
    by_workbench,
    loader,
    pl,
    same_order,
    same_state,
)
from tests.lightning.order.test_order_of_a_fit import FIRST_OF_CHECK, LAST_OF_CHECK, data
from tests.lightning.recorder import ALL

pytestmark = pytest.mark.usefixtures("one_thread")

OWN = [
    "Skips", "WarmsUp", "ByHand", "AsInherited", "ClipsItsWay", "ZeroesItsWay", "KeepsGradients", "BackwardItsWay",
    "Moves", "Frozen", "Frugal",
]  # fmt: skip

OF_A_STEP = r"^ *(on_before_zero_grad|optimizer_zero_grad|on_before_optimizer_step|configure_gradient_clipping) .*"
CLIPPED_LATER = r"(?<=on_before_optimizer_step ).*"


@pytest.mark.parametrize("hooks", [ALL, ["training_step"]], ids=["all written down", "as it is"])
@pytest.mark.parametrize("name", OWN)
def test_own_ways(name, hooks, tmp_path):
    same_order(getattr(modules, name), tmp_path, hooks=hooks, **data(), max_epochs=2)


@pytest.mark.parametrize(
    "name", ["WarmsUp", "ByHand", "AsInherited", "ClipsItsWay", "ZeroesItsWay", "BackwardItsWay"]
)
def test_own_ways_with_windows(name, tmp_path):
    same_order(getattr(modules, name), tmp_path, **data(), max_epochs=2, accumulate_grad_batches=2)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_own_clipping_beside_the_setting(algorithm, tmp_path):
    how = {"gradient_clip_val": 0.2, "gradient_clip_algorithm": algorithm, "max_epochs": 2}
    same_order(modules.ClipsSometimes, tmp_path, **data(), **how)


@pytest.mark.parametrize("name", ["Manual", "ManualClosure"])
def test_manual_optimisation(name, tmp_path):
    same_order(
        getattr(modules, name), tmp_path, **data(), max_epochs=2, blind=[GLOBAL_STEP, CLIPPED_LATER]
    )


def test_lightnings_manual_model(tmp_path):
    same_order(boring.ManualOptimBoringModel, tmp_path, **data(), max_epochs=2)


def test_a_module_that_stops_itself(tmp_path):
    """In the middle of its second epoch; what is left is one check, and the ends."""
    theirs = by_lightning(modules.StopsItself, **data(), max_epochs=4)
    ours = by_workbench(modules.StopsItself, tmp_path, **data(), max_epochs=4)
    lines = ours.lines()
    (_, cut_short) = [
        number for number, line in enumerate(lines) if line.startswith("lr_scheduler_step")
    ]
    agree(lines[:cut_short] + lines[cut_short + 1 :], theirs.lines())
    same_state(ours.module, theirs.module)
    early = by_workbench(
        modules.StopsItself, tmp_path / "b", hooks=["training_step"], **data(), max_epochs=4
    )
    same_state(early.module, theirs.module)


def stops_in(hook):
    """The demo model, which asks for the end in its second epoch, at the first call of this hook."""
    own = getattr(boring.BoringModel, hook)

    def asks(self, *arguments):
        if self.current_epoch == 1 and not self.trainer.sanity_checking:
            self.trainer.should_stop = True
        return own(self, *arguments)

    asks.__signature__ = inspect.signature(own)
    return type("Stops", (boring.BoringModel,), {hook: asks, "__module__": __name__})


STOPPING = [
    "on_train_epoch_start", "on_train_batch_start", "training_step", "on_validation_start", "on_validation_end",
    "on_train_epoch_end",
]  # fmt: skip


@pytest.mark.parametrize(
    "how", [{}, {"min_epochs": 3}, {"min_steps": 10}, {"val_check_interval": 0.5}], ids=str
)
@pytest.mark.parametrize("hook", STOPPING)
def test_the_end_is_where_it_was_asked_for(hook, how, tmp_path):
    how = {**data(), "max_epochs": 5, **how}
    same_order(stops_in(hook), tmp_path, blind=[r"^lr_scheduler_step .*"], **how)


@pytest.mark.parametrize("how", [{}, {"val_check_interval": 0.5}], ids=str)
def test_early_stopping_ends_where_lightnings_does(how, tmp_path):
    """The metric of the demo with a rate that lets it grow worse."""
    how = {**data(), "max_epochs": 6, **how}
    early = pl.callbacks.EarlyStopping("val_loss", patience=1, mode="min")
    theirs = by_lightning(modules.Growing, callbacks=[early], **how)
    ours = by_workbench(
        modules.Growing, tmp_path, early_stopping=wb.EarlyStopping("val_loss", patience=1), **how
    )
    assert theirs.tape.names().count("on_train_epoch_end") < 6
    blind = [r"^lr_scheduler_step .*"]
    agree(ours.lines(blind), theirs.lines(blind))
    same_state(ours.module, theirs.module)
    assert ours.extra["result"].metrics["batches"] == float(
        theirs.extra["trainer"].callback_metrics["batches"]
    )


@pytest.mark.parametrize("hooks", [ALL, ["training_step"]], ids=["all written down", "as it is"])
def test_batches_that_are_left_out(hooks, tmp_path):
    how = {**data(), "max_epochs": 2, "hooks": hooks}
    same_order(modules.LeavesOut, tmp_path, blind=[GLOBAL_STEP, OF_A_STEP], **how)


@pytest.mark.parametrize("size", [1, 2])
def test_an_epoch_that_is_left_early(size, tmp_path):
    how = {
        "train": loader(),
        "val": loader(8, 4, 2),
        "max_epochs": 2,
        "accumulate_grad_batches": size,
    }
    theirs = by_lightning(modules.LeavesEarly, **how)
    ours = by_workbench(modules.LeavesEarly, tmp_path, **how)
    assert ours.tape.names().count(FIRST_OF_CHECK) == 2
    assert theirs.tape.names().count(FIRST_OF_CHECK) == 0
    agree(without_checks(ours.lines()), theirs.lines())
    same_state(ours.module, theirs.module, exact=size == 1)


def test_an_epoch_that_is_left_at_its_first_batch(tmp_path):
    """There is nothing to step with then."""

    class Leaves(modules.ByHand):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if self.current_epoch == 1 else None

    theirs = by_lightning(Leaves, **data(), max_epochs=3)
    ours = by_workbench(Leaves, tmp_path, **data(), max_epochs=3)
    same_state(ours.module, theirs.module)


def without_checks(lines):
    """The lines but for those of all checks (the first is the sanity check's, which begins otherwise)."""
    kept, within = [], False
    for line in lines:
        within = within or line.startswith(FIRST_OF_CHECK)
        kept += [] if within else [line]
        within = within and not line.startswith(LAST_OF_CHECK)
    return kept
