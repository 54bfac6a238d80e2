"""`groups=[wb.group("head", lr_scale=10)]`: parameter groups by rule, against plain loops with groups made by hand."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench as wb
from tests.engine.problems import labelled
from tests.reference import loop
from workbench.settings import SettingsError
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")
SGD = functools.partial(torch.optim.SGD, momentum=0.9)


class Net(nn.Module):
    """A stem, blocks and a head, as transformers have them."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(labelled()[0][0].numel(), 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(blocks))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x.flatten(1))
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.head(self.norm(x))


def make(root: Path, groups: Any, model: nn.Module | None = None, **settings: Any) -> wb.Workbench:
    settings = {
        "batch_size": 8,
        "max_epochs": 2,
        "shuffle": False,
        "accelerator": "cpu",
        "lr": 0.05,
        "optimizer": SGD,
        **settings,
    }
    return wb.Workbench(
        model or Net(), train=labelled(), loss=F.cross_entropy, root=root, groups=groups, **settings
    )


def is_small(name: str, parameter: Tensor) -> bool:
    return parameter.ndim < 2


def twin(options: dict[str, tuple[float, float]], epochs: int = 2, **of_optimizer: Any) -> Any:
    """The losses of a raw loop. options: the scale of the rate and the decay, by name."""
    model = Net()
    groups = [
        {
            "params": [parameter],
            "lr": 0.05 * options.get(name, (1.0, 0.1))[0],
            "weight_decay": options.get(name, (1.0, 0.1))[1],
        }
        for name, parameter in model.named_parameters()
    ]
    optimizer = torch.optim.SGD(groups, momentum=0.9, **of_optimizer)
    batches = loop.loader_of(labelled(), 8, shuffle=False)
    return np.float32(loop.fit(model, loop.cross_entropy, optimizer, batches, epochs)["loss"])


SMALL = [name for name, parameter in Net().named_parameters() if parameter.ndim < 2]
LAYERS = {
    name: {"stem": 0, "blocks": 1, "norm": 4, "head": 4}[name.partition(".")[0]]
    + (int(name.split(".")[1]) if name.startswith("blocks") else 0)
    for name, _ in Net().named_parameters()
}
NO_DECAY = dict.fromkeys(SMALL, (1.0, 0.0))
CASES: dict[str, tuple[Any, dict[str, tuple[float, float]]]] = {
    "preset": ("no_decay_norm_bias", NO_DECAY),
    "function": (wb.group(is_small, weight_decay=0), NO_DECAY),
    "part": (
        wb.group("head", lr_scale=np.float32(4)),
        dict.fromkeys(("head.weight", "head.bias"), (4.0, 0.1)),
    ),
    "pattern": (
        wb.group("*.bias", weight_decay=0.5),
        {name: (1.0, 0.5) for name in LAYERS if name.endswith("bias")},
    ),
    "layers": (wb.layer_decay(0.5), {name: (0.5 ** (4 - LAYERS[name]), 0.1) for name in LAYERS}),
    "layers by hand": (
        wb.layer_decay(0.5, layers=["stem", "blocks", "head"]),
        {
            name: ({"stem": 0.25, "blocks": 0.5}.get(name.partition(".")[0], 1.0), 0.1)
            for name in LAYERS
        },
    ),
    "all rates are scaled": (
        [wb.layer_decay(0.5), wb.group("head", lr_scale=4), wb.group("norm", lr_scale=2)],
        {
            name: (
                0.5 ** (4 - LAYERS[name]) * {"head": 4.0, "norm": 2.0}.get(name.split(".")[0], 1.0),
                0.1,
            )
            for name in LAYERS
        },
    ),
    "all together": (
        [wb.group(is_small, weight_decay=0), wb.group("head", lr_scale=4), wb.layer_decay(0.5)],
        {
            name: (
                0.5 ** (4 - LAYERS[name]) * (4.0 if name.startswith("head") else 1.0),
                0.0 if name in SMALL else 0.1,
            )
            for name in LAYERS
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_losses_are_those_of_groups_made_by_hand(case: str, tmp_path: Path) -> None:
    groups, options = CASES[case]
    with make(tmp_path, groups, weight_decay=0.1) as bench:
        run = bench.fit().result()
        assert bench.settings.lr == 0.05
    np.testing.assert_array_equal(run.history["loss"], twin(options))
    assert set(run.history["lr"]) == {np.float32(0.05)}


def test_a_changed_rate_and_a_schedule_keep_the_ratios_and_a_fit_continues(tmp_path: Path) -> None:
    groups, options = CASES["all rates are scaled"]
    with make(tmp_path, groups, weight_decay=0.1, lr=0.5) as bench:
        bench.set(lr=0.05)
        first = bench.fit(max_epochs=1).result()
        rest = bench.fit(start=first.id, max_epochs=2).result()
        np.testing.assert_array_equal(rest.history["loss"], twin(options))
        falling = bench.fit(lr_schedule="cosine", warmup=2).result()
    assert falling.history["lr"][1] == np.float32(0.05)
    assert falling.history["lr"][-1] < 0.01


def test_optimizers_that_settings_name_have_the_groups(tmp_path: Path) -> None:
    groups = [wb.group("head", lr_scale=4), "no_decay_norm_bias"]
    with make(tmp_path, groups, optimizer={"sgd": {"momentum": 0.9}}, weight_decay=0.1) as bench:
        options = {**NO_DECAY, "head.weight": (4.0, 0.1), "head.bias": (4.0, 0.0)}
        np.testing.assert_array_equal(bench.fit().result().history["loss"], twin(options))
        muon = bench.fit(optimizer="muon").result()
        assert muon.status == "finished"


def test_a_part_of_several_optimizers_may_be_a_function(tmp_path: Path) -> None:
    def matrices(name: str, parameter: Tensor) -> bool:
        return parameter.ndim == 2 and not name.startswith("head")

    optimizer = {matrices: functools.partial(SGD, lr=0.05), "": functools.partial(SGD, lr=0.1)}
    kept = {n: (1.0, 0.1) for n, p in Net().named_parameters() if matrices(n, p)}
    options = {name: kept.get(name, (2.0, 0.1)) for name in LAYERS}
    with make(tmp_path, None, optimizer=optimizer, weight_decay=0.1) as bench:
        np.testing.assert_array_equal(bench.fit().result().history["loss"], twin(options))


def test_a_function_gets_the_names_of_the_parameters(tmp_path: Path) -> None:
    def by_name(named_parameters: Any, lr: float) -> torch.optim.Optimizer:
        bias = [p for name, p in named_parameters if name.endswith("bias")]
        others = [p for name, p in named_parameters if not name.endswith("bias")]
        groups = [{"params": others}, {"params": bias, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, lr, momentum=0.9, weight_decay=0.1)

    options = {name: (1.0, 0.0) for name in LAYERS if name.endswith("bias")}
    with make(tmp_path, None, optimizer=by_name) as bench:
        np.testing.assert_array_equal(bench.fit().result().history["loss"], twin(options))


def test_a_rate_is_found_for_the_groups_of_a_rule(tmp_path: Path) -> None:
    groups = [wb.group("head", lr_scale=4), "no_decay_norm_bias"]
    with make(tmp_path, groups) as bench:
        curve = bench.find_lr(group="head", num_training=12, early_stop_threshold=None).result()
        assert "the group's lr_scale is this rate divided by the setting lr" in repr(curve)
        with pytest.raises(TaskError, match=r"group='haed'.*no_decay.*Did you mean 'head'"):
            bench.find_lr(group="haed").result()


def test_layers_are_the_blocks_of_the_names(tmp_path: Path) -> None:
    rule = wb.layer_decay(0.5)
    mlp = dict(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).named_parameters())
    assert {name: options["lr_scale"] for name, options in rule(mlp).items()} == {
        "0.weight": 0.5,
        "0.bias": 0.5,
        "2.weight": 1.0,
        "2.bias": 1.0,
    }
    plain = {"first.weight": torch.ones(2), "second.weight": torch.ones(2)}
    assert [options["lr_scale"] for options in rule(plain).values()] == [0.5, 1.0]


BAD: dict[str, tuple[Any, str]] = {
    "no rule's name": ("no_decay", "is no rule's name.*Did you mean 'no_decay_norm_bias'"),
    "a number": (3, r"groups\[0\]=3: give rules"),
    "torch's groups": ([{"params": []}], "give rules"),
    "no such part": (wb.group("haed", lr_scale=2), "matches no parameter.*Did you mean 'head'"),
    "all parameters": (wb.group(lambda name, p: True, lr_scale=2), "the setting lr is for all"),
    "no option": (wb.group("head"), "has no option"),
    "a rate": (wb.group("head", lr=0.1), "give lr_scale"),
    "a negative scale": (wb.group("head", lr_scale=-1), "at least 0"),
    "an infinite scale": (wb.group("head", lr_scale=np.inf), "lr_scale=inf: give a finite number"),
    "an unknown option": (
        wb.group("head", betas=(0.9, 0.9)),
        "betas.*SGD, which trains head.weight, has no such option",
    ),
    "a contradiction": (
        [wb.group("head", weight_decay=0), wb.group("*.bias", weight_decay=1)],
        r"gives head\.bias weight_decay=1, and groups\[0\].* gives it 0",
    ),
    "a factor": (wb.layer_decay(2), "above 0 and up to 1"),
    "an unknown layer": (wb.layer_decay(0.5, layers=["stem", "bloks"]), "layers='bloks' matches"),
    "another function": (wb.group(lambda p: True, lr_scale=2), "called with a parameter's name"),
    "a function without what it is for": (is_small, r"wb\.group\(f, weight_decay=0\)"),
    "a rule for nothing": (lambda named: {}, "matches no parameter"),
    "a rule with a rate": (
        lambda named: {"head.bias": {"lr": 5.0}},
        "head.bias: lr=5.0: .*lr_scale",
    ),
    "a rule with an unknown option": (
        lambda named: {"head.bias": {"weight_decai": 0}},
        "weight_decai=0: SGD, which trains head.bias, .*Did you mean 'weight_decay'",
    ),
    "a rule that returns a list": (lambda named: ["head"], "returns a dict of options"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rules_are_refused_when_the_bench_is_made(case: str, tmp_path: Path) -> None:
    groups, why = BAD[case]
    with pytest.raises(TaskError, match=why), make(tmp_path, groups) as bench:
        bench.fit().result()


def test_what_cannot_have_groups_says_so(tmp_path: Path) -> None:
    def listed(params: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in params if p.ndim > 1], lr)

    with pytest.raises(
        TaskError, match="groups=: optimizer=listed gets a list of parameter groups"
    ):
        make(tmp_path, "no_decay_norm_bias", optimizer=listed)
    model = Net()
    for deaf in (lambda params, lr: torch.optim.SGD(model.parameters(), lr), torch.optim.LBFGS):
        with (
            pytest.raises(TaskError, match=r"groups=: optimizer="),
            make(tmp_path, "no_decay_norm_bias", model, optimizer=deaf) as bench,
        ):
            bench.fit().result()
    model.head.requires_grad_(False)
    with pytest.raises(TaskError, match=r"matches only frozen parameters \(head\.weight"):
        make(tmp_path, wb.group("head", lr_scale=2), model)
    with pytest.raises(SettingsError, match="Did you mean 'groups'"):
        make(tmp_path, None, param_groups=[])


def test_a_rule_with_an_option_of_one_part_holds_there(tmp_path: Path) -> None:
    optimizer = {"blocks": SGD, "": torch.optim.AdamW}
    with make(tmp_path, wb.group("norm", betas=(0.8, 0.9)), optimizer=optimizer, lr=1e-3) as bench:
        assert bench.fit(max_steps=2).result().status == "finished"


def test_a_decay_is_searched_beside_one_that_a_rule_gives(tmp_path: Path) -> None:
    groups = [wb.group("stem", weight_decay=0.5)]
    with make(tmp_path, groups, optimizer="adamw", lr=1e-3, max_epochs=40) as bench:
        search = bench.find_weight_decay().result()
    assert len({trial.weight_decay for trial in search.trials}) > 1


def test_a_bench_says_which_parameter_is_in_which_group(tmp_path: Path) -> None:
    model = Net()
    model.stem.requires_grad_(False)
    groups = ["no_decay_norm_bias", wb.group("head", lr_scale=10)]
    bench = make(tmp_path, groups, model, weight_decay=0.1, warmup=3)
    rows = bench.param_groups
    assert [(g.name, g.lr, g.weight_decay, g.elements) for g in rows] == [
        ("rest", 0.05, 0.1, 108), ("no_decay", 0.05, 0.0, 30), ("head", 0.5, 0.1, 18), ("no_decay, head", 0.5, 0.0, 3),
        ("not trained", None, None, sum(p.numel() for p in model.stem.parameters())),
    ]  # fmt: skip
    assert sorted(name for g in rows for name in g.parameters) == sorted(
        dict(model.named_parameters())
    )
    assert rows[2].parameters == ("head.weight",)
    assert {g.optimizer for g in rows} == {"SGD", ""}
    assert "blocks.0.bias, blocks.1.bias, blocks.2.bias and 2 more" in repr(rows)
    optimizer = {lambda name, p: p.ndim == 2: torch.optim.SGD, "": torch.optim.AdamW}
    kinds = {g.optimizer for g in make(tmp_path, None, optimizer=optimizer).param_groups}
    assert kinds == {"SGD", "AdamW"}


class Noting(Net):
    """Notes its hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.05)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self(batch[0]), batch[1])

    def on_fit_start(self) -> None:
        self.calls.append("on_fit_start")

    def on_train_start(self) -> None:
        self.calls.append("on_train_start")


def test_a_look_at_the_groups_begins_no_fit(tmp_path: Path) -> None:
    model = Noting()
    bench = wb.Workbench(model, train=labelled(), root=tmp_path, dry_run=False)
    assert [group.lr for group in bench.param_groups] == [0.05]
    assert model.calls == []


def test_names_and_scales_of_all_rates_go_together(tmp_path: Path) -> None:
    def by_name(named_parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(named_parameters, lr, momentum=0.9, weight_decay=0.1)

    groups, options = CASES["all rates are scaled"]
    with make(tmp_path, groups, optimizer=by_name) as bench:
        np.testing.assert_array_equal(bench.fit().result().history["loss"], twin(options))
        with pytest.raises(TaskError, match=r"find_lr\(group=0\): this parameter group has no"):
            bench.find_lr(group=0).result()


def test_comparisons_and_filters_have_the_groups_and_what_made_the_optimizer(
    tmp_path: Path,
) -> None:
    groups = [wb.group("head", lr_scale=4), wb.layer_decay(0.5)]
    for given, optimizer in ((None, SGD), (groups, SGD), (None, torch.optim.AdamW)):
        with make(tmp_path, given, optimizer=optimizer, max_steps=1) as bench:
            bench.fit().result()
    with make(tmp_path, None) as bench:
        runs = bench.runs
        table = repr(bench.compare(*runs))
        assert "group('head', lr_scale=4), layer_decay(0.5)" in table
        assert "{'sgd': {'momentum': 0.9}}" in table
        assert [run.id for run in runs.filter("optimizer == adamw")] == ["0003-fit"]
        assert [run.id for run in runs.filter("groups != none")] == ["0002-fit"]
