"""Finds the blocks that a model repeats, such as the layers of a transformer.

An exported script contains this file's text, so it needs nothing but torch.
"""

from __future__ import annotations

import torch


def repeated_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The outermost blocks that a model repeats: modules of one class in a list or a sequence,
    each of which has parts and is called.
    """
    children = [*module.children()]
    listed = isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential))
    same = len(children) > 1 and len({type(child) for child in children}) == 1
    called = same and type(children[0]).forward is not torch.nn.Module.forward
    if listed and called and any(children[0].children()):
        return children
    return [block for child in children for block in repeated_blocks(child)]
