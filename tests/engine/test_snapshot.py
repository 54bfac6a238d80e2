"""What a search leaves behind in a module that collects things while it runs: nothing."""

import random
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.problems import labelled, plain_net
from tests.engine.resuming import learning, settings_of, supervised
from workbench.engine.setup import open_session
from workbench.engine.snapshot import scratch
from workbench.engine.step import train_step
from workbench.task.state.contents import is_container, overwrite
from workbench.task.state.of_task import copy_all

pytestmark = pytest.mark.usefixtures("one_thread")


class Note:
    """An object that no copy is made of."""


class Collecting(nn.Module):
    """Keeps outputs, as modules do that reduce them when an epoch is over."""

    def __init__(self, shared):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.outputs, self.shared, self.none_yet = [], shared, None
        self.by_name = {"notes": [Note()]}
        self.latest = deque([torch.zeros(1)], maxlen=2)
        self.kinds, self.counts, self.groups, self.order = (
            {Note},
            Counter("a"),
            defaultdict(list),
            OrderedDict(a=Note()),
        )
        self.note, self.goes = Note(), 5
        self.seen = np.zeros(2)
        self.chance, self.system = np.random.RandomState(3), random.SystemRandom()

    def forward(self, x):
        self.outputs.append(x.sum())
        self.shared.append(1)
        self.none_yet = Note()
        self.by_name["more"] = x
        self.latest.append(x.mean())
        self.kinds.add(type(x))
        self.counts.update("ab")
        self.groups["x"].append(x)
        self.order = {"b": x}
        self.note = Note()
        self.made_on_the_way = self.layer(x)
        self.chance.rand()
        self.seen += 1
        if "goes" in vars(self):
            del self.goes
        return self.made_on_the_way


NAMES = (
    "outputs",
    "shared",
    "by_name",
    "latest",
    "kinds",
    "counts",
    "groups",
    "order",
    "note",
    "goes",
    "none_yet",
)


def held(module):
    """The objects, and what is in the containers."""
    content = {
        name: list(value.items() if isinstance(value, dict) else value)
        for name in NAMES for value in [vars(module)[name]] if is_container(value)
    }  # fmt: skip
    return {name: vars(module)[name] for name in NAMES}, content


def test_a_scratch_leaves_no_trace_in_a_module_that_collects():
    outside = []
    model = Collecting(outside)
    objects, content = held(model)
    attributes, drawn = set(vars(model)), model.chance.get_state()[2]
    with open_session(supervised(model), settings_of()) as session, scratch(session):
        session.train_mode()
        for batch in session.data.train():
            train_step(session, [batch])
        assert len(outside) == 7
    assert set(vars(model)) == attributes
    now, contents = held(model)
    assert all(now[name] is objects[name] for name in NAMES)
    assert contents == content
    assert model.shared is outside == []
    assert model.chance.get_state()[2] == drawn
    assert not model.seen.any()


def test_a_scratch_leaves_rates_and_counts_of_steps():
    with open_session(supervised(plain_net()), settings_of()) as session:
        batches = session.data.train()
        train_step(session, [next(batches)])
        (opt,) = session.optimizers
        before = opt.steps, opt.base_lr, opt.lr
        with scratch(session):
            session.optimizers.set_lr(7.0)
            train_step(session, [next(batches)])
            assert (opt.steps, opt.lr) == (2, 7.0)
        assert (opt.steps, opt.base_lr, opt.lr) == before


def test_the_start_of_a_fit_keeps_the_containers_that_others_hold():
    outside = [1, [2]]
    model = Collecting(outside)
    task = supervised(model)
    weights = copy_all(task)
    outside[1].append(3)
    outside.append(4)
    model.counts.update("zz")
    weights.put()
    assert model.shared is outside
    assert outside == [1, [2]]
    assert model.counts == Counter("a")


class Own(list):
    """A list with a way of its own to be filled."""

    def extend(self, values):
        raise NotImplementedError


def test_a_container_with_ways_of_its_own_is_only_kept_as_it_is():
    model = nn.Linear(6, 3)
    model.own = Own([1])
    task = supervised(model)
    weights = copy_all(task)
    kept, model.own = model.own, Own([2])
    weights.put()
    assert model.own is kept


class Hooked(nn.Module):
    """Collects in its hooks."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def on_train_epoch_start(self):
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_what_a_hook_makes_within_a_scratch_is_gone_behind_it():
    model = Hooked()
    with open_session(learning(model, train=labelled()), settings_of()) as session:
        with scratch(session):
            for batch in session.data.train():
                train_step(session, [batch])
            assert len(model.losses) == 7
        assert not hasattr(model, "losses")


class WithGraph(nn.Module):
    """Holds sparse matrices as attributes, and changes them."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.graph, self.rows = torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()

    def forward(self, x):
        self.graph.add_(self.graph)
        self.rows.values().add_(1.0)
        return self.layer(x)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_scratch_puts_sparse_attributes_back():
    model = WithGraph()
    graph, rows = model.graph, model.rows
    with open_session(supervised(model), settings_of()) as session:
        with scratch(session):
            model(torch.zeros(2, 6))
            model.graph.add_(torch.ones(3, 3).to_sparse())  # other entries, too
            assert not torch.equal(graph.to_dense(), torch.eye(3))
            assert not torch.equal(rows.to_dense(), torch.eye(3))
        assert model.graph is graph
        assert model.rows is rows
        assert torch.equal(graph.to_dense(), torch.eye(3))
        assert torch.equal(rows.to_dense(), torch.eye(3))


@pytest.mark.parametrize(
    "make",
    [lambda: torch.zeros(3, 1, 2).expand(3, 4, 2), lambda: torch.zeros(()).expand(2, 2), lambda: torch.zeros(1, 3).expand(1, 3),
     lambda: torch.zeros(6).unfold(0, 3, 1), lambda: torch.zeros(0, 3), lambda: torch.zeros(2, 2).to_sparse()],
)  # fmt: skip
def test_a_tensor_whose_elements_are_one_in_memory_is_written_into(make):
    there = make()
    value = torch.ones(there.shape).to_sparse() if there.is_sparse else torch.ones(there.shape)
    overwrite(there, value)
    assert torch.equal(there.to_dense() if there.is_sparse else there, torch.ones(there.shape))
