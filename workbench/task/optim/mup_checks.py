"""Checks the factory that `wb.mup` makes, when a bench is given it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.task.errors import TaskError
from workbench.task.optim.groups import is_in
from workbench.task.optim.mup import MuP
from workbench.values import shown

_TOLERANCE = 0.1
"""The largest share by which a dimension may differ from one in proportion to the width."""
_HEADS = ("head_dim", "dim_head", "d_head", "head_size", "d_k")
"""What modules call the dimension of an attention's heads."""


def check_factory(factory: MuP) -> None:
    """Raise TaskError where its arguments cannot be what `wb.mup` takes."""
    build = factory.build
    if isinstance(build, nn.Module) or not callable(build):
        raise TaskError(
            f"wb.mup: build is a {type(build).__name__}: give a function that makes the model,"
            " lambda width=64: …."
        )
    known = inspect.signature(build).parameters
    if "width" not in known:
        raise TaskError(
            f"wb.mup: {factory.__name__} has no parameter width, only"
            f" {', '.join(known) or 'none at all'}: give a function that makes the model of a"
            " width, wb.mup(lambda width=64: …, base_width=64)."
        )
    _check_width("base_width", factory.base_width)


def check_models(factory: MuP, values: Mapping[str, Any]) -> None:
    """Raise TaskError where the models of the factory have no muP: shapes that do not scale with
    the width, or not in proportion, or weights of two kinds. Warn of attention whose heads grow.
    """
    width = values.get("width", factory.__signature__.parameters["width"].default)
    if width is inspect.Parameter.empty:
        return  # the bench says that it needs a value
    _check_width("width", width)
    others = {name: value for name, value in values.items() if name != "width"}
    base = factory.base_width
    narrow, wide = factory.made(base, others), factory.made(2 * base, others)
    for model in (narrow, wide):
        if not isinstance(model, nn.Module):
            raise TaskError(
                f"wb.mup: {factory.__name__}(width={base}) returned a {type(model).__name__}:"
                " return the network, an nn.Module."
            )
    shapes = _shapes(factory, narrow, base)
    _check_shapes(factory, shapes, wide, 2 * base)
    doubled = _shapes(factory, wide, 2 * base)
    if shapes == doubled:
        raise TaskError(
            f"wb.mup: {factory.__name__} makes the same shapes at width={base} and at"
            f" {2 * base}: let it use width= for the sizes of its layers."
        )
    for name, shape in shapes.items():
        scaled = sum(a != b for a, b in zip(shape, doubled[name], strict=True))
        bilinear = isinstance(narrow.get_submodule(name.rpartition(".")[0]), nn.Bilinear)
        if scaled > 2 or (scaled > 1 and bilinear):
            raise TaskError(
                f"wb.mup: {name} is {list(shape)} at width={base} and {list(doubled[name])} at"
                f" width={2 * base}: muP has no rate for a weight with so many dimensions that"
                " scale."
            )
    kinds = {name: scaling.kind for name, scaling in factory.scalings(**values).items()}
    for output in factory.outputs:
        if not any(is_in(name, output) for name in kinds):
            raise TaskError(
                f"wb.mup: outputs={shown(output)} is no part of the model, which has"
                f" {', '.join(name for name, _ in narrow.named_children())}."
            )
    _refuse_tied(narrow, kinds)
    _warn_of_heads(narrow, wide, base)


def check_model(factory: MuP, values: Mapping[str, Any], model: nn.Module) -> None:
    """Raise TaskError where the model that these values make does not fit the one of the base
    width.
    """
    scalings = factory.scalings(**values)
    shapes = {name: scaling.shapes[0] for name, scaling in scalings.items()}
    _check_shapes(factory, shapes, model, factory.width(values))


def _check_shapes(
    factory: MuP, shapes: Mapping[str, Sequence[int]], model: nn.Module, width: int
) -> None:
    """Raise TaskError where the model of this width has other parameters than the one of the base
    width, or sizes that are not in proportion. shapes: at the base width.
    """
    base, named = factory.base_width, _shapes(factory, model, width)
    if shapes.keys() != named.keys():
        name = min(shapes.keys() ^ named.keys())
        raise TaskError(
            f"wb.mup: {name} is a parameter of only one of {factory.__name__}(width={base}) and"
            f" {factory.__name__}(width={width}): let the width change no layers, only their sizes."
        )
    for name, shape in shapes.items():
        other = named[name]
        for dimension, (narrow, wide) in enumerate(zip(shape, other, strict=False)):
            fits = narrow == wide or abs(wide / narrow * base / width - 1) <= _TOLERANCE
            if len(shape) != len(other) or not fits:
                raise TaskError(
                    f"wb.mup: {name} is {list(shape)} at width={base} and {list(other)} at"
                    f" width={width}. Dimension {dimension} is neither the same nor"
                    f" {round(narrow * width / base)}: let all sizes that change be in proportion"
                    " to the width."
                )


def _check_width(name: str, width: object) -> None:
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise TaskError(f"wb.mup: {name}={shown(width)}: give a whole number above 0, such as 64.")


def _shapes(factory: MuP, model: nn.Module, width: int) -> dict[str, tuple[int, ...]]:
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    lazy = [name for name, parameter in named.items() if is_lazy(parameter)]
    if lazy:
        raise TaskError(
            f"wb.mup: {lazy[0]} of {factory.__name__}(width={width}) is lazy and has no shape yet:"
            " give its layer the number of its inputs."
        )
    return {name: tuple(parameter.shape) for name, parameter in named.items()}


def _refuse_tied(model: nn.Module, kinds: Mapping[str, str]) -> None:
    """Raise TaskError for one weight of two kinds: an embedding that is the output layer, too."""
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        other = first.setdefault(id(parameter), name)
        if kinds[other] != kinds[name]:
            raise TaskError(
                f"wb.mup: {other} ({kinds[other]}) and {name} ({kinds[name]}) are one weight, and"
                " the rates of the two kinds scale in different ways: let each have a weight of its"
                " own."
            )


def _warn_of_heads(narrow: nn.Module, wide: nn.Module, base: int) -> None:
    """Warn of attention whose heads grow with the width. muP divides its products by the heads'
    dimension, and attention divides them by the square root.
    """
    modules = dict(wide.named_modules())
    for name, module in narrow.named_modules():
        for attribute in _HEADS:
            before, after = getattr(module, attribute, 0), getattr(modules.get(name), attribute, 0)
            if isinstance(before, int) and before != after:
                warnings.warn(
                    f"wb.mup: the heads of {name or type(module).__name__} grow with the width:"
                    f" {attribute} is {before} at width={base} and {after} at width={2 * base}. muP"
                    " divides q·k by it, and attention divides by its square root, which wb.mup"
                    " leaves as it is. Let the number of heads grow instead, num_heads=width //"
                    f" {before}.",
                    stacklevel=2,
                )
                return
