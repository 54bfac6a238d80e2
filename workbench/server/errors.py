"""The errors of a request that have a status of their own."""

from __future__ import annotations


class NotFoundError(Exception):
    """There is nothing of this name."""


class ConflictError(Exception):
    """What was asked for cannot be done with the run as it is now."""
