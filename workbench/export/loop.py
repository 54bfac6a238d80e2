"""The loop of an exported script: epochs of updates, with checks between, and what follows an epoch."""

from __future__ import annotations

from textwrap import dedent

from workbench.export import block_averaging, block_windows, loaders
from workbench.export.lines import indented, only, when
from workbench.export.recipe import Recipe, is_whole
from workbench.export.update import (
    counts_taken,
    counts_turns,
    evaluation,
    schedulers,
    scheduling,
    set_lr,
    update,
)


def loop(r: Recipe) -> list[str]:
    """All lines from the log to the last epoch."""
    lines = [
        *evaluation(r),
        "log = Path(log_file) if log_file and accelerator.is_main_process else None",
        "if log:",
        "    log.unlink(missing_ok=True)",
    ]
    begun = ["step", *([] if _ends_by_epochs(r) else ["epoch"]), *(["updates"] if counts_taken(r) else [])]
    lines.append(f"{' = '.join(begun)} = 0")
    if counts_turns(r):
        lines.append(f"counts = [0] * {len(r.optimizers)}  # the steps of each optimizer")
    lines += ["hiddens = None"] if r.carries else []
    lines += ["ended = False"] if r.monitors else []
    lines += ["looks = itertools.count(1)  # the checks, numbered"] if counts_looks(r) else []
    if r.midway:
        lines += ["looked = None  # the update after which the last check was"] if _gaps(r) else []
        lines += ["", *_check(r), ""]
    epoch = [*_begin(r), *_updates(r), *_after(r)]
    if _ends_by_epochs(r):
        return [*lines, "for epoch in range(config.max_epochs):", *indented(epoch)]
    return [*lines, f"while {_goes_on(r)}:", *indented([*epoch, "epoch += 1"])]


def counts_looks(r: Recipe) -> bool:
    """Whether the checks must be counted."""
    return any(s.monitor is not None and s.frequency > 1 for o in r.optimizers for s in o.schedules)


def _ends_by_epochs(r: Recipe) -> bool:
    return r.max_steps is None


def _goes_on(r: Recipe) -> str:
    epochs = "" if r.max_epochs is None else "epoch < config.max_epochs and "
    return f"{epochs}step < config.max_steps"


# ---- an epoch ---------------------------------------------------------------------------------------------------


def _begin(r: Recipe) -> list[str]:
    """The start of an epoch."""
    lines = [*_milestone(r), *block_averaging.annealed(r)]
    if r.limits and r.changed("batch_size"):
        lines.append(f"limit = {block_windows.batches_in_epoch(r)}")
    if r.watches_training:
        lines.append("losses, began = [], step" if r.midway else "losses = []")
    else:
        lines.append("total, began = 0.0, step")
    updates = block_windows.updates_in_epoch(r)
    if r.midway and isinstance(r.settings.val_check_interval, float):
        lines.append(f"updates_in_epoch = {updates}")
        lines.append("stride = max(1, int(updates_in_epoch * config.val_check_interval + 1e-9))  # to the next check")
    return lines


def _milestone(r: Recipe) -> list[str]:
    """What was found at the start of an epoch holds from there on."""
    if not (r.changes and (r.settings.find_lr_at or r.settings.find_batch_size_at)):
        return []
    lines = ["for name, value in CHANGES.pop(step, ()):"]
    if r.changed("lr"):
        lines += ['    if name == "lr":', f"        {set_lr(r, 'config.lr', 'value')}"]
    lines.append("    setattr(config, name, value)")
    if r.changed("batch_size"):
        lines += ['    if name == "batch_size":', "        loader = training_batches()"]
    return lines


def _updates(r: Recipe) -> list[str]:
    """The loop over an epoch's updates."""
    lines = [*_midway(r), *update(r)]
    stops_at_head = r.by_hand and r.settings.weight_averaging == "swa"
    if stops_at_head:  # it was stopped before this update: what follows an epoch did not come
        lines = ["if step == config.max_steps:", "    break", *lines]
    elif r.max_steps is not None:
        lines += ["if step == config.max_steps:", "    break"]
    looped = [*block_windows.head(r), *indented(lines)]
    if stops_at_head:
        looped += ["else:", *indented(block_averaging.after_epoch(r))]
    return looped


def _midway(r: Recipe) -> list[str]:
    """A check between two updates of an epoch: the epoch's last update is followed by another one."""
    if not r.midway:
        return []
    due = ["step > began", *(["step != looked"] if _gaps(r) else [])]
    if isinstance(r.settings.val_check_interval, float):
        due.append("(step - began) % stride == 0")
        if r.settings.check_val_every_n_epoch != 1:
            due.insert(0, "(epoch + 1) % config.check_val_every_n_epoch == 0")
    else:
        due.append("step % config.val_check_interval == 0")
    call = f"check({_check_arguments(r, 'epoch')})"
    if not r.monitors:
        return [when(due, 12), f"    {call}"]
    return [when([*due, call], 12), "    ended = True", "    break"]


def _gaps(r: Recipe) -> bool:
    """Whether there may be windows of which nothing is left: they are no updates."""
    return r.skips or r.train.empty or r.manual


def _check_arguments(r: Recipe, finished: str) -> str:
    losses = "losses" if r.watches_training else "total / (step - began)"
    return f"epoch, {finished}, {losses}" if r.settings.min_epochs else f"epoch, {losses}"


def _after(r: Recipe) -> list[str]:
    """What follows an epoch: averages, schedules, a check."""
    lines = ["if ended:", "    break"] if r.midway and r.monitors else []
    if not (r.by_hand and r.settings.weight_averaging == "swa"):
        lines += block_averaging.after_epoch(r)
    if r.hooks is not None and r.hooks.asks_trainer:
        lines.append("trainer.current_epoch = epoch + 1")
    lines += _scheduled(r)
    if r.midway:
        return [*lines, *_late(r)]
    lines.append(f"scores = {_training_score(r)}")
    if r.checks:
        looked = [*look(r), *(_judged(r, "epoch + 1") if r.monitors else [])]
        due = _due(r)
        if due:
            looked = [f"if {due}:", *indented(looked)]
        lines += looked
    lines += [
        'text = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())',
        'accelerator.print(f"epoch {epoch}  {text}")',
    ]
    if r.monitors:
        lines += ["if ended:", "    break"]
    return lines


def _training_score(r: Recipe) -> str:
    if r.watches_training:
        return "mean_of(losses)"
    may_be_none = r.skips or r.train.empty or r.manual
    return f'{{"loss": float(total) / {"max(1, step - began)" if may_be_none else "(step - began)"}}}'


def _scheduled(r: Recipe) -> list[str]:
    """The schedules that step behind each epoch."""
    if r.manual:
        return []
    lines = [] if r.built_in else [
        line
        for number, optimizer in enumerate(r.optimizers)
        for line in scheduling(r, number, optimizer, "epoch", "epoch + 1")
    ]
    if not r.anneals:
        return lines
    one = ["for schedule in annealing or ():", "    schedule.step()"] if r.several else ["annealing.step()"]
    if not lines:
        return one if r.several else ["if annealing is not None:", *indented(one)]
    return ["if annealing is None:", *indented(lines), "else:", *indented(one)]


# ---- checks -----------------------------------------------------------------------------------------------------


def look(r: Recipe) -> list[str]:
    """What a check does with `scores`: validate, also the averaged weights, and step the schedules that follow a metric."""
    lines = []
    if r.validates:
        limit = r.settings.limit_val_batches
        if is_whole(limit):
            batches = "val_loader"
        elif isinstance(limit, float):
            batches = "first_of(val_loader, int(len(val_loader) * config.limit_val_batches + 1e-9))"
        else:
            batches = loaders.first(r.val, "val_loader", "config.limit_val_batches")
        logged = ", logged" if r.hooks is not None else ""
        call = f"validate(network, {batches}, accelerator.device{logged})"
        lines += [f"scores |= {call}", *block_averaging.validated(r, call)]
    return [*lines, *_plateaus(r)]


def _plateaus(r: Recipe) -> list[str]:
    lines = ["look = next(looks)"] if counts_looks(r) else []
    stepped = []
    for optimizer, names in zip(r.optimizers, schedulers(r), strict=True):
        for schedule, name in zip(optimizer.schedules, names, strict=False):
            if schedule.monitor is None or r.manual:
                continue
            step = f'{name}.step(scores["{schedule.monitor}"])'
            due = [f"look % {schedule.frequency} == 0"] if schedule.frequency != 1 else []
            due += [f'"{schedule.monitor}" in scores'] if _comes_late(r, schedule.monitor) else []
            stepped += [when(due, 8), f"    {step}"] if due else [step]
    if not stepped:
        return []
    return [*lines, *(only("annealing is None", stepped) if r.anneals else stepped)]


def _judged(r: Recipe, finished: str) -> list[str]:
    """Whether a metric ends the run: each monitor hears of every check."""
    s = r.settings
    met = [f"{finished} >= config.min_epochs"] if s.min_epochs else []
    met += ["step >= config.min_steps"] if s.min_steps else []
    waits = " if monitor.monitor in scores" if any(_comes_late(r, m.monitor) for m in r.monitors) else ""
    return [
        "# Each monitor hears of each check.",
        f"verdicts = [monitor.ends(scores) for monitor in monitors{waits}]",
        f"ended = {' and '.join(['any(verdicts)', *met])}",
    ]


def _comes_late(r: Recipe, name: str) -> bool:
    """Whether a metric may have no value yet: before the first average, or where no loss of an epoch was kept."""
    gaps = _gaps(r) or r.settings.log_every_n_steps > 1 or r.settings.on_nonfinite == "skip"
    return (r.averages and name.endswith("_averaged")) or (name == "train_loss" and gaps)


def _due(r: Recipe) -> str:
    """Whether an epoch is followed by a check, as a condition; "" for each one."""
    if r.settings.check_val_every_n_epoch == 1:
        return ""
    return " or ".join(["(epoch + 1) % config.check_val_every_n_epoch == 0", *_last(r)])


def _last(r: Recipe) -> list[str]:
    """Whether the run ends behind this epoch, as conditions."""
    last = [] if r.max_epochs is None else ["epoch + 1 == config.max_epochs"]
    return last + ([] if r.max_steps is None else ["step == config.max_steps"])


def _check(r: Recipe) -> list[str]:
    """A function for a check, where there are several places for one."""
    finished = "finished, " if r.settings.min_epochs else ""
    losses = "losses" if r.watches_training else "loss"
    scores = "mean_of(losses)" if r.watches_training else '{"loss": float(loss)}'
    lines = [
        *(["nonlocal looked", "looked = step"] if _gaps(r) else []),
        f"scores = {scores}",
        *look(r),
        'text = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())',
        'accelerator.print(f"epoch {epoch}  step {step}  {text}")',
    ]
    doc = "Look at the validation data."
    if r.monitors:
        doc = "Look at the validation data; whether a metric ends the run."
        lines += [line.replace("ended =", "return") for line in _judged(r, "finished")]
    return [f"def check(epoch, {finished}{losses}):", f'    """{doc}"""', *indented(lines)]


def _late(r: Recipe) -> list[str]:
    """The check behind an epoch, where there are others in the middle of it."""
    interval = r.settings.val_check_interval
    if isinstance(interval, float):
        due = "updates_in_epoch % stride == 0"
        if r.settings.check_val_every_n_epoch != 1:
            due = f"(epoch + 1) % config.check_val_every_n_epoch == 0 and {due}"
    else:
        due = "step % config.val_check_interval == 0"
    either = [due, *_last(r)]
    conditions = [f"({' or '.join(either)})" if _gaps(r) or r.monitors else " or ".join(either)]
    conditions = ["looked != step", *conditions] if _gaps(r) else conditions
    call = f"check({_check_arguments(r, 'epoch + 1')})"
    if not r.monitors:
        return [when(conditions, 8), f"    {call}"]
    return [when([*conditions, call], 8), "    break"]


def mean_of(r: Recipe) -> str:
    """The mean of an epoch's losses, as a metric."""
    if not r.watches_training:
        return ""
    return dedent('''\
        def mean_of(losses):
            """The mean of the losses that are finite, as a metric."""
            finite = [loss for loss in gather_object(losses) if math.isfinite(loss)]
            return {"train_loss": sum(finite) / len(finite)} if finite else {}''')
