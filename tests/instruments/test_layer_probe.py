"""Histograms of layers on demand: what they show, that they change nothing, and that nothing stays."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.engine.problems import labelled
from workbench.events import Message, StepsDone
from workbench.instruments.layer_probe import MOST, LayerProbe

pytestmark = pytest.mark.usefixtures("one_thread")


def net():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )
    with torch.no_grad():
        model[0].bias[:2] = -100.0  # two units that no sample reaches
        model[3].weight *= 100.0
    return model


def bench(tmp_path, model=None, **settings):
    calm = {"max_epochs": 2, "batch_size": 10, "root": tmp_path, "lr": 1e-3}
    return wb.Workbench(
        model or net(), train=labelled(), loss=F.cross_entropy, **{**calm, **settings}
    )


def asking(b, *requests, at=2):
    """Fit, and ask for histograms before update `at`."""
    asked = []

    def listen(event):
        if isinstance(event, StepsDone) and event.done >= at and not asked:
            asked.append(event)
            for layers in requests or ([],):
                b.job.histograms(layers)

    end = b.subscribe(listen)
    run = b.fit(max_epochs=2000, max_steps=2000).result()
    end()
    return run


def test_what_is_measured_is_right_and_the_run_is_the_same(tmp_path):
    plain = bench(tmp_path).fit(max_epochs=2000, max_steps=2000).result()
    model = net()
    run = asking(bench(tmp_path, model))
    np.testing.assert_array_equal(run.history["loss"], plain.history["loss"])
    assert not any(part._forward_hooks for part in model.modules())
    ((measured),) = run.histograms
    layers = {layer.name: layer for layer in measured.layers}
    assert list(layers) == [name for name, _ in model.named_parameters()]
    first, second, last = (layers[f"{i}.weight"] for i in (0, 3, 5))
    assert (first.function, second.function, last.function) == ("ReLU", "Tanh", "")
    assert first.dead == 0.25
    assert first.saturated is None
    assert first.activations.low == 0.0
    assert second.saturated > 0.8
    assert sum(first.weights.counts) == 48
    assert sum(last.activations.counts) == 30
    assert layers["0.bias"].weights.low < -99
    assert wb.Run.open(run.folder).histograms == run.histograms


def test_layers_are_named_and_one_that_does_not_exist_is_told(tmp_path):
    run = asking(bench(tmp_path), ["3", "0.bias", "9"])
    assert [layer.name for layer in run.histograms[0].layers] == ["0.bias", "3.weight", "3.bias"]
    assert any("no layer is called '9'" in e.text for e in run.events if isinstance(e, Message))
    for wrong, said in (("3", r"\['3'\]"), (3, "give a list of names")):
        with pytest.raises(TypeError, match=said):
            bench(tmp_path).fit().histograms(wrong)


def test_requests_that_come_together_are_all_measured(tmp_path):
    run = asking(bench(tmp_path), ["3"], ["0.bias"], ["9"])
    measured = [[layer.name for layer in one.layers] for one in run.histograms]
    assert all(measured)
    assert {name for names in measured for name in names} == {"0.bias", "3.weight", "3.bias"}


def test_values_are_those_of_the_pass():
    """Against the tensors themselves: a convolution, whose channels are its units, and weights that are not finite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Hardtanh(-0.1, 0.1), nn.Flatten())
    with torch.no_grad():
        model[0].weight[3], model[0].bias[0] = 0.0, float("inf")
        model[0].weight[0] = 0.0
    probe = LayerProbe([model], dict(model.named_parameters()), [])
    probe.open()
    x = torch.randn(5, 1, 6, 6)
    output = model(x).reshape(5, 4, 16)
    output[:, 1:3].sum().backward()  # nothing comes from the first and the last channel
    weight, bias = probe.close()
    assert weight.dead == 0.5
    assert weight.saturated == pytest.approx(float((output.abs() >= 0.096).float().mean()))
    assert (weight.activations.low, weight.activations.high) == pytest.approx((-0.1, 0.1))
    counts, _ = np.histogram(output.detach().numpy(), 40)
    assert weight.activations.counts == tuple(counts)
    assert (bias.weights.not_finite, sum(bias.weights.counts)) == (1, 3)


def test_few_layers_of_many_are_measured():
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(30)))
    probe = LayerProbe([model], dict(model.named_parameters()), [])
    probe.open()
    model(torch.ones(1, 2))
    assert (len(probe.close()), probe.left_out) == (MOST, 60 - MOST)
