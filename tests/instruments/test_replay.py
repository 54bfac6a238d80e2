"""The replay says where a NaN or infinity began, and leaves nothing behind."""

import sys
from functools import partial

import pytest
import torch
from torch import nn

from workbench.instruments.replay import replay


class Logs(nn.Module):
    """Takes a logarithm on a line of its own."""

    def forward(self, x):
        return torch.log(x)


class Hidden(nn.Module):
    """Works where no torch function shows it."""

    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return x / 0


def net(*layers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), *layers)


def there(text):
    """The line of this file that holds `text`, as the replay names it."""
    with open(__file__) as file:
        return f"test_replay.py, line {next(i for i, line in enumerate(file, 1) if text in line)}"


X = torch.ones(2, 3)


def test_a_finite_step_is_nothing_to_speak_of():
    model = net(nn.ReLU())
    assert replay(lambda: model(X).pow(2).mean(), model) is None


def test_a_module_of_torch_is_named():
    model = net(nn.ReLU(), nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight.fill_(1e30)
        model[2].weight.fill_(1e30)
    assert (
        replay(lambda: model(X).mean(), model)
        == "first in `2` (Linear), whose inputs and weights are finite"
    )


def test_a_module_of_the_users_is_named_with_its_line():
    model = net(nn.ReLU(), Logs(), nn.Linear(4, 1))
    with torch.no_grad():
        model[0].bias.fill_(-100)
    assert replay(lambda: model(X).mean(), model) == (
        "first in `2` (Logs), whose inputs and weights are finite: "
        f"in log, of `return torch.log(x)` at {there('return torch.log(x)')}"
    )


def test_what_a_module_that_is_no_leaf_does_itself():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 4)

        def forward(self, x):
            return torch.div(self.inner(x), 0)

    outer = Outer()
    said = replay(lambda: outer(X).mean(), outer)
    line = "return torch.div(self.inner(x), 0)"
    assert said == f"first in div, of `{line}` at {there(line)}, in the model itself (Outer)"


def test_the_loss_behind_the_model():
    model = net()

    def forward():
        p = model(X) * 0
        loss = torch.log(p).mean()  # forward
        return loss

    line = "loss = torch.log(p).mean()  # forward"
    assert replay(forward, model) == f"first in log, of `{line}` at {there(line)}"


def test_in_place_through_an_index():
    model = net()

    def forward():
        out = model(X).clone()
        out[0] = float("nan")
        return out.mean()

    assert "out[0] = float" in replay(forward, model)


def test_an_operation_that_torch_functions_do_not_show():
    model = net(Hidden(), nn.Linear(4, 1))
    assert (
        replay(lambda: model(X).mean(), model)
        == "first in `1` (Hidden), whose inputs and weights are finite"
    )


def test_an_infinite_mask_is_no_fault():
    model = net(nn.Softmax(-1), Logs())

    def forward():
        scores = model[0](X).masked_fill(torch.tensor([True, False, False, False]), -torch.inf)
        return model[2](model[1](scores))[:, 1:].mean() + model[2](model[1](scores) * 0).mean()

    said = replay(forward, model)
    assert said.startswith("first in `2` (Logs)")


def test_a_row_masked_as_a_whole():
    model = net()

    def forward():
        return torch.softmax(model(X).masked_fill(torch.tensor(True), -torch.inf), -1).mean()

    said = replay(forward, model)
    assert said.startswith("first in softmax, of `return torch.softmax(model(X)")
    assert said.endswith(", which made NaN of infinite values")


def test_what_came_in_with_the_batch():
    model = net()
    bad = X.clone()
    bad[0, 0] = torch.nan
    text = replay(lambda: model(bad).mean(), model)
    assert text.startswith("no operation on finite values made it: it came from the batch")


def test_a_nan_that_the_code_has():
    model = net()
    text = replay(lambda: model(X).mean() + model(torch.full((1, 3), torch.nan)).mean(), model)
    assert text.startswith("first in full, of `")
    assert text.endswith(", with a NaN in the code")


def test_a_gradient_that_became_infinite():
    model = net()

    def forward():
        p = model(X) * 0
        loss = torch.sqrt(p).mean()  # backward
        return loss

    line = "loss = torch.sqrt(p).mean()  # backward"
    assert (
        replay(forward, model)
        == f"the gradient became infinite in SqrtBackward, of `{line}` at {there(line)}"
    )


def test_a_gradient_that_became_nan_in_a_module():
    class Root(nn.Module):
        def forward(self, x):
            return torch.where(x > 9, torch.sqrt(x * 0), x)

    model = net(Root(), nn.Linear(4, 1))
    line = "return torch.where(x > 9, torch.sqrt(x * 0), x)"
    assert replay(lambda: model(X).mean(), model) == (
        f"the gradient became NaN in SqrtBackward, of `{line}` at {there(line)}, in `1` (Root)"
    )


def test_a_loss_without_a_line_of_the_users():
    """Built-in modules alone: the module is named, and not whoever called the run."""
    model = net()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
    loss = nn.Sequential(
        model, nn.LayerNorm(4, eps=0.0), nn.Flatten(0), nn.Unflatten(0, (1, 8)), nn.AvgPool1d(8)
    )
    said = replay(partial(loss, X), loss)
    assert said == "first in `1` (LayerNorm), whose inputs and weights are finite"


def test_a_backward_that_cannot_be_run_alone():
    from torch.utils.checkpoint import checkpoint

    model = net()
    said = replay(
        lambda: checkpoint(model, X.clone().requires_grad_(), use_reentrant=True).mean(), model
    )
    assert said.startswith("the forward pass is finite, and its backward cannot be replayed")


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_left(fails):
    model = net(nn.BatchNorm1d(4), Logs())
    model(X).sum().backward()
    before = [p.grad for p in model.parameters()]
    values = [g.clone() for g in before]
    buffers = [b.clone() for b in model.buffers()]

    def forward():
        loss = model(torch.randn(5, 3)).mean()
        if fails:
            raise RuntimeError("broken")
        return loss

    if fails:
        with pytest.raises(RuntimeError, match="broken"):
            replay(forward, model)
    else:
        assert replay(forward, model)
        assert replay(lambda: model[:2](torch.randn(5, 3)).pow(2).mean(), model) is None
    assert all(p.grad is g for p, g in zip(model.parameters(), before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, values, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), buffers, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not torch.is_anomaly_enabled()
    assert torch.overrides._get_current_function_mode() is None


def test_hooks_that_step_when_a_gradient_is_stored_stay_asleep():
    model = net()
    seen = []
    model[0].weight.register_post_accumulate_grad_hook(seen.append)
    assert replay(lambda: model(X).mean(), model) is None
    assert seen == []


def test_recurrent_layers_and_their_hidden_state():
    model = nn.LSTM(3, 4, batch_first=True)
    with torch.no_grad():
        model.weight_hh_l0.fill_(torch.nan)
    said = replay(lambda: model(torch.ones(2, 5, 3))[0].mean(), model)
    assert "came from the batch, the weights" in said


def test_compiled_code_runs_as_it_is_written():
    model = net(nn.ReLU(), Logs())
    compiled = torch.compile(model, backend="eager")
    compiled(X)
    assert "torch._dynamo" in sys.modules
    with torch.no_grad():
        model[0].bias.fill_(-100)
    assert replay(lambda: compiled(X).mean(), compiled).startswith("first in `_orig_mod.2` (Logs)")
