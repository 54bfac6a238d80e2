"""Slow twin of every training technique: one plain PyTorch loop, told here step by step.

It shares nothing with the engine: schedules set `lr` by hand, averages are torch's AveragedModel, windows are
lists, clipping is torch's own function. What it knows of the order of samples is in the loader it is given.
"""

import contextlib
import itertools
import math
from dataclasses import dataclass, field

import torch

from tests.reference.loop import list_windows, seed_all
from tests.reference.technique_parts import Average, Record, Stopper, detached, pieces, size_at


def samples(batch):
    return len(batch[-1])


@dataclass
class Twin:
    """All that a run is made of. `step(batch, optimizer, hiddens)` gives a loss, a dict or None, as a user's would."""

    model: torch.nn.Module
    loader: object
    step: object
    optimizers: list
    seed: int = 0
    epochs: int | None = None
    max_steps: int | None = None
    min_epochs: int = 0
    min_steps: int = 0
    limit: int | None = None
    """Batches of an epoch that are read."""
    accumulate: int | dict = 1
    weigh: object = samples
    multiplier: object = None
    """The rate of update k is the base rate times multiplier(k)."""
    schedules: list = field(default_factory=list)
    clip: float | None = None
    clip_by: str = "norm"
    p: float = 2.0
    precision: str = "32-true"
    frequencies: tuple = ()
    bptt: int | None = None
    time_dim: int = 1
    pieces_per_batch: int = 1
    average: Average | None = None
    check: object = None
    """check(model) -> metrics; None: no validation."""
    check_interval: float | int = 1.0
    check_every_n_epoch: int = 1
    stopping: list = field(default_factory=list)
    skip_nonfinite: bool = False

    def autocast(self):
        if self.precision == "bf16-mixed":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return contextlib.nullcontext()


def train(model, loader, step, optimizers, **techniques):
    """Train `model` in place with these techniques (the fields of `Twin`)."""
    t = Twin(model, loader, step, list(optimizers), **techniques)
    run, stoppers = Record(), [Stopper(s) for s in t.stopping]
    seed_all(t.seed)
    model.train()
    base = [[group["lr"] for group in o.param_groups] for o in t.optimizers]
    count = taken = 0  # updates, and those of them that were not skipped
    for epoch in itertools.count():
        if epoch == t.epochs or count == t.max_steps:
            break
        if t.average and t.average.takes_over(epoch):
            if t.multiplier:
                _set_rates(t.optimizers, base, t.multiplier(taken))
            t.multiplier, t.schedules = None, t.average.schedules(t.optimizers)
        end, losses, in_epoch, hiddens = False, [], 0, {}
        batches, size = (
            itertools.islice(t.loader, t.limit) if t.limit else t.loader,
            size_at(t.accumulate, epoch),
        )
        per_epoch = math.ceil((t.limit or len(t.loader)) * t.pieces_per_batch / size)
        for number, window in enumerate(
            list_windows(pieces(batches, t.bptt, t.time_dim), size), start=1
        ):
            if t.multiplier:
                _set_rates(t.optimizers, base, t.multiplier(taken))
            row, hiddens = _update(t, window, count, hiddens)
            if row is None:
                continue
            run.row(**row)
            count, in_epoch = count + 1, in_epoch + 1
            losses.append(row["loss"])
            if not row["skipped"]:
                taken += 1
                _after_update(t, taken, count, epoch, min(number * size, t.limit or len(t.loader)))
            if (
                number < per_epoch
                and count != t.max_steps
                and _due(t, epoch, count, in_epoch, per_epoch)
            ):
                end = (
                    _check(t, run, stoppers, count, losses)
                    and epoch >= t.min_epochs
                    and count >= t.min_steps
                )
            if end or count == t.max_steps:
                break
        if end or (count == t.max_steps and number < per_epoch):
            break  # in the middle of an epoch
        run.epochs = epoch + 1
        for entry in t.schedules:
            if entry.when == "epoch" and (epoch + 1) % entry.frequency == 0:
                entry.scheduler.step()
        if t.average:
            t.average.after_epoch(model, epoch)
        # no update since the last check
        seen = bool(run.validations) and run.validations[-1][0] == count
        if not seen and _due(t, epoch, count, per_epoch, per_epoch):
            end = _check(t, run, stoppers, count, losses)
            if end and epoch + 1 >= t.min_epochs and count >= t.min_steps:
                break
    if t.check and (not run.validations or run.validations[-1][0] != count):
        _check(t, run, [], count, losses)
    if t.average and t.average.there:
        t.average.copy_to(model, t.autocast)
    run.weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return run


def _set_rates(optimizers, base, factor):
    for optimizer, rates in zip(optimizers, base, strict=True):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor


def _update(t, window, count, hiddens):
    """One update of all optimizers whose turn it is: its row, and the hidden state behind the window, of each."""
    turns = range(len(t.optimizers))
    if t.frequencies:
        owners = [i for i, f in enumerate(t.frequencies) for _ in range(f)]
        turns = [owners[count % len(owners)]]
    row, parts, skipped = {"lr": t.optimizers[0].param_groups[0]["lr"]}, {}, False
    for i in turns:
        part = _turn(t, i, window, hiddens.get(i))
        if part is None:
            return None, hiddens
        parts[i], skipped = part, skipped or part["skipped"]
    row["loss"] = sum(part["loss"] for part in parts.values()).item()
    row["grad_norm"] = _joined([n for part in parts.values() for n in part["norms"]], t.p)
    if t.clip is not None:
        row["grad_norm_clipped"] = _joined([part["clipped"] for part in parts.values()], 2.0)
    if len(t.optimizers) > 1:
        for i, optimizer in enumerate(t.optimizers):
            row[f"lr.{i}"] = optimizer.param_groups[0]["lr"] if i not in parts else parts[i]["lr"]
            row[f"loss.{i}"] = parts[i]["loss"].item() if i in parts else float("nan")
            row[f"grad_norm.{i}"] = _joined(parts[i]["norms"], t.p) if i in parts else float("nan")
            if t.clip is not None:
                row[f"grad_norm_clipped.{i}"] = (
                    parts[i]["clipped"].item() if i in parts else float("nan")
                )
    row["skipped"] = skipped
    # One whose turn it was not goes on from where the other has come to.
    return row, {i: parts.get(i, parts[turns[-1]])["hiddens"] for i in range(len(t.optimizers))}


def _joined(norms, p):
    return (
        norms[0].item()
        if len(norms) == 1
        else torch.linalg.vector_norm(torch.stack(norms), p).item()
    )


def _turn(t, i, window, hiddens):
    """Optimizer i's gradient of the window, measured, clipped and stepped with; None where nothing is left of it."""
    optimizer, evaluations = t.optimizers[i], []
    own = [p for group in optimizer.param_groups for p in group["params"]]
    required = [(p, p.requires_grad) for p in t.model.parameters()]
    if len(t.optimizers) > 1:
        for p, needed in required:
            p.requires_grad_(needed and any(p is q for q in own))

    def closure():
        optimizer.zero_grad()
        loss, after = _gradient(t, i, window, hiddens, own)
        if loss is None:
            evaluations.append(None)
            return None
        gradients = [p.grad for p in own if p.grad is not None]
        part = {"loss": loss, "hiddens": after, "lr": optimizer.param_groups[0]["lr"]}
        part["norms"] = [torch.linalg.vector_norm(g, t.p) for g in gradients]
        part["skipped"] = not all(bool(torch.isfinite(x).all()) for x in (loss, *gradients))
        part["clipped"] = _clipped(own, gradients, t.clip, t.clip_by)
        evaluations.append(part)
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    elif hasattr(optimizer, "first_step"):  # SAM
        closure()
        optimizer.step(closure)
    else:
        closure()
        if evaluations[0] is not None and not (t.skip_nonfinite and evaluations[0]["skipped"]):
            optimizer.step()
    optimizer.zero_grad()
    for p, needed in required:
        p.requires_grad_(needed)
    first, last = evaluations[0], evaluations[-1]
    return first and {**first, "hiddens": last["hiddens"]}


def _gradient(t, i, window, hiddens, own):
    """Gradients of the window's weighted mean loss, and that loss; None where every batch is left out."""
    window = [(batch, first, length) for batch, first, length in window if batch is not None]
    planned = sum(t.weigh(batch) * length for batch, _, length in window)
    total = weighed = 0.0
    reported = False
    for batch, first, length in window:
        with t.autocast():
            result = t.step(batch, i, None if first else hiddens)
        if result is None:
            continue
        told = result if isinstance(result, dict) else {"loss": result}
        loss, hiddens = told["loss"], detached(told.get("hiddens"))
        if len(window) == 1:
            loss.backward()
            return loss.detach(), hiddens
        reported = "weight" in told
        weight = told["weight"] if reported else t.weigh(batch) * length
        part = loss * (weight if reported else weight / planned)
        part.backward()
        total, weighed = part.detach() + total, weight + weighed
    if weighed == 0:
        return None, hiddens
    if not reported and weighed == planned:
        return total, hiddens
    rest = weighed if reported else weighed / planned
    for p in own:
        if p.grad is not None:
            p.grad /= rest
    return total / rest, hiddens


def _clipped(own, gradients, clip, by):
    """Clip with torch's own function; the total 2-norm behind it."""
    if clip is None:
        return None
    if by == "norm":
        before = torch.nn.utils.clip_grad_norm_(own, clip)
        return before * torch.clamp(clip / (before + 1e-6), max=1.0)
    torch.nn.utils.clip_grad_value_(own, clip)
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))


def _after_update(t, taken, count, epoch, batches):
    """batches: those of this epoch that are done with."""
    for entry in t.schedules:
        counted = {"step": taken, "batch": batches}.get(entry.when)
        if counted is not None and counted % entry.frequency == 0:
            entry.scheduler.step()
    if t.average:
        t.average.after_update(t.model, count, epoch)


def _due(t, epoch, count, in_epoch, per_epoch):
    """Whether the validation data are checked after this update; a float counts within the epoch, an int overall."""
    if t.check is None:
        return False
    if isinstance(t.check_interval, int):
        return count % t.check_interval == 0
    if (epoch + 1) % t.check_every_n_epoch:
        return False
    return in_epoch % max(1, int(per_epoch * t.check_interval)) == 0


def _check(t, run, stoppers, count, losses):
    """One look at the validation data, raw and averaged; whether a stopper wants the run to end."""
    with t.autocast():
        metrics = t.check(t.model)
    if t.average and t.average.there:
        with t.average.in_place_of(t.model, t.autocast), t.autocast():
            metrics |= {f"{name}_averaged": value for name, value in t.check(t.model).items()}
    run.validations.append((count, metrics))
    for entry in t.schedules:
        if entry.when == "check":
            entry.scheduler.step(metrics[entry.monitor])
    known = metrics | {"train_loss": sum(losses) / max(len(losses), 1)}
    wishes = [stopper.ends(known[stopper.monitor]) for stopper in stoppers]  # each of them looks
    return any(wishes)
