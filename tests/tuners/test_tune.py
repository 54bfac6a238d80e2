"""bench.tune(): the searches one after another, each with what was found before, as one job."""

import pytest
import torch

import workbench as wb
from tests.engine.problems import (
    adam,
    bench,
    labelled,
    noisy_net,
    plain_net,
    same_weights,
    twin_of,
    weights,
)
from workbench.events import CurvePoint, RunStarted, SpeedTrial, Trial, TuneStep
from workbench.settings import SettingsError
from workbench.tuners.plan import Plan

pytestmark = pytest.mark.usefixtures("one_thread")
SEARCHES = ["find_num_workers", "find_lr", "find_batch_size", "find_clip_val", "check"]


def test_one_job_finds_all(tmp_path):
    model, data = noisy_net(), labelled(200)
    twin = twin_of(model)
    b = bench(model, data, tmp_path, adam, val=labelled(40, seed=2), max_epochs=16, lr=1e-3)
    before, random = weights(model), torch.get_rng_state()
    job = b.tune()
    plan = job.result()
    assert [step.search for step in plan.steps] == SEARCHES
    assert (
        {"num_workers", "lr"}
        <= set(plan.settings)
        <= {"num_workers", "batch_size", "lr", "gradient_clip_val"}
    )
    assert plan.settings == plan.steps[-1].values
    assert plan.clip.best == {k: v for k, v in plan.settings.items() if k == "gradient_clip_val"}
    assert all(step.reason for step in plan.steps)
    assert sum(isinstance(event, RunStarted) for event in job.events) == 1
    assert job.events[0].kind == "tune"
    assert plan.settings.get("batch_size", 8) <= max(8, plan.sizes.best)
    assert plan.steps[1].values["lr"] == pytest.approx(plan.curve.suggestion, rel=0.01)
    assert len(plan.curve.race) >= 4
    losses = {repr(dict(trial.values)): trial.loss for trial in plan.trials}
    assert (
        losses["{}"] > losses[repr({k: v for k, v in plan.settings.items() if k != "num_workers"})]
    )
    assert "with the present settings" in plan.steps[-1].reason
    # nothing is applied, nothing is left
    assert same_weights(before, weights(model))
    assert torch.equal(random, torch.get_rng_state())
    assert (b.settings.batch_size, b.settings.num_workers, b.settings.lr) == (8, 0, 1e-3)
    assert "bench.set(" in repr(plan)
    page = plan._repr_html_()
    assert "data:image/png" in page
    assert "clearly better" in page
    assert "data:image" not in Plan.from_events([])._repr_html_()
    assert wb.attach(job.id, root=tmp_path).result().settings == plan.settings
    # a fit with the settings is that of a bench which has had them from the start
    b.set(**plan.settings)
    found = b.fit(max_epochs=1).result().history["loss"].tolist()
    other = bench(twin, data, tmp_path / "other", adam, val=labelled(40, seed=2))
    other.set(**plan.settings)
    assert other.fit(max_epochs=1).result().history["loss"].tolist() == found


def test_the_chosen_searches_alone_and_applied(tmp_path):
    data = torch.utils.data.TensorDataset(torch.zeros(800, 6), torch.arange(800) % 3)
    b = bench(plain_net(), data, tmp_path, max_epochs=3, lr=1e-4)
    job = b.tune(searches=("batch_size",), apply=True)
    plan = job.result()
    assert [step.search for step in plan.steps] == ["find_batch_size", "check"]
    applied = {name: getattr(b.settings, name) for name in plan.settings}
    assert applied == plan.settings
    assert b.settings.batch_size == plan.settings.get("batch_size", 8)
    kinds = {type(event) for event in job.events}
    assert Trial in kinds
    assert not {SpeedTrial, CurvePoint} & kinds


def test_a_step_gives_what_speaks_against_its_value(tmp_path):
    x, y = torch.zeros(200, 6), torch.arange(200) % 3
    plan = bench(plain_net(), (x, y), tmp_path, adam).tune(searches=("lr",)).result()
    step, check = plan.steps
    assert "lr" in step.values
    assert "the curve says little" in step.reason
    assert check.is_check


def test_a_search_that_the_data_does_not_allow_leaves_its_setting(tmp_path):
    loader = torch.utils.data.DataLoader(
        labelled(200), batch_sampler=[list(range(i, i + 10)) for i in range(0, 200, 10)]
    )
    plan = bench(plain_net(), loader, tmp_path, adam).tune(searches=("batch_size", "lr")).result()
    first, second, _ = plan.steps
    assert first == TuneStep("find_batch_size", {}, first.reason)
    assert "find_batch_size cannot set the batch size" in first.reason
    assert "lr" in second.values


def test_a_stop_ends_it(tmp_path):
    b = bench(plain_net(), labelled(200), tmp_path, adam)
    job = b.tune()
    job.stop()
    job.wait(200)
    assert job.status == "stopped"
    assert not job.result().settings or set(job.result().settings) < {
        "num_workers",
        "batch_size",
        "lr",
    }


def test_as_far_as_it_got():
    steps = [
        TuneStep("find_num_workers", {"num_workers": 2}, "why"),
        TuneStep("find_batch_size", {}, "why not"),
    ]
    plan = Plan.from_events(steps)
    assert plan.settings == {"num_workers": 2}
    lost = [TuneStep("find_lr", {"lr": 1.0}, "why"), TuneStep("check", {"num_workers": 2}, "why")]
    assert Plan.from_events([*steps, *lost]).settings == {"num_workers": 2}
    assert plan.curve.suggestion is None


@pytest.mark.parametrize(
    "given",
    [{"searches": ()}, {"searches": ("clip",)}, {"searches": "epochs"}, {"apply": "yes"}],
    ids=lambda g: next(iter(g)),
)
def test_bad_arguments_are_named(given, tmp_path):
    with pytest.raises(SettingsError, match=f"{next(iter(given))}="):
        bench(plain_net(), labelled(), tmp_path).tune(**given)
