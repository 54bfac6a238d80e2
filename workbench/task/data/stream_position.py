"""Brings streams under one contract: `load_state_dict` gives the position of the next pass, and the pass after that begins anew.

That is how torchdata's StatefulDataLoader uses a stream with `state_dict` and `load_state_dict`. All functions here take the parts of a stream
that have these methods, by their paths (`DataRngState.stateful`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workbench.task.data.to_dataset import is_of_hugging_face, shuffles_in_a_buffer


def hold_position(parts: Mapping[str, Any]) -> bool:
    """Whether the states of these parts are the position of their stream. The samples in a shuffle buffer are in no state."""
    return bool(parts) and not any(map(shuffles_in_a_buffer, parts.values()))


def begin_anew(parts: Mapping[str, Any]) -> bool:
    """Whether each pass over these parts begins anew, also where the one before was left early: Hugging Face's streams do so."""
    return all(map(is_of_hugging_face, parts.values()))


def forget_position(parts: Mapping[str, Any]) -> None:
    """Let the next pass begin anew: a stream of Hugging Face would keep the position of `load_state_dict` for all passes of an epoch."""
    for part in parts.values():
        if is_of_hugging_face(part):
            part.load_state_dict(None)
