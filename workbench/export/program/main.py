"""The training, from its set-up to the last weights."""

from __future__ import annotations

import contextlib
import itertools
import math
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device, set_seed
from torch.optim import swa_utils

from workbench.export.program.averaging import Average, refresh_batch_norm
from workbench.export.program.checkpoint import load_checkpoint, save_checkpoint
from workbench.export.program.checks import check
from workbench.export.program.compare import Comparison
from workbench.export.program.constants import (
    ACCUMULATES,
    ANNEALING_STRATEGY,
    AVERAGING,
    AVERAGING_EVERY_N_STEPS,
    AVERAGING_START,
    AVERAGING_START_EPOCH,
    BATCH,
    BATCH_NORM,
    BENCHMARK,
    BEST,
    CHANGED,
    CHANGES,
    CHECK_VAL_EVERY_N_EPOCH,
    CHECKS,
    CHECKS_WITHIN_EPOCHS,
    CLIP_ALGORITHM,
    CLIPS,
    CLOSURE,
    COMPILES,
    COMPILES_BLOCKS,
    COUNTS_TAKEN,
    CPU,
    DETECT_ANOMALY,
    DETERMINISTIC,
    DISTRIBUTED,
    EARLY_STOPPING,
    FIRST_WEIGHTS,
    FOLLOWS_TRAIN_LOSS,
    FREEZES,
    FREQUENCY,
    FROZEN_GROUPS,
    GROUPS,
    HAS_CHECKS,
    HAS_HOME,
    KEEPS_MODES,
    LEADING,
    LEAVES_GRADIENTS,
    LEAVES_OUT,
    LENGTH,
    LIMITS,
    LOG_EVERY_N_STEPS,
    LOGS,
    LOGS_IN_STEPS,
    LOSS_MODULE,
    MADE_LR,
    MAX_EPOCHS,
    MAX_STEPS,
    MAY_BE_EMPTY,
    METRIC_MODULES,
    METRICS,
    MUON,
    NEEDS_PARAMETERS,
    OPTIMIZER_FORM,
    OVERRIDES_MODES,
    OVERSHOOTS,
    OWN_SCHEDULER,
    OWN_TIMES,
    OWN_WARMS_UP,
    PARTS,
    PRECISION,
    RANKS,
    RESUMES,
    SAMPLERS_DRAW,
    SCHEDULE,
    SCHEDULE_FREE,
    SCHEDULER_IN_DICT,
    SEARCHES_AT_EPOCHS,
    SETS_EPOCH,
    SINGLE_PROCESS,
    SPIKES,
    START,
    SWA_LRS,
    TAKES_NUMBER,
    TRACKS,
    TRAINS_ALL,
    TRAINS_LOSS,
    TRANSFORMS,
    VAL_SETS,
    VALIDATES,
    WEIGHS,
    WEIGHT_DECAY,
    WINDOWS_BY,
)
from workbench.export.program.data import (
    limited,
    training_loader,
    updates_in_epoch,
    validation_loader,
    windows,
)
from workbench.export.program.logs import write_row
from workbench.export.program.model import (
    Together,
    TrainingStep,
    compile_calls,
    forward_prepared,
    load_start,
    mixed_precision,
    transformed,
)
from workbench.export.program.optimizers import (
    all_parameters,
    by_name,
    change_settings,
    joined_optimizers,
    made_optimizer,
    make_schedule,
    parameters_of,
    planned_updates,
    put_rates,
    set_lr,
    set_weight_decay,
    take_share,
    warmup_of,
)
from workbench.export.program.update import accumulate, accumulate_in_all
from workbench.export.program.user import (
    epoch_parts,
    loss_function,
    make_scheduler,
    metrics,
    network,
    rules,
    sampler_generators,
    should_average,
    train_data,
    val_data,
    val_sets,
)
from workbench.export.program.validation import Best, EarlyStopping, weights_of
from workbench.task.blocks import repeated_blocks
from workbench.task.optim.groups import by_rules, freeze_by
from workbench.task.optim.muon import MuonWithAdamW


def main(config):
    accelerator = Accelerator(
        cpu=CPU or not torch.accelerator.is_available(),
        mixed_precision="no",
        log_with=config.tracker or None if TRACKS else None,
        project_dir=config.output if TRACKS else None,
    )
    if SINGLE_PROCESS and accelerator.num_processes > 1:
        raise SystemExit("This script trains in one process: " + SINGLE_PROCESS + ".")
    if not SINGLE_PROCESS and accelerator.distributed_type in ("FSDP", "DEEPSPEED"):
        raise SystemExit("This script is data-parallel: launch it without FSDP or DeepSpeed.")
    if DISTRIBUTED and accelerator.num_processes != RANKS:
        accelerator.print(
            "Made on", RANKS, "processes: with another number an update has other batches."
        )
    if TRACKS:
        accelerator.init_trackers(
            Path(__file__).stem, {name: str(value) for name, value in vars(config).items()}
        )
    if DETERMINISTIC:
        torch.use_deterministic_algorithms(True, warn_only=DETERMINISTIC == "warn")
    if DETERMINISTIC or BENCHMARK is not None:
        torch.backends.cudnn.benchmark = BENCHMARK is True
    if DETECT_ANOMALY:
        torch.autograd.set_detect_anomaly(True)
    if "lr" in HAS_HOME:
        lr_home = config.lr
    if "batch_size" in HAS_HOME:
        batch_size_home = config.batch_size
    logged = {}
    if LOGS_IN_STEPS:
        network.log = lambda name, value, *_, **__: logged.update({name: value})
        network.log_dict = lambda values, *_, **__: logged.update(values)
    if START is not None:
        load_start(network)
    if LEAVES_GRADIENTS:
        network.zero_grad()
    if CHECKS:
        comparison = Comparison(config)
        if not SINGLE_PROCESS and accelerator.num_processes != RANKS:
            comparison.left.clear()  # each process has other batches
        if DISTRIBUTED and accelerator.process_index:
            comparison.left.clear()  # those of the run are the first process's
        comparison.compare(
            "weights", [p.data.flatten()[:FIRST_WEIGHTS] for p in all_parameters(network)]
        )
    if OVERRIDES_MODES:
        in_eval_mode = [
            part for part in network.modules() if network.training and not part.training
        ]
        network.train()  # it may keep further parts in eval mode
        for part in in_eval_mode:
            part.eval()
    elif not KEEPS_MODES or not network.training:
        network.train()
    set_seed(config.seed, device_specific=not SINGLE_PROCESS and not DISTRIBUTED)

    loader = training_loader(train_data, config, accelerator)
    if VAL_SETS:
        val_loader = {
            name: validation_loader(val_set, config, accelerator)
            for name, val_set in val_sets.items()
        }
    elif VALIDATES:
        val_loader = validation_loader(val_data, config, accelerator)
    if TRAINS_LOSS or BATCH == "step":
        network.to(accelerator.device)
    if LOSS_MODULE:
        loss_function.to(accelerator.device)
    if METRIC_MODULES:
        for metric in metrics.values():
            if isinstance(metric, torch.nn.Module):
                metric.to(accelerator.device)
    if TRAINS_LOSS:
        model = accelerator.prepare_model(Together(network, loss_function))
    elif BATCH == "step":
        model = accelerator.prepare_model(TrainingStep(network))
    else:
        model = accelerator.prepare_model(network)
    if COMPILES and COMPILES_BLOCKS:
        for block in repeated_blocks(network):
            compile_calls(block)
    elif COMPILES:
        compile_calls(network)

    if BATCH == "step":
        if OPTIMIZER_FORM == "lists":
            (optimizer,), (scheduler,) = network.configure_optimizers()
        elif OPTIMIZER_FORM == "dict":
            configured = network.configure_optimizers()
            optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]
        else:
            optimizer = network.configure_optimizers()
        if WEIGHT_DECAY is not None:
            set_weight_decay(optimizer, config.weight_decay)
        if NEEDS_PARAMETERS:
            parameters = parameters_of(network, optimizer)
    else:
        parameters = [p for p in all_parameters(network) if p.requires_grad]
        if PARTS:
            optimizer = joined_optimizers(parameters, by_name(network), config)
        elif MUON and GROUPS:
            divided = by_rules(MuonWithAdamW.groups(network, parameters), rules, by_name(network))
            optimizer = made_optimizer(divided, config)
        elif MUON:
            optimizer = made_optimizer(MuonWithAdamW.groups(network, parameters), config)
        elif GROUPS:
            divided = by_rules(parameters, rules, by_name(network))
            optimizer = made_optimizer(divided, config)
        else:
            optimizer = made_optimizer(parameters, config)
        if NEEDS_PARAMETERS and not TRAINS_ALL:
            parameters = parameters_of(network, optimizer)
        if FREEZES:
            trained = {name: p for name, p in by_name(network).items() if p.requires_grad}
        if OWN_SCHEDULER:
            scheduler = make_scheduler(optimizer, planned_updates(config, loader))
    if SCHEDULER_IN_DICT:
        scheduler = scheduler["scheduler"]
    if SCHEDULE:
        scheduler = make_schedule(
            optimizer, config, planned_updates(config, loader) if LENGTH else 0
        )
    elif not OWN_SCHEDULER:
        scheduler = None
    if OWN_WARMS_UP:
        warmup = warmup_of(config, planned_updates(config, loader) if LENGTH else 0)
    if BATCH == "step" and MADE_LR is not None:
        set_lr(optimizer, scheduler, MADE_LR, config.lr)
    if SCHEDULE_FREE:
        optimizer.train()
    scaler = torch.amp.GradScaler(accelerator.device.type) if PRECISION == "16" else None
    if AVERAGING:
        average = Average(
            [network, loss_function] if LOSS_MODULE else [network],
            config.ema_decay if AVERAGING == "ema" else None,
        )
    else:
        average = None
    annealing = None
    best = Best(config.output / "best.pt") if BEST is not None else None
    stoppers = [EarlyStopping(**options) for options in EARLY_STOPPING] if EARLY_STOPPING else []
    if DISTRIBUTED and accelerator.process_index:
        # From here on each process draws random numbers of its own.
        entropy = np.random.SeedSequence([config.seed, accelerator.process_index])
        set_seed(int(entropy.generate_state(1)[0]))
    config.output.mkdir(parents=True, exist_ok=True)
    step = 0
    if CHECKS_WITHIN_EPOCHS or CHECK_VAL_EVERY_N_EPOCH != 1:
        ended = False
    if COUNTS_TAKEN:
        taken_steps = 0
    if RESUMES:
        settings = dict(vars(config))
        generators = [loader.generator]
        if SAMPLERS_DRAW:
            generators += sampler_generators
        first_epoch = 0
        stateful = {"network": network, "optimizer": optimizer}
        if LOSS_MODULE:
            stateful["loss"] = loss_function
        if SCHEDULE or OWN_SCHEDULER:
            stateful["scheduler"] = scheduler
        if PRECISION == "16":
            stateful["scaler"] = scaler
        if AVERAGING:
            stateful["average"] = average
        if BEST is not None:
            stateful["best"] = best
        if EARLY_STOPPING:
            for number, stopper in enumerate(stoppers):
                stateful[f"stopper {number}"] = stopper
        if config.resume:
            first_epoch, step = load_checkpoint(config, stateful, generators, accelerator)

    if CHECKS_WITHIN_EPOCHS:
        checked = step

        def check_now(epoch, finished):
            """Validate in the middle of the epoch, or at its end."""
            return check(
                network,
                train_data,
                val_loader if VALIDATES else None,
                config,
                accelerator,
                optimizer,
                scheduler if SCHEDULE or OWN_SCHEDULER else None,
                average if AVERAGING else None,
                best if BEST is not None else None,
                stoppers if EARLY_STOPPING else None,
                logged if LOGS_IN_STEPS else None,
                losses if FOLLOWS_TRAIN_LOSS else None,
                epoch,
                step,
                finished,
            )

    if MAX_EPOCHS is None:
        epochs = itertools.count(first_epoch) if RESUMES else itertools.count()
    else:
        epochs = range(first_epoch, config.max_epochs) if RESUMES else range(config.max_epochs)
    for epoch in epochs:
        if MAX_STEPS is not None and step >= config.max_steps:
            break
        if FREEZES:
            freeze_by(rules, trained, epoch)
        if SEARCHES_AT_EPOCHS and step in CHANGES:
            change_settings(config, step, optimizer, scheduler)
            if "batch_size" in CHANGED and "batch_size" in CHANGES[step]:
                loader = training_loader(train_data, config, accelerator)
        if SWA_LRS is not None and epoch == config.swa_epoch_start:
            rates = config.swa_lrs
            if FROZEN_GROUPS:
                rates = [
                    rates if group.get("initial_lr", group["lr"]) else 0.0
                    for group in optimizer.param_groups
                ]
            annealing = swa_utils.SWALR(
                optimizer, rates, config.annealing_epochs, ANNEALING_STRATEGY
            )
        if SETS_EPOCH:
            for part in epoch_parts:
                part.set_epoch(epoch)
        if CHECKS_WITHIN_EPOCHS or MAX_EPOCHS is None:
            began = step
        if CHECKS_WITHIN_EPOCHS == "fraction":
            updates = updates_in_epoch(config, loader, step if WINDOWS_BY == "step" else epoch)
            stride = max(1, int(updates * config.val_check_interval + 1e-9))
        losses = []
        if ACCUMULATES:
            first = 0
        in_epoch = limited(loader, config) if LIMITS else loader
        batches = comparison.compared(in_epoch) if CHECKS else in_epoch
        for batch_idx, batch in enumerate(
            windows(batches, config, epoch, step, accelerator) if ACCUMULATES else batches
        ):
            if CHECKS_WITHIN_EPOCHS and step > began and step != checked:
                if CHECKS_WITHIN_EPOCHS == "fraction":
                    is_due = (step - began) % stride == 0
                    if CHECK_VAL_EVERY_N_EPOCH != 1:
                        is_due = is_due and (epoch + 1) % config.check_val_every_n_epoch == 0
                else:
                    is_due = step % config.val_check_interval == 0
                if is_due:
                    checked = step
                    ended = check_now(epoch, epoch)
                    if EARLY_STOPPING and ended:
                        break
            if CHANGES and step in CHANGES:
                change_settings(config, step, optimizer, scheduler)
            if DISTRIBUTED:
                window = batch
                loss = accumulate_in_all(
                    model,
                    window,
                    first if TAKES_NUMBER else None,
                    parameters if NEEDS_PARAMETERS else None,
                    scaler if PRECISION == "16" else None,
                    accelerator,
                )
                if TAKES_NUMBER:
                    first += len(window[0])
            elif ACCUMULATES:
                window = batch
                loss = accumulate(
                    model,
                    window,
                    first if TAKES_NUMBER else None,
                    parameters if NEEDS_PARAMETERS else None,
                    scaler if PRECISION == "16" else None,
                    accelerator,
                )
                if TAKES_NUMBER:
                    first += len(window)
                if MAY_BE_EMPTY and loss is None:
                    continue
            elif CLOSURE:
                batch = send_to_device(batch, accelerator.device, non_blocking=True)
                if TRANSFORMS:
                    batch = transformed(batch)
                evaluations = []

                def evaluate(batch=batch, evaluations=evaluations):
                    """The gradient of the update; its loss is that of the first evaluation."""
                    optimizer.zero_grad()
                    with (
                        mixed_precision(accelerator.device)
                        if PRECISION != "32"
                        else contextlib.nullcontext()
                    ):
                        if BATCH == "step":
                            loss = model(batch, batch_idx) if TAKES_NUMBER else model(batch)
                        elif METRICS or WEIGHS:
                            loss, *_ = forward_prepared(model, batch)
                        else:
                            loss = forward_prepared(model, batch)
                    loss.backward()
                    if CLIPS and CLIP_ALGORITHM == "norm":
                        torch.nn.utils.clip_grad_norm_(parameters, config.gradient_clip_val)
                    elif CLIPS:
                        torch.nn.utils.clip_grad_value_(parameters, config.gradient_clip_val)
                    evaluations.append(loss.detach())
                    return loss

            else:
                if MAY_BE_EMPTY and batch is None:
                    continue
                batch = send_to_device(batch, accelerator.device, non_blocking=True)
                with (
                    mixed_precision(accelerator.device)
                    if PRECISION != "32"
                    else contextlib.nullcontext()
                ):
                    if TRANSFORMS:
                        batch = transformed(batch)
                    if BATCH == "step":
                        loss = model(batch, batch_idx) if TAKES_NUMBER else model(batch)
                    elif METRICS or WEIGHS:
                        loss, *_ = forward_prepared(model, batch)
                    else:
                        loss = forward_prepared(model, batch)
                if MAY_BE_EMPTY and loss is None:
                    continue
                if PRECISION == "16":
                    scaler.scale(loss).backward()
                else:
                    loss.backward()
            if PRECISION == "16":
                scaler.unscale_(optimizer)
            if LEAVES_OUT and not CLOSURE:
                gradients = [p.grad for p in parameters if p.grad is not None]
                applied = math.isfinite(loss.item()) and all(
                    gradient.isfinite().all() for gradient in gradients
                )
            if SPIKES and LEAVES_OUT:
                applied = applied and step not in SPIKES
            elif SPIKES:
                applied = step not in SPIKES
            if CLIPS and not CLOSURE and CLIP_ALGORITHM == "norm":
                if not LEAVES_OUT or applied:
                    torch.nn.utils.clip_grad_norm_(parameters, config.gradient_clip_val)
            elif CLIPS and not CLOSURE:
                if not LEAVES_OUT or applied:
                    torch.nn.utils.clip_grad_value_(parameters, config.gradient_clip_val)
            if OWN_WARMS_UP:
                taken = taken_steps if COUNTS_TAKEN else step
                rates = take_share(optimizer, min(1.0, (taken + 1) / max(warmup, 1)))
            if PRECISION == "16":
                scaler.step(optimizer)
                scale = scaler.get_scale()
                scaler.update()
                applied = (
                    scaler.get_scale() >= scale
                )  # it shrinks where a gradient overflowed: no step was taken
            elif CLOSURE == "after gradients":
                evaluate()  # the step expects gradients
                optimizer.step(evaluate)
                loss = evaluations[0]
            elif CLOSURE:
                optimizer.step(evaluate)
                loss = evaluations[0]
            elif LEAVES_OUT or SPIKES:
                if applied:
                    optimizer.step()
            else:
                optimizer.step()
            optimizer.zero_grad()
            if LOGS or TRACKS:
                write_row(
                    {"loss": loss.item(), "lr": optimizer.param_groups[LEADING]["lr"]},
                    config,
                    accelerator,
                    step,
                )
            if OWN_WARMS_UP:
                put_rates(optimizer, rates)
            if FOLLOWS_TRAIN_LOSS and step % LOG_EVERY_N_STEPS == 0:
                losses.append(
                    loss.item()
                    if SINGLE_PROCESS or DISTRIBUTED
                    else accelerator.reduce(loss.detach(), "mean").item()
                )
            step += 1
            if step % 100 == 0:
                accelerator.print(f"step {step}  loss {loss.item():.4f}")
            if not (LEAVES_OUT or SPIKES or PRECISION == "16") or applied:
                if COUNTS_TAKEN:
                    taken_steps += 1
                if SCHEDULE or OWN_SCHEDULER == "step":
                    if SWA_LRS is None or annealing is None:
                        if OVERSHOOTS:
                            if (
                                scheduler.last_epoch < scheduler.total_steps - 1
                            ):  # after its cycle the last rate stays
                                scheduler.step()
                        elif (
                            SCHEDULE
                            or FREQUENCY == 1
                            or (taken_steps if COUNTS_TAKEN else step) % FREQUENCY == 0
                        ):
                            scheduler.step()
                if AVERAGING == "ema":
                    if OWN_TIMES:
                        if should_average(step, epoch):
                            average.update()
                    elif (
                        (not AVERAGING_START or step > config.averaging_start)
                        and (
                            AVERAGING_EVERY_N_STEPS == 1
                            or step % config.averaging_every_n_steps == 0
                        )
                        and (not AVERAGING_START_EPOCH or epoch >= config.averaging_start_epoch)
                    ):
                        average.update()
            if MAX_STEPS is not None and step == config.max_steps:
                break
        if CHECKS_WITHIN_EPOCHS and EARLY_STOPPING and ended:
            break
        if MAX_EPOCHS is None and step == began:
            raise SystemExit(
                "An epoch has no update"
                + (": --limit_train_batches leaves no batch." if LIMITS else ".")
            )
        if AVERAGING == "swa":
            if should_average(step, epoch) if OWN_TIMES else epoch >= config.swa_epoch_start:
                average.update()
        if SWA_LRS is not None and annealing is not None:
            annealing.step()
        elif OWN_SCHEDULER == "epoch":
            if FREQUENCY == 1 or (epoch + 1) % FREQUENCY == 0:
                scheduler.step()
        if CHECKS_WITHIN_EPOCHS:
            if CHECKS_WITHIN_EPOCHS == "fraction":
                is_due = updates % stride == 0
                if CHECK_VAL_EVERY_N_EPOCH != 1:
                    is_due = is_due and (epoch + 1) % config.check_val_every_n_epoch == 0
            else:
                is_due = step % config.val_check_interval == 0
            if step != checked and (is_due or is_last(epoch, step, config)):
                checked = step
                ended = check_now(epoch, epoch + 1)
        elif HAS_CHECKS:
            if CHECK_VAL_EVERY_N_EPOCH == 1 or is_due_after(epoch, step, config):
                ended = check(
                    network,
                    train_data,
                    val_loader if VALIDATES else None,
                    config,
                    accelerator,
                    optimizer,
                    scheduler if SCHEDULE or OWN_SCHEDULER else None,
                    average if AVERAGING else None,
                    best if BEST is not None else None,
                    stoppers if EARLY_STOPPING else None,
                    logged if LOGS_IN_STEPS else None,
                    losses if FOLLOWS_TRAIN_LOSS else None,
                    epoch,
                    step,
                    epoch + 1,
                )
        if EARLY_STOPPING and ended:
            break
        if RESUMES:
            save_checkpoint(config, settings, stateful, generators, accelerator, epoch + 1, step)

    if AVERAGING and average.count:
        average.hand_over()
        if BATCH_NORM:
            refresh_batch_norm(
                network,
                limited(training_loader(train_data, config, accelerator), config),
                accelerator,
            )
    if SCHEDULE_FREE:
        optimizer.eval()
    accelerator.save(weights_of(network), config.output / "last.pt")
    accelerator.print(f"Saved {config.output / 'last.pt'}")
    if TRACKS:
        accelerator.end_training()


def is_last(epoch, step, config):
    """Whether the training ends after this epoch."""
    ends = False
    if MAX_EPOCHS is not None:
        ends = epoch + 1 == config.max_epochs
    if MAX_STEPS is not None:
        ends = ends or step == config.max_steps
    return ends


def is_due_after(epoch, step, config):
    """Whether there is a validation after this epoch."""
    return (epoch + 1) % config.check_val_every_n_epoch == 0 or is_last(epoch, step, config)
