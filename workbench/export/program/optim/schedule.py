"""Writes the built-in learning-rate schedule that the run had."""

from __future__ import annotations

from workbench.export.program.lines import call, indented
from workbench.export.script_spec import ScriptSpec

_WORDS = {
    "constant": "stays",
    "linear": "falls to 0 in a straight line",
    "cosine": "falls to 0 along a cosine",
}
_BEHIND = {
    "constant": "return 1.0",
    "linear": "return 1.0 - done",
    "cosine": "return 0.5 * (1.0 + math.cos(math.pi * done))",
}


def schedule(r: ScriptSpec) -> str:
    """`make_schedule(optimizer, config, updates)`; without `updates` where the shape does not ask for them."""
    if not r.built_in:
        return ""
    lines = _one_cycle(r) if r.settings.lr_schedule == "one_cycle" else _multiplied(r)
    arguments = "optimizer, config, updates" if takes_updates(r) else "optimizer, config"
    if r.settings.lr_schedule == "one_cycle" and not r.settings.warmup:
        arguments = "optimizer, updates"
    return "\n".join([f"def make_schedule({arguments}):", *indented(lines)])


def made(r: ScriptSpec, updates: str) -> list[str]:
    """The lines that make the schedule of each optimizer, for a run of this many updates."""
    if not r.several:
        return [f"scheduler = {_call(r, 'optimizer', updates)}"]
    if not (r.optimizers_alternate and takes_updates(r)):
        return [f"schedulers = [{_call(r, 'one', updates)} for one in optimizers]"]
    return [
        "# Each schedule is made for the turns of its optimizer alone.",
        f"order = [turns[step % len(turns)] for step in range({updates})]",
        f"schedulers = [{_call(r, 'one', 'order.count(turn)')} for turn, one in enumerate(optimizers)]",
    ]


def _call(r: ScriptSpec, optimizer: str, updates: str) -> str:
    config = [] if r.settings.lr_schedule == "one_cycle" and not r.settings.warmup else ["config"]
    return f"make_schedule({', '.join([optimizer, *config, *([updates] if takes_updates(r) else [])])})"


def takes_updates(r: ScriptSpec) -> bool:
    """Whether the schedule depends on the number of updates of the run."""
    return r.settings.lr_schedule != "constant" or isinstance(r.settings.warmup, float)


def _warmup(r: ScriptSpec) -> list[str]:
    if not r.settings.warmup:
        return []
    return [f"warmup = {'round(config.warmup * updates)' if isinstance(r.settings.warmup, float) else 'config.warmup'}"]


def _multiplied(r: ScriptSpec) -> list[str]:
    shape, warms = r.settings.lr_schedule, bool(r.settings.warmup)
    rises = "The rate rises over the first updates, then it" if warms else "The rate"
    lines = [f'"""{rises} {_WORDS[shape]}."""', *_warmup(r), ""]
    inner = ["if update < warmup:", "    return (update + 1) / warmup"] if warms else []
    if shape != "constant":
        inner.append(f"done = min(1.0, {'(update - warmup) / (updates - warmup)' if warms else 'update / updates'})")
    lines += ["def factor(update):", *indented([*inner, _BEHIND[shape]]), ""]
    return [
        *lines,
        "for group in optimizer.param_groups:",
        '    group["initial_lr"] = group["lr"]',
        "return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)",
    ]


def _one_cycle(r: ScriptSpec) -> list[str]:
    lines = ['"""One cycle: the rate rises to its peak, then it falls to almost 0."""', *_warmup(r)]
    rise = "0.3"
    if r.settings.warmup:
        # As in techniques/schedules.py: torch divides by the length of the rise.
        lines.append("rise = warmup / updates * (1 - 1e-9 if warmup == 1 else 1)")
        rise = "rise"
    there = {optimizer.momentum for optimizer in r.optimizers}
    momentum = str(there == {True})
    if len(there) > 1:
        lines.append('momentum = all("betas" in group or group.get("momentum") for group in optimizer.param_groups)')
        momentum = "momentum"
    arguments = ["optimizer", "max_lr=rates", "total_steps=updates", f"pct_start={rise}", f"cycle_momentum={momentum}"]
    return [
        *lines,
        'rates = [float(group["lr"]) for group in optimizer.param_groups]',
        *call("return ", "torch.optim.lr_scheduler.OneCycleLR", arguments, 4),
    ]


