"""`on_save_checkpoint` gets the dictionary that Lightning gives; what it removes or changes stays so, and comes back."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.lr_scheduler import StepLR

import workbench as wb
from tests.lightning.both import boring, loader, trainer


class Module(boring.BoringModel):
    """A trained layer, and one that rests and is left out of checkpoints."""

    def __init__(self, width=3):
        super().__init__()
        self.save_hyperparameters()
        self.frozen = nn.Linear(32, 2).requires_grad_(False)
        self.saved, self.loaded = [], []

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        return [optimizer], [StepLR(optimizer, 1, 0.5)]

    def training_step(self, batch, batch_idx):
        return (self.layer(batch) - self.frozen(batch)).pow(2).mean()

    def edit(self, checkpoint):
        """What a test does to a checkpoint."""

    def on_save_checkpoint(self, checkpoint):
        self.saved.append(
            {
                name: sorted(value) if isinstance(value, dict) else value
                for name, value in checkpoint.items()
            }
        )
        self.edit(checkpoint)

    def on_load_checkpoint(self, checkpoint):
        self.loaded.append(dict(checkpoint))


def bench_of(module, root, **settings):
    return wb.Workbench(
        module, train=loader(12), root=root, accelerator="cpu", **{"max_epochs": 2, **settings}
    )


def end_of(run):
    return run.folder / "checkpoints" / run.checkpoints[-1].name


def test_it_gets_what_lightning_gives(tmp_path):
    theirs, module = Module(), Module()
    host = trainer(max_epochs=2)
    host.fit(theirs, loader(12))
    host.save_checkpoint(tmp_path / "theirs.ckpt")
    bench_of(module, tmp_path).fit().result()
    there, here = theirs.saved[-1], module.saved[-1]
    assert here.keys() == there.keys()
    for name in (
        "epoch",
        "global_step",
        "state_dict",
        "hyper_parameters",
        "hparams_name",
        "pytorch-lightning_version",
    ):
        assert here[name] == there[name], name
    for name in ("optimizer_states", "lr_schedulers"):
        assert [sorted(one) for one in here[name]] == [sorted(one) for one in there[name]]


class LeavesOut(Module):
    def edit(self, checkpoint):
        for name in [name for name in checkpoint["state_dict"] if name.startswith("frozen.")]:
            del checkpoint["state_dict"][name]
        checkpoint["mine"] = {"a": 1}
        checkpoint["hyper_parameters"]["width"] = 5
        del checkpoint["loops"]


def test_what_it_removes_stays_removed_and_the_fit_continues_exactly(tmp_path):
    torch.manual_seed(0)
    module = LeavesOut()
    bench = bench_of(module, tmp_path, max_epochs=4)
    whole = bench.fit().result()
    first = bench.fit(max_epochs=2).result()
    assert sorted(load_file(end_of(first) / "model.safetensors")) == ["layer.bias", "layer.weight"]
    rest = bench.fit(start=first.id, max_epochs=4).result()
    assert rest.history["loss"].tolist() == whole.history["loss"].tolist()
    (given,) = module.loaded
    assert sorted(given["state_dict"]) == ["layer.bias", "layer.weight"]
    assert given["mine"] == {"a": 1}
    assert given["hyper_parameters"] == {"width": 5}
    assert "loops" not in given
    assert (given["epoch"], given["global_step"]) == (2, 6)
    assert len(given["optimizer_states"]) == len(given["lr_schedulers"]) == 1
    before = module.frozen.weight.clone()
    bench.load(first)
    assert torch.equal(module.frozen.weight, before)


class Doubles(Module):
    def edit(self, checkpoint):
        checkpoint["state_dict"]["layer.bias"] = torch.full((2,), 7.0)
        checkpoint["optimizer_states"][0]["param_groups"][0]["weight_decay"] = 0.25
        checkpoint["lr_schedulers"][0]["gamma"] = 0.125


def test_what_it_changes_stays_changed(tmp_path):
    module = Doubles()
    bench = bench_of(module, tmp_path)
    first = bench.fit().result()
    assert load_file(end_of(first) / "model.safetensors")["layer.bias"].tolist() == [7.0, 7.0]
    bench.fit(start=first.id, max_epochs=3).result()
    (given,) = module.loaded
    assert given["state_dict"]["layer.bias"].tolist() == [7.0, 7.0]
    assert given["optimizer_states"][0]["param_groups"][0]["weight_decay"] == 0.25
    assert given["lr_schedulers"][0]["gamma"] == 0.125
    seen = module.saved[-1]
    # the fit went on with it
    assert seen["optimizer_states"][0]["param_groups"][0]["weight_decay"] == 0.25
    assert seen["lr_schedulers"][0]["gamma"] == 0.125


class Bare(Module):
    def edit(self, checkpoint):
        del checkpoint["optimizer_states"]


def test_without_the_states_of_optimizers_there_are_weights_alone(tmp_path):
    module = Bare()
    bench = bench_of(module, tmp_path)
    run = bench.fit().result()
    assert not (end_of(run) / "state.pt").exists()
    with pytest.raises(wb.SettingsError, match="on_save_checkpoint removed optimizer_states"):
        bench.fit(start=run.id, max_epochs=3)
    bench.load(run)


class Restores(Module):
    """Puts other weights into what is loaded."""

    def on_load_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = {
            name: torch.zeros_like(value) for name, value in checkpoint["state_dict"].items()
        }


def test_what_is_loaded_may_be_changed(tmp_path):
    module = Restores()
    bench = bench_of(module, tmp_path)
    first = bench.fit().result()
    rest = bench.fit(start=first.id, max_epochs=3).result()
    assert rest.history["loss"][6] == 0.0  # both layers are zero
