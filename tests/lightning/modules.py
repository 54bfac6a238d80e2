"""Modules with schedules, steps and hooks of their own, as people write them on top of Lightning's demo model."""

import torch

from tests.lightning.both import boring, pl

LR = 0.1


def scheduled(make, **how):
    """The demo model with another schedule: `make(optimizer)`, and the rest of Lightning's dictionary."""

    class Scheduled(boring.BoringModel):
        def validation_step(self, batch, batch_idx):
            loss = self.step(batch)
            self.log("val_loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=LR, momentum=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), **how}}

    return Scheduled


lr = torch.optim.lr_scheduler
EachUpdate = scheduled(lambda o: lr.ExponentialLR(o, 0.9), interval="step")
EverySecond = scheduled(lambda o: lr.ExponentialLR(o, 0.9), interval="step", frequency=2)
EachEpoch = scheduled(lambda o: lr.ExponentialLR(o, 0.5), interval="epoch")
EverySecondEpoch = scheduled(lambda o: lr.ExponentialLR(o, 0.5), interval="epoch", frequency=2)
Plateau = scheduled(
    lambda o: lr.ReduceLROnPlateau(o, patience=0, threshold=0.5), monitor="val_loss"
)


class Growing(EachEpoch):
    """What it logs falls for seven updates, and rises then; of its batches it logs how many there were."""

    def training_step(self, batch, batch_idx):
        self.log("batches", 1.0, on_step=False, on_epoch=True, reduce_fx="sum")
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        if not self.trainer.sanity_checking:
            self.log("val_loss", abs(7.0 - self.global_step))


class TwoSchedules(boring.BoringModel):
    """One of each kind, in Lightning's form of two lists."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=LR)
        first = {
            "scheduler": lr.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
            "interval": "step",
        }
        return [optimizer], [first, lr.StepLR(optimizer, 1, 0.5)]


class OwnScheduleStep(EachUpdate):
    """Steps its scheduler with a number of its own, as timm's schedulers want it."""

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(self.global_step // 2)


class Skips(boring.BoringModel):
    """Takes a step at every second batch alone; the closure runs at each."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()


class WarmsUp(boring.BoringModel):
    """Raises the rate by hand over the first updates, as Lightning's documentation shows."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 4:
            for group in optimizer.param_groups:
                group["lr"] = min(1.0, float(self.trainer.global_step + 1) / 4) * LR


class ByHand(boring.BoringModel):
    """Calls the closure itself, looks at the gradients, and steps without one."""

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        optimizer_closure()
        self.layer.bias.grad.mul_(2.0)
        optimizer.step()


class AsInherited(boring.BoringModel):
    """Does something beside, and leaves the rest to Lightning."""

    def optimizer_step(self, *arguments, **options):
        super().optimizer_step(*arguments, **options)
        with torch.no_grad():
            self.layer.weight.clamp_(-0.15, 0.15)


class ClipsItsWay(boring.BoringModel):
    """Clips by a limit that falls with the epochs."""

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        limit = (gradient_clip_val or 1.0) / (1 + self.current_epoch)
        self.clip_gradients(
            optimizer,
            gradient_clip_val=limit,
            gradient_clip_algorithm=gradient_clip_algorithm or "norm",
        )


class ClipsSometimes(boring.BoringModel):
    """Clips as the setting says, from its second epoch on."""

    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        if self.current_epoch:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)


class ZeroesItsWay(boring.BoringModel):
    """Drops gradients to zero, not to None."""

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)


class KeepsGradients(boring.BoringModel):
    """Drops them at every second batch alone."""

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        if batch_idx % 2 == 0:
            optimizer.zero_grad()


class BackwardItsWay(boring.BoringModel):
    """Weighs the loss before backward, and noise-free gradients behind it."""

    def backward(self, loss):
        (loss * 0.5).backward()

    def on_after_backward(self):
        for parameter in self.parameters():
            parameter.grad.clamp_(-0.2, 0.2)


class LeavesEarly(boring.BoringModel):
    """Has enough of an epoch at its fifth batch."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 4 else None


class LeavesOut(boring.BoringModel):
    """Learns nothing from some batches."""

    def training_step(self, batch, batch_idx):
        return None if batch_idx in (1, 4) else super().training_step(batch, batch_idx)


class StopsItself(boring.BoringModel):
    """Asks its trainer for the end."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == 2:
            self.trainer.should_stop = True


class Moves(boring.BoringModel):
    """Has batches of its own kind, changed on the way to the device and there."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch * 2

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        return super().transfer_batch_to_device(batch, device, dataloader_idx) + 1

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch - 0.5 if self.trainer.training else batch


class Frozen(boring.BoringModel):
    """Keeps a part of it in evaluation mode, and says itself what evaluation mode is."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(32)

    def forward(self, x):
        return self.layer(self.norm(x))

    def on_train_epoch_start(self):
        if self.current_epoch:
            self.norm.eval()

    def on_validation_model_eval(self):
        self.layer.eval()

    def on_validation_model_train(self):
        self.layer.train()


class Manual(boring.ManualOptimBoringModel):
    """The demo of manual optimisation, accumulating and stepping its schedule itself."""

    def training_step(self, batch, batch_idx):
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        loss = self.step(batch)
        self.manual_backward(loss)
        if (batch_idx + 1) % 2 == 0:
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()
        if self.trainer.is_last_batch:
            schedule.step()
        return loss


class ManualClosure(boring.ManualOptimBoringModel):
    """A closure handed to the optimizer."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()

        def closure():
            loss = self.step(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            return loss

        optimizer.step(closure=closure)


class Frugal(pl.LightningModule):
    """The fewest methods that make a module."""

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(32, 1)

    def training_step(self, batch):
        return self.line(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)
