"""Writes the gradient of one update: of one batch, or of a window of several with their weights."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program import checksums, distributed, loaders, precision, tbptt
from workbench.export.program import loss as block_loss
from workbench.export.program.lightning import hooks
from workbench.export.program.lines import indented
from workbench.export.script_spec import ScriptSpec


def sizes(r: ScriptSpec) -> str:
    """The table and function for how many batches make one update, where that changes during the run."""
    if r.windows is None:
        return ""
    rows = ", ".join(f"{begin}: {size}" for begin, size in sorted(r.windows.items()))
    place, what = ("step", "make update `step`") if r.sizes else ("epoch", "make one update in this epoch")
    text = dedent('''\
        # How many batches make one update, from which @place on.
        WINDOWS = {@rows}


        def window_size(@place):
            """How many batches @what."""
            return WINDOWS[max(first for first in WINDOWS if first <= @place)]''')
    return text.replace("@rows", rows).replace("@what", what).replace("@place", place)


def head(r: ScriptSpec) -> list[str]:
    """The head of the loop over an epoch's updates."""
    batches = checksums.batches(r, "loader" if not r.limits else loaders.first(r.train, "loader", "limit"))
    if r.tbptt:
        batches = tbptt.stream(r, batches)
    elif r.uses_batch_idx:
        batches = f"enumerate({batches})"
    if r.distributed:
        return [distributed.head(r, batches, r.window if r.accumulates else "1")]
    if r.accumulates:
        made = batches if r.tbptt or r.uses_batch_idx else f"iter({batches})"
        return [f"batches = {made}", f"while window := list(itertools.islice(batches, {r.window})):"]
    return [f"for {_item(r)} in {batches}:"]


def batches_in_epoch(r: ScriptSpec) -> str:
    """The expression for the number of batches in an epoch."""
    limit = r.settings.limit_train_batches
    if not r.limits:
        return "len(loader)"
    if isinstance(limit, float):
        return "int(len(loader) * config.limit_train_batches + 1e-9)"
    return "min(config.limit_train_batches, len(loader))" if r.train.sized else "config.limit_train_batches"


def updates_in_epoch(r: ScriptSpec) -> str | None:
    """The expression for the number of updates in an epoch; None where it is unknown before the epoch."""
    if r.tbptt or not (r.train.sized or r.limits):
        return None
    batches = "limit" if r.limits else "len(loader)"
    if not r.accumulates:
        return batches
    return f"-(-{batches} // {r.window})"


def gradient(r: ScriptSpec, moved: bool = False) -> list[str]:
    """The lines that accumulate a window's gradient and give its loss. moved: a single batch is on the device already."""
    if r.distributed:
        return distributed.gradient(r, _weighted(r, distributed.SHARE, varies=False))
    return _window(r) if r.accumulates else _one_batch(r, moved)


def _item(r: ScriptSpec) -> str:
    """The loop variables."""
    if r.tbptt:
        return tbptt.item(r)
    return "number, batch" if r.uses_batch_idx else "batch"


def _call(r: ScriptSpec) -> str:
    """The forward pass of a training batch."""
    state = "hiddens" if r.may_skip_batches else "None if first else hiddens"
    model = distributed.model(r) if r.distributed else "wrapped"
    if r.trains_loss:
        return f"{model}(batch{', ' + state if r.tbptt else ''})"
    if r.hooks is None:
        return f"forward({model}, batch{', ' + state if r.tbptt else ''})"
    values = {"optimizer_idx": "turn", "hiddens": state}
    more = [f"{name}={values[name]}" for name in r.extra_arguments]
    return f"{model}({', '.join(['batch', *(['number'] if r.step_takes_batch_idx else []), *more])})"


def _one_batch(r: ScriptSpec, moved: bool) -> list[str]:
    lines = ["if batch is None:", "    continue"] if r.train.empty and not r.tbptt else []
    lines += [*([] if moved else [hooks.to_device(r), *hooks.batch_started(r)]), *_fresh(r)]
    lines += precision.inside(r, hooks.left_out(r, block_loss.taken(r, _call(r))))
    return [*lines, *_backward(r, "loss"), *_carried(r)]


def _backward(r: ScriptSpec, loss: str, first: str = "") -> list[str]:
    """The backward pass; an object with hooks within an update keeps its gradients until then. first: whether it is a window's."""
    if not r.hooks_in_update:
        return [f"{precision.scaled(r, loss)}.backward()"]
    zeroed = hooks.zeroed(r)
    lines = [f"if {first}:", *indented(zeroed)] if first else zeroed
    lines += [f"scaled = {precision.scaled(r, loss)}"] if r.scales else []
    return [*lines, *hooks.backward(r, "scaled" if r.scales else loss)]


def _fresh(r: ScriptSpec) -> list[str]:
    """The line that drops the hidden state when a batch begins, also where its first piece is left out."""
    return ["hiddens = None if first else hiddens"] if r.tbptt and r.may_skip_batches else []


def _carried(r: ScriptSpec) -> list[str]:
    return ["hiddens = detached(hiddens)"] if r.tbptt else []


def _window(r: ScriptSpec) -> list[str]:
    """The backward passes of several batches; the last window of an epoch is divided by its true length."""
    item = _item(r)
    within = f"({item})" if "," in item else item
    lines = []
    if r.train.empty and not r.tbptt:
        lines.append(f"window = [{within} for {item} in window if batch is not None]")
    share = "1 / len(window)"
    if (r.mean or r.tbptt) and not r.reports_weight:
        count = [r.train.count] if r.mean else []
        steps = [r.train.steps] if r.tbptt else []
        unused = ", ".join("batch" if name == "batch" else "_" for name in item.split(", "))
        lines.append(f"sizes = [{' * '.join([*count, *steps])} for {unused} in window]")
        share = "sizes[place] / sum(sizes)"
    varies = r.reports_weight or r.may_skip_batches or (r.train.empty and not r.tbptt)
    lines.append("loss, kept = 0.0, []" if varies else "loss = 0.0")
    lines.append(f"for place, {within} in enumerate(window):")
    backward = _weighted(r, share, varies)
    if r.single_process_reason:
        each = [hooks.to_device(r), *hooks.batch_started(r), *_fresh(r), *backward]
    else:
        each = [
            hooks.to_device(r),
            *hooks.batch_started(r),
            "last = place == len(window) - 1",
            "with contextlib.nullcontext() if last else accelerator.no_sync(wrapped):",
            *indented(backward),
        ]
    each += ["loss += part.detach()", *_carried(r)]
    ended = hooks.batch_ended(r)
    each += ["if place < len(window) - 1:", *indented(ended)] if ended else []
    lines += indented(each)
    return [*lines, *_made_up(r)] if varies else lines


def _weighted(r: ScriptSpec, share: str, varies: bool) -> list[str]:
    """The forward and backward pass of one batch of a window, at its share."""
    plain = not varies and len(block_loss.returned(r)) == 1
    if plain and not r.mixed:
        return [f"part = {_call(r)} * ({share})", *_backward(r, "part", "place == 0")]
    if not varies and set(block_loss.returned(r)[1:]) <= {"output", "target"} and not r.mixed:
        return [f"part = {_call(r)}[0] * ({share})", *_backward(r, "part", "place == 0")]
    lines = precision.inside(r, [line.replace("loss", "part", 1) if line.startswith("loss") else line for line in block_loss.taken(r, _call(r))])  # fmt: skip
    lines = [line.replace("loss is None", "part is None") for line in lines]
    lines = [line.replace("    loss", "    part", 1) if line.startswith("    loss") else line for line in lines]
    if r.reports_weight:
        lines += ["if len(window) > 1:", "    part = part * weight", "kept.append(weight)"]
    elif varies:
        lines += [f"kept.append({share})", "part = part * kept[-1]"]
    else:
        lines.append(f"part = part * ({share})")
    return [*lines, *_backward(r, "part", "len(kept) == 1" if varies else "place == 0")]


def _made_up(r: ScriptSpec) -> list[str]:
    """The lines that rescale a window of which batches were left out."""
    when = "len(window) > 1" if r.reports_weight else "len(kept) < len(window)"
    return [
        "if not kept:",
        "    continue",
        f"if {when}:",
        f"    for parameter in {'owned[turn]' if r.several else 'parameters'}:",
        "        if parameter.grad is not None:",
        "            parameter.grad /= sum(kept)",
        "    loss = loss / sum(kept)",
    ]
