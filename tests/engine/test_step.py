"""A task with hooks within an update: it gives the numbers of a task without hooks, in Lightning's order."""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import workbench as wb
from tests.engine.problems import labelled, noisy_net, plain_net, same_weights, sgd
from workbench.engine.session import Session
from workbench.events import StepsDone
from workbench.task.data.spec import DataSpec
from workbench.task.hooks import Hooks
from workbench.task.protocol import Optimization, Schedule, Scores

pytestmark = pytest.mark.usefixtures("one_thread")


class Told(Hooks):
    """Writes down what it hears; `says` answers in its place."""

    within = True

    def __init__(self, **says):
        self.heard, self.says = [], says

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if (
            name.startswith("_")
            or name in ("heard", "says", "logged", "forget", "state")
            or not callable(found)
        ):
            return found
        if name == "clipper":
            return found

        def told(*arguments):
            self.heard.append(
                (
                    name,
                    *(
                        a
                        for a in arguments
                        if isinstance(a, (int, str)) and not isinstance(a, bool)
                    ),
                )
            )
            return self.says[name](self, *arguments) if name in self.says else found(*arguments)

        return told


class Learner(wb.Task):
    def __init__(self, net, data, hooks=None, optimizer=sgd, schedule=None):
        self.model, self.hooks, self._make, self._schedule = net, hooks, optimizer, schedule
        self.train = DataSpec.of("train", data)
        self.val = DataSpec.of("val", data)

    def weight(self, batch):
        return float(len(batch[1]))

    def training_step(self, batch, batch_idx, **extra):
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def validation_step(self, batch, batch_idx, stage="val"):
        return Scores({"val_loss": F.cross_entropy(self.model(batch[0]), batch[1])}, len(batch[1]))

    def configure(self, settings, updates):
        optimizer = self._make(self.model.parameters(), lr=settings.lr)
        made = [] if self._schedule is None else [self._schedule(optimizer)]
        return Optimization(optimizer, tuple(made))


def fitted(root, net, hooks, data=None, **options):
    makers = {name: options.pop(name) for name in ("optimizer", "schedule") if name in options}
    task = Learner(net, labelled() if data is None else data, hooks, **makers)
    with wb.Workbench(
        task, root=root, batch_size=8, lr=0.05, max_epochs=2, accelerator="cpu", **options
    ) as bench:
        if hooks is not None:
            hooks.heard.clear()
        return bench.fit().result()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate_grad_batches": 3},
        {"accumulate_grad_batches": 3, "gradient_clip_val": 0.3},
        {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"},
        {"optimizer": functools.partial(torch.optim.LBFGS, max_iter=3)},
        {"weight_averaging": "ema", "ema_decay": 0.9},
        {"lr_schedule": "cosine", "warmup": 3},
        {"on_nonfinite": "skip", "precision": "bf16-mixed"},
        {"schedule": lambda o: Schedule(torch.optim.lr_scheduler.StepLR(o, 1), "epoch")},
    ],
)
def test_the_long_way_gives_the_same_bits(options, tmp_path):
    short, long = noisy_net(), noisy_net()
    if isinstance(options.get("optimizer"), functools.partial):
        short, long = plain_net(), plain_net()
    one = fitted(tmp_path / "one", short, None, **options)
    two = fitted(tmp_path / "two", long, Told(), **options)
    assert one.history.keys() == two.history.keys()
    for name, column in one.history.items():
        np.testing.assert_array_equal(column, two.history[name], err_msg=name)
    np.testing.assert_array_equal(one.validation["val_loss"], two.validation["val_loss"])
    assert same_weights(short, long)


def test_the_order_of_one_epoch_of_two_updates(tmp_path):
    hooks = Told()
    fitted(
        tmp_path, plain_net(), hooks, labelled(24), accumulate_grad_batches=2, num_sanity_val_steps=1, max_steps=2,
        schedule=lambda o: Schedule(torch.optim.lr_scheduler.StepLR(o, 1), "epoch"), limit_val_batches=1,
    )  # fmt: skip
    check = [
        ("evaluation_mode", "val"), ("evaluation_started", "val"), ("evaluation_batch_started", "val", 0),
        ("evaluation_batch_ended", "val", 0), ("evaluation_ended", "val"), ("training_mode", "val"), ("evaluated", "val"),
    ]  # fmt: skip
    heard = [entry for entry in hooks.heard if entry[0] not in ("transfer", "step_schedule")]
    assert heard == [
        ("fit_started",), ("sanity_started",), *check, ("sanity_ended",), ("train_started",), ("epoch_started",),
        ("batch_started", 0), ("zero_grad", 0, 0), ("backward",), ("after_backward",), ("batch_ended", 0),
        ("batch_started", 1), ("step", 0, 1), ("backward",), ("after_backward",), ("before_step", 0), ("batch_ended", 1),
        ("batch_started", 2), ("step", 0, 2), ("zero_grad", 0, 2), ("backward",), ("after_backward",), ("before_step", 0),
        ("batch_ended", 2),
        ("validation_begins",), *check, ("epoch_ended",), ("epoch_logged",), ("train_ended",), ("fit_ended",),
    ]  # fmt: skip
    names = [entry[0] for entry in hooks.heard]
    # The epoch's schedule steps with its last batch, before that batch's end.
    assert names.count("step_schedule") == 1
    assert (
        names.index("step_schedule")
        == max(n for n, name in enumerate(names) if name == "batch_ended") - 1
    )


@pytest.mark.parametrize("at", [1, 2, 3])
def test_the_rest_of_an_epoch_is_left_out_and_the_epoch_validated(at, tmp_path):
    hooks = Told(batch_started=lambda self, batch, idx: idx < at)
    net = plain_net()
    run = fitted(tmp_path, net, hooks, labelled(48), accumulate_grad_batches=2, shuffle=False)
    assert run.step == 2 * -(-at // 2)
    assert run.validation["step"].tolist() == [run.step // 2, run.step]
    other = plain_net()
    fitted(
        tmp_path / "o",
        other,
        None,
        labelled(48),
        accumulate_grad_batches=2,
        shuffle=False,
        limit_train_batches=at,
    )
    # the shorter window is divided by its true length
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_step_that_the_task_does_not_take_changes_nothing_and_is_an_update(tmp_path):
    def step(self, index, batch_idx, closure, take):
        if batch_idx % 2 == 0:
            take(closure)
        else:
            closure()

    net = plain_net()
    run = fitted(tmp_path, net, Told(step=step), labelled(32), shuffle=False)
    assert run.step == 8
    assert np.isfinite(run.history["loss"]).all()
    assert np.isfinite(run.history["grad_norm"]).tolist() == [True, False] * 4


def test_a_task_clips_its_own_way_and_what_came_of_it_is_recorded(tmp_path):
    def clip(self, index, clip_val, algorithm):
        assert (clip_val, algorithm) == (0.4, "norm")
        self.clipper(index, clip_val / 2, algorithm)

    hooks = Told(clip=clip)
    hooks.clips = True
    mine, plain = plain_net(), plain_net()
    run = fitted(tmp_path / "1", mine, hooks, gradient_clip_val=0.4)
    other = fitted(tmp_path / "2", plain, None, gradient_clip_val=0.2)
    np.testing.assert_array_equal(run.history["loss"], other.history["loss"])
    np.testing.assert_allclose(
        run.history["grad_norm_clipped"], other.history["grad_norm_clipped"], rtol=1e-5
    )


def test_a_closure_that_is_asked_twice_evaluates_twice(tmp_path):
    class Counting(Learner):
        steps = 0

        def training_step(self, batch, batch_idx, **extra):
            self.steps += 1
            return super().training_step(batch, batch_idx)

    def step(self, index, batch_idx, closure, take):
        closure()
        take(closure)

    task = Counting(plain_net(), labelled(16), Told(step=step))
    with wb.Workbench(
        task, root=tmp_path, batch_size=8, lr=0.05, max_epochs=1, accelerator="cpu"
    ) as bench:
        task.steps = 0
        run = bench.fit().result()
    assert (run.step, task.steps) == (2, 4)


def test_a_task_may_ask_for_the_end_which_waits_for_the_minimums(tmp_path):
    class Asking(Told):
        stop_requested = property(lambda self: sum(e[0] == "batch_ended" for e in self.heard) >= 2)

    assert fitted(tmp_path / "a", plain_net(), Asking(), min_steps=None).step == 2
    run = fitted(tmp_path / "b", plain_net(), Asking(), min_steps=5)
    assert run.step == 5
    assert run.validation["step"].tolist() == [5]
    assert any("should_stop" in getattr(event, "text", "") for event in run.events)


def test_logged_values_are_columns_of_the_record(tmp_path):
    class Logging(Told):
        on_bar = frozenset({"share"})

        def __init__(self):
            super().__init__()
            self.count = 0

        def logged(self):
            self.count += 1
            return {"share": torch.tensor(self.count / 2)} if self.count % 2 == 0 else {}

        def epoch_logged(self):
            return {"epoch_share": torch.tensor(0.25)}

    hooks = Logging()
    task = Learner(plain_net(), labelled(32), hooks)
    with wb.Workbench(
        task, root=tmp_path, batch_size=8, lr=0.05, max_epochs=1, accelerator="cpu"
    ) as bench:
        hooks.count = 0
        run = bench.fit().result()
    np.testing.assert_array_equal(
        run.history["share"], np.array([np.nan, 1.0, np.nan, 2.0], np.float32)
    )
    logged = [event for event in run.events if type(event).__name__ == "Logged"]
    assert [event.metrics for event in logged] == [{"epoch_share": 0.25}]
    assert any(
        event.prog_bar == ("share",) for event in run.events if type(event).__name__ == "StepsDone"
    )


def test_a_failing_fit_is_told_and_the_error_stays(tmp_path):
    def failed(self, error):
        raise RuntimeError("I fail as well")

    with pytest.raises(ZeroDivisionError) as caught:
        fitted(
            tmp_path,
            plain_net(),
            Told(failed=failed, batch_ended=lambda self, result, batch, idx: 1 / (idx < 2)),
        )
    assert any("I fail as well" in note for note in caught.value.__notes__)


def test_a_window_that_is_evaluated_again_has_ended_once(tmp_path):
    def step(self, index, batch_idx, closure, take):
        closure()
        take(closure)

    for says, make in (
        ({}, functools.partial(torch.optim.LBFGS, max_iter=3)),
        ({"step": step}, sgd),
    ):
        hooks = Told(**says)
        fitted(
            tmp_path, plain_net(), hooks, labelled(24), accumulate_grad_batches=2, optimizer=make
        )
        heard = [entry for entry in hooks.heard if entry[0] in ("batch_started", "batch_ended")]
        assert heard == 2 * [
            (name, n) for n in range(3) for name in ("batch_started", "batch_ended")
        ]


def warming(groups, rate):
    """A warm-up by hand."""
    for group in groups:
        group["lr"] = rate


def test_a_search_keeps_its_rates_where_the_task_sets_its_own(tmp_path):
    def step(self, index, batch_idx, closure, take):
        warming(self.task.optimizer.param_groups, 1e-3)
        take(closure)

    class Known(Learner):
        def configure(self, settings, updates):
            made = super().configure(settings, updates)
            self.optimizer = made.optimizer
            return made

    class ByHand(Known):
        manual = True

        def drive(self, handle):
            self.handle = handle

        def training_step(self, batch, batch_idx, **extra):
            loss = super().training_step(batch, batch_idx)
            self.handle.backward(loss)
            warming(self.optimizer.param_groups, 1e-3)
            self.handle.step()
            return loss

    def bench(kind, hooks=None):
        task = kind(plain_net(), labelled(), hooks)
        if hooks is not None:
            hooks.task = task
        return wb.Workbench(
            task, root=tmp_path, batch_size=8, lr=0.05, accelerator="cpu", shuffle=False
        )

    kinds = [(Learner, None), (Known, Told(step=step)), (ByHand, None)]
    plain, told, by_hand = [bench(*kind).find_lr(num_training=20).result() for kind in kinds]
    for found in (told, by_hand):
        np.testing.assert_array_equal(found.losses, plain.losses)
        assert found.suggestion == plain.suggestion
    # In a fit they are the task's.
    slow = bench(Learner).fit(max_steps=6, lr=1e-3).result()
    for kind, hooks in ((Known, Told(step=step)), (ByHand, None)):
        np.testing.assert_array_equal(
            bench(kind, hooks).fit(max_steps=6).result().history["loss"], slow.history["loss"]
        )


class Returns(torch.nn.Module):
    """A module with a step of its own, whose results are of many kinds; its dropout draws."""

    def __init__(self, kind):
        super().__init__()
        self.net, self.kind, self.calls = noisy_net(), kind, 0

    def training_step(self, batch, batch_idx):
        self.calls += 1
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        if self.kind == "left out" and batch_idx % 3 == 1:
            return None
        if self.kind == "not finite" and self.calls % 4 == 3:
            return loss * float("nan")
        return (
            {"loss": loss, "weight": torch.tensor(7.0), "part": loss * 2}
            if self.kind == "weighted"
            else loss.reshape(1)
        )

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("plain", {"precision": "bf16-mixed", "weight_averaging": "ema"}),
        ("plain", {"accumulate_grad_batches": {0: 1, 1: 3}, "lr_schedule": "cosine"}),
        ("weighted", {"track_update_ratio": True}),
        ("left out", {"gradient_clip_val": 0.5}),
        ("not finite", {"on_nonfinite": "skip", "gradient_clip_val": 0.5}),
    ],
    ids=str,
)
def test_an_update_of_one_batch_is_that_of_a_window(kind, settings, tmp_path, monkeypatch):
    """`UpdatePlan.direct` on and off: the same record, weights and curve."""

    def results(folder):
        torch.manual_seed(0)
        model = Returns(kind)
        data = torch.utils.data.DataLoader(labelled(), 8, shuffle=True)
        with wb.Workbench(
            model,
            train=data,
            root=tmp_path / folder,
            seed=3,
            accelerator="cpu",
            max_epochs=2,
            dry_run=False,
            **settings,
        ) as bench:
            runs = bench.fit().result(), bench.fit(start="continue", max_epochs=3).result()
            curve = bench.find_lr(num_training=10).result()
        layers = [
            event.array("layer_norms")
            for run in runs
            for event in run.events
            if isinstance(event, StepsDone)
        ]
        columns = {
            name: np.concatenate([run.history[name] for run in runs]) for name in runs[0].history
        }
        weights = [p.detach().numpy() for p in model.parameters()]
        return {
            **columns,
            "layers": np.concatenate(layers),
            "curve": np.asarray(curve.losses),
            **dict(enumerate(weights)),
        }

    direct = results("direct")
    monkeypatch.setattr(Session, "_direct", lambda self: False)
    general = results("general")
    assert direct.keys() == general.keys()
    for name, values in direct.items():
        np.testing.assert_array_equal(values, general[name], err_msg=str(name))
