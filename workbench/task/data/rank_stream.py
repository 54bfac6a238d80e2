"""Finds out whether each rank reads its own share of a stream, and gives it that share.

A stream is read by rank where it says so itself (`is_sharded`, or as its library says it), or where
the setting `streams` is "shard". Any other stream is read whole by each rank, which keeps its share
of the batches (`task/data/sharding.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import DataLoader

from workbench.task.data.loader_parts import users_data
from workbench.task.data.sharding import RankShard
from workbench.task.data.to_dataset import is_of_hugging_face
from workbench.task.errors import TaskError
from workbench.values import shown


def stream_of_rank(name: str, dataset: Any, share: RankShard, *, asked: bool) -> Any | None:
    """Return the stream that yields this rank's own share; None: each rank reads the whole one.

    dataset: what the loader reads. asked: whether the user has set `streams="shard"`. Raises
    TaskError for a stream that yields the share of another rank, or that refuses several ranks.
    """
    stream = _users_stream(dataset)
    _refuse_single_node(name, stream)
    says = getattr(stream, "is_sharded", None)
    if says not in (None, True, False):
        raise TaskError(
            f"{name}.is_sharded is {shown(says)}: it must be True where iterating yields the"
            " samples of this rank alone, and False where it yields all."
        )
    if says is False or isinstance(stream, (list, tuple)):  # ready batches have numbers
        return None
    if hasattr(stream, "distributed_env") and _library(stream) == "litdata":
        # It was made before the rank had joined the others, or in the notebook.
        stream.distributed_env = type(stream.distributed_env).detect()
    owner = _owner_of(stream)
    if owner is not None and owner != (share.rank, share.world):
        raise TaskError(
            f"{name} ({type(stream).__name__}) yields the share of rank {owner[0]} of {owner[1]},"
            f" and rank {share.rank} of {share.world} would read it: give the whole stream with"
            " streams='shard', or make it in each rank, in a script under torchrun."
        )
    if shards_itself(dataset):
        return dataset
    if not asked:
        return None
    if is_of_hugging_face(stream) and stream is dataset:
        from datasets.distributed import split_dataset_by_node

        return split_dataset_by_node(stream, share.rank, share.world)
    return dataset


def shards_itself(dataset: Any) -> bool:
    """Whether a stream says, itself or as its library does, that it yields a rank's own share."""
    stream = _users_stream(dataset)
    says = getattr(stream, "is_sharded", None)
    if isinstance(says, bool):
        return says
    of_litdata = hasattr(stream, "distributed_env") and _library(stream) == "litdata"
    return of_litdata or _owner_of(stream) is not None or "split_by_node" in _stage_names(stream)


def _users_stream(dataset: Any) -> Any:
    """Return the user's stream, also where a loader of the user's reads it."""
    users = users_data(dataset)
    return users.dataset if isinstance(users, DataLoader) else users


def _library(stream: Any) -> str:
    return type(stream).__module__.partition(".")[0]


def _owner_of(stream: Any) -> tuple[int, int] | None:
    """Return the rank whose share a stream yields, and of how many; None: it yields all, or the
    share of the rank in which it is read.
    """
    rank, world = 0, 1
    if (split := getattr(stream, "_distributed", None)) is not None:  # of datasets
        rank, world = split.rank, split.world_size
    elif hasattr(stream, "distributed_env") and _library(stream) == "litdata":
        rank, world = stream.distributed_env.global_rank, stream.distributed_env.world_size
    elif hasattr(stream, "_parallel_rank_world") and _library(stream) == "streaming":  # MosaicML's
        ranks = stream._parallel_rank_world
        rank, world = ranks.rank, ranks.num_ranks
    return (rank, world) if world > 1 else None


def _refuse_single_node(name: str, stream: Any) -> None:
    """Raise TaskError for a stream of webdataset that refuses several ranks."""
    if "single_node_only" in _stage_names(stream):
        raise TaskError(
            f"{name} has nodesplitter=single_node_only of webdataset, which refuses several ranks:"
            " give nodesplitter=webdataset.split_by_node, with which each rank reads its own"
            " shards, or nodesplitter=lambda shards: shards, with which the workbench shards the"
            " batches."
        )


def _stage_names(stream: Any) -> Sequence[str]:
    """Return the names of the functions in a pipeline of webdataset."""
    stages = getattr(stream, "pipeline", ())
    if not isinstance(stages, (list, tuple)):
        return ()
    return [getattr(stage, "__name__", "") for stage in stages]
