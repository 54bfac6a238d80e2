"""Raises ExportError for what a run had and Lightning has no way to do."""

from __future__ import annotations

from workbench.export.errors import ExportError
from workbench.export.script_spec import ScriptSpec

_OWN = "return it from configure_optimizers"


def refuse(r: ScriptSpec, package: str) -> None:
    """Raise ExportError for the first thing that a script on Lightning cannot do. package: "" for an object that is no LightningModule."""
    for what, there in {**_technique(r), **_given(r), **_module(r, package)}.items():
        if there:
            raise ExportError(f"format='lightning' cannot have {what}. Export the script on torch instead: bench.export('train.py').")


def _technique(r: ScriptSpec) -> dict[str, bool]:
    """What of the settings Lightning has no word for."""
    s = r.settings
    changed = sorted({name for _, values in r.changes for name in values} | ({"accumulate_grad_batches"} if r.sizes else set()))
    by_updates = isinstance(s.val_check_interval, int)
    return {
        f"{', '.join(changed)} that was changed during the run: Lightning's Trainer keeps its settings": bool(changed),
        f"{', '.join(sorted(r.resume_points.edited))} that was set where the run continues another one": bool(r.resume_points.edited),
        "accelerator='tpu', with whose losses Lightning's were not compared": r.on_tpu,
        "truncated_bptt_steps, which Lightning 2 has no more": r.tbptt,
        "on_nonfinite='skip': Lightning takes an update whatever its gradients": s.on_nonfinite == "skip",
        "EarlyStopping with warmup": any(monitor.warmup for monitor in s.early_stopping),
        "weight_averaging='swa' without swa_lrs": s.weight_averaging == "swa" and s.swa_lrs is None,
        "averaging_start_epoch: Lightning's EMAWeightAveraging waits for updates, never for an epoch": s.weight_averaging == "ema"
        and s.averaging_start_epoch > 0,
        "a val_check_interval that is a time": isinstance(s.val_check_interval, str) and r.validates,
        "a val_check_interval in updates with accumulate_grad_batches by epoch: Lightning counts batches": by_updates and r.windows is not None,
        "a schedule that steps every few updates with accumulate_grad_batches: Lightning leaves out steps": r.accumulates
        and any(one.interval == "step" and one.frequency > 1 for one in r.schedules),
        "the schedule of a run without a length": (r.built_in or bool(r.schedules)) and r.ended_at is not None and r.planned is None,
        f"compile={s.compile!r} of a LightningModule: call trainer.fit(torch.compile(module))": bool(s.compile) and r.hooks is not None,
    }


def _given(r: ScriptSpec) -> dict[str, bool]:
    """What was given to the bench and has no place in a LightningModule that the script makes."""
    optimizer = r.optimizers[0]
    return {
        "metrics that are computed over a validation: log them in a LightningModule": r.metrics.objects,
        "metrics that give several numbers by name": r.metrics.dicts,
        "several validation sets": bool(r.val_sets),
        "avg_fn or should_update": r.given("avg_fn") is not None or r.given("should_update") is not None,
        "an optimizer with train() and eval() (schedule-free)": r.schedule_free,
        "an optimizer that evaluates the loss again, with accumulate_grad_batches or gradient_clip_val": r.closure and (r.accumulates or r.clips),
        "an optimizer that expects gradients and evaluates the loss again": optimizer.closure == "after gradients",
        "batches that say how much they count, with accumulate_grad_batches": r.reports_weight,
        "a validation of batches that do not show how many samples they hold": r.hooks is None
        and r.val is not None and r.validates and r.weighs(r.val) and not r.val.counts,
        "ready batches, or a batch_sampler, of several processes": r.distributed and any(d.kind != "samples" or d.batch_sampler for d in r.loaders),
    }


def _module(r: ScriptSpec, package: str) -> dict[str, bool]:
    """What of the user's own object Lightning refuses."""
    s, own = r.settings, r.hooks is not None
    rate = r.optimizers[0].made_lr
    lightning_1 = [name for name, hook in r.lightning.hooks.items() if hook.arguments]
    return {
        f"{r.model}, which has a training_step and is no LightningModule: let it inherit from lightning.LightningModule": not package,
        "several optimizers without manual optimisation, which Lightning 2 has no more": r.several and not r.manual,
        f"{', '.join(lightning_1)} written for Lightning 1": bool(lightning_1),
        f"{', '.join(r.extra_arguments)} in training_step, which Lightning 2 has no more": bool(r.extra_arguments),
        "gradient_clip_val or accumulate_grad_batches with manual optimisation": r.manual and (r.clips or r.accumulates),
        f"lr_schedule or warmup beside a LightningModule: {_OWN}": own and r.built_in,
        f"weight_decay beside a LightningModule: {_OWN}": own and s.weight_decay is not None,
        f"lr={s.lr} beside a LightningModule that makes its optimizer with {rate}: {_OWN}": own and rate is not None and rate != s.lr,
    }
