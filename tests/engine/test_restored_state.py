"""The trial of two samples when a bench is made, and each search, leave what the user owns as it was; the trial says what it could not put back."""

import itertools
import random
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.ao import quantization
from torch.utils.data import DataLoader, Dataset, IterableDataset

import workbench as wb
from tests.engine.problems import labelled, plain_net

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization"),
]

DATA = labelled(24)
STEPS = 0
RNG = np.random.default_rng(5)
SEEN = []


def bench(root, model=None, **options):
    options = {
        "loss": F.cross_entropy,
        "max_steps": 3,
        "batch_size": 8,
        "train": DATA,
        "val": DATA,
        **options,
    }
    return wb.Workbench(model or plain_net(), root=root, accelerator="cpu", **options)


def states(*generators):
    return [str(one.bit_generator.state if isinstance(one, np.random.Generator) else
                one.get_state().tolist() if isinstance(one, torch.Generator) else one.getstate()) for one in generators]  # fmt: skip


class Noisy(Dataset):
    def __init__(self):
        self.numpy, self.torch, self.python = (
            np.random.default_rng(1),
            torch.Generator().manual_seed(1),
            random.Random(1),
        )
        self.reads, self.indices, self.sums, self.cache = 0, [], np.zeros(3), {}

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        self.reads += 1
        self.indices.append(index)
        self.sums += 1
        x, y = DATA[index]
        self.cache[index] = x
        noise = (
            self.numpy.normal()
            + torch.randn(1, generator=self.torch).item()
            + self.python.random()
            + RNG.normal()
        )
        return x + 0.01 * noise, y


class Environment:
    """As a gym environment: a state, a count of steps, a generator."""

    def __init__(self):
        self.np_random, self.state, self.steps = np.random.default_rng(3), torch.zeros(2), 0

    def step(self):
        self.state += float(self.np_random.normal())
        self.steps += 1
        return self.state.sum()


SEARCHES = {
    "none": lambda tried: None,
    "find_lr": lambda tried: tried.find_lr(num_training=5).result(),
    "race": lambda tried: tried.find_lr(num_training=20, race=True, race_updates=200).result(),
    "find_batch_size": lambda tried: tried.find_batch_size(max_val=8).result(),
    "find_precision": lambda tried: tried.find_precision(updates=10).result(),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_generators_and_counts_of_data_loss_and_environment(search, tmp_path):
    data, environment, calls = Noisy(), Environment(), 0
    teacher = nn.Sequential(nn.BatchNorm1d(3))

    def loss(output, y):
        nonlocal calls
        global STEPS
        calls += 1
        STEPS += 1
        loss.calls += 1
        SEEN.append(calls)
        teacher(output.detach())
        return F.cross_entropy(output, y) + 0 * environment.step()

    loss.calls = 0
    generators = [data.numpy, data.torch, data.python, environment.np_random, RNG]
    before, steps, seen = states(*generators), STEPS, list(SEEN)
    with bench(tmp_path, train=data, val=None, loss=loss) as tried:
        SEARCHES[search](tried)
        assert states(*generators) == before
        assert (data.reads, data.sums.tolist()) == (0, [0.0, 0.0, 0.0])
        assert (environment.steps, environment.state.tolist()) == (0, [0.0, 0.0])
        assert (calls, loss.calls, STEPS) == (0, 0, steps)
        if search == "none":  # a search leaves lists and dicts
            assert (data.indices, data.cache, SEEN) == ([], {}, seen)
        assert int(teacher[0].num_batches_tracked) == 0
        assert teacher[0].running_mean.tolist() == [0.0] * 3


def test_what_a_cell_changes_while_a_search_runs_stays(tmp_path):
    data, config, calls = Noisy(), {"scale": 1.0}, 0
    data.scale = 1.0
    runs, changed = threading.Event(), threading.Event()

    def loss(output, y):
        nonlocal calls
        calls += 1
        if calls == 3:
            runs.set()
            changed.wait()
        return F.cross_entropy(output, y) * data.scale * config["scale"]

    with bench(tmp_path, train=data, val=None, loss=loss) as tried:
        job = tried.find_lr(num_training=10)
        runs.wait()
        data.scale = config["scale"] = 0.5
        changed.set()
        job.result()
        assert (calls, data.scale, config) == (0, 0.5, {"scale": 0.5})


def test_a_loader_and_its_functions(tmp_path):
    generator, rng = torch.Generator().manual_seed(3), np.random.default_rng(4)

    def collate(samples):
        x, y = zip(*samples, strict=True)
        return torch.stack(x) + float(rng.normal()) * 0.01, torch.stack(y)

    before = states(generator, rng)
    with bench(
        tmp_path,
        train=DataLoader(DATA, 8, shuffle=True, generator=generator, collate_fn=collate),
        val=None,
    ):
        assert states(generator, rng) == before


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_matrix_that_a_loss_holds(tmp_path):
    graph = torch.eye(3).to_sparse()

    def loss(output, y):
        graph.add_(graph)  # also in the trial of two samples
        return F.cross_entropy(torch.sparse.mm(graph.detach().clone(), output.T).T, y)

    with bench(tmp_path, loss=loss) as made:
        assert torch.equal(graph.to_dense(), torch.eye(3))
        made.find_lr(num_training=10).result()
        assert torch.equal(graph.to_dense(), torch.eye(3))


class Stream(IterableDataset):
    def __init__(self):
        self.source = (number for number in range(1000))

    def __iter__(self):
        for index in self.source:
            yield DATA[index % 24]


def test_what_cannot_be_put_back_is_named(tmp_path):
    with pytest.warns(
        UserWarning, match=r"the dry run .* cannot restore: train.*source .*dry_run=False"
    ):
        bench(tmp_path / "stream", train=Stream(), val=None).close()
    count = itertools.count()
    with pytest.warns(UserWarning, match=r"count.*dry_run=False"):
        bench(
            tmp_path / "count", loss=lambda output, y: F.cross_entropy(output, y) + 0 * next(count)
        ).close()


def test_dry_run_false_leaves_the_trial_out(tmp_path):
    calls, stream = [], Stream()

    def loss(output, y):
        calls.append(1)
        return F.cross_entropy(output, y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        b = bench(tmp_path, train=stream, val=None, loss=loss, dry_run=False)
    with b:
        assert calls == []
        assert next(stream.source) == 0
        assert b.summary.name == "Sequential"
        assert b.fit().result().status == "finished"
        with pytest.raises(wb.SettingsError, match=r"wb\.Workbench\(…, dry_run=…\)"):
            b.fit(dry_run=False)


def test_a_trial_that_fails_puts_back_too(tmp_path):
    data = Noisy()
    before = states(data.numpy)

    def loss(output, y):
        raise RuntimeError("no")

    with pytest.raises(ValueError, match="no"):
        bench(tmp_path, train=data, loss=loss)
    assert states(data.numpy) == before
    assert data.reads == 0


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.quant, self.first, self.last = (
            quantization.QuantStub(),
            nn.Linear(6, 8),
            nn.Linear(8, 3),
        )
        self.dequant = quantization.DeQuantStub()

    def forward(self, x):
        return self.dequant(self.last(F.relu(self.first(self.quant(x)))))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["fbgemm", "qnnpack"])
def test_quantization_aware_training(engine, tmp_path):
    """Its fresh observers have buffers that the first forward resizes."""

    def prepared():
        model = Quantized().train()
        model.qconfig = quantization.get_default_qat_qconfig(engine)
        return quantization.prepare_qat(model)

    twin = prepared()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    losses = []
    for start in (0, 8, 16):
        x, y = DATA[start : start + 8]
        optimizer.zero_grad()
        loss = F.cross_entropy(twin(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model = prepared()
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    with bench(tmp_path, model, val=None, shuffle=False, optimizer=torch.optim.SGD, lr=0.1) as b:
        assert [
            name
            for name, value in model.state_dict().items()
            if not torch.equal(value, fresh[name])
        ] == []
        run = b.fit().result()
        assert run.history["loss"].tolist() == pytest.approx(losses, rel=1e-7)
        assert all(
            torch.equal(value, twin.state_dict()[name])
            for name, value in model.state_dict().items()
        )
        assert b.fit(start=run.id, max_steps=5).result().status == "finished"
        assert b.fit().result().history["loss"].tolist() == run.history["loss"].tolist()


class Coded(nn.Parameter):
    """A weight whose scale is an attribute, as a quantized weight of bitsandbytes has it."""

    scale = None


class WithScale(nn.Module):
    """Its first forward takes the scale out of the weight into a state of its own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        whole = torch.randn(3, 6)
        self.weight = Coded((whole / whole.abs().max() * 127).to(torch.int8), requires_grad=False)
        self.weight.scale = whole.abs().max() / 127
        self.state, self.bias = type("State", (), {})(), nn.Parameter(torch.zeros(3))
        self.state.scale = None

    def forward(self, x):
        if self.weight.scale is not None:
            self.state.scale, self.weight.scale = self.weight.scale, None
        scale = 1.0 if self.state.scale is None else self.state.scale
        return F.linear(x, self.weight.float() * scale, self.bias)


def test_attributes_of_a_weight_are_put_back(tmp_path):
    model = WithScale()
    scale = model.weight.scale
    made = bench(tmp_path, model)
    assert model.weight.scale is scale
    assert model.state.scale is None
    without = bench(tmp_path / "without", WithScale(), dry_run=False)
    assert (
        made.fit().result().history["loss"].tolist()
        == without.fit().result().history["loss"].tolist()
    )
