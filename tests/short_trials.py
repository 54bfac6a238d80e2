"""Trials of batch sizes that are timed over few updates: imported by the processes in which tests run them.

How well the speed of a size is known decides nothing in a test, and would take up to a second each time.
"""

from workbench.tuners import trial

trial.MOST = 10
