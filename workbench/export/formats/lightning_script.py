"""Writes a script that trains with Lightning: a LightningModule, and a Trainer with the run's settings.

The script's docstring lists what Lightning does in another way than the run; ExportError names what Lightning cannot do.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace

from workbench.export.assembly.program_source import ON_LIGHTNING, program_imports
from workbench.export.assembly.run_constants import constants_of, takes_updates
from workbench.export.assembly.text import evidence, plain, program_of, saved_data, with_users_code
from workbench.export.errors import ExportError
from workbench.export.file_format import ExportOptions
from workbench.export.script_spec import ScriptSpec
from workbench.task.lightning.overrides import own_method
from workbench.task.lightning.task import LightningTask
from workbench.task.protocol import Task

_OWN = "return it from configure_optimizers"


def lightning_script(r: ScriptSpec, task: Task) -> str:
    """The text of the script. Raises NotStandAlone naming what Lightning cannot do."""
    package = _package(task)
    _refuse(r, package)
    constants = {**constants_of(r, _title(r), ExportOptions(), torchs=False), **_constants(r, task)}
    renamed = {
        "lightning": package,
        "lightning.pytorch.callbacks": f"{package}.callbacks",
        "lightning.pytorch.loggers": f"{package}.loggers",
    }
    imports = [
        item
        if package == "lightning"
        else replace(item, module=renamed.get(item.module, item.module))
        for item in program_imports(ON_LIGHTNING)
    ]
    return with_users_code(r, program_of(r, constants, ON_LIGHTNING), _head(r, package), imports)


def _constants(r: ScriptSpec, task: Task) -> dict[str, object]:
    """The constants that only the program on Lightning reads, or that differ in it."""
    s = r.settings
    shuffles = (
        r.train.kind == "samples"
        and s.shuffle
        and not r.train.sampler
        and not r.train.batch_sampler
    )
    makes_loaders = _makes_loaders(r)
    is_by_updates = isinstance(s.val_check_interval, int)
    return {
        "SINGLE_PROCESS": "Lightning has its own",
        "WORKER_SEEDS": False,
        "DRAWS_TO_THE_END": not makes_loaders and shuffles and not r.limits,
        "MAKES_LOADERS": makes_loaders,
        "DATAMODULE": r.lightning.datamodule != "None",
        "BRINGS_CALLBACKS": isinstance(task, LightningTask)
        and own_method(task.module, "configure_callbacks") is not None,
        "ACCELERATOR": s.accelerator,
        "DEVICES": r.local_ranks,
        "NUM_NODES": s.num_nodes,
        "STRATEGY": "ddp" if r.distributed else "auto",
        "TRAINER_PRECISION": s.precision,
        "MAX_TIME": s.max_time if r.ended_at is None else None,
        "CLIPS": s.gradient_clip_val is not None,
        "NUM_SANITY_VAL_STEPS": s.num_sanity_val_steps,
        "SAVE_TOP_K": s.save_top_k if r.best is not None else 1,
        "LOG_EVERY_N_STEPS": s.log_every_n_steps,
        "CHECKS_WITHIN_EPOCHS": "updates"
        if is_by_updates
        else "fraction"
        if s.val_check_interval != 1.0
        else "",
        "CHECK_VAL_EVERY_N_EPOCH": s.check_val_every_n_epoch,
        "LENGTH": (_length(r) or "scheduled") if _by_updates(r) else "",
    }


def _package(task: Task) -> str:
    """The package of the user's LightningModule; "lightning" where the script makes one; "": the user's object is none."""
    if not isinstance(task, LightningTask):
        return "lightning"
    classes = [base for base in type(task.module).__mro__ if base.__name__ == "LightningModule"]
    return classes[0].__module__.partition(".")[0] if classes else ""


# ---- the head ---------------------------------------------------------------------------------------------------


def _title(r: ScriptSpec) -> str:
    return f"Train {plain(r.model)} with Lightning, with the settings of run {plain(r.run)}."


def _head(r: ScriptSpec, package: str) -> str:
    needed = ", ".join(["torch", package, *sorted(r.sliced.modules - {"torch", package})])
    start = "It begins with the weights that its code makes: the run's were not recorded."
    if r.weights is not None:
        start = f"It begins with the weights in {plain(r.weights)}, if that is there."
    notes = [
        start,
        *saved_data(r),
        f"Needs: {needed}.",
        *r.sliced.notes,
        *r.sliced.differs,
        *evidence(r),
        "What Lightning does otherwise than the run did:",
        *(f"- {line}" for line in _differences(r)),
    ]
    text = "\n".join(
        textwrap.fill(plain(note), 98, subsequent_indent="  " if note[0] == "-" else "")
        for note in notes
    )
    return f'"""{_title(r)}\n\n{text}\nWritten by Tuning Workbench {r.version}.\n"""'


def _by_updates(r: ScriptSpec) -> bool:
    """Whether the schedule of the module that the script makes depends on the number of updates."""
    return r.hooks is None and (takes_updates(r) if r.built_in else bool(r.optimizers[0].schedules))


def _length(r: ScriptSpec) -> str:
    """What says for how many updates the schedule is made.

    Lightning's own estimate (`trainer.estimated_stepping_batches`) begins to read the loader, which changes the order of samples.
    """
    known = r.ended_at is None and r.windows is None
    if known and r.max_epochs is None and r.max_steps is not None:
        return "steps"
    if not known or r.max_epochs is None or r.limits or not r.train.sized:
        return "scheduled"
    return "epochs" if r.max_steps is None else "both"


# ---- what Lightning cannot do ------------------------------------------------------------------------------------


def _refuse(r: ScriptSpec, package: str) -> None:
    """Raise ExportError for the first thing that a script on Lightning cannot do. package: "" for an object that is no LightningModule."""
    for what, there in {**_technique(r), **_given(r), **_module(r, package)}.items():
        if there:
            raise ExportError(
                f"format='lightning' cannot have {what}. Export the script on torch instead: bench.export('train.py')."
            )


def _technique(r: ScriptSpec) -> dict[str, bool]:
    """Settings of the run that Lightning does not have; by description, whether the run has them."""
    s = r.settings
    changed = sorted(
        {name for _, values in r.changes for name in values}
        | ({"accumulate_grad_batches"} if r.sizes else set())
    )
    by_updates = isinstance(s.val_check_interval, int)
    return {
        f"{', '.join(changed)} that was changed during the run: Lightning's Trainer keeps its settings": bool(
            changed
        ),
        f"{', '.join(sorted(r.resume_points.edited))} that was set where the run continues another one": bool(
            r.resume_points.edited
        ),
        "accelerator='tpu', with whose losses Lightning's were not compared": r.on_tpu,
        "on_nonfinite='skip': Lightning takes an update whatever its gradients": s.on_nonfinite
        == "skip",
        "EarlyStopping with warmup": any(monitor.warmup for monitor in s.early_stopping),
        "weight_averaging='swa' without swa_lrs": s.weight_averaging == "swa" and s.swa_lrs is None,
        "averaging_start_epoch: Lightning's EMAWeightAveraging waits for updates, never for an epoch": s.weight_averaging
        == "ema"
        and s.averaging_start_epoch > 0,
        "a val_check_interval that is a time": isinstance(s.val_check_interval, str)
        and r.validates,
        "a val_check_interval in updates with accumulate_grad_batches by epoch: Lightning counts batches": by_updates
        and r.windows is not None,
        "a schedule that steps every few updates with accumulate_grad_batches: Lightning leaves out steps": r.accumulates
        and any(one.interval == "step" and one.frequency > 1 for one in r.schedules),
        "the schedule of a run without a length": (r.built_in or bool(r.schedules))
        and r.ended_at is not None
        and r.planned is None,
        f"compile={s.compile!r} of a LightningModule: call trainer.fit(torch.compile(module))": bool(
            s.compile
        )
        and r.hooks is not None,
    }


def _given(r: ScriptSpec) -> dict[str, bool]:
    """Arguments of the bench that a LightningModule made by the script cannot have; by description, whether there are any."""
    optimizer = r.optimizers[0]
    return {
        "metrics that are computed over a validation: log them in a LightningModule": r.metrics.objects,
        "metrics that give several numbers by name": r.metrics.dicts,
        "several validation sets": bool(r.val_sets),
        "avg_fn or should_update": r.given("avg_fn") is not None
        or r.given("should_update") is not None,
        "an optimizer with train() and eval() (schedule-free)": r.schedule_free,
        "an optimizer that evaluates the loss again, with accumulate_grad_batches or gradient_clip_val": r.closure
        and (r.accumulates or r.clips),
        "an optimizer that expects gradients and evaluates the loss again": optimizer.closure
        == "after gradients",
        "batches that say how much they count, with accumulate_grad_batches": r.reports_weight,
        "a validation of batches that do not show how many samples they hold": r.hooks is None
        and r.val is not None
        and r.validates
        and r.weighs(r.val)
        and not r.val.counts,
        "ready batches, or a batch_sampler, of several processes": r.distributed
        and any(d.kind != "samples" or d.batch_sampler for d in r.loaders),
    }


def _module(r: ScriptSpec, package: str) -> dict[str, bool]:
    """Properties of the user's own object that Lightning refuses; by description, whether it has them."""
    s, own = r.settings, r.hooks is not None
    rate = r.optimizers[0].made_lr
    return {
        f"{r.model}, which has a training_step and is no LightningModule: let it inherit from lightning.LightningModule": not package,
        "several optimizers without manual optimisation, which Lightning 2 no longer has": r.several
        and not r.manual,
        f"{', '.join(r.lightning.of_lightning_1)} written for Lightning 1": bool(
            r.lightning.of_lightning_1
        ),
        "gradient_clip_val or accumulate_grad_batches with manual optimisation": r.manual
        and (r.clips or r.accumulates),
        f"lr_schedule or warmup beside a LightningModule: {_OWN}": own and r.built_in,
        f"weight_decay beside a LightningModule: {_OWN}": own and s.weight_decay is not None,
        f"lr={s.lr} beside a LightningModule that makes its optimizer with {rate}: {_OWN}": own
        and rate is not None
        and rate != s.lr,
    }


# ---- the Trainer -------------------------------------------------------------------------------------------------


def _makes_loaders(r: ScriptSpec) -> bool:
    """Whether the user's objects make the loaders; Lightning then calls their methods itself."""
    return r.lightning.datamodule != "None" or any(data.made_by_object for data in r.loaders)


def _differences(r: ScriptSpec) -> list[str]:
    """A sentence for each difference between Lightning and the run, as far as it concerns this run."""
    s = r.settings
    averages = (
        "An average of weights has the layers' buffers too"
        if s.weight_averaging == "ema"
        else "SWA leaves out the weights after the last epoch"
    )
    sentences = {
        "A loss that is NaN does not end the training.": s.on_nonfinite == "stop",
        "Random numbers that a validation draws move those of the training after it.": r.validates,
        "Each batch of an update weighs 1 / accumulate_grad_batches, in a shorter window at the end of an epoch too; the run weighted "
        f"by {'samples' if r.mean else 'the batches in that window'}.": r.accumulates,
        "Loader workers draw other random numbers than those of the run, where samples draw any.": bool(
            s.num_workers
        ),
        "Your own loaders are used; they draw from the numbers that dropout draws from too, which the run's did not.": _makes_loaders(
            r
        ),
        "self.trainer.estimated_stepping_batches begins to read the loader, so that the order of samples is another.": "estimated_stepping_batches"
        in r.lightning.asks,
        "Each process gets its samples from Lightning's DistributedSampler, in another order than in the run.": r.distributed,
        "A learning rate that is scheduled by updates stays within a window of batches.": r.accumulates
        and r.schedules_by_batches,
        f"{averages}; batch-norm statistics are {'averaged' if s.weight_averaging == 'ema' else 'collected anew at the end'}, and a "
        "validation has the averaged weights alone.": r.averages,
        f"Weights are averaged after update 1 and then after every {s.averaging_every_n_steps}; the run began with update {s.averaging_every_n_steps}.": s.weight_averaging
        == "ema"
        and s.averaging_every_n_steps > 1,
        "Lightning's exponential average does not warm up: it keeps ema_decay of itself from the beginning.": s.weight_averaging
        == "ema"
        and s.ema_warmup,
        "The model has its last weights at the end; the best are in the checkpoint.": any(
            stop.restore_best for stop in s.early_stopping
        ),
        f"The run was ended after {r.ended_at} updates, which is max_steps here.": r.ended_at
        is not None,
        "With fp16, a step that the scaler skips is counted, and the schedule moves on.": r.scales,
    }
    return [line for line, there in sentences.items() if there] or ["Nothing that this run had."]
