"""Raises NotStandAlone for combinations that a run may have and export does not support yet."""

from __future__ import annotations

from workbench.export.errors import NotStandAlone
from workbench.export.inputs.collect import WITHIN
from workbench.export.inputs.trainer import refuse_missing
from workbench.export.program.hooks import asks
from workbench.export.script_spec import ScriptSpec
from workbench.export.supported import LENGTHS


def refuse(r: ScriptSpec) -> None:
    """Raise NotStandAlone for the first feature of the run that no script supports yet."""
    refuse_missing(r.lightning.asks)
    for what, there in {
        **_techniques(r),
        **_hooks(r),
        **_resumed(r),
        **_ranks(r),
        **_metrics(r),
    }.items():
        if there:
            raise NotStandAlone(f"a stand-alone script does not support {what.rstrip(',')}.")


def _metrics(r: ScriptSpec) -> dict[str, bool]:
    """Metrics and weights of batches that a script cannot compute; by description, whether the
    run has them.
    """
    own = [name for name in r.metrics.pairs if r.has_metrics]
    return {
        f"metrics[{own[0]!r}] whose update takes one pair (output, target)" if own else "": bool(
            own
        ),
        "an optimizer that trains only some of the parameters of model and loss": (
            r.trains_loss and not r.optimizers[0].whole
        ),
        "a metric of torchmetrics over a validation with fewer batches than there were processes": (
            r.distributed and r.has_metrics and r.metrics.lacking and r.metrics.synchronised
        ),
        "truncated_bptt_steps with batches whose collate_fn does not keep the samples in the first dimension": (
            r.tbptt and any(r.weighs(data) and not data.counts for data in r.loaders)
        ),
    }


def _ranks(r: ScriptSpec) -> dict[str, bool]:
    """Features of distributed runs that a script does not support; by description, whether the
    run uses them.
    """
    of, devices = f"a run of {r.ranks} processes in which", r.settings.devices
    named = ", ".join(name for name in WITHIN if r.owns(name))
    shared = isinstance(devices, tuple) and len(set(devices)) < len(devices)
    return {
        f"{of} a scheduler's frequency counts batches": r.distributed and r.schedules_by_batches,
        f"{of} {r.single_process_reason}": r.distributed and bool(r.single_process_reason),
        f"{of} the model overrides hooks within an update ({named})": (
            r.distributed and r.hooks_in_update
        ),
        f"devices={list(devices) if isinstance(devices, tuple) else devices}, several processes on one GPU,": (
            r.distributed and shared
        ),
    }


def _hooks(r: ScriptSpec) -> dict[str, bool]:
    """Hooks within an update, and other features that a script supports only in the plain loop;
    by description, whether the run has them.
    """
    s, named = r.settings, ", ".join(name for name in WITHIN if r.owns(name))
    both = f"{named} with"
    gaps = r.may_skip_batches or r.train.empty
    inside = r.hooks_in_update and not r.manual
    # with validations only after epochs, these metrics are known in time
    late = r.logged.in_epochs if not r.validates_in_epoch else frozenset()
    followed = ", ".join(sorted(r.monitored & (r.logged.in_training_alone - late)))
    ends = r.owns("on_train_batch_start", "on_train_batch_end")
    own_clip = r.owns("configure_gradient_clipping")
    return {
        f"early_stopping or a scheduler that follows {followed}, which is logged in training,": (
            bool(followed)
        ),
        "gradient_clip_val with sparse gradients (nn.Embedding(sparse=True)), which torch's own clipping does not take,": (
            r.sparse and r.clips
        ),
        f"{both} several optimizers": inside and r.several,
        f"{both} an optimizer that evaluates the loss again": inside and r.closure,
        f"{both} truncated_bptt_steps": r.hooks_in_update and r.tbptt,
        f"{both} on_nonfinite='skip'": r.hooks_in_update and s.on_nonfinite == "skip",
        f"{both} batches that are left out of windows": (
            r.hooks_in_update and r.accumulates and gaps
        ),
        "on_train_batch_start that ends epochs (-1) with accumulate_grad_batches": (
            r.lightning.ends_epochs and r.accumulates
        ),
        "optimizer_step with batches that are left out": r.owns("optimizer_step") and gaps,
        "optimizer_step with on_train_batch_start or on_train_batch_end and accumulate_grad_batches": (
            r.owns("optimizer_step") and ends and r.accumulates
        ),
        "several validation sets with hooks that move batches to the device": (
            bool(r.val_sets) and r.transfers
        ),
        "several validation sets with trainer.num_val_batches": (
            bool(r.val_sets) and asks(r, "num_val_batches")
        ),
        "optimizer_step with precision='16-mixed'": r.owns("optimizer_step") and r.scales,
        "a gradient_clip_val that was changed while configure_gradient_clipping, or clip_gradients, clipped": (
            r.changed("gradient_clip_val")
            and (
                own_clip
                or "clip_gradients" in r.lightning.methods
                or "gradient_clip_val" in r.lightning.asks
            )
        ),
    }


def _resumed(r: ScriptSpec) -> dict[str, bool]:
    """Actions of a resumed run that were repeated, or differ from an uninterrupted run; by
    description, whether this run has them.
    """
    s, edited = r.settings, r.resume_points.edited
    again = [
        name
        for name in ("on_fit_start", "on_train_start", "on_train_end", "on_fit_end")
        if r.owns(name)
    ]
    lengths = ", ".join(sorted(edited & LENGTHS))
    scheduled = (
        r.built_in and (s.lr_schedule != "constant" or isinstance(s.warmup, float))
    ) or r.by_length
    swa = s.weight_averaging == "swa" and isinstance(s.swa_epoch_start, float)
    asks = {
        "max_epochs",
        "max_steps",
        "min_epochs",
        "min_steps",
        "estimated_stepping_batches",
    } & r.lightning.asks
    where = "where the run continues another one"
    return {
        f"{lengths} that was set {where}, with a schedule that was made for another length": (
            bool(lengths) and scheduled
        ),
        f"accumulate_grad_batches that was set {where}, with a schedule that was made for another length": (
            scheduled and any(step in r.resume_points.all for step, _ in r.sizes)
        ),
        f"{lengths} that was set {where}, with swa_epoch_start={s.swa_epoch_start}, a fraction of it": (
            bool(lengths) and swa
        ),
        f"{lengths} that was set {where}, and that the code reads from its trainer": (
            bool(lengths) and bool(asks)
        ),
        f"{lengths} that was set {where}, with early_stopping": (
            bool(edited & {"min_epochs", "min_steps"}) and bool(r.monitors)
        ),
        f"log_every_n_steps that was set {where}, while a metric of training was followed": (
            "log_every_n_steps" in edited and r.monitors_train_loss
        ),
        f"num_sanity_val_steps that was set {where}, while the code has hooks that the sanity check calls": (
            "num_sanity_val_steps" in edited and r.tries_validation
        ),
        f"{', '.join(again)}, called again {where}": bool(r.resume_points.all) and bool(again),
        f"trainer.should_stop {where}": bool(r.resume_points.all) and r.may_stop_itself,
    }


def _techniques(r: ScriptSpec) -> dict[str, bool]:
    s = r.settings
    pieces, skips = "truncated_bptt_steps", s.on_nonfinite == "skip"
    gaps = r.may_skip_batches or r.train.empty
    own_order = bool(r.train.sampler or r.train.batch_sampler)
    mine = r.manual and "manual_backward" not in r.lightning.methods
    found_size = r.changed("batch_size") and not s.find_batch_size_at
    live = "accumulate_grad_batches that was changed during the run"
    watched = r.reads_outputs or asks(r, "accumulate_grad_batches")
    frequencies = [optimizer.frequency for optimizer in r.optimizers]
    idle = r.planned is not None and r.planned < sum(frequencies) - frequencies[-1] + 1
    # The amount of data is known only after an epoch; within the first one, the statistics are of
    # the batches read so far.
    unmeasured = not (r.train.sized or r.limits) and (
        r.validates_in_epoch or r.max_steps is not None
    )
    timed = isinstance(s.val_check_interval, str) and r.validates
    return {
        f"val_check_interval={s.val_check_interval!r}, a time": timed,
        "a batch_size that was changed by hand": found_size,
        f"{live}, in a plan by epochs": (
            bool(r.sizes) and isinstance(s.accumulate_grad_batches, dict)
        ),
        f"{live} in several processes": bool(r.sizes) and r.distributed,
        f"{live}, with batches that are left out": bool(r.sizes) and r.may_skip_updates,
        f"{live}, and that the code reads": bool(r.sizes) and watched,
        f"{pieces} with an optimizer that evaluates the loss again": r.tbptt and r.closure,
        f"{pieces} with several optimizers": r.tbptt and r.several,
        f"{pieces} with weight_averaging of a model with batch normalisation": (
            r.tbptt and r.refreshes_batch_norm
        ),
        f"{pieces} with batches that are None": r.tbptt and r.train.empty,
        "several optimizers of which one evaluates the loss again": r.several and r.closure,
        "several optimizers with weight_averaging of a model with batch normalisation": (
            r.several and r.refreshes_batch_norm
        ),
        "an optimizer with train() and eval() beside others, or with manual optimisation": (
            r.schedule_free and (r.several or r.manual)
        ),
        f"compile={s.compile!r} of a model that came compiled": (
            r.compiled and s.compile is not True
        ),
        "an object with a training_step that came compiled": r.compiled and r.hooks is not None,
        "a part of the model that came compiled (compile=True compiles all of it)": (
            r.compiled_parts
        ),
        "an optimizer that evaluates the loss again with batches that are left out": (
            r.closure and gaps
        ),
        "on_nonfinite='skip' with an optimizer that evaluates the loss again": r.closure and skips,
        "on_nonfinite='skip' with several optimizers, or with manual optimisation": (
            skips and (r.several or r.manual)
        ),
        "precision='16-mixed' with several optimizers, or with manual optimisation": (
            r.scales and (r.several or r.manual)
        ),
        "lr_schedule or warmup with manual optimisation": r.manual and r.built_in,
        "lr_schedule or warmup with an optimizer that never has its turn": (
            r.built_in and r.optimizers_alternate and idle
        ),
        "swa_lrs with manual optimisation": r.manual and r.has_swa_lrs,
        "manual optimisation without self.manual_backward(loss)": mine,
        "weight_averaging of a model with batch normalisation, where a run on data without a length ends or is checked within an epoch": (
            r.refreshes_batch_norm and unmeasured
        ),
        "a learning rate that was changed while several optimizers were at work": (
            r.several and r.changed("lr")
        ),
        "a sampler of your own that is read again for batch-norm statistics, or at another batch_size (fit with shuffle=True instead)": (
            own_order and r.remakes_loader
        ),
        "hooks that change which parameters are trained, where manual optimisation accumulates, toggles or clips": (
            r.lightning.freezes and r.wraps_optimizers
        ),
    }
