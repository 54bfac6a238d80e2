"""Rules that give some parameters options of their own: `groups=[wb.group("head", lr_scale=10)]`.

An exported script contains this file's text where the user's code uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from workbench.task.optim.groups import is_in
from workbench.values import plain_number

Named = Mapping[str, Tensor]
"""Parameters by name."""


@dataclass(frozen=True)
class Group:
    """What `wb.group` returns: a rule, which gives its options to the parameters that it
    matches.
    """

    match: str | Callable[[str, Tensor], bool]
    options: Mapping[str, Any]

    def __call__(self, named: Named) -> dict[str, Mapping[str, Any]]:
        """The options of the parameters that it matches, by name."""
        if isinstance(self.match, str):
            matched = [name for name in named if is_in(name, self.match)]
        else:
            matched = [name for name, parameter in named.items() if self.match(name, parameter)]
        return dict.fromkeys(matched, self.options)


def group(
    match: str | Callable[[str, Tensor], bool], *, name: str | None = None, **options: Any
) -> Group:
    """A rule for `wb.Workbench(…, groups=[…])`: options of some parameters.

    match: a part of the model ("head", "blocks.0"), a pattern of names ("*.bias"), or a function of
    a parameter's name and the parameter that says whether the rule holds for it.
    name: what the group is called in charts and records; None: the part, or the options.
    options: `lr_scale`, by which the learning rate is multiplied; `weight_decay`; and any other
    option of the optimizer, as torch's parameter groups have them: `betas`, `momentum`.

    A parameter that several rules match has the options of all; their scales multiply. Example:
    `wb.group(lambda name, p: p.ndim < 2, weight_decay=0)`.
    """
    if name is None:
        settings = ", ".join(f"{key}={value}" for key, value in options.items())
        name = match if isinstance(match, str) else settings
    numbers = {key: plain_number(value) for key, value in options.items()}
    return Group(match, {"name": name, **numbers})


@dataclass(frozen=True)
class LayerDecay:
    """What `wb.layer_decay` returns: a rule, which scales the rate of each layer."""

    factor: float
    layers: Sequence[str] | None = None

    def __call__(self, named: Named) -> dict[str, Mapping[str, Any]]:
        """The scale of each parameter's rate, by name."""
        numbers = listed(named, self.layers) if self.layers is not None else depths(named)
        last = max(numbers.values(), default=0)
        return {
            name: {"name": f"layer {number}", "lr_scale": self.factor ** (last - number)}
            for name, number in numbers.items()
        }


@dataclass(frozen=True)
class Freeze:
    """What `wb.freeze` returns: a rule, which lets parameters train only from an epoch on."""

    match: str | Callable[[str, Tensor], bool]
    unfreeze_at_epoch: int

    def __call__(self, named: Named) -> dict[str, Mapping[str, Any]]:
        """It gives no options."""
        return {}

    def matched(self, named: Named) -> list[str]:
        """The names of the parameters that it matches."""
        return [*Group(self.match, {})(named)]


def freeze(match: str | Callable[[str, Tensor], bool], *, unfreeze_at_epoch: int) -> Freeze:
    """A rule for `wb.Workbench(…, groups=[…])`: some parameters train only from an epoch on.

    match: as for `wb.group`.
    unfreeze_at_epoch: the first epoch in which they train, counted from 0: with 3 they stay as they
    are for three epochs. Until then they require no gradient, count in no norm, and their optimizer
    neither changes nor decays them. Layers in training mode stay in it: batch norms still update
    their statistics, and dropout still drops. Source: Lightning's `BackboneFinetuning`.

    The whole model's schedule of rates goes on meanwhile. Example: `wb.freeze("backbone",
    unfreeze_at_epoch=3)`.
    """
    return Freeze(match, plain_number(unfreeze_at_epoch))


def layer_decay(factor: float, layers: Sequence[str] | None = None) -> LayerDecay:
    """A rule for `wb.Workbench(…, groups=[…])`: the last layer has the learning rate, and each
    layer before it `factor` times that of the next.

    factor: 0.65 to 0.9 for fine-tuning transformers.
    layers: the parts of the model from the first layer to the last, ["embed", "blocks.0",
    "blocks.1", "head"]; what none of them names belongs to the last. None: the layers are the
    numbered blocks that the model has most of ("blocks.0", "blocks.1", …); all that comes before
    them is the first layer, and all that comes after them the last. Source: layer-wise rate decay
    of Clark et al., "ELECTRA" (2020), as timm numbers the layers.
    """
    return LayerDecay(plain_number(factor), layers)


def listed(named: Named, layers: Sequence[str]) -> dict[str, int]:
    """The number of each parameter's layer, of those that the user lists."""
    return {
        name: next((n for n, prefix in enumerate(layers) if is_in(name, prefix)), len(layers) - 1)
        for name in named
    }


def depths(named: Named) -> dict[str, int]:
    """The number of each parameter's layer, by the numbered blocks in its name; without such blocks
    each module that holds parameters is a layer.
    """
    blocks = numbered_blocks(named)
    if not blocks:
        modules = [name.rpartition(".")[0] for name in named]
        order = [*dict.fromkeys(modules)]
        return {name: order.index(module) for name, module in zip(named, modules, strict=True)}
    prefix = max(blocks, key=lambda stem: (len(blocks[stem]), -stem.count(".")))
    places = {number: 1 + rank for rank, number in enumerate(sorted(blocks[prefix]))}
    numbers: dict[str, int] = {}
    outside = 0
    for name in named:
        block = re.match(rf"{re.escape(prefix)}(\d+)\.", name)
        if block is None:
            numbers[name] = outside
        else:
            numbers[name] = places[int(block[1])]
            outside = 1 + len(places)
    lowest = min(numbers.values())
    return {name: number - lowest for name, number in numbers.items()}


def numbered_blocks(named: Named) -> dict[str, set[int]]:
    """The numbers of the blocks by what stands before them in the names: {"blocks.": {0, 1, 2}}."""
    blocks: dict[str, set[int]] = {}
    for name in named:
        for number in re.finditer(r"(?:^|(?<=\.))(\d+)\.", name):
            blocks.setdefault(name[: number.start()], set()).add(int(number[1]))
    return {stem: numbers for stem, numbers in blocks.items() if len(numbers) > 1}
