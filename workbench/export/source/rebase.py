"""Lets the LightningModules of a script inherit from nn.Module, so that it needs no Lightning (`base="nn.Module"`)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import nn

from workbench.export.errors import ExportError
from workbench.export.source import layout
from workbench.export.source.layout import Block, Import
from workbench.export.source.source import CODE_ARGUMENTS, Sliced

_PACKAGES = ("lightning", "pytorch_lightning")
_ELSEWHERE = {"hparams", "save_hyperparameters", "load_from_checkpoint", "freeze", "unfreeze", "to_onnx", "to_torchscript"}
"""What code outside of a class may use of a LightningModule, and of little else."""


def rebased(sliced: Sliced, lightning: type, given: frozenset[str]) -> Sliced:
    """The same code with nn.Module in place of LightningModule; ExportError names what of Lightning it needs still.

    lightning: the class LightningModule. given: its attributes that the script gives to the model.
    """
    imports = list(_imports(sliced.imports))
    known = {item.binds: item.identity for item in imports}
    base = next((f"{name}{rest}" for name, path in known.items() for rest in [_MODULE.get(path)] if rest), "")
    if not base:
        base = "nn.Module"
        if "nn" in sliced.names:
            raise ExportError("base='nn.Module': `nn` means something else in the code of this bench: rename it.")
        imports.append(Import("torch", "nn"))
    defined = {name for block in sliced.blocks for name in _defined(ast.parse(block.text))}
    inherited = set(dir(lightning())) - set(dir(nn.Module()))
    own = inherited - given - defined
    blocks = [_rebased(block, base, known) for block in sliced.blocks]
    changed = [node for new, old in zip(blocks, sliced.blocks, strict=True) if new is not old for node in _classes(new)]
    for class_ in _related(changed, [node for block in blocks for node in _classes(block)]):
        _check(class_, own, inherited)
    if not changed:
        raise ExportError("base='nn.Module': no class of the script inherits from LightningModule itself, so none can inherit from nn.Module instead.")
    arguments = [ast.parse(text.strip(), mode="eval") for name, text in sliced.arguments.items() if name in CODE_ARGUMENTS]
    trees: list[ast.AST] = [*(ast.parse(block.text) for block in blocks), *arguments]
    for tree in trees:
        _check_uses(tree, own, known)
    kept = [item for item in imports if item.module.partition(".")[0] not in _PACKAGES]
    futures = re.findall(r"^from __future__ import (.*)$", sliced.imports, re.MULTILINE)
    dropped = {item.binds for item in imports} - {item.binds for item in kept}
    return replace(
        sliced,
        imports=layout.set_imports(kept, ", ".join(futures).split(", ") if futures else []),
        code=layout.join(tuple(blocks)),
        blocks=tuple(blocks),
        names=sliced.names - dropped | {item.binds for item in kept},
        modules=sliced.modules - set(_PACKAGES),
    )


_MODULE = {"torch": ".nn.Module", "torch.nn": ".Module", "torch.nn.Module": " "}
"""By what a name was imported as: how nn.Module is written with it."""


def _imports(text: str) -> Iterator[Import]:
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, None, alias.asname) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield from (Import(node.module or "", alias.name, alias.asname) for alias in node.names)


def _classes(block: Block) -> list[ast.ClassDef]:
    return [node for node in ast.parse(block.text).body if isinstance(node, ast.ClassDef)]


def _related(changed: list[ast.ClassDef], classes: list[ast.ClassDef]) -> list[ast.ClassDef]:
    """Those of the classes that are, inherit from, or are inherited by one whose base changes."""
    names = {node.name for node in changed}
    while True:
        bases = {node.name: {ast.unparse(base) for base in node.bases} for node in classes}
        more = {name for name, own in bases.items() if own & names} | {base for name in names for base in bases.get(name, ())}
        if more <= names:
            return [node for node in classes if node.name in names]
        names |= more


def _defined(tree: ast.Module) -> Iterator[str]:
    """The names that classes define, in their bodies or as attributes of their instances."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for part in ast.walk(node):
                if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    yield part.name
                elif isinstance(part, (ast.Attribute, ast.Name)) and isinstance(part.ctx, ast.Store):
                    yield part.attr if isinstance(part, ast.Attribute) else part.id


def _rebased(block: Block, base: str, known: Mapping[str, str]) -> Block:
    """The block, in which a class that inherits from LightningModule inherits from `base`."""
    lines = [line.encode() for line in block.text.split("\n")]
    found = [
        expression
        for node in ast.parse(block.text).body
        if isinstance(node, ast.ClassDef)
        for expression in node.bases
        if (path := _path(expression, known)).partition(".")[0] in _PACKAGES and path.endswith(".LightningModule")
    ]
    for expression in found:
        row, start, end = expression.lineno - 1, expression.col_offset, expression.end_col_offset
        lines[row] = lines[row][:start] + base.strip().encode() + lines[row][end:]
    return replace(block, text=b"\n".join(lines).decode()) if found else block


def _path(node: ast.expr, known: Mapping[str, str]) -> str:
    """The dotted path of an imported object; "" for others."""
    root, dot, rest = ast.unparse(node).partition(".")
    return f"{known[root]}{dot}{rest}" if root in known else ""


def _check(class_: ast.ClassDef, own: set[str], inherited: set[str]) -> None:
    """Raise ExportError for what a class uses of LightningModule and the script does not give it."""
    for method in (node for node in class_.body if isinstance(node, ast.FunctionDef) and node.args.args):
        first = method.args.args[0].arg
        for part in ast.walk(method):
            if not isinstance(part, ast.Attribute):
                continue
            of_parent = isinstance(part.value, ast.Call) and ast.unparse(part.value.func) == "super"
            of_self = isinstance(part.value, ast.Name) and part.value.id == first
            if (of_self and part.attr in own) or (of_parent and part.attr in inherited):
                raise _needed(f"{class_.name}.{method.name} uses {ast.unparse(part)}", part.attr)


def _check_uses(tree: ast.AST, own: set[str], known: Mapping[str, str]) -> None:
    """Raise ExportError where code needs Lightning itself."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Attribute) and part.attr in own & _ELSEWHERE:
            raise _needed(f"the code uses {ast.unparse(part)}", part.attr)
        modules = [part.module or ""] if isinstance(part, ast.ImportFrom) else [a.name for a in part.names] if isinstance(part, ast.Import) else []
        modules += [known.get(part.id, "")] if isinstance(part, ast.Name) else []
        if any(module.partition(".")[0] in _PACKAGES for module in modules):
            whole = next((one for one in ast.walk(tree) if isinstance(one, ast.Attribute) and one.value is part), part)
            raise _needed(f"the code uses {ast.unparse(whole)}", "")


def _needed(what: str, name: str) -> ExportError:
    hyper = name in ("hparams", "save_hyperparameters")
    remedy = "assign what you need (self.width = width), and fit again" if hyper else "write it without Lightning and fit again"
    return ExportError(f"base='nn.Module' cannot replace LightningModule: {what}: {remedy}; or export without base.")
