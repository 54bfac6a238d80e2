"""Each rank reads its own share of a stream, as the stream's library says it."""

import types

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import workbench as wb
from workbench.settings import Settings
from workbench.task.data.rank_stream import shards_itself
from workbench.task.data.sharding import RankShard
from workbench.task.data.spec import DataSpec
from workbench.task.errors import TaskError

WHOLE, SHARD = Settings(batch_size=2), Settings(batch_size=2, streams="shard")


def read(stream, settings, rank=0, world=2):
    """The numbers in what a rank reads, and whether it is its own share."""
    spec = DataSpec.of("train", stream)
    spec.share = RankShard(rank, world)
    batches = [batch["x"] if isinstance(batch, dict) else batch for batch in spec.loader(settings)]
    return torch.cat([torch.as_tensor(x).flatten() for x in batches]).tolist(), spec.read_by_rank


class Numbers(IterableDataset):
    """The numbers below 12, or every `world`-th."""

    def __init__(self, rank=0, world=1):
        self.rank, self.world = rank, world

    def __iter__(self):
        yield from map(float, range(self.rank, 12, self.world))


def test_a_stream_is_read_whole_or_as_it_yields_it():
    """Whole, each rank keeps every other batch; by rank, all that it is given."""
    assert read(Numbers(), WHOLE, 1) == ([2, 3, 6, 7, 10, 11], False)
    assert read(Numbers(1, 2), SHARD, 1) == ([1, 3, 5, 7, 9, 11], True)
    assert read(Numbers(1, 2), SHARD, 0, world=1) == ([1, 3, 5, 7, 9, 11], None)


@pytest.mark.parametrize("says", [True, False])
def test_what_the_stream_says_wins(says):
    stream = Numbers()
    stream.is_sharded = says
    for settings in (WHOLE, SHARD):
        assert read(stream, settings)[1] is says
        assert read(DataLoader(stream, 3), settings)[1] is says


def test_data_with_numbers_are_divided_by_the_workbench():
    ready = wb.batches([torch.tensor([float(n)]) for n in range(4)])
    assert read(ready, SHARD, 1) == ([1, 3], False)
    assert read([torch.tensor(float(n)) for n in range(8)], SHARD, 1)[1] is None


# -- of libraries, by stand-ins with the same attributes; tests/ecosystem has the packages themselves


class OfMosaicML(Numbers):
    def __init__(self, rank, world):
        super().__init__(rank, world)
        self._parallel_rank_world = types.SimpleNamespace(rank=rank, num_ranks=world)


class Split(Numbers):
    """Split by split_dataset_by_node."""

    def __init__(self, rank, world):
        super().__init__(rank, world)
        self._distributed = types.SimpleNamespace(rank=rank, world_size=world)


OfMosaicML.__module__ = "streaming.base.dataset"


@pytest.mark.parametrize("kind", [OfMosaicML, Split])
def test_the_share_of_this_rank_is_read_and_that_of_another_refused(kind):
    assert shards_itself(kind(1, 2))
    assert not shards_itself(kind(0, 1))
    assert read(kind(1, 2), WHOLE, 1) == ([1, 3, 5, 7, 9, 11], True)
    assert read(kind(0, 1), WHOLE, 1) == ([2, 3, 6, 7, 10, 11], False)
    for place in ((0, 2), (1, 3)):
        with pytest.raises(
            TaskError, match=rf"train \({kind.__name__}\) yields the share of rank {place[0]} of {place[1]}, and rank 1 of 2"
        ):  # fmt: skip
            read(kind(*place), SHARD, 1)


class Environment(types.SimpleNamespace):
    """The place of a process, as litdata keeps it."""

    @classmethod
    def detect(cls):
        return cls(global_rank=1, world_size=2)


class OfLitdata(Numbers):
    """Made before its process was a rank."""

    distributed_env = Environment(global_rank=0, world_size=1)

    def __iter__(self):
        place = self.distributed_env
        yield from map(float, range(place.global_rank, 12, place.world_size))


OfLitdata.__module__ = "litdata.streaming.dataset"


def test_litdata_learns_its_rank():
    assert shards_itself(OfLitdata())
    assert read(OfLitdata(), WHOLE, 1) == ([1, 3, 5, 7, 9, 11], True)


def split_by_node(shards):
    """webdataset's: by the rank's environment."""


def single_node_only(shards):
    """webdataset's default."""


class OfWebdataset(Numbers):
    def __init__(self, stage):
        super().__init__(1, 2)
        self.pipeline = [iter, stage]


def test_webdataset_divides_its_shards_by_its_nodesplitter():
    assert read(OfWebdataset(split_by_node), WHOLE, 1) == ([1, 3, 5, 7, 9, 11], True)
    assert read(OfWebdataset(list), WHOLE, 1)[1] is False
    for settings in (WHOLE, SHARD):
        with pytest.raises(TaskError, match=r"give nodesplitter=webdataset\.split_by_node"):
            read(OfWebdataset(single_node_only), settings, 1)


def test_streams_of_hugging_face_are_split_for_the_rank():
    datasets = pytest.importorskip("datasets")
    distributed = pytest.importorskip("datasets.distributed")

    def numbers(shards):
        for shard in shards:
            yield from ({"x": float(n)} for n in range(shard, 12, 4))

    whole = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": [0, 1, 2, 3]})
    shares = [read(whole, SHARD, rank) for rank in range(2)]
    assert [by_rank for _, by_rank in shares] == [True, True]
    assert sorted(shares[0][0] + shares[1][0]) == [*range(12)]
    assert sorted(x["x"] for x in whole) == [*range(12)]
    split = distributed.split_dataset_by_node(whole, 1, 2)
    assert read(split, WHOLE, 1) == shares[1]
    assert len(read(split, WHOLE, 0, world=1)[0]) == 6
    with pytest.raises(TaskError, match="yields the share of rank 1 of 2, and rank 0 of 2 would"):
        read(split, SHARD, 0)
