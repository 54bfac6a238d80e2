"""bench.tune(): the searches one after another, each with what was found before, as one job."""

import pytest
import torch
import torch.nn.functional as F

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
SEARCHES = ["find_num_workers", "find_batch_size", "find_lr", "find_clip_val"]


def test_one_job_finds_all(tmp_path):
    model, data = noisy_net(), labelled(200)
    twin = twin_of(model)
    b = bench(model, data, tmp_path, adam, val=labelled(40, seed=2))
    before, random = weights(model), torch.get_rng_state()
    job = b.tune()
    plan = job.result()
    assert [step.search for step in plan.steps] == SEARCHES
    assert (
        {"num_workers", "batch_size", "lr"}
        <= set(plan.settings)
        <= {"num_workers", "batch_size", "lr", "gradient_clip_val"}
    )
    assert plan.clip.best == {k: v for k, v in plan.settings.items() if k == "gradient_clip_val"}
    assert all(step.reason for step in plan.steps)
    assert sum(isinstance(event, RunStarted) for event in job.events) == 1
    assert job.events[0].kind == "tune"
    assert plan.settings["batch_size"] == plan.sizes.best
    assert plan.settings["lr"] == pytest.approx(plan.curve.suggestion, rel=0.01)
    assert len(plan.curve.race) == 4
    # nothing is applied, nothing is left
    assert same_weights(before, weights(model))
    assert torch.equal(random, torch.get_rng_state())
    assert (b.settings.batch_size, b.settings.num_workers) == (8, 0)
    assert "bench.set(" in repr(plan)
    assert wb.attach(job.id, root=tmp_path).result().settings == plan.settings
    # a fit with the settings is that of a bench which has had them from the start
    b.set(**plan.settings)
    found = b.fit(max_epochs=1).result().history["loss"].tolist()
    other = bench(twin, data, tmp_path / "other", adam, val=labelled(40, seed=2))
    other.set(**plan.settings)
    assert other.fit(max_epochs=1).result().history["loss"].tolist() == found


def test_the_chosen_searches_alone_and_applied(tmp_path):
    b = bench(plain_net(), labelled(200), tmp_path, adam)
    job = b.tune(searches=("batch_size",), apply=True)
    plan = job.result()
    assert [step.search for step in plan.steps] == ["find_batch_size"]
    assert b.settings.batch_size == plan.settings["batch_size"]
    kinds = {type(event) for event in job.events}
    assert Trial in kinds
    assert not {SpeedTrial, CurvePoint} & kinds


def test_a_step_gives_what_speaks_against_its_value(tmp_path):
    x, y = torch.zeros(200, 6), torch.arange(200) % 3
    [step] = bench(plain_net(), (x, y), tmp_path, adam).tune(searches=("lr",)).result().steps
    assert "lr" in step.values
    assert "the curve says little" in step.reason


def test_each_search_runs_with_what_was_found_before(tmp_path):
    seen = []

    def loss(output, y):
        seen.append(len(y))
        return F.cross_entropy(output, y)

    plan = (
        bench(plain_net(), labelled(800), tmp_path, adam, loss=loss)
        .tune(searches=("batch_size", "lr"))
        .result()
    )
    size = plan.settings["batch_size"]
    assert size != 8
    assert seen[-1] in (size, 800 % size)


def test_a_search_that_the_data_does_not_allow_leaves_its_setting(tmp_path):
    loader = torch.utils.data.DataLoader(
        labelled(200), batch_sampler=[list(range(i, i + 10)) for i in range(0, 200, 10)]
    )
    plan = bench(plain_net(), loader, tmp_path, adam).tune(searches=("batch_size", "lr")).result()
    first, second = plan.steps
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
    assert plan.curve.suggestion is None


@pytest.mark.parametrize(
    "given",
    [{"searches": ()}, {"searches": ("clip",)}, {"searches": "epochs"}, {"apply": "yes"}],
    ids=lambda g: next(iter(g)),
)
def test_bad_arguments_are_named(given, tmp_path):
    with pytest.raises(SettingsError, match=f"{next(iter(given))}="):
        bench(plain_net(), labelled(), tmp_path).tune(**given)
