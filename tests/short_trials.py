"""Trials that are timed over few updates: imported by the processes in which tests run them.

How well a speed is known decides nothing in a test, and would take up to ten seconds each time.
"""

from pathlib import Path

from workbench.tuners import speed_search, trial
from workbench.tuners.batch_size import batch_size_finder

trial.MOST = 2
batch_size_finder.SHORTEST = batch_size_finder.MOST_SECONDS = 0.1
speed_search.MOST = 100

SHORT_TRIALS = f"""import sys
sys.path.append({str(Path(__file__).parents[1])!r})
import tests.short_trials
from workbench.launch.process import fork_client
fork_client.IF_LOADED += (tests.short_trials.__name__,)
sys.path.remove({str(Path(__file__).parents[1])!r})
del sys, tests, fork_client
"""
"""For a kernel that has not tried a size yet. Its fork server imports what it finds there and what the kernel has imported."""
