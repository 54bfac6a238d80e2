"""Models that come compiled: they train as such, once compiled, under the names of the model within."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.task.blocks import repeated_blocks
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

DATA = labelled(24)


def bench(root, model, **options):
    options = {
        "loss": F.cross_entropy,
        "max_steps": 4,
        "batch_size": 8,
        "lr": 0.1,
        "optimizer": torch.optim.SGD,
        **options,
    }
    return wb.Workbench(model, train=DATA, root=root, accelerator="cpu", **options)


class Counted:
    """A backend of torch.compile that counts the graphs it is given, and the calls of them."""

    def __init__(self):
        self.graphs = self.calls = 0

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*values):
            self.calls += 1
            return graph.forward(*values)

        return run


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()


@pytest.mark.parametrize("options", [{}, {"compile": True}])
def test_it_is_compiled_once_and_has_its_own_names(options, tmp_path):
    with bench(tmp_path / "plain", plain_net()) as b:
        expected = b.fit().result()
    backend = Counted()
    model = torch.compile(plain_net(), backend=backend)
    with bench(tmp_path / "compiled", model, **options) as b:
        assert b.summary.name == "Sequential"
        assert b.settings.compile is True
        assert backend.graphs == 0  # the trial of two samples needs no compiler
        run = b.fit().result()
        assert (backend.graphs, backend.calls) == (1, 4)
        assert run.history["loss"].tolist() == expected.history["loss"].tolist()
        assert all(
            torch.equal(p, q) for p, q in zip(model.parameters(), b.model.parameters(), strict=True)
        )
        assert any(name.endswith("0.weight") for name in run.history)
        assert not any("_orig_mod" in name for name in run.history)
    # The checkpoint of a compiled model goes into one that is not.
    with bench(tmp_path / "compiled", plain_net(seed=3)) as b:
        b.load(run)
        assert all(
            torch.equal(p, q) for p, q in zip(model.parameters(), b.model.parameters(), strict=True)
        )
        on = b.fit(start=run.id, max_steps=6, compile=False).result()
    with bench(
        tmp_path / "compiled", torch.compile(plain_net(), backend="eager"), max_steps=6
    ) as b:
        assert b.fit().result().history["loss"].tolist() == on.history["loss"].tolist()


def test_it_may_be_told_not_to_be_compiled(tmp_path):
    backend = Counted()
    with bench(tmp_path, torch.compile(plain_net(), backend=backend), compile=False) as b:
        b.fit().result()
        assert backend.graphs == 0


class Blocks(nn.Module):
    """Two blocks of one class; it notes which of its modules are compiled while it trains."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(6, 3)
        self.compiled = set()

    def forward(self, x):
        self.compiled |= {name for name, m in self.named_modules() if m._compiled_call_impl}
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_a_list_of_lists_has_no_block_that_is_called():
    pairs = [nn.ModuleList([nn.Linear(6, 6), nn.Tanh()]) for _ in range(2)]
    assert repeated_blocks(nn.ModuleList(pairs)) == []


def test_blocks_that_repeat_are_compiled_alone(tmp_path):
    with bench(tmp_path / "plain", Blocks()) as b:
        expected = b.fit().result().history["loss"].tolist()
    model = Blocks()
    with bench(tmp_path, model, compile={"backend": "eager", "regions": True}) as b:
        assert b.fit().result().history["loss"].tolist() == expected
        assert model.compiled == {"blocks.0", "blocks.1"}
        assert not any(m._compiled_call_impl for m in model.modules())
    with (
        bench(tmp_path, plain_net(), compile={"regions": True}) as b,
        pytest.raises(TaskError, match="repeats no block"),
    ):
        b.fit().result()


class Half(nn.Module):
    def __init__(self, compiled):
        super().__init__()
        self.body = plain_net()
        if compiled:
            self.body = torch.compile(self.body, backend="eager")
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.body(x))


def test_a_part_that_is_compiled_has_its_own_names_too(tmp_path):
    with bench(tmp_path, Half(True)) as b:
        run = b.fit().result()
        weights = [p.detach().clone() for p in b.model.parameters()]
        assert not any("_orig_mod" in name for name in run.history)
        assert b.fit(start=run.id, max_steps=6).result().status == "finished"
    with bench(tmp_path, Half(False)) as b:
        b.load(run)
        assert all(torch.equal(p, q) for p, q in zip(b.model.parameters(), weights, strict=True))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain_net()

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_object_that_trains_itself(tmp_path):
    backend = Counted()
    with bench(
        tmp_path, torch.compile(Own(), backend=backend), loss=None, optimizer=torch.optim.AdamW
    ) as b:
        assert b.summary.name == "Own"
        assert b.fit().result().status == "finished"
        assert backend.calls >= 4


def test_on_two_processes(tmp_path):
    with bench(
        tmp_path,
        torch.compile(plain_net(), backend="eager"),
        devices=2,
        strategy="pool",
        batch_size=4,
    ) as b:
        before = [p.detach().clone() for p in b.model.parameters()]
        assert b.fit().result().status == "finished"
        assert not all(torch.equal(p, q) for p, q in zip(b.model.parameters(), before, strict=True))
