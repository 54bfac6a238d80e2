"""Writes validation: each metric's mean, weighted by samples, as the engine computes it."""

from __future__ import annotations

from textwrap import dedent, indent

from workbench.export.inputs.collect import Data, quoted
from workbench.export.program import precision
from workbench.export.program.lightning import hooks, log, trainer
from workbench.export.program.lines import indented
from workbench.export.program.loss import returned
from workbench.export.script_spec import ScriptSpec


def kept(r: ScriptSpec) -> str:
    """A context manager that restores the random states."""
    if not (r.validates or r.refreshes_batch_norm):
        return ""
    return dedent('''\
        @contextlib.contextmanager
        def random_numbers_kept():
            """What is drawn inside is not missed outside."""
            state, numpy_state = random.getstate(), np.random.get_state()
            with torch.random.fork_rng(range(torch.cuda.device_count())):
                yield
            random.setstate(state)
            np.random.set_state(numpy_state)''')


def evaluation_weights(r: ScriptSpec) -> str:
    """A context manager in which the model has the optimizer's weights for evaluation."""
    if not (r.schedule_free and r.validates):
        return ""
    return dedent('''\
        @contextlib.contextmanager
        def evaluation_weights(optimizer):
            """Inside, the model has the weights to evaluate; afterwards those of the training, to the last bit."""
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            before = [p.detach().clone() for p in parameters]
            optimizer.eval()
            yield
            optimizer.train()
            with torch.no_grad():
                for p, value in zip(parameters, before):
                    p.copy_(value)''')


def validate(r: ScriptSpec) -> str:
    """The function `validate`, which weights each metric by samples."""
    if not r.validates:
        return ""
    assert r.val is not None
    before, after = _called(r, "validation_start", "validation_epoch_start"), _called(r, "validation_epoch_end", "validation_end")
    lines = [
        *_in_eval_mode(r),
        *_of_first(r),
        *(["logged.begin()"] if r.logs_widely else []),
        *([] if r.logs_widely else ["seen = []" if _one_score(r) else "seen = {}"]),
        *_begun(r),
        "with random_numbers_kept():",
        *indented([*before, *_scores(r, r.val), *_computed(r), *after, *_called(r, "validation_model_train")]),
        "for part, training in modes.items():",
        "    part.training = training",
        *trainer.checked(r),
        *_means(r),
    ]
    head = f'@torch.no_grad()\ndef validate({", ".join(arguments(r, "model", "loader", "device"))}):\n    """Each metric\'s mean over the samples."""\n'
    named = f"\n\n\n{_NAMED}" if _over_check(r) or (r.has_metrics and r.metrics.dicts) else ""
    return f"{head}{indent(chr(10).join([*trainer.checking(r), *lines]), '    ')}\n\n\n{_MEAN}{named}"


def _of_first(r: ScriptSpec) -> list[str]:
    """The lines that give all processes the batch-norm statistics of the first, which are saved too."""
    if not (r.distributed and r.buffers):
        return []
    holders = ["model" if name == "network" else name for name in r.buffers if name != "metrics"]
    buffers = ", ".join(f"*{name}.buffers()" for name in holders)
    return [f"for buffer in [{buffers}]:  # of the first process", "    broadcast(buffer)"] if holders else []


def arguments(r: ScriptSpec, *given: str) -> list[str]:
    """The arguments of `validate`."""
    stage = trainer.asks(r, "training", "validating", "sanity_checking", "evaluating")
    return [*given, *(["logged"] if r.hooks is not None else []), *(["trainer"] if stage else [])]


def _called(r: ScriptSpec, *names: str) -> list[str]:
    """The lines that call these hooks of the object."""
    return [line for name in names for line in hooks.called(r, f"on_{name}", network="model")]


def _in_eval_mode(r: ScriptSpec) -> list[str]:
    """The lines that put the model, and a loss and metrics that are modules, into eval mode; `modes` keeps the modes from before."""
    if not (r.loss_is_module or r.metrics.modules):
        eval_mode = _called(r, "validation_model_eval") or ["model.eval()"]
        return ["modes = {part: part.training for part in model.modules()}", *eval_mode]
    own = "modules += [metric for metric in metrics.values() if isinstance(metric, torch.nn.Module)]"
    return [
        f"modules = [model{', loss_function' if r.loss_is_module else ''}]",
        *([own] if r.metrics.modules else []),
        "modes = {part: part.training for module in modules for part in module.modules()}",
        "for module in modules:",
        "    module.eval()",
    ]


_MEAN = dedent('''\
    def weighted_mean(parts):
        """The mean of (value, weight) pairs, of which each process has a list."""
        total = torch.zeros(2, dtype=torch.float64)
        for pairs in filter(None, parts):
            values, weights = torch.tensor(pairs, dtype=torch.float64).T.contiguous()
            total += torch.stack([(values * weights).sum(), weights.sum()])
        return float(total[0] / total[1])''')


_NAMED = dedent('''\
    def named(name, value):
        """The numbers of a metric by the names that they are reported by."""
        if not hasattr(value, "items"):
            return {f"val_{name}": value}
        return {key if key.startswith("val_") else f"val_{key}": one for key, one in value.items()}''')


def _over_check(r: ScriptSpec) -> bool:
    """Whether metrics are computed over a validation."""
    return r.has_metrics and r.metrics.objects


def _begun(r: ScriptSpec) -> list[str]:
    """The lines that reset the metrics that are computed over a validation."""
    if not _over_check(r):
        return []
    lines = ['running = {name: metric for name, metric in metrics.items() if hasattr(metric, "compute")}']
    lines += ["for metric in running.values():", "    metric.reset()"]
    return [*lines, *(["batches = []"] if r.metrics.gathered else [])]


def _updated(r: ScriptSpec) -> list[str]:
    """The lines that update them with a batch. Those that do not synchronise themselves wait for the batches of all processes."""
    if not r.metrics.objects:
        return []
    if not r.metrics.gathered:
        return ["for metric in running.values():", "    metric.update(output, target)"]
    own = "batches.append((send_to_device(output, \"cpu\"), send_to_device(target, \"cpu\")))"
    if not r.metrics.synchronised:
        return [own]
    return [
        own,
        "for name, metric in running.items():",
        f"    if name not in {_names(r)}:",
        "        metric.update(output, target)",
    ]


def _names(r: ScriptSpec) -> str:
    return "(" + ", ".join(map(quoted, r.metrics.gathered)) + ("," if len(r.metrics.gathered) == 1 else "") + ")"


def _computed(r: ScriptSpec) -> list[str]:
    """The lines that compute their values over the batches of all processes."""
    if not _over_check(r):
        return []
    lines = []
    if r.metrics.gathered:
        lines = [
            "rounds_of_all = itertools.zip_longest(*gather_object([batches]))  # in the order of the data",
            "for output, target in [batch for dealt in rounds_of_all for batch in dealt if batch is not None]:",
            f"    for name in {_names(r)}:",
            "        running[name].update(send_to_device(output, device), send_to_device(target, device))",
        ]
    return [
        *lines,
        "computed = {key: float(value) for name in running for key, value in named(name, running[name].compute()).items()}",
    ]


def _one_score(r: ScriptSpec) -> bool:
    """Whether the loss is all there is to report."""
    return r.hooks is None and not r.has_metrics


def _means(r: ScriptSpec) -> list[str]:
    """The lines that take the mean over the samples of all processes."""
    assert r.val is not None
    if r.logs_widely:
        return ["return logged.reduced()"]
    if _one_score(r) and r.val.empty:  # no process may have had a value
        return ["gathered = gather_object([seen])", 'return {"val_loss": weighted_mean(gathered)} if any(gathered) else {}']
    if _one_score(r):
        return ['return {"val_loss": weighted_mean(gather_object([seen]))}']
    given = "means =" if _over_check(r) else "return"
    return [
        "gathered = gather_object([seen])  # one from each process",
        "names = gathered[0]",
        f"{given} {{name: weighted_mean([part.get(name) for part in gathered]) for name in names}}",
        *(["return means | computed"] if _over_check(r) else []),
    ]


def _scores(r: ScriptSpec, data: Data) -> list[str]:
    """The lines that compute the metrics of each batch."""
    by_batch = r.owns("on_validation_batch_start", "on_validation_batch_end")
    numbered = by_batch or (r.hooks is not None and r.hooks.val_index)
    head = "for number, batch in enumerate(loader):" if numbered else "for batch in loader:"
    lines = [hooks.to_device(r, "device"), *(["logged.open = []"] if r.logs_widely else [])]
    lines += hooks.called(r, "on_validation_batch_start", "batch", "number", network="model")
    if data.empty:
        lines = ["if batch is None:", "    continue", *lines]
    weight = "weight" if "weight" in _forward_gives(r) and r.hooks is None else data.count
    if _one_score(r):
        called = "forward(model, batch)"
        names = _forward_gives(r)
        if len(names) > 1:
            lines += precision.inside(r, [f"{', '.join(names)} = {called}"], "device")
            called = "loss"
        elif r.mixed:
            lines += precision.inside(r, [f"loss = {called}"], "device")
            called = "loss"
        return [head, *indented([*lines, f"seen.append(({called}.item(), {weight}))"])]
    lines += precision.inside(r, _own_scores(r) if r.hooks is not None else _given_scores(r), "device")
    if r.hooks is not None and r.lightning.weighs:
        lines.append(f'count = {_reported(data)}')
        weight = "count"
    if r.logs_widely:
        return [head, *indented([*lines, *log.weighed(r, weight, data.count)])]
    number = ["    value = value.item()"]
    if r.hooks is None:
        mean = "value.to(torch.promote_types(value.dtype, torch.float32)).mean().item()"
        number = [f"    value = {mean}", "elif isinstance(value, np.ndarray):", "    value = float(value.mean())"]
    return [
        head,
        *indented(lines),
        "    for name, value in scores.items():",
        "        if isinstance(value, torch.Tensor):",
        *indented(indented(number)),
        f"        seen.setdefault(name, []).append((value, {weight}))",
    ]


def _reported(data: Data) -> str:
    return f'result.get("weight", {data.count}) if isinstance(result, dict) else {data.count}'


def _forward_gives(r: ScriptSpec) -> list[str]:
    """The names of what the forward pass returns in a validation, as far as they are used."""
    return ["_" if name == "hiddens" else name for name in returned(r)]


def _given_scores(r: ScriptSpec) -> list[str]:
    lines = [f"{', '.join(_forward_gives(r))} = forward(model, batch)", *_updated(r)]
    if not r.metrics.functions:
        return [*lines, 'scores = {"val_loss": loss}']
    item, items = "name, metric", "metrics.items()"
    which = f" for {item} in {items}" + (" if name not in running" if r.metrics.objects else "")
    scores = f'{{f"val_{{name}}": metric(output, target){which}}}'
    if r.metrics.dicts:
        scores = f"{{key: value{which} for key, value in named(name, metric(output, target)).items()}}"
    return [*lines, f"scores = {scores}", 'scores = {"val_loss": loss, **scores}']


def _own_scores(r: ScriptSpec) -> list[str]:
    assert r.hooks is not None
    index = ", number" if r.hooks.val_index else ""
    lines = [
        f"result = model.validation_step(batch{index})",
        'loss = result.get("loss", result.get("val_loss")) if isinstance(result, dict) else result',
    ]
    if r.logs_widely:
        return lines
    return [
        "logged.clear()",
        *lines,
        "scores = dict(logged)",
        "if isinstance(loss, torch.Tensor) and loss.numel() == 1:",
        '    scores.setdefault("val_loss", loss)',
    ]
