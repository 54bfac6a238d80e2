"""Writes several optimizers: each trains its own parameters alone, in turn or each at every update."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program.lines import indented
from workbench.export.script_spec import ScriptSpec


def owned(r: ScriptSpec) -> str:
    """A function that tells which parameters belong to which optimizer."""
    clips_itself = "clip_gradients" in r.lightning.methods
    if not (r.several or r.manual or clips_itself or (needs_parameters(r) and not r.optimizers[0].whole)):
        return ""
    return dedent('''\
        def parameters_of(network, optimizer):
            """An optimizer's parameters, in the order that the network has them in."""
            own = {id(p) for group in optimizer.param_groups for p in group["params"]}
            return [p for p in network.parameters() if p.requires_grad and id(p) in own]''')


def needs_parameters(r: ScriptSpec) -> bool:
    """Whether the loop reads the parameters of each optimizer."""
    made_up = r.accumulates and (r.may_skip_batches or r.reports_weight or r.train.empty)
    clips = r.clips and not r.owns("configure_gradient_clipping")
    return clips or r.settings.on_nonfinite == "skip" or made_up or r.distributed


def toggled(r: ScriptSpec) -> str:
    """A context manager for one optimizer's turn."""
    if not r.several or r.manual:
        return ""
    return dedent('''\
        @contextlib.contextmanager
        def toggled(network, own):
            """Inside, only these parameters require gradients."""
            mine = {id(p) for p in own}
            others = [p for p in network.parameters() if p.requires_grad and id(p) not in mine]
            for parameter in others:
                parameter.requires_grad_(False)
            yield
            for parameter in others:
                parameter.requires_grad_(True)''')


def made(r: ScriptSpec) -> list[str]:
    """The lines after the making of the optimizers."""
    if not r.several or r.manual:
        return []
    lines = ["owned = [parameters_of(network, optimizer) for optimizer in optimizers]"]
    if r.optimizers_alternate:
        frequencies = [optimizer.frequency for optimizer in r.optimizers]
        turns = " + ".join(f"[{n}]" + (f" * {count}" if count > 1 else "") for n, count in enumerate(frequencies))
        lines.append(f"turns = {turns}  # whose turn it is, update for update")
    return lines


def in_turn(r: ScriptSpec, step: list[str]) -> list[str]:
    """The lines of an update: the lines of one optimizer's `step` (which give `loss`), for each whose turn it is."""
    one = ["optimizer = optimizers[turn]", "with toggled(network, owned[turn]):", *indented(step)]
    if r.optimizers_alternate:
        return ["turn = turns[step % len(turns)]", *one, *([] if r.accumulates else ["loss = loss.detach()"])]
    may_be_empty = r.may_skip_batches or r.train.empty
    return [
        "parts = []",
        "for turn in range(len(optimizers)):",
        *indented([*one, "parts.append(loss.detach())"]),
        *(["if not parts:", "    continue"] if may_be_empty else []),
        "loss = sum(parts)",
    ]
