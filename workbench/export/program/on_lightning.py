"""The same training with Lightning: a LightningModule, and a Trainer with the run's settings."""

from __future__ import annotations

import lightning as L
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger

from workbench.export.program.constants import (
    ACCELERATOR,
    ACCUMULATES,
    ANNEALING_STRATEGY,
    AVERAGING,
    AVERAGING_EVERY_N_STEPS,
    AVERAGING_START,
    BATCH,
    BENCHMARK,
    BEST,
    BEST_IS_HIGHEST,
    BRINGS_CALLBACKS,
    CHECK_VAL_EVERY_N_EPOCH,
    CHECKS_WITHIN_EPOCHS,
    CLIP_ALGORITHM,
    CLIPS,
    COMPILE_OPTIONS,
    COMPILES,
    COMPILES_BLOCKS,
    DATAMODULE,
    DETECT_ANOMALY,
    DETERMINISTIC,
    DEVICES,
    EARLY_STOPPING,
    FOLLOWS_TRAIN_LOSS,
    FREQUENCY,
    GROUPS,
    HAS_HOME,
    LENGTH,
    LIMITS,
    LIMITS_VAL,
    LOG_EVERY_N_STEPS,
    LOSS_MODULE,
    MAKES_LOADERS,
    MAX_EPOCHS,
    MAX_STEPS,
    MAX_TIME,
    MAY_BE_EMPTY,
    METRICS,
    MIN_EPOCHS,
    MIN_STEPS,
    MONITOR,
    MUON,
    NUM_NODES,
    NUM_SANITY_VAL_STEPS,
    OWN_SCHEDULER,
    PARTS,
    SAVE_TOP_K,
    SCHEDULE,
    SCHEDULER_IN_DICT,
    START,
    STRATEGY,
    TRAINER_PRECISION,
    TRANSFORMS,
    VALIDATES,
    WEIGHS,
    WINDOWS,
)
from workbench.export.program.data import training_loader, validation_loader
from workbench.export.program.model import forward, load_start, transformed
from workbench.export.program.optimizers import (
    all_parameters,
    by_name,
    joined_optimizers,
    made_optimizer,
    make_schedule,
    planned_updates,
)
from workbench.export.program.user import (
    datamodule,
    loss_function,
    make_scheduler,
    metrics,
    network,
    rules,
    train_data,
    val_data,
)
from workbench.task.blocks import repeated_blocks
from workbench.task.optim.groups import by_rules
from workbench.task.optim.muon import MuonWithAdamW


class Module(L.LightningModule):
    """The model as Lightning trains it."""

    def __init__(self, config, model, loss, updates):
        super().__init__()
        self.config, self.network = config, model
        if LOSS_MODULE:
            self.loss_function = loss
        if LENGTH:
            self.updates = updates

    def training_step(self, batch, batch_idx):
        if TRANSFORMS:
            batch = transformed(batch)
        if METRICS or WEIGHS:
            loss, *_ = forward(self.network, batch)
        else:
            loss = forward(self.network, batch)
        if MAY_BE_EMPTY and loss is None:
            return None
        if FOLLOWS_TRAIN_LOSS:
            self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        else:
            self.log("train_loss", loss, prog_bar=True)
        return loss

    if VALIDATES:

        def validation_step(self, batch, batch_idx):
            if WEIGHS and METRICS:
                loss, weight, output, target = forward(self.network, batch)
            elif WEIGHS:
                loss, weight = forward(self.network, batch)
            elif METRICS:
                loss, output, target = forward(self.network, batch)
            else:
                loss = forward(self.network, batch)
            if MAY_BE_EMPTY and loss is None:
                return
            values = {"val_loss": loss}
            if METRICS:
                for name, metric in metrics.items():
                    value = metric(output, target)
                    values[f"val_{name}"] = torch.as_tensor(value).float().mean()
            if WEIGHS:
                self.log_dict(values, prog_bar=True, batch_size=int(weight))
            elif METRICS:
                self.log_dict(values, prog_bar=True)
            else:
                self.log("val_loss", loss, prog_bar=True)

    def configure_optimizers(self):
        parameters = [p for p in all_parameters(self.network) if p.requires_grad]
        if MUON:
            parameters = MuonWithAdamW.groups(self.network, parameters)
        if PARTS:
            optimizer = joined_optimizers(parameters, by_name(self.network), self.config)
        elif GROUPS:
            divided = by_rules(parameters, rules, by_name(self.network))
            optimizer = made_optimizer(divided, self.config)
        else:
            optimizer = made_optimizer(parameters, self.config)
        if SCHEDULE:
            scheduler = make_schedule(optimizer, self.config, self.updates if LENGTH else 0)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }
        if OWN_SCHEDULER:
            scheduler = make_scheduler(optimizer, self.updates)
            if SCHEDULER_IN_DICT:
                scheduler = scheduler["scheduler"]
            options = {
                "scheduler": scheduler,
                "interval": "step" if OWN_SCHEDULER == "step" else "epoch",
            }
            if FREQUENCY != 1:
                options["frequency"] = FREQUENCY
            if OWN_SCHEDULER == "check":
                options["monitor"] = MONITOR
            return {"optimizer": optimizer, "lr_scheduler": options}
        return optimizer


def main(config):
    if DETECT_ANOMALY:
        torch.autograd.set_detect_anomaly(True)
    if "lr" in HAS_HOME:
        lr_home = config.lr
    if "batch_size" in HAS_HOME:
        batch_size_home = config.batch_size
    if START is not None:
        load_start(network)
    network.train()
    L.seed_everything(config.seed)
    if not MAKES_LOADERS:
        loader = training_loader(train_data, config, None)
        if VALIDATES:
            val_loader = validation_loader(val_data, config, None)
    if COMPILES and COMPILES_BLOCKS:
        for block in repeated_blocks(network):
            block.compile(**COMPILE_OPTIONS)
    elif COMPILES:
        network.compile(**COMPILE_OPTIONS)
    if BRINGS_CALLBACKS:
        network.configure_callbacks = list  # the trainer has them, and they would replace its own
    updates = planned_updates(config, loader) if LENGTH else None
    module = network if BATCH == "step" else Module(config, network, loss_function, updates)
    callbacks = [
        ModelCheckpoint(
            config.output,
            monitor=BEST,
            mode="max" if BEST_IS_HIGHEST else "min",
            save_top_k=SAVE_TOP_K,
        )
    ]
    if EARLY_STOPPING:
        callbacks += [EarlyStopping(**options) for options in EARLY_STOPPING]
    if WINDOWS is not None:
        callbacks.append(GradientAccumulationScheduler(WINDOWS))
    if AVERAGING == "ema":
        callbacks.append(
            EMAWeightAveraging(
                decay=config.ema_decay,
                update_every_n_steps=AVERAGING_EVERY_N_STEPS,
                update_starting_at_step=AVERAGING_START or None,
            )
        )
    if AVERAGING == "swa":
        callbacks.append(
            StochasticWeightAveraging(
                swa_lrs=config.swa_lrs,
                swa_epoch_start=config.swa_epoch_start + 1,
                annealing_epochs=config.annealing_epochs,
                annealing_strategy=ANNEALING_STRATEGY,
            )
        )
    if CHECKS_WITHIN_EPOCHS == "updates" and ACCUMULATES:
        config.val_check_interval *= config.accumulate_grad_batches  # Lightning counts batches
    trainer = L.Trainer(
        accelerator=ACCELERATOR,
        devices=DEVICES,
        num_nodes=NUM_NODES,
        strategy=STRATEGY,
        precision=TRAINER_PRECISION,
        max_epochs=config.max_epochs if MAX_EPOCHS is not None else -1,
        max_steps=config.max_steps if MAX_STEPS is not None else -1,
        min_epochs=config.min_epochs if MIN_EPOCHS else None,
        min_steps=config.min_steps if MIN_STEPS else None,
        max_time=MAX_TIME,
        gradient_clip_val=config.gradient_clip_val if CLIPS else None,
        gradient_clip_algorithm=CLIP_ALGORITHM if CLIPS and CLIP_ALGORITHM != "norm" else None,
        accumulate_grad_batches=config.accumulate_grad_batches
        if ACCUMULATES and WINDOWS is None
        else 1,
        limit_train_batches=config.limit_train_batches if LIMITS else None,
        limit_val_batches=config.limit_val_batches if LIMITS_VAL else None,
        check_val_every_n_epoch=config.check_val_every_n_epoch
        if CHECK_VAL_EVERY_N_EPOCH not in (1, None)
        else CHECK_VAL_EVERY_N_EPOCH,
        val_check_interval=config.val_check_interval if CHECKS_WITHIN_EPOCHS else None,
        num_sanity_val_steps=NUM_SANITY_VAL_STEPS,
        deterministic=DETERMINISTIC or None,
        benchmark=BENCHMARK,
        log_every_n_steps=LOG_EVERY_N_STEPS,
        logger=CSVLogger(config.output),
        callbacks=callbacks,
    )
    if DATAMODULE:
        trainer.fit(module, datamodule=datamodule)
    elif MAKES_LOADERS:
        trainer.fit(module)
    elif VALIDATES:
        trainer.fit(module, loader, val_loader)
    else:
        trainer.fit(module, loader)
    trainer.save_checkpoint(config.output / "last.ckpt")
