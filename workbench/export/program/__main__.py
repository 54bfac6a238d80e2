"""Runs the program as it stands: `python -m workbench.export.program --max_epochs 2`."""

from __future__ import annotations

import torch

from workbench.export.program.constants import SINGLE_PROCESS
from workbench.export.program.main import main
from workbench.export.program.settings import parse

if __name__ == "__main__":
    main(parse())
    if not SINGLE_PROCESS and torch.distributed.is_initialized():  # when main's model is gone
        torch.distributed.destroy_process_group()
