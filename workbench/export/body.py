"""The `main` of an exported script: set-up, then a loop with the techniques that were on."""

from __future__ import annotations

from textwrap import indent

from workbench.export import blocks
from workbench.export.recipe import Recipe

_ALL_SCHEDULERS = "[scheduler for scheduler, _, _ in schedules]"


def main(r: Recipe) -> str:
    """The whole function."""
    parts = [_model(r), _data(r), _optimizer(r), _loop(r)]
    body = "\n\n".join(indent("\n".join(lines), "    ") for lines in parts)
    return f"def main(config, log=None, output=None):\n{body}"


def _model(r: Recipe) -> list[str]:
    cpu = "cpu=True, " if r.settings.accelerator == "cpu" else ""
    lines = [f'accelerator = Accelerator({cpu}mixed_precision="no")', "network = the_model"]
    if r.settings.deterministic:
        lines.append("torch.use_deterministic_algorithms(True)")
    if r.lightning is not None:
        lines += [
            "logged = {}",
            "network.log = lambda name, value, *_, **__: logged.update({name: value})",
            "network.log_dict = lambda values, *_, **__: logged.update(values)",
            *(f"{home} = config.{name}" for name, home in r.lightning.items()),
            *blocks.setup_lines("network"),
        ]
    return [
        *lines,
        f"start = Path(__file__).with_name({r.weights!r})",
        "if start.exists():",
        "    load_model(network, str(start))",
        "if not network.training:",
        "    network.train()",
    ]


def _data(r: Recipe) -> list[str]:
    lines = ["seed_everything(config.seed)", *blocks.make_loader(r, r.train, "loader", "train_data", True)]
    if r.val is not None:
        lines += blocks.make_loader(r, r.val, "val_loader", "val_data", False)
    if r.loss_is_module:
        lines.append("loss_function.to(accelerator.device)")
    if r.lightning is None:
        lines.append("model = accelerator.prepare_model(network)")
    else:
        lines.append("model = network.to(accelerator.device)")
    lines += ["if accelerator.num_processes > 1:", "    loader = accelerator.prepare(loader)"]
    if r.val is not None:
        lines.append("    val_loader = accelerator.prepare(val_loader)")
    return lines


def _optimizer(r: Recipe) -> list[str]:
    s = r.settings
    lines = ["parameters = [p for p in network.parameters() if p.requires_grad]"]
    if r.lightning is not None:
        lines += [
            "optimizer, schedules = configured(network.configure_optimizers())",
            "base_lr = optimizer.param_groups[0].get('initial_lr', optimizer.param_groups[0]['lr'])",
            "if base_lr != config.lr:",
            f"    base_lr = set_lr(optimizer, {_ALL_SCHEDULERS}, base_lr, config.lr)",
        ]
        if s.weight_decay is not None:
            lines += [
                "for group in optimizer.param_groups:",
                "    if 'weight_decay' in group:",
                "        group['weight_decay'] = config.weight_decay",
            ]
        return lines
    decay = "" if s.weight_decay is None else ", weight_decay=config.weight_decay"
    lines.append(f"optimizer = make_optimizer(parameters, lr=config.lr{decay})")
    if r.scheduled:
        lines.append(f"scheduler = make_scheduler(optimizer, {_updates(r)})")
    if r.changed("lr"):
        lines.append("base_lr = config.lr")
    return lines


def _updates(r: Recipe) -> str:
    """How many updates the run takes, as an expression."""
    s = r.settings
    if s.epochs is None:
        return "config.max_steps"
    window = "len(loader)" if s.accumulate_grad_batches == 1 else "-(-len(loader) // config.accumulate_grad_batches)"
    total = f"config.max_epochs * {window}"
    if s.max_steps is None or r.stopped:
        return total  # a run that was stopped was scheduled for its whole length
    return f"min(config.max_steps, {total})"


def _loop(r: Recipe) -> list[str]:
    s = r.settings
    if s.accumulate_grad_batches > 1:
        head = "for window in windows(enumerate(loader), config.accumulate_grad_batches):"
    else:
        head = "for number, batch in enumerate(loader):" if r.lightning is not None else "for batch in loader:"
    update = [*_change(r), *_backward(r), *_clip(r), *_step(r)]
    if s.max_steps is not None:
        update += ["if step == config.max_steps:", "    break"]
    epoch = ["losses = []", head, *_indented(update), *_after_epoch(r)]
    return [
        "record = open(log, 'w') if log and accelerator.is_main_process else None",
        "step = epoch = 0",
        f"while {blocks.running(s)}:",
        *_indented(epoch),
        "if record:",
        "    record.close()",
        "if output and accelerator.is_main_process:",
        "    torch.save(network.state_dict(), output)",
        "accelerator.end_training()",
    ]


def _change(r: Recipe) -> list[str]:
    """Replay what was changed while the run went on."""
    lines = ["change = CHANGES.get(step, {})"] if r.changes else []
    if r.changed("lr"):
        schedulers = _ALL_SCHEDULERS if r.lightning is not None else "[scheduler]" if r.scheduled else "[]"
        lines += ["if 'lr' in change:", f"    base_lr = set_lr(optimizer, {schedulers}, base_lr, change['lr'])"]
    if r.changed("gradient_clip_val"):
        off = "float('inf')"
        lines += ["if 'gradient_clip_val' in change:", f"    config.gradient_clip_val = change['gradient_clip_val'] or {off}"]
    return lines


def _backward(r: Recipe) -> list[str]:
    lines = _window(r) if r.settings.accumulate_grad_batches > 1 else _one_batch(r)
    if r.lightning is not None:
        lines += [
            "if accelerator.num_processes > 1:",
            "    for p in parameters:",
            "        if p.grad is not None:",
            "            p.grad = accelerator.reduce(p.grad, 'mean')",
        ]
    return lines


def _loss(r: Recipe, name: str) -> list[str]:
    lines = ["batch = to_device(batch, accelerator.device)"]
    if r.lightning is None:
        return [*lines, f"{name}, _, _ = forward(model, batch)"]
    return [
        *lines,
        f"{name} = model.training_step(batch{', number' if r.lightning_index else ''})",
        f"{name} = {name}['loss'] if isinstance({name}, dict) else {name}",
    ]


def _one_batch(r: Recipe) -> list[str]:
    return [*_loss(r, "loss"), "loss.backward()", "loss = loss.detach()"]


def _window(r: Recipe) -> list[str]:
    weights = "[float(samples_in(batch)) for _, batch in window]" if r.mean else "[1.0] * len(window)"
    backward = ["part.backward()"]
    if r.lightning is None:
        backward = [
            "last = number == window[-1][0]",
            "with contextlib.nullcontext() if last else accelerator.no_sync(model):",
            "    part.backward()",
        ]
    return [
        f"weights = {weights}",
        "loss = None",
        "for (number, batch), weight in zip(window, weights):",
        *_indented(_loss(r, "part")),
        "    part = part * (weight / sum(weights))  # a short window is divided by its true length",
        *_indented(backward),
        "    loss = part.detach() if loss is None else loss + part.detach()",
    ]


def _clip(r: Recipe) -> list[str]:
    if not r.clips:
        return []
    line = f"torch.nn.utils.clip_grad_{r.settings.gradient_clip_algorithm}_(parameters, config.gradient_clip_val)"
    if r.changed("gradient_clip_val"):
        return ["if config.gradient_clip_val != float('inf'):", f"    {line}"]
    return [line]


def _step(r: Recipe) -> list[str]:
    lines = [
        "if record:",
        "    row = {'step': step, 'loss': loss.item(), 'lr': optimizer.param_groups[0]['lr']}",
        "    record.write(json.dumps(row) + '\\n')",
        "optimizer.step()",
        "optimizer.zero_grad()",
        "step += 1",
        "losses.append(loss)",
    ]
    if r.lightning is not None:
        return [
            *lines,
            "for scheduler, interval, frequency in schedules:",
            "    if interval == 'step' and step % frequency == 0:",
            "        scheduler.step()",
        ]
    return [*lines, "scheduler.step()"] if r.scheduled else lines


def _after_epoch(r: Recipe) -> list[str]:
    s = r.settings
    lines = ["epoch += 1"]
    if r.lightning is not None:
        lines += [
            "for scheduler, interval, frequency in schedules:",
            "    if interval == 'epoch' and epoch % frequency == 0:",
            "        scheduler.step()",
        ]
    lines.append("scores = {'loss': torch.stack(losses).mean().item()}")
    if r.val is not None:
        call = f"scores |= validate(model, val_loader, accelerator{', logged' if r.lightning is not None else ''})"
        if s.check_val_every_n_epoch == 1:
            lines.append(call)
        else:
            due = f"epoch % {s.check_val_every_n_epoch} == 0 or not ({blocks.running(s)})"
            lines += [f"if {due}:", f"    {call}"]
    text = "'  '.join(f'{name} {value:.4f}' for name, value in scores.items())"
    return [*lines, f"accelerator.print(f'epoch {{epoch - 1}}  ' + {text})"]


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]
