"""`hooks={"on_after_backward": f}`: functions at Lightning's hooks of a plain model."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled, plain_net
from tests.reference import loop
from workbench.events import RunEnded
from workbench.task.errors import TaskError
from workbench.task.function_hooks import HookFunctions
from workbench.task.lightning.callbacks.callback_hooks import CallbackHooks

pytestmark = pytest.mark.usefixtures("one_thread")
SGD = functools.partial(torch.optim.SGD, momentum=0.9)


class Unloaded:
    """Keeps a state that nothing restores."""

    def __call__(self) -> None: ...

    def state_dict(self) -> dict[str, int]:
        return {}


class Fading:
    """Scales gradients, from call to call by a number nearer to 1."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module) -> None:
        self.scale(model, 0.5)

    def scale(self, model: nn.Module, least: float) -> None:
        self.calls += 1
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(1 - least / self.calls)

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def make(root: Path, hooks: Any, **settings: Any) -> wb.Workbench:
    settings = {
        "train": labelled(),
        "batch_size": 10,
        "max_epochs": 2,
        "shuffle": False,
        "accelerator": "cpu",
        "lr": 0.05,
        "num_sanity_val_steps": 0,
        "dry_run": False,
        **settings,
    }
    return wb.Workbench(
        plain_net(), loss=F.cross_entropy, optimizer=SGD, root=root, hooks=hooks, **settings
    )


def test_gradients_that_a_hook_changes_train_as_in_a_plain_loop(tmp_path: Path) -> None:
    bench = make(tmp_path, {"on_before_optimizer_step": Fading()}, gradient_clip_val=0.5)
    run = bench.fit().result()
    model, fading = plain_net(), Fading()
    optimizer, losses = SGD(model.parameters(), lr=0.05), []
    for _ in range(2):
        for x, y in loop.loader_of(labelled(), 10, shuffle=False):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            fading(model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert np.array_equal(run.history["loss"], np.float32(losses))


@pytest.mark.parametrize("bound", [False, True])
def test_each_fit_begins_with_the_state_of_the_bench_and_a_continued_one_with_the_checkpoints(
    bound: bool, tmp_path: Path
) -> None:
    fading = Fading()
    hook = functools.partial(fading.scale, least=0.5) if bound else fading
    bench = make(tmp_path, {"on_after_backward": hook})
    whole = bench.fit().result().history["loss"]
    assert fading.calls == 10
    bench.fit(max_steps=3).result()
    assert fading.calls == 3
    continued = bench.fit(start="continue", max_steps=None).result()
    assert fading.calls == 10
    assert np.array_equal(continued.history["loss"], whole)


def test_another_process_gets_the_state_of_the_bench() -> None:
    fading = Fading()
    callbacks = CallbackHooks([HookFunctions({"on_after_backward": fading}, None)])
    fading.calls = 5
    callbacks.note_left()
    sent, objects = pickle.loads(pickle.dumps((callbacks, [fading])))
    sent.begin_fit()
    assert objects[0].calls == 0


def test_hooks_are_called_where_lightning_calls_them(tmp_path: Path) -> None:
    names: list[str] = []

    def noting(name: str) -> Any:
        return lambda: names.append(name)

    hooks = {
        name: noting(name)
        for name in (
            "on_fit_start on_train_start on_train_epoch_start on_train_batch_start on_before_zero_grad"
            " on_before_backward on_after_backward on_before_optimizer_step on_train_batch_end"
            " on_validation_start on_validation_batch_start on_validation_batch_end"
            " on_validation_end on_train_epoch_end on_train_end on_fit_end"
        ).split()
    }
    make(tmp_path, hooks, max_epochs=1, batch_size=50, val=labelled()).fit().result()
    assert (
        names
        == (
            "on_fit_start on_train_start on_train_epoch_start on_train_batch_start on_before_zero_grad"
            " on_before_backward on_after_backward on_before_optimizer_step on_train_batch_end"
            " on_validation_start on_validation_batch_start on_validation_batch_end on_validation_end"
            " on_train_epoch_end on_train_end on_fit_end"
        ).split()
    )


def test_functions_get_what_they_name(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def ended(outputs: Any, batch: Any, batch_idx: int, epoch: int, step: int) -> None:
        seen["batch"] = (float(outputs["loss"]), len(batch[0]), batch_idx, epoch, step)

    def stepped(optimizer: Any, **rest: Any) -> None:
        seen["optimizer"] = (type(optimizer), sorted(rest))

    def scored(outputs: Any, dataloader_idx: Any) -> None:
        seen["output"] = (outputs.shape, dataloader_idx)

    def validated(metrics: dict[str, float], model: nn.Module) -> None:
        seen["metrics"] = (metrics["val_loss"], model.training)

    bench = make(
        tmp_path,
        {
            "on_train_batch_end": [ended, lambda: None],
            "on_before_optimizer_step": stepped,
            "on_validation_batch_end": scored,
            "on_validation_end": validated,
        },
        val=labelled(),
    )
    run = bench.fit().result()
    assert seen["batch"] == (run.history["loss"][-1], 10, 4, 1, 10)
    assert seen["optimizer"] == (torch.optim.SGD, ["epoch", "metrics", "model", "step"])
    assert seen["output"] == ((10, 3), None)
    assert seen["metrics"] == (run.metrics["val_loss"], False)


def test_minus_one_leaves_out_the_rest_of_an_epoch(tmp_path: Path) -> None:
    def start(batch_idx: int, epoch: int) -> int | None:
        return -1 if epoch == 0 and batch_idx == 2 else None

    assert make(tmp_path, {"on_train_batch_start": start}).fit().result().step == 7


def test_an_error_names_its_hook(tmp_path: Path) -> None:
    def broken() -> None:
        raise ValueError("broken")

    job = make(tmp_path, {"on_after_backward": broken}).fit()
    with pytest.raises(ValueError, match="broken") as raised:
        job.result()
    assert any("hooks={'on_after_backward'" in note for note in raised.value.__notes__)
    assert isinstance(job.events[-1], RunEnded)


@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        ({"on_after_backwards": print}, "Did you mean 'on_after_backward'"),
        ({"on_after_backward": 3}, "is no function"),
        ({"on_after_backward": Fading}, "is no function"),
        ({"on_after_backward": lambda modl: None}, "takes 'modl'.*Did you mean 'model'"),
        ({"on_after_backward": lambda model, /: None}, "arguments by name"),
        ([print], "give a dict of functions"),
        ({"on_after_backward": Unloaded()}, "Unloaded has state_dict, and no load_state_dict"),
        (
            {"on_fit_end": functools.partial(Unloaded().__call__)},
            "Unloaded has state_dict, and no load_state_dict",
        ),
    ],
)
def test_what_is_no_hook_is_named(hooks: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=message):
        make(tmp_path, hooks)
