"""Writes manual optimization: the model steps its optimizers itself, and the script clips and accumulates."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program import precision
from workbench.export.program.lightning import hooks
from workbench.export.program.lines import indented
from workbench.export.script_spec import ScriptSpec


def manual(r: ScriptSpec) -> str:
    """The classes of the model's optimizers and schedulers, and the methods that the model gets."""
    if not r.manual:
        return ""
    parts = [_optimizer(r), *([_SCHEDULER] if r.accumulates and _own_schedules(r) else []), _methods(r)]
    return "\n\n\n".join(parts)


def _own_schedules(r: ScriptSpec) -> bool:
    return any(optimizer.schedules for optimizer in r.optimizers)


def _optimizer(r: ScriptSpec) -> str:
    step = list(_SET_ASIDE) if r.accumulates else []
    step += hooks.called(r, "on_before_optimizer_step", "self.optimizer")
    clip = f"torch.nn.utils.clip_grad_{r.settings.gradient_clip_algorithm}_(self.own, self.config.gradient_clip_val)"
    if "clip_gradients" in r.lightning.methods:
        step += ["if self.limits is not None:", "    clip, value = self.limits", "    clip(self.own, value)", "    self.limits = None"]
        step += ["else:", f"    {clip}"] if r.clips else []
    elif r.clips:
        step.append(clip)
    step += ["self.optimizer.step(**options)", "self.optimizer.zero_grad()", "self.window.taken = True", "return result"]
    waits = "its step waits for an update's last batch" if r.accumulates else "its step drops the gradients afterwards"
    waits = f"its step clips, and {waits.removeprefix('its step ')}" if r.clips else waits
    text = dedent('''\
        class ManualOptimizer:
            """An optimizer as `training_step` sees it: @waits."""

            def __init__(self, optimizer, network, config, window):
                self.optimizer, self.config, self.window = optimizer, config, window
                self.own = parameters_of(network, optimizer)
                self.trained = [p for p in network.parameters() if p.requires_grad]@kept@limits

            @property  # type: ignore[misc]
            def __class__(self):
                return type(self.optimizer)

            def __getattr__(self, name):
                return getattr(self.optimizer, name)

            def step(self, closure=None, **options):
                result = closure() if closure is not None else None
        @step

            def zero_grad(self, set_to_none=True):
                self.optimizer.zero_grad()

            def toggle(self):
                self.untoggle()
                mine = {id(p) for p in self.own}
                self.window.off = [p for p in self.trained if p.requires_grad and id(p) not in mine]
                for parameter in self.window.off:
                    parameter.requires_grad_(False)

            def untoggle(self):
                for parameter in self.window.off:
                    parameter.requires_grad_(True)
                self.window.off = []

            @contextlib.contextmanager
            def toggle_model(self, sync_grad=True):
                self.toggle()
                yield
                self.untoggle()''')
    if not r.clips:
        text = text.replace("optimizer, network, config, window)", "optimizer, network, window)").replace(
            "self.optimizer, self.config, self.window = optimizer, config, window", "self.optimizer, self.window = optimizer, window"
        )
    limits = "\n        self.limits = None" if "clip_gradients" in r.lightning.methods else ""
    inner = {"@limits": limits, "@kept": "\n        self.kept = []" if r.accumulates else "", "@waits": waits, "@step": "\n".join(indented(indented(step)))}
    for mark, value in inner.items():
        text = text.replace(mark, value)
    return text


_SET_ASIDE = (
    "for parameter, kept in zip(self.own, self.kept):",
    "    if kept is not None:",
    "        parameter.grad = kept if parameter.grad is None else parameter.grad + kept",
    "self.kept = []",
    "if not self.window.last:",
    "    # Set aside: what another backward leaves in these parameters does not count.",
    "    self.kept = [parameter.grad for parameter in self.own]",
    "    self.optimizer.zero_grad()",
    "    return result",
)

_SCHEDULER = dedent('''\
    class ManualScheduler:
        """A scheduler as `training_step` sees it: it steps only where its optimizer has since its last step."""

        def __init__(self, scheduler):
            self.scheduler, self.due = scheduler, False
            scheduler.optimizer.register_step_post_hook(self.stepped)

        @property  # type: ignore[misc]
        def __class__(self):
            return type(self.scheduler)

        def __getattr__(self, name):
            return getattr(self.scheduler, name)

        def stepped(self, *_):
            self.due = True

        def step(self, *arguments):
            if self.due:
                self.due = False
                self.scheduler.step(*arguments)''')


def _methods(r: ScriptSpec) -> str:
    share = [
        *(["part = loss * window.share"] if r.accumulates else ["part = loss"]),
        *hooks.backward(r, "part", "**options"),
        "window.loss = part.detach() if window.loss is None else window.loss + part.detach()",
    ]
    return dedent('''\
        def steps_itself(network, @configoptimizers, schedulers, window):
            """Give the network the methods that its `training_step` counts on."""

            def backward(loss, gradient=None, **options):
                if gradient is not None:
                    options["gradient"] = gradient
        @share

            def chosen(optimizer):
                if isinstance(optimizer, int):
                    return optimizers[optimizer]
                return next(one for one in optimizers if optimizer is one or optimizer is one.optimizer)

            network.manual_backward = backward
            network.optimizers = lambda use_pl_optimizer=True: optimizers[0] if len(optimizers) == 1 else optimizers
            network.lr_schedulers = lambda: (schedulers[0] if len(schedulers) == 1 else schedulers) or None
            network.toggle_optimizer = lambda optimizer, *_, **__: chosen(optimizer).toggle()
            network.untoggle_optimizer = lambda optimizer, *_, **__: chosen(optimizer).untoggle()''').replace(
        "@share", "\n".join(indented(indented(share)))
    ).replace("@config", "config, " if _passes_config(r) else "") + "".join(f"\n{line}" if line else "" for line in indented(_more_methods(r)))


def _passes_config(r: ScriptSpec) -> bool:
    return r.clips and "clip_gradients" in r.lightning.methods


def _more_methods(r: ScriptSpec) -> list[str]:
    """The methods that not every model calls."""
    lines = []
    if "toggled_optimizer" in r.lightning.methods:
        lines.append("network.toggled_optimizer = lambda optimizer: chosen(optimizer).toggle_model()")
    if "clip_gradients" in r.lightning.methods:
        value = "config.gradient_clip_val" if r.clips else "0.0"
        lines += [
            "",
            "def clip_gradients(optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):",
            f"    value = {value} if gradient_clip_val is None else gradient_clip_val",
            '    clip = {"norm": torch.nn.utils.clip_grad_norm_, "value": torch.nn.utils.clip_grad_value_}',
            "    if value:",
            f'        algorithm = gradient_clip_algorithm or "{r.settings.gradient_clip_algorithm}"',
            "        chosen(optimizer).limits = clip[algorithm.lower()], value",
            "",
            "network.clip_gradients = clip_gradients",
        ]
    return lines


def made(r: ScriptSpec, schedulers: list[str]) -> list[str]:
    """The lines that give the model its methods."""
    if not r.manual:
        return []
    optimizers = "optimizers" if r.several else "[optimizer]"
    config = "network, config, state" if r.clips else "network, state"
    given = [f"ManualScheduler({name})" if r.accumulates else name for name in schedulers]
    first = "last=True, share=1.0, " if r.accumulates else ""
    return [
        f"state = SimpleNamespace({first}loss=None, taken=False, off=[])",
        f"steps = [ManualOptimizer(one, {config}) for one in {optimizers}]",
        f"steps_itself(network, {'config, ' if _passes_config(r) else ''}steps, [{', '.join(given)}], state)",
    ]


def _batch_ended(r: ScriptSpec) -> list[str]:
    """The lines after each batch of a window but the last, which the update follows."""
    ended = hooks.batch_ended(r)
    return ["if place < len(window) - 1:", *indented(ended)] if ended else []


def update(r: ScriptSpec) -> list[str]:
    """The lines that give each batch of the window to the model, which calls backward and steps."""
    call = f"network.training_step(batch{', number' if r.step_takes_batch_idx else ''})"
    call = f"result = {call}" if r.reads_outputs else call
    begun = ["state.loss, state.taken = None, False"]
    nothing = ["if state.loss is None and not state.taken:", "    continue"]
    ended = [
        "steps[0].untoggle()  # what the model has left toggled",
        *hooks.left_out(r, nothing),
        "loss = state.loss",
    ]
    moved = [hooks.to_device(r), *hooks.batch_started(r)]
    if not r.accumulates:
        empty = ["if batch is None:", "    continue"] if r.train.empty else []
        return [*empty, *begun, *moved, *precision.inside(r, [call]), *ended]
    item = "(number, batch)" if r.uses_batch_idx else "batch"
    filtered = [f"window = [{item} for {item.strip('()')} in window if batch is not None]"] if r.train.empty else []
    return [
        *filtered,
        *begun,
        f"for place, {item} in enumerate(window):",
        "    state.last, state.share = place == len(window) - 1, 1 / len(window)",
        *indented([*moved, *precision.inside(r, [call]), *_batch_ended(r)]),
        "for one in steps:",
        "    if one.kept:  # it stepped earlier in the window, and not at its last batch",
        "        one.step()",
        *ended,
    ]
