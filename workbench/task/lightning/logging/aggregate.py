"""Aggregates the values that were logged under one name, with their weights, by mean, sum, min,
max or a function.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workbench.events.columns import recorded_name
from workbench.task.errors import TaskError

Value = Tensor | float


class LoggedValue:
    """The values logged under one name in one hook, with their weights; or a metric object that
    was updated with them.
    """

    def __init__(
        self, name: str, on_step: bool, on_epoch: bool, how: Any, *, fork: bool, suffix: str = ""
    ) -> None:
        """suffix: the end of the names in the record, for one of several sets of data
        ("/dataloader_idx_1").
        """
        self.name, self.suffix = name, suffix
        self.on_step, self.on_epoch, self.fork = on_step, on_epoch, fork
        self.how: str | Callable[[Tensor], Any] = how
        self.step_name = recorded_name(f"{name}_step{suffix}" if fork else name + suffix)
        self.epoch_names = [
            recorded_name(base + suffix) for base in ([f"{name}_epoch", name] if fork else [name])
        ]
        self.asked: Any = None
        """The options with which it was logged; None: it comes from a checkpoint and was not
        logged since then.
        """
        self.metric: Any = None
        self.values: list[Value] = []
        self.weights: list[float] = []
        self.folded: tuple[Tensor, float] | None = None
        """The sum (or minimum, or maximum) of the earlier values, and their weight."""
        self.also = False
        """Whether only other ranks have logged it, and this rank computes its metric together
        with them.
        """

    @classmethod
    def borrowed(cls, name: str, epoch_names: list[str], metric: Any) -> LoggedValue:
        """Make the value for a metric that only other ranks have logged, with this rank's copy
        of the metric.
        """
        kept = cls(name, False, True, "mean", fork=False)
        kept.epoch_names, kept.metric, kept.also = epoch_names, metric, True
        return kept

    def fold(self) -> None:
        """Reduce all values so far to one."""
        if self.values and isinstance(self.how, str):
            self.folded = self.whole()
            self.values, self.weights = [], []

    def result(self) -> Value | None:
        """Return the reduced value; None without values."""
        if self.metric is not None:
            return number(self.name, self.metric.compute())
        if self.values and not isinstance(self.how, str):
            return number(self.name, self.how(_column(self.values)))
        whole = self.whole()
        if whole is None:
            return None
        return whole[0] / whole[1] if self.how == "mean" else whole[0]

    def forget_result(self) -> None:
        """Make a torchmetrics object compute again: on a rank that had no batch since, it would
        return its cached result and not gather with the others.
        """
        for module in self.metric.modules() if isinstance(self.metric, nn.Module) else ():
            if "_computed" in vars(module):
                vars(module)["_computed"] = None

    def whole(self) -> tuple[Tensor, float] | None:
        """Return the sum (or minimum, or maximum) of all values so far, and their weight; None
        without values.
        """
        if not self.values:
            return self.folded
        column, weight = _column(self.values), sum(self.weights)
        if self.how == "mean":
            reduced = (
                column * torch.tensor(self.weights, dtype=column.dtype, device=column.device)
            ).sum()
        else:
            reduced = getattr(column, str(self.how))()
        if self.folded is None:
            return reduced, weight
        before = self.folded[0].to(reduced.device)
        if self.how in ("min", "max"):
            return getattr(torch, f"{self.how}imum")(before, reduced), weight
        return before + reduced, self.folded[1] + weight

    def state(self) -> dict[str, Any]:
        """Its state for a checkpoint, as plain data."""
        how = self.how if isinstance(self.how, str) else None
        fields = {
            "name": self.name,
            "on_step": self.on_step,
            "on_epoch": self.on_epoch,
            "how": how,
            "fork": self.fork,
        }
        folded = None if self.folded is None else list(self.folded)
        return {
            **fields,
            "values": list(self.values),
            "weights": list(self.weights),
            "folded": folded,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> LoggedValue:
        """The value whose `state` this is."""
        kept = cls(
            state["name"],
            state["on_step"],
            state["on_epoch"],
            state["how"] or "mean",
            fork=state["fork"],
        )
        kept.values, kept.weights = list(state["values"]), list(state["weights"])
        # a reduce_fx that is a function is not stored; the module gives it again when it logs
        kept.on_epoch &= state["how"] is not None
        kept.folded = None if state["folded"] is None else (state["folded"][0], state["folded"][1])
        return kept

    def continue_from(self, other: LoggedValue) -> None:
        """Take over the values that another one has collected."""
        self.values, self.weights, self.folded = other.values, other.weights, other.folded


def reduction(name: str, reduce_fx: Any) -> Any:
    """Return the name of a reduction, or the function that is called with all values at the end."""
    known = {
        torch.mean: "mean",
        torch.sum: "sum",
        torch.min: "min",
        torch.max: "max",
        sum: "sum",
        min: "min",
        max: "max",
    }
    if isinstance(reduce_fx, str):
        spoken = {"avg": "mean"}.get(reduce_fx.lower(), reduce_fx.lower())
        if spoken in ("mean", "sum", "min", "max"):
            return spoken
    elif callable(reduce_fx):
        return next((said for function, said in known.items() if function is reduce_fx), reduce_fx)
    raise TaskError(
        f"self.log({name!r}, reduce_fx={reduce_fx!r}): 'mean', 'sum', 'min', 'max' or a function of"
        " all values."
    )


def _column(values: list[Value]) -> Tensor:
    """Scalars as one tensor in double precision, on the device if one of them is there."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors:
        return torch.tensor(values, dtype=torch.float64)
    first = tensors[-1]
    wide = torch.float32 if first.device.type == "mps" else torch.float64
    if len(tensors) == len(values) and all(
        t.dtype == first.dtype and t.device == first.device for t in tensors
    ):
        return torch.stack(tensors).to(wide)
    return torch.stack([torch.as_tensor(value).to(first.device, wide) for value in values])


def step_value(name: str, metric: Any) -> Value | None:
    """Return a metric's value for the current batch: the result of its forward, else its
    compute().
    """
    value = getattr(metric, "_forward_cache", metric)
    if value is metric:
        value = metric.compute()
    return None if value is None else number(name, value)


def number(name: str, value: Any) -> Value:
    """Return the result of a `compute()` or a reduce_fx as a number; raises TaskError where it
    is not one number.
    """
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().clone().reshape(())
    if isinstance(value, numbers.Real):
        return float(value)
    got = (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else f"a {type(value).__name__}"
    )
    raise TaskError(
        f"self.log({name!r}): its compute() or reduce_fx gave {got}, and one number is needed."
    )
