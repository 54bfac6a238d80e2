"""Explains errors of models, losses and labels that do not fit together: one sentence for each
common mistake.
"""

from __future__ import annotations

import difflib
import functools
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from workbench.task.batch import TARGETS, leaves, made_of_lists, sample_count
from workbench.task.errors import TaskError
from workbench.task.signature import parameters
from workbench.values import shown

_OF_CLASSES = frozenset(
    (
        "cross_entropy",
        "CrossEntropyLoss",
        "nll_loss",
        "NLLLoss",
        "multi_margin_loss",
        "MultiMarginLoss",
    )
)
"""Losses whose target holds class numbers."""
_BROADCASTS = frozenset(
    (
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "poisson_nll_loss",
        "kl_div",
        "soft_margin_loss",
    )
)
"""torch functions that compare two tensors element by element."""
NO_GRADIENT = (
    "Look for detach(), torch.no_grad(), .item(), argmax or numpy between the model and the loss."
)
_NO_GRADIENT_IN_VALIDATION = (
    "Validations run under torch.no_grad(): where the model or a metric takes gradients itself"
    " (forces, say), write `with torch.enable_grad():` around that part."
)
_TYPES_DIFFER = (
    "same dtype",
    "should be the same",
    "scalar type",
    "input dtype must be",
    "not implemented for 'byte'",
)
"""Parts of torch's errors about dtypes."""
_FLOATS = (
    "but expected float",
    "can't be cast to the desired output type",
    "to have the same dtype",
)


def refuse_unusable(name: str, module: nn.Module) -> None:
    """Raise TaskError for weights on the meta device, for TorchScript, whose state cannot be
    restored, and for parameter groups in place of
    parameters.
    """
    if not all(isinstance(parameter, Tensor) for parameter in module.parameters()):
        kind = type(module).__name__
        raise TaskError(
            f"{name}: {kind}.parameters() returns parameter groups, and torch's own returns "
            "parameters: name that method otherwise, and give "
            "optimizer=lambda params, lr: torch.optim.AdamW(model.parameter_groups(), lr=lr)."
        )
    empty = [
        path
        for path, tensor in (*module.named_parameters(), *module.named_buffers())
        if tensor.is_meta
    ]
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise TaskError(
            f"{name}: {empty[0]!r}{more} is on the meta device, where weights have a shape and no"
            f" values: {name}.to_empty(device='cpu') gives them memory; then load or initialise"
            " them."
        )
    scripted = next(
        (
            path
            for path, submodule in module.named_modules()
            if isinstance(submodule, torch.jit.ScriptModule)
        ),
        None,
    )
    if scripted is not None:
        where = f"{name}.{scripted}" if scripted else name
        raise TaskError(
            f"{where} is TorchScript, whose attributes cannot be stored and restored: give the"
            " nn.Module that it was made of, and script the trained one,"
            " torch.jit.script(bench.model)."
        )


def check_loss(loss: Any) -> None:
    """Raise TaskError, with the remedy, for something that is not a loss."""
    if isinstance(loss, type):
        called = f"nn.{loss.__name__}" if loss.__module__.startswith("torch.nn.") else loss.__name__
        raise TaskError(f"loss={called} is a class: give an instance, loss={called}().")
    if isinstance(loss, nn.Module):
        refuse_unusable("loss", loss)
    if loss is not None and not callable(loss):
        raise TaskError(
            f"loss={shown(loss)} cannot be called: give a function of (output, target)."
        )
    if loss is None:
        return
    known = parameters(loss.forward if isinstance(loss, nn.Module) else loss)
    needed = [
        p.name
        for p in (known or {}).values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 2:
        raise TaskError(
            f"loss={loss_name(loss)} needs {', '.join(needed)}, and a loss is called as"
            " loss(output, target). Leave loss= out, and let the model "
            "return it: an nn.Module around yours whose forward takes all parts of a batch, calls "
            "your model on them, and returns "
            "{'loss': the_loss(…)}."
        )


def explain_missing_loss(model: nn.Module, batch: Any) -> str:
    """The error where no `loss=` was given, and the model does not accept the whole batch."""
    called = f"{type(model).__name__}.forward"
    if not isinstance(batch, Mapping):
        parts = (
            f"all {len(batch)} parts of a batch"
            if isinstance(batch, tuple | list)
            else "all of a batch"
        )
        return (
            f"no loss= was given, and {called} does not take {parts}: add loss=F.cross_entropy (a"
            " function of output and target), or return an output with .loss from the model."
        )
    # a TensorDict iterates over its rows
    accepted, keys = [*(parameters(model.forward) or ())], [str(key) for key, _ in batch.items()]
    unknown = [key for key in keys if key not in accepted]
    for key in unknown:
        if near := difflib.get_close_matches(key, accepted, 1):
            return (
                f"{called} takes {near[0]!r}, and the batch has {key!r}: {_rename(key, near[0])},"
                " or give loss=."
            )
    takes = f"{called}({', '.join(accepted)})"
    if len(accepted) == 1 and accepted[0] not in keys:
        return f"no loss= was given, so {_passed_by_names(takes, keys)}"
    if not unknown:
        return (
            f"no loss= was given, and {takes} needs more than the batch has ({', '.join(keys)}):"
            " add loss=."
        )
    add = ", or add loss=" if any(key in TARGETS for key in unknown) else ""
    return (
        f"no loss= was given, and {takes} does not take {', '.join(map(repr, unknown))} of the"
        f" batch: {_leave_out(unknown)}{add}."
    )


def explain_unknown_inputs(model: nn.Module, inputs: Any) -> str:
    """The error where a batch has more than the model takes, by their names or in a tuple; "": it
    has not.
    """
    accepted = [*(parameters(model.forward) or ())]
    takes = f"{type(model).__name__}.forward({', '.join(accepted)})"
    if isinstance(inputs, Mapping):
        unknown = [str(key) for key, _ in inputs.items() if key not in accepted]
        for key in unknown:
            for near in difflib.get_close_matches(key, accepted, 1):
                if near not in inputs:
                    return (
                        f"{takes} takes {near!r}, and the batch has {key!r}: {_rename(key, near)}."
                    )
        if not unknown:
            return ""
        if len(accepted) == 1 and len(unknown) == len(inputs) > 1:
            return f"with loss= {_passed_by_names(takes, unknown)}"
        unknown_keys = ", ".join(map(repr, unknown))
        return f"{takes} does not take {unknown_keys} of the batch: {_leave_out(unknown)}."
    if not isinstance(inputs, tuple) or len(inputs) <= len(accepted):
        return ""
    return (
        f"{takes} is called with all parts of a batch but the last, its target, and a batch has "
        f"{len(inputs) + 1} parts: leave out those that the "
        "model does not take, collate_fn=lambda samples: default_collate([(x, y) for x, y, *_ in "
        "samples]) with that of torch.utils.data."
    )


def _passed_by_names(takes: str, keys: list[str]) -> str:
    """The error for a model that may take a batch as one argument."""
    return (
        f"the batch is passed by its names ({', '.join(keys)}), which {takes} does not take: take"
        f" them in forward({', '.join(keys)}), or give an object whose training_step calls the"
        " model on the whole batch."
    )


def _leave_out(keys: list[str]) -> str:
    """The remedy for parts of a batch that the model does not take."""
    return (
        f"leave {'it' if len(keys) == 1 else 'them'} out of the samples "
        f"(dataset.remove_columns({keys[0]!r}) for a Hugging Face data set), or let "
        f"forward take {'it' if len(keys) == 1 else 'them'}, "
        f"{', '.join(f'{key}=None' for key in keys)}"
    )


def explain_output_without_loss(model: nn.Module, output: Any, batch: Any) -> str:
    """The error where no `loss=` was given, and the output contains no loss."""
    keys = [key for key, _ in batch.items()] if isinstance(batch, Mapping) else []
    near = next(
        (
            key
            for key in ("label", "target", "targets", "y")
            if key in keys and "labels" not in keys
        ),
        None,
    )
    if near is not None and "labels" in (parameters(model.forward) or ()):
        called = f"{type(model).__name__}.forward"
        return (
            f"no loss= was given, and {called} makes one of 'labels', which the batch calls"
            f" {near!r}: {_rename(near, 'labels')}, or give loss=."
        )
    if not model.training:
        return (
            f"no loss= was given, and in eval mode the model's output ({type(output).__name__}) has"
            " no .loss, so that a validation has nothing to report: give metrics={'map':"
            " torchmetrics.detection.MeanAveragePrecision()}, say, or another object with update,"
            " compute and reset; return {'loss': loss, …} from forward in eval mode, too; or"
            " leave val out."
        )
    return (
        f"no loss= was given, and the model's output ({type(output).__name__}) has no .loss: "
        "give loss=, for example torch.nn.functional.cross_entropy, or return {'loss': loss, …} "
        "from forward, or nothing but losses by name."
    )


def are_losses(output: Any) -> bool:
    """Whether a model's output is a dict of nothing but losses: scalars, all with a gradient."""
    values = list(output.values()) if isinstance(output, Mapping) else []
    return bool(values) and all(
        isinstance(value, Tensor) and value.ndim == 0 and value.requires_grad for value in values
    )


def explain_loss_error(
    loss: Callable[..., Any], output: Any, target: Any, error: BaseException
) -> str | None:
    """Why a loss may have failed on an output and a target, with the remedy; None: unknown."""
    if isinstance(error, torch.OutOfMemoryError):
        return None
    if not isinstance(output, Tensor):
        return _of_output(loss, output, error)
    if not isinstance(target, Tensor):
        return _of_texts(target)
    text = str(error).lower()
    of_classes = (
        loss_name(loss) in _OF_CLASSES
        or "nll_loss" in text
        or "scalar type long" in text
        or "to be long" in text
        or "multi-target" in text
    )
    if of_classes and output.ndim > 1:
        return _of_classes(loss, output, target)
    if (target.dtype is torch.bool and "bool" in text) or (
        not target.is_floating_point() and any(words in text for words in _FLOATS)
    ):
        return (
            f"the target is {_kind(target)}, and this loss takes {_kind(output)}:"
            f" {_call(loss, 'output', 'y.float()')}."
        )
    if output.ndim != target.ndim and output.numel() == target.numel():
        return f"it was given {_shapes(output, target)}: {_one_shape(loss, output, target)}."
    return None


def explain_batch_error(error: BaseException, batch: Any, *, check: bool = False) -> str:
    """The remedy for an error that torch raised on a batch, in the model or the loss, by its text;
    "": unknown.

    check: the error comes from a validation, which runs under torch.no_grad().
    """
    if isinstance(
        error, (TaskError, FloatingPointError, MemoryError, KeyError, torch.OutOfMemoryError)
    ):
        return ""
    low = str(error).lower()
    of_types = any(words in low for words in _TYPES_DIFFER)
    bytes_at = (
        [name or "x" for name, tensor in leaves(batch) if tensor.dtype is torch.uint8]
        if of_types
        else []
    )
    if bytes_at:
        return (
            f"Element {bytes_at[0]} is uint8, and the weights are not: make it numbers of their"
            " type in the data set, x.float() / 255 (v2.ToDtype(torch.float32, scale=True)), or in"
            " the model."
        )
    if (
        isinstance(error, (TypeError, AttributeError))
        and "list" in low
        and (lists := made_of_lists(batch))
    ):
        return (
            f"Element {lists[0]} is a list of {lists[1]} tensors, which torch's collation makes of"
            " samples that are lists of numbers: make tensors in the data set, torch.tensor(x), or"
            " give collate_fn= (a data collator of transformers, say)."
        )
    if "does not require grad" in low:
        return f"{_NO_GRADIENT_IN_VALIDATION if check else NO_GRADIENT}"
    if "found dtype long but expected float" in low:
        return "The target is made of integers, and the loss compares numbers: y.float()."
    types = {tensor.dtype for _, tensor in leaves(batch)}
    if of_types and ("double" in low or torch.float64 in types):
        if torch.float32 in types and torch.float64 not in types:
            return (
                "Inputs and weights differ in type, and the inputs are float32: give a float64"
                " model float64 data (x.double())."
            )
        return (
            "Inputs and weights differ in type: numpy makes float64; convert with"
            " x.astype('float32')."
        )
    if "indices" in low and "embedding" in low:
        return (
            "An embedding takes whole numbers, and the columns of a frame become float numbers:"
            " give them as an array, x.to_numpy()."
        )
    whole = [
        name or "x"
        for name, tensor in leaves(batch)
        if of_types and not tensor.is_floating_point() and not tensor.is_complex()
    ]
    if whole and re.search(r"\b(long|int|bool|short|char)", low):
        return (
            f"Inputs and weights differ in type: where element {whole[0]} holds numbers for the"
            " model's weights, convert it with x.astype('float32') (x.float() of a tensor)."
        )
    if "using a target size" in low:
        return (
            "Output and target would be broadcast against each other: give both one shape"
            " (squeeze(-1), say)."
        )
    if "shapes cannot be multiplied" in low or re.search(
        r"size mismatch,? (got|m1|mat1)|expected input( batch_size|\[| to )", low
    ):
        return "The shape that the model expects is not the shape of the data."
    if label := re.search(r"target (-?\d+) is out of bounds", low):
        return _of_label(int(label[1]))
    if "expected more than 1 value per channel" in low:
        return (
            f"Batch normalisation needs more than one sample in a batch, and this one has"
            f" {sample_count(batch)}: drop_last=True leaves out a short last batch."
        )
    if "does not support sparse gradients" in low:
        return (
            "Give the layer with sparse=True an optimizer that takes them, optimizer={'embedding':"
            " torch.optim.SparseAdam, '': torch.optim.AdamW}, or make it with sparse=False."
        )
    if "could not create a primitive" in low:
        return (
            "This processor cannot run such a layer in this precision (an LSTM in bfloat16 needs"
            " AVX-512): take precision='32'."
        )
    return ""


def _of_label(label: int) -> str:
    if label < 0:
        return (
            f"The labels count from 0, and one is {label}: clean them, or let the loss leave it"
            f" out, loss=functools.partial(F.cross_entropy, ignore_index={label})."
        )
    return (
        f"The label {label} is not below the number of the model's outputs: give the model at least"
        f" {label + 1} outputs, or clean the labels, which count from 0."
    )


def add_remedy(error: BaseException, remedy: str) -> None:
    """Add what `explain_batch_error` says to the message of an error, which records and panels
    show, too; a note where the message is no plain text.
    """
    if not remedy or remedy in str(error):
        return
    if type(error).__str__ is BaseException.__str__ and [*map(type, error.args)] == [str]:
        error.args = (f"{str(error).rstrip().removesuffix('.')}. {remedy}",)
    else:
        error.add_note(remedy)


def explain_step_error(error: BaseException) -> str | None:
    """The remedy for an error of an optimizer's own step; None: it is another error, or unknown."""
    kind = next(
        (
            kind
            for frame, _ in traceback.walk_tb(error.__traceback__)
            if (kind := _stepping(frame)) is not None
        ),
        None,
    )
    if kind is None:
        return None
    text = f"{type(error).__name__}: {error}".lower()
    if "closure" in text:
        return (
            f"{kind}.step() asks for a closure, to evaluate the loss again: an optimizer is given"
            " one only where its step has `closure` without a default (as LBFGS), or refuses"
            " closure=None in its first lines (as SAM). Take another optimizer, or a subclass"
            " whose step(self, closure) calls closure() and then super().step(closure)."
        )
    if "does not require grad" in text or "create_graph" in text:
        return (
            f"{kind}.step() differentiates the gradients again, which takes"
            " loss.backward(create_graph=True): no job calls it so. Take another optimizer."
        )
    return None


def _stepping(frame: FrameType) -> str | None:
    """The type of the optimizer whose step a frame belongs to; None: it is another frame."""
    names = frame.f_code.co_varnames
    owner = frame.f_locals.get(names[0]) if frame.f_code.co_name == "step" and names else None
    return type(owner).__name__ if isinstance(owner, Optimizer) else None


def refuse_one_class(loss: Callable[..., Any], output: Any) -> None:
    """Raise TaskError for a cross entropy over a single class: it is 0 whatever the model does."""
    if (
        loss_name(loss) in ("cross_entropy", "CrossEntropyLoss")
        and isinstance(output, Tensor)
        and output.ndim > 1
        and output.shape[1] == 1
    ):
        raise TaskError(
            f"the output has shape {tuple(output.shape)}, one class, whose cross entropy is always"
            " 0: for two classes of one output take loss=lambda output, y:"
            " F.binary_cross_entropy_with_logits(output.squeeze(1), y.float())."
        )


class ShapeCheck(TorchFunctionMode):
    """Context manager in which an operation raises an error if it broadcasts an output and a
    target, each sample against every other.

    Operations on the output alone, or the target alone, that keep its shape are followed. An
    operation that adds a dimension on purpose (`y[:, None]`) changes the shape and is not followed.
    """

    def __init__(self, what: str, function: Callable[..., Any], output: Any, target: Any) -> None:
        super().__init__()
        self._what, self._function = what, function
        self._from: dict[int, tuple[str, Tensor]] = {}
        if isinstance(output, Tensor) and isinstance(target, Tensor) and output.ndim != target.ndim:
            self._shapes = {"output": output.shape, "target": target.shape}
            self._from = {id(output): ("output", output), id(target): ("target", target)}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = (
            [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, Tensor)]
            if self._from
            else []
        )
        origins = [self._from.get(id(tensor), ("", tensor))[0] for tensor in tensors]
        both = (
            dict(zip(origins, tensors, strict=True))
            if sorted(origins) == ["output", "target"]
            else {}
        )
        # checked before the call: torch itself only warns
        if both and getattr(func, "__name__", "") in _BROADCASTS:
            self._check(None, both["output"], both["target"])
        result = func(*args, **(kwargs or {}))
        if both:
            self._check(result, both["output"], both["target"])
        elif (
            isinstance(result, Tensor)
            and len(set(origins)) == 1
            and origins[0]
            and result.shape == self._shapes[origins[0]]
        ):
            self._from[id(result)] = origins[0], result
        return result

    def _check(self, result: Any, output: Tensor, target: Tensor) -> None:
        """Raise TaskError if output and target broadcast. result: of an operation on both; None:
        one that compares them element by element.
        """
        if output.shape != self._shapes["output"] or target.shape != self._shapes["target"]:
            return
        try:
            whole = torch.broadcast_shapes(output.shape, target.shape)  # type: ignore[no-untyped-call]
        except RuntimeError:
            return
        elementwise = result is None or (isinstance(result, Tensor) and result.shape == whole)
        if elementwise and whole.numel() > max(output.numel(), target.numel()):
            name = "loss" if self._what == "the loss" else ""
            raise TaskError(
                f"{self._what} compares {_shapes(output, target)}, which broadcast to"
                f" {tuple(whole)}, each sample against every other:"
                f" {_one_shape(self._function, output, target, name)}."
            )


def unknown_parameters(loss: Tensor, known: Iterable[Tensor]) -> list[Tensor]:
    """Parameters that a loss depends on and that are not among the known ones."""
    known_ids, unknown = set(map(id, known)), dict[int, Tensor]()
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, nn.Parameter) and id(variable) not in known_ids:
            unknown[id(variable)] = variable
        waiting += [following for following, _ in node.next_functions]
    return list(unknown.values())


def _of_output(loss: Callable[..., Any], output: Any, error: BaseException) -> str | None:
    names = list(output) if isinstance(output, Mapping) else list(getattr(output, "__dict__", ()))
    if (
        not isinstance(error, TypeError | AttributeError)
        or not names
        or isinstance(output, tuple | list)
    ):
        return None
    kind = type(output).__name__
    if "logits" in names and hasattr(output, "logits"):
        return (
            f"the model returned a {kind}, and the loss takes a tensor:"
            f" {_call(loss, 'output.logits', 'y')}."
        )
    first = "logits" if "logits" in names else names[0]
    selected = f"output[{first!r}]" if isinstance(output, Mapping) else f"output.{first}"
    return (
        f"the model returned a {kind} with {', '.join(map(str, names[:5]))}, and the loss takes a "
        f"tensor: {_call(loss, selected, 'y')}."
    )


def _of_texts(target: Any) -> str | None:
    """Explain labels that are strings, which collation leaves in a list."""
    if not isinstance(target, (tuple, list)) or not target or not isinstance(target[0], str):
        return None
    return (
        f"the labels are texts ({target[0]!r}, …): make numbers of them in the data set,"
        " names.index(label)."
    )


def _of_classes(loss: Callable[..., Any], output: Tensor, target: Tensor) -> str | None:
    wanted, number = (len(output), *output.shape[2:]), "y"
    if target.ndim > 1 and output.shape[:-1] == target.shape != wanted:
        turned = "output.transpose(1, 2)" if output.ndim == 3 else "output.movedim(-1, 1)"
        number += "" if target.dtype == torch.int64 else ".long()"
        return (
            f"it was given {_shapes(output, target)}, and this loss takes the classes as the second"
            f" dimension of the output: {_call(loss, turned, number)}."
        )
    if target.ndim == output.ndim and target.shape[1] == 1:
        number += ".squeeze(1)"
    elif tuple(target.shape) != wanted:
        return None
    number += "" if target.dtype == torch.int64 else ".long()"
    if number == "y":
        return None
    return (
        f"the labels are {_kind(target)} of shape {tuple(target.shape)}, and this loss takes class"
        f" numbers, int64 of shape {wanted}: {_call(loss, 'output', number)}."
    )


def _one_shape(
    loss: Callable[..., Any], output: Tensor, target: Tensor, argument: str = "loss"
) -> str:
    """The remedy that gives both one shape: drop a last dimension of 1, where that makes them
    equal.
    """
    if output.shape[-1:] == (1,) and output.shape[:-1] == target.shape:
        return _call(loss, "output.squeeze(-1)", "y", argument)
    if target.shape[-1:] == (1,) and target.shape[:-1] == output.shape:
        return _call(loss, "output", "y.squeeze(-1)", argument)
    return "give both one shape"


def _call(loss: Callable[..., Any], output: str, target: str, argument: str = "loss") -> str:
    called = (
        f"F.{loss_name(loss)}"
        if getattr(loss, "__module__", "") in ("torch.nn.functional", "torch._C._nn")
        else "your_loss"
    )
    return (
        f"{argument}=lambda output, y: {called}({output}, {target})"
        if argument
        else f"take f({output}, {target})"
    )


def loss_name(loss: Any) -> str:
    """The name of a loss function, or of its class."""
    while isinstance(loss, functools.partial):
        loss = loss.func
    return str(getattr(loss, "__name__", type(loss).__name__))


def _shapes(output: Tensor, target: Tensor) -> str:
    return (
        f"the output of shape {tuple(output.shape)} with the target of shape {tuple(target.shape)}"
    )


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _rename(name: Any, wanted: str) -> str:
    return (
        f"rename it, dataset.rename_column({str(name)!r}, {wanted!r}) for a Hugging Face data set"
    )
