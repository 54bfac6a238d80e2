"""Mutations of the code, each of which the suite must catch: `python -m tests.mutations`, or `make mutations`."""
