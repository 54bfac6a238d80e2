"""The functions of an exported script, block by block: one for each technique, written only where it was on."""

from __future__ import annotations

from textwrap import dedent, indent

from workbench.export.lines import indented
from workbench.export.recipe import Data, Recipe


def changes(r: Recipe) -> str:
    """What was changed while the run went on."""
    if not r.changes:
        return ""
    rows: dict[int, list[str]] = {}
    for step, values in r.changes:
        rows.setdefault(step, []).extend(f'("{name}", {_number(value)})' for name, value in values.items())
    text = "".join(f"    {step}: [{', '.join(pairs)}],\n" for step, pairs in rows.items())
    return f"# What was changed by hand while it ran, and before which update.\nCHANGES = {{\n{text}}}"


def _number(value: float | None) -> str:
    return 'float("inf")' if value is None else repr(value)


# ---- the loss ---------------------------------------------------------------------------------------------------


def forward(r: Recipe) -> str:
    """How a batch becomes a loss."""
    if r.hooks is not None:
        return dedent('''\
            class TrainingStep(torch.nn.Module):
                """`training_step` as a forward pass, so that DistributedDataParallel can wrap it."""

                def __init__(self, module):
                    super().__init__()
                    self.module = module

                def forward(self, *batch):
                    loss = self.module.training_step(*batch)
                    return loss["loss"] if isinstance(loss, dict) else loss''')
    lines = _without_loss(r) if r.given("loss") is None else _with_loss(r)
    doc = "The loss of a batch, the output, and the target." if r.measures else "The loss of a batch."
    return "\n".join(["def forward(model, batch):", f'    """{doc}"""', *indented(lines)])


def _with_loss(r: Recipe) -> list[str]:
    key = r.batch.removeprefix("dict:")
    if r.batch == "pair":
        lines, output = ["inputs, target = batch"], "model(inputs)"
    elif r.batch == "tuple":
        lines, output = ["*inputs, target = batch"], "model(*inputs)"
    else:
        lines = [
            f'inputs = {{name: value for name, value in batch.items() if name != "{key}"}}',
            f'target = batch["{key}"]',
        ]
        output = "model(**inputs)"
    if not r.measures:
        return [*lines, f"return loss_function({output}, target)"]
    return [*lines, f"output = {output}", "return loss_function(output, target), output, target"]


def _without_loss(r: Recipe) -> list[str]:
    key = r.batch.removeprefix("dict:")
    by_name = r.batch.startswith("dict:")
    arguments = "**batch" if by_name else "batch" if r.batch == "single" else "*batch"
    output, loss = f"output = model({arguments})", 'output["loss"] if isinstance(output, dict) else output.loss'
    if not r.measures:
        return [output, f"return {loss}"]
    target = "batch[-1]" if r.batch == "tuple" else f'batch["{key}"]' if by_name and key else "None"
    return [output, f"loss = {loss}", f"return loss, output, {target}"]


def set_lr(r: Recipe) -> str:
    """A new base rate, for live changes and for objects that make their own optimizer."""
    if not (r.changed("lr") or (r.hooks is not None and r.hooks.made_lr is not None)):
        return ""
    if not r.scheduled:
        return dedent('''\
            def set_lr(optimizer, old, new):
                """A new learning rate; the ratios of parameter groups stay."""
                for group in optimizer.param_groups:
                    group["lr"] = new if group["lr"] == old else group["lr"] * (new / old)''')
    return dedent('''\
        def set_lr(optimizer, schedulers, old, new):
            """A new base rate; schedules and the ratios of parameter groups multiply it."""

            def scaled(rate):
                return new if rate == old else rate * (new / old)

            for group in optimizer.param_groups:
                for key in ("lr", "initial_lr", "max_lr", "min_lr"):
                    if key in group:
                        group[key] = scaled(group[key])
            for scheduler in schedulers:  # it grows: a chain of schedulers holds others
                schedulers += getattr(scheduler, "_schedulers", ())
                for name in ("base_lrs", "max_lrs"):
                    if hasattr(scheduler, name):
                        setattr(scheduler, name, [scaled(rate) for rate in getattr(scheduler, name)])
                if isinstance(getattr(scheduler, "eta_min", None), float):
                    scheduler.eta_min = scaled(scheduler.eta_min)''')


def validate(r: Recipe) -> str:
    """Validation, weighted by samples."""
    if r.val is None:
        return ""
    modules = "for part in model.modules()"
    if r.loss_is_module:
        modules = "for module in (model, loss_function) for part in module.modules()"
    lines = [
        f"modes = {{part: part.training {modules}}}",
        "model.eval()",
        *(["loss_function.eval()"] if r.loss_is_module else []),
        "total, samples = 0.0, 0" if _one_score(r) else "totals, samples = {}, 0",
        "with random_numbers_kept():",
        *indented(_scores(r, r.val)),
        "for part, training in modes.items():",
        "    part.training = training",
        *_mean(r),
    ]
    logged = ", logged" if r.hooks is not None else ""
    kept = dedent('''\
        @contextlib.contextmanager
        def random_numbers_kept():
            """What is drawn inside is not missed outside."""
            state, numpy_state = random.getstate(), np.random.get_state()
            with torch.random.fork_rng(range(torch.cuda.device_count())):
                yield
            random.setstate(state)
            np.random.set_state(numpy_state)''')
    head = f'@torch.no_grad()\ndef validate(model, loader, device{logged}):\n    """Each metric\'s mean over the samples."""\n'
    return f"{kept}\n\n\n{head}" + indent("\n".join(lines), "    ")


def _one_score(r: Recipe) -> bool:
    """Whether the loss is all there is to report."""
    return r.hooks is None and not r.measures


def _mean(r: Recipe) -> list[str]:
    """The mean over the samples of all processes."""
    if _one_score(r):
        return [
            "shares = gather_object([(total, samples)])  # one from each process",
            'return {"val_loss": sum(total for total, _ in shares) / sum(samples for _, samples in shares)}',
        ]
    return [
        "shares = gather_object([(totals, samples)])  # one from each process",
        "samples = sum(samples for _, samples in shares)",
        "names = shares[0][0]",
        "return {name: sum(totals.get(name, 0.0) for totals, _ in shares) / samples for name in names}",
    ]


def _scores(r: Recipe, data: Data) -> list[str]:
    """The metrics of each batch, added up."""
    moved = "    batch = send_to_device(batch, device, non_blocking=True)"
    counted = [f"    count = {data.count}", "    samples += count"]
    if _one_score(r):
        added = "    total += forward(model, batch).item() * count"
        return ["for batch in loader:", moved, *counted, added]
    if r.hooks is None:
        lines = [
            "for batch in loader:",
            moved,
            "    loss, output, target = forward(model, batch)",
            '    scores = {f"val_{name}": metric(output, target) for name, metric in metrics.items()}',
            '    scores = {"val_loss": loss, **scores}',
        ]
    else:
        index = ", number" if r.hooks.val_index else ""
        lines = [
            "for number, batch in enumerate(loader):" if index else "for batch in loader:",
            moved,
            "    logged.clear()",
            f"    loss = model.validation_step(batch{index})",
            "    if isinstance(loss, dict):",
            '        loss = loss.get("loss", loss.get("val_loss"))',
            "    scores = dict(logged)",
            "    if isinstance(loss, torch.Tensor) and loss.numel() == 1:",
            '        scores.setdefault("val_loss", loss)',
        ]
    return [
        *lines,
        *counted,
        "    for name, value in scores.items():",
        "        mean = torch.as_tensor(value).float().mean().item()",
        "        totals[name] = totals.get(name, 0.0) + mean * count",
    ]
