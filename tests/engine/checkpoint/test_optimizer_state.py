"""Optimizers with state of other kinds: it comes back as it was, or the first checkpoint says why it cannot."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.optim import Optimizer

import workbench as wb
from tests.engine.problems import SAM, labelled, plain_net
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


class Quantized(Optimizer):
    """Momentum in 8 bits with a scale, and things beside that are no tensors; torch's own ways to and from a state_dict."""

    def __init__(self, params, lr=0.05, betas=(0.9, 0.99), kinds=frozenset({"a"}), scale=None):
        super().__init__(params, {"lr": lr, "betas": betas, "kinds": kinds, "scale": scale})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    # Integers beyond what float32 tells apart, and numbers that are no float32.
                    state |= {"q": torch.zeros_like(p, dtype=torch.int64), "scale": torch.ones((), dtype=torch.float64),
                              "name": "momentum", "block": {"map": torch.arange(3, dtype=torch.uint8)}, "seen": (0, None)}  # fmt: skip
                momentum = 0.9 * state["q"].double() * state["scale"] + p.grad.double()
                state["scale"] = momentum.abs().max() / 2**40 + 1e-300
                state["q"] = (momentum / state["scale"]).round().long()
                assert state["name"] == "momentum"
                assert state["block"]["map"].dtype == torch.uint8
                state["seen"] = (state["seen"][0] + 1, None)
                p.sub_((group["lr"] * state["q"].double() * state["scale"]).float())


class Packed(Quantized):
    """As bitsandbytes: its state_dict has other keys than its state, and its load_state_dict turns them back."""

    def state_dict(self):
        found = copy.deepcopy(super().state_dict())
        for own in found["state"].values():
            own["__quant_state__"] = {name: own.pop(name) for name in ("q", "scale", "block")}
        return found

    def load_state_dict(self, state_dict):
        numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for group, own in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in own.items() if name != "params"})
        self.state.clear()
        for number, p in zip(numbers, parameters, strict=True):
            if number in state_dict["state"]:
                own = copy.deepcopy(state_dict["state"][number])
                self.state[p] = {**own, **own.pop("__quant_state__")}
                del self.state[p]["__quant_state__"]


def bench(root, make, **options):
    options = {"max_steps": 4, "batch_size": 8, "loss": F.cross_entropy, **options}
    return wb.Workbench(
        plain_net(), train=labelled(), root=root, accelerator="cpu", optimizer=make, **options
    )


def weights(b):
    return [p.detach().clone() for p in b.model.parameters()]


@pytest.mark.parametrize("make", [Quantized, Packed, SAM])
def test_a_fit_goes_on_exactly(make, tmp_path):
    with bench(tmp_path / "whole", make, max_steps=8) as b:
        run = b.fit().result()
        expected = weights(b)
    with bench(tmp_path / "parts", make) as b:
        first = b.fit().result()
        with bench(tmp_path / "parts", make) as other:
            rest = other.fit(start=first.id, max_steps=8).result()
            assert rest.history["loss"].tolist() == run.history["loss"].tolist()
            assert all(torch.equal(p, q) for p, q in zip(weights(other), expected, strict=True))


@pytest.mark.parametrize("make", [Quantized, Packed, SAM])
def test_a_search_in_the_middle_of_a_fit_gives_its_state_back(make, tmp_path):
    """The optimizer itself looks at the types of its state at each step."""
    with bench(tmp_path, make, max_steps=None, max_epochs=2, find_lr_at=(1,)) as b:
        assert b.fit().result().status == "finished"


class Odd(torch.optim.SGD):
    """Its state is of a kind that no file takes."""

    class Table:
        pass

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["table"] = Odd.Table()


class Silent(torch.optim.SGD):
    def state_dict(self):
        if self.state:
            raise NotImplementedError("no state here")
        return super().state_dict()

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["there"] = 1


@pytest.mark.parametrize(
    ("make", "why"),
    [(Odd, r"the state of Odd holds a Table"), (Silent, r"Silent\.state_dict\(\) failed")],
)
def test_state_that_no_file_takes_is_told_at_the_first_checkpoint(make, why, tmp_path):
    with bench(tmp_path, make) as b:
        job = b.fit()
        run = job.result()
        said = [event.text for event in job.events if type(event).__name__ == "Message"]
        assert any("checkpoints have weights alone" in text for text in said)
        with pytest.raises(ValueError, match=why):
            b.fit(start=run.id, max_steps=8).result()
        b.load(run)
        assert b.fit(max_steps=2).result().status == "finished"


class Refusing(torch.optim.SGD):
    def __init__(self, params, lr):
        super().__init__(params, lr=lr, momentum=0.9)

    def load_state_dict(self, state_dict):
        if state_dict["state"]:
            raise KeyError("absmax1")
        super().load_state_dict(state_dict)


def test_an_optimizer_that_does_not_take_its_state_back_says_so(tmp_path):
    with bench(tmp_path, Refusing) as b:
        run = b.fit().result()
        with pytest.raises(
            TaskError,
            match=r"Refusing\.load_state_dict did not load .*KeyError: 'absmax1'.*bench\.load\(run\)",
        ):
            b.fit(start=run.id, max_steps=8).result()


def test_weight_decay_that_an_optimizer_needs(tmp_path):
    def needs(params, lr, weight_decay):
        return torch.optim.SGD(params, lr=lr, weight_decay=weight_decay)

    for make in (
        needs,
        lambda p, lr, weight_decay: torch.optim.SGD(p, lr=lr, weight_decay=weight_decay),
    ):
        with pytest.raises(
            TaskError,
            match=r"needs weight_decay, and the setting weight_decay is None: give .*weight_decay=0\.01",
        ):
            bench(tmp_path, make)
    with bench(tmp_path, needs, weight_decay=0.1) as b:
        assert b.fit().result().status == "finished"
    with pytest.raises(TaskError, match=r"needs alpha and beta, for which there is no value"):
        bench(tmp_path, lambda params, lr, alpha, beta: None)
