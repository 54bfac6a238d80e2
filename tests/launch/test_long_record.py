"""A fit whose record outgrows memory and its allowance on disk: its results, its next fit and its script are what they were."""

import numpy as np
import pytest
import torch
from torch import nn

import workbench as wb
import workbench.runs.record.event_log as event_log
from workbench.runs.run import Run
from workbench.ui.panel import Panel

pytestmark = pytest.mark.usefixtures("one_thread")


class Many(nn.Module):
    """Hundreds of parameters, and next to nothing to compute."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(1)) for _ in range(600)])

    def forward(self, x):
        return x * torch.cat([*self.parts]).mean()


@pytest.fixture
def small(monkeypatch):
    """Memory holds some 60 updates."""
    monkeypatch.setattr(event_log, "HELD", 200_000)


def data():
    x = torch.linspace(0, 1, 8)[:, None]
    return x, 2 * x


def bench(root, megabytes, **settings):
    return wb.Workbench(
        Many(), train=data(), loss=nn.MSELoss(), optimizer=torch.optim.SGD, root=root, accelerator="cpu", batch_size=2, lr=0.5,
        layer_history_mb=megabytes, **settings,
    )  # fmt: skip


def measured(run):
    return {
        name: values for name, values in run.history.items() if not name.startswith("grad_norm/")
    }


def same(one, other):
    assert one.keys() == other.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name])


def thinned(run):
    kept = ~np.isnan(run.history["grad_norm/parts.0"])
    return not kept.all() and bool(kept[-30:].all())


@pytest.mark.slow  # a long record
@pytest.mark.usefixtures("small")
def test_results_are_as_if_all_were_in_memory_and_a_late_panel_draws_each_update_once(tmp_path):
    with bench(tmp_path / "whole", None) as b:
        whole = b.fit(max_steps=420).result()
    with bench(tmp_path / "thin", 1, checkpoint_every=300, save_top_k=-1) as b:
        job = b.fit(max_steps=420)
        run = job.result()
        assert len(job.events) == len([*job.events])
        assert type(job.events[-1]).__name__ == "RunEnded"
        assert thinned(run)
        assert not thinned(whole)
        same(measured(run), measured(whole))
        for there in (b.runs[0], Run.open(run.folder), wb.attach(run.id, b.root).result()):
            same(there.history, run.history)
            assert repr(there) == repr(run)
            assert there == run
        assert run.charts("grad_norm")[0].heat is not None
        panel = Panel.of(b)
        assert panel.dispatcher.drain(200)
        picture = panel.canvas._picture
        assert picture._progress._done == 420
        assert picture._training.loss is not None
        panel.close()
        # From its middle, and from its end: the whole run's record is the new one's, with the same allowance.
        on = b.fit(start=f"{run.id}@300", max_steps=420).result()
        same(
            {k: v for k, v in measured(on).items() if k != "epoch"},
            {k: v for k, v in measured(run).items() if k != "epoch"},
        )
        more = b.fit(start="continue", max_steps=460).result()
        assert thinned(more)
        same({k: v[:420] for k, v in measured(more).items()}, measured(run))
        assert max(path.stat().st_size for path in b.root.glob("runs/*/metrics.jsonl")) < 2_000_000


def test_two_ranks_and_no_record_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log, "HELD", 50_000)
    with bench(tmp_path / "ranks", 1) as b:
        run = b.fit(max_steps=60, devices=2).result()
        assert len(run.history["loss"]) == 60
        same(Run.open(run.folder).history, run.history)
    with bench(tmp_path / "dry", 1) as b:
        job = b.fit(fast_dev_run=4)
        assert len(job.result().history["loss"]) == 4
