"""Writes a script that trains with Lightning: a LightningModule, and a Trainer with the run's
settings.

The script's docstring lists what Lightning does in another way than the run; ExportError names what
Lightning cannot do.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator
from dataclasses import replace

from workbench.export.assembly.program_source import ON_LIGHTNING, program_imports
from workbench.export.assembly.run_constants import constants_of, takes_updates
from workbench.export.assembly.text import (
    evidence,
    had,
    packages,
    plain,
    program_of,
    saved_data,
    with_users_code,
)
from workbench.export.errors import ExportError
from workbench.export.file_format import ExportOptions
from workbench.export.script_spec import ScriptSpec
from workbench.metric_mode import AVERAGED
from workbench.task.lightning.overrides import own_method
from workbench.task.lightning.task import LightningTask
from workbench.task.protocol import Task

_RETURN_IT = "return it from configure_optimizers"


def lightning_script(run: ScriptSpec, task: Task) -> str:
    """The text of the script. Raises ExportError naming what Lightning cannot do."""
    package = _package(task)
    _refuse(run, package)
    constants = constants_of(run, _title(run), ExportOptions(), torchs=False)
    constants |= _constants(run, task)
    if constants["BEST"] is not None:
        constants["BEST"] = _metric(constants["BEST"])
    constants["EARLY_STOPPING"] = [
        {**options, "monitor": _metric(options["monitor"])}
        for options in constants["EARLY_STOPPING"]
    ]
    program = program_of(run, constants, ON_LIGHTNING)
    imports = list(program_imports(ON_LIGHTNING))
    if package != "lightning":
        modules = {
            "lightning": package,
            "lightning.pytorch.callbacks": f"{package}.callbacks",
            "lightning.pytorch.loggers": f"{package}.loggers",
        }
        imports = [replace(item, module=modules.get(item.module, item.module)) for item in imports]
    return with_users_code(run, program, _head(run, package), imports)


def _constants(run: ScriptSpec, task: Task) -> dict[str, object]:
    """The constants that only the program on Lightning reads, or that differ in it. None stands
    for a default of the Trainer.
    """
    s = run.settings
    makes_loaders = _makes_loaders(run)
    own_order = run.train.sampler or run.train.batch_sampler
    shuffles = run.train.kind == "samples" and s.shuffle and not own_order
    whole_epochs = not makes_loaders and not run.limits and not run.distributed
    within_epochs, every_n_epoch = "", s.check_val_every_n_epoch
    if isinstance(s.val_check_interval, int):
        within_epochs, every_n_epoch = "updates", None  # which counts across epochs
    elif s.val_check_interval != 1.0:
        within_epochs = "fraction"
    return {
        "SINGLE_PROCESS": "Lightning has its own",
        "WORKER_SEEDS": False,
        "DRAWS_TO_THE_END": shuffles and whole_epochs,
        "MAKES_LOADERS": makes_loaders,
        "DATAMODULE": run.lightning.datamodule != "None",
        "BRINGS_CALLBACKS": isinstance(task, LightningTask)
        and own_method(task.module, "configure_callbacks") is not None,
        "ACCELERATOR": s.accelerator,
        "DEVICES": run.local_ranks,
        "NUM_NODES": s.num_nodes,
        "STRATEGY": "ddp" if run.distributed else "auto",
        "TRAINER_PRECISION": None if s.precision == "32-true" else s.precision,
        "MAX_TIME": s.max_time if run.ended_at is None else None,
        "CLIPS": s.gradient_clip_val is not None,
        "NUM_SANITY_VAL_STEPS": None if s.num_sanity_val_steps == 2 else s.num_sanity_val_steps,
        "SAVE_TOP_K": s.save_top_k if run.best is not None else 1,
        "LOG_EVERY_N_STEPS": s.log_every_n_steps,
        "CHECKS_WITHIN_EPOCHS": within_epochs,
        "CHECK_VAL_EVERY_N_EPOCH": every_n_epoch,
        "LENGTH": _length(run),
    }


def _metric(name: str) -> str:
    """The name of a metric on Lightning, which validates averaged weights instead of the others."""
    return name.removesuffix(AVERAGED)


def _package(task: Task) -> str:
    """The package of the user's LightningModule; "lightning" where the script makes one; "": the
    user's object is none.
    """
    if not isinstance(task, LightningTask):
        return "lightning"
    classes = [base for base in type(task.module).__mro__ if base.__name__ == "LightningModule"]
    return classes[0].__module__.partition(".")[0] if classes else ""


def _length(run: ScriptSpec) -> str:
    """What says for how many updates the schedule of the script's module is made; "": it does not
    depend on that.

    Lightning's own estimate (`trainer.estimated_stepping_batches`) begins to read the loader, which
    changes the order of samples.
    """
    own_schedule = not run.built_in and bool(run.optimizers[0].schedules)
    if run.hooks is not None or not (own_schedule or (run.built_in and takes_updates(run))):
        return ""
    known = run.ended_at is None and run.windows is None
    if known and run.max_epochs is None and run.max_steps is not None:
        return "steps"
    if not known or run.max_epochs is None or run.limits or not run.train.sized:
        return "scheduled"
    return "epochs" if run.max_steps is None else "both"


def _makes_loaders(run: ScriptSpec) -> bool:
    """Whether the user's objects make the loaders; Lightning then calls their methods itself."""
    return run.lightning.datamodule != "None" or any(data.made_by_object for data in run.loaders)


# ---- the head ------------------------------------------------------------------------------------


def _title(run: ScriptSpec) -> str:
    return f"Train {plain(run.model)} with Lightning, with the settings of run {plain(run.run)}."


def _head(run: ScriptSpec, package: str) -> str:
    libraries = ["torch", package]
    start = "It begins with the weights that its code makes: the run's were not recorded."
    if run.weights is not None:
        start = f"It begins with the weights in {plain(run.weights)}, if that is there."
    if run.weights is not None or run.data_file is not None:
        libraries.append("safetensors")
    libraries += packages(run.sliced.modules - set(libraries))
    notes = [
        start,
        *saved_data(run),
        f"Needs: {', '.join(libraries)}.{had(run)}",
        *run.sliced.notes,
        *run.sliced.differs,
        *evidence(run),
        "What Lightning does otherwise than the run did:",
    ]
    differences = [*_differences(run)] or ["Nothing that this run had."]
    paragraphs = [textwrap.fill(plain(note), 98) for note in notes]
    paragraphs += [
        textwrap.fill(f"- {plain(difference)}", 98, subsequent_indent="  ")
        for difference in differences
    ]
    text = "\n".join(paragraphs)
    return f'"""{_title(run)}\n\n{text}\nWritten by Tuning Workbench {run.version}.\n"""'


def _differences(run: ScriptSpec) -> Iterator[str]:
    """A sentence for each difference between Lightning and the run, as far as it concerns this
    run.
    """
    s = run.settings
    if s.on_nonfinite == "stop":
        yield "A loss that is NaN does not end the training."
    if run.validates:
        yield "Random numbers that a validation draws move those of the training after it."
    if run.validates and (
        run.validates_in_epoch or run.max_steps is not None or s.check_val_every_n_epoch != 1
    ):
        yield "A training that ends between two validations is not validated at its end."
    if run.accumulates:
        weights = "samples" if run.mean else "the batches in that window"
        yield (
            "Each batch of an update weighs 1 / accumulate_grad_batches, in a shorter window at the"
            f" end of an epoch too; the run weighted by {weights}."
        )
    if run.validates and run.accumulates and isinstance(s.val_check_interval, int):
        yield "Validations are counted in batches, so that a shorter window counts for less."
    if s.num_workers:
        yield (
            "Loader workers draw other random numbers than those of the run, where samples draw"
            " any."
        )
    if _makes_loaders(run):
        yield (
            "Your own loaders are used; they draw from the numbers that dropout draws from too,"
            " which the run's did not."
        )
    if "estimated_stepping_batches" in run.lightning.asks:
        yield (
            "self.trainer.estimated_stepping_batches begins to read the loader, so that the order"
            " of samples is another."
        )
    if run.distributed:
        yield (
            "Each process gets its samples from Lightning's DistributedSampler, in another order"
            " than in the run."
        )
    if run.accumulates and run.schedules_by_batches:
        yield "A learning rate that is scheduled by updates stays within a window of batches."
    if s.weight_averaging == "ema":
        yield from _differences_of_ema(run)
    elif run.averages:
        yield (
            "SWA leaves out the weights after the last epoch; batch-norm statistics are collected"
            " anew at the end, and a validation has the averaged weights alone."
        )
    if any(stop.restore_best for stop in s.early_stopping):
        yield "The model has its last weights at the end; the best are in the checkpoint."
    if run.ended_at is not None:
        yield f"The run was ended after {run.ended_at} updates, which is max_steps here."
    if run.scales:
        yield "With fp16, a step that the scaler skips is counted, and the schedule moves on."


def _differences_of_ema(run: ScriptSpec) -> Iterator[str]:
    yield (
        "An average of weights has the layers' buffers too; batch-norm statistics are averaged,"
        " and a validation has the averaged weights alone."
    )
    every = run.settings.averaging_every_n_steps
    if every > 1:
        yield (
            f"Weights are averaged after update 1 and then after every {every}; the run began with"
            f" update {every}."
        )
    if run.settings.ema_warmup:
        yield (
            "Lightning's exponential average does not warm up: it keeps ema_decay of itself from"
            " the beginning."
        )


# ---- what Lightning cannot do --------------------------------------------------------------------


def _refuse(run: ScriptSpec, package: str) -> None:
    """Raise ExportError for the first thing that a script on Lightning cannot do. package: "" for
    an object that is no LightningModule.
    """
    lacking = itertools.chain(_techniques(run), _arguments(run), _properties(run, package))
    if (first := next(lacking, None)) is not None:
        raise ExportError(
            f"format='lightning' cannot have {first}. Export the script on torch instead:"
            " bench.export('train.py')."
        )


def _techniques(run: ScriptSpec) -> Iterator[str]:
    """The settings of the run that Lightning does not have."""
    s = run.settings
    changed = {name for _, values in run.changes for name in values}
    if run.sizes:
        changed.add("accumulate_grad_batches")
    if changed:
        yield (
            f"{', '.join(sorted(changed))} that was changed during the run: Lightning's Trainer"
            " keeps its settings"
        )
    if edited := run.resume_points.edited:
        yield f"{', '.join(sorted(edited))} that was set where the run continues another one"
    if run.on_tpu:
        yield "accelerator='tpu', with whose losses Lightning's were not compared"
    if s.on_nonfinite == "skip":
        yield "on_nonfinite='skip': Lightning takes an update whatever its gradients"
    if run.spikes:
        yield f"on_spike={s.on_spike!r}: Lightning takes an update whatever its loss"
    if any(monitor.warmup for monitor in s.early_stopping):
        yield "EarlyStopping with warmup"
    if s.weight_averaging == "swa" and s.swa_lrs is None:
        yield "weight_averaging='swa' without swa_lrs"
    if s.weight_averaging == "ema" and s.averaging_start_epoch > 0:
        yield (
            "averaging_start_epoch: Lightning's EMAWeightAveraging waits for updates, never for an"
            " epoch"
        )
    if isinstance(s.val_check_interval, str) and run.validates:
        yield "a val_check_interval that is a time"
    if isinstance(s.val_check_interval, int) and run.windows is not None:
        yield (
            "a val_check_interval in updates with accumulate_grad_batches by epoch: Lightning"
            " counts batches"
        )
    steps = [schedule for schedule in run.schedules if schedule.interval == "step"]
    if run.accumulates and any(schedule.frequency > 1 for schedule in steps):
        yield (
            "a schedule that steps every few updates with accumulate_grad_batches: Lightning leaves"
            " out steps"
        )
    has_schedule = run.built_in or bool(run.schedules)
    if has_schedule and run.ended_at is not None and run.planned is None:
        yield "the schedule of a run without a length"
    if s.compile and run.hooks is not None:
        yield f"compile={s.compile!r} of a LightningModule: call trainer.fit(torch.compile(module))"


def _arguments(run: ScriptSpec) -> Iterator[str]:
    """The arguments of the bench that a LightningModule made by the script cannot have."""
    if run.metrics.objects:
        yield "metrics that are computed over a validation: log them in a LightningModule"
    if run.metrics.dicts:
        yield "metrics that give several numbers by name"
    if run.freezes:
        yield "wb.freeze: give a LightningModule, or Lightning's BackboneFinetuning"
    if run.val_sets:
        yield "several validation sets"
    if run.given("avg_fn") is not None or run.given("should_update") is not None:
        yield "avg_fn or should_update"
    if run.schedule_free:
        yield "an optimizer with train() and eval() (schedule-free)"
    if run.closure and (run.accumulates or run.clips):
        yield (
            "an optimizer that evaluates the loss again, with accumulate_grad_batches or"
            " gradient_clip_val"
        )
    if run.optimizers[0].closure == "after gradients":
        yield "an optimizer that expects gradients and evaluates the loss again"
    if run.hooks is None and len(run.schedules) > 1:
        yield "several schedulers: return them from a LightningModule's configure_optimizers"
    if run.hooks is None and run.warms_up:
        yield "warmup beside a scheduler: let the scheduler warm up, or give lr_schedule"
    if run.reports_weight:
        yield "batches that say how much they count, with accumulate_grad_batches"
    counts_samples = run.val is not None and run.validates and run.weighs(run.val)
    if run.hooks is None and counts_samples and run.val is not None and not run.val.counts:
        yield "a validation of batches that do not show how many samples they hold"
    ready = [data for data in run.loaders if data.kind != "samples" or data.batch_sampler]
    if run.distributed and ready:
        yield "ready batches, or a batch_sampler, of several processes"


def _properties(run: ScriptSpec, package: str) -> Iterator[str]:
    """The properties of the user's own object that Lightning refuses."""
    s = run.settings
    if not package:
        yield (
            f"{run.model}, which has a training_step and is no LightningModule: let it inherit from"
            " lightning.LightningModule"
        )
    if run.several and not run.manual:
        yield ("several optimizers without manual optimisation, which Lightning 2 no longer has")
    if run.lightning.of_lightning_1:
        yield f"{', '.join(run.lightning.of_lightning_1)} written for Lightning 1"
    if run.manual and (run.clips or run.accumulates):
        yield "gradient_clip_val or accumulate_grad_batches with manual optimisation"
    if run.hooks is None:
        return
    if run.built_in or run.warms_up:
        yield f"lr_schedule or warmup beside a LightningModule: {_RETURN_IT}"
    if s.weight_decay is not None:
        yield f"weight_decay beside a LightningModule: {_RETURN_IT}"
    rate = run.optimizers[0].made_lr
    if rate is not None and rate != s.lr:
        yield (
            f"lr={s.lr} beside a LightningModule that makes its optimizer with {rate}: {_RETURN_IT}"
        )
