"""Determines whether a statement changes state of the whole process: seeds, defaults, environment variables."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from workbench.export.source import calls
from workbench.export.source.calls import Context
from workbench.export.source.origins import is_inlined
from workbench.export.source.uses import own_level, targets

_STATE = {
    "torch.use_deterministic_algorithms",
    "torch.serialization.add_safe_globals",
    "os.chdir",
    "os.putenv",
    "os.environ.update",
    "os.environ.setdefault",
    "os.environ.pop",
    "random.setstate",
    "sys.setrecursionlimit",
    "numpy.random.set_state",
    "pandas.set_option",
}
_NOT_STATE = {"torch.set_printoptions", "torch.cuda.set_device"}


def sets_state(node: ast.AST, context: Context) -> bool:
    """Whether `node` sets state of the whole process on which later results depend: seeds, defaults, environment variables."""
    return any(_sets_state(part, context) for part in own_level(node))


def sets_environment(node: ast.AST, context: Context) -> bool:
    """Whether `node` changes environment variables, which some packages read when they are imported."""
    for part in own_level(node):
        for path in [*_stored_paths(part, context), _called_path(part, context) or ""]:
            if path.startswith(("os.environ", "os.putenv")):
                return True
    return False


def _called_path(node: ast.AST, context: Context) -> str | None:
    return calls.path_of(node.func, context) if isinstance(node, ast.Call) else None


def _stored_paths(node: ast.AST, context: Context) -> Iterator[str]:
    """The paths of attributes and items of modules that an assignment sets: "torch.backends.cudnn.benchmark"."""
    for target in targets(node):
        inner: ast.expr = target
        while isinstance(inner, ast.Subscript):
            inner = inner.value
        root = calls.first_name(inner)
        if isinstance(target, (ast.Attribute, ast.Subscript)) and root and context.is_module(root):
            path = calls.path_of(inner, context)
            if path:
                yield path


def _sets_state(node: ast.AST, context: Context) -> bool:
    for stored in _stored_paths(node, context):
        if stored.partition(".")[0] not in calls.SHOWING and "display" not in stored and not is_inlined(stored):
            return True
    if not isinstance(node, ast.Call):
        return False
    summary = calls.summary_of(node.func, context)
    if summary is not None:
        return summary.state
    path = _called_path(node, context)
    if path is None or path in _NOT_STATE:
        return False
    top, _, name = path.rpartition(".")
    if path == "pandas.set_option":
        shown = node.args and isinstance(node.args[0], ast.Constant) and "display" in str(node.args[0].value)
        return not shown
    if path in _STATE or (name.startswith("set_") and top.partition(".")[0] in ("torch", "multiprocessing")):
        return True
    return "seed" in name and not name.startswith(("initial", "get"))
