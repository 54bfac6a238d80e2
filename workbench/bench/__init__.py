"""Workbench: one task, its settings, its jobs. The panel, cells and scripts all work on it."""

from workbench.bench.workbench import Workbench

__all__ = ["Workbench"]
