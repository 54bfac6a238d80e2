"""The first job of a new kernel, with all that is waited for: `python -m tests.benchmarks.launched.fresh LAUNCHER RANKS`.

It prints seconds to the end of the first update: from the first import on; and from the moment when the imports of the
first cell are done, and the bench, or the trainer and its model, is about to be made.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import warnings
from pathlib import Path

PACKAGES = {
    "workbench": "workbench",
    "notebook_launcher": "accelerate",
    "Lightning": "lightning.pytorch",
}


def main() -> None:
    launcher, ranks = sys.argv[1], int(sys.argv[2])
    warnings.simplefilter("ignore")
    began = time.time()
    importlib.import_module("torch")
    importlib.import_module(PACKAGES[launcher.split()[0]])
    from tests.benchmarks.launched.launchers import LAUNCHERS, Job
    from tests.benchmarks.launched.problems import MARKS, data

    job, marks = Job(data("tensor", 0), 64, 1, ranks), Path(os.environ[MARKS])
    ready = time.time()
    LAUNCHERS[launcher](job)()
    first = min(map(float, marks.read_text().split()))
    print(f"@ {first - began} {first - ready}", flush=True)


if __name__ == "__main__":
    main()
