"""Writes one update: gradient, clipping, step, and what follows a step."""

from __future__ import annotations

from workbench.export.inputs.collect import Optimizer, Schedule
from workbench.export.program import accumulation
from workbench.export.program.lightning import hooks, trainer
from workbench.export.program.lines import indented, only
from workbench.export.program.optim import manual, multiple_optimizers, weight_averaging
from workbench.export.script_spec import ScriptSpec


def update(r: ScriptSpec) -> list[str]:
    """The lines of one update, `loss` being its loss."""
    if r.manual:
        lines = [f"rate = {_rate(r)}  # before the model steps a schedule", *manual.update(r)]
    elif r.several:
        lines = multiple_optimizers.in_turn(r, _step(r, "owned[turn]"))
    elif r.closure:
        lines = _by_closure(r)
    elif r.hooks_in_update:
        rate = f"rate = {_rate(r)}  # before the model has its say"
        lines = [rate, *(hooks.own_step(r, _evaluated(r)) if r.owns("optimizer_step") else _step(r, "parameters"))]
    else:
        lines = _step(r, "parameters")
    after = [*_after_step(r), *hooks.batch_ended(r)]
    return [*changed(r), *lines, *_log(r), *_recorded(r), "step += 1", *_shown(), *_counted(r), *after]


def _step(r: ScriptSpec, parameters: str) -> list[str]:
    """Gradient, clipping and step of one optimizer."""
    lines = accumulation.gradient(r)
    clip = [*hooks.called(r, "on_before_optimizer_step", "optimizer"), *clipped(r, parameters)]
    if r.scales:
        follows = bool(_stepped(r) or weight_averaging.after_update(r))
        lines += ["scaler.unscale_(optimizer)", *clip, "scaler.step(optimizer)", *(["scale = scaler.get_scale()"] if follows else [])]
        lines.append("scaler.update()")
        told = "taken = scaler.get_scale() >= scale  # it shrinks where a gradient overflowed: that step is left out"
        lines += [told] if follows else []
    elif r.leaves_out:
        lines = [*_before(r), *lines]
        lines += ["taken = math.isfinite(loss.item()) and all(", f"    p.grad.isfinite().all() for p in {parameters} if p.grad is not None",
                  ")", "if taken:", *indented([*clip, "optimizer.step()"]), *_put_back(r)]  # fmt: skip
    else:
        lines += [*clip, "optimizer.step()"]
    return [*lines, *([] if r.hooks_in_update else ["optimizer.zero_grad()"])]


def _before(r: ScriptSpec) -> list[str]:
    if not r.restored_buffers:
        return []
    return [f"before = [(buffer, buffer.clone()) for buffer in {weight_averaging.buffers_of(r.restored_buffers)}]"]


def _put_back(r: ScriptSpec) -> list[str]:
    """The lines that restore the buffers of an update that is left out: its forward pass has changed batch-norm statistics."""
    if not r.restored_buffers:
        return []
    return ["else:  # left out, with what its forward pass has moved", "    for buffer, value in before:", "        buffer.copy_(value)"]


def evaluation(r: ScriptSpec) -> list[str]:
    """The closure for an optimizer that evaluates the loss itself, several times."""
    own = r.owns("optimizer_step")
    if not (r.closure or own):
        return []
    lines = [
        '"""The gradient of one update; the loss of the update is that of the first evaluation."""',
        *([] if own else ["optimizer.zero_grad()"]),
        *accumulation.gradient(r, moved=True),
        *([] if own else clipped(r, "parameters")),
        "losses.append(loss.detach())",
        "return loss",
    ]
    lines = [f"def evaluate({_evaluated(r)}, losses):", *indented(lines), ""]
    return [*lines, *hooks.stepping(r, clipped(r, "parameters"))] if own else lines


def _evaluated(r: ScriptSpec) -> str:
    return "window" if r.accumulates else "number, batch" if r.uses_batch_idx else "batch"


def _by_closure(r: ScriptSpec) -> list[str]:
    return [
        *([] if r.accumulates else [hooks.to_device(r)]),
        "evaluations = []",
        f"evaluation = functools.partial(evaluate, {_evaluated(r)}, evaluations)",
        *(["evaluation()  # the step expects gradients"] if r.optimizers[0].closure == "after gradients" else []),
        "optimizer.step(evaluation)",
        "optimizer.zero_grad()",
        "loss = evaluations[0]",
    ]


def clipped(r: ScriptSpec, parameters: str) -> list[str]:
    """The lines that clip an optimizer's gradients."""
    if r.owns("configure_gradient_clipping"):
        return hooks.limits(r)
    if not r.clips:
        return []
    return [f"torch.nn.utils.clip_grad_{r.settings.gradient_clip_algorithm}_({parameters}, config.gradient_clip_val)"]


def _rate(r: ScriptSpec) -> str:
    """The expression for the rate that is reported."""
    return f'{_first(r)}.param_groups[{r.optimizers[0].leading}]["lr"]'


def _first(r: ScriptSpec) -> str:
    return "optimizers[0]" if r.several else "optimizer"


def _log(r: ScriptSpec) -> list[str]:
    rate = "rate" if r.manual or r.hooks_in_update else _rate(r)
    return [
        "if log or tracker:",
        f'    row = {{"loss": loss.item(), "lr": {rate}}}',
        "    accelerator.log(row, step=step)",
        "if log:",
        '    with log.open("a") as file:',
        '        print(json.dumps({"step": step, **row}), file=file)',
    ]


def _shown() -> list[str]:
    """The lines that move the progress bar, or now and then print a line where there is none."""
    return ["bar.update()", "if bar.disable and step % 100 == 0:", '    accelerator.print(f"step {step}  loss {loss.item():.4f}")']


def _recorded(r: ScriptSpec) -> list[str]:
    """The training loss for monitors: the losses that the run recorded."""
    if not r.monitors_train_loss:
        return []
    every, line = r.settings.log_every_n_steps, "losses.append(loss.item())"
    return [line] if every == 1 else [f"if step % {every} == 0:", f"    {line}"]


def _counted(r: ScriptSpec) -> list[str]:
    """The lines that add the update to the epoch's mean and to what the user's object reads."""
    lines = []
    if not r.monitors_train_loss:
        whole = r.distributed or r.accumulates or r.several or r.closure or r.manual or r.owns("optimizer_step")
        lines.append("total += loss" if whole else "total += loss.detach()")
    return [*lines, *trainer.progress(r, "global_step", "step")]


def _after_step(r: ScriptSpec) -> list[str]:
    """The lines of schedules and averages, after the steps that were taken."""
    lines = [*_stepped(r), *weight_averaging.after_update(r)]
    if not (r.may_not_step and lines):
        return lines
    count = ["updates += 1"] if counts_taken(r) else []
    return only("stepping.taken" if r.owns("optimizer_step") else "taken", [*count, *lines])


def counts_taken(r: ScriptSpec) -> bool:
    """Whether updates that were taken must be counted apart from those that were skipped."""
    return r.may_not_step and any(s.frequency > 1 and s.interval == "step" for o in r.optimizers for s in o.schedules)


def _stepped(r: ScriptSpec) -> list[str]:
    if r.manual and r.hooks is not None:
        return []
    lines = _built_in(r) if r.built_in else _own(r)
    return only("annealing is None", lines) if r.has_swa_lrs and lines else lines


def _built_in(r: ScriptSpec) -> list[str]:
    """The steps of the schedules that the settings ask for."""
    name = "scheduler" if not r.optimizers_alternate else "schedulers[turn]"
    lines = [hooks.stepped(r, name)]
    if r.settings.lr_schedule == "one_cycle" and (r.optimizers_alternate or r.another_length):  # the run continues after it
        lines = [_LAST_RATE, *only(_IN_CYCLE.format(name), lines)]
    return ["for scheduler in schedulers:", *indented(lines)] if r.several and not r.optimizers_alternate else lines


def _own(r: ScriptSpec) -> list[str]:
    """The steps of the user's schedules."""
    lines = []
    counted = "updates" if counts_taken(r) else "step"
    for number, optimizer in enumerate(r.optimizers):
        if not r.optimizers_alternate:
            lines += scheduling(r, number, optimizer, "step", counted)
            continue
        own = scheduling(r, number, optimizer, "step", f"counts[{number}]")
        count = [f"counts[{number}] += 1"] if counts_turns(r) else []
        lines += only(f"turn == {number}", [*count, *own]) if own else []
    return lines


def counts_turns(r: ScriptSpec) -> bool:
    """Whether the steps of each optimizer must be counted."""
    return r.optimizers_alternate and any(s.frequency > 1 and s.interval == "step" for o in r.optimizers for s in o.schedules)


def scheduling(r: ScriptSpec, number: int, optimizer: Optimizer, interval: str, counter: str) -> list[str]:
    """The steps of one optimizer's schedulers that step at this interval."""
    lines = []
    for name, schedule in zip(schedulers(r)[number], optimizer.schedules, strict=True):
        if schedule.interval != interval or schedule.monitor is not None:
            continue
        count = counter if " " not in counter else f"({counter})"
        if schedule.by_batches and interval == "step" and not r.tbptt:
            count = "(window[-1][0] + 1)" if r.accumulates else "(number + 1)"
        due = [f"{count} % {schedule.frequency} == 0"] if schedule.frequency != 1 else []
        if _may_end(r, schedule):
            due.append(_IN_CYCLE.format(name))
            lines.append(_LAST_RATE)
        step = hooks.stepped(r, name)
        lines += only(" and ".join(due), [step]) if due else [step]
    return lines


_IN_CYCLE = "{0}.last_epoch < {0}.total_steps - 1"
_LAST_RATE = "# After its cycle the last rate stays."


def _may_end(r: ScriptSpec, schedule: Schedule) -> bool:
    """Whether a scheduler is one cycle that the run may outlast."""
    steps = r.planned if schedule.interval == "step" else r.settings.epochs
    if schedule.cycle is None:
        return False
    return steps is None or steps > schedule.cycle * schedule.frequency or r.another_length


def schedulers(r: ScriptSpec) -> list[list[str]]:
    """The names of each optimizer's schedulers."""
    if r.built_in:
        return [[f"schedulers[{n}]"] for n in range(len(r.optimizers))] if r.several else [["scheduler"]]
    counts = [len(optimizer.schedules) for optimizer in r.optimizers]
    if sum(counts) == 1:
        return [["scheduler"] * count for count in counts]
    names = iter([f"scheduler_{n}" for n in range(sum(counts))])
    return [[next(names) for _ in range(count)] for count in counts]


def changed(r: ScriptSpec) -> list[str]:
    """The lines that replay what was changed during the run."""
    return replayed(r, "CHANGES.get(step, ())") if r.changes else []


def replayed(r: ScriptSpec, pairs: str) -> list[str]:
    """The lines that apply the changes."""
    lines = [f"for name, value in {pairs}:"]
    if r.changed("lr"):
        lines += ['    if name == "lr":', f"        {set_lr(r, 'config.lr', 'value')}"]
    return [*lines, "    setattr(config, name, value)"]


def set_lr(r: ScriptSpec, old: str, new: str, number: int = 0, begun: bool = True) -> str:
    """The call that sets an optimizer's base rate. begun: the run continues another, and SWA's own schedule may be
    there.
    """
    names = [*schedulers(r)[number], *(["annealing"] if r.has_swa_lrs and begun else [])]
    own = f"[{', '.join(names)}], " if r.scheduled else ""
    return f"set_lr({f'optimizers[{number}]' if r.several else 'optimizer'}, {own}{old}, {new})"
