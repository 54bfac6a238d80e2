"""`optimizer="muon"`: optimizers by name, against plain loops with torch's own classes."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.settings import Settings, SettingsError
from workbench.settings.optimizers import NAMES
from workbench.task.errors import TaskError
from workbench.task.optim.muon import MuonWithAdamW

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = 12


def make(root: Path, model: Any = None, **settings: Any) -> wb.Workbench:
    settings = {
        "batch_size": 10,
        "max_steps": STEPS,
        "shuffle": False,
        "accelerator": "cpu",
        **settings,
    }
    loss = settings.pop("loss", F.cross_entropy)
    return wb.Workbench(model or plain_net(), train=labelled(), loss=loss, root=root, **settings)


def by_hand(make_optimizers: Callable[[nn.Module], list[torch.optim.Optimizer]]) -> Any:
    """The losses of a plain loop with these optimizers, which step together."""
    model = plain_net()
    optimizers = make_optimizers(model)
    losses = []
    batches = [*torch.utils.data.DataLoader(labelled(), 10)] * STEPS
    for x, y in batches[:STEPS]:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return np.float32(losses)


def muon_and_adamw(model: nn.Module) -> list[torch.optim.Optimizer]:
    first, bias, *others = model.parameters()
    return [
        torch.optim.Muon(
            [first], lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW([bias, *others], lr=0.02, weight_decay=0.1),
    ]


TWINS: dict[str, tuple[Any, Callable[[nn.Module], list[torch.optim.Optimizer]]]] = {
    "its defaults": ("nadam", lambda m: [torch.optim.NAdam(m.parameters(), lr=0.02, weight_decay=0.1)]),
    "arguments": (
        {"adamw": {"betas": [0.8, 0.9]}},
        lambda m: [torch.optim.AdamW(m.parameters(), lr=0.02, weight_decay=0.1, betas=(0.8, 0.9))],
    ),
    "another spelling": (
        {"SGD": {"momentum": 0.9, "nesterov": True}},
        lambda m: [torch.optim.SGD(m.parameters(), lr=0.02, weight_decay=0.1, momentum=0.9, nesterov=True)],
    ),
    "a class": (torch.optim.RMSprop, lambda m: [torch.optim.RMSprop(m.parameters(), lr=0.02, weight_decay=0.1)]),
    "a class with arguments": (
        functools.partial(torch.optim.SGD, momentum=0.5),
        lambda m: [torch.optim.SGD(m.parameters(), lr=0.02, weight_decay=0.1, momentum=0.5)],
    ),
    "muon": ({"muon": {"momentum": 0.9}}, muon_and_adamw),
}  # fmt: skip


@pytest.mark.parametrize("case", TWINS)
def test_the_losses_are_those_of_torchs_own_class(case: str, tmp_path: Path) -> None:
    choice, twin = TWINS[case]
    with make(tmp_path, lr=0.02, weight_decay=0.1) as b:
        run = b.fit(optimizer=choice).result()
        assert (np.float32(run.history["loss"]) == by_hand(twin)).all()
        recorded = wb.Run.open(run.folder).settings
        assert recorded == run.settings == b.settings.replace(optimizer=choice)


def test_each_fit_begins_at_the_first_weights_with_its_own_optimizer(tmp_path: Path) -> None:
    with make(tmp_path, optimizer=functools.partial(torch.optim.SGD, lr=0.5)) as b:
        own = b.fit().result()
        b.set(optimizer="adam")
        adam, muon = b.fit().result(), b.fit(optimizer="muon").result()
        again = b.fit(optimizer=None).result()
        assert b.settings.optimizer == "adam"
        assert (own.history["loss"] == again.history["loss"]).all()
        firsts = {float(run.history["loss"][0]) for run in (own, adam, muon, again)}
        lasts = {float(run.history["loss"][-1]) for run in (own, adam, muon)}
        assert len(firsts) == 1
        assert len(lasts) == 3


def test_the_rate_is_the_optimizers_own_until_it_is_set(tmp_path: Path) -> None:
    assert make(tmp_path, optimizer="adadelta").settings.lr == 1.0
    assert make(tmp_path, optimizer={"sgd": {"momentum": 0.9, "lr": 0.25}}).settings.lr == 0.25
    b = make(tmp_path, optimizer="adadelta", lr=0.5)
    b.set(optimizer={"adamw": {"lr": 0.125, "weight_decay": 0.25, "amsgrad": True}})
    assert b.settings.changed().items() >= {"lr": 0.125, "weight_decay": 0.25}.items()
    assert b.settings.optimizer == {"adamw": {"amsgrad": True}}


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_fit_with_muon_continues_as_if_it_had_not_ended(
    clip: float | None, tmp_path: Path
) -> None:
    common = {"optimizer": "muon", "gradient_clip_val": clip, "lr": 0.02}
    with make(tmp_path, **common) as b:
        whole = b.fit().result()
        b.fit(max_steps=STEPS // 2).result()
        halves = b.fit("continue", max_steps=STEPS).result()
        assert (whole.history["loss"][STEPS // 2 :] == halves.history["loss"][-STEPS // 2 :]).all()
        again = wb.rerun(whole, root=tmp_path).result()
        assert (again.history["loss"] == whole.history["loss"]).all()


def test_two_ranks_with_muon_train_as_one_process(tmp_path: Path) -> None:
    with make(tmp_path, optimizer="muon", lr=0.02, max_steps=4) as b:
        one = b.fit(batch_size=10).result()
        two = b.fit(batch_size=5, devices=2).result()
        assert two.history["loss"] == pytest.approx(one.history["loss"], rel=1e-3)


class Tied(nn.Module):
    """Its output layer has the weights of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.hidden = nn.Linear(4, 4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


def test_muon_trains_the_matrices_of_hidden_layers() -> None:
    def names(model: nn.Module) -> list[list[str]]:
        known = {id(p): name for name, p in model.named_parameters()}
        groups = MuonWithAdamW.groups(model, [*model.parameters()])
        return [[known[id(p)] for p in group["params"]] for group in groups]  # type: ignore[union-attr,attr-defined]

    rest = ["embedding.weight", "hidden.bias", "conv.weight", "conv.bias"]
    assert names(Tied()) == [["hidden.weight"], rest]
    assert names(plain_net()) == [["0.weight"], ["0.bias", "2.weight", "2.bias"]]
    frozen = plain_net()
    frozen[2].requires_grad_(False)
    groups = MuonWithAdamW.groups(frozen, [frozen[0].weight])
    MuonWithAdamW(groups)  # without a part for AdamW
    assert [group["muon"] for group in groups] == [True]


def test_every_optimizer_of_torch_has_a_name() -> None:
    classes = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    }
    named = {kind for module, kind in NAMES.values() if module == "torch.optim"}
    assert named == classes - {"Optimizer", "Muon"}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown name": ({"optimizer": "adamww"}, "should be one of .* did you mean 'adamw'"),
    "an unknown argument": (
        {"optimizer": {"sgd": {"momentun": 0.9}}},
        "SGD has no argument 'momentun'. Did you mean 'momentum'",
    ),
    "arguments that torch refuses": (
        {"optimizer": {"sgd": {"nesterov": True}}},
        "Nesterov momentum requires a momentum",
    ),
    "a value that torch cannot compare": (
        {"optimizer": {"sgd": {"momentum": "x", "dampening": 0.1}}},
        "SGD does not take momentum='x' .*Left out, it is 0",
    ),
    "two rates": (
        {"optimizer": {"sgd": {"lr": 0.1}}, "lr": 0.2},
        "lr=0.2 is given beside .* leave one out",
    ),
    "two decays": (
        {"optimizer": {"sgd": {"weight_decay": 0.1}}, "weight_decay": 0.0},
        "weight_decay=0.0 is given beside .* leave one out",
    ),
    "a decay for one without": (
        {"optimizer": "rprop", "weight_decay": 0.1},
        "weight_decay=0.1: Rprop has none: set weight_decay=None",
    ),
    "a function": (
        {"optimizer": lambda parameters, lr: torch.optim.SGD(parameters, lr)},
        "given when the bench is made",
    ),
    "one for each part": (
        {"optimizer": {"0": torch.optim.SGD, "": torch.optim.AdamW}},
        "given when the bench is made",
    ),
    "one that is made": (
        {"optimizer": torch.optim.SGD(plain_net().parameters())},
        "given when the bench is made",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_fit_could_have_is_refused_at_once(case: str, tmp_path: Path) -> None:
    settings, why = REFUSED[case]
    b = make(tmp_path)
    for method in (b.set, b.fit, b.find_lr):
        with pytest.raises(SettingsError, match=why):
            method(**settings)
    assert b.settings.optimizer is None
    assert not b.jobs


def test_the_decay_of_an_optimizer_without_one_is_refused_in_either_order(tmp_path: Path) -> None:
    b = make(tmp_path, optimizer="rprop")
    with pytest.raises(SettingsError, match="Rprop has none: set weight_decay=None"):
        b.set(weight_decay=0.1)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "schedulefree", None)
    with pytest.raises(SettingsError, match="pip install schedulefree"):
        make(tmp_path).set(optimizer="schedule_free_adamw")


def test_a_model_without_a_hidden_matrix(tmp_path: Path) -> None:
    b = make(tmp_path, nn.Linear(6, 3))
    with pytest.raises(SettingsError, match="Linear has no hidden matrix"):
        b.set(optimizer="muon")


class Own(nn.Module):
    """Makes its own optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain_net()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_an_object_that_makes_its_own_optimizer(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="Own makes its own optimizer"):
        make(tmp_path, Own(), loss=None, optimizer="sgd")


def test_a_function_that_makes_the_model_gives_no_name(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="is a setting, which the bench is given"):
        make(tmp_path, lambda: {"model": plain_net(), "optimizer": "sgd"})


def test_the_command_line_and_yaml_have_names(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("optimizer: {sgd: {momentum: 0.9, lr: 0.5}}\n")
    assert Settings.load(file) == Settings.make(optimizer={"sgd": {"momentum": 0.9}}, lr=0.5)


def test_muon_can_be_copied_and_pickled():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    parameters = list(net.parameters())
    groups = MuonWithAdamW.groups(net, parameters)
    optimizer = MuonWithAdamW(groups, lr=0.01, momentum=0.9, betas=(0.8, 0.9))
    x = torch.randn(16, 4)

    def steps(net, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in net.parameters()]

    steps(net, optimizer)
    copies = copy.deepcopy((net, optimizer)), pickle.loads(pickle.dumps((net, optimizer)))
    expected = steps(net, optimizer)
    for copied_net, copied in copies:
        assert all(map(torch.equal, steps(copied_net, copied), expected))
        assert copied.param_groups[0]["momentum"] == 0.9
        assert copied.param_groups[1]["betas"] == (0.8, 0.9)
