"""Raises ExportError for combinations that a run may have and export does not support yet."""

from __future__ import annotations

from workbench.export.errors import ExportError
from workbench.export.inputs.collect import WITHIN
from workbench.export.program.trainer import asks
from workbench.export.script_spec import ScriptSpec
from workbench.export.supported import LENGTHS


def refuse(r: ScriptSpec) -> None:
    """Raise `ExportError` for the first thing that no script can do yet."""
    for what, there in _together(r).items():
        if there:
            raise ExportError(f"export does not support {what} yet.")


def _together(r: ScriptSpec) -> dict[str, bool]:
    return {**_techniques(r), **_hooks(r), **_resumed(r), **_ranks(r), **_metrics(r), **_counts(r)}


def _metrics(r: ScriptSpec) -> dict[str, bool]:
    """Metrics that are computed over a check, where a script cannot."""
    own = [name for name in r.metrics.pairs if r.measures]
    return {
        f"metrics[{own[0]!r}] whose update takes one pair (output, target)" if own else "": bool(own),
        "an optimizer that trains only some of the parameters of model and loss": r.joins and not r.optimizers[0].whole,
        "a metric of torchmetrics over a check with fewer batches than there were processes": r.together and r.measures
        and r.metrics.lacking and r.metrics.synchronised,
    }


def _counts(r: ScriptSpec) -> dict[str, bool]:
    """Batches that weigh as the samples that were drawn for them, which a script cannot tell from the batch."""
    what = "batches whose collate_fn does not keep the samples in the first dimension (return {'loss': …, 'weight': n} from the loss)"
    return {what: any(r.weighs(data) and not data.counts for data in r.loaders)}


def _ranks(r: ScriptSpec) -> dict[str, bool]:
    """What several processes do in a run and not in a script."""
    of, devices = f"a run of {r.ranks} processes in which", r.settings.devices
    named = ", ".join(name for name in WITHIN if r.owns(name))
    shared = isinstance(devices, tuple) and len(set(devices)) < len(devices)
    return {
        f"{of} a scheduler's frequency counts batches": r.together and r.schedules_by_batches,
        f"{of} {r.alone}": r.together and bool(r.alone),
        f"{of} the model overrides hooks within an update ({named})": r.together and r.within,
        f"devices={list(devices) if isinstance(devices, tuple) else devices}, several processes on one GPU,": r.together and shared,
    }


def _hooks(r: ScriptSpec) -> dict[str, bool]:
    """Hooks within an update, which have their place in the plain loop alone."""
    s, named = r.settings, ", ".join(name for name in WITHIN if r.owns(name))
    both = f"{named} with"
    gaps = r.skips or r.train.empty
    inside = r.within and not r.manual
    followed = ", ".join(sorted(r.watched & r.logged_in_training))
    ends = r.owns("on_train_batch_start", "on_train_batch_end")
    own_clip = r.owns("configure_gradient_clipping")
    return {
        f"early_stopping or a scheduler that follows {followed}, which is logged in training,": bool(followed),
        f"{both} several optimizers": inside and r.several,
        f"{both} an optimizer that evaluates the loss again": inside and r.closure,
        f"{both} truncated_bptt_steps": r.within and r.carries,
        f"{both} on_nonfinite='skip'": r.within and s.on_nonfinite == "skip",
        f"{both} batches that are left out of windows": r.within and r.accumulates and gaps,
        "on_train_batch_start that ends epochs (-1) with accumulate_grad_batches": r.own.ends_epochs and r.accumulates,
        "optimizer_step with batches that are left out": r.owns("optimizer_step") and gaps,
        "optimizer_step with on_train_batch_start or on_train_batch_end and accumulate_grad_batches": r.owns("optimizer_step") and ends and r.accumulates,
        "optimizer_step with precision='16-mixed'": r.owns("optimizer_step") and r.scales,
        "a gradient_clip_val that was changed while configure_gradient_clipping, or clip_gradients, clipped": r.changed("gradient_clip_val")
        and (own_clip or "clip_gradients" in r.own.methods or "gradient_clip_val" in r.own.asks),
    }


def _resumed(r: ScriptSpec) -> dict[str, bool]:
    """What a resumed run has done twice, or otherwise than it would have."""
    s, edited = r.settings, r.joints.edited
    again = [name for name in ("on_fit_start", "on_train_start", "on_train_end", "on_fit_end") if r.owns(name)]
    lengths = ", ".join(sorted(edited & LENGTHS))
    scheduled = (r.built_in and (s.lr_schedule != "constant" or isinstance(s.warmup, float))) or r.by_length
    swa = s.weight_averaging == "swa" and isinstance(s.swa_epoch_start, float)
    asks = {"max_epochs", "max_steps", "min_epochs", "min_steps", "estimated_stepping_batches"} & r.own.asks
    where = "where the run continues another one"
    return {
        f"{lengths} that was set {where}, with a schedule that was made for another length": bool(lengths) and scheduled,
        f"accumulate_grad_batches that was set {where}, with a schedule that was made for another length": scheduled
        and any(step in r.joints.all for step, _ in r.sizes),
        f"{lengths} that was set {where}, with swa_epoch_start={s.swa_epoch_start}, a fraction of it": bool(lengths) and swa,
        f"{lengths} that was set {where}, and that the code asks its trainer for": bool(lengths) and bool(asks),
        f"{lengths} that was set {where}, with early_stopping": bool(edited & {"min_epochs", "min_steps"}) and bool(r.monitors),
        f"log_every_n_steps that was set {where}, while a metric of training was followed": "log_every_n_steps" in edited and r.watches_training,
        f"num_sanity_val_steps that was set {where}, while the code hears of that check": "num_sanity_val_steps" in edited and r.tries_validation,
        f"{', '.join(again)}, called again {where}": bool(r.joints.all) and bool(again),
        f"trainer.should_stop {where}": bool(r.joints.all) and r.stops_itself,
    }


def _techniques(r: ScriptSpec) -> dict[str, bool]:
    s = r.settings
    pieces, skips = "truncated_bptt_steps", s.on_nonfinite == "skip"
    gaps = r.skips or r.train.empty
    own_order = bool(r.train.sampler or r.train.batch_sampler)
    mine = r.manual and "manual_backward" not in r.sliced.code
    found_size = r.changed("batch_size") and not s.find_batch_size_at
    live = "accumulate_grad_batches that was changed during the run"
    watched = r.hands_results_on or asks(r, "accumulate_grad_batches")
    frequencies = [optimizer.frequency for optimizer in r.optimizers]
    idle = r.planned is not None and r.planned < sum(frequencies) - frequencies[-1] + 1
    # The amount of data shows only after an epoch; within the first the statistics are of what was read so far.
    unmeasured = not (r.train.sized or r.limits) and (r.midway or r.max_steps is not None)
    timed = isinstance(s.val_check_interval, str) and r.validates
    return {
        f"val_check_interval={s.val_check_interval!r}, a time": timed,
        "a batch_size that was changed by hand": found_size,
        f"{live}, in a plan by epochs": bool(r.sizes) and isinstance(s.accumulate_grad_batches, dict),
        f"{live} in several processes": bool(r.sizes) and r.together,
        f"{live}, with batches that are left out": bool(r.sizes) and r.gaps,
        f"{live}, and that the code hears of": bool(r.sizes) and watched,
        f"{pieces} with an optimizer that evaluates the loss again": r.carries and r.closure,
        f"{pieces} with several optimizers": r.carries and r.several,
        f"{pieces} with weight_averaging of a model with batch normalisation": r.carries and r.refreshes,
        f"{pieces} with batches that are None": r.carries and r.train.empty,
        "several optimizers of which one evaluates the loss again": r.several and r.closure,
        "several optimizers with weight_averaging of a model with batch normalisation": r.several and r.refreshes,
        "an optimizer with train() and eval() beside others, or with manual optimisation": r.modes and (r.several or r.manual),
        f"compile={s.compile!r} of a model that came compiled": r.compiled and s.compile is not True,
        "an object with a training_step that came compiled": r.compiled and r.hooks is not None,
        "a part of the model that came compiled (compile=True compiles all of it)": r.compiled_parts,
        "an optimizer that evaluates the loss again with batches that are left out": r.closure and gaps,
        "on_nonfinite='skip' with an optimizer that evaluates the loss again": r.closure and skips,
        "on_nonfinite='skip' with several optimizers, or with manual optimisation": skips and (r.several or r.manual),
        "precision='16-mixed' with several optimizers, or with manual optimisation": r.scales and (r.several or r.manual),
        "lr_schedule or warmup with manual optimisation": r.manual and r.built_in,
        "lr_schedule or warmup with an optimizer that never has its turn": r.built_in and r.in_turns and idle,
        "swa_lrs with manual optimisation": r.manual and r.anneals,
        "manual optimisation without self.manual_backward(loss)": mine,
        "weight_averaging of a model with batch normalisation, where a run on data without a length ends or is checked within an epoch": r.refreshes and unmeasured,
        "a learning rate that was changed while several optimizers were at work": r.several and r.changed("lr"),
        "a sampler of your own that is read again for batch-norm statistics, or at another batch_size": own_order and r.remakes_loader,
    }
