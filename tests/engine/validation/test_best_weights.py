"""The weights that a fit hands back: the last ones, or the best by `EarlyStopping(restore_best=True)`; the run says which."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from workbench.settings import SettingsError
from workbench.units import number

pytestmark = pytest.mark.usefixtures("one_thread")


def overfitting(root, **settings):
    """A model that fits noise: its validation loss falls, then rises."""
    torch.manual_seed(0)
    x, y = torch.randn(48, 20), torch.randint(0, 2, (48,))
    held_out = torch.randn(100, 20), torch.randint(0, 2, (100,))
    y[:], held_out[1][:] = (
        (x[:, 0] + torch.randn(48) > 0).long(),
        (held_out[0][:, 0] + torch.randn(100) > 0).long(),
    )
    model = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 2))
    options = {"batch_size": 8, "lr": 1e-2, "max_epochs": 12, "accelerator": "cpu", **settings}
    made = wb.Workbench(
        model, train=(x, y), val=held_out, loss=F.cross_entropy, root=root, **options
    )
    return made, lambda: F.cross_entropy(model(held_out[0]), held_out[1]).item()


def said(run, word):
    return [
        event.text
        for event in run.events
        if type(event).__name__ == "Message" and word in event.text
    ]


def test_after_early_stopping_the_model_has_its_last_weights_and_the_run_names_the_best(tmp_path):
    made, loss = overfitting(tmp_path, early_stopping="val_loss")
    run = made.fit().result()
    losses = run.validation["val_loss"]
    assert run.ended_early
    assert loss() == pytest.approx(losses[-1], rel=1e-4)
    (text,) = said(run, "last weights")
    step = int(run.validation["step"][losses.argmin()])
    assert f"at update {step}: bench.load({run.id!r}, 'best')" in text
    (finding,) = [one for one in run.health if "validation has risen" in one.text]
    assert run.id in finding.advice
    assert "find_weight_decay" not in str(finding) + finding.remedy
    made.load(run, "best")
    assert loss() == pytest.approx(losses.min(), rel=1e-4)


@pytest.mark.parametrize(
    "settings", [{}, {"devices": 2, "batch_size": 4}, {"weight_averaging": "ema"}]
)
def test_restore_best_hands_back_the_best_weights(settings, tmp_path):
    made, loss = overfitting(
        tmp_path, early_stopping=wb.EarlyStopping("val_loss", restore_best=True), **settings
    )
    with made:
        run = made.fit().result()
        assert loss() == pytest.approx(run.validation["val_loss"].min(), rel=1e-4)
        assert said(run, "the model has the best weights")
        assert not [one for one in run.health if one.trouble]
        longer = made.fit(start="continue", max_epochs=14, early_stopping=()).result()
        assert longer.resumes[-1].step == run.step  # from where it ended, with its last weights


def test_the_weights_of_the_average_are_the_best_by_their_own_metric(tmp_path):
    rule = wb.EarlyStopping("val_loss_averaged", restore_best=True)
    made, loss = overfitting(
        tmp_path,
        early_stopping=rule,
        monitor="val_loss_averaged",
        weight_averaging="ema",
        max_epochs=30,
    )
    run = made.fit().result()
    assert loss() == pytest.approx(run.validation["val_loss_averaged"].min(), rel=1e-4)


@pytest.mark.parametrize(("settings", "words"), [
    ({"save_top_k": 0}, "save_top_k=0"), ({"monitor": "val_accuracy"}, "monitor='val_accuracy'"), ({"monitor_mode": "max"}, "monitor_mode='max'"),
])  # fmt: skip
def test_best_weights_that_no_checkpoint_has_are_refused(settings, words):
    with pytest.raises(SettingsError, match=words):
        wb.Settings.make(early_stopping=wb.EarlyStopping("val_loss", restore_best=True), **settings)


def test_an_average_that_validates_worse_than_the_raw_weights_is_a_finding(tmp_path):
    def fitted(**settings):
        torch.manual_seed(0)
        x = torch.randn(400, 8)
        y = x @ torch.randn(8, 1)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        made = wb.Workbench(
            model,
            train=(x, y),
            val=(x, y),
            loss=F.mse_loss,
            lr=1e-2,
            root=tmp_path,
            accelerator="cpu",
            max_epochs=5,
        )
        return made.fit(weight_averaging="ema", **settings).result()

    run = fitted(ema_warmup=False)
    (finding,) = [one for one in run.health if "averaged" in one.text]
    assert finding.trouble
    assert all(
        number(run.metrics[name]) in finding.text for name in ("val_loss", "val_loss_averaged")
    )
    run = fitted()
    assert run.metrics["val_loss_averaged"] < 2 * run.metrics["val_loss"]
    assert not [one for one in run.health if one.trouble]
