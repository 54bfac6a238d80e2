"""Reports a loss or gradient that is NaN or infinite: at which update, and where it began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench import units
from workbench.task.batch import leaves


class NonFiniteError(FloatingPointError):
    """The loss or a gradient became NaN or infinite; the message says at which update and what
    was seen.
    """

    def __init__(self, message: str, loss: float = float("nan"), *, of_batch: bool = False) -> None:
        super().__init__(message)
        self.loss = loss
        self.of_batch = of_batch
        """Whether the batch itself held the values, so that no other setting helps: a search ends
        with this error.
        """
        self.own = True
        """On several ranks: whether it was this rank's loss. The other ranks know only the sum."""


def refuse_bad_data(error: Exception) -> None:
    """Raise the error of one search of several, if none of them can help: its batch is bad."""
    if isinstance(error, NonFiniteError) and error.of_batch:
        raise error


def headline(step: int, loss: float, began: str | None = None, gradient: str | None = None) -> str:
    """Describe what is not finite at update `step`, and the first layer (in forward order) in which
    it is so.

    began: where it began, as `replay` describes it; None: unknown. gradient: the first gradient
    that is not finite.
    """
    problem = "a gradient is not finite" if _finite(loss) else f"loss not finite ({loss})"
    if began is not None and began.startswith("first in "):
        return f"{problem} at update {step}, {began}"
    return f"{problem} at update {step}" + (
        f", first in {gradient!r}" if gradient is not None else ""
    )


def origin_sentence(began: str | None) -> str:
    """Return where it began as a separate sentence, where `headline` does not contain it."""
    return (
        ""
        if began is None or began.startswith("first in ")
        else f" {began[:1].upper()}{began[1:]}."
    )


def explain(
    step: int,
    loss: float,
    gradients: Mapping[str, Tensor],
    bad_inputs: Sequence[str],
    before: Mapping[str, Tensor],
    began: str | None = None,
) -> str:
    """Explain why update `step` was not taken: where, then inputs, weights, the loss.

    gradients, before: by name, in the order of the forward pass. bad_inputs: of its batches, as
    `bad_values` describes them. began: as in `headline`.
    """
    bad_weights = [name for name, value in before.items() if not bool(torch.isfinite(value).all())]
    bad_gradients = [
        name for name, value in gradients.items() if not bool(torch.isfinite(value).all())
    ]
    # Bad inputs, and mostly a bad loss too, make every gradient bad: then the first of them means
    # nothing.
    telling = (
        bad_gradients
        and not (bad_inputs or bad_weights)
        and (_finite(loss) or len(bad_gradients) < len(gradients))
    )
    gradient = bad_gradients[0] if telling else None
    lines = [headline(step, loss, began, gradient)]
    if bad_inputs:
        lines.append(of_batch(bad_inputs))
    elif bad_weights:
        lines.append(f"the weights were not finite before it, first in {bad_weights[0]!r}")
    elif _finite(loss):
        lines.append(f"the loss is {units.number(loss)}")
    else:
        lines.append(
            "inputs and weights are finite: lower the learning rate, clip, or look for log(0)"
            " or 0/0"
        )
    return "; ".join(lines) + f". This update was skipped.{origin_sentence(began)}"


def _finite(value: float) -> bool:
    return value - value == 0.0


def of_batch(bad_inputs: Sequence[str]) -> str:
    """The cause and the remedy where a batch holds such values, as `bad_values` describes them."""
    return f"the batch itself holds NaN or infinite values: {', '.join(bad_inputs)}. Clean the data"


def bad_values(batches: Sequence[Any]) -> list[str]:
    """Describe where the batches of a window hold NaN or infinite values, and how many."""
    bad = []
    for number, batch in enumerate(batches):
        where = "" if len(batches) == 1 else f"batch {number} of the window, "
        for path, tensor in leaves(batch):
            if tensor.is_floating_point():
                count = int((~torch.isfinite(tensor)).sum())
                if count:
                    name = f"{where}batch[{path}]" if path else f"{where}batch"
                    bad.append(f"{name} ({count} of {tensor.numel()} values)")
    return bad
