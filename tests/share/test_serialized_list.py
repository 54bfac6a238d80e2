"""Long lists in a package: what is read equals what was packed, and a change stays in its process."""

from __future__ import annotations

import collections
import copy
import dataclasses
import pickle
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.conftest import count
from workbench.share import serialized_list
from workbench.share.package import pack, unpack
from workbench.share.serialized_list import LONG, SerializedList

N = LONG + 500


def there_and_back(value: Any) -> Any:
    with pack(value, lists=True) as package:
        return unpack(package)


@dataclasses.dataclass
class Sample:
    number: int
    words: list[str]


Pair = collections.namedtuple("Pair", "left right")


def local_class() -> type:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "class Local:\n    def __init__(self, i):\n        self.i = i\n    def __eq__(self, o):\n        return self.i == o.i",
        namespace,
    )
    found: type = namespace["Local"]
    return found


@pytest.mark.parametrize(
    "values",
    [
        list(range(-5, N)),
        [2**62 + i for i in range(N)],
        [2**70 + i for i in range(N)],
        [i * 0.1 for i in range(N)],
        [i % 3 == 0 for i in range(N)],
        [i if i % 2 else float(i) for i in range(N)],
        [None if i % 2 else i for i in range(N)],
        [f"word {i % 7}" for i in range(N)],
        [{"id": i, "text": f"some text {i}", "tokens": [i, i + 1]} for i in range(N)],
        [(i, str(i)) for i in range(N)],
        [Sample(i, [str(i)]) for i in range(N)],
        [Pair(i, [i]) for i in range(N)],
        [{i} for i in range(N)],
        [b"x" * (i % 100) for i in range(N)],
        [bytearray(b"y" * 100) for _ in range(N)],
    ],
    ids=lambda values: f"{type(values[0]).__name__}-{type(values[1]).__name__}",
)
def test_elements_come_back_as_they_were(values: list[Any]) -> None:
    out = there_and_back({"values": values})["values"]
    assert type(out) is SerializedList
    assert out == values
    assert [type(one) for one in out] == [type(one) for one in values]


def test_elements_of_a_class_from_a_cell_are_of_one_class() -> None:
    local = local_class()
    out = there_and_back([local(i) for i in range(N)])
    assert type(out) is SerializedList
    assert len({type(one) for one in out}) == 1
    assert [one.i for one in out] == list(range(N))


def test_tensors_arrays_and_images() -> None:
    tensors = [torch.full((3,), float(i)) for i in range(N)]
    arrays = [np.arange(i % 5) for i in range(N)]
    images = [Image.new("L", (2, 2), i % 256) for i in range(N)]
    given = {"tensors": tensors, "arrays": arrays, "images": images}
    with pack(given, lists=True) as package:
        assert len(package.code) < 20_000
        out = unpack(package)
    assert all(type(out[name]) is SerializedList for name in given)
    assert all(torch.equal(a, b) for a, b in zip(out["tensors"], tensors, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(out["arrays"], arrays, strict=True))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(out["images"], images, strict=True))


def test_rows_of_a_tensor_stay_views_of_it() -> None:
    base = torch.arange(N * 4.0).view(N, 4)
    out = there_and_back({"base": base, "rows": list(base)})
    out["base"][7] = 99
    assert out["rows"][7].tolist() == [99] * 4
    out["rows"][8][0] = 77
    assert out["base"][8, 0] == 77
    assert base[7, 0] == 28


def test_large_tensors_are_read_where_they_lie() -> None:
    tensors = [torch.full((1 << 14,), float(i)) for i in range(N)]
    with pack(tensors, lists=True) as package:
        out = unpack(package)
    assert type(out) is list
    assert torch.equal(out[7], tensors[7])
    assert out[7].data_ptr() - out[6].data_ptr() == out[6].nbytes


def test_very_many_tensors() -> None:
    """More than a process may have mappings (65,530)."""
    tensors = [torch.tensor([float(i)]) for i in range(66_000)]
    out = there_and_back(tensors)
    assert [float(out[i]) for i in (0, 40_000, -1)] == [0.0, 40_000.0, 65_999.0]


def test_a_large_object_that_all_elements_share_is_packed_once() -> None:
    common = {"vocabulary": list(range(50_000))}
    values = [{"i": i, "common": common} for i in range(N)]
    with pack({"values": values, "common": common}, lists=True) as package:
        assert package.nbytes + len(package.code) < 1_500_000
        out = unpack(package)
    assert out["values"][3]["common"] is out["values"][-1]["common"] is out["common"]


def test_a_change_of_an_element_that_was_read_is_lost_with_a_warning() -> None:
    out = there_and_back([{"i": i} for i in range(N)])
    for i in range(5):
        out[i]
    out[7]["i"] = -1
    with pytest.warns(
        UserWarning,
        match=f"element 7 of a list of {N:,} was changed after it was read.*items\\[i\\] = item",
    ):
        out[8]
    assert out[7] == {"i": 7}
    out[9]["i"] = -1  # once is enough
    assert out[9] == {"i": 9}


@pytest.mark.filterwarnings("error")
def test_an_element_that_is_assigned_stays_and_reading_alone_warns_nobody() -> None:
    tensors = [torch.full((3,), float(i)) for i in range(N)]
    out = there_and_back([{"x": x, "word": f"word {i % 3}"} for i, x in enumerate(tensors)])
    assert [float(out[i]["x"][0]) for i in range(50)] == [float(i) for i in range(50)]
    changed = out[3]
    changed["x"] = None
    out[3] = changed
    assert out[3]["x"] is None
    assert type(out[4]["x"]) is torch.Tensor


def test_one_list_at_two_places_is_one_list() -> None:
    values = [{"i": i} for i in range(N)]
    first, second = there_and_back((values, values))
    assert type(first) is SerializedList
    assert first is second


def test_what_a_function_of_an_element_leads_to_stays_one() -> None:
    inner = {"seen": 0}

    def look() -> dict[str, int]:
        return inner

    out = there_and_back([{"i": i, "look": look} for i in range(N)])
    assert type(out) is SerializedList
    assert out[5]["look"]() is out[1]["look"]()


def test_lists_that_lead_to_themselves() -> None:
    values: list[Any] = [{"i": i} for i in range(N)]
    values.append(values)
    values[3]["all"] = values
    out = there_and_back(values)
    assert out[-1] is out
    assert out[3]["all"] is out
    graph: list[Any] = [{"i": i} for i in range(N)]
    for node in graph:
        node["graph"] = graph
    out = there_and_back(graph)
    assert out[4]["graph"] is out
    assert out[N - 1]["i"] == N - 1


def test_two_lists_that_lead_to_each_other() -> None:
    left: list[Any] = [{"i": i} for i in range(N)]
    right: list[Any] = [{"i": i, "left": left} for i in range(N)]
    left[0]["right"] = right
    out = there_and_back({"left": left, "right": right})
    assert out["left"][0]["right"] is out["right"]
    assert out["right"][8]["left"] is out["left"]


def test_what_is_written_in_c_gets_true_lists() -> None:
    objects = np.array([{"i": i} for i in range(N)], dtype=object)
    tree = ET.Element("a")
    tree.extend([ET.Element("b", n=str(i)) for i in range(N)])
    array, element, queue, packed = there_and_back(
        (objects, tree, collections.deque(range(N)), list(range(N)))
    )
    assert type(packed) is SerializedList  # they do not keep others from being packed
    assert array.tolist() == objects.tolist()
    assert len(element) == N
    assert list(queue) == list(range(N))


@pytest.mark.parametrize("first", [True, False])
def test_an_iterator_over_a_list_goes_on_over_it(first: bool) -> None:
    values = [{"i": i} for i in range(N)]
    half = iter(values)
    next(half)
    out = there_and_back({"own": values, "rest": half} if first else {"rest": half, "own": values})
    assert next(out["rest"]) is out["own"][1]
    assert next(out["rest"]) == {"i": 2}


def test_without_being_asked_lists_stay_lists() -> None:
    with pack([{"i": i} for i in range(N)]) as package:
        assert type(unpack(package)) is list
    assert type(pickle.loads(pickle.dumps(there_and_back(list(range(N)))))) is list
    with pack(there_and_back([{"i": i} for i in range(N)])) as package:  # what a rank sends home
        assert type(unpack(package)) is list


def test_it_reads_as_a_list_does() -> None:
    real = [{"i": i % 700} for i in range(N)]
    out = there_and_back(real)
    assert len(out) == N
    assert out[-1] == real[-1]
    assert out[10:20:3] == real[10:20:3]
    assert type(out[10:20]) is list
    assert out[::-1][5:9] == real[::-1][5:9]
    assert out + [1] == real + [1]  # noqa: RUF005
    assert [1] + out == [1] + real  # noqa: RUF005
    assert real == out
    assert out != real[:-1]
    assert out.index(real[5], 1) == real.index(real[5], 1)
    assert out.count(real[5]) == real.count(real[5])
    assert real[8] in out
    assert out * 2 == real * 2
    with pytest.raises(IndexError, match="list index out of range"):
        out[N]
    with pytest.raises(TypeError):
        hash(out)
    numbers = there_and_back(list(range(N)))
    assert np.array(numbers).dtype == np.int64
    assert torch.equal(torch.tensor(numbers), torch.arange(N))


def test_a_change_makes_it_a_list_and_copies_stay_apart() -> None:
    real = [{"i": i} for i in range(N)]
    out = there_and_back(real)
    shallow, part, deep = out.copy(), out[: LONG + 1], copy.deepcopy(out)
    out.sort(key=lambda one: -one["i"])
    out.append("last")
    del out[0]
    out[0:2] = ["a"]
    assert out == ["a", *[{"i": i} for i in range(N - 4, -1, -1)], "last"]
    assert out[-2] is out[-2]
    assert shallow == real
    assert deep == real
    assert part == real[: LONG + 1]


def test_an_element_that_is_read_is_a_copy_and_one_that_is_assigned_stays() -> None:
    out = there_and_back([{"i": i, "seen": [0]} for i in range(N)])
    out[7]["new"] = True
    assert out[7] == {"i": 7, "seen": [0]}
    mine = out[7]
    mine["new"] = True
    out[7] = mine
    assert out[7] is mine
    assert out[8] == {"i": 8, "seen": [0]}


def test_a_copy_of_a_copy() -> None:
    once = there_and_back({"list": [{"i": i, "t": torch.ones(2) * i} for i in range(N)]})
    twice = there_and_back(once)
    assert type(twice["list"]) is SerializedList
    assert twice["list"][9]["t"].tolist() == [9, 9]
    once["list"][9] = "another"
    assert there_and_back(once)["list"][9] == "another"


atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=60),
    st.binary(max_size=60),
)
values = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=12),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.builds(Sample, st.integers(), st.lists(st.text(max_size=2), max_size=2)),
    ),
    max_leaves=40,
)


@settings(
    max_examples=count(60, 1000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(pool=st.lists(values, min_size=1, max_size=6), data=st.data())
def test_any_structure_is_read_equal(
    pool: list[Any], data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serialized_list, "LONG", 5)
    # The same objects at several places, inside of long lists and outside.
    pick = st.lists(st.sampled_from(range(len(pool))), max_size=20)
    value = {
        "a": [pool[i] for i in data.draw(pick)],
        "b": [[pool[i], i] for i in data.draw(pick)],
        "c": tuple(pool[i] for i in data.draw(pick)),
        "own": [copy.deepcopy(pool[i]) for i in data.draw(pick)],
    }
    assert there_and_back(value) == value
