"""Validation in an exported script: each metric's mean, weighted by samples, as the engine takes it."""

from __future__ import annotations

from textwrap import dedent, indent

from workbench.export import block_hooks, block_log, block_precision, block_trainer
from workbench.export.block_loss import returned
from workbench.export.given import Data
from workbench.export.lines import indented
from workbench.export.recipe import Recipe


def kept(r: Recipe) -> str:
    """A context that gives random numbers back."""
    if not (r.validates or r.refreshes):
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


def evaluation_weights(r: Recipe) -> str:
    """A context in which the optimizer has put the weights to evaluate into the model."""
    if not (r.modes and r.validates):
        return ""
    return dedent('''\
        @contextlib.contextmanager
        def evaluation_weights(optimizer):
            """Inside, the model has the weights to evaluate; behind it those of the training, to the last bit."""
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            before = [p.detach().clone() for p in parameters]
            optimizer.eval()
            yield
            optimizer.train()
            with torch.no_grad():
                for p, value in zip(parameters, before):
                    p.copy_(value)''')


def validate(r: Recipe) -> str:
    """Validation, weighted by samples."""
    if not r.validates:
        return ""
    assert r.val is not None
    before, behind = _told(r, "validation_start", "validation_epoch_start"), _told(r, "validation_epoch_end", "validation_end")
    lines = [
        *_in_eval_mode(r),
        *(["logged.begin()"] if r.logs_widely else []),
        *([] if r.logs_widely else ["seen = []" if _one_score(r) else "seen = {}"]),
        "with random_numbers_kept():",
        *indented([*before, *_scores(r, r.val), *behind, *_told(r, "validation_model_train")]),
        "for part, training in modes.items():",
        "    part.training = training",
        *block_trainer.checked(r),
        *_means(r),
    ]
    head = f'@torch.no_grad()\ndef validate({", ".join(arguments(r, "model", "loader", "device"))}):\n    """Each metric\'s mean over the samples."""\n'
    return f"{head}{indent(chr(10).join([*block_trainer.checking(r), *lines]), '    ')}\n\n\n{_MEAN}"


def arguments(r: Recipe, *given: str) -> list[str]:
    """What `validate` takes."""
    stage = block_trainer.asks(r, "training", "validating", "sanity_checking", "evaluating")
    return [*given, *(["logged"] if r.hooks is not None else []), *(["trainer"] if stage else [])]


def _told(r: Recipe, *names: str) -> list[str]:
    """The object hears of moments of a check."""
    return [line for name in names for line in block_hooks.called(r, f"on_{name}", network="model")]


def _in_eval_mode(r: Recipe) -> list[str]:
    """The model, with a loss and metrics that are modules, goes to eval mode; `modes` says what was."""
    if not (r.loss_is_module or r.metric_modules):
        eval_mode = _told(r, "validation_model_eval") or ["model.eval()"]
        return ["modes = {part: part.training for part in model.modules()}", *eval_mode]
    own = "modules += [metric for metric in metrics.values() if isinstance(metric, torch.nn.Module)]"
    return [
        f"modules = [model{', loss_function' if r.loss_is_module else ''}]",
        *([own] if r.metric_modules else []),
        "modes = {part: part.training for module in modules for part in module.modules()}",
        "for module in modules:",
        "    module.eval()",
    ]


_MEAN = dedent('''\
    def weighted_mean(shares):
        """The mean of (value, weight) pairs."""
        values, weights = torch.tensor(shares, dtype=torch.float64).T.contiguous()
        return float((values * weights).sum() / weights.sum())''')


def _one_score(r: Recipe) -> bool:
    """Whether the loss is all there is to report."""
    return r.hooks is None and not r.measures


def _means(r: Recipe) -> list[str]:
    """The mean over the samples of all processes."""
    assert r.val is not None
    if r.logs_widely:
        return ["return logged.reduced()"]
    if _one_score(r) and r.val.empty:  # there may be nothing to take the mean of
        return ["seen = gather_object(seen)", 'return {"val_loss": weighted_mean(seen)} if seen else {}']
    if _one_score(r):
        return ['return {"val_loss": weighted_mean(gather_object(seen))}']
    return [
        "gathered = gather_object([seen])  # one from each process",
        "names = gathered[0]",
        "return {name: weighted_mean([pair for part in gathered for pair in part.get(name, ())]) for name in names}",
    ]


def _scores(r: Recipe, data: Data) -> list[str]:
    """The metrics of each batch."""
    told = r.owns("on_validation_batch_start", "on_validation_batch_end")
    numbered = told or (r.hooks is not None and r.hooks.val_index)
    head = "for number, batch in enumerate(loader):" if numbered else "for batch in loader:"
    lines = [block_hooks.to_device(r, "device"), *(["logged.open = []"] if r.logs_widely else [])]
    lines += block_hooks.called(r, "on_validation_batch_start", "batch", "number", network="model")
    if data.empty:
        lines = ["if batch is None:", "    continue", *lines]
    weight = "weight" if "weight" in _forward_gives(r) and r.hooks is None else data.count
    if _one_score(r):
        called = "forward(model, batch)"
        names = _forward_gives(r)
        if len(names) > 1:
            lines += block_precision.inside(r, [f"{', '.join(names)} = {called}"], "device")
            called = "loss"
        elif r.mixed:
            lines += block_precision.inside(r, [f"loss = {called}"], "device")
            called = "loss"
        return [head, *indented([*lines, f"seen.append(({called}.float().item(), {weight}))"])]
    lines += block_precision.inside(r, _own_scores(r) if r.hooks is not None else _given_scores(r), "device")
    if r.hooks is not None and r.own.weighs:
        lines.append(f'count = {_reported(data)}')
        weight = "count"
    if r.logs_widely:
        return [head, *indented([*lines, *block_log.weighed(r, weight, data.count)])]
    return [
        head,
        *indented(lines),
        "    for name, value in scores.items():",
        "        if isinstance(value, torch.Tensor):",
        f"            value = {'value.item()' if r.hooks is not None else 'value.float().mean().item()'}",
        f"        seen.setdefault(name, []).append((value, {weight}))",
    ]


def _reported(data: Data) -> str:
    return f'result.get("weight", {data.count}) if isinstance(result, dict) else {data.count}'


def _forward_gives(r: Recipe) -> list[str]:
    """What the forward pass returns in a validation, by the names that are made use of."""
    return ["_" if name == "hiddens" else name for name in returned(r)]


def _given_scores(r: Recipe) -> list[str]:
    return [
        f"{', '.join(_forward_gives(r))} = forward(model, batch)",
        'scores = {f"val_{name}": metric(output, target) for name, metric in metrics.items()}',
        'scores = {"val_loss": loss, **scores}',
    ]


def _own_scores(r: Recipe) -> list[str]:
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
        '    scores.setdefault("val_loss", loss.float())',
    ]
