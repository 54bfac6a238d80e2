"""Checkpoints of Lightning in both directions: what one side trained, the other continues, with the same losses to the last bit."""

import copy
import functools
import re
import warnings
import zipfile

import lightning as pl
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import workbench as wb
from workbench.engine.checkpoint.files import read_weights
from workbench.events import Message

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Net(pl.LightningModule):
    """Notes the loss of each training batch."""

    def __init__(self, kind="adam", lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        if self.trainer.training and not self.trainer.sanity_checking:
            self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        lr = self.hparams.lr
        if self.hparams.kind == "sgd":
            return torch.optim.SGD(self.parameters(), lr=lr)
        if self.hparams.kind == "plain_adam":
            return torch.optim.Adam(self.parameters(), lr=lr)
        if self.hparams.kind == "adam":
            optimizer = torch.optim.Adam(self.parameters(), lr=lr)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {
                    "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
                    "interval": "step",
                },
            }
        optimizer = torch.optim.SGD(self.parameters(), lr=lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class ByHand(Net):
    """Two optimizers, which the module steps itself."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            loss = super().training_step(batch, batch_idx)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.net[0].parameters(), lr=0.1),
            torch.optim.SGD(self.net[2].parameters(), lr=0.2, momentum=0.9),
        ]


class Counting(Net):
    """Keeps an entry of its own in the checkpoint."""

    seen = None

    def on_save_checkpoint(self, checkpoint):
        checkpoint["own"] = {"count": 7}

    def on_load_checkpoint(self, checkpoint):
        self.seen = checkpoint["own"]["count"]


def loader(size=8):
    torch.manual_seed(0)
    return DataLoader(
        TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,))), batch_size=size
    )


def trainer(folder, epochs, *callbacks):
    return pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        callbacks=list(callbacks), enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks), default_root_dir=folder,
    )  # fmt: skip


def trained(folder, module, epochs, *callbacks, ckpt_path=None):
    """The Trainer after a fit."""
    made = trainer(folder, epochs, *callbacks)
    made.fit(module, loader(), loader(), ckpt_path=ckpt_path)
    return made


def saved(folder, module, epochs=2, *callbacks):
    """The file that a Trainer writes after a fit."""
    path = folder / "saved.ckpt"
    trained(folder, module, epochs, *callbacks).save_checkpoint(path)
    return path


def bench(root, module, **arguments):
    made = wb.Workbench(
        module,
        **{
            "train": loader(),
            "val": loader(),
            "root": root / "runs",
            "accelerator": "cpu",
            "enable_progress_bar": False,
            **arguments,
        },
    )
    getattr(module, "losses", []).clear()  # of the trial
    return made


def fitted(root, module, **settings):
    with bench(root, module) as made:
        return made.fit(**settings).result()


def messages(run, level="warning"):
    return [
        event.text for event in run.events if isinstance(event, Message) and event.level == level
    ]


@functools.cache
def whole(kind):
    """The losses of four epochs in a Trainer."""
    module = kind() if isinstance(kind, type) else Net(kind)
    trained("unused", module, 4)
    return tuple(module.losses)


def rest(kind):
    return list(whole(kind)[len(whole(kind)) // 2 :])


# -- from Lightning


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_a_fit_continues_what_a_trainer_began(tmp_path, kind):
    path = saved(tmp_path, Net(kind))
    module = Net(kind)
    run = fitted(tmp_path, module, start=path, max_epochs=4)
    assert module.losses == rest(kind)
    assert list(run.history["step"]) == list(range(8, 16))
    assert [resumed.run for resumed in run.resumes] == ["saved.ckpt"]
    assert "resumed from saved.ckpt at update 8" in repr(run)
    assert messages(run) == []


@pytest.mark.parametrize(
    "moment", [{"save_on_train_epoch_end": False}, {"save_on_train_epoch_end": True}]
)
def test_files_of_model_checkpoint_continue_after_their_epoch(tmp_path, moment):
    callback = ModelCheckpoint(
        tmp_path, "{epoch}", monitor="val_loss", mode="max", save_top_k=-1, **moment
    )
    trained(tmp_path, Net("momentum"), 3, callback)
    module = Net("momentum")
    run = fitted(tmp_path, module, start=str(tmp_path / "epoch=1.ckpt"), max_epochs=4)
    assert module.losses == rest("momentum")
    assert run.epochs == 4


class Plateau(Net):
    """Its rate falls after each epoch in which the loss is not larger than in the first."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="max", patience=0, factor=0.5
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"},
        }


@pytest.mark.parametrize("at_end", [True, False])
def test_a_plateau_misses_a_metric_where_it_does_in_lightning_and_this_is_said(tmp_path, at_end):
    trained(
        tmp_path,
        Plateau(),
        3,
        ModelCheckpoint(
            tmp_path, "{epoch}", monitor="val_loss", save_top_k=-1, save_on_train_epoch_end=at_end
        ),
    )
    path = tmp_path / "epoch=1.ckpt"
    run = fitted(tmp_path, module := Plateau(), start=path, max_epochs=4)
    if at_end:
        trained(tmp_path, theirs := Plateau(), 4, ckpt_path=path)
        assert module.losses == theirs.losses
        assert "the metric of epoch 1, which ReduceLROnPlateau had not seen" in messages(run)[0]
    else:
        assert module.losses == rest(Plateau)
        assert messages(run) == []


def test_steps_by_hand_continue(tmp_path):
    path = saved(tmp_path, ByHand())
    module = ByHand()
    run = fitted(tmp_path, module, start=path, max_epochs=4)
    assert module.losses == rest(ByHand)
    # an update is one call of training_step, which steps twice
    assert list(run.history["step"]) == list(range(8, 16))


def test_a_run_that_continued_a_file_is_continued_like_any_other(tmp_path):
    path = saved(tmp_path, Net(), 1)
    module = Net()
    with bench(tmp_path, module) as made:
        run = made.fit(start=path, max_epochs=2).result()
        again = made.fit(start=run.id, max_epochs=4).result()
        assert module.losses == list(whole("adam")[4:])
        assert [resumed.run for resumed in again.resumes] == ["saved.ckpt", run.id]
        with pytest.raises(wb.ExportError, match=r"saved\.ckpt.*bench\.load"):
            made.script(again)


def test_the_rate_of_the_file_holds_unless_one_is_given(tmp_path):
    path = saved(tmp_path, Net("sgd"), 1)
    run = fitted(tmp_path, Net("sgd", lr=0.3), start=path, max_epochs=2)
    assert run.settings.lr == 0.1
    assert "lr=0.1 (the bench has lr=0.3)" in messages(run, "info")[0]
    assert fitted(tmp_path, Net("sgd", lr=0.3), start=path, max_epochs=2, lr=0.7).history["lr"][
        -1
    ] == pytest.approx(0.7)


def test_an_optimizer_that_begins_anew_has_the_rate_of_the_bench(tmp_path):
    path = saved(tmp_path, Net("sgd", lr=0.5), 1)
    run = fitted(tmp_path, module := Net("plain_adam", lr=1e-3), start=path, max_epochs=2)
    assert run.settings.lr == 1e-3
    assert list(run.history["lr"]) == pytest.approx([1e-3] * 4)
    assert "which begins anew at lr=1e-3" in messages(run)[0]
    assert messages(run, "info") == []
    with bench(tmp_path, once := Net("plain_adam", lr=1e-3)) as made:
        made.load(path)
        made.fit(max_epochs=1).result()
    assert module.losses == once.losses
    assert list(
        fitted(tmp_path, Net("plain_adam", lr=1e-3), start=path, max_epochs=2, lr=0.02).history[
            "lr"
        ]
    ) == pytest.approx([0.02] * 4)


class Second(ByHand):
    """Its second optimizer is another one; `rates` are those of both at the end of training."""

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.net[0].parameters(), lr=0.01),
            torch.optim.Adam(self.net[2].parameters(), lr=0.02),
        ]

    def on_train_end(self):
        self.rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers()]


@pytest.mark.parametrize(("settings", "rates"), [({}, [0.1, 0.02]), ({"lr": 0.05}, [0.05, 0.1])])
def test_of_several_optimizers_each_has_its_own_rate(tmp_path, settings, rates):
    path = saved(tmp_path, ByHand(), 1)
    run = fitted(tmp_path, module := Second(), start=path, max_epochs=2, **settings)
    assert module.rates == pytest.approx(rates)
    assert run.settings.lr == rates[0]
    assert "optimizer 1 (it lacks betas" in messages(run)[0]


def test_a_rate_that_is_given_is_the_one_that_the_schedule_multiplies(tmp_path):
    path = saved(tmp_path, Net("momentum"), 1)
    run = fitted(tmp_path, Net("momentum"), start=path, max_epochs=2, lr=1e-4)
    assert list(run.history["lr"]) == pytest.approx([5e-5] * 4)
    assert run.settings.lr == 1e-4


@pytest.mark.parametrize(("settings", "at"), [({}, 0.1), ({"lr": 1e-3}, 1e-3)])
def test_a_scheduler_that_begins_anew_multiplies_the_rate_of_the_fit(tmp_path, settings, at):
    path = saved(tmp_path, Net("momentum"), 1)
    file = torch.load(path)
    file["lr_schedulers"].clear()
    torch.save(file, path)
    run = fitted(tmp_path, Net("momentum", lr=0.3), start=path, max_epochs=3, **settings)
    assert list(run.history["lr"]) == pytest.approx([at / 2] * 4 + [at / 4] * 4)


def test_a_schedule_of_the_bench_continues_at_the_update_of_the_file(tmp_path):
    path = saved(tmp_path, Net("sgd"))
    run = fitted(tmp_path, Net("sgd"), start=path, max_epochs=4, lr_schedule="linear")
    once = fitted(tmp_path, Net("sgd"), max_epochs=4, lr_schedule="linear")
    assert list(run.history["lr"]) == list(once.history["lr"][8:])


def test_what_does_not_fit_is_named_at_once(tmp_path):
    path = saved(tmp_path, Counting("momentum"), 2, EarlyStopping("val_loss"))
    run = fitted(tmp_path, Net("adam"), start=path, max_epochs=3)
    (text,) = messages(run)
    assert "the optimizer (it lacks betas" in text
    assert "begins anew" in text
    assert "callbacks (EarlyStopping)" in text
    assert "entries own" in text


@pytest.mark.parametrize(("change", "told"), [
    (lambda file: file["optimizer_states"].append(file["optimizer_states"][0]), "its 2 optimizers (here there are 1"),
    (lambda file: file["lr_schedulers"].clear(), "its 0 schedulers (here there are 1"),
    (lambda file: file["lr_schedulers"][0].pop("gamma"), "a scheduler (it has"),
    (lambda file: file["optimizer_states"][0]["param_groups"][0]["params"].pop(), "its groups have 3 parameters"),
    (lambda file: file["optimizer_states"][0]["state"][0].update(exp_avg=torch.ones(3)), "'exp_avg' of parameter 0 has shape (3,)"),
    (lambda file: file["optimizer_states"][0]["param_groups"][0].update(decoupled_weight_decay=True), "decoupled_weight_decay=True"),
    (lambda file: file["optimizer_states"].__setitem__(0, 5), "not what an optimizer's state_dict gives"),
])  # fmt: skip
def test_a_state_of_another_kind_begins_anew(tmp_path, change, told):
    path = saved(tmp_path, Net(), 1)
    file = torch.load(path)
    change(file)
    torch.save(file, path)
    (text,) = messages(fitted(tmp_path, Net(), start=path, max_epochs=2))
    assert told in text


def test_the_module_sees_the_file_in_its_hook(tmp_path):
    path = saved(tmp_path, Counting(), 1)
    module = Counting()
    run = fitted(tmp_path, module, start=path, max_epochs=2)
    assert module.seen == 7
    assert messages(run) == []
    with bench(tmp_path, loaded := Counting()) as made:
        made.load(path)
    assert loaded.seen == 7


def test_load_gives_the_weights_and_fits_start_from_them(tmp_path):
    there = Net()
    path = saved(tmp_path, there, 1)
    module = Net()
    with bench(tmp_path, module) as made:
        made.load(path)
        assert all(map(torch.equal, module.parameters(), there.parameters()))
        runs = [made.fit(max_epochs=1).result() for _ in range(2)]
    assert list(runs[0].history["loss"]) == list(runs[1].history["loss"])
    assert module.losses[0] == whole("adam")[4]


def test_a_search_starts_from_the_weights_of_a_file(tmp_path):
    path = saved(tmp_path, Net("sgd"), 1)
    with bench(tmp_path, Net("sgd")) as made:
        ask = functools.partial(made.find_lr, num_training=20)
        fresh, there = ask().result(), ask(start=path).result()
        made.load(path)
        assert list(ask().result().losses) == list(there.losses) != list(fresh.losses)


class Data(pl.LightningDataModule):
    """It has a state."""

    count = 0

    def train_dataloader(self):
        return loader()

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_a_datamodule_gets_its_state(tmp_path):
    data = Data()
    data.count = 5
    made = trainer(tmp_path, 1)
    made.fit(Net(), data)
    made.save_checkpoint(tmp_path / "data.ckpt")
    with bench(tmp_path, Net(), train=(here := Data())) as b:
        run = b.fit(start=tmp_path / "data.ckpt", max_epochs=2).result()
    assert here.count == 5
    assert messages(run) == []
    after = Data()
    trainer(tmp_path, 3).fit(Net(), after, ckpt_path=run.to_lightning(tmp_path / "back.ckpt"))
    assert after.count == 5


# -- what is refused


def plain(root, model):
    return bench(
        root,
        model,
        loss=F.cross_entropy,
        train=(torch.randn(16, 4), torch.zeros(16, dtype=torch.long)),
        val=None,
    )


def test_another_model_is_refused_with_the_parameter_and_the_remedy(tmp_path):
    path = saved(tmp_path, Net(), 1)
    module = Net()
    module.net[2] = nn.Linear(8, 3)
    before = copy.deepcopy(module.state_dict())
    with bench(tmp_path, module, train=loader(), val=None) as made:
        for ask in (lambda: made.load(path), lambda: made.fit(start=path, max_epochs=2).result()):
            with pytest.raises(
                wb.TaskError,
                match=r"'net\.2\.weight' has shape \(2, 8\) there and \(3, 8\) here\. Remedy: .*strict=False",
            ):
                ask()
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_prefix_is_offered_and_the_remedy_works(tmp_path):
    path = saved(tmp_path, there := Net(), 1)
    with plain(tmp_path, nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))) as made:
        with pytest.raises(wb.TaskError, match=r"begin with 'net\.' fit without it") as refused:
            made.load(path)
        code = str(refused.value).partition("there): ")[2].partition("; then")[0]
        exec(code, {"torch": torch, "bench": made})
        assert all(map(torch.equal, made.model.parameters(), there.parameters()))
    torch.save({"state_dict": there.net.state_dict()}, path)
    with bench(tmp_path, Net()) as other:
        with pytest.raises(wb.TaskError, match=r"fit with 'net\.' before them") as refused:
            other.load(path)
        code = str(refused.value).partition("before them: ")[2].partition("; then")[0]
        exec(code, {"torch": torch, "bench": other})
        assert all(map(torch.equal, other.model.parameters(), there.parameters()))


@pytest.mark.parametrize(("name", "value"), [("foo", 5), ("net.0.bias", [1.0])])
def test_what_is_neither_weight_nor_extra_state_is_refused_as_in_lightning(tmp_path, name, value):
    path = saved(tmp_path, Net("sgd"), 1)
    file = torch.load(path)
    file["state_dict"][name] = value
    torch.save(file, path)
    with pytest.raises(Exception, match=name.rpartition(".")[2]):
        Net.load_from_checkpoint(path)
    module = Net("sgd")
    with bench(tmp_path, module) as made:
        with pytest.raises(
            wb.TaskError,
            match=rf"{name}', which is {re.escape(repr(value))}, neither a weight nor extra state",
        ) as refused:
            made.load(path)
        exec(
            "own = " + str(refused.value).partition("own = ")[2].partition("; then")[0],
            {"torch": torch, "bench": made},
        )
    assert torch.equal(module.net[2].weight, file["state_dict"]["net.2.weight"])
    module.strict_loading = False
    if name == "foo":
        with bench(tmp_path, module) as made:
            made.load(path)


def test_a_model_of_many_layers_is_read_once_for_the_remedy(tmp_path, monkeypatch):
    deep = nn.Sequential(
        *[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(60)], nn.Linear(4, 2)
    )
    file = tmp_path / "x.ckpt"
    with plain(tmp_path, deep) as made:
        torch.save({"state_dict": {**deep.state_dict(), "0.0.weight": torch.ones(3)}}, file)
        reads = []
        read = nn.Sequential.state_dict
        monkeypatch.setattr(
            nn.Sequential,
            "state_dict",
            lambda self, *a, **k: (reads.append(self is deep), read(self, *a, **k))[1],
        )
        with pytest.raises(wb.TaskError, match="make the model as it was made for that file"):
            made.load(file)
        assert sum(reads) < 6
        torch.save(
            {"state_dict": {f"net.{name}": value for name, value in deep.state_dict().items()}},
            file,
        )
        with pytest.raises(wb.TaskError, match=r"begin with 'net\.' fit without it"):
            made.load(file)


def test_no_name_in_a_file_reaches_a_terminal_as_a_command(tmp_path):
    path = saved(tmp_path, Net("sgd"), 1)
    file, bad = torch.load(path), "\x1b[31mred\r"
    file[bad] = 1
    file["callbacks"] = {bad: {}}
    file["optimizer_states"][0]["param_groups"][0][bad] = 1
    torch.save(file, path)
    (text,) = messages(fitted(tmp_path, Net("sgd"), start=path, max_epochs=2))
    assert text.isprintable()
    assert text.count(r"\x1b[31mred\r") == 3
    inside = tmp_path / "named.ckpt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(inside, "w") as target:
        for name in source.namelist():
            pickled = "\x80\x02c\x1b[31mos\nsys\x1b[0mtem\n.".encode("latin-1")
            target.writestr(name, pickled if name.endswith("data.pkl") else source.read(name))
    with (
        bench(tmp_path, Net("sgd")) as made,
        pytest.raises(wb.TaskError, match="holds a pickled") as refused,
    ):
        made.load(inside)
    assert str(refused.value).isprintable()


def test_a_module_that_is_not_strict_takes_what_it_has(tmp_path):
    path = saved(tmp_path, Net("sgd"), 1)
    file = torch.load(path)
    file["state_dict"]["other"] = torch.ones(2)
    del file["state_dict"]["net.0.bias"]
    torch.save(file, path)
    module = Net("sgd")
    module.strict_loading = False
    with bench(tmp_path, module) as made:
        made.load(path)
    assert torch.equal(module.net[2].weight, file["state_dict"]["net.2.weight"])


class Touch:
    """Would make a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_in_a_file_is_run(tmp_path):
    path = saved(tmp_path, Net(), 1)
    file = torch.load(path)
    torch.save({**file, "hyper_parameters": {"evil": Touch(tmp_path / "touched")}}, path)
    with bench(tmp_path, Net()) as made:
        for ask in (lambda: made.load(path), lambda: made.fit(start=path)):
            with pytest.raises(
                wb.TaskError,
                match=r"holds a pickled `\w+\.open`; only tensors and plain values.*Remedy",
            ):
                ask()
    assert not (tmp_path / "touched").exists()


def test_classes_in_hyperparameters_are_named(tmp_path):
    module = Net()
    module.save_hyperparameters({"activation": nn.Tanh})
    path = saved(tmp_path, module, 1)
    with (
        bench(tmp_path, Net()) as made,
        pytest.raises(
            wb.TaskError, match=r"`torch\.nn\.modules\.activation\.Tanh`.*hyper_parameters"
        ),
    ):
        made.load(path)


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"PK\x03\x04", [1], {"a": 1}, {"state_dict": 3}]
)
def test_another_file_is_refused(tmp_path, content):
    path = tmp_path / "x.ckpt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with (
        bench(tmp_path, Net()) as made,
        pytest.raises(wb.TaskError, match=r"x\.ckpt is not a checkpoint of Lightning's Trainer"),
    ):
        made.load(path)


def test_a_state_dict_alone_is_named_and_the_remedy_works(tmp_path):
    weights, path = Net("sgd", lr=0.3).state_dict(), tmp_path / "sd.ckpt"
    torch.save({name: value + 1 for name, value in weights.items()}, path)
    with bench(tmp_path, module := Net("sgd")) as made:
        with pytest.raises(
            wb.TaskError, match=r"a state dict alone\): bench\.model\.load_state_dict"
        ) as refused:
            made.load(path)
        exec(
            str(refused.value).partition("): ")[2].partition(", then")[0],
            {"torch": torch, "bench": made},
        )
    assert torch.equal(module.net[2].weight, weights["net.2.weight"] + 1)


@pytest.mark.parametrize(("change", "told"), [
    (lambda file: file.pop("optimizer_states"), r"save_weights_only=True\?.*bench\.load"),
    (lambda file: file.pop("loops"), "upgrade_checkpoint"),
    (lambda file: file["loops"]["fit_loop"]["epoch_progress"]["current"].update(processed=-1), "it has -1 as a count"),
    (lambda file: file["loops"]["fit_loop"]["epoch_progress"]["current"].update(processed="2"), "it has '2' as a count"),
])  # fmt: skip
def test_a_file_from_which_no_fit_can_continue_says_why(tmp_path, change, told):
    path = saved(tmp_path, Net(), 1)
    file = torch.load(path)
    change(file)
    torch.save(file, path)
    with bench(tmp_path, Net()) as made, pytest.raises(wb.TaskError, match=told):
        made.fit(start=path)


def test_a_file_from_within_an_epoch_is_refused(tmp_path):
    trained(tmp_path, Net(), 1, ModelCheckpoint(tmp_path, "mid", every_n_train_steps=3))
    with (
        bench(tmp_path, Net()) as made,
        pytest.raises(wb.TaskError, match=r"after batch 3 of epoch 0.*bench\.load"),
    ):
        made.fit(start=tmp_path / "mid.ckpt")


def test_arguments_that_mean_nothing_are_refused(tmp_path):
    path = saved(tmp_path, Net(), 1)
    with bench(tmp_path, Net()) as made:
        with pytest.raises(wb.SettingsError, match=r"max_epochs=1 reached.*larger max_epochs"):
            made.fit(start=path, max_epochs=1)
        with pytest.raises(wb.TaskError, match="leave out which='best'"):
            made.load(path, "best")
        with pytest.raises(FileNotFoundError, match=r"no file .*nothing\.ckpt"):
            made.fit(start="nothing.ckpt")
        with pytest.raises(wb.SettingsError, match=r"ends with \.ckpt"):
            made.fit(start=tmp_path / "x.pt")


# -- to Lightning


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam", ByHand])
def test_a_trainer_continues_what_a_fit_began(tmp_path, kind):
    make = kind if isinstance(kind, type) else functools.partial(Net, kind)
    run = fitted(tmp_path, make(), max_epochs=2)
    path = run.to_lightning(tmp_path / "ours.ckpt")
    module = make()
    after = trained(tmp_path, module, 4, ckpt_path=path)
    assert module.losses == rest(kind)
    assert (after.current_epoch, after.global_step) == (4, 32 if kind is ByHand else 16)
    with bench(tmp_path, ours := make()) as made:
        made.fit(max_epochs=4).result()
    assert list(whole(kind)) == ours.losses


def test_the_module_is_made_from_the_file(tmp_path):
    run = fitted(tmp_path, module := Net("momentum", lr=0.05), max_epochs=1)
    made = Net.load_from_checkpoint(run.to_lightning(tmp_path / "deep" / "ours.ckpt"))
    assert dict(made.hparams) == {"kind": "momentum", "lr": 0.05}
    assert all(map(torch.equal, made.parameters(), module.parameters()))


def test_the_file_has_the_keys_of_lightnings_own(tmp_path):
    theirs = torch.load(saved(tmp_path, Counting()))
    ours = torch.load(
        fitted(tmp_path, Counting(), max_epochs=2).to_lightning(tmp_path / "ours.ckpt"),
        weights_only=True,
    )
    assert ours.keys() == theirs.keys()
    loop = theirs["loops"]["fit_loop"]
    assert ours["loops"]["fit_loop"].keys() == loop.keys()
    for name in (
        "epoch_progress",
        "epoch_loop.batch_progress",
        "epoch_loop.automatic_optimization.optim_progress",
        "epoch_loop.state_dict",
    ):
        assert ours["loops"]["fit_loop"][name] == loop[name], name
    for name in (
        "epoch",
        "global_step",
        "hparams_name",
        "hyper_parameters",
        "lr_schedulers",
        "own",
    ):
        assert ours[name] == theirs[name], name


def test_the_chosen_checkpoint_is_written(tmp_path):
    with bench(tmp_path, Net(), checkpoint_every=3, save_top_k=-1) as made:
        run = made.fit(max_epochs=2).result()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        path = run.to_lightning(tmp_path / "mid.ckpt", 3)
    assert "within an epoch" in str(told[-1].message)
    assert torch.load(path)["global_step"] == 3
    module = Net()
    # it counts on, as from its own file of this kind
    assert trained(tmp_path, module, 1, ckpt_path=path).global_step == 4
    assert torch.load(run.to_lightning(tmp_path / "best.ckpt", "best"))["global_step"] in (4, 8)
    with pytest.raises(FileNotFoundError, match="no checkpoint 5"):
        run.to_lightning(path, 5)


def test_a_run_without_a_checkpoint_says_what_to_do(tmp_path):
    with bench(tmp_path, Net()) as made:
        dry = made.fit(fast_dev_run=1).result()
        with pytest.raises(FileNotFoundError, match="dry run"):
            dry.to_lightning(tmp_path / "x.ckpt")
        search = made.find_lr(num_training=20)
        search.result()
        with pytest.raises(FileNotFoundError, match="checkpoint_every=500"):
            wb.Run.open(search.folder.path).to_lightning(tmp_path / "x.ckpt")


def test_averaged_weights_go_out_with_a_warning(tmp_path):
    with bench(tmp_path, Net("sgd"), weight_averaging="ema", ema_decay=0.5) as made:
        run = made.fit(max_epochs=1).result()
        with pytest.warns(UserWarning, match="averaged ones, which validation used"):
            path = run.to_lightning(tmp_path / "ema.ckpt")
        assert all(
            torch.equal(value, made.model.state_dict()[name])
            for name, value in torch.load(path)["state_dict"].items()
        )


def test_a_schedule_of_the_settings_is_left_out_with_a_warning(tmp_path):
    run = fitted(tmp_path, Net("sgd"), max_epochs=1, lr_schedule="cosine")
    with pytest.warns(UserWarning, match="lr_schedule and warmup are settings of the bench"):
        run.to_lightning(tmp_path / "x.ckpt")


def test_hyperparameters_that_are_not_plain_are_named(tmp_path):
    module = Net()
    module.save_hyperparameters({"activation": nn.Tanh})
    run = fitted(tmp_path, module, max_epochs=1)
    with pytest.warns(UserWarning, match="hyper_parameters lack activation"):
        path = run.to_lightning(tmp_path / "x.ckpt")
    assert torch.load(path, weights_only=True)["hyper_parameters"] == {"kind": "adam", "lr": 0.1}


def test_a_file_of_weights_alone_is_written_with_a_warning(tmp_path):
    class Removes(Net):
        def on_save_checkpoint(self, checkpoint):
            del checkpoint["lr_schedulers"]

    run = fitted(tmp_path, module := Removes(), max_epochs=1)
    with pytest.warns(UserWarning, match="weights alone"):
        path = run.to_lightning(tmp_path / "x.ckpt")
    made = Net.load_from_checkpoint(path, kind="adam")
    assert all(map(torch.equal, made.parameters(), module.parameters()))


class Tied(Net):
    def __init__(self):
        super().__init__("sgd")
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.net[2].weight = self.net[0].weight


def test_tied_weights_have_all_their_names(tmp_path):
    run = fitted(tmp_path, module := Tied(), max_epochs=1)
    path = run.to_lightning(tmp_path / "tied.ckpt")
    assert torch.load(path)["state_dict"].keys() == module.state_dict().keys()
    assert (
        read_weights(run.checkpoints[-1].path / "model.safetensors").keys()
        == module.state_dict().keys()
    )
    trained(tmp_path, Tied(), 2, ckpt_path=path)


class Extra(Net):
    """Has extra state, and an entry of the checkpoint that is named so."""

    count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]

    def on_save_checkpoint(self, checkpoint):
        checkpoint["extra"] = {"words": ["a", "b"]}

    def on_load_checkpoint(self, checkpoint):
        self.words = checkpoint["extra"]["words"]


def test_extra_state_and_an_entry_named_extra_stay_apart(tmp_path):
    module = Extra()
    module.count = 3
    path = fitted(tmp_path, module, max_epochs=1).to_lightning(tmp_path / "x.ckpt")
    file = torch.load(path, weights_only=True)
    assert file["extra"] == {"words": ["a", "b"]}
    assert set(file["state_dict"]) == set(module.state_dict())
    made = Extra.load_from_checkpoint(path)
    assert (made.count, made.words) == (3, ["a", "b"])
    fitted(tmp_path, again := Extra(), start=path, max_epochs=2)
    assert (again.count, again.words) == (3, ["a", "b"])


@pytest.mark.parametrize("kind", [Net, Counting])
def test_a_hyperparameter_that_contains_itself_counts_as_not_plain(tmp_path, kind):
    module = kind("sgd")
    module.hparams["tree"] = tree = {"depth": 1}
    tree["root"] = tree
    run = fitted(tmp_path, module, max_epochs=1)
    assert messages(run) == []
    with pytest.warns(UserWarning, match="hyper_parameters lack tree"):
        path = run.to_lightning(tmp_path / "x.ckpt")
    assert torch.load(path)["hyper_parameters"] == {"kind": "sgd", "lr": 0.1}


def test_a_folder_is_refused_as_the_path(tmp_path):
    run = fitted(tmp_path, Net("sgd"), max_epochs=1)
    with pytest.raises(IsADirectoryError, match=r"path=.*it is a folder.*last\.ckpt"):
        run.to_lightning(tmp_path)


def test_the_state_of_a_plain_models_datamodule_goes_out(tmp_path):
    def made(data):
        return bench(tmp_path, nn.Linear(4, 2), train=data, val=None, loss=F.cross_entropy)

    with made(data := Data()) as first:
        data.count = 9
        path = first.fit(max_epochs=1).result().to_lightning(tmp_path / "x.ckpt")
    assert torch.load(path, weights_only=True)[Data.__qualname__] == {"count": 9}
    with made(data := Data()) as second:
        second.fit(start=path, max_epochs=2).result()
    assert data.count == 9
