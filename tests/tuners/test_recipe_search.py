"""The race of recipes: a stretch is a plain loop, the present settings stay unless one is clearly better, nothing is left behind."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import (
    labelled,
    loss_of,
    noisy_net,
    plain_net,
    same_weights,
    twin_of,
    weights,
)
from tests.reference import loop
from workbench.events import RecipeSearchEnded, RecipeTrial
from workbench.settings import Settings, SettingsError
from workbench.task.errors import TaskError
from workbench.tuners.recipe_search import lengths, most_recipes

pytestmark = pytest.mark.usefixtures("one_thread")
FALLING = {"optimizer": {"sgd": {"momentum": 0.9}}, "lr": 0.1, "lr_schedule": "cosine", "warmup": 0.1}  # fmt: skip


def make(root: Path, model: Any = None, **settings: Any) -> wb.Workbench:
    settings = {
        "batch_size": 8,
        "max_steps": 200,
        "accelerator": "cpu",
        "lr": 1e-4,
        "train": labelled(600),
        "val": labelled(40, seed=2),
        "loss": nn.functional.cross_entropy,
        **settings,
    }
    return wb.Workbench(model or plain_net(), root=root, **settings)


def by_hand(model: nn.Module, recipe: dict[str, Any], updates: int, size: int = 8) -> float:
    """The held-out loss of a plain loop at SGD's rate with a warm-up and a cosine, or at AdamW's."""
    twin = twin_of(model)
    falls = bool(recipe)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(twin.parameters(), lr=1e-4)
    if falls:
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    batches = itertools.chain.from_iterable(itertools.repeat(loop.loader_of(labelled(600), size)))
    loop.seed_all(0)
    twin.train()
    warmup = updates // 10
    for update, batch in zip(range(updates), batches, strict=False):
        share = 0.5 * (1 + math.cos(math.pi * (update - warmup) / (updates - warmup)))
        factor = (update + 1) / warmup if update < warmup else share
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * factor if falls else 1e-4
        loss_of(twin, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    twin.eval()
    with torch.no_grad():
        held_out = loop.loader_of(labelled(40, seed=2), 8, shuffle=False)
        losses = [loss_of(twin, batch).item() for batch in held_out]
    return sum(losses) / len(losses)


def test_each_stretch_is_a_plain_loop_and_nothing_is_left_behind(tmp_path: Path) -> None:
    model = noisy_net()
    before, state = weights(model), torch.get_rng_state()
    with make(tmp_path, model) as b:
        found = b.find_recipe(updates=200, recipes=[FALLING]).result()
        assert torch.equal(torch.get_rng_state(), state)
        assert [trial.values for trial in found.trials] == [{}, Settings.named(FALLING)]
        for trial in found.trials:
            assert trial.updates == 100
            assert trial.loss == pytest.approx(by_hand(noisy_net(), trial.values, 100), rel=1e-5)
        assert found.best == FALLING
        assert "is clearly better than the present settings" in found.reason
        assert same_weights(weights(model), before)
        assert b.settings.optimizer is None


def test_another_batch_size_has_as_many_samples(tmp_path: Path) -> None:
    half = {**FALLING, "batch_size": 4}
    with make(tmp_path, noisy_net()) as b:
        found = b.find_recipe(updates=200, recipes=[half]).result()
        trial = found.trials[1]
        assert trial.updates == 100  # in batches of 8
        assert trial.loss == pytest.approx(by_hand(noisy_net(), half, 200, 4), rel=1e-5)
        assert found.best == {**half, "max_steps": 400}
        assert "2 times as many updates" in found.reason
        by_epochs = b.find_recipe(
            updates=200, recipes=[half], max_epochs=3, max_steps=None
        ).result()
        assert by_epochs.best == half
    whole = {**half, "batch_size": 24}
    with make(tmp_path, plain_net(), val=None, batch_size=16) as b:
        found = b.find_recipe(updates=200, recipes=[whole]).result()
        assert dict(found.trials[1].values) == {**whole, "max_steps": 133}


def test_short_runs_try_half_of_the_batch(tmp_path: Path) -> None:
    def sizes(bench: wb.Workbench, **settings: Any) -> set[Any]:
        with bench as b:
            found = b.find_recipe(updates=200, **settings).result()
        return {trial.values.get("batch_size") for trial in found.trials if trial.values}

    assert sizes(make(tmp_path)) == {4}
    assert sizes(make(tmp_path), max_steps=1001) == {None}
    ready = wb.batches(list(loop.loader_of(labelled(600), 8)))
    own = wb.Workbench(
        plain_net(), train=ready, val=labelled(40, seed=2), loss=F.cross_entropy, root=tmp_path,
        max_steps=200, accelerator="cpu",
    )  # fmt: skip
    assert sizes(own) == {None}
    with pytest.raises(SettingsError, match="batch_size=4 has no effect on train"):
        own.find_recipe(recipes=[{"batch_size": 4}])


def test_what_was_found_is_applied_exported_continued_and_repeated(tmp_path: Path) -> None:
    model, data, val = plain_net(), labelled(600), labelled(40, seed=2)
    with wb.Workbench(
        model, train=data, val=val, loss=F.cross_entropy, root=tmp_path, lr=1e-4, batch_size=8,
        max_steps=60, accelerator="cpu",
    ) as b:  # fmt: skip
        found = b.find_recipe(updates=500).result()
        optimizers = {str(trial.values.get("optimizer")) for trial in found.trials}
        assert optimizers == {"None", "schedule_free_adamw", "adamw", "muon"}
        assert sum(trial.updates for trial in found.trials) <= 500
        b.set(**found.best)
        run = b.fit().result()
        assert {name: getattr(run.settings, name) for name in found.best} == found.best
        b.fit("continue", max_steps=run.settings.max_steps + 10).result()
        repeated = wb.rerun(run, root=tmp_path).result()
        assert (repeated.history["loss"] == run.history["loss"]).all()
        script = b.script(run, evidence=True)
        assert "(0001-find_recipe): held-out loss after" in script
        read = wb.Run.open(tmp_path / "runs" / "0001-find_recipe")
        assert read.plot() is not None


def test_the_present_settings_stay_unless_another_is_clearly_better(tmp_path: Path) -> None:
    with make(tmp_path, lr=0.02) as b:
        nearly = {"optimizer": "adamw", "lr": 0.0201}
        found = b.find_recipe(updates=200, recipes=[nearly]).result()
        assert found.best == {}
        assert "No recipe is clearly better than the present settings" in found.reason


def test_losses_that_count_as_equal_beside_the_start_are_a_doubt(tmp_path: Path) -> None:
    """Only the bias is learned, from 1e4 to about 0."""
    noise = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
    model = nn.Linear(1, 1)
    model.bias.data.fill_(1e4)
    data = {"train": (torch.zeros(200, 1), noise), "val": (torch.zeros(200, 1), noise)}
    with make(tmp_path, model, **data, loss=F.mse_loss, optimizer="sgd", lr=0.04) as b:
        found = b.find_recipe(updates=200, recipes=[{"optimizer": "sgd", "lr": 0.1}]).result()
    present, other = found.trials[-2:]
    assert other.loss < 0.9 * present.loss
    assert found.best == {}
    assert "Beside the loss at the start" in found.reason
    assert "sgd, lr=0.1 has a clearly lower loss than the present settings" in found.doubt


def test_of_recipes_that_are_as_good_the_lower_rate_and_the_higher_decay_are_taken(
    tmp_path: Path,
) -> None:
    rates = [{"optimizer": "adam", "lr": lr} for lr in (0.0301, 0.03, 0.0299)]
    decays = [{**rates[2], "weight_decay": decay} for decay in (1e-6, 0.0)]
    for recipes, gentlest in ((rates, rates[2]), (decays, decays[0])):
        with make(tmp_path) as b:
            found = b.find_recipe(
                updates=500, recipes=[*recipes, recipes[-1]]
            ).result()  # one twice
        longest = max(trial.updates for trial in found.trials)
        second = [trial.values for trial in found.trials if trial.updates == longest]
        assert found.trials[0].updates < longest
        assert (second[:2], len(second)) == ([{}, gentlest], len(recipes))
        assert {name: found.best[name] for name in gentlest} == gentlest


def test_a_recipe_that_overfits_has_a_run_as_short_as_its_longest_stretch(tmp_path: Path) -> None:
    """Of a few samples with random labels the loss only rises, once the bias is learned."""
    numbers = torch.Generator().manual_seed(0)
    inputs = torch.randn(100, 6, generator=numbers)
    labels = (torch.rand(100, generator=numbers) < 0.2).long()
    data = {"train": (inputs[:40], labels[:40]), "val": (inputs[40:], labels[40:])}
    fast = [{"optimizer": "adam", "lr": lr, "batch_size": 4} for lr in (0.02, 1e-6, 2e-6)]
    with make(tmp_path, **data, max_steps=300) as b:
        found = b.find_recipe(updates=450, recipes=fast).result()
    assert {**found.best, "max_steps": 0} == {**fast[0], "max_steps": 0}
    assert found.best["max_steps"] == 2 * found.trials[-1].updates
    assert "It overfits" in found.reason
    assert sum(row.endswith("best") for row in repr(found).splitlines()) == 1


def test_present_settings_that_fall_faster_stay(tmp_path: Path) -> None:
    """A recipe that is done at once is ahead in a stretch, and not at the end of a long run."""
    numbers = torch.Generator().manual_seed(0)
    inputs, noise = torch.randn(4000, 4, generator=numbers), torch.randn(4000, 1, generator=numbers)
    targets = inputs @ torch.tensor([[1.0], [2.0], [3.0], [4.0]]) + noise
    data = {"train": (inputs, targets), "val": (inputs[:100], targets[:100]), "loss": F.mse_loss}
    fast = [{"optimizer": "adam", "lr": 0.3}, {"optimizer": "adam", "lr": 0.5}]
    with make(tmp_path, nn.Linear(4, 1), **data, lr=0.02, max_steps=20_000) as b:
        found = b.find_recipe(updates=600, recipes=fast).result()
        short, *_, present, last = found.trials
        assert last.loss < present.loss < short.loss
        assert found.best == {}
        assert "falls faster" in found.reason


def test_a_recipe_that_diverges_loses(tmp_path: Path) -> None:
    wild = {"optimizer": "sgd", "lr": 1000.0}
    with make(tmp_path) as b:
        found = b.find_recipe(updates=200, recipes=[wild], on_nonfinite="stop").result()
        assert found.best == {}


def test_few_updates_are_named_as_a_doubt(tmp_path: Path) -> None:
    with make(tmp_path, max_steps=5000) as b:
        found = b.find_recipe(updates=200, recipes=[FALLING]).result()
        assert "100 of 5,000 updates" in found.doubt


def test_without_val_and_several_batches_nothing_can_judge(tmp_path: Path) -> None:
    with make(tmp_path, train=labelled(50), batch_size=50, val=None) as b:
        found = b.find_recipe().result()
        assert found.ended == "nothing can judge"
        assert found.best == {}


def test_the_rounds_have_the_updates_that_there_are() -> None:
    for updates, smallest in itertools.product((200, 300, 600, 1500, 6000), (1.0, 0.5)):
        count = most_recipes(updates, smallest)
        first, second = lengths(count, updates, None, smallest)
        assert first >= 50 * smallest
        assert second == 0 or second > first
        assert count * first + 2 * second <= updates + 3
    assert lengths(5, 6000, 200) == (200, 0)  # never longer than the run


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too few": ({"updates": 100}, "updates=100: give a whole number of at least 200"),
    "no list": ({"recipes": {"optimizer": "sgd"}}, "give a list with the settings of each"),
    "none": ({"recipes": []}, "give a list with the settings of each"),
    "no settings": ({"recipes": ["sgd"]}, "give the settings of each by their names"),
    "an unknown setting": ({"recipes": [{"learning_rate": 1}]}, "Did you mean 'lr'"),
    "a setting of all": (
        {"recipes": [{"max_steps": 8}]},
        r"max_steps is the same for all, find_recipe\(max_steps=…\)",
    ),
    "a batch larger than the data": (
        {"recipes": [{"batch_size": 601}]},
        "batch_size=601 is larger",
    ),
    "an unknown optimizer": ({"recipes": [{"optimizer": "sdg"}]}, "did you mean 'sgd'"),
    "a bad argument": ({"recipes": [{"optimizer": {"sgd": {"beta": 1}}}]}, "no argument 'beta'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_at_once(case: str, tmp_path: Path) -> None:
    arguments, why = BAD[case]
    b = make(tmp_path)
    with pytest.raises((SettingsError, TaskError), match=why):
        b.find_recipe(**arguments)
    assert not b.jobs


def test_a_run_without_a_length_needs_updates(tmp_path: Path) -> None:
    why = r"give find_recipe\(updates=1500\)"
    with (
        make(tmp_path, max_epochs=-1, max_steps=None) as b,
        pytest.raises(SettingsError, match=why),
    ):
        b.find_recipe().result()


class Own(nn.Module):
    """Makes its own optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain_net()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.training_step(batch, batch_idx)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def test_an_object_that_makes_its_own_optimizer_races_rates_and_schedules(tmp_path: Path) -> None:
    with make(tmp_path, Own(), loss=None, lr=1e-3) as b:
        rates = [{"lr": 0.1}, {"lr": 0.3, "lr_schedule": "cosine"}]
        found = b.find_recipe(updates=300, recipes=rates).result()
        assert found.best in rates
        with pytest.raises(SettingsError, match="Own makes its own optimizer"):
            b.find_recipe(recipes=[{"optimizer": "sgd"}])
        with pytest.raises(
            SettingsError, match=r"compares optimizers.*Own makes its own.*recipes="
        ):
            b.find_recipe(updates=200)


def test_it_is_read_from_a_record_that_is_not_complete() -> None:
    from workbench.tuners.recipe_search import RecipeSearch

    trials = [RecipeTrial({}, 50, 2.0), RecipeTrial({"lr": 0.1}, 50, math.inf)]
    assert RecipeSearch.from_events(trials).ended == "not ended"
    end = RecipeSearchEnded({"lr": 0.1}, "why", "but", "all recipes tried")
    text = repr(RecipeSearch.from_events([*trials, end]))
    assert "lr=0.1" in text
    assert "but" in text


def test_manual_optimization_is_refused(tmp_path: Path) -> None:
    class Manual(Own):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    b = make(tmp_path, Manual(), loss=None, val=None, lr=1e-3)
    with pytest.raises(TaskError, match=r"find_recipe\(\)"):
        b.find_recipe(recipes=[{"lr": 0.1}]).result()
