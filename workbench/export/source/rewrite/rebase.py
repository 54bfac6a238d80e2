"""Lets the LightningModules of a script inherit from nn.Module, so that it needs no Lightning (`base="nn.Module"`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import nn

from workbench.export.errors import ExportError
from workbench.export.source.origins import Import, imported
from workbench.export.source.rewrite import source_text
from workbench.export.source.rewrite.source_text import Block
from workbench.export.source.source import CODE_ARGUMENTS, Sliced
from workbench.export.source.uses import uses
from workbench.task.lightning.overrides import LIGHTNING

_ELSEWHERE = {"hparams", "save_hyperparameters", "load_from_checkpoint", "freeze", "unfreeze", "to_onnx", "to_torchscript"}
"""Names that code outside of a class uses on a LightningModule and on hardly any other object."""


def rebased(sliced: Sliced, lightning: type, given: frozenset[str], model: str, inside: frozenset[str]) -> Sliced:
    """The code with nn.Module in place of LightningModule; raises ExportError naming a feature of Lightning that it still needs.

    lightning: the class LightningModule. given: its attributes that the script sets on the model after making it; modules inside the
    model get only their trainer. model: the name of the model's class. inside: the names of the classes of modules inside it.
    """
    imports, futures = source_text.parsed_imports(sliced.imports)
    known = {item.binds: item.identity for item in imports}
    base = next((name + _MODULE[path] for name, path in known.items() if path in _MODULE), "")
    if not base:
        base = "nn.Module"
        if "nn" in sliced.names:
            raise ExportError("base='nn.Module': `nn` means something else in the code of this bench: rename it.")
        imports.append(Import("torch", "nn"))
    defined = {name for block in sliced.blocks for node in _classes(block) for name in _defined_in(node)}
    inherited = set(dir(lightning())) - set(dir(nn.Module()))
    blocks = [_rebased(block, base, known) for block in sliced.blocks]
    changed = [node for new, old in zip(blocks, sliced.blocks, strict=True) if new is not old for node in _classes(new)]
    classes = {node.name: node for block in blocks for node in _classes(block)}
    parents = {parent for node in classes.values() for parent in _parents(node)}
    for name in classes:
        family = _ancestors(name, classes)
        if not any(node.name in family for node in changed):
            continue
        if name == model:
            _check_family([classes[one] for one in family], given, inherited)
        # A base class may use attributes that its subclasses define.
        if name in inside or (name != model and name not in parents):
            _check_family([classes[one] for one in family], given, inherited, model)
    if not changed:
        raise ExportError("base='nn.Module': no class of the script inherits from LightningModule itself, so none can inherit from nn.Module instead.")
    arguments = [f"({text.strip()})" for name, text in sliced.arguments.items() if name in CODE_ARGUMENTS]
    for statement in (node for text in [*(block.text for block in blocks), *arguments] for node in ast.parse(text).body):
        _check_uses(statement, inherited - given - defined, known)
    kept = [item for item in imports if not _is_lightning(item.module)]
    dropped = {item.binds for item in imports} - {item.binds for item in kept}
    return replace(
        sliced,
        imports=source_text.set_imports(kept, futures),
        code=source_text.join(tuple(blocks)),
        blocks=tuple(blocks),
        names=sliced.names - dropped | {item.binds for item in kept},
        modules=sliced.modules - set(LIGHTNING),
    )


_MODULE = {"torch": ".nn.Module", "torch.nn": ".Module", "torch.nn.Module": ""}
"""For each import, the expression for nn.Module with it."""


def _classes(block: Block) -> list[ast.ClassDef]:
    return [node for node in ast.parse(block.text).body if isinstance(node, ast.ClassDef)]


def _parents(class_: ast.ClassDef) -> list[str]:
    """The names of the classes that it inherits from."""
    return [ast.unparse(base).partition("[")[0] for base in class_.bases]


def _ancestors(name: str, classes: Mapping[str, ast.ClassDef]) -> list[str]:
    """A class and its base classes in the script."""
    found = [name]
    for one in found:
        found += [parent for parent in dict.fromkeys(_parents(classes[one])) if parent in classes and parent not in found]
    return found


def _defined_in(class_: ast.ClassDef) -> Iterator[str]:
    """The names that a class defines, in its body or as attributes of its instances."""
    for node in class_.body:
        if not isinstance(node, _FUNCTIONS):
            yield from uses(node).binds
            continue
        yield node.name
        yield from (part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and _is_self(part, node))


def _is_self(part: ast.Attribute, method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is an attribute of the method's own object."""
    return isinstance(part.value, ast.Name) and bool(method.args.args) and part.value.id == method.args.args[0].arg


def _rebased(block: Block, base: str, known: Mapping[str, str]) -> Block:
    """The block, in which a class that inherits from LightningModule inherits from `base`."""
    lines = [line.encode() for line in block.text.split("\n")]
    found = [
        expression
        for node in ast.parse(block.text).body
        if isinstance(node, ast.ClassDef)
        for expression in node.bases
        if _is_lightning(path := _path(expression, known)) and path.endswith(".LightningModule")
    ]
    for expression in found:
        row, start, end = expression.lineno - 1, expression.col_offset, expression.end_col_offset
        lines[row] = lines[row][:start] + base.strip().encode() + lines[row][end:]
    return replace(block, text=b"\n".join(lines).decode()) if found else block


def _path(node: ast.expr, known: Mapping[str, str]) -> str:
    """The dotted path of an imported object; "" for others."""
    root, dot, rest = ast.unparse(node).partition(".")
    return f"{known[root]}{dot}{rest}" if root in known else ""


def _check_family(family: list[ast.ClassDef], given: frozenset[str], inherited: set[str], within: str = "") -> None:
    """Raise ExportError if a class or its base classes use a feature of LightningModule that the script does not provide, or only later.

    within: the class of the model, where this is one of a module inside it.
    """
    defined = {name for class_ in family for name in _defined_in(class_)}
    methods = [(class_, node) for class_ in family for node in class_.body if isinstance(node, _FUNCTIONS) and node.args.args]
    uses = [(class_, method, part) for class_, method in methods for part in ast.walk(method) if isinstance(part, ast.Attribute)]
    first = _called_by_init([method for _, method in methods])
    for class_, method, part in uses:
        of_self = _is_self(part, method) and part.attr in inherited - defined
        if (of_self and part.attr not in given) or (_of_parent(part) and part.attr in inherited):
            raise _needed(f"{class_.name}.{method.name} uses {ast.unparse(part)}", part.attr)
        if of_self and within and part.attr != "trainer":
            remedy = "take that of a tensor (x.device)" if part.attr == "device" else f"let {within} hand it over"
            raise ExportError(
                f"base='nn.Module': {class_.name}.{method.name} uses {ast.unparse(part)}, which the script gives to {within} alone, and not to modules "
                f"inside it: {remedy}, and fit again; or export without base."
            )
        if of_self and method.name in first:
            of_init = "" if method.name == "__init__" else ", which __init__ calls,"
            remedy = "leave it out (a model is made on the CPU)" if part.attr == "device" else "use it in a method that the training calls (on_fit_start)"
            raise ExportError(
                f"base='nn.Module': {class_.name}.{method.name}{of_init} uses {ast.unparse(part)}, which the script sets after the model is made: "
                f"{remedy}, and fit again; or export without base."
            )


def _called_by_init(methods: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> set[str]:
    """The names of `__init__`, and of the methods and properties that it uses."""
    found = ["__init__"]
    for name in found:
        for method in (one for one in methods if one.name == name):
            called = [part.func for part in ast.walk(method) if isinstance(part, ast.Call)]
            parts = [part for part in ast.walk(method) if isinstance(part, ast.Attribute) and (_is_self(part, method) or _of_parent(part))]
            properties = {one.name for one in methods if one.decorator_list}
            found += {part.attr for part in parts if part in called or part.attr in properties} - set(found)
    return set(found)


def _of_parent(part: ast.Attribute) -> bool:
    return isinstance(part.value, ast.Call) and ast.unparse(part.value.func) == "super"


def _check_uses(statement: ast.stmt, own: set[str], known: Mapping[str, str]) -> None:
    """Raise ExportError where code needs Lightning itself."""
    found = uses(statement)
    read = {name for name in found.eager | found.late | found.optional if _is_lightning(known.get(name, ""))}
    for part in sorted(ast.walk(statement), key=lambda part: not isinstance(part, ast.Attribute)):
        if isinstance(part, ast.Attribute) and part.attr in own & _ELSEWHERE:
            raise _needed(f"the code uses {ast.unparse(part)}", part.attr)
        whole = part.value if isinstance(part, ast.Attribute) else part
        if (isinstance(whole, ast.Name) and whole.id in read) or any(_is_lightning(item.module) for item in imported(part)):
            raise _needed(f"the code uses {ast.unparse(part)}", "")


def _is_lightning(path: str) -> bool:
    return path.partition(".")[0] in LIGHTNING


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _needed(what: str, name: str) -> ExportError:
    hyper = name in ("hparams", "save_hyperparameters")
    remedy = "assign what you need (self.width = width), and fit again" if hyper else "write it without Lightning and fit again"
    return ExportError(f"base='nn.Module' cannot replace LightningModule: {what}: {remedy}; or export without base.")
