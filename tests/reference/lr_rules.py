"""Slow twin of the LR finder's arithmetic: docs/concepts/techniques.md in plain loops, sharing no code with it."""

import math


def ema(values, beta):
    """Debiased exponential moving average: accumulate, then divide by 1 - beta^n."""
    out, total = [], 0.0
    for n, value in enumerate(values, 1):
        total = beta * total + (1 - beta) * value
        out.append(total / (1 - beta**n))
    return out


def exponential(low, high, n):
    return [low * (high / low) ** (k / (n - 1)) for k in range(n)]


def stops_at(losses, threshold=4.0, beta=0.98):
    """Index at which a sweep of positive losses ends early, and why; None: never. The tenth point is the first that counts."""
    best = None
    for i in range(len(losses)):
        if math.isnan(losses[i]) or math.isinf(losses[i]):
            return i, "not finite"
        if i < 9:
            continue
        smoothed = ema(losses[: i + 1], beta)[-1]
        best = smoothed if best is None else min(best, smoothed)
        if threshold is not None and smoothed > threshold * best:
            return i, "exploded"
    return None


def valley_index(y):
    """Every pair is compared: fall[i] is the longest falling run of points that ends at i."""
    fall = []
    for i in range(len(y)):
        longest = 1
        for j in range(i):
            if y[j] > y[i] and fall[j] + 1 > longest:
                longest = fall[j] + 1
        fall.append(longest)
    if not fall or max(fall) < 2:
        return None
    length = max(fall)
    end = fall.index(length)
    third = length / 3
    return max(0, end - length + int(third) + int(third / 2))


def steepest_index(lrs, y, skip):
    """Central differences on an uneven grid, weighted by the spacing; one-sided at the ends."""
    x = [math.log10(lr) for lr in lrs]
    best = None
    for i in range(skip, len(y)):
        if i == skip:
            slope = (y[i + 1] - y[i]) / (x[i + 1] - x[i])
        elif i == len(y) - 1:
            slope = (y[i] - y[i - 1]) / (x[i] - x[i - 1])
        else:
            before, after = x[i] - x[i - 1], x[i + 1] - x[i]
            left, right = (y[i] - y[i - 1]) / before, (y[i + 1] - y[i]) / after
            slope = (right * before + left * after) / (before + after)
        if best is None or slope < best[0]:
            best = (slope, i)
    return best


def minimum_lr(lrs, y):
    low = 0
    for i in range(len(y)):
        if y[i] < y[low]:
            low = i
    return lrs[low] / 10 if low else None


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def landmarks(lrs, losses, beta, adaptive, one_cycle):
    """The recommended rate of a sweep of 100 positive losses."""
    base, high = median(losses[:10]), max(losses[:10])
    edge, keep = lrs[-1], len(losses)
    for i in range(len(losses)):
        if losses[i] > 4 * high and median(losses[i : i + 5]) > high:
            edge, keep = lrs[i], i
            break
    s = ema(losses[:keep], 0.9)
    at = valley_index(s[10:])
    if at is None:
        return None
    low = 5
    for i in range(5, keep):
        if s[i] < s[low]:
            low = i
    lost = keep
    while (
        lost > low + 1
        and median(losses[max(0, lost - 3) : min(keep, lost + 2)]) > (base + s[low]) / 2
    ):
        lost -= 1
    steps = [losses[i + 1] - losses[i] for i in range(low)]
    mean = sum(steps) / len(steps)
    spread = math.sqrt(sum((step - mean) ** 2 for step in steps) / len(steps))
    if base - s[low] > 2 * spread and lost < keep and lrs[keep - 1] >= 5 * lrs[lost]:
        edge = 1.5 * lrs[lost]
    three = [
        edge * (1 - beta) * 0.316 * (0.56 if adaptive else 1),
        4 * lrs[10 + at],
        lrs[low] * math.sqrt(1 - beta) * 0.316,
    ]
    return median(three) * (1.33 if one_cycle else 0.75)
