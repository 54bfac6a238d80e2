"""`optimizer={"body": …, "head": …}`: several optimizers that step together, against two optimizers in a raw loop."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = functools.partial(torch.optim.AdamW, lr=1e-2)


def bench(root, optimizer, model=None, **settings):
    settings = {
        "batch_size": 8,
        "max_epochs": 3,
        "shuffle": False,
        "accelerator": "cpu",
        **settings,
    }
    return wb.Workbench(
        model or plain_net(),
        train=labelled(),
        loss=F.cross_entropy,
        root=root,
        optimizer=optimizer,
        **settings,
    )


def raw(model, epochs, clip=None, factor=1.0):
    """The losses of a raw loop with an optimizer for the first layer, and one for the rest."""
    first, *others = [part for part in model.children() if list(part.parameters())]
    rest = [p for part in others for p in part.parameters()]
    optimizers = SGD(first.parameters(), lr=0.1 * factor), ADAMW(rest, lr=1e-2 * factor)
    losses = []
    for _ in range(epochs):
        for x, y in torch.utils.data.DataLoader(labelled(), 8):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    return np.float32(losses)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_losses_are_those_of_two_optimizers_that_step_together(clip, tmp_path):
    with bench(tmp_path, {"0": SGD, "": ADAMW}, gradient_clip_val=clip) as b:
        assert b.settings.lr == 0.1
        run = b.fit().result()
    np.testing.assert_array_equal(run.history["loss"], raw(plain_net(), 3, clip))


def test_the_rate_is_that_of_the_first_part_and_the_others_keep_their_ratio(tmp_path):
    with bench(tmp_path, {"0": SGD, "": ADAMW}, lr=0.05) as b:
        run = b.fit().result()
    np.testing.assert_allclose(run.history["loss"], raw(plain_net(), 3, factor=0.5), rtol=1e-6)


def test_a_fit_continues_to_the_last_bit_and_a_search_within_one_leaves_no_trace(tmp_path):
    with bench(tmp_path, {"0": SGD, "": ADAMW}) as b:
        b.find_lr(num_training=5).result()
        first = b.fit(max_epochs=1).result()
        rest = b.fit(start=first.id, max_epochs=3).result()
    np.testing.assert_array_equal(rest.history["loss"], raw(plain_net(), 3))


def test_a_rate_is_found_for_a_part_by_its_name(tmp_path):
    with bench(tmp_path, {"0": SGD, "": ADAMW}) as b:
        found = b.find_lr(group=1, num_training=20).result()
    assert "parameter group 1 (rest)" in " ".join(found.notes)


def test_a_part_without_a_rate_of_its_own_keeps_its_ratio_too(tmp_path):
    """It is made at 1e-3, and so the other one at ten times its rate, whatever `lr` is."""
    parts = {"0": lambda params, lr: torch.optim.SGD(params, lr=lr), "": ADAMW}
    with bench(tmp_path, parts) as b:
        assert b.settings.lr == 1e-3
        for lr in (1e-3, 0.1):
            made = b._task.optimizer_factory(list(b.model.parameters()), lr, None)
            assert [group["lr"] for group in made.param_groups] == pytest.approx([lr, 10 * lr])


def test_one_cycle_moves_the_momentum_of_parts_of_one_kind(tmp_path):
    both = {"0": ADAMW, "": functools.partial(ADAMW, lr=1e-3)}
    with (
        bench(tmp_path / "parts", both, lr_schedule="one_cycle") as b,
        bench(tmp_path / "alone", groups, lr_schedule="one_cycle") as other,
    ):
        parts, alone = b.fit().result(), other.fit().result()
    np.testing.assert_array_equal(parts.history["loss"], alone.history["loss"])
    with pytest.raises(TaskError, match="moves one momentum"):
        bench(tmp_path / "mixed", {"0": SGD, "": ADAMW}, lr_schedule="one_cycle")


def groups(parameters, lr):
    """One AdamW with the groups of the parts."""
    first, rest = list(parameters)[:2], list(parameters)[2:]
    return torch.optim.AdamW([{"params": first, "lr": 1e-2}, {"params": rest, "lr": 1e-3}], lr=1e-2)


@pytest.mark.parametrize(
    "other",
    [{"0": ADAMW, "": ADAMW}, {"2": SGD, "": ADAMW}, {"": ADAMW, "0": SGD}],
    ids=["kind", "key", "order"],
)
def test_a_fit_with_other_parts_does_not_continue(other, tmp_path):
    with bench(tmp_path, {"0": SGD, "": ADAMW}) as b:
        first = b.fit(max_epochs=1).result()
    with (
        bench(tmp_path, other) as b,
        pytest.raises(TaskError, match=r"was \{'0': SGD, '': AdamW\} and is \{"),
    ):
        b.fit(start=first.id, max_epochs=2).result()


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = (
            nn.ModuleDict({"in": nn.Linear(6, 8), "out": nn.Linear(8, 8)}),
            nn.Linear(8, 3),
        )

    def forward(self, x):
        return self.head(self.body["out"](self.body["in"](x).relu()))


def test_the_nearest_key_counts_and_frozen_parameters_need_none(tmp_path):
    model = Tower()
    model.head.requires_grad_(False)
    with bench(tmp_path, {"body": SGD, "body.out": ADAMW}, model) as b:
        made = b._task.optimizer_factory(
            [p for p in model.parameters() if p.requires_grad], 0.1, None
        )
        assert [(group["name"], len(group["params"])) for group in made.param_groups] == [
            ("body", 2),
            ("body.out", 2),
        ]
        assert b.fit(max_epochs=1).result().status == "finished"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "is empty"),
        ({"neck": SGD}, "no part of this name; it has '0', '2'"),
        ({"0": SGD}, "no key names 2.weight, 2.bias"),
        ({0: SGD}, "a key is the name of a part"),
        ({"": 0.1}, "one optimizer for each part of the model"),
        ({"": torch.optim.LBFGS}, "evaluates the loss again"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_its_key(given, said, tmp_path):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises((TaskError, wb.SettingsError), match=said):
        bench(tmp_path, given, net)
