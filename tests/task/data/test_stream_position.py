"""The contract of streams: a position holds for one pass, and what keeps it is refused."""

import datasets
import pytest
from torch.utils.data import IterableDataset

from workbench.task.data.rng_state import DataRngState
from workbench.task.data.stream_position import StreamPosition
from workbench.task.errors import TaskError


def hugging_face(count=6):
    return datasets.Dataset.from_dict({"x": list(range(count))}).to_iterable_dataset(num_shards=2)


class Keeps(IterableDataset):
    """Each pass begins where load_state_dict has put it."""

    def __init__(self):
        self.begin = self.at = 0

    def __iter__(self):
        for n in range(self.begin, 6):
            self.at = n
            yield {"x": n}

    def state_dict(self):
        return {"at": self.at + 1}

    def load_state_dict(self, state):
        self.begin = state["at"]


def resumed_after(stream, taken):
    """The rest of a pass after so many samples, and the first samples of the pass after that."""
    data = DataRngState(dataset=stream)
    rows = iter(stream)
    for _ in range(taken):
        next(rows)
    position = StreamPosition("train", stream, in_process=True)
    position.next = position.state(data)["states"]
    position.load(data, within=True)
    rest = []
    for row in stream:
        rest.append(row["x"])
        if position.awaits_batch:
            position.note_batch(data)
    position.forget(data)
    first = next(iter(stream), None)
    position.refuse_same(data, empty=first is None)
    return rest, first["x"]


@pytest.mark.parametrize("taken", [1, 4])
def test_a_stream_of_hugging_face_forgets_its_position(taken):
    assert resumed_after(hugging_face(), taken) == (list(range(taken, 6)), 0)


@pytest.mark.parametrize("taken", [2, 6])
def test_a_stream_that_keeps_its_position_is_refused(taken):
    with pytest.raises(
        TaskError,
        match=r"train \(Keeps\) begins each pass where load_state_dict\(\) has put it.*forget that position",
    ):
        resumed_after(Keeps(), taken)


def test_which_states_are_a_position():
    plain, shuffled = hugging_face(), hugging_face().shuffle(seed=1, buffer_size=3)
    for stream, here, known, between in (
        (plain, True, True, False),
        (shuffled, True, False, False),
        (Keeps(), True, True, True),
        (Keeps(), False, False, False),
    ):
        position, data = StreamPosition("train", stream, here), DataRngState(dataset=stream)
        assert (position.is_known(data), position.is_known_between(data)) == (known, between)


def test_a_part_that_is_no_longer_there_is_an_error():
    position = StreamPosition("train", Keeps(), in_process=True)
    position.next = {"dataset.inner": {"at": 1}}
    with pytest.raises(TaskError, match=r"train: dataset\.inner takes no state any more"):
        position.load(DataRngState(dataset=Keeps()), within=True)
