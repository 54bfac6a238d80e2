"""Which optimizers want a closure, and for what."""

import functools

import pytest
import torch

from tests.engine.problems import SAM
from workbench.task.optim.closures import closure_use


class Asserts(SAM):
    def step(self, closure=None):
        assert closure is not None, "a closure, please"
        closure = torch.enable_grad()(closure)
        norm = sum(p.grad.norm() for group in self.param_groups for p in group["params"])
        closure()
        return norm


class Itself(torch.optim.SGD):
    """As AliG: it computes its gradients by the closure."""

    def step(self, closure=None):
        if closure is None:
            raise RuntimeError("a closure, please")
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


class Sometimes(torch.optim.SGD):
    """It wants one for its search alone, which is off."""

    search = False

    def step(self, closure=None):
        if self.search:
            if closure is None:
                raise RuntimeError("a closure, please")
            closure()
        return super().step()


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (torch.optim.SGD, "never"), (torch.optim.AdamW, "never"), (torch.optim.LBFGS, "whole update"), (SAM, "after gradients"),
        (Asserts, "after gradients"), (Itself, "whole update"), (Sometimes, "never"),
    ],
)  # fmt: skip
def test_the_use_of_a_closure_is_read_from_the_step(make, use):
    assert closure_use(functools.partial(make, lr=0.1)([torch.nn.Parameter(torch.ones(2))])) == use
