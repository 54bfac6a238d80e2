"""Measures, in one update, how the weights and activations of layers are distributed, which units
are dead, and where activations are saturated.

Hooks read what passes and change nothing; without a probe there are none.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList
from torch.utils.hooks import RemovableHandle

from workbench.events import Histogram, LayerHistograms
from workbench.task.optim.groups import is_in

MOST = 32
"""How many layers are measured at a time."""
BINS = 40
_VALUES = 1 << 16
"""How many values of a tensor are counted: evenly spaced ones of a larger tensor."""
_NEAR = 0.02
"""An activation is saturated within this share of the function's range from one of its ends."""
_BOUNDED: dict[type[nn.Module], tuple[float, float]] = {
    nn.Sigmoid: (0.0, 1.0),
    nn.Tanh: (-1.0, 1.0),
    nn.Hardsigmoid: (0.0, 1.0),
    nn.Hardtanh: (-1.0, 1.0),
    nn.Softsign: (-1.0, 1.0),
}
"""Functions that are flat at both ends of their range."""
_OTHERS = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.PReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Softplus,
    nn.Hardswish,
)


class LayerProbe:
    """Watches the forward and backward pass of some layers between `open` and `close`."""

    def __init__(
        self,
        modules: Iterable[nn.Module],
        parameters: Mapping[str, Tensor],
        wanted: Sequence[str],
    ) -> None:
        """parameters: the layers by their names. wanted: names of layers, of modules for all
        that are in them, or patterns of names ("*.weight"); empty: all.
        """
        self.wanted = tuple(wanted)
        chosen = [
            name for name in parameters if not wanted or any(is_in(name, path) for path in wanted)
        ]
        self.unknown = [path for path in wanted if not any(is_in(p, path) for p in parameters)]
        self.left_out = max(0, len(chosen) - MOST)
        self._weights = {name: parameters[name] for name in chosen[:MOST]}
        self._modules = list(modules)
        self._passes: dict[nn.Module, _Pass] = {}
        """What has passed each module that has one of the layers."""
        self._by_layer: dict[str, _Pass] = {}
        self._handles: list[RemovableHandle] = []

    def open(self) -> None:
        """Set the hooks."""
        names = {id(parameter): name for name, parameter in self._weights.items()}
        for module in dict.fromkeys(m for root in self._modules for m in root.modules()):
            layers = [names[id(p)] for p in module._parameters.values() if id(p) in names]
            if layers and not isinstance(module, ParametrizationList):
                passed = self._passes[module] = _Pass()
                self._by_layer |= dict.fromkeys(layers, passed)
                self._handles.append(module.register_forward_hook(self._layer))
            if isinstance(module, (*_BOUNDED, *_OTHERS)):
                self._handles.append(module.register_forward_hook(self._activation))

    def close(self) -> tuple[LayerHistograms, ...]:
        """Remove the hooks; returns what they have seen."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        empty = _Pass()
        return tuple(
            self._by_layer.get(name, empty).described(name, weight)
            for name, weight in self._weights.items()
        )

    def _layer(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Note the first output of a layer in the update."""
        passed, tensor = self._passes[module], _first_tensor(output)
        if passed.values is not None or tensor is None:
            return
        passed.values, passed.output = _sampled(tensor), weakref.ref(tensor)
        units = 1 if isinstance(module, _BY_CHANNEL) else -1
        if tensor.requires_grad and tensor.ndim > 1:
            tensor.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: passed.note(gradient, units)
            )

    def _activation(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Note the activation function that a layer's output goes through."""
        tensor = _first_tensor(inputs)
        if tensor is None or not isinstance(output, Tensor):
            return
        for passed in self._passes.values():
            if passed.output is not None and passed.output() is tensor and not passed.function:
                passed.function, passed.values = type(module).__name__, _sampled(output)
                passed.saturated = _saturated(module, passed.values)


_BY_CHANNEL = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)
"""Modules whose units are the second dimension of their output."""


class _Pass:
    """What has passed one module in the update."""

    def __init__(self) -> None:
        self.values: Tensor | None = None
        self.output: weakref.ref[Tensor] | None = None
        self.function = ""
        """The name of the activation function behind it, whose values these are."""
        self.saturated: float | None = None
        self._dead: Tensor | None = None

    def note(self, gradient: Tensor, units: int) -> None:
        """Note the share of units that get no gradient from any sample."""
        by_unit = gradient.detach().movedim(units, 0).flatten(1)
        self._dead = (by_unit == 0).all(dim=1).float().mean()

    def described(self, name: str, weight: Tensor) -> LayerHistograms:
        """The layer's histograms and shares."""
        return LayerHistograms(
            name,
            _histogram(_sampled(weight)),
            None if self.values is None else _histogram(self.values),
            self.function,
            None if self._dead is None else float(self._dead),
            self.saturated,
        )


def _first_tensor(value: Any) -> Tensor | None:
    """The value, or the first in a tuple (an LSTM returns its state, too)."""
    first = value[0] if isinstance(value, tuple) and value else value
    return first if isinstance(first, Tensor) and first.is_floating_point() else None


def _sampled(tensor: Tensor) -> Tensor:
    """A copy of evenly spaced values in host memory: an activation may overwrite them in place."""
    flat = tensor.detach().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    return flat[:: -(-flat.numel() // _VALUES) or 1].to("cpu", torch.float32, copy=True)


def _saturated(module: nn.Module, values: Tensor) -> float | None:
    """The share of values where the function is flat; None: it is not at both ends."""
    kind = next((kind for kind in _BOUNDED if isinstance(module, kind)), None)
    if kind is None or isinstance(module, nn.ReLU6):
        return None
    low, high = _BOUNDED[kind]
    if isinstance(module, nn.Hardtanh):
        low, high = float(module.min_val), float(module.max_val)
    near = _NEAR * (high - low)
    return float(((values <= low + near) | (values >= high - near)).float().mean())


def _histogram(values: Tensor) -> Histogram:
    """The counts of the finite values between the lowest and the highest."""
    array = values.numpy().astype(np.float64)
    finite = array[np.isfinite(array)]
    if not len(finite):
        return Histogram(0.0, 0.0, (), len(array))
    low, high = float(finite.min()), float(finite.max())
    counts, _ = np.histogram(finite, BINS if high > low else 1)
    return Histogram(low, high, tuple(map(int, counts)), len(array) - len(finite))
