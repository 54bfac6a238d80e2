"""DataModules as they are: Lightning's demos, and their hooks' order over fit, test and prediction.

What differs, and is meant to: the bench prepares the data and sets up for a fit when it is made, so `prepare_data` comes
once, not once a job; loaders are asked for as often as they are needed. Where data has no length nobody knows that a batch
is an epoch's last one, unless one reads ahead as the Trainer does: schedules of epochs then step behind its end.
"""

import pytest
import torch

import workbench as wb
from tests.lightning.both import (
    Losses,
    agree,
    boring,
    by_lightning,
    by_workbench,
    pl,
    rows,
    trainer,
)
from tests.lightning.recorder import AROUND, STEPS, TRANSFER, Tape, recorded
from workbench.task.errors import TaskError

pytestmark = pytest.mark.usefixtures("one_thread")


def heard(cls, *arguments, seed=1):
    """A DataModule of the recorded class, and its tape."""
    tape = Tape()
    torch.manual_seed(seed)
    return recorded(cls, tape)(*arguments), tape


class Moving(boring.BoringDataModule):
    """Changes batches on their way, in whatever stage."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch + 0.5

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return super().transfer_batch_to_device(batch, device, dataloader_idx) * 0.5

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch - (0.5 if self.trainer.training else 1)


class Given(pl.LightningDataModule):
    """What it does at set-up depends on its hyperparameters, and teardown takes it away again."""

    def __init__(self, scale=2.0, batch_size=8):
        super().__init__()
        self.save_hyperparameters()
        self.data = None

    def prepare_data(self):
        self.made = True

    def setup(self, stage):
        assert self.made
        self.data = rows(32, 5) * self.hparams.scale

    def teardown(self, stage):
        self.data = None

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.data, batch_size=self.hparams.batch_size)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self.data[:16], batch_size=self.hparams.batch_size)

    test_dataloader = predict_dataloader = val_dataloader


DEMOS = [boring.BoringDataModule, Moving, Given]


@pytest.mark.parametrize("cls", DEMOS)
def test_losses_with_a_data_module(cls, tmp_path):
    """The module's hooks, what they find, and every loss to the last bit."""
    (data, _), (same, _) = heard(cls), heard(cls)
    seen = Losses()
    theirs = by_lightning(boring.BoringModel, data=same, max_epochs=2, callbacks=[seen])
    ours = by_workbench(boring.BoringModel, tmp_path, data=data, max_epochs=2)
    agree(ours.lines(), theirs.lines())
    assert ours.extra["result"].history["loss"].tolist() == torch.tensor(seen.values).tolist()


@pytest.mark.parametrize("cls", DEMOS)
def test_hooks_of_a_data_module_over_its_life(cls, tmp_path):
    """Set-up and teardown of each stage, and the transfer hooks between."""
    theirs, their_tape = heard(cls)
    ours, our_tape = heard(cls)
    torch.manual_seed(0)
    module = boring.BoringModel()
    limits = {"limit_train_batches": 3, "limit_val_batches": 2, "max_epochs": 2}
    for verb in ("fit", "validate", "test", "predict"):
        getattr(trainer(**limits), verb)(module, datamodule=theirs)
    torch.manual_seed(0)
    bench = wb.Workbench(
        boring.BoringModel(), train=ours, root=tmp_path, accelerator="cpu", **limits
    )
    tried = [line for line in our_tape.lines if line.split()[0] in TRANSFER]
    bench.fit().result()
    bench.validate().result()
    bench.test().result()
    bench.predict().result()
    wanted = [*TRANSFER, "setup", "teardown"]
    lines = [line for line in our_tape.lines if line.split()[0] in wanted]
    assert lines[0] == "setup stage=fit"
    agree(
        lines[:1] + lines[1 + len(tried) :],
        [line for line in their_tape.lines if line.split()[0] in wanted],
    )
    first = our_tape.names()
    assert first.count("prepare_data") == 1
    assert first.index("prepare_data") < first.index("setup")


class OneAtATime(pl.LightningDataModule):
    """Has the data of one stage in hand."""

    def setup(self, stage):
        self.data = rows(8, {"fit": 1, "validate": 2, "test": 3, "predict": 4}[stage])

    def teardown(self, stage):
        del self.data

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.data)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_data_of_one_stage_at_a_time(verb, tmp_path):
    """What a stage's setup made is what its loader gives."""
    theirs = by_lightning(boring.BoringModel, verb, data=OneAtATime())
    ours = by_workbench(boring.BoringModel, tmp_path, verb, data=OneAtATime())
    agree(ours.lines(), theirs.lines())
    ours.extra["bench"].fit().result()
    ours.tape.lines.clear()
    getattr(ours.extra["bench"], verb)().result()
    agree(
        *([line for line in side.lines() if line.split()[0] in TRANSFER] for side in (ours, theirs))
    )


def test_a_modules_own_set_up_comes_behind_the_data_modules(tmp_path):
    """Both have one; both see the same stages, in Lightning's order."""

    def both_of(root=None):
        tape = Tape()
        torch.manual_seed(0)
        data = recorded(Labelled, tape, AROUND)()
        module = recorded(Ready, tape, [*AROUND, "on_fit_start", "on_test_start"])()
        if root is None:
            trainer(limit_train_batches=2).fit(module, datamodule=data)
            trainer().test(module, datamodule=data, verbose=False)
        else:
            bench = wb.Workbench(
                module,
                train=data,
                root=root,
                accelerator="cpu",
                max_epochs=1,
                limit_train_batches=2,
            )
            # of its two samples
            tape.lines = [line for line in tape.lines if not line.startswith("on_fit_start")]
            bench.fit().result()
            bench.test().result()
        return [line for line in tape.lines if not line.startswith("prepare_data")]

    agree(both_of(tmp_path), both_of())


class Labelled(Given):
    def setup(self, stage):
        super().setup(stage)
        self.classes = 2


class Ready(boring.BoringModel):
    """Makes its layer when it knows the data."""

    def __init__(self):
        super().__init__()
        self.layer = None

    def setup(self, stage):
        if self.layer is None:
            self.layer = torch.nn.Linear(32, self.trainer.datamodule.classes)


def test_data_without_a_length(tmp_path):
    """The same calls; the demo draws its samples when they are read, and the Trainer reads ahead."""
    how = {"limit_train_batches": 5, "limit_val_batches": 2, "max_epochs": 2, "values": False}
    found = []
    for run in (
        lambda **k: by_workbench(boring.BoringModel, tmp_path, **k),
        lambda **k: by_lightning(boring.BoringModel, **k),
    ):
        found.append([" ".join(word for word in line.split() if not word.startswith("batch=")) for line in
                      run(data=boring.BoringDataModuleNoLen(), **how).lines()])  # fmt: skip
    agree(*found)


def test_all_of_data_without_a_length(tmp_path):
    """The end of an epoch is not known before it comes."""
    theirs = by_lightning(boring.BoringModel, data=Short(), max_epochs=2)
    ours = by_workbench(boring.BoringModel, tmp_path, data=Short(), max_epochs=2)
    lines = ours.lines()
    for number, line in enumerate(lines):
        if line.startswith("lr_scheduler_step"):
            lines[number - 1 : number + 1] = [line, lines[number - 1]]
    agree(lines, theirs.lines())


class Counting(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(rows(7, 3))


class Short(pl.LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(Counting(), batch_size=2)

    val_dataloader = train_dataloader


def test_data_modules_made_of_data_sets(tmp_path):
    """Without any class: the hooks are functions of the object."""

    def data():
        torch.manual_seed(4)
        train, val = boring.RandomDataset(32, 24), boring.RandomDataset(32, 8)
        return pl.LightningDataModule.from_datasets(train, val_dataset=val, batch_size=4)

    theirs = by_lightning(boring.BoringModel, data=data(), hooks=STEPS, values=False)
    ours = by_workbench(boring.BoringModel, tmp_path, data=data(), hooks=STEPS, values=False)

    def names(heard):
        return [line.split()[0] for line in heard.lines()]

    def batches(heard):
        return sorted(line.split()[1] for line in heard.lines() if line.startswith("training_step"))

    assert names(ours) == names(theirs)
    assert len(set(batches(ours))) == 6


def test_several_loaders_give_lists_of_batches(tmp_path):
    class Both(boring.BoringModel):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch, batch_idx):
            return sum(map(self.step, batch))

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            return self.step(batch)

    data = boring.IterableBoringDataModule()
    with wb.Workbench(
        Both(), train=data, root=tmp_path, accelerator="cpu", max_steps=2, limit_val_batches=1
    ) as made:
        assert "val_loss/dataloader_idx_1" in made.fit().result().metrics
        with pytest.raises(TaskError, match=r"predict_dataloader\(\) returned list"):
            made.predict().result()


def test_an_exception_is_heard(tmp_path):
    """By the DataModule alone, as in Lightning, and then it is raised."""

    class Hears(boring.BoringDataModule):
        def on_exception(self, exception):
            told.append(type(exception).__name__)

    class Fails(boring.BoringModel):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2 and self.trainer.training and self.global_step:
                raise ArithmeticError("third")
            return super().training_step(batch, batch_idx)

    told: list[str] = []
    with pytest.raises(ArithmeticError):
        by_lightning(Fails, data=Hears(), hooks=[])
    with pytest.raises(ArithmeticError):
        by_workbench(Fails, tmp_path, data=Hears(), hooks=[])
    assert told == ["ArithmeticError", "ArithmeticError"]
