"""Slow twin of a fit: a plain PyTorch loop with nothing in it but torch and its own clipping."""

import random

import numpy as np
import torch

from tests.reference.norms import layer_norms, total_norm


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def loader_of(dataset, batch_size, *, shuffle=True, seed=0, **options):
    return torch.utils.data.DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=shuffle,
        generator=torch.Generator().manual_seed(seed),
        **options,
    )


def cross_entropy(model, batch):
    """The loss of a batch (x, y) of classes."""
    x, y = batch
    return torch.nn.functional.cross_entropy(model(x), y)


def fit(model, loss_of, optimizer, loader, epochs, *, seed=0, accumulate=1, clip=None, clip_by="norm", p=2.0,
        scheduler=None, max_steps=None, before_update=None, after_epoch=None):  # fmt: skip
    """Train `model` in place; what each update measured, as lists. `before_update(step)` may change anything.

    accumulate: batches of an update, or a function of its number that says how many.
    """
    seed_all(seed)
    model.train()
    out = {"loss": [], "lr": [], "grad_norm": [], "grad_norm_clipped": [], "layers": []}
    step = 0
    for _ in range(epochs):
        size = accumulate if isinstance(accumulate, int) else lambda: accumulate(step)  # noqa: B023
        batches = list_windows(loader, size)
        for window in batches:
            if before_update is not None:
                clip = before_update(step, optimizer, clip)
            samples = sum(len(batch[-1]) for batch in window)
            mean = 0.0
            for batch in window:
                loss = loss_of(model, batch)
                if len(window) > 1:  # a batch weighs as its samples, in the last short window too
                    loss = loss * (len(batch[-1]) / samples)
                loss.backward()
                mean = loss.detach() + mean
            out["loss"].append(mean.item())
            out["lr"].append(optimizer.param_groups[0]["lr"])
            out["layers"].append(layer_norms(model, p))
            out["grad_norm"].append(total_norm(model, p))
            out["grad_norm_clipped"].append(_clip(model, clip, clip_by))
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
            step += 1
            if step == max_steps:
                return out
        if after_epoch is not None:
            after_epoch()
    return out


def list_windows(loader, size):
    """Lists of `size` batches (a function: asked at the beginning of each); the last one may be shorter."""
    window = []
    for batch in loader:
        if not window:
            wanted = size() if callable(size) else size
        window.append(batch)
        if len(window) == wanted:
            yield window
            window = []
    if window:
        yield window


def _clip(model, clip, by):
    """Clip with torch's own function; the total 2-norm afterwards, NaN when nothing was clipped."""
    if clip is None:
        return float("nan")
    if by == "value":
        torch.nn.utils.clip_grad_value_(model.parameters(), clip)
        return total_norm(model, 2.0)
    before = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    return (before * torch.clamp(clip / (before + 1e-6), max=1.0)).item()
