"""Tune small, train large: what changes with a model's width, with the batch size and the length."""
