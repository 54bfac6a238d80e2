"""Tune small, train large: what changes with the width, the batch size and the length."""
