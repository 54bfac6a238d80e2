"""Learning rates that transfer between widths: `wb.mup(build, base_width=64)`.

In the maximal update parametrisation (muP) the initial weights and the learning rates of layers
change with the width of a model, each kind of layer in its own way. Then every layer changes as
much in a narrow model as in a wide one, and the best rate is the same for both. Source: Yang et
al., "Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer" (2022),
table 3. That form has no multipliers in the model, so a model in muP is a plain one.

An exported script contains this file's text where the user's code uses it.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.task.errors import TaskError
from workbench.task.optim.group_rules import is_in

WIDTH = "width"
"""The parameter of a factory that is its model's width."""
_TOLERANCE = 0.1
"""The largest share by which a dimension may differ from one in proportion to the width."""
_ENOUGH, _DRAWS = 2000, 16
"""The fewest values by which the size of an initial weight is measured, and the most models that
are made for it.
"""
_HEADS = ("head_dim", "dim_head", "d_head", "head_size", "d_k")
"""What modules call the dimension of an attention's head."""


@dataclass(frozen=True)
class Scaling:
    """How a parameter changes with the width."""

    kind: str
    """ "input": from a fixed size to the width. "hidden": from width to width. "output": from the
    width to a fixed size. "vector": a bias, or the weight of a norm. "fixed": of the same size.
    """
    shape: tuple[int, ...]
    """Its shape in the base model."""
    scales: tuple[bool, ...]
    """Which of its dimensions are in proportion to the width."""
    size: float
    """The root mean square of its initial values in the base model."""
    power: float | None
    """The power of the width with which the user's code scales its initial values; None: another
    law, such as that of `xavier_normal_`.
    """

    @property
    def wanted(self) -> float:
        """The power of the width that muP wants for its initial values."""
        return {"hidden": -0.5, "output": -1.0}.get(self.kind, 0.0)


@dataclass(frozen=True)
class MuPRates:
    """A rule for `wb.Workbench(…, groups=[…])`: the kind of each parameter, by which its rate
    scales with the width. The optimizer decides how: see `groups.width_power`.
    """

    base_width: int
    width: int
    kinds: Mapping[str, str]

    def __call__(self, named: Mapping[str, Tensor]) -> dict[str, Mapping[str, Any]]:
        """The options of each parameter, by name."""
        ratio = self.width / self.base_width
        return {
            name: {"name": self.kinds[name], "mup": (self.kinds[name], ratio)}
            for name in named
            if name in self.kinds
        }


class MuP:
    """What `wb.mup` returns: a factory, whose models have muP's initial weights."""

    def __init__(
        self, build: Callable[..., Any], base_width: int, outputs: Sequence[str] = ()
    ) -> None:
        self.build, self.base_width, self.outputs = build, base_width, tuple(outputs)
        self.__name__ = getattr(build, "__name__", type(build).__name__)
        self.__signature__ = inspect.signature(build)
        self._known: list[tuple[dict[str, Any], dict[str, Scaling]]] = []

    def __call__(self, **values: Any) -> Any:
        """Make the model of this width, and scale its initial weights."""
        made = self.build(**values)
        model = made["model"] if isinstance(made, Mapping) else made
        scalings, width = self.scalings(**values), self._width(values)
        ratio = width / self.base_width
        named = self._named(model, width)
        self._refuse_other_shapes(named, scalings, width)
        for name, scaling in scalings.items():
            parameter = named[name]
            if scaling.power is None:
                size = math.sqrt(float(parameter.detach().double().square().mean()))
                factor = scaling.size * ratio**scaling.wanted / size
            else:
                factor = ratio ** (scaling.wanted - scaling.power)
            if parameter.ndim >= 2 and factor != 1.0:
                with torch.no_grad():
                    parameter.mul_(factor)
        return made

    def rates(self, **values: Any) -> MuPRates:
        """The rule for `groups=` with the rates of the model that these values make. A bench that
        is given this factory as its model has it without being asked.
        """
        kinds = {name: scaling.kind for name, scaling in self.scalings(**values).items()}
        return MuPRates(self.base_width, self._width(values), kinds)

    def scalings(self, **values: Any) -> dict[str, Scaling]:
        """How each parameter changes with the width, by name. Two models are made to see it, of the
        base width and of twice that.
        """
        others = {name: value for name, value in values.items() if name != WIDTH}
        for known, scalings in self._known:
            if known == others:
                return scalings
        double = 2 * self.base_width
        with torch.random.fork_rng():
            torch.manual_seed(0)
            narrow, wide = self._made(self.base_width, others), self._made(double, others)
            base, other = self._named(narrow, self.base_width), self._named(wide, double)
            if base.keys() != other.keys():
                name = min(base.keys() ^ other.keys())
                raise TaskError(
                    f"wb.mup: {name} is a parameter of only one of {self._call(self.base_width)}"
                    f" and {self._call(double)}: let the width change no layers, only their sizes."
                )
            kinds = {name: self._kind(name, base, other, narrow) for name in base}
            if all(kind == "fixed" for kind in kinds.values()):
                raise TaskError(
                    f"wb.mup: {self.__name__} makes the same shapes at {WIDTH}={self.base_width}"
                    f" and {WIDTH}={double}: let it use {WIDTH}= for the sizes of its layers."
                )
            self._refuse_tied(narrow, kinds)
            for pattern in self.outputs:
                if not any(is_in(name, pattern) for name in kinds):
                    raise TaskError(f"wb.mup: outputs={pattern!r} matches no parameter.")
            _warn_of_heads(narrow, wide, self.base_width, double)
            sizes = self._sizes(base, self.base_width, others)
            doubled = self._sizes(other, double, others)
        scalings = {
            name: Scaling(
                kinds[name],
                tuple(parameter.shape),
                tuple(a != b for a, b in zip(parameter.shape, other[name].shape, strict=True)),
                sizes[name],
                _power(sizes[name], doubled[name], kinds[name]),
            )
            for name, parameter in base.items()
        }
        self._known = [(others, scalings)]
        return scalings

    def __repr__(self) -> str:
        """A table of the parameters by kind, with what an AdamW does with them at twice the base
        width.
        """
        lines = [
            f"mup({self.__name__}, base_width={self.base_width})",
            "kind    Adam's rate  SGD's rate  initial weights  parameters",
        ]
        try:
            scalings = self.scalings()
        except Exception:  # noqa: BLE001  # it needs other values than the width, or is refused
            return lines[0]
        rows = {
            "input": ("1", "m", "1"),
            "hidden": ("1/m", "1", "1/sqrt(m)"),
            "output": ("1/m", "1/m", "1/m"),
            "vector": ("1", "m", "as built"),
            "fixed": ("1", "1", "as built"),
        }
        for kind, (adam, sgd, initial) in rows.items():
            names = [name for name, scaling in scalings.items() if scaling.kind == kind]
            shown_names = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
            if names:
                lines.append(f"{kind:8}{adam:13}{sgd:12}{initial:17}{shown_names}")
        return "\n".join([*lines, f"m = {WIDTH} / {self.base_width}"])

    def _width(self, values: Mapping[str, Any]) -> int:
        width = values.get(WIDTH, self.__signature__.parameters[WIDTH].default)
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            given = "nothing" if width is inspect.Parameter.empty else repr(width)
            raise TaskError(f"wb.mup: {WIDTH} is {given}: give a whole number above 0.")
        return width

    def _call(self, width: int) -> str:
        return f"{self.__name__}({WIDTH}={width})"

    def _made(self, width: int, others: Mapping[str, Any]) -> nn.Module:
        try:
            made = self.build(**others, **{WIDTH: width})
        except Exception as error:
            error.add_note(
                f"wb.mup called {self._call(width)}, to see which dimensions scale with the width."
            )
            raise
        model = made["model"] if isinstance(made, Mapping) else made
        if not isinstance(model, nn.Module):
            raise TaskError(
                f"wb.mup: {self._call(width)} returned a {type(model).__name__}: return an"
                " nn.Module."
            )
        return model

    def _named(self, model: nn.Module, width: int) -> dict[str, Tensor]:
        named = dict(model.named_parameters(remove_duplicate=False))
        lazy = [name for name, parameter in named.items() if nn.parameter.is_lazy(parameter)]
        if lazy:
            raise TaskError(
                f"wb.mup: {lazy[0]} of {self._call(width)} is lazy and has no shape yet: give its"
                " layer the number of its inputs."
            )
        return named

    def _kind(
        self, name: str, base: Mapping[str, Tensor], wide: Mapping[str, Tensor], model: nn.Module
    ) -> str:
        """The kind of a parameter, by the dimensions that differ in the two models."""
        shapes = tuple(base[name].shape), tuple(wide[name].shape)
        if len(shapes[0]) != len(shapes[1]):
            raise TaskError(
                f"wb.mup: {name} is {list(shapes[0])} at {WIDTH}={self.base_width} and"
                f" {list(shapes[1])} at twice that: its number of dimensions changes."
            )
        scaled = [place for place, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b]
        widths = self.base_width, 2 * self.base_width
        for place in scaled:
            _check_proportional(name, shapes[0], shapes[1], place, widths, 2.0)
        path, _, local = name.rpartition(".")
        module = model.get_submodule(path)
        if len(scaled) > 2 or (isinstance(module, nn.Bilinear) and len(scaled) > 1 and local[0] == "w"):
            raise TaskError(
                f"wb.mup: {name} is {list(shapes[0])} at {WIDTH}={self.base_width} and"
                f" {list(shapes[1])} at twice that: muP knows no rate for a weight with so many"
                " dimensions that scale."
            )
        if not scaled:
            return "fixed"
        if len(scaled) == 2:
            return "hidden"
        if any(is_in(name, pattern) for pattern in self.outputs):
            return "output"
        if base[name].ndim == 1:
            return "vector"
        transposed = isinstance(
            module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
        )
        layered = isinstance(
            module,
            nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.RNNBase | nn.RNNCellBase,
        )
        if (transposed and scaled == [0]) or (layered and scaled == [1]):
            return "output"
        return "input"

    def _refuse_tied(self, model: nn.Module, kinds: Mapping[str, str]) -> None:
        """Raise TaskError for a parameter with two names of different kinds, and for an embedding
        that is the output layer, too.
        """
        first: dict[int, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            other = first.setdefault(id(parameter), name)
            if kinds[other] != kinds[name]:
                raise TaskError(
                    f"wb.mup: {other} and {name} are one weight, an {kinds[other]} and an"
                    f" {kinds[name]}, whose rates scale in different ways: let each have a weight"
                    " of its own."
                )

    def _refuse_other_shapes(
        self, named: Mapping[str, Tensor], scalings: Mapping[str, Scaling], width: int
    ) -> None:
        """Raise TaskError where the model of this width has other parameters, or shapes that are
        not in proportion.
        """
        if named.keys() != scalings.keys():
            name = min(named.keys() ^ scalings.keys())
            raise TaskError(
                f"wb.mup: {name} is a parameter of only one of {self._call(self.base_width)} and"
                f" {self._call(width)}: let the width change no layers, only their sizes."
            )
        for name, scaling in scalings.items():
            for place, scales in enumerate(scaling.scales):
                ratio = width / self.base_width if scales else 1.0
                shape = tuple(named[name].shape)
                _check_proportional(name, scaling.shape, shape, place, (self.base_width, width), ratio)

    def _sizes(
        self, named: Mapping[str, Tensor], width: int, others: Mapping[str, Any]
    ) -> dict[str, float]:
        """The root mean square of each parameter's initial values, over several models where it has
        few values.
        """
        squares = {name: [float(p.detach().double().square().mean())] for name, p in named.items()}
        fewest = min((p.numel() for p in named.values() if p.ndim >= 2), default=_ENOUGH)
        for _ in range(min(_DRAWS, math.ceil(_ENOUGH / fewest)) - 1):
            for name, p in self._made(width, others).named_parameters(remove_duplicate=False):
                squares[name].append(float(p.detach().double().square().mean()))
        return {name: math.sqrt(sum(values) / len(values)) for name, values in squares.items()}


def _check_proportional(
    name: str,
    narrow: Sequence[int],
    wide: Sequence[int],
    place: int,
    widths: tuple[int, int],
    ratio: float,
) -> None:
    """Raise TaskError for a dimension that does not scale as the width does. ratio: by which it
    should differ in the models of these widths.
    """
    if abs(wide[place] / narrow[place] / ratio - 1) > _TOLERANCE:
        raise TaskError(
            f"wb.mup: {name} is {list(narrow)} at {WIDTH}={widths[0]} and {list(wide)} at"
            f" {WIDTH}={widths[1]}: dimension {place} is {wide[place]} instead of"
            f" {round(narrow[place] * ratio)}. Let all sizes that change be in proportion to the"
            " width."
        )


def _power(size: float, doubled: float, kind: str) -> float | None:
    """The power of the width with which initial values scale, from their sizes at a width and at
    twice that: a multiple of 1/2; None: it is near none.
    """
    if size == 0.0 or doubled == 0.0:
        return {"hidden": -0.5, "output": -1.0}.get(kind, 0.0)  # nothing to scale
    power = math.log2(doubled / size)
    return round(2 * power) / 2 if abs(2 * power - round(2 * power)) < 0.3 else None


def _warn_of_heads(narrow: nn.Module, wide: nn.Module, base_width: int, double: int) -> None:
    """Warn of attention whose heads grow with the width: muP divides its products by the heads'
    dimension, and attention divides them by the square root.
    """
    modules = dict(wide.named_modules())
    for name, module in narrow.named_modules():
        for attribute in _HEADS:
            before, after = getattr(module, attribute, 0), getattr(modules[name], attribute, 0)
            if isinstance(before, int) and before != after:
                warnings.warn(
                    f"wb.mup: the heads of {name or type(module).__name__} grow with the width"
                    f" ({attribute}={before} at {WIDTH}={base_width}, {after} at"
                    f" {WIDTH}={double}). muP divides q·k by their dimension, and attention divides"
                    " by its square root, which wb.mup leaves as it is: let the number of heads"
                    f" grow instead, num_heads={WIDTH} // {before}.",
                    stacklevel=2,
                )
                return


def mup(
    build: Callable[..., Any], *, base_width: int, outputs: str | Sequence[str] = ()
) -> MuP:
    """A factory whose models train well at the same learning rate at every width: tune a narrow
    one, and train a wide one at its rate.

    `bench = wb.Workbench(wb.mup(build, base_width=64), width=512, …)`. At the base width the model
    and its training are those of `build`. At m times that, hidden weights begin at 1/sqrt(m) of
    their size and output weights at 1/m of it. With Adam, the rates of both are divided by m; with
    SGD, the rates of input weights and of biases are multiplied by m, and those of output weights
    divided by it; Muon's follow from the size of its updates. `lr x weight_decay` stays. Biases and
    norms begin as in your code. `print(wb.mup(…))` shows which parameter is of which kind.

    build: a function with a parameter `width`, which returns the model. Its layers may have several
    sizes, all in proportion to the width. base_width: the width at which your code is right as it
    is. outputs: parts of the model that map the width to a fixed size and that are no Linear or
    convolution: a matrix of your own is taken for an input otherwise.

    Attention is left as it is: let the number of heads grow with the width, and not their
    dimension. TaskError: the shapes do not scale with the width, or not in proportion; one weight
    is both embedding and output. Source: Yang et al., "Tensor Programs V" (2022), table 3.
    """
    if isinstance(build, nn.Module) or not callable(build):
        raise TaskError(
            f"wb.mup: build is a {type(build).__name__}: give a function that makes the model,"
            f" lambda {WIDTH}=64: ….",
        )
    known = inspect.signature(build).parameters
    if WIDTH not in known:
        raise TaskError(
            f"wb.mup: {getattr(build, '__name__', 'build')} has no parameter {WIDTH}, only"
            f" {', '.join(known) or 'none at all'}: give a function that makes the model of a"
            f" width, wb.mup(lambda {WIDTH}=64: …, base_width=64)."
        )
    if isinstance(base_width, bool) or not isinstance(base_width, int) or base_width < 1:
        raise TaskError(f"wb.mup: base_width={base_width!r}: give a whole number above 0, as 64.")
    return MuP(build, base_width, [outputs] if isinstance(outputs, str) else outputs)
