"""The gradient noise scale against a direct estimate, from the gradient of each sample of the data."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import TensorDataset

import workbench as wb
from tests.combinations import every, pairs
from tests.engine.problems import adam, bench, labelled, noisy_net, plain_net, same_weights, weights
from workbench.engine.setup import open_session
from workbench.events import SearchEnded, Trial, from_line, to_line
from workbench.instruments.noise_scale import NoiseScale, mean_of, noise_scale, rounded
from workbench.runs.run import Run
from workbench.tuners.batch_size import noise_trial
from workbench.tuners.batch_size.batch_size_search import BatchSizes, TrialStopped
from workbench.tuners.batch_size.noise_trial import (
    Stretch,
    measure_noise,
    noise_within,
    size_for_noise,
    stretch_of,
)


def directly(model, data, loss):
    """tr(cov) of one sample's gradient over the squared norm of the mean gradient, both over all data."""
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def of_sample(weights, x, y):
        return loss(functional_call(model, weights, (x[None],)), y[None])

    found = vmap(grad(of_sample), (None, 0, 0))(weights, *data.tensors)
    rows = torch.cat([g.flatten(1) for g in found.values()], 1).double()
    spread = float(rows.var(0).sum())
    return spread / (float(rows.mean(0).square().sum()) - spread / len(rows))


def regression():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(4096, 20, generator=g)
    y = x @ torch.randn(20, 1, generator=g) + 3 * torch.randn(4096, 1, generator=g)
    torch.manual_seed(0)
    return nn.Linear(20, 1), TensorDataset(x, y), F.mse_loss


def classes():
    return plain_net(), labelled(4096), F.cross_entropy


def images():
    """A convolution, and more weights than a sketch has numbers."""
    g = torch.Generator().manual_seed(5)
    y = torch.randint(0, 4, (4096,), generator=g)
    x = torch.randn(4096, 1, 8, 8, generator=g)
    x[torch.arange(4096), 0, y, y] += 3
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 4),
    ]
    return nn.Sequential(*layers), TensorDataset(x, y), F.cross_entropy


def characters():
    """Next-token prediction: the loss is a mean over tokens."""
    g = torch.Generator().manual_seed(6)
    x = torch.randint(0, 12, (4096, 8), generator=g)
    y = torch.where(
        torch.rand(4096, 8, generator=g) < 0.7,
        (x + 1) % 12,
        torch.randint(0, 12, (4096, 8), generator=g),
    )
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12)), TensorDataset(x, y), token_loss


def token_loss(output, y):
    return F.cross_entropy(output.transpose(1, 2), y)


@pairs("task, updates", every(2, [classes, regression, characters, images]), [0, 60])
def test_it_is_the_direct_estimate_within_a_third(task, updates, tmp_path, monkeypatch):
    monkeypatch.setattr(noise_trial, "_SECONDS", 600.0)  # a busy machine takes as many batches
    model, data, loss = task()
    b = bench(model, data, tmp_path, adam, loss=loss, lr=0.003, batch_size=64)
    if updates:
        b.fit(max_steps=updates).result()
    found = measure_noise(b._task, b.settings, 16, 256)
    true = directly(model, data, loss)
    assert found.value == pytest.approx(true, rel=0.3)


def test_a_search_shows_it_beside_its_other_limits(tmp_path):
    model, data, loss = classes()
    b = bench(model, data, tmp_path, adam, loss=loss)
    before = weights(model)
    job = b.find_batch_size(
        init_val=16, max_val=64, steps_per_trial=1, batch_size=32, max_steps=400
    )
    found = job.result()
    after = [
        measure_noise(b._task, b.settings, 64, 64, stretch=Stretch(32, (place,), 5.0))
        for place in (20, 40, 80)
    ]
    mean = math.prod(scale.value for scale in after) ** (1 / 3)
    assert found.noise_scale == pytest.approx(mean, rel=0.5)
    assert 0 < found.noise_uncertainty <= 0.5
    assert "after 20, 40 and 80 updates" in found.noise_reason
    line = next(line for line in repr(found).splitlines() if "noise suggests" in line)
    assert (
        line.strip()
        == f"fits up to 64 · fastest from {found.fastest} · noise suggests about {rounded(found.noise_scale)} now"
    )
    assert BatchSizes.from_events(Run.open(job.folder.path).events) == found
    assert same_weights(before, weights(model))


def test_the_updates_before_it_are_a_share_of_the_run():
    quick, slow = Trial(32, True, seconds=1e-4), Trial(32, True, seconds=0.1)
    assert stretch_of(quick, 450, 60.0).places == (20, 40, 80)
    assert stretch_of(quick, 10_000, 60.0).places == (320, 640, 1280)
    assert stretch_of(quick, 8, 60.0).places == (8,)
    assert stretch_of(slow, math.inf, 60.0).places == (20, 40)  # 5 seconds of updates
    assert stretch_of(quick, math.inf, math.inf).places == (10240, 20480, 40960)
    assert stretch_of(quick, 450, 60.0).size == 32
    assert 3 * stretch_of(quick, 450, 3.0).seconds == pytest.approx(1.5)


def test_the_mean_of_several_places():
    one, four = NoiseScale(10.0, 0.1, "", 9.0), NoiseScale(40.0, 0.2, "", 33.0)
    mean = mean_of({20: one, 40: four})
    assert mean.value == pytest.approx(20.0)
    assert mean.uncertainty == pytest.approx(math.hypot(0.1, 0.2) / 2)
    assert "the mean of 10, 40 after 20 and 40 updates" in mean.reason
    large, unknown = NoiseScale(None, None, "large", 90.0), NoiseScale(None, None, "unknown")
    least = mean_of({20: one, 40: large})
    assert (least.value, least.uncertainty) == (None, None)
    assert least.at_least == least.samples == pytest.approx(30.0)
    assert mean_of({20: one, 40: unknown}) == one
    assert mean_of({20: unknown}) == unknown


def test_where_it_is_not_known_it_is_known_how_large_it_is_at_least():
    """Gradients of noise alone, of which 64 batches cannot show a mean; and clear ones."""
    draw = np.random.default_rng(0)
    noise = list(draw.normal(size=(64, 50)))
    unknown = noise_scale(noise, [8.0] * 64, 8)
    assert unknown.value is None
    # by chance |G|^2 seems to be up to a few times the standard error of its estimate
    assert 8 * 20 < unknown.at_least < 8 * 64 * 50
    assert f"{rounded(unknown.at_least)} samples or more" in unknown.reason
    clear = noise_scale([row + 1 for row in noise], [8.0] * 64, 8)
    assert clear.at_least < clear.value == pytest.approx(8.0, rel=0.3)


def test_a_record_of_an_older_version_is_read(tmp_path):
    old = '{"type": "SearchEnded", "best": 8, "largest": 16, "ended": "16 did not fit", "reason": "8: fast."}'
    assert from_line(old) == SearchEnded(8, 16, "16 did not fit", reason="8: fast.")
    assert "noise" not in repr(BatchSizes.from_events([from_line(old)]))
    new = SearchEnded(8, 16, "done", None, 16, "8: fast.", 93.4, 0.12, "about 93 samples.")
    assert from_line(to_line(new)) == new


def test_measuring_leaves_no_trace(tmp_path, one_thread):
    """BatchNorm's buffers move in training mode, and dropout draws; both are put back."""
    b = bench(noisy_net(), labelled(800), tmp_path, adam, max_epochs=1)
    first = b.fit().result()
    b = bench(model := noisy_net(), labelled(800), tmp_path, adam, max_epochs=1)
    before, state = weights(model), torch.get_rng_state()
    with open_session(b._task, b.settings) as session:
        found = noise_within(session, b.settings, 8, 100)
        assert found.value > 0
        assert session.state.step == session.state.batch_idx == 0
        assert all(p.grad is None for p in model.parameters())
    assert same_weights(before, weights(model))
    assert torch.equal(state, torch.get_rng_state())
    assert np.array_equal(b.fit().result().history["loss"], first.history["loss"])


@pytest.mark.slow  # two whole searches
def test_the_same_search_finds_the_same_number(tmp_path, monkeypatch):
    monkeypatch.setattr(noise_trial, "_SECONDS", 600.0)
    b = bench(noisy_net(), labelled(512), tmp_path)
    assert measure_noise(b._task, b.settings, 8, 64) == measure_noise(b._task, b.settings, 8, 64)


def test_no_sample_counts_twice(tmp_path):
    seen = []

    def loss(output, y):
        seen.append(len(y))
        return F.cross_entropy(output, y)

    b = bench(plain_net(), labelled(100), tmp_path, loss=loss, accumulate_grad_batches=4)
    seen.clear()
    measure_noise(b._task, b.settings, 8, 100 // 8)
    assert seen == [8] * 12


def test_the_size_that_it_is_measured_with():
    assert size_for_noise([2, 4, 8, 16, 32, 64, 128], None) == 64
    assert size_for_noise([2, 4, 8, 16, 32], 64 * 8 + 5) == 8
    assert size_for_noise([2, 4, 8, 16, 32], 64 * 1000) == 32
    assert size_for_noise([16, 32], 40) == 16


def test_a_stop_ends_it(tmp_path):
    b = bench(plain_net(), labelled(100), tmp_path)
    with open_session(b._task, b.settings) as session, pytest.raises(TrialStopped):
        noise_within(session, b.settings, 4, 20, stop=lambda: True)


class Reporting(nn.Module):
    """A loss that is the mean over the numbers above 0, of which it reports how many there were."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(6, 3)

    def forward(self, x):
        return self.line(x)


def test_reported_weights_count(tmp_path, monkeypatch):
    """A sample of class 0 counts three tokens, others one. The direct estimate takes each token for a sample of its own."""
    monkeypatch.setattr(noise_trial, "_SECONDS", 600.0)
    data, model = labelled(4096), Reporting()
    tokens = torch.where(data.tensors[1] == 0, 3.0, 1.0)

    def loss(output, y):
        each, many = F.cross_entropy(output, y, reduction="none"), torch.where(y == 0, 3.0, 1.0)
        return {"loss": (each * many).sum() / many.sum(), "weight": many.sum()}

    b = bench(model, data, tmp_path, loss=loss)
    found = measure_noise(b._task, b.settings, 16, 256)
    repeated = TensorDataset(*(t.repeat_interleave(tokens.long(), 0) for t in data.tensors))
    # Tokens of a sample are the same, which makes the noise of a batch larger than that of as many samples.
    plain = directly(model, repeated, F.cross_entropy) / float(tokens.mean())
    assert plain < found.value < 3 * plain


class Carrying(nn.Module):
    """Carries a state from one piece in time to the next."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)

    def forward(self, x, hiddens):
        return self.line(x), torch.zeros(1)


def test_why_it_is_not_measured(tmp_path):
    data = labelled(64)
    sequences = TensorDataset(torch.randn(64, 4, 6), torch.zeros(64, 4, dtype=torch.long))
    pieces = bench(Carrying(), sequences, tmp_path, loss=token_loss, truncated_bptt_steps=2)
    with open_session(pieces._task, pieces.settings) as session:
        assert "pieces of a batch" in noise_within(session, pieces.settings, 4, 16).reason
    few = (
        bench(plain_net(), data, tmp_path)
        .find_batch_size(init_val=16, max_val=16, steps_per_trial=1)
        .result()
    )
    assert few.noise_scale is None
    assert "needs 8 batches" in few.noise_reason
    assert repr(few).count("not known") == 1
    other = wb.Workbench(
        plain_net(), train=data, test=data, loss=F.cross_entropy, root=tmp_path, accelerator="cpu"
    )
    assert other.find_batch_size(method="predict", max_trials=2).result().noise_reason == ""
