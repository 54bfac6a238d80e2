"""Lets the LightningModules of a script inherit from nn.Module, so that it needs no Lightning
(`base="nn.Module"`).

The script gives the model what its training calls (`log`, `trainer`, `optimizers()`, …). Where the
code needs more of LightningModule, the script fails, and the verification says so.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from workbench.export.errors import ExportError
from workbench.export.source.origins import Import
from workbench.export.source.rewrite import source_text
from workbench.export.source.rewrite.source_text import Block
from workbench.export.source.source import CODE_ARGUMENTS, Sliced
from workbench.export.source.uses import uses
from workbench.task.lightning.overrides import LIGHTNING

_MODULE = {"torch": ".nn.Module", "torch.nn": ".Module", "torch.nn.Module": ""}
"""For each import, the expression for nn.Module with it."""


def rebased(sliced: Sliced) -> Sliced:
    """The code with nn.Module in place of LightningModule, without imports of Lightning that
    nothing uses then.

    Raises ExportError where no class inherits from LightningModule itself, or `nn` is another name.
    """
    imports, futures = source_text.parsed_imports(sliced.imports)
    known = {item.binds: item.identity for item in imports}
    base = next((name + _MODULE[path] for name, path in known.items() if path in _MODULE), "")
    if not base:
        base = "nn.Module"
        if "nn" in sliced.names:
            raise ExportError(
                "base='nn.Module': `nn` means something else in the code of this bench: rename it."
            )
        imports.append(Import("torch", "nn"))
    blocks = tuple(_rebased(block, base, known) for block in sliced.blocks)
    if blocks == sliced.blocks:
        raise ExportError(
            "base='nn.Module': no class of the script inherits from LightningModule itself, so none"
            " can inherit from nn.Module instead. Leave base out."
        )
    arguments = [text for name, text in sliced.arguments.items() if name in CODE_ARGUMENTS]
    texts = [*(block.text for block in blocks), *(f"({text.strip()})" for text in arguments)]
    all_uses = [uses(node) for text in texts for node in ast.parse(text).body]
    read = {name for used in all_uses for name in used.eager | used.late | used.optional}
    kept = [item for item in imports if item.binds in read or not _is_lightning(item.module)]
    dropped = {item.binds for item in imports} - {item.binds for item in kept}
    needed = {item.module.partition(".")[0] for item in kept}
    return replace(
        sliced,
        imports=source_text.set_imports(kept, futures),
        code=source_text.join(blocks),
        blocks=blocks,
        names=sliced.names - dropped | {item.binds for item in kept},
        modules=sliced.modules - (set(LIGHTNING) - needed),
    )


def _rebased(block: Block, base: str, known: Mapping[str, str]) -> Block:
    """The block, in which a class that inherits from LightningModule inherits from `base`."""
    lines = [line.encode() for line in block.text.split("\n")]
    classes = [node for node in ast.parse(block.text).body if isinstance(node, ast.ClassDef)]
    bases = [
        expression for node in classes for expression in node.bases if _is_base(expression, known)
    ]
    for expression in bases:
        row, start, end = expression.lineno - 1, expression.col_offset, expression.end_col_offset
        lines[row] = lines[row][:start] + base.encode() + lines[row][end:]
    return replace(block, text=b"\n".join(lines).decode()) if bases else block


def _is_base(node: ast.expr, known: Mapping[str, str]) -> bool:
    """Whether an expression is LightningModule, by the names of these imports."""
    root, dot, rest = ast.unparse(node).partition(".")
    path = f"{known[root]}{dot}{rest}" if root in known else ""
    return _is_lightning(path) and path.endswith(".LightningModule")


def _is_lightning(path: str) -> bool:
    return path.partition(".")[0] in LIGHTNING
