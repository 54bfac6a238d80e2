"""Tells from a metric's name whether lower or higher values are better: val_loss and
val_accuracy say so.
"""

from __future__ import annotations

import re
from typing import Literal

Mode = Literal["min", "max"]
AVERAGED = "_averaged"
"""The suffix of a metric of the averaged weights."""

LOWER = frozenset(
    "loss losses error errors err perplexity ppl mse mae rmse mape smape msle rmsle wer cer mer wil"
    " fid kid lpips nll bce ce crossentropy entropy brier ece kl kld divergence distance dist"
    " residual regret cost bpb bpc bpd bits hinge deviance eer minde dcf fpr fnr nelbo"
    " energy".split()
)
HIGHER = frozenset(
    "acc accuracy f1 f2 fbeta auc auroc auprc aupr roc precision recall sensitivity specificity iou"
    " miou jaccard dice bleu sacrebleu rouge rougel meteor chrf comet cider r2 map ap mrr ndcg hits"
    " psnr ssim mcc kappa correlation corr pearson spearman kendall reward return win elbo tpr tnr"
    " em exact success purity nmi ari".split()
)
WEAK = frozenset(["score", "scores", "similarity"])
"""Higher is better, unless another word of the name decides ("brier_score": lower)."""


def known_mode(metric: str) -> Mode | None:
    """Return "min" or "max", whether lower or higher values of a metric are better by its name;
    None: the name does not say.
    """
    whole = metric.removesuffix(AVERAGED)
    # of one of several sets of data, whose name says nothing: val_accuracy/errors
    name = whole.partition("/")[0]
    for candidate in (name, whole) if name.startswith("val_") else (whole,):
        mode = _mode_by_words(candidate)
        if mode is not None:
            return mode
    return None


def _mode_by_words(name: str) -> Mode | None:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    words = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
    for word in reversed(words):
        # f1 and r2 are whole, map50 and top5acc are not
        for form in (word, *reversed(re.findall("[a-z]+", word))):
            if form in LOWER:
                return "min"
            if form in HIGHER:
                return "max"
    return "max" if WEAK.intersection(words) else None
