"""Ranks under DeepSpeed's ZeRO take the updates of one process with the global batch; what they leave is whole.

On CPU with gloo. The project's own environment has no DeepSpeed: these tests run where it is installed.
"""

import functools
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.engine.problems import labelled, plain_net
from tests.engine.ranked import Heard, fit, same
from tests.ranks import on_ranks
from workbench.commands import Mailbox
from workbench.engine import loop
from workbench.engine.checkpoint.files import peek, read_state
from workbench.engine.distributed.dtensor import whole
from workbench.engine.optim import total_steps
from workbench.engine.setup import open_session
from workbench.events import CurvePoint, Message, StepsDone
from workbench.launch.assignments import FitAssignment
from workbench.runs.checkpoints import list_checkpoints
from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.factory import task_of
from workbench.tuners import lr_finder

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(300)]

ADAM = functools.partial(torch.optim.AdamW, eps=1e-4)
"""Whose first steps do not hang on the last bits of a gradient near 0."""


def environment(stage):
    """What `accelerate launch` and the bench's own start set for a config with this stage."""
    return {"WORKBENCH_SHARDS": "DeepSpeed", "ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage)}


def both(make, given, settings, stage, size=4):
    """The fit on two ranks, which must agree to the bit, and in one process on the global batch."""

    def rank():
        return fit(make(), given, {**settings, "batch_size": size}, environment=environment(stage))

    first, other = on_ranks(2, rank)
    np.testing.assert_array_equal(first["loss"], other["loss"])
    np.testing.assert_array_equal(first["norm"], other["norm"])
    assert first["checks"] == other["checks"]
    torch.testing.assert_close(first["weights"], other["weights"], rtol=0, atol=0)
    return first, fit(make(), given, {**settings, "batch_size": 2 * size})


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_as_one_process(stage):
    given = {"train": labelled(40).tensors, "val": labelled(19, 1).tensors, "loss": F.cross_entropy, "optimizer": ADAM}
    settings = {
        "max_epochs": 2, "lr": 0.02, "accumulate_grad_batches": 2, "gradient_clip_val": 0.3, "lr_schedule": "cosine", "warmup": 1,
        "weight_averaging": "ema", "ema_decay": 0.5,
    }  # fmt: skip
    shared, alone = both(plain_net, given, settings, stage)
    assert any(f"ZeRO stage {stage}" in text for text in shared["said"])
    assert {"val_loss", "val_loss_averaged"} <= set(shared["checks"][-1][1])
    same(shared, alone)


GIVEN = {"train": labelled(48).tensors, "val": labelled(19, 1).tensors, "loss": F.cross_entropy, "optimizer": ADAM}
RESUMED = {
    "accelerator": "cpu", "max_epochs": 2, "lr": 0.02, "num_sanity_val_steps": 0, "gradient_clip_val": 0.3,
    "weight_averaging": "ema", "ema_decay": 0.5, "save_top_k": 0,
}  # fmt: skip
CUT = 3


def train(folder, settings, point=None, commands=()):
    """One rank's fit with a record in `folder`, from a checkpoint if one is given: its losses by update, weights, messages."""
    task = task_of(plain_net(), **dict.fromkeys(("test", "scheduler", "metrics", "collate_fn")), **GIVEN)
    past = None if point is None else peek(point, *total_steps.NAMES)
    heard = Heard(inbox := Mailbox(), commands)
    done = FitAssignment("t", task, Settings.make(**settings), folder, past, point)(heard, inbox)
    losses = {step: loss for e in heard if isinstance(e, StepsDone) for step, loss in zip(e.steps, e.array("loss"), strict=True)}
    weights = {name: whole(value).detach().clone() for name, value in task.model.state_dict(keep_vars=True).items()}
    return done.status, losses, weights, [e.text for e in heard if isinstance(e, Message)]


@pytest.mark.parametrize("stage", [2, 3])
def test_resumes_to_the_bit_and_without_deepspeed_too(stage, tmp_path):
    """A checkpoint holds whole weights and the optimizer's state by parameters."""
    own = {**RESUMED, "batch_size": 4}

    def rank():
        torch.set_num_threads(1)
        os.environ.update(environment(stage))
        full = train(tmp_path / "full", own)
        train(tmp_path / "cut", {**own, "max_steps": CUT})
        dist.barrier()
        point = list_checkpoints(tmp_path / "cut")[0].path
        rest = train(tmp_path / "rest", own, point)
        del os.environ["WORKBENCH_SHARDS"]
        return full, rest, train(tmp_path / "plain", own, point)

    (full, rest, plain), (other, *_) = on_ranks(2, rank)
    point = list_checkpoints(tmp_path / "cut")[0]
    assert (point.step, point.resumable) == (CUT, True)
    assert full[1] == other[1]
    assert rest[1] == {step: loss for step, loss in full[1].items() if step >= CUT}
    torch.testing.assert_close(rest[2], full[2], rtol=0, atol=0)

    names = read_state(point.path)["optimizers"][0]["state"]["state"]
    assert {number: tuple(state["exp_avg"].shape) for number, state in names.items()} == {0: (16, 6), 1: (16,), 2: (3, 16), 3: (3,)}
    assert not any("DeepSpeed" in text for text in plain[3])
    np.testing.assert_allclose(list(plain[1].values()), list(rest[1].values()), rtol=2e-4)
    torch.testing.assert_close(plain[2], full[2], rtol=1e-3, atol=1e-5)


class Own(nn.Module):
    """A layer that does not train, a step that says what its batch weighs; `unused`: one without a part in the loss."""

    def __init__(self, *, unused=False):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.still = plain_net(), nn.Linear(2, 2).requires_grad_(False)
        self.unused = nn.Linear(3, 3) if unused else None

    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"loss": F.cross_entropy(self.net(x), y), "weight": float(len(y))}

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


@pytest.mark.parametrize("stage", [1, 3])
def test_weights_of_steps_and_tails(stage):
    same(*both(Own, {"train": labelled(37).tensors}, {"max_epochs": 2, "lr": 0.05, "accumulate_grad_batches": 2}, stage))


def test_a_sweep_leaves_no_trace():
    def rank():
        torch.set_num_threads(1)
        os.environ.update(environment(3))
        usual = dict.fromkeys(("val", "test", "loss", "scheduler", "metrics", "collate_fn"))
        task = task_of(Own(unused=True), train=labelled(48).tensors, optimizer=torch.optim.AdamW, **usual)
        with open_session(task, Settings.make(accelerator="cpu", max_epochs=1, batch_size=4)) as session:
            heard, before = Heard(), [piece.clone() for piece in session.shards.parameters()]
            lr_finder.run(session, lr_finder.LRRequest(num_training=12), heard, Mailbox())
            kept = all(map(torch.equal, before, session.shards.parameters()))
            loop.fit(session, heard, Mailbox())
            return kept, [e.loss for e in heard if isinstance(e, CurvePoint)], session.weights()

    (kept, swept, weights), (_, _, none) = on_ranks(2, rank)
    assert kept
    assert len(swept) >= 3
    assert none == {}
    fresh = Own(unused=True)
    torch.testing.assert_close(weights["unused.weight"], fresh.unused.weight.detach())
    torch.testing.assert_close(weights["still.weight"], fresh.still.weight.detach())
    assert not torch.equal(weights["net.0.weight"], fresh.net[0].weight.detach())


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (functools.partial(torch.optim.Adagrad), {}, "Adagrad: DeepSpeed lays parameters end to end"),
        (torch.optim.LBFGS, {}, "LBFGS"),
        (ADAM, {"precision": "16-mixed"}, "16-mixed"),
    ],
    ids=["Adagrad", "LBFGS", "16-mixed"],
)
def test_what_cannot_be_is_refused_by_name(make, settings, words):
    given = {**GIVEN, "optimizer": make}

    def rank():
        fit(plain_net(), given, {"max_epochs": 1, "batch_size": 4, **settings}, environment=environment(2))

    with pytest.raises(TaskError, match=words):
        on_ranks(2, rank)
