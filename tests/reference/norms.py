"""Slow twin of the gradient norms: one parameter after another, as a person would write it."""

import math

import torch


def layer_norms(model, p=2.0):
    """The p-norm of each trainable parameter's gradient, in order; NaN where there is none."""
    return [
        math.nan if q.grad is None else torch.linalg.vector_norm(q.grad, p).item()
        for q in model.parameters()
        if q.requires_grad
    ]


def total_norm(model, p=2.0):
    """The p-norm of all gradients together."""
    norms = [torch.linalg.vector_norm(q.grad, p) for q in model.parameters() if q.grad is not None]
    return torch.linalg.vector_norm(torch.stack(norms), p).item()


def total_norm_flat(model, p=2.0):
    """The same from one long vector in double precision: equal to float tolerance only."""
    flat = torch.cat([q.grad.double().flatten() for q in model.parameters() if q.grad is not None])
    return torch.linalg.vector_norm(flat, p).item()
