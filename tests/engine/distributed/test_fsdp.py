"""n ranks that share one copy of the weights (FSDP) take the updates of one process; what leaves them is whole."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.engine.fit_results import fit, same
from tests.engine.learners import Learner, TwoSided
from tests.engine.problems import labelled, noisy_net, plain_net, sgd
from tests.engine.resuming import Fit, settings_of, supervised
from tests.engine.sharded import FSDP, alone, sharded
from tests.on_ranks import on_ranks
from workbench.commands import Mailbox
from workbench.engine.checkpoint.files import read_state
from workbench.engine.distributed import fsdp
from workbench.engine.distributed.process_group import ProcessGroup
from workbench.events import TimeSpent
from workbench.launch.assignments import FindLRAssignment, FitAssignment, PredictAssignment
from workbench.launch.search.distributed_search import RankSearch
from workbench.runs.checkpoints import list_checkpoints
from workbench.settings import Settings
from workbench.task.device.dtensor import in_shards
from workbench.task.errors import TaskError
from workbench.tuners.batch_size.batch_size_finder import BatchSizeRequest
from workbench.tuners.learning_rate.lr_finder import LRRequest

DATA = {"train": labelled(37).tensors, "val": labelled(19, 1).tensors}
"""The last rounds are shorter than the others, and some rank has nothing in them."""
PLAIN = {"max_epochs": 2, "lr": 0.05, "num_sanity_val_steps": 0}


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Sums repeat."""


class Normed(nn.Module):
    """Tied weights, statistics, a part that nothing uses, and one that the config leaves whole."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.out = (
            nn.Linear(6, 6, bias=False),
            nn.Linear(6, 6, bias=False),
            nn.Linear(6, 3),
        )
        self.b.weight = self.a.weight
        self.unused, self.whole = nn.Linear(2, 2), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.whole(torch.relu(self.b(self.a(x)))))


@pytest.mark.parametrize(
    ("make", "settings", "environment"),
    [
        (plain_net, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05, "lr_schedule": "cosine", "weight_averaging": "ema",
                     "ema_decay": 0.5, "val_check_interval": 2}, {"FSDP_ACTIVATION_CHECKPOINTING": "true"}),
        (plain_net, {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value", "track_grad_norm": "inf"},
         {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "false"}),
        (Normed, {"accumulate_grad_batches": 3, "track_grad_norm": 3.0}, {"FSDP_AUTO_WRAP_POLICY": "NO_WRAP", "FSDP_IGNORED_MODULES": "whole"}),
    ],
    ids=["accumulated", "version 2", "tied"],
)  # fmt: skip
def test_the_updates_of_one_process(
    make: Any, settings: dict[str, Any], environment: dict[str, str]
) -> None:
    given = {**DATA, "loss": F.cross_entropy}  # AdamW
    ranks = sharded(make, given, {**PLAIN, **settings}, **environment)
    same(ranks, alone(make, given, {**PLAIN, **settings}))
    assert "are sharded over 2 ranks" in ranks["said"][0]


@pytest.mark.slow
def test_muon_works_on_shards() -> None:
    """It computes in 16 bits, so that losses differ in their third digit."""
    given = {**DATA, "loss": F.cross_entropy}
    settings = {**PLAIN, "optimizer": "muon"}
    ranks, one = sharded(plain_net, given, settings), alone(plain_net, given, settings)
    np.testing.assert_allclose(ranks["loss"], one["loss"], rtol=1e-2)


def test_steps_that_weigh_themselves() -> None:
    weighted, data = functools.partial(Learner, weighted=True), {"train": labelled(40).tensors}
    same(
        sharded(weighted, data, PLAIN),
        alone(weighted, data, {**PLAIN, "accumulate_grad_batches": 2}, 4),
    )


class ZeroAtFirst(nn.Module):
    """Gradients of zero for weights that are used (LoRA's A while its B is zero), none for a layer that no batch uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base, self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 8, bias=False), nn.Linear(8, 3)
        self.gates, self.unused = nn.ModuleList(nn.Linear(6, 3) for _ in range(2)), nn.Linear(6, 6)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: torch.Tensor) -> Any:
        gate = self.gates[int(x[0, 5] > 0)](x)  # the update decides which of them it uses
        return self.base(x) + self.b(self.a(x)) + gate


@pytest.mark.parametrize(
    ("samples", "environment"),
    [
        (48, {"FSDP_VERSION": "2", "FSDP_ACTIVATION_CHECKPOINTING": "true"}),
        # In the last round rank 1 runs a batch of the other gate again, with weight 0.
        (52, {"FSDP_AUTO_WRAP_POLICY": "NO_WRAP"}),
    ],
    ids=["units", "one unit"],
)  # fmt: skip
def test_a_gradient_of_zeros_is_one_and_no_gradient_is_none(
    samples: int, environment: dict[str, str]
) -> None:
    x, y = labelled(samples).tensors
    x[:, 5] = 1.0 - torch.arange(samples) // 8 % 2
    given, settings = {"train": (x, y), "loss": F.cross_entropy}, {**PLAIN, "shuffle": False}
    ranks = sharded(ZeroAtFirst, given, settings, **environment)
    # no gradient has no norm (NaN), and one of zeros has the norm 0
    same(ranks, alone(ZeroAtFirst, given, settings))
    names = [name for name, _ in ZeroAtFirst().named_parameters()]
    norms = dict(zip(names, ranks["layers"].T, strict=True))
    assert norms["a.weight"][0] == 0
    assert 0 < np.isnan(norms["gates.1.weight"]).sum() < len(norms["gates.1.weight"])
    assert torch.equal(ranks["weights"]["unused.weight"], ZeroAtFirst().unused.weight)


def hooked() -> nn.Sequential:
    net = plain_net()
    net[2].bias.register_hook(lambda gradient: gradient * 0)
    return net


def test_one_machine_each_and_data_of_one_batch() -> None:
    """A copy on each machine (HYBRID_SHARD), and rounds in which two of three ranks never had a batch."""

    def rank() -> dict[str, Any]:
        os.environ.update(LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
        return fit(
            plain_net(),
            given,
            {**PLAIN, "batch_size": 4},
            environment={**FSDP, "FSDP_SHARDING_STRATEGY": "HYBRID_SHARD"},
        )

    given = {
        "train": labelled(4).tensors,
        "val": labelled(3, 1).tensors,
        "loss": F.cross_entropy,
        "optimizer": sgd,
    }
    first, *_ = on_ranks(3, rank)
    same(first, alone(plain_net, given, PLAIN, 4))
    assert "sharded over 1 ranks, 3 times" in first["said"][0]


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (functools.partial(Learner, picky=True), {}, "returned None on 1 of 2 ranks"),
        (functools.partial(Learner, make=torch.optim.LBFGS), {}, "LBFGS"),
        (TwoSided, {}, "several optimizers"),
        (
            lambda: Learner(hooked()),
            {},
            r"the parameter net.2.bias has 1 hook .*fsdp_ignored_modules",
        ),
    ],
    ids=["None", "LBFGS", "several", "a hook"],
)
def test_what_cannot_be_is_refused_on_all_ranks(
    make: Any, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(TaskError, match=words):
        sharded(
            make,
            {"train": labelled(40).tensors},
            {**PLAIN, **settings},
            FSDP_AUTO_WRAP_POLICY="NO_WRAP",
        )


def test_a_torch_that_lets_ranks_wait_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdp, "_UNUSED", "set_what_is_not_there_yet")
    with pytest.raises(TaskError, match=r"need torch 2\.13 or later \(this is"):
        fsdp.apply(supervised(plain_net()), torch.device("cpu"), ProcessGroup())


def test_a_checkpoint_goes_on_on_the_same_ranks_to_the_bit_and_on_other_numbers(
    tmp_path: Path,
) -> None:
    def task() -> Any:
        return supervised(noisy_net(), val=labelled(19, seed=2), optimizer=torch.optim.AdamW)

    settings = settings_of(
        batch_size=4,
        max_epochs=2,
        checkpoint_every=1,
        save_top_k=-1,
        weight_averaging="ema",
        ema_decay=0.5,
    )

    def rank() -> tuple[Any, ...]:
        torch.set_num_threads(1)
        os.environ.update(FSDP)
        whole = Fit(task(), settings, tmp_path / "ranks")
        point = next(p for p in list_checkpoints(tmp_path / "ranks") if p.step == 3)
        rest = Fit(task(), settings, state=point.path)
        assert all(in_shards(p) for p in whole.session.task.model.parameters())
        assert {step: row for step, row in whole.rows().items() if step >= 3} == rest.rows()
        again = Fit(task(), settings, state=one.path)  # of one process
        return whole.counters, rest.counters, again.counters, again.rows()

    alone = Fit(task(), settings.replace(batch_size=8), tmp_path / "one")
    one = next(p for p in alone.checkpoints if p.epoch == 1)
    (whole, rest, again, rows), other = on_ranks(2, rank)
    assert whole == rest == (14, 2, 0)
    assert (whole, rest, again, rows) == other
    behind = next(p for p in list_checkpoints(tmp_path / "ranks") if p.epoch == 1)
    # in one process, where the weights are whole
    gone_on = Fit(task(), settings, state=read_state(behind.path))
    assert gone_on.counters[1] == 2
    assert all(
        value.shape == gone_on.session.task.model.state_dict()[name].shape
        for name, value in read_state(behind.path)["weights"].items()
    )


class Heard(list[Any]):
    def __call__(self, event: Any) -> None:
        self.append(event)

    def settle(self, seconds: float = 3.0) -> None:
        """All of it is here."""


def test_searches_and_predictions() -> None:
    """The sweep of one process; sizes that passed on each rank by itself and together; predictions in the data's order."""
    settings = Settings.make(accelerator="cpu", batch_size=4)

    def rank(world: int = 2) -> Any:
        torch.set_num_threads(1)
        if world > 1:
            os.environ.update(FSDP)
        heard, size = Heard(), settings.replace(batch_size=8 // world)
        FindLRAssignment(
            supervised(plain_net(), train=labelled(40)), size, LRRequest(num_training=12)
        )(heard, Mailbox())
        curve = [event.loss for event in heard if type(event).__name__ == "CurvePoint"]
        sizes = RankSearch(
            supervised(plain_net(), train=labelled(40)),
            size,
            BatchSizeRequest(max_val=8, steps_per_trial=1, min_updates_per_epoch=1),
        )
        if world > 1:
            sizes(heard, Mailbox())
        task = supervised(plain_net(), train=labelled(40))
        task.predict = supervised(plain_net(), train=labelled(9)).train
        found = PredictAssignment(task, settings, None)(Heard(), Mailbox()).value
        return (
            curve,
            [e.size for e in heard if type(e).__name__ == "Trial" and e.ok],
            torch.cat(found),
        )

    (curve, sizes, found), (others, _, _) = on_ranks(2, rank)
    expected, _, predicted = rank(1)
    assert curve == others
    np.testing.assert_allclose(curve, expected, rtol=1e-4)
    assert [*dict.fromkeys(sizes)] == [2, 4, 8]  # those that come into question are timed again
    torch.testing.assert_close(found, predicted, rtol=1e-5, atol=1e-6)


def test_waiting_for_the_batches_of_another_rank_is_time_of_sync() -> None:
    def rank() -> float:
        class Slow(torch.utils.data.Dataset[Any]):
            def __len__(self) -> int:
                return 12

            def __getitem__(self, number: int) -> Any:
                if os.environ["RANK"] == "1":
                    time.sleep(0.1)
                return torch.zeros(6), torch.tensor(0)

        os.environ.update(FSDP)
        heard = Heard()
        FitAssignment(
            supervised(plain_net(), train=Slow()), settings_of(max_epochs=1, batch_size=2)
        )(heard, Mailbox())
        return sum(event.parts.get("sync", 0.0) for event in heard if isinstance(event, TimeSpent))

    assert on_ranks(2, rank)[0] > 0.3, "rank 1 needs 0.2 s for each of three batches"
