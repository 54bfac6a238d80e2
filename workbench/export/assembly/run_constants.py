"""Says what a run used, as the constants of the training program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from workbench.engine.data.checksums import FIRST, OF_PARAMETER
from workbench.export.errors import NotResumable, NotStandAlone
from workbench.export.file_format import ExportOptions
from workbench.export.inputs.collect import Data
from workbench.export.program import constants
from workbench.export.script_spec import ScriptSpec
from workbench.metric_mode import AVERAGED
from workbench.settings.optimizers import parts_of
from workbench.techniques.averaging import swa_first_epoch
from workbench.techniques.limits import is_whole
from workbench.techniques.schedules import needs_length

USUAL = {name: value for name, value in vars(constants).items() if name.isupper()}
"""The constants of the program as it stands."""
_SETTINGS = (
    "lr",
    "weight_decay",
    "batch_size",
    "min_epochs",
    "min_steps",
    "check_val_every_n_epoch",
    "val_check_interval",
    "limit_train_batches",
    "limit_val_batches",
    "num_workers",
    "seed",
    "warmup",
    "min_lr_ratio",
    "decay_fraction",
    "lr_power",
    "restarts",
    "ema_decay",
    "averaging_every_n_steps",
    "averaging_start",
    "averaging_start_epoch",
    "swa_lrs",
    "annealing_epochs",
    "annealing_strategy",
    "gradient_clip_val",
    "log_every_n_steps",
)
"""The settings whose values the program reads as they are."""


def constants_of(
    run: ScriptSpec, title: str, options: ExportOptions, *, torchs: bool = True
) -> dict[str, Any]:
    """The constants of a run. Raises NotStandAlone for what the program does not have.

    torchs: for the program on torch and accelerate.
    """
    for what, is_used in _not_in_program(run).items() if torchs else ():
        if is_used:
            raise NotStandAlone(f"a stand-alone script does not support {what}.")
    if options.resume and (why := why_not_resumed(run)):
        raise NotResumable(why)
    found = {name.upper(): getattr(run.settings, name) for name in _SETTINGS}
    found |= _of_lengths(run) | _of_device(run) | _of_model(run) | _of_data(run) | _of_checks(run)
    found |= _of_update(run) | _of_optimizer(run) | _of_averages(run)
    if torchs or run.hooks is None:  # else Lightning calls configure_optimizers itself
        found |= _of_configured(run)
    if not torchs:
        # Lightning shares the batches.
        found |= {"DISTRIBUTED": False, "ACCUMULATES": run.accumulates}
    sums = _checksums(run)
    found |= {
        "TITLE": title,
        "LOGS": options.log_file,
        "TRACKS": options.tracker,
        "RESUMES": options.resume,
        "CHECKS": options.checks and bool(sums),
        "CHECKSUMS": sums,
        "FIRST_NUMBERS": FIRST,
        "FIRST_WEIGHTS": OF_PARAMETER,
    }
    assert found.keys() <= USUAL.keys(), found.keys() - USUAL.keys()
    return {**USUAL, **found}


def _not_in_program(run: ScriptSpec) -> Mapping[str, bool]:
    """What a run may have and the program has not; by description, whether the run has it."""
    return {
        **_of_model_not_in(run),
        **_of_data_not_in(run),
        **_of_optimizers_not_in(run),
        **_of_settings_not_in(run),
        **(_of_ranks_not_in(run) if run.distributed else {}),
    }


def _of_model_not_in(run: ScriptSpec) -> dict[str, bool]:
    hooks, asks = ", ".join(sorted(run.lightning.hooks)), ", ".join(sorted(run.lightning.asks))
    pairs = [name for name in run.metrics.pairs if run.has_metrics]
    followed = ", ".join(sorted(run.monitored & run.logged.in_training_alone))
    return {
        "manual optimization": run.manual,
        f"hooks ({hooks})": bool(hooks),
        f"attributes of the trainer ({asks})": bool(asks),
        "values that are logged in another way than self.log(name, value) or"
        " self.log_dict(values) in a step, such as on_epoch=True in training": run.logs_widely,
        f"early_stopping or a scheduler that follows {followed}, which training logs": bool(
            followed
        ),
        "a model whose step changes what is trained": run.lightning.freezes,
        "a sanity check that may change what the model's code keeps (num_sanity_val_steps=0 leaves"
        " it out)": run.tries_validation,
        f"metrics[{next(iter(pairs), '')!r}] whose update takes one pair (output, target)": bool(
            pairs
        ),
        f"compile={run.settings.compile!r} of a model that came compiled": (
            run.compiled and run.settings.compile is not True
        ),
        "an object with a training_step that came compiled": run.compiled and run.hooks is not None,
        "a part of the model that came compiled": run.compiled_parts,
    }


def _of_data_not_in(run: ScriptSpec) -> dict[str, bool]:
    own_order = bool(run.train.sampler or run.train.batch_sampler)
    unmeasured = not (run.train.sized or run.limits) and (
        run.validates_in_epoch or run.max_steps is not None
    )
    return {
        "batches whose number of samples their first tensor does not show": any(
            run.weighs(data) and not data.counts for data in run.loaders
        ),
        "objects that make their loaders": any(data.made_by_object for data in run.loaders),
        "several validation sets in loaders": (
            bool(run.val_sets) and run.val is not None and run.val.dataset != "val_data"
        ),
        "accumulate_grad_batches with a loader that uses the memory of a batch again": (
            run.accumulates and run.train.reuses_memory
        ),
        "a sampler of your own that is read again (for batch norm, or another batch_size)": (
            own_order and run.remakes_loader
        ),
        "batch-norm statistics of data without a length": run.refreshes_batch_norm and unmeasured,
        "a batch_size that was changed by hand": (
            run.changed("batch_size") and not run.settings.find_batch_size_at
        ),
    }


def _of_optimizers_not_in(run: ScriptSpec) -> dict[str, bool]:
    optimizer, s = run.optimizers[0], run.settings
    gaps = run.may_skip_batches or run.train.empty
    followed = [schedule for schedule in optimizer.schedules if schedule.monitor is not None]
    return {
        "several optimizers": run.several,
        "an optimizer that gets the names of its parameters": optimizer.named,
        "several schedulers": len(optimizer.schedules) > 1,
        "a scheduler whose frequency counts batches": run.schedules_by_batches,
        "a scheduler that follows every few values of a metric": any(
            schedule.frequency > 1 for schedule in followed
        ),
        "an optimizer that evaluates the loss again, with batches that are left out": (
            run.closure and gaps
        ),
        "an optimizer that evaluates the loss again, with several batches in an update": (
            run.closure and run.accumulates
        ),
        "an optimizer that evaluates the loss again, with on_nonfinite='skip' or 16-mixed": (
            run.closure and run.leaves_out
        ),
        "an optimizer that trains only some of the parameters of model and loss": (
            run.trains_loss and not optimizer.whole
        ),
        "gradient_clip_val with sparse gradients": run.sparse and run.clips,
        "updates that were left out, of a model with buffers": bool(run.restored_buffers),
        "training that went back to earlier weights (on_spike='rollback')": run.rolled_back,
        "updates that on_spike left out with 16-mixed": bool(run.spikes) and run.scales,
        "accumulate_grad_batches that was changed, in a plan by epochs": (
            bool(run.sizes) and isinstance(s.accumulate_grad_batches, dict)
        ),
        "accumulate_grad_batches that was changed, with batches that are left out": (
            bool(run.sizes) and run.may_skip_updates
        ),
    }


def _of_settings_not_in(run: ScriptSpec) -> dict[str, bool]:
    return {
        "a TPU": run.on_tpu,
        "a val_check_interval that is a time": (
            isinstance(run.settings.val_check_interval, str) and run.validates
        ),
        "a run that continues another one": bool(run.resume_points.all),
        "a change at the end of an epoch": bool(run.epoch_ends) and run.changes_meet_epochs,
        "a run that was stopped before something that follows its last epoch": run.stops_short,
    }


def _of_ranks_not_in(run: ScriptSpec) -> dict[str, bool]:
    of, devices = f"a run of {run.ranks} processes", run.settings.devices
    shared = isinstance(devices, tuple) and len(set(devices)) < len(devices)
    reason = run.single_process_reason
    return {
        f"{of} in which {reason}": bool(reason),
        f"{of} that share a device": shared,
        f"{of} with options of a launcher": bool(run.settings.launch),
        f"{of} whose data draw random numbers of the process": any(
            data.draws or data.reuses_memory for data in run.loaders
        ),
        f"{of} of a model with parameters that may have no gradient": run.partial,
        f"{of} with a loss that is trained": run.trains_loss,
        f"{of} with metrics that keep a state": run.has_metrics
        and (run.metrics.objects or run.metrics.modules),
        f"{of} in which accumulate_grad_batches or batch_size was changed": bool(run.sizes)
        or run.changed("batch_size"),
    }


def why_not_resumed(run: ScriptSpec) -> str:
    """Why a script could not continue to the last bit; "": it can."""
    positions = ", ".join(dict.fromkeys(data.unkept for data in run.loaders if data.unkept))
    reasons = {
        "several processes made it": run.distributed,
        f"no checkpoint keeps where {positions} stands after an epoch": bool(positions),
        "an optimizer holds another one, whose state is in no state_dict": (
            run.optimizers[0].holds_another
        ),
        "its batch size changes on the way": run.changed("batch_size"),
        "swa_lrs begins a schedule on the way": run.has_swa_lrs,
        "the state of a scheduler is not plain data": any(
            not schedule.restores for schedule in run.schedules
        ),
        "workers have random numbers of their own": bool(run.settings.num_workers),
        "a schedule counts the updates that are not left out": _counts_taken(run),
        "the model has buffers that its state_dict leaves out": run.unsaved_buffers,
    }
    return next((why for why, holds in reasons.items() if holds), "") or run.state


def _checksums(run: ScriptSpec) -> dict[str, list[str]]:
    """The checksums of the run that its script can compare."""
    recorded = {"weights": [run.checksums.weights], "batches": list(run.checksums.batches)}
    return {what: sums for what, sums in recorded.items() if sums and all(sums)}


def _of_lengths(run: ScriptSpec) -> dict[str, Any]:
    known = run.train.sized or run.limits
    length = "epochs" if run.max_steps is None else "both"
    if run.max_epochs is None or not known:
        length = "steps"
    if run.ended_at is not None or run.windows is not None or (not known and run.max_steps is None):
        length = "scheduled"
    s = run.settings
    size = s.accumulate_grad_batches
    changes: dict[int, dict[str, Any]] = {}
    for step, values in run.changes:
        changes.setdefault(step, {}).update(_with_numbers(values))
    trains_with = {
        "max_epochs": run.max_epochs,
        "max_steps": run.max_steps,
        "accumulate_grad_batches": (run.accumulates or run.distributed) and run.windows is None,
        "limit_train_batches": run.limits and s.limit_train_batches,
    }
    return {
        "MAX_EPOCHS": run.max_epochs,
        "MAX_STEPS": run.max_steps,
        "NEVER_ZERO": tuple(name for name, is_used in trains_with.items() if is_used),
        "SCHEDULED_STEPS": run.planned,
        "LENGTH": length if takes_updates(run) else "",
        "ACCUMULATES": run.accumulates or run.distributed,
        "ACCUMULATE_GRAD_BATCHES": size if isinstance(size, int) else 1,
        "WINDOWS": run.windows,
        "WINDOWS_BY": "step" if run.sizes else "epoch",
        "LIMITS": "" if not run.limits else _counted(s.limit_train_batches, "batches"),
        "LIMITS_VAL": (
            "" if is_whole(s.limit_val_batches) else _counted(s.limit_val_batches, "batches")
        ),
        "CHANGES": changes,
        "SEARCHES_AT_EPOCHS": bool(changes and (s.find_lr_at or s.find_batch_size_at)),
        "CHANGED": tuple(sorted({name for _, values in run.changes for name in values})),
    }


def _with_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Changed settings, with a bound where a gradient is clipped no more."""
    clip = values.get("gradient_clip_val", 0)
    return {**values, "gradient_clip_val": float("inf")} if clip is None else dict(values)


def _counted(value: Any, whole: str) -> str:
    return "fraction" if isinstance(value, float) else whole


def takes_updates(run: ScriptSpec) -> bool:
    """Whether a schedule depends on the number of updates."""
    follows = (run.built_in or run.warms_up) and needs_length(run.settings)
    return follows or bool(run.schedules and run.hooks is None)


def _of_device(run: ScriptSpec) -> dict[str, Any]:
    s = run.settings
    precision = {"bf16-mixed": "bf16", "16-mixed": "16"}.get(s.precision, "32")
    compiling = s.compile if isinstance(s.compile, dict) else {}
    if isinstance(s.compile, str):
        compiling = {"backend": s.compile}
    return {
        "CPU": s.accelerator == "cpu",
        "SINGLE_PROCESS": run.single_process_reason,
        "DISTRIBUTED": run.distributed,
        "RANKS": run.ranks,
        "DETERMINISTIC": s.deterministic or False,
        "BENCHMARK": s.benchmark,
        "DETECT_ANOMALY": bool(s.detect_anomaly),
        "PRECISION": precision,
        "COMPILES": bool(s.compile) and not run.compiled,
        "COMPILE_OPTIONS": {name: o for name, o in compiling.items() if name != "regions"},
        "COMPILES_BLOCKS": compiling.get("regions", False),
        "THREADS": run.threads,
    }


def _of_model(run: ScriptSpec) -> dict[str, Any]:
    kind, _, target = run.batch.partition(":")
    step = run.hooks is not None
    return {
        "START": run.weights,
        "BATCH": "step" if step else kind,
        "TARGET": target or None,
        "LOSS": run.given("loss") is not None,
        "LOSS_IN_DICT": run.step.in_dict and not step,
        "LOSS_MODULE": run.loss_is_module,
        "TRAINS_LOSS": run.trains_loss,
        "LOSS_PREFIX": run.loss_prefix,
        "KEEPS_MODES": run.frozen_modes or run.overrides_modes,
        "OVERRIDES_MODES": run.overrides_modes,
        "COMPILED": run.compiled,
        "TAKES_NUMBER": run.step_takes_batch_idx,
        "VALIDATION_TAKES_NUMBER": run.hooks is not None and run.hooks.val_index,
        "HAS_HOME": tuple(run.hooks.homes) if run.hooks is not None else (),
        "LOGS_IN_STEPS": step,
        "LEAVES_GRADIENTS": re.search(r"\.(backward|fit)\(", run.sliced.code) is not None,
    }


def _of_data(run: ScriptSpec) -> dict[str, Any]:
    s = run.settings
    pins = s.pin_memory or (
        s.pin_memory is None and s.accelerator != "cpu" and all(d.pinned for d in run.loaders)
    )
    found = {
        "SHUFFLE": bool(s.shuffle) and not (run.train.sampler or run.train.batch_sampler),
        "DROP_LAST": bool(s.drop_last),
        "PIN_MEMORY": bool(pins),
        "PERSISTENT_WORKERS": bool(s.persistent_workers and s.num_workers),
        "PREFETCH_FACTOR": s.prefetch_factor if s.num_workers else None,
        "WORKER_SEEDS": bool(s.num_workers) and any(data.kind == "samples" for data in _read(run)),
        "SAMPLERS_DRAW": bool(sampler_generators(run)),
        "SETS_EPOCH": bool(epoch_parts(run)),
        "TRAIN_KIND": run.train.kind,
        "TRAIN_FORM": _form(run.train),
        "TRAIN_OWN": _own(run.train),
        "MAY_BE_EMPTY": (
            run.may_skip_batches or run.train.empty or (run.val is not None and run.val.empty)
        ),
        "SIZED": run.train.sized,
        "MEAN": run.mean,
        "DRAWS_ELSEWHERE": (
            "random" in run.sliced.code.replace("torch.random", "").replace("random_split", "")
        ),
    }
    if run.val is not None and run.validates:
        found |= {"VAL_KIND": run.val.kind, "VAL_FORM": _form(run.val), "VAL_OWN": _own(run.val)}
    return found


def epoch_parts(run: ScriptSpec) -> list[str]:
    """The samplers and data sets with a `set_epoch`, as expressions."""
    return list(dict.fromkeys(part for data in _read(run) for part in data.with_set_epoch))


def sampler_generators(run: ScriptSpec) -> list[str]:
    """The generators of the user's samplers, as expressions."""
    return list(dict.fromkeys(part for data in _read(run) for part in data.generators))


def _read(run: ScriptSpec) -> list[Data]:
    """The data that the script reads."""
    return [run.train, *([run.val] if run.val is not None and run.validates else [])]


def _form(data: Data) -> str:
    if data.columns:
        return "columns"
    ready = data.kind == "batches" and not data.iterable and ".dataset" not in data.dataset
    return "batches" if ready else "dataset"


def _own(data: Data) -> tuple[str, ...]:
    """What of the loader is the user's."""
    parts = {
        "sampler": data.sampler and not data.batch_sampler,
        "batch_sampler": data.batch_sampler,
        "generator": data.generator,
        "collate_fn": data.collate,
        "worker_init_fn": data.worker_init,
    }
    return tuple(name for name, value in parts.items() if value)


def _of_checks(run: ScriptSpec) -> dict[str, Any]:
    s = run.settings
    within = ""
    if run.validates_in_epoch:
        within = _counted(s.val_check_interval, "updates")
    stoppers = [_monitor(monitor) for monitor in run.monitors]
    options = {name for stopper in stoppers for name in stopper}
    return {
        "VALIDATES": run.validates,
        "VAL_SETS": run.validates and bool(run.val_sets),
        "METRICS": run.has_metrics,
        "METRIC_OBJECTS": run.has_metrics and run.metrics.objects,
        "METRIC_FUNCTIONS": run.has_metrics and run.metrics.functions,
        "METRIC_DICTS": run.has_metrics and run.metrics.dicts,
        "METRIC_MODULES": run.has_metrics and run.metrics.modules,
        "BEST": None if run.best is None else run.best[0],
        "BEST_IS_HIGHEST": run.best is not None and run.best[1] == "max",
        "BEST_IS_OF_AVERAGE": (
            run.best is not None and run.averages and run.best[0].endswith(AVERAGED)
        ),
        "EARLY_STOPPING": stoppers,
        "STOPPERS_MAXIMIZE": "mode" in options,
        "STOPPERS_WARM_UP": "warmup" in options,
        "STOPPERS_HAVE_GOALS": "stopping_threshold" in options,
        "STOPPERS_HAVE_BOUNDS": "divergence_threshold" in options,
        "STOPPERS_IGNORE_NAN": "check_finite" in options,
        "FOLLOWS_TRAIN_LOSS": run.monitors_train_loss,
        "CHECKS_WITHIN_EPOCHS": within,
        "HAS_CHECKS": run.checks,
    }


def _monitor(monitor: Any) -> dict[str, Any]:
    """The arguments of an `EarlyStopping` that differ from their defaults."""
    usual = {
        "mode": "min", "patience": 3, "min_delta": 0.0, "warmup": 0, "stopping_threshold": None,
        "divergence_threshold": None, "check_finite": True,
    }  # fmt: skip
    values = {name: getattr(monitor, name) for name in usual if name != "mode"} | {
        "mode": monitor.direction
    }
    return {
        "monitor": monitor.monitor,
        **{name: value for name, value in values.items() if value != usual[name]},
    }


def _of_update(run: ScriptSpec) -> dict[str, Any]:
    closure = run.optimizers[0].closure
    return {
        "TRANSFORMS": run.given("batch_transform") is not None,
        "WEIGHS": run.hooks is None and run.step.reports_weight,
        "CLIPS": run.clips,
        "GRADIENT_CLIP_VAL": (
            float("inf")
            if run.settings.gradient_clip_val is None
            else run.settings.gradient_clip_val
        ),
        "CLIP_ALGORITHM": run.settings.gradient_clip_algorithm,
        "LEAVES_OUT": run.settings.on_nonfinite == "skip",
        "SPIKES": run.spikes,
        "CLOSURE": "" if closure == "never" else closure,
    }


def _of_optimizer(run: ScriptSpec) -> dict[str, Any]:
    optimizer, s = run.optimizers[0], run.settings
    schedule = optimizer.schedules[0] if optimizer.schedules else None
    own = ""
    if schedule is not None:
        own = "check" if schedule.monitor is not None else schedule.interval
    made_up = run.accumulates and (run.may_skip_batches or run.reports_weight or run.train.empty)
    return {
        "MUON": s.optimizer is not None and parts_of(s.optimizer)[0] == "muon",
        "PARTS": tuple(map(dict, optimizer.parts)),
        "GROUPS": run.divides,
        "FREEZES": run.freezes,
        "TAKES_LR": optimizer.takes_lr,
        "MADE_LR": optimizer.made_lr,
        "TRAINS_ALL": optimizer.whole,
        "NEEDS_PARAMETERS": bool(
            run.clips or s.on_nonfinite == "skip" or made_up or run.distributed
        ),
        "SCHEDULE_FREE": run.schedule_free,
        "LEADING": optimizer.leading,
        "SCHEDULE": s.lr_schedule if run.built_in else "",
        "DECAY_SHAPE": s.decay_shape,
        "WARMS_UP": bool(s.warmup) and not run.warms_up,
        "OWN_WARMS_UP": run.warms_up,
        "WARMUP_IS_FRACTION": isinstance(s.warmup, float),
        "MOMENTUM": optimizer.momentum,
        "OWN_SCHEDULER": own,
        "FREQUENCY": 1 if schedule is None else schedule.frequency,
        "MONITOR": "val_loss" if schedule is None or schedule.monitor is None else schedule.monitor,
        "OVERSHOOTS": s.lr_schedule == "one_cycle" and run.another_length,
        "FROZEN_GROUPS": optimizer.frozen_groups,
        "COUNTS_TAKEN": _counts_taken(run),
    }


def _of_configured(run: ScriptSpec) -> dict[str, Any]:
    """What `configure_optimizers`, or the function that makes the scheduler, returns."""
    optimizer = run.optimizers[0]
    place = optimizer.schedules[0].place if optimizer.schedules else ""
    if run.hooks is None:
        if place not in ("", '["scheduler"]', "['scheduler']"):
            if place.endswith(".scheduler"):
                raise NotStandAlone(
                    "a stand-alone script does not support wb.Schedule: return a dict instead, as"
                    ' in {"scheduler": ..., "interval": "epoch"}.'
                )
            raise NotStandAlone(
                "a stand-alone script does not support a list with a scheduler: return it alone."
            )
        return {"SCHEDULER_IN_DICT": bool(place)}
    forms = {
        ("", ""): ("optimizer", False),
        ("[0][0]", "[1][0]"): ("lists", False),
        ("[0][0]", '[1][0]["scheduler"]'): ("lists", True),
        ('["optimizer"]', '["lr_scheduler"]'): ("dict", False),
        ('["optimizer"]', '["lr_scheduler"]["scheduler"]'): ("dict", True),
    }
    form = forms.get((optimizer.place.replace("'", '"'), place.replace("'", '"')))
    if form is None:
        raise NotStandAlone(
            "a stand-alone script does not support configure_optimizers() with an optimizer at"
            f" {optimizer.place}."
        )
    return {"OPTIMIZER_FORM": form[0], "SCHEDULER_IN_DICT": form[1]}


def _counts_taken(run: ScriptSpec) -> bool:
    """Whether a schedule of the user's, or its warm-up, counts updates that are not left out."""
    return run.leaves_out and (
        run.warms_up
        or any(
            schedule.frequency > 1 and schedule.interval == "step"
            for schedule in run.optimizers[0].schedules[:1]
        )
    )


def _of_averages(run: ScriptSpec) -> dict[str, Any]:
    s = run.settings
    return {
        "AVERAGING": s.weight_averaging or "",
        "EMA_WARMUP": bool(s.ema_warmup),
        "OWN_AVERAGE": run.given("avg_fn") is not None,
        "OWN_TIMES": run.given("should_update") is not None,
        "BATCH_NORM": run.refreshes_batch_norm,
        "HAS_BUFFERS": bool(run.buffers) and run.validates,
        "SWA_EPOCH_START": swa_first_epoch(s) if s.weight_averaging == "swa" else 0,
        "SWA_LRS": s.swa_lrs if run.has_swa_lrs else None,
    }
