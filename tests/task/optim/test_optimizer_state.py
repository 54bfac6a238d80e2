"""Optimizers that join others, with states of their own forms: against a raw loop, resumed, and after a search."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim import Optimizer

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


class Joined(Optimizer):
    """It calls no `Optimizer.__init__`, and its groups and state are properties."""

    def __init__(self, *inner):
        self.inner = inner

    @property
    def param_groups(self):
        return [group for one in self.inner for group in one.param_groups]

    @property
    def state(self):
        return {parameter: own for one in self.inner for parameter, own in one.state.items()}

    def zero_grad(self, set_to_none=True):
        for one in self.inner:
            one.zero_grad(set_to_none)

    def step(self, closure=None):
        for one in self.inner:
            one.step()

    def state_dict(self):
        return {"inner": [one.state_dict() for one in self.inner]}

    def load_state_dict(self, state_dict):
        for one, state in zip(self.inner, state_dict["inner"], strict=True):
            one.load_state_dict(state)


class Listed(Joined):
    """Its state is a list."""

    def state_dict(self):
        return super().state_dict()["inner"]

    def load_state_dict(self, state_dict):
        super().load_state_dict({"inner": state_dict})


class Numbered(Optimizer):
    """Its list of groups is its own, and what `load_state_dict` gives the inner ones is not in it."""

    def __init__(self, *inner):
        super().__init__(
            [p for one in inner for group in one.param_groups for p in group["params"]], {}
        )
        self.inner = inner
        self.param_groups = [group for one in inner for group in one.param_groups]

    step = Joined.step

    def state_dict(self):
        return {number: one.state_dict() for number, one in enumerate(self.inner)}

    def load_state_dict(self, state_dict):
        for number, one in enumerate(self.inner):
            one.load_state_dict(state_dict[number])


class Plain(Optimizer):
    """Its state_dict is torch's, which leaves the inner ones out."""

    def __init__(self, *inner):
        self.inner = inner
        super().__init__([group for one in inner for group in one.param_groups], {})

    step = Joined.step


def bench(root, kind):
    def optimizer(params, lr=0.05):
        first, *others = params
        return kind(
            torch.optim.SGD([first], lr=lr, momentum=0.9), torch.optim.Adam(others, lr=lr / 10)
        )

    settings = {
        "batch_size": 8,
        "max_epochs": 3,
        "accelerator": "cpu",
        "lr_schedule": "cosine",
        "save_top_k": -1,
    }
    return wb.Workbench(
        plain_net(),
        train=labelled(),
        loss=F.cross_entropy,
        root=root,
        optimizer=optimizer,
        **settings,
    )


def raw(updates):
    """The losses of two optimizers with a cosine each, on the batches of a fit."""
    model, losses = plain_net(), []
    first, *others = model.parameters()
    optimizers = torch.optim.SGD([first], lr=0.05, momentum=0.9), torch.optim.Adam(others, lr=0.005)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda n: (1 + np.cos(np.pi * n / updates)) / 2)
        for o in optimizers
    ]
    order = torch.Generator().manual_seed(0)
    while len(losses) < updates:
        for x, y in torch.utils.data.DataLoader(labelled(), 8, shuffle=True, generator=order):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            for each in (*optimizers, *schedules):
                each.step()
            model.zero_grad()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", [Joined, Listed, Numbered, Plain])
def test_a_joined_optimizer_is_resumed_exactly(kind, tmp_path):
    with bench(tmp_path, kind) as b:
        whole = list(b.fit(checkpoint_every=5).result().history["loss"])
        assert whole == pytest.approx(raw(len(whole)), rel=1e-5)
        b.find_lr(num_training=5).result()
        assert list(b.fit().result().history["loss"]) == whole
    with bench(tmp_path, kind) as other:
        assert list(other.fit(start="0001-fit@5").result().history["loss"]) == whole


def test_an_object_that_only_looks_like_an_optimizer_is_refused_by_name(tmp_path):
    class Other:
        def __init__(self, *inner):
            self.inner = inner

    with pytest.raises(
        TaskError,
        match=r"returned a Other, no torch.optim.Optimizer: let Other inherit from it; .* optimizer=\{",
    ):
        bench(tmp_path, Other)
