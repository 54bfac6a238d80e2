"""Whether lower or higher values of a metric are better, told from its name."""

import pytest

from workbench.metric_mode import known_mode


@pytest.mark.parametrize(("name", "mode"), [
    ("val_loss", "min"), ("loss", "min"), ("val/mse", "min"), ("RMSE", "min"), ("val_error_rate", "min"), ("perplexity", "min"),
    ("wer", "min"), ("FID", "min"), ("valLoss", "min"), ("brier_score", "min"), ("train_loss_epoch", "min"), ("nll_per_token", "min"),
    ("val_acc", "max"), ("valAccuracy", "max"), ("top5acc", "max"), ("val_f1", "max"), ("r2", "max"), ("mAP50", "max"),
    ("val_map", "max"), ("roc-auc", "max"), ("test.bleu4", "max"), ("score", "max"), ("f1_score", "max"), ("val_accuracy_averaged", "max"),
    ("val_loss_averaged", "min"), ("dice_loss", "min"), ("recall@10", "max"), ("accuracy_per_class", "max"),
    ("val_accuracy/errors", "max"), ("val_loss/win", "min"), ("val_loss/win_averaged", "min"), ("val/acc", "max"),
])  # fmt: skip
def test_the_name_of_a_metric_says_which_is_better(name, mode):
    assert known_mode(name) == mode


@pytest.mark.parametrize("name", ["val_thing", "", "temperature"])
def test_other_names_say_neither(name):
    assert known_mode(name) is None
