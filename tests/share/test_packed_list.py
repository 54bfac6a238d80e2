"""Long lists in a parcel: what comes out equals what went in, is shared as it was, and stays changed when it is changed."""

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

from workbench.share import packing
from workbench.share.package import pack, unpack
from workbench.share.packed_list import LONG, PackedList

N = LONG + 500


def there_and_back(value: Any) -> Any:
    with pack(value, lists=True) as parcel:
        return unpack(parcel)


@dataclasses.dataclass
class Sample:
    number: int
    words: list[str]


Pair = collections.namedtuple("Pair", "left right")


def local_class() -> type:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("class Local:\n    def __init__(self, i):\n        self.i = i\n    def __eq__(self, o):\n        return self.i == o.i", namespace)
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
    assert type(out) is PackedList
    assert out == values
    assert [type(one) for one in out] == [type(one) for one in values]


def test_elements_of_a_class_from_a_cell_are_of_one_class() -> None:
    local = local_class()
    out = there_and_back([local(i) for i in range(N)])
    assert type(out) is PackedList
    assert len({type(one) for one in out}) == 1
    assert [one.i for one in out] == list(range(N))


def test_tensors_arrays_and_images() -> None:
    base = torch.arange(N * 4.0).view(N, 4)
    tensors = [torch.full((3,), float(i)) for i in range(N)]
    arrays = [np.arange(i % 5) for i in range(N)]
    images = [Image.new("L", (2, 2), i % 256) for i in range(N)]
    given = {"base": base, "rows": list(base), "tensors": tensors, "arrays": arrays, "images": images}
    with pack(given, lists=True) as parcel:
        assert len(parcel.code) < 20_000
        out = unpack(parcel)
    assert all(type(out[name]) is PackedList for name in given if name != "base")
    assert all(torch.equal(a, b) for a, b in zip(out["tensors"], tensors, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(out["arrays"], arrays, strict=True))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(out["images"], images, strict=True))
    out["base"][7] = 99  # the rows are views of it in the copy too
    assert out["rows"][7].tolist() == [99] * 4
    out["rows"][8][0] = 77
    assert out["base"][8, 0] == 77
    assert base[7, 0] == 28


def test_very_many_tensors() -> None:
    """More than a process may have mappings (65,530)."""
    tensors = [torch.tensor([float(i)]) for i in range(66_000)]
    out = there_and_back(tensors)
    assert [float(out[i]) for i in (0, 40_000, -1)] == [0.0, 40_000.0, 65_999.0]


def test_what_two_elements_share_they_share_in_the_copy() -> None:
    common = {"vocabulary": list(range(50_000))}
    values = [{"i": i, "common": common} for i in range(N)]
    with pack({"values": values, "common": common}, lists=True) as parcel:
        assert parcel.nbytes + len(parcel.code) < 1_500_000
        out = unpack(parcel)
    assert type(out["values"]) is PackedList
    assert out["values"][3]["common"] is out["values"][-1]["common"] is out["common"]


def test_an_element_that_others_refer_to_is_one_object() -> None:
    values = [{"i": i} for i in range(N)]
    values[9] = values[5]
    out = there_and_back((values, values[7], values))
    assert type(out[0]) is PackedList
    assert out[0] is out[2]
    assert out[0][7] is out[1]
    assert out[0][9] is out[0][5]
    other = there_and_back((values, sorted(values, key=lambda one: -one["i"])))
    assert other[0][N - 1] is other[1][0]


def test_what_only_a_function_of_an_element_leads_to_stays_one() -> None:
    inner = {"seen": 0}

    def look() -> dict[str, int]:
        return inner

    values = [{"i": i, "look": look if i else None, "inner": inner if i == 1 else None} for i in range(N)]
    out = there_and_back(values)
    assert out[5]["look"]() is out[1]["inner"]


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
    array, element, queue, packed = there_and_back((objects, tree, collections.deque(range(N)), list(range(N))))
    assert type(packed) is PackedList  # they do not keep others from being packed
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


def test_without_being_asked_lists_stay_lists() -> None:
    with pack([{"i": i} for i in range(N)]) as parcel:
        assert type(unpack(parcel)) is list
    assert type(pickle.loads(pickle.dumps(there_and_back(list(range(N)))))) is list
    with pack(there_and_back([{"i": i} for i in range(N)])) as parcel:  # what a rank sends home
        assert type(unpack(parcel)) is list


def test_it_reads_as_a_list_does() -> None:
    real = [{"i": i % 700} for i in range(N)]
    out = there_and_back(real)
    assert len(out) == N
    assert out[-1] == real[-1]
    assert out[10:20:3] == real[10:20:3]
    assert type(out[10:20]) is list
    assert type(out[::-1]) is PackedList
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
    first = out[0]
    out.sort(key=lambda one: -one["i"])
    out.append("last")
    del out[0]
    out[0:2] = ["a"]
    assert out == ["a", *[{"i": i} for i in range(N - 4, -1, -1)], "last"]
    assert out[-2] is first is shallow[0] is part[0]
    assert deep[0] is not first
    assert shallow == real
    assert deep == real


def test_an_element_that_is_changed_stays_changed() -> None:
    out = there_and_back([{"i": i, "seen": [0]} for i in range(6 * LONG)])
    held = out[5]
    out[7]["new"] = True
    out[8]["seen"][0] = 1
    for _ in out:
        pass
    assert out[5] is held
    held["late"] = 1
    for _ in out:
        pass
    assert out[5]["late"] == 1
    assert out[7]["new"]
    assert out[8]["seen"] == [1]
    again = there_and_back(out)
    assert type(again) is PackedList
    assert (again[5]["late"], again[7]["new"], again[8]["seen"]) == (1, True, [1])
    assert again == out


CHANGES: dict[str, Any] = {
    "another tensor": lambda one: one.update(x=torch.zeros(6)),
    "a view": lambda one: one.update(x=one["x"][:4]),
    "turned": lambda one: one["x"].resize_(2, 3).t_(),
    "trained": lambda one: one["x"].requires_grad_(),
    "tagged": lambda one: setattr(one["x"], "tag", 3),
    "more": lambda one: one.update(z=1),
    "less": lambda one: one.pop("y"),
    "in another order": lambda one: one.update(x=one.pop("x")),
    "a number": lambda one: one.update(y=1),
    "a number of another kind": lambda one: one.update(y=-0.0),
    "a truth value": lambda one: one.update(n=True),
    "the tensor twice": lambda one: one.update(y=one["x"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_sample_with_a_tensor_stays_changed(change: Any) -> None:
    out = there_and_back([{"x": torch.full((6,), float(i)), "y": 0.0, "n": 1} for i in range(LONG)])
    change(out[7])
    out[8]["x"].add_(1)
    expected = told(out[7])
    for _ in range(2):
        for _ in out:
            pass
    assert 7 in out._source._held
    assert 8 not in out._source._held
    assert told(out[7]) == expected
    assert torch.equal(out[8]["x"], torch.full((6,), 9.0))


def told(sample: dict[str, Any]) -> str:
    x = sample["x"]
    return f"{sample} {vars(x)} {x.stride()} {sample.get('y') is x}"


def test_reading_all_of_it_does_not_keep_it() -> None:
    out = there_and_back([Sample(i, [str(i)]) for i in range(5 * LONG)])
    for _ in range(2):
        assert sum(one.number for one in out) == sum(range(5 * LONG))
    assert len(out._source._held) <= 1100


def test_a_copy_of_a_copy_shares_what_was_shared() -> None:
    common = {"x": torch.zeros(4)}
    once = there_and_back({"list": [{"common": common, "t": torch.ones(2) * i} for i in range(N)], "common": common})
    twice = there_and_back(once)
    assert type(twice["list"]) is PackedList
    assert twice["list"][9]["common"] is twice["common"]
    assert twice["list"][9]["t"].tolist() == [9, 9]


atoms = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=60), st.binary(max_size=60)
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


def shape_of(value: Any, seen: dict[int, int]) -> Any:
    """The value with a number for each object that can be changed, the same for the same one."""
    if isinstance(value, Sample):
        number = seen.setdefault(id(value), len(seen))
        return "sample", number, value.number, shape_of(value.words, seen)
    if isinstance(value, list | PackedList):
        number = seen.setdefault(id(value), len(seen))
        return "list", number, [shape_of(one, seen) for one in value]
    if isinstance(value, dict):
        number = seen.setdefault(id(value), len(seen))
        return "dict", number, [(key, shape_of(one, seen)) for key, one in value.items()]
    if isinstance(value, tuple):
        return "tuple", [shape_of(one, seen) for one in value]
    return type(value), value


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pool=st.lists(values, min_size=1, max_size=6), data=st.data())
def test_any_structure_comes_back_with_what_it_shares(pool: list[Any], data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LONG", 5)
    # The same objects at several places, inside of long lists and outside.
    pick = st.lists(st.sampled_from(range(len(pool))), max_size=20)
    value = {
        "a": [pool[i] for i in data.draw(pick)],
        "b": [[pool[i], i] for i in data.draw(pick)],
        "c": tuple(pool[i] for i in data.draw(pick)),
        "own": [copy.deepcopy(pool[i]) for i in data.draw(pick)],
    }
    out = there_and_back(value)
    held: list[Any] = []  # what is read stays the same object as long as it is held

    def hold(one: Any) -> None:
        if isinstance(one, list | PackedList | tuple):
            for part in one:
                held.append(part)
                hold(part)
        elif isinstance(one, dict):
            hold(tuple(one.values()))

    hold(out)
    assert shape_of(out, {}) == shape_of(value, {})
