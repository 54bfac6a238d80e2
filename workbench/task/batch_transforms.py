"""Transforms of a training batch: mixup, cutmix and label smoothing.

An exported script contains this file's text where the user's code uses it, so it needs nothing but
torch. Random numbers are torch's own, which a checkpoint stores.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class MixedTarget:
    """The target of a batch whose samples were mixed, or whose labels are smoothed.

    A loss that is linear in the target needs no more than its value for each of the mixed targets.
    """

    def __init__(
        self, shares: Sequence[tuple[Tensor, float]], smoothing: float | None = None
    ) -> None:
        """shares: the targets, each with its share. smoothing: of the labels; None: none."""
        self.shares = tuple(shares)
        self.smoothing = smoothing

    def mixed(self, share: float) -> MixedTarget:
        """The target with that of each sample's partner, which is the sample before it."""
        partners = [(target.roll(1, 0), (1.0 - share) * of) for target, of in self.shares]
        selves = [(target, share * of) for target, of in self.shares]
        return MixedTarget([*selves, *partners], self.smoothing)

    def loss(self, function: Callable[..., Any], output: Any) -> Any:
        """The loss of an output: the sum of the losses for all targets, times their shares."""
        if self.smoothing is not None:
            function = smoothed(function, self.smoothing)
        losses = [function(output, target) for target, _ in self.shares]
        if len(losses) == 1 or any(loss is None for loss in losses):
            return losses[0]
        shares = [share for _, share in self.shares]
        if isinstance(losses[0], Mapping):
            return {
                name: sum(share * loss[name] for share, loss in zip(shares, losses, strict=True))
                for name in losses[0]
            }
        return sum(share * loss for share, loss in zip(shares, losses, strict=True))


@dataclass(frozen=True)
class Mixing:
    """A transform that mixes the samples of a share `p` of the batches."""

    alpha: float
    p: float

    def __post_init__(self) -> None:
        check_mixing(type(self).__name__.lower(), self.alpha, self.p)

    def __call__(self, batch: Any) -> Any:
        self.inputs(batch)
        if self.p < 1.0 and float(torch.rand(())) >= self.p:
            return batch
        return self.mixed(batch)

    def inputs(self, batch: Any) -> list[Tensor]:
        """The inputs that are mixed; raises ValueError where one cannot be."""
        raise NotImplementedError

    def mixed(self, batch: Any) -> Any:
        """The batch with its samples mixed."""
        raise NotImplementedError


class MixUp(Mixing):
    """What `wb.mixup` returns: a transform of batches."""

    def inputs(self, batch: Any) -> list[Tensor]:
        return mixed_inputs("mixup", batch, dimensions=1)

    def mixed(self, batch: Any) -> Any:
        """Each sample is mixed with the one before it."""
        share = beta(self.alpha)

        def mix(values: Tensor) -> Tensor:
            return values.roll(1, 0).mul_(1.0 - share).add_(values.mul(share))

        return mixed_batch("mixup", batch, mix, share, dimensions=1)


def mixup(alpha: float = 0.2, p: float = 1.0) -> MixUp:
    """A transform for `wb.Workbench(…, batch_transform=…)`: each sample is mixed with the one
    before it in its batch, and so is its loss.

    alpha: the share of a sample is drawn once a batch from Beta(alpha, alpha): 0.1 to 0.4 for
    images, larger mixes more. p: the share of batches that are mixed. All tensors among the inputs
    have floating-point numbers, and the target has classes. The loss is share · loss(output, y) +
    (1 - share) · loss(output, y of the partner), for any `loss=` of classes. Source: Zhang et al.,
    "mixup" (2017); the numbers are those of torchvision's `v2.MixUp`.
    """
    return MixUp(alpha, p)


class CutMix(Mixing):
    """What `wb.cutmix` returns: a transform of batches."""

    def inputs(self, batch: Any) -> list[Tensor]:
        return mixed_inputs("cutmix", batch, dimensions=3)

    def mixed(self, batch: Any) -> Any:
        """A rectangle of each image comes from the one before it."""
        height, width = self.inputs(batch)[0].shape[-2:]
        half = 0.5 * math.sqrt(1.0 - beta(self.alpha))
        across, down = int(torch.randint(width, (1,))), int(torch.randint(height, (1,)))
        left, right = max(across - int(half * width), 0), min(across + int(half * width), width)
        top, bottom = max(down - int(half * height), 0), min(down + int(half * height), height)

        def mix(images: Tensor) -> Tensor:
            images = images.clone()
            partners = images.roll(1, 0)
            images[..., top:bottom, left:right] = partners[..., top:bottom, left:right]
            return images

        share = 1.0 - (right - left) * (bottom - top) / (width * height)
        return mixed_batch("cutmix", batch, mix, share, dimensions=3)


def cutmix(alpha: float = 1.0, p: float = 1.0) -> CutMix:
    """A transform for `wb.Workbench(…, batch_transform=…)`: a rectangle of each image comes from
    the image before it in its batch, and so does its part of the loss.

    alpha: the share that stays is drawn once a batch from Beta(alpha, alpha). p: the share of
    batches that are mixed. All tensors among the inputs have shape (N, …, height, width).
    Source: Yun et al., "CutMix" (2019); the numbers are those of torchvision's `v2.CutMix`.
    """
    return CutMix(alpha, p)


@dataclass(frozen=True)
class LabelSmoothing:
    """What `wb.label_smoothing` returns: a transform of batches."""

    epsilon: float

    def __post_init__(self) -> None:
        if not is_number(self.epsilon) or not 0.0 < self.epsilon < 1.0:
            raise ValueError(
                f"wb.label_smoothing({self.epsilon!r}): give a number between 0 and 1."
            )

    def __call__(self, batch: Any) -> Any:
        target = target_of("label_smoothing", batch)
        return with_target(batch, MixedTarget(target.shares, self.epsilon))


def label_smoothing(epsilon: float = 0.1) -> LabelSmoothing:
    """A transform for `wb.Workbench(…, batch_transform=…)`: the training loss has smoothed labels,
    and that of a validation has not, so that runs with different values can be compared.

    epsilon: the probability that is spread over all classes. For `loss=F.cross_entropy` or an
    `nn.CrossEntropyLoss`. Source: Szegedy et al., "Rethinking the Inception architecture" (2015);
    the numbers are those of torch's `label_smoothing`.
    """
    return LabelSmoothing(epsilon)


@dataclass(frozen=True)
class OneOf:
    """What `wb.one_of` returns: a transform of batches."""

    transforms: tuple[Callable[[Any], Any], ...]

    def __post_init__(self) -> None:
        if not self.transforms or not all(map(callable, self.transforms)):
            raise ValueError(
                "wb.one_of(…): give transforms one by one, wb.one_of(wb.mixup(0.2),"
                " wb.cutmix(1.0))."
            )

    def __call__(self, batch: Any) -> Any:
        number = int(torch.randint(len(self.transforms), (1,)))
        return self.transforms[number](batch)


def one_of(*transforms: Callable[[Any], Any]) -> OneOf:
    """A transform for `wb.Workbench(…, batch_transform=…)`: one of several, drawn for each batch
    with equal chances: `wb.one_of(wb.mixup(0.2), wb.cutmix(1.0))`.
    """
    return OneOf(transforms)


def check_mixing(name: str, alpha: float, p: float) -> None:
    """Raise ValueError for arguments with which nothing can be drawn."""
    if not is_number(alpha) or not 0.0 < alpha < math.inf:
        raise ValueError(f"wb.{name}(alpha={alpha!r}): give a number above 0.")
    if not is_number(p) or not 0.0 < p <= 1.0:
        raise ValueError(f"wb.{name}(p={p!r}): give a share of batches, above 0 and up to 1.")


def is_number(value: Any) -> bool:
    """Whether a value is a number, NumPy's included, and no True or False."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def beta(alpha: float) -> float:
    """A number drawn from Beta(alpha, alpha)."""
    both = torch.tensor([float(alpha)])
    return float(torch.distributions.Beta(both, both).sample(()))


def target_key(batch: Mapping[str, Any]) -> str:
    """The key of a batch's target; "": it has none."""
    keys = ("labels", "label", "targets", "target", "y")
    return next((key for key in keys if key in batch), "")


def target_of(name: str, batch: Any) -> MixedTarget:
    """The target of a batch, which may be mixed already; raises ValueError where it has no
    classes.
    """
    target: Any = None
    if isinstance(batch, Mapping):
        target = batch.get(target_key(batch))
    elif isinstance(batch, list | tuple) and len(batch) > 1:
        target = batch[-1]
    if isinstance(target, MixedTarget):
        return target
    if not isinstance(target, Tensor):
        raise ValueError(
            f"batch_transform=wb.{name}(…): the batch has no target, which is the last part of a"
            " tuple, or is called 'y', 'target' or 'label' in a dict."
        )
    # probabilities of classes are in [0, 1]; other numbers are no classes
    if not target.ndim or (
        target.is_floating_point() and not bool(((target >= 0) & (target <= 1)).all())
    ):
        raise ValueError(
            f"batch_transform=wb.{name}(…): the target is {kind_of(target)}, and classes are"
            " needed: whole numbers, or probabilities."
        )
    return MixedTarget([(target, 1.0)])


def kind_of(values: Tensor) -> str:
    """The type and shape of a tensor."""
    return f"{str(values.dtype).removeprefix('torch.')} of shape {tuple(values.shape)}"


def with_target(batch: Any, target: Any) -> Any:
    """The batch with another target."""
    if isinstance(batch, Mapping):
        return {**batch, target_key(batch): target}
    return (*batch[:-1], target)


def mixed_inputs(name: str, batch: Any, dimensions: int) -> list[Tensor]:
    """The tensors among the inputs of a batch, which are all mixed; raises ValueError where there
    are none, or one that cannot be mixed.
    """
    target_of(name, batch)
    if isinstance(batch, Mapping):
        inputs = {repr(key): value for key, value in batch.items() if key != target_key(batch)}
    else:
        inputs = {f"number {number}": value for number, value in enumerate(batch[:-1])}
    tensors = {label: value for label, value in inputs.items() if isinstance(value, Tensor)}
    unmixed = [label for label, value in tensors.items() if not is_mixed(value, dimensions)]
    if unmixed or not tensors:
        needed = "images (N, …, height, width)" if dimensions > 1 else "floating-point numbers"
        problem = "there is no tensor among the inputs"
        if unmixed:
            problem = f"input {unmixed[0]} is {kind_of(tensors[unmixed[0]])}"
        raise ValueError(
            f"batch_transform=wb.{name}(…) mixes {needed}, and {problem}: convert it in a function"
            " before, or mix in a function of your own."
        )
    return list(tensors.values())


def is_mixed(value: Any, dimensions: int) -> bool:
    """Whether it is an input that can be mixed."""
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim >= dimensions


def mixed_batch(
    name: str, batch: Any, mix: Callable[[Tensor], Tensor], share: float, dimensions: int
) -> Any:
    """The batch with its inputs and its target mixed."""
    mixed = with_target(batch, target_of(name, batch).mixed(share))
    if isinstance(mixed, Mapping):
        return {
            key: mix(value) if is_mixed(value, dimensions) else value
            for key, value in mixed.items()
        }
    return tuple(mix(value) if is_mixed(value, dimensions) else value for value in mixed)


def smoothed(function: Callable[..., Any], epsilon: float) -> Callable[..., Any]:
    """A cross entropy with smoothed labels; raises ValueError for another loss."""
    if isinstance(function, nn.CrossEntropyLoss) and not function.label_smoothing:
        return functools.partial(
            nn.functional.cross_entropy,
            weight=function.weight,
            ignore_index=function.ignore_index,
            reduction=function.reduction,
            label_smoothing=epsilon,
        )
    inner, options = function, dict[str, Any]()
    if isinstance(function, functools.partial):
        inner, options = function.func, function.keywords
    if inner is not nn.functional.cross_entropy or options.get("label_smoothing"):
        raise ValueError(
            "wb.label_smoothing(…) needs loss=F.cross_entropy or nn.CrossEntropyLoss() without a"
            " label_smoothing of its own: for another loss, smooth the labels in the loss."
        )
    return functools.partial(function, label_smoothing=epsilon)
