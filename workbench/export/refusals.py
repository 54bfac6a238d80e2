"""What a run may have together and a script cannot carry yet, refused by name."""

from __future__ import annotations

from workbench.export.errors import ExportError
from workbench.export.recipe import Recipe


def refuse(r: Recipe) -> None:
    """Raise `ExportError` for the first thing that no script can do yet."""
    for what, there in _together(r).items():
        if there:
            raise ExportError(f"the script cannot carry {what} yet.")


def _together(r: Recipe) -> dict[str, bool]:
    s = r.settings
    pieces, skips = "truncated_bptt_steps", s.on_nonfinite == "skip"
    gaps = r.skips or r.train.empty
    own_order = bool(r.train.sampler or r.train.batch_sampler)
    mine = r.manual and "manual_backward" not in r.sliced.code
    found_size = r.changed("batch_size") and not s.find_batch_size_at
    frequencies = [optimizer.frequency for optimizer in r.optimizers]
    idle = r.planned is not None and r.planned < sum(frequencies) - frequencies[-1] + 1
    # How much there is shows only behind an epoch; within the first the statistics are of what was read so far.
    unmeasured = not (r.train.sized or r.limits) and (r.midway or r.max_steps is not None)
    timed = isinstance(s.val_check_interval, str) and r.validates
    return {
        f"val_check_interval={s.val_check_interval!r}, a time": timed,
        "a batch_size that was changed by hand": found_size,
        f"{pieces} with an optimizer that evaluates the loss again": r.carries and r.closure,
        f"{pieces} with several optimizers": r.carries and r.several,
        f"{pieces} with weight_averaging of a model with batch normalisation": r.carries and r.refreshes,
        f"{pieces} with batches that are None": r.carries and r.train.empty,
        "several optimizers of which one evaluates the loss again": r.several and r.closure,
        "several optimizers with weight_averaging of a model with batch normalisation": r.several and r.refreshes,
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
