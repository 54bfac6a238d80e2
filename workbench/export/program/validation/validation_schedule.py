"""Writes the validations between the updates of an epoch and after it, and what follows from them."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program import loaders
from workbench.export.program.checkpoint import best
from workbench.export.program.lightning import hooks
from workbench.export.program.lines import indented, only, when
from workbench.export.program.optim import weight_averaging
from workbench.export.program.update import schedulers
from workbench.export.program.validation import validate
from workbench.export.script_spec import ScriptSpec, at
from workbench.techniques.limits import is_whole


def counts_looks(r: ScriptSpec) -> bool:
    """Whether the validations must be counted."""
    return any(s.monitor is not None and s.frequency > 1 for o in r.optimizers for s in o.schedules)


def begun(r: ScriptSpec) -> list[str]:
    """The lines before the first epoch."""
    lines = [*(["ended = False"] if r.monitors else []), *best.begun(r)]
    lines += ["looks = 0  # how many checks there were"] if counts_looks(r) else []
    if r.validates_in_epoch:
        lines += ["looked = None  # the update after which the last check was"] if r.may_skip_updates else []
        lines += ["", *_check(r), ""]
    return lines


def sanity(r: ScriptSpec) -> list[str]:
    """The lines of the sanity check, which only the object's hooks see."""
    if not r.tries_validation:
        return []
    number, limit = r.settings.num_sanity_val_steps, r.settings.limit_val_batches
    batches = "validation_batches()"
    if number < 0:
        batches = _limited(r, batches)
    elif isinstance(limit, float) and not is_whole(limit):
        batches = f"itertools.islice({_limited(r, batches)}, {number})"
    else:
        batches = loaders.first(r.val, batches, str(number if is_whole(limit) else min(number, int(limit))))
    lines = hooks.sanity(r, _call(r, batches))
    return ["with evaluation_weights(optimizer):", *indented(lines)] if r.schedule_free else lines


# ---- within an epoch --------------------------------------------------------------------------------------------


def in_epoch(r: ScriptSpec) -> list[str]:
    """The lines of a validation between two updates of an epoch; after the epoch's last update there is another one."""
    if not r.validates_in_epoch:
        return []
    due = ["step > began", *(["step != looked"] if r.may_skip_updates else [])]
    if isinstance(r.settings.val_check_interval, float):
        due.append("(step - began) % stride == 0")
        if r.settings.check_val_every_n_epoch != 1:
            due.insert(0, "(epoch + 1) % config.check_val_every_n_epoch == 0")
    else:
        due.append("step % config.val_check_interval == 0")
    call = f"check({_arguments(r, 'epoch')})"
    if not r.monitors:
        return [when(due, 12), f"    {call}"]
    return [when([*due, call], 12), "    ended = True", "    break"]


def ended_in_epoch(r: ScriptSpec) -> list[str]:
    """The lines for a run that such a validation has ended: of what follows an epoch only the object's hook runs."""
    if not (r.validates_in_epoch and r.monitors):
        return []
    return ["if ended:", *indented([*hooks.called(r, "on_train_epoch_end"), "break"])]


def _arguments(r: ScriptSpec, finished: str) -> str:
    losses = "losses" if r.monitors_train_loss else "total / (step - began)"
    return f"epoch, {finished}, {losses}" if r.settings.min_epochs else f"epoch, {losses}"


def _check(r: ScriptSpec) -> list[str]:
    """A function that validates, where the script does so in several places."""
    finished = "finished, " if r.settings.min_epochs else ""
    losses = "losses" if r.monitors_train_loss else "loss"
    scores = "mean_of(losses)" if r.monitors_train_loss else '{"loss": float(loss)}'
    between = hooks.epoch_ended(r)
    there = {"best": r.best is not None, "looked": r.may_skip_updates, "looks": counts_looks(r)}
    outer = [name for name, holds in there.items() if holds]
    lines = [
        *([f"nonlocal {', '.join(outer)}"] if outer else []),
        *(["looked = step"] if r.may_skip_updates else []),
        f"scores = {scores}",
        *_look(r),
        *(["if last:", *indented(between)] if between else []),
        *_plateaus(r),
        *_tracked(r),
        'text = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())',
        "if accelerator.is_main_process:",
        f'    bar.write(f"{_epoch_of(r)}  step {{step}}  {{text}}")',
    ]
    doc = "Look at the validation data."
    if r.monitors:
        doc = "Look at the validation data; whether a metric ends the run."
        lines += [line.replace("ended =", "return") for line in _judged(r, "finished")]
    last = ", last=False" if between else ""
    return [f"def check(epoch, {finished}{losses}{last}):", f'    """{doc}"""', *indented(lines)]


def _epoch_of(r: ScriptSpec) -> str:
    """The epoch, as the bench's progress bar counts it for a person: from 1, of so many where that is known."""
    return "epoch {epoch + 1}" if r.max_epochs is None else "epoch {epoch + 1}/{config.max_epochs}"


# ---- after an epoch --------------------------------------------------------------------------------------------


def after_epoch(r: ScriptSpec) -> list[str]:
    """The lines of the validation after an epoch, of what follows from it, and of the hooks in between."""
    if r.validates_in_epoch:
        return _late(r)
    between = hooks.epoch_ended(r)
    look, judged = (_look(r), [*_plateaus(r), *(_judged(r, "epoch + 1") if r.monitors else [])]) if r.checks else ([], [])
    lines = [f"scores = {_training_score(r)}"]
    lines += [*_if_due(r, look), *between, *_if_due(r, judged)] if between else _if_due(r, look + judged)
    lines += [
        *_tracked(r),
        'text = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())',
        "if accelerator.is_main_process:",
        f'    bar.write(f"{_epoch_of(r)}  {{text}}")',
    ]
    return [*lines, *(["if ended:", "    break"] if r.monitors else [])]


def _tracked(r: ScriptSpec) -> list[str]:
    """The line that gives a tracker the metrics of a validation; it has the loss of each update."""
    return ['accelerator.log({name: value for name, value in scores.items() if name != "loss"}, step=step)'] if r.validates else []


def _if_due(r: ScriptSpec, lines: list[str]) -> list[str]:
    """These lines under the condition that a validation is due."""
    if r.settings.check_val_every_n_epoch in (1, None) or not lines:
        return lines
    due = " or ".join(["(epoch + 1) % config.check_val_every_n_epoch == 0", *_last(r)])
    return [f"if {due}:", *indented(lines)]


def _training_score(r: ScriptSpec) -> str:
    if r.monitors_train_loss:
        return "mean_of(losses)"
    return f'{{"loss": float(total) / {"max(1, step - began)" if r.may_skip_updates else "(step - began)"}}}'


def _late(r: ScriptSpec) -> list[str]:
    """The lines of the validation after an epoch that has others in its middle."""
    interval = r.settings.val_check_interval
    if isinstance(interval, float):
        due = "updates_in_epoch % stride == 0"
        if r.settings.check_val_every_n_epoch != 1:
            due = f"(epoch + 1) % config.check_val_every_n_epoch == 0 and {due}"
    else:
        due = "step % config.val_check_interval == 0"
    either = [due, *_last(r)]
    between = hooks.epoch_ended(r)
    alone = not r.may_skip_updates and (bool(between) or not r.monitors)
    conditions = [" or ".join(either) if alone else f"({' or '.join(either)})"]
    conditions = ["looked != step", *conditions] if r.may_skip_updates else conditions
    call = f"check({_arguments(r, 'epoch + 1')}{', last=True' if between else ''})"
    if between:
        call = f"ended = {call}" if r.monitors else call
        ends = ["if ended:", "    break"] if r.monitors else []
        return [when(conditions, 8), f"    {call}", "else:", *indented(between), *ends]
    if not r.monitors:
        return [when(conditions, 8), f"    {call}"]
    return [when([*conditions, call], 8), "    break"]


def _last(r: ScriptSpec) -> list[str]:
    """The conditions under which the run ends after this epoch."""
    last = [] if r.max_epochs is None else ["epoch + 1 == config.max_epochs"]
    last += [] if r.max_steps is None else ["step == config.max_steps"]
    last += [f"({asked})" if " and " in (asked := hooks.asked_to_end(r, "epoch + 1")) else asked] if r.may_stop_itself else []
    return last + ([at(r.resume_points.last)] if r.resume_points.last else [])


# ---- a validation -----------------------------------------------------------------------------------------------


def _look(r: ScriptSpec) -> list[str]:
    """The lines that put the metrics, those of the averaged weights too, into `scores`."""
    if not r.validates:
        return []
    call = _call(r, _limited(r, "val_loader"))
    validated = [f"scores |= {call}", *best.kept(r)]
    if r.schedule_free:
        validated = ["with evaluation_weights(optimizer):", *indented(validated)]
    return [*hooks.check_begins(r), *validated, *weight_averaging.validated(r, call)]


def _call(r: ScriptSpec, batches: str) -> str:
    return f"validate({', '.join(validate.arguments(r, 'network', batches, 'accelerator.device'))})"


def _limited(r: ScriptSpec, loader: str) -> str:
    """The expression for the batches of a validation."""
    limit = r.settings.limit_val_batches
    if is_whole(limit):
        return loader
    if isinstance(limit, float):
        return f"first_of({loader}, int(len(val_loader) * config.limit_val_batches + 1e-9))"
    return loaders.first(r.val, loader, "config.limit_val_batches")


def _plateaus(r: ScriptSpec) -> list[str]:
    """The lines that step the schedules that follow a metric."""
    lines = ["looks += 1"] if counts_looks(r) else []
    stepped = []
    for optimizer, names in zip(r.optimizers, schedulers(r), strict=True):
        for schedule, name in zip(optimizer.schedules, names, strict=False):
            if schedule.monitor is None or r.manual:
                continue
            step = hooks.stepped(r, name, f'scores["{schedule.monitor}"]')
            due = [f"looks % {schedule.frequency} == 0"] if schedule.frequency != 1 else []
            due += [f'"{schedule.monitor}" in scores'] if _comes_late(r, schedule.monitor) or not schedule.strict else []
            stepped += [when(due, 8), f"    {step}"] if due else [step]
    if not stepped:
        return []
    return [*lines, *(only("annealing is None", stepped) if r.has_swa_lrs else stepped)]


def _judged(r: ScriptSpec, finished: str) -> list[str]:
    """The lines that decide whether a metric ends the run: every monitor gets the metrics of every validation."""
    s = r.settings
    met = [f"{finished} >= config.min_epochs"] if s.min_epochs else []
    met += ["step >= config.min_steps"] if s.min_steps else []
    met += [at(r.resume_points.all, no=True)] if r.resume_points.all else []
    waits = " if monitor.monitor in scores" if any(_comes_late(r, m.monitor) for m in r.monitors) else ""
    return [
        "# Every monitor gets the metrics of every validation.",
        f"verdicts = [monitor.ends(scores) for monitor in monitors{waits}]",
        f"ended = {' and '.join(['any(verdicts)', *met])}",
    ]


def _comes_late(r: ScriptSpec, name: str) -> bool:
    """Whether a metric may have no value yet: before the first average, or where no loss of an epoch was kept."""
    gaps = r.may_skip_updates or r.settings.log_every_n_steps > 1 or r.settings.on_nonfinite == "skip"
    return (r.averages and name.endswith("_averaged")) or (name == "train_loss" and gaps)


def mean_of(r: ScriptSpec) -> str:
    """The mean of an epoch's losses, as a metric."""
    if not r.monitors_train_loss:
        return ""
    return dedent('''\
        def mean_of(losses):
            """The mean of the losses that are finite, as a metric."""
            finite = [loss for loss in @@ if math.isfinite(loss)]
            return {"train_loss": float(np.cumsum(finite)[-1]) / len(finite)} if finite else {}''').replace(
        "@@", "losses" if r.distributed else "gather_object(losses)"
    )
