"""What people get wrong about a model, a loss and labels: each error is short, names what was given, and says what to do."""

from __future__ import annotations

import functools
import re
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench as wb
from tests.engine.problems import labelled, plain_net
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")

X, Y = labelled().tensors
ONE = nn.Linear(6, 1)


def make(tmp_path: Any, model: Any = None, data: Any = (X, Y), **more: Any) -> wb.Workbench:
    usual = {"loss": F.cross_entropy, "root": tmp_path, "accelerator": "cpu", "batch_size": 8}
    return wb.Workbench(plain_net() if model is None else model, train=data, **{**usual, **more})


def refused(*words: str) -> Any:
    """A short error that says all these words."""
    said = "".join(f"(?=.*{re.escape(word)})" for word in words)
    return pytest.raises(TaskError, match=f"(?s){said}(?=.{{1,420}}$)")


# -- no loss


def test_a_forgotten_loss(tmp_path):
    with refused(
        "no loss= was given",
        "Net.forward",
        "all 2 parts of a batch",
        "add loss=F.cross_entropy",
        "return an output with .loss",
    ):
        make(tmp_path, Net(), loss=None)
    with refused("no loss= was given", "add loss="):
        make(tmp_path, Net(), {"x": X, "y": Y}, loss=None)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


class Output(OrderedDict):  # type: ignore[type-arg]
    """As transformers' ModelOutput: a dict whose items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Transformer(Net):
    """It makes its loss of `labels`, where it gets them."""

    def forward(self, input_values: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.layer(input_values)
        return Output(
            loss=None if labels is None else F.cross_entropy(logits, labels), logits=logits
        )


class Lenient(Transformer):
    def forward(self, input_values: Tensor, labels: Tensor | None = None, **others: Any) -> Any:
        return super().forward(input_values, labels)


def test_label_in_the_place_of_labels(tmp_path):
    make(tmp_path, Transformer(), {"input_values": X, "labels": Y}, loss=None)
    with refused(
        "Transformer.forward takes 'labels', and the batch has 'label'",
        "dataset.rename_column('label', 'labels')",
    ):
        make(tmp_path, Transformer(), {"input_values": X, "label": Y}, loss=None)
    with refused("Lenient.forward makes one of 'labels', which the batch calls 'label'", "rename"):
        make(tmp_path, Lenient(), {"input_values": X, "label": Y}, loss=None)


# -- what is no loss


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.MSELoss])
def test_the_class_of_a_loss(loss, tmp_path):
    with refused(
        f"loss=nn.{loss.__name__} is a class: give an instance, loss=nn.{loss.__name__}()"
    ):
        make(tmp_path, loss=loss)


@dataclass
class Plain:
    logits: Tensor


class WithPlain(Net):
    def forward(self, x: Tensor) -> Any:
        return Plain(self.layer(x))


class Segmentation(Net):
    def forward(self, x: Tensor) -> Any:
        return {"out": self.layer(x), "aux": x}


def test_an_output_that_is_no_tensor(tmp_path):
    with refused(
        "the model returned a Output, and the loss takes a tensor",
        "loss=lambda output, y: F.cross_entropy(output.logits, y)",
    ):
        make(tmp_path, Transformer())
    with refused("the model returned a Plain", "your_loss(output.logits, y)"):
        make(tmp_path, WithPlain(), loss=nn.CrossEntropyLoss())
    with refused("the model returned a dict with out, aux", "F.cross_entropy(output['out'], y)"):
        make(tmp_path, Segmentation())
    make(tmp_path, Transformer(), loss=lambda output, y: F.cross_entropy(output.logits, y))


# -- labels


LABELS = {
    "y.long())": Y.float(),
    "float64 of shape (2,)": Y.double(),
    "int32 of shape (2,)": Y.int(),
    "y.squeeze(1))": Y[:, None],
    "y.squeeze(1).long())": Y[:, None].float(),
}


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda o, y: F.nll_loss(o.log_softmax(1), y),
    ],
)
@pytest.mark.parametrize("words", LABELS)
def test_labels_of_another_kind(words, loss, tmp_path):
    with refused(
        "the labels are",
        "this loss takes class numbers, int64 of shape (2,): loss=lambda output, y: ",
        words,
    ):
        make(tmp_path, data=(X, LABELS[words]), loss=loss)


def test_probabilities_are_labels_too(tmp_path):
    make(tmp_path, data=(X, F.one_hot(Y, 3).float()))


def test_integers_for_a_loss_of_numbers(tmp_path):
    with refused("the target is int64", "F.binary_cross_entropy_with_logits(output, y.float())"):
        make(tmp_path, ONE, (X, (Y > 0).long()[:, None]), loss=F.binary_cross_entropy_with_logits)
    with refused(
        "the output of shape (2, 1) with the target of shape (2,)", "output.squeeze(-1), y)"
    ):
        make(tmp_path, ONE, (X, (Y > 0).float()), loss=F.binary_cross_entropy_with_logits)


def test_a_single_class(tmp_path):
    with refused(
        "one class, whose cross entropy is always 0", "F.binary_cross_entropy_with_logits"
    ):
        make(tmp_path, ONE, (X, Y * 0))
    with refused("one class"):
        make(tmp_path, ONE, (X, Y[:, None].float()))


# -- shapes that are broadcast


NUMBERS = X[:, 0].contiguous()
SILENT = {
    "a difference": lambda output, y: ((output - y) ** 2).mean(),
    "the other way round": lambda output, y: (y - output).abs().mean(),
    "behind a function": lambda output, y: (torch.sigmoid(output) - y.float() * 2).pow(2).mean(),
    "a method": lambda output, y: output.sub(y).square().mean(),
    "a logarithm": lambda output, y: -(y * F.logsigmoid(output)).mean(),
    "torch's own, which warns of nothing": F.poisson_nll_loss,
    "torch's own, which warns": nn.SmoothL1Loss(),
    "where": lambda output, y: torch.where(y > 0, output, -output).mean() + (output - y).mean(),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_loss_that_compares_each_sample_with_every_other(name, tmp_path):
    words = (
        "the loss compares the output of shape (2, 1) with the target of shape (2,)",
        "broadcast to (2, 2)",
        "output.squeeze(-1), y)",
    )
    with refused(*words):
        make(tmp_path, ONE, (X, NUMBERS), loss=SILENT[name])
    make(tmp_path, ONE, (X, NUMBERS[:, None]), loss=SILENT[name])
    with refused(
        "the output of shape (2,) with the target of shape (2, 1)", "output, y.squeeze(-1))"
    ):
        make(tmp_path, nn.Sequential(ONE, nn.Flatten(0)), (X, NUMBERS[:, None]), loss=SILENT[name])


def cox(output: Tensor, y: Tensor) -> Tensor:
    later = (y[None, :] >= y[:, None]).float()
    return (torch.logsumexp(output.T + later.log(), 1) - output.squeeze(1)).mean()


PAIRS = {
    "each with every other, on purpose": lambda output, y: (
        ((output - output.T) - (y[:, None] - y)).pow(2).mean()
    ),
    "a partial likelihood": cox,
    "weights by sample": lambda output, y: (output.squeeze(1) * y).mean(),
    "one number for all": lambda output, y: (output - y.mean()).pow(2).mean(),
    "matrices": lambda output, y: (y @ output).pow(2).mean(),
    "a dimension put in": lambda output, y: (output.squeeze(1)[:, None] - y).pow(2).mean(),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_that_are_meant(name, tmp_path):
    make(tmp_path, ONE, (X, NUMBERS), loss=PAIRS[name])


def test_a_metric_that_compares_each_sample_with_every_other(tmp_path):
    good = {"loss": lambda output, y: F.mse_loss(output.squeeze(1), y), "val": (X, NUMBERS)}
    with refused(
        "metrics['mae'] compares the output of shape (2, 1) with the target of shape (2,)",
        "broadcast to (2, 2)",
        "output.squeeze(-1)",
    ):
        make(
            tmp_path,
            ONE,
            (X, NUMBERS),
            metrics={"mae": lambda output, y: (output - y).abs().mean()},
            **good,
        )
    make(
        tmp_path,
        ONE,
        (X, NUMBERS),
        metrics={"mae": lambda output, y: (output.squeeze(1) - y).abs().mean()},
        **good,
    )


# -- names of metrics


@pytest.mark.parametrize("metrics", [
    {"loss": lambda output, y: 0.5},
    {"loss": wb.over_epoch(lambda output, y: 0.5)},
    {"loss_averaged": lambda output, y: 0.5},
    {"own": lambda output, y: {"loss": 0.5}},
    {"own": wb.over_epoch(lambda output, y: {"val_loss": 0.5})},
])  # fmt: skip
def test_a_metric_in_the_place_of_the_loss(metrics, tmp_path):
    with refused(
        "metrics[", "would be reported as val_loss in place of the loss itself", "another name"
    ):
        make(tmp_path, val=(X, Y), metrics=metrics)


@pytest.mark.parametrize(
    "first",
    [lambda output, y: {"b": 0.5}, wb.over_epoch(lambda output, y: {"b": 0.5})],
    ids=["by batch", "over a validation"],
)
@pytest.mark.parametrize(
    "second",
    [lambda output, y: 0.1, wb.over_epoch(lambda output, y: 0.1)],
    ids=["by batch", "over a validation"],
)
def test_two_metrics_of_one_name(first, second, tmp_path):
    with refused("metrics", "reported as 'val_b'", "rename one of them"):
        make(tmp_path, val=(X, Y), metrics={"a": first, "b": second})


# -- models


def test_weights_on_the_meta_device(tmp_path):
    with torch.device("meta"):
        model = plain_net()
    with refused("model: '", "is on the meta device", "model.to_empty(device='cpu')"):
        make(tmp_path, model)
    with refused("'1.weight' (and 1 more)"):
        make(tmp_path, nn.Sequential(plain_net(), nn.Linear(3, 3, device="meta")))


def test_several_models(tmp_path):
    for models in ([plain_net(), plain_net()], (plain_net(),), {"a": plain_net()}):
        with refused(
            f"model is a {type(models).__name__} of {len(models)}, and one nn.Module is needed",
            "nn.ModuleList",
        ):
            make(tmp_path, models)


def test_torchscript(tmp_path):
    with (
        refused(
            "model is TorchScript",
            "give the nn.Module that it was made of",
            "torch.jit.script(bench.model)",
        ),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        make(tmp_path, torch.jit.script(plain_net()))
    with refused("model.1 is TorchScript"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(
            tmp_path,
            nn.Sequential(plain_net(), torch.jit.trace(nn.Linear(3, 3), torch.zeros(1, 3))),
        )


def test_parameters_that_only_a_function_has(tmp_path):
    centres = nn.Parameter(torch.randn(3, 3))

    def loss(output: Tensor, y: Tensor, scale: float) -> Tensor:
        return F.cross_entropy(scale * output @ centres, y)

    with pytest.warns(
        UserWarning,
        match=r"depends on 1 parameter \(of shape \(3, 3\)\) that no optimizer .*give the nn.Module",
    ):
        make(tmp_path, Net(), loss=functools.partial(loss, scale=2.0))
    centres.requires_grad_(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(tmp_path, Net(), loss=functools.partial(loss, scale=2.0))


# -- optimizers


def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr)


def test_an_optimizer_of_another_model(tmp_path):
    old = plain_net()
    for dry_run in (True, False):
        with refused(
            "the SGD has 4 parameters (of shape ",
            "none of which belongs to the model",
            "optimizer=lambda params, lr: ",
        ):
            make(tmp_path, optimizer=lambda params, lr: sgd(old.parameters(), lr), dry_run=dry_run)


def test_an_optimizer_that_adds_a_parameter(tmp_path):
    scale = nn.Parameter(torch.ones(3))
    with refused(
        "the SGD has 1 parameter (of shape (3,)) that belongs to no module",
        "make it part of the model",
    ):
        make(tmp_path, optimizer=lambda params, lr: sgd([*params, scale], lr))
    model = plain_net()
    model.scale = scale
    make(tmp_path, model, optimizer=lambda params, lr: sgd(list(params), lr))


def test_parameters_that_the_optimizer_leaves_out(tmp_path):
    with pytest.warns(
        UserWarning,
        match=r"^3 parameters \(.*\) get gradients and are in no optimizer.*requires_grad_\(False\)",
    ):
        make(tmp_path, optimizer=lambda params, lr: sgd(params[:1], lr))
    with pytest.warns(
        UserWarning, match="^the parameter '.*' gets a gradient and is in no optimizer"
    ):
        make(tmp_path, optimizer=lambda params, lr: sgd(params[1:], lr))


def frozen(model: nn.Module) -> nn.Module:
    for parameter in [*model.parameters()][:2]:
        parameter.requires_grad_(False)
    return model


class WithinNoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.body(x)
        return self.head(x)


def test_optimizers_of_parts_of_the_model(tmp_path):
    """Frozen parts, groups made from the model itself, and parts whose outputs are taken without gradients."""
    model, tuned = frozen(plain_net()), WithinNoGrad()
    *body, weight, bias = model.parameters()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make(tmp_path, model)
        make(
            tmp_path,
            model,
            optimizer=lambda params, lr: sgd(
                [{"params": [weight]}, {"params": [bias], "lr": lr / 10}], lr
            ),
        )
        make(tmp_path, model, optimizer=lambda params, lr: sgd([*body, weight, bias], lr))
        make(tmp_path, tuned, optimizer=lambda params, lr: sgd(tuned.head.parameters(), lr))


def test_a_function_that_gives_one_optimizer_to_all_runs(tmp_path):
    model = plain_net()
    made = torch.optim.Adam(model.parameters())
    with refused(
        "returned the same Adam twice, and each run needs a new one",
        "optimizer=lambda params, lr: ",
    ):
        make(tmp_path, model, optimizer=lambda params, lr: made)


def test_a_function_that_takes_no_parameters(tmp_path):
    for optimizer in (lambda: None, lambda *, lr: None):
        with refused("takes no parameters to train: it is called as optimizer(params, lr=…)"):
            make(tmp_path, optimizer=optimizer)


class Hollow(torch.optim.Optimizer):
    """It wraps another without being made as one, as some libraries do."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.defaults, self.state = (
            inner,
            inner.param_groups,
            inner.defaults,
            inner.state,
        )

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_without_a_state(tmp_path):
    with refused(
        "the state of the Hollow cannot be stored",
        "AttributeError",
        "has to call torch.optim.Optimizer.__init__",
    ):
        make(tmp_path, optimizer=lambda params, lr: Hollow(sgd(params, lr)))


class Sharpness(torch.optim.SGD):
    """As sharpness-aware minimisation has it: a second gradient at weights that are moved along the first."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        if closure is None:
            raise RuntimeError("missing closure")
        parameters = [p for group in self.param_groups for p in group["params"]]
        moves = [0.05 * p.grad for p in parameters if p.grad is not None]
        torch._foreach_add_(parameters, moves)
        with torch.enable_grad():
            closure()
        torch._foreach_sub_(parameters, moves)
        return super().step()


class Asking(Sharpness):
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        closure()
        return super().step(closure)


class Hidden(torch.optim.SGD):
    """It wants a closure, which its signature and the first lines of its step do not say."""

    def step(self, closure: Any = None) -> Any:
        if len(self.param_groups) and closure is None:
            raise RuntimeError("a closure, please")
        return super().step(closure)


class SecondOrder(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        torch.autograd.grad(
            [p.grad for p in parameters], parameters, [torch.ones_like(p) for p in parameters]
        )  # type: ignore[misc]
        return super().step(closure)


@pytest.mark.parametrize(("kind", "words"), [
    (Hidden, ("Hidden.step() asks for a closure", "super().step(closure)")),
    (SecondOrder, ("SecondOrder.step() differentiates the gradients again", "Take another optimizer")),
])  # fmt: skip
def test_a_step_that_needs_more_than_gradients(kind, words, tmp_path):
    job = make(tmp_path, optimizer=lambda params, lr: kind(params, lr=lr), max_epochs=1).fit()
    with pytest.raises(RuntimeError) as caught:
        job.result()
    told = " ".join(caught.value.__notes__)
    assert all(word in told for word in words), told


def test_the_remedy_for_a_step_that_asks_for_a_closure(tmp_path):
    model, twin = plain_net(), plain_net()
    losses = (
        make(
            tmp_path,
            model,
            optimizer=lambda params, lr: Asking(params, lr=lr),
            lr=0.1,
            max_epochs=2,
            shuffle=False,
        )
        .fit()
        .result()
        .history["loss"]
    )
    plain, expected = Sharpness(twin.parameters(), lr=0.1), []
    for x, y in zip(X.split(8) * 2, Y.split(8) * 2, strict=True):

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            plain.zero_grad()
            loss = F.cross_entropy(twin(x), y)
            loss.backward()
            return loss

        expected.append(closure().item())
        plain.step(closure)
    assert torch.equal(torch.tensor(losses).float(), torch.tensor(expected).float())


# -- the first samples


def test_labels_that_are_all_ignored(tmp_path):
    some = torch.cat([torch.full((2,), -100), Y[2:]])
    with refused(
        "the loss of the first 2 samples is nan",
        "All labels of these samples are -100 (element 1)",
        "dry_run=False",
    ):
        make(tmp_path, data=(X, some))
    run = make(tmp_path, data=(X, some), dry_run=False, max_epochs=1, shuffle=False).fit().result()
    assert run.status == "finished"


class Forces(nn.Module):
    def __init__(self, enable: bool) -> None:
        super().__init__()
        self.layer, self.enable = nn.Linear(6, 1), enable

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.enable or torch.is_grad_enabled()):
            x = x.clone().requires_grad_()
            return torch.autograd.grad(self.layer(x).tanh().sum(), x, create_graph=True)[0]


def test_a_model_that_takes_gradients_in_a_check(tmp_path):
    with refused(
        "on a batch of val", "Validations run under torch.no_grad()", "`with torch.enable_grad():`"
    ):
        make(tmp_path, Forces(False), (X, X), loss=F.mse_loss, val=(X, X))
    make(tmp_path, Forces(True), (X, X), loss=F.mse_loss, val=(X, X))


@pytest.mark.parametrize(
    ("model", "labels", "said"),
    [
        (
            plain_net(),
            torch.tensor([0, 1, 2, 0, 1, 2, 3, 0, 1]),
            "The label 3 is not below the number of the model's outputs",
        ),
        (
            nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
            torch.arange(9) % 3,
            "drop_last=True leaves out a short last batch",
        ),
    ],
    ids=["labels", "batch of one"],
)
def test_what_goes_wrong_at_a_later_batch_has_its_remedy_too(model, labels, said, tmp_path):
    """The first two samples, which the workbench tries, are right."""
    data = torch.randn(9, 6), labels
    with make(tmp_path, model, data, val=data, batch_size=4, shuffle=False, max_epochs=1) as bench:
        bench.set(drop_last=False)
        for job in (bench.fit, lambda: bench.find_lr(num_training=6, max_lr=0.1)):
            with pytest.raises((IndexError, ValueError)) as caught:
                job().result()
            assert said in str(caught.value)


def test_a_label_that_a_validation_meets_has_its_remedy(tmp_path):
    x, labels = torch.randn(9, 6), torch.tensor([0, 1, 2, 0, 1, 2, 3, 0, 1])
    with make(
        tmp_path, plain_net(), (x, labels.clamp(max=2)), val=(x, labels), batch_size=4
    ) as bench:
        for job in (bench.validate, lambda: bench.fit(num_sanity_val_steps=0, max_epochs=1)):
            with pytest.raises(IndexError) as caught:
                job().result()
            assert "The label 3 is not below the number of the model's" in str(caught.value)
            assert caught.value.__notes__[-1] == (
                "in batch 1 of the validation data, on 0: (4, 6) float32, 1: (4,) int64"
            )


class FailsAtOne(nn.Module):
    """Raises the error for a batch of one sample."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.line, self.error = nn.Linear(6, 3), error

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            raise self.error
        return self.line(x)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_running_out_of_memory_has_its_remedy(error, tmp_path):
    x, y = torch.randn(9, 6), torch.arange(9) % 3
    with make(
        tmp_path, FailsAtOne(error), (x, y), val=(x, y), batch_size=4, shuffle=False, max_epochs=1
    ) as bench:
        for job in (bench.fit, bench.validate):
            with pytest.raises(RuntimeError) as caught:
                job().result()
            assert (
                "Memory ran out at batch_size=4: take a smaller one (find_batch_size()"
                in caught.value.__notes__[-1]
            )


def test_running_out_of_memory_on_batches_of_the_data(tmp_path):
    """batch_size says nothing of them."""
    batches = [(torch.randn(n, 6), torch.arange(n) % 3) for n in (4, 4, 1)]
    error = torch.OutOfMemoryError("CUDA out of memory.")
    options = {"loss": F.cross_entropy, "root": tmp_path, "accelerator": "cpu", "max_epochs": 1}
    job = wb.Workbench(FailsAtOne(error), train=wb.batches(batches), **options).fit()
    with pytest.raises(RuntimeError) as caught:
        job.result()
    assert "on a batch that the data make themselves" in caught.value.__notes__[-1]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("double free"), ValueError("keys must be doubled"), TaskError("a list of bytes"), KeyError("size mismatch in cache"),
        ValueError("expected input from camera"), IndexError("target index out of bounds of my table"),
        RuntimeError("mat1 and mat2 must have the same dtype, but got Half and Float"),
    ],
)  # fmt: skip
def test_an_error_of_the_users_own_gets_no_remedy_of_ours(error, tmp_path):
    """One that only sounds like torch's."""
    with make(
        tmp_path,
        FailsAtOne(error),
        (torch.randn(9, 6), torch.arange(9) % 3),
        batch_size=4,
        shuffle=False,
        max_epochs=1,
    ) as bench:
        with pytest.raises(type(error)) as caught:
            bench.fit().result()
        assert [note for note in caught.value.__notes__ if not note.startswith("at update")] == []


def test_classes_in_the_last_dimension(tmp_path):
    class Tags(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.line(x[..., None])

    with refused("(2, 6, 3) with the target of shape (2, 6)", "output.transpose(1, 2), y)"):
        make(tmp_path, Tags(), (torch.randn(9, 6), torch.randint(0, 3, (9, 6))))


def test_a_model_that_takes_a_dict_as_one_argument(tmp_path):
    class Whole(nn.Linear):
        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return super().forward(batch["x"] + batch["z"])

    data = {"x": torch.randn(9, 6), "z": torch.randn(9, 6), "y": torch.arange(9) % 3}
    with refused("by its names (x, z)", "an object whose training_step"):
        make(tmp_path, Whole(6, 3), data)
