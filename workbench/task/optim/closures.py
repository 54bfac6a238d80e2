"""Finds out which optimizers evaluate the loss in their step through a closure: LBFGS, SAM and
similar ones.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Literal

from torch.optim import Optimizer

ClosureUse = Literal["never", "whole update", "after gradients"]
"""How a step uses a closure. "never": it needs none. "whole update": it computes its gradients with
the closure (LBFGS). "after gradients": it needs gradients when it begins, and computes others with
the closure (SAM).
"""

_TRIES = 5
"""Serializes `ast.parse`: CPython 3.11 may raise SystemError while another thread is in it ("AST
constructor recursion depth mismatch").
"""


def closure_use(optimizer: Optimizer) -> ClosureUse:
    """Find the use from the step's signature, and from its source where `closure` is None by
    default and the step refuses None.
    """
    return _of_class(type(optimizer))  # type: ignore[arg-type]  # mypy takes the class for an instance


@functools.cache
def _of_class(kind: type[Optimizer]) -> ClosureUse:
    step = kind.step
    parameter = inspect.signature(step).parameters.get("closure")
    if parameter is None:
        return "never"
    if parameter.default is inspect.Parameter.empty:
        return "whole update"
    of_torch = step.__module__.startswith("torch.")  # none of torch's refuses None
    lines = _lines(step) if parameter.default is None and not of_torch else []
    refusal = next((number for number, line in enumerate(lines) if _refuses_none(line)), None)
    if refusal is None:
        return "never"
    return "after gradients" if _needs_gradients(lines[refusal + 1 :]) else "whole update"


def _lines(step: object) -> list[ast.stmt]:
    """The statements of a step; none where it has no source (it is compiled, or was typed into a
    shell).
    """
    for _ in range(_TRIES):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(step))))  # type: ignore[arg-type]
        except (OSError, TypeError, SyntaxError):
            return []
        except SystemError:
            continue
        return tree.body[0].body if isinstance(tree.body[0], ast.FunctionDef) else []
    return []


def _refuses_none(line: ast.stmt) -> bool:
    """Whether a statement asserts that `closure` is given, or raises an error where it is None."""
    if isinstance(line, ast.Assert):
        return _is_test(line.test, there=True)
    return (
        isinstance(line, ast.If)
        and _is_test(line.test, there=False)
        and any(isinstance(statement, ast.Raise) for statement in line.body)
    )


def _needs_gradients(lines: list[ast.stmt]) -> bool:
    """Whether these statements read gradients, or call a method of the optimizer, before they
    call the closure.
    """
    for line in lines:
        for node in _in_order(line):
            if isinstance(node, ast.Call) and _named(node.func):
                return False
            calls_method = (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func).startswith("self.")
            )
            if calls_method or (isinstance(node, ast.Attribute) and node.attr == "grad"):
                return True
    return False


def _in_order(line: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement in the order of the source."""
    placed = [node for node in ast.walk(line) if isinstance(node, ast.expr)]
    yield from sorted(placed, key=lambda node: (node.lineno, node.col_offset))


def _is_test(test: ast.expr, *, there: bool) -> bool:
    """Whether a condition is `closure is not None` or `closure` (there), or `closure is None` or
    `not closure`.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not there and _named(test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        against_none = (
            isinstance(test.comparators[0], ast.Constant) and test.comparators[0].value is None
        )
        return (
            _named(test.left)
            and against_none
            and isinstance(test.ops[0], ast.IsNot if there else ast.Is)
        )
    return there and _named(test)


def _named(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "closure"
