"""Runs a step again that was not finite, to find the operation in which NaN or infinity began.

In the forward pass it checks every operation for the first one whose inputs are finite and whose
result is not, and reaches the loss. (An infinite mask before a softmax is no fault.) In the
backward pass it checks every node of the graph in the same way; `torch.autograd.set_detect_anomaly`
gives the line of the forward pass that made the node.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.overrides import TorchFunctionMode

from workbench.task.batch import leaves
from workbench.task.modules import kept_buffers
from workbench.tracebacks import shown_line

_NOT_THE_USERS = tuple(
    str(folder) + os.sep for folder in (Path(torch.__file__).parent, Path(__file__).parents[1])
)


_OF_INFINITE = "which made NaN of infinite values"
"""How a place ends in which the values came from outside, as infinity, and turned into NaN."""


def began_in_training(began: str | None) -> bool:
    """Whether a place that `replay` described made such values of finite ones."""
    return (began or "").startswith("first in ") and not (began or "").endswith(_OF_INFINITE)


def replay(forward: Callable[[], Tensor], modules: nn.Module) -> str | None:
    """Return in words where a NaN or infinity began in `forward` (which returns the loss) or its
    backward; None: nowhere.

    Gradients and buffers do not change, and no hook stays. The caller restores the random
    generators to their states before the step, so that it is the same step.
    """
    remembering = torch.autograd.set_detect_anomaly(True, check_nan=False)
    with remembering, _eager(), kept_buffers([modules]), torch.enable_grad():
        watch = _Watch(modules)
        with watch.hooked(), watch:
            loss = forward()
        return _backward(loss, watch) if _finite(loss) else watch.why(loss)


@dataclass(frozen=True, slots=True)
class _Place:
    """A module that is running, and whether its inputs and weights are finite."""

    path: str
    module: nn.Module
    clean: bool

    @property
    def words(self) -> str:
        kind = type(self.module).__name__
        return f"`{self.path}` ({kind})" if self.path else f"the model itself ({kind})"

    @property
    def opaque(self) -> bool:
        """Whether it is a module of torch, which has no line of the user's code."""
        return type(self.module).__module__.partition(".")[0] == "torch"


class _Watch(TorchFunctionMode):
    """Records which operation made each tensor that is not finite, and which module each node of
    the graph belongs to.
    """

    def __init__(self, modules: nn.Module) -> None:
        super().__init__()
        self.owners: dict[Node, _Place | None] = {}
        self._modules = modules
        self._running: list[_Place] = []
        # By identity; the tensor is kept, so that no other tensor gets its id.
        self._origins: dict[int, tuple[Tensor, str]] = {}
        self._first: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = _floats([args, kwargs])
        bad = [t for t in inputs if not _finite(t)]
        result = func(*args, **kwargs)
        # an operation in place returns no new tensor
        written = inputs[:1] if not any(t is inputs[0] for t in bad) else []
        bad_results = [t for t in [*_floats([result]), *written] if not _finite(t)]
        if (
            bad_results
            and (origin := self._origin(func, bad, bad_results, [args, kwargs])) is not None
        ):
            self._note(bad_results, origin)
        return result

    def _origin(
        self, func: Any, bad: list[Tensor], bad_results: list[Tensor], arguments: Any
    ) -> str | None:
        known = next((self._origins[id(t)][1] for t in bad if id(t) in self._origins), None)
        if known is not None:
            return known
        if not bad and not _has_number(arguments, lambda number: not math.isfinite(number)):
            return self._words(func.__name__.strip("_"))
        if any(map(_has_nan, bad_results)) and not any(map(_has_nan, bad)):
            is_constant = _has_number(arguments, math.isnan)  # torch.full((3,), torch.nan)
            remark = "with a NaN in the code" if is_constant else _OF_INFINITE
            return self._words(func.__name__.strip("_"), remark)
        return None  # it was an input: a mask, or a value from outside

    def _words(self, operation: str, remark: str = "") -> str:
        innermost = self._running[-1] if self._running else None
        line = _user_line(traceback.extract_stack())
        tail = f", {remark}" if remark else ""
        if innermost is None:
            return f"first in {operation}{line}{tail}"
        if innermost.clean and not remark and not any(innermost.module.children()):
            detail = "" if innermost.opaque else f": in {operation}{line}"
            return f"first in {innermost.words}, whose inputs and weights are finite{detail}"
        return f"first in {operation}{line}, in {innermost.words}{tail}"

    def _note(self, tensors: list[Tensor], origin: str) -> None:
        self._first = self._first or origin
        for tensor in tensors:
            self._origins[id(tensor)] = (tensor, origin)

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """Context manager in which hooks record which module is running."""
        handles: list[torch.utils.hooks.RemovableHandle] = []
        try:
            for path, module in self._modules.named_modules():
                handles.append(
                    module.register_forward_pre_hook(self._enter(path), with_kwargs=True)
                )
                handles.append(module.register_forward_hook(self._leave, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, path: str) -> Callable[[nn.Module, Any, Any], None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            with torch._C.DisableTorchFunction():
                inputs = _floats([args, kwargs])
                self.claim(inputs)
                parameters = module.parameters(recurse=False)
                self._running.append(
                    _Place(path, module, all(map(_finite, [*inputs, *parameters])))
                )

        return enter

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        with torch._C.DisableTorchFunction():
            outputs = _floats([output])
            self.claim(outputs)
            finished = self._running.pop()
            bad = [t for t in outputs if not _finite(t)]
            # made by code that no operation shows
            if finished.clean and any(id(t) not in self._origins for t in bad):
                self._note(bad, f"first in {finished.words}, whose inputs and weights are finite")

    def claim(self, tensors: list[Tensor]) -> None:
        """Assign the new graph nodes of these tensors to the module that is running."""
        innermost = self._running[-1] if self._running else None
        todo = [t.grad_fn for t in tensors if t.grad_fn is not None]
        while todo:
            node = todo.pop()
            if node not in self.owners:
                self.owners[node] = innermost
                todo += [after for after, _ in node.next_functions if after is not None]

    def why(self, loss: Tensor) -> str:
        """Return in words where a loss that is not finite came from."""
        noted = self._origins.get(id(loss))
        origin = noted[1] if noted else self._first
        if origin:
            return origin
        return (
            "no operation on finite values made it: it came from the batch, the weights or a"
            " constant"
        )


def _backward(loss: Tensor, watch: _Watch) -> str | None:
    """Return the first node whose inputs are finite and whose result is not; no gradient is
    stored.
    """
    if not loss.requires_grad:
        return None
    watch.claim([loss])
    inputs = [
        v
        for v in (getattr(node, "variable", None) for node in watch.owners)
        if isinstance(v, Tensor)
    ]
    findings: list[str] = []

    def look(node: Node) -> Callable[[Any, Any], None]:
        def after(results: Any, incoming: Any) -> None:
            bad_results = [t for t in _floats(results) if not _finite(t)]
            if bad_results and not findings and all(map(_finite, _floats(incoming))):
                findings.append(_node_words(node, bad_results, watch.owners[node]))

        return after

    handles = [node.register_hook(look(node)) for node in watch.owners]
    try:
        # Not loss.backward(): that would add to gradients, and wake hooks that step or send them.
        # it would end at a NaN, and knows nothing of infinities
        with torch.autograd.set_detect_anomaly(False):
            gradients = torch.autograd.grad(loss, inputs, allow_unused=True)
    except RuntimeError as error:  # checkpoint(use_reentrant=True) allows nothing but backward()
        findings.append(f"the forward pass is finite, and its backward cannot be replayed: {error}")
        gradients = ()
    finally:
        for handle in handles:
            handle.remove()
    if not findings and not all(_finite(g) for g in gradients if g is not None):
        return "the gradient became infinite where finite parts of it were added up"
    return findings[0] if findings else None


def _node_words(node: Node, bad_results: list[Tensor], module_call: _Place | None) -> str:
    kind = "NaN" if any(map(_has_nan, bad_results)) else "infinite"
    line = _user_line(_stack_of(node))
    where = f", in {module_call.words}" if module_call else ""
    return (
        f"the gradient became {kind} in "
        f"{node.name().rpartition('::')[2].rstrip('0123456789')}{line}{where}"
    )


_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)\n(?:    (.*))?')


def _stack_of(node: Node) -> list[traceback.FrameSummary]:
    """Return the stack of the forward pass that made a node, as anomaly mode recorded it."""
    metadata = cast("dict[str, Any]", node.metadata)
    matches = [_FRAME.match(entry) for entry in metadata.get("traceback_", ())]
    return [
        traceback.FrameSummary(m[1], int(m[2]), m[3], lookup_line=False, line=m[4] or "")
        for m in matches
        if m is not None
    ]


def _user_line(stack: list[traceback.FrameSummary]) -> str:
    """The innermost line of the user's code, outside of `replay`, as ", of `line` at cell 4, line
    7" or "… at model.py, line 7"; "" where no line is the user's.
    """
    for frame in reversed(stack):
        if frame.filename == __file__ and frame.name == replay.__name__:
            break  # the frames above belong to the caller of the run
        if not frame.filename.startswith(_NOT_THE_USERS):
            return (
                f", of `{(frame.line or '?').strip()}` at"
                f" {shown_line(frame.filename, frame.lineno or 0)}"
            )
    return ""


def _eager() -> contextlib.AbstractContextManager[Any]:
    """Context manager in which compiled models run eagerly, since compiled code has neither
    hooks nor lines.
    """
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _floats(value: Any) -> list[Tensor]:
    return [t for _, t in leaves(value) if t.is_floating_point() or t.is_complex()]


def _finite(tensor: Tensor) -> bool:
    try:
        return bool(torch.isfinite(tensor.detach()).all())
    except RuntimeError:  # torch cannot check it: sparse, or inside vmap
        return True


def _has_nan(tensor: Tensor) -> bool:
    return bool(torch.isnan(tensor.detach()).any())


def _has_number(value: Any, matches: Callable[[float], bool]) -> bool:
    """Whether an operation was called with such a number on purpose: masked_fill(mask, -inf)."""
    if isinstance(value, float):
        return matches(value)
    values = value.values() if isinstance(value, dict) else value
    return isinstance(value, (list, tuple, dict)) and any(
        _has_number(item, matches) for item in values
    )
