"""Batches in pieces of time: nothing lost, nothing cut that has no time."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from workbench.task.errors import TaskError
from workbench.techniques.tbptt import Piece, detached, pieces, split

Pair = namedtuple("Pair", "x y")


def none(batch, length, time_dim):
    return None


@given(steps=st.integers(1, 20), length=st.integers(1, 25), time_dim=st.integers(0, 2))
def test_pieces_put_together_are_the_batch(steps, length, time_dim):
    shape = [2, 3, 4]
    shape[time_dim] = steps
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    found = split((x, x + 1), length, time_dim)
    assert all(type(part) is tuple for part in found)
    assert [part[0].shape[time_dim] for part in found[:-1]] == [length] * (len(found) - 1)
    for index in (0, 1):
        assert torch.equal(torch.cat([part[index] for part in found], time_dim), x + index)


def test_containers_and_what_has_no_time():
    x, label, names = torch.zeros(4, 5, 2), torch.arange(4), ["a", "b", "c", "d"]
    batch = {
        "pair": Pair(x, [label, 7]),
        "more": OrderedDict(names=names, scalar=torch.tensor(1.0)),
        "none": None,
    }
    first, second = split(batch, 3, 1)
    assert isinstance(first["pair"], Pair)
    assert isinstance(first["more"], OrderedDict)
    assert (first["pair"].x.shape, second["pair"].x.shape) == ((4, 3, 2), (4, 2, 2))
    for part in (first, second):
        assert part["pair"].y[0] is label
        assert (part["pair"].y[1], part["more"]["names"], part["none"]) == (7, names, None)


def test_another_length_is_named():
    with pytest.raises(
        TaskError, match=r"batch\[y\.0\] is 3 long in dimension 1, and batch\[x\] is 5"
    ):
        split({"x": torch.zeros(4, 5), "y": [torch.zeros(4, 3)]}, 2, 1)


def test_what_cannot_be_split():
    with pytest.raises(TaskError, match="leave truncated_bptt_steps off"):
        split((pack_sequence([torch.zeros(3, 2)]), torch.zeros(1)), 2, 0)
    with pytest.raises(TaskError, match="dimension 1, which no tensor"):
        split((torch.zeros(4), "text"), 2, 1)
    with pytest.raises(TaskError, match="0 long"):
        split(torch.zeros(4, 0), 2, 1)


def test_a_stream_of_pieces():
    batches = [torch.zeros(2, 5), None, torch.zeros(2, 2)]
    found = list(pieces(batches, 2, 1, none))
    assert [(p.first, p.length) for p in found] == [
        (True, 2),
        (False, 2),
        (False, 1),
        (True, 0),
        (True, 2),
    ]
    assert found[3] == Piece(None, True, 0)


def test_a_tasks_own_way():
    def own(batch, length, time_dim):
        assert (length, time_dim) == (3, 1)
        return [batch[:, :1], None, "text"] if batch.shape[1] == 4 else None

    found = list(pieces([torch.zeros(2, 4), torch.zeros(2, 5)], 3, 1, own))
    assert [p.length for p in found] == [1, 0, 3, 3, 2]
    assert [p.first for p in found] == [True, False, False, True, False]


def test_detached_keeps_containers_and_values():
    _, (h, c) = nn.LSTM(2, 3)(torch.ones(4, 1, 2))
    assert h.requires_grad
    found = detached({"lstm": (h, [c, None]), "pair": Pair(h, 3)})
    assert torch.equal(found["lstm"][0], h)
    assert not any(
        t.requires_grad for t in (found["lstm"][0], found["lstm"][1][0], found["pair"].x)
    )
    assert (found["lstm"][1][1], found["pair"].y) == (None, 3)
    assert detached(None) is None
