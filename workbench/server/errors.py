"""The errors of a request that have a status of their own."""

from __future__ import annotations


class NotFoundError(Exception):
    """No object of this name exists."""


class StaleError(Exception):
    """The change is based on a state that somebody else has changed meanwhile."""


class ConflictError(Exception):
    """The request cannot be carried out with the run in its present state."""
