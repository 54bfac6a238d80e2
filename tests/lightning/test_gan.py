"""The GAN here and under Lightning's Trainer: every loss of both networks, every rate, every weight to the last bit.

What differs, and is meant to: `global_step` counts updates, one a batch; Lightning's counts the steps of all optimizers.
`self.clip_gradients` clips at the optimizer's next step, behind `on_before_optimizer_step`.
"""

import pytest
import torch

import workbench as wb
from tests.lightning.both import Heard, agree, made, same_state, trainer
from tests.lightning.gan import Gan, points
from tests.lightning.test_logging import Records, short
from tests.lightning.test_losses import Seeds

pytestmark = pytest.mark.usefixtures("one_thread")

EPOCHS = 3


def fit_here(root, **settings):
    module, tape = made(Gan)
    bench = wb.Workbench(
        module, train=points(), val=points(20, seed=4), root=root, accelerator="cpu", **settings
    )
    tape.lines.clear()
    module.shown.clear()
    return module, tape, bench.fit(max_epochs=EPOCHS).result()


def fit_there():
    module, tape = made(Gan)
    logger = Records()
    host = trainer(
        max_epochs=EPOCHS, callbacks=[Seeds()], num_sanity_val_steps=0, log_every_n_steps=1
    )
    host.loggers = [logger]
    host.fit(module, points(), points(20, seed=4))
    return module, tape, logger.told


def test_a_gan_is_trained_and_logged_as_by_lightning(tmp_path):
    ours, _, run = fit_here(tmp_path)
    theirs, _, told = fit_there()
    steps = range(6 * EPOCHS)
    assert [v for _, v in told["g_loss"]] == run.history["g_loss"].tolist()
    assert [v for _, v in told["d_loss_step"]] == run.history["d_loss_step"].tolist()
    assert run.history["step"].tolist() == [*steps]
    assert short([v for _, v in told["val_real"]]) == short(run.validation["val_real"].tolist())
    assert ours.shown == theirs.shown
    assert len(ours.shown) == EPOCHS
    same_state(ours, theirs)
    torch.testing.assert_close(
        torch.tensor(run.history["lr.0"][::6]),
        2e-3 * 0.9 ** torch.arange(EPOCHS),
        check_dtype=False,
    )


def test_its_hooks_come_in_lightnings_order(tmp_path):
    _, ours, _ = fit_here(tmp_path, num_sanity_val_steps=0)
    _, theirs, _ = fit_there()

    blind = [r"@\S+ ", r"(?<=on_before_optimizer_step ).*"]
    agree(Heard(ours, None).lines(blind), Heard(theirs, None).lines(blind))
