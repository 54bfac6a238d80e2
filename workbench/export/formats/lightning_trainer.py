"""Writes the arguments of Lightning's Trainer for a run, and says what it does otherwise with them."""

from __future__ import annotations

from workbench.export.inputs.collect import quoted
from workbench.export.script_spec import ScriptSpec
from workbench.techniques.averaging import swa_first_epoch
from workbench.techniques.limits import is_whole
from workbench.values import EarlyStopping

CALLBACKS = ("EarlyStopping", "EMAWeightAveraging", "GradientAccumulationScheduler", "ModelCheckpoint", "StochasticWeightAveraging")
"""The callbacks that a script may use."""


def makes_loaders(r: ScriptSpec) -> bool:
    """Whether the user's objects make the loaders: then Lightning asks them itself."""
    return r.lightning.datamodule != "None" or any(data.before for data in r.loaders)


def arguments(r: ScriptSpec) -> list[str]:
    """The arguments of the Trainer; those that have Lightning's default are left out."""
    s = r.settings
    found = {
        "accelerator": quoted(s.accelerator) if s.accelerator != "auto" else "",
        "devices": str(r.local_ranks),
        "num_nodes": str(s.num_nodes) if s.num_nodes > 1 else "",
        "strategy": '"ddp"' if r.distributed else "",
        "precision": quoted(s.precision) if s.precision != "32-true" else "",
        **_length(r),
        "gradient_clip_val": "config.gradient_clip_val" if s.gradient_clip_val is not None else "",
        "gradient_clip_algorithm": '"value"' if s.gradient_clip_val is not None and s.gradient_clip_algorithm == "value" else "",
        "accumulate_grad_batches": "config.accumulate_grad_batches" if s.accumulate_grad_batches != 1 and r.windows is None else "",
        "limit_train_batches": "" if is_whole(s.limit_train_batches) else "config.limit_train_batches",
        "limit_val_batches": "" if is_whole(s.limit_val_batches) else "config.limit_val_batches",
        **_validation(r),
        "num_sanity_val_steps": str(s.num_sanity_val_steps) if s.num_sanity_val_steps != 2 else "",
        "deterministic": repr(s.deterministic).replace("'", '"') if s.deterministic else "",
        "benchmark": str(s.benchmark) if s.benchmark is not None else "",
        "log_every_n_steps": str(s.log_every_n_steps),
        "logger": "CSVLogger(output)",
    }
    return [f"{name}={value}" for name, value in found.items() if value]


def _length(r: ScriptSpec) -> dict[str, str]:
    s = r.settings
    endless = r.max_epochs is None and r.max_steps is None
    return {
        "max_epochs": "config.max_epochs" if r.max_epochs is not None else "-1" if endless else "",
        "max_steps": "config.max_steps" if r.max_steps is not None else "",
        "min_epochs": "config.min_epochs" if s.min_epochs else "",
        "min_steps": "config.min_steps" if s.min_steps else "",
        "max_time": quoted(s.max_time) if s.max_time is not None and r.ended_at is None else "",
    }


def _validation(r: ScriptSpec) -> dict[str, str]:
    s = r.settings
    interval = "config.val_check_interval"
    if isinstance(s.val_check_interval, int) and s.accumulate_grad_batches != 1:
        interval += " * config.accumulate_grad_batches"  # Lightning counts batches, the run counted updates
    every = "config.check_val_every_n_epoch" if s.check_val_every_n_epoch is not None else "None"
    return {
        "check_val_every_n_epoch": every if s.check_val_every_n_epoch != 1 else "",
        "val_check_interval": interval if s.val_check_interval != 1.0 or isinstance(s.val_check_interval, int) else "",
    }


def callbacks(r: ScriptSpec) -> list[str]:
    """The Trainer's callbacks."""
    s = r.settings
    best = f", monitor={quoted(r.best[0])}, mode={quoted(r.best[1])}" if r.best is not None else ""
    many = f", save_top_k={s.save_top_k}" if r.best is not None and s.save_top_k != 1 else ""
    found = [f"ModelCheckpoint(output{best}{many})", *map(_stopping, s.early_stopping)]
    if r.windows is not None:
        found.append(f"GradientAccumulationScheduler({r.windows})")
    if s.weight_averaging == "ema":
        every = s.averaging_every_n_steps if s.averaging_every_n_steps != 1 else 0
        given = {"update_every_n_steps": every, "update_starting_at_step": s.averaging_start}
        found.append(f"EMAWeightAveraging(decay=config.ema_decay{''.join(f', {name}={value}' for name, value in given.items() if value)})")
    elif s.weight_averaging == "swa":
        options = f"annealing_epochs={s.annealing_epochs}, annealing_strategy={quoted(s.annealing_strategy)}"
        found.append(f"StochasticWeightAveraging(swa_lrs=config.swa_lrs, swa_epoch_start={swa_first_epoch(s) + 1}, {options})")
    return found


def _stopping(monitor: EarlyStopping) -> str:
    there = {**dict(monitor), "mode": None if monitor.direction == "min" else "max"}
    changed = {name: value for name, value in there.items() if name != "monitor" and value != type(monitor).model_fields[name].default}
    options = "".join(f", {name}={quoted(value)}" for name, value in changed.items())
    return f"EarlyStopping({quoted(monitor.monitor)}{options})"


def differences(r: ScriptSpec) -> list[str]:
    """A sentence for each thing that Lightning does otherwise than the run, as far as the run had it."""
    s = r.settings
    averages = "An average of weights has the layers' buffers too" if s.weight_averaging == "ema" else "SWA leaves out the weights after the last epoch"
    told = {
        "A loss that is NaN does not end the training.": s.on_nonfinite == "stop",
        "Random numbers that a validation draws move those of the training after it.": r.validates,
        "Each batch of an update weighs 1 / accumulate_grad_batches, in a shorter window at the end of an epoch too; the run weighted "
        f"by {'samples' if r.mean else 'the batches in that window'}.": r.accumulates,
        "Loader workers draw other random numbers than those of the run, where samples draw any.": bool(s.num_workers),
        "Your own loaders are used; they draw from the numbers that dropout draws from too, which the run's did not.": makes_loaders(r),
        "self.trainer.estimated_stepping_batches begins to read the loader, so that the order of samples is another.": "estimated_stepping_batches" in r.lightning.asks,
        "Each process gets its samples from Lightning's DistributedSampler, in another order than in the run.": r.distributed,
        "A learning rate that is scheduled by updates stays within a window of batches.": r.accumulates and r.schedules_by_batches,
        f"{averages}; batch-norm statistics are {'averaged' if s.weight_averaging == 'ema' else 'collected anew at the end'}, and a "
        "validation has the averaged weights alone.": r.averages,
        f"Weights are averaged after update 1 and then after every {s.averaging_every_n_steps}; the run began with update {s.averaging_every_n_steps}.": s.weight_averaging
        == "ema" and s.averaging_every_n_steps > 1,
        f"The run was ended after {r.ended_at} updates, which is max_steps here.": r.ended_at is not None,
        "With fp16, a step that the scaler skips is counted, and the schedule moves on.": r.scales,
    }
    return [line for line, there in told.items() if there] or ["Nothing that this run had."]
