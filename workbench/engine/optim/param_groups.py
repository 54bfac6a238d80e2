"""Says which parameter is in which group of which optimizer, and at which rate and decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.optim import Optimizer

from workbench.engine.optim.optimizer_handle import OptimizerHandle
from workbench.runs.tables.render import html_table, text_table
from workbench.task.optim.muon import MuonWithAdamW
from workbench.task.optim.part_optimizers import PartOptimizers
from workbench.task.protocol import Task

_SHOWN = 3
"""How many names of a group a table shows."""


class ParamGroup(NamedTuple):
    """One group of an optimizer's parameters.

    Attributes:
        optimizer: the optimizer's class, with its number where there are several; "": no optimizer
            has these parameters.
        name: the group's name, which `groups=` or the optimizer's maker gave it.
        parameters: the names of its parameters, as `model.named_parameters()` has them.
        elements: how many numbers these are.
        lr: its rate before a schedule begins; None: it has none.
        weight_decay: its decay; None: its optimizer has none.
    """

    optimizer: str
    name: str
    parameters: tuple[str, ...]
    elements: int
    lr: float | None
    weight_decay: float | None


class ParamGroups(tuple[ParamGroup, ...]):
    """The groups of all optimizers, in their order; parameters that none of them trains are last.

    `print` shows a row for each, with the first of its names.
    """

    @classmethod
    def of(cls, task: Task, optimizers: Sequence[OptimizerHandle]) -> ParamGroups:
        """The groups that these optimizers have."""
        named = task.trained_parameters()
        names = {id(parameter): name for name, parameter in named.items()}
        several = len(optimizers) > 1
        groups = [
            _group(opt, several, group, names)
            for opt in optimizers
            for group in opt.optimizer.param_groups
            if group["params"]
        ]
        in_groups = {name for group in groups for name in group.parameters}
        left = [name for name in named if name not in in_groups]
        if left:
            elements = sum(named[name].numel() for name in left)
            groups.append(ParamGroup("", "not trained", tuple(left), elements, None, None))
        return cls(groups)

    def __repr__(self) -> str:
        return text_table(self._table())

    def _repr_html_(self) -> str:
        return html_table("Parameter groups", self._table())

    def _table(self) -> list[list[str]]:
        head = ["optimizer", "group", "lr", "weight_decay", "elements", "parameters"]
        return [head, *map(_row, self)]


def _group(
    opt: OptimizerHandle, several: bool, group: dict[str, Any], names: dict[int, str]
) -> ParamGroup:
    kind = _kind(opt.optimizer, group)
    parameters = group["params"]
    decay = group.get("weight_decay")
    return ParamGroup(
        f"{opt.index} {kind}" if several else kind,
        str(group.get("name", "")),
        tuple(names.get(id(p), "?") for p in parameters),
        sum(p.numel() for p in parameters),
        float(group.get("initial_lr", group["lr"])) if "lr" in group else None,
        None if decay is None else float(decay),
    )


def _kind(optimizer: Optimizer, group: dict[str, Any]) -> str:
    """The class of what trains this group: of several that step together, that one's."""
    if isinstance(optimizer, PartOptimizers | MuonWithAdamW):
        for joined in optimizer.parts.values():
            if any(group is candidate for candidate in joined.param_groups):
                return type(joined).__name__
    return type(optimizer).__name__


def _row(group: ParamGroup) -> list[str]:
    rate, decay = (
        "–" if value is None else f"{value:.4g}" for value in (group.lr, group.weight_decay)
    )
    shown = ", ".join(group.parameters[:_SHOWN])
    more = len(group.parameters) - _SHOWN
    names = f"{shown} and {more} more" if more > 0 else shown
    return [group.optimizer or "–", group.name or "–", rate, decay, f"{group.elements:,}", names]
