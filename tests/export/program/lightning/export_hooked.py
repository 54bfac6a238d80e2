"""The Lightning-like objects whose scripts are tested: each hook tells when it is called and with what."""

from __future__ import annotations

PRELUDE = """\
import os

import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb

torch.manual_seed(0)
x, y = torch.randn(60, 6), torch.randint(0, 3, (60,))


class Own(nn.Module):
    def __init__(self, lr=0.05):
        super().__init__()
        self.lr = lr
        self.body, self.norm, self.head = nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 3)
        self.said = []

    def forward(self, x):
        return self.head(F.dropout(F.relu(self.norm(self.body(x))), 0.2, self.training))

    def say(self, *words):
        self.said.append(words)

    def training_step(self, batch, batch_idx):
        self.say("training_step", batch_idx)
        return F.cross_entropy(self(batch[0]), batch[1]) * (1 + batch_idx % 2)

    def validation_step(self, batch, batch_idx):
        self.say("validation_step", batch_idx)
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
"""
# All that happens is told at the end, to a file that the test names: the run's and the script's must be the same.
TOLD = """
    def on_fit_end(self):
        self.say("on_fit_end")
        with open(os.environ["SAID"], "w") as file:
            print(*self.said, sep="\\n", file=file)
"""
EVERY = f"""
class Every(Own):
    def on_fit_start(self):
        self.said = [("on_fit_start",)]

    def on_train_start(self):
        self.say("on_train_start", self.training)

    def on_train_end(self):
        self.say("on_train_end")

    def on_train_epoch_start(self):
        self.say("on_train_epoch_start")

    def on_train_epoch_end(self):
        self.say("on_train_epoch_end")

    def on_train_batch_start(self, batch, batch_idx):
        self.say("on_train_batch_start", batch_idx, len(batch[0]))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.say("on_train_batch_end", sorted(outputs), outputs["loss"].item(), outputs["loss"].requires_grad, batch_idx)

    def on_before_zero_grad(self, optimizer):
        self.say("on_before_zero_grad", type(optimizer).__name__, self.body.weight.grad is None)

    def on_before_backward(self, loss):
        self.say("on_before_backward", loss.item())

    def on_after_backward(self):
        self.say("on_after_backward", self.body.weight.grad.norm().item())
        self.head.bias.grad *= 0.5

    def on_before_optimizer_step(self, optimizer):
        self.say("on_before_optimizer_step", self.body.weight.grad.norm().item())

    def on_validation_start(self):
        self.say("on_validation_start", self.training)

    def on_validation_epoch_start(self):
        self.say("on_validation_epoch_start")

    def on_validation_batch_start(self, batch, batch_idx):
        self.say("on_validation_batch_start", batch_idx)

    def on_validation_batch_end(self, outputs, batch, batch_idx):
        self.say("on_validation_batch_end", outputs.item(), batch_idx)

    def on_validation_epoch_end(self):
        self.say("on_validation_epoch_end")

    def on_validation_end(self):
        self.say("on_validation_end", self.training)

    def on_validation_model_eval(self):
        self.eval()
        self.norm.train()

    def on_validation_model_train(self):
        self.say("on_validation_model_train", self.training)
{TOLD}"""
STEPS = f"""
class Steps(Own):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        self.say("optimizer_step", epoch, batch_idx, optimizer.__class__.__name__, isinstance(optimizer, torch.optim.SGD))
        for group in optimizer.param_groups:
            group["lr"] = self.lr * min(1.0, (self.steps + 1) / 5)
        self.steps += 1
        if batch_idx % 3 == 1:
            optimizer_closure()  # evaluated, and no step taken
        elif batch_idx % 3 == 2:
            optimizer_closure()
            optimizer.step()
        else:
            optimizer.step(closure=optimizer_closure)

    def on_train_start(self):
        self.steps, self.said = 0, []

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        self.say("optimizer_zero_grad", epoch, batch_idx)
        optimizer.zero_grad(set_to_none=False)

    def on_before_optimizer_step(self, optimizer):
        self.say("on_before_optimizer_step", optimizer.__class__.__name__, self.head.bias.grad.norm().item())

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.say("configure_gradient_clipping", gradient_clip_val, gradient_clip_algorithm)
        self.clip_gradients(optimizer, gradient_clip_val=gradient_clip_val, gradient_clip_algorithm=gradient_clip_algorithm)
        self.clip_gradients(optimizer, 0.02, "value")

    def backward(self, loss, *arguments):
        loss.backward(*arguments)
        self.body.weight.grad *= 0.9

    def lr_scheduler_step(self, scheduler, metric):
        self.say("lr_scheduler_step", type(scheduler).__name__, metric, self.training)
        scheduler.step() if metric is None else scheduler.step(metric)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [
            {{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step", "frequency": 2}},
            {{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}},
            {{"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), "monitor": "val_loss"}},
        ]
{TOLD}

class Windows(Steps):
    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
        optimizer.step(closure=optimizer_closure)
        self.say(batch_idx, self.lr_schedulers()[0].last_epoch, self.optimizers() is optimizer.optimizer)
"""
SHORT = f"""
class Short(Own):
    def on_train_batch_start(self, batch, batch_idx):
        self.say("on_train_batch_start", batch_idx)
        if batch_idx == self.batches:
            self.batches += 2
            return -1

    def on_train_start(self):
        self.batches, self.said = 0, []

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.say("on_train_batch_end", batch_idx, outputs["more"], outputs["loss"].item())

    def training_step(self, batch, batch_idx):
        return {{"loss": super().training_step(batch, batch_idx), "more": batch_idx * 2}}

    def on_train_epoch_end(self):
        self.say("on_train_epoch_end")
{TOLD}

class Gappy(Short):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.say("on_train_batch_end", batch_idx, len(outputs))

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 3 else None
"""
MOVED = f"""
class Moved(Own):
    def on_before_batch_transfer(self, batch, dataloader_idx):
        return [batch[0] * 2, batch[1]]

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        self.say("transfer_batch_to_device", len(batch), self.trainer.training, self.trainer.sanity_checking)
        return [part.to(device) for part in batch]

    def on_after_batch_transfer(self, batch, dataloader_idx):
        noise = torch.randn_like(batch[0]) if self.trainer.training else 0.0
        return batch[0] + noise, batch[1]

    def on_train_start(self):
        self.said = []
{TOLD}
"""
SAMPLES = """
class Samples:
    def prepare_data(self):
        self.ready = True

    def setup(self, stage):
        assert self.ready and stage == "fit"
        torch.manual_seed(5)
        self.samples = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self.samples, 8, shuffle=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self.samples, 10)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        assert self.trainer.training or self.trainer.validating or self.trainer.sanity_checking
        return batch[0] * (3 if self.trainer.training else 2), batch[1]

    def teardown(self, stage):
        del self.samples


class Plain(Own):
    training_step = None


net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
"""
ASKS = f"""
class Asks(Own):
    def on_train_start(self):
        trainer = self.trainer
        self.said = [(trainer.max_epochs, trainer.max_steps, trainer.world_size, trainer.num_training_batches,
                      trainer.num_val_batches, trainer.accumulate_grad_batches, trainer.gradient_clip_val, trainer.logger,
                      trainer.precision, trainer.is_global_zero, trainer.fast_dev_run, len(trainer.optimizers))]
        self.print("begun")

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        steps = self.trainer.estimated_stepping_batches
        return [optimizer], [{{"scheduler": torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps), "interval": "step"}}]

    def training_step(self, batch, batch_idx):
        self.say(self.current_epoch, self.global_step, self.trainer.current_epoch, self.trainer.training)
        return super().training_step(batch, batch_idx) * (1 + self.trainer.global_step % 2)

    def on_validation_epoch_end(self):
        self.say(self.current_epoch, self.global_step, self.trainer.validating, self.trainer.sanity_checking)

    def on_train_epoch_end(self):
        self.say("end", self.trainer.current_epoch)
        if self.trainer.current_epoch == 2:
            self.trainer.should_stop = True

    def on_train_end(self):
        self.say("over", self.current_epoch)
{TOLD}

class Stops(Asks):
    def on_train_epoch_end(self):
        pass

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step == 5:
            self.trainer.should_stop = True
"""
LOGS = """
class Right(nn.Module):
    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.seen = []

    def forward(self, output, y):
        self.seen.append((output.argmax(1) == y).float().mean())

    def compute(self):
        return torch.stack(self.seen).mean() if self.seen else torch.tensor(0.0)


class Logs(Own):
    def __init__(self):
        super().__init__()
        self.right = Right()
        self.outputs = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        output = self(batch[0])
        loss = F.cross_entropy(output, batch[1])
        self.right(output, batch[1])
        self.log("val_least", loss, reduce_fx="min")
        self.log("val_sum", loss, reduce_fx=torch.sum)
        self.log("val_even", loss, batch_size=1)
        self.log("val_forked", loss, on_step=True, on_epoch=True)
        self.log("val_right", self.right)
        self.outputs.append(output)
        return {"loss": loss, "weight": batch_idx + 1.0}

    def on_validation_batch_end(self, outputs, batch, batch_idx):
        self.log("val_behind", outputs["weight"] + batch[0].sum())

    def on_validation_epoch_end(self):
        self.log("val_all", torch.cat(self.outputs).std())
        self.log_dict({"val_twice": 2.0 * len(self.outputs)}, prog_bar=True)
        self.outputs.clear()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "val_all"}


class Helped(Logs):
    def on_validation_batch_end(self, outputs, batch, batch_idx):
        pass

    def on_validation_epoch_end(self):
        self.log("val_all", float(len(self.outputs)) + self.head.weight.sum())
        self.outputs.clear()
"""
MANUAL = f"""
class Manual(Own):
    automatic_optimization = False

    def on_train_start(self):
        self.said = []

    def on_train_batch_start(self, batch, batch_idx):
        self.say("on_train_batch_start", batch_idx)
        return -1 if batch_idx == 5 and self.stops else None

    stops = True

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        with self.toggled_optimizer(first):
            first.zero_grad()
            self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
            self.clip_gradients(first, gradient_clip_val=0.1)
            first.step()
        second.zero_grad()
        loss = self(batch[0]).square().mean()
        self.manual_backward(loss)
        if batch_idx % 2:
            self.clip_gradients(second, gradient_clip_val=0.01, gradient_clip_algorithm="value")
        second.step()
        return {{"loss": loss, "batch": batch_idx}}

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.say("on_train_batch_end", sorted(outputs), outputs["batch"], outputs["loss"].requires_grad, batch_idx)

    def on_before_backward(self, loss):
        self.say("on_before_backward", loss.item())

    def backward(self, loss):
        loss.backward()
        if self.head.bias.grad is not None:
            self.head.bias.grad *= 0.5

    def on_after_backward(self):
        self.say("on_after_backward", [None if p.grad is None else p.grad.norm().item() for p in self.parameters()])

    def on_before_optimizer_step(self, optimizer):
        self.say("on_before_optimizer_step", type(optimizer).__name__)

    def configure_optimizers(self):
        first = torch.optim.SGD([*self.norm.parameters(), *self.body.parameters()], lr=self.lr, momentum=0.9)
        return first, torch.optim.Adam(self.head.parameters(), lr=self.lr / 3)
{TOLD}

class Windows(Manual):
    stops = False

    def on_train_batch_start(self, batch, batch_idx):
        self.say("on_train_batch_start", batch_idx)
"""
DATA = "train=(x, y), val=(x[:28], y[:28]), batch_size=8"
