"""The schedule that the settings ask for, and changes of the learning rate."""

from __future__ import annotations

import math

import torch

from workbench.export.program.constants import (
    CHANGED,
    CHANGES,
    DECAY_SHAPE,
    GROUPS,
    LENGTH,
    MADE_LR,
    MIN_LR_RATIO,
    MOMENTUM,
    PARTS,
    SCHEDULE,
    SWA_LRS,
    TAKES_LR,
    TRAINS_LOSS,
    WARMS_UP,
    WARMUP_IS_FRACTION,
    WEIGHT_DECAY,
)
from workbench.export.program.data import updates_in_epoch
from workbench.export.program.user import loss_function, make_optimizer, rules
from workbench.task.optim.groups import by_rules, scale_rates
from workbench.task.optim.joined import JoinedOptimizers, parts_of


def warmup_of(config, updates):
    """The length of the warm-up."""
    return round(config.warmup * updates) if WARMUP_IS_FRACTION else config.warmup


def take_share(optimizer, share):
    """Give each parameter group this share of its rate for a step; returns the rates."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * share
    return rates


def put_rates(optimizer, rates):
    """Give each parameter group its whole rate again, which the scheduler reads."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def make_schedule(optimizer, config, updates):
    """The schedule of the learning rate, by updates."""
    if WARMS_UP:
        warmup = warmup_of(config, updates)
        if SCHEDULE not in ("constant", "inverse_sqrt") and warmup >= updates:
            raise SystemExit(
                f"warmup={config.warmup} is not shorter than the {updates} updates of the training."
            )
    if SCHEDULE == "one_cycle":
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=[float(group["lr"]) for group in optimizer.param_groups],
            total_steps=updates,
            pct_start=warmup / updates * (1 - 1e-9 if warmup == 1 else 1) if WARMS_UP else 0.3,
            cycle_momentum=MOMENTUM,
        )

    def factor(update):
        if WARMS_UP and update < warmup:
            return (update + 1) / warmup
        if SCHEDULE == "constant":
            return 1.0
        if SCHEDULE == "inverse_sqrt":
            if WARMS_UP and warmup:
                rate = 1.0 / math.sqrt(update / warmup)
            else:
                rate = 1.0 / math.sqrt((update + 10_000) / 10_000)
            return max(config.min_lr_ratio, rate) if MIN_LR_RATIO else rate
        if SCHEDULE == "wsd":
            begin = updates - round(config.decay_fraction * updates)
            if WARMS_UP:
                begin = max(begin, warmup)
            done = min(1.0, max(0.0, (update - begin) / max(updates - begin, 1)))
        else:
            done = min(
                1.0, (update - warmup) / (updates - warmup) if WARMS_UP else update / updates
            )
        if SCHEDULE == "cosine_restarts" and done < 1.0:
            done = done * (config.restarts + 1) % 1.0
        if SCHEDULE == "polynomial":
            rate = math.pow(1.0 - done, config.lr_power)
        elif SCHEDULE == "linear" or (SCHEDULE == "wsd" and DECAY_SHAPE == "linear"):
            rate = 1.0 - done
        elif SCHEDULE == "wsd" and DECAY_SHAPE == "1-sqrt":
            rate = 1.0 - math.sqrt(done)
        else:
            rate = 0.5 * (1.0 + math.cos(math.pi * done))
        if MIN_LR_RATIO:
            return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * rate
        return rate

    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def set_lr(optimizer, scheduler, old, new):
    """A new base rate; the schedule and the ratios of parameter groups multiply it."""

    def scaled(rate):
        return new if rate == old else rate * (new / old)

    keys = ["lr", "initial_lr", "max_lr", "min_lr"]
    if SWA_LRS is not None:
        keys.append("swa_lr")
    for group in optimizer.param_groups:
        group.update({key: scaled(group[key]) for key in keys if key in group})
    pending = [scheduler]
    while pending:
        schedule = pending.pop()
        pending += getattr(schedule, "_schedulers", ())  # a chain of schedulers holds others
        for name in ("base_lrs", "max_lrs", "min_lrs"):
            if hasattr(schedule, name):
                setattr(schedule, name, [scaled(rate) for rate in getattr(schedule, name)])
        if isinstance(getattr(schedule, "eta_min", None), float):
            schedule.eta_min = scaled(schedule.eta_min)


def change_settings(config, step, optimizer, scheduler):
    """Take over what was changed before this update during the run."""
    for name, value in CHANGES[step].items():
        if "lr" in CHANGED and name == "lr":
            set_lr(optimizer, scheduler, config.lr, value)
        setattr(config, name, value)


def parameters_of(network, optimizer):
    """An optimizer's parameters, in the order that the network has them in."""
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [p for p in network.parameters() if p.requires_grad and id(p) in known]


def all_parameters(network):
    """The parameters of the network, and of the loss where it has some."""
    return (
        [*network.parameters(), *loss_function.parameters()]
        if TRAINS_LOSS
        else network.parameters()
    )


def by_name(network):
    """The parameters of the network, and of the loss where it has some, by name."""
    named = dict(network.named_parameters())
    if TRAINS_LOSS:
        named |= {f"loss.{name}": p for name, p in loss_function.named_parameters()}
    return named


def set_weight_decay(optimizer, value):
    """A new weight decay; the ratios of parameter groups stay."""
    leading = next(
        (group["weight_decay"] for group in optimizer.param_groups if group.get("weight_decay")),
        None,
    )
    for group in optimizer.param_groups:
        if "weight_decay" in group:
            group["weight_decay"] = value * (group["weight_decay"] / leading if leading else 1.0)


def planned_updates(config, loader):
    """The number of updates that the schedule is made for."""
    if LENGTH == "scheduled":
        return config.scheduled_steps
    if LENGTH == "steps":
        return config.max_steps
    updates = config.max_epochs * updates_in_epoch(config, loader)
    return min(config.max_steps, updates) if LENGTH == "both" else updates


def made_optimizer(parameters, config):
    """The optimizer, with the rates of the settings."""
    if TAKES_LR and WEIGHT_DECAY is not None:
        optimizer = make_optimizer(parameters, lr=config.lr, weight_decay=config.weight_decay)
    elif TAKES_LR:
        optimizer = make_optimizer(parameters, lr=config.lr)
    elif WEIGHT_DECAY is not None:
        optimizer = make_optimizer(parameters, weight_decay=config.weight_decay)
    else:
        optimizer = make_optimizer(parameters)
    if GROUPS:
        scale_rates(optimizer)
    if MADE_LR is not None:
        set_lr(optimizer, None, MADE_LR, config.lr)
    return optimizer


def joined_optimizers(parameters, named, config):
    """One optimizer for each part of the network, which step together."""
    keys = dict(enumerate(make_optimizer))
    trained = {id(p) for p in parameters}
    divided = {number: [] for number in keys}
    for name, parameter in named.items():
        if id(parameter) in trained:
            divided[parts_of(name, parameter, keys)[0]].append(parameter)
    parts = {}
    made_with = PARTS
    for number, make in enumerate(make_optimizer.values()):
        arguments = dict(made_with[number])
        if WEIGHT_DECAY is not None:
            arguments["weight_decay"] = config.weight_decay
        if divided[number] and GROUPS:
            parts[number] = make(by_rules(divided[number], rules, named), **arguments)
            scale_rates(parts[number])
        elif divided[number]:
            parts[number] = make(divided[number], **arguments)
    optimizer = JoinedOptimizers(parts)
    set_lr(optimizer, None, MADE_LR, config.lr)
    return optimizer
