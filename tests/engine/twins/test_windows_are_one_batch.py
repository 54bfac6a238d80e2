"""K batches of N make the update of one batch of K·N, whatever the tails and the weights."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import IterableDataset

import workbench as wb
from tests.combinations import pairs
from tests.conftest import count
from tests.engine.learners import fitted, sentences
from tests.engine.problems import labelled, loss_of, plain_net, same_weights, sgd
from tests.reference import loop

pytestmark = pytest.mark.usefixtures("one_thread_each")
CE = F.cross_entropy


@pytest.fixture(scope="module")
def one_thread_each():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def same_run(a, b, one, other):
    np.testing.assert_allclose(a.history["loss"], b.history["loss"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(a.history["grad_norm"], b.history["grad_norm"], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-3, atol=1e-5)


@settings(max_examples=count(15, 300))
@given(
    n=st.integers(10, 60),
    size=st.integers(1, 8),
    windows=st.integers(1, 6),
    clip=st.sampled_from([None, 0.3]),
)
def test_mean_losses(n, size, windows, clip, tmp_path_factory):
    size = min(size, n)
    if size * windows > n:
        windows = n // size
    one, other = plain_net(), plain_net()
    root, data = tmp_path_factory.mktemp("runs"), labelled(n)
    common = {"loss": CE, "max_epochs": 2, "gradient_clip_val": clip}
    a = fitted(one, data, root, batch_size=size, accumulate_grad_batches=windows, **common)
    b = fitted(other, data, root, batch_size=size * windows, **common)
    same_run(a, b, one, other)


class PerToken(nn.Module):
    """Mean loss per letter that is not padding (0); a batch counts as its letters."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 7))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = CE(self.net(x).flatten(0, 1), y.flatten(), ignore_index=0)
        return {"loss": loss, "weight": (y != 0).sum()}

    def configure_optimizers(self):
        return sgd(self.parameters(), lr=0.05)


def uneven(n):
    """Texts of very different lengths, padded with 0."""
    x, y = sentences(n).tensors
    lengths = torch.randint(1, 12, (n,), generator=torch.Generator().manual_seed(n))
    there = torch.arange(11) < lengths[:, None]
    y = torch.where(there, 1 + y % 6, 0)
    return torch.utils.data.TensorDataset(x * there, y)


@pairs("n, shape", [24, 21, 17, 9], [(2, 3), (3, 2), (1, 8), (4, 2)])
def test_losses_per_token(n, shape, tmp_path):
    size, windows = shape
    one, other = PerToken(), PerToken()
    a = fitted(one, uneven(n), tmp_path / "a", batch_size=size, accumulate_grad_batches=windows)
    b = fitted(other, uneven(n), tmp_path / "b", batch_size=size * windows)
    same_run(a, b, one, other)


def test_losses_per_token_differ_from_counting_batches_alike(tmp_path):
    """The test above can fail: without the weights the updates are others."""

    class Unweighted(PerToken):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx)["loss"]

    one, other = Unweighted(), Unweighted()
    a = fitted(one, uneven(24), tmp_path / "a", batch_size=2, accumulate_grad_batches=3)
    b = fitted(other, uneven(24), tmp_path / "b", batch_size=6)
    assert not np.allclose(a.history["loss"], b.history["loss"], rtol=1e-4)


@pytest.mark.parametrize("windows", [2, 3])
def test_sums_are_not_divided_by_their_samples(windows, tmp_path):
    """`reduction="sum"`: batches count alike, so a window is the mean of its sums."""
    one, other = plain_net(), plain_net()
    sums = functools.partial(CE, reduction="sum")
    a = fitted(
        one,
        labelled(48),
        tmp_path / "a",
        loss=sums,
        batch_size=4,
        accumulate_grad_batches=windows,
        lr=1e-3,
    )
    b = fitted(
        other, labelled(48), tmp_path / "b", loss=sums, batch_size=4 * windows, lr=1e-3 / windows
    )
    np.testing.assert_allclose(a.history["loss"] * windows, b.history["loss"], rtol=1e-4)
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-3, atol=1e-5)


class LeavesOut(nn.Module):
    """Leaves out each second batch of three, if it is asked to."""

    def __init__(self, asked):
        super().__init__()
        self.net, self.asked = plain_net(), asked

    def training_step(self, batch, batch_idx):
        x, y = batch
        return None if self.asked and batch_idx % 3 == 1 else CE(self.net(x), y)

    def configure_optimizers(self):
        return sgd(self.parameters(), lr=0.05)


def test_a_batch_that_is_left_out_does_not_count(tmp_path):
    """The other batches of its window are the whole update."""
    one, other, data = LeavesOut(True), LeavesOut(False), labelled(48)
    there = torch.utils.data.Subset(data, [n for n in range(48) if n // 4 % 3 != 1])
    a = fitted(one, data, tmp_path / "a", batch_size=4, accumulate_grad_batches=3, shuffle=False)
    b = fitted(other, there, tmp_path / "b", batch_size=8, shuffle=False)
    same_run(a, b, one, other)


class OneBuffer(IterableDataset):
    """Fills the same memory with each batch of 8, as readers of audio and replay buffers do. `form`: makes the batch of it."""

    def __init__(self, form):
        self.form = form

    def __iter__(self):
        x, y = torch.empty(8, 6), torch.empty(8, dtype=torch.long)
        for own_x, own_y in fresh():
            x.copy_(own_x)
            y.copy_(own_y)
            yield self.form(x, y)


def fresh():
    return torch.utils.data.DataLoader(labelled(80), 8)


class Ring:
    """Reads one batch ahead of that which it gives, into one of two buffers."""

    def __init__(self):
        self.buffers = [(torch.empty(8, 6), torch.empty(8, dtype=torch.long)) for _ in range(2)]

    def __iter__(self):
        ready = None
        for number, batch in enumerate(fresh()):
            now = self.buffers[number % 2]
            for own, value in zip(now, batch, strict=True):
                own.copy_(value)
            if ready is not None:
                yield ready
            ready = now
        yield ready


def collated():
    """A collate function with a buffer of its own."""
    x, y = torch.empty(8, 6), torch.empty(8, dtype=torch.long)

    def collate(samples):
        for row, sample in enumerate(samples):
            x[row], y[row] = sample
        return x[: len(samples)], y[: len(samples)]

    return torch.utils.data.DataLoader(labelled(80), 8, collate_fn=collate)


def ready(form):
    return lambda: torch.utils.data.DataLoader(OneBuffer(form), batch_size=None)


REUSED = {
    "a tuple": ready(lambda x, y: (x, y)),
    "arrays": ready(lambda x, y: (x.numpy(), y.numpy())),
    "wb.batches": lambda: wb.batches(OneBuffer(lambda x, y: (x, y))),
    "one read ahead": lambda: wb.batches(Ring()),
    "a collate function": collated,
}


@pytest.mark.parametrize("windows", [1, 4])
@pytest.mark.parametrize("kind", REUSED)
def test_memory_that_is_filled_again(kind, windows, tmp_path):
    """Equal to the bit to a plain loop, which uses each batch before it reads the next; the last window has two batches."""
    model, twin = plain_net(), plain_net()
    made = wb.Workbench(
        model,
        train=REUSED[kind](),
        loss=CE,
        optimizer=sgd,
        lr=0.05,
        root=tmp_path,
        accelerator="cpu",
    )
    run = made.fit(max_epochs=2, accumulate_grad_batches=windows).result()
    expected = loop.fit(
        twin, loss_of, sgd(twin.parameters(), lr=0.05), list(fresh()), 2, accumulate=windows
    )
    assert run.history["loss"].tolist() == expected["loss"]
    assert same_weights(model, twin)


def test_a_search_reads_memory_that_is_filled_again(tmp_path):
    curves = []
    for data in (REUSED["a tuple"](), wb.batches(list(fresh()))):
        made = wb.Workbench(
            plain_net(), train=data, loss=CE, optimizer=sgd, root=tmp_path, accelerator="cpu"
        )
        curves.append(made.find_lr(num_training=8, accumulate_grad_batches=3).result().losses)
    np.testing.assert_array_equal(*curves)
