"""Tells which optimizers evaluate the loss in their step, by a closure: LBFGS, and those in the manner of SAM."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Literal

from torch.optim import Optimizer

ClosureUse = Literal["never", "whole update", "after gradients"]
"""What a step does with a closure: nothing; it computes all gradients by it, the first ones too (LBFGS); it expects gradients,
and evaluates again elsewhere (SAM)."""


def closure_use(optimizer: Optimizer) -> ClosureUse:
    """Tell it by the signature of the step, and by its source: one that has `closure=None` and refuses None is of the last kind."""
    step = type(optimizer).step
    parameter = inspect.signature(step).parameters.get("closure")
    if parameter is None:
        return "never"
    if parameter.default is inspect.Parameter.empty:
        return "whole update"
    return "after gradients" if parameter.default is None and _refuses_none(step) else "never"


def _refuses_none(step: object) -> bool:
    """Whether the source of a step asserts that `closure` is there, or raises where it is None."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(step))))  # type: ignore[arg-type]
    except (OSError, TypeError, SyntaxError):  # compiled, or typed into a shell
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and _is_test(node.test, there=True):
            return True
        if isinstance(node, ast.If) and _is_test(node.test, there=False) and any(isinstance(line, ast.Raise) for line in node.body):
            return True
    return False


def _is_test(test: ast.expr, *, there: bool) -> bool:
    """Whether a condition is `closure is not None` or `closure` (there), or `closure is None` or `not closure`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not there and _named(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        against_none = isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        return _named(test.left) and against_none and isinstance(test.ops[0], ast.IsNot if there else ast.Is)
    return there and _named(test)


def _named(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "closure"
