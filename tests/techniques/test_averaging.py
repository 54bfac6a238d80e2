"""Averages against torch.optim.swa_utils.AveragedModel and update_bn, to the bit."""

import contextlib

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import (
    AveragedModel,
    get_ema_multi_avg_fn,
    get_swa_multi_avg_fn,
    update_bn,
)

from workbench.settings import Settings
from workbench.task.errors import TaskError
from workbench.task.modules import kept_buffers
from workbench.techniques.averaging import (
    Average,
    ema_due,
    has_batch_norm,
    refreshing_batch_norm,
    swa_due,
    swa_first_epoch,
)

pytestmark = pytest.mark.usefixtures("one_thread")


class Mixed(nn.Module):
    """Parameters of several types, one of them frozen."""

    def __init__(self):
        super().__init__()
        self.a32 = nn.Parameter(torch.randn(5, 3))
        self.b64 = nn.Parameter(torch.randn(4, dtype=torch.float64))
        self.c16 = nn.Parameter(torch.randn(7).bfloat16())
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.last = nn.Parameter(torch.randn(6))


def custom(averaged, current, n):
    return averaged + (current - averaged) * (2.0 / (n + 2))


def move(model):
    with torch.no_grad():
        for p in model.parameters():
            p += torch.randn_like(p)


def same(a, b):
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True))


KINDS = {
    "ema": (lambda: Average("ema", 0.97), {"multi_avg_fn": get_ema_multi_avg_fn(0.97)}),
    "swa": (lambda: Average("swa"), {"multi_avg_fn": get_swa_multi_avg_fn()}),
    "custom": (lambda: Average("ema", avg_fn=custom), {"avg_fn": custom}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_are_those_of_averaged_model(kind):
    make, options = KINDS[kind]
    model, average = Mixed(), make()
    twin = AveragedModel(model, **options)
    parameters = list(model.parameters())
    for count in range(40):
        move(model)
        twin.update_parameters(model)
        average.update(parameters)
        assert average.count == count + 1
        with average.swapped(parameters):
            assert same(parameters, twin.parameters())
    assert all(p.requires_grad == (p is not model.frozen) for p in parameters)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [0, 1, 5])
def test_an_average_goes_on_from_its_state(kind, after):
    make, _ = KINDS[kind]
    model, whole = Mixed(), make()
    parameters = list(model.parameters())
    for _ in range(after):
        move(model)
        whole.update(parameters)
    rest = make()
    rest.load_state_dict(whole.state_dict(), parameters)
    for _ in range(3):
        move(model)
        whole.update(parameters)
        rest.update(parameters)
    assert (rest.count, whole.count) == (after + 3, after + 3)
    assert same(rest.state_dict()["averages"], whole.state_dict()["averages"])


def test_an_average_of_another_kind_begins_anew():
    ema, swa = Average("ema", 0.9), Average("swa")
    parameters = list(Mixed().parameters())
    ema.update(parameters)
    swa.load_state_dict(ema.state_dict(), parameters)
    assert swa.count == 0


def test_integers_cannot_be_averaged_equally_and_are_the_newest():
    number = nn.Parameter(torch.tensor([3]), requires_grad=False)
    average = Average("swa")
    average.update([number])
    number += 4
    average.update([number])
    number += 1
    average.copy_to([number])
    assert number.item() == 7


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_swapped_gives_the_raw_values_back(error):
    model, average = Mixed(), Average("swa")
    parameters = list(model.parameters())
    average.update(parameters)
    move(model)
    raw, places = [p.detach().clone() for p in parameters], [p.data_ptr() for p in parameters]
    try:
        with average.swapped(parameters):
            assert not same(parameters, raw)
            assert torch.is_grad_enabled()
            if error:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert same(parameters, raw)
    assert places == [p.data_ptr() for p in parameters]


def test_handed_over_for_good():
    model, average = Mixed(), Average("ema")
    parameters = list(model.parameters())
    with pytest.raises(RuntimeError, match="no average yet"):
        average.copy_to(parameters)
    average.update(parameters)
    first = [p.detach().clone() for p in parameters]
    move(model)
    average.copy_to(parameters)
    assert same(parameters, first)
    move(model)  # the average has its own memory
    average.copy_to(parameters)
    assert same(parameters, first)


def test_when_an_ema_is_due():
    settings = Settings(averaging_start=3, averaging_every_n_steps=2, averaging_start_epoch=1)
    assert [c for c in range(1, 10) if ema_due(settings, c, 1)] == [4, 6, 8]
    assert not any(ema_due(settings, c, 0) for c in range(1, 10))
    assert all(ema_due(Settings(), c, 0) for c in range(1, 5))


def test_when_an_swa_is_due():
    settings = Settings(max_epochs=5, swa_epoch_start=2)
    assert [e for e in range(5) if swa_due(settings, e)] == [2, 3, 4]
    assert swa_first_epoch(Settings(max_epochs=10, swa_epoch_start=0.75)) == 7
    # of the ten epochs that hold when no length is given
    assert swa_first_epoch(Settings(swa_epoch_start=0.5)) == 5
    with pytest.raises(TaskError, match="give max_epochs"):
        swa_first_epoch(Settings(max_steps=10, swa_epoch_start=0.5))
    assert swa_first_epoch(Settings(max_steps=10, swa_epoch_start=3)) == 3


def network():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.3),
        nn.BatchNorm1d(4, track_running_stats=False),
    )  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
def test_statistics_are_those_of_update_bn(training):
    model, twin = network().train(training), network().train(training)
    loader = [torch.randn(n, 3) for n in (8, 8, 5)]
    model(loader[0]), twin(loader[0])  # something to forget
    torch.manual_seed(0)
    update_bn(loader, twin)
    torch.manual_seed(0)
    with refreshing_batch_norm([model]):
        for batch in loader:
            assert not model(batch).requires_grad
    assert same(model.buffers(), twin.buffers())
    assert [m.momentum for m in model if isinstance(m, nn.BatchNorm1d)] == [0.1, 0.3, 0.1]
    assert all(m.training == training for m in model.modules())


def test_a_layer_held_in_eval_mode_keeps_its_statistics():
    model = network()
    model[1].eval()
    before = [b.clone() for b in model[1].buffers()]
    with contextlib.suppress(KeyboardInterrupt), refreshing_batch_norm([model, model]):
        model(torch.randn(8, 3))
        assert model[4].momentum is None
        raise KeyboardInterrupt
    assert same(model[1].buffers(), before)
    assert model[4].num_batches_tracked == 1
    assert (model[4].momentum, model[4].training, model[1].training) == (0.3, True, False)


def test_kept_statistics_come_back():
    model = network()
    model(torch.randn(8, 3))
    before, buffers = [b.clone() for b in model.buffers()], list(model.buffers())
    with (
        contextlib.suppress(KeyboardInterrupt),
        kept_buffers([model]),
        refreshing_batch_norm([model]),
    ):
        model(torch.randn(8, 3))
        assert not same(model.buffers(), before)
        raise KeyboardInterrupt
    assert same(model.buffers(), before)
    assert all(a is b for a, b in zip(model.buffers(), buffers, strict=True))


def test_where_there_is_batch_norm():
    assert has_batch_norm([nn.ReLU(), network()])
    assert not has_batch_norm(
        [nn.ReLU(), nn.BatchNorm1d(2, track_running_stats=False), nn.LayerNorm(2)]
    )
