"""What a LightningModule logs in training (`self.log`): the script's log has it as the run's record does, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.export.export_running import Runner, check, lint, make_bench, repeats
from tests.export.program.lightning.export_hooked import DATA, PRELUDE
from tests.warm import Warm

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = """
class Steps(Own):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, prog_bar=True)
        self.log_dict({"bias": self.head.bias[0], "seen": self.norm.num_batches_tracked, "odd": batch_idx % 2})
        if batch_idx % 2:
            self.log("sometimes", loss.double())
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", super().validation_step(batch, batch_idx), on_epoch=True)
"""
EPOCHS = """
class Right:
    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.seen = 0

    def update(self, output, y):
        self.right += (output.argmax(1) == y).sum().item()
        self.seen += len(y)

    def compute(self):
        return self.right / max(1, self.seen)


class Epochs(Own):
    def __init__(self):
        super().__init__()
        self.right, self.last = Right(), Right()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        output = self(batch[0]).detach()
        self.right.update(output, batch[1])
        self.last.update(output, batch[1])
        self.log("train_loss", loss, on_epoch=True, prog_bar=True)
        self.log("train_right", self.right, on_step=False, on_epoch=True)
        self.log("train_last", self.last)
        self.log("even", loss, on_step=False, on_epoch=True, batch_size=1)
        self.log("loss", 2 * loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss = super().validation_step(batch, batch_idx)
        self.log("val_loss", loss)
        self.log("loss", loss)
"""
REDUCED = """
class Reduced(Own):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for number, how in enumerate(("min", "max", "sum", "avg", torch.sum, sum, torch.std)):
            self.log(f"train_{number}", loss, on_step=False, on_epoch=True, reduce_fx=how)
        return loss
"""
IN_HOOKS = """
class InHooks(Own):
    def on_train_start(self):
        self.log("begun", 1.0)

    def on_train_epoch_start(self):
        self.log("epoch_began", float(self.current_epoch))

    def on_train_batch_start(self, batch, batch_idx):
        self.log("first", batch[0][0, 0])

    def on_after_backward(self):
        self.log("gradient", self.head.bias.grad.norm(), on_step=True, on_epoch=True)

    def on_before_optimizer_step(self, optimizer):
        self.log("rate", optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.log_dict({"outputs": outputs["loss"], "bias": self.head.bias[0]}, on_step=True, on_epoch=True)

    def on_train_epoch_end(self):
        self.log("epoch_bias", self.head.bias[0])
"""
GAPS = """
class Gaps(Own):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("tried", float(batch_idx), on_step=True, on_epoch=True)
        return None if batch_idx % 3 == 1 else loss
"""
SETS = """
class Sets(Own):
    def __init__(self):
        super().__init__()
        self.right = Right()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss = super().validation_step(batch, batch_idx) * (1 + dataloader_idx)
        self.log("val_loss", loss)
        self.log("val_of", float(batch_idx + dataloader_idx))
        return loss


class Widely(Sets):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        loss = Own.validation_step(self, batch, batch_idx)
        self.right.update(self(batch[0]), batch[1])
        self.log("right", self.right)
        self.log(f"own_{dataloader_idx}", loss, add_dataloader_idx=False)
        return {"loss": loss, "weight": 1.0 + batch_idx}

    def on_validation_batch_end(self, outputs, batch, batch_idx, dataloader_idx):
        self.log("last", outputs["loss"] * dataloader_idx)

    def on_validation_epoch_end(self):
        self.log("whole", self.head.bias[0])


class Makes(Sets):
    def val_dataloader(self):
        return [torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[n:], y[n:]), 10) for n in (0, 20, 40)]


sets = {"a": torch.utils.data.TensorDataset(x, y), "b": torch.utils.data.TensorDataset(x[:9], y[:9])}
"""
BY_HAND = """
class ByHand(Own):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(loss)
        self.optimizers().step()
        self.log("bias", self.head.bias[0])
        self.log("number", batch_idx, on_step=False, on_epoch=True)
"""
FIELDS = """
import dataclasses


@dataclasses.dataclass
class Both:
    x: torch.Tensor
    y: torch.Tensor


def collate(samples):
    return Both(*torch.utils.data.default_collate(samples))


class OfFields(Own):
    def training_step(self, batch, batch_idx):
        loss = super().training_step((batch.x, batch.y), batch_idx)
        self.log("train_loss", loss, on_epoch=True)
        return loss


loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 8, collate_fn=collate)
"""
CASES: dict[str, tuple[str, str]] = {
    "batches of a dataclass": ("OfFields(), train=loader, max_epochs=2, accumulate_grad_batches=2", FIELDS),
    "updates": (f"Steps(), {DATA}, max_epochs=2", STEPS),
    "updates, windows": (f"Steps(), {DATA}, max_epochs=2, accumulate_grad_batches=3, log_every_n_steps=2", STEPS),
    "updates, no validation": ("Steps(), train=(x, y), batch_size=8, max_epochs=2", STEPS),
    "epochs": (f"Epochs(), {DATA}, max_epochs=3", EPOCHS),
    "epochs, checks within and not after each": (f"Epochs(), {DATA}, max_epochs=3, val_check_interval=3", EPOCHS),
    "epochs, few checks, windows": (f"Epochs(), {DATA}, max_epochs=3, check_val_every_n_epoch=2, accumulate_grad_batches=3", EPOCHS),
    "epochs, an end by what they logged": (
        f"Epochs(), {DATA}, max_epochs=9, early_stopping={{'monitor': 'train_right', 'mode': 'max', 'patience': 1}}", EPOCHS,
    ),
    "epochs, an end within one": (
        f"Epochs(), {DATA}, max_epochs=9, val_check_interval=3, early_stopping={{'monitor': 'val_loss', 'patience': 1, 'min_delta': 9.0}}",
        EPOCHS,
    ),
    "epochs, no validation": ("Epochs(), train=(x, y), batch_size=8, max_epochs=2", EPOCHS),
    "other reductions, many batches": ("Reduced(), train=(x.repeat(20, 1), y.repeat(20)), batch_size=2, max_epochs=1", REDUCED),
    "every hook": (f"InHooks(), {DATA}, max_epochs=2, accumulate_grad_batches=2", IN_HOOKS),
    "batches left out": (f"Gaps(), {DATA}, max_epochs=2, accumulate_grad_batches=2", GAPS),
    "manual": (f"ByHand(), {DATA}, max_epochs=2", BY_HAND),
    "several sets in a variable": ("Sets(), train=(x, y), val=sets, batch_size=8, max_epochs=2", EPOCHS + SETS),
    "several sets in the call, checks within": (
        "Sets(), train=(x, y), val={'a': (x[:9], y[:9]), 'b': (x[9:20], y[9:20])}, batch_size=8, max_epochs=2, val_check_interval=0.5",
        EPOCHS + SETS,
    ),
    "several sets, logged in many ways": ("Widely(), train=(x, y), val=[*sets.values()], batch_size=8, max_epochs=2", EPOCHS + SETS),
    "several sets that it makes": ("Makes(), train=(x, y), batch_size=8, max_epochs=2, limit_val_batches=2", EPOCHS + SETS),
    "several sets, one after another": (
        "Sets(), train=(x, y), val=CombinedLoader([torch.utils.data.DataLoader(one, 7) for one in sets.values()], 'sequential'), "
        "batch_size=8, max_epochs=2",
        "from lightning.pytorch.utilities import CombinedLoader\n" + EPOCHS + SETS,
    ),
    "an average": (f"Epochs(), {DATA}, max_epochs=2, weight_averaging='ema'", EPOCHS),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_log_has_what_the_run_recorded(case: str, runner: Runner, tmp_path: Path) -> None:
    arguments, before = CASES[case]
    bench = make_bench(tmp_path, arguments, before, PRELUDE)
    repeats(bench, runner, tmp_path)
    if before == STEPS:
        assert "class Log" not in (tmp_path / "out" / "train.py").read_text()


PARTS = """
class Parts(Own):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("logged", loss.detach() * 3)
        parts = {"penalty": self.head.bias.square().sum()} if batch_idx % 2 else {}
        return {"loss": loss, "half": loss / 2, "outputs": batch[0], "bias": self.head.bias[0], "lr": 0.1, "high": loss > 1, **parts}


class PartsAndEpochs(Parts, Epochs):
    pass


class PartsByHand(Parts):
    automatic_optimization = False

    def training_step(self, batch, batch_idx):
        found = super().training_step(batch, batch_idx)
        self.optimizers().zero_grad()
        self.manual_backward(found["loss"])
        self.optimizers().step()
        return found


class PartsInTurns(Parts):
    def training_step(self, batch, batch_idx, optimizer_idx):
        found = super().training_step(batch, batch_idx)
        return {**found, f"half_{optimizer_idx}": found["half"]}

    def configure_optimizers(self):
        others = [*self.head.parameters(), *self.norm.parameters()]
        return [torch.optim.SGD(self.body.parameters(), 0.1), torch.optim.SGD(others, 0.1)]


class Sometimes(Own):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss if batch_idx % 2 else {"loss": loss, "half": loss / 2}


def penalised(output, target):
    fit, size = F.cross_entropy(output, target), output.square().mean()
    found = {"loss": fit + 0.1 * size, "half": fit, "size": size, "share": len(target) / 7}
    return {**found, "penalty": fit * 2} if target[0] else found


def left_out(output, target):
    return penalised(output, target) if target[0] or not torch.is_grad_enabled() else None


def weighted(output, target):
    return {**penalised(output, target), "weight": torch.tensor(len(target) + 0.5)}
"""
OF_LOSS = f"nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3)), {DATA}, max_epochs=2, lr=0.05, loss="
WITH_PARTS = {
    "a step": f"Parts(), {DATA}, max_epochs=2",
    "a step that logs over epochs": f"type('Both', (Parts, Epochs), {{}})(), {DATA}, max_epochs=2",
    "a step, windows": f"Parts(), {DATA}, max_epochs=2, accumulate_grad_batches=3",
    "a step, two processes": f"Parts(), {DATA}, max_epochs=2, devices=2, accelerator='cpu'",
    "a step that returns the loss alone at times": f"Sometimes(), {DATA}, max_epochs=2",
    "manual": f"PartsByHand(), {DATA}, max_epochs=2",
    "manual, windows": f"PartsByHand(), {DATA}, max_epochs=2, accumulate_grad_batches=3",
    "several optimizers, windows": f"PartsInTurns(), {DATA}, max_epochs=2, accumulate_grad_batches=2",
    "a loss": f"{OF_LOSS}penalised",
    "a loss, windows": f"{OF_LOSS}penalised, accumulate_grad_batches=3",
    "a loss, windows, two processes": f"{OF_LOSS}penalised, accumulate_grad_batches=2, devices=2, accelerator='cpu'",
    "a loss evaluated again": f"{OF_LOSS}penalised, optimizer=lambda p, lr: torch.optim.LBFGS(p, lr, max_iter=3)",
    "a loss that leaves batches out, windows": f"{OF_LOSS}left_out, accumulate_grad_batches=3",
    "a loss with a weight, windows": f"{OF_LOSS}weighted, accumulate_grad_batches=3, metrics={{'n': lambda o, t: float(len(t))}}",
}


@pytest.mark.parametrize("case", WITH_PARTS)
def test_the_parts_of_the_loss(case: str, runner: Runner, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, WITH_PARTS[case], EPOCHS + PARTS, PRELUDE)
    run: Any = bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    lint(script)
    outcome = (runner.run_two if "two" in case else runner.run)(script)
    check(bench, run, outcome)
    assert "half" in run.history
    bench.close()


def test_on_two_processes(runner: Runner, tmp_path: Path) -> None:
    """Ten batches of 6: in the last round of each epoch both have one; values of updates are those of the first, or their mean."""
    before = EPOCHS.replace(
        'self.log("train_last", self.last)', 'self.log("mean", loss, sync_dist=True)'
    )
    before = before.replace(
        'self.log("train_right", self.right, on_step=False, on_epoch=True)',
        'self.log("first", loss)',
    )
    data = "train=(x, y), val=(x[:28], y[:28]), batch_size=3"
    bench = make_bench(
        tmp_path, f"Epochs(), {data}, max_epochs=2, devices=2, accelerator='cpu'", before, PRELUDE
    )
    run: Any = bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    lint(script)
    check(bench, run, runner.run_two(script))
    bench.close()


def test_a_killed_script_logs_on(runner: Runner, tmp_path: Path) -> None:
    plain = PRELUDE.replace("        self.said.append(words)\n", "        pass\n")
    bench = make_bench(tmp_path, f"InHooks(), {DATA}, max_epochs=3", IN_HOOKS, plain)
    run: Any = bench.fit().result()
    check(bench, run, runner.run_resumed(bench.export(tmp_path / "train.py"), "step == 13"))
    bench.close()


def test_the_progress_bar_shows_what_asks_for_it(without: Warm, tmp_path: Path) -> None:
    bench = make_bench(tmp_path, f"Steps(), {DATA}, max_epochs=1", STEPS, PRELUDE)
    bench.fit().result()
    script = bench.export(tmp_path / "train.py")
    bench.close()
    text = script.read_text()
    assert "bar.set_postfix" in text
    script.write_text(
        text.replace("disable=not accelerator.is_main_process or None", "disable=False")
    )
    done = without.run(str(script), folder=tmp_path)
    done.check_returncode()
    assert "train_loss=" in done.stderr
    assert "bias=" not in done.stderr
