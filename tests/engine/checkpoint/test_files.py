"""Files of weights and checkpoints: whole or not there, whatever happens while they are written."""

import errno
import json
import os
import random
import resource
import shutil
import signal
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, load_model
from torch import nn

from tests import warm
from tests.engine.problems import noisy_net, plain_net
from workbench.engine.checkpoint import files, shards
from workbench.engine.checkpoint.files import (
    load_tensors,
    load_weights,
    mismatch,
    read_state,
    remove,
    save_weights,
    tensors_of,
    write,
)
from workbench.runs.checkpoints import list_checkpoints
from workbench.task.rng import RandomState, preserved, set_generator_state
from workbench.task.state.serialization import NotPlainError, from_plain, to_plain

INFO = {
    "step": 7, "epoch": 1, "end": False, "monitor": None, "value": None, "mode": "min", "best": False, "resumable": True,
    "why": None, "time": 0.0,
}  # fmt: skip


def put(folder, seed=0, state=None, name="00000007"):
    net = plain_net(seed)
    info = {**INFO, "step": int(name[:8])}
    write(
        folder / "checkpoints",
        name,
        tensors_of(net),
        {"seed": seed} if state is None else state,
        info,
    )
    return net


def seed_of(folder):
    (found,) = list_checkpoints(folder)
    state = read_state(found.path)
    load_weights(plain_net(), found.path / "model.safetensors")
    assert torch.equal(state["weights"]["0.weight"], plain_net(state["seed"])[0].weight)
    return state["seed"]


def names(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_checkpoint_is_three_files_that_are_read_back(tmp_path):
    net = put(tmp_path, state={"a": torch.arange(3), "b": [1, None]})
    (found,) = list_checkpoints(tmp_path)
    assert sorted(path.name for path in found.path.iterdir()) == [
        "info.json",
        "model.safetensors",
        "state.pt",
    ]
    state = read_state(found.path)
    assert torch.equal(state["a"], torch.arange(3))
    assert state["b"] == [1, None]
    assert state["weights"].keys() == net.state_dict().keys()
    assert names(tmp_path) == ["00000007"]


def test_weights_of_a_library_that_knows_the_format_fit(tmp_path):
    """The file is what anyone reads with safetensors, tied weights included."""
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    save_weights(tied, tmp_path / "tied.safetensors")
    assert len(load_file(tmp_path / "tied.safetensors")) == 3
    other = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    other[1].weight = other[0].weight
    load_model(other, tmp_path / "tied.safetensors", strict=True)
    # untied, too, under one of the names
    for loaded in (other, nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))):
        if loaded is other:
            load_weights(loaded, tmp_path / "tied.safetensors")
            assert torch.equal(loaded[1].weight, tied[1].weight)
        else:
            with pytest.raises(
                RuntimeError, match=r"Sequential has '1.weight', which they do not have"
            ):
                load_weights(loaded, tmp_path / "tied.safetensors")


class Odd(nn.Module):
    """Weights that share memory, that are not contiguous, that are empty, and extra state."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(6, 4)
        self.upper, self.lower = nn.Parameter(whole[:4]), nn.Parameter(whole[2:])
        self.turned = nn.Parameter(torch.randn(3, 5).t())
        self.register_buffer("none", torch.zeros(0, 3))
        self.register_buffer("grown", None)
        self.counts = {"seen": 3}

    def get_extra_state(self):
        return self.counts

    def set_extra_state(self, state):
        self.counts = state


def test_weights_of_odd_kinds(tmp_path):
    one, other = Odd(), Odd()
    save_weights(one, tmp_path / "odd.safetensors")
    load_weights(other, tmp_path / "odd.safetensors")
    for name, value in tensors_of(one).items():
        assert torch.equal(tensors_of(other)[name], value)
    assert not list(tmp_path.glob(".*"))


def test_a_buffer_that_forward_has_made_or_grown_is_put_back():
    one, other = Odd(), Odd()
    one.grown, one.none = torch.ones(2), torch.ones(4, 3)
    one.counts = {"seen": 9}
    assert mismatch(other, tensors_of(one)) is not None
    assert mismatch(other, tensors_of(one), grown=True) is None
    load_tensors(other, tensors_of(one), files.extra_state_of(one))
    assert torch.equal(other.grown, one.grown)
    assert torch.equal(other.none, one.none)
    assert other.counts == {"seen": 9}


def test_a_layer_that_stands_under_two_names_has_grown_under_both():
    def two_names():
        model = Odd()
        model.within = nn.BatchNorm1d(2)
        model.again = model.within
        return model

    one, other = two_names(), two_names()
    one.within.running_mean = torch.ones(3)
    saved = {name: value.clone() for name, value in tensors_of(one).items()}
    assert mismatch(other, saved, grown=True) is None
    load_tensors(other, saved)
    assert other.again is other.within
    assert torch.equal(other.again.running_mean, torch.ones(3))


def test_an_expanded_buffer_is_put_back():
    one, other = nn.Linear(2, 3), nn.Linear(2, 3)
    for model, value in ((one, 5.0), (other, 0.0)):
        model.register_buffer("mask", torch.full((1, 3), value).expand(4, 3))
    load_tensors(other, tensors_of(one))
    assert torch.equal(other.mask, torch.full((4, 3), 5.0))


# -- whole or not there

TOUCHING = [
    (os, "mkdir"), (os, "rename"), (os, "fsync"), (os, "open"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree"),
    (shards, "save_file"), (torch, "save"), (json, "dumps"),
]  # fmt: skip
"""Calls by which a checkpoint is written, and an older one gives way."""


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("moment", range(1, 40))
def test_killed_at_any_call_that_touches_the_disk_there_is_always_one_to_read(moment, tmp_path):
    """A child that dies there, so that nothing of it is cleaned up."""
    put(tmp_path, seed=1)
    child = os.fork()
    if child == 0:
        left = moment

        def dying(real):
            def call(*args, **kwargs):
                nonlocal left
                left -= 1
                if left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return call

        try:
            for owner, name in TOUCHING:
                setattr(owner, name, dying(getattr(owner, name)))
            put(tmp_path, seed=2)
            os._exit(0)
        finally:
            os._exit(1)  # an error must not bring the child back among the tests
    _, status = os.waitpid(child, 0)
    survived = os.WIFEXITED(status)
    assert not survived or os.WEXITSTATUS(status) == 0
    assert seed_of(tmp_path) == 2 if survived else seed_of(tmp_path) in (1, 2)
    put(tmp_path, seed=3, name="00000009")  # the next one clears up
    assert names(tmp_path) == ["00000007", "00000009"]


def test_the_table_of_moments_reaches_the_end_of_a_write(tmp_path, monkeypatch):
    """Else the test above would not have tried them all."""
    put(tmp_path, seed=1)
    calls = []
    for owner, name in TOUCHING:
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner,
            name,
            lambda *a, real=real, name=name, **k: (calls.append(name), real(*a, **k))[1],
        )
    put(tmp_path, seed=2)
    assert 20 < len(calls) < 39, calls


def test_the_older_one_is_there_until_the_newer_one_is(tmp_path, monkeypatch):
    """Readers look at any moment."""
    put(tmp_path, seed=1)
    seen, real = [], os.rename

    def rename(*args, **kwargs):
        seen.append(seed_of(tmp_path))
        real(*args, **kwargs)
        seen.append(seed_of(tmp_path))

    monkeypatch.setattr(os, "rename", rename)
    put(tmp_path, seed=2)
    assert seen == [1, 1, 1, 2]


def test_where_the_newer_one_cannot_take_its_place_the_older_one_stays(tmp_path, monkeypatch):
    put(tmp_path, seed=1)
    real = os.rename

    def rename(source, target, **options):
        if str(source).endswith(".part"):
            raise OSError(errno.EIO, "no luck")
        real(source, target, **options)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(OSError, match="no luck"):
        put(tmp_path, seed=2)
    assert seed_of(tmp_path) == 1
    assert names(tmp_path) == ["00000007"]


def test_leftovers_of_others_stay(tmp_path):
    folder = tmp_path / "checkpoints"
    put(tmp_path)
    for name in (".keep", ".nfs000123", ".00000007.12.part", ".00000007-end.old", "notes"):
        (folder / name).mkdir()
    put(tmp_path, name="00000003")
    (folder / "00000003").rename(folder / ".00000003.old")  # killed while it was replaced
    put(tmp_path, name="00000008")
    assert names(tmp_path) == [
        ".keep",
        ".nfs000123",
        "00000003",
        "00000007",
        "00000007-end",
        "00000008",
        "notes",
    ]
    assert [one.name for one in list_checkpoints(tmp_path)] == ["00000003", "00000007", "00000008"]


def test_one_that_is_removed_is_gone_at_once(tmp_path, monkeypatch):
    put(tmp_path)
    put(tmp_path, name="00000009")
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # killed there
    remove(tmp_path / "checkpoints" / "00000007")
    assert [one.name for one in list_checkpoints(tmp_path)] == ["00000009"]
    monkeypatch.undo()
    put(tmp_path, name="00000010")
    assert names(tmp_path) == ["00000009", "00000010"]


def test_a_torn_or_unknown_info_is_no_checkpoint(tmp_path):
    put(tmp_path)
    info = tmp_path / "checkpoints" / "00000007" / "info.json"
    text = info.read_text()
    info.write_text(text[: len(text) // 2])
    assert list_checkpoints(tmp_path) == []
    info.write_text(json.dumps({**json.loads(text), "format": 1}))  # of a version before
    assert list_checkpoints(tmp_path)[0].resumable
    info.write_text(json.dumps({**json.loads(text), "format": 99}))
    (found,) = list_checkpoints(tmp_path)
    assert not found.resumable
    assert found.why == "it was written in format 99"


@pytest.mark.parametrize("limit", [1, 200, 900, 1500, 3000])
def test_a_full_disk_is_an_error_in_words_and_leaves_nothing(limit, tmp_path):
    """Files cannot grow beyond the limit; the numbers fail in the weights, and in the state."""
    put(tmp_path, seed=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            put(tmp_path, seed=2, state={"seed": 2, "much": torch.randn(1000)})
        with pytest.raises(OSError, match=r"File too large"):
            save_weights(nn.Linear(100, 100), tmp_path / "start.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert seed_of(tmp_path) == 1
    assert names(tmp_path) == ["00000007"]
    assert not (tmp_path / "start.safetensors").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_kind_of_tensor_that_the_format_has_not_is_an_error_in_words(tmp_path):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("graph", torch.eye(3).to_sparse())

    with pytest.raises(OSError, match="could not be written"):
        save_weights(Sparse(), tmp_path / "sparse.safetensors")
    assert not list(tmp_path.iterdir())


def test_the_names_of_weights_survive_another_process(tmp_path):
    net = noisy_net()
    save_weights(net, tmp_path / "w.safetensors")
    code = (
        "import sys; from safetensors.torch import load_file; print(sorted(load_file(sys.argv[1])))"
    )
    out = warm.python().run("-c", code, str(tmp_path / "w.safetensors"))
    assert out.stdout.strip() == str(sorted(net.state_dict())), out.stderr


# -- plain values

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers(),
    st.sampled_from([np.float32(2.5), np.int64(-3), np.bool_(True), np.str_("a"), torch.Size([2, 3]), torch.bfloat16,
                     torch.device("cpu")]),
)  # fmt: skip
KEYS = st.one_of(
    st.text(), st.integers(), st.booleans(), st.none(), st.tuples(st.integers(), st.text())
)
TREES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.lists(parts), st.lists(parts).map(tuple), st.dictionaries(KEYS, parts), st.lists(parts).map(deque),
        st.dictionaries(KEYS, parts).map(OrderedDict), st.sets(KEYS), st.frozensets(KEYS),
        st.dictionaries(KEYS, parts).map(lambda d: defaultdict(list, d)), st.lists(KEYS).map(Counter),
    ),
    max_leaves=20,
)  # fmt: skip


def through_a_file(value, path):
    torch.save(to_plain(value, "it"), path)
    return from_plain(torch.load(path, weights_only=True))


def equal(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(
            map(equal, one.values(), other.values())
        )
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(other) and all(map(equal, one, other))
    return (
        repr(one) == repr(other) if isinstance(one, (float, complex, np.generic)) else one == other
    )


@given(value=TREES)
def test_plain_values_come_back_as_they_were(value, tmp_path_factory):
    assert equal(through_a_file(value, tmp_path_factory.getbasetemp() / "tree.pt"), value)


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.uint32).reshape(2, 3), np.array(3.5), np.zeros((0, 2), np.complex64), np.array(["ab", "c"]),
    np.array([True, False]), np.array(["2020-01-01"], "datetime64[D]"), np.asfortranarray(np.eye(3)), np.arange(3, dtype=">i4"),
])  # fmt: skip
def test_arrays_come_back_as_they_were(array, tmp_path):
    found = through_a_file([array, array[:1] if array.ndim else array], tmp_path / "a.pt")
    assert equal(found[0], array)
    assert found[0].flags.writeable


def test_random_states_come_back_as_they_were(tmp_path):
    rng = np.random.default_rng(3)
    states = [
        random.Random(1).getstate(),
        np.random.RandomState(2).get_state(),
        rng.bit_generator.state,
        torch.get_rng_state(),
    ]
    found = through_a_file(states, tmp_path / "a.pt")
    other = random.Random()
    other.setstate(found[0])
    assert other.random() == random.Random(1).random()
    numpy = np.random.RandomState()
    numpy.set_state(found[1])
    assert numpy.rand() == np.random.RandomState(2).rand()
    again = np.random.default_rng()
    again.bit_generator.state = found[2]
    assert again.random() == rng.random()
    assert torch.equal(found[3], states[3])


def test_random_states_of_an_earlier_version_come_back(tmp_path):
    """It wrote the arrays within states as other marked dicts, and torch's state as `cpu`."""
    rng = np.random.RandomState(2)
    kind, keys, *rest = rng.get_state()
    flat = torch.from_numpy(keys.view(np.uint8).copy())
    state = {
        "bit_generator": kind,
        "state": {"key": {"array": "<u4", "shape": (624,), "data": flat}, "pos": rest[0]},
        "has_gauss": 0,
        "gauss": 0.0,
    }
    again = np.random.RandomState()
    set_generator_state(again, through_a_file(state, tmp_path / "a.pt"))
    assert again.rand() == rng.rand()
    with preserved():
        now = RandomState.capture().state_dict()
        now["cpu"], now["numpy"] = now.pop("torch"), np.random.get_state()
        found = through_a_file(now, tmp_path / "b.pt")
        drawn = torch.rand(3).tolist(), np.random.rand(), random.random()
        RandomState.from_state(found).restore()
        assert (torch.rand(3).tolist(), np.random.rand(), random.random()) == drawn


def test_a_dict_with_the_keys_of_an_array_of_an_earlier_version_stays_a_dict(tmp_path):
    states = [
        {"array": 0.5, "shape": (6,), "data": 3},
        {"array": "points", "shape": (2,), "data": torch.ones(2)},
    ]
    found = through_a_file(states, tmp_path / "a.pt")
    assert found[0] == states[0]
    assert found[1]["array"] == "points"
    assert torch.equal(found[1]["data"], torch.ones(2))


def test_a_view_is_kept_without_what_it_is_a_view_of(tmp_path):
    whole = torch.randn(10_000)
    found = through_a_file(
        {"part": whole[:3], "parameter": nn.Parameter(whole[5:7])}, tmp_path / "a.pt"
    )
    assert torch.equal(found["part"], whole[:3])
    assert type(found["parameter"]) is torch.Tensor
    assert (tmp_path / "a.pt").stat().st_size < 5000


class Thing:
    """Of a user's own."""


class Tagged(torch.Tensor):
    """A tensor of a user's own kind."""


def endless():
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(("value", "words"), [
    ({"x": [1, Thing()]}, "the state of S holds a Thing under 'x[1]'"),
    (object(), "the state of S holds an object"),
    ({"a": {Thing(): 1}}, "the state of S has a key of type Thing under 'a'"),
    ({1, Thing()}, "the state of S holds a set"),
    ({"f": len}, "holds a builtin_function_or_method under 'f'"),
    (np.array([Thing()], object), "holds a ndarray"),
    (np.zeros(2, [("a", int)]), "holds a ndarray"),
    (Tagged(torch.ones(2)), "holds a Tagged"),
    ({"x": torch.empty(2, device="meta")}, "holds a Tensor under 'x'"),
    (endless(), "contains itself"),
    (defaultdict(Thing), "holds a defaultdict"),
    ({"__workbench__": 1}, "'__workbench__' as a key"),
])  # fmt: skip
def test_what_is_not_plain_is_refused_with_its_place(value, words):
    with pytest.raises(NotPlainError) as caught:
        to_plain(value, "the state of S")
    assert words in str(caught.value)


@pytest.mark.parametrize("value", [
    list(range(100)), tuple(range(-50, 50)), [2**63 - 1, -(2**63)] * 40, [2**63] * 80, [True] * 80, [1, 2.0] * 40, (3, tuple(range(625)), None),
], ids=["list", "tuple", "the largest", "larger", "bools", "floats among them", "as Python's random state"])  # fmt: skip
def test_many_integers_come_back_as_they_were(value, tmp_path):
    assert equal(through_a_file(value, tmp_path / "it.pt"), value)
    torch.save(value, tmp_path / "earlier.pt")  # as a version before this one wrote them
    assert equal(from_plain(torch.load(tmp_path / "earlier.pt", weights_only=True)), value)


def test_an_order_of_samples_is_one_tensor_in_the_file():
    assert (
        sum(
            isinstance(part, torch.Tensor)
            for part in to_plain({"order": list(range(1000))}, "it")["order"].values()
        )
        == 1
    )


def test_functions_can_be_left_out(tmp_path):
    state = {"a": 1, "f": len, "parts": [{"g": lambda: 0, "b": 2}]}
    assert to_plain(state, "it", functions=False) == {"a": 1, "parts": [{"b": 2}]}


class Runs:
    """Runs a command where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(("spoil", "words"), [
    (lambda path: torch.save({"seed": Runs(path.parent / "made")}, path), "more than containers and tensors"),
    (lambda path: torch.save([1], path), "it holds a list"),
    (lambda path: torch.save({"other": 1}, path), "it lacks seed"),
    (lambda path: path.write_bytes(path.read_bytes()[:300]), "cannot be read"),
    (lambda path: path.write_bytes(b""), "cannot be read"),
])  # fmt: skip
def test_state_that_is_damaged_or_of_others_is_said_to_be_and_runs_nothing(spoil, words, tmp_path):
    put(tmp_path)
    (found,) = list_checkpoints(tmp_path)
    spoil(found.path / "state.pt")
    with pytest.raises(RuntimeError, match=words) as told:
        files.peek(found.path, "seed")
    assert "Take another checkpoint" in str(told.value)
    assert "weights_only" not in str(told.value)
    assert not (found.path / "made").exists()


def test_weights_that_are_cut_short_are_said_to_be(tmp_path):
    put(tmp_path)
    (found,) = list_checkpoints(tmp_path)
    file = found.path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(
        RuntimeError, match=r"model.safetensors cannot be read .* Take another checkpoint"
    ):
        read_state(found.path)
    with pytest.raises(RuntimeError, match=r"model\.safetensors cannot be read"):
        load_weights(plain_net(), file)
