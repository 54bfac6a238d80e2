"""Gathers the state that differs between ranks into one checkpoint, from which each rank restores
its own.

Weights and optimizers are the same on all ranks, or each has its rows of them. Random numbers and
positions in the data differ. Hidden states, buffers, counters and logged values are stored for each
rank where they differ from rank 0's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from workbench.engine.checkpoint.files import tensors_of
from workbench.engine.distributed.process_group import ProcessGroup
from workbench.engine.session import Session
from workbench.events import Message
from workbench.task import rng
from workbench.task.errors import TaskError
from workbench.task.state.held import fingerprint
from workbench.task.state.serialization import to_plain

BUFFERS = "buffers"
"""The entry for the model's buffers of a rank, where they differ from rank 0's, which are among
the weights.
"""
OTHER_BUFFERS = "other buffers"
"""The entry for those of the further modules, whose weights are sharded."""
_OWN = frozenset(("random", "data"))
_ALIKE = frozenset(
    (
        "optimizers",
        "average",
        "spikes",
        "scaler",
        "settings",
        "plan",
        "seconds",
        "length",
        "checks",
        "world",
    )
)


def gather_states(
    ranks: ProcessGroup,
    modules: Sequence[nn.Module],
    state: Mapping[str, Any] | None,
    *,
    sharded: bool = False,
) -> dict[str, Any] | None:
    """The plain state of several ranks, on rank 0. None elsewhere (if sharded: the state of the
    rank, with its rows), and where a rank has none. All ranks call it together.

    modules: the model and the further modules of the task.
    """
    parts = (
        {} if state is None else {key: value for key, value in state.items() if key not in _ALIKE}
    )
    if sharded:
        parts.pop("others", None)  # what is not sharded of them are their buffers
        parts[OTHER_BUFFERS] = to_plain(list(map(_buffers, modules[1:])), "the loss")
    parts[BUFFERS] = to_plain(_buffers(modules[0]), "the model")
    prints = ranks.all_gather_object(
        None
        if state is None
        else {key: _digest(value) for key, value in parts.items() if key not in _OWN}
    )
    known = [checksums for checksums in prints if checksums is not None]
    if len(known) < ranks.world:
        return None
    names = {name for checksums in known for name in checksums}
    different = _OWN | {
        name for name in names if len({checksums.get(name) for checksums in known}) > 1
    }
    of_ranks = ranks.all_gather_object(
        {key: parts[key] for key in different if key in parts} if ranks.rank else {}
    )
    if state is None or not ranks.first:
        return dict(state) if state is not None and sharded else None
    return {**state, "ranks": of_ranks[1:]}


def state_of_rank(ranks: ProcessGroup, state: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """This rank's part of such a state, and whether there were as many ranks as now; else rank
    0's part.
    """
    world = state.get("world", 1)
    if world != ranks.world:
        if state["mid_epoch"] and not state["validation_due"]:
            written_by, here = _in_words(world), _in_words(ranks.world)
            raise TaskError(
                f"the checkpoint is of {written_by} in the middle of an epoch, whose batches cannot"
                f" be redistributed to {here}: set devices={world} (a launcher: start {world}"
                " processes), or take the weights as a new start with bench.load(run), then"
                " bench.fit()."
            )
        return dict(state), False
    return {**state, **(state["ranks"][ranks.rank - 1] if ranks.rank else {})}, True


def rewind(session: Session) -> None:
    """Give each rank random numbers of its own where the number of ranks has changed, and add a
    message.
    """
    rng.seed_rank(session.settings.seed + session.state.step, session.ranks.rank)
    text = (
        f"it continues with {_in_words(session.ranks.world)} where there was another number of"
        " them: the batches are redistributed, so the run differs from one that was not"
        " interrupted."
    )
    session.notes.append(Message(text, "warning", session.state.step))


def _buffers(model: nn.Module) -> dict[str, Any]:
    names = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return {name: tensor for name, tensor in tensors_of(model).items() if name in names}


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(fingerprint(value)).encode()).hexdigest()


def _in_words(world: int) -> str:
    return "1 process" if world == 1 else f"{world} ranks"
