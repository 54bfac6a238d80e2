"""The gradient noise scale of a fit: that of all single samples' gradients, and the fit is what it is without it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import workbench as wb
from tests.engine.problems import HalfUsed, bench, labelled, noisy_net, plain_net, sgd, twin_of
from workbench.engine.metrics.noise_scale import FEWEST, NAME
from workbench.events import Message

pytestmark = pytest.mark.usefixtures("one_thread")


def direct(model, x, y):
    """S / |G|^2 from the gradient of each sample, by the name of its column."""
    rows = {
        NAME: [],
        **{f"{NAME}/{name}": [] for name, part in model.named_children() if [*part.parameters()]},
    }
    for i in range(len(x)):
        model.zero_grad()
        F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        for column, own in rows.items():
            part = model if column == NAME else model.get_submodule(column.removeprefix(f"{NAME}/"))
            own.append(
                torch.cat(
                    [p.grad.flatten() for p in part.parameters() if p.grad is not None]
                    or [torch.zeros(1)]
                )
            )
    gradients = {column: torch.stack(own).double() for column, own in rows.items()}
    return {
        column: float(g.var(0).sum() / (g.mean(0) ** 2).sum()) for column, g in gradients.items()
    }


def hard(n=400):
    """Data on which no module of `plain_net` has a mean gradient that is lost in noise."""
    torch.manual_seed(0)
    x = torch.randn(n, 6) + 0.5
    return x, (x @ torch.randn(6, 3)).argmax(1)


def warnings(job):
    return [e.text for e in job.events if isinstance(e, Message) and "track_noise_scale" in e.text]


def test_it_is_the_direct_estimate_at_weights_that_stay(tmp_path):
    x, y = hard()
    model = plain_net()
    expected = direct(twin_of(model), x, y)
    b = bench(
        model, TensorDataset(x, y), tmp_path, sgd, lr=1e-12, batch_size=4, accumulate_grad_batches=4
    )
    job = b.fit(max_epochs=16, track_noise_scale="modules")
    run = job.result()
    assert np.isnan(run.history[NAME][: FEWEST - 1]).all()
    assert {column: np.median(run.history[column][150:]) for column in expected} == pytest.approx(
        expected, rel=0.3
    )
    (chart,) = run.charts(NAME)
    assert [line.name for line in chart.series] == ["all parameters", "0", "2"]
    assert not warnings(job)


@pytest.mark.parametrize(
    ("model", "settings"),
    [(plain_net, {"batch_size": 2, "accumulate_grad_batches": 4}), (HalfUsed, {"batch_size": 8})],
    ids=["during-the-backward", "after-it"],
)
def test_on_ranks_it_is_the_direct_estimate(model, settings, tmp_path):
    x, y = hard()
    expected = direct(twin_of(model()), x, y)
    with bench(model(), TensorDataset(x, y), tmp_path, sgd, lr=1e-12, devices=2, **settings) as b:
        job = b.fit(max_epochs=16, track_noise_scale="modules")
        run = job.result()
    found = {
        column: np.nanmedian(run.history[column][150:])
        for column, value in expected.items()
        if not np.isnan(value)
    }
    assert found == pytest.approx(
        {column: value for column, value in expected.items() if not np.isnan(value)}, rel=0.3
    )
    assert not warnings(job)


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_fit_is_what_it_is_without(ranks, tmp_path):
    """On ranks, one has fewer batches than the others at the end of an epoch."""
    found = []
    for tracks in (False, "modules"):
        more = {"devices": ranks, "batch_size": 4} if ranks > 1 else {}
        with bench(
            noisy_net(),
            labelled(130),
            tmp_path / str(tracks),
            accumulate_grad_batches=3,
            gradient_clip_val=0.5,
            **more,
        ) as b:
            run = b.fit(max_epochs=16, track_noise_scale=tracks).result()
        found.append(
            [run.history[name].tolist() for name in ("loss", "grad_norm", "grad_norm_clipped")]
        )
        assert (f"{NAME}/0" in run.history) == bool(tracks)
    assert found[0] == found[1]


def test_without_norms_it_measures_its_own(tmp_path):
    runs = []
    for order in (2.0, None):
        b = bench(
            plain_net(),
            labelled(200),
            tmp_path / str(order),
            accumulate_grad_batches=4,
            track_grad_norm=order,
        )
        runs.append(b.fit(max_epochs=10, track_noise_scale=True).result().history[NAME])
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-5)


def test_where_it_cannot_be_measured_you_see_why(tmp_path):
    job = bench(plain_net(), labelled(100), tmp_path).fit(max_epochs=1, track_noise_scale=True)
    run = job.result()
    (said,) = warnings(job)
    assert "set accumulate_grad_batches to 2 or more, or train on several devices" in said
    assert NAME not in run.history
    with pytest.raises(
        ValueError,
        match=r"has no plot 'gradient_noise_scale'; it takes track_noise_scale=True, several batches an update",
    ):
        run.charts(NAME)


class Weighted(torch.nn.Module):
    """Reports a weight of its own for each batch."""

    def __init__(self):
        super().__init__()
        self.net = plain_net()

    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"loss": F.cross_entropy(self.net(x), y), "weight": 10.0 * len(x)}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_weights_that_are_not_samples_give_none(tmp_path):
    b = wb.Workbench(
        Weighted(),
        train=labelled(100),
        root=tmp_path,
        accelerator="cpu",
        batch_size=8,
        accumulate_grad_batches=2,
    )
    job = b.fit(max_steps=60, track_noise_scale=True)
    assert NAME not in job.result().history
    (said,) = warnings(job)
    assert "training_step reports a 'weight'" in said
