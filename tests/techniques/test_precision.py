"""Mixed precision: the arithmetic of a forward pass, and the scaled loss against a plain loop with GradScaler."""

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from workbench.task.errors import TaskError
from workbench.techniques import precision as module
from workbench.techniques.precision import Precision

CPU = torch.device("cpu")


def scaler():
    return GradScaler("cpu", init_scale=2.0**120, growth_interval=3)  # overflows at first


def model():
    torch.manual_seed(1)
    return nn.Linear(3, 2)


def test_plain_arithmetic_is_entered_for_nothing():
    plain = Precision.of("32-true", CPU)
    assert plain.scaler is None
    assert plain.autocast() is plain.autocast()
    with plain.autocast(), plain.autocast():
        assert model()(torch.ones(1, 3)).dtype is torch.float32
    loss = torch.ones(())
    assert plain.scale(loss) is loss


def test_bfloat16_products_and_float32_weights():
    mixed, net = Precision.of("bf16-mixed", CPU), model()
    with mixed.autocast():
        out = net(torch.ones(1, 3))
    assert out.dtype is torch.bfloat16
    assert mixed.scaler is None
    out.float().sum().backward()
    assert net.weight.grad.dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_float16_on_the_cpu_proposes_bfloat16():
    with pytest.raises(TaskError, match="bf16-mixed"):
        Precision.of("16-mixed", CPU)


def test_bfloat16_on_a_gpu_without_it(monkeypatch):
    monkeypatch.setattr(module, "_has_bfloat16", lambda device: False)
    with pytest.raises(TaskError, match="16-mixed"):
        Precision.of("bf16-mixed", torch.device("cuda"))


def plain_loop(updates):
    net, scale = model(), scaler()
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(updates):
        scale.scale(net(torch.full((2, 3), step + 1.0)).pow(2).mean()).backward()
        scale.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
    return net.state_dict(), scale.state_dict()


def ours(updates, reload_at=-1):
    net, mixed = model(), Precision(torch.float16, CPU, scaler())
    optimizer, taken = torch.optim.Adam(net.parameters()), []
    for step in range(updates):
        if step == reload_at:
            state = mixed.state_dict()
            mixed = Precision(torch.float16, CPU, scaler())
            mixed.load_state_dict(state)
        mixed.scale(net(torch.full((2, 3), step + 1.0)).pow(2).mean()).backward()
        mixed.unscale(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        before = net.weight.detach().clone()
        taken.append(mixed.step(optimizer))
        assert taken[-1] == (not torch.equal(net.weight, before))
        mixed.update()
        optimizer.zero_grad()
    return net.state_dict(), mixed.state_dict(), taken


@pytest.mark.parametrize("reload_at", [-1, 2, 11])
def test_the_scaled_loop_is_that_of_a_plain_one(one_thread, reload_at):
    (weights, scale), (own_weights, own_scale, taken) = plain_loop(20), ours(20, reload_at)
    assert False in taken
    assert True in taken
    assert scale == own_scale
    assert all(torch.equal(weights[name], own_weights[name]) for name in weights)


def test_a_step_without_unscale_before_it():
    net, mixed = model(), Precision(torch.float16, CPU, GradScaler("cpu"))
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    mixed.scale(net.weight.sum() + net.bias.sum()).backward()
    before = net.weight.detach().clone()
    assert mixed.step(optimizer)
    assert torch.equal(net.weight, before - 1)


def test_an_optimizer_without_gradients():
    mixed, net = Precision(torch.float16, CPU, GradScaler("cpu")), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    mixed.unscale(optimizer)
    assert mixed.step(optimizer)
    mixed.update()


def test_a_state_loaded_behind_a_broken_update():
    mixed, net = Precision(torch.float16, CPU, GradScaler("cpu")), model()
    optimizer, state = torch.optim.SGD(net.parameters(), lr=1.0), mixed.state_dict()
    for _ in range(2):  # the second one would fail: "unscale_() has already been called"
        mixed.scale(net.weight.sum()).backward()
        mixed.unscale(optimizer)
        mixed.load_state_dict(state)
        assert mixed.state_dict() == state
    mixed.load_state_dict({})
    assert mixed.state_dict() == state
