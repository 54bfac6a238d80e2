"""The log of a training."""

from __future__ import annotations

import json


def write_row(row, config, accelerator, step):
    """Give numbers to the tracker, and a line of the log file."""
    accelerator.log(row, step=step)
    if config.log_file and accelerator.is_main_process:
        with open(config.log_file, "a") as file:
            print(json.dumps({"step": step, **row}), file=file)
