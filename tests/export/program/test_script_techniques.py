"""Each technique in an exported script: the losses, rates and weights of the run, to the last bit."""

from __future__ import annotations

import inspect
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from ruff import find_ruff_bin

from tests.combinations import every
from tests.engine.problems import SAM
from tests.export.export_running import Runner, check, fit_asking, lint, make_bench, repeats
from workbench.engine.session import Session
from workbench.engine.validation import schedule
from workbench.techniques.precision import Precision

pytestmark = pytest.mark.usefixtures("one_thread")

PAIR = "model, train=(x, y), loss=F.cross_entropy, batch_size=20"
BOTH = f"{PAIR}, val=(x[:50], y[:50])"
GROUPS = (
    "def make(parameters, lr):\n    parameters = list(parameters)\n"
    "    return torch.optim.SGD([{'params': parameters[:2], 'lr': lr / 3}, {'params': parameters[2:]}], lr=lr, momentum=0.9)\n"
)
TOKENS = (
    "def per_token(output, y):\n"
    "    kept = y != 2\n    if not kept[:8].any():\n        return None\n"
    "    return {'loss': F.cross_entropy(output[kept], y[kept]), 'weight': kept.sum()}\n"
)
SPIKING = """
far = torch.sin(1.7 * torch.arange(9600.0)).reshape(1200, 8)
target = far.sum(1, keepdim=True)
target[1100] = 1000.0
"""
BROKEN = (
    "class Broken(torch.utils.data.Dataset):\n    def __len__(self):\n        return 60\n\n"
    "    def __getitem__(self, i):\n        return x[i] * (float('nan') if i in (7, 33) else 1.0), y[i]\n"
)
STATISTICS = (
    "class Whitened(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.norm = nn.BatchNorm1d(3, affine=False)\n\n"
    "    def forward(self, output, y):\n        return F.cross_entropy(self.norm(output), y)\n\n\n"
)
SHARP = inspect.getsource(SAM)
PARTS = (
    "parts = nn.BatchNorm1d(8), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 16)), nn.BatchNorm1d(16), nn.Linear(16, 3)\n"
    "network = nn.Sequential(*parts)\nnetwork[0].running_mean += 0.3\nnetwork[0].eval()\n"
)
GAPS = (
    "def collate(samples):\n    xs, ys = zip(*samples)\n"
    "    if sum(ys) > 20:\n        return None\n    return torch.stack(xs), torch.stack(ys)\n"
)
COUNTING = """
class Counting(Net):
    def __init__(self, saved=True):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=saved)

    def forward(self, x):
        if not self.training:
            self.seen = self.seen + len(x)
        return super().forward(x) * (1 + self.seen / 1000)
"""
ROLLED = "val=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:30], y[:30]), 10, sampler=Rolling())"
ROLLING = """
class Rolling(torch.utils.data.Sampler):
    def __init__(self):
        self.passes = 0

    def __len__(self):
        return 20

    def __iter__(self):
        self.passes += 1
        return iter([(n * self.passes) % 30 for n in range(20)])

    def state_dict(self):
        return {"passes": self.passes}

    def load_state_dict(self, state):
        self.passes = state["passes"]
"""
TOLD_BY = "model, train=(x, y), val=(x[:9], y[:9]), loss=F.cross_entropy, metrics={'said': lambda output, target: said[int(model.norm.num_batches_tracked) // 4]}, batch_size=25, max_epochs=8"
KEEPING = """
class Keeping(Net):
    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self
"""
NAMED = """
class Named(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return {"a": x[i]}, y[i]


class Own(Net):
    def forward(self, columns):
        return super().forward(columns["a"])
"""
AT_LAST = "early_stopping={'monitor': 'val_loss', 'patience': 1, 'min_delta': 10.0}"

CASES: dict[str, tuple[str, str]] = {
    # accumulation
    "windows that change": (f"{PAIR}, accumulate_grad_batches={{0: 3, 2: 2, 3: 1}}, max_epochs=5", ""),
    "windows from the second epoch": (f"{BOTH}, accumulate_grad_batches={{1: 2}}, max_epochs=3, lr_schedule='linear'", ""),
    "losses with a weight, and none": (
        f"{BOTH.replace('F.cross_entropy', 'per_token')}, accumulate_grad_batches=2, gradient_clip_val=0.1, max_epochs=3",
        TOKENS,
    ),
    "losses with a weight, one batch an update": (f"{BOTH.replace('F.cross_entropy', 'per_token')}, max_epochs=2", TOKENS),
    "losses that may be none": (
        f"{PAIR.replace('F.cross_entropy', 'sometimes')}, accumulate_grad_batches=3, max_epochs=3",
        "def sometimes(output, y):\n    return None if y[0] == 1 else F.cross_entropy(output, y)\n",
    ),
    "batches that may be none": (f"{BOTH}, collate_fn=collate, accumulate_grad_batches=2, max_epochs=3", GAPS),
    "batches that may be none, one an update": (f"{BOTH}, collate_fn=collate, max_epochs=3", GAPS),
    # schedules
    "a warm-up": (f"{PAIR}, warmup=3, max_epochs=2", ""),
    "a cosine behind a warm-up in parts, groups": (
        f"{PAIR}, lr_schedule='cosine', warmup=0.3, optimizer=make, max_epochs=3, accumulate_grad_batches=2", GROUPS,
    ),
    "a line, a number of updates": (f"{PAIR}, lr_schedule='linear', max_steps=12, lr=0.1", ""),
    "one cycle, groups": (f"{PAIR}, lr_schedule='one_cycle', optimizer=make, max_epochs=2", GROUPS),
    "stable, then a fall": (
        f"{PAIR}, lr_schedule='wsd', warmup=0.1, decay_fraction=0.4, min_lr_ratio=0.1, max_epochs=3", "",
    ),
    "the inverse square root": (f"{PAIR}, lr_schedule='inverse_sqrt', warmup=3, min_lr_ratio=0.8, max_epochs=2", ""),
    "the inverse square root, with a warm-up of no update": (
        f"{PAIR}, lr_schedule='inverse_sqrt', warmup=0.01, max_steps=8", "",
    ),
    "restarts, a power": (f"{PAIR}, lr_schedule='cosine_restarts', restarts=1, max_epochs=2", ""),
    "one cycle with a warm-up": (f"{PAIR}, lr_schedule='one_cycle', warmup=1, max_epochs=2", ""),
    "a plateau": (
        f"{BOTH}, max_epochs=4, lr=0.3, scheduler=plateau, warmup=9",
        "def plateau(optimizer, updates):\n"
        "    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)\n",
    ),
    "a cycle of the user's own, every third update": (
        f"{PAIR}, max_epochs=4, scheduler=cycle",
        "def cycle(optimizer, updates):\n    made = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=updates // 3 + 1)\n"
        "    return {'scheduler': made, 'interval': 'step', 'frequency': 3}\n",
    ),
    # precision, compilation
    "bfloat16": (f"{BOTH}, precision='bf16-mixed', accumulate_grad_batches=2, gradient_clip_val=0.5, max_epochs=2", ""),
    "bfloat16, metrics": (
        f"{BOTH}, precision='bf16-mixed', metrics={{'right': lambda output, y: (output.argmax(1) == y).float()}}, max_epochs=2", "",
    ),
    "compiled, watched for anomalies": (f"{BOTH}, compile='eager', detect_anomaly=True, max_epochs=1", ""),
    # how much, how often
    "limits": (f"{BOTH}, limit_train_batches=3, limit_val_batches=1, max_epochs=3, lr_schedule='cosine'", ""),
    "limits in parts": (
        f"{BOTH}, limit_train_batches=0.5, limit_val_batches=0.7, max_epochs=3, accumulate_grad_batches=2, lr_schedule='linear'", "",
    ),
    # several validation sets
    "several sets, arrays, by name": (
        f"{PAIR}, val={{'clean': (x[:30], y[:30]), 'shifted': (x[30:] + 1, y[30:])}}, weight_averaging='ema', ema_decay=0.5, max_epochs=4, "
        "metrics={'right': lambda output, y: (output.argmax(1) == y).float()}, monitor='val_right/clean', monitor_mode='max', "
        "early_stopping=wb.EarlyStopping(monitor='val_loss/shifted', patience=1, min_delta=5)", "",
    ),
    "early stopping, more is better, a warm-up": (
        f"{TOLD_BY}, early_stopping={{'monitor': 'val_said', 'mode': 'max', 'patience': 2, 'warmup': 3, 'min_delta': 0.5}}",
        "said = [0.0, 5, 4, 4, 6, 6.4, 6.4, 9, 9]\n",
    ),
    "a buffer that validations change, no sanity check": (
        "Counting(), train=(x, y), val=(x[:30], y[:30]), loss=F.cross_entropy, batch_size=10, max_epochs=2, num_sanity_val_steps=0", COUNTING,
    ),
    "a sampler of validation data with a state, which the sanity check leaves": (f"{PAIR}, {ROLLED}, max_epochs=3", ROLLING),
    "early stopping, good enough": (f"{TOLD_BY}, early_stopping={{'monitor': 'val_said', 'stopping_threshold': 2.0}}", "said = [9.0, 4, 2, 1, 3, 1, 1, 1, 1]\n"),
    "early stopping, not finite before it may end": (
        f"{TOLD_BY}, min_epochs=6, early_stopping={{'monitor': 'val_said', 'patience': 3, 'divergence_threshold': 50.0}}",
        "said = [0.0, 5, -float('inf'), float('nan'), 4, 3, 2, 1, 99]\n",
    ),
    "early stopping, whatever it is": (
        f"{TOLD_BY}, early_stopping={{'monitor': 'val_said', 'patience': 2, 'check_finite': False, 'mode': 'max'}}",
        "said = [0.0, float('nan'), 1, float('inf'), float('inf'), 2, 2, 2, 2]\n",
    ),
    "several sets in a variable": (
        f"{PAIR}, val=held_out, max_epochs=2", "held_out = {'clean': (x[:30], y[:30]), 'shifted': (x[30:] + 1, y[30:])}\n",
    ),
    "several sets in a list in a variable": (
        f"{PAIR}, val=held_out, max_epochs=2", "held_out = [torch.utils.data.TensorDataset(x[n:], y[n:]) for n in (0, 50)]\n",
    ),
    "several sets, a metric over each": (
        f"{PAIR}, val={{'a': torch.utils.data.TensorDataset(x[:30], y[:30]), 'b': torch.utils.data.TensorDataset(x[30:], y[30:])}}, "
        "metrics={'right': Right()}, max_epochs=2",
        "class Right:\n    def reset(self):\n        self.found, self.seen = 0.0, 0\n\n    def update(self, output, y):\n"
        "        self.found, self.seen = self.found + float((output.argmax(1) == y).sum()), self.seen + len(y)\n\n"
        "    def compute(self):\n        return self.found / self.seen\n",
    ),
    "no validation": (f"{BOTH}, limit_val_batches=0, max_epochs=2", ""),
    "overfitting": (f"{BOTH}, overfit_batches=2, max_epochs=4", ""),
    "checks at parts of an epoch": (
        f"{BOTH}, val_check_interval=0.4, max_epochs=4, check_val_every_n_epoch=2, lr=0.3, scheduler=plateau",
        "def plateau(optimizer, updates):\n    made = torch.optim.lr_scheduler\n"
        "    return made.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)\n",
    ),
    "checks by updates": (f"{BOTH}, val_check_interval=3, max_epochs=3, {AT_LAST}", ""),
    "checks by updates, until a number of updates": (f"{BOTH}, val_check_interval=3, max_steps=8", ""),
    # the end
    "the clock": (f"{PAIR}, max_time='00:00:00:00.3', lr_schedule='linear', max_epochs=4000", ""),
    "early stopping": (f"{BOTH}, max_epochs=9, {AT_LAST}", ""),
    "early stopping before the clock, in the middle of an epoch": (
        f"{BOTH}, max_time='00:01:00:00', val_check_interval=3, weight_averaging='swa', swa_epoch_start=0, {AT_LAST}", "",
    ),
    "early stopping, minimums": (f"{BOTH}, max_epochs=9, min_epochs=3, min_steps=20, {AT_LAST}", ""),
    "early stopping by the training loss and others": (
        f"{BOTH}, max_epochs=9, log_every_n_steps=2, lr=0.01, val_check_interval=0.5, early_stopping=["
        "wb.EarlyStopping(monitor='train_loss', patience=2, warmup=3, min_delta=0.05), "
        "wb.EarlyStopping(monitor='val_loss', mode='max', patience=5, stopping_threshold=9.0, divergence_threshold=-5.0, "
        "check_finite=False)]",
        "",
    ),
    "early stopping without validation": (
        f"{PAIR}, max_epochs=9, early_stopping=wb.EarlyStopping(monitor='train_loss', patience=2, min_delta=0.1)", "",
    ),
    "the training loss, of which some epochs keep none": (
        f"{PAIR}, max_epochs=12, log_every_n_steps=12, scheduler=plateau, "
        "early_stopping=wb.EarlyStopping(monitor='train_loss', patience=2, min_delta=5)",
        "def plateau(optimizer, updates):\n    return {'scheduler': torch.optim.lr_scheduler.ReduceLROnPlateau("
        "optimizer, factor=0.5, patience=0, threshold=0.5), 'monitor': 'train_loss'}\n",
    ),
    # averaging
    "ema": (
        f"{BOTH}, weight_averaging='ema', ema_decay=0.9, averaging_every_n_steps=2, averaging_start=3, max_epochs=3", "",
    ),
    "ema from an epoch on, windows": (
        f"{PAIR}, weight_averaging='ema', averaging_start_epoch=1, max_epochs=3, accumulate_grad_batches=2", "",
    ),
    "ema of the user's own": (
        f"{BOTH}, weight_averaging='ema', avg_fn=lambda mean, now, n: mean + (now - mean) / (n + 2), "
        "should_update=lambda step, epoch: step % 3 == 0, max_epochs=2", "",
    ),
    "ema of a model with parts in eval mode, and with a spectral norm": (
        f"{BOTH.replace('model', 'network')}, weight_averaging='ema', ema_decay=0.5, max_epochs=3", PARTS,
    ),
    "swa of a model with parts in eval mode": (
        f"{PAIR.replace('model', 'network')}, weight_averaging='swa', swa_epoch_start=1, max_epochs=3", PARTS,
    ),
    "ema, inputs in a dict": (
        f"{PAIR}, val=Named(), weight_averaging='ema', ema_decay=0.5, max_epochs=2".replace("train=(x, y)", "train=Named()").replace("model", "Own()"),
        NAMED,
    ),
    "ema, a loss and a metric with statistics": (
        f"{BOTH.replace('F.cross_entropy', 'Whitened()')}, weight_averaging='ema', ema_decay=0.5, max_epochs=3, lr=0.1, "
        "metrics={'plain': F.cross_entropy, 'whitened': Whitened().eval()}, "
        "early_stopping=wb.EarlyStopping(monitor='val_whitened_averaged', patience=1, min_delta=5)", STATISTICS,
    ),
    "a loss and metrics that have modes": (
        f"{BOTH.replace('F.cross_entropy', 'Whitened()')}, max_epochs=3, lr=0.1, check_val_every_n_epoch=2, "
        "metrics={'plain': F.cross_entropy, 'whitened': Whitened()}", STATISTICS,
    ),
    "ema, no buffers": ("nn.Linear(8, 3), train=(x, y), val=(x, y), loss=F.cross_entropy, weight_averaging='ema', max_epochs=2", ""),
    "swa": (f"{BOTH}, weight_averaging='swa', swa_epoch_start=1, max_epochs=4", ""),
    "swa with a rate of its own": (
        f"{BOTH}, weight_averaging='swa', swa_epoch_start=0.5, swa_lrs=0.05, annealing_epochs=2, max_epochs=5, "
        "lr_schedule='cosine', precision='bf16-mixed'", "",
    ),
    "swa without batch norm": (
        "nn.Linear(8, 3), train=(x, y), loss=nn.CrossEntropyLoss(), weight_averaging='swa', swa_epoch_start=1, swa_lrs=0.1, "
        "annealing_strategy='linear', max_epochs=4, limit_train_batches=2", "",
    ),
    "early stopping of an average that is late": (
        f"{BOTH}, weight_averaging='swa', swa_epoch_start=2, max_epochs=9, scheduler=plateau, "
        "early_stopping=wb.EarlyStopping(monitor='val_loss_averaged', patience=2, min_delta=5)",
        "def plateau(optimizer, updates):\n    return {'scheduler': torch.optim.lr_scheduler.ReduceLROnPlateau("
        "optimizer, factor=0.5, patience=0, threshold=0.5), 'monitor': 'val_loss_averaged'}\n",
    ),
    "early stopping of an average": (
        f"{BOTH}, weight_averaging='ema', max_epochs=9, "
        "early_stopping=wb.EarlyStopping(monitor='val_loss_averaged', patience=1, min_delta=5)", "",
    ),
    # an optimizer that evaluates the loss again
    "a closure": (
        "model, train=(x, y), loss=F.cross_entropy, optimizer=torch.optim.LBFGS, lr=0.1, batch_size=50, max_epochs=2, "
        "gradient_clip_val=1.0, lr_schedule='linear', batch_transform=wb.mixup(0.4)", "",
    ),
    "a step that expects gradients and evaluates once more": (
        "model, train=(x, y), loss=F.cross_entropy, optimizer=SAM, lr=0.1, batch_size=50, max_epochs=2, gradient_clip_val=1.0", SHARP,
    ),
    # milestones
    "a rate that was found on the way": (f"{BOTH}, max_epochs=4, find_lr_at=(1, 3), lr_schedule='linear', warmup=2", ""),
    "a batch size that was found on the way": (
        f"{BOTH}, max_epochs=3, find_batch_size_at=(1,), accumulate_grad_batches=2, limit_train_batches=4", "",
    ),
    "both, at the start of swa": (
        f"{BOTH}, max_epochs=3, find_lr_at=(1,), find_batch_size_at=(1,), weight_averaging='swa', swa_epoch_start=1, swa_lrs=0.01",
        "",
    ),
    # modes
    "train() that keeps a part in eval mode, ema": (f"{BOTH.replace('model', 'Keeping()')}, weight_averaging='ema', max_epochs=3", KEEPING),
    # numbers that are not finite
    "updates left out": (
        "nn.Linear(8, 3), train=Broken(), loss=F.cross_entropy, on_nonfinite='skip', batch_size=10, max_epochs=2, "
        "gradient_clip_val=0.5, lr_schedule='linear', weight_averaging='ema'", BROKEN,
    ),
    "spikes left out": (
        "nn.Linear(8, 1), train=(far, target), loss=F.mse_loss, on_spike='skip', shuffle=False, batch_size=8, max_epochs=1, "
        "lr=0.01, gradient_clip_val=50.0, lr_schedule='linear', weight_averaging='ema'", SPIKING,
    ),
    "spikes left out, in updates of two batches": (
        "nn.Linear(8, 1), train=(far, target), loss=F.mse_loss, on_spike='skip', shuffle=False, batch_size=4, max_epochs=1, "
        "lr=0.01, accumulate_grad_batches=2, on_nonfinite='skip'", SPIKING,
    ),
    "updates left out, a schedule of their own": (
        "nn.Linear(8, 3), train=Broken(), loss=F.cross_entropy, on_nonfinite='skip', batch_size=10, max_epochs=2, "
        "accumulate_grad_batches=2, scheduler=lambda o, n: {'scheduler': torch.optim.lr_scheduler.ExponentialLR(o, 0.5), "
        "'interval': 'step', 'frequency': 2}", BROKEN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", every(2, [*CASES]))
def test_a_technique(
    case: str, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock of the run goes by its updates: by the machine's, a slow one might take none at all in 0.3 s.
    monkeypatch.setattr(Session, "seconds", property(lambda session: session.state.step / 77))
    bench = make_bench(tmp_path, *CASES[case])
    repeats(bench, runner, tmp_path)


@pytest.mark.parametrize("within", [True, False])
def test_a_stop_behind_the_last_update_of_an_epoch_of_swa(
    within: bool, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the check that follows, the weights of that epoch are averaged already; before it they are not."""
    bench = make_bench(tmp_path, f"{BOTH}, weight_averaging='swa', swa_epoch_start=0, max_epochs=9")
    validate = schedule.validate

    def validated(session: Session, batches: object, **more: Any) -> object:
        if within and session.state.step == 10:
            bench.jobs[-1].stop()
        return validate(session, batches, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(schedule, "validate", validated)
    run = fit_asking(bench, lambda job, step: job.stop() if not within and step == 10 else None)
    assert (run.status, run.step) == ("stopped", 10)
    if within:
        check(bench, run, runner.run(bench.export(tmp_path / "train.py")))
    else:
        head = " ".join(bench.script().split('"""')[1].split())
        assert "a run that was stopped before something that follows its last epoch" in head


@pytest.mark.parametrize("windows", [1, 2])
def test_float16(
    windows: int, runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The CPU can do it too, slowly: the first steps overflow and are left out, in the script as in the run.
    made = Precision(
        torch.float16, torch.device("cpu"), torch.amp.GradScaler("cpu", init_scale=2.0**24)
    )
    monkeypatch.setattr(Precision, "of", lambda *_: made)
    bench = make_bench(
        tmp_path,
        f"{BOTH}, max_epochs=4, lr_schedule='linear', gradient_clip_val=0.5, weight_averaging='ema'",
    )
    run = bench.fit(precision="16-mixed", accumulate_grad_batches=windows).result()
    script = bench.export(tmp_path / "out" / "train.py")
    lint(script)
    script.write_text(
        script.read_text().replace(".device.type)", ".device.type, init_scale=2.0**24)")
    )
    check(bench, run, runner.run(script))
    left_out = (run.history["lr"][1:] == run.history["lr"][:-1]).sum()
    assert 0 < left_out < len(run.history["lr"]) - 1


def test_names_of_the_user_stay_beside_techniques(runner: Runner, tmp_path: Path) -> None:
    """What the script calls its own is called otherwise where the user has it already."""
    ours = (
        "WINDOWS", "check", "lowest", "weights_of", "first_of", "dataclasses", "make_schedule", "math", "mean_of", "mixed_precision",
        "random_numbers_kept", "refresh_batch_norm", "should_average", "training_loader", "updates_in_epoch", "window_size",
    )  # fmt: skip
    before = "".join(f"{name} = {number}\n" for number, name in enumerate(ours, 1))
    before += (
        "\n\ndef Average(output, target):\n"
        f"    assert ({', '.join(ours)}) == {tuple(range(1, len(ours) + 1))}\n"
        "    return F.cross_entropy(output, target)\n\n\n"
        "def averaged(mean, now, count):\n    return mean + (now - mean) / (count + math - 6)\n\n\n"
        "def annealing(parameters, lr):\n    return torch.optim.SGD(parameters, lr=lr * lowest)\n"
    )
    arguments = (
        "model, train=(x, y), val=(x, y), loss=Average, optimizer=annealing, avg_fn=averaged, weight_averaging='swa', "
        "swa_epoch_start=1, swa_lrs=0.1, accumulate_grad_batches={1: 2}, precision='bf16-mixed', limit_train_batches=3, "
        "lr_schedule='linear', val_check_interval=2, early_stopping=wb.EarlyStopping(monitor='train_loss', patience=9), max_epochs=4"
    )
    bench = make_bench(tmp_path, arguments, before)
    run = bench.fit().result()
    script = bench.export(tmp_path / "out" / "train.py")
    check(bench, run, runner.run(script))
    lint(script)


EMA = f"{BOTH}, weight_averaging='ema', ema_decay=0.5, max_epochs=2"
READERS: dict[str, tuple[str, str]] = {
    "a loss that reads the model": (
        EMA.replace("F.cross_entropy", "penalised"),
        "def penalised(output, y):\n    return F.cross_entropy(output, y) + 0.1 * model.head.weight.square().sum()\n",
    ),
    "a buffer that an evaluation changes": (
        f"{EMA}, num_sanity_val_steps=0",
        "class Counts(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.body = nn.Linear(8, 3)\n"
        "        self.register_buffer('seen', torch.zeros(()))\n\n    def forward(self, x):\n        self.seen += 1\n"
        "        return self.body(x) * (1 + 0.1 * self.seen)\n\n\nmodel = Counts()\n",
    ),
}


@pytest.mark.parametrize("case", READERS)
def test_what_reads_the_model_reads_the_averaged_weights(
    case: str, runner: Runner, tmp_path: Path
) -> None:
    repeats(make_bench(tmp_path, *READERS[case]), runner, tmp_path)


def test_the_script_is_as_ruff_formats_it(tmp_path: Path) -> None:
    arguments = (
        'model, train=(x, y), val=(x, y), loss=F.cross_entropy, metrics={"top": lambda output, target: (output.argmax(1) == target).float()}, '
        "precision='bf16-mixed', accumulate_grad_batches=3, gradient_clip_val=0.4, lr_schedule='one_cycle', warmup=0.2, weight_averaging='ema', "
        "early_stopping=wb.EarlyStopping(monitor='val_loss', patience=5), max_epochs=2"
    )
    with make_bench(tmp_path, arguments) as bench:
        bench.fit().result()
        script = bench.export(tmp_path / "out" / "train.py")
    command = [
        find_ruff_bin(),
        "format",
        "--isolated",
        "--diff",
        "--line-length",
        "100",
        str(script),
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
