"""Learning rates that transfer between widths: `wb.mup(build, base_width=64)`.

In the maximal update parametrisation (muP) the initial weights and the learning rates of layers
change with the width of a model, each kind of layer in its own way. Then every layer changes as
much in a narrow model as in a wide one, and the best rate is the same for both. Source: Yang et
al., "Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer" (2022),
table 3. That form has no multipliers in the model, so a model in muP is a plain one.

An exported script contains this file's text where the user's code uses it, without the checks of
`mup_checks.py`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.task.optim.groups import is_in


@dataclass(frozen=True)
class Scaling:
    """How a parameter changes with the width."""

    kind: str
    """What it maps. "input": a fixed size to the width. "hidden": width to width. "output": the
    width to a fixed size. "vector": a bias, or the weight of a norm. "fixed": it does not change.
    """
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """Its shapes at the base width and at twice that."""
    size: float
    """The root mean square of its initial values at the base width."""
    grows: float
    """That at twice the base width, divided by `size`; 1 for initial values of 0."""

    def factor(self, ratio: float, parameter: Tensor) -> float:
        """By what initial values are multiplied at `ratio` times the base width.

        Code that divides by the square root of the inputs, as torch's layers do, makes hidden
        weights right as they are. Other powers of the width are corrected exactly, and other laws
        (`xavier_normal_`) by the values that were drawn.
        """
        if self.kind in ("vector", "fixed") or not self.size:
            return 1.0
        wanted = {"hidden": -0.5, "output": -1.0}.get(self.kind, 0.0)
        power = math.log2(self.grows)
        if abs(2 * power - round(2 * power)) < 0.3:
            return float(ratio ** (wanted - round(2 * power) / 2))
        size = math.sqrt(float(parameter.detach().double().square().mean()))
        return float(self.size * ratio**wanted / size)


@dataclass(frozen=True)
class MuPRates:
    """A rule for `wb.Workbench(…, groups=[…])`: the kind of each parameter, and the width as a
    multiple of the base width. The optimizer decides how rates follow: `groups.width_power`.
    """

    ratio: float
    kinds: Mapping[str, str]

    def __call__(self, named: Mapping[str, Tensor]) -> dict[str, Mapping[str, Any]]:
        """The options of each parameter, by name."""
        return {
            name: {"name": self.kinds[name], "mup": (self.kinds[name], self.ratio)}
            for name in named
            if name in self.kinds
        }


class MuP:
    """What `wb.mup` returns: a factory, whose models have muP's initial weights."""

    def __init__(
        self, build: Callable[..., Any], base_width: int, outputs: Sequence[str] = ()
    ) -> None:
        self.build, self.base_width, self.outputs = build, base_width, tuple(outputs)
        name = str(getattr(build, "__name__", type(build).__name__))
        self.__name__ = name if name.isidentifier() else "build"
        self.__signature__ = inspect.signature(build)

    def __call__(self, **values: Any) -> Any:
        """Make the model of this width, and scale its initial weights."""
        returned = self.build(**values)
        model = returned["model"] if isinstance(returned, Mapping) else returned
        named = dict(model.named_parameters(remove_duplicate=False))
        tied: set[int] = set()
        scalings, ratio = self.scalings(**values), self.width(values) / self.base_width
        for name, parameter in named.items():
            if name in scalings and id(parameter) not in tied:
                factor = scalings[name].factor(ratio, parameter)
                if factor != 1.0:
                    with torch.no_grad():
                        parameter.mul_(factor)
            tied.add(id(parameter))
        return returned

    def rates(self, **values: Any) -> MuPRates:
        """The rule for `groups=` with the rates of the model that these values make. A bench whose
        model is this factory has it without being asked.
        """
        kinds = {name: scaling.kind for name, scaling in self.scalings(**values).items()}
        return MuPRates(self.width(values) / self.base_width, kinds)

    def width(self, values: Mapping[str, Any]) -> int:
        """The width among these values, or the function's own."""
        return int(values.get("width", self.__signature__.parameters["width"].default))

    def scalings(self, **values: Any) -> dict[str, Scaling]:
        """How each parameter changes with the width, by name. Models of the base width and of twice
        that show it, several where weights are small.
        """
        others = {name: value for name, value in values.items() if name != "width"}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            narrow, wide = (self.made(self.base_width * factor, others) for factor in (1, 2))
            modules = dict(narrow.named_modules())
            pairs = [
                (dict(narrow.named_parameters(remove_duplicate=False)), _squares(narrow)),
                (dict(wide.named_parameters(remove_duplicate=False)), _squares(wide)),
            ]
            matrices = [p.numel() for p in narrow.parameters() if p.ndim > 1]
            draws = min(16, math.ceil(2000 / min(matrices, default=2000)))
            for _ in range(draws - 1):
                for factor, (_, squares) in enumerate(pairs, 1):
                    drawn = _squares(self.made(self.base_width * factor, others))
                    for name in squares:
                        squares[name] += drawn[name]
        scalings = {}
        for name, parameter in pairs[0][0].items():
            shapes = tuple(parameter.shape), tuple(pairs[1][0][name].shape)
            size, doubled = (math.sqrt(squares[name] / draws) for _, squares in pairs)
            kind = self._kind(name, modules[name.rpartition(".")[0]], shapes)
            grows = doubled / size if size and doubled else 1.0
            scalings[name] = Scaling(kind, shapes, size, grows)
        return scalings

    def made(self, width: int, others: Mapping[str, Any]) -> nn.Module:
        """The function's model of this width."""
        try:
            returned = self.build(**others, width=width)
        except Exception as error:
            error.add_note(
                f"wb.mup called {self.__name__}(width={width}), to see which dimensions scale."
            )
            raise
        model: nn.Module = returned["model"] if isinstance(returned, Mapping) else returned
        return model

    def _kind(
        self, name: str, module: nn.Module, shapes: tuple[tuple[int, ...], tuple[int, ...]]
    ) -> str:
        """The kind of a parameter, by the dimensions that differ in the two models."""
        sizes = zip(*shapes, strict=True)
        scaled = [dimension for dimension, (narrow, wide) in enumerate(sizes) if narrow != wide]
        if not scaled:
            return "fixed"
        if len(scaled) > 1:
            return "hidden"
        if any(is_in(name, output) for output in self.outputs):
            return "output"
        if len(shapes[0]) == 1:
            return "vector"
        transposed = isinstance(
            module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
        )
        usual = isinstance(
            module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.RNNBase | nn.RNNCellBase
        )
        if (transposed and scaled == [0]) or (usual and scaled == [1]):
            return "output"
        return "input"

    def __repr__(self) -> str:
        """A table of the parameters by kind; m is the width as a multiple of the base width."""
        head = f"mup({self.__name__}, base_width={self.base_width})"
        try:
            scalings = self.scalings()
        except Exception:  # noqa: BLE001  # it needs other values than the width, or is none
            return head
        rows = {
            "input": ("1", "m", "1"),
            "hidden": ("1/m", "1", "1/sqrt(m)"),
            "output": ("1/m", "1/m", "1/m"),
            "vector": ("1", "m", "as built"),
            "fixed": ("1", "1", "as built"),
        }
        lines = [head, f"{'kind':8}{'Adam':6}{'SGD':6}{'initial':11}parameters"]
        for kind, (adam, sgd, initial) in rows.items():
            names = [name for name, scaling in scalings.items() if scaling.kind == kind]
            rest = ", …" if len(names) > 4 else ""
            if names:
                lines.append(f"{kind:8}{adam:6}{sgd:6}{initial:11}{', '.join(names[:4])}{rest}")
        return "\n".join([*lines, f"m = width / {self.base_width}"])


def _squares(model: nn.Module) -> dict[str, float]:
    """The mean square of each parameter's values, by name."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: float(parameter.detach().double().square().mean()) for name, parameter in named}


def mup(build: Callable[..., Any], *, base_width: int, outputs: str | Sequence[str] = ()) -> MuP:
    """A factory whose models train well at the same learning rate at every width: tune a narrow
    one, and train a wide one at its rate.

    `bench = wb.Workbench(wb.mup(build, base_width=64), width=512, …)`. At the base width the model
    and its training are those of `build`. At m times that, hidden weights begin at 1/sqrt(m) of
    their size and output weights at 1/m of it. With Adam, the rates of both are divided by m; with
    SGD, the rates of input weights and of biases are multiplied by m, and those of output weights
    divided by it; Muon's follow from the size of its updates. lr x weight_decay stays. Biases and
    norms begin as in your code. `print(wb.mup(…))` shows which parameter is of which kind.

    build: a function with a parameter `width`, which returns the model. Its layers may have several
    sizes, all in proportion to the width. base_width: the width at which your code is right as it
    is. outputs: parts of the model that map the width to a fixed size and are neither a Linear nor
    a convolution: a matrix of your own is taken for an input otherwise.

    Attention is left as it is: let the number of heads grow with the width, and not their
    dimension. The bench raises TaskError where shapes do not scale with the width, or not in
    proportion, and where one weight is both embedding and output. Source: Yang et al., "Tensor
    Programs V" (2022), table 3.
    """
    return MuP(build, base_width, [outputs] if isinstance(outputs, str) else outputs)
