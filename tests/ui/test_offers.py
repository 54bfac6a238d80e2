"""What is offered next: words and values of a change that a running fit can take."""

from __future__ import annotations

from workbench.settings import Settings
from workbench.ui.offers import differences, in_words

IN_RUN = {"lr": 1e-3, "gradient_clip_val": 1.0, "accumulate_grad_batches": 2}


def test_what_differs_is_offered_in_words() -> None:
    now = Settings.make(lr=3e-3, gradient_clip_val=None, accumulate_grad_batches=4)
    found = differences(now, IN_RUN)
    assert found == {"lr": 3e-3, "gradient_clip_val": None, "accumulate_grad_batches": 4}
    assert in_words(found) == "lr 3e-3, clip off, accumulation 4"


def test_what_is_the_same_is_not_offered_and_a_plan_is_no_value() -> None:
    assert differences(Settings.make(lr=1e-3, gradient_clip_val=1, accumulate_grad_batches=2), IN_RUN) == {}
    assert differences(Settings.make(lr=1e-3, gradient_clip_val=1.0, accumulate_grad_batches={0: 2, 3: 8}), IN_RUN) == {}
    assert differences(Settings.make(lr=3e-3), {}) == {}  # nothing runs
