"""The whole text of an exported script: head, imports, the user's code, settings, functions, main.

The user's names stay as they are. Where one of them is also a name of ours, ours gives way.
"""

from __future__ import annotations

import ast
import re
from textwrap import dedent

from workbench.export import blocks, body
from workbench.export.recipe import Recipe

_IMPORTS = {
    "argparse": "import argparse",
    "contextlib": "import contextlib",
    "dataclasses": "import dataclasses",
    "json": "import json",
    "random": "import random",
    "Path": "from pathlib import Path",
    "np": "import numpy as np",
    "torch": "import torch",
    "Accelerator": "from accelerate import Accelerator",
    "load_model": "from safetensors.torch import load_model",
    "DataLoader": "from torch.utils.data import DataLoader",
    "TensorDataset": "from torch.utils.data import TensorDataset",
}
_GIVEN = (
    ("the_model", "model"), ("train_data", "train"), ("val_data", "val"), ("loss_function", "loss"),
    ("metrics", "metrics"), ("collate_fn", "collate_fn"), ("make_optimizer", "optimizer"),
    ("make_scheduler", "scheduler"),
)  # fmt: skip


def text_of(r: Recipe) -> str:
    """The file."""
    code = r.sliced.code.strip("\n")
    functions = [
        blocks.seeding(r), blocks.workers(r), blocks.loaders(r), blocks.helpers(r), blocks.forward(r),
        blocks.set_lr(r), blocks.configured(r), blocks.validate(r), body.main(r), _parse(),
    ]  # fmt: skip
    ours = "\n\n\n".join(
        part.strip("\n") for part in (_config(r), blocks.changes(r), _rule("the loop"), *functions) if part
    )
    names = {node.id for node in ast.walk(ast.parse(ours)) if isinstance(node, ast.Name)}
    imports = {name: line for name, line in _IMPORTS.items() if name in names or name == "torch"}
    given = [(ours_, theirs) for ours_, theirs in _GIVEN if ours_ in names]
    renamed = _renamed(r, ours, imports, [name for name, _ in given])
    parts = [
        _head(r),
        _import_lines(r, imports, renamed),
        f"THREADS = {r.threads}  # of the run: with another number, sums are rounded differently\n"
        f"{renamed.get('torch', 'torch')}.set_num_threads(THREADS)",
        f"{_rule('the code of the run')}\n\n{code}" if code else "",
        f"{_rule('what the workbench was given')}\n\n{_bindings(r, given, renamed)}",
        f"{_rule('its settings')}\n\n\n{_with_names(ours, renamed)}",
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _rule(title: str) -> str:
    return f"# ---- {title} ".ljust(100, "-")


def _head(r: Recipe) -> str:
    stopped = " It was stopped there: max_steps says where." if r.stopped else ""
    return dedent(f'''\
        """Train {_plain(r.model)} as the run {r.run} did.{stopped}

        Written by Tuning Workbench {r.version}. It runs as it is:

            python {_plain(r.script)}
            accelerate launch {_plain(r.script)}      (or torchrun: on every device you have)

        Every setting has an option (--lr 1e-3). The weights that the run began with are taken from
        {_plain(r.weights)}, if that file is there.
        """''')


def _renamed(r: Recipe, ours: str, imports: dict[str, str], given: list[str]) -> dict[str, str]:
    """Our names that the user's code has too, with what they are called instead."""
    tree = ast.parse(ours)
    mine = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    mine |= {"THREADS", "CHANGES", "config", "log", "output", *given}
    theirs_by_import = _imported(r.sliced.imports)
    mine |= {name for name, line in imports.items() if theirs_by_import.get(name, line) != line}
    mine |= {name for name in imports if name not in theirs_by_import}
    taken = set(r.sliced.names) | set(theirs_by_import)
    same = {ours_ for ours_, theirs in _GIVEN if r.given(theirs) == ours_}
    renamed = {}
    for name in sorted((mine & taken) - same):
        new = name + "_"
        while new in taken or new in mine:
            new += "_"
        renamed[name] = new
    return renamed


def _imported(imports: str) -> dict[str, str]:
    """The names that import lines bind, each with the line that would bind it alone."""
    found = {}
    for node in ast.parse(imports).body:
        for alias in getattr(node, "names", ()):
            renamed = f" as {alias.asname}" if alias.asname else ""
            origin = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            found[alias.asname or alias.name.partition(".")[0]] = f"{origin}import {alias.name}{renamed}"
    return found


def _import_lines(r: Recipe, imports: dict[str, str], renamed: dict[str, str]) -> str:
    theirs = r.sliced.imports.strip().splitlines()
    there = _imported(r.sliced.imports)
    future = [line for line in theirs if line.startswith("from __future__")]
    lines = []
    for name, line in imports.items():
        if name in renamed:
            lines.append(f"{line.partition(' as ')[0]} as {renamed[name]}")
        elif name not in there:
            lines.append(line)
    rest = [line for line in theirs if line not in future]
    groups = [future, lines, rest]
    return "\n\n".join("\n".join(group) for group in groups if group)


def _bindings(r: Recipe, given: list[tuple[str, str]], renamed: dict[str, str]) -> str:
    lines = []
    for name, theirs in given:
        default = f"{renamed.get('torch', 'torch')}.optim.AdamW" if theirs == "optimizer" else None
        expression = r.given(theirs) or default
        target = renamed.get(name, name)
        if expression is not None and expression != target:
            lines.append(f"{target} = {expression}")
    return "\n".join(lines)


def _with_names(text: str, renamed: dict[str, str]) -> str:
    for name, new in renamed.items():
        # Not behind a dot (an attribute), before = (a keyword), or in a quoted option.
        text = re.sub(rf"(?<![\w.'\"-]){re.escape(name)}(?![\w'\"]|=[^=])", new, text)
    return text


def _config(r: Recipe) -> str:
    s = r.settings
    lines = [f"lr: float = {s.lr!r}"]
    if s.weight_decay is not None:
        lines.append(f"weight_decay: float = {s.weight_decay!r}")
    lines.append(f"batch_size: int = {s.batch_size}")
    if s.accumulate_grad_batches > 1:
        lines.append(f"accumulate_grad_batches: int = {s.accumulate_grad_batches}  # batches in one update")
    if r.clips:
        off = s.gradient_clip_val is None
        lines.append("gradient_clip_val: float = " + ('float("inf")' if off else repr(s.gradient_clip_val)))
    if s.epochs is not None:
        lines.append(f"max_epochs: int = {s.epochs}")
    if s.max_steps is not None:
        lines.append(f"max_steps: int = {s.max_steps}  # updates")
    if s.num_workers:
        lines.append(f"num_workers: int = {s.num_workers}")
    lines.append(f"seed: int = {s.seed}")
    return "@dataclasses.dataclass\nclass Config:\n" + "\n".join("    " + line for line in lines)


def _parse() -> str:
    return dedent("""\
        def parse():
            parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
            for field in dataclasses.fields(Config):
                kind = type(field.default)
                parser.add_argument(f"--{field.name}", type=kind, default=field.default, help="default: %(default)s")
            parser.add_argument("--log", help="write one JSON line for each update to this file")
            parser.add_argument("--output", help="save the trained weights to this file")
            options = vars(parser.parse_args())
            log, output = options.pop("log"), options.pop("output")
            return Config(**options), log, output


        if __name__ == "__main__":
            main(*parse())""")


def _plain(text: object) -> str:
    """Text that cannot end a docstring."""
    return str(text).replace("\\", "/").replace('"', "'")
