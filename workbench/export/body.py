"""The `main` of an exported script: set-up, then a loop with the techniques that were on."""

from __future__ import annotations

from workbench.export import loaders
from workbench.export.lines import indented
from workbench.export.recipe import Data, Recipe, quoted

_TO_DEVICE = "batch = send_to_device(batch, accelerator.device, non_blocking=True)"


def main(r: Recipe) -> str:
    """The whole function."""
    parts = [_model(r), _data(r), _optimizer(r), _loop(r), _end()]
    body = "\n\n".join("\n".join(indented(lines)) for lines in parts)
    return f"def main(config, log_file=None, output=None):\n{body}"


# ---- set-up -----------------------------------------------------------------------------------------------------


def _model(r: Recipe) -> list[str]:
    # Several processes on CPUs find each other only when accelerate is told that there is nothing else.
    cpu = "True" if r.settings.accelerator == "cpu" else "not torch.accelerator.is_available()"
    lines = [threads(r)] if r.sets_threads else []
    lines.append(f'accelerator = Accelerator(cpu={cpu}, mixed_precision="no")')
    if r.settings.deterministic:
        lines += ["torch.use_deterministic_algorithms(True)", "torch.backends.cudnn.benchmark = False"]
    for prepared in r.prepare:
        if prepared.endswith(".prepare_data()"):
            lines += ["with accelerator.main_process_first():", f"    {prepared}"]
        else:
            lines.append(prepared)
    if r.hooks is not None:
        lines += [f"{home} = config.{name}" for name, home in r.hooks.homes.items()]
        lines += _listening(r)
        lines += _trainer() if r.hooks.asks_trainer else []
    if r.weights is not None:
        lines += [
            f"start = Path(__file__).with_name({quoted(r.weights)})",
            "if start.exists():",
            "    load_model(network, str(start))",
        ]
    return [*lines, "if not network.training:", "    network.train()"]


def threads(r: Recipe) -> str:
    return f"torch.set_num_threads({r.threads})  # as in the run: with another number, sums are rounded otherwise"


def _listening(r: Recipe) -> list[str]:
    """What `self.log` does."""
    if r.val is None:
        return ["network.log = network.log_dict = lambda *_, **__: None  # nobody reads it here"]
    return [
        "logged = {}",
        "network.log = lambda name, value, *_, **__: logged.update({name: value})",
        "network.log_dict = lambda values, *_, **__: logged.update(values)",
    ]


def _trainer() -> list[str]:
    """What a LightningModule may ask its trainer for."""
    return [
        "trainer = network._trainer = SimpleNamespace(",
        "    current_epoch=0,",
        "    global_step=0,",
        "    is_global_zero=accelerator.is_main_process,",
        "    global_rank=accelerator.process_index,",
        "    local_rank=accelerator.local_process_index,",
        "    world_size=accelerator.num_processes,",
        ")",
    ]


def _data(r: Recipe) -> list[str]:
    lines = ["set_seed(config.seed, device_specific=True)", *loaders.loader(r, r.train, "loader")]
    if r.val is not None:
        lines += loaders.loader(r, r.val, "val_loader")
    if r.loss_is_module:
        lines.append("loss_function.to(accelerator.device)")
    if r.metric_modules:
        lines += [
            "for metric in metrics.values():",
            "    if isinstance(metric, torch.nn.Module):",
            "        metric.to(accelerator.device)",
        ]
    if r.hooks is None:
        return [*lines, "wrapped = accelerator.prepare_model(network)"]
    return [*lines, "network.to(accelerator.device)", "wrapped = accelerator.prepare_model(TrainingStep(network))"]


def _optimizer(r: Recipe) -> list[str]:
    if r.hooks is not None:
        return _own_optimizer(r)
    decay = "" if r.settings.weight_decay is None else ", weight_decay=config.weight_decay"
    lines = [
        "parameters = [p for p in network.parameters() if p.requires_grad]",
        f"optimizer = make_optimizer(parameters, lr=config.lr{decay})",
    ]
    if r.scheduled:
        lines.append(f"scheduler = make_scheduler(optimizer, {_updates(r)})")
    return lines


def _own_optimizer(r: Recipe) -> list[str]:
    """The optimizer and the schedulers that the user's object makes."""
    assert r.hooks is not None
    lines = ["parameters = [p for p in network.parameters() if p.requires_grad]"] if r.clips else []
    made = "network.configure_optimizers()"
    names = _schedulers(r)
    places = [schedule.place for schedule in r.hooks.schedules]
    if not r.hooks.optimizer:
        lines.append(f"optimizer = {made}")
    elif r.hooks.optimizer == "[0][0]" and places == ["[1][0]"]:
        lines.append(f"(optimizer,), (scheduler,) = {made}")
    else:
        lines += [f"made = {made}", f"optimizer = made{r.hooks.optimizer}"]
        lines += [f"{name} = made{place}" for name, place in zip(names, places, strict=True)]
    if r.settings.weight_decay is not None:
        lines += [
            "for group in optimizer.param_groups:",
            '    if "weight_decay" in group:',
            '        group["weight_decay"] = config.weight_decay',
        ]
    if r.hooks.made_lr is not None:
        lines.append(_set_lr(r, repr(r.hooks.made_lr), "config.lr"))
    return lines


def _schedulers(r: Recipe) -> list[str]:
    """What the schedulers are called."""
    if r.hooks is None or len(r.hooks.schedules) == 1:
        return ["scheduler"] if r.scheduled else []
    return [f"scheduler_{number}" for number in range(len(r.hooks.schedules))]


def _set_lr(r: Recipe, old: str, new: str) -> str:
    schedulers = f"[{', '.join(_schedulers(r))}], " if r.scheduled else ""
    return f"set_lr(optimizer, {schedulers}{old}, {new})"


def _updates(r: Recipe) -> str:
    """How many updates the scheduler is made for, as an expression."""
    if r.stopped is not None:
        return "config.scheduled_steps"
    if r.max_epochs is None or not r.train.sized:
        return "config.max_steps"
    window = "-(-len(loader) // config.accumulate_grad_batches)" if r.accumulates else "len(loader)"
    total = f"config.max_epochs * {window}"
    return total if r.max_steps is None else f"min(config.max_steps, {total})"


# ---- the loop ---------------------------------------------------------------------------------------------------


def _loop(r: Recipe) -> list[str]:
    update = [*_change(r), *(_window(r) if r.accumulates else _one_batch(r)), *_clip(r), *_step(r)]
    if r.max_steps is not None:
        update += ["if step == config.max_steps:", "    break"]
    epoch = ["total, began = 0.0, step", *_batches(r), *indented(update), *_after_epoch(r)]
    lines = [
        "log = Path(log_file) if log_file and accelerator.is_main_process else None",
        "if log:",
        "    log.unlink(missing_ok=True)",
    ]
    if r.max_steps is None:
        return [*lines, "step = 0", "for epoch in range(config.max_epochs):", *indented(epoch)]
    epochs = "" if r.max_epochs is None else "epoch < config.max_epochs and "
    return [*lines, "step = epoch = 0", f"while {epochs}step < config.max_steps:", *indented([*epoch, "epoch += 1"])]


def _batches(r: Recipe) -> list[str]:
    """The head of the loop over an epoch's batches."""
    numbered = r.hooks is not None and r.hooks.train_index
    if not r.accumulates:
        return ["for number, batch in enumerate(loader):" if numbered else "for batch in loader:"]
    return [
        f"batches = {'enumerate(loader)' if numbered else 'iter(loader)'}",
        "while window := list(itertools.islice(batches, config.accumulate_grad_batches)):",
    ]


def _change(r: Recipe) -> list[str]:
    """Replay what was changed while the run went on."""
    if not r.changes:
        return []
    lines = ["for name, value in CHANGES.get(step, ()):"]
    if r.changed("lr"):
        lines += ['    if name == "lr":', f"        {_set_lr(r, 'config.lr', 'value')}"]
    return [*lines, "    setattr(config, name, value)"]


def _loss(r: Recipe) -> str:
    if r.hooks is None:
        return "forward(wrapped, batch)[0]" if r.measures else "forward(wrapped, batch)"
    return f"wrapped(batch{', number' if r.hooks.train_index else ''})"


def _one_batch(r: Recipe) -> list[str]:
    return [_TO_DEVICE, f"loss = {_loss(r)}", "loss.backward()"]


def _window(r: Recipe) -> list[str]:
    """The backward passes of several batches; the last window of an epoch is divided by its true length."""
    numbered = r.hooks is not None and r.hooks.train_index
    lines, share = [], "1 / len(window)"
    if r.mean:
        lines, share = [f"sizes = [{r.train.count} for batch in window]"], "sizes[place] / sum(sizes)"
    return [
        *lines,
        "loss = 0.0",
        f"for place, {'(number, batch)' if numbered else 'batch'} in enumerate(window):",
        f"    {_TO_DEVICE}",
        "    last = place == len(window) - 1",
        "    with contextlib.nullcontext() if last else accelerator.no_sync(wrapped):",
        f"        part = {_loss(r)} * ({share})",
        "        part.backward()",
        "    loss += part.detach()",
    ]


def _clip(r: Recipe) -> list[str]:
    if not r.clips:
        return []
    return [f"torch.nn.utils.clip_grad_{r.settings.gradient_clip_algorithm}_(parameters, config.gradient_clip_val)"]


def _step(r: Recipe) -> list[str]:
    lines = [
        "if log:",
        '    row = {"step": step, "loss": loss.item(), "lr": optimizer.param_groups[0]["lr"]}',
        '    with log.open("a") as file:',
        "        print(json.dumps(row), file=file)",
        "optimizer.step()",
        "optimizer.zero_grad()",
        "step += 1",
        "total += loss" if r.accumulates else "total += loss.detach()",
    ]
    if r.hooks is not None:
        if r.hooks.asks_trainer:
            lines.append("trainer.global_step = step")
        return [*lines, *_scheduling(r, "step", "step")]
    return [*lines, "scheduler.step()"] if r.scheduled else lines


def _scheduling(r: Recipe, interval: str, counter: str) -> list[str]:
    """The steps of the schedulers that step at this interval."""
    lines = []
    assert r.hooks is not None
    for name, schedule in zip(_schedulers(r), r.hooks.schedules, strict=True):
        if schedule.interval != interval:
            continue
        if schedule.frequency == 1:
            lines.append(f"{name}.step()")
        else:
            count = counter if counter.isidentifier() else f"({counter})"
            lines += [f"if {count} % {schedule.frequency} == 0:", f"    {name}.step()"]
    return lines


def _after_epoch(r: Recipe) -> list[str]:
    lines = ["trainer.current_epoch = epoch + 1"] if r.hooks and r.hooks.asks_trainer else []
    if r.hooks is not None:
        lines += _scheduling(r, "epoch", "epoch + 1")
    lines.append('scores = {"loss": float(total) / (step - began)}')
    if r.val is not None:
        lines += _validation(r, r.val)
    return [
        *lines,
        'text = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())',
        'accelerator.print(f"epoch {epoch}  {text}")',
    ]


def _validation(r: Recipe, data: Data) -> list[str]:
    logged = ", logged" if r.hooks is not None else ""
    line = f"scores |= validate(network, val_loader, accelerator.device{logged})"
    if r.settings.check_val_every_n_epoch == 1:
        return [line]
    last = [] if r.max_epochs is None else ["epoch + 1 == config.max_epochs"]
    last += [] if r.max_steps is None else ["step == config.max_steps"]
    due = " or ".join(["(epoch + 1) % config.check_val_every_n_epoch == 0", *last])
    return [f"if {due}:", f"    {line}"]


def _end() -> list[str]:
    return [
        "if output and accelerator.is_main_process:",
        "    torch.save(network.state_dict(), output)",
        "accelerator.end_training()",
    ]
