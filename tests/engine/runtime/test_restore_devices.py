"""A look at a task leaves its tensors where they lay, in the memory where they lay."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled, plain_net
from tests.engine.resuming import supervised
from workbench.engine.runtime.restore_devices import restored_devices


class Tied(nn.Module):
    """Two names for one weight, a buffer beside it."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight
        self.register_buffer("count", torch.arange(3))
        self.register_buffer("none", None)


def test_what_was_moved_is_the_same_memory_again():
    model = Tied()
    model.one.bias.grad = torch.ones(4)
    slots = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    before = {
        name: (tensor, tensor.data_ptr(), tensor.clone(), tensor.grad)
        for name, tensor in slots.items()
    }
    with restored_devices(supervised(model)):
        model.to("meta")
        assert {p.device.type for p in model.parameters()} == {"meta"}
    after = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    assert after.keys() == before.keys()
    for name, (tensor, memory, value, grad) in before.items():
        assert after[name] is tensor
        assert tensor.data_ptr() == memory
        assert torch.equal(tensor, value)
        assert tensor.grad is grad
    assert model.other.weight is model.one.weight


def test_what_stayed_on_its_device_is_left_as_it_is_now():
    model = Tied()
    with restored_devices(supervised(model)):
        model.count = torch.zeros(5)
        model.one.weight.data = torch.ones(4, 4)
        del model.other
    assert model.count.shape == (5,)
    assert torch.equal(model.one.weight, torch.ones(4, 4))


def test_also_when_the_look_fails():
    model = Tied()

    def look():
        with restored_devices(supervised(model)):
            model.to("meta")
            raise KeyError

    with pytest.raises(KeyError):
        look()
    assert model.one.weight.device.type == "cpu"


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["thread", "pool"])
def test_a_model_moves_to_a_gpu_when_it_is_trained_there_in_this_process(strategy, tmp_path):
    model = plain_net()
    with wb.Workbench(
        model,
        train=labelled(),
        loss=F.cross_entropy,
        accelerator="cuda",
        devices=1,
        strategy=strategy,
        root=tmp_path,
        max_epochs=1,
    ) as bench:
        assert next(model.parameters()).device.type == "cpu"
        bench.fit().result()
        where = next(model.parameters()).device.type
        assert where == ("cuda" if strategy == "thread" else "cpu")
        bench.script()
        assert next(model.parameters()).device.type == where
