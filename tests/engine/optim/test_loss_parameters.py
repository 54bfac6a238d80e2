"""A loss module's own parameters are trained with the model: against a plain loop, in all that goes with a parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import workbench as wb
from tests.engine.fit_results import fit, same
from tests.engine.sharded import sharded
from tests.on_ranks import on_ranks
from workbench.events import RunStarted, StepsDone
from workbench.runs.checkpoints import list_checkpoints
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

NUMBERS = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 6, generator=NUMBERS), torch.randint(0, 4, (48,), generator=NUMBERS)


class Centres(nn.Module):
    """A loss in the manner of ArcFace: one trained centre for each class, and a count of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(4, 5, generator=torch.Generator().manual_seed(3)))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, embedding: Tensor, y: Tensor) -> Tensor:
        self.calls += self.training
        return F.cross_entropy(8 * F.normalize(embedding) @ F.normalize(self.centres).T, y)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))


def bench(root: Path, loss: nn.Module, **more: Any) -> wb.Workbench:
    usual = {
        "train": (X, Y),
        "val": (X[:20], Y[:20]),
        "batch_size": 8,
        "max_epochs": 2,
        "lr": 0.05,
        "shuffle": False,
    }
    return wb.Workbench(net(), loss=loss, root=root, accelerator="cpu", **{**usual, **more})


def twin(steps: int, clip: float | None = None) -> tuple[list[float], nn.Module, Centres]:
    model, loss = net(), Centres()
    parameters = [*model.parameters(), *loss.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.05)
    losses = []
    for step in range(steps):
        at = slice(step * 8 % 48, step * 8 % 48 + 8)
        found = loss(model(X[at]), Y[at])
        found.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found.item())
    return losses, model, loss


@pytest.mark.parametrize("clip", [None, 0.3])
def test_they_train_as_in_a_plain_loop(clip, tmp_path):
    loss = Centres()
    with bench(tmp_path, loss, gradient_clip_val=clip) as made:
        assert "20 of them in the loss" in str(made.summary)
        assert made.summary.parameters == 6 * 8 + 8 + 8 * 5 + 5 + 20
        run = made.fit().result()
    losses, model, trained = twin(12, clip)
    assert [np.float32(value) for value in losses] == list(run.history["loss"])
    assert torch.equal(loss.centres, trained.centres)
    assert torch.equal(made.model[2].weight, model[2].weight)
    started = next(e for e in run.events if isinstance(e, RunStarted))
    assert started.layers[-1] == "loss.centres"
    layers = np.concatenate(
        [e.array("layer_norms") for e in run.events if isinstance(e, StepsDone)]
    )
    assert layers.shape == (12, 5)
    assert (layers[:, -1] > 0).all()
    assert loss.calls == 12


def test_a_loss_without_any_is_none_of_it(tmp_path):
    frozen = Centres()
    frozen.centres.requires_grad_(False)
    before = frozen.centres.clone()
    with bench(tmp_path, frozen) as made:
        run = made.fit().result()
        assert "in the loss" not in str(made.summary)
    assert torch.equal(frozen.centres, before)
    assert run.folder is not None
    assert set(load_file(str(list_checkpoints(run.folder)[-1].path / "model.safetensors"))) == set(
        made.model.state_dict()
    )


def test_a_model_with_a_part_of_that_name(tmp_path):
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.loss(x)
            return out

    with wb.Workbench(
        Named(), train=(X, Y), loss=Centres(), root=tmp_path, accelerator="cpu", max_epochs=1
    ) as made:
        run = made.fit().result()
        made.load(run, "start")
        names = next(e for e in run.events if isinstance(e, RunStarted)).layers
    assert names == ("loss.weight", "loss.bias", "loss_.centres")


def test_a_fit_goes_on_exactly(tmp_path):
    more = {"weight_averaging": "ema", "ema_decay": 0.5, "shuffle": True}
    whole, parts = Centres(), Centres()
    with bench(tmp_path / "whole", whole, max_epochs=3, **more) as made:
        run = made.fit().result()
    with bench(tmp_path / "parts", parts, max_epochs=1, **more) as made:
        made.fit().result()
        on = made.fit(start="continue", max_epochs=3).result()
        assert list(on.history["loss"]) == list(run.history["loss"])
        assert on.metrics == run.metrics
        assert torch.equal(parts.centres, whole.centres)
        assert torch.equal(parts.calls, whole.calls)


def test_a_checkpoint_of_another_process(tmp_path):
    loss = Centres()
    with bench(tmp_path, loss, checkpoint_every=5) as made:
        run = made.fit().result()
        wanted = loss.centres.detach().clone()
    loss = Centres()
    with bench(tmp_path, loss, checkpoint_every=5) as made:
        on = made.fit(start=run.id, max_epochs=3).result()
        assert len(on.history["loss"]) == 18
        made.load(run)
        assert torch.equal(loss.centres, wanted)
        made.load(run, "start")
        assert torch.equal(loss.centres, Centres().centres)


def test_the_average_is_of_them_too(tmp_path):
    loss = Centres()
    with bench(tmp_path, loss, weight_averaging="swa", swa_epoch_start=0, max_epochs=2) as made:
        run = made.fit().result()
        with torch.no_grad():
            value = float(loss.eval()(made.model.eval()(X[:20]), Y[:20]))
        assert run.metrics["val_loss_averaged"] == pytest.approx(value, rel=1e-5)
    _, _, one = twin(6)
    _, _, two = twin(12)
    torch.testing.assert_close(loss.centres, (one.centres + two.centres) / 2)


def test_searches_leave_no_trace(tmp_path):
    loss = Centres()
    with bench(tmp_path, loss) as made:
        made.find_lr(num_training=10).result()
        made.find_batch_size(max_val=8, steps_per_trial=1).result()
        assert torch.equal(loss.centres, Centres().centres)
        assert list(made.fit().result().history["loss"]) == [
            np.float32(value) for value in twin(12)[0]
        ]


def test_ranks_train_them_as_one_process_does():
    given = {"train": (X, Y), "val": (X[:20], Y[:20])}
    settings = {"max_epochs": 2, "lr": 0.05, "accelerator": "cpu", "seed": 3, "shuffle": False}
    one = on_ranks(1, fit, net(), {**given, "loss": Centres()}, {**settings, "batch_size": 16})[0]
    two = on_ranks(2, fit, net(), {**given, "loss": Centres()}, {**settings, "batch_size": 8})
    assert one["layers"].shape[1] == 5
    same(two[0], one)


# what comes home of one: tests/launch/accelerate
LAUNCHED = pytest.param({"strategy": "launch"}, id="launch", marks=pytest.mark.slow)


@pytest.mark.parametrize("more", [pytest.param({"devices": 2}, id="pool"), LAUNCHED])
def test_the_user_holds_the_trained_ones(more, tmp_path):
    loss = Centres()
    with bench(tmp_path, loss, **more) as made:
        run = made.fit().result()
        trained = loss.centres.detach().clone()
        assert not torch.equal(trained, Centres().centres)
        assert run.folder is not None
        kept = load_file(str(list_checkpoints(run.folder)[-1].path / "model.safetensors"))
    assert torch.equal(kept["loss.centres"], trained)


def test_weights_of_before_they_were_trained_open(tmp_path):
    with bench(tmp_path, Centres()) as made:
        run = made.fit().result()
        assert run.folder is not None
        file = list_checkpoints(run.folder)[-1].path / "model.safetensors"
        save_file(
            {
                name: value
                for name, value in load_file(str(file)).items()
                if not name.startswith("loss.")
            },
            str(file),
        )
        trained = made.model[2].weight.detach().clone()
        made.load(run, "start")
        made.load(run)
        assert torch.equal(made.model[2].weight, trained)


def test_a_fit_that_did_not_train_them_continues_with_them_frozen_or_not(tmp_path):
    loss = Centres().requires_grad_(False)
    with torch.no_grad():
        loss.centres += 1
    with bench(tmp_path, loss, max_epochs=1) as made:
        run = made.fit().result()
    with bench(tmp_path, loss, max_epochs=2) as made:
        frozen = made.fit(start=run.id, max_epochs=2).result()
    with bench(tmp_path, Centres(), max_epochs=2) as made:
        trained = made.fit(start=run.id, max_epochs=2).result()
    assert frozen.resumes[0].unfrozen == ()
    assert trained.resumes[0].unfrozen == ("loss.centres",)
    # its loss has the centres of the checkpoint, and not the new ones
    begun = frozen.history["step"].tolist().index(run.step)
    assert trained.history["loss"][begun] == frozen.history["loss"][begun]
    assert trained.history["loss"][-1] != frozen.history["loss"][-1]


def test_shards_are_refused():
    with pytest.raises(
        TaskError, match=r"the loss has parameters of its own.*make it a part of the model"
    ):
        sharded(net, {"train": (X, Y), "loss": Centres()}, {"max_epochs": 1, "accelerator": "cpu"})
