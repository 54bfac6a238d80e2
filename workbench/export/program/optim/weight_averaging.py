"""Writes averaged weights: EMA over updates, or SWA over epochs."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program import distributed, loaders, precision
from workbench.export.program.checkpoint import best
from workbench.export.program.lightning import hooks
from workbench.export.program.lines import call, indented
from workbench.export.script_spec import ScriptSpec


def averaging(r: ScriptSpec) -> str:
    """A class that holds the average, and the refreshing of batch-norm statistics where the model has them."""
    if not r.averages:
        return ""
    return "\n\n\n".join(part for part in (_average(r), _refresh(r)) if part)


def _average(r: ScriptSpec) -> str:
    doc = "The exponential average of the weights." if r.settings.weight_averaging == "ema" else "The mean of the weights."
    decay = ", decay" if r.settings.weight_averaging == "ema" and r.given("avg_fn") is None else ""
    made = "torch.optim.swa_utils.get_ema_multi_avg_fn(decay)" if decay else "torch.optim.swa_utils.get_swa_multi_avg_fn()"
    lines = ["self.parameters, self.weights, self.count = @, [], 0".replace("@", r.parameters if r.trains_loss else "list(network.parameters())")]
    step = ["self.combine(self.weights, self.parameters, torch.tensor(self.count))"]
    if r.given("avg_fn") is None:
        lines.append(f"self.combine = {made}")
    else:
        doc = "An average of the weights."
        step = [
            "for weight, parameter in zip(self.weights, self.parameters):",
            "    count = torch.full((), self.count, device=weight.device)",
            "    weight.copy_(averaged(weight, parameter.detach(), count))",
        ]
    if r.validates and r.buffers:
        lines.append(f"self.buffers = {_listed(r)}")
    return "\n".join(
        [
            "class Average:",
            f'    """{doc}"""',
            "",
            f"    def __init__(self, network{decay}):",
            *indented(indented(lines)),
            "",
            "    @torch.no_grad()",
            "    def update(self):",
            "        if self.count == 0:",
            "            self.weights = [parameter.detach().clone() for parameter in self.parameters]",
            "        else:",
            *indented(indented(indented(step))),
            "        self.count += 1",
            "",
            "    @torch.no_grad()",
            "    def hand_over(self):",
            "        for parameter, weight in zip(self.parameters, self.weights):",
            "            parameter.copy_(weight)",
            *(_in_place(r) if r.validates else []),
        ]
    )


_NORM = "torch.nn.modules.batchnorm._BatchNorm"


def buffers_of(holders: tuple[str, ...]) -> str:
    """The buffers of the network, of the loss, or of both, as an expression."""
    if len(holders) == 1:
        return f"{holders[0]}.buffers()"
    return f"[{', '.join(f'*{name}.buffers()' for name in holders)}]"


def _listed(r: ScriptSpec) -> str:
    """All buffers, of metrics too, in a list."""
    modules = [name for name in r.buffers if name != "metrics"]
    if "metrics" in r.buffers:
        own = "for metric in metrics.values() if isinstance(metric, torch.nn.Module)"
        parts = "".join(f"    *{name}.buffers(),\n" for name in modules)
        return f"[\n{parts}    *(buffer {own} for buffer in metric.buffers()),\n]"
    return f"list({buffers_of(tuple(modules))})" if len(modules) == 1 else buffers_of(tuple(modules))


def _in_place(r: ScriptSpec) -> list[str]:
    text = dedent('''\

        @contextlib.contextmanager
        def in_place(self):
            """Inside, the network has the averaged weights."""
            before = [(value, value.detach().clone()) for value in [*self.parameters, *self.buffers]]
            self.hand_over()
            yield
            with torch.no_grad():
                for value, old in before:
                    value.copy_(old)''')
    if not r.buffers:
        text = text.replace("[*self.parameters, *self.buffers]", "self.parameters")
    return ["    " + line if line else "" for line in text.splitlines()]


def _refresh(r: ScriptSpec) -> str:
    if not r.refreshes_batch_norm:
        return ""
    indexed, device = r.step_takes_batch_idx, "accelerator.device" if r.distributed else "device"
    forward = "forward(network, batch)"
    if r.hooks is not None:
        forward = f"network.training_step(batch{', number' if indexed else ''})"
    moved = [hooks.to_device(r, device), *precision.inside(r, [forward], device)]
    if r.train.empty:
        moved = ["if batch is None:", "    continue", *moved]
    head = "for number, batch in enumerate(batches):" if indexed else "for batch in batches:"
    text = dedent('''\
        @torch.no_grad()
        def refresh_batch_norm(@arguments):
            """Batch-norm statistics of the weights as they are, from one pass over the training data."""
            norm = @norm
            modes = {part: part.training for part in network.modules()}
            if not network.training:
                network.train()
            momenta = {part: part.momentum for part in modes if isinstance(part, norm) and part.training}
            for layer in momenta:  # not those that are kept in eval mode while the network trains
                layer.reset_running_stats()
                layer.momentum = None
            with random_numbers_kept():
        @pass@mean
            for layer, momentum in momenta.items():
                layer.momentum = momentum
            for part, training in modes.items():
                part.training = training''')
    passed = "\n".join(indented(indented([head, *indented(moved)])))
    mean = "\n" + "\n".join(indented(distributed.mean_statistics())) if r.distributed else ""
    arguments = f"network, batches, {'accelerator' if r.distributed else 'device'}"
    inner = {"@norm": _NORM, "@pass": passed, "@mean": mean, "@arguments": arguments}
    for mark, value in inner.items():
        text = text.replace(mark, value)
    return text


def made(r: ScriptSpec) -> list[str]:
    """The lines that make the average."""
    if not r.averages:
        return []
    decay = ", config.ema_decay" if r.settings.weight_averaging == "ema" and r.given("avg_fn") is None else ""
    return [f"average = Average(network{decay})", *(["annealing = None"] if r.has_swa_lrs else [])]


def annealed(r: ScriptSpec) -> list[str]:
    """The lines at the start of the first epoch of SWA: its own rates replace the others."""
    return ["if epoch == config.swa_epoch_start:", *indented(_annealing(r))] if r.has_swa_lrs else []


def annealed_again(r: ScriptSpec) -> list[str]:
    """The lines for a checkpoint that has these rates: `annealed` is their state."""
    if not r.has_swa_lrs:
        return []
    if r.several:
        kept, parts, states = "[one.state_dict() for one in optimizers]", "[*optimizers, *annealing]", "[*kept, *annealed]"
        lines = [f"for part, state in zip({parts}, {states}):", "    part.load_state_dict(state)"]
    else:
        kept = "optimizer.state_dict()"
        lines = ["optimizer.load_state_dict(kept)", "annealing.load_state_dict(annealed)"]
    return ["if annealed:", f"    kept = {kept}  # a new SWALR sets rates in it", *indented([*_annealing(r), *lines])]


def _annealing(r: ScriptSpec) -> list[str]:
    strategy = f'"{r.settings.annealing_strategy}"'
    rates = "config.swa_lrs"
    if any(optimizer.frozen_groups for optimizer in r.optimizers):
        rates = '[config.swa_lrs if group.get("initial_lr", group["lr"]) else 0.0 for group in optimizer.param_groups]'
    arguments = ["optimizer", rates, "config.annealing_epochs", strategy]
    if not r.several:
        return call("annealing = ", "torch.optim.swa_utils.SWALR", arguments, 12)
    made = call("", "torch.optim.swa_utils.SWALR", arguments, 20)
    return ["annealing = [", *indented(made), "    for optimizer in optimizers", "]"]


def after_update(r: ScriptSpec) -> list[str]:
    """The lines of EMA after an update."""
    if r.settings.weight_averaging != "ema":
        return []
    s = r.settings
    if r.given("should_update") is not None:
        return ["if should_average(step, epoch):", "    average.update()"]
    when = ["step > config.averaging_start"] if s.averaging_start else []
    when += ["step % config.averaging_every_n_steps == 0"] if s.averaging_every_n_steps != 1 else []
    when += ["epoch >= config.averaging_start_epoch"] if s.averaging_start_epoch else []
    return [f"if {' and '.join(when)}:", "    average.update()"] if when else ["average.update()"]


def after_epoch(r: ScriptSpec) -> list[str]:
    """The lines of SWA after an epoch."""
    if r.settings.weight_averaging != "swa":
        return []
    if r.given("should_update") is not None:
        return ["if should_average(step, epoch):", "    average.update()"]
    return ["if epoch >= config.swa_epoch_start:", "    average.update()"]


def validated(r: ScriptSpec, validate: str) -> list[str]:
    """The lines that add the metrics of the averaged weights to those of the raw ones."""
    if not r.averages or not r.validates:
        return []
    return [
        "if average.count:",
        "    with average.in_place():",
        *indented(indented(_refreshed(r))),
        f"        averages = {validate}",
        *indented(indented(best.kept(r, averaged=True))),
        '    scores |= {f"{name}_averaged": value for name, value in averages.items()}',
    ]


def handed_over(r: ScriptSpec) -> list[str]:
    """The lines that put the averaged weights into the model at the end."""
    if not r.averages:
        return []
    return ["if average.count:", "    average.hand_over()", *indented(_refreshed(r))]


def _refreshed(r: ScriptSpec) -> list[str]:
    if not r.refreshes_batch_norm:
        return []
    batches = "training_batches()"
    if r.limits:
        batches = loaders.first(r.train, batches, "limit")
    return [f"refresh_batch_norm(network, {batches}, accelerator{'' if r.distributed else '.device'})"]
