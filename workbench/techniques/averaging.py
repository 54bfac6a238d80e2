"""Averages weights: EMA over updates or SWA over epochs, bit for bit as
`torch.optim.swa_utils.AveragedModel`.

The average is a list of tensors beside the model. It is swapped into the parameters for a
validation. The statistics of batch-norm layers depend on the weights, so they are collected again
for the averaged weights.

Sources: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization"
(2018); the arithmetic is that of `get_ema_multi_avg_fn` and `get_swa_multi_avg_fn`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn
from torch.utils._foreach_utils import _group_tensors_by_device_and_dtype

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.modules import Modes, parts_of

AvgFn = Callable[[Tensor, Tensor, "int | Tensor"], Tensor]


class Average:
    """The average of a list of parameters, always given in the same order."""

    def __init__(
        self,
        kind: Literal["ema", "swa"],
        decay: float = 0.999,
        avg_fn: AvgFn | None = None,
        *,
        warmup: bool = False,
    ) -> None:
        """warmup: the decay of an EMA rises to `decay` (`ema_decay`)."""
        self.count = 0
        """How many times the weights were averaged; 0: there is no average yet."""
        self._kind = kind
        self._averages: list[Tensor] = []
        self._avg_fn = avg_fn
        self._decay, self._warmup = decay, warmup
        self._multi: Callable[[list[Tensor], list[Tensor], Tensor], None] = (
            get_ema_multi_avg_fn(decay) if kind == "ema" else get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]
        )

    @torch.no_grad()
    def update(self, parameters: Sequence[Tensor]) -> None:
        """Add the parameters' present values to the average; the first call copies them."""
        if self.count == 0:
            self._averages = [p.detach().clone() for p in parameters]
        elif self._avg_fn is not None:
            for average, parameter in zip(self._averages, parameters, strict=True):
                count = torch.full((), self.count, device=average.device)
                average.copy_(_checked(self._avg_fn(average, parameter.detach(), count), average))
        else:
            self._update_grouped(parameters)
        self.count += 1

    def _update_grouped(self, parameters: Sequence[Tensor]) -> None:
        # A tensor as AveragedModel's: 1 / (count + 1) is rounded to float32. On the CPU, so that it
        # costs no sync.
        count, multi = torch.tensor(self.count), self._multi
        if (
            self._kind == "ema"
            and self._warmup
            and (now := ema_decay(self._decay, self.count)) < self._decay
        ):
            multi = get_ema_multi_avg_fn(now)  # type: ignore[no-untyped-call]
        groups = _group_tensors_by_device_and_dtype([[*self._averages], [*parameters]])
        for (_, dtype), (pair, _) in groups.items():
            averages, current = cast("list[list[Tensor]]", pair)
            if self._kind == "swa" and not (dtype.is_floating_point or dtype.is_complex):
                # torch refuses to divide integers: the newest values are kept
                torch._foreach_copy_(averages, current)
            else:
                multi(averages, current, count)

    @contextlib.contextmanager
    def swapped(self, parameters: Sequence[Tensor]) -> Iterator[None]:
        """Context manager in which the parameters have the averages; afterwards their raw values
        are restored, also after an error.
        """
        targets = [p.detach() for p in parameters]
        raw = [p.clone() for p in targets]
        try:
            self.copy_to(parameters)
            yield
        finally:
            torch._foreach_copy_(targets, raw)

    def copy_to(self, parameters: Sequence[Tensor]) -> None:
        """Set the parameters to the averages."""
        if self.count == 0:
            raise RuntimeError("there is no average yet")
        torch._foreach_copy_([p.detach() for p in parameters], self._averages)

    def state_dict(self) -> dict[str, Any]:
        """Return the averages and how many times the weights were averaged."""
        return {"kind": self._kind, "count": self.count, "averages": self._averages}

    def load_state_dict(self, state: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        """Continue from the state of an average of these parameters; a state of another kind is
        ignored.

        ValueError: a shape is not that of its parameter.
        """
        if state["kind"] == self._kind:
            self.count = int(state["count"])
            pairs = list(zip(state["averages"], parameters, strict=True)) if self.count else []
            for average, parameter in pairs:
                if average.shape != parameter.shape:
                    raise ValueError(
                        f"an average of shape {tuple(average.shape)} for weights of shape"
                        f" {tuple(parameter.shape)}"
                    )
            self._averages = [
                average.to(parameter.device, copy=True) for average, parameter in pairs
            ]


def _checked(returned: object, average: Tensor) -> Tensor:
    if not isinstance(returned, Tensor) or returned.shape != average.shape:
        got = (
            f"a tensor of shape {tuple(returned.shape)}"
            if isinstance(returned, Tensor)
            else repr(returned)
        )
        raise TaskError(
            f"avg_fn(averaged, current, count) returned {got} for weights of shape"
            f" {tuple(average.shape)}: it must return the new average, of the same shape."
        )
    return returned


def ema_decay(decay: float, count: int) -> float:
    """Return the share of an average of `count` weights that stays when the next weights are added,
    while an EMA warms up.

    With a fixed decay, the first weights would be most of the average for as many updates as 1 / (1
    - decay).
    """
    return min(decay, (1 + count) / (10 + count))


def ema_due(settings: Settings, updates: int, epoch: int) -> bool:
    """Whether the weights are averaged after update number `updates` (1, 2, …), taken in `epoch`
    (0, 1, …).
    """
    return (
        updates > settings.averaging_start
        and updates % settings.averaging_every_n_steps == 0
        and epoch >= settings.averaging_start_epoch
    )


def swa_first_epoch(settings: Settings) -> int:
    """Return the first epoch at whose end the weights are averaged; at its start the rates begin
    to move to `swa_lrs`.
    """
    start, epochs = settings.swa_epoch_start, settings.epochs
    if settings.fast_dev_run:
        return 0  # a dry run of one epoch tries the average
    if isinstance(start, int):
        if epochs is not None and start >= epochs > 0:
            raise TaskError(
                f"swa_epoch_start={start}: the run ends after {epochs} epochs (the last is number"
                f" {epochs - 1}), so nothing would be averaged; give swa_epoch_start={epochs - 1}"
                " or less."
            )
        return start
    if epochs is None:
        raise TaskError(
            f"swa_epoch_start={start} is a fraction of max_epochs, which is not given: "
            "give max_epochs, or the first averaged epoch as an int (swa_epoch_start=8)."
        )
    return min(int(epochs * start), max(epochs - 1, 0))


def swa_due(settings: Settings, epoch: int) -> bool:
    """Whether the weights are averaged at the end of `epoch` (0, 1, …)."""
    return epoch >= swa_first_epoch(settings)


def has_batch_norm(modules: Iterable[nn.Module]) -> bool:
    """Whether a module has running statistics, which must be collected again for averaged
    weights.
    """
    return any(layer.running_mean is not None for layer in batch_norms(modules))


@contextlib.contextmanager
def refreshing_batch_norm(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Context manager in which forward passes collect batch-norm statistics from zero, with all
    batches weighted equally.

    This is what `torch.optim.swa_utils.update_bn` does around its pass: training mode, no
    gradients, no momentum. But a layer that is in eval mode while the model trains keeps its
    statistics, since training does not change them either. Afterwards the new statistics stay, and
    the momenta and the mode of each module are restored.
    """
    wholes = list(modules)
    modes = Modes.of(wholes)
    momenta: dict[_BatchNorm, float | None] = {}
    try:
        for whole in wholes:
            # a part in eval mode within a training module is the user's choice
            if not whole.training:
                whole.train()
        for layer in batch_norms(wholes):
            if layer.training:
                momenta[layer] = layer.momentum
                layer.reset_running_stats()
                layer.momentum = None
        with torch.no_grad():
            yield
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
        modes.restore()


def batch_norms(modules: Iterable[nn.Module]) -> list[_BatchNorm]:
    """Return the batch-norm layers in these modules, each once."""
    return [module for module in parts_of(modules) if isinstance(module, _BatchNorm)]
