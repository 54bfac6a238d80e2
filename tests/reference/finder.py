"""Slow twin of the learning-rate finder: docs/concepts/techniques.md as a plain loop, sharing no code with it."""

import math

from tests.reference.loop import list_windows, seed_all
from tests.reference.lr_rules import ema, exponential, stops_at


def sweep(
    model,
    loss_of,
    optimizer,
    loader,
    *,
    low=1e-5,
    high=10.0,
    n=100,
    seed=0,
    accumulate=1,
    threshold=4.0,
):
    """Sweep and throw `model` away; (lrs, losses, smoothed) up to the point that ended it."""
    seed_all(seed)
    model.train()
    base = [group["lr"] for group in optimizer.param_groups]
    feed = _endless(loader, accumulate)
    lrs, losses = [], []
    for lr in exponential(low, high, n):
        for group, own in zip(optimizer.param_groups, base, strict=True):
            group["lr"] = lr * own / base[0]
        window = next(feed)
        samples = sum(len(batch[-1]) for batch in window)
        mean = 0.0
        for batch in window:
            loss = loss_of(model, batch) * (len(batch[-1]) / samples)
            loss.backward()
            mean = loss.detach() + mean
        lrs.append(lr)
        losses.append(float(mean))
        if not math.isfinite(losses[-1]) or stops_at(losses, threshold) is not None:
            break
        optimizer.step()
        optimizer.zero_grad()
    return lrs, losses, ema(losses, 0.98)


def _endless(loader, accumulate):
    while True:
        yield from list_windows(loader, accumulate)
