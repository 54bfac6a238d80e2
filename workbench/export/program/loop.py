"""Writes the loop: epochs of updates, with validations between, and what follows an epoch."""

from __future__ import annotations

from workbench.export.program import accumulation
from workbench.export.program.checkpoint import resume
from workbench.export.program.lightning import hooks
from workbench.export.program.lines import call, indented
from workbench.export.program.optim import weight_averaging
from workbench.export.program.update import (
    counts_taken,
    counts_turns,
    evaluation,
    replayed,
    scheduling,
    update,
)
from workbench.export.program.validation import validation_schedule
from workbench.export.script_spec import ScriptSpec, at


def loop(r: ScriptSpec) -> list[str]:
    """All lines from the log to the last epoch."""
    lines = [
        *evaluation(r),
        "log = Path(log_file) if log_file and accelerator.is_main_process else None",
    ]
    done = "epoch" if not _ends_by_epochs(r) else "" if resume.refusal(r) else "first_epoch"
    begun = ["step", *([done] if done else []), *(["updates"] if counts_taken(r) else [])]
    lines.append(f"{' = '.join(begun)} = 0")
    if counts_turns(r):
        lines.append(f"counts = [0] * {len(r.optimizers)}  # the steps of each optimizer")
    lines += ["hiddens = None"] if r.tbptt else []
    lines += validation_schedule.begun(r)
    tried = validation_schedule.sanity(r)
    lines += [*hooks.called(r, "on_fit_start"), *(_set_epoch(r, "0") if tried else []), *tried, *hooks.called(r, "on_train_start")]
    lines += [*resume.restored(r, done), *resume.cleared(r), *_bar(r)]
    epoch = [*_begin(r), *_updates(r), *_after(r), *resume.saved(r)]
    if _ends_by_epochs(r):
        lines += [f"for epoch in range({done + ', ' if done else ''}config.max_epochs):", *indented(epoch)]
    else:
        lines += [f"while {_goes_on(r)}:", *indented([*epoch, "epoch += 1"])]
    return [*lines, "bar.close()", *hooks.called(r, "on_train_end")]


def _bar(r: ScriptSpec) -> list[str]:
    """The lines that make the progress bar: rank 0 alone has one, and only on a terminal (tqdm's `disable=None`)."""
    known, updates = accumulation.updates_in_epoch(r), None if r.max_steps is None else "config.max_steps"
    if r.max_epochs is not None and known is not None and r.windows is None:
        epochs = f"config.max_epochs * {known}"
        updates = epochs if updates is None else f"min({updates}, {epochs})"
    begun = [] if resume.refusal(r) else ["initial=step"]
    return call("bar = ", "tqdm", [f"total={updates}", *begun, "disable=not accelerator.is_main_process or None"], 4)


def _ends_by_epochs(r: ScriptSpec) -> bool:
    return r.max_steps is None


def _goes_on(r: ScriptSpec) -> str:
    epochs = "" if r.max_epochs is None else "epoch < config.max_epochs and "
    return f"{epochs}step < config.max_steps"


# ---- an epoch ---------------------------------------------------------------------------------------------------


def _begin(r: ScriptSpec) -> list[str]:
    """The lines at the start of an epoch."""
    lines = [*_milestone(r), *weight_averaging.annealed(r), *hooks.called(r, "on_train_epoch_start")]
    if r.limits and r.changed("batch_size"):
        lines.append(f"limit = {accumulation.batches_in_epoch(r)}")
    if r.monitors_train_loss:
        lines.append("losses, began = [], step" if r.validates_in_epoch else "losses = []")
    else:
        lines.append("total, began = 0.0, step")
    updates = accumulation.updates_in_epoch(r)
    if r.validates_in_epoch and isinstance(r.settings.val_check_interval, float):
        lines.append(f"updates_in_epoch = {updates}")
        lines.append("stride = max(1, int(updates_in_epoch * config.val_check_interval + 1e-9))  # to the next check")
    return [*lines, *_set_epoch(r, "epoch")]


def _set_epoch(r: ScriptSpec, epoch: str) -> list[str]:
    """The calls of `set_epoch` of samplers and data sets that have it."""
    data = [r.train, *([r.val] if r.val is not None and r.validates else [])]
    return [f"{part}.set_epoch({epoch})" for part in dict.fromkeys(part for one in data for part in one.with_set_epoch)]


def _milestone(r: ScriptSpec) -> list[str]:
    """The lines for values that a search found, or the user set, at the start of an epoch."""
    set_there = any(step in r.resume_points.all for step, _ in r.changes)
    if not (set_there or (r.changes and (r.settings.find_lr_at or r.settings.find_batch_size_at))):
        return []
    lines = replayed(r, "CHANGES.pop(step, ())")
    if r.changed("batch_size"):
        lines += ['    if name == "batch_size":', "        loader = training_batches()"]
    return lines


def _updates(r: ScriptSpec) -> list[str]:
    """The loop over an epoch's updates."""
    ends = [] if r.max_steps is None else ["step == config.max_steps"]
    ends += [at(r.resume_points.cut)] if r.resume_points.cut else []
    ends += [hooks.asked_to_end(r, "epoch")] if r.may_stop_itself else []
    lines = [*validation_schedule.in_epoch(r), *update(r)]
    if len(ends) > 1:
        ends = [" or ".join(f"({end})" if " and " in end else end for end in ends)]
    lines += [f"if {ends[0]}:", "    break"] if ends else []
    return [*accumulation.head(r), *indented(lines)]


def _after(r: ScriptSpec) -> list[str]:
    """The lines after an epoch: averages, schedules, a validation."""
    lines = validation_schedule.ended_in_epoch(r)
    if r.stops_short:
        lines += ["if step == config.max_steps:  # here it was stopped", "    break"]
    if r.epoch_ends and _followed(r):
        lines += [f"if {at(r.epoch_ends)}:", *indented(replayed(r, "CHANGES.pop(step)"))]
    lines += [*weight_averaging.after_epoch(r), *_scheduled(r), *validation_schedule.after_epoch(r)]
    if r.may_stop_itself:
        lines += [f"if {hooks.asked_to_end(r, 'epoch + 1')}:", "    break"]
    return lines


def _followed(r: ScriptSpec) -> bool:
    """Whether a rate differs after an epoch from before its end."""
    return r.has_swa_lrs or any(s.interval == "epoch" or s.monitor is not None for o in r.optimizers for s in o.schedules)


def _scheduled(r: ScriptSpec) -> list[str]:
    """The schedules that step after each epoch."""
    if r.manual:
        return []
    lines = [] if r.built_in else [
        line
        for number, optimizer in enumerate(r.optimizers)
        for line in scheduling(r, number, optimizer, "epoch", "epoch + 1")
    ]
    if not r.has_swa_lrs:
        return lines
    step = hooks.stepped(r, "schedule" if r.several else "annealing")
    one = ["for schedule in annealing or ():", f"    {step}"] if r.several else [step]
    if not lines:
        return one if r.several else ["if annealing is not None:", *indented(one)]
    return ["if annealing is None:", *indented(lines), "else:", *indented(one)]
