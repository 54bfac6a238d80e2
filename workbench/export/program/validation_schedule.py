"""Writes the validations between the updates of an epoch and after it, and what follows from them."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program import hooks, loaders, validation, weight_averaging
from workbench.export.program.lines import indented, only, when
from workbench.export.program.update import schedulers
from workbench.export.script_spec import ScriptSpec, at, is_whole


def counts_looks(r: ScriptSpec) -> bool:
    """Whether the checks must be counted."""
    return any(s.monitor is not None and s.frequency > 1 for o in r.optimizers for s in o.schedules)


def begun(r: ScriptSpec) -> list[str]:
    """The lines before the first epoch."""
    lines = ["ended = False"] if r.monitors else []
    lines += ["looks = itertools.count(1)  # the checks, numbered"] if counts_looks(r) else []
    if r.midway:
        lines += ["looked = None  # the update after which the last check was"] if r.gaps else []
        lines += ["", *_check(r), ""]
    return lines


def sanity(r: ScriptSpec) -> list[str]:
    """The check before the first update: it counts for nothing, but the object hears of it."""
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
    return ["with evaluation_weights(optimizer):", *indented(lines)] if r.modes else lines


# ---- within an epoch --------------------------------------------------------------------------------------------


def midway(r: ScriptSpec) -> list[str]:
    """A check between two updates of an epoch: the epoch's last update is followed by another one."""
    if not r.midway:
        return []
    due = ["step > began", *(["step != looked"] if r.gaps else [])]
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


def ended_midway(r: ScriptSpec) -> list[str]:
    """Such a check has ended the run: of what follows an epoch nothing comes but the object's own."""
    if not (r.midway and r.monitors):
        return []
    return ["if ended:", *indented([*hooks.called(r, "on_train_epoch_end"), "break"])]


def _arguments(r: ScriptSpec, finished: str) -> str:
    losses = "losses" if r.watches_training else "total / (step - began)"
    return f"epoch, {finished}, {losses}" if r.settings.min_epochs else f"epoch, {losses}"


def _check(r: ScriptSpec) -> list[str]:
    """A function for a check, where there are several places for one."""
    finished = "finished, " if r.settings.min_epochs else ""
    losses = "losses" if r.watches_training else "loss"
    scores = "mean_of(losses)" if r.watches_training else '{"loss": float(loss)}'
    between = hooks.epoch_ended(r)
    lines = [
        *(["nonlocal looked", "looked = step"] if r.gaps else []),
        f"scores = {scores}",
        *_look(r),
        *(["if last:", *indented(between)] if between else []),
        *_plateaus(r),
        'text = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())',
        'accelerator.print(f"epoch {epoch}  step {step}  {text}")',
    ]
    doc = "Look at the validation data."
    if r.monitors:
        doc = "Look at the validation data; whether a metric ends the run."
        lines += [line.replace("ended =", "return") for line in _judged(r, "finished")]
    behind = ", last=False" if between else ""
    return [f"def check(epoch, {finished}{losses}{behind}):", f'    """{doc}"""', *indented(lines)]


# ---- after an epoch --------------------------------------------------------------------------------------------


def behind(r: ScriptSpec) -> list[str]:
    """The validation after an epoch, what follows from it, and what comes between."""
    if r.midway:
        return _late(r)
    between = hooks.epoch_ended(r)
    look, judged = (_look(r), [*_plateaus(r), *(_judged(r, "epoch + 1") if r.monitors else [])]) if r.checks else ([], [])
    lines = [f"scores = {_training_score(r)}"]
    lines += [*_if_due(r, look), *between, *_if_due(r, judged)] if between else _if_due(r, look + judged)
    lines += [
        'text = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())',
        'accelerator.print(f"epoch {epoch}  {text}")',
    ]
    return [*lines, *(["if ended:", "    break"] if r.monitors else [])]


def _if_due(r: ScriptSpec, lines: list[str]) -> list[str]:
    """These lines where a check is due."""
    if r.settings.check_val_every_n_epoch in (1, None) or not lines:
        return lines
    due = " or ".join(["(epoch + 1) % config.check_val_every_n_epoch == 0", *_last(r)])
    return [f"if {due}:", *indented(lines)]


def _training_score(r: ScriptSpec) -> str:
    if r.watches_training:
        return "mean_of(losses)"
    return f'{{"loss": float(total) / {"max(1, step - began)" if r.gaps else "(step - began)"}}}'


def _late(r: ScriptSpec) -> list[str]:
    """The validation after an epoch, where there are others in the middle of it."""
    interval = r.settings.val_check_interval
    if isinstance(interval, float):
        due = "updates_in_epoch % stride == 0"
        if r.settings.check_val_every_n_epoch != 1:
            due = f"(epoch + 1) % config.check_val_every_n_epoch == 0 and {due}"
    else:
        due = "step % config.val_check_interval == 0"
    either = [due, *_last(r)]
    between = hooks.epoch_ended(r)
    alone = not r.gaps and (bool(between) or not r.monitors)
    conditions = [" or ".join(either) if alone else f"({' or '.join(either)})"]
    conditions = ["looked != step", *conditions] if r.gaps else conditions
    call = f"check({_arguments(r, 'epoch + 1')}{', last=True' if between else ''})"
    if between:
        call = f"ended = {call}" if r.monitors else call
        ends = ["if ended:", "    break"] if r.monitors else []
        return [when(conditions, 8), f"    {call}", "else:", *indented(between), *ends]
    if not r.monitors:
        return [when(conditions, 8), f"    {call}"]
    return [when([*conditions, call], 8), "    break"]


def _last(r: ScriptSpec) -> list[str]:
    """Whether the run ends after this epoch, as conditions."""
    last = [] if r.max_epochs is None else ["epoch + 1 == config.max_epochs"]
    last += [] if r.max_steps is None else ["step == config.max_steps"]
    last += [f"({asked})" if " and " in (asked := hooks.asked_to_end(r, "epoch + 1")) else asked] if r.stops_itself else []
    return last + ([at(r.joints.last)] if r.joints.last else [])


# ---- a check ----------------------------------------------------------------------------------------------------


def _look(r: ScriptSpec) -> list[str]:
    """The metrics, of the averaged weights too, in `scores`."""
    if not r.validates:
        return []
    call = _call(r, _limited(r, "val_loader"))
    validated = [f"scores |= {call}"]
    if r.modes:
        validated = ["with evaluation_weights(optimizer):", *indented(validated)]
    return [*hooks.check_begins(r), *validated, *weight_averaging.validated(r, call)]


def _call(r: ScriptSpec, batches: str) -> str:
    return f"validate({', '.join(validation.arguments(r, 'network', batches, 'accelerator.device'))})"


def _limited(r: ScriptSpec, loader: str) -> str:
    """The batches of a check, as an expression."""
    limit = r.settings.limit_val_batches
    if is_whole(limit):
        return loader
    if isinstance(limit, float):
        return f"first_of({loader}, int(len(val_loader) * config.limit_val_batches + 1e-9))"
    return loaders.first(r.val, loader, "config.limit_val_batches")


def _plateaus(r: ScriptSpec) -> list[str]:
    """The schedules that follow a metric."""
    lines = ["look = next(looks)"] if counts_looks(r) else []
    stepped = []
    for optimizer, names in zip(r.optimizers, schedulers(r), strict=True):
        for schedule, name in zip(optimizer.schedules, names, strict=False):
            if schedule.monitor is None or r.manual:
                continue
            step = hooks.stepped(r, name, f'scores["{schedule.monitor}"]')
            due = [f"look % {schedule.frequency} == 0"] if schedule.frequency != 1 else []
            due += [f'"{schedule.monitor}" in scores'] if _comes_late(r, schedule.monitor) or not schedule.strict else []
            stepped += [when(due, 8), f"    {step}"] if due else [step]
    if not stepped:
        return []
    return [*lines, *(only("annealing is None", stepped) if r.anneals else stepped)]


def _judged(r: ScriptSpec, finished: str) -> list[str]:
    """Whether a metric ends the run: each monitor hears of every check."""
    s = r.settings
    met = [f"{finished} >= config.min_epochs"] if s.min_epochs else []
    met += ["step >= config.min_steps"] if s.min_steps else []
    met += [at(r.joints.all, no=True)] if r.joints.all else []
    waits = " if monitor.monitor in scores" if any(_comes_late(r, m.monitor) for m in r.monitors) else ""
    return [
        "# Each monitor hears of each check.",
        f"verdicts = [monitor.ends(scores) for monitor in monitors{waits}]",
        f"ended = {' and '.join(['any(verdicts)', *met])}",
    ]


def _comes_late(r: ScriptSpec, name: str) -> bool:
    """Whether a metric may have no value yet: before the first average, or where no loss of an epoch was kept."""
    gaps = r.gaps or r.settings.log_every_n_steps > 1 or r.settings.on_nonfinite == "skip"
    return (r.averages and name.endswith("_averaged")) or (name == "train_loss" and gaps)


def mean_of(r: ScriptSpec) -> str:
    """The mean of an epoch's losses, as a metric."""
    if not r.watches_training:
        return ""
    return dedent('''\
        def mean_of(losses):
            """The mean of the losses that are finite, as a metric."""
            finite = [loss for loss in @@ if math.isfinite(loss)]
            return {"train_loss": float(np.cumsum(finite)[-1]) / len(finite)} if finite else {}''').replace(
        "@@", "losses" if r.together else "gather_object(losses)"
    )
